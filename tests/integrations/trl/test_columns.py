"""Columns of the data set, of reward functions and of TRL's: by name in metrics, `by` and tables, in train and eval."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import PIL.Image
import pytest
from datasets import Dataset
from transformers import AutoTokenizer

import declog
from declog.late import ask
from declog.records import Image
from declog.testing import MemorySink
from tests.integrations.trl import cases, tiny
from tests.integrations.trl.cases import Case

ARGS = {"max_steps": 4, "logging_steps": 2, "eval_steps": 2, "num_generations": 2, "num_generations_eval": 2}
PROFILE = """
defaults: [trl_grpo, _self_]
sinks: [first, second]
sink_options:
  first: {kind: jsonl, profile: best}
  second: {kind: jsonl, profile: worst}
signals:
  rollout:
    source: {axis: completion, type: text}
    level: {axis: completion, type: int}
    said: {axis: completion, type: text, from_log_extra: true}
    sure: {axis: completion, from_log_extra: true}
metrics:
  by_source: {expr: sure, by: source, name: "sure/{label}"}
  hard: {expr: sure, where: level > 2, name: sure/hard}
  levels: {expr: level, reduce: max, name: level}
schemas:
  mine:
    source: {type: text}
    level: {type: int}
    said: {type: text}
    sure: {type: float}
    completion: {type: object}
tables:
  completions: null
  all: {rows: completion, schema: mine}
  surest: {rows: completion, schema: mine, filter: {key: sure, top: 1, within: window}}
  doubtful: {rows: completion, schema: mine, filter: {key: sure, bottom: 2, within: window}}
profiles:
  best: {only: [by_source, "table:surest"]}
  worst: {only: [levels, "table:doubtful"]}
"""


def data(count: int = 16) -> Any:
    return Dataset.from_dict({
        "prompt": [f"say {n} now" for n in range(count)], "source": ["ab"[n % 2] for n in range(count)],
        "level": [n % 5 for n in range(count)], "said": ["of the data set"] * count,
    })  # fmt: skip


@declog.reward
def judged(completions: Sequence[str], log_extra: Any, level: Sequence[int], **columns: Any) -> Any:
    """It returns a column that is a signal, and logs one that the data set has as well."""
    log_extra("said", [text[:3] for text in completions])
    sure = [len(text) / 10 + depth for text, depth in zip(completions, level, strict=True)]
    return [float(len(text)) for text in completions], {"sure": sure}


@pytest.fixture(scope="module")
def trained(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, MemorySink]:
    """A run of four steps and two evaluations: its folder, and all that was logged."""
    folder = tmp_path_factory.mktemp("columns")
    (folder / "mine.yaml").write_text(PROFILE)
    trainer = cases.trainer_of(
        Case(args=ARGS), model, folder, rewards=[judged], data={"train_dataset": data(), "eval_dataset": data(2)}
    )
    sink = MemorySink()
    config = declog.compose(str(folder / "mine.yaml"), ["+declog.run.strict=true"])
    with declog.attach(trainer, config, sinks=[sink]) as log:
        trainer.train()
    assert log.failures == {}
    return Path(log.output_dir or ""), sink


def rows_of(table: Any) -> list[dict[str, Any]]:
    return [{name: values[row] for name, values in table.data.items()} for row in range(table.rows)]


def windows(sink: MemorySink) -> list[tuple[int, str, list[dict[str, Any]], dict[str, Any]]]:
    """Of each log event step and mode, all of its rows and its values."""
    return [
        (
            step, each.mode, [row for table in each.tables if table.table == "all" for row in rows_of(table)],
            {item.name: item.value for item in each.scalars},
        )
        for step, each in sink.events if any(table.table == "all" for table in each.tables)
    ]  # fmt: skip


def test_columns_by_name(trained: tuple[Path, MemorySink]) -> None:
    """Those of the data set and of the reward function are in metrics, groups and tables, in train and eval apart."""
    found = windows(trained[1])
    assert [(step, mode, len(rows)) for step, mode, rows, _ in found] == [
        (2, "train", 16), (2, "eval", 4), (4, "train", 16), (4, "eval", 4),
    ]  # fmt: skip
    for _, mode, rows, values in found:
        before = "eval_" if mode == "eval" else ""
        expected = {
            f"{before}sure/{source}": fmean(row["sure"] for row in rows if row["source"] == source) for source in "ab"
        }
        expected[f"{before}level"] = max(row["level"] for row in rows)
        hard = [row["sure"] for row in rows if row["level"] > 2]
        expected |= {f"{before}sure/hard": fmean(hard)} if hard else {}
        assert {name: values[name] for name in expected} == pytest.approx(expected)
        assert all(row["sure"] == pytest.approx(len(row["completion"]) / 10 + row["level"]) for row in rows)


def test_what_a_reward_function_gives_goes_before(trained: tuple[Path, MemorySink]) -> None:
    """Where the data set has a column of that name as well."""
    for _, _, rows, _ in windows(trained[1]):
        assert [row["said"] for row in rows] == [row["completion"][:3] for row in rows]


def test_tables_of_their_own_for_each_tracker(trained: tuple[Path, MemorySink]) -> None:
    """Each sink has its profile's tables and metrics, which are picked from the rows of the window."""
    folder, sink = trained
    found: Mapping[str, Any] = {
        name: [json.loads(line) for line in (folder / name / "tables" / f"{table}.jsonl").read_text().splitlines()]
        for name, table in (("first", "surest"), ("second", "doubtful"))
    }
    by_sure = [sorted(row["sure"] for row in rows) for _, _, rows, _ in windows(sink)]
    assert [row["sure"] for row in found["first"]] == pytest.approx([sure[-1] for sure in by_sure])
    assert sorted(row["sure"] for row in found["second"]) == pytest.approx(sorted(x for s in by_sure for x in s[:2]))
    assert sorted(path.name for path in (folder / "first" / "tables").iterdir()) == ["surest.jsonl"]
    shown = [
        json.loads(line)["scalars"].keys() for line in (folder / "first" / "scalars.jsonl").read_text().splitlines()
    ]
    assert {name.removeprefix("eval_") for names in shown for name in names} == {"sure/a", "sure/b"}


