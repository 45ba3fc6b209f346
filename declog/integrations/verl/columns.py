"""Reads the columns of a verl batch, a ``DataProto``, by verl's own names. Does not import torch.

Beside its tensor and other columns a batch has ``prompt_length`` and ``response_length`` per completion, as verl counts
them, and ``max_prompt_length`` and ``max_response_length`` per batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

VARIANCE = ("sum_pi_squared", "old_log_probs", "rollout_is_weights")  # inputs of verl's variance proxies
PADDING = "pad"  # begins the keys of the rows with which a v1 trainer fills up a batch
MASK = "response_mask"
LENGTHS = ("prompt_length", "response_length")


def tensors(batch: Any, needed: Set[str]) -> dict[str, Any]:
    """The needed columns that are tensors, [completions, tokens] or [completions], and the needed lengths.

    The mask is the first column, so that ``observe`` refuses a column of other tokens, and not the mask.
    """
    names = sorted(needed, key=MASK.__ne__)
    signals = {name: _padded(batch.batch[name]) for name in names if name in batch.batch.keys()}  # noqa: SIM118
    if MASK in signals:  # verl's mask may have another dtype
        signals[MASK] = signals[MASK].bool()
    widths = {"max_prompt_length": "prompts", "max_response_length": "responses"}
    signals |= {name: batch.batch[column].shape[-1] for name, column in widths.items() if name in needed}
    if not signals.keys() >= needed & set(LENGTHS):
        signals |= dict(zip(LENGTHS, lengths(batch), strict=True))
    return signals


def lengths(batch: Any) -> tuple[Any, Any]:
    """The number of tokens of each prompt and of each response, tokens of tools included."""
    if all(name in batch.batch.keys() for name in LENGTHS):  # noqa: SIM118
        return batch.batch["prompt_length"], batch.batch["response_length"]
    mask, width = batch.batch["attention_mask"], batch.batch["responses"].shape[-1]
    return mask[:, :-width].sum(-1), mask[:, -width:].sum(-1)


def others_of(batch: Any, needed: Set[str]) -> dict[str, list[Any]]:
    """The needed columns that are not tensors, one value per completion."""
    return {name: batch.non_tensor_batch[name].tolist() for name in needed if name in batch.non_tensor_batch}


class Stored:
    """The rows of a v1 trainer's batch in verl's TransferQueue; the batch for metrics has only some of their columns.

    ``get(select_fields=[name])`` reads another column. ``keys`` have the form ``{uid}_{session}_{index}``.
    """

    def __init__(self, keys: Sequence[str], get: Callable[..., Any], absent: set[str]) -> None:
        self._keys, self._get, self._absent = keys, get, absent

    def column(self, name: str, rows: int) -> Any:
        """A column of the batch's rows, as a tensor or a list; None if the store lacks it, or has other rows."""
        taken = [row for row, key in enumerate(self._keys) if not key.startswith(PADDING)]
        if len(taken) != rows:
            taken = list(range(len(self._keys)))
        if name in self._absent or len(taken) != rows:
            return None
        if name == "uid":
            return [self._keys[row].rsplit("_", 2)[0] for row in taken]
        column = self._read(name)
        if column is None:
            self._absent.add(name)
            return None
        return [column[row] for row in taken] if isinstance(column, list) else column[taken]

    def _read(self, name: str) -> Any:
        """A stored column, as a padded tensor or a list; else the extra values of rewards; None if neither exists."""
        try:
            column = self._get(select_fields=[name]).pop(name)
        except (ValueError, KeyError):
            return self._declared(name)
        return _padded(column) if hasattr(column, "is_nested") else column.tolist()

    def _declared(self, name: str) -> list[Any] | None:
        try:
            rows = self._get(select_fields=["extra_fields"]).pop("extra_fields").tolist()
        except (ValueError, KeyError):
            return None
        declared = [row.get("reward_extra_info", {}) if isinstance(row, Mapping) else {} for row in rows]
        return [row.get(name) for row in declared] if any(name in row for row in declared) else None


def _padded(column: Any) -> Any:
    """A column padded to one width; a v1 trainer removes the padding of responses."""
    return column.to_padded_tensor(0) if column.is_nested else column
