"""The import rules of the design, read from the sources with ``ast``.

Imports inside functions count everywhere. Those for type checkers only count between declog's own files.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "declog"


@dataclass(frozen=True)
class Room:
    """A folder, or modules of the root that stand together, and all that they may import besides the standard library.

    ``modules`` are names below ``declog``; a folder stands for everything in it. ``rooms`` are those that may be
    imported, ``others`` third parties, all of them where it is ``ANYBODY``, ``lazily`` those inside functions only.
    """

    modules: str
    rooms: str = ""
    others: str = ""
    lazily: str = ""

    @property
    def name(self) -> str:
        """The first of its modules."""
        return self.modules.split()[0]


ANYBODY = "*"
# From the ground up: a room stands above all that it imports.
ROOMS = (
    Room("errors distribution imports registry records"),  # what everybody may know
    Room("sinks", "errors", lazily="PIL numpy pyarrow pydantic rich"),
    Room("language", "errors", "numpy pydantic pydantic_core"),
    Room("plans", "errors language"),
    Room("engine", "errors language plans", "numpy", lazily="torch"),
    Room("runtime", "errors sinks language plans engine", "numpy torch yaml", lazily="PIL pyarrow"),
    Room("compiler", "errors sinks language plans", lazily="torch"),
    Room("config", "errors language", "hydra omegaconf yaml"),
    Room("notes", "errors sinks language plans compiler config"),
    Room("late", "errors sinks language plans engine runtime compiler config", "numpy yaml"),
    Room("api", "errors sinks language plans engine runtime compiler config late notes"),  # where the arrows meet
    Room("runs", "errors sinks language plans engine compiler config api", "numpy", lazily="pyarrow yaml wandb"),
    Room("replay", "errors sinks language plans engine runtime compiler config api", "numpy pytest torch"),
    Room("testing", "errors sinks runtime replay"),
    Room("__init__", "errors"),
    Room("integrations", "errors sinks __init__", ANYBODY),  # trainers and loggers are what it is for
    Room(
        "cli __main__",
        "errors sinks runs language plans engine compiler config late notes api replay",
        "numpy pydantic pydantic_core",
        lazily="rich yaml wandb",
    ),
)
EXECUTING = ("sinks", "plans", "engine", "runtime")  # which know the plan, and nothing of how it came to be
YAML_SIDE = ("config", "compiler", "api", "language.spec", "language.spec_of_tests", "language.validation")
TRACKERS = ("pyarrow", "rich", "tensorboard", "trackio", "wandb", "pydantic", "torch", "numpy")


@dataclass(frozen=True)
class Import:
    """One imported module. ``lazy``: later than its importer, inside a function. ``typed``: by type checkers only."""

    target: str
    lazy: bool
    line: int
    typed: bool = False


def module_files() -> dict[str, Path]:
    """Every module below ``declog`` by its dotted name: ``sinks._parts``, ``__init__`` for the package itself."""
    found = {}
    for file in sorted(PACKAGE.rglob("*.py")):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts)] = file
    return found


MODULES = module_files()


def imports_of(tree: ast.AST, *, lazy: bool = False, typed: bool = False) -> Iterator[Import]:
    """The absolute imports of a syntax tree."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            for statements, for_types in ((node.body, True), (node.orelse, typed)):
                yield from imports_of(ast.Module(statements, []), lazy=lazy, typed=for_types)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, lazy, node.lineno, typed)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module is not None, "declog imports absolutely"
            for alias in node.names:
                yield Import(f"{node.module}.{alias.name}", lazy, node.lineno, typed)
        else:
            later = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            yield from imports_of(node, lazy=later, typed=typed)


