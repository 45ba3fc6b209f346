"""Fixes for words of a command line that are no config, no override and no verb."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from declog.errors import did_you_mean
from declog.errors.elsewhere import attributes

CONDITION = r"([a-z_]\w*(?:\.\w+)+)\s*([<>]=?\s*\S+)"  # a condition of an alert
DASHES = ("\u2014", "\u2013")  # dashes that a word processor writes for `--`


def verb(word: str, verbs: Sequence[str]) -> str:
    """The fix for a first word that is no verb."""
    if word.endswith((".yaml", ".yml")) or "=" in word or Path(word).is_dir():
        return f"declog check {word}"
    if (meaning := attributes().get(f"verb.{word}")) is not None:
        return f"did you mean `{meaning}`?"
    from declog.config.compose import presets

    return f"declog check {word}" if word in presets() else did_you_mean(word, verbs, what="verbs")


def option(word: str, options: Sequence[str], words: Sequence[str]) -> str | None:
    """The fix for an unknown option; ``words`` is the command line."""
    if not word.startswith("-"):
        return None
    name, equals, _ = word.partition("=")
    begun = [item for item in options if item.startswith(f"--{name.lstrip('-')}")]
    if len(begun) == 1 and name.lstrip("-") and name not in options:
        return f"did you mean `{begun[0]}`?"
    if (meaning := attributes().get(f"flag.{name.lstrip('-')}")) is not None and name not in options:
        return meaning
    if equals and name.removeprefix("--") and ("." in name or name[2:] in ("every", "profile", "sinks")):
        return f"without dashes: {word.lstrip('-')}"
    if (key := _keys().get(name.lstrip("-").replace("-", "_"))) is not None and f"--{name.lstrip('-')}" not in options:
        rest = list(words)[list(words).index(word) + 1 :]
        value = rest[0] if rest and not rest[0].startswith("-") else "VALUE"
        return f"keys have no dashes: {key}={value}"
    return did_you_mean(name, options, what="options")


def override(word: str, words: Sequence[str]) -> str:
    """The fix for a word that is neither a config nor an override."""
    if not word.strip():
        return "leave the empty word out"
    if word[0] in DASHES:
        return f"--{word.lstrip(''.join(DASHES))}: an option begins with two plain dashes"
    at = list(words).index(word)
    if (joined := _joined(words, at)) is not None:
        return joined
    starts = [index for index in range(at) if _is_open(words[index])]
    if starts and (pieces := _until_closed(words[starts[0] :])):
        return f"put the whole override in single quotes: {shlex.quote(' '.join(pieces))}"
    if word in _keys():
        from declog.language.keys import SECTIONS

        value = words[at + 1] if at + 1 < len(words) and "=" not in words[at + 1] else "VALUE"
        if value != "VALUE" and word not in SECTIONS:
            return f"{_keys()[word]}={value}"
        changed = "" if word in SECTIONS else f"a key is changed by {_keys()[word]}={value}; "
        return f"{changed}`declog show {words[0]} --key {_keys()[word]}` shows it"
    if (condition := re.fullmatch(CONDITION, word)) is not None:
        return f"an alert's condition is its value: '{condition[1]}={condition[2]}'"
    earlier = [item for item in words[:at] if "=" in item]
    if earlier and "." not in word:
        return f"the config comes first: {' '.join([word, *(item for item in words if item != word)])}"
    if re.fullmatch(r"[\w]+(\.[\w]+)+", word):
        return f"a key is changed by {word}=VALUE; `declog show CONFIG --key {word}` shows it"
    shown = f"; `declog show {words[0]} --key metrics.{word}` shows a metric" if at and word.isidentifier() else ""
    return f"one config, then key=value, +key=value or ~key{shown}"


def _joined(words: Sequence[str], at: int) -> str | None:
    """The override for ``every: 2``, ``every = 2`` or ``every= 2`` at a word; a shell splits them at blanks."""
    from declog.config.overrides import pasted, with_equals

    behind = [words[start:] for start in (at - 1, at) if start >= 0]
    pieces = [[rest[:2], rest[:3], [*rest[:1], *_until_closed(rest[1:])]] for rest in behind]
    split = (" ".join(piece) for listed in pieces for piece in listed)
    texts = [words[at], *(text for text in split if re.match(r"\S+(?: [:=]|[:=] )", text) and not _is_open(text))]
    said = next(filter(None, map(with_equals, texts)), None)
    return None if said is None else pasted(said)


def _is_open(text: str) -> bool:
    """Whether a text opens more brackets than it closes."""
    return any(text.count(opening) > text.count(closing) for opening, closing in ("{}", "[]", "()"))


def _until_closed(words: Sequence[str]) -> Sequence[str]:
    """The words into which a shell has split one override at its blanks; all words if no bracket closes."""
    ends = (end for end in range(1, len(words) + 1) if not _is_open(" ".join(words[:end])))
    return words[: next(ends, len(words))]


def is_key(word: str) -> bool:
    """Whether a word is a key of a config, at the top or of `run`."""
    return word in _keys()


def _keys() -> Mapping[str, str]:
    """The full paths of the keys at the top and of those of `run`, by their last names."""
    from declog.language.keys import keys
    from declog.language.spec import LogSpec, RunSpec

    return {key: f"run.{key}" for key in keys(RunSpec)} | {key: key for key in keys(LogSpec)}
