"""Fixes for calls with wrong arguments: the same call with arguments that the function takes."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection

from declog.errors import Entry, Problem, did_you_mean, elsewhere
from declog.language import notation
from declog.language.dtypes import Axis, DType
from declog.language.fixes import bins, idioms, library_calls
from declog.language.functions import REQUIRED, Function
from declog.language.functions.text import bucket_labels
from declog.language.nodes import Node
from declog.language.parser import arguments, body_of, called, source_of, tree_of
from declog.language.reductions import Reduction
from declog.language.syntax import refuse

Span = tuple[int, int]  # a half-open range of characters

_EXAMPLES = {  # example arguments, by the parameter's name
    "within": "group", "first": "missing", "edges": "32, 64", "low": "0", "high": "1", "pattern": "'why'",
    "k": "4", "n": "2", "b": "1",
}  # fmt: skip


def completed(text: str, function: Function) -> str:
    """The fix for calls that miss arguments: the text, with examples behind the arguments of each such call."""
    return f"write `{ast.unparse(_Completed(function).visit(tree_of(text.strip())))}`"


class _Completed(ast.NodeTransformer):
    """Adds examples for the missing arguments of a function to each call of it."""

    def __init__(self, function: Function) -> None:
        self._function = function

    def visit_Call(self, node: ast.Call) -> ast.expr:
        """The call with the arguments that it misses, by name if it has other named arguments."""
        self.generic_visit(node)
        said = {item.arg for item in node.keywords}
        slots = self._function.params[len(node.args) :] if called(node) == self._function.name else []
        missing = [slot for slot in slots if slot.default is REQUIRED and slot.name not in said]
        if any(slot.variadic for slot in missing):  # their values have no names
            node, said = ast.Call(node.func, arguments(node), []), set()
        named = (f"{slot.name}=" if said or slot.role == "axis" else "" for slot in missing)
        further = [f"{name}{_EXAMPLES.get(slot.name, slot.name)}" for name, slot in zip(named, missing, strict=True)]
        written = ast.unparse(node).removesuffix(")") + ", " * bool(said or node.args)
        return body_of(f"{written}{', '.join(further)})") or node if missing else node


def swapped(call: ast.Call, function: Function) -> str:
    """The fix for ``pass_at(2, x > 0)``: the arguments in the other order. Any other call gets its signature."""
    if len(call.args) != 2 or call.keywords or not isinstance(call.args[0], ast.Constant):
        return function.signature
    return f"write `{function.name}({', '.join(map(ast.unparse, call.args[::-1]))})`"


def by_name(reduction: Reduction, call: ast.Call, arity: int) -> ast.Call:
    """Name the constants of ``top_mean(x, 0.1)`` and ``histogram(x, 10, 0, 1)``, which follow ``arity`` values.

    Any other call stays as it is.
    """
    further, params = call.args[arity:], [*(reduction.params or {})]
    if len(further) > len(params) or any(isinstance(item, ast.Name) for item in further):
        return call
    constants = [ast.keyword(*pair) for pair in zip(params, further, strict=False)]
    named = ast.Call(call.func, call.args[:arity], [*constants, *call.keywords])
    named = bins.named(call, arity) if reduction.histogram else named
    said, right = (sorted(map(ast.unparse, [*one.args, *one.keywords])) for one in (call, named))
    return call if said == right else named


def without(call: ast.Call, keyword: ast.keyword) -> str:
    """Remove a named argument from a call. Removing ``ddof=0`` turns `std` into `pstd`, and `var` into its square."""
    func, name = call.func, ast.unparse(call.func)
    of_all = keyword.arg in ("ddof", "correction", "unbiased") and ast.unparse(keyword.value) in ("0", "False")
    if of_all and name in ("std", "var") and call.args:
        func = ast.Name("pstd")
    rest = ast.unparse(ast.Call(func, call.args, [item for item in call.keywords if item is not keyword]))
    return f"square({rest})" if func is not call.func and name == "var" else rest


def of_rows(call: ast.Call, keyword: ast.keyword) -> str | None:
    """Rewrite ``max(x, over=completion, where=c)`` as `max(x if c else missing, over=completion)`; None for others."""
    if "where" not in (keyword.arg, elsewhere.SYNONYMS.get(str(keyword.arg))) or len(call.args) != 1:
        return None
    rest = [item for item in call.keywords if item is not keyword]
    return of_chosen(ast.Call(call.func, call.args, rest), keyword.value)


def of_chosen(call: ast.Call, condition: ast.expr) -> str:
    """Rewrite ``max(x)`` as `max(x if c else missing)`, a call whose only value counts where a condition holds."""
    (value,) = call.args
    return ast.unparse(ast.Call(call.func, [ast.IfExp(condition, value, ast.Name("missing"))], call.keywords))


def along(call: ast.Call, plain: str, tried: Callable[[str], Node | Problem]) -> str | None:
    """The fix for a reduction of the last axis, ``max(x, axis=1)`` or ``mean(x, -1)``; None for another call.

    The last axis has the tokens of a completion, or the completions of a group. ``plain`` is the call without the axis.
    """
    said = [ast.unparse(item.value) for item in call.keywords if item.arg in idioms.AXES]
    if ast.unparse(call.func).rpartition(".")[2] in library_calls.AGGREGATES:
        said += map(ast.unparse, call.args[-1:])
    if not plain.endswith(")") or {"1", "-1"}.isdisjoint(said):
        return None
    aggregates = (f"{plain[:-1]}, over={axis})" for axis in ("token", "completion"))
    return next((text for text in aggregates if isinstance(tried(text), Node)), None)


def of_axes(call: ast.Call, axes: ast.expr, text: str, span: Span, names: Collection[str]) -> str | None:
    """The fix for ``mean(x, over=[token, completion])``: the call of all values, or along the list's only axis.

    For anything else that is no axis, it gives the ``names`` of axes.
    """
    if not (items := idioms.items(axes)) or items == [axes]:
        return did_you_mean("", names, what="axes")
    over = [ast.keyword("over", items[0])] * (len(items) == 1)
    rest = [item for item in call.keywords if item.value is not axes]
    return instead(text, span, f"write `{ast.unparse(ast.Call(call.func, call.args, [*rest, *over]))}`")


def with_axis(call: ast.Call, keyword: ast.keyword, *, of_tokens: bool, ranked: bool) -> str:
    """The call with an axis of the language for ``axis=0``; with ``within`` if it is ``ranked`` and has no ``over``."""
    inside = ", ".join(map(ast.unparse, call.args)) or "x"
    if not ranked:
        return f"{ast.unparse(call.func)}({inside}, over={'token' if of_tokens else 'completion'})"
    inside = f"mean({inside}, over=token)" if of_tokens else inside
    within = "step" if ast.unparse(keyword.value).strip("'") in ("step", "batch", "window", "run") else "group"
    return f"{ast.unparse(call.func)}({inside}, within={within})"


def of_list(call: ast.Call, text: str, span: Span, tried: Callable[[str], Node | Problem]) -> str | None:
    """The fix for a list among a call's arguments: its items as arguments, or one call for each item. None without one.

    ``span`` is the range of the call in the text. ``tried`` compiles another text, or returns its problem.
    """
    axes = [item.value for item in call.keywords if item.arg in ("over", "within")]
    lists = (item for item in arguments(call) if isinstance(item, ast.List | ast.Tuple | ast.Set) and item not in axes)
    listed = next((item for item in lists if item.elts), None)
    if listed is None:
        return None

    def compiles(text: str) -> bool:
        node = tried(text)
        return isinstance(node, Node) or node.code == "DL310"  # DL310: labels of tokens are valid in other places

    if compiles(spread := _spread(call, listed)):
        fix = instead(text, span, f"write `{spread}`")
        counted = digitized(call, tried) if ast.unparse(call.func) == "bucket" else None
        numpy = "" if counted is None else instead(text, span, counted).removeprefix("write ")
        return (
            f"{fix}, if an edge is of the bucket below; of the one above, as np.digitize has it: {numpy}"
            if numpy
            else fix
        )
    calls = [_with_argument(call, listed, item) for item in listed.elts]
    if not all(isinstance(item, ast.Constant) for item in listed.elts) or not all(map(compiles, calls)):
        return None
    if ast.unparse(call.func) in _OF_TEXTS:
        return instead(text, span, f"write `{' or '.join(calls)}`")
    return f"{instead(text, span, f'write `{calls[0]}`')}, and an entry like it for each further value"


def digitized(call: ast.Call, tried: Callable[[str], Node | Problem]) -> str | None:
    """The fix for ``digitize(x, [10, 20])``: labels of the same rows; None for another call.

    In ``digitize`` an edge belongs to the bucket above it. For ints, an edge smaller by 1 means the same in `bucket`.
    """
    if ast.unparse(call.func).rpartition(".")[2] not in ("digitize", "bucket"):
        return None
    further = [*call.args[1:], *(item.value for item in call.keywords if item.arg in ("bins", "edges"))]
    numbers = idioms.items(further[0]) if call.args and len(further) == 1 else []
    edges = [item.value for item in numbers if isinstance(item, ast.Constant) and isinstance(item.value, int | float)]
    right = [ast.unparse(item.value) == "True" for item in call.keywords if item.arg == "right"]
    node = tried(ast.unparse(call.args[0])) if edges else None
    if len(edges) < len(numbers) or not isinstance(node, Node):
        return None
    if any(right):
        return f"write `bucket({node}, {', '.join(map(str, edges))})`"
    if node.type.dtype is DType.INT and all(isinstance(edge, int) for edge in edges):
        return f"write `bucket({node}, {', '.join(str(edge - 1) for edge in edges)})`"
    above = [ast.unparse(ast.Compare(call.args[0], [ast.GtE()], [ast.Constant(edge)])) for edge in edges]
    return f"write `{' + '.join(f'(1 if {condition} else 0)' for condition in above)}`"


def refuse_quantile(call: ast.Call, text: str, span: Span, value: Node, *, groups: bool) -> None:
    """Refuse the quantile in ``length > p90(length)``, with an edit that has it beside each row or token.

    ``value`` is the typed argument. ``groups`` says whether the config has groups.
    """
    axis = value.type.axis
    if axis is Axis.TOKEN:
        refuse("DL303.tokens", text, span, name=called(call), fix=library_calls.of_tokens(call, text, value))
    if axis is Axis.COMPLETION:
        refuse("DL303.rows", text, span, name=called(call), fix=library_calls.of_rows(call, text, groups=groups))


def edges(function: str, fix: str) -> str:
    """A note on the labels that the edges of `bucket` in a fix make; empty for another function."""
    call = re.search(r"bucket\([^`]*\)", fix) if function == "bucket" else None
    body = None if call is None else tree_of(call[0]).body
    arguments = body.args if isinstance(body, ast.Call) else []
    numbers = [one.value for one in arguments if isinstance(one, ast.Constant) and isinstance(one.value, int | float)]
    return f"; an edge belongs to the bucket below it: {', '.join(bucket_labels(numbers))}" if numbers else ""


_OF_TEXTS = ("contains", "startswith", "endswith", "matches")


def _with_argument(call: ast.Call, listed: ast.expr, item: ast.expr) -> str:
    """A call with one item in place of the list."""
    named = [ast.keyword(word.arg, item if word.value is listed else word.value) for word in call.keywords]
    return ast.unparse(ast.Call(call.func, [item if value is listed else value for value in call.args], named))


def _spread(call: ast.Call, listed: ast.List | ast.Tuple | ast.Set) -> str:
    """A call such as ``bucket(length, [32, 64])`` with the items of the list as arguments."""
    rest = [item for item in call.keywords if item.value is not listed]
    of_keyword = [listed] if len(rest) < len(call.keywords) else []
    arguments = [part for item in [*call.args, *of_keyword] for part in idioms.items(item)]
    return ast.unparse(ast.Call(call.func, arguments, rest))


def instead(text: str, span: Span, fix: str) -> str:
    """Complete a fix for a part of an expression, "write `...`", to the whole expression. Any other fix stays."""
    written = re.fullmatch(r"write `([^`]+)`((?:, of |: it is ).+)?", fix)
    body = None if written is None else body_of(written[1])
    if written is None or body is None:
        return fix
    before, behind = text[: span[0]], text[span[1] :]
    alone = not f"{before}{behind}".strip() or (re.search(r"[(,]\s*\Z", before) and re.match(r"\s*[),]", behind))
    operation = isinstance(body, ast.BinOp | ast.BoolOp | ast.Compare | ast.IfExp | ast.UnaryOp) and not alone
    return f"write `{before}{f'({written[1]})' if operation else written[1]}{behind}`{written[2] or ''}"


def part_in_rows(axis: str, call: ast.Call, text: str, tried: Callable[[str], Node | Problem]) -> str | None:
    """The part of a completion, a turn, whose rows ``count(x, over=row_id)`` reduces; None for any other call."""
    value = tried(source_of(text, call.args[0])) if axis in _OF_ROWS and call.args else None
    return notation.part_of(str(value.type.phase)) if isinstance(value, Node) else None


_OF_ROWS = ("row", "rows", "row_id", "episode", "episode_id", "trajectory", "conversation", "rollout", "sample")


def over_everywhere(fix: str, span: Span, tried: Callable[[str], Node | Problem]) -> str:
    """The fix for an aggregate without `over`, which gives its axis to all further aggregates that have none."""
    written = re.fullmatch(r"write `(.+)`(, of .+)", fix)
    problem = None if written is None else tried(written[1])
    if written is None or not isinstance(problem, Problem) or problem.message_key != "DL306.needs_over":
        return fix
    is_behind = problem.span is not None and problem.span[0] > span[0]  # and not around the aggregate
    return problem.fix if is_behind and problem.fix is not None and problem.fix.endswith(written[2]) else fix


def in_place(text: str, span: Span, fix: str) -> str:
    """Complete a fix for a part of an expression, such as ``sqrt(x)``, to the whole expression around it.

    A metric inside of more than a reduction is a metric of its own. Any other fix stays.
    """
    around = f"{text[: span[0]]}{text[span[1] :]}".strip()
    if isinstance(fix, Entry):
        alone = re.fullmatch(r"(\w+\(\))?", around) or library_calls.is_rate(fix) or fix != fix.flow
        return fix if alone else Entry(fix.keys, "a metric of its own, which a `formula:` reads: `", "`")
    return instead(text, span, f"write `{fix}`") if around and body_of(fix) is not None else fix


_ABSENT = frozenset({"none", "null", "nan", "nil"})  # words for no value


def of_none(node: ast.Compare, text: str, span: Span, noun: str) -> tuple[str, str | None]:
    """One side of a comparison, and the fix if that side is a word for no value.

    ``x is None`` becomes `not present(x)`, and ``x == nan`` becomes `isnan(x)`. In expressions over signals `missing`
    is a value.
    """
    words = _ABSENT if noun == "signal" else {*_ABSENT, "missing", "absent"}
    value, last = node.left, node.comparators[-1]
    if ast.unparse(value).lower() in words:
        value, last = last, value
    word = ast.unparse(last)
    if len(node.ops) > 1 or word.lower() not in words:
        return word, None
    there = isinstance(node.ops[0], ast.IsNot | ast.NotEq)
    function = "isnan" if word.lower() == "nan" else "present"
    fix = f"write `{'not ' * (there == (function == 'isnan'))}{function}({ast.unparse(value)})`"
    return word, instead(text, span, fix)


def of_prompt(text: str, axis: Span, call: Span, tried: Callable[[str], Node | Problem], within: bool) -> str:
    """The fix for ``over=prompt``: the completions of each group, after their tokens. A rank is within a group.

    ``axis`` and ``call`` are ranges in the text; ``tried`` compiles another text, or returns its problem.
    """
    here = f"{text[: axis[0]]}{'group' if within else 'completion'}{text[axis[1] :]}"
    of_group = re.search("`([^`]+)`, of those one per group", str(getattr(tried(here), "fix", "")))
    return instead(text, call, f"write `{of_group[1]}`") if of_group else f"write `{here}`"


def in_quotes(node: ast.expr, words: list[ast.expr], text: str, span: Callable[[ast.expr], Span]) -> str:
    """A comparison or a call with its words in quotes. A word in place of a list becomes a list of one text."""
    membership = isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn)
    listed = node.comparators[0] if isinstance(node, ast.Compare) and membership else None
    start, end = span(node)
    fix = text[:end]
    for word in sorted(words, key=span, reverse=True):
        first, last = span(word)
        fix = fix[:first] + (f"['{fix[first:last]}']" if word is listed else f"'{fix[first:last]}'") + fix[last:]
    return fix[start:]


def is_value(node: ast.expr) -> bool:
    """Whether an argument is a value, and not the name of an axis."""
    return not isinstance(node, ast.Name) or not any(node.id == axis.label for axis in Axis)
