"""The exception tree. Every error has a code, a place, a cause and a fix.

Every layer can raise these errors: this package imports no other package of declog.

    DeclogError
     ├── ConfigError            the config is wrong; found before step 0, all problems at once
     │    ├── CompositionError  Hydra could not compose it
     │    └── PlanMismatchError ranks compiled different plans
     └── Coded                  one problem, found after that
          ├── InputError        the training code gave something the config does not allow
          │    ├── UnknownSignalError
          │    └── MissingSignalError
          ├── UsageError        the API was called in the wrong order
          └── RuntimeFailure    declog itself failed after step 0; reported, never raised into a step unless strict
               ├── SinkError
               └── CommError

Codes are grouped by layer: DL1xx composition, DL2xx schema, DL3xx language and types, DL4xx plan,
DL5xx input at run time, DL6xx sinks and ranks.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Self

from declog.errors.elsewhere import KNOWN, SYNONYMS, same_signal
from declog.errors.messages import filled, messages
from declog.errors.visible import blank, columns, visible, visible_lines, wrapped

Path = tuple[str | int, ...]

LAYERS = 3  # how many earlier layers an error names


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The known name that ``name`` means: that for a word of another library, or the closest; None if none is close."""
    name, names = str(name), list(candidates)
    synonym = SYNONYMS.get(name)
    for word in (synonym, SYNONYMS.get(str(synonym))):  # a condition is `where` of a metric, and `when` of an alert
        if word in names:
            return word
    if "p95" in names and (quantile := re.fullmatch(r"(?:percentile|quantile|perc|pct|q|p)_?([\doOlI]+)(?:th)?", name)):
        return _quantile(quantile[1].translate(str.maketrans("oOlI", "0011")))
    for word, meaning in (("sample", "completion"), ("all", "full")):  # filters and spans read these words otherwise
        if name == word and meaning in names:
            return meaning
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.85)
    if (tail := re.split("[/.]", name)[-1]) != name and tail in names and not near:  # `train/loss`, `Reduce.MEAN`
        return tail
    if (signal := same_signal(name, names)) is not None:
        return signal
    bare = re.sub(r"_(mean|avg|std|min|max|sum|p\d+)\Z", "", name)  # `kl_mean`
    if bare != name and bare in names and not near:
        return bare
    words = sorted(name.split("_"))
    if (turned := next((other for other in names if sorted(other.split("_")) == words), None)) not in (None, name):
        return turned  # `grpo_trl`
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    word = misspelt(name, close)
    if word is not None and SYNONYMS[word] in names:
        return SYNONYMS[word]
    if not close and name != name.lower():
        return nearest(name.lower(), names)
    return close[0] if close else None


def misspelt(name: str, names: Collection[str]) -> str | None:
    """The word of another library that a name misspells: `meadian` is `median`; None if one of ``names`` is closer."""
    words = [*names, *(word for word in SYNONYMS if len(word) > 4 and word != name)]
    close = difflib.get_close_matches(name, words, n=1, cutoff=0.85)
    return close[0] if close and close[0] in SYNONYMS and close[0] not in names else None


def _quantile(level: str) -> str:
    """The quantile that digits mean: 95 is `p95`. Above 100, digits that begin with 9 are `p99.9`, others are `p99`."""
    if int(level) <= 100:
        return f"p{level}"
    return f"p{float(f'{level[:2]}.{level[2:]}'):g}" if level[0] == "9" else "p99"


_SPECIAL = re.compile(r"[{}\[\],#&*!|>'\"%@`]|:(\s|$)|^-(\s|$)|^\?|^\s|\s$")


FLOW_MAP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"  # the pattern of a map in flow style, three levels deep