@cache
def imports(module: str) -> tuple[Import, ...]:
    """The imports of a module of declog. What the package's front names for type checkers, it loads when asked."""
    items = imports_of(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return tuple(item for item in items if module != "__init__" or not item.typed)


def own_module(target: str) -> str | None:
    """The module of declog that an import loads, or None for somebody else's."""
    head, _, rest = target.partition(".")
    if head != "declog":
        return None
    while rest and rest not in MODULES:
        rest = rest.rpartition(".")[0]
    return rest or "__init__"


def room_of(module: str) -> Room | None:
    """The room that a module belongs to: by its own name, or by its folder's."""
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
        if item.typed:
            continue
        top = item.target.partition(".")[0]
        allowed = {*room.others.split(), *(room.lazily.split() if item.lazy else ())}
        if top not in sys.stdlib_module_names and not {top, ANYBODY} & allowed:
            problems.append(f"{module}:{item.line} ({room.name}) imports {top}")
    return problems


def reached(module: str) -> set[str]:
    """The modules of declog that are loaded with a module, now or later, itself and their folders' own included."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        current = waiting.pop()
        if current not in seen and current != "__init__":
            seen.add(current)
            loaded = (own_module(item.target) for item in imports(current) if not item.typed)
            waiting += [target for target in loaded if target is not None]
            waiting += [folder for folder in (current.rpartition(".")[0],) if folder]
    return seen


def arrows(imported: Mapping[str, tuple[Import, ...]]) -> dict[str, set[str]]:
    """Which files and folders of the root import which others."""
    found: dict[str, set[str]] = {module.partition(".")[0]: set() for module in imported}
    for module, items in imported.items():
        own = module.partition(".")[0]
        targets = {own_module(item.target) for item in items} - {None}
        found[own] |= {str(target).partition(".")[0] for target in targets} - {own}
    return found


def floors(found: Mapping[str, set[str]]) -> dict[str, int]:
    """How high each stands above the ground: one more than what it imports. Raises ``CycleError`` for a circle."""
    heights: dict[str, int] = {}
    for name in TopologicalSorter(found).static_order():
        heights[name] = max((heights[below] + 1 for below in found[name]), default=0)
    return heights


def test_every_import_is_one_that_the_table_allows() -> None:
    """What is broken is listed all at once."""
    assert [problem for module in sorted(MODULES) for problem in broken_rules(module, imports(module))] == []


def test_the_table_is_the_folders() -> None:
    """Each file and folder of the root stands in one row, each row imports rows above it only, and nothing is left."""
    named = [module for room in ROOMS for module in room.modules.split()]
    assert sorted(named) == sorted({module.partition(".")[0] for module in MODULES})
    for place, room in enumerate(ROOMS):
        assert {*room.rooms.split()} <= {below.name for below in ROOMS[:place]}, room


def test_no_arrow_between_rooms_runs_back_up() -> None:
    """No circle, so that each has a floor; few enough to be seen at once; what executes is below what composes."""
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert len(folders) <= 13 and len(list(PACKAGE.glob("*.py"))) <= 9
    heights = floors(arrows({module: imports(module) for module in MODULES}))
    way = ("language", "plans", "engine", "runtime", "api", "replay", "cli")
    assert sorted(way, key=heights.__getitem__) == list(way)


def imported_files(imported: Mapping[str, tuple[Import, ...]]) -> dict[str, set[str]]:
    """Which files import which: with them, inside functions, or for type checkers only.

    The package's front, ``declog/__init__.py``, is left out: it loads the other files as they are asked for.
    """
    graph: dict[str, set[str]] = {}
    for module, items in imported.items():
        targets = {own_module(item.target) for item in items}
        graph[module] = {target for target in targets if target is not None} - {module, "__init__"}
    return graph


IN_ORDER = (
    "runtime.rows.steps runtime.rows.batches runtime.recording.session runtime.recording.recorder",
    "runtime.rows.scopes runtime.recording.session",
    "config.files config.hydra config.fold config.origin config.composed config.compose config.lint",
    "language.nodes language.functions.base language.functions.text",
    "language.nodes plans.ops plans.words engine.evaluator",
)


def test_no_circle_of_files() -> None:
    """In no room and between no rooms: each file can be read after those that it names, late or for types only."""
    heights = floors(imported_files({module: imports(module) for module in MODULES}))
    for names in IN_ORDER:
        assert sorted(names.split(), key=heights.__getitem__) == names.split()


@pytest.mark.parametrize(
    "text", ["if TYPE_CHECKING:\n    from declog.plans.words import Facts", "def f():\n    import declog.plans.words"]
)
def test_a_circle_of_files_is_found(text: str) -> None:
    """The class: a circle that closes inside a function, or for type checkers only."""
    items = {"plans.words": (Import("declog.plans.ops.Plan", False, 1),), "plans.ops": (*imports_of(ast.parse(text)),)}
    with pytest.raises(CycleError):
        TopologicalSorter(imported_files(items)).prepare()


def test_a_circle_between_rooms_is_found() -> None:
    """One that no file is part of alone."""
    items = {"a": (Import("declog.sinks", False, 1),), "sinks": (Import("declog.engine.cells", True, 1),)}
    assert floors(arrows({"sinks": items["a"], "engine": ()})) == {"engine": 0, "sinks": 0}
    with pytest.raises(CycleError):
        floors(arrows({"engine": items["a"], "sinks": items["sinks"]}))


def test_what_executes_reaches_neither_models_nor_composer_nor_compiler() -> None:
    """Not even through others, and not lazily: the runtime knows the plan only."""
    executing = [module for module in MODULES if module.partition(".")[0] in EXECUTING]
    found = {module: {one for one in reached(module) if one.startswith(YAML_SIDE)} for module in executing}
    assert len(executing) > 50 and {module: seen for module, seen in found.items() if seen} == {}


def test_only_config_imports_hydra() -> None:
    """Hydra and omegaconf stay behind one arrow."""
    users = {name for name in MODULES for item in imports(name) if item.target.split(".")[0] in ("hydra", "omegaconf")}
    assert {name.partition(".")[0] for name in users} == {"config"}
    inside = {name for name in MODULES for item in imports(name) if item.target.startswith("hydra._internal")}
    assert inside == {"config.hydra"}


def test_only_the_compiler_sees_models_and_plan() -> None:
    """Besides it, the notes on both, those that call the arrows, and the command line, which shows both sides."""
    both = set()
    for name in MODULES:
        targets = {own_module(item.target) for item in imports(name)}
        if {"language.spec", "plans.ops"} <= targets:
            both.add(name.partition(".")[0])
    assert both <= {"compiler", "notes", "api", "cli"} and "compiler" in both


def test_importing_the_sinks_imports_no_tracker() -> None:
    """A tracker is imported when its sink is constructed: loading every sink's module loads none of them."""
    names = [f"declog.{name}" for name in MODULES if name.partition(".")[0] == "sinks"]
    program = f"import sys, {', '.join(names)}; print(sorted(set({TRACKERS!r}) & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_every_module_says_what_it_is_for() -> None:
    """Each has a docstring whose first line is a sentence."""
    texts = {module: ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) for module, file in MODULES.items()}
    assert [module for module, text in texts.items() if len((text or "").split("\n\n")[0].split()) < 3] == []


