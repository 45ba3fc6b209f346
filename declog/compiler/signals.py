"""The first passes: constants, what is switched off, the table of signals, and what a group is."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

from declog.compiler.draft import Draft, SwitchedOff
from declog.compiler.scopes import BUILTINS, ConstantScope, mask_of, signal_node, token_mask
from declog.errors import Path, Problem, nearest
from declog.language.dtypes import DType
from declog.language.expression import compile_expression
from declog.language.keys import sections_with
from declog.language.nodes import LOGGED
from declog.language.spec import ModeSpec, SignalSpec
from declog.language.syntax import WORDS
from declog.plans.ops import Grouping, ModeOp

RESERVED = frozenset({"inf", "true", "false", "and", "or", "not", "if", "else", "in", "is", *WORDS})


def constants(draft: Draft) -> None:
    """A pinned value, else what an adapter gives, else the default; a pin that disagrees is an error."""
    for name, spec in draft.spec.constants.items():
        given = draft.given.get(name)
        if spec.value is not None and given is not None and spec.value != given:
            # alone it is a plain number, or as good as one
            path = ("constants", name) if spec.default is None else ("constants", name, "value")
            draft.report("DL406", path, name=name, value=spec.value, given=given)
        for value in (spec.value, given, spec.default):
            if value is not None:
                draft.constants[name] = value
                break
    for name in set(draft.given) - set(draft.spec.constants):  # an adapter offers more than a profile declares
        if (close := nearest(name, set(draft.spec.constants) - set(draft.given))) is not None:
            draft.warn(f"the constant `{name}` is given, and not declared: did you mean `{close}`?")
    for name in ("constants", "signals"):
        for key in getattr(draft.spec, name):
            if key in RESERVED or key in BUILTINS:
                draft.report("DL204.word", (name, key), key=key)


def switches(draft: Draft) -> None:
    """Evaluate every `enabled`."""
    for section in sections_with("enabled"):
        entries: dict[str, Any] = getattr(draft.spec, section)
        for name, entry in entries.items():
            if entry.enabled is True:
                continue
            text = entry.enabled if isinstance(entry.enabled, str) else "false"
            with draft.at(section, name, "enabled"):
                node = compile_expression(text, ConstantScope(draft), draft.graph, draft.functions)
                dtype, fix = node.type.dtype, f"compare it, such as `{text} != 0`"
                if dtype is not DType.BOOL:
                    path = (section, name, "enabled")
                    draft.report("DL305.needs", path, name="enabled", needed="bool", node=text, dtype=dtype, fix=fix)
                elif not node.param("value"):
                    draft.inactive[f"{section}.{name}"] = f"enabled: {text}" + (
                        f", with {_values(draft, text)}" if text != "false" else ""
                    )


def _values(draft: Draft, text: str) -> str:
    used = [name for name in draft.constants if name in text]
    return ", ".join(f"{name} = {draft.constants[name]}" for name in used) or "that"


def declarations(draft: Draft) -> None:
    """The table of signals: declared ones, and those that a metric observes itself."""
    for name, spec in draft.spec.signals.items():
        draft.signals[name] = spec
        draft.signal_paths[name] = ("signals", name)
        if name in draft.spec.constants:
            draft.report("DL402.constant", ("signals", name), name=name)
    for name, metric in draft.spec.metrics.items():
        if metric.observe is None:
            continue
        if name in draft.spec.signals:
            draft.report("DL402.metric", ("metrics", name, "observe"), name=name)
            continue
        draft.signals[name] = metric.observe
        draft.signal_paths[name] = ("metrics", name, "observe")
        if f"metrics.{name}" in draft.inactive:
            draft.inactive[f"signals.{name}"] = draft.inactive[f"metrics.{name}"]
    if LOGGED not in draft.signals:
        draft.signals[LOGGED] = SignalSpec(
            axis="step", family=True, optional=True, phase=LOGGED, help="values of log_metric"
        )
        draft.signal_paths[LOGGED] = ("signals", LOGGED)
    for name, spec in draft.signals.items():
        _unsupported(draft, name, spec)


def _unsupported(draft: Draft, name: str, spec: SignalSpec) -> None:
    path = draft.signal_paths[name]
    if spec.family and spec.axis == "token":
        draft.report("DL205.family", (*path, "family"), of="per token")
    if spec.family and spec.type in ("text", "object"):
        draft.report("DL205.family", (*path, "family"), of="of text")
    if spec.axis == "token" and spec.type in ("text", "object"):
        draft.report("DL310.token_type", (*path, "type"), type=spec.type)


def default_phase(draft: Draft) -> None:
    """The order of the named phases, and where signals go that name none and are read alone.

    Phases of step signals only come before all others, with numbers below 0: they have no rows, and values for any.
    """
    named = [phase for name, spec in draft.signals.items() if name != LOGGED for phase in spec.phases]
    rows = {phase for spec in draft.signals.values() if spec.axis != "step" for phase in spec.phases}
    places = {phase: place for place, phase in enumerate(dict.fromkeys(named))}
    draft.phase_order = {phase: place if phase in rows else place - len(places) for phase, place in places.items()}
    if draft.phase_order:
        draft.default_phase = "update" if "update" in draft.phase_order else max(draft.phase_order, key=draft.order)


def modes(draft: Draft) -> None:
    """Train, which is always there, and what else the profile names."""
    if draft.spec.first is not None and draft.spec.first >= draft.period:
        draft.report("DL202.first", "first", first=draft.spec.first, every=draft.spec.every)
    for name, spec in {"train": ModeSpec(), **draft.spec.modes}.items():
        every = 0 if spec.every in ("end", "trainer", "epoch") else spec.every
        if name == "train":
            if spec.every not in (None, "trainer", "epoch", draft.spec.every):
                draft.report("DL202.train_every", ("modes", name, "every"))
            every = draft.period
        if isinstance(every, int) and every < 0:
            draft.report("DL202.mode_every", ("modes", name, "every"), every=every)
        draft.modes[name] = ModeOp(name=name, prefix=spec.prefix, every=every if isinstance(every, int) else 0)


def groups(draft: Draft) -> None:
    """What a group is."""
    spec = draft.spec.axes.group
    for place, name in enumerate(spec.sources):
        path: Path = ("axes", "group", "of", *(() if isinstance(spec.of, str) else (place,)))
        signal = _named(draft, name, path)
        if signal is None:
            continue
        if signal.axis != "completion" or signal.type in (DType.FLOAT, DType.BOOL) or signal.family:
            draft.report("DL310.group_of", path, name=name)
    if spec.size is not None or spec.sources:
        optional = any(draft.signals[name].optional for name in spec.sources if name in draft.signals)
        draft.grouping = Grouping(size=spec.size, of=spec.sources, split=spec.split, optional=optional)
    ids = draft.spec.axes.completion.ids
    if ids is not None:
        _named(draft, ids, "axes.completion.ids")
    lengths = draft.spec.axes.token.lengths
    signal = None if lengths is None else _named(draft, lengths, "axes.token.lengths")
    if signal and (signal.axis != "completion" or signal.type != "int" or signal.family or signal.optional):
        draft.report("DL310.lengths", "axes.token.lengths", name=lengths)
    token = draft.spec.axes.token.mask
    if token is not None and token.isidentifier() and token != "all":
        _named(draft, token, "axes.token.mask")


def _named(draft: Draft, name: str, path: str | Path) -> SignalSpec | None:
    """The signal that a key of an axis names; None where there is none, which is reported."""
    if name not in draft.signals:
        draft.report("DL302.name", path, noun="signal", name=name, known=draft.signal_names)
    return draft.signals.get(name)


def masks(draft: Draft) -> None:
    """Which tokens exist is said for every observed token signal: a mean over padding is a wrong number."""
    axis = draft.spec.axes.token
    if axis.mask is not None or axis.lengths is not None:
        return
    named = {word for spec in draft.signals.values() for word in _WORD.findall(spec.mask or "")}
    for name, spec in draft.signals.items():
        if spec.axis != "token" or spec.mask is not None or f"signals.{name}" in draft.inactive:
            continue
        if spec.type == "bool" and name in named:  # it is the mask
            continue
        per_token = [(other, each) for other, each in draft.signals.items() if each.axis == "token"]
        bools = [other for other, each in per_token if each.type == "bool" and not each.family]
        mask = next((word for word in bools if "mask" in word), bools[0] if bools else None)
        fix = f"axes: {{token: {{mask: {mask or 'completion_mask'}}}}}"
        fix += "" if mask else " and signals: {completion_mask: {axis: token, type: bool}}"
        draft.report("DL203.token_mask", draft.signal_paths[name], name=name, fix=fix)


_WORD = re.compile(r"[a-z_]\w*")


def typing(draft: Draft) -> None:
    """Type every derived signal once, so that each error is reported at its own key."""
    with suppress(SwitchedOff):  # then all that it is the mask of is off
        token_mask(draft)
    for name, spec in draft.signals.items():
        if (spec.mask is not None or spec.axis == "token") and f"signals.{name}" not in draft.inactive:
            with draft.at(*draft.signal_paths[name], "mask", off=f"signals.{name}"):
                mask_of(draft, name)
        if spec.expr is None:
            continue
        with draft.at(*draft.signal_paths[name], "expr", off=f"signals.{name}"):
            found = signal_node(draft, name)
            if isinstance(found, Problem):
                draft.problems.append(found.at(*draft.signal_paths[name], "expr"))