def in_flow(value: object, text: Callable[[str], str] | None = None) -> str:
    """A value in YAML's flow style; a text as ``text`` writes it, or in quotes only where YAML needs them."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {in_flow(item, text)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(in_flow(item, text) for item in value) + "]"
    if isinstance(value, str) and text is not None:
        return text(value)
    plain = isinstance(value, str) and value and not _SPECIAL.search(value)
    return str(value) if plain else json.dumps(value, ensure_ascii=False, default=str)


_SPECIAL_IN_FLOW = re.compile(r"[{}\[\],]|^[#&*!|>'\"%@`]|:(\s|$)|\s#|^[-?](\s|$)|^\s|\s$")


def _bare(text: str) -> str:
    """A text in flow style, in quotes only if YAML would read it as something else."""
    return text if text and not _SPECIAL_IN_FLOW.search(text) else json.dumps(text, ensure_ascii=False)


class Entry(str):
    """A fix that is a metric's entry in flow style, such as ``{expr: reward, by: source}``, with the words around it.

    ``keys`` are the keys of the entry with their values. A text made from an entry is a plain text.
    """

    keys: Mapping[str, Any]
    flow: str  # the entry without the words around it
    around: tuple[str, str]

    def __new__(cls, keys: Mapping[str, Any], before: str = "", behind: str = "", *, bare: bool = False) -> Self:
        flow = in_flow(keys, _bare if bare else None)
        entry = super().__new__(cls, f"{before}{flow}{behind}")
        entry.keys, entry.flow, entry.around = keys, flow, (before, behind)
        return entry


def nested(keys: Sequence[Any], value: Any) -> Any:
    """A value below some keys: a map for each of them."""
    for key in reversed(keys):
        value = {key: value}
    return value


_NEAR = re.compile(r"did you mean `([^`]+)`\?")  # the fix that ``did_you_mean`` writes for a name near to a known one


def did_you_mean(name: str, candidates: Iterable[str], *, what: str = "known names", otherwise: str = "") -> str:
    """A fix line for an unknown name: the nearest known one, or ``otherwise`` and the list of all.

    Of more than 20 names it shows those that other libraries know, too, before a config's own.
    """
    names = sorted(candidates)
    close = nearest(name, names)
    if close is not None:
        return f"did you mean `{close}`?"
    if not names:
        return otherwise or f"there are no {what} here"
    some = sorted(sorted(names, key=lambda name: name not in KNOWN)[:20])
    shown = f"{what}: {', '.join(some)}{', ...' * (len(names) > 20)}"
    return f"{otherwise}\n{shown}" if otherwise else f"one of the {shown}"  # alone it would read as a key


def rendered(key: str, facts: Mapping[str, Any]) -> tuple[str, str | None]:
    """The text and the fix of a message, filled with facts. The fix is None if the message has none, or the fact is."""
    message = messages(key[:5])[key]
    text, fix, things = (part and filled(part, facts) for part in (message.text, message.fix, message.nearest))
    if message.fix == "{fix}" and isinstance(facts["fix"], Entry | None):
        fix = facts["fix"]
    if things is not None:
        name = str(facts["name"])
        fix = did_you_mean(name, facts["known"], what=things, otherwise=fix if fix and name.isidentifier() else "")
    return str(text), fix


@dataclass(frozen=True)
class Excerpt:
    """A line to show, and the half-open range of it that is at fault. ``label`` is its line number."""

    label: str
    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Where:
    """The place of a problem: a line of a file, an override, or any other place by its ``name``.

    ``line`` and ``column`` count from 1. ``package`` is the package that ships the file, with its version. ``earlier``
    are the places that set the same key and lost, the latest first. ``related`` are the places of other keys that the
    message names.
    """

    file: str | None = None
    line: int | None = None
    column: int | None = None
    override: str | None = None
    name: str | None = None
    excerpt: Excerpt | None = None
    package: str | None = None
    earlier: tuple[Where, ...] = ()
    related: tuple[tuple[str, Where], ...] = ()

    def __str__(self) -> str:
        if self.file is not None:
            return f"{self.file}:{self.line}:{self.column}"
        return f"override '{self.override}'" if self.override is not None else str(self.name)


def keys(path: str | Path) -> Path:
    """The keys of a path that may be written as one dotted text."""
    return tuple(path.split(".")) if isinstance(path, str) else path


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a config.

    ``message_key`` is the key of its message, such as `DL403.metric`, and ``facts`` are those in the message; a message
    that comes from elsewhere has a code in place of the key. ``path`` is the key in the composed configuration, below
    the ``declog`` node. ``source`` is the scalar's own text, and ``span`` the half-open character range in it that is
    at fault, if it is known. ``where`` is the place in a file or an override, once it is located. ``related`` are other
    keys that belong to the problem. ``replacement`` is a word, and the word that may replace it without a change of
    meaning.
    """

    message_key: str
    message: str
    path: Path = ()
    fix: str | None = None
    source: str | None = None
    span: tuple[int, int] | None = None
    where: Where | None = None
    related: tuple[Path, ...] = ()
    replacement: tuple[str, str] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls,
        key: str,
        path: str | Path = (),
        /,
        *,
        source: str | None = None,
        span: tuple[int, int] | None = None,
        where: Where | None = None,
        related: tuple[Path, ...] = (),
        replacement: tuple[str, str] | None = None,
        **facts: Any,
    ) -> Problem:
        """A problem with the message ``key``, filled with ``facts``; ``path`` is a tuple of keys or one dotted text."""
        message, fix = rendered(key, facts)
        word, candidates = SYNONYMS.get(str(facts.get("name"))), facts.get("known")
        if replacement is None and word is not None and isinstance(candidates, Iterable) and word in list(candidates):
            replacement = (str(facts["name"]), word)
        return cls(key, message, keys(path), fix, source, span, where, related, replacement, facts)

    @property
    def code(self) -> str:
        """The code, `DL403`."""
        return self.message_key[:5]

    @property
    def near(self) -> str | None:
        """The name that the fix proposes in place of an unknown one, as ``did_you_mean`` does; None for another fix."""
        match = _NEAR.fullmatch(self.fix or "")
        return None if match is None else match[1]

    def saying(self, key: str, /, **facts: Any) -> Problem:
        """Another problem at the same place: with the message ``key`` and its fix."""
        location = {name: getattr(self, name) for name in ("source", "span", "where", "related")}
        return Problem.of(key, self.path, **location, **facts)

    @property
    def marked(self) -> str:
        """The part of the source that is at fault; empty if it is unknown."""
        return self.source[slice(*self.span)] if self.source is not None and self.span is not None else ""

    def at(self, *prefix: str | int) -> Problem:
        """The same problem with ``prefix`` put before its path."""
        return replace(self, path=(*prefix, *self.path))  # `related` are whole paths already

    @property
    def key(self) -> str:
        """The dotted path; empty for the config as a whole."""
        return ".".join(map(str, self.path))

    def text(self, *, colour: bool = False, width: int | None = None) -> str:
        """The problem as its reader sees it: code and place, cause, line with carets, earlier layers, fix.

        Words are wrapped to ``width`` columns, and long lines are cut around the marked part. Text to paste is neither
        wrapped nor cut.
        """
        paint = partial(_painted, colour)
        head = paint(RED, f"error[{self.code}]")
        lines = [f"{head} {paint('1', visible(self._head()))}".rstrip()]
        lines += [part for line in self.message.split("\n") for part in wrapped(f"  {visible(line)}", width)]
        where = self.where or Where()
        excerpt = self._own_excerpt() if self.where is None else where.excerpt
        if excerpt is not None:
            excerpt = _cut(excerpt, width)
            ranges = (slice(excerpt.start), slice(excerpt.start, excerpt.end), slice(excerpt.end, None))
            before, marked, after = (visible_lines(excerpt.text[part]) for part in ranges)
            label, bar = excerpt.label, " | " if excerpt.label else ""
            lines.append(f"    {paint('2', label + bar)}{before}{marked}{after}")
            if excerpt.start < excerpt.end:
                carets = paint(RED, "^" * max(1, columns(marked)))
                lines.append(f"    {paint('2', ' ' * len(label) + bar)}{blank(before)}{carets}")
        if where.package is not None:
            lines.append(f"  of: {visible(where.package)}")
        if where.earlier:
            places = [*map(str, where.earlier)]
            places[LAYERS:] = [f"{len(places) - LAYERS} more"] if len(places) > LAYERS else []
            lines += wrapped(f"  also set in: {visible(', '.join(places))}", width)
        lines += [f"  see: {visible(str(location))} ({visible(key)})" for key, location in where.related]
        if self.fix:
            said = _fix(visible_lines(self.fix)).split("\n")
            fix = [part for line in said for part in ([line] if _PASTED.search(line) else wrapped(line, width))]
            lines += [fix[0].replace("fix:", paint("32", "fix:"), 1), *fix[1:]]
        return "\n".join(lines)

    def _head(self) -> str:
        """The place, with the dotted path if neither the place nor the message has it; may be empty."""
        if self.where is None:
            return self.key
        shown = self.message if self.where.override is None else f"{self.message} {self.where.override}"
        return f"{self.where} in {self.key}" if self.key and self.key not in shown else str(self.where)

    def _own_excerpt(self) -> Excerpt | None:
        """The value itself as an excerpt, if no place is known."""
        text = self.source
        if text is None or not text.strip() or "\n" in text or len(text) > 400:
            return None
        start, end = self.span or (0, 0)
        return Excerpt("", text, start, max(end, start + 1) if self.span else 0)


