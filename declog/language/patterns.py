r"""Regular expressions over texts that a model wrote, in linear time: those of ``matches`` and of ``redact``.

Python's ``re`` may need longer than the universe for a pattern such as ``(\w+\s?)+$`` and holds the interpreter
meanwhile, so that training stands still. RE2 takes time in proportion to the text, whatever the pattern, gives the same
answer on every machine, and lets other threads run; a limit of seconds would answer by how busy a machine is. A pattern
is read by Python's own parser and written for RE2, with Python's letters, digits, blanks and cases spelled out, so that
it matches exactly where ``re`` does. Constructs without a linear search are refused: lookaheads and lookbehinds,
references to groups, possessive and atomic groups. ``\b`` and ``\B`` know letters of ASCII only.
"""

from __future__ import annotations

import functools
import importlib
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

REFUSED = {
    "ASSERT": "a lookahead or lookbehind", "ASSERT_NOT": "a lookahead or lookbehind",
    "GROUPREF": "a reference to a group", "GROUPREF_EXISTS": "a reference to a group",
    "ATOMIC_GROUP": "an atomic group", "POSSESSIVE_REPEAT": "a possessive repetition",
}  # fmt: skip
FIX = "write it without; several `matches` go together with `and`, `or`, `not`"
ANCHORS = {
    "AT_BEGINNING": "^", "AT_BEGINNING_STRING": r"\A", "AT_END_STRING": r"\z", "AT_BOUNDARY": r"\b",
    "AT_NON_BOUNDARY": r"\B",
}  # fmt: skip
MOST = 1000  # repetitions that RE2 takes
LAST = sys.maxunicode
Ranges = list[tuple[int, int]]  # of code points, both ends included


class PatternError(ValueError):
    """A pattern that cannot be read, or not be searched in linear time; its text says why, ``fix`` what to do."""

    def __init__(self, message: str, fix: str = "escape it as in Python's `re`") -> None:
        self.fix = fix
        super().__init__(message)


class Pattern:
    """One pattern; both methods are safe on any thread."""

    def __init__(self, source: str) -> None:
        engine: Any = importlib.import_module("re2")
        options = engine.Options()
        options.log_errors = False
        try:
            self._compiled = engine.compile(translated(source), options)
        except engine.error as error:
            reason = error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)
            raise PatternError(f"it is too large: {reason}") from error

    def matches(self, text: str) -> bool:
        """Whether it matches anywhere in the text."""
        return self._compiled.search(text.encode("utf-8", "surrogatepass")) is not None

    def places(self, text: str) -> list[tuple[int, int]]:
        """Its matches: from which character until which."""
        matches = self._compiled.finditer(_encodable(text))
        return [(match.start(), match.end() - len("".join(filter(None, match.groups())))) for match in matches]

    def replaced(self, text: str, shown: str) -> str:
        """The text with ``shown`` in place of each match. A lone surrogate becomes U+FFFD."""
        text = _encodable(text)

        def replacement(match: Any) -> str:
            newline = "".join(filter(None, match.groups()))  # the last one, which `$` may stand before
            again = self._compiled.search(text, match.end() - 1) if newline else None
            matched = again is not None and again[0] == newline and not any(again.groups())
            return shown + (shown if matched else newline)

        return str(self._compiled.sub(replacement, text))


