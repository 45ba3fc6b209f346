"""The first passes: constants, switches, the table of signals, and the axes."""

from __future__ import annotations

import difflib
from contextlib import suppress
from dataclasses import replace
from typing import Any

from declog.compiler.draft import NAME, Draft, Signal, SwitchedOff, op_of
from declog.compiler.scopes import ConstantScope, mask_of, signal_node, token_mask
from declog.errors import Path, Problem, in_flow, nearest
from declog.language.dtypes import DType
from declog.language.expression import compile_expression
from declog.language.keys import sections_with
from declog.language.nodes import LOGGED
from declog.language.scope import RESERVED
from declog.language.spec import ANY, DerivedSpec, ModeSpec, Observed, SignalSpec
from declog.plans.ops import Grouping, ModeOp


def constants(draft: Draft) -> None:
    """Set each constant to its pinned value, else the adapter's, else the default. A pin must equal the adapter's."""
    for name, spec in draft.spec.constants.items():
        offer = draft.offered.get(name)
        if spec.value is not None and offer is not None and spec.value != offer:
            # without a default, the entry may be a plain number, which has no keys
            pinned = ("constants", name) if spec.default is None else ("constants", name, "value")
            draft.report("DL406.pinned", pinned, name=name, value=spec.value, given=offer)
        for value in (spec.value, offer, spec.default):
            if value is not None:
                draft.constants[name] = value
                break
    for name in set(draft.offered) - set(draft.spec.constants):  # an adapter offers more than a config declares
        if (close := nearest(name, set(draft.spec.constants) - set(draft.offered))) is not None:
            draft.warn(f"the constant `{name}` is given, and not declared: did you mean `{close}`?")
    constants: list[Path] = [("constants", name) for name in draft.spec.constants]
    for path in (*constants, *(path for path, _ in draft.spec.declared)):
        if path[-1] in RESERVED:
            draft.report("DL204.word", path, key=path[-1])


def switches(draft: Draft) -> None:
    """Evaluate every `enabled`."""
    entries: list[tuple[Path, Any]] = [*draft.spec.declared]
    for section in sections_with("enabled"):
        if section not in ("signals", "derived"):
            entries += [((section, name), entry) for name, entry in getattr(draft.spec, section).items()]
    for path, entry in entries:
        if entry.enabled is True:
            continue
        text = entry.enabled if isinstance(entry.enabled, str) else "false"
        with draft.at(*path, "enabled"):
            node = compile_expression(text, ConstantScope(draft), draft.graph, draft.functions)
            dtype, fix = node.type.dtype, f"compare it, such as `{text} != 0`"
            if dtype is not DType.BOOL:
                draft.report(
                    "DL305.needs", (*path, "enabled"), name="enabled", needed="bool", node=text, dtype=dtype, fix=fix
                )
            elif not node.param("value"):
                section = "signals" if path[0] == "derived" else str(path[0])
                values = f", with {_values(draft, text)}" if text != "false" else ""
                draft.inactive[f"{section}.{path[-1]}"] = f"enabled: {text}{values}"


def _values(draft: Draft, text: str) -> str:
    used = [name for name in draft.constants if name in text]
    return ", ".join(f"{name} = {draft.constants[name]}" for name in used) or "that"


def declarations(draft: Draft) -> None:
    """Make the table of signals: those of phases, derived ones, and those that a metric observes itself."""
    for path, spec in draft.spec.declared:
        name, homes = str(path[-1]), _homes(str(path[1]) if isinstance(spec, SignalSpec) else spec.phase)
        first = draft.signals.get(name)
        if first is None:
            draft.signals[name] = Signal(spec, path, homes)
            if name in draft.spec.constants:
                draft.report("DL402.constant", path, name=name)
            continue
        one, other = _in(first.path), _in(path)
        if ANY in (path[1], first.path[1]) or path[0] == "derived":
            draft.report("DL402.places", path, related=(first.path,), name=name, first=one, other=other)
        elif (difference := _difference(first.spec, spec)) is not None:
            fix = _inside_out(draft, name) or f"declare it alike in both, or delete it in one: {other}.{name}: null"
            draft.report(
                "DL402.phases", path, related=(first.path,), name=name, first=one, other=other, key=difference, fix=fix
            )
        draft.signals[name] = replace(first, homes=first.homes + homes)
    for name, metric in draft.spec.metrics.items():
        if metric.observe is None:
            continue
        path = ("metrics", name, "observe")
        if name in draft.signals:
            draft.report("DL402.metric", path, name=name)
            continue
        draft.signals[name] = Signal(metric.observe, path, _homes(metric.observe.phase))
        if f"metrics.{name}" in draft.inactive:
            draft.inactive[f"signals.{name}"] = draft.inactive[f"metrics.{name}"]
    logged = Signal(Observed(axis="step", family=True), ("signals", LOGGED), (LOGGED,))
    draft.signals.setdefault(LOGGED, logged)
    for name, observed in draft.observed.items():
        _unsupported(draft, name, observed)


