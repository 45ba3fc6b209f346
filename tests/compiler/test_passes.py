"""What each pass of the compiler is declared to read and add, compared with what it does in all golden profiles."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
from omegaconf import OmegaConf

import declog
from declog.compiler import PASSES, Pass
from declog.compiler.draft import ALWAYS, Draft
from declog.language import functions, reductions
from tests.compiler.golden import COLUMNS, FOLDER, PROFILES, constants_of

NAMES = frozenset(field.name for field in fields(Draft)) - ALWAYS
PRESETS = ("grpo", "rloo", "trl_grpo", "trl_rloo", "minimal", "trainer")
Touched = dict[str, tuple[set[str], set[str]]]
_read: set[str] = set()


class Watched(Draft):
    """A draft that notes which of its fields are read."""

    def __getattribute__(self, name: str) -> Any:
        _read.add(name)
        return super().__getattribute__(name)


def contents(draft: Draft) -> dict[str, Any]:
    """What each field holds now."""
    values = {name: object.__getattribute__(draft, name) for name in NAMES}
    return {name: copied(value) for name, value in values.items()}


def copied(value: Any) -> Any:
    return list(value.items()) if isinstance(value, dict) else list(value) if isinstance(value, list) else value


@cache
def touched() -> Touched:
    """The fields that each pass read, and those that it changed, over all profiles."""
    found: Touched = defaultdict(lambda: (set(), set()))
    with contextlib.chdir(FOLDER):
        for profile in PROFILES:
            with contextlib.suppress(declog.ConfigError):  # not even a spec
                config = OmegaConf.create(profile.read_text(encoding="utf-8"))
                spec = declog.validate(declog.config_of(config))
                compiled(spec, constants_of(profile), found)
        for preset in PRESETS:
            compiled(declog.validate(declog.config_of(declog.compose(preset))), {}, found)
    return found


def compiled(spec: Any, constants: dict[str, Any], found: Touched) -> None:
    """Run the passes as the compiler does."""
    draft = Watched(spec, functions.DEFAULT, reductions.DEFAULT, constants, frozenset(), COLUMNS, frozenset())
    for stage in PASSES:
        for one in stage:
            before = contents(draft)
            _read.clear()
            one.run(draft)
            reads, adds = found[name_of(one)]
            reads |= _read & NAMES
            adds |= {name for name, value in contents(draft).items() if value != before[name]}
        if draft.problems:
            return


def name_of(one: Pass) -> str:
    """As it stands in the table."""
    return f"{one.run.__module__.rpartition('.')[2]}.{one.run.__name__}"


@pytest.mark.parametrize("one", [one for stage in PASSES for one in stage], ids=name_of)
def test_a_pass_touches_what_it_declares(one: Pass) -> None:
    """No field more, and none that no profile has it read or change."""
    reads, adds = touched()[name_of(one)]
    assert ({*one.reads.split()}, {*one.adds.split()}) == (reads - adds, adds)


def test_a_pass_reads_what_earlier_ones_added() -> None:
    """So their order in the table is one that works; `inactive` is what any of them may have added."""
    known: set[str] = set()
    for one in (one for stage in PASSES for one in stage):
        assert {*one.reads.split()} <= known, name_of(one)
        known |= {*one.adds.split()}
    assert known == NAMES


@pytest.mark.parametrize("earlier", [{"metrics": {}}, "grpo"], ids=["data", "a name"])
def test_what_an_earlier_function_takes_is_refused(earlier: Any) -> None:
    """The class: a value of another stage of compose, validate and compile."""
    with pytest.raises(declog.ConfigError, match="a plan is compiled from a validated config") as error:
        declog.compile(earlier)
    assert error.value.problems[0].fix == "declog.compile(declog.validate(declog.config_of(...)))"
