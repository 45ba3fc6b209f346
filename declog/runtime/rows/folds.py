"""The folds of one open batch: which have run, and which wait for values that their tokens still lack.

Tokens are folded as soon as all that folds read in the batch before has come. Until then copies wait: nothing of the
trainer's is kept. Imports torch and the plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import torch

from declog.errors import InputError, RuntimeFailure, error_text
from declog.language.dtypes import Axis
from declog.language.functions import DEFAULT, Functions
from declog.plans.ops import FoldOp, PhaseOp
from declog.runtime.rows.observation import Columns, Lists, Observation, Tokens, of_other_lists, of_other_tokens
from declog.runtime.tokens import fold as token_fold
from declog.runtime.values.packs import Pack
from declog.runtime.values.streams import Streams
from declog.runtime.values.tensors import HALF

Tensor = torch.Tensor


class Folds:
    """Never changed: the values of a call give the next one. ``expected`` names what folds wait for, to run once."""

    def __init__(
        self, phase: PhaseOp, expected: Set[str] = frozenset(), functions: Functions = DEFAULT, *,
        waiting: Sequence[FoldOp] | None = None, kept: Mapping[str, Tensor] | None = None,
        tokens: Tokens | None = None, lists: Lists | None = None, results: Sequence[Observation] = (),
    ) -> None:  # fmt: skip
        self.waiting = phase.folds if waiting is None else waiting
        self.kept = kept or {}  # copies of what the folds that wait will read
        self.results = results
        self.failures: list[RuntimeFailure] = []  # what could not be computed, until it is reported
        self._phase = phase
        self._expected = expected
        self._functions = functions
        self._tokens = tokens
        self._lists = lists

    def next(self, names: Set[str]) -> Folds:
        """Those of the batch after one that had these ``names``: it waits for what that one had."""
        return Folds(self._phase, self._phase.reads & names, self._functions)

    def after(self, given: Observation, names: Set[str], streams: Streams) -> Folds:
        """With the values of a call, after which the batch has these ``names``; raises where tokens are not alike."""
        self._check(given)
        streams.join(self.kept.values())
        inputs = {**self.kept, **given.inputs} if self.kept else given.inputs
        return self._run(inputs, names, self._tokens or given.tokens, self._lists or given.lists)

    def at_last(self, names: Set[str]) -> Folds:
        """With all that came: what folds still wait for never comes."""
        return self._run(self.kept, names, self._tokens, self._lists, last=True)

    def _check(self, given: Observation) -> None:
        if given.tokens is not None and self._tokens is not None and given.tokens[0] != self._tokens[0]:
            raise of_other_tokens(self._tokens, given.tokens)
        if given.lists is not None and self._lists is not None and given.lists[0] != self._lists[0]:
            raise of_other_lists(self._lists, given.lists)
        name = self._phase.lengths
        if name is None:
            return
        lengths = given.inputs.get(name, self.kept.get(name))
        tokens = given.tokens or self._tokens
        if lengths is None or tokens is None or (name not in given.inputs and given.tokens is None):
            return
        if not lengths.is_cpu:
            return
        if len(odd := lengths[(lengths >= 0).logical_not()]):  # negative ones, and what is missing
            raise InputError.of("DL503.token_length", name=name, length=odd[0].item())
        if len(torch.nonzero(lengths.sum() - tokens[0][0])):
            raise InputError.of("DL503.token_count", name=tokens[1], count=tokens[0][0], lengths=int(lengths.sum()))

    def _run(
        self, inputs: Mapping[str, Tensor], names: Set[str], tokens: Tokens | None, lists: Lists | None, *,
        last: bool = False,
    ) -> Folds:  # fmt: skip
        """Fold what has all that it reads, or at the ``last`` what it gets; keep copies of what the others have."""
        lengths, reads = self._phase.lengths, self._phase.reads
        placed = self._expected <= names and tokens is not None and (lengths is None or lengths in inputs)
        ready, waiting = self.waiting, list[FoldOp]()
        if not last and not (placed and reads <= inputs.keys()):
            ready = []
            for op in self.waiting:
                (ready if placed and op.reads <= inputs.keys() else waiting).append(op)
        kept = {}
        if waiting:
            needed = {lengths, *(name for op in waiting for name in op.reads)}
            kept = {
                name: self.kept[name] if name in self.kept else value.clone()
                for name, value in inputs.items() if name in needed
            }  # fmt: skip
        folds = Folds(
            self._phase,
            self._expected,
            self._functions,
            waiting=waiting,
            kept=kept,
            tokens=tokens,
            lists=lists,
            results=self.results,
        )
        folds.failures = self.failures
        if ready and (known := self._known_tokens(inputs, tokens)) is not None:
            shape, _, device = known
            for value in inputs.values():  # a mask on the host is copied to the values on a GPU, and not they to it
                if value.is_cuda:
                    device = value.device if device.type != "cuda" else device
                    break
            folded = token_fold.run(ready, inputs, shape, device, lengths, self._functions)
            folds.results = [*self.results, self._columns(folded)]
            folds.failures = [*self.failures, *(self._failure(what, error) for what, error in folded.failed.values())]
        return folds

    def _columns(self, folded: token_fold.Folded) -> Observation:
        """What was folded, as a call that gave it: statistics are columns, a histogram is of the whole batch."""
        given, rows = Observation(self._phase, frozenset()), Axis.COMPLETION
        given.copies = [(Columns((rows.label, dtype, -1), rows, keys), sums) for dtype, keys, sums in folded.sums]
        for key, column in folded.columns.items():
            column = column.float() if column.dtype in HALF else column
            given.copies.append((Columns((rows.label, column.dtype, column.get_device()), rows, (key,)), column))
        texts = [(rows, folded.traces), (Axis.STEP, folded.sketches)]
        given.texts = {key: (axis, Pack(axis, [key], [data])) for axis, some in texts for key, data in some.items()}
        return given

    def _known_tokens(self, inputs: Mapping[str, Tensor], tokens: Tokens | None) -> Tokens | None:
        """Which tokens there are: as many as came, or, where none came, as the lengths say without a wait."""
        name = self._phase.lengths
        if name is None or (tokens is not None and name in inputs):
            return tokens
        if name in inputs and inputs[name].is_cpu:
            return torch.Size([int(inputs[name].sum())]), name, inputs[name].device
        return None

    def _failure(self, what: str, error: BaseException) -> RuntimeFailure:
        failure = RuntimeFailure.of("DL605.tokens", what=what, phase=self._phase.name, error=error_text(error))
        failure.__cause__ = error
        return failure