_PASTED = re.compile(r"[={'\"]|\bwrite `")  # in a line of a fix that is text to paste


def _fix(text: str) -> str:
    """The lines of a fix, the later lines indented to the text of the first."""
    return f"  fix: {text}".replace("\n", "\n       ")


RED = "1;31"


def _painted(colour: bool, style: str, text: str) -> str:
    """A text in one of ANSI's colours, or as it is."""
    return f"\033[{style}m{text}\033[0m" if colour and text else text


def _cut(excerpt: Excerpt, width: int | None) -> Excerpt:
    """The excerpt, cut to ``width`` columns around its marked part."""
    room = 0 if width is None else width - 7 - len(excerpt.label)
    if width is None or len(excerpt.text) <= room:
        return excerpt
    end = min(excerpt.end, excerpt.start + room - 8)
    first = max(0, min(excerpt.start - 12, len(excerpt.text) - room + 4), end - room + 8)
    last = min(len(excerpt.text), first + room - (8 if first else 4))
    before, after = "... " if first else "", " ..." if last < len(excerpt.text) else ""
    moved = len(before) - first
    text = f"{before}{excerpt.text[first:last]}{after}"
    return Excerpt(excerpt.label, text, excerpt.start + moved, min(end, last) + moved)


class DeclogError(Exception):
    """Base of everything that declog raises on purpose. ``code`` is one of ``declog.errors.pages.CODES``."""

    code = "DL000"


