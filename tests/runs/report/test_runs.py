"""Reports of runs of every kind: empty, cut off, going on, resumed, of some ranks only, and two side by side."""

from __future__ import annotations

import gzip
import json
import math
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import declog
from declog.cli import main
from declog.runs.report import page as reports
from declog.runs.report import tables
from declog.runs.report.facts import differences
from declog.runs.run import read
from tests.browser import Open, Opened
from tests.runs.report import runs
from tests.runs.report.test_page import texts

TINY = ["sinks=[jsonl]", "axes.group.size=2"]


def written(folder: Path, *others: Path, **options: Any) -> Path:
    """The report of a run, in a file."""
    reports.write(folder / "report.html", read(folder), [read(other) for other in others], **options)
    return folder / "report.html"


def held(file: Path) -> tuple[str, dict[str, Any]]:
    """All that a file holds, decoded, and its facts."""
    text = file.read_text(encoding="utf-8")
    blobs = re.findall(r'data-size="(\d+)">([^<]*)<', text)
    facts = json.loads(re.findall(r'id="meta">([^<]*)<', text)[0])
    decoded = [gzip.decompress(unpacked(blob, int(size))).decode("utf-8", "replace") for size, blob in blobs]
    return "\n".join([json.dumps(facts, ensure_ascii=False), *decoded]), facts


def unpacked(text: str, size: int) -> bytes:
    """The bytes that characters stand for, computed as one great number."""
    digits = [chr(code) for code in range(33, 127) if chr(code) not in "<>&"]
    values = [digits.index(one) * 91 + digits.index(two) for one, two in zip(text[::2], text[1::2], strict=True)]
    bits = "".join(f"{value:013b}" for value in values)
    return bytes(int(bits[at : at + 8], 2) for at in range(0, 8 * size, 8))


def badges(found: Opened) -> list[str]:
    """The badges of a page, which must have been shown in silence."""
    assert found.said == []
    return found.page.locator(".badge").all_inner_texts()


def log_one(log: declog.Recorder, step: int, rank: int = 0) -> None:
    """One step of two rows."""
    with log.step(step):
        log.observe(rewards={"a": [float(rank), 1.0 + step]}, completion=["one", "two"])


def test_an_empty_run(tmp_path: Path, opened: Open) -> None:
    """Nothing was logged yet, and the page says so."""
    log = declog.start("grpo", TINY, output_dir=tmp_path / "run")
    found = opened(written(tmp_path / "run"))
    log.close()
    assert found.page.inner_text("#alerts") == "Nothing was logged yet."
    assert badges(found)[0].startswith("still running, as of ")
    assert found.page.locator("section:visible").count() == 1


def test_a_run_that_goes_on_and_one_whose_end_is_cut_off(tmp_path: Path, opened: Open) -> None:
    """What is there is shown; of a torn last line it is said that it is left out, and a dead run is called that."""
    log = declog.start("grpo", TINY, output_dir=tmp_path / "run")
    for step in range(4):
        log_one(log, step)
    assert log.written()  # a flush alone waits for the values, and not for the disk
    found = opened(written(tmp_path / "run"))
    assert badges(found)[0].startswith("still running")
    assert "steps 0\u20133" in found.page.inner_text("#sub")
    shutil.copytree(tmp_path / "run", tmp_path / "dead", ignore=shutil.ignore_patterns("run.lock"))
    log.close()
    scalars = tmp_path / "dead" / "jsonl" / "scalars.jsonl"
    os.truncate(scalars, scalars.stat().st_size - 5)
    found = opened(written(tmp_path / "dead"))
    assert badges(found)[0].startswith("ended without a word")
    assert "steps 0\u20132" in found.page.inner_text("#sub")
    assert [badge for badge in badges(found) if "is left out: it is cut off" in badge]


def test_a_resumed_run(tmp_path: Path, opened: Open) -> None:
    """Is one run, and says where it was taken up."""
    log = declog.start("grpo", TINY, output_dir=tmp_path / "run")
    for step in range(5):
        log_one(log, step)
        if step == 3:
            state = log.state_dict()
    log.close()
    log = declog.start("grpo", TINY, resume=state)
    for step in range(4, 8):
        log_one(log, step)
    log.close()
    found = opened(written(tmp_path / "run"))
    assert "resumed at step 4" in badges(found)
    assert found.page.get_attribute(".plot .canvas", "aria-label") == "reward: 8 steps, last 4, least 0.5, greatest 4"


