"""Fixes for subscripts and methods of Python, numpy and pandas: members, columns, positions and best scores."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from typing import Any

from declog.errors import Entry, Problem, elsewhere
from declog.language.dtypes import Axis, DType, Type
from declog.language.fixes import group_size, idioms
from declog.language.fixes.bitwise import in_words
from declog.language.fixes.earlier_steps import plain
from declog.language.fixes.library_calls import YOURS, is_of_matrix, is_of_module, naming, of_library, of_matrix
from declog.language.fixes.wrong_calls import Span, along, digitized, in_place, instead
from declog.language.nodes import Node
from declog.language.notation import is_reduction, reduced
from declog.language.parser import called, source_of, tree_of
from declog.language.scope import Scope

Tried = Callable[[str], Node | Problem]  # compiles another text, or returns its problem

_OF_FRAMES = re.compile(r"\.(?:i?loc|i?at|values)\Z")  # attributes of a frame that are subscripted in its place


def of_syntax(node: ast.expr, text: str, span: Span, tried: Tried, scope: Scope) -> tuple[str, str]:
    """The name of a Python construct that the language lacks, and the fix. ``span`` is its range in the text."""
    what, fix = idioms.of_syntax(node, text[slice(*span)])
    if not fix:
        return what, in_words(text, tried, of_rows=scope.noun == "signal")
    if (call := of_matrix(node)) is not None:
        number = of_library(called(call), call.args) or ast.unparse(call)
        fix = number if isinstance(number, Entry) or number.startswith(YOURS) else f"write `{number}`"
    elif isinstance(node, ast.Subscript) and not is_of_matrix(node):
        of_metric = _of_metric(node, text, span) if scope.noun == "metric" else None
        fix = of_metric or _of_mask(node, tried, scope) or _of_subscript(node, text, span, tried)
    if text.strip() == "None":
        return what, "`null`, or drop the key"
    if isinstance(node, ast.Attribute) and group_size.is_group_size(ast.unparse(node)):
        fix = f"write `{group_size.SIZE}`"
    return what, instead(text, span, fix)


def of_slash(node: ast.BinOp, text: str, span: Span) -> str:
    """The fix for a member of a family as trackers name it, ``rewards/format`` or ``rewards/format/mean``."""
    member, before = f"member({ast.unparse(node.left)}, {ast.unparse(node.right)!r})", text[: span[0]]
    behind = re.sub(r"\A/(?:mean|std)\b(?!\()", "", text[span[1] :])
    if not f"{before}{behind}".strip() and text[span[1] :].strip() == "/std":
        return Entry({"expr": member, "reduce": "std"})
    return f"write `{before}{member}{behind}`"


def of_method(node: ast.Call, text: str, span: Span, tried: Tried, noun: str) -> str:
    """The fix for ``x.f()``: a plain call; inside of an expression a call that names its axis."""
    if (fix := of_values(node, text, span, tried, noun)) is not None:
        return fix
    if _is_conversion(node) and isinstance(inner := node.func.value, ast.Call):  # type: ignore[attr-defined]
        node = inner  # x.max().item()
    body = tree_of(text.strip()).body
    is_part = ast.unparse(node) != ast.unparse(body)
    node = _WithAxes(tried).generic_visit(tree_of(ast.unparse(node)).body)  # type: ignore[assignment]
    plain_call = idioms.of_call(node)
    problem = tried(plain_call) if is_part else None
    if isinstance(problem, Problem) and problem.code == "DL306" and problem.fix is not None:
        entire = idioms.with_plain_calls(_WithAxes(tried).visit(body))
        return problem.fix if entire is None else f"write `{entire}`"
    return in_place(text, span, along(node, plain_call, tried) or plain_call)


def _is_conversion(node: ast.Call) -> bool:
    """Whether a call is ``x.float()`` or ``x.view(-1, 8)``, which have the values of ``x``."""
    name = node.func.attr if isinstance(node.func, ast.Attribute) and not is_of_module(node.func) else ""
    of_groups = name in ("view", "reshape") and list(map(ast.unparse, node.args))[:1] == ["-1"]
    return name in idioms.CONVERSIONS or of_groups


_ALONG = ("max", "min", "median")  # along an axis torch gives the values and their places


class _WithAxes(ast.NodeTransformer):
    """Rewrites ``x.sum(-1)`` as `sum(x, over=token)`, ``x.max(-1).values`` likewise, and ``x.float()`` as `x`.

    ``x.view(-1, 8)`` is `x`, too: the completions of a group are its rows.
    """

    def __init__(self, tried: Tried) -> None:
        self._tried = tried

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """Rewrite the calls inside of a call, then the call."""
        self.generic_visit(node)
        if not isinstance(node.func, ast.Attribute):
            return node
        if _is_conversion(node):
            return node.func.value
        text = along(node, idioms.of_call(node), self._tried)
        return node if text is None else tree_of(text).body

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """Rewrite the call in front of ``.values``, such as that of an extreme along an axis."""
        if node.attr != "values" or not isinstance(call := node.value, ast.Call):
            return self.generic_visit(node)
        if plain(call)[0] not in _ALONG:
            return self.visit(call)
        values = call.args[: is_of_module(call.func)]
        axes = [ast.keyword("dim", item) for item in call.args[len(values) :]]
        return self.visit(ast.Call(call.func, values, [*axes, *call.keywords]))

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        """Rewrite the call in front of ``[0]``, which torch gives for ``.values``."""
        call = node.value
        if isinstance(call, ast.Call) and plain(call)[0] in _ALONG and ast.unparse(node.slice) == "0":
            return self.visit(ast.Attribute(call, "values"))
        return self.generic_visit(node)


def _of_metric(node: ast.Subscript, text: str, span: Span) -> str | None:
    """The fix for ``reward[topic == 'math'] < 0.1`` of metrics: a metric of those rows. None for other subscripts."""
    if not isinstance(node.slice, ast.Compare | ast.BoolOp | ast.Call) or not isinstance(node.value, ast.Name):
        return None
    of, condition = node.value.id, ast.unparse(node.slice)
    name = "_".join([of, *re.findall(r"[a-z0-9_]+", condition.partition("=")[2].lower() or "chosen")])
    return naming({name: {"expr": of, "where": condition}}, f"{text[: span[0]]}{name}{text[span[1] :]}".strip())


def _of_mask(node: ast.Subscript, tried: Tried, scope: Scope) -> str | None:
    """The fix for a place in the mask of tokens: the lengths above it. None for slices and other signals.

    The last place holds a token where a completion fills the width, which the config does not know.
    """
    of, position = ast.unparse(node.value), ast.unparse(node.slice).rpartition(", ")[2].strip("()")
    if re.fullmatch(r"-?\d+", position) is None or tried(of) not in scope.token_mask:
        return None
    if position == "-1" and isinstance(tried("truncated"), Node):
        return "write `truncated`"
    from_end = position[0] == "-"
    width = ": it is of a width of 512 tokens, and yours may be another" * from_end
    return f"write `sum({of}, over=token) > {int(position) + 512 * from_end}`{width}"


def _of_subscript(node: ast.Subscript, text: str, span: Span, tried: Tried) -> str:
    """The fix for a subscript: a member of a family, a column, or the `where` of a metric; a mean for ``E[x]``."""
    of, inside = _OF_FRAMES.sub("", ast.unparse(node.value)), node.slice
    if of == "1":
        return f"write `{ast.unparse(inside)}`"
    if (best := _of_place(inside)) is not None:
        return _as_metric(of, best, text, span)
    parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
    if of == "E" or re.fullmatch(idioms.REDUCTIONS, of):
        return f"write `{'mean' if of == 'E' else of}({ast.unparse(inside)})`"
    if isinstance(parts[-1], ast.Constant) and isinstance(name := parts[-1].value, str):
        return f"write `{name}`" if _is_column(of, name, tried) else f"member({of}, {ast.unparse(parts[-1])})"
    if (
        isinstance(inside, ast.Name | ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Call)
        and _condition(inside, "") is None
    ):
        return _as_metric(of, ast.unparse(inside), text, span)
    if of == "outside" and len(parts) == 2:
        return f"write `{{below: {ast.unparse(parts[0])}, above: {ast.unparse(parts[1])}}}`"
    value = tried(of)
    type_ = value.type if isinstance(value, Node) else Type(DType.FLOAT)
    per_token = type_.axis is Axis.TOKEN
    axes = ["completion", "token"] if len(parts) == 2 and per_token else ["token" if per_token else "completion"]
    places = [_condition(part, axis) for part, axis in zip(parts[-len(axes) :], axes, strict=True)]
    if len(parts) > 2 or None in places or not any(places) or type_.family:
        return "a member of a family is member(family, 'name')"
    if len(places) == 2 and places[0]:  # a condition on tokens cannot read the position of a completion
        tokens = f"{of} if {places[1]} else missing" if places[1] else of
        metric = {"expr": f"mean({tokens}, over=token)", "reduce": "mean", "where": places[0]}
        return Entry(metric, "the mean of each completion's tokens has its place: `", "`")
    return _as_metric(of, " and ".join(filter(None, places)), text, span)


_BEST = elsewhere.meanings("best_of")


def of_values(call: ast.Call, text: str, span: Span, tried: Tried, noun: str) -> str | None:
    """The fix for a call of another library that depends on its arguments; None for any other call."""
    of_rows = noun == "signal"
    if (fix := digitized(call, tried) or (_of_type(call, tried) if of_rows else None)) is not None:
        return in_place(text, span, fix)
    return of_best(call, text, span) if of_rows else None


def _of_type(call: ast.Call, tried: Tried) -> str | None:
    """The fix for a call that depends on its value's type, such as ``value_counts(source)`` of a text, or None."""
    name, values = plain(call)
    name = "share" if any(word.arg == "normalize" for word in call.keywords) else name
    value = tried(ast.unparse(values[0])) if len(values) == 1 else None
    return of_library(f"{name}({value.type.dtype})", values) if isinstance(value, Node) else None


