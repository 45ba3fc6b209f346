"""A message of the catalogue: a text with its fix, and how both are filled with facts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """The fix of an unknown `{name}`: the nearest of the fact ``known``, or the list of them, with what they are.

    ``otherwise`` stands before that list: what to do where the name is a new one.
    """

    what: str
    otherwise: str = ""


# the way out where a config has no signal of a name, and none that is like it
DECLARE = "declare what you observe: signals: {any: {{name}: completion}} for numbers, `completion text` for texts"

Message = str | tuple[str, str | Known]  # a text, or a text and its fix
_FACT = re.compile(r"\{\{(?P<literal>\w+)\}\}|\{(?P<fact>\w+)(?P<quoted>!r)?\}")


def filled(text: str, facts: Mapping[str, object]) -> str:
    """A text with its facts: ``{name}`` is a fact, ``{name!r}`` its repr and ``{{name}}`` the text ``{name}``.

    Other braces are themselves.
    """

    def value(found: re.Match[str]) -> str:
        if found["literal"]:
            return f"{{{found['literal']}}}"
        return repr(facts[found["fact"]]) if found["quoted"] else format(facts[found["fact"]])

    return _FACT.sub(value, text)


def facts_of(message: Message) -> frozenset[str]:
    """The names of the facts that a message needs."""
    text, fix = (message, "") if isinstance(message, str) else message
    if isinstance(fix, Known):
        fix = f"{{name}}{{known}}{fix.what}{fix.otherwise}"
    return frozenset(found["fact"] for found in _FACT.finditer(text + fix) if found["fact"])
