"""A plan in words: ``described`` returns it as plain data, ``explain`` prints it, ``facts`` prepares a comparison.

Equal plans have equal words. The run's folder keeps the data, so a report needs neither the config's files nor the
compiler.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from declog.language.dtypes import Axis, DType
from declog.language.nodes import LEAVES, LOGGED, Node, definition, walk
from declog.language.origins import origin
from declog.plans.meaning import Meanings, pieces
from declog.plans.needs import read
from declog.plans.ops import (
    AboutOp,
    AlertOp,
    ColumnOp,
    FilterOp,
    FoldOp,
    FormulaOp,
    MetricOp,
    NameOp,
    PhaseOp,
    Plan,
    SignalOp,
    SinkOp,
    TableOp,
)

Facts = Mapping[str, tuple[str, ...]]  # by name: words, then the details that decide values


def explain(plan: Plan) -> str:
    """The plan as a text: signals, folds, metrics, tables, alerts, and the contents of each profile and sink."""
    plain = described(plan)
    lines = [f"plan {plan.name} ({plan.fingerprint}): {plan.ops} operations, a log event {every(plan.every)}"]
    for phase in plain["phases"]:
        lines.append(f"phase {phase['name']}{phase['size']}")
        lines += [f"  signal {signal['name']}: {signal['words']}, {signal['use']}" for signal in phase["signals"]]
        lines += [f"  {column['name']}: {column['words']}" for column in phase["columns"]]
    lines += _titled("computed once", plain["shared"])
    metrics = ((metric["key"], metric["words"], ", ".join(metric["names"])) for metric in plain["metrics"])
    lines += _titled("metrics", (f"{key}: {words} -> {names or 'not shown'}" for key, words, names in metrics))
    for table in plain["tables"]:
        columns = ", ".join(column["words"] for column in table["columns"])
        lines.append(f"table {table['id']}: {columns}; {table['words']}; to {table['to'] or 'sinks given in code'}")
    for profile in plain["profiles"]:
        outputs, tables = (_count(len(profile[noun + "s"]), noun) for noun in ("output", "table"))
        lines.append(f"profile {profile['name']}: {outputs}, {tables}")
    lines += [f"alert {alert['id']}: {alert['words']}" for alert in plain["alerts"]]
    lines += [f"sink {sink['id']}: {sink['words']}" for sink in plain["sinks"]]
    lines += _titled("warnings", plain["warnings"]) + _titled("inactive", map(": ".join, plain["inactive"]))
    return "\n".join(lines) + "\n"


def _titled(title: str, entries: Iterable[str]) -> list[str]:
    """A title and its entries; empty without entries."""
    lines = [f"  {entry}" for entry in entries]
    return [title, *lines] if lines else []


def _signal(op: SignalOp) -> str:
    family = f" family{' of ' * bool(op.members)}{', '.join(op.members)}" if op.family else ""
    return f"{op.dtype}{family} per {op.axis.label}" + ", required" * op.required


def _sink(op: SinkOp) -> str:
    return f"{op.kind}, profile {op.profile}" + (f", every {op.every} log events" if op.every > 1 else "")


def _column(op: ColumnOp) -> str:
    if op.call is not None:
        return f"{op.id} = {op.call.name}({', '.join(name for name, _ in op.args)})"
    if op.tokens is not None:
        values = ", ".join(("tokens", *(name for name, _ in op.tokens.values)))
        ends = {"first": op.tokens.head, "last": op.tokens.tail}
        return f"{op.id} ({values}: the {' and '.join(f'{end} {count}' for end, count in ends.items() if count)})"
    return f"{op.id} (undeclared columns)" if op.keeps else op.id


def every(n: int) -> str:
    """The period of a window in words; 0 means when the trainer logs."""
    return "when the trainer logs" if not n else "every step" if n == 1 else f"every {n} steps"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun if n == 1 else _many(noun)}"


def _many(noun: str) -> str:
    return f"{noun}es" if noun == "batch" else f"{noun}s"


_BYTES = {DType.FLOAT: 4, DType.INT: 8, DType.BOOL: 1}  # floats are recorded as observed, mostly float32


def completion_bytes(phase: PhaseOp) -> int:
    """The bytes that a phase records per completion, without texts and without further members of a family."""
    signals = [signal for signal in phase.signals if signal.recorded and signal.axis is Axis.COMPLETION]
    size = sum(_BYTES.get(signal.dtype, 0) for signal in signals)
    size += sum(4 * (sum(fold.trace) + 1) for fold in phase.folds if fold.trace is not None)
    stats = [stat for fold in phase.folds if fold.trace is None for stat in fold.stats if stat != "hist"]
    return size + sum(8 if stat == "n" else 4 for stat in stats)


def _size(phase: PhaseOp) -> str:
    size = completion_bytes(phase)
    if not size:
        return ""
    families = any(signal.family for signal in phase.signals if signal.recorded and signal.axis is Axis.COMPLETION)
    return f": {_count(size, 'byte')} per completion" + (", a family counted once" if families else "")


def _shared(plan: Plan) -> Iterator[str]:
    """The subexpressions that several expressions share, which the worker computes once."""
    uses: dict[Node, int] = {}
    for root in dict.fromkeys(_roots(plan)):
        uses[root] = uses.get(root, 0) + 1
    for node in walk(*uses):
        for arg in node.args:
            uses[arg] = uses.get(arg, 0) + 1
    for node, count in uses.items():
        if count > 1 and node.op not in LEAVES:
            yield f"{node} = {definition(node)}" if str(node).isidentifier() else str(node)


def _roots(plan: Plan) -> Iterator[Node]:
    for op in plan.metrics:
        yield from (*op.args, *op.clauses.values())
    for table in plan.tables:
        yield from (node for column in table.columns for node in column.nodes)
        for one in table.filter.chain if table.filter else ():
            yield from one.reads.values()


def _metric(op: MetricOp | FormulaOp, plan: Plan) -> str:
    """A metric in words: "mean of reward, over the completions of 10 steps", "mean of batch means of kl ..."."""
    return _value(op, plan) + (f", where {op.when}" if op.when is not None else "")


def _value(op: MetricOp | FormulaOp, plan: Plan) -> str:
    smooth = op.smoothing
    last = None if smooth is None or smooth.way == "ema" else f"{smooth.words} of the last {smooth.number:g}"
    last = last if smooth is None or smooth.way != "lag" else f"the one {smooth.number:g} before, of the"
    if isinstance(op, FormulaOp):
        average = f"moving average ({smooth.number:g}) of the " if smooth is not None else ""
        text = f"{f'{last} values of the ' if last else average}formula {op.expr}"
        return text if op.empty is None else f"{text}, {op.empty:g} where it is absent"
    what = _reduced(op, plan, str)
    params = f"({', '.join(f'{name}={value}' for name, value in op.params)})" if op.params else ""
    steps = "the trainer's window" if not op.every else "each step" if op.every == 1 else f"{op.every} steps"
    rows = "" if op.axis is Axis.ALL else f"over the {_many(op.axis.row)} "
    rows += "of rank 0 " if op.ranks == "main" else ""
    reduced = f"{op.reduction.name}{params}"
    if op.pool != "window":
        piece = {"rank_batch": "rank-and-batch"}.get(op.pool, op.pool)
        values = _PLURAL.get(op.reduction.name, f"{op.reduction.name}s")
        combined = last or f"{op.combine if smooth is None else 'moving average'} of"
        reduced = f"{combined} {piece} {values}{params}"
    over_run = op.over_run == "moments" if op.pool == "window" else op.over_run is not None
    span = f"of each {op.pool}" if last and over_run else "from the start of the run" if over_run else f"of {steps}"
    text = f"{reduced} of {what}, {rows}{span}"
    if op.over_run in ("last", "ema", "rolling", "lag") and op.pool == "window":
        text = f"{f'{last} values' if last else 'the latest' if smooth is None else 'moving average'} of {text}"
    text += "" if smooth is None or last else f", of which the past weighs {smooth.number:g}"
    other = next((metric for metric in plan.metrics if metric.key == op.prefer), None)
    if other is not None:
        text += f"; where it comes, {other.reduction.name} of {', '.join(map(str, other.args))} stands for it"
    text += "" if op.empty is None else f", {op.empty:g} where it is empty"
    return text + {"skip": "", "propagate": ", missing if any is", "raise": ", an error if any is missing"}[op.nan]


_PLURAL = {"min": "minima", "max": "maxima", "last": "last values"}


def _alert(op: AlertOp) -> str:
    lasting = f", {op.for_} log events in a row" if op.for_ > 1 else ""
    silent = f", then silent for {op.cooldown}" if op.cooldown else ""
    return f"{op.level} if {op.when}{lasting}{silent}" + "".join(f"; it does: {word}" for word in op.do)


# -- as data


def described(plan: Plan, places: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The plan as plain data, with words for each part.

    ``places`` holds the file and line of each metric, by path such as `metrics.kl`.
    """
    return {
        "name": plan.name,
        "fingerprint": plan.fingerprint,
        "modes": {mode.name: mode.prefix for mode in plan.modes.values()},
        "prefixes": sorted({sink.prefix for sink in plan.sinks} - {""}),
        "phases": [_phase(phase) for phase in plan.phases.values()],
        "shared": list(_shared(plan)),
        "metrics": [
            {"key": op.key, "words": _metric(op, plan), "names": [item.template for item in op.names if op.shown]}
            for op in plan.outputs
        ],
        "outputs": [_output(op, item, plan, places or {}) for op, item in plan.shown_names],
        "alerts": [
            {"id": op.id, "level": op.level, "when": str(op.when), "words": _alert(op), "reads": sorted(read(op.when))}
            for op in plan.alerts
        ],
        "tables": [_table(op) for op in plan.tables],
        "profiles": [
            {"name": op.name, "outputs": sorted(map(list, op.outputs)),
             "tables": sorted(op.tables & {table.id for table in plan.tables})}
            for op in plan.profiles.values()
        ],
        "sinks": [{"id": op.id, "words": _sink(op)} for op in plan.sinks],
        "inactive": [list(item) for item in plan.inactive],
        "warnings": list(plan.warnings),
    }  # fmt: skip


