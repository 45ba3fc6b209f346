"""Checks of typed expressions: users' functions that break their registration, and values that are likely mistakes."""

from __future__ import annotations

import inspect
import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from declog.compiler import ranges
from declog.compiler.draft import Draft
from declog.compiler.filters import specs_of
from declog.compiler.fixes.tensor_code import as_tensors
from declog.errors import Path, Problem, RuntimeFailure, error_text
from declog.language.dtypes import Axis, DType
from declog.language.functions import Function
from declog.language.functions.structure import SELECTIONS
from declog.language.nodes import BUILTIN, CONST, DRAWN, MODE, Node, walk
from declog.language.parser import WORDS
from declog.language.reductions import Reduction, builtin, quantile_level, tried
from declog.plans.needs import read
from declog.plans.ops import between

_PATTERNS = ("matches", *SELECTIONS)  # functions whose text is a regular expression
_ORDERED = {"lt": ">=", "le": ">", "gt": "<=", "ge": "<"}
_EQUAL = {"eq": "!=", "ne": "=="}


def expressions(draft: Draft) -> Iterator[tuple[Path, Node]]:
    """Every expression that the plan will evaluate, with the path of its key."""
    for op in draft.metrics:
        for arg in op.args:
            yield ("metrics", op.id, "expr"), arg
        declared = draft.spec.metrics.get(op.id)
        for key, node in op.clauses.items():
            if key != "where" or declared is None or declared.where is not None:  # else declog made it of `by`
                yield ("metrics", op.id, key), node
    filters = specs_of(draft)
    for table in draft.tables:
        for one in table.filter.chain if table.filter else ():
            yield from (((*filters[one.id][1], key), node) for key, node in one.reads.items())
        for column in table.columns:
            for node in column.nodes:
                yield ("tables", table.id, "schema"), node


def empty(draft: Draft) -> None:
    """Warn of a config that declares no metric and no table."""
    if not draft.spec.metrics and not draft.spec.tables:
        draft.warn(
            "the config declares no metric and no table: only what `log_metric` gives is logged; "
            "a preset has them: `defaults: [grpo, _self_]`"
        )


def quantiles(draft: Draft) -> None:
    """Warn of ``p0.95``: it is the 0.95 % quantile, nearly the minimum, and most people mean ``p95``."""
    reductions = [(f"metrics.{op.id}", op.reduction.name) for op in draft.metrics]
    reductions += [(".".join(map(str, path)), node.op) for path, root in expressions(draft) for node in walk(root)]
    for where, name in reductions:
        level = quantile_level(name)
        if level is not None and 0 < level < 0.01:
            percent = f"{level * 1e4:g}"
            draft.warn(f"{where}: `{name}` is the {level * 100:g} % quantile; the {percent} % quantile is `p{percent}`")


def surprises(draft: Draft) -> None:
    """Warn of ``not (x >= a)``: it is true where x is missing, since the comparison is false there.

    A metric's `expr` gets no warning: a missing value is not reduced.
    """
    for path, root in expressions(draft):
        if path[0] == "metrics" and path[-1] == "expr":
            continue
        for node in walk(root):
            compared = node.args[0] if node.op == "not" else node
            of_texts = node.op == "not" and all(side.type.dtype is DType.TEXT for side in compared.args)
            if node.op == "not" and (compared.op in _ORDERED or (compared.op in _EQUAL and of_texts)):
                one, two = compared.args
                draft.warn(
                    f"{'.'.join(map(str, path))}: `{node}` is true where a value is missing; "
                    f"`{one} {(_ORDERED | _EQUAL)[compared.op]} {two}` is not"
                )


def draws(draft: Draft) -> None:
    """Warn of ``pass_at(x, 8)`` where groups have 4 rows: it never has a value. An evaluation may have other groups."""
    axis = draft.spec.axes.group
    size = axis.size if axis is not None else None
    clauses = ((op.id, op.clauses.get("where")) for op in draft.metrics)
    of_modes = {
        id for id, where in clauses if where and any(node.leaf == MODE for node in walk(where) if node.op == BUILTIN)
    }
    for path, root in expressions(draft) if size is not None else ():
        if path[:1] == ("metrics",) and path[1] in of_modes:
            continue
        for node in walk(root):
            k = dict(node.params).get("k") if node.op in DRAWN else None
            if k is not None and k > size:
                draft.warn(
                    f"{'.'.join(map(str, path))}: `{node}` has no value of groups of `axes.group.size` rows: it draws "
                    f"{k}, and these have {size}"
                )


