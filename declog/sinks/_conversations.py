"""Conversations in ``object`` columns: lists of messages with a role, as chat templates and trainers have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from declog.records import DType, Message, Table, is_conversation

ROLES = {"prompt": "user", "completion": "assistant"}


def spoken_columns(table: Table) -> Table | None:
    """The table with a role for each spoken column, if it has a prompt and a completion; else None.

    A spoken column has a ``role``. If no column has one, the texts named ``prompt`` and ``completion`` are spoken.
    """
    roles = {column.name: column.role for column in table.columns if column.role is not None}
    if not roles:
        texts = {column.name for column in table.columns if column.type is DType.TEXT}
        roles = dict(ROLES) if {*ROLES} <= texts else {}
    if not {"user", "assistant"} <= {*roles.values()}:
        return None
    columns = tuple(replace(column, role=roles.get(column.name)) for column in table.columns)
    return replace(table, columns=columns)


def conversation(table: Table, row: int) -> tuple[list[Message], dict[str, Any]]:
    """A row's messages, column after column (a prompt, then a completion), and its other columns."""
    messages: list[Message] = []
    columns: dict[str, Any] = {}
    for column in table.columns:
        value = table.data[column.name][row]
        if column.type is DType.OBJECT and is_conversation(value):
            messages += value
        elif column.role is not None and value is not None:
            messages.append({"role": column.role, "content": value})
        else:
            columns[column.name] = value
    return messages, columns
