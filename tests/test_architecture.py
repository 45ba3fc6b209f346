"""The import rules of the design, read from the sources with ``ast``; imports for type checkers only do not count."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "declog"


@dataclass(frozen=True)
class Room:
    """Modules with one job, and all that they may import besides the standard library and each other.

    ``modules`` names modules below ``declog``; a package stands for everything in it. ``rooms`` are those
    that may be imported, ``others`` third parties, ``lazily`` third parties inside functions only.
    """

    name: str
    modules: str
    rooms: str = ""
    others: str = ""
    lazily: str = ""


ROOMS = (
    # what everybody may know
    Room("visible", "visible"),
    Room("errors", "errors installed", "visible"),
    Room("records", "records"),
    Room("failures", "failures", "errors visible"),
    Room("patterns", "patterns"),
    Room("locks", "locks folders", "errors"),
    # the runtime: from what is observed to records
    Room("kernels", "kernels sketch", others="numpy"),
    Room("language", "axes registry origins tree absence functions columns reducers syntax expr",
         "errors kernels patterns", "numpy"),
    Room("plan", "frame plan fingerprint needs explain", "errors records kernels language", "numpy"),
    Room("evaluation", "evaluate pools states cells computed together carry held filters cellvalues tables travel "
         "container message meter dispatch apart",
         "errors failures patterns records kernels language plan",
         "numpy", lazily="torch"),
    Room("ranks", "keystore comm", "errors", "torch"),
    Room("recording", "active rewards tensors fold layout extras inputs given batch window timing tape snapshots "
         "capturing intake handoff sending collector actors checkpoint worker recorder",
         "errors failures patterns records locks kernels language plan evaluation ranks sinks", "numpy torch"),
    Room("sinks", "sinks", "errors failures visible records locks", lazily="pydantic rich"),
    # from YAML to the plan
    Room("places", "places scalars yaml11 diagnostics", "errors", "yaml"),
    Room("composer",
         "searchpath loading provenance outside surprises ineffective file_errors composition_errors resolve compose "
         "words catalogue",
         "errors places", "hydra omegaconf yaml"),
    Room("spec", "model rehearsal_spec spec validation", "errors", "pydantic"),
    Room("compiler", "compiler", "errors failures patterns language plan spec sinks", lazily="torch"),
    # where the arrows meet
    Room("pages", "error_pages", "errors"),
    Room("reference", "reference json_schema", "errors pages language spec sinks", "pydantic"),
    Room("planning", "planning projects", "errors language plan composer spec compiler"),
    Room("manifest", "manifest", "language plan", "yaml"),
    Room("run", "run termination",
         "errors failures records locks manifest language plan planning evaluation ranks recording sinks composer spec "
         "compiler"),
    Room("api", "__init__ with_hydra", "composer"),
    Room("testing", "testing", "errors records rehearsing"),
    Room("rehearsing", "rehearsal capture comparing profile_tests",
         "errors records language plan planning evaluation recording composer spec compiler sinks run testing"),
    Room("adapters", "adapters", "api errors records sinks", others="torch transformers"),
    Room("cli", "cli __main__",
         "api run planning rehearsing errors visible pages reference records language plan places composer spec "
         "compiler sinks",
         lazily="rich yaml"),
)  # fmt: skip
RUNTIME = (
    "visible",
    "errors",
    "records",
    "locks",
    "failures",
    "patterns",
    "kernels",
    "language",
    "plan",
    "evaluation",
    "ranks",
    "recording",
    "sinks",
)
TRACKERS = ("pyarrow", "rich", "tensorboard", "trackio", "wandb", "pydantic", "torch", "numpy")


@dataclass(frozen=True)
class Import:
    """One imported module, and whether it is imported with its importer or later, inside a function."""

    target: str
    lazy: bool
    line: int


def module_files() -> dict[str, Path]:
    """Every module below ``declog`` by its dotted name: ``sinks._parts``, ``__init__`` for the package itself."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = file
    return found


MODULES = module_files()


def imports_of(tree: ast.AST, *, lazy: bool = False) -> Iterator[Import]:
    """The absolute imports of a syntax tree, without those under ``if TYPE_CHECKING``."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statement in node.orelse:
                yield from imports_of(ast.Module([statement], []), lazy=lazy)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, lazy, node.lineno)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "declog imports absolutely"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", lazy, node.lineno)
        else:
            yield from imports_of(node, lazy=lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@cache
def imports(module: str) -> tuple[Import, ...]:
    """The imports of a module of declog, of other modules than itself."""
    return tuple(imports_of(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def own_module(target: str) -> str | None:
    """The module of declog that an import loads, or None for somebody else's."""
    head, _, rest = target.partition(".")
    if head != "declog":
        return None
    while rest and rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest or "__init__"


def room_of(module: str) -> Room | None:
    """The room that a module belongs to: by its own name, or by its package's."""
    top = module.partition(".")[0]
    return next((room for room in ROOMS if top in room.modules.split()), None)


