"""Calls that observe the same row ids in a step are of the same rows, however the values are divided among them.

The class: signals in several calls, rows in parts, parts before and after the call that has all rows, in other orders,
in threads, on ranks, in windows, with tokens, texts, families, gaps and group ids. Each gives what one call gives. A
signal that comes again for a row is of a further row, as in a second epoch.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.engine.same_rows import SameRows
from declog.errors import RuntimeFailure
from declog.late import ask
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks

ROWS = 6
CONFIG: dict[str, Any] = {
    "run": {"name": "rows"}, "axes": {"completion": {"ids": "row"}, "group": {"of": "prompt"}},
    "modes": {"eval": {"prefix": "eval/"}},
    "signals": {
        "any": {"row": "completion int", "prompt": "completion text"},
        "rollout": {
            "reward": "completion", "length": "completion int", "solved": "completion bool", "text": "completion text",
            "scores": {"axis": "completion", "family": True}, "entropy": {"axis": "token", "mask": "mask"},
            "mask": "token bool", "wait": "step",
        },
    },
    "metrics": {
        "long": {"expr": "reward", "where": "length > 3"}, "rows": "sum(1 if present(row) else 0)",
        "best": "mean(max(reward, over=completion))",
        "of_solved": {"expr": "entropy", "where": "solved"}, "by_text": {"expr": "reward", "by": "text"},
        "members": {"expr": "scores", "where": "length > 3"}, "wait": {"expr": "wait", "reduce": ["max", "count"]},
        "corr": "corr(reward, length)", "tokens": {"expr": "entropy", "reduce": ["p10", "p50", "p90", "count"]},
    },
    "tables": {"all": {"columns": ["text", "reward", "length", "solved", "prompt"]}},
}  # fmt: skip
Values = dict[str, Any]
Calls = Sequence[Values]


def values(step: int) -> Values:
    """One step's values, in the order of their ids."""
    random = np.random.default_rng(step)
    return {
        "row": np.arange(ROWS) + 10 * step, "prompt": ["a", "b"] * (ROWS // 2), "reward": random.normal(size=ROWS),
        "length": random.integers(1, 9, ROWS), "solved": random.random(ROWS) < 0.5,
        "text": [f"t{number}" for number in random.integers(0, 3, ROWS)],
        "scores": {name: random.normal(size=ROWS) for name in "xy"}, "wait": float(random.random()),
        "entropy": torch.from_numpy(random.random((ROWS, 4))), "mask": torch.from_numpy(random.random((ROWS, 4)) < 0.7),
    }  # fmt: skip


def part(all_values: Values, names: str, rows: Sequence[int] = range(ROWS)) -> Values:
    """A call with some signals of some rows, and their ids."""

    def of(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: item[list(rows)] for name, item in value.items()}
        return [value[row] for row in rows] if isinstance(value, list) else value[list(rows)]

    return {name: all_values[name] if name == "wait" else of(all_values[name]) for name in ["row", *names.split()]}


REST = "prompt length solved text scores wait entropy mask"
WAYS: Mapping[str, Callable[[Values], Calls]] = {
    "two calls": lambda v: [part(v, REST), part(v, "reward")],
    "each in a call": lambda v: [part(v, name) for name in (*REST.split()[:-2], "reward", "entropy mask")],
    "in another order": lambda v: [part(v, REST), part(v, "reward", [3, 1, 5, 0, 2, 4])],
    "parts": lambda v: [part(v, REST), part(v, "reward", [5, 0]), part(v, "reward", [1, 2, 3, 4])],
    "parts before": lambda v: [part(v, "reward", [0, 1, 2]), part(v, "reward", [3, 4, 5]), part(v, REST)],
    "parts of several signals": lambda v: [
        part(v, "reward text", [0, 1, 2]), part(v, "prompt length solved scores wait"),
        part(v, "entropy mask", [2, 4, 0, 1]), part(v, "reward text", [5, 4, 3]), part(v, "entropy mask", [3, 5]),
    ],
    "texts and families": lambda v: [part(v, "prompt reward length"), part(v, "text", [1, 2]), part(v, "scores"),
                                     part(v, "text", [0, 3, 4, 5]), part(v, "solved entropy mask wait")],
    "parts that overlap": lambda v: [
        part(v, "reward", [0, 1]), part(v, "length", [2]), part(v, "text", [1, 2]), part(v, "reward", [5, 4, 3, 2]),
        part(v, "length", [0, 5, 3, 1, 4]), part(v, "prompt solved scores wait entropy mask"),
        part(v, "text", [3, 0, 4, 5]),
    ],
    "members one by one": lambda v: [
        {"row": v["row"], "scores": {"x": v["scores"]["x"]}}, part(v, REST.replace("scores", "")), part(v, "reward"),
        *({"row": v["row"][rows], "scores": {"y": v["scores"]["y"][rows]}} for rows in ([3, 0], [1, 2, 5, 4])),
    ],
    "the mask in both": lambda v: [part(v, "entropy mask"), part(v, f"reward {REST.replace('entropy', '')}")],
}  # fmt: skip


def logged(
    calls: Callable[[Values], Calls], folder: Path, *, every: int = 1, batch: bool = False, ranks: int = 1,
    mode: str = "train",
) -> MemorySink:  # fmt: skip
    """What rank 0 logs of four steps."""
    sink = MemorySink()

    def body(comm: Comm) -> None:
        own = sink if comm.rank == 0 else MemorySink()
        with declog.start({**CONFIG, "every": every}, comm=comm, sinks=[own], output_dir=folder) as log:
            for step in range(4):
                with log.step(step), log.mode(mode):
                    of_step = calls(values(step + 100 * comm.rank))
                    if batch:
                        with log.batch():
                            _observed(log, of_step)
                    else:
                        _observed(log, of_step)

    run_ranks(ranks, body)
    return sink


def _observed(log: Any, calls: Calls) -> None:
    for call in calls:
        log.observe(**call)


def of_sink(sink: MemorySink) -> Any:
    """The scalars and the tables' rows of a sink."""
    tables = [
        (step, sorted(zip(*map(table.data.__getitem__, sorted(table.data)), strict=True), key=repr))
        for step, table in sink.tables("all")
    ]
    return sink.scalars, tables


OPTIONS: Mapping[str, dict[str, Any]] = {
    "": {}, "batch": {"batch": True}, "window": {"every": 2}, "ranks": {"ranks": 2}, "eval": {"mode": "eval"},
}  # fmt: skip


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_several_calls_are_as_one(way: str, kind: str, tmp_path: Path) -> None:
    """Scalars and tables are equal to those of one call a step."""
    alone, tables = of_sink(logged(lambda v: [v], tmp_path / "one", **OPTIONS[kind]))
    scalars, rows = of_sink(logged(WAYS[way], tmp_path / "several", **OPTIONS[kind]))
    assert alone and rows == tables and (tables or kind == "eval")
    for step, expected in alone.items():
        assert scalars[step] == pytest.approx(expected)


def test_threads_observe_parts_of_the_rows(tmp_path: Path) -> None:
    """Within a step or a batch, bound threads observe their parts beside the loop, each with its ids."""
    expected, _ = of_sink(logged(lambda v: [v], tmp_path / "one"))
    for batch in (False, True):
        sink = MemorySink()
        with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path / f"threads{batch}") as log:
            for step in range(4):
                with log.step(step), log.batch() if batch else contextlib.nullcontext():
                    of_step = values(step)
                    log.observe(**part(of_step, REST))
                    threads = [
                        threading.Thread(target=declog.bind(log.observe), kwargs=part(of_step, "reward", rows))
                        for rows in ([0, 2], [1, 5], [3, 4])
                    ]
                    for thread in threads:
                        thread.start()
                    for thread in threads:
                        thread.join()
        for step in range(4):
            assert sink.scalars[step] == pytest.approx(expected[step])