def _homes(phase: str | None) -> tuple[str, ...]:
    """The phase that a signal is declared in, as a tuple; empty for `any`."""
    return () if phase in (None, ANY) else (phase,)


def _in(path: Path) -> str:
    """The section that declares a name: `derived`, or the signals of a phase."""
    return ".".join(map(str, path[:-1]))


def _inside_out(draft: Draft, name: str) -> str | None:
    """The fix for phases inside signals: `score: {source: completion}, level: {source: completion int}`; else None."""
    phases: dict[str, list[tuple[str, Any]]] = {}
    for path, spec in draft.spec.declared:
        if path[0] == "signals":
            phases.setdefault(str(path[1]), []).append((str(path[-1]), spec))
    meant = {phase: signals[0][1] for phase, signals in phases.items() if [one for one, _ in signals] == [name]}
    home = next((phase for phase in phases if phase not in meant and phase != ANY), None)
    if len(meant) < 2 or home is None:
        return None
    words = {one: f"{spec.axis} {spec.type.value}" for one, spec in meant.items()}
    return f"signals: {in_flow({home: words})}, each by its name below its phase, and drop these"


def _difference(one: Observed | DerivedSpec, other: SignalSpec | DerivedSpec) -> str | None:
    """The first key, except `help`, in which two declarations of a name differ; None if they are alike."""
    first, second = one.model_dump(by_alias=True), other.model_dump(by_alias=True)
    return next((key for key in {**first, **second} if key != "help" and first.get(key) != second.get(key)), None)


def _unsupported(draft: Draft, name: str, spec: Observed) -> None:
    path = draft.signals[name].path
    if spec.family and spec.axis == "token":
        draft.report("DL205.family", (*path, "family"), of="per token")
    if spec.family and spec.type in ("text", "object"):
        draft.report("DL205.family", (*path, "family"), of="of text")
    if spec.axis == "token" and spec.type in ("text", "object"):
        draft.report("DL310.token_type", (*path, "type"), type=spec.type)


def default_phase(draft: Draft) -> None:
    """Set the order of the named phases, and the default phase: that of a signal that names no phase and is read alone.

    A step begins with `rollout` and ends with `update`, wherever they are declared. Any two other phases have no order.
    A phase of step signals only has the order -1, before all others: it has no rows, and its values hold for any row.
    """
    named = {phase for name, signal in draft.signals.items() if name != LOGGED for phase in signal.homes}
    rows = {phase for signal in draft.signals.values() for phase in signal.homes if not _is_of_step(signal.spec)}
    order = {phase: {"rollout": 0, "update": 2}.get(phase, 1) if phase in rows else -1 for phase in sorted(named)}
    draft.phase_order = order
    for phase in order:
        if close := difflib.get_close_matches(phase, {"rollout", "update"} - {phase}, 1, 0.9):
            draft.warn(f"the phase `{phase}` of `signals` is another than `{close[0]}`: did you mean that one?")
    if order:
        draft.default_phase = "update" if "update" in order else max(order, key=lambda phase: (order[phase], phase))


def _is_of_step(spec: Observed | DerivedSpec) -> bool:
    return isinstance(spec, Observed) and spec.axis == "step"


def modes(draft: Draft) -> None:
    """Compile the mode `train`, which always exists, and the modes of the config."""
    for name, spec in {"train": ModeSpec(), **draft.spec.modes}.items():
        if spec.first is not None and name != "train":
            draft.report("DL202.first_mode", ("modes", name, "first"), first=spec.first)
        elif spec.first is not None and spec.first >= draft.period:
            draft.report("DL202.first", ("modes", name, "first"), first=spec.first, every=draft.spec.every)
        every = spec.every if isinstance(spec.every, int) else 0
        if name == "train":
            if spec.every not in (None, "trainer", "epoch", draft.spec.every):
                draft.report("DL202.train_every", ("modes", name, "every"))
            every = draft.period
        if every < 0:
            draft.report("DL202.mode_every", ("modes", name, "every"), every=every)
        draft.modes[name] = ModeOp(name=name, prefix=spec.prefix, every=every)


