"""Observed names that are no signals of the config: the error, with an edit for each name."""

from __future__ import annotations

import builtins
import re
import shlex
import sys
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from keyword import iskeyword
from typing import Any

import torch

from declog.errors import InputError, UnknownSignalError, in_flow, nearest
from declog.language.dtypes import Axis
from declog.language.notation import WORD
from declog.language.scope import RESERVED
from declog.plans.needs import Clause, signals_of
from declog.plans.ops import Plan
from declog.runtime.values.inputs import describe, undeclared, words_of

TEE = "tee"  # the preset of a logger's own numbers, whose config is named where the logger is
EVALUATIONS = frozenset({"eval", "evaluation", "val", "valid", "validation", "test", "dev"})
SURE = 0.8  # the similarity from which a name is surely a misspelt signal; below, it may be the user's own signal


def unknown_signals(plan: Plan, signals: Mapping[str, Any], announced: Sequence[str] = ()) -> UnknownSignalError:
    """Return the error for a call with names that are no signals of the plan, with an edit for each name.

    ``announced`` has the phases whose rows are recorded around the call, such as those of a trainer's generation.
    """
    names = [name for name in signals if name not in plan.signal_names]
    candidates = plan.signal_names - signals.keys()  # a name that the call also observes cannot be the misspelt one
    near = {name: nearest(name, candidates) for name in names}
    sources = {op.name: op.source for op in plan.signals}
    computed = signals_of(plan)
    fixes, last, new = [], [], []
    for name in names:
        if name in plan.renamed:
            fixes.append(f"`{name}` is called `{plan.renamed[name]}` now")
        elif (in_mode := _of_mode(name, plan)) is not None:
            fixes.append(in_mode)
        elif name in sources:
            fixes.append(f"`{name}` is observed as `{sources[name]}`")
        elif needs := {sources.get(need.name, need.name) for clause in computed.get(name, ()) for need in clause}:
            absent = _not_observed(plan, computed[name], signals)
            drop = f"drop `{name}`: `{plan.name}` computes it, from {', '.join(sorted(needs))}"
            if absent:
                last.append(f"or {drop}; observe {absent} then, without which it is absent")
            elif words_of(signals[name]) == "step":  # probably the loop's own mean of a batch
                last.append(f"or {drop}, of all rows of a log event at once: another number than a mean of batches")
            else:
                fixes.append(drop)
            new.append(name)
        elif (meant := near[name]) is not None:
            fixes.append(f"did you mean `{meant}`?" if len(names) == 1 else f"`{name}`: did you mean `{meant}`?")
            new += [] if get_close_matches(name, [meant], cutoff=SURE) else [name]
        else:
            new.append(name)
    if (packed := _of_packed(plan, signals, names)) is not None:
        fixes, new, last = [packed], [], []
    new = [name for name in new if _may_be_declared(name)]
    fixes += [*_own_signals(plan, signals, new, announced), *last]
    if not fixes or any(near[name] is None for name in new):
        fixes.append(f"signals: {', '.join(sorted(plan.signal_names))}")
    quoted = " and no signal ".join(f"`{name}`" for name in names)
    return UnknownSignalError.of("DL501.signal", config=plan.name, names=quoted, fix="\n".join(fixes))


def no_number(plan: Plan, name: str, value: Any) -> InputError:
    """Return the note on a value of ``log.scalars`` that is left out, with edits that log it."""
    word, came = re.sub(r"\W", "_", name.rpartition("/")[2]), describe(value)
    word = word if word.isidentifier() and not iskeyword(word) and word not in dir(builtins) else "values"
    if isinstance(value, str):
        return InputError.of("DL504.text_scalar", name=name, came=came, word=word)
    axis, rows = undeclared(value)
    if axis is not Axis.COMPLETION or not len(rows):
        return InputError.of("DL504.no_scalar", name=name, came=came)
    of_integers = hasattr(value, "is_floating_point") and not value.is_floating_point()
    mean = f"{word}.float().mean()" if of_integers else f"{word}.mean()"
    if not hasattr(value, "mean"):
        mean = f"sum({word}) / len({word})" if None not in value else "..."
    fixes = [f"log.scalars({{{name!r}: {mean}}})"]
    if name not in plan.signal_names and _may_be_declared(word):
        fixes[0] += f"; or observe all values: log.observe({word}={word})"
        if not any(op.any for op in plan.signals):
            fixes += _own_signals(plan, {word: value}, [word])
    return InputError.of("DL503.scalar", name=name, came=came, fix="\n".join(fixes))


def _may_be_declared(name: str) -> bool:
    return bool(WORD.match(name)) and name not in RESERVED and not iskeyword(name)


def _own_signals(
    plan: Plan, signals: Mapping[str, Any], names: Collection[str], announced: Sequence[str] = ()
) -> list[str]:
    """The edits that declare names of a call, in the config and as overrides; none if there are no names."""
    if not names:
        return []
    # a logger's tables are phases too, with their own rows; `any` has the phase of what is observed beside it
    beside = announced or _phases(plan, signals) - {"default"}
    phase = "rollout" if plan.project == TEE else next(iter(beside)) if len(beside) == 1 else "any"
    taken = {name: f"{name}_of_mine" for name in names if name in (plan.config.get("derived") or {})}
    in_config, overrides = _declarations({taken.get(name, name): words_of(signals[name]) for name in names}, phase)
    call = f"wandb = declog.tee(wandb, {TEE!r}, {overrides})" if plan.project == TEE else overrides
    again = ", ".join(f"{name}=..." for name in taken.values())
    renamed = f", under another name, observe({again})" if taken else ""
    return [f"one of your own{renamed}, in the config: {in_config}", f"or as overrides: {call}"]


