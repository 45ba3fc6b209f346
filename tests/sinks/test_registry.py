"""The registry of sink kinds: lazy, checked, open to other packages."""

from __future__ import annotations

import functools
import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest

import declog
from declog.errors import Problem, SinkError
from declog.records import Records, RunInfo
from declog.sinks import (
    BaseSink,
    Sink,
    built_in,
    check_options,
    known_kinds,
    make_sink,
    option_names,
    sink_class,
    traits,
)
from declog.sinks._folder import FolderSink
from declog.sinks.jsonl import JsonlSink
from tests.sinks.samples import python

HERE = "tests.sinks.test_registry"


class OwnSink:
    """A sink that another package might bring."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar"})

    def __init__(self, *, url: str, tries: int = 3, timeout: float = 1.0) -> None:
        self.url, self.tries, self.timeout = url, tries, timeout

    def open(self, run: RunInfo) -> None: ...

    def write(self, step: int, records: Records) -> None: ...

    def close(self) -> None: ...


def test_importing_the_package_loads_no_backend() -> None:
    """A tracker is imported when its sink is made, not when the registry is."""
    code = """
import sys, declog
before = set(sys.modules)
import declog.sinks, declog.sinks.runner
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(loaded & {"wandb", "trackio", "pyarrow", "rich", "tensorboard", "pydantic"}))
"""
    assert python(code) == "[]\n"


def test_looking_at_every_kind_loads_no_backend() -> None:
    """Classes, options and what a sink accepts are known without its tracker, so that `check` stays fast."""
    code = """
import sys, declog
before = set(sys.modules)
from declog.sinks import built_in, check_options, sink_class
print([sorted(sink_class(kind).accepts) for kind in ("console", "parquet")], [check_options(k, {}) for k in built_in()])
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(sorted(loaded & {"wandb", "trackio", "pyarrow", "rich", "tensorboard"}))
"""
    accepts = [["alert", "scalar", "table"], ["alert", "histogram", "scalar", "table"]]
    assert python(code) == f"{accepts} {[[]] * len(built_in())}\n[]\n"


@pytest.mark.parametrize("kind", built_in())
def test_every_built_in_kind_is_a_sink(kind: str) -> None:
    """Each kind's class follows the protocol and can be made from its defaults, or says which extra it needs."""
    if find_spec(kind) is None and kind in ("mlflow", "swanlab"):
        with pytest.raises(SinkError, match=rf"pip install 'declog-rl\[{kind}\]'"):
            make_sink(kind, {})
    else:
        assert isinstance(make_sink(kind, {}), Sink)


def test_a_kind_has_the_name_of_its_file() -> None:
    """Nothing lists them: a file of the folder whose class says its name is a kind, and other files are none."""
    classes = [*BaseSink.__subclasses__(), *FolderSink.__subclasses__()]
    ours = [each for each in classes if each.__module__.startswith("declog.") and each is not FolderSink]
    named = {each.kind: each.__module__ for each in ours}
    assert named == {kind: f"declog.sinks.{kind}" for kind in built_in()}


def test_a_file_that_holds_no_sink_is_no_kind() -> None:
    """`kind: runner` is as unknown as any other word."""
    with pytest.raises(SinkError, match="unknown sink kind `runner`"):
        sink_class("runner")


def test_a_class_that_says_nothing_of_itself_has_the_defaults() -> None:
    """It writes on rank 0, needs no package of declog's, and gets no large table without a filter."""
    found = traits(f"{HERE}:OwnSink")
    assert (found.per_rank, found.in_folder, found.extra, found.unfiltered_bytes) == (False, False, "", 16 * 2**20)


def test_option_names_come_from_the_constructor() -> None:
    """The keyword-only arguments are the options."""
    assert option_names("jsonl") == ("dir", "fsync")


def test_good_options_have_no_errors() -> None:
    """Values of the declared types pass; an integer is a float where a float is asked for."""
    assert check_options("parquet", {"dir": None, "compact_every": 3}) == []
    assert check_options("console", {"format": "json"}) == []
    assert check_options(f"{HERE}:OwnSink", {"url": "u", "timeout": 1}) == []


def test_unknown_option_is_refused_with_the_nearest_one() -> None:
    """A typo is an error that names the nearest option."""
    assert check_options("console", {"max_row": 3}) == [
        Problem(
            "DL201.sink_option",
            "the sink kind `console` has no option `max_row`",
            ("max_row",),
            "did you mean `max_rows`?",
        )
    ]


def test_wrong_type_says_what_is_expected_and_what_came() -> None:
    """A string is not a number, and a choice names its values."""
    found = check_options("parquet", {"compact_every": "4"})
    assert [(problem.path, problem.message, problem.fix) for problem in found] == [
        (
            ("compact_every",),
            "the option `compact_every` of the sink kind `parquet` must be a whole number, not '4'",
            "compact_every: 256",
        ),
    ]
    (choice,) = check_options("console", {"format": "xml"})
    assert (choice.message, choice.fix) == (
        "the option `format` of the sink kind `console` must be 'text' or 'json', not 'xml'",
        "format: text",
    )