@pytest.mark.parametrize("data", [tiny.prompts, tiny.conversations], ids=["texts", "conversations"])
def test_a_table_of_loops_is_one_of_a_trainers(data: Callable[[int], Any], model: Path, tmp_path: Path) -> None:
    """The first table of README: its columns are texts, also of conversations, and it comes each so many steps."""
    overrides = [
        "schemas.answer={prompt: {max_chars: 500}, completion: text, reward: float}",
        "tables.worst={schema: answer, filter: {key: reward, bottom: 3}, every: 2}",
        "tables.all={schema: answer}",
    ]
    trainer = cases.trainer_of(
        Case(args={**ARGS, "max_steps": 5, "logging_steps": 1, "eval_strategy": "no"}), model, tmp_path,
        rewards=[cases.length], data={"train_dataset": data(8), "eval_dataset": None},
    )  # fmt: skip
    sink = MemorySink()
    with declog.attach(trainer, declog.compose("trl_grpo", ["run.strict=true", *overrides]), sinks=[sink]):
        trainer.train()
    tables = [(step, table.table, rows_of(table)) for step, each in sink.events for table in each.tables]
    every: dict[int, list[dict[str, Any]]] = {step: rows for step, name, rows in tables if name == "all"}
    worst = {step: rows for step, name, rows in tables if name == "worst"}
    assert (list(every), list(worst)) == ([1, 2, 3, 4, 5], [2, 4, 5])
    for begin, end in ((0, 2), (2, 4), (4, 5)):
        rewards = sorted(row["reward"] for step in range(begin, end) for row in every[step + 1])
        assert sorted(row["reward"] for row in worst[end]) == pytest.approx(rewards[:3])
        assert all(type(row["completion"]) is str for row in worst[end])
    said = [row["completion"] for rows in worst.values() for row in rows]
    if data is tiny.conversations:
        assert all(json.loads(text)[0]["role"] == "assistant" for text in said)