def comparisons(draft: Draft) -> None:
    """Warn of a comparison that never or always holds: ``index(token) == -1`` for the last token."""
    alerts = ((("alerts", op.id), op.when) for op in draft.alerts)
    for path, root in (*expressions(draft), *alerts):
        for node in walk(root):
            if node.op == "ne" and node.args[0] is node.args[1]:  # so numpy finds NaN
                where = ".".join(map(str, path))
                draft.warn(
                    f"{where}: `{node}` never holds, also where a value is missing: write `isnan({node.args[0]})`"
                )
            if path[0] == "alerts" or (decided := ranges.compared(node)) is None:
                continue
            value, number, always = decided
            last = ""
            if value.op == "index" and number.param("value") < 0:
                end = f"size({value.param('axis').label}) - {-number.param('value'):g}"
                sides = (end if side is number else str(side) for side in node.args)
                last = f"; from the end it is `{f' {WORDS[node.op].strip()} '.join(sides)}`"
            holds = "always holds" if always else "never holds"
            bounds = between(*ranges.of_node(value, {}))
            draft.warn(f"{'.'.join(map(str, path))}: `{node}` {holds}: `{value}` is {bounds}{last}")


# Doubled backslashes, where one was meant; in a pattern, two before a word are LaTeX: `\\boxed`.
_TWICE = r"\\{2}"
_TWICE_IN_PATTERN = r"(?<!\\)(?:\\{4}|\\{2}(?=\.|[dDsSwW](?![A-Za-z])))"