def groups(draft: Draft) -> None:
    """Set the grouping, and check the signals that the axes name."""
    spec = draft.spec.axes.group
    for index, name in enumerate(spec.sources):
        path: Path = ("axes", "group", "of", *(() if isinstance(spec.of, str) else (index,)))
        signal = _named(draft, name, path)
        if signal is None:
            continue
        if not isinstance(signal, Observed) or (
            signal.axis != "completion" or signal.type in (DType.FLOAT, DType.BOOL) or signal.family
        ):
            draft.report("DL310.group_of", path, name=name, id=_free(draft, "group_id"))
    if spec.size is not None or spec.sources:
        draft.grouping = op_of(Grouping, spec, of=spec.sources)
    token = draft.spec.axes.token
    mask = token.mask if token.mask is not None and token.mask.isidentifier() and token.mask != "all" else None
    names = {"completion.ids": draft.spec.axes.completion.ids, "token.lengths": token.lengths, "token.mask": mask}
    signals = {key: _named(draft, name, f"axes.{key}") for key, name in names.items() if name is not None}
    entry = signals.get("token.lengths")
    ints = isinstance(entry, Observed) and (entry.axis, entry.type, entry.family) == ("completion", "int", False)
    if entry is not None and not ints:
        homes = [draft.signals[name].homes for name, spec in draft.observed.items() if spec.axis == "token"]
        phase, id = next((phase for phases in homes for phase in phases), ANY), _free(draft, "token_count")
        draft.report("DL310.lengths", "axes.token.lengths", name=token.lengths, id=id, phase=phase)


def _free(draft: Draft, name: str) -> str:
    """A name that no signal has."""
    return name if name not in draft.signals else _free(draft, f"{name}_")


def _named(draft: Draft, name: str, path: str | Path) -> Observed | DerivedSpec | None:
    """The signal that a key of an axis names; an unknown signal is reported, and is None."""
    if name not in draft.signals:
        draft.report("DL302.signal", path, name=name, known=draft.signal_names, member="")
        return None
    return draft.signals[name].spec


def masks(draft: Draft) -> None:
    """Report observed token signals that have no mask: a mean over padding is a wrong number."""
    axis = draft.spec.axes.token
    if axis.mask is not None or axis.lengths is not None:
        return
    named = {word for signal in draft.signals.values() for word in NAME.findall(signal.spec.mask or "")}
    per_token = {name: spec for name, spec in draft.observed.items() if spec.axis == "token"}
    bools = [name for name, spec in per_token.items() if spec.type == "bool" and not spec.family]
    masks_themselves = {name for name, spec in per_token.items() if spec.type == "bool" and name in named}
    unmasked = [name for name, spec in per_token.items() if spec.mask is None and name not in masks_themselves]
    unmasked = [name for name in unmasked if f"signals.{name}" not in draft.inactive]
    if unmasked:
        mask = next((name for name in bools if "mask" in name), bools[0] if bools else None)
        fix = f"axes: {{token: {{mask: {mask or 'completion_mask'}}}}}"
        fix += "" if mask else " and signals: {any: {completion_mask: {axis: token, type: bool}}}"
        path, *related = (draft.signals[name].path for name in unmasked)
        draft.report("DL203.token_mask", path, name=unmasked[0], fix=fix, related=tuple(related))


def typing(draft: Draft) -> None:
    """Type every derived signal once, so that each error is reported at its own key."""
    with suppress(SwitchedOff):  # then all values that have this mask are off
        token_mask(draft)
    for name, signal in draft.signals.items():
        spec, path, off = signal.spec, signal.path, f"signals.{name}"
        per_token = isinstance(spec, Observed) and spec.axis == "token"
        if (spec.mask is not None or per_token) and off not in draft.inactive:
            with draft.at(*path, "mask", off=off):
                mask_of(draft, name)
        if isinstance(spec, DerivedSpec):
            with draft.at(*path, "expr", off=off):
                node = signal_node(draft, name)
                if isinstance(node, Problem):
                    draft.problems.append(node.at(*path, "expr"))