def broken_rules(module: str, items: tuple[Import, ...]) -> list[str]:
    """Which of a module's imports its room may not have, one line each."""
    room = room_of(module)
    if room is None:
        return [f"{module} is in no room: add it to ROOMS"]
    problems = []
    for item in items:
        target = own_module(item.target)
        if target is not None:
            other = room_of(target)
            if other is not room and (other is None or other.name not in room.rooms.split()):
                problems.append(f"{module}:{item.line} ({room.name}) imports declog.{target}")
            continue
        top = item.target.partition(".")[0]
        allowed = {*room.others.split(), *(room.lazily.split() if item.lazy else ())}
        if top not in sys.stdlib_module_names and top not in allowed:
            problems.append(f"{module}:{item.line} ({room.name}) imports {top}")
    return problems


def reached(module: str) -> set[str]:
    """The modules of declog that are loaded with a module, itself included; the package's own room is left out."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current in seen or current == "__init__":
            continue
        seen.add(current)
        waiting += [target for item in imports(current) if (target := own_module(item.target)) is not None]
    return seen


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_imports_what_its_room_may(module: str) -> None:
    """Every import of every module is one that the table of rooms allows."""
    assert broken_rules(module, imports(module)) == []


def test_the_table_names_modules_that_exist_once() -> None:
    """No module stands in two rooms, and the table names no module that is gone."""
    named = [module for room in ROOMS for module in room.modules.split()]
    assert sorted(named) == sorted({module.partition(".")[0] for module in MODULES})


def test_the_table_names_rooms_that_exist() -> None:
    """A room may import rooms of the table only."""
    rooms = {room.name for room in ROOMS}
    assert {name for room in ROOMS for name in room.rooms.split()} - rooms == set()


@pytest.mark.parametrize("module", sorted(name for name in MODULES if (room := room_of(name)) and room.name in RUNTIME))
def test_the_runtime_reaches_neither_spec_nor_composer_nor_compiler(module: str) -> None:
    """Not even through others, and not lazily: the runtime knows the plan only."""
    rooms = {room.name for name in reached(module) if (room := room_of(name)) is not None}
    assert rooms - set(RUNTIME) == set()


def test_only_the_composer_imports_hydra() -> None:
    """Hydra and omegaconf stay behind one arrow."""
    users = {name for name in MODULES for item in imports(name) if item.target.split(".")[0] in ("hydra", "omegaconf")}
    rooms = {room.name for name in users if (room := room_of(name)) is not None}
    assert rooms == {"composer"}


def test_only_the_compiler_sees_spec_and_plan() -> None:
    """Besides the compiler, ``run`` calls both arrows, and the command line shows both sides."""
    both = set()
    for name in MODULES:
        rooms = {own_module(item.target) for item in imports(name)}
        if {"spec", "plan"} <= rooms and (room := room_of(name)) is not None:
            both.add(room.name)
    assert both <= {"compiler", "run", "cli"} and "compiler" in both


def test_importing_the_sinks_imports_no_tracker() -> None:
    """A tracker is imported when its sink is constructed: loading every sink's module loads none of them."""
    names = [f"declog.{name}" for name in MODULES if name.partition(".")[0] == "sinks"]
    program = f"import sys, {', '.join(names)}; print(sorted(set({TRACKERS!r}) & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_a_module_says_what_it_is_for(module: str) -> None:
    """Every module has a docstring whose first line is a sentence."""
    text = ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8"))) or ""
    assert len(text.split("\n\n")[0].split()) >= 3


def test_the_reader_tells_imports_apart() -> None:
    """Imports inside functions are lazy, those for type checkers are left out, and nested statements are seen."""
    text = """
import os
if TYPE_CHECKING:
    import wandb
else:
    import json
try:
    from declog.cells import reduce
except ImportError:
    pass
class A:
    def f(self):
        import torch.nn as nn
"""
    assert [(item.target, item.lazy) for item in imports_of(ast.parse(text))] == [
        ("os", False), ("json", False), ("declog.cells.reduce", False), ("torch.nn", True),
    ]  # fmt: skip


def test_names_that_imports_load_are_told_apart() -> None:
    """A module, a module of a package, a name of a package, a public name, a third party."""
    targets = ["declog.cells.reduce", "declog.sinks._parts.PartDataset", "declog.sinks.Sink", "declog.start", "numpy"]
    assert [own_module(target) for target in targets] == ["cells", "sinks._parts", "sinks", "__init__", None]


def test_forbidden_imports_are_found() -> None:
    """A module that imports a third party or a room that it may not is told where."""
    items = (Import("hydra.core", False, 3), Import("declog.spec.LogSpec", True, 4), Import("torch", False, 5))
    assert broken_rules("cells", items) == [
        "cells:3 (evaluation) imports hydra",
        "cells:4 (evaluation) imports declog.spec",
        "cells:5 (evaluation) imports torch",
    ]
    assert broken_rules("unheard_of", ()) == ["unheard_of is in no room: add it to ROOMS"]
