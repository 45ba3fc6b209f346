"""The names that expressions may use: over signals, over metrics, and in `enabled`, which takes constants only."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from declog.compiler import labels, names
from declog.compiler.draft import Draft, SwitchedOff
from declog.compiler.fixes import suggestions
from declog.errors import Path, Problem, elsewhere, in_flow, nearest
from declog.language.dtypes import AXES, Axis, DType, Type
from declog.language.expression import compile_expression
from declog.language.fixes import best_so_far, step_time
from declog.language.nodes import ALONE, BUILTIN, LABEL, LABELLED, LEAVES, METRIC, SIGNAL, Node
from declog.language.notation import reduced
from declog.language.parser import names_in, tree_of
from declog.language.reductions import Reduction
from declog.language.scope import BUILTINS, Scope
from declog.language.spec import MetricSpec, Observed
from declog.language.spec_of_tables import ColumnSpec
from declog.language.syntax import ExpressionError
from declog.plans.ops import FormulaOp, MetricOp

FACTS: dict[str, Type] = {  # facts of a log event and its window that formulas and conditions can read beside metrics
    "step": Type(DType.INT),
    "elapsed": Type(DType.FLOAT),
    "seconds": Type(DType.FLOAT),
}


class ConstantScope(Scope):
    """Constants only: for `enabled`."""

    noun = "constant"

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    @property
    def metrics(self) -> Mapping[str, Any]:
        return {id: spec.model_dump(exclude_defaults=True) for id, spec in self.draft.spec.metrics.items()}

    def resolve(self, name: str) -> Node | Problem | None:
        if name in self.draft.constants:
            return self.draft.graph.constant(self.draft.constants[name])
        if name in self.draft.spec.constants:
            return Problem.of("DL203.constant", name=name)
        if name in self.draft.spec.metrics or any(path[-1] == name for path, _ in self.draft.spec.declared):
            return Problem.of("DL302.run_time", name=name)
        return None

    def attribute(self, name: str, attribute: str) -> Node | Problem | None:
        spec = self.draft.observed.get(name)
        if spec is None or not spec.family:
            return None
        return Problem.of("DL307.member", family=name, member=attribute)

    def phase_order(self, phase: str) -> int:
        return self.draft.order(phase)

    @property
    def modes(self) -> Mapping[str, str]:
        return {"train": "", **{name: mode.prefix for name, mode in self.draft.spec.modes.items()}}

    def reduction(self, name: str) -> Reduction | None:
        return self.draft.reductions.get(name)

    def names(self) -> Iterable[str]:
        return self.draft.constants

    def deleted(self, name: str, how: str) -> Problem:
        """The problem of a deleted signal or metric; ``how`` names the key that keeps it."""
        near = f"did you mean `{close}`? Or " if (close := elsewhere.same_signal(name, {*self.names()})) else ""
        related = ((f"{self.noun}s", name),)
        return Problem.of("DL407.used", related=related, noun=self.noun, name=name, near=near, how=how)


class SignalScope(ConstantScope):
    """Signals, constants and built-in names: for `expr`, `where`, `by`, `weight`, `key` and columns."""

    noun = "signal"

    @property
    def groups(self) -> bool:
        return self.draft.grouping is not None

    @property
    def token_mask(self) -> frozenset[Node]:
        return token_mask(self.draft)

    def resolve(self, name: str) -> Node | Problem | None:
        draft = self.draft
        if name in draft.constants or name in draft.spec.constants:
            return super().resolve(name)
        if name in draft.signals:
            return signal_node(draft, name)
        if name in BUILTINS:
            return draft.graph.make(BUILTIN, type=BUILTINS[name], name=name)
        if draft.deleted(f"signals.{name}"):
            return self.deleted(name, f"`signals.{name}`")
        if name in draft.spec.metrics:
            return Problem.of("DL302.metric", name=name)
        if (filter := draft.spec.filters.get(name)) is not None and filter.where is not None:
            return Problem.of("DL302.filter", name=name, condition=filter.where)
        if (call := call_of(draft, name)) is not None:
            return Problem.of("DL302.function", name=name, call=call)
        taken = {observed.axis: family for family, observed in draft.observed.items() if observed.any}
        if taken and nearest(name, draft.signal_names) is None:  # whatever is observed is a member of a family
            fix = "  or  ".join(f"member({taken[axis]}, '{name}')" for axis in sorted(taken))
            return Problem.of("DL302.taken", name=name, fix=fix)
        return None

    def attribute(self, name: str, attribute: str) -> Node | Problem | None:
        signal = self.draft.signals.get(attribute)
        if signal is None or name in self.draft.signals or name not in signal.homes[1:]:
            return super().attribute(name, attribute)
        nulls = in_flow({"signals": {home: {attribute: None} for home in signal.homes if home != name}})[1:-1]
        return Problem.of("DL307.phase", name=attribute, phase=name, nulls=nulls)

    def declaration(self, signal: str) -> str:
        return self.draft.signals[signal].declaration if signal in self.draft.signals else "..."

    def names(self) -> Iterable[str]:
        return [*self.draft.signal_names, *self.draft.constants]


class MetricScope(ConstantScope):
    """Metrics by id, or id.suffix for one of several reductions, and constants: for `formula`, `when` and alerts.

    An alert is off if one of its metrics was deleted or is switched off. In an alert, the id of a metric with several
    reductions means the mean; without a mean, the alert is off.
    """

    noun = "metric"

    def __init__(self, draft: Draft, *, of_alert: str | None = None, text: str = "") -> None:
        super().__init__(draft)
        self.of_alert = of_alert
        self.text = text

    def measured(self, function: str, call: ast.Call) -> Node | None:
        """Resolve ``members(id)``, a metric's number of members, and ``nan_count(id)``, its number of missing values.

        ``label(id, ...)`` of a label of tokens is an output of its own.
        """
        outputs = self.draft.outputs
        if function == LABEL and (of_tokens := [op for op in outputs if op.key != labels.written(op)]):
            shown = ast.unparse(call)
            return next((self._metric(op) for op in of_tokens if labels.written(op) == shown), None)
        if function not in ("members", "nan_count") or call.keywords or len(call.args) != 1:
            return None
        name = ast.unparse(call.args[0])
        op = next((op for op in outputs if op.id == name), None)
        if op is not None:
            return self.draft.graph.make(METRIC, type=Type(DType.INT), name=f"{function}:{op.key}")
        if (problem := self._without_value(name)) is not None:
            raise ExpressionError(problem)
        return None

    def resolve(self, name: str) -> Node | Problem | None:
        draft = self.draft
        ops = [op for op in draft.outputs if op.id == name]
        if len(ops) > 1 and self.of_alert is not None:
            ops = [op for op in ops if isinstance(op, MetricOp) and op.reduction.name == "mean"]
            if len(ops) != 1:
                which = " or ".join(labels.written(op) for op in draft.outputs if op.id == name)
                draft.warn(f"alerts.{self.of_alert}: off, as `{name}` has several reductions and no mean: say {which}")
                raise SwitchedOff(f"`{name}` has several reductions, and none of them is the mean")
        if len(ops) > 1:
            choices = " or ".join(f"`{labels.written(op)}`" for op in ops)
            if step_time.seconds_of(name):
                of_steps = re.sub(rf"(?<![\w.]){name}\b", "seconds", self.text)
                choices = f"`{of_steps}`, by how long the steps took; of each `with log.timer(...)`: {choices}"
            return Problem.of("DL302.several", name=name, choices=choices)
        if ops:
            return self._metric(ops[0])
        of_name = draft.spec.metrics.get(name)
        if name in FACTS and of_name is not None and re.search(rf"\b{name}\b", of_name.formula or ""):  # in its formula
            return draft.graph.make(BUILTIN, type=FACTS[name], name=name)
        if name not in draft.spec.metrics and (name in draft.constants or name in draft.spec.constants):
            return super().resolve(name)
        if (problem := self._without_value(name)) is not None:
            return problem
        if name in draft.signals:
            return Problem.of(
                "DL302.signal_in_formula", name=name, metric=suggestions.of_signal(self.draft, name, self.text)
            )
        if name in FACTS:
            return draft.graph.make(BUILTIN, type=FACTS[name], name=name)
        when = str(draft.spec.alerts[self.of_alert].when) if self.of_alert in draft.spec.alerts else ""
        if re.search(rf"[<>=] *{re.escape(name)}\b", when) is None:
            return None
        if best_so_far.so_far(name, when, self) is not None:
            return None
        near = nearest(name, self.names())
        fix = f"a number, such as 0.5; or constants: {{{name}: 0.5}}" + (f"; or did you mean `{near}`?" if near else "")
        return Problem.of("DL302.bound", name=name, fix=fix)

    def attribute(self, name: str, attribute: str) -> Node | Problem | None:
        key = f"{name}.{attribute}"
        ops = {op.key: op for op in self.draft.outputs if op.id == name}
        if key in ops:
            return self._metric(ops[key])
        if not ops and (problem := self._without_value(name)) is not None:
            return problem
        if len(ops) == 1:
            return Problem.of("DL302.one_value", name=name, key=key, own=next(iter(ops)))
        if family := next((op.key for op in ops.values() if op.family), None):
            return Problem.of("DL307.member", family=family, member=attribute)
        return Problem.of("DL302.name", noun="metric", name=key, known=ops or self.draft.output_keys)

    def names(self) -> Iterable[str]:
        return [*self.draft.output_keys, *self.draft.constants, *FACTS]

    def of_tracker(self, name: str) -> str | None:
        return names.in_expression(self.draft, name)

    def of_steps(self, name: str) -> str | None:
        ops = [op for op in self.draft.outputs if name in (op.id, op.key)]
        rows = [op for op in ops if isinstance(op, MetricOp) and op.axis is not Axis.STEP]
        return None if rows or not ops else names.in_expression(self.draft, name)

    def definition(self, name: str) -> Mapping[str, Any] | None:
        taken = name in self.draft.output_keys
        return None if taken else suggestions.definition(self.draft, name, self.text)

    def _metric(self, op: MetricOp | FormulaOp) -> Node:
        labelled: dict[str, Any] = {LABELLED: True} if op.labels else {}
        return self.draft.graph.make(METRIC, type=Type(DType.FLOAT, None, op.family), name=op.key, **labelled)

    def _without_value(self, name: str) -> Problem | None:
        """The problem of a deleted metric; None for an unknown name. Raises ``SwitchedOff`` if it is off or wrong."""
        draft = self.draft
        if (reason := draft.inactive.get(f"metrics.{name}")) is not None:
            raise SwitchedOff(f"`{name}` is off: {reason}")
        if name in draft.spec.metrics:
            raise SwitchedOff(f"the metric `{name}` has an error")
        if not draft.deleted(f"metrics.{name}"):
            return None
        if self.of_alert is not None:
            raise SwitchedOff(f"the metric `{name}` was deleted")
        return self.deleted(name, f"it: `metrics.{name}.log: false` hides it")


def typed(draft: Draft, text: str, *path: str | int, off: str | None = None) -> Node | None:
    """The typed tree of the expression over signals at ``path``; None if it is off, or wrong, which is reported.

    ``off`` is the entry that is off together with a signal; without it ``SwitchedOff`` is raised.
    """
    before = len(draft.problems)
    with draft.at(*path, off=off):
        return compile_expression(text, SignalScope(draft), draft.graph, draft.functions)
    draft.problems[before:] = [of_rows(draft, problem, text) for problem in draft.problems[before:]]
    return None


def tried(draft: Draft, text: str) -> Node | None:
    """The typed tree of an expression over signals; None for one that is wrong or off, which is not reported."""
    try:
        return compile_expression(text, SignalScope(draft), draft.graph, draft.functions)
    except (ExpressionError, SwitchedOff):
        return None


def of_rows(draft: Draft, problem: Problem, text: str) -> Problem:
    """The problem of a metric or a column in an expression over signals, with a fix that writes what it computes."""
    if problem.code == "DL307" and (id := suggestions.earlier_metric(text, draft.spec.metrics)) is not None:
        fix = _of_window(draft, draft.spec.metrics[id], id, text)
        return problem if fix is None else problem.saying("DL302.of_window", name=id, fix=fix)
    metric = draft.spec.metrics.get(problem.marked) if problem.code == "DL302" else None
    if problem.message_key == "DL302.reward" and problem.path[:1] == ("schemas",) and len(problem.path) == 3:
        type_ = draft.spec.schemas[str(problem.path[1])][text].type  # the column is named by the reward function
        return replace(problem, fix=in_flow({text: {"expr": f"member(rewards, '{text}')", "type": type_}})[1:-1])
    if (column := _column(draft, problem)) is not None:
        called = None if column.call is None else draft.columns.get(column.call)
        computed = None if column.expr is None else str(column.expr)
        if called is not None:
            computed = f"{called.name}({', '.join(name for name, _ in called.params)})"
        if computed is not None:
            edit = _instead(problem, text, computed)
            if called is not None:
                said = in_flow({problem.marked: {"expr": computed, "type": column.type}})[1:-1]
                by_word = f"`@declog.function` in place of `@declog.column`, the column `{said}`, and "
                edit = by_word + (edit if edit[:5] == "write" else f"`{edit}`")
            return problem.saying("DL302.column", name=problem.marked, fix=edit)
    if metric is None and problem.code == "DL302" and (call := call_of(draft, problem.marked)) is not None:
        return replace(problem, fix=_instead(problem, text, call))
    if metric is None or (problem.path[::2] == ("metrics", "expr") and len(problem.path) == 3):
        return problem
    fix = None if problem.message_key == "DL302.quotes" else _of_window(draft, metric, problem.marked, text)
    if fix is not None:
        return problem.saying("DL302.of_window", name=problem.marked, fix=fix)
    chosen = metric.where or metric.by or metric.weight
    if not isinstance(metric.expr, str) or metric.reduce not in (None, "mean") or chosen:
        return problem
    fix = _instead(problem, text, metric.expr)
    wrong = fix.startswith("write") and tried(draft, fix[7:-1]) is None
    return replace(problem, fix=None if wrong else fix)


def _instead(problem: Problem, text: str, computed: str) -> str:
    """The fix that writes the expression ``computed`` in place of the wrong name."""
    inside = computed if text == problem.marked or re.fullmatch(r"\w+\([\w, ]*\)", computed) else f"({computed})"
    written = re.sub(rf"\b{re.escape(problem.marked)}\b", lambda _: inside, text)
    return in_flow({"key": written})[1:-1] if problem.path[-1] == "key" else f"write `{written}`"


def call_of(draft: Draft, name: str) -> str | None:
    """The call of a function whose parameters all have names of signals; None for any other name."""
    function = draft.functions.get(name)
    names = [] if function is None else [slot.name for slot in function.params]
    return f"{name}({', '.join(names)})" if names and draft.signals.keys() >= {*names} else None


def _column(draft: Draft, problem: Problem) -> ColumnSpec | None:
    """The column that a filter's expression names, in a table whose rows the filter chooses; None for another name."""
    if problem.code != "DL302" or problem.path[0] not in ("tables", "filters"):
        return None
    tables = draft.spec.tables.items()
    filtered = (spec for id, spec in tables if problem.path[1] == (id if problem.path[0] == "tables" else spec.filter))
    schemas = (draft.spec.schemas.get(str(spec.schema_), {}) for spec in filtered)
    return next((columns[problem.marked] for columns in schemas if problem.marked in columns), None)


