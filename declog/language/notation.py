"""Readers of the short forms in a config: they turn texts and lists into the keys that these stand for.

Examples: ``completion text`` of a signal, ``mean quantiles`` and ``p95(reward)`` of a metric, ``> 0.2 for 3`` of an
alert. The result is None for a text that is no such form.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from declog.errors import Path, Problem, UsageError, did_you_mean, elsewhere, in_flow
from declog.errors.elsewhere import SYNONYMS
from declog.language.dtypes import AXES, DType
from declog.language.parser import body_of, called, source_of
from declog.language.tree import map_at

TYPES = tuple(map(str, DType))
WORD = re.compile(r"[a-z_][a-z0-9_]*\Z")
_BOUND = re.compile(r"(?P<sign><=|>=|<|>|==|!=)\s*(?P<bound>\S+)\Z")
_LASTING = re.compile(r"\s+for\s+(\d+)(?:\s+(?:steps?|log events?|times))?\Z")
_BROKEN = ("nan", ".nan", "inf", "isnan", "is nan", "not finite", "nonfinite")
SEVERAL = {  # words for several reductions
    "quantiles": ("p05", "p25", "p50", "p75", "p95"),
    "summary": ("mean", "std", "min", "max"),
}
ALL_ROWS = ("*", "all", "all_rows", "any", "every", "everything", "false", "full", "no", "none", "null", "off", "true")
SIGNS = {"above": ">", "below": "<"}  # the keys for an alert's bounds
AXIS_KEYS = ("axes", "per", "shape", "dims", "dim", "dtype")  # keys of other libraries for a signal's axis and type
_ARRAYS = elsewhere.words("arrays")
# Other libraries' words for an axis. Such a word alone is no expression.
_AXIS_WORDS = {**elsewhere.meanings("axes"), **dict.fromkeys(_ARRAYS, "completion")}
PARTS = ("turn", "message", "call", "tool_call", "action")  # parts of a completion
_LENGTHS = elsewhere.meanings("lengths")  # words for the lengths of a shape


def signal_words(words: list[str], at: Path) -> dict[str, Any] | Problem | None:
    """The keys for ``completion text required`` or ``completion family``: an axis, and words about the values.

    Returns None for an expression, and a problem if a word is unknown.
    """
    plain = [word.rstrip("?") for word in words if word not in ("?", "optional")]
    if not plain or plain[0] not in AXES:
        return None
    if plain != words:
        return Problem.of("DL202.optional", at, words=" ".join(words), fix=" ".join(plain))
    signal: dict[str, Any] = {"axis": words[0]}
    for word in words[1:]:
        if word == "required":
            signal["required"] = True
        elif word == "family":
            signal["family"] = True
        elif word in TYPES and "type" not in signal:
            signal["type"] = word
        elif all(map(WORD.match, words)):
            fix = did_you_mean(word, [*TYPES, "family", "required"], what="words")
            return Problem.of("DL202.word", at, source=" ".join(words), word=word, fix=fix)
        else:
            return None  # an expression that begins with the name of an axis
    return signal


def signal_of(keys: Mapping[str, Any]) -> str:
    """The short form, or the keys, of a signal that is declared as in other libraries.

    An example is ``{shape: [batch, tokens], dtype: int64}``.
    """
    words = [word.lower() for key in (*AXIS_KEYS, "axis", "type") if key in keys for word in words_of(keys[key])]
    plain = [re.sub(r"\A(?:torch|np|numpy|pd|jnp)\.|\d+\Z", "", word) for word in words]
    axes = {word if word in AXES else _LENGTHS.get(word) or _AXIS_WORDS.get(word) for word in plain}
    axis = next((axis for axis in ("token", "completion", "group", "step") if axis in axes), "completion")
    types = [SYNONYMS.get(word, word) for word in plain if word not in _AXIS_WORDS]
    type_ = next((word for word in types if word in TYPES and word != "float"), "")
    rest = {
        key: value for key, value in keys.items() if key in ("family", "from", "help", "mask", "members", "required")
    }
    return in_flow({"axis": axis, **({"type": type_} if type_ else {}), **rest}) if rest else f"{axis} {type_}".strip()


def of_axes(name: str, value: Any, at: Path, signals: Collection[Any] = ()) -> str | None:
    """The fix for a signal with several axes, ``[completion, turn] float`` or ``B x T``: the finest axis alone.

    A part of a completion, such as a turn, becomes a row of a separate phase. Returns None for anything else, such as
    an expression.
    """
    keys = value if isinstance(value, Mapping) else {"axis": value}
    text = " ".join(str(keys[key]).lower() for key in ("axis", *AXIS_KEYS) if key in keys)
    words = re.findall(r"[a-z_]+", re.sub(r"\b(?:torch|np|numpy|pd|jnp)\.", "", text))
    axes = {word: _axis_of(word) for word in words} if re.fullmatch(r"[\w\s\[\](),*'\".]+", text) else {}
    named = {axis for axis in axes.values() if axis in (*AXES, *PARTS)}
    expression = text.strip()[:1] not in ("[", "(") and not {*axes}.isdisjoint({*signals} - {*AXES})
    if len(named) < 2 or None in axes.values() or expression:
        return None
    part = next((axis for axis in PARTS if axis in named), None)
    finest = next((axis for axis in ("token", "completion", "group") if axis in named), "completion")
    type_ = next((word for word in axes.values() if word in TYPES), None)
    rest = {key: item for key, item in keys.items() if key not in AXIS_KEYS}
    words_of_it = signal_of({**rest, "axis": finest, **({} if type_ is None else {"type": type_})})
    words_of_it += " float" if type_ == "float" and keys is not value else ""
    if part is None:
        edit = f"{name}: {words_of_it}"
        return edit if len(at) > 2 else f"signals: {{any: {{{edit}}}}}"
    number = "" if {part, f"{part}_index"} & {*signals, name} else f", {part}_index: completion int"
    return f"signals: {{{part}s: {{{name}: {words_of_it}{number}}}}}{OF_PARTS}"


OF_PARTS = ", a phase of its own: observe its rows with `row_id`, that of their completion"


def part_of(word: str) -> str | None:
    """The part of a completion whose name, in the singular or the plural, a word or a phase is; else None."""
    return part if (part := str(word).removesuffix("s")) in PARTS else None


def without_part(part: str, call: ast.Call, text: str, names: Iterable[str]) -> str:
    """The fix for ``index(turn)`` or ``sum(x, over=turn)``: a signal, of the part's rows or of each completion.

    A signal that is one of the ``names`` is declared already.
    """
    function = called(call)
    of_rows = function == "index" or any(keyword.arg == "within" for keyword in call.keywords)
    words = re.findall(r"[a-z]\w*", ast.unparse(call.args[0]) if call.args else "")
    name = "_".join([*(part if part_of(word) == part else word for word in words), function])
    here = text.replace(source_of(text, call), name).strip()
    declared = f"{name}: completion int" if function in ("index", "size") else f"{name}: completion"
    declared = f"{part}s: {{{declared}}}" if of_rows else f"any: {{{declared}}}"
    owner = part.replace("_", " ") if of_rows else "completion"
    return f"{'' if name in names else f'observe it of each {owner}: `signals: {{{declared}}}`, and '}write `{here}`"


def _axis_of(word: str) -> str | None:
    """The axis, the part of a completion or the type that a word of a shape means.

    Empty for a word without meaning, such as ``x``; None for an unknown word.
    """
    bare, type_ = word.removeprefix("per_"), SYNONYMS.get(word, word)
    part = part_of(bare)
    if bare in AXES or part is not None or type_ in TYPES:
        return bare if bare in AXES else part or type_
    return "" if word in ("x", *_ARRAYS) else _LENGTHS.get(bare) or _AXIS_WORDS.get(bare)


def takes_all(rows: Any) -> bool:
    """Whether a table's filter asks for all rows: ``*``, ``true``, ``[all]``. A bare word may name a filter instead."""
    word = rows[0] if isinstance(rows, list) and len(rows) == 1 else rows
    names_one = word is rows and isinstance(word, str) and WORD.match(word) is not None
    return not names_one and str(word).lower() in ALL_ROWS