def _output(op: MetricOp | FormulaOp, item: NameOp, plan: Plan, places: Mapping[str, str]) -> dict[str, Any]:
    """One name of a metric, with the metric's description and the profiles and sinks that show the name."""
    profiles = [profile.name for profile in plan.profiles.values() if (op.key, item.alias) in profile.outputs]
    takers = [sink.id for sink in plan.sinks if sink.profile in profiles and sink.accepts & {"scalar", "histogram"}]
    return {
        "name": item.template, "alias": item.alias, "metric": op.id, "key": op.key, "words": _metric(op, plan),
        "formula": "\n".join(_formula(op, plan)), "of": _of(op, plan),
        "reduction": op.reduction.name if isinstance(op, MetricOp) else "",
        "tags": list(op.tags), "place": places.get(f"metrics.{op.id}", ""), "profiles": profiles, "sinks": takers,
        **as_data(op.about),
    }  # fmt: skip


def _phase(phase: PhaseOp) -> dict[str, Any]:
    """The signals of a phase, and the columns that each rank computes from its rows."""
    columns = {fold.name: _fold(fold) for fold in phase.folds}
    for op in phase.locals:
        where = "where its text is" if op.source is None else f"of the same rows in {op.source}"
        columns[op.name] = f"{op.expr}, {where}"
    return {
        "name": phase.name, "bytes": completion_bytes(phase), "size": _size(phase),
        "signals": [
            {"name": signal.name, "source": signal.source, "words": _signal(signal), "use": _use(signal)}
            for signal in phase.signals
        ],
        "columns": [{"name": name, "words": words} for name, words in columns.items()],
    }  # fmt: skip