def test_a_row_without_a_value_is_absent(tmp_path: Path) -> None:
    """A part of the rows has rewards; the others have all else."""
    sink = MemorySink()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        v = values(0)
        _observed(log, [part(v, REST), part(v, "reward", [4, 1])])
    far = v["length"][[4, 1]] > 3
    assert sink.scalars[0]["rows"] == ROWS
    assert sink.scalars[0].get("long") == (pytest.approx(v["reward"][[4, 1]][far].mean()) if far.any() else None)
    ((_, table),) = sink.tables("all")
    assert [row for row, value in enumerate(table.data["reward"]) if value is not None and value == value] == [1, 4]


def test_a_second_epoch_is_of_further_rows(tmp_path: Path) -> None:
    """Values that come again for the same rows count again, and each epoch's later values join the latest rows."""
    sink = MemorySink()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        v = values(0)
        for epoch in range(2):
            for rows in ([0, 1, 2], [3, 4, 5]):
                log.observe(**part({**v, "reward": v["reward"] + epoch}, "reward prompt", rows))
                log.observe(**part({**v, "length": v["length"] - 3 * epoch}, "length", rows))
    assert sink.scalars[0]["rows"] == 2 * ROWS
    chosen = np.concatenate([v["reward"][v["length"] > 3], v["reward"][v["length"] > 6] + 1])
    assert sink.scalars[0]["long"] == pytest.approx(chosen.mean())