def test_ranks_that_are_missing(tmp_path: Path, opened: Open) -> None:
    """A value of fewer ranks is counted at the head."""
    actors = [declog.start("grpo", TINY, role="actor", rank=rank, world_size=2) for rank in range(2)]
    with declog.start("grpo", TINY, role="driver", world_size=2, output_dir=tmp_path / "run") as driver:
        for step in range(3):
            for rank, log in enumerate(actors):
                log_one(log, step, rank)
        exported = [log.export() for log in actors]
        driver.merge(exported[:1])
        for log in actors:
            log.close()
    found = opened(written(tmp_path / "run"))
    assert "2 ranks" in found.page.inner_text("#sub")
    assert {"partial: ranks missing at 3 steps", "declog reported 1 failure"} <= set(badges(found))


@pytest.mark.parametrize("sink", ["jsonl", "parquet"])
def test_one_sink_is_enough(sink: str, tmp_path: Path) -> None:
    """The page of a run that wrote either is that of one that wrote both, but for the order in which it was read."""
    folder = runs.small(tmp_path / "run", steps=12)
    whole = held(written(folder))[1]["runs"][0]
    shutil.rmtree(folder / sink)
    half = held(written(folder))[1]["runs"][0]

    def series(run: dict[str, Any]) -> dict[tuple[str, str], tuple[int, str, str]]:
        return {(one["name"], one["mode"]): (one["count"], one["formula"], one["title"]) for one in run["series"]}

    assert series(half) == series(whole)
    assert [(one["rows"], one["main"], one["score"]) for one in half["tables"]] == [(96 + 8, "completion", "reward")]
    assert half["core"] == whole["core"]
    assert half["alerts"] == whole["alerts"]


def medians(path: str) -> list[float]:
    """The heights of a line's steps, as shares of the picture; each step has two points."""
    heights = [1 - float(point.split()[1]) / 48 for point in path.removeprefix("M").split("L")]
    assert heights[::2] == heights[1::2]
    return heights[::2]


def expected_medians(one: Path, other: Path) -> dict[str, list[float]]:
    """Of the other run's histograms by name, by numpy: as shares of the range of both runs' edges."""
    both = [list(read(run).histograms) for run in (one, other)]
    found: dict[str, list[float]] = {row["name"]: [] for row in both[0]}
    for row in both[1]:
        edges = [edge for rows in both for each in rows for edge in each["edges"] if each["name"] == row["name"]]
        below = np.concatenate([[0], np.cumsum(row["counts"])])
        there = np.flatnonzero(np.diff(below)) + 1  # bins without values are no place for a quantile
        place = there[np.searchsorted(below[there], below[-1] / 2)]
        share = (below[-1] / 2 - below[place - 1]) / (below[place] - below[place - 1])
        value = row["edges"][place - 1] + share * (row["edges"][place] - row["edges"][place - 1])
        found[row["name"]].append((value - min(edges)) / (max(edges) - min(edges)))
    return found


def test_an_evaluation_alone(tmp_path: Path, opened: Open) -> None:
    """A run of one evaluation: its core values are on cards, its step is one step, and a cut link does no harm."""
    with declog.start("grpo", TINY, output_dir=tmp_path / "run") as log, log.mode("eval"):
        log.observe(rewards={"a": [0.0, 1.0]}, completion=["one", "two"])
    page = opened(written(tmp_path / "run"), "#metric=%E0").page
    assert "step 0 " in page.inner_text("#sub")
    cards = {
        card.inner_text().split("\n")[0]: card.inner_text().split("\n")[1:] for card in page.locator(".card").all()
    }
    assert cards["Reward"] == ["0.5", "one value"]
    page.evaluate("location.hash = 'step=x'")
    page.evaluate("location.hash = 'metric=eval/reward'")
    page.wait_for_selector(".plot.aimed")
    assert page.locator("#pin").is_hidden()
    assert page.locator("section:visible").evaluate_all("all => all.map((one) => one.id)") == [
        "overview", "curves", "samples", "logged",
    ]  # fmt: skip