def _of_window(draft: Draft, metric: MetricSpec, id: str, text: str) -> str | None:
    """The fix for rows compared with a metric, which is one number for all rows: their group's number, or a constant.

    None if no value of a row stands beside the metric.
    """
    tree = tree_of(text)
    parts = [node for node in ast.walk(tree) if isinstance(node, ast.Compare | ast.BinOp)]
    beside = [names_in(node) for node in parts if id in names_in(node)]
    if all(names.isdisjoint(draft.signals) for names in beside):
        return None
    constant = ast.unparse(suggestions.NumberInstead(id, draft.signals).visit(tree)).replace("'", '"')
    number = f"write `{constant}`, with a number of your own"
    call = reduced(str(metric.expr or id)) if metric.reduce is None else {"expr": metric.expr, "reduce": metric.reduce}
    call = {"expr": metric.expr or id, "reduce": "mean"} if call is None else call
    if metric.formula is not None or metric.where or metric.by or metric.weight or not draft.grouping:
        return number
    of_group = f"{call['reduce']}({call['expr']}, over=completion)"
    written = re.sub(rf"\b{re.escape(id)}\b", lambda _: of_group, text)
    if tried(draft, written) is None:
        return number
    return f"write `{written}`, that of its group; or {number.removeprefix('write ')}"