class ConfigError(DeclogError):
    """The config is wrong. ``problems`` holds every mistake, with its place if that is known."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        if self.problems:
            self.code = self.problems[0].code
        super().__init__(self.text())

    def text(self, *, colour: bool = False, width: int | None = None) -> str:
        """All problems, an empty line between them."""
        return "\n\n".join(problem.text(colour=colour, width=width) for problem in self.problems)


class CompositionError(ConfigError):
    """Hydra could not compose the configuration."""


class PlanMismatchError(ConfigError):
    """Ranks compiled different plans."""


class Coded(DeclogError):
    """An error of one problem: its code, its message and, if there is one, its fix."""

    def __init__(self, code: str, message: str, fix: str | None = None) -> None:
        self.code = code
        self.message = message = visible_lines(message)
        self.fix = fix = None if fix is None else visible_lines(fix)
        super().__init__(f"[{code}] {message}" + (f"\n{_fix(fix)}" if fix else ""))

    @classmethod
    def of(cls, key: str, /, **facts: Any) -> Self:
        """An error in the words of its message."""
        return cls(key[:5], *rendered(key, facts))


class InputError(Coded):
    """The training code gave a value that the config does not allow."""


class UnknownSignalError(InputError):
    """The training code observed a name that the plan does not have."""


class MissingSignalError(InputError):
    """Required signals never came. ``signals`` are their names in the config."""

    signals: tuple[str, ...] = ()

    def at(self, rendered: str) -> MissingSignalError:
        """The same error with the place where the signal is declared."""
        located = MissingSignalError(self.code, self.message, self.fix)
        located.signals = self.signals
        located.args = (rendered,)
        return located


class UsageError(Coded):
    """The API was called in the wrong order."""


class RuntimeFailure(Coded):
    """declog itself failed after step 0. ``cause`` is the part of its message that failures of one cause share."""

    cause: str = ""


class SinkError(RuntimeFailure):
    """A sink could not be opened or written."""


class CommError(RuntimeFailure):
    """Ranks could not exchange their windows."""


def error_text(error: BaseException) -> str:
    """The text of an error: declog's own unchanged, any other with its type. It does not fail if ``__str__`` does."""
    try:
        return visible_lines(str(error) if isinstance(error, DeclogError) else f"{type(error).__name__}: {error}")
    except BaseException:  # noqa: BLE001  (code of a user's class)
        return f"{type(error).__name__}, which has no text: its __str__ fails"