def _of_packed(plan: Plan, signals: Mapping[str, Any], names: Sequence[str]) -> str | None:
    """The edit for tokens in one row, beside a name whose values say which of them are a completion's; else None."""
    tokens = {op.source for op in plan.signals if op.axis is Axis.TOKEN and not op.packed} & signals.keys()
    rows = {name: row for name in sorted(tokens) if (row := _in_one_row(signals[name])) is not None}
    counts, layouts = {*map(len, rows.values())}, {name: _in_one_row(signals[name]) for name in names}
    for name, layout in layouts.items():
        if len(counts) != 1 or layout is None or layout.dtype not in (torch.int32, torch.int64):
            continue
        (count,), shown, starts = counts, name + ".flatten()" * (signals[name].ndim > 1), layout == 0
        of_positions = len(layout) == count and starts.sum() > 1 and (starts[1:] | (layout.diff() == 1)).all()
        ways = {
            f"{shown}.diff()": layout[-1] == count and starts[0] and len(layout) > 2,
            shown: layout.sum() == count > len(layout) > 1 and not starts.any(),
            f"({shown} == 0).cumsum(0).unique(return_counts=True)[1]": of_positions and starts[0],
        }
        if (lengths := next((way for way, fits in ways.items() if fits), None)) is not None:
            masks = {mask for phase in plan.phases.values() for fold in phase.folds for mask in fold.masks}
            split = [f"{one}={one}{'.flatten()' * (signals[one].ndim > 1)}.split(lengths)" for one in rows]
            split += [f"{mask}=[[True] * n for n in lengths]" for mask in sorted(masks - {*signals})]
            call = f"log.observe({', '.join([*split, '...'])})"
            return f"`lengths = {lengths}.tolist()`, and without `{name}`: `{call}`"
    return None


def _in_one_row(value: Any) -> torch.Tensor | None:
    """A tensor `[n]` or `[1, n]` as one row; None for other values."""
    is_row = isinstance(value, torch.Tensor) and value.ndim > 0 and value.numel() == value.shape[-1] > 0
    return value.flatten() if is_row else None


def _of_mode(name: str, plan: Plan) -> str | None:
    """The call that observes a name such as `eval/reward` in its mode; None if the name has no mode before a signal."""
    parts = re.fullmatch(r"([a-z]+)[_/.](\w+)", name)
    if parts is None or parts[2] not in plan.signal_names:
        return None
    evaluations = [mode for mode in plan.modes if mode != "train"]
    mode = parts[1] if parts[1] in plan.modes else next(iter(evaluations if parts[1] in EVALUATIONS else ()), None)
    if mode is None:
        return None
    call = f"log.observe({parts[2]}=...)"
    around = f"`with log.mode({mode!r}): {call}`, with no step around it"
    return f"`{name}`: {f'`{call}`' if mode == 'train' else around}"


def _phases(plan: Plan, signals: Mapping[str, Any]) -> set[str]:
    """The phases of a call, by its signals that one phase alone has."""
    homes = [{op.phase for op in plan.sources[name]} for name in signals.keys() & plan.sources.keys()]
    return {phase for phases in homes if len(phases) == 1 for phase in phases}


def _not_observed(plan: Plan, clauses: Collection[Clause], signals: Mapping[str, Any]) -> str:
    """The signals of the call's phases that a metric needs and the call does not observe, as text."""
    sources = {(name, op.name): op.source for name, phase in plan.phases.items() for op in phase.signals}
    here = _phases(plan, signals)
    needs = [[(need, sources.get((need.phase, need.name), need.name)) for need in clause] for clause in sorted(clauses)]
    absent = [
        " or ".join(dict.fromkeys(f"`{source}`" for _, source in clause))
        for clause in needs
        if all(need.phase in here and source not in signals for need, source in clause)
    ]
    return " and ".join(absent)


def _declarations(words: Mapping[str, str], phase: str) -> tuple[str, str]:
    """The edits that declare and log signals of a phase, once as lines of a config and once as overrides."""
    metrics = {name: f"mean({name})" for name, said in words.items() if not said.endswith(("text", "object"))}
    sections = {"signals": {phase: words}, "metrics": metrics} if metrics else {"signals": {phase: words}}
    lines = ", ".join(f"{name}: {in_flow(value)}" for name, value in sections.items())
    overrides = [f"signals.{phase}.{name}={said}" for name, said in words.items()]
    overrides += [f"metrics.{name}={reduction}" for name, reduction in metrics.items()]
    hydra = sys.modules.get("hydra.core.hydra_config")
    if hydra is not None and hydra.HydraConfig.initialized():  # in a Hydra application: overrides of its command line
        pairs = [line.partition("=")[::2] for line in overrides]
        texts = [(key, value if re.fullmatch(r"[\w ]+", value) else f'"{value}"') for key, value in pairs]
        return lines, " ".join(shlex.quote(f"+declog.{key}={value}") for key, value in texts)
    return lines, in_flow([*map(repr, overrides)], str)
