"""What a plan logs, by name, and how two of them differ: what ``diff`` prints and ``lock`` writes down."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from declog.cli.output import BOLD, GREEN, RED, YELLOW, paint

if TYPE_CHECKING:
    from declog.plans.ops import FilterOp, FormulaOp, MetricOp, Plan, TableOp

Facts = Mapping[str, tuple[str, ...]]  # what a thing is: in words, then whatever else decides its values

SECTIONS = ("outputs", "tables", "profiles", "alerts", "sinks", "signals", "cost")


def _shown(made: Plan) -> list[MetricOp | FormulaOp]:
    """The metrics that trackers see; what `log_metric` gives is the run's."""
    from declog.language.nodes import LOGGED

    return [op for op in made.outputs if op.shown and op.id != LOGGED]


def names(made: Plan) -> set[str]:
    """The names that trackers see."""
    return {item.template for op in _shown(made) for item in op.names}


def sections(made: Plan, both: set[str]) -> tuple[Facts, ...]:
    """``both`` are the outputs that both plans have: what a profile shows of others needs no second line."""
    from declog.plans.explain import every

    words = made.names()
    outputs = {
        item.template: (words[item.template], _definition(op), _without_names(made.canonical, op.key))
        for op in _shown(made)
        for item in op.names
    }
    columns = {
        f"{table.name}.{column.id}": (column.type, column.call.name if column.call is not None else str(column.expr))
        for table in made.tables
        for column in table.columns
    }
    tables = {
        table.name: (f"{_rows(table)}; {every(table.every)}; {'the last batch' if table.keep != 'window' else 'all'}",)
        for table in made.tables
    }
    profiles = {
        f"{profile.name} shows {item.template}": ("",)
        for profile in made.profiles.values()
        for op in _shown(made)
        for item in op.names
        if item.template in both and (op.key, item.alias) in profile.outputs
    }
    alerts = {each.id: (f"{each.level} if {each.when}, patience {each.patience}",) for each in made.alerts}
    sinks = {
        sink.id: (f"{sink.kind}, profile {sink.profile}, every {sink.every}", str(sink.options)) for sink in made.sinks
    }
    signals = {
        f"{signal.source} of {phase.name}": (
            f"{signal.dtype}{' family' if signal.family else ''} per {signal.axis.label}"
            + (", optional" if signal.optional else ""),
        )
        for phase in made.phases.values()
        for signal in phase.signals
    }
    return outputs, {**tables, **columns}, profiles, alerts, sinks, signals, _cost(made)


def _rows(table: TableOp) -> str:
    """Which rows a table takes, in words."""
    chain = table.filter.chain if table.filter is not None else ()
    return " of ".join(map(_filter, reversed(chain))) or "every row"


def _filter(one: FilterOp) -> str:
    words = [one.kind] + ([f"by {one.key}"] if one.key is not None else [])
    numbers = {"top": one.top, "bottom": one.bottom, "n": one.n, "fraction": one.fraction, "seed": one.seed}
    words += [f"{name} {value}" for name, value in numbers.items() if value]
    words += [f"at most {one.limit}"] if one.limit is not None else []
    words += [f"where {one.where}"] if one.where is not None else []
    return " ".join([*words, f"within {one.within}"])


def _definition(op: MetricOp | FormulaOp) -> str:
    """Expressions down to what is observed: derived signals of one name may be computed in two ways."""
    from declog.language.nodes import definition
    from declog.plans.ops import FormulaOp

    if isinstance(op, FormulaOp):
        return definition(op.expr)
    parts = [", ".join(map(definition, op.args))]
    parts += [f"{key} {definition(node)}" for key, node in op.clauses.items() if key != "weight"]
    return " ".join(parts)


def _without_names(canonical: Mapping[str, str], key: str) -> str:
    """What decides a metric's value, its expressions down to what is observed."""
    place = f"metrics.{key}."
    aside = tuple(place + field for field in ("id", "key", "suffix", "names", "tags"))
    found = [item for item in canonical.items() if item[0].startswith(place) and not item[0].startswith(aside)]
    return str([(where.removeprefix(place), value) for where, value in found])


def _cost(made: Plan) -> Facts:
    from declog.plans.explain import completion_bytes, every

    found = {"operations": str(made.ops), "token folds": str(len(made.folds)), "a log event": every(made.every)}
    found |= {f"bytes per completion of {each.name}": str(completion_bytes(each)) for each in made.phases.values()}
    return {name: (text,) for name, text in found.items()}


# -- the difference


def changes(before: Facts, after: Facts) -> list[dict[str, str | None]]:
    """What only one of them has, or both and not alike: by name, in words before and after."""
    found: list[dict[str, str | None]] = []
    for name in dict.fromkeys([*before, *after]):
        a, b = before.get(name), after.get(name)
        if a != b:
            was, now = _words(a, b)
            found.append({"name": name, "before": was, "after": now})
    return found


def _words(a: tuple[str, ...] | None, b: tuple[str, ...] | None) -> tuple[str | None, str | None]:
    """What changed in words: of two that read the same, what lies behind the words."""
    if a is None or b is None:
        return (None if a is None else a[0]), (None if b is None else b[0])
    for was, now in zip(a, b, strict=True):
        if was != now:
            return was, now
    return a[0], b[0]


def text(title: str, changes: list[dict[str, str | None]]) -> str:
    """A section of a difference."""
    return "\n".join([paint(title, BOLD), *lines(changes)])


def lines(changes: list[dict[str, str | None]]) -> Iterator[str]:
    """The changes of a section, line by line."""
    for change in changes:
        name, before, after = change["name"], change["before"], change["after"]
        if after is None:
            yield paint(f"  - {name}: {before}".rstrip(": "), RED)
        elif before is None:
            yield paint(f"  + {name}: {after}".rstrip(": "), GREEN)
        elif len(before) + len(after) < 60:
            yield paint(f"  ~ {name}: {before} -> {after}", YELLOW)
        else:
            yield paint(f"  ~ {name}", YELLOW)
            yield paint(f"      - {before}", RED)
            yield paint(f"      + {after}", GREEN)