def of_best(call: ast.expr, text: str, span: Span) -> str | None:
    """The fix for the value of the completion with the best score of its group; None for any other call.

    It is written ``take(x, argmax(s))``, ``argmax(s, x)``, ``max_by(x, s)``, ``first(x, over=completion, by=-s)`` or
    ``max(x, key=s)``. ``argmax(s)`` alone is the place of that completion.
    """
    if not isinstance(call, ast.Call):
        return None
    name, values = plain(call)
    order = next((word for word in call.keywords if _BEST.get(str(word.arg)) == "order"), None)
    over = any(word.arg == "over" for word in call.keywords)
    match _BEST.get(name), values:
        case "take", [value, ast.Call() as place] if (best := _of_place(place)) is not None:
            pass
        case "place", [score, *further] if len(further) < 2:
            further = [] if further and isinstance(further[0], ast.Constant) else further  # numpy's axis
            value = further[0] if further else tree_of("index(completion)").body
            best = _of_place(ast.Call(call.func, [score], call.keywords))
        case "by", [value, score]:
            best = _of_score(score, "min" if re.search("min|worst", name) else "max")
        case _, [value] if (
            order is not None and (over or order.arg != "by") and name in ("first", "last", "min", "max")
        ):
            best = _of_score(order.value, {"first": "min", "last": "max"}.get(name, name))
        case _:
            return None
    return instead(text, span, _as_metric(ast.unparse(value), str(best), text, span))