PARTS = (  # a chat template that reads parts, as those of models for images do
    "{% for message in messages %}{% for part in message['content'] %}"
    "{{ part['text'] if part['type'] == 'text' else '*' }}{% endfor %}{% endfor %}"
)


def picture(place: int) -> PIL.Image.Image:
    return PIL.Image.new("RGB", (12, 8), (place * 40, 0, 0))


def looking(place: int) -> list[dict[str, Any]]:
    """A prompt with an image in it, in OpenAI's spelling; a data set gives each part all keys."""
    file = io.BytesIO()
    picture(place).save(file, "PNG")
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    parts = [{"type": "image_url", "image_url": {"url": url}, "text": None}, {"type": "text", "text": f"say {place}"}]
    return [{"role": "user", "content": parts}]


@pytest.mark.parametrize("texts", [False, True], ids=["as they are", "as text"])
def test_a_data_set_with_images(texts: bool, model: Path, tmp_path: Path) -> None:
    """A column of images by name, and prompts that have them: at hand for trackers, a few words in files."""
    from transformers import AutoTokenizer

    rows = Dataset.from_dict({"prompt": [looking(n) for n in range(4)], "picture": [picture(n) for n in range(4)]})
    overrides = ["+declog.signals.rollout.picture={axis: completion, type: object}"]
    overrides += ["+declog.schemas.trl.picture={type: object}"]
    overrides += ["declog.signals.rollout.prompt.type=text", "declog.schemas.trl.prompt.type=text"] if texts else []
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.chat_template = PARTS
    outcome = cases.run(
        Case(args={**ARGS, "max_steps": 1, "logging_steps": 1, "eval_strategy": "no"}), model, tmp_path,
        overrides=overrides, rewards=[cases.length], data={"train_dataset": rows, "eval_dataset": None},
        processing_class=tokenizer,
    )  # fmt: skip
    assert outcome.sink is not None
    ((_, table),) = outcome.sink.tables("completions")
    assert table.rows == 8
    for row in rows_of(table):
        assert row["picture"] == {"type": "image", "width": 12, "height": 8}
        if texts:
            place = json.loads(row["prompt"])[0]["content"][1]["text"].removeprefix("say ")
            assert json.loads(row["prompt"])[0]["content"][0] == {"type": "image_url"}
        else:
            image, text = row["prompt"][0]["content"]
            place = text["text"].removeprefix("say ")
            assert (image["type"], colour(image)) == ("image", picture(int(place)).getpixel((0, 0)))
        assert colour(row["picture"]) == picture(int(place)).getpixel((0, 0))


def colour(image: Image) -> Any:
    return PIL.Image.open(io.BytesIO(image.encoded() or b"")).getpixel((5, 5))


def test_a_model_for_images(model: Path, tmp_path: Path) -> None:
    """TRL puts the data set's images into the prompts: the table has them, and every value is TRL's own."""
    from tests.integrations.trl import tiny

    rows = Dataset.from_dict(
        {
            "prompt": [[{"role": "user", "content": f"say {n}"}] for n in range(4)],
            "image": [picture(n) for n in range(4)],
        }
    )
    case = Case(args={**ARGS, "max_steps": 2, "logging_steps": 1, "eval_strategy": "no"})
    seeing, processor = tiny.seeing(model)
    outcome = cases.run(
        case, seeing, tmp_path, rewards=[cases.length], data={"train_dataset": rows, "eval_dataset": None},
        processing_class=processor,
    )  # fmt: skip
    assert outcome.sink is not None
    for (step, mode, values), (at, other, theirs) in zip(outcome.events, cases.expected(outcome.history), strict=True):
        assert (step, mode) == (at, other)
        assert values == pytest.approx(theirs, rel=1e-5, abs=1e-6)
    found = [row["prompt"][0]["content"] for _, table in outcome.sink.tables("completions") for row in rows_of(table)]
    assert len(found) == 16
    for image, text in found:
        assert (image, text["type"]) == ({"type": "image", "width": 12, "height": 8}, "text")
        assert colour(image) == picture(int(text["text"].removeprefix("say "))).getpixel((0, 0))