def test_numbers_of_a_loop_that_logs_by_itself(tmp_path: Path, opened: Open) -> None:
    """Core values are known by a part of their names; great ones are right to the digit that is shown."""
    logger = declog.tee(overrides=["sinks=[jsonl]", "sink_options.jsonl.profile=full"], output_dir=tmp_path / "run")
    values = {
        "tokens/sec": 7_666_666.9,
        "actor/loss": 1e300,
        "critic/reward/mean": 70_001.6,
        "/odd/": 0.0,
        "<b>x</b>/y": -0.0,
    }
    for step in range(4):
        logger.log({name: value if step else 0.25 for name, value in values.items()}, step)
    logger.close()
    found = opened(written(tmp_path / "run"))
    page = found.page
    cards = texts(page, ".card .head")
    assert cards == ["critic/reward/mean", "actor/loss"]
    shown = {name: page.inner_text(f".plot[data-name='{name}'] .now") for name in values}
    assert shown == {
        "tokens/sec": "7.67e+6", "actor/loss": "1.00e+300", "critic/reward/mean": "70,000", "/odd/": "0",
        "<b>x</b>/y": "0",
    }  # fmt: skip
    page.evaluate("location.hash = 'metric=%3Cb%3Ex%3C%2Fb%3E%2Fy'")
    page.wait_for_selector(".plot.aimed")
    assert page.get_attribute(".plot.aimed", "data-name") == "<b>x</b>/y"
    assert found.said == []


@pytest.mark.parametrize("sink", ["jsonl", "parquet"])
def test_conversations(sink: str, tmp_path: Path, opened: Open) -> None:
    """Each turn by who speaks, a result under its call; in a group behind the prompt, in one text."""
    config = {
        "signals": {
            "any": {
                "reward": {"axis": "completion"}, "prompt": {"axis": "completion", "type": "object"},
                "completion": {"axis": "completion", "type": "object"},
            },
        },
        "axes": {"group": {"size": 2}}, "sinks": [sink], "tables": {"t": {"schema": "s"}},
        "schemas": {"s": {"prompt": "object", "completion": "object", "reward": "float"}},
    }  # fmt: skip
    asked = [
        {"role": "system", "content": "<b>Be terse.</b>"},
        {"role": "user", "content": [{"type": "text", "text": "2 + 3?"}]},
    ]
    calls = [
        {"function": {"name": "add", "arguments": {"a": 2, "b": 3}}},
        {"name": "halve", "arguments": '{"x": 5}'},
        "odd",
    ]
    answer = [
        {"role": "assistant", "content": None, "tool_calls": calls[:2]},
        {"role": "tool", "content": "5", "name": "add"},
        {"role": "assistant", "content": "It is 5.", "tool_calls": calls[2:]},
    ]
    with declog.start(config, output_dir=tmp_path / "run") as log, log.step(0):
        log.observe(reward=[1.0, 0.0], prompt=[asked] * 2, completion=[answer, [{"role": "assistant", "content": "6"}]])
    found = opened(written(tmp_path / "run"), "#sample=t/0")
    page = found.page
    assert texts(page, "#detail .txt") == [
        "<b>Be terse.</b>", "2 + 3?", "a: 2\nb: 3", "5", "x: 5", "It is 5.", "odd",
    ]  # fmt: skip
    assert texts(page, "#detail .turn > .label b") == ["system", "user", "assistant", "assistant"]
    assert texts(page, "#detail .call > .label b") == ["\u2192 add", "\u2192 halve", "call"]
    assert page.inner_text("#list li.on .asked") == "2 + 3?"
    assert page.inner_text("#list li.on .text") == "It is 5."
    said = [
        "<b>Be terse.</b>", "2 + 3?", '\u2192 add({"a":2,"b":3})\n\u2192 halve({"x": 5})', "5\nname: add",
        'It is 5.\n"odd"',
    ]  # fmt: skip
    roles = ["system", "user", "assistant", "tool", "assistant"]
    page.keyboard.press("g")
    page.wait_for_selector(".side")
    whole = [f"[{role}]\n{text}" for role, text in zip(roles, said, strict=True)]
    assert texts(page, "#detail > .field .txt") == ["\n\n".join(whole[:2])]
    assert texts(page, ".member .txt") == ["\n\n".join(whole[2:]), "[assistant]\n6"]
    assert found.said == []


def test_samples_alone(tmp_path: Path, opened: Open) -> None:
    """A run without a number has a page of its samples."""
    config = {
        "signals": {"any": {"completion": {"axis": "completion", "type": "text"}}}, "sinks": ["jsonl"],
        "schemas": {"s": {"completion": "text"}}, "tables": {"t": {"schema": "s"}},
    }  # fmt: skip
    with declog.start(config, output_dir=tmp_path / "run") as log, log.step(7):
        log.observe(completion=["one", "two"])
    page = opened(written(tmp_path / "run")).page
    assert page.locator("section:visible").evaluate_all("all => all.map((one) => one.id)") == ["overview", "samples"]
    assert page.inner_text("#detail b") == "step 7"


