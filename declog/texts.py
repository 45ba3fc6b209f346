"""Any value as text: JSON on one line, and what the messages of a conversation say. Standard library only."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

Message = Mapping[str, Any]


def json_text(value: Any) -> str:
    """Strictly valid JSON on one line: NaN and infinities are the strings ``NaN``, ``Infinity``, ``-Infinity``.

    Python's ``float()`` reads all three back. Integers keep every digit, text stays as it is.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)
    except ValueError:
        return json.dumps(strict(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=str)


def strict(value: Any) -> Any:
    """The same value with non-finite numbers as strings, at any depth."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    return value


def as_text(value: Any) -> str:
    """A text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json_text(value)


def said(value: Any) -> str:
    """The text of a value: what the messages of a conversation say, line by line; else the text itself, or its JSON."""
    return "\n".join(map(spoken, value)) if is_conversation(value) else as_text(value)


def is_conversation(value: Any) -> bool:
    """Whether a value is a list of messages: maps, each with a role."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, Mapping) and isinstance(item.get("role"), str) for item in value)
    )


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
