r"""The regular expressions of ``matches`` and ``redact``, which search texts of a model in linear time.

Python's ``re`` may take practically forever for a pattern such as ``(\w+\s?)+$``, and holds the interpreter lock
meanwhile, so training would stand still. RE2 takes time in proportion to the text for every pattern, gives the same
answer on every machine, and lets other threads run. A time limit would make answers depend on a machine's load.

Python's parser reads a pattern, and this module writes it for RE2, with Python's letters, digits, blanks and cases
spelled out. So the pattern matches exactly where ``re`` does. Constructs without a linear search are refused:
lookaheads and lookbehinds, references to groups, possessive and atomic groups. ``\b`` and ``\B`` know ASCII letters
only.
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
MOST = 1000  # the most repetitions that RE2 accepts
CASED = 0x20000  # no character from here on has an upper or a lower case
NO_CHARACTER = r"[^\x{0}-\x{10FFFF}]"


class PatternError(ValueError):
    """A pattern that cannot be read, or not be searched in linear time: its text is the reason, ``fix`` the remedy."""

    def __init__(self, message: str, fix: str = "escape it as in Python's `re`") -> None:
        self.fix = fix
        super().__init__(message)


class Pattern:
    """A compiled pattern. All methods are safe on any thread."""

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
        """Whether the pattern matches anywhere in the text."""
        return self._compiled.search(text.encode("utf-8", "surrogatepass")) is not None

    def places(self, text: str) -> list[tuple[int, int]]:
        """The matches in the text as half-open ranges of characters."""
        matches = self._compiled.finditer(_encodable(text))
        return [(match.start(), match.end() - len("".join(filter(None, match.groups())))) for match in matches]

    def replaced(self, text: str, shown: str) -> str:
        """The text with ``shown`` in place of each match. A lone surrogate becomes U+FFFD."""
        text = _encodable(text)

        def replacement(match: Any) -> str:
            newline = "".join(filter(None, match.groups()))  # the line break that ends the text: `$` matches before it
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
    """Compile a pattern once per text. Raises ``PatternError``."""
    return Pattern(source)


def redacted(text: str, patterns: Iterable[tuple[str, str]]) -> str:
    """The text with ``[label]`` in place of each match, for every (label, pattern)."""
    for label, source in patterns:
        text = pattern(source).replaced(text, f"[{label}]")
    return text


# ---- from Python's syntax to RE2's


def translated(source: str) -> str:
    """Translate a pattern of Python's ``re`` for RE2. Raises ``PatternError``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # about sets that a later Python may read differently
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
        yield _item(kind, what, flags)


def _item(item: Any, what: Any, flags: int) -> str:
    kind = str(item)
    if kind in REFUSED:
        raise PatternError(f"{REFUSED[kind]} cannot be searched in linear time", FIX)
    match kind:
        case "LITERAL" if not flags & re.IGNORECASE or what >= CASED:
            return f"\\x{{{what:X}}}"
        case "LITERAL" | "NOT_LITERAL":
            return _set(item, what, flags)
        case "IN":
            return _set(item, tuple(what), flags)
        case "ANY":
            return "(?s:.)" if flags & re.DOTALL else r"[^\n]"
        case "AT" if str(what) == "AT_END":  # matches before a final line break, too; a group holds the line break
            return "(?m:$)" if flags & re.MULTILINE else r"(\n?)\z"
        case "AT":
            anchor = ANCHORS[str(what)]
            return f"(?m:{anchor})" if anchor == "^" and flags & re.MULTILINE else anchor
        case "BRANCH":
            return "(?:" + "|".join("".join(_sequence(list(branch), flags)) for branch in what[1]) + ")"
        case "SUBPATTERN":
            _, more, fewer, inside = what
            if more & (re.ASCII | re.UNICODE):
                flags &= ~(re.ASCII | re.UNICODE)
            return "(?:" + "".join(_sequence(list(inside), (flags | more) & ~fewer)) + ")"
        case "MAX_REPEAT" | "MIN_REPEAT":
            low, high, inside = what
            return _repeated("".join(_sequence(list(inside), flags)), low, high) + "?" * (kind == "MIN_REPEAT")
    raise PatternError(f"{kind.lower()} is not known")


def _repeated(inside: str, low: int, high: Any) -> str:
    endless = str(high) == "MAXREPEAT"
    if max(low, 0 if endless else high) > MOST:
        raise PatternError(f"it repeats something more than {MOST} times", "repeat it less often, or with `+`")
    return f"(?:{inside}){{{low},{'' if endless else high}}}"


@functools.lru_cache(maxsize=1024)
def _set(kind: Any, what: Any, flags: int) -> str:
    """The RE2 set of the characters that one item of a pattern matches in Python, found by a search with ``re``."""
    parser, compiler = (importlib.import_module(f"re.{name}") for name in ("_parser", "_compiler"))
    state = parser.State()
    state.flags, state.str = flags, ""
    one = parser.SubPattern(state, [(kind, list(what) if str(kind) == "IN" else what)])
    several = parser.SubPattern(state, [(parser.MAX_REPEAT, (1, parser.MAXREPEAT, one))])
    matches = compiler.compile(several, flags).finditer(_characters(str(kind) == "LITERAL"))
    ranges = "".join(f"\\x{{{match.start():X}}}-\\x{{{match.end() - 1:X}}}" for match in matches)
    return f"[{ranges}]" if ranges else NO_CHARACTER


@functools.cache
def _characters(with_cases: bool) -> str:
    """All characters, or only the range that may have an upper or a lower case."""
    return "".join(map(chr, range(CASED if with_cases else sys.maxunicode + 1)))