def test_two_runs_compared(tmp_path: Path, opened: Open) -> None:
    """Their curves lie in the same charts, and what differs in their configurations is listed."""
    one = runs.small(tmp_path / "one", steps=12)
    other = runs.small(
        tmp_path / "other", "constants.beta=0.1", "metrics.only=max(reward)", "~metrics.grad_norm", steps=8, seed=3
    )
    found = opened(written(one, other))
    page = found.page
    changed = [row for row in page.inner_text("#differences").split("\n") if row]
    assert "declog.constants.beta\t0.04\t0.1" in changed
    only = [row.split("\t")[1:] for row in changed if row.startswith("declog.metrics.only.reduce")]
    assert only == [["not set", "max"]]
    keys = [difference["key"] for difference in differences([read(one), read(other)])]
    changes = ("declog.constants.beta", "declog.metrics.only", "declog.metrics.grad_norm")
    assert all(key.startswith(changes) for key in keys)
    names = page.eval_on_selector_all(".plot", "all => all.map((one) => one.dataset.name)")
    assert [name for name in names if name == "only"] == ["only"]
    assert "only in other" in page.inner_text(".plot[data-name=only] .legend")
    kl = page.inner_text(".plot[data-name=kl] .legend").split()
    assert (kl[0], kl[3]) == ("one", "other")
    assert badges(found)
    assert page.inner_text("#results tbody tr >> nth=0") != ""
    expected = expected_medians(one, other)
    assert expected and page.eval_on_selector_all(".histogram", "all => all.map((one) => one.dataset.name)") == [
        *expected
    ]
    for name, heights in expected.items():
        drawn = page.locator(f".histogram[data-name='{name}']")
        legend = drawn.locator(".legend span").all_inner_texts()
        if not heights:  # the other run ended before its first evaluation
            assert (legend, drawn.locator("path").count()) == (["only in one"], 0)
            continue
        assert legend == ["one", "other: its median, and the bounds of the middle 80 %"]
        assert medians(drawn.locator(".median").get_attribute("d") or "") == pytest.approx(heights, abs=0.02)
    assert any(expected.values())
    assert [label.split(" (")[0] for label in page.locator("#bytable option").all_inner_texts()] == [
        "samples \u00b7 one", "samples \u00b7 other",
    ]  # fmt: skip