@pytest.mark.parametrize("ids", [[0, 1, 2, 3, 4, 4], [0, 1, 2, 3, 4, 9]])
def test_rows_that_the_ids_do_not_name_stay_apart(ids: list[int], tmp_path: Path) -> None:
    """Two rows with one id, and a row that the other call has not, are joined with nothing."""
    sink = MemorySink()
    with declog.start(CONFIG, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        v = values(0)
        _observed(log, [part(v, REST), {"row": ids, "reward": v["reward"]}])
    assert sink.scalars[0]["rows"] == 2 * ROWS and "long" not in sink.scalars[0]


def test_a_late_question_and_a_resume_have_the_same_rows(tmp_path: Path) -> None:
    """Kept rows are joined as the run's are, and a checkpoint in a window holds them so."""
    config = {**CONFIG, "every": 2, "metrics": {"long": CONFIG["metrics"]["long"]}, "sinks": ["jsonl"]}
    sinks, state = [MemorySink(), MemorySink(), MemorySink()], None
    calls = WAYS["parts before"]
    with declog.start(config, sinks=[sinks[0]], output_dir=tmp_path / "one") as log:
        for step in range(4):
            with log.step(step):
                log.observe(**values(step))
    for sink, steps in zip(sinks[1:], ([0, 1, 2], [3]), strict=True):
        with declog.start(config, sinks=[sink], output_dir=tmp_path / "two", resume=state) as log:
            for step in steps:
                with log.step(step):
                    _observed(log, calls(values(step)))
            state = log.state_dict()
    assert sinks[2].scalars[3] == pytest.approx(sinks[0].scalars[3])
    late = ask(tmp_path / "two", {"most": "max(length)", "of_solved": "{expr: length, where: reward > 0}"})
    assert declog.read(tmp_path / "two")["long"].values == pytest.approx([sinks[0].scalars[k]["long"] for k in (1, 3)])
    answers = {(step, one.name): one.value for step, records in late.events for one in records.scalars}
    for first in (0, 2):
        of_window = [values(first), values(first + 1)]
        length, reward = (np.concatenate([v[name] for v in of_window]) for name in ("length", "reward"))
        assert answers[first + 1, "most"] == length.max()
        assert answers[first + 1, "of_solved"] == pytest.approx(length[reward > 0].mean())


def test_values_per_batch_of_parts_stay(tmp_path: Path) -> None:
    """The class: micro-batches with a number of their own are of the rows of one call, and each number counts once."""
    config = {
        **CONFIG, "tables": {"all": {"columns": ["reward", "length"], "keep": "last_batch"}},
        "metrics": {
            "long": CONFIG["metrics"]["long"], "rows": CONFIG["metrics"]["rows"],
            "wait": {"expr": "wait", "reduce": ["mean", "count", "last"]},
            "tokens": {"expr": "entropy", "reduce": "p50"},
        },
    }  # fmt: skip
    for number, parts in enumerate(([[0, 1, 2], [3, 4, 5]], [[4], [0, 5, 1], [2, 3]])):
        for first in (0, 1, len(parts)):  # the call with all rows comes before, between and after them
            sink = MemorySink()
            with declog.start(config, sinks=[sink], output_dir=tmp_path / f"{number}{first}") as log:
                for step in range(2):
                    v = values(step)
                    calls = [{**part(v, "reward entropy mask", rows), "wait": wait} for wait, rows in enumerate(parts)]
                    calls.insert(first, part(v, "length prompt"))
                    with log.step(step):
                        _observed(log, calls)
            for step in range(2):
                v, logged = values(step), sink.scalars[step]
                assert logged["rows"] == ROWS and logged["long"] == pytest.approx(v["reward"][v["length"] > 3].mean())
                waits = [logged[f"wait/{name}"] for name in ("mean", "count", "last")]
                assert waits == [(len(parts) - 1) / 2, len(parts), len(parts) - 1]
                expected = np.quantile(v["entropy"][v["mask"]], 0.5)
                assert logged["tokens"] == pytest.approx(expected, rel=0.1)
                assert sorted(sink.tables("all")[step][1].data["reward"]) == sorted(v["reward"])


@pytest.mark.parametrize("repeated", [False, True])
def test_micro_batches_are_matched_in_linear_time(
    repeated: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each batch is compared with those that have its ids; so also where each micro-batch counts its rows anew."""
    compared: list[object] = []
    rows_of = SameRows.rows_of

    def counted(rows: SameRows, part: SameRows) -> Any:
        compared.append(part)
        return rows_of(rows, part)

    monkeypatch.setattr(SameRows, "rows_of", counted)
    count, epochs, sink = 100, 3, MemorySink()
    lengths = np.random.default_rng(0).integers(1, 9, (epochs, count, 2))
    config = {**CONFIG, "tables": {}, "metrics": {"long": CONFIG["metrics"]["long"]}}
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        for epoch in range(epochs):
            for batch in range(count):
                ids = [0, 1] if repeated else [2 * batch, 2 * batch + 1]
                log.observe(row=ids, reward=lengths[epoch, batch] * 2.0)
                log.observe(row=ids, length=lengths[epoch, batch])
    assert sink.scalars[0]["long"] == pytest.approx(2 * lengths[lengths > 3].mean())
    assert len(compared) <= 4 * epochs * epochs * count


@pytest.mark.parametrize("parts", [[range(ROWS)], [[2, 5], [0, 1, 3, 4]]])
def test_required_signals_come_in_several_calls(parts: Sequence[Sequence[int]], tmp_path: Path) -> None:
    """The first call with ids need not have them all; what no call of the step has is missing."""
    signals = {**CONFIG["signals"], "rollout": {
        "length": "completion int", "reward": {"axis": "completion", "required": True},
    }}  # fmt: skip
    config = {**CONFIG, "signals": signals, "tables": {}, "metrics": {"long": CONFIG["metrics"]["long"]}}
    sink, v = MemorySink(), values(0)
    with declog.start(config, sinks=[sink], output_dir=tmp_path / "several") as log, log.step(0):
        _observed(log, [part(v, "length"), *(part(v, "reward", rows) for rows in parts)])
    assert sink.scalars[0]["long"] == pytest.approx(v["reward"][v["length"] > 3].mean())
    with (
        pytest.raises(declog.MissingSignalError, match="`reward` was not observed"),
        declog.start(config, sinks=[sink], output_dir=tmp_path / "none") as log, log.step(0),
    ):  # fmt: skip
        _observed(log, [part(v, "length", rows) for rows in parts])


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("what", ["`reward`", "`x` of `scores`"])
def test_an_explicit_batch_takes_each_value_of_a_row_once(what: str, strict: bool, tmp_path: Path) -> None:
    """By ids, too: a second call with rows that have the value is left out, and it is told; elsewhere it counts."""
    sink, v = MemorySink(), values(0)
    config = {**CONFIG, "run": {"name": "twice", "strict": strict}}
    again = part(v, "reward scores", [1, 3]) if "reward" in what else {
        "row": v["row"][[1, 3]], "scores": {"x": v["scores"]["x"][[1, 3]]},
    }  # fmt: skip

    def run(block: bool) -> list[str]:
        folder = tmp_path / f"block{block}"
        with (
            declog.start(config, sinks=[sink], output_dir=folder) as log, log.step(0),
            log.batch() if block else contextlib.nullcontext(),
        ):  # fmt: skip
            _observed(log, [part(v, REST), part(v, "reward", [0, 1, 2]), part(v, "reward", [3, 4, 5]), again])
        return [*log.failures]

    told = contextlib.nullcontext() if not strict else pytest.raises(RuntimeFailure, match="twice for a row")
    failures: list[str] = []
    with told:
        failures = run(True)
    assert strict or [text for text in failures if f"{what} of phase `rollout` was given twice" in text]
    assert sink.scalars[0]["rows"] == ROWS
    assert not run(False) and sink.scalars[0]["rows"] == ROWS + 2


IDS: Mapping[str, Sequence[Any]] = {
    "others": [10, 11, 12, 13, 14, 15], "one more": [0, 1, 2, 3, 4, 9], "one twice": [0, 1, 2, 3, 4, 4],
    "one without": [0, 1, 2, None, 4, 5],
}  # fmt: skip


@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("case", [*IDS, "values per group", "as they are", "no reader", "without a second call"])
def test_ids_that_join_nothing_are_told_once(
    case: str, every: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a metric reads signals of both calls; a checkpoint in a window does not tell it again."""
    signals = {**CONFIG["signals"]["rollout"], "of_group": "group"}
    metrics = {"long": CONFIG["metrics"]["long"], "of_group": "mean(of_group)"}
    if case == "no reader":
        metrics = {"reward": "mean(reward)", "length": "mean(length)"}
    config = {
        **CONFIG, "every": every, "tables": {}, "metrics": metrics, "axes": {**CONFIG["axes"], "group": {"size": 2}},
        "signals": {**CONFIG["signals"], "rollout": signals},
    }  # fmt: skip
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log,
    ):
        for step in range(3):
            v = {**values(step), "row": np.arange(ROWS)}
            with log.step(step):
                log.observe(**part(v, "length"), **({"of_group": [1.0, 2.0, 3.0]} if "group" in case else {}))
                if case != "without a second call":
                    log.observe(row=IDS.get(case, range(ROWS)) if case != "no reader" else IDS["others"],
                                reward=v["reward"])  # fmt: skip
            log.state_dict()
    told = [line for record in caplog.records if "neither has all row ids" in (line := record.getMessage())]
    assert told == (case in IDS or case == "values per group") * [
        "`length`, `reward` of phase `rollout` came in calls of one step of which neither has all row ids, `row`, of "
        "the other: metrics of several of them miss values. Give the ids of the same rows in each, every id once and "
        "none missing, or observe them in one call"
    ]


EPOCHS: Mapping[str, tuple[str, int]] = {  # the calls, and the first epoch of `b`
    "one value after the other": ("aaabbb", 0), "in turn": ("ababab", 0), "parts": ("aaaPpPpPp", 0),
    "three values": ("aabcbc", 0), "the first epoch has none": ("aab", 1), "the others have": ("aabab", 1),
    "parts in turn": ("aPpaPp", 0),
}  # fmt: skip


@pytest.mark.parametrize("case", EPOCHS)
def test_epochs_of_values_are_paired_in_their_order(case: str, tmp_path: Path) -> None:
    """The class: the rows of a step come several times, and so do values that join them, all at once or in turn."""
    order, first = EPOCHS[case]
    config = {
        "run": {"name": "epochs"}, "axes": {"completion": {"ids": "row"}},
        "signals": {"any": {"row": "completion int"}, "update": dict.fromkeys("abc", "completion")},
        "metrics": {"apart": "max(abs(a - b))", "c": "max(abs(a - c))", "pairs": {"expr": "a - b", "reduce": "count"}},
    }  # fmt: skip
    sink, base = MemorySink(), np.arange(4.0)
    epochs = {"a": 0, "b": first, "c": 0, "P": first, "p": first}
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        for letter in order:
            rows = {"P": [3, 0], "p": [1, 2]}.get(letter, [2, 1, 3, 0])
            name = "b" if letter in "Pp" else letter
            log.observe(**{"row": rows, name: (base + 10 * epochs[letter])[rows]})
            epochs[letter] += 1
    assert sink.scalars[0]["apart"] == 0 and sink.scalars[0].get("c", 0) == 0
    assert sink.scalars[0]["pairs"] == 4 * order.count("b") + 2 * (order.count("p") + order.count("P"))


def test_rows_are_there_since_the_first_call(tmp_path: Path) -> None:
    """A later phase reads rows of which the call with all ids comes after it."""
    signals = {**CONFIG["signals"], "update": {"loss": "completion"}}
    metrics = {"good": {"expr": "loss", "where": "reward > 0"}, "long": CONFIG["metrics"]["long"]}
    sink, v = MemorySink(), values(0)
    config = {**CONFIG, "signals": signals, "metrics": metrics, "tables": {}}
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        _observed(log, [part(v, "reward", [0, 1, 2]), part(v, "reward", [3, 4, 5])])
        log.observe(row=v["row"], loss=v["reward"] * 2)
        _observed(log, [part(v, "length")])
    assert sink.scalars[0]["good"] == pytest.approx(2 * v["reward"][v["reward"] > 0].mean())
    assert sink.scalars[0]["long"] == pytest.approx(v["reward"][v["length"] > 3].mean())


TOKENS: Mapping[str, tuple[Sequence[str], str]] = {
    "two signals": (["logprobs mask", "old mask"], "`logprobs`"),
    "the mask alone": (["mask advantage", "logprobs old"], "`mask`"),
    "one call": (["advantage", "logprobs old mask"], ""),
    "one never comes": (["advantage mask", "logprobs"], ""),
}


@pytest.mark.parametrize("case", TOKENS)
def test_tokens_of_several_calls_are_told_once(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The class: row ids join rows, and tokens are reduced before; what an expression reads comes in one call."""
    calls, told = TOKENS[case]
    config = {
        "run": {"name": "tokens"}, "axes": {"completion": {"ids": "row"}, "token": {"mask": "mask"}},
        "signals": {
            "any": {"row": "completion int", "mask": "token bool"},
            "update": {"advantage": "completion", "logprobs": "token", "old": "token"},
        },
        "metrics": {"ratio": "mean(logprobs - old)", "advantage": "mean(advantage)"},
    }  # fmt: skip
    signals = {name: torch.ones(3, 4) for name in ("logprobs", "old")} | {"mask": torch.ones(3, 4, dtype=torch.bool)}
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log,
    ):
        for step in range(2):
            with log.step(step):
                for names in calls:
                    log.observe(row=[0, 1, 2], **{name: signals.get(name, torch.ones(3)) for name in names.split()})
    lines = [line for record in caplog.records if "reduced call by call" in (line := record.getMessage())]
    assert [line.partition(" of phase `update`")[0] for line in lines] == ([told] if told else [])
    assert all("so that ratio misses values" in line for line in lines)


def test_tokens_of_a_tables_column_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The same where no metric reads them."""
    config = {
        "run": {"name": "tokens"}, "axes": {"completion": {"ids": "row"}, "token": {"mask": "all"}},
        "signals": {"any": {"row": "completion int"}, "update": {"x": "completion", "a": "token", "b": "token"}},
        "metrics": {"x": "mean(x)"},
        "schemas": {"s": {"apart": {"expr": "mean(a - b, over=token)", "type": "float"}}},
        "tables": {"t": {"schema": "s", "filter": {"first": 1}}},
    }  # fmt: skip
    with declog.start(config, sinks=[MemorySink()], output_dir=tmp_path) as log, log.step(0):
        log.observe(row=[0, 1], a=torch.ones(2, 3), x=torch.ones(2))
        log.observe(row=[0, 1], b=torch.ones(2, 3))
    (line,) = (line for line in caplog.messages if "reduced call by call" in line)
    assert "so that columns of tables miss values. Observe " in line


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("in_each", [False, True])
def test_a_value_observed_once_for_several_epochs_is_told(
    epochs: int, in_each: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: rows come again in further epochs, without a value that a call of its own gave them once.

    Nothing is told where one call has all, or where each row comes once.
    """
    config = {
        "run": {"name": "epochs"}, "axes": {"completion": {"ids": "row"}},
        "signals": {"any": {"row": "completion int"}, "update": {"advantage": "completion", "entropy": "completion"}},
        "metrics": {"of_good": {"expr": "entropy", "where": "advantage > 0"}, "entropy": "mean"},
    }  # fmt: skip
    advantages, sink = [-1.0, 1.0, -1.0, 1.0], MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        if not in_each:
            log.observe(row=range(4), advantage=advantages)
        for epoch in range(epochs):
            for rows in ([3, 0], [1, 2]):
                own = {"advantage": [advantages[row] for row in rows]} if in_each else {}
                log.observe(row=rows, entropy=[float(epoch)] * 2, **own)
    told = [line for line in caplog.messages if "the same rows again without" in line]
    assert len(told) == (epochs == 2 and not in_each)
    assert all("there of_good misses values. Observe `advantage` in each of these calls" in line for line in told)
    assert sink.scalars[0]["of_good"] == ((epochs - 1) / 2 if in_each else 0.0)
