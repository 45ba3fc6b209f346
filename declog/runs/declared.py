"""Finds out, from a run's config and plan, which tables have no rows yet, and why the files lack a scalar's name.

The answer for a name includes the edit of the config by which the next run logs it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from declog.errors import in_flow
from declog.language.fixes.tracker_names import metric_of
from declog.runs.frame import Frame
from declog.runs.series import LoggedName

KINDS = ("parquet", "jsonl")  # the kinds of sinks whose files are read
ARROW = {"float": "float64", "int": "int64", "bool": "bool_"}  # Arrow's type by a column's type; others are texts
NO_FILES = "no sink wrote files: start with sinks=[console,parquet]"
NO_VALUE = "no value of it was logged"
UNSHOWN = "no active profile"  # the beginning of a plan's reason for a metric that no profile shows
MOST_NAMES = 8  # the most names in an answer


def kind_of(sink: str, options: Mapping[str, Any]) -> str:
    """The kind of a sink: `kind` of its options, else its id."""
    spec = options.get(sink)
    return str(spec.get("kind", sink)) if isinstance(spec, Mapping) else sink


def _empty(columns: object) -> Frame:
    import pyarrow as pa

    types = {"step": "int64", "mode": "string"}
    for column in columns if isinstance(columns, list) else ():
        if isinstance(column, dict) and "{" not in (name := str(column.get("name"))):
            types[name] = ARROW.get(str(column.get("type")), "string")
    types["run_id"] = "string"
    return Frame(pa.schema([(name, getattr(pa, type_)()) for name, type_ in types.items()]).empty_table())


@dataclass(frozen=True)
class Declared:
    """The sinks, tables and scalars that a run's config and plan declare."""

    config: Mapping[str, Any]
    plan: Mapping[str, Any]

    @property
    def sinks(self) -> dict[str, Mapping[str, Any]]:
        """The options of the sinks that write files, by id."""
        options, ids = _map(self.config.get("sink_options")), self.config.get("sinks")
        names = [id for id in (ids if isinstance(ids, list) else ()) if isinstance(id, str)]
        return {id: _map(options.get(id)) for id in names if kind_of(id, options) in KINDS}

    @property
    def empty_tables(self) -> dict[str, Frame]:
        """The tables that the plan sends to files, by id, each with its columns and no rows."""
        options = _map(self.config.get("sink_options"))
        return {
            table["id"]: _empty(table.get("columns"))
            for table in self.plan.get("tables", ())
            if any(kind_of(taker.partition(" ")[0], options) in KINDS for taker in str(table.get("to", "")).split(", "))
        }

    def rare(self, mode: str | None = None) -> str:
        """The reason why a run or a mode may have no scalars: its sinks take only some log events; empty if not so."""
        every = {id: spec.get("every", 1) for id, spec in self.sinks.items()}
        if not every or not all(isinstance(count, int) and count > 1 for count in every.values()):
            return ""
        steps = self.config.get("every", 1)
        texts = [
            f"the sink `{id}` takes one log event in {count} of each mode"
            + (f" (one step in {count * steps})" if isinstance(steps, int) and steps > 1 and mode is None else "")
            for id, count in every.items()
        ]
        edit = ", ".join(f"{id}: {{every: 1}}" for id in every)
        who = "the run" if mode is None else f"`{mode}`"
        return f"{', '.join(texts)}, none if {who} had fewer so far: sink_options: {{{edit}}}"

    def instead_of(self, name: str, logged: Sequence[LoggedName]) -> str:
        """Explain why a name of a metric or alert has no scalars; empty if the config has no such metric or alert.

        ``logged`` are the names of the scalars, each with the key of its metric and its mode.
        """
        name = str(name)
        metrics = _map(self.config.get("metrics"))
        mode, plain = self._mode_of(name)
        id = _id_of(plain, metrics)
        outputs = [
            output for output in self.plan.get("outputs", ()) if plain == output["name"] or id == output["metric"]
        ]
        templates = [output["name"] for output in outputs]
        names = dict.fromkeys(of for of, key, _ in logged if (key or "").partition(".")[0] == id)
        takers = {sink for output in outputs for sink in map(str, output.get("sinks") or ())}
        by_another_name = plain not in templates  # such as the metric's id
        without_prefix = plain == name  # so the names are those of other modes, unless sinks may have skipped this one
        if names and (by_another_name or (without_prefix and not self.rare(mode))):
            members = [of for of in names if of.startswith(f"{name}/")]
            return f"it is logged as {_listed(members or names)}"
        if id in metrics and metrics[id] is None:
            return f"the run's config takes it out: `{id}: null`"
        if id in metrics and self.sinks and self.sinks.keys().isdisjoint(takers):
            return self._hidden(str(id), shown=bool(outputs))
        if outputs:
            rare = self.rare(mode) if mode not in {of for _, _, of in logged} else ""
            named = [template for template in templates if "{" not in template]  # names of members are unknown
            called = f", which would be {_listed(named)}" if named and plain not in named else ""
            return f"{NO_VALUE}{called}{rare and f': {rare}'}"
        if parts := dict.fromkeys(of for of, _, _ in logged if of.startswith(f"{name}/")):  # nobody declared them
            return f"it is logged as {_listed(parts)}"
        is_alert = any(alert["id"] == name for alert in self.plan.get("alerts", ()))
        return "it is an alert, and has not fired" if is_alert else ""

    def _mode_of(self, name: str) -> tuple[str, str]:
        """The mode whose prefix a name has, and the name without it."""
        modes = {mode: str(prefix or "") for mode, prefix in _map(self.plan.get("modes")).items()}
        fitting = [mode for mode, prefix in modes.items() if name.startswith(prefix)]
        mode = max(fitting, key=lambda mode: len(modes[mode]), default="")
        return mode, name.removeprefix(modes.get(mode, ""))

    def _hidden(self, id: str, *, shown: bool) -> str:
        """Explain why no sink that writes files takes a metric: a profile hides it, or the plan left it out."""
        if _map(_map(self.config.get("metrics")).get(id)).get("log") is False:
            return f"the run has the metric `{id}`, and `metrics.{id}.log: false` keeps it out of all sinks"
        reasons = [why for part, why in self._inactive() if part.split(".")[1:2] == [id]]
        if not shown and reasons and not any(why.startswith(UNSHOWN) for why in reasons):
            return f"the run has left out its metric `{id}`: {reasons[0]}"
        default = self.config.get("profile", "full")
        profiles = {sink: str(spec.get("profile") or default) for sink, spec in self.sinks.items()}
        hiding = " and ".join(f"the profile `{profile}` of the sink `{sink}`" for sink, profile in profiles.items())
        specs = {profile: _map(_map(self.config.get("profiles")).get(profile)) for profile in profiles.values()}
        edit = {profile: {"show": [*(spec.get("show") or ()), id]} for profile, spec in specs.items()}
        return f"the run has the metric `{id}`, and {hiding} hides it: profiles: {in_flow(edit)}"

    def _inactive(self) -> Iterator[tuple[str, str]]:
        """The inactive parts of the plan, each with the reason."""
        parts = self.plan.get("inactive")
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, list) and len(part) == 2:
                yield str(part[0]), str(part[1])


def _id_of(name: str, metrics: Mapping[str, Any]) -> str | None:
    """The id of the metric that a name belongs to: by its id or its names in trackers, or as the beginning of the name.

    For example `score/aime` belongs to the metric `score`. None if there is none.
    """
    if name in metrics:
        return name
    if (shown := metric_of(metrics, name)) is not None:
        return shown.id
    return max((id for id in metrics if name.startswith(f"{id}/")), key=len, default=None)


def _map(value: object) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _listed(names: Iterable[str]) -> str:
    """The first names of several, in order."""
    texts = [f"`{name}`" for name in names]
    return ", ".join(texts[:MOST_NAMES]) + ", ..." * (len(texts) > MOST_NAMES)
