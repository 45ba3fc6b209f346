"""The YAML of a config in effect, each value with the file and line, or the override, that set it.

``declog show --yaml`` and ``--key`` print it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping

from declog.api import plan
from declog.cli.layers import Layered, layered, leaves, shown_value
from declog.cli.output import DIM, answer, paint
from declog.cli.why import known_key
from declog.config.composed import Composed
from declog.config.interpolation import at, has
from declog.errors import ConfigError, Path
from declog.language.keys import is_entry

COMMENTS_AT = 64  # no comment starts further to the right, unless its line is longer


def report(args: argparse.Namespace, config: Composed) -> None:
    """Print it."""
    layers = layered(config)
    inactive: Mapping[str, str] = {}
    broken = None
    try:
        inactive = dict(plan(config).inactive)
    except ConfigError as error:
        codes = ", ".join(sorted({problem.code for problem in error.problems}))
        broken = paint(f"# this config does not compile ({codes}): `declog check` says what is wrong", DIM)
    chosen = [known_key(layers, key) for key in args.key or ()]
    data = {".".join(map(str, path)): at(layers.data, path) for path in chosen} if chosen else layers.data
    paths = [path for path, _ in leaves(layers.data) if any(path[: len(key)] == key for key in chosen or [()])]
    origins = {".".join(map(str, path)): layers.origin(path) for path in paths}
    lines = [line for path in chosen or [()] for line in _yaml(layers, path, inactive)]
    lines += [] if broken is None else [broken]
    answer(args, {"config": data, "origins": origins, "inactive": inactive}, lines)


def _yaml(config: Layered, path: Path, inactive: Mapping[str, str]) -> Iterator[str]:
    """The config, or one key of it, as YAML with a comment behind each value."""
    if path:
        rows = [("  " * depth + f"{key}:", "") for depth, key in enumerate(path[:-1])]
        rows += _rows(config, path, inactive)
    else:
        rows = [row for key in config.data if key != "tests" for row in _rows(config, (key,), inactive)]
        if tests := config.data.get("tests"):
            rows.append(("tests: ...", f"{', '.join(tests)}; shown with --key tests"))
    column = min(max((len(line) for line, comment in rows if comment), default=0), COMMENTS_AT)
    for line, comment in rows:
        yield f"{line:<{column}}  {paint(f'# {comment}', DIM)}" if comment else line


def _rows(config: Layered, path: Path, inactive: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """The lines of a key and of all that stands below it, each with its comment."""
    value = at(config.data, path)
    line = "  " * (len(path) - 1) + f"{path[-1]}:"
    section = "signals" if path[0] == "derived" else path[0]
    why = inactive.get(f"{section}.{path[-1]}") if is_entry(path) else None
    comment = "" if why is None else f"inactive: {why}"
    if isinstance(value, Mapping) and value:
        yield line, comment
        for key in value:
            yield from _rows(config, (*path, key), inactive)
        return
    written = at(config.written, path) if has(config.written, path) else value
    origin = config.origin(path) or ""
    if isinstance(written, str) and written != value:
        origin += f"  from {written}"
    yield f"{line} {shown_value(value)}", "; ".join(filter(None, (origin, comment)))
