"""Notes on a config that compiles, about lines that are valid but probably not intended.

`declog check` prints them, and a run logs them when it starts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from declog.config.composed import Composed
from declog.config.overrides import setting
from declog.config.search_path import package_of
from declog.errors import Path, in_flow, nearest, nested
from declog.errors.messages import ordinal
from declog.language.dtypes import Axis, DType
from declog.language.keys import entries, entry_names, keys
from declog.language.moments import FORMULAS
from declog.language.nodes import CARRIED, CONST, SIGNAL, walk
from declog.language.notation import SIGNS
from declog.language.spec import MetricSpec
from declog.language.tree import Node, has, listed
from declog.plans.needs import IDS_OF_ROWS, ROW_ID, carried, read
from declog.plans.ops import Plan
from declog.sinks import known_kinds


def notes(config: Composed, plan: Plan) -> Iterator[str]:
    """The notes that a run logs, all on the user's own lines. The presets of installed packages get no notes."""
    rules = (
        _unseen, _of_families, _unopened, _thinned, _of_all, _replaced, _reduced_as_below, _of_another_side, _redefined,
        _of_another_schema, _below_the_run, _outdented, _off, _of_one_step, _of_means, _of_pieces,
        _of_numbers, _of_constants,
    )  # fmt: skip
    for rule in rules:
        yield from rule(config, plan)


