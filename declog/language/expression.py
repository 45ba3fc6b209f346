"""The expression compiler: it turns a syntax tree of Python's ``ast`` into a typed tree.

Only an allowlist of constructs is compiled, and nothing is evaluated with ``eval``. Any other construct is refused,
with the columns of the wrong text. Constants are folded before names and axes are resolved, so the branch of an
``if`` that is not taken may name a signal that is switched off.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NoReturn

import numpy as np

from declog.errors import Problem, nearest
from declog.errors.elsewhere import same_signal
from declog.language import notation
from declog.language.dtypes import AXES, MEMBER, Axis, DType, Type
from declog.language.fixes import idioms, library_calls, unknown_names, wrong_calls, wrong_subscripts
from declog.language.functions import BUILTIN, REQUIRED, Function, Functions, Param
from declog.language.functions.rules import Call, of_type
from declog.language.nodes import COMBINED, CONST, LABEL, METRIC, SAID, WRITTEN, Graph, Node
from declog.language.phases import in_one_phase, join, latest
from declog.language.scope import Scope
from declog.language.syntax import ExpressionError, parse, refuse

MISSING = "missing"  # the literal for no value
_WORDS = (MISSING, "inf", "true", "false")  # names that are literals
MAX_POWER = 64  # the greatest constant exponent

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul", ast.Div: "div", ast.Pow: "pow", ast.FloorDiv: "floordiv",
    ast.Mod: "mod"}  # fmt: skip
_DIVISIONS = ("div", "floordiv", "mod")
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Lt: "lt", ast.LtE: "le", ast.Gt: "gt", ast.GtE: "ge", ast.Eq: "eq", ast.NotEq: "ne",
}  # fmt: skip
Located = ast.expr | ast.keyword  # syntax nodes with a span of the text
OPERATORS = frozenset(
    {*_BINARY.values(), *_COMPARE.values(), "and", "or", "not", "neg", "if", COMBINED, SAID, *WRITTEN.values()}
)


class Compiler:
    """Types one expression. ``text`` is the text that the user wrote, for messages."""

    def __init__(self, text: str, scope: Scope, graph: Graph, registry: Functions) -> None:
        self.text = text
        self.scope = scope
        self.graph = graph
        self.registry = registry

    # -- errors

    def span(self, node: Located) -> tuple[int, int]:
        """The half-open character range of a syntax node; ``ast`` counts bytes of UTF-8."""
        line, end = self.text.encode(), node.end_col_offset or node.col_offset + 1
        return len(line[: node.col_offset].decode(errors="replace")), len(line[:end].decode(errors="replace"))

    def part(self, node: Located) -> str:
        """The text of a syntax node."""
        return self.text[slice(*self.span(node))]

    def fail(self, node: Located, key: str, /, **facts: object) -> NoReturn:
        """Refuse ``node``."""
        refuse(key, self.text, self.span(node), **facts)

    # -- expressions

    def visit(self, node: ast.expr) -> Node:
        """The typed node of a syntax node."""
        match node:
            case ast.Constant(value=bool() | int() | float() | str() as value):
                return self._constant(node, str(value) if isinstance(value, str) else value)
            case ast.Name():
                return self._name(node)
            case ast.Attribute(value=ast.Name()):
                return self._attribute(node)
            case ast.UnaryOp(op=ast.USub()):
                return self._apply("neg", node, [node.operand])
            case ast.UnaryOp(op=ast.UAdd()):
                return self.visit(node.operand)
            case ast.UnaryOp(op=ast.Not()):
                return self._apply("not", node, [node.operand])
            case ast.BinOp() if type(node.op) in _BINARY:
                return self._binary(node)
            case ast.BoolOp():
                return self._logic(node)
            case ast.Compare():
                return self._compare(node)
            case ast.IfExp():
                return self._choice(node)
            case ast.Call(func=ast.Name()):
                return self._call(node)
        unknown_names.refuse_earlier_steps(node, self.text, self.span(node), self.scope)
        if isinstance(node, ast.Call):
            fix = wrong_subscripts.of_method(node, self.text, self.span(node), self.tried, self.scope.noun)
            self.fail(node, "DL307.call", fix=fix)
        what, fix = wrong_subscripts.of_syntax(node, self.text, self.span(node), self.tried, self.scope)
        self.fail(node, "DL307.syntax", what=what, fix=fix)

    def tried(self, text: str) -> Node | Problem:
        """The typed tree of another expression in the same scope, or the problem with it."""
        try:
            return compile_expression(text, self.scope, self.graph, self.registry)
        except ExpressionError as error:
            return error.problem

    def _constant(self, node: ast.expr, value: Any) -> Node:
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
            self.fail(node, "DL308.number")
        return self.graph.constant(value)

    def _name(self, node: ast.Name) -> Node:
        if node.id == "inf":
            return self.graph.constant(math.inf)
        if node.id in ("true", "false"):
            return self.graph.constant(node.id == "true")
        value = self._resolved(node, self.scope.resolve(node.id))
        if value is not None:
            return value
        if node.id == MISSING:
            return self.graph.constant(math.nan)
        unknown_names.refuse_name(node, self.text, self.span(node), self.scope)

    def _resolved(self, node: Located, value: Node | Problem | None) -> Node | None:
        """Return the value of a name. Raises a problem with the name's span added."""
        if isinstance(value, Problem):
            raise ExpressionError(replace(value, source=self.text, span=self.span(node)))
        return value

    def _attribute(self, node: ast.Attribute) -> Node:
        assert isinstance(node.value, ast.Name)
        value = self.scope.attribute(node.value.id, node.attr)
        if not isinstance(value, Node):
            unknown_names.refuse_statistic(node, self.text, self.span(node), self.scope)
        if (resolved := self._resolved(node, value)) is not None:
            return resolved
        base, is_plain = node.value.id, isinstance(self.scope.resolve(node.attr), Node)  # signals.reward
        call = f"{node.attr}({base})" if self.scope.resolve(base) is not None else "abs(x)"
        self.fail(node, "DL307.attribute", fix=node.attr if is_plain else call)

    def _binary(self, node: ast.BinOp) -> Node:
        name, right = _BINARY[type(node.op)], node.right.id if isinstance(node.right, ast.Name) else ""
        if name == "div":
            unknown_names.refuse_tracker_name(node, self.text, self.span(node), self.scope)
        prefix = name == "div" and " " not in self.part(node) and self._is_word(node.left)  # `train/reward`
        if prefix and isinstance(self.scope.resolve(right), Node):
            self.fail(node, "DL302.prefix", noun=self.scope.noun, word=self.part(node.left), name=right)
        base = self.visit(node.left)
        if name == "div" and base.type.family and self._is_word(node.right):
            self.fail(node, "DL302.slash", fix=wrong_subscripts.of_slash(node, self.text, self.span(node)))
        second = self.visit(node.right)
        power = second.param("value") if name == "pow" and second.op == CONST else 0
        if isinstance(power, int | float) and abs(power) > MAX_POWER:
            self.fail(node.right, "DL308.exponent", limit=MAX_POWER)
        return self.build(name, node, [base, second], [node.left, node.right])

    def _logic(self, node: ast.BoolOp) -> Node:
        name = "and" if isinstance(node.op, ast.And) else "or"
        decisive = name == "or"
        kept: list[tuple[Node, ast.expr]] = []
        for value in node.values:
            item = self.visit(value)
            constant = item.param("value") if item.op == CONST else None
            if constant is not (not decisive):
                kept.append((item, value))
            if constant is decisive:
                break  # the result is decided: the rest is not compiled
        if not kept:
            return self.graph.constant(not decisive)
        (result, first), *further = kept
        if not further and result.type.dtype is not DType.BOOL:
            dtype, fix = result.type.dtype, of_type(result, [DType.BOOL])
            self.fail(first, "DL305.needs", name=name, needed="bool", node=result, dtype=dtype, fix=fix)
        for item, value in further:
            result = self.build(name, node, [result, item], [first, value])
        return result

    def _compare(self, node: ast.Compare) -> Node:
        parts: list[Node] = []
        absent, fix = wrong_calls.of_none(node, self.text, self.span(node), self.scope.noun)
        for operator, *pair in zip(node.ops, [node.left, *node.comparators], node.comparators, strict=False):
            if isinstance(operator, ast.Eq | ast.NotEq | ast.In | ast.NotIn):
                self._quoted(node, pair)
            if isinstance(operator, ast.In | ast.NotIn):
                parts.append(self._member(node, *pair, negated=isinstance(operator, ast.NotIn)))
                continue
            if (name := _COMPARE.get(type(operator))) is None:
                self.fail(node, "DL307.syntax", what="`is`", fix=fix or "write `==`, or present(x)")
            if fix and not isinstance(self.scope.resolve(absent), Node):
                self.fail(node, "DL302.absent", name=absent, fix=fix)
            args = list(map(self.visit, pair))
            for value, other in zip(args, reversed(pair), strict=True):
                unknown_names.refuse_mode(value, other, self.text, self.span(other), self.scope)
            parts.append(self.build(name, node, args, pair))
        return self._joined_by("and", node, parts)

    def _joined_by(self, name: str, node: ast.expr, parts: Sequence[Node]) -> Node:
        """Combine parts pairwise from the left, as in ``a and b and c``."""
        return reduce(lambda first, second: self.build(name, node, [first, second], [node, node]), parts)

    def _quoted(self, node: ast.Compare, pair: Sequence[ast.expr]) -> None:
        """Refuse a comparison of a text with words that lack quotes."""
        sides = [item for side in pair for item in idioms.items(side)]
        words = [item for item in sides if self._is_word(item)]
        values = [item for item in sides if item not in words]
        literal = len(words) == 1 and all(isinstance(item, ast.Constant) for item in values)  # the word is a signal
        if words and values and not literal and all(self.visit(item).type.dtype is DType.TEXT for item in values):
            self._unquoted(node, words)

    def _unquoted(self, node: ast.expr, words: list[ast.expr]) -> NoReturn:
        """Refuse a comparison or a call. The fix is the same text with its words in quotes."""
        fix, wanted = wrong_calls.in_quotes(node, words, self.text, self.span), self.part(words[0])
        if (close := nearest(wanted, self.scope.names())) is not None:
            fix = f"{fix}; or did you mean `{close}`?"
        self.fail(words[0], "DL302.quotes", word=wanted, fix=fix)

    def _is_word(self, node: ast.expr) -> bool:
        """Whether an expression has no value and was meant as a text: ``math``, ``gsm8k-hard``, ``math.algebra``."""
        names = idioms.names_of_word(node)
        return bool(names) and all(self._stands_for_nothing(name) and name not in _WORDS for name in names)

    def _stands_for_nothing(self, name: str) -> bool:
        meaning = self.scope.resolve(name)
        return meaning is None or (self.scope.noun == "signal" and getattr(meaning, "code", "") == "DL302")

    def _member(self, node: ast.Compare, value: ast.expr, choices: ast.expr, *, negated: bool) -> Node:
        if not isinstance(choices, ast.Tuple | ast.List | ast.Set) or not choices.elts:
            if (call := idioms.of_membership(value, choices)) is not None:
                self.fail(node, "DL307.list", fix=f"`{'not ' * negated}{call}`")
            self.fail(choices, "DL307.list", fix="x in ('a', 'b')")
        item = self.visit(value)
        compare, join = ("ne", "and") if negated else ("eq", "or")  # either result is false for a missing value
        for one in choices.elts:
            unknown_names.refuse_mode(item, one, self.text, self.span(one), self.scope)
        parts = [self.build(compare, node, [item, self.visit(one)], [value, one]) for one in choices.elts]
        return self._joined_by(join, node, parts)

    def _choice(self, node: ast.IfExp) -> Node:
        condition = self.visit(node.test)
        if condition.op == CONST and condition.type.dtype is DType.BOOL:
            return self.visit(node.body if condition.param("value") else node.orelse)
        return self._apply("if", node, [node.test, node.body, node.orelse])

    def _call(self, node: ast.Call) -> Node:
        assert isinstance(node.func, ast.Name)
        name = node.func.id
        if self.scope.noun == "metric" and (measured := self.scope.measured(name, node)) is not None:
            return measured
        named = {str(keyword.arg) for keyword in node.keywords}  # `over=` may turn a reduction into an aggregate
        function = self.registry.named(name) or (self.registry.get(name) if "over" in named else None)
        if function is None or name in BUILTIN.names():
            unknown_names.refuse_reduction(node, self.text, self.span(node), self.scope)
        foreign = function is None or name in OPERATORS or named & {*library_calls.SPANS}
        if foreign and (fix := self._of_library(node, name)) is not None:
            if "combine: ema" in fix or "combine: rolling" in fix:
                self.fail(node, "DL307.smooth", name=name, fix=fix)
            self.fail(node, "DL307.library", name=name, fix=fix)
        if function is None or name in OPERATORS:
            if isinstance(value := self.scope.resolve(name), Node):
                self.fail(node.func, "DL303.called_value", name=name, noun=self.scope.noun, type=value.type)
            if self.scope.noun == "signal" and library_calls.is_compared(node, self.text):
                value = self.visit(node.args[0])
                wrong_calls.refuse_quantile(node, self.text, self.span(node), value, groups=self.scope.groups)
            names = {*self.registry.names()} - OPERATORS
            unknown_names.refuse_function(name, names, self.text, self.span(node.func), self.scope)
        if (fix := wrong_calls.of_list(node, self.text, self.span(node), self.tried)) is not None:
            self.fail(node, "DL304.list", function=name, fix=fix, edges=wrong_calls.edges(name, fix))
        args, places, params = self._bind(node, function)
        return self.build(name, node, args, places, params)

    def _of_library(self, node: ast.Call, name: str) -> str | None:
        """The fix for a call of another library's function; None for any other call."""
        of_values = wrong_subscripts.of_values(node, self.text, self.span(node), self.tried, self.scope.noun)
        fix = unknown_names.of_library(node, name, self.text, self.scope)
        of_metric = fix is not None and self.scope.noun == "metric" and bool(node.args)
        if of_metric and self.scope.of_tracker(self.part(node.args[0])) is None:
            self.visit(node.args[0])  # an unknown metric in the argument is reported first
        return of_values or (None if fix is None else wrong_calls.in_place(self.text, self.span(node), fix))

    def _bind(self, node: ast.Call, function: Function) -> tuple[list[Node], list[ast.expr], dict[str, Any]]:
        """The compiled arguments of a call, their syntax nodes, and the compile-time parameters by name."""
        arguments = self._arguments(node, function)
        args: list[Node] = []
        places: list[ast.expr] = []
        params: dict[str, Any] = {}
        for slot in function.params:
            values = arguments.get(slot.name)
            if values is None:
                if slot.default is REQUIRED:
                    fix = wrong_calls.completed(self.text, function)
                    self.fail(node, "DL304.misses", function=function.name, name=slot.name, fix=fix)
                if function.takes == "values":
                    args.append(self.graph.constant(math.nan if slot.default is None else slot.default))
                    places.append(node)
                elif slot.role != "value" and slot.default is not None:
                    params[slot.name] = slot.default
            elif slot.role == "value":
                args += [self.visit(value) for value in values]
                places += values
            elif slot.role == "axis":
                params[slot.name] = self._axis(values[0], node, slot)
            else:
                constants = tuple(self._parameter(node, value, slot, function) for value in values)
                params[slot.name] = constants if slot.variadic else constants[0]
        return args, places, params

    def _arguments(self, node: ast.Call, function: Function) -> dict[str, list[ast.expr]]:
        """The arguments of a call, by the names of the function's parameters."""
        slots, name, arguments = function.params, function.name, dict[str, list[ast.expr]]()
        for index, value in enumerate(node.args):
            if isinstance(value, ast.Starred):
                self.fail(value, "DL307.syntax", what="`*`", fix="name each argument")
            slot = slots[min(index, len(slots) - 1)] if slots else None
            no_axis = slot is not None and slot.role == "axis" and wrong_calls.is_value(value)
            if no_axis and (fix := self._of_library(node, name)) is not None:
                self.fail(node, "DL304.second_value", name=name, fix=fix)
            if slot is None or (index >= len(slots) and not slot.variadic):
                self.fail(
                    value, "DL304.arity", function=function.name, count=len(slots), plural="s" * (len(slots) != 1),
                    fix=function.signature,
                )  # fmt: skip
            arguments.setdefault(slot.name, []).append(value)
        for keyword in node.keywords:
            if keyword.arg is None or all(slot.name != keyword.arg for slot in slots):
                names = [slot.name for slot in slots]
                best = wrong_subscripts.of_values(node, self.text, self.span(node), self.tried, self.scope.noun)
                if best is not None:
                    self.fail(keyword, "DL304.clause", function=function.name, name=keyword.arg, fix=best)
                if keyword.arg in (*idioms.AXES, "over") and {"over", "within"} & set(names):
                    of_tokens = bool(node.args) and self.visit(node.args[0]).type.axis is Axis.TOKEN
                    fix = wrong_calls.with_axis(node, keyword, of_tokens=of_tokens, ranked="within" in names)
                    self.fail(keyword, "DL304.axis", function=function.name, name=keyword.arg, fix=fix)
                rest = wrong_calls.of_rows(node, keyword) or wrong_calls.without(node, keyword)
                if nearest(str(keyword.arg), names) is None and isinstance(self.tried(rest), Node):
                    fix = wrong_calls.instead(self.text, self.span(node), f"write `{rest}`")
                    self.fail(keyword, "DL304.clause", function=function.name, name=keyword.arg, fix=fix)
                self.fail(keyword, "DL304.parameter", function=function.name, name=keyword.arg, known=names)
            if keyword.arg in arguments:
                self.fail(keyword, "DL304.twice", name=keyword.arg, fix=function.signature)
            arguments[keyword.arg] = [keyword.value]
        return arguments

    def _axis(self, node: ast.expr, call: ast.Call, slot: Param) -> Axis | str:
        name = node.id if isinstance(node, ast.Name) else node.value if isinstance(node, ast.Constant) else None
        if name in (MEMBER, LABEL):
            return str(name)
        axes = [*AXES, MEMBER] if self.scope.noun == "signal" else [MEMBER, LABEL]
        if not isinstance(name, str):
            self.fail(node, "DL306.axis_named", fix=wrong_calls.of_axes(call, node, self.text, self.span(call), axes))
        if name not in AXES and (name == "prompt" or same_signal(name, ("group", "prompt"))):
            fix = wrong_calls.of_prompt(self.text, self.span(node), self.span(call), self.tried, slot.name == "within")
            self.fail(node, "DL306.prompt", name=name, fix=fix)
        if (part := notation.part_of(name) or wrong_calls.part_in_rows(name, call, self.text, self.tried)) is not None:
            names = self.scope.names() if self.scope.noun == "signal" else None
            fix = "drop the axis" if names is None else notation.without_part(part, call, self.text, names)
            self.fail(node, "DL306.part", name=name, part=part.replace("_", " "), fix=fix)
        if name not in AXES:
            self.fail(node, "DL306.axis", name=name, known=axes)
        return AXES[name]

    def _parameter(self, call: ast.Call, node: ast.expr, slot: Param, function: Function) -> Any:
        number = isinstance(node, ast.Constant) and not isinstance(node.value, str)
        if str in slot.types and (number or self.part(node) in _WORDS or self._is_word(node)):
            self._unquoted(call, [node])
        value = self.visit(node)
        if value.op != CONST:
            fix = wrong_calls.swapped(call, function)
            self.fail(node, "DL304.constant", name=slot.name, function=function.name, fix=fix)
        constant = value.param("value")
        if (isinstance(constant, bool) and bool not in slot.types) or not isinstance(constant, slot.types):
            kinds = " or ".join(item.__name__ for item in slot.types)
            self.fail(node, "DL304.kind", name=slot.name, function=function.name, kind=kinds, fix=function.signature)
        return constant

    def _apply(self, name: str, node: ast.expr, operands: list[ast.expr]) -> Node:
        return self.build(name, node, [self.visit(item) for item in operands], operands)

    def build(
        self, name: str, node: ast.expr, args: list[Node], places: list[ast.expr], params: dict[str, Any] | None = None
    ) -> Node:
        """The typed node for a call of a registered function; a constant if all arguments are constants."""
        function = self.registry.get(name)
        assert function is not None
        if function.stage == "elementwise":
            args = self._joined(args, places)
        params = params or {}

        def fail(key: str, /, *, arg: int | None = None, **facts: object) -> NoReturn:
            facts |= library_calls.of_folded(node, self.text, args[0]) if key == "DL306.tokens_reduced" else {}
            part = node if arg is None else places[arg]
            if isinstance(fix := facts.get("fix"), str):
                fix, needs_over = wrong_calls.instead(self.text, self.span(part), fix), key == "DL306.needs_over"
                facts["fix"] = wrong_calls.over_everywhere(fix, self.span(part), self.tried) if needs_over else fix
            self.fail(part, key, **facts)

        scope, said = self.scope, self.graph.said
        result = function.rule(Call(name, args, params, scope.groups, scope.token_mask, self.registry, said, fail))
        if name == LABEL:  # readers treat one label of a metric as a separate metric
            return self.graph.make(METRIC, type=result, name=args[0].leaf, label=params[LABEL])
        mask = scope.token_mask if params.get("axis") is Axis.TOKEN else None
        typed = self.graph.make(name, args, type=result, mask=mask, **params)
        constant = function.stage == "elementwise" and args and all(item.op == CONST for item in args)
        if constant and function.takes == "arrays":
            return self._folded(node, function, args, result)
        if name in _DIVISIONS and args[1].op == CONST and args[1].param("value") == 0:
            self.graph.not_finite.append((self.text, self.part(node), None))
        return typed

    def _joined(self, args: list[Node], places: list[ast.expr]) -> list[Node]:
        """Bring arguments to one phase: values of earlier phases are looked up for the rows of the latest phase."""
        if len(phases := {arg.type.phase for arg in args if arg.type.phase is not None}) < 2:
            return args
        try:
            target = latest(phases, self.scope.phase_order)
        except ExpressionError as error:
            raise ExpressionError(replace(error.problem, source=self.text, span=self.span(places[0]))) from None
        of_tokens = (arg for arg in args if arg.type.axis is Axis.TOKEN)
        tokens = max(of_tokens, key=lambda arg: arg.type.phase == target, default=None)
        for arg, part in zip(args, places, strict=True):
            if tokens is not None and arg.type.phase not in (None, tokens.type.phase):
                phase, other = tokens.type.phase, arg.type.phase
                fix = in_one_phase(self.text, part, arg, str(phase), self.scope)
                self.fail(part, "DL313.expression", name=tokens, phase=phase, other=arg, other_phase=other, fix=fix)
        return [join(self.graph, arg, target, self.scope.phase_order) for arg in args]

    def _folded(self, node: ast.expr, function: Function, args: list[Node], type: Type) -> Node:
        values = [item.param("value") for item in args]
        try:
            with np.errstate(all="ignore"):
                value = function.of_constants(*values)
        except (OverflowError, ValueError, TypeError, ArithmeticError) as error:
            self.fail(node, "DL308.constant", error=error)
        if type.dtype is DType.INT and isinstance(value, float) and math.isfinite(value):  # the float may lose digits
            self.fail(node, "DL308.number")
        finite = all(isinstance(item, str) or math.isfinite(item) for item in values)
        if isinstance(value, float) and finite and not math.isfinite(value):
            self.graph.not_finite.append((self.text, self.part(node), None if function.name in _DIVISIONS else value))
        return self.graph.constant(value)


def compile_expression(text: str, scope: Scope, graph: Graph, registry: Functions = BUILTIN) -> Node:
    """Parse and type an expression in a scope; raises ``ExpressionError``."""
    return Compiler(text, scope, graph, registry).visit(parse(text).body)