def signal_node(draft: Draft, name: str) -> Node | Problem:
    """The typed tree of a signal: a leaf if it is observed, its expression if it is derived."""
    node = draft.nodes.get(name)
    if node is None:
        node = draft.nodes[name] = _typed_signal(draft, name)
    if isinstance(node, SwitchedOff):
        raise node
    return node


def _typed_signal(draft: Draft, name: str) -> Node | Problem | SwitchedOff:
    spec = draft.signals[name].spec
    if f"signals.{name}" in draft.inactive:
        return SwitchedOff(f"the signal `{name}` is off ({draft.inactive[f'signals.{name}']})")
    if isinstance(spec, Observed):
        return _observed(draft, name, spec)
    if name in draft.typing:
        circle = [*draft.typing[draft.typing.index(name) :], name]
        return Problem.of("DL309.signals", circle=" -> ".join(circle))
    if len(draft.typing) >= 60:
        return Problem.of("DL308.nested_signals", name=name)
    draft.typing.append(name)
    try:
        node = compile_expression(str(spec.expr), SignalScope(draft), draft.graph, draft.functions)
        node = node if spec.mask is None else _masked(draft, name, node)
        node = node if spec.phase is None else _of_phase(draft, name, spec.phase, node)
        if node.op not in LEAVES:
            node.names.append(name)
        return node
    except ExpressionError as error:
        # reported once, at the signal; entries that use it get a short reason
        path = (*draft.signals[name].path, "expr")
        draft.report_first(of_rows(draft, replace(error.problem, path=path), str(spec.expr)), path)
        return SwitchedOff(f"the signal `{name}` has an error")
    except SwitchedOff as off:
        draft.inactive[f"signals.{name}"] = off.reason
        return off
    finally:
        draft.typing.pop()