def _unseen(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own metrics that no sink shows. Presets, closed lists and `hide` leave some out."""
    hidden = {selector.select for spec in config.spec.profiles.values() for selector in spec.hide}
    names = [name for name in plan.unseen if config.home(("metrics", name)) is None and name not in hidden]
    closed = {name for name, spec in config.spec.profiles.items() if spec.only and _is_of_user(config, name)}
    if names and (profiles := {sink.profile for sink in plan.sinks} - closed):
        profile = min(profiles)
        before = config.spec.profiles[profile].show if profile in config.spec.profiles else []
        shown = [*(selector.select for selector in before), *names]
        edit = _edit(config, ("profiles", profile, "show"), shown, *(("metrics", name) for name in names))
        yield f"no sink shows {', '.join(f'`{name}`' for name in names)}: {edit}"


def _is_of_user(config: Composed, profile: str) -> bool:
    """Whether the `only` of a profile comes from the user's own files or overrides."""
    return config.home(("profiles", profile, "only")) is None


def _outdented(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own metrics that have the name of a metric's key: they are probably indented too little."""
    names = list(config.data.get("metrics") or {})
    # a metric with a reduction, or with a map, is not meant as the value of a key
    short = {name for name, entry in _said(config, "metrics") if entry.replaces and "reduce" not in entry.entries}
    for at, name in enumerate(names):
        if name in short and name in keys(MetricSpec) and at and config.home(("metrics", name)) is None:
            data = config.data["metrics"]
            edit = in_flow({names[at - 1]: {**(data[names[at - 1]] or {}), name: data[name].get("expr")}})[1:-1]
            metric = f"`{name}` is a metric of its own here"
            yield f"{metric}; as a key of `{names[at - 1]}` it stands below it, indented: {edit}"


def _off(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own alerts and tables that a deleted metric switches off: hiding the metric keeps them."""
    for entry, why in plan.inactive:
        section, _, name = entry.partition(".")
        deleted = re.fullmatch(r"the metric `(\w+)` was deleted", why)
        if deleted and section in ("alerts", "tables") and config.home((section, name)) is None:
            edit = in_flow({"metrics": {deleted[1]: {"log": False}}})[1:-1]
            yield f"`{entry}` is off: {why}; {edit}, in place of that, hides it and keeps the {section[:-1]}"


def _of_one_step(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own variances over the steps of a window of one step: one step has no variance."""
    several = any(mode.every > 1 for mode in plan.modes.values())  # a mode with longer windows may have a variance
    for op in plan.metrics:
        alone = FORMULAS[op.combine].least > 1 and op.pool == "step" and not op.cumulative and op.every == 1
        if alone and config.home(("metrics", op.id)) is None:
            edit = _edit(config, ("metrics", op.id, "every"), 10)
            never = f"`{op.id}` never has a value{' in training' * several}"
            yield f"{never}: of one step there is no variance, and {edit} has that of 10"


def _of_means(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own sums of means: probably the sum of all rows is meant, however they were cut."""
    for op in plan.metrics:
        means = op.combine == "sum" and op.pool != "window" and op.reduction.name == "mean" and op.axis is not Axis.STEP
        if means and config.home(("metrics", op.id)) is None:
            words = "`reduce: sum`, without `over` and `combine`"
            words = "`reduce: sum, over: run`, without `combine`" if op.cumulative else words
            yield f"`{op.key}` adds up the mean of each {op.pool}; for the sum of all rows it says {words}"


def _of_pieces(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own quantiles and the like of each step of the run that do not say how to combine these."""
    for op in plan.metrics:
        spec = config.spec.metrics.get(op.id)
        of_means = spec is not None and op.cumulative and op.pool != "window" and spec.combine is None
        linear = op.reduction.name in ("mean", "sum", "count")
        if of_means and not linear and config.home(("metrics", op.id, "over")) is None:
            of_all = "; `over: run` has that of all rows" if op.reduction.foldable else ""
            said = f"`{op.key}` is the mean of the {op.reduction.name} of each {op.pool.replace('_', ' and ')}"
            yield f"{said}: {_edit(config, ('metrics', op.id, 'combine'), 'mean')} says that this is meant{of_all}"


def _of_numbers(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own reduction of a preset's metric that a number of the loop replaces, by `prefer`."""
    numbers = {op.key for op in plan.metrics if op.axis is Axis.STEP}
    sources = {op.name: op.source for op in plan.signals}
    reduced = {op.id: op for op in plan.metrics if op.prefer in numbers and op.reduction.name != "mean"}
    for id, op in reduced.items():
        path = ("metrics", id)
        if config.home((*path, "reduce")) is None and config.home((*path, "prefer")) is not None:
            number = str(config.data["metrics"][id]["prefer"])
            number = sources.get(number, number)
            rows = f"`{op.key}` is the {op.reduction.name} of the rows that the loop observes"
            one = f"a loop that observes one number `{number}` per step gets this number as `{op.key}`"
            yield f"{rows}; {one}, unless {_edit(config, (*path, 'prefer'), None)}"


def matched(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own metrics and tables that read rows of an earlier phase: micro-batches need ids.

    A run does not log this note. If ids do not come, DL511 reports it; if they come, nobody needs the note.
    """
    joins = [op for op in plan.joins if op.axis is Axis.COMPLETION]
    paths = [(("metrics", op.id), carried(op)) for op in plan.metrics if joins and op.prefer is None]
    paths += [(("tables", op.id), carried(op)) for op in plan.tables if joins]
    for path, names in paths:
        join = next((join for join in joins if join.name in names), None)
        if join is not None and config.home(path) is None:
            declare = "" if plan.ids else f"{IDS_OF_ROWS}, and "
            ids = f"{declare}`{plan.ids or ROW_ID}` in both calls"
            said = f"`{path[-1]}` reads {join.expr} of {join.source} for rows of {join.target}"
            yield f"{said}: where these come in micro-batches, ids match them: {ids}"
            return


def counted_again(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own sums and counts of values of an earlier phase, whose rows a later phase chooses.

    A run does not log this note, because each row may come once there.
    """
    joined = {(CARRIED, op.name) for op in plan.joins}
    for op in (op for op in plan.metrics if op.reduction.name in ("sum", "count")):
        columns = {(node.op, node.param("name")) for node in walk(*op.args) if node.op in (CARRIED, SIGNAL)}
        clauses = [key for key, node in op.clauses.items() if any(one.op == SIGNAL for one in walk(node))]
        if columns and columns <= joined and clauses and config.home(("metrics", op.id)) is None:
            rows = f"`{op.key}` has the rows of {op.phase}, as `{clauses[0]}` reads it"
            yield f"{rows}: a row counts as often as it comes there, once per epoch; a mean stays as it is"


def of_several(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own alerts on the id of a metric with several reductions: they read its mean.

    A run does not log this note, because the mean may be intended.
    """
    for alert in (alert for alert in plan.alerts if config.home(("alerts", alert.id)) is None):
        entry = {key: value for key, value in config.data["alerts"][alert.id].items() if value is not None}
        said, bounds = str(entry.pop("when", alert.id)), {side: entry.pop(side) for side in SIGNS if side in entry}
        for op in (op for op in plan.metrics if op.reduction.name == "mean" and op.key in read(alert.when)):
            alone = re.compile(rf"(?<![\w.]){re.escape(op.id)}\b(?!\.)")
            reductions = [other.key for other in plan.metrics if other.id == op.id and other.key != op.key]
            if reductions and alone.search(said):
                here = alone.sub(reductions[-1], said)
                when = " or ".join(f"{here} {SIGNS[side]} {in_flow(value)}" for side, value in bounds.items()) or here
                instead = {"when": when, **entry, **dict.fromkeys(bounds)} if entry else when
                edit = _edit(config, ("alerts", alert.id), instead, ("metrics", op.id))
                yield f"`alerts.{alert.id}` judges `{op.key}`, as `{op.id}` alone is the mean; of another: {edit}"


def _unopened(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own options for sinks that `sinks` does not list, unless a later layer took them out."""
    layers = () if config.merged is None else config.merged.layers
    sinks = (*config.prefix, "sinks")
    lists = {number: node for number, layer in enumerate(layers) if (node := layer.at(sinks)) is not None}
    before = {str(name) for node in lists.values() for name in listed(node.plain)}
    for name, options in config.spec.sink_options.items():
        path = (*config.prefix, "sink_options", name)
        narrowed = name in before and all(layer.at(path) is None for layer in layers[max(lists) :])
        if name not in config.spec.sinks and config.home(("sink_options", name)) is None and not narrowed:
            kind = options.kind or name
            near = None if ":" in kind or kind in known_kinds() else nearest(name, [*config.spec.sinks, *known_kinds()])
            fix = f"did you mean `{near}`?" if near else f"sinks: {in_flow([*config.spec.sinks, name])}"
            yield f"`sink_options.{name}` has no effect: no `sinks` names it; {fix}"


def _thinned(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own `every` of a sink, which counts log events, if a log event has several steps."""
    modes = [name for name, mode in plan.modes.items() if name != "train" and mode.every]
    for sink in plan.sinks:
        if sink.every == 1 or config.home(("sink_options", sink.id)) is not None or plan.every <= 1:
            continue
        too = f"; of {' and '.join(f'`{mode}`' for mode in modes)} each {ordinal(sink.every)}, too" if modes else ""
        events = f"each {ordinal(sink.every)} log event, so each {sink.every * plan.every} steps{too}"
        yield f"`{sink.id}` takes {events}. `every: 1` takes all"


def _of_constants(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own sums and counts of a number, `sum(1)`, which are not over rows."""
    rows = [op.name for op in plan.signals if op.axis is Axis.COMPLETION and not op.family]
    rows = ["reward", *rows] if "reward" in entry_names(config.data, "signals", "derived") else rows
    for op in plan.metrics:
        of_number = op.reduction.name in ("sum", "count") and {arg.op for arg in op.args} == {CONST}
        if of_number and config.home(("metrics", op.id)) is None:
            counted = next(iter(rows), "SIGNAL")
            yield f"`{op.id}` counts steps or calls, as a number has no rows: `count({counted})` counts rows"


def _of_all(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own profiles whose `show` has no effect: they show all, and it brings back nothing."""
    tables = ["table:*"] if plan.tables else []
    for name in [name for name, op in plan.profiles.items() if op.idle]:
        profile = config.spec.profiles[name]
        of_tables = all(word.startswith("table:") for item in profile.show for word in item.select.split())
        core = name == "slim" and not of_tables
        if profile.only is not None or core or config.home(("profiles", name)) is not None:
            continue
        words = " ".join(selector.select for selector in [*profile.show, *profile.hide]).split()
        said = config.data["profiles"][name]
        without = [] if any(word.startswith("table:") for word in words) else tables
        hidden = [*said.get("hide", []), *(tables if of_tables else without)]
        shown = {"show" if of_tables else "only": said["show"]}
        alone = nested(("profiles", name), shown | ({"hide": hidden} if hidden else {}))
        edit = f"{in_flow(alone)[1:-1]} shows these alone" + "; without `table:*` the tables, too" * bool(without)
        fix = "drop it" if name == "full" else edit
        everything = "all tables" if of_tables else "all"
        yield f"`show` of the profile `{name}` adds nothing, as a profile without `only` shows {everything}; {fix}"


def unread(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own numbers of a step that nothing reads: they are kept, and logged nowhere.

    A run does not log this note, because the numbers may be declared for metrics that are added later.
    """
    names_read = {op.name for op in plan.signals}
    declared = {path[-1] for path, _ in config.spec.declared if config.home(path) is None} - names_read
    sections = {key: value for key, value in config.data.items() if key != "signals"}
    declared -= {*re.findall(r"\w+", str(sections))}  # an entry that is off, or shown nowhere, may read it
    numbers = (DType.FLOAT, DType.INT, DType.BOOL)
    of_steps = [
        op.name for phase in plan.phases.values() for op in phase.unread
        if op.axis is Axis.STEP and op.dtype in numbers and not op.family
    ]  # fmt: skip
    metrics = {name: f"mean({name})" for name in of_steps if name in declared}
    if metrics:
        them = "it" if len(metrics) == 1 else "them"
        yield f"no metric reads {', '.join(f'`{name}`' for name in metrics)}; metrics: {in_flow(metrics)} logs {them}"


def _of_families(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own metrics of a family with a signal's plural name: `rewards` has a value per function."""
    signals = {str(path[-1]) for section in ("signals", "derived") for path, _ in entries(config.data, section)}
    for op in plan.metrics:
        names = [str(node.param("name")) for node in walk(*op.args) if node.op == SIGNAL] if op.family else []
        for name in names if config.home(("metrics", op.id)) is None else ():
            if name[-1] == "s" and name[:-1] in signals:
                entry = config.data["metrics"][op.id]
                said = re.sub(rf"\b{name}\b", name[:-1], str(entry.get("expr", name)))
                edit = _edit(config, ("metrics", op.id), {**entry, "expr": said})
                yield f"`{op.id}` has a value for each member of `{name}`; of `{name[:-1]}`, one signal: {edit}"


def _below_the_run(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own folders of sinks that look relative to the working directory, and are not."""
    for name, options in config.spec.sink_options.items():
        folder = (options.model_extra or {}).get("dir")
        relative = isinstance(folder, str) and "/" in folder.strip("/") and not folder.startswith(("/", "~"))
        if relative and config.home(("sink_options", name, "dir")) is None:
            yield f"`{name}` writes to `{folder}` below the run's folder; an absolute path is taken as it is"


def _of_another_schema(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own schema for a preset's table that has none of the preset's columns."""
    before: dict[str, str] = {}
    schemas = config.data.get("schemas") or {}
    for name, entry in _said(config, "tables"):
        schema = entry.entries.get("schema")
        if schema is None:
            continue
        other = before.setdefault(name, str(schema.plain))
        columns, of_preset = (schemas.get(str(one)) or {} for one in (schema.plain, other))
        if columns.keys().isdisjoint(of_preset) and config.home(("tables", name, "schema")) is None:
            said = f"`{name}` has the columns of the schema `{schema.plain}` alone, and those of `{other}` no more"
            yield f"{said}; to have both, name yours `{other}`, too"


def _redefined(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on the user's own metrics that have a preset's id and compute something else."""
    exprs: dict[str, str] = {}  # by id: the expression of the lowest preset
    rows: dict[str, dict[str, Any]] = {}  # by id: the presets' keys of ``_OF_ROWS``
    shown: dict[str, str] = {}  # by id: the presets' name in trackers
    for name, entry in _said(config, "metrics"):
        expr = next((entry.entries[key] for key in ("expr", "formula") if key in entry.entries), None)
        text = name if expr is None else str(expr.plain)
        said = {key: entry.entries[key].plain for key in _OF_ROWS if key in entry.entries}
        if package_of(getattr(entry.location, "file", "")) is not None:
            exprs.setdefault(name, text)
            rows[name] = {**rows.get(name, {}), **said}
            shown[name] = str(entry.entries["name"].plain) if "name" in entry.entries else shown.get(name, name)
            continue
        other = expr is not None and text not in (exprs.get(name, text), name)
        if other or (name in rows and any(_differs(key, rows[name].get(key), said[key]) for key in said)):
            exprs.pop(name, None)
            rows.pop(name, None)
            names = [item.template for op in plan.outputs if op.id == name for item in op.names[:1]]
            logged = f", logged as `{names[0]}`," if names and names[0] != name else ""
            lost = (
                f"; nothing logs `{shown[name]}`"
                if "{" not in shown[name] and shown[name] not in (*names, name)
                else ""
            )
            reading = [alert.id for alert in plan.alerts if any(name == key.split(".")[0] for key in read(alert.when))]
            alerts = [f"`{alert}`" for alert in reading if config.home(("alerts", alert)) is not None]
            judged = f"; the preset's alert {' and '.join(alerts)} judges yours" if alerts else ""
            said_of = f"`{name}` is a preset's metric{logged} and computes something else now{lost}{judged}"
            yield f"{said_of}; one of your own has another name, such as `my_{name}`"


_OF_ROWS = {"reduce": "mean", "where": None, "over": "window", "by": None, "weight": None, "combine": "mean"}


def _differs(key: str, before: Any, now: Any) -> bool:
    """Whether a key of a metric has another value. Reductions differ only if none of the earlier ones is left."""
    before, now = (_OF_ROWS[key] if value is None else value for value in (before, now))
    if key == "reduce":
        reductions = now if isinstance(now, list) else [now]
        return not any(one in reductions for one in (before if isinstance(before, list) else [before]))
    return bool(before != now)


def _replaced(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on a short form that removes other keys of a preset's entry: `kl: "> 0.5"`, `reward: p50(reward)`."""
    keys: dict[tuple[str, str], dict[str, Any]] = {}  # by entry: the keys that the layers so far set, and their values
    exprs: dict[str, Any] = {}  # by metric: the expression of the lowest layer
    # keys that the user's own condition does not need, and keys that the user's own expression replaces
    replaces = {"alerts": {"enabled", "text"}, "metrics": {"expr", "formula", "reduce", "prefer", "over", "combine"}}
    for section in ("axes", "alerts", "metrics"):
        for name, entry in _said(config, section):
            before = keys.get((section, name), {})
            lost = before.keys() - entry.entries.keys() if entry.replaces else set()
            lost -= replaces.get(section, set())
            instead = {"above", "below"} if "when" in entry.entries else {"when"}  # the condition replaces these
            bounds = dict.fromkeys(sorted(lost & instead)) if section == "alerts" else {}
            lost -= bounds.keys()
            expr = entry.entries.get("expr")
            if section == "metrics" and expr is not None and exprs.setdefault(name, expr.plain) != expr.plain:
                lost = set()  # it is another metric now: ``_redefined`` has a note on it
            if lost and config.home((section, name)) is None and config.data[section].get(name) is not None:
                dropped = in_flow({key: before[key] for key in sorted(lost)})[1:-1]
                now = config.data[section][name]  # a later layer may have changed it
                said_here = {str(key): now.get(key, node.plain) for key, node in entry.entries.items()} | bounds
                path = (section, name, *said_here) if len(said_here) == 1 else (section, name)
                edit = _edit(config, path, said_here if len(said_here) > 1 else next(iter(said_here.values())))
                means = in_flow({str(key): node.plain for key, node in entry.entries.items()})
                yield f"`{section}.{name}` means {means}, and drops the preset's `{dropped}`; {edit} keeps it"
            said = {str(key): node.plain for key, node in entry.entries.items() if node.value not in (None, "none")}
            keys[section, name] = said if entry.replaces else {**before, **said}  # without defaults


def _reduced_as_below(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on an `expr` over another file's short form, ``m: p95(reward)``, whose reduction it keeps unsaid."""
    reductions: dict[str, Any] = {}  # by metric: the reduction that a short form names
    for name, entry in _said(config, "metrics"):
        keys = entry.plain if entry.entries else {}
        kept = reductions.get(name, "mean")
        if "expr" in keys and "reduce" not in keys and not entry.replaces and kept != "mean":
            if config.home(("metrics", name)) is None:
                edit = _edit(config, ("metrics", name), {**keys, "reduce": "mean"})
                yield f"`metrics.{name}` keeps `reduce: {kept}` of the short form that it changes; {edit} is the mean"
        elif entry.replaces or "reduce" in keys:
            reductions[name] = keys.get("reduce", "mean") if entry.replaces and "expr" in keys else "mean"


def _of_another_side(config: Composed, plan: Plan) -> Iterator[str]:
    """A note on a preset's alert to which the user adds the other bound: its text and `for` are not about that one."""
    said: dict[str, dict[str, Any]] = {}  # by alert: the keys that the layers so far set
    for name, entry in _said(config, "alerts"):
        before, here = {} if entry.replaces else said.get(name, {}), entry.plain if entry.entries else {}
        bounds = [side for side in ("above", "below") if before.get(side) is not None]
        sides = [side for side in ("above", "below") if here.get(side) is not None and before.get(side) is None]
        is_of_user = bool(sides) and config.home(("alerts", name, sides[0])) is None
        if bounds and is_of_user and before.get("text") is not None and "text" not in here:
            lasting = "" if "for" in here or before.get("for") is None else f", and `for: {before['for']}`"
            edit = _edit(config, ("alerts", name), {**here, "text": f"{name} is {{{name}}}", "for": here.get("for", 1)})
            yield (
                f"`alerts.{name}` has `{sides[0]}` beside a preset's `{bounds[0]}`, and keeps its `text`, which speaks "
                f"of `{bounds[0]}` alone{lasting}; {edit} has others"
            )
        said[name] = {**before, **here}


def _said(config: Composed, section: str) -> Iterator[tuple[str, Node]]:
    """The entries of a section in each layer, the lowest layer first."""
    for layer in () if config.merged is None else config.merged.layers:
        node = layer.at((*config.prefix, section))
        yield from () if node is None else node.entries.items()


def _edit(config: Composed, path: Path, value: Any, *beside: Path) -> str:
    """The edit that gives a key a value: an override if one names its entry or one in ``beside``, else YAML."""
    entries = "|".join(re.escape(".".join(map(str, entry))) for entry in (path[:2], *beside))
    if any(re.search(rf"\b({entries})\b", line) for line in config.overrides):
        sign = "" if has(config.data, path) else "++"  # with its node and its sign an application takes it, too
        return setting(sign + ".".join(map(str, (*config.prefix, *path))), value)
    return in_flow(nested(path, value))[1:-1]
