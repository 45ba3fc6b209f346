"""The messages of the error codes. Each code has a page, ``pages/DL403.md``, with its messages below the line ``---``:

    metric: the config logs nothing as `{name}`
      nearest: metrics
    module: `{kind}` names a module, and a config imports none
      fix: [tool.declog] imports = ["{module}"] in your pyproject.toml

``Problem.of("DL403.metric", path, name="rewrad", known=metrics)`` and ``InputError.of(...)`` read it. A text and a fix
may go on in lines that are indented by four. ``nearest: metrics`` makes a fix: the fact ``known`` lists metrics, and
the fix names the metric nearest to the fact ``name``, or lists all metrics below the written fix. A test compares the
facts of every call with those of its message.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PAGES = Path(__file__).parent / "pages"
SEPARATOR = "\n---\n"  # between a page and its messages
_FACT = re.compile(r"\{\{(?P<literal>\w+)\}\}|\{(?P<fact>\w+)(?P<quoted>!r)?\}")
_TEXT = r".+(?:\n    .+)*"
_MESSAGE = re.compile(rf"^(\w+): ({_TEXT})(?:\n  nearest: (.+))?(?:\n  fix: ({_TEXT}))?\n", re.MULTILINE)


@dataclass(frozen=True)
class Message:
    """A text with its fix; ``nearest`` is the word for the things that the fact ``known`` lists."""

    text: str
    fix: str | None = None
    nearest: str | None = None

    @property
    def facts(self) -> frozenset[str]:
        """The names of the facts that the message needs."""
        named = f"{{name}}{{known}}{self.nearest}" if self.nearest else ""
        return frozenset(match["fact"] for match in _FACT.finditer(f"{self.text}{self.fix}{named}") if match["fact"])


@cache
def messages(code: str) -> Mapping[str, Message]:
    """The messages of a code, by keys such as ``DL403.metric``."""
    below = (PAGES / f"{code}.md").read_text(encoding="utf-8").partition(SEPARATOR)[2]
    rows = (map(_unwrapped, row) for row in _MESSAGE.findall(below))
    return {f"{code}.{name}": Message(text, fix or None, things or None) for name, text, things, fix in rows}


def _unwrapped(text: str) -> str:
    return text.replace("\n    ", " ")


def filled(text: str, facts: Mapping[str, object]) -> str:
    """A text with its facts: ``{name}`` is a fact, ``{name!r}`` its repr and ``{{name}}`` the text ``{name}``.

    Other braces stay as they are.
    """

    def value(match: re.Match[str]) -> str:
        if match["literal"]:
            return f"{{{match['literal']}}}"
        return repr(facts[match["fact"]]) if match["quoted"] else format(facts[match["fact"]])

    return _FACT.sub(value, text)


def ordinal(number: int) -> str:
    """A number in an order: 2nd, 11th, 23rd."""
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th") if number % 100 // 10 != 1 else "th"
    return f"{number}{ending}"


def listed(names: Collection[str], most: int, last: str = "and") -> str:
    """A list of names in words; of too many, the first ``most`` and how many more there are."""
    shown = list(names)[: most if len(names) > most + 1 else most + 1]
    unnamed = len(names) - len(shown)
    if unnamed:
        return f"{', '.join(shown)} and {unnamed} more"
    return f" {last} ".join(filter(None, (", ".join(shown[:-1]), *shown[-1:])))