def _of_place(node: ast.expr) -> str | None:
    """The condition for ``argmax(s)``, ``s.argmax()`` and ``np.argmin(s)``; None for any other expression."""
    name, values = plain(node) if isinstance(node, ast.Call) else ("", [])
    if _BEST.get(name) != "place" or not values:
        return None
    axes = [ast.unparse(word.value) for word in getattr(node, "keywords", ()) if word.arg == "over"]
    return _of_score(values[0], "min" if "min" in name else "max", *axes)


def _of_score(score: ast.expr, best: str, axis: str = "completion") -> str:
    """The condition that a score is the best of its group. The best of ``-s`` is the other end of ``s``."""
    if isinstance(score, ast.UnaryOp) and isinstance(score.op, ast.USub):
        return _of_score(score.operand, "min" if best == "max" else "max", axis)
    return f"{ast.unparse(score)} == {best}({ast.unparse(score)}, over={axis})"


def _is_column(of: str, name: str, tried: Tried) -> bool:
    """Whether ``of['name']`` means a signal ``name`` of a table ``of``: ``of`` is no value, and no misspelt family."""
    frame = tried(of)
    if isinstance(frame, Node) or not name.isidentifier():
        return False
    return isinstance(tried(name), Node) or frame.near is None


def _condition(part: ast.expr, axis: str) -> str | None:
    """The condition for a position, or a slice, along an axis; empty for a full slice. None for anything else."""
    if isinstance(part, ast.Constant) and part.value is ...:
        return ""
    if not isinstance(part, ast.Slice):
        at = _counted(part, axis)
        return None if at is None else f"index({axis}) == {at}"
    if part.lower is None and part.upper is None and part.step is not None:
        step = ast.unparse(part.step)
        return f"index({axis}) % {step} == 0" if step.isdigit() else None
    low, high = ("" if end is None else _counted(end, axis) for end in (part.lower, part.upper))
    if part.step is not None or low is None or high is None:
        return None
    if low and high:
        return f"{low} <= index({axis}) < {high}"
    return f"index({axis}) >= {low}" if low else f"index({axis}) < {high}" if high else ""


