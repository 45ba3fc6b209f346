"""Words of other libraries, in the files beside this one: synonyms, words, signals, values, calls, keys and attributes.

Names of signals are those of TRL, verl, OpenRLHF, torchtune, tinker, rl-games and papers. Each line of their file names
one signal. A name that a config does not have means the name on its line that the config has, in either direction:
this serves users who come from verl, and users who write for verl.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path


def _lines(file: str) -> list[str]:
    """The lines of a file beside this one, without its comments."""
    text = (Path(__file__).parent / file).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


SYNONYMS: Mapping[str, str] = {
    word: meaning
    for meaning, _, words in (line.partition(": ") for line in _lines("synonyms.txt"))
    for word in words.split()
}
_WORDS = {name: tuple(words.split()) for name, words in (line.split(": ") for line in _lines("words.txt"))}
SIGNALS = tuple(line.split() for line in _lines("signal_names.txt"))  # the names of one signal each
KNOWN = frozenset(names[0] for names in SIGNALS)  # in declog's words
_ALIKE = {name: names for names in SIGNALS for name in names}


def words(name: str) -> tuple[str, ...]:
    """The words of other tools for one thing, such as ``spans``."""
    return _WORDS[name]


def meanings(name: str) -> Mapping[str, str]:
    """The words of other tools for several things, each with what it means: `tokens` of ``axes`` is a token."""
    lines = {key.removeprefix(f"{name}."): words for key, words in _WORDS.items() if key.startswith(f"{name}.")}
    return {word: meaning for meaning, words in lines.items() for word in words}


@cache
def calls() -> Mapping[str, str]:
    """Calls of other libraries, such as ``where(c, a, b)``, and the same in declog's words."""
    return dict(line.split(": ", 1) for line in _lines("calls.txt"))


@cache
def values() -> Mapping[str, Sequence[str]]:
    """The expressions for values that other tools have by name: `log(ratio)` for ``logr``; the likeliest first."""
    expressions: dict[str, list[str]] = {}
    for line in _lines("values.txt"):
        expression, names = line.split(": ", 1)
        for name in names.split():
            expressions.setdefault(name, []).append(expression)
    return expressions


@cache
def keys() -> Mapping[str, str]:
    """Keys of other tools with their sections, such as ``tables.limit``, and what to write."""
    return _by_section("keys.txt")


@cache
def attributes() -> Mapping[str, str]:
    """Attributes of other loggers with the object that they belong to, such as ``run.history``, and what to write."""
    return _by_section("attributes.txt")


def _by_section(file: str) -> Mapping[str, str]:
    """The answers in a file, by section and word. A line may have several words; the first has the section."""
    lines = [line.split(": ", 1) for line in _lines(file)]
    heads = [(*words.rpartition("."), text) for words, text in lines]
    return {f"{section}{dot}{word}": text for section, dot, words, text in heads for word in words.split()}


def same_signal(name: str, names: Collection[str]) -> str | None:
    """The name in ``names`` of the signal that other libraries call ``name``; None if there is none.

    The last word of ``name`` may be their first one: `log_prob_old` is `old_log_prob`.
    """
    plain = name.lower().replace("-", "_")
    rest, _, last = plain.rpartition("_")
    alike = _ALIKE.get(plain) or _ALIKE.get(f"{last}_{rest}") or []
    return next((other for other in (plain, *alike) if other != name and other in names), None)