def _use(op: SignalOp) -> str:
    use = " and ".join(word for word, on in (("recorded", op.recorded), ("folded", op.folded)) if on)
    return use + (f", observed as {op.source}" if op.source != op.name else "")


def _fold(op: FoldOp) -> str:
    mask = " and ".join(sorted(str(node) for node in op.mask)) or "every token"
    what = "tokens" if op.expr is None else str(op.expr)
    what += f" = {definition(op.expr)}" if op.expr is not None and op.expr.names else ""
    return f"{', '.join(op.stats)} of {what}  [{mask}]"


def as_data(about: AboutOp) -> dict[str, Any]:
    """The meaning of a value as JSON data. In `healthy`, null means no bound."""
    healthy = about.healthy and [bound if isfinite(bound) else None for bound in about.healthy]
    return {**asdict(about), "healthy": healthy}


def _values(op: MetricOp, plan: Plan) -> tuple[Node, ...]:
    """The expressions that a metric reduces."""
    fold = None if op.fold is None else plan.folds[op.fold].expr
    return op.args if fold is None else (fold,)


def _reduced(op: MetricOp, plan: Plan, show: Callable[[Node], str]) -> str:
    """The expressions that a metric reduces, with its clauses."""
    return ", ".join(map(show, _values(op, plan))) + _clauses(op, show)


def _clauses(op: MetricOp, show: Callable[[Node], str]) -> str:
    words = {"where": op.where, "weighted by": op.weight, "by": op.by}
    return "".join(f" {word} {show(node)}" for word, node in words.items() if node is not None)


def _of(op: MetricOp | FormulaOp, plan: Plan) -> str:
    """The expressions, clauses and windows of a metric as text. Two reductions of the same values have equal texts."""
    return "" if isinstance(op, FormulaOp) else f"{_definition(op, plan)} every {op.every} over {op.pool} of {op.phase}"


def _definition(op: MetricOp | FormulaOp, plan: Plan) -> str:
    """The expressions in terms of observed signals, since two plans may define a derived signal differently."""
    return definition(op.expr) if isinstance(op, FormulaOp) else _reduced(op, plan, definition)


