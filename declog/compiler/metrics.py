"""Metrics: from YAML to typed reductions, not lowered yet."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from declog.compiler import token_labels
from declog.compiler.draft import Draft, fits
from declog.compiler.fixes import distinct_values, metrics_of_metrics, reduced_parts, suggestions
from declog.compiler.fixes.axis_labels import refuse_axis
from declog.compiler.metric_phase import far_condition, phase_of
from declog.compiler.names import RANK, of_output
from declog.compiler.reductions import MetricReductions, Params, Reduced
from declog.compiler.scopes import FACTS, SignalScope, typed
from declog.errors import Path, Problem, nearest
from declog.language.dtypes import NUMERIC, Axis, DType
from declog.language.expression import Compiler
from declog.language.fixes import library_calls
from declog.language.nodes import LOGGED, PLAIN, Node, walk
from declog.language.phases import labels
from declog.language.reductions import Reduction
from declog.language.spec import MetricSpec
from declog.language.syntax import ExpressionError, Parsed, parse
from declog.plans.ops import PREFERRED, MetricOp

_INTENDED = ("DL303", "DL304", "DL306")  # the codes of reductions in expressions
Clauses = dict[str, Any]  # `where`, `by` and `weight`, each a node or None
LABELS = (DType.TEXT, DType.INT, DType.BOOL, DType.OBJECT)  # the types of labels; a list of tags is an object
RANKS = 2**20  # with `axes.rank: each` each rank has a value, however many there are


def metrics(draft: Draft) -> None:
    """Compile every metric that reduces an expression."""
    entries = draft.active("metrics")
    if LOGGED not in draft.spec.metrics and not draft.deleted(f"metrics.{LOGGED}"):
        entries[LOGGED] = MetricSpec(expr=LOGGED)
    for name, spec in entries.items():
        if spec.formula is not None:
            continue
        if draft.per_rank and spec.by is None and name in draft.spec.metrics:
            spec = spec.model_copy(update={"by": RANK, "max_labels": RANKS})
        with draft.at("metrics", name, "expr", off=f"metrics.{name}"):
            if refuse_axis(draft, name, spec, partial(_compiles, draft, name)):
                continue
            ops = _Metric(draft, name, spec).ops()
            draft.metrics += ops if spec.prefer is None else _preferred(draft, name, spec, ops)
        entire = partial(suggestions.entire, id=name, spec=spec)
        draft.problems = [distinct_values.of_metric(draft, name, spec, entire(one)) for one in draft.problems]


def _compiles(draft: Draft, id: str, spec: MetricSpec) -> bool:
    """Whether a metric compiles; nothing is reported."""
    problems, warnings, inactive = [*draft.problems], [*draft.warnings], {**draft.inactive}
    with draft.at("metrics", id, off=f"metrics.{id}"):
        _Metric(draft, id, spec).ops()
    right = len(draft.problems) == len(problems)
    draft.problems, draft.warnings, draft.inactive = problems, warnings, inactive
    return right


def _preferred(draft: Draft, name: str, spec: MetricSpec, ops: list[MetricOp]) -> list[MetricOp]:
    """The ops of a metric, and of the hidden metric of `prefer`, whose values replace the metric's where they exist.

    The hidden metric is the mean of a value per step; any other value is reduced as the metric is. If `prefer` is off,
    the metric stays as it is. A value per step is of all rows, so a metric with labels or chosen rows ignores it.
    """
    node = typed(draft, str(spec.prefer), "metrics", name, "prefer", off=f"metrics.{name}.prefer")
    if node is None:
        return ops
    alone = node.type.axis is None or node.type.axis is Axis.STEP
    chosen = [node for op in ops for node in (op.where, op.weight) if node is not None]
    labelled = spec.by is not None and not (draft.per_rank and spec.by == RANK)
    if alone and (labelled or any(one.type.axis not in (None, Axis.STEP) for one in chosen)):
        return ops
    keys: dict[str, Any] = {"expr": spec.prefer, "log": False, "prefer": None, "name": None, "alias": [], "tags": []}
    keys |= {"reduce": "mean", "weight": None, "by": RANK if draft.per_rank else None} if alone else {}
    keys |= {"where": None} if alone and any(one.type.phase not in (None, node.type.phase) for one in chosen) else {}
    path, before = ("metrics", name, "prefer"), [*draft.problems]
    preferred = _Metric(draft, f"{name}{PREFERRED}", spec.model_copy(update=keys)).ops()
    again = any(problem.path[:2] == path[:2] for problem in before)  # mostly the same again
    draft.problems = before + [replace(one, path=path) for one in draft.problems[len(before) :] if not again]
    by_suffix = {op.suffix: op for op in preferred}
    for index, op in enumerate(ops):
        stands = by_suffix.get(op.suffix, by_suffix.get(None))
        if stands is not None and (stands.family, stands.labels) != (op.family, op.labels):
            draft.report("DL310.prefer", path, name=name, node=node)
        ops[index] = op if stands is None else replace(op, prefer=stands.key)
    return ops + preferred


class _Metric:
    """One metric's expressions and reductions."""

    def __init__(self, draft: Draft, id: str, spec: MetricSpec) -> None:
        self.draft = draft
        self.id = id
        self.spec = spec
        self.reductions = MetricReductions(draft, id, spec)

    def path(self, key: str) -> tuple[str, ...]:
        """The path of a key; without an `expr` the expression is the id, at the path of the metric itself."""
        return ("metrics", self.id) if key == "expr" and self.spec.expr is None else ("metrics", self.id, key)

    def report(self, message: str, key: str, /, **facts: Any) -> None:
        """Report a problem of the metric at one of its keys."""
        self.draft.report(message, self.path(key), **facts)

    def ops(self) -> list[MetricOp]:
        self.draft.window(self.spec.every, "metrics", self.id, "every")
        if self.spec.combine is not None and self.spec.pool == "window" and self.spec.smoothing is None:
            ways = {
                "run_step": "the run's steps so far",
                "step": "the steps of each window",
                "batch": "each step's batches",
            }
            skipped = {"run_step"} if self.spec.combine in ("mean", "last") else set()
            skipped |= {"step"} if self.draft.window(self.spec.every) == 1 else set()
            edits = (f"over: {over}, where it joins {values}" for over, values in ways.items() if over not in skipped)
            fix = "over: run_step" if self.spec.cumulative else "  or  ".join([*edits, "drop `combine`"])
            self.report("DL202.combine", "combine", fix=fix)
        args, reductions = self._expressions()
        if args is None:
            return []
        per_token = any(node.type.axis is Axis.TOKEN for node in args)
        where = self._where(per_token)
        buckets = [token_labels.buckets(self.draft, self.spec, text) if per_token else {} for text in self._by_texts()]
        by = self._by([not of_tokens for of_tokens in buckets])
        weight = self._compile(self.spec.weight, self.path("weight"))
        clauses: Clauses = {"where": where, "by": by, "weight": weight}
        ops: list[MetricOp] = []
        path = self._by_path(next((index for index, labelled in enumerate(buckets) if labelled), 0))
        for suffix, (reduction, params) in reductions.items():
            if reduction is None:
                continue
            if not any(buckets):
                ops.append(self._op(suffix, reduction, params, args, clauses))
            for label, condition in token_labels.conditions(self.spec.where, buckets):
                of_label = {**clauses, "where": self._compile(condition, path)}
                op = self._op(suffix, reduction, params, args, of_label)
                of_rows = tuple(name for name, labelled in zip(op.labels, buckets, strict=True) if not labelled)
                ops.append(token_labels.of_label(op, label, of_rows, first=bool(buckets[0])))
        return ops

    # -- expressions and reductions

    def _expressions(self) -> tuple[tuple[Node, ...] | None, Reduced]:
        spec = self.spec
        if isinstance(spec.expr, list):
            if (problem := suggestions.of_list(self.id, spec)) is not None:
                self.draft.problems.append(problem.at(*self.path("expr")))
                return None, self.reductions.named()
            nodes = [self._compile(text, ("metrics", self.id, "expr", index)) for index, text in enumerate(spec.expr)]
            there = tuple(node for node in nodes if node is not None)
            return (there if nodes and len(there) == len(nodes) else None), self.reductions.named()
        text = self.id if spec.expr is None else str(spec.expr)
        parsed = None
        with self.draft.at(*self.path("expr")):
            parsed = parse(text.lower() if isinstance(spec.expr, bool) else text)
        if parsed is None:
            return None, {}
        if spec.reduce is None and (short := self._short(parsed)) is not None:
            return short
        node = self._typed(parsed)
        return (None if node is None else (node,)), self.reductions.named()

    def _compiler(self, text: str) -> Compiler:
        return Compiler(text, SignalScope(self.draft), self.draft.graph, self.draft.functions)

    def _typed(self, parsed: Parsed) -> Node | None:
        try:
            return self._compiler(parsed.text).visit(parsed.body)
        except ExpressionError as error:
            earlier = reduced_parts.of_earlier_steps(self.draft, self.id, parsed.body, error.problem)
            self.draft.problems.append((earlier or self._answered(parsed, error.problem)).at(*self.path("expr")))
            return None

    def _answered(self, parsed: Parsed, problem: Problem) -> Problem:
        """The problem of an expression, with a fix that keeps the intended meaning if one is known."""
        metrics, shown, fix = self.draft.spec.metrics, self.draft.metric_shown, None
        if parsed.text in ("none", "None", "nil", "off", "disabled", "delete", "remove"):
            fix = f"{logged.id if (logged := shown(self.id)) else self.id}: null"
        elif isinstance(parsed.body, ast.Tuple) and self.spec.reduce is not None:
            fix = suggestions.of_several(self.id, self.spec, [*map(ast.unparse, parsed.body.elts)])
        elif problem.code in _INTENDED and self.spec.reduce is not None:
            facts = parsed.body, self._compiler(parsed.text), self.draft.reductions
            problem = suggestions.reduced_already(problem, self.id, self.spec, *facts)
        elif problem.code != "DL302":
            fix = self._intended(parsed, problem.code)
            if fix is not None and fix.startswith("did you mean"):
                problem = replace(problem, span=(0, len(problem.source or "")))
        elif self.spec.expr is None:
            fix = suggestions.of_no_signal(self.id, self.spec, self.draft.signal_names)
            return Problem.of("DL302.metric_signal", name=self.id, fix=fix)
        elif problem.marked == self.id:  # it would read itself: its signal is not declared
            near = nearest(self.id, self.draft.signal_names)
            fix = f"declare what you observe: signals: {{any: {{{self.id}: completion}}}}"
            fix += f", or did you mean `{near}`?" if near else ""
            return problem.saying("DL302.undeclared", name=self.id, fix=fix)
        elif problem.marked in metrics:
            fix = metrics_of_metrics.of_metrics(self.draft, self.id, self.spec, parsed.body)
        elif "/" not in problem.marked and (metric := shown(parsed.text)):
            fix = f"the metric `{metric.id}` logs it: `{self.id}: {{formula: {metric.key}}}`"
        return problem if fix is None else replace(problem, fix=fix)

    def _intended(self, parsed: Parsed, code: str) -> str | None:
        """The fix that keeps the meaning of an expression of reductions; None for another expression."""
        draft = self.draft
        spelt_out = library_calls.is_spelt_out(parsed.body, draft.registered)
        if self.spec.reduce is not None or (code not in _INTENDED and not spelt_out):
            return None
        if (fix := library_calls.of_levels(parsed.body)) is not None:
            return fix
        names = draft.reductions.names(), draft.functions.names()
        if isinstance(parsed.body, ast.Call) and (short := reduced_parts.reduction(parsed.body, *names)) is not None:
            return f"did you mean `{short}`?"
        if metrics_of_metrics.again(draft, parsed.body):
            return metrics_of_metrics.of_metrics(draft, self.id, self.spec, parsed.body)
        several = code != "DL304" or reduced_parts.chooses_rows(parsed.body) or spelt_out
        return reduced_parts.as_formula(draft, self.id, self.spec, parsed.body, FACTS) if several else None

    def _compile(self, text: str | None, path: Path) -> Node | None:
        return None if text is None else typed(self.draft, text, *path)

    def _where(self, per_token: bool) -> Node | None:
        """The typed condition on rows. If it names metrics and no signal, the fix is to write it as ``when``."""
        before = len(self.draft.problems)
        node = self._compile(self.spec.where, self.path("where"))
        answer = partial(suggestions.of_condition, self.draft, self.id, self.spec, per_token)
        self.draft.problems[before:] = map(answer, self.draft.problems[before:])
        return node

    def _short(self, parsed: Parsed) -> tuple[tuple[Node, ...] | None, Reduced] | None:
        """``p95(reward)``: a call of a reduction without ``over`` reduces its arguments."""
        body, before = parsed.body, len(self.draft.problems)
        if not parsed.call or not isinstance(body, ast.Call):
            return None
        with self.draft.at(*self.path("expr"), off=f"metrics.{self.id}"):
            reduction = self.draft.reductions.named(parsed.call)
            if reduction is None or any(item.arg in ("over", "within") for item in body.keywords):
                return None
            compiler = self._compiler(parsed.text)
            body = suggestions.by_name(self.spec, reduction, body, compiler, reduction.arity)
            if len(body.args) != reduction.arity:
                takes = suggestions.takes(reduction)
                fix = suggestions.arguments(reduction, body, parsed.text, compiler)
                compiler.fail(body, "DL304.reduction_arity", reduction=reduction.name, takes=takes, fix=fix)
            params = self.reductions.constants(reduction, body, compiler)
            return tuple(compiler.visit(arg) for arg in body.args), {None: (reduction, params)}
        for problem in self.draft.problems[before:]:
            if problem.marked in self.draft.spec.metrics:
                self.draft.problems[before:] = [self._answered(parsed, problem)]
        return None, {}

    def _by_texts(self) -> list[str]:
        return [self.spec.by] if isinstance(self.spec.by, str) else self.spec.by or []

    def _by_path(self, index: int) -> Path:
        return ("metrics", self.id, "by", *([] if isinstance(self.spec.by, str) else [index]))

    def _by(self, of_rows: Sequence[bool]) -> Node | None:
        """The label of a row: one expression, or the combination of several. Labels of tokens are not in it."""
        texts = self._by_texts()
        if not texts and self.spec.by is not None:
            self.report("DL202.labels", "by")
        paths = {self._by_path(index): text for index, text in enumerate(texts) if of_rows[index]}
        nodes = {path: self._compile(text, path) for path, text in paths.items()}
        if len(texts) == 1:
            return next(iter(nodes.values()), None)
        parts = [
            node for path, node in nodes.items()
            if node is not None and fits(self.draft, node, path, LABELS, Axis.COMPLETION, "labels are")
        ]  # fmt: skip
        if not parts or len(parts) < len(nodes):
            return None
        with self.draft.at(*self.path("by")):
            return parts[0] if len(parts) == 1 else labels(self.draft.graph, parts, self.draft.order)
        return None

    # -- the op

    def _op(
        self, suffix: str | None, reduction: Reduction, params: Params, args: tuple[Node, ...], clauses: Clauses
    ) -> MetricOp:
        spec, draft, first = self.spec, self.draft, args[0]
        axis = max(Axis.STEP if node.type.axis is None else node.type.axis for node in args)
        sketched = axis is Axis.TOKEN and not reduction.foldable
        if len(args) != reduction.arity:
            self._refuse_count(reduction, args)
            spec = spec.model_copy(update={"name": None, "alias": []})  # another layer may name it for one expression
        self._check_types(reduction, args)
        if draft.per_rank and spec.by == RANK and (sketched or axis is Axis.ALL):
            alone = _Metric(draft, self.id, spec.model_copy(update={"by": None}))  # one value for all ranks
            return alone._op(suffix, reduction, params, args, {**clauses, "by": None})
        if sketched:
            self._sketched(reduction, args, clauses)
        self._check_clauses(reduction, axis, clauses)
        if reduction.name == "count" and first.op in ("lt", "le", "gt", "ge", "eq", "and", "or", "not"):
            draft.warn(
                f"metrics.{self.id}: `count` counts what is not missing, true or false; `sum({first})` what is true"
            )
        dtype = first.type.dtype if reduction.keeps_dtype or reduction.histogram else DType.FLOAT
        if (reduction.name in ("sum", "count") and first.type.dtype is DType.BOOL) or reduction.name == "count":
            dtype = DType.INT
        pool, nan, phase = spec.pool, spec.nan or "skip", phase_of(draft, self.id, spec, args, clauses)
        combine = "mean" if pool == "window" or spec.smoothing is not None else spec.combine or "mean"
        self._check_over(reduction, combine)
        return MetricOp(
            suffix=suffix, reduction=reduction, params=params, args=args, fold=None, phase=phase,
            axis=axis, dtype=dtype, every=draft.window(spec.every), pool=pool, combine=combine, nan=nan,
            cumulative=spec.cumulative, ranks=spec.ranks, max_labels=spec.max_labels, **clauses,
            **of_output(draft, self.id, spec, suffix, family=first.type.family, labels=self._labelled()),
        )  # fmt: skip

    def _reduce_key(self) -> str:
        """The key that names the reduction: `expr` in `p95(reward)`."""
        return "expr" if self.spec.reduce is None else "reduce"

    def _refuse_count(self, reduction: Reduction, args: tuple[Node, ...]) -> None:
        """A reduction takes another number of values."""
        count, takes = ("one is" if len(args) == 1 else f"{len(args)} are"), suggestions.takes(reduction)
        fix = suggestions.of_several(self.id, self.spec) if reduction.arity == 1 else f"expr: [{args[0]}, ...]"
        answer = Problem.of("DL312.arity", reduction=reduction.name, takes=takes, given=count, fix=fix)
        self.draft.report_first(answer, self.path(self._reduce_key()))

    def _check_types(self, reduction: Reduction, args: tuple[Node, ...]) -> None:
        """A reduction takes numbers, and texts at some positions; of several values none is a family."""
        for position, node in enumerate(args):
            if position in reduction.texts and node.type.dtype is not DType.TEXT:
                self.report("DL312.text", "expr", reduction=reduction.name, node=node, type=node.type)
            elif position not in reduction.texts and node.type.dtype not in reduction.accepts:
                fix = suggestions.counted(self.draft, reduction.name, node)
                self.report("DL312.number", "expr", reduction=reduction.name, node=node, type=node.type, fix=fix)
        if reduction.arity > 1 and any(node.type.family for node in args):
            self.report("DL312.family", "expr", reduction=reduction.name)

    def _check_clauses(self, reduction: Reduction, axis: Axis, clauses: Clauses) -> None:
        """`where`, `by` and `weight` have their types, and none is finer than the expression."""
        by, weight = clauses["by"], clauses["weight"]
        for key, dtypes in (("where", (DType.BOOL,)), ("by", LABELS), ("weight", NUMERIC)):
            if (clause := clauses[key]) is not None:
                right = fits(self.draft, clause, self.path(key), dtypes, axis, "the expression is")
                if right and clause is by and clause.type.axis is axis is Axis.TOKEN:
                    self.report("DL310.by", "by", fix=suggestions.of_token_labels(self.id, self.spec, clause))
        if axis is Axis.TOKEN and weight is not None and weight.type.axis is Axis.TOKEN:
            self.report("DL310.weight", "weight")
        if weight is not None and not reduction.weighted:
            fix = suggestions.of_weighted(self.id, self.spec, reduction.name)
            self.report("DL312.weight", "weight", reduction=reduction.name, fix=fix)

    def _check_over(self, reduction: Reduction, combine: str) -> None:
        """The steps that a metric covers suit its reduction."""
        spec = self.spec
        if spec.over == "run" and not (reduction.foldable or reduction.ordered):
            self.report("DL312.cumulative", "over", reduction=reduction.name)
        if spec.smoothing is not None and spec.pool in ("rank", "rank_batch"):
            self.report("DL312.over_run", "over", way=spec.smoothing.way, pool=spec.pool)
        if spec.smoothing is not None and spec.cumulative:
            self.report("DL312.smooth", "over", way=spec.smoothing.way)
        if reduction.histogram and spec.pool != "window":
            self.report("DL312.combine", self._reduce_key(), reduction=reduction.name, combine=combine)

    def _sketched(self, reduction: Reduction, args: tuple[Node, ...], clauses: Clauses) -> None:
        """Over tokens, a reduction without a mergeable state needs a sketch: one histogram per batch."""
        if reduction.sketch is None:
            fix = reduced_parts.of_tokens(self.draft, self.id, self.spec, reduction.name, args)
            self.report("DL312.tokens", self._reduce_key(), reduction=reduction.name, fix=fix)
            return
        condition = clauses["where"]
        means = f"per completion it is another number, and possible: `mean({args[0]}, over=token)`"
        fix = reduced_parts.beside_others(self.draft, self.id, self.spec, args, condition, sketched=True) or means
        if clauses["by"] is not None:
            problem = Problem.of("DL312.token_labels", reduction=reduction.name, fix=fix)
            self.draft.report_first(problem, self.path("by"))
        nodes = [] if condition is None else [*walk(condition)]
        if any(node.type.phase not in (None, args[0].type.phase) for node in nodes):
            far = far_condition(self.draft, self.spec, reduction.name, args[0], nodes[-1])
            self.draft.report_first(far, self.path("where"))
        elif any((one.type.text and one.op not in PLAIN) or one.type.axis in (Axis.GROUP, Axis.ALL) for one in nodes):
            problem = Problem.of("DL312.token_where", reduction=reduction.name, fix=fix)
            self.draft.report_first(problem, self.path("where"))

    def _labelled(self) -> tuple[str, ...]:
        """The names of the labels: the text of `by` if it is a name, else an empty text."""
        return tuple(text.strip() if text.strip().isidentifier() else "" for text in self._by_texts())