def _observed(draft: Draft, name: str, spec: Observed) -> Node:
    axis, homes = AXES[spec.axis], draft.signals[name].homes
    phase = homes[0] if len(homes) == 1 else None  # of several phases, or of `any`: the phase that needs it
    if not homes and not draft.phase_order:
        phase = draft.default_phase
    type = Type(spec.type, axis, bool(spec.family), phase)
    mask = mask_of(draft, name) if axis is Axis.TOKEN else frozenset()
    declared: dict[str, Any] = {"members": spec.members} if spec.members else {}
    declared |= {ALONE: True} if spec.any or (spec.family and axis is Axis.STEP) else {}
    return draft.graph.make(SIGNAL, type=type, mask=mask, name=name, **declared)


def _masked(draft: Draft, name: str, node: Node) -> Node:
    """A derived per-token value with its own mask in place of the masks of the signals that it reads."""
    if node.type.axis is not Axis.TOKEN:
        raise ExpressionError(Problem.of("DL310.mask", name=name, type=node.type))
    return draft.graph.make(node.op, node.args, type=node.type, mask=mask_of(draft, name), **dict(node.params))


def _of_phase(draft: Draft, name: str, phase: str, node: Node) -> Node:
    """A derived value whose expression is of another phase, looked up for the rows of its own phase."""
    if node.type.phase in (None, phase):
        return node
    per_batch = node.type.axis is Axis.STEP and draft.order(str(node.type.phase)) < 0
    if not (node.type.axis is Axis.COMPLETION or per_batch):
        raise ExpressionError(Problem.of("DL313.derived", name=name, type=node.type, phase=node.type.phase))
    return draft.joined(node, phase)