def _counted(end: ast.expr, axis: str) -> str | None:
    """A position counted from the first; a negative one becomes ``size(axis) - n``. None for anything else."""
    written = ast.unparse(end)
    return f"size({axis}) - {written[1:]}" if re.fullmatch(r"-\d+", written) else written if written.isdigit() else None


def _names(text: str) -> list[str]:
    """The names of an expression, each as often as it stands there."""
    return [node.id for node in ast.walk(tree_of(text)) if isinstance(node, ast.Name)]


def _as_metric(of: str, condition: str, text: str, span: Span) -> str:
    """The fix for a subscript with a condition: a metric with it as `where`, and the reduction around the subscript.

    Inside an aggregate or a formula, the values that are not chosen become missing.
    """
    lead = len(text) - len(text.lstrip())
    here, start = f"{text[lead : span[0]]}{of}{text[span[1] :]}".rstrip(), span[0] - lead
    around = [
        call
        for call in ast.walk(tree_of(here))
        if isinstance(call, ast.Call) and call.col_offset <= start < (call.end_col_offset or 0)
        if is_reduction(ast.unparse(call.func), len(call.args))
    ]
    call = here if not around else source_of(here, around[-1])
    keys = reduced(call) or {"expr": call}
    if around and ("reduce" not in keys or call != here):
        return f"write `({of} if {condition} else missing)`"
    of_place = of.startswith("index(") and text[: span[0]].rstrip().endswith("==")  # `score == argmax(score)`
    beside = len(_names(str(keys["expr"]))) > len(_names(of))  # values of all rows stand beside the chosen one
    if beside and not of_place and "==" in condition:
        axis = "token" if "(token)" in condition else "completion"
        return f"write `max({of} if {condition} else missing, over={axis})`"
    return Entry({**keys, "where": condition})
