"""The catalogue of errors: every code, its page, and every text with its fix, one module per layer.

``Problem.of("DL302.signal", path, name="rewrad", known=signals)`` and ``InputError.of(...)`` read it, ``declog
explain`` prints it, and docs/errors.md is generated from it. A test compares the facts of every call with those of its
message.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

from declog.errors.catalogue import composition, inputs, language, outputs, plan, schema
from declog.errors.catalogue.code import Code, Message

CATALOGUE: Mapping[str, Code] = {
    **composition.CODES,
    **schema.CODES,
    **language.CODES,
    **plan.CODES,
    **inputs.CODES,
    **outputs.CODES,
}
CODES: Mapping[str, str] = {code: entry.title for code, entry in CATALOGUE.items()}
MESSAGES: Mapping[str, Message] = {key: text for entry in CATALOGUE.values() for key, text in entry.messages.items()}


def page(code: str) -> str:
    """The page of a code, in Markdown: title, cause, cure and an example; ``KeyError`` for what is no code."""
    entry = CATALOGUE[code]
    return f"# {code}: {entry.title}\n\n{inspect.cleandoc(entry.page)}\n"
