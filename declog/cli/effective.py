"""The YAML of a config in effect, each value with the file and line, or the override, that set it.

``declog show --yaml`` and ``--key`` print it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from typing import Any

from declog.api import plan
from declog.cli.layers import Layered, layered, leaves, shown_value
from declog.cli.output import DIM, paint, write_json
from declog.cli.why import known_key
from declog.config.composed import Composed
from declog.config.interpolation import at, has
from declog.errors import ConfigError, Path
from declog.language.keys import is_entry

COMMENTS_AT = 64  # no comment starts further to the right, unless its line is longer


def report(args: argparse.Namespace, config: Composed) -> None:
    """Print it."""
    layers = layered(config)
    inactive, broken = _inactive(config)
    chosen = [known_key(layers, key) for key in args.key or ()]
    if args.format == "json":
        data: Any = {".".join(map(str, path)): at(layers.data, path) for path in chosen} if chosen else layers.data
        paths = [path for path, _ in leaves(layers.data) if any(path[: len(key)] == key for key in chosen or [()])]
        origins = {".".join(map(str, path)): layers.origin(path) for path in paths}
        write_json({"config": data, "origins": origins, "inactive": inactive})
        return
    for path in chosen or [()]:
        print("\n".join(_yaml(layers, path, inactive)))
    if broken is not None:
        print(paint(f"# this config does not compile ({broken}): `declog check` says what is wrong", DIM))


def _inactive(config: Composed) -> tuple[dict[str, str], str | None]:
    try:
        return dict(plan(config).inactive), None
    except ConfigError as error:
        return {}, ", ".join(sorted({problem.code for problem in error.problems}))


def _yaml(config: Layered, key: Path, inactive: Mapping[str, str]) -> list[str]:
    """The config, or one key of it, as YAML with a comment behind each value."""
    value = at(config.data, key)
    data: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    rows = list(_rows(config, {name: item for name, item in data.items() if name != "tests"}, key, 0, inactive))
    if not key and data.get("tests"):
        rows.append(("tests: ...", f"{', '.join(data['tests'])}; shown with --key tests"))
    if key:
        depth = len(key) - 1
        above = [("  " * level + f"{name}:", "") for level, name in enumerate(key[:-1])]
        last = f"{'  ' * depth}{key[-1]}:"
        rows = [*above, *([(last, "")] if data else [_row(config, key, depth)])]
        rows += list(_rows(config, data, key, depth + 1, inactive))
    column = min(max((len(line) for line, comment in rows if comment), default=0), COMMENTS_AT)
    return [f"{line:<{column}}  {paint(f'# {comment}', DIM)}" if comment else line for line, comment in rows]


def _rows(
    config: Layered, data: Mapping[str, Any], path: Path, depth: int, inactive: Mapping[str, str]
) -> Iterator[tuple[str, str]]:
    for key, value in data.items():
        here = (*path, key)
        section = "signals" if here[0] == "derived" else here[0]
        why = inactive.get(f"{section}.{key}") if is_entry(here) else None
        comment = "" if why is None else f"inactive: {why}"
        if isinstance(value, Mapping) and value:
            yield f"{'  ' * depth}{key}:", comment
            yield from _rows(config, value, here, depth + 1, inactive)
        else:
            line, origin = _row(config, here, depth)
            yield line, "; ".join(part for part in (origin, comment) if part)


def _row(config: Layered, path: Path, depth: int) -> tuple[str, str]:
    value = at(config.data, path)
    comment = config.origin(path) or ""
    source = at(config.written, path) if has(config.written, path) else value
    if source != value and isinstance(source, str):
        comment += f"  from {source}"
    return f"{'  ' * depth}{path[-1]}: {shown_value(value)}", comment
