"""The texts in the cells of a table, and the names of columns of prompts, completions and scores."""

from __future__ import annotations

import re
from typing import Any

COMPLETION = re.compile(r"completion|response|answer|output", re.I)
PROMPT = re.compile(r"prompt|question|query|input", re.I)
SCORE = re.compile(r"reward|score", re.I)


def text_of(value: Any) -> str:
    """The texts of a value: the messages of a conversation, the joined pieces of tokens."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        if isinstance(value.get("tokens"), list):
            return "".join(map(str, value["tokens"]))
        if isinstance(value.get("text"), str):  # a part of a message
            return str(value["text"])
        return text_of(value["content"]) if "content" in value else " ".join(map(text_of, value.values()))
    if isinstance(value, list | tuple):
        return "\n".join(map(text_of, value))
    return "" if value is None else str(value)


def last_said(value: Any, role: str) -> str:
    """The last text of a role in a conversation, or else of any role but the system's; another value is one text."""
    if not (
        isinstance(value, list | tuple) and value and all(isinstance(one, dict) and "role" in one for one in value)
    ):
        return text_of(value)
    texts = [(one["role"], text_of(one.get("content"))) for one in value]
    said = [text for who, text in texts if who == role and text] or [text for who, text in texts if who != "system"]
    return said[-1] if said else ""