def _formula(op: MetricOp | FormulaOp, plan: Plan) -> Iterator[str]:
    """The formula as a user would write it, then the definitions of its derived signals."""
    if isinstance(op, FormulaOp):
        yield str(op.expr)
        return
    values = _values(op, plan)
    params = [str(value) for _, value in op.params]
    text = f"{op.reduction.name}({', '.join([*map(str, values), *params])})"
    yield text + _clauses(op, str)
    named = [node for node in walk(*values, *op.clauses.values()) if node.names and node.op not in LEAVES]
    yield from (f"{node} = {definition(node)}" for node in dict.fromkeys(named))


def _table(op: TableOp) -> dict[str, Any]:
    chain = op.filter.chain if op.filter is not None else ()
    keys = [str(one.key) for one in chain if one.key is not None]
    takers = [f"{sink} (each rank its own)" if sink in op.local else sink for sink in op.sinks]
    return {
        "id": op.id, "name": op.name, "filter": [one.kind for one in chain], "key": keys[-1] if keys else None,
        "words": _rows(op), "to": ", ".join(takers),
        "columns": [
            {"id": column.id, "name": column.template, "type": str(column.type), "words": _column(column),
             "expr": "" if column.expr is None else str(column.expr), "role": column.role,
             "call": "" if column.call is None else column.call.name, "redact": [label for label, _ in column.redact]}
            for column in op.columns
        ],
    }  # fmt: skip


# -- by name


def facts(plan: Plan, other: Plan) -> dict[str, Facts]:
    """The contents of a plan by title and name, without the values of `log_metric`.

    Profiles list the outputs that the ``other`` plan has, too.
    """
    plain, meanings = described(plan), Meanings(plan)
    shown = [output for output in plain["outputs"] if output["metric"] != LOGGED]
    shared = {item.template for op, item in other.shown_names if op.id != LOGGED}
    tables = {table["name"]: (table["words"],) for table in plain["tables"]}
    cost = {"operations": str(plan.ops), "token folds": str(len(plan.folds)), "a log event": every(plan.every)}
    cost |= {f"bytes per completion of {phase['name']}": str(phase["bytes"]) for phase in plain["phases"]}
    return {
        "outputs": {
            item.template: (_metric(op, plan), _definition(op, plan), _decisive(op, meanings))
            for op, item in plan.shown_names if op.id != LOGGED
        },
        "tables": tables | {
            f"{table['name']}.{column['id']}": (column["type"], column["call"] or column["expr"])
            for table in plain["tables"] for column in table["columns"]
        },
        "profiles": {
            f"{profile} shows {output['name']}": ("",)
            for profile in plan.profiles for output in shown
            if profile in output["profiles"] and output["name"] in shared
        },
        "alerts": {alert["id"]: (alert["words"],) for alert in plain["alerts"]},
        "sinks": {op.id: (_sink(op), str(op.options)) for op in plan.sinks},
        "signals": {
            f"{signal['source']} of {phase['name']}": (signal["words"],)
            for phase in plain["phases"] for signal in phase["signals"]
        },
        "cost": {name: (text,) for name, text in cost.items()},
    }  # fmt: skip


def _rows(op: TableOp) -> str:
    """The rows that a table takes in words, with its period and its limits."""
    chain = op.filter.chain if op.filter is not None else ()
    words = [" of ".join(map(_filter, reversed(chain))) or f"every {op.axis.label}"]
    words += ["as conversations"] if op.as_trace else []
    words += [f"at most {_count(op.max_bytes, 'byte')}"] if op.max_bytes is not None else []
    words += [every(op.every), "the window" if op.keep == "window" else "the last batch"]
    return "; ".join(words)


def _filter(one: FilterOp) -> str:
    words = [one.kind + " groups" * (one.take == "group")] + ([f"by {one.key}"] if one.key is not None else [])
    numbers = {"top": one.top, "bottom": one.bottom, "n": one.n, "fraction": one.fraction}
    words += [f"{name} {value}" for name, value in numbers.items() if value]
    words += [f"at most {one.limit}"] if one.limit is not None else []
    words += [f"where {one.where}"] if one.where is not None else []
    scopes = [*one.within, *map(str, filter(None, [one.label]))] or ["window"]
    return " ".join([*words, f"within {' and '.join(scopes)}"])


def _decisive(op: MetricOp | FormulaOp, meanings: Meanings) -> str:
    """All facts that decide a metric's values, in terms of observed signals, without names of folds and columns."""
    when = "always" if op.when is None else definition(op.when)
    facts = {"every": op.every, "empty": op.empty, "when": when, "labels": op.labels, "most": op.max_labels}
    if isinstance(op, FormulaOp):
        return f"{pieces(op)} {facts}"
    facts |= {"phase": op.phase, "axis": op.axis.label, "type": str(op.dtype), "run": origin(op.reduction.run)}
    return f"{meanings.of(op)} {facts}"
