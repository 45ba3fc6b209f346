"""`call:` columns: Python functions of a row, for picked rows only."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.errors import ConfigError, UsageError
from declog.language.row_functions import RowFunctions, column
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import rows, run, scores

SIGNALS: dict[str, Any] = {
    "messages": {"axis": "completion", "type": "object"},
    "rewards": {"axis": "completion", "family": True},
    "loss": {"axis": "step"}, "entropy": {"axis": "token", "mask": "all"},
}  # fmt: skip
TOP = {"key": "score", "top": 1, "within": "step"}


def one_table(
    function: Any, values: Mapping[str, Any], folder: Path, *, filter: Any = None, constants: Any = None, **spec: Any
) -> list[dict[str, Any]]:
    """The rows of a table whose column `made` calls a function."""
    registry = RowFunctions(RowFunctions())
    column(function, name="function", registry=registry)
    made = scores(filter, schema={"made": {"call": "function", **spec}}, signals=SIGNALS,
                  axes={"group": {"size": 2}, "token": {"mask": "all"}})  # fmt: skip
    made["constants"] = constants or {}

    def body(log: Recorder) -> None:
        with log.step(3):
            log.observe(**values)

    return [row for _, table in run(made, body, folder, columns=registry).tables("t") for row in rows(table)]


def test_a_function_gets_the_values_of_its_row_as_plain_python(tmp_path: Path) -> None:
    """By the names of signals, constants and built-in names; families as mappings, what is missing as None."""

    def function(
        score: float, messages: Any, rewards: Any, loss: float, threshold: float, step: int, left: int = 5
    ) -> Any:
        return [score, messages, rewards, loss, threshold, step, left]

    values = {
        "score": [0.5, math.nan], "messages": [[{"role": "user", "content": "é"}], None],
        "rewards": {"a": [1.0, 2.0], "b": [3.0, None]}, "loss": 0.25,
    }  # fmt: skip
    found = one_table(function, values, tmp_path, type="object", constants={"threshold": 0.75})
    assert [row["made"] for row in found] == [
        [0.5, [{"role": "user", "content": "é"}], {"a": 1.0, "b": 3.0}, 0.25, 0.75, 3, 5],
        [None, None, {"a": 2.0, "b": None}, 0.25, 0.75, 3, 5],
    ]


def test_what_a_redacted_column_is_made_of_is_redacted_in_captures_too() -> None:
    """The texts that its function takes, and no other."""
    registry = RowFunctions(RowFunctions())
    column(lambda text, score: text, name="shout", registry=registry)
    made = scores(None, schema={"shout": {"type": "text", "call": "shout", "redact": {"card": "1234"}}})
    assert declog.plan(made, columns=registry).redactions == {"text": (("card", "1234"),)}


def test_it_is_called_for_picked_rows_only(tmp_path: Path) -> None:
    """One row of four: one call."""
    called: list[str] = []

    def function(text: str) -> str:
        called.append(text)
        return text.upper()

    values = {"score": [0.0, 3.0, 1.0, 2.0], "text": list("abcd")}
    assert one_table(function, values, tmp_path, filter=TOP) == [{"made": "B"}]
    assert called == ["b"]


def test_what_it_changes_stays_its_own(tmp_path: Path) -> None:
    """An object is copied for the call: another column shows it as it was observed."""
    registry = RowFunctions(RowFunctions())

    @column(registry=registry)
    def last(messages: list[str]) -> str:
        return messages.pop()

    schema = {"last": {"call": "last"}, "messages": {"type": "object"}}
    made = scores(None, schema=schema, signals=SIGNALS)

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(score=[0.0], messages=[["a", "b"]])

    [(_, table)] = run(made, body, tmp_path, columns=registry).tables("t")
    assert rows(table) == [{"last": "b", "messages": ["a", "b"]}]


@pytest.mark.parametrize(
    ("type", "given", "expected"),
    [("int", 2**62 + 1, 2**62 + 1), ("float", 3, 3.0), ("bool", True, True), ("text", "é", "é"), ("object", [1], [1]),
     ("float", math.nan, None), ("text", None, None), ("int", 2.0, 2)],
    ids=str,
)  # fmt: skip
def test_values_of_the_declared_type(type: str, given: Any, expected: Any, tmp_path: Path) -> None:
    """What a function returns becomes the column's; NaN and None are null."""
    [row] = one_table(lambda score: given, {"score": [0.0]}, tmp_path, type=type)
    assert (row["made"], row["made"].__class__) == (expected, expected.__class__)


