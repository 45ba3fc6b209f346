"""Conversations in ``object`` columns: lists of messages with a role, as chat templates and trainers have them.

Standard library and declog's contracts only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from declog.records import DType, Table
from declog.sinks._shared import json_text

Message = Mapping[str, Any]
ROLES = {"prompt": "user", "completion": "assistant"}


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages: maps, each with a role."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and isinstance(item.get("role"), str) for item in value)
    )


def spoken_columns(table: Table) -> Table | None:
    """The table with a role for each spoken column, if it has a prompt and a completion; else None.

    A spoken column has a ``role``, or it is a text with one of these two names.
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


def spoken(message: Message) -> str:
    """A message as text: its content and its tool calls."""
    texts = [_content(message.get("content")), *map(_tool_call, message.get("tool_calls") or ())]
    return "\n".join(filter(None, texts))


def _content(content: Any) -> str:
    """The content as text; parts that are not text are shown by their type."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return " ".join(_part(part) for part in content)
    return json_text(content)


def _part(part: Any) -> str:
    if isinstance(part, Mapping) and isinstance(part.get("text"), str):
        return str(part["text"])
    if isinstance(part, Mapping) and isinstance(part.get("type"), str):
        return f"[{part['type']}]"
    return json_text(part)


def _tool_call(call: Any) -> str:
    """A call in either usual form: ``{name, arguments}``, or the same below ``function``."""
    inner = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
        return json_text(call)
    arguments = inner.get("arguments", {})
    return f"→ {inner['name']}({arguments if isinstance(arguments, str) else json_text(arguments)})"