@pytest.mark.parametrize(
    ("method", "more"), [("grpo", {}), ("rloo", {}), ("grpo", {"num_iterations": 2, "steps_per_generation": 2})],
    ids=["grpo", "rloo", "a generation for several steps"],
)  # fmt: skip
def test_tokens_of_the_best_and_worst_have_what_the_update_knows(
    method: str, more: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    """One constant; the trainer's tokenizer makes the texts, each token has its values, and each row its reward."""
    case = Case(method, args={"max_steps": 4, "logging_steps": 1, "beta": 0.1, **more}, rewards="two")
    outcome = cases.run(case, model, tmp_path, overrides=["constants.tokens_table=true"])
    assert outcome.sink is not None
    tokenizer = AutoTokenizer.from_pretrained(model)
    words = {tokenizer.decode([id]) for id in range(len(tokenizer))}
    tables = [table for _, table in outcome.sink.tables("tokens")]
    names = ["tokens", "logprob", "entropy", *(["kl"] if method == "grpo" else []), "advantage"]
    assert [list(cell) for table in tables for cell in table.data["tokens"]] == [names] * sum(t.rows for t in tables)
    generated = [row for _, table in outcome.sink.tables("completions") for row in rows_of(table)]
    known = {(round(row["advantages"], 5), round(row["length"] + row["variety"], 5)) for row in generated}
    found = [pair for table in tables for pair in zip(table.data["advantages"], table.data["reward"], strict=True)]
    assert len(found) >= 8 and {(round(advantage, 5), round(reward, 5)) for advantage, reward in found} <= known
    for table in tables:
        for cell, advantage in zip(table.data["tokens"], table.data["advantages"], strict=True):
            assert {len(values) for values in cell.values()} == {len(cell["tokens"])}
            assert set(cell["tokens"]) <= words
            assert all(value <= 0 for value in cell["logprob"])
            assert {round(value, 5) for value in cell["advantage"]} == {round(advantage, 5)}


def test_columns_of_the_data_set_are_kept_for_later(model: Path, tmp_path: Path) -> None:
    """Numbers and labels, without a word in YAML; no prompts, no long texts, no lists. What was asked late is right."""
    data = Dataset.from_dict({
        "prompt": [f"say {n} now" for n in range(16)], "source": ["math", "code"] * 8, "level": list(range(16)),
        "essay": ["a long text " * 10] * 16, "tags": [["a"]] * 16,
    })  # fmt: skip
    rewards: list[tuple[str, float]] = []

    def reward(completions: list[str], source: list[str], level: list[int], **columns: Any) -> list[float]:
        made = [float(number) for number in level]
        rewards.extend(zip(source, made, strict=True))
        return made

    case = cases.Case(args={"max_steps": 2, "logging_steps": 2, "eval_strategy": "no"})
    trainer = cases.trainer_of(case, model, tmp_path, rewards=[reward], data={"train_dataset": data})
    with declog.attach(trainer, "trl_grpo", ["declog.sinks=[jsonl]"]) as log:
        trainer.train()
    assert log.output_dir is not None and dict(log.failures) == {}
    columns = json.loads((log.output_dir / "rows/rows.json").read_text())["runs"][-1]["columns"]["rollout"]
    assert columns["kept"] == {"source": "text", "level": "int"}
    late = ask(log.output_dir, {"by_source": "{expr: reward, by: source}", "hardest": "max(level)"})
    (_, records), *_ = late.events
    by_name = {scalar.name: scalar.value for scalar in records.scalars}
    for source in {source for source, _ in rewards}:
        values = [value for of, value in rewards if of == source]
        assert by_name[f"by_source/{source}"] == pytest.approx(sum(values) / len(values))
    assert by_name["hardest"] == max(value for _, value in rewards)
