"""Columns of ``log_extra``: checked where they are given, so that a wrong one is an error on its own line.

Plain data only: numbers, texts, None, and lists and maps of those, which are copied: what the training code does with
them later changes nothing. Imports errors, numpy, torch and the plan.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import numpy as np
import torch

from declog.errors import InputError
from declog.plan import Plan

log = logging.getLogger("declog")
_PLAIN = frozenset({str, int, float, bool, type(None)})


class Undeclared:
    """What the tables of a plan do with columns that no schema names."""

    def __init__(self, plan: Plan) -> None:
        columns = [(table.id, column) for table in plan.tables for column in table.columns]
        self._refusing = [table for table, column in columns if column.undeclared == "error"]
        self._kept = any(column.keeps for _, column in columns)
        self._told: set[str] = set()

    def wanted(self, column: Any) -> bool:
        """Whether a table keeps the column; ``InputError`` where one refuses it. What is dropped is said once."""
        if not isinstance(column, str) or not column:
            raise InputError("DL509", f"a column is named by text, and {column!r} came", "log_extra('name', values)")
        if self._refusing:
            raise InputError(
                "DL509",
                f"the table `{self._refusing[0]}` refuses undeclared columns, and `{column}` came",
                "declare it as a signal and in the schema, or `undeclared: keep`",
            )
        if not self._kept and column not in self._told:
            self._told.add(column)
            log.warning("the column `%s` is dropped: no active table keeps undeclared columns", column)
        return self._kept


def plain_column(column: str, values: Any) -> list[Any] | torch.Tensor:
    """The column as a list of plain data, one per completion; raises ``InputError`` DL509 for anything else.

    A tensor is copied where it is: reading its values here would wait for its device.
    """
    if isinstance(values, torch.Tensor) and values.ndim:
        kept = values.detach().clone()
        return kept.float() if kept.dtype in (torch.bfloat16, torch.float16) else kept
    if isinstance(values, str | bytes) or not (hasattr(values, "__len__") and hasattr(values, "__iter__")):
        raise InputError(
            "DL509",
            f"the column `{column}` needs one value per completion, and {type(values).__name__} came",
            "give a list",
        )
    plain = values.tolist() if hasattr(values, "tolist") else list(values)
    if not isinstance(plain, list):
        raise InputError("DL509", f"the column `{column}` needs one value per completion, and one value came", "a list")
    for place, item in enumerate(plain):
        if type(item) not in _PLAIN:
            try:
                plain[place] = plain_value(item)
            except ValueError as error:
                raise InputError(
                    "DL509",
                    f"the column `{column}` holds {type(item).__name__} at {place}, which no sink can write: {error}",
                    "give numbers, texts, or lists and maps of those",
                ) from error
    return plain


def plain_value(item: Any) -> Any:
    """A copy of a value as JSON holds it; raises ``ValueError`` where it cannot."""
    if isinstance(item, np.generic):
        return item.item()
    try:
        return json.loads(json.dumps(item))
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(str(error)) from error
