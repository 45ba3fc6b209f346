"""What declog promises to the outside: its names, what importing it costs, its errors and their codes."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import declog
from declog import errors

SOURCES = sorted((Path(__file__).parent.parent / "declog").rglob("*.py"))

# What wants to be loaded when it is needed, not when declog is imported.
HEAVY = ("torch", "pydantic", "numpy", "wandb", "trackio", "pyarrow", "tensorboard", "rich", "accelerate", "trl")


def test_the_public_names_are_pinned() -> None:
    """A name comes or goes on purpose: this list, ``__all__`` and the documentation change together."""
    assert declog.__all__ == [
        "CommError",
        "CompositionError",
        "ConfigError",
        "DeclogError",
        "InputError",
        "LogSpec",
        "MissingSignalError",
        "Packet",
        "Plan",
        "PlanMismatchError",
        "Recorder",
        "SinkError",
        "UnknownSignalError",
        "UsageError",
        "attach",
        "bind",
        "callback",
        "column",
        "compile",
        "compose",
        "config_of",
        "current",
        "detach",
        "function",
        "keep",
        "log_extra",
        "log_metric",
        "merge",
        "observe",
        "plan",
        "presets",
        "read",
        "reducer",
        "report",
        "reward",
        "rows",
        "scalars",
        "shadow",
        "start",
        "tee",
        "timer",
        "validate",
    ]


def test_type_checkers_see_the_same_names() -> None:
    """The imports for type checkers name the public names, from the modules that they are loaded from."""
    tree = ast.parse(inspect.getsource(declog))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert sorted(seen) == declog.__all__
    assert {name: getattr(declog, name) for name in seen} == {
        name: getattr(importlib.import_module(str(module)), name) for name, module in seen.items()
    }


def test_no_module_hides_a_public_name() -> None:
    """No module or room at the root has a public function's name, which importing it would replace."""
    root = Path(declog.__file__).parent
    entries = {path.stem for path in root.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert sorted(entries & set(declog.__all__)) == []
    assert type(declog) is ModuleType


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    """Loading names lazily does not change what a wrong name does."""
    with pytest.raises(AttributeError, match=r"module 'declog' has no attribute 'strat'"):
        _ = declog.strat


def test_dir_lists_the_public_names() -> None:
    """Names that were not loaded yet are completed in a shell, too."""
    assert set(declog.__all__) - set(dir(declog)) == set()


def test_the_promised_modules_need_no_import_of_their_own() -> None:
    """`declog.testing.MemorySink()` after `import declog`, as with numpy's."""
    code = "import declog; print(declog.testing.MemorySink.__name__, declog.records.Scalar.__name__)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["MemorySink", "Scalar"]


def test_importing_declog_is_light() -> None:
    """``import declog`` loads nothing but its own small modules: not even Hydra, nor what reads installed packages."""
    others = ("hydra", "omegaconf", "yaml", "importlib.metadata")
    program = f"import sys, declog; print(sorted({{*{HEAVY!r}, *{others!r}}} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


def test_composing_is_light() -> None:
    """An application of Hydra that composes a config loads neither numpy nor torch: only planning and answers do."""
    program = "import sys, declog; declog.compose('grpo', ['every=2']); print({'numpy', 'torch'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n"


@pytest.mark.parametrize(
    "order", ["hydra", "hydra, declog", "declog, hydra", "declog, hydra.core.plugins", "declog.api"]
)
def test_hydra_knows_the_presets_whichever_is_imported_first(order: str) -> None:
    """The search path is there as soon as Hydra is: it finds declog's plugin by itself."""
    program = (
        f"import {order}; from hydra.core.plugins import Plugins; "
        "from hydra.plugins.search_path_plugin import SearchPathPlugin as P; "
        "print([each.__name__ for each in Plugins.instance().discover(P)].count('DeclogSearchPath'))"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout == "1\n"


def drawn_tree() -> dict[str, str | None]:
    """The exception tree in the docstring of ``errors``: each name with its parent."""
    parents: dict[str, str | None] = {}
    above: list[tuple[int, str]] = []
    for line in inspect.getdoc(errors).splitlines():  # type: ignore[union-attr]
        found = re.match(r"[ │├└─]{4,}([A-Z]\w+)", line)
        if found is None:
            continue
        while above and above[-1][0] >= found.start(1):
            above.pop()
        parents[found.group(1)] = above[-1][1] if above else None
        above.append((found.start(1), found.group(1)))
    return parents


def test_the_drawn_exception_tree_is_the_real_one() -> None:
    """Every public error class stands in the docstring's tree, below the class that it derives from."""
    classes = {
        name: cls
        for name, cls in vars(errors).items()
        if inspect.isclass(cls) and issubclass(cls, errors.DeclogError) and not name.startswith("_")
    }
    real = {
        name: next((base.__name__ for base in cls.__mro__[1:] if base.__name__ in classes), None)
        for name, cls in classes.items()
    }
    assert drawn_tree() == real


def test_every_error_of_declog_is_in_the_tree() -> None:
    """No module but ``errors`` defines an exception that users would meet."""
    strays = [
        f"{file.name}: {node.name}"
        for file in SOURCES
        if file != Path(errors.__file__)
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and any(ast.unparse(base) in {"Exception", *drawn_tree()} for base in node.bases)
    ]
    # two never leave the compiler: they carry a problem to where its place is known; one never leaves the command line,
    # one a capture's tape
    assert sorted(strays) == [
        "arguments.py: Wrong", "draft.py: SwitchedOff", "locks.py: Held", "snapshots.py: Full",
        "syntax.py: ExpressionError",
    ]  # fmt: skip


def undocumented(file: Path) -> list[str]:
    """Public functions and classes of a module without a docstring."""
    body = ast.parse(file.read_text(encoding="utf-8")).body
    return [
        f"{file.name}: {node.name}"
        for node in body
        if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
    ]


def test_public_things_are_documented() -> None:
    """Every module-level function and class without an underscore says what it does."""
    assert [name for file in SOURCES for name in undocumented(file)] == []


def test_public_classes_document_their_methods() -> None:
    """The methods of what ``declog`` itself exports have docstrings."""
    silent = [
        f"{name}.{method}"
        for name in declog.__all__
        if inspect.isclass(cls := getattr(declog, name)) and cls.__module__.startswith("declog.")
        for method, member in vars(cls).items()
        if not method.startswith("_")
        and (inspect.isfunction(member) or isinstance(member, property))
        and not member.__doc__
    ]
    assert silent == []


def test_functions_that_use_declog_can_be_sent_to_other_processes() -> None:
    """Systems of actors send functions with what they refer to: a plain module is sent by its name."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    assert cloudpickle.loads(cloudpickle.dumps(lambda: declog))() is declog