def test_an_option_without_default_is_needed() -> None:
    """What a third party's sink cannot do without is asked for by name."""
    assert check_options(f"{HERE}:OwnSink", {}) == [
        Problem("DL203.sink_option", f"the sink kind `{HERE}:OwnSink` needs the option `url`", fix="add `url:`")
    ]


def test_a_class_path_is_a_kind() -> None:
    """``module:Class`` names a sink that is not registered anywhere."""
    assert sink_class("declog.sinks.jsonl:JsonlSink") is JsonlSink


def test_unknown_kind_suggests_the_nearest() -> None:
    """A misspelled kind is an error that names the nearest kind."""
    with pytest.raises(SinkError) as caught:
        sink_class("parket")
    assert (caught.value.code, caught.value.fix) == ("DL601", "did you mean `parquet`?")


@pytest.mark.parametrize("kind", ["no_such_module:Sink", "declog.sinks.jsonl:NoSuchSink", "declog.sinks:ENTRY_POINTS"])
def test_a_class_path_that_leads_nowhere_is_one_error(kind: str) -> None:
    """A wrong module, a wrong name and a thing that is no class all end in DL601."""
    with pytest.raises(SinkError) as caught:
        sink_class(kind)
    assert caught.value.code == "DL601"


class Closing:
    """A class that is called like a sink."""

    def open(self, run: Any) -> None: ...
    def write(self, step: int, records: Any) -> None: ...
    def close(self) -> None: ...


class Saying(Closing):
    accepts: Any = frozenset({"scalar"})


class OfAMethod(Closing):
    def accepts(self, record: Any) -> bool:
        return True


class OfPlurals(Closing):
    accepts: Any = frozenset({"scalars"})


class OfOneWord(Closing):
    accepts: Any = "scalar"


class WritingRecords(Saying):
    def write(self, records: Any) -> None: ...  # type: ignore[override]


class ClosingInTime(Saying):
    def close(self, timeout_s: float) -> None: ...  # type: ignore[override]


def _locked(write: Any) -> Any:
    @functools.wraps(write)
    def call(self: Any, step: int, records: Any) -> None:
        write(self, step, records, object())

    return call


class Decorated(Saying):
    @_locked
    def write(self, step: int, records: Any, lock: Any) -> None: ...


class WithStatic(Saying):
    @staticmethod
    def write(step: int, records: Any) -> None: ...


class WithMore(Saying):
    def write(self, step: int, records: Any, *, again: bool = False) -> None: ...
    def close(self, *rest: Any) -> None: ...


@pytest.mark.parametrize(("cls", "lacks"), [
    (Closing, "accepts = "), (OfAMethod, "accepts = "), (OfPlurals, "accepts = "), (OfOneWord, "accepts = "),
    (WritingRecords, "write(step, records)"), (ClosingInTime, "close()"), (Saying, ""), (WithMore, ""),
    (Decorated, ""), (WithStatic, ""),
])  # fmt: skip
def test_what_is_no_sink_is_answered_before_the_run(cls: Any, lacks: str, tmp_path: Path) -> None:
    """The class: methods that take something else, and an `accepts` that is no set of kinds of records.

    Where a config names it, and where an object of it is handed over: no error of Python, and none at each log event.
    """
    if not lacks:
        assert sink_class(f"{__name__}:{cls.__name__}") is cls
        declog.start("minimal", sinks=[cls()], output_dir=tmp_path).close()
        return
    for named in (lambda: sink_class(f"{__name__}:{cls.__name__}"),
                  lambda: declog.start("minimal", sinks=[cls()], output_dir=tmp_path)):  # fmt: skip
        with pytest.raises(SinkError, match=rf"which has no `{re.escape(lacks)}") as caught:
            named()
        assert 'open(run), write(step, records), close() and `accepts = frozenset({"scalar"})`' in str(caught.value.fix)


def test_make_sink_refuses_wrong_options() -> None:
    """Constructing checks first, so that a sink never sees an option of the wrong type."""
    with pytest.raises(SinkError, match="has no option `folder`"):
        make_sink("jsonl", {"folder": "x"})


def test_an_installed_package_adds_a_kind(tmp_path: Path) -> None:
    """An entry point in the group `declog.sinks` is a kind like the built-in ones."""
    info = tmp_path / "team_sinks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: team-sinks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[declog.sinks]\nteam = declog.sinks.jsonl:JsonlSink\n")
    code = """
import sys
sys.path.insert(0, sys.argv[1])
from declog.sinks import known_kinds, make_sink
print(type(make_sink("team", {"fsync": True})).__name__, "team" in known_kinds())
"""
    assert python(code, str(tmp_path)) == "JsonlSink True\n"
    assert "team" not in known_kinds()


def test_a_missing_package_names_the_extra() -> None:
    """A sink whose tracker is not installed says how to install it."""
    code = """
import json, sys
from declog.errors import SinkError
from declog.sinks import make_sink
for kind, package in json.loads(sys.argv[1]):
    sys.modules[package] = None
    try:
        make_sink(kind, {})
    except SinkError as error:
        print(kind, error.code, error.fix)
"""
    found = [(kind, traits(kind)) for kind in built_in() if traits(kind).extra]
    given = json.dumps([(kind, each.package) for kind, each in found])
    expected = [f"{kind} DL601 pip install 'declog-rl[{each.extra}]'" for kind, each in found]
    assert expected and python(code, given).splitlines() == expected
