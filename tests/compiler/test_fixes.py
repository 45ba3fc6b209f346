"""A fix keeps the meaning: pasted where it says, it gives the number that was meant, on data where others differ."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import declog
from declog.cli import main
from declog.errors import ConfigError, Problem, in_flow
from declog.testing import MemorySink

REWARD = np.array([0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 3.0, 9.0])
LENGTH = np.array([10, 20, 30, 40, 1, 1, 2, 3])
MASK = np.array([[True] * n + [False] * (4 - n) for n in (1, 2, 3, 4, 1, 1, 2, 3)])
KL = np.arange(32.0).reshape(8, 4)
PROFILE: dict[str, Any] = {
    "axes": {"group": {"size": 4}, "token": {"mask": "mask"}},
    "constants": {"beta": 2},
    "signals": {
        "any": {
            "reward": {"axis": "completion"},
            "length": {"axis": "completion", "type": "int"},
            "mask": {"axis": "token", "type": "bool"},
            "kl": {"axis": "token"},
            "text": {"axis": "completion", "type": "text"},
            "good": {"axis": "completion", "type": "bool"},
        },
    },
}
MEANS = REWARD.reshape(2, 4).mean(1)
TOKENS = KL[MASK]
BY_ROW = np.array([row[kept].mean() for row, kept in zip(KL, MASK, strict=True)])
BY_GROUP = BY_ROW.reshape(2, 4).mean(1)
MAX_BY_ROW = np.array([row[kept].max() for row, kept in zip(KL, MASK, strict=True)])


def problem(profile: dict[str, Any]) -> Problem:
    """The first thing that is wrong with a profile."""
    with pytest.raises(ConfigError) as raised:
        declog.plan(profile)
    return raised.value.problems[0]


def pasted(profile: dict[str, Any], found: Problem, choice: int) -> dict[str, Any]:
    """The profile with one of a fix's alternatives in the place of what is marked: see `tests/config/broken.py`."""
    fix = str(found.fix).split("  or  ")[choice]
    if re.match(r"\w+: \{.*\}$", fix):
        ((section, entries),) = yaml.safe_load(fix).items()
        return {**profile, section: {**profile.get(section, {}), **entries}}
    if found.code == "DL310":  # a key with its value
        return {**profile, "metrics": {**profile["metrics"], "m": profile["metrics"]["m"] | yaml.safe_load(fix)}}
    intended = re.search(r"`([^`]+)`", fix)
    text = fix if intended is None else intended[1]
    entire = found.code == "DL305" and fix.startswith("write ")  # the whole text
    if entire and isinstance(profile["metrics"]["m"], str):
        return {**profile, "metrics": {**profile["metrics"], "m": text}}
    start, end = (0, len(found.source or "")) if entire or found.span is None else found.span
    whole = profile["metrics"]["m"]
    repeated = (
        entire and isinstance(whole, str) and text.startswith(f"{whole.partition('(')[0]}(")
    )  # with its reduction
    if isinstance(whole, str) and found.source is not None and not repeated:  # a part of it, in its place
        before = whole.find(found.source)
        found = replace(found, source=whole, span=(before + start, before + end))
        start, end = before + start, before + end
    calls = found.marked.startswith(f"{text.partition('(')[0]}(")
    if found.code == "DL306" and "over=" in text and not calls:  # the text stands for the call
        start, end = _call(str(found.source or text), text, found)
    new = f"{(found.source or '')[:start]}{text}{(found.source or '')[end:]}"
    entry = profile["metrics"]["m"]
    key = str(found.path[-1])
    changed = new if isinstance(entry, str) else {**entry, (key if key != "m" else "expr"): new}
    return {**profile, "metrics": {**profile["metrics"], "m": changed}}


def _call(source: str, text: str, found: Problem) -> tuple[int, int]:
    """Where the call stands that a fix with `over=` stands for: around what is marked."""
    name = text.partition("(")[0]
    start = source.rfind(f"{name}(", 0, (found.span or (0, 0))[0] + 1)
    depth = 0
    for at in range(start, len(source)):
        depth += (source[at] == "(") - (source[at] == ")")
        if depth == 0 and source[at] == ")":
            return start, at + 1
    raise AssertionError(source)