def bounds(metric: str, alert: Mapping[str, Any]) -> str:
    """The condition that the bounds of an alert mean; empty if the alert has no bounds."""
    return " or ".join(f"{metric} {sign} {alert[key]}" for key, sign in SIGNS.items() if key in alert)


def both(condition: str, other: str) -> str:
    """The conjunction of two conditions."""
    return " and ".join(f"({one})" if re.search(r"\b(?:or|if)\b", one) else one for one in (condition, other))


def words_of(value: Any) -> list[str]:
    """The words of a text, or the items of a list as texts."""
    return [str(item) for item in value] if isinstance(value, list) else str(value).replace("per-", "per_").split()


def are_names(words: list[str]) -> bool:
    """Whether all words are names that a user chose: none is a word for an axis or a type."""
    return bool(words) and all(map(WORD.match, words)) and {*AXES, *TYPES, *_AXIS_WORDS}.isdisjoint(words)


def as_label(fix: str | None) -> str | None:
    """Change the fix that declares an unknown signal, for a signal whose values are labels: texts come first."""
    return _NUMBER.sub(r"\1 text}} for texts, `completion int` for numbers", fix or "") or None


_NUMBER = re.compile(r"(signals: \{any: \{\w+: completion)\}\} for numbers, .*")  # the fix that declares a signal


