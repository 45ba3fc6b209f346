"""The token folds of one open batch: those that still wait for values, and those that can run.

A batch's folds run as soon as it has all signals that folds read in the batch before. Until then copies of the values
are kept, so that no tensor of the trainer is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import NamedTuple

import torch

from declog.engine.blocks import Key
from declog.errors import InputError, RuntimeFailure, error_text
from declog.language.dtypes import Axis
from declog.language.functions import FunctionOf
from declog.plans.ops import FoldOp, PhaseOp
from declog.runtime.rows.observation import Columns, Observation, Tokens
from declog.runtime.tokens import fold as token_fold
from declog.runtime.values.packs import Pack
from declog.runtime.values.streams import Streams

Tensor = torch.Tensor
_NONE: Mapping[str, Tensor] = MappingProxyType({})


class Unfolded(NamedTuple):
    """The folds of a batch that still wait, and copies of the values that they will read."""

    folds: Sequence[FoldOp]
    kept: Mapping[str, Tensor] = _NONE
    tokens: Tokens | None = None


class Folds:
    """The folds of a phase's batches.

    ``expected`` names the signals that the folds wait for, so that each fold runs once. ``report`` gets failures.
    Neither an instance nor a batch's ``Unfolded`` state is ever changed: calls return the next one.
    """

    def __init__(
        self, phase: PhaseOp, expected: Set[str], function_of: FunctionOf, report: Callable[[RuntimeFailure], None]
    ) -> None:
        self.nothing = Unfolded(phase.folds)  # the state of a new batch
        # values per step that folds read: they hold for the later batches of their step
        self.per_step = frozenset(op.name for op in phase.signals if op.axis is Axis.STEP) & phase.reads
        self._phase = phase
        self._expected = expected
        self._function_of = function_of
        self._report = report

    def next(self, names: Set[str]) -> Folds:
        """Return the folds for the next batch, which wait for the signals in ``names`` that folds read."""
        expected = self._phase.reads & names
        return self if expected == self._expected else Folds(self._phase, expected, self._function_of, self._report)

    def after(
        self, before: Unfolded, call: Observation, names: Set[str], streams: Streams
    ) -> tuple[Unfolded, Observation | None]:
        """Run the folds that can run with the values of a call; ``names`` are the batch's signals with the call's.

        Returns the next state, and the results as a call. Raises ``InputError`` if tokens have different shapes, or
        contradict the lengths of packed tokens.
        """
        tokens = call.tokens if before.tokens is None else before.tokens.joined(call.tokens)
        self._check_lengths(before, call, tokens)
        streams.join(before.kept.values())
        inputs = {**before.kept, **call.inputs} if before.kept else call.inputs
        return self._run(before, inputs, names, tokens)

    def at_last(self, before: Unfolded, names: Set[str], held: Mapping[str, Tensor]) -> Observation | None:
        """Run the folds that still wait, with the signals that the batch has: it closes, so no others will arrive.

        ``held`` has the values per step of earlier batches.
        """
        return self._run(before, {**held, **before.kept}, names, before.tokens, last=True)[1]

    def report_late(self, names: Set[str]) -> None:
        """Report values per step that came after tokens which were folded without them."""
        sources = sorted(op.source for op in self._phase.signals if op.name in names)
        shown = ", ".join(f"`{source}`" for source in sources)
        self._report(RuntimeFailure.of("DL605.late", names=shown, first=sources[0], phase=self._phase.name))

    def _check_lengths(self, before: Unfolded, call: Observation, tokens: Tokens | None) -> None:
        name = self._phase.lengths
        if name is None:
            return
        lengths = call.inputs.get(name, before.kept.get(name))
        if lengths is None or tokens is None or (name not in call.inputs and call.tokens is None):
            return
        count = tokens.shape[0]
        if not lengths.is_cpu and (len(lengths) or not count):
            return
        if len(wrong := lengths[(lengths >= 0).logical_not()]):  # negative lengths, and missing ones
            raise InputError.of("DL503.token_length", name=name, length=wrong[0].item())
        if len(torch.nonzero(lengths.sum() - count)):
            raise InputError.of("DL503.token_count", name=tokens.source, count=count, lengths=int(lengths.sum()))

    def _run(
        self, before: Unfolded, inputs: Mapping[str, Tensor], names: Set[str], tokens: Tokens | None, *,
        last: bool = False,
    ) -> tuple[Unfolded, Observation | None]:  # fmt: skip
        """Run the folds that have all their signals, with ``last`` all folds; keep copies of the others' values."""
        lengths = self._phase.lengths
        placed = self._expected <= names and tokens is not None and (lengths is None or lengths in inputs)
        ready, waiting = before.folds, list[FoldOp]()
        if not last and not (placed and self._phase.reads <= inputs.keys()):
            ready = []
            for op in before.folds:
                (ready if placed and op.reads <= inputs.keys() else waiting).append(op)
        kept = _NONE
        if waiting:
            needed = {lengths, *(name for op in waiting for name in op.reads)}
            kept = {
                name: before.kept[name] if name in before.kept else value.clone()
                for name, value in inputs.items() if name in needed
            }  # fmt: skip
        after = Unfolded(waiting, kept, tokens)
        if not ready or (all_tokens := self._shape_of_tokens(inputs, tokens)) is None:
            return after, None
        shape, device = all_tokens.shape, all_tokens.device
        for value in inputs.values():  # copy a mask on the host to the values on a GPU, not the other way round
            if value.is_cuda:
                device = value.device if device.type != "cuda" else device
                break
        return after, self._columns(token_fold.run(ready, inputs, shape, device, lengths, self._function_of))

    def _columns(self, folded: token_fold.Folded) -> Observation:
        """Return the results of folds as a call: statistics are columns, a histogram covers the whole batch.

        Reports the folds that failed.
        """
        for what, error in folded.failed.values():
            failure = RuntimeFailure.of("DL605.tokens", what=what, phase=self._phase.name, error=error_text(error))
            failure.__cause__ = error
            self._report(failure)
        call, rows = Observation(self._phase, frozenset()), Axis.COMPLETION
        call.copies = [(Columns((rows, dtype, -1), keys), sums) for dtype, keys, sums in folded.sums]
        texts = {key: (Axis.STEP, Pack(Axis.STEP, [key], [sketch])) for key, sketch in folded.sketches.items()}
        alike: dict[tuple[torch.dtype, torch.device], list[Key]] = {}
        for key, column in folded.columns.items():
            if column.ndim > 1:  # first and last values
                texts[key] = rows, Pack(rows, [key], [column])
            else:
                alike.setdefault((column.dtype, column.device), []).append(key)
        for keys in alike.values():
            call.put(rows, keys, torch.stack([folded.columns[key] for key in keys]))
        call.texts = texts
        return call

    def _shape_of_tokens(self, inputs: Mapping[str, Tensor], tokens: Tokens | None) -> Tokens | None:
        """The shape of the batch's tokens: of values per token or, without any, by lengths on the host; else None."""
        name = self._phase.lengths
        if name is None or (tokens is not None and name in inputs):
            return tokens
        if name in inputs and inputs[name].is_cpu:
            return Tokens(torch.Size([int(inputs[name].sum())]), name, inputs[name].device)
        return None