def number(profile: dict[str, Any], folder: Path) -> float:
    """What the metric `m` is; NaN where it is absent."""
    sink = MemorySink()
    with declog.start(profile, sinks=[sink], output_dir=folder) as log, log.step(0):
        log.observe(
            reward=REWARD.tolist(), length=LENGTH.tolist(), mask=torch.tensor(MASK), kl=torch.tensor(KL),
            text=[f"t{n}" for n in range(8)], good=(REWARD > 0).tolist(),
        )  # fmt: skip
    return float(sink.scalars[0].get("m", np.nan))


CASES: dict[str, tuple[Any, list[float]]] = {
    "a ratio of means": ("mean(reward) / mean(length)", [REWARD.mean() / LENGTH.mean()]),
    "a range": ("max(reward) - min(reward)", [np.ptp(REWARD)]),
    "a relative spread": ("std(reward) / mean(reward)", [REWARD.std(ddof=1) / REWARD.mean()]),
    "of two axes": ("mean(kl) / mean(length)", [TOKENS.mean() / LENGTH.mean()]),
    "a sum over the tokens by a count": ("sum(kl) / count(kl)", [TOKENS.mean()]),
    "quantiles": ("p90(reward) - p50(reward)", [np.quantile(REWARD, 0.9) - np.quantile(REWARD, 0.5)]),
    "fractions of quantiles": ("p99.9(reward) - p0(reward)", [np.quantile(REWARD, 0.999)]),
    "a function of a mean": ("sqrt(mean(reward ** 2))", [np.sqrt((REWARD**2).mean())]),
    "a constant beside it": ("beta * mean(reward) + 1", [2 * REWARD.mean() + 1]),
    "one reduction twice": ("mean(reward) / (mean(reward) + 1)", [REWARD.mean() / (REWARD.mean() + 1)]),
    "commas and colons": ("mean(clip(reward, 0, 2)) / max(reward)", [np.clip(REWARD, 0, 2).mean() / 9]),
    "in a map": ({"expr": "mean(reward) / mean(length)", "name": "m"}, [REWARD.mean() / LENGTH.mean()]),
    "with a condition and a weight": (
        {"expr": "mean(reward) / mean(length)", "where": "reward > 0", "weight": "length"},
        [np.average(REWARD[REWARD > 0], weights=LENGTH[REWARD > 0])
         / np.average(LENGTH[REWARD > 0], weights=LENGTH[REWARD > 0])],
    ),
    "a median": ("median(reward)", [np.median(REWARD)]),
    "a median as a reduction": ({"expr": "reward", "reduce": "median"}, [np.median(REWARD)]),
    "an average": ("average(reward)", [REWARD.mean()]),
    "a quantile by its level": ("quantile(reward, 0.25)", [np.quantile(REWARD, 0.25)]),
    "a quantile by a keyword": ("quantile(reward, q=0.25)", [np.quantile(REWARD, 0.25)]),
    "a percentile": ("percentile(reward, 25)", [np.quantile(REWARD, 0.25)]),
    "the spread of values per group": ("std(mean(reward, over=group))", [MEANS.std(ddof=1), np.nan]),
    "the best of a group": ("mean(max(reward, over=group))", [5.0, 9.0]),
    "tokens to groups": ("p50(mean(kl, over=completion))", [np.median(BY_ROW), np.median(BY_GROUP)]),
    "maxima of tokens": ("mean(max(kl, over=completion))", [MAX_BY_ROW.mean(), MAX_BY_ROW.reshape(2, 4).max(1).mean()]),
    "a condition that is counted": ("mean((reward > 0) + length)", [(LENGTH + (REWARD > 0)).mean()]),
    "a bool that is counted": ("mean(good + length)", [(LENGTH + (REWARD > 0)).mean()]),
    "a number as a condition": ({"expr": "length", "where": "reward - 1"}, [LENGTH[REWARD - 1 > 0].mean()]),
    "a finer condition": (
        {"expr": "reward", "where": "kl > 4"},
        [
            REWARD[[bool((row[kept] > 4).any()) for row, kept in zip(KL, MASK, strict=True)]].mean(),
            REWARD[[bool((row[kept] > 4).all()) for row, kept in zip(KL, MASK, strict=True)]].mean(),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "choice"), [(name, choice) for name, (_, intended) in CASES.items() for choice in range(len(intended))]
)
def test_a_pasted_fix_gives_the_number_that_was_meant(name: str, choice: int, tmp_path: Path) -> None:
    """Each alternative, its own reading."""
    wrong, intended = CASES[name]
    profile = {**PROFILE, "metrics": {"other": "mean(length)", "m": wrong}}
    found = problem(profile)
    assert len(str(found.fix).split("  or  ")) == len(intended)
    assert number(pasted(profile, found, choice), tmp_path) == pytest.approx(intended[choice], rel=1e-12, nan_ok=True)


ROWS: dict[str, tuple[dict[str, Any], list[list[Any]]]] = {
    "a filter's key per token": ({"filters": {"f": {"top": 1, "key": "20 - kl"}}}, [[0]]),
    "a filter's condition per token": (
        {"filters": {"f": {"where": "kl > 13"}}},
        [[3, 4, 5, 6, 7], [4, 5, 6, 7]],
    ),
    "a filter's key that is a bool": (
        {"filters": {"f": {"top": 4, "key": "good"}}},
        [[1, 2, 3, 6]],
    ),
    "a filter's condition that is a number": (
        {"filters": {"f": {"where": "reward"}}},
        [[1, 2, 3, 6, 7]],
    ),
    "a filter's condition that is a sum": (
        {"filters": {"f": {"where": "reward - 2"}}},
        [[6, 7]],
    ),
    "a column per token": ({"schemas": {"s": {"shown": {"expr": "kl"}}}}, [list(BY_ROW)]),
    "a bool per token": ({"schemas": {"s": {"shown": {"expr": "kl > 13"}}}}, [[False] * 3 + [True] * 5]),
    "a number per group": ({"schemas": {"s": {"shown": {"expr": "reward"}}}, "rows": "group"}, [list(MEANS)]),
    "tokens per group": ({"schemas": {"s": {"shown": {"expr": "kl"}}}, "rows": "group"}, [list(BY_GROUP)]),
    "a text per group": ({"schemas": {"s": {"shown": {"expr": "text"}}}, "rows": "group"}, [["t0", "t4"]]),
    "a condition per group": ({"schemas": {"s": {"shown": {"expr": "reward > 2"}}}, "rows": "group"}, [[False, True]]),
    "a number per batch": ({"schemas": {"s": {"shown": {"expr": "reward"}}}, "rows": "step"}, [[MEANS.mean()]]),
    "a column of another type": (
        {"schemas": {"s": {"shown": {"expr": "text", "type": "int"}}}},
        [[f"t{n}" for n in range(8)]],
    ),
    "a group's filter by its completions": (
        {"filters": {"f": {"top": 1, "key": "-reward"}}, "rows": "group",
         "schemas": {"s": {"shown": {"expr": "first(length, over=completion)"}}}},
        [[10]],
    ),
    "a group's condition by its completions": (
        {"filters": {"f": {"where": "reward > 2"}}, "rows": "group",
         "schemas": {"s": {"shown": {"expr": "first(length, over=completion)"}}}},
        [[1]],
    ),
}  # fmt: skip


def shown(profile: dict[str, Any], folder: Path) -> list[Any]:
    """What the table's column holds."""
    sink = MemorySink()
    with declog.start(profile, sinks=[sink], output_dir=folder) as log, log.step(0):
        log.observe(
            reward=REWARD.tolist(), length=LENGTH.tolist(), mask=torch.tensor(MASK), kl=torch.tensor(KL),
            text=[f"t{n}" for n in range(8)], good=(REWARD > 0).tolist(), at=list(range(8)),
        )  # fmt: skip
    ((_, table),) = sink.tables("t")
    return list(table.data["shown"])


@pytest.mark.parametrize(
    ("name", "choice"), [(name, choice) for name, (_, intended) in ROWS.items() for choice in range(len(intended))]
)
def test_a_pasted_fix_shows_the_rows_that_were_meant(name: str, choice: int, tmp_path: Path) -> None:
    """Of filters, schemas and tables: it stands in a flow map as in a block."""
    wrong, intended = ROWS[name]
    table: dict[str, Any] = {"schema": "s", "rows": wrong.get("rows", "completion")}
    profile = {
        **PROFILE,
        "signals": {"any": {**PROFILE["signals"]["any"], "at": {"axis": "completion", "type": "int"}}},
        "metrics": {"other": "mean(length)"},
        "filters": wrong.get("filters", {}),
        "schemas": wrong.get("schemas", {"s": {"shown": {"expr": "at"}}}),
        "tables": {"t": table | ({"filter": "f"} if "filters" in wrong else {})},
    }
    found = problem(profile)
    fixes = str(found.fix).split("  or  ")
    assert len(fixes) == len(intended)
    fix = re.sub(r"^.*?`(.*)`$", r"\1", fixes[choice])
    key = str(found.path[-1])
    change = yaml.safe_load(f"{{{fix}}}" if re.match(r"\w+: ", fix) else json.dumps({key: fix}))
    if "filters" in wrong:
        mended = {**profile, "filters": {"f": profile["filters"]["f"] | change}}
    else:
        mended = {**profile, "schemas": {"s": {"shown": profile["schemas"]["s"]["shown"] | change}}}
    rows = shown(mended, tmp_path)
    assert (
        rows == pytest.approx(intended[choice], rel=1e-12) if isinstance(rows[0], float) else rows == intended[choice]
    )


@pytest.mark.parametrize(
    "wrong",
    [
        "reward - mean(reward)",
        "mean(reward > mean(reward))",
        {"expr": "reward", "reduce": "quantile"},
        "quantile(reward, level)",
    ],
)
def test_what_cannot_be_known_is_not_offered_to_paste(wrong: Any) -> None:
    """Where a text to paste would be one reading of several, or lose a key, the fix is words."""
    fix = str(problem({**PROFILE, "metrics": {"m": wrong}}).fix)
    assert not fix.startswith(("metrics:", "did you mean"))


def test_a_fix_takes_no_name_that_is_taken() -> None:
    """The metrics of a formula get names of their own."""
    profile = {**PROFILE, "metrics": {"m_1": "mean(length)", "m_2": "max(length)", "m": "mean(reward) / mean(length)"}}
    assert set(declog.plan(pasted(profile, problem(profile), 0)).names()) == {"m_1", "m_2", "m", "{member}"}


@pytest.mark.parametrize(
    "text", ["a", "a b", "a: b", "{a}", "a, b", "a # b", "'", '"', "- a", "?", "???", "", " a", "é: 1", "*a"]
)
def test_a_quoted_text_is_read_as_it_was(text: str) -> None:
    """Inside of a flow map."""
    assert yaml.safe_load(f"{{a: {in_flow(text)}, b: 1}}") == {"a": text, "b": 1}


FLOW = {
    "metrics: {m: {expr: reward, name: loss/{reduce}}}": "loss/mean",
    "metrics: {m: {expr: reward, name: what: it is}}": "what: it is",
    "metrics: {m: {expr: reward, name: run #3}}": "run #3",
    "metrics: {m: {expr: reward, name: [a] b}}": "[a] b",
    "metrics: {m: {name: a: b, expr: reward}}": "a: b",
}


@pytest.mark.parametrize("line", FLOW)
def test_a_text_that_yaml_takes_apart_needs_quotes(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Braces, colons and number signs in a flow map: the fix is the text in quotes, at its place."""
    (tmp_path / "declog").mkdir()
    file = tmp_path / "declog" / "mine.yaml"
    before = "signals: {any: {reward: {axis: completion}}}\nsinks: [jsonl]\n"
    file.write_text(f"{before}{line}\n", encoding="utf-8")
    with pytest.raises(declog.CompositionError) as raised:
        declog.compose("mine", config_dir=tmp_path)
    (found,) = raised.value.problems
    assert found.where is not None and found.where.excerpt is not None
    excerpt = found.where.excerpt
    file.write_text(f"{before}{line[: excerpt.start]}{found.fix}{line[excerpt.end :]}\n", encoding="utf-8")
    assert FLOW[line] in declog.plan(declog.compose("mine", config_dir=tmp_path)).names()
    assert main(["check", str(file), "--strict"]) == 0
    assert capsys.readouterr().out.startswith("ok")


@pytest.mark.parametrize("profile", [
    {"only": ["kept", "dropped", "table:dropped"]}, {"hide": ["dropped", "table:dropped"]},
    {"show": ["dropped", "table:drop*"], "only": ["kept"]},
])  # fmt: skip
def test_what_is_deleted_drops_out_of_profiles(profile: dict[str, Any]) -> None:
    """Class: a metric or a table that a later layer deletes, where an earlier one's profile names it."""
    team: dict[str, Any] = {
        "signals": {"any": {"x": "completion"}}, "metrics": {"kept": "mean(x)", "dropped": "max(x)"},
        "tables": {"dropped": {"columns": ["x"]}}, "profiles": {"team": profile}, "sinks": ["jsonl"], "profile": "team",
    }  # fmt: skip
    deleting = {**team, "metrics": {**team["metrics"], "dropped": None}, "tables": {"dropped": None}}
    plan = declog.plan(deleting)
    assert {op.id for op in plan.outputs} - {"logged"} == {"kept"} and not plan.tables
    with pytest.raises(ConfigError, match=r"matches nothing|matches no table"):
        declog.plan({**team, "metrics": {"kept": "mean(x)"}, "tables": {}})


ROWS_BESIDE_A_METRIC = [
    "reward > level", "reward > prev(level, 0.5)", "reward > prev(level)", "reward > lag(level, 2)",
    "reward > level[-1]",
    "reward > clip(level, 0, 1)", "reward > 2 * level", "reward > -level", "reward > delta(level)",
    "reward - prev(level, 0) > 0.1", "length > 3 and reward > prev(level, 0.5)",
]  # fmt: skip


@pytest.mark.parametrize("where", ROWS_BESIDE_A_METRIC)
def test_a_number_in_place_of_a_metric(where: str) -> None:
    """Class: rows beside what is computed from a metric. A number stands for all of it, and compiles."""
    config = {"signals": {"any": {"reward": "completion", "length": "completion int"}}}
    metrics = {"level": "mean(reward)", "above": {"expr": "reward", "where": where}}
    with pytest.raises(ConfigError) as caught:
        declog.plan({**config, "metrics": metrics})
    (problem,) = caught.value.problems
    assert (problem.code, problem.message[:25]) == ("DL302", "`level` is a metric, one "), str(problem)
    written = re.match(r"write `([^`]*)`, with a number of your own", str(problem.fix))
    assert written is not None and written[1].count("0.5") == 1 and "level" not in written[1]
    assert re.search(r"\w\(|\[", written[1]) is None
    declog.plan({**config, "metrics": {**metrics, "above": {"expr": "reward", "where": written[1]}}})


def test_a_metric_as_a_weight_is_no_row_of_an_earlier_step() -> None:
    """What the metric computes stands in its place only where that compiles."""
    signals = {"any": {"reward": "completion", "length": "completion int"}}
    for weight, fix in (("prev(level, 0.5)", None), ("level", "write `length`")):
        metrics = {"level": "mean(length)", "weighted": {"expr": "reward", "weight": weight}}
        with pytest.raises(ConfigError) as caught:
            declog.plan({"signals": signals, "metrics": metrics})
        assert [problem.fix for problem in caught.value.problems] == [fix]