def mask_of(draft: Draft, name: str) -> frozenset[Node]:
    """The mask of a per-token signal: its own, or the token axis'. A mask itself has none, nor has ``mask: all``."""
    text = draft.signals[name].spec.mask
    if text is None:
        return frozenset() if name == (draft.spec.axes.token.mask or "").strip() else token_mask(draft)
    return frozenset() if text.strip() == name else _mask(draft, text, (*draft.signals[name].path, "mask"))


def token_mask(draft: Draft) -> frozenset[Node]:
    """The mask of the token axis; empty if every token exists."""
    text = draft.spec.axes.token.mask
    return frozenset() if text is None else _mask(draft, text, ("axes", "token", "mask"))


def _mask(draft: Draft, text: str, path: Path) -> frozenset[Node]:
    label = f"mask {text}"
    if text.strip() == "all" or label in draft.typing:  # the signals of a mask are read without a mask
        return frozenset()
    draft.typing.append(label)
    try:
        node = compile_expression(text, SignalScope(draft), draft.graph, draft.functions)
        if node.type.dtype is not DType.BOOL or node.type.axis is not Axis.TOKEN:
            raise ExpressionError(Problem.of("DL310.mask_type", source=text, text=text, type=node.type))
        return frozenset({node})
    except ExpressionError as error:
        draft.report_first(error.problem, path)
        return frozenset()
    finally:
        draft.typing.pop()