def test_samples_are_left_out_and_redactions_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of a table with `--no-samples`; nothing that was redacted, nor what the environment gave, with them."""
    monkeypatch.setenv("TOKEN", runs.SECRET)
    overrides = [
        *TINY, "schemas.samples.completion.redact={phone: '[0-9]{3}-[0-9]{4}'}", "filters.extremes.top=2",
        "run.config.token=${oc.env:TOKEN}", "about.reward.help=by ${oc.env:TOKEN}",
    ]  # fmt: skip
    with declog.start("grpo", overrides, output_dir=tmp_path / "run") as log, log.step(0):
        log.observe(rewards={"a": [0.0, 1.0]}, prompt=["who?", "who?"], completion=["call 555-1234", "nobody"])
    whole, _ = held(written(tmp_path / "run"))
    assert "call [phone]" in whole
    assert "555-1234" not in whole
    assert runs.SECRET not in whole
    assert "by ${oc.env:TOKEN}" in whole
    without, facts = held(written(tmp_path / "run", samples=False))
    assert ("[phone]" in without, "nobody" in without) == (False, False)
    assert facts["runs"][0]["tables"] == []


def test_a_long_run_is_small(tmp_path: Path, opened: Open) -> None:
    """5,000 steps of 60 scalars with 2,000 samples: at most 5 MB, and it says how soon it is shown."""
    folder = runs.long(tmp_path / "long")
    file = written(folder)
    found = opened(file)
    print(f"{file.stat().st_size / 1e6:.2f} MB, shown after {found.page.get_attribute('html', 'data-ready')} ms")
    assert file.stat().st_size <= 5_000_000
    assert found.page.inner_text("#found") == "2000 of 2000"
    assert found.said == []


def test_the_verb(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Says where the file is, as text and as data; a folder without a run is an error, as is no folder."""
    monkeypatch.chdir(tmp_path)
    with declog.start("grpo", TINY, output_dir=tmp_path / "run") as log:
        log_one(log, 0)
    assert main(["report", "run"]) == 0
    assert re.fullmatch(r"report     run/report\.html \(\d\.\d MB\): .*\n", capsys.readouterr().out)
    assert main(["report", "run", "--no-samples", "--output", "a.html", "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"file": "a.html", "bytes": (tmp_path / "a.html").stat().st_size}
    assert main(["report", "nowhere"]) == 2
    assert "DL607" in capsys.readouterr().err
    assert main(["report", "run", "--output", "no where/a.html"]) == 2
    said = capsys.readouterr().err
    assert "--output: there is no folder `no where`" in said
    assert "fix: mkdir -p 'no where'" in said
    assert main(["report", "run/jsonl", "--output", str(tmp_path)]) == 0
    assert (tmp_path / "report.html").exists()
    (tmp_path / ".b.html.part").mkdir()
    assert main(["report", "run", "--output", "b.html"]) == 2
    assert "b.html cannot be written: Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize("sinks", ["jsonl", "parquet"])
def test_objects_that_are_texts_or_look_like_json(tmp_path: Path, sinks: str) -> None:
    """A column of objects, whose values may be texts beside messages: each stays what it was, in both files."""
    prompts = ["7+1=", "3", [{"role": "user", "content": "hello"}], '{"a": 1}']
    config = {
        "signals": {"rollout": {"prompt": {"axis": "completion", "type": "object"}}},
        "tables": {"samples": {"columns": ["prompt"]}},
        "sinks": [sinks],
    }
    with declog.start(config, output_dir=tmp_path) as log, log.step(0):
        log.observe(prompt=prompts)
    assert [row["prompt"] for row in read(tmp_path).tables["samples"]] == prompts
    text, _ = held(written(tmp_path))
    assert all(
        json.dumps(prompt, ensure_ascii=False) in text or json.dumps(prompt, separators=(",", ":")) in text
        for prompt in prompts
    )


@pytest.mark.parametrize("sink", ["jsonl", "parquet"])
def test_numbers_that_are_not_finite_are_said_to_be(sink: str, tmp_path: Path, opened: Open) -> None:
    """In curves, samples and values of tokens: none is shown as missing, or as the value before it."""
    schema = {"reward": "float", "tokens": {"type": "object", "expr": "pieces"}, "completion": "text"}
    config = {
        "signals": {
            "any": {
                "reward": {"axis": "completion"}, "completion": {"axis": "completion", "type": "text"},
                "pieces": {"axis": "completion", "type": "object"},
            },
        },
        "metrics": {"reward": "max(reward)"}, "schemas": {"s": schema}, "tables": {"samples": {"schema": "s"}},
        "sinks": [sink],
    }  # fmt: skip
    rewards = [math.inf, -math.inf, 0.5]
    with declog.start(config, output_dir=tmp_path / "run") as log:
        for step, highest in enumerate((1.0, math.inf)):
            with log.step(step):
                pieces = [{"tokens": ["a", "b"], "logprob": [-0.5, one]} for one in rewards]
                log.observe(reward=[*rewards[:2], highest], completion=["x"] * 3, pieces=pieces)
    found = opened(written(tmp_path / "run"), "#sample=samples/0")
    page = found.page
    assert page.get_attribute(".plot .canvas", "aria-label") == "reward: 2 steps, last \u221e, no finite value"
    assert page.inner_text(".plot .now") == "\u221e"
    shown = {}
    for place, row in enumerate(read(tmp_path / "run").tables["samples"]):
        page.evaluate(f"location.hash = 'sample=samples/{place}'")
        page.wait_for_function("(row) => document.querySelector('#list li.on')?.dataset.row === row", arg=str(place))
        page.locator(".tk").nth(1).hover()
        shown[place] = page.inner_text("#detail .score"), page.inner_text("#tip").splitlines()[1].split()[1]
        assert repr(row["tokens"]["logprob"][1]) == repr(rewards[place % 3])
    ends, tokens = ["\u221e", "\u2212\u221e"], ["\u221e", "\u2212\u221e", "0.5"] * 2
    assert list(shown.values()) == list(zip([*ends, "1", *ends, "\u221e"], tokens, strict=True))
    assert found.said == []


def test_groups_are_those_of_the_rank_that_counted_them() -> None:
    """Where each rank writes its own rows, groups of one number are groups of their own."""
    rows = [
        {"step": 0, "mode": "train", "declog_rank": rank, "group": 0, "row": 0, "completion": "a"} for rank in (0, 0, 1)
    ]
    assert tables._groups(rows, {"mode": ["train"] * 3, "step": [0] * 3}) == [0, 0, 1]
