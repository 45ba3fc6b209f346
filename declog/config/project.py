"""The project that a user works in: the table ``[tool.declog]`` of its ``pyproject.toml``.

    [tool.declog]
    config_dir = "conf"                 # its folder `declog` has your presets; beside it are applications' files
    imports = ["my_package.metrics"]    # registers functions, reductions, columns; has classes of sinks

A config imports nothing, wherever it came from; only the user names modules to import, here. The file is searched in
the working directory and above it, never beside a config.
"""

from __future__ import annotations

import functools
import importlib
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Any

from declog.errors import ConfigError, Problem, Where

TABLE = "tool.declog"
KEYS = ("config_dir", "imports")


def load_imports(directory: FilePath | None = None) -> tuple[str, ...]:
    """Import the modules that the project around a directory names; returns their names.

    ``directory`` is the working directory by default. Raises ``ConfigError`` if the table is wrong (DL201, DL202), or
    if a module cannot be imported (DL403).
    """
    file, table = _table(directory)
    names = table.get("imports", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise _wrong(file, "DL202.imports", table=TABLE)
    for name in names:
        _load(name, file)
    return tuple(names)


def config_dir(directory: FilePath | None = None) -> FilePath | None:
    """The folder of configurations that the project around a directory names; None if it names none.

    Raises ``ConfigError`` if the table is wrong (DL201, DL202), or if the folder does not exist (DL403).
    """
    file, table = _table(directory)
    name = table.get("config_dir")
    if name is None:
        return None
    if not isinstance(name, str):
        raise _wrong(file, "DL202.config_dir", table=TABLE)
    folder = file.parent / name
    if not folder.is_dir():
        raise _wrong(file, "DL403.config_dir", table=TABLE, name=name, folder=file.parent)
    return folder


def import_script(name: str) -> None:
    """Import a module, which may be an application's script: what `hydra.main` decorates does not run meanwhile."""
    import hydra

    main, importing = hydra.main, [True]

    def main_later(*args: Any, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorated(task: Callable[..., Any]) -> Callable[..., Any]:
            run = main(*args, **options)(task)
            return functools.wraps(task)(lambda *values: None if importing else run(*values))

        return decorated

    hydra.main = main_later
    try:
        importlib.import_module(name)
    finally:
        hydra.main = main
        importing.clear()


def _load(name: str, file: FilePath) -> None:
    if name in sys.modules:
        return
    sys.path.append(str(file.parent))  # last, so that the project hides no other module
    try:
        import_script(name)
    except Exception as error:
        raise _wrong(file, "DL403.imports", table=TABLE, name=name, error=error) from error
    finally:
        sys.path.remove(str(file.parent))


def _table(directory: FilePath | None) -> tuple[FilePath, dict[str, object]]:
    """The nearest ``pyproject.toml`` with the table, and the table; an empty table if no file has it."""
    directory = (directory or FilePath.cwd()).absolute()
    for folder in (directory, *directory.parents):
        file = folder / "pyproject.toml"
        if not file.is_file() or TABLE.encode() not in (text := file.read_bytes()):
            continue
        try:
            tools = tomllib.loads(text.decode("utf-8")).get("tool", {})
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise _wrong(file, "DL202.toml", error=error) from None
        if isinstance(tools, dict) and isinstance(table := tools.get("declog"), dict):
            for key in table:
                if key not in KEYS:
                    raise _wrong(file, "DL201.project", key=key, table=TABLE, name=key, known=KEYS)
            return file, table
    return directory, {}


def _wrong(file: FilePath, key: str, /, **facts: Any) -> ConfigError:
    return ConfigError([Problem.of(key, where=Where(name=str(file)), **facts)])