def test_texts_of_a_function_are_redacted(tmp_path: Path) -> None:
    """`redact` and `max_chars` hold for what a function returns, too."""
    [row] = one_table(
        lambda text: f"mail {text} again", {"score": [0.0], "text": ["a@b.c"]}, tmp_path,
        type="text", redact={"mail": r"\S+@\S+"}, max_chars=12,
    )  # fmt: skip
    assert row == {"made": "mail [mail]…"}


def test_a_failing_function_makes_nulls_and_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also one that returns another type. With the name of the column, the table and the function."""
    registry = RowFunctions(RowFunctions())

    @column(registry=registry)
    def inverse(score: float) -> Any:
        return "none" if score == 1.0 else 2 / score

    made = scores(None, schema={"inverse": {"type": "float", "call": "inverse"}})

    def body(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(score=[0.0, 1.0, 2.0])

    with caplog.at_level(logging.WARNING, logger="declog"):
        tables = run(made, body, tmp_path, columns=registry).tables("t")
    assert [table.data for _, table in tables] == [{"inverse": [None, None, 1.0]}] * 2
    assert [record.getMessage() for record in caplog.records] == [
        "[DL512] the column `inverse` of the table `t` is null where `inverse` fails: 2 of 3 rows, first with "
        "ZeroDivisionError: float division by zero"
    ]


def test_a_failing_function_of_a_column_that_is_required_costs_the_table(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The error is reported once, with the function's traceback; metrics are written."""
    registry = RowFunctions(RowFunctions())

    @column(registry=registry)
    def inverse(score: float) -> float:
        return 1 / score

    made = scores(None, schema={"inverse": {"call": "inverse", "required": True}}, run={"strict": False})
    made["metrics"] = {"score": "mean(score)"}

    def body(log: Recorder) -> None:
        for step in range(3):
            with log.step(step):
                log.observe(score=[1.0, float(step > 1)])

    with caplog.at_level(logging.ERROR, logger="declog"):
        sink = run(made, body, tmp_path, columns=registry)
    assert [step for step, _ in sink.tables("t")] == [2]
    assert sink.scalars == {0: {"score": 0.5}, 1: {"score": 0.5}, 2: {"score": 1.0}}
    [record] = caplog.records
    assert "[DL512] the column `inverse` of the table `t`: `inverse` raised ZeroDivisionError" in record.getMessage()
    assert "return 1 / score" in record.getMessage()


def test_what_it_reads_travels_for_candidates(tmp_path: Path) -> None:
    """On ranks the function runs on rank 0, over the texts of the rows that are picked there."""
    registry = RowFunctions(RowFunctions())
    called: list[str] = []

    @column(registry=registry)
    def shout(text: str, messages: list[str]) -> str:
        called.append(text)
        return f"{text.upper()} {messages}"

    made = scores(TOP | {"bottom": 1}, schema={"shout": {"call": "shout"}}, signals=SIGNALS)

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=tmp_path, comm=comm, columns=registry) as log, log.step(0):
            given = [float(comm.rank), 5.0 * comm.rank, 0.5]
            texts = [f"{comm.rank}.{row}" for row in range(3)]
            log.observe(score=given, text=texts, messages=[[text] for text in texts])
        return sink

    [(_, table)] = run_ranks(3, rank)[0].tables("t")
    assert table.data == {"shout": ["0.0 ['0.0']", "2.1 ['2.1']"]}
    assert called == ["0.0", "2.1"]


# ---- what is wrong before the run