def _encodable(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", "�", text)
    return text


@functools.lru_cache(maxsize=1024)
def pattern(source: str) -> Pattern:
    """The pattern of this text, compiled once; raises ``PatternError``."""
    return Pattern(source)


def redacted(text: str, patterns: Iterable[tuple[str, str]]) -> str:
    """The text with ``[label]`` in place of each match, for every (label, pattern)."""
    for label, source in patterns:
        text = pattern(source).replaced(text, f"[{label}]")
    return text


# ---- from Python's syntax to RE2's


def translated(source: str) -> str:
    """The pattern as RE2 reads it; raises ``PatternError``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # of sets that some later Python may read otherwise
        try:
            flags = re.compile(source).flags
            tree = importlib.import_module("re._parser").parse(source)
        except (re.error, RecursionError, OverflowError) as error:
            raise PatternError(str(error)) from error
    try:
        return "".join(_sequence(list(tree), flags))
    except RecursionError as error:
        raise PatternError("its groups are nested too deeply") from error


def _sequence(items: list[Any], flags: int) -> Iterator[str]:
    for index, (kind, what) in enumerate(items):
        if str(kind) == "AT" and str(what) == "AT_END" and not flags & re.MULTILINE and index + 1 < len(items):
            raise PatternError(
                "`$` stands before the end of the pattern, where it cannot be found", "put `$` at the end"
            )
        yield _item(str(kind), what, flags)


def _item(kind: str, what: Any, flags: int) -> str:
    if kind in REFUSED:
        raise PatternError(f"{REFUSED[kind]} cannot be searched in linear time", FIX)
    match kind:
        case "LITERAL":
            return _set([(what, what)], flags)
        case "NOT_LITERAL":
            return _set([(what, what)], flags, negated=True)
        case "ANY":
            return "(?s:.)" if flags & re.DOTALL else r"[^\n]"
        case "IN":
            negated = bool(what) and str(what[0][0]) == "NEGATE"
            return _set(
                [part for one in what[negated:] for part in _ranges(one[0], one[1], flags)], flags, negated=negated
            )
        case "AT" if str(what) == "AT_END":  # also before a line break that ends the text, which is kept as a group
            return "(?m:$)" if flags & re.MULTILINE else r"(\n?)\z"
        case "AT":
            anchor = ANCHORS[str(what)]
            return f"(?m:{anchor})" if anchor == "^" and flags & re.MULTILINE else anchor
        case "BRANCH":
            return "(?:" + "|".join("".join(_sequence(list(branch), flags)) for branch in what[1]) + ")"
        case "SUBPATTERN":
            _, more, fewer, inside = what
            return "(?:" + "".join(_sequence(list(inside), (flags | more) & ~fewer)) + ")"
        case "MAX_REPEAT" | "MIN_REPEAT":
            low, high, inside = what
            return _repeated("".join(_sequence(list(inside), flags)), low, high) + "?" * (kind == "MIN_REPEAT")
    raise PatternError(f"{kind.lower()} is not known")


def _repeated(inside: str, low: int, high: Any) -> str:
    endless = str(high) == "MAXREPEAT"
    if max(low, 0 if endless else high) > MOST:
        raise PatternError(f"it repeats something more than {MOST} times", "repeat it less often, or with `+`")
    times = {(0, True): "*", (1, True): "+"}.get((low, endless)) or (f"{{{low},}}" if endless else f"{{{low},{high}}}")
    return f"(?:{inside}){times}"


def _ranges(kind: Any, what: Any, flags: int) -> Ranges:
    if str(kind) == "LITERAL":
        return [(what, what)]
    if str(kind) == "RANGE":
        return [(what[0], what[1])]
    name = str(what).removeprefix("CATEGORY_")  # of DIGIT, NOT_SPACE, ...
    ranges = _category(name.removeprefix("NOT_"), bool(flags & re.ASCII))
    return _complement(ranges) if name.startswith("NOT_") else ranges


def _set(ranges: Ranges, flags: int, *, negated: bool = False) -> str:
    if flags & re.IGNORECASE:
        ranges = ranges + [(char, char) for char in _cases(ranges, bool(flags & re.ASCII))]
    ranges = _complement(_joined(ranges)) if negated else _joined(ranges)
    if not ranges:
        return r"[^\x{0}-\x{10FFFF}]"
    return "[" + "".join(f"\\x{{{low:X}}}-\\x{{{high:X}}}" for low, high in ranges) + "]"


def _joined(ranges: Ranges) -> Ranges:
    joined: Ranges = []
    for low, high in sorted(ranges):
        if joined and low <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined


def _complement(ranges: Ranges) -> Ranges:
    starts, ends = [0, *(high + 1 for _, high in ranges)], [*(low - 1 for low, _ in ranges), LAST]
    return [(low, high) for low, high in zip(starts, ends, strict=True) if low <= high]


@functools.cache
def _category(name: str, ascii: bool) -> Ranges:
    """The characters of one of Python's classes."""
    some = re.compile({"DIGIT": r"\d+", "SPACE": r"\s+", "WORD": r"\w+"}[name], re.ASCII if ascii else 0)
    return [(match.start(), match.end() - 1) for match in some.finditer("".join(map(chr, range(LAST + 1))))]


@functools.cache
def _folded() -> dict[int, tuple[int, ...]]:
    """The characters that Python takes for one another where case does not matter, by each of them."""
    extra: dict[int, tuple[int, ...]] = importlib.import_module("re._casefix")._EXTRA_CASES
    by_lower: dict[int, list[int]] = {low: [low] for low in extra}
    for char in range(0x20000):  # beyond are no cases
        lower = chr(char).lower()
        if lower != chr(char):
            low = ord(lower[0])  # of U+0130, whose lower case is two characters, `re` takes the first
            by_lower.setdefault(low, [low]).append(char)
    alike = {low: tuple(c for one in (low, *extra.get(low, ())) for c in by_lower.get(one, ())) for low in by_lower}
    return {char: alike[low] for low, chars in by_lower.items() for char in chars}


def _cases(ranges: Ranges, ascii: bool) -> Iterator[int]:
    if ascii:
        for low, high in ranges:
            yield from (ord(chr(c).swapcase()) for c in range(low, min(high, 127) + 1) if chr(c).isalpha())
        return
    for char, alike in _folded().items():
        if any(low <= char <= high for low, high in ranges):
            yield from alike
