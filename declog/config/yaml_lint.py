"""Plain words that YAML 1.1 takes for other values: `on` is true, `010` is eight, `1:30` is ninety.

The words are those of PyYAML's resolvers; OmegaConf keeps them.
"""

from __future__ import annotations

import re

_BOOL = re.compile("(?:[Yy]es|YES|[Oo]n|ON)|(?P<no>[Nn]o|NO|[Oo]ff|OFF)")
_OCTAL = re.compile("[-+]?0[0-7_]+")
_SIXTIES = re.compile(r"(?P<sign>[-+]?)(?P<digits>[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)")


def surprise(word: str) -> tuple[str, str] | None:
    """The message and the fix for a plain scalar that YAML reads as another value; None for any other scalar."""
    if (match := _BOOL.fullmatch(word)) is not None:
        return f"`{word}` is {'false' if match['no'] else 'true'} in YAML", f"put it in quotes: '{word}'"
    if _OCTAL.fullmatch(word):
        number = int(word.replace("_", ""), 8)
        decimal = re.sub("^([-+]?)0+(?=.)", r"\1", word)
        return f"`{word}` is {number} in YAML: a zero in front makes it octal", f"{decimal}  or  {number}"
    if (match := _SIXTIES.fullmatch(word)) is not None:
        total = 0.0
        for part in match["digits"].replace("_", "").split(":"):
            total = 60 * total + float(part)
        shown = f"{match['sign'].strip('+')}{total:.12g}"
        return f"`{word}` is {shown} in YAML: a colon makes it a number of sixties", f"{shown}  or  '{word}'"
    return None


def suspicious(text: str) -> bool:
    """Whether a file may hold a number that YAML reads as another one, or a word such as `on` as a key."""
    return _SUSPICIOUS.search(text) is not None


_SUSPICIOUS = re.compile(
    r"(?:[:\-,\[{]\s+|[\[{])[-+]?(?:0[0-7_]+|[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?)\s*(?:[,\]}#]|$)"
    r"|(?:^|[{,])\s*(?:[Yy]es|YES|[Nn]o|NO|[Oo]n|ON|[Oo]ff|OFF)\s*:(?:\s|$)",
    re.MULTILINE,
)