def test_the_reader_tells_imports_apart() -> None:
    """Imports inside functions are lazy, those for type checkers are marked, and nested statements are seen."""
    text = """
import os
if TYPE_CHECKING:
    import wandb
else:
    import json
try:
    from declog.engine.cells import reduce
except ImportError:
    pass
class A:
    def f(self):
        import torch.nn as nn
"""
    assert [(item.target, item.lazy, item.typed) for item in imports_of(ast.parse(text))] == [
        ("os", False, False), ("wandb", False, True), ("json", False, False),
        ("declog.engine.cells.reduce", False, False), ("torch.nn", True, False),
    ]  # fmt: skip


def test_names_that_imports_load_are_distinguished() -> None:
    """A module, a module of a package, a name of a package, a public name, a third party."""
    targets = [
        "declog.engine.cells.reduce",
        "declog.sinks._parts.PartDataset",
        "declog.sinks.Sink",
        "declog.start",
        "numpy",
    ]
    assert [own_module(target) for target in targets] == ["engine.cells", "sinks._parts", "sinks", "__init__", None]


def test_forbidden_imports_are_found() -> None:
    """A module that imports a third party or a room that it may not is reported where."""
    items = (Import("hydra.core", False, 3), Import("declog.language.spec.LogSpec", True, 4), Import("torch", False, 5))
    assert broken_rules("plans.ops", items) == [
        "plans.ops:3 (plans) imports hydra",
        "plans.ops:5 (plans) imports torch",
    ]
    assert broken_rules("sinks.wandb", items) == [
        "sinks.wandb:3 (sinks) imports hydra",
        "sinks.wandb:4 (sinks) imports declog.language.spec",
        "sinks.wandb:5 (sinks) imports torch",
    ]
    assert broken_rules("unheard_of", ()) == ["unheard_of is in no room: add it to ROOMS"]