def answer(completion: str, prompt: str = "") -> str | None:
    """Of two signals, one of which is needed."""
    return completion + prompt


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ({"type": "text", "call": "answr"},
         ("DL303", "no column function `answr` is registered", "did you mean `answer`?")),
        ({"type": "text", "call": "answer"},
         ("DL302", "`answer` takes `completion`, and the config has no such signal", "signals: ")),
        ({"type": "int", "call": "greet"}, ("DL305", "the column `made` is declared int, and `greet` returns text",
                                            "type: text")),
        ({"call": "untyped"}, ("DL203", "the column `made` has a `call` and no `type`", "type: text")),
        ({"type": "float", "call": "spread"},
         ("DL310", "`spread` takes `entropy`, which is per token, and is called with one completion",
          "declare a signal of what it needs, with `over=`, and name that")),
        ({"type": "float", "call": "untyped", "expr": "score"},
         ("DL202", "a column has one of `expr` and `call`, not both", "drop one of them (null)")),
        ({"call": "greet", "name": "{member}"},
         ("DL404", "the name `{member}` has {member}, and it is of no family", "{id}")),
    ],
    ids=["unknown", "parameter", "annotation", "no type", "axis", "two of them", "name"],
)  # fmt: skip
def test_wrong_calls_are_found_before_the_run(schema: dict[str, Any], problem: tuple[str, str, str]) -> None:
    """With the place, and what to write instead."""
    registry = RowFunctions(RowFunctions())
    column(answer, registry=registry)
    column(lambda text: text, name="untyped", registry=registry)
    column(lambda entropy: 0.0, name="spread", registry=registry)

    @column(registry=registry)
    def greet(text: str) -> str:
        return text

    with pytest.raises(ConfigError) as caught:
        declog.plan(scores(None, schema={"made": schema}, signals=SIGNALS, axes={"token": {"mask": "all"}}),
                    columns=registry)  # fmt: skip
    [found] = caught.value.problems
    assert (found.code, found.message) == problem[:2]
    assert found.path[:3] == ("schemas", "s", "made")
    assert problem[2] in (found.fix or "")


def test_where_nothing_is_registered() -> None:
    """How to register it is said, and how `declog check` comes to know of it."""
    with pytest.raises(ConfigError) as caught:
        declog.plan(scores(None, schema={"made": {"type": "text", "call": "answer"}}), columns=RowFunctions())
    [found] = caught.value.problems
    assert found.code == "DL303"
    assert str(found.fix).splitlines() == [
        "one of yours: `@declog.column` above `def answer(...)`, in a module that is imported first: "
        '`declog check FILE --import train`, or [tool.declog] imports = ["train"] in pyproject.toml',
    ]


def test_what_is_off_takes_the_column_with_it(tmp_path: Path) -> None:
    """A needed signal that is switched off switches the column off; one with a default is not passed."""
    registry = RowFunctions(RowFunctions())
    column(answer, registry=registry)
    needed = {"completion": {"axis": "completion", "type": "text"}}
    optional = {"prompt": {"axis": "completion", "type": "text", "enabled": "false"}}
    made = declog.plan(
        scores(None, schema={"made": {"call": "answer"}}, signals=needed | optional),
        columns=registry,
        profiles=["full"],
    )
    assert [name for name, _ in made.tables[0].columns[0].args] == ["completion"]
    needed["completion"]["enabled"] = "false"
    made = declog.plan(
        scores(None, schema={"made": {"call": "answer"}, "score": {}}, signals=needed),
        columns=registry,
        profiles=["full"],
    )
    assert [item.id for item in made.tables[0].columns] == ["score"]
    assert dict(made.inactive)["schemas.s.made"] == "the signal `completion` is off (enabled: false)"


@pytest.mark.parametrize("kind", ["args", "keywords", "positional", "async"])
def test_what_cannot_be_called_with_a_row_is_refused(kind: str) -> None:
    """Where it is registered."""

    async def waits(score: float) -> float:
        return score

    made: dict[str, Any] = {
        "args": lambda *scores: 0, "keywords": lambda **scores: 0, "positional": lambda score, /: 0, "async": waits,
    }  # fmt: skip
    with pytest.raises(UsageError, match="DL304"):
        column(made[kind], name="f", registry=RowFunctions())


def test_an_installed_package_provides_functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry-point group `declog.columns`."""
    (tmp_path / "team_columns.py").write_text("def shout(text: str) -> str:\n    return text.upper()\n")
    info = tmp_path / "team_columns-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: team-columns\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[declog.columns]\nshout = team_columns:shout\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    made = scores(None, schema={"shout": {"call": "shout"}})

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(score=[0.0], text=["a"])

    [(_, table)] = run(made, body, tmp_path, columns=RowFunctions(RowFunctions())).tables("t")
    assert rows(table) == [{"shout": "A"}]
