"""What an entry of the catalogue is, and how its texts are filled. Imports the standard library only."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Known:
    """The fix of an unknown `{name}`: the nearest of the fact ``known``, or the list of them, with what they are."""

    what: str


Message = str | tuple[str, str | Known]  # a text, or a text and its fix
_FACT = re.compile(r"\{\{(?P<literal>\w+)\}\}|\{(?P<fact>\w+)(?P<quoted>!r)?\}")


@dataclass(frozen=True)
class Code:
    """An error code: its title, what its page says in Markdown, with an example, and the messages it can have.

    A message's key is the code alone, where it has one, or the code and a name: ``DL302.signal``. In texts and fixes
    ``{name}`` is a fact, ``{name!r}`` its repr and ``{{name}}`` the text ``{name}``; other braces are themselves.
    """

    title: str
    page: str
    messages: Mapping[str, Message]


def filled(text: str, facts: Mapping[str, object]) -> str:
    """A text with its facts."""

    def value(found: re.Match[str]) -> str:
        if found["literal"]:
            return f"{{{found['literal']}}}"
        return repr(facts[found["fact"]]) if found["quoted"] else format(facts[found["fact"]])

    return _FACT.sub(value, text)


def facts_of(message: Message) -> frozenset[str]:
    """The names of the facts that a message needs."""
    text, fix = (message, "") if isinstance(message, str) else message
    if isinstance(fix, Known):
        fix = f"{{name}}{{known}}{fix.what}"
    return frozenset(found["fact"] for found in _FACT.finditer(text + fix) if found["fact"])