def escapes(draft: Draft) -> None:
    """Warn of escapes, which texts do not have: two backslashes for one, or a backslash and an n for a line break."""
    for path, root in expressions(draft):
        for node in walk(root):
            for text in (value for _, value in node.params if isinstance(value, str)):
                meant = None
                if node.op not in _PATTERNS and re.search(r"\\([nt])(?![A-Za-z])", text):
                    meant = f"matches(x, '{text}') is of a regular expression, which has them"
                twice = _TWICE_IN_PATTERN if node.op in _PATTERNS else _TWICE
                once = re.sub(twice, lambda match: match[0][: len(match[0]) // 2], text)
                in_quotes = once.replace("\\", 2 * "\\")
                meant = meant if once == text else f"'{once}' says it once, and in double quotes of YAML '{in_quotes}'"
                if meant is not None:
                    draft.warn(
                        f"{'.'.join(map(str, path))}: '{text}' is looked for as it stands, without escapes; {meant}"
                    )


def constants(draft: Draft) -> None:
    """Warn of constants that are not finite: a division by the constant 0, the logarithm of 0, a root of -1."""
    for text, part, value in draft.graph.not_finite:
        what = "divides by the constant 0" if value is None else f"is {value} whatever comes"
        draft.warn(f"`{part}` {what}" + ("" if part == text else f", in `{text}`"))


def conditions(draft: Draft) -> None:
    """Warn of alerts that always or never fire, and of healthy ranges that their metric can never be in."""
    bounds_of = ranges.of_outputs(draft.outputs)
    for op in draft.alerts:
        always = ranges.verdict(op.when, bounds_of)
        spec = draft.spec.alerts[op.id]
        if always is not None:
            spans = {name: bounds_of.get(name, ranges.ANY) for name in read(op.when)}
            bounds = [f"`{name}` is {between(*span)}" for name, span in spans.items() if span != ranges.ANY]
            why = f": {', '.join(bounds)}" if bounds and ranges.verdict(op.when, {}) is None else ""
            text = spec.when or op.when
            draft.warn(f"alerts.{op.id}: `{text}` {'always holds' if always else 'never holds'}{why}")
    for metric in draft.outputs:
        healthy = metric.about.healthy
        low, high = bounds_of[metric.key]
        if healthy is not None and (healthy[0] > high or healthy[1] < low):
            draft.warn(f"about.{metric.id}: `healthy` is {between(*healthy)}, and the metric {between(low, high)}")


def glued(draft: Draft) -> None:
    """Warn of a prefix of a mode or a sink that has no separator between it and the name of a metric."""
    templates = [item.template for op in draft.outputs if op.shown for item in op.names]
    name = next((template for template in templates if template[:1].isalnum()), "")
    prefixes = [(f"modes.{mode.name}", mode.prefix) for mode in draft.modes.values()]
    prefixes += [(f"sink_options.{sink.id}", sink.prefix) for sink in draft.sinks]
    for entry, prefix in prefixes:
        if prefix[-1:].isalnum() and name:
            draft.warn(
                f"{entry}.prefix: nothing stands between `{prefix}` and a name: `{prefix}{name}`; "
                f"write `{prefix}/` or `{prefix}_`"
            )


def turns(draft: Draft) -> None:
    """Warn of a sink that takes each N-th log event, and so misses some of an entry with an `every` of its own."""
    entries = [(f"metrics.{op.id}", op.every) for op in draft.outputs if op.shown]
    entries += [(f"tables.{op.id}", op.every) for op in draft.tables]
    for sink in draft.sinks:
        period = draft.period * sink.every
        for entry, every in entries:
            both = math.lcm(every, period) if every and period else 0
            if sink.every > 1 and every > draft.period and both > max(every, period):
                draft.warn(
                    f"sink_options.{sink.id}.every: {entry} has values each {every} steps, and this sink is written "
                    f"each {period}: it gets those of each {both}; a sink without `every` gets all"
                )
                break


def functions(draft: Draft) -> None:
    """Try each user's function once, on `meta` tensors or on plain values; its result must match its registration."""
    seen: set[str] = set()
    for path, root in expressions(draft):
        for node in walk(root):
            function = draft.functions.get(node.op)
            if function is None or function.takes == "arrays" or function.name in seen:
                continue
            seen.add(function.name)
            if function.takes == "values":
                _try_row(draft, path, function, node)
            else:
                _try_tensors(draft, path, function, node)


def _try_tensors(draft: Draft, path: Path, function: Function, node: Node) -> None:
    """Try a function of tensors on `meta` tensors, which hold no values."""
    import torch  # only if a config uses a user's function

    shape, dtype = ((3, 5), torch.float32) if node.type.axis is Axis.TOKEN else ((3,), torch.float64)
    arguments = [torch.empty(shape, device="meta", dtype=dtype) for _ in node.args]
    try:
        result = function.run(*arguments)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  whatever a user's function raises is its problem
        problem = f"failed on tensors of shape {list(shape)}: {error_text(error)}"
        if (fix := as_tensors(function.run, of_bools=node.type.dtype is DType.BOOL)) is not None:
            draft.report("DL314.of_numbers", path, function=function.name, problem=problem, fix=fix)
        else:
            draft.report("DL314.fails", path, function=function.name, problem=problem)
        return
    if not isinstance(result, torch.Tensor):
        problem = f"returned {type(result).__name__}, not a tensor"
    elif result.shape != shape:
        problem = f"returned shape {list(result.shape)} for arguments of shape {list(shape)}"
    elif (node.type.dtype is DType.BOOL) != (result.dtype is torch.bool):
        returned = str(result.dtype).removeprefix("torch.")
        problem = f"returned {returned}, and is registered to return {node.type.dtype}"
    else:
        return
    draft.report("DL314.declared", path, function=function.name, problem=problem)


_SAMPLES = {DType.TEXT: "text", DType.INT: 1, DType.FLOAT: 1.0, DType.BOOL: True}


def _sample(arg: Node) -> Any:
    """A value to try for an argument: a constant's own value, with None for `missing`, or a sample of the type."""
    if arg.op != CONST:
        return _SAMPLES[arg.type.dtype]
    return None if arg.leaf != arg.leaf else arg.leaf


def _try_row(draft: Draft, path: Path, function: Function, node: Node) -> None:
    """Try a function of plain values on samples, for texts on `text`.

    A result of another type, a NameError and an ImportError are errors. Any other exception is only a warning, since
    the function may accept the texts of a run.
    """
    try:
        function.of_row(node.type.dtype, [_sample(arg) for arg in node.args])
    except RuntimeFailure as error:
        cause = error.__cause__
        if cause is None:  # the result has another type
            draft.problems.append(Problem(error.code, error.message, path, error.fix))
        elif isinstance(cause, NameError | ImportError):
            draft.report("DL314.declared", path, function=function.name, problem=f"failed: {error_text(cause)}")
        elif isinstance(cause, KeyboardInterrupt | SystemExit):
            raise cause from None
        else:
            draft.warn(
                f"{'.'.join(map(str, path))}: {error.message}, tried with the text 'text'; where such a row comes, "
                "its log event has no value: return None for it, and only that row is missing"
            )


def reducers(draft: Draft) -> None:
    """Try each user's reduction on 8 rows and on one row.

    A failure that depends on the values is only a warning: a run may never have such values.
    """
    seen: set[tuple[object, ...]] = set()
    for path, reduction, args, params in _reduced(draft):
        dtypes = tuple(node.type.dtype for node in args)
        if builtin(reduction.name) is reduction or (reduction.name, dtypes, params) in seen:
            continue
        seen.add((reduction.name, dtypes, params))
        for rows in (8, 1):
            problem, certain = _problem_of_reduction(reduction, dtypes, rows, dict(params))
            if problem is not None and (fix := _of_constants(reduction, args, params)) is not None:
                draft.report("DL314.constant", path, reduction=reduction.name, problem=problem, fix=fix)
            elif problem is not None and certain:
                draft.report("DL314.reducer", path, reduction=reduction.name, problem=problem)
            elif problem is not None:
                draft.warn(
                    f"{'.'.join(map(str, path))}: the reduction `{reduction.name}` {problem}, tried on {rows} "
                    f"row{'s' * (rows > 1)}; a log event in which it fails has no value, and NaN is none either"
                )
            if problem is not None:
                break


def _reduced(draft: Draft) -> Iterator[tuple[Path, Reduction, tuple[Node, ...], tuple[tuple[str, Any], ...]]]:
    """Every reduction of a metric, and in an expression with `over=`: path, reduction, arguments and constants."""
    for op in draft.metrics:
        if (spec := draft.spec.metrics.get(op.id)) is not None:
            yield ("metrics", op.id, "expr" if spec.reduce is None else "reduce"), op.reduction, op.args, op.params
    for where, root in expressions(draft):
        for node in walk(root):
            function = draft.functions.get(node.op)
            if function is not None and function.reduces is not None:
                yield where, function.reduces, node.args, tuple(item for item in node.params if item[0] != "over")


def _problem_of_reduction(
    reduction: Reduction, dtypes: Sequence[DType], rows: int, params: Mapping[str, Any]
) -> tuple[str | None, bool]:
    """The problem of a reduction on some rows, or None; and whether the problem is the same for any values."""
    try:
        result = tried(reduction, dtypes, rows, params)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # noqa: BLE001  whatever a user's function raises is its problem
        anyway = () if DType.TEXT in dtypes else (AttributeError, TypeError)  # it may take other texts
        return f"failed: {error_text(error)}", isinstance(error, (NameError, ImportError, *anyway))
    try:
        float("nan" if result is None or isinstance(result, tuple) else result)
    except (TypeError, ValueError):
        return f"returned {type(result).__name__}, which is no number", True
    return None, False


def _of_constants(reduction: Reduction, args: Sequence[Node], params: Sequence[tuple[str, Any]]) -> str | None:
    """The fix for a reduction that is called with numbers at the end, which it gets as columns; None for another call.

    For ``quantile(length, 0.75)`` it is `def quantile(values, *, q)`, and `quantile(length, q=0.75)`.
    """
    numbers = [*itertools.takewhile(lambda node: node.op == CONST, reversed(args))][::-1]
    columns = len(args) - len(numbers)
    if not numbers or not columns:
        return None
    names = [*inspect.signature(reduction.run).parameters][: len(args)]
    constants = [f"{name}={node}" for name, node in zip(names[columns:], numbers, strict=True)]
    constants += [f"{name}={value}" for name, value in params]
    later = [*names[columns:], *(name for name, _ in params)]
    parameters = ", ".join([*names[:columns], "*", *later])
    arguments = ", ".join([*map(str, args[:columns]), *constants])
    return f"`def {reduction.name}({parameters})`, and `{reduction.name}({arguments})`"