def of_parts(part: str, data: Mapping[str, Any]) -> dict[str, str]:
    """The signals that a config declares per ``part`` of a completion, such as a turn, redeclared per completion."""
    entries = [inner for inner in map_at(data, "signals").values() if isinstance(inner, Mapping)]
    declared = {str(name): str(value).split() for inner in entries for name, value in inner.items()}
    return {
        name: " ".join(["completion", *words[1:]])
        for name, words in declared.items()
        if part in PARTS and words[:1] == [part] and {*words[1:]} <= {*TYPES}
    }


def kind_of(word: str) -> str:
    """A word of a signal as the language has it: `int` for ``torch.int64`` and ``list[int]`` without its items."""
    word = re.sub(r"\A(?:torch|np|numpy|pd|jnp)\.|\[.*\]\Z", "", word).lower()
    return re.sub(r"\A(float|int|bool)\d+\Z", r"\1", word)


def with_axis(words: list[str]) -> str | None:
    """The words of a signal, completed by an axis if they name none or another library's. None for an expression."""
    array = re.fullmatch(r"(?:\w+\.)?([a-z]*)\d* *\[.*,.*\]", " ".join(words))  # `float32[batch, seq]`
    if array is not None:
        return f"token {array[1]}" if array[1] in TYPES else "token"
    words = [*map(kind_of, words)]
    words = [SYNONYMS[word] if SYNONYMS.get(word) in TYPES and word not in _AXIS_WORDS else word for word in words]
    if words[0] in _AXIS_WORDS:
        named = [_AXIS_WORDS[words[0]], *words[1:]]
    elif words[0] in TYPES or words[0] == "family":  # the axis follows later, or is missing
        axis = next((word for word in words if word in AXES), "completion")
        named = [axis, *(word for word in words if word != axis)]
    else:
        return of_prose(" ".join(words))
    readable = all(word in TYPES or word in ("required", "family") for word in named[1:])
    return " ".join(named) if readable else of_prose(" ".join(words))


