"""``declog ls``: list the contents of the language, of installed packages, or of one config.

declog ls                           the kinds of things, and how many there are
declog ls functions
declog ls presets --config-dir conf
declog ls signals rloo              of a config; by default of grpo
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import BOLD, answer, columns
from declog.errors import SinkError, UsageError, did_you_mean

if TYPE_CHECKING:
    from declog.language.reductions import Reduction
    from declog.registry import Registry

Row = tuple[str, ...]  # a name and its columns
Config = Mapping[str, Any]

GROUP = "look"
SUMMARY = "list metrics, signals, functions, reductions, presets, sinks and more"


def arguments(parser: Parser) -> None:
    """Add the kind of entries to list, and the config."""
    parser.add("what", nargs="?", metavar="WHAT", help=", ".join([*OF_DECLOG, *OF_A_CONFIG]))
    parser.config()
    parser.formats()


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from declog.cli.targets import DEFAULT, chosen

    kinds = {**OF_DECLOG, **OF_A_CONFIG}
    config = cache(lambda: chosen(args).shown)
    if args.what is None:
        lists = {what: _rows(what, args, config) for what in kinds}
        counts = [(what, f"{len(rows):>3}", kinds[what][1]) for what, rows in lists.items()]
        names = {what: [row[0] for row in rows] for what, rows in lists.items()}
        answer(args, names, [columns(counts, colour=BOLD)])
        return 0
    if args.what not in kinds:
        fix = did_you_mean(args.what, kinds, what="lists")
        if args.what in ("run", "runs"):
            fix = "declog report FOLDER, a page of the runs in it"
        raise Wrong(f"there is nothing called `{args.what}` to list", fix)
    if args.words and args.what in OF_DECLOG:
        raise Wrong(f"{args.what} are those of every config", f"declog ls {args.what}")
    rows = _rows(args.what, args, config)
    data = [{"name": row[0], "what": [cell for cell in row[1:] if cell]} for row in rows]
    answer(args, data, [columns(rows, colour=BOLD) or f"this config has no {args.what}"])
    if args.what in OF_A_CONFIG and not args.words:
        print(f"of `{DEFAULT}`, as no config was named; `declog ls presets` lists the presets", file=sys.stderr)
    return 0


def _rows(what: str, args: argparse.Namespace, config: Callable[[], Config]) -> list[Row]:
    from declog.cli.targets import imported

    if what in OF_A_CONFIG:
        return OF_A_CONFIG[what][0](config())
    imported(args)
    return _presets(args.config_dir) if what == "presets" else OF_DECLOG[what][0]()


# ---- the language and what is installed -------------------------------------------------------------


def _named(registry: Registry[Any], shown: Callable[[Any], Row]) -> list[Row]:
    """The entries of a registry, each with its package, or with the error if two packages have it or it is broken."""
    rows: list[Row] = []
    for name in registry.names():
        try:
            item = registry.named(name)
        except UsageError as error:
            rows.append((name, error.message, registry.home(name)))
        else:
            rows.append((*shown(item), registry.home(name)))
    return rows


def _functions() -> list[Row]:
    from declog.language.expression import OPERATORS
    from declog.language.functions import DEFAULT

    rows = _named(DEFAULT, lambda item: (item.signature, item.help))
    return [row for row in rows if row[0].partition("(")[0] not in OPERATORS]


def _reductions() -> list[Row]:
    from declog.language.reductions import DEFAULT

    def shown(item: Reduction) -> Row:
        params = ", ".join(f"{key}={value}" for key, value in (item.params or {}).items())
        return item.name + (f"({params})" if params else ""), item.help

    return sorted([("pNN", "the NN % quantile: p05, p50, p99.9", ""), *_named(DEFAULT, shown)])


def _calls() -> list[Row]:
    from declog.language.row_functions import DEFAULT

    return _named(DEFAULT, lambda item: (f"{item.name}({', '.join(name for name, _ in item.params)})", item.help))


def _sinks() -> list[Row]:
    from declog.sinks import home_of, known_kinds, option_names, sink_class

    rows: list[Row] = []
    for kind in known_kinds():
        try:
            help = (sink_class(kind).__doc__ or "").split("\n")[0]
            rows.append((kind, help, f"options: {', '.join(option_names(kind))}", home_of(kind)))
        except SinkError as error:
            rows.append((kind, error.message, "", home_of(kind)))
    return rows


def _presets(config_dir: str | None) -> list[Row]:
    from declog.config.packages import faults
    from declog.config.presets import options

    rows: list[Row] = []
    for option in options(config_dir):
        name = "/".join([*option.group.split("/")[1:], option.name])
        shadows = ", ".join(option.homes[1:])
        home = option.homes[0] if option.homes else "from code"
        rows.append((name, home + (f", shadows {shadows}" if shadows else ""), option.help))
    return [*rows, *(("(broken)", line) for line in faults())]


# ---- a config ----------------------------------------------------------------------------------------


def _entries(section: str, *keys: str) -> Callable[[Config], list[Row]]:
    """A function that lists a section's entries with their main ``keys`` and their help, which metrics have in `about`.

    A signal is listed under the name by which it is observed.
    """

    def rows(config: Config) -> list[Row]:
        from declog.language.keys import entries
        from declog.language.spec import ANY

        listed: list[Row] = []
        about = (config.get("about") or {}) if section == "metrics" else {}
        for path, entry in entries(config, section):
            if entry is None:
                continue
            name = str(path[-1])
            words, text = str(entry), ""
            if isinstance(entry, Mapping):
                said = {**entry, **({"phase": path[1]} if section == "signals" and path[1] != ANY else {})}
                if section == "signals" and (observed := said.get("from", name)) != name:
                    name, said["read as"] = str(observed), name
                words = ", ".join(_words(key, said[key]) for key in keys if said.get(key) is not None)
                text = str((about.get(name) or entry).get("help") or "")
            listed.append((name, words, text))
        return listed

    return rows


def _words(key: str, value: object) -> str:
    if isinstance(value, Mapping):
        return f"{key} {', '.join(map(str, value))}"
    return str(value) if key in ("expr", "formula", "axis", "type", "kind", "when") else f"{key} {value}"


def _schemas(config: Config) -> list[Row]:
    return [
        (f"{name}.{column}", str(entry.get("type") or "") if isinstance(entry, Mapping) else str(entry))
        for name, columns_ in (config.get("schemas") or {}).items()
        for column, entry in (columns_ or {}).items()
        if entry is not None
    ]


def _tags(config: Config) -> list[Row]:
    """The tags, each with the metrics that `tag:NAME` selects."""
    tagged: dict[str, list[str]] = {}
    for name, entry in (config.get("metrics") or {}).items():
        for tag in (entry.get("tags") or ()) if isinstance(entry, Mapping) else ():
            tagged.setdefault(str(tag), []).append(name)
    return [(tag, ", ".join(names)) for tag, names in sorted(tagged.items())]


# By kind: the function that lists it, and its description.
OF_DECLOG: dict[str, tuple[Callable[[], list[Row]], str]] = {
    "functions": (_functions, "what expressions may call"),
    "reductions": (_reductions, "what `reduce` may be"),
    "calls": (_calls, "what a column's `call` may name: functions of a row that packages register"),
    "sinks": (_sinks, "the kinds of sinks, and their options"),
    # `_rows` lists them, with those of --config-dir
    "presets": (list, "presets and the options of their groups: the package, and what they shadow"),
}
OF_A_CONFIG: dict[str, tuple[Callable[[Config], list[Row]], str]] = {
    "metrics": (_entries("metrics", "expr", "formula", "where", "by", "reduce"), "of the config"),
    "signals": (
        _entries("signals", "axis", "type", "phase", "read as"),
        "of the config: what the training code observes",
    ),
    "derived": (_entries("derived", "expr", "phase"), "of the config: what is computed from signals"),
    "constants": (_entries("constants", "value", "default"), "of the config"),
    "filters": (
        _entries("filters", "key", "top", "bottom", "first", "random", "fraction", "unique", "where", "within", "from"),
        "of the config",
    ),
    "schemas": (_schemas, "of the config: the columns of its tables"),
    "tables": (_entries("tables", "schema", "filter"), "of the config"),
    "profiles": (_entries("profiles", "only", "hide", "show"), "what it can show: full, slim, ..."),
    "tags": (_tags, "of the config's metrics, for its profiles: tag:core"),
    "alerts": (_entries("alerts", "above", "below", "when", "level"), "of the config"),
}
