"""The reductions that a metric names, each with its constants: `p95`, `[mean, max]`, `histogram(bins=8)`."""

from __future__ import annotations

import ast
import re
from functools import partial
from typing import Any, NoReturn

from declog.compiler.draft import Draft
from declog.compiler.fixes import reduced_parts, suggestions
from declog.compiler.scopes import SignalScope
from declog.errors import Entry, Path, nearest
from declog.language.expression import Compiler
from declog.language.fixes import bins, idioms, library_calls
from declog.language.fixes.tracker_names import suffix_of
from declog.language.functions import REQUIRED
from declog.language.notation import SEVERAL
from declog.language.reductions import Reduction, out_of_range, quantile_level
from declog.language.spec import MetricSpec
from declog.language.syntax import Parsed, parse, refuse
from declog.language.tree import listed

Params = tuple[tuple[str, Any], ...]
Reduced = dict[str | None, tuple[Reduction | None, Params]]  # the reductions of a metric, by suffix


class MetricReductions:
    """Reads the reductions of one metric."""

    def __init__(self, draft: Draft, id: str, spec: MetricSpec) -> None:
        self._draft = draft
        self._id = id
        self._spec = spec

    def named(self) -> Reduced:
        """The reductions that `reduce` names, `mean` without it."""
        reduce, path = "mean" if self._spec.reduce is None else self._spec.reduce, ("metrics", self._id, "reduce")
        if isinstance(reduce, str) and reduce not in SEVERAL:
            return {None: self._one(reduce, path)}
        if not reduce:
            self._draft.report("DL311.empty", path)
        reduced: Reduced = {}
        for index, item in enumerate([reduce] if isinstance(reduce, str) else reduce):
            if isinstance(item, str):
                for text in SEVERAL.get(item, (item,)):
                    reduced[suffix_of(text)] = self._one(text, (*path, index))
            else:
                reduced |= {suffix: self._one(text, (*path, index, suffix)) for suffix, text in item.items()}
        return reduced

    def _one(self, text: str, path: Path) -> tuple[Reduction | None, Params]:
        with self._draft.at(*path):
            if quantile_level(text.strip()) is not None:  # p99.9 is no expression
                return self._draft.reductions.get(text.strip()), ()
            parsed = parse(text)
            name = parsed.call or (parsed.body.id if isinstance(parsed.body, ast.Name) else text)
            if (reduction := self._draft.reductions.named(name)) is None:
                self._refuse(parsed, name)
            compiler, body = (
                Compiler(text, SignalScope(self._draft), self._draft.graph, self._draft.functions),
                parsed.body,
            )
            call = body if isinstance(body, ast.Call) else ast.copy_location(ast.Call(body, [], []), body)
            call = suggestions.by_name(self._spec, reduction, call, compiler)
            if call.args:
                compiler.fail(call.args[0], "DL304.reduce_expr", fix=suggestions.of_reduce(self._spec, name))
            return reduction, self.constants(reduction, call, compiler)
        return None, ()

    def _refuse(self, parsed: Parsed, name: str) -> NoReturn:
        """Raise the error of an unknown reduction."""
        draft, id, spec, text = self._draft, self._id, self._spec, parsed.text
        if re.fullmatch(r"p\d+(\.\d+)?", name):
            refuse("DL311.quantile", text, (0, len(name)), name=name, fix=f"did you mean `{nearest(name, ['p95'])}`?")
        if (several := idioms.of_reductions(text)) is not None:
            refuse("DL311.several", text, (0, len(text)), text=text, fix=several)
        binned = bins.of_reduce(text, {})
        fix = None if binned is None else suggestions.of_reduce(spec, binned)
        fix = fix or library_calls.of_levels(parsed.body) or library_calls.reduction(parsed.body)
        ways = (reduced_parts.of_spelt_out, reduced_parts.of_type, reduced_parts.of_quotient)
        fix = fix or next(filter(None, (way(draft, id, spec, name) for way in ways)), None)
        meant = library_calls.as_reducer(name, parsed.body, parse(str(spec.expr or id)).body)
        if fix := fix or (meant if isinstance(meant, Entry) and "combine" in meant.keys else None):
            refuse("DL311.level", text, (0, len(text)), name=name, fix=fix)
        names = [*draft.reductions.names(), "p50", "p95", "p99.9"]
        refuse("DL311.name", text, (0, len(name)), name=name, known=names, fix=meant)

    def constants(self, reduction: Reduction, call: ast.Call, compiler: Compiler) -> Params:
        """The constants of a reduction, as its call says them or by default."""
        constants = dict(reduction.params or {})
        for keyword in call.keywords:
            if reduction.histogram and isinstance(keyword.value, ast.List | ast.Tuple):
                edges = suggestions.of_edges(self._draft, self._id, self._inside(call), keyword.value, compiler)
                compiler.fail(keyword.value, "DL304.bins_at", fix=edges)
            if keyword.arg not in constants or keyword.arg in idioms.AXES:
                self._refuse_keyword(reduction, keyword, call, compiler, constants)
            if ast.unparse(keyword.value) == str(constants[keyword.arg]) == "None":
                continue
            value = compiler.visit(keyword.value)
            if value.op != "const" or not isinstance(value.param("value"), int | float):
                compiler.fail(keyword.value, "DL304.number", name=keyword.arg)
            constants[keyword.arg] = value.param("value")
        if (name := out_of_range(reduction, constants)) is not None:
            said = next((keyword.value for keyword in call.keywords if keyword.arg == name), call)
            if name in ("low", "high"):
                compiler.fail(said, "DL304.ends", fix=suggestions.of_ends(constants))
            if name == "bins":
                compiler.fail(said, "DL304.bins")
            compiler.fail(said, "DL304.share")
        if (name := next((name for name, value in constants.items() if value is REQUIRED), None)) is not None:
            compiler.fail(call, "DL304.misses", function=reduction.name, name=name, fix=f"{reduction.name}({name}=...)")
        return tuple(item for item in constants.items() if item[1] is not None)

    def _inside(self, call: ast.Call) -> str:
        """The text that a call reduces: its arguments, else the metric's expression."""
        return ", ".join([*map(ast.unparse, call.args)] or map(str, listed(self._spec.expr)))

    def _refuse_keyword(
        self, reduction: Reduction, keyword: ast.keyword, call: ast.Call, compiler: Compiler, constants: dict[str, Any]
    ) -> NoReturn:
        """Raise the error of a keyword that the reduction does not have."""
        name, inside = keyword.arg, self._inside(call)
        pvar = partial(reduced_parts.of_spelt_out, self._draft, self._id, self._spec, "pvar", [inside])
        clause = suggestions.clause(reduction.name, inside, keyword, call, compiler, constants, pvar)
        if clause is not None and name not in constants:
            compiler.fail(keyword, "DL304.clause", function=reduction.name, name=name, fix=clause)
        if name in idioms.AXES:
            fix = suggestions.along(reduction, inside, call, compiler)
            compiler.fail(keyword, "DL304.axis", function=reduction.name, name=name, fix=fix)
        compiler.fail(keyword, "DL304.parameter", function=reduction.name, name=name, known=constants)