_PROSE_TYPES = (  # words in descriptions, by the type that they mean
    ("text", "text texts string strings str name names label labels category title language"),
    ("int", "int integer integers"), ("bool", "bool boolean flag whether"),
)  # fmt: skip


def of_prose(text: str) -> str | None:
    """The words for a signal described in prose, `data set, one text per completion`. None for an expression."""
    words = re.findall(r"[a-z]\w*", text)
    if not words or re.search(r"[(\[{*/+<>=]", text) or body_of(text) is not None:
        return None
    counted = re.search(r"\b(?:per|each|every)[_ ](\w+)", text)
    said = [*([counted[1]] if counted else []), *words]
    named = [word for word in said if word in AXES] or [_AXIS_WORDS[word] for word in said if word in _AXIS_WORDS]
    types = [name for name, listed in _PROSE_TYPES if not set(words).isdisjoint(listed.split())]
    return " ".join([named[0] if named else "completion", *types[:1]])


def condition(text: str, metric: Any) -> dict[str, Any]:
    """The keys of an alert on ``metric`` for ``> 0.2 for 3``, ``nan``, or an expression."""
    lasting = _LASTING.search(text)
    for_ = {"for": int(lasting[1])} if lasting else {}
    text = text[: lasting.start()] if lasting else text
    if text.lower() in _BROKEN:
        return {"when": f"not isfinite({metric})", **for_}
    comparison = _BOUND.match(text)
    if comparison is None:
        return {"when": text, **for_}
    sign, bound = comparison["sign"], _number(comparison["bound"])
    if sign in "<>" and bound is not None:
        return {"above" if sign == ">" else "below": bound, **for_}
    return {"when": f"{metric} {sign} {comparison['bound']}", **for_}


def over_preset(name: str, alert: Any, below: Iterable[str]) -> Any:
    """An alert that keeps no key of a preset's alert, which has the keys ``below``: a text, or a map with nulls.

    A text, ``> 0.2 for 3``, replaces the preset's alert. An alert without a preset's stays; a number is an upper bound.
    """
    if not isinstance(alert, Mapping):
        return f"> {alert}" if isinstance(alert, int | float) and not isinstance(alert, bool) else alert
    further = dict.fromkeys(key for key in below if key not in alert)
    bounds = [key for key in alert if key != "for"]
    if not further or not bounds or not (bounds == ["when"] or {*bounds} <= {*SIGNS}):
        return {**alert, **further}
    metric = f"{name} " if len(bounds) > 1 else ""
    text = " or ".join(f"{metric}{SIGNS[key]} {alert[key]}" if key in SIGNS else str(alert[key]) for key in bounds)
    return f"{text} for {alert['for']}" if "for" in alert else text


def is_reduction(name: str, arity: int) -> bool:
    """Whether ``name`` is a reduction of ``arity`` expressions."""
    from declog.language.reductions import DEFAULT  # imports numpy, which composing alone does not need

    try:
        reduction = DEFAULT.named(name)
    except UsageError:  # two packages provide it
        return False
    return reduction is not None and reduction.arity == arity


def reduced(text: str) -> dict[str, Any] | None:
    """The `expr` and `reduce` for ``p95(reward)``; None for a text that is no call of a reduction."""
    text = text.strip()
    body = body_of(text)
    if not isinstance(body, ast.Call) or not (name := called(body)) or not body.args:
        return None
    if name in SEVERAL and len(body.args) == 1 and not body.keywords:
        return {"expr": source_of(text, body.args[0]), "reduce": list(SEVERAL[name])}
    if not is_reduction(name, len(body.args)):
        return None
    if any(item.arg in (None, "over", "within") for item in body.keywords):
        return None
    pieces = [source_of(text, item) for item in body.args]
    options = [source_of(text, item) for item in body.keywords]
    return {
        "expr": pieces[0] if len(pieces) == 1 else pieces,
        "reduce": f"{name}({', '.join(options)})" if options else name,
    }


def _number(text: str) -> float | int | None:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return None
