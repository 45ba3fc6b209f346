"""Schemas: columns, typed for a table's rows. A column is an expression, a Python function or a completion's tokens."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from declog.compiler.draft import Draft, SwitchedOff, fits, needs_axis
from declog.compiler.names import check_template
from declog.compiler.scopes import SignalScope, call_of, typed
from declog.errors import Path, in_flow
from declog.language import patterns
from declog.language.dtypes import ABOVE, NUMERIC, Axis, DType, per
from declog.language.fixes import library_calls
from declog.language.functions.rules import of_text
from declog.language.nodes import MODE, Node
from declog.language.row_functions import RowFunction
from declog.language.spec import IDENTIFIER, Observed
from declog.language.spec_of_tables import ColumnSpec
from declog.plans.ops import ColumnOp, TokensOp

FIELDS = frozenset({"id", "member"})  # of the template of a column's name
PIECES = "tokens"  # the key of the pieces of text in a cell
ORIGINS = {"group": DType.INT, "row": DType.INT, "why": DType.TEXT}  # the columns that files have of themselves


Columns = Mapping[str, tuple[ColumnSpec, Path]]  # by id, with the path of each


def of_schema(draft: Draft, schema: str) -> Columns:
    """The columns of a schema."""
    return {name: (spec, ("schemas", schema, name)) for name, spec in draft.spec.schemas[schema].items()}


def of_table(draft: Draft, table: str) -> Columns:
    """The columns in a table's list, else all of its schema. A listed name that the schema lacks is a signal."""
    spec = draft.spec.tables[table]
    of_its_schema = of_schema(draft, spec.schema_) if spec.schema_ in draft.spec.schemas else {}
    if not spec.columns:
        return of_its_schema
    signal, path = ColumnSpec(), ("tables", table, "columns")
    named = {name: index for index, name in enumerate(spec.columns) if IDENTIFIER.match(name)}
    for index, name in enumerate(spec.columns):
        if name not in named:
            id, expr = _meant(draft, name)
            fix = f"columns: {in_flow([id if item == name else item for item in spec.columns])}"
            fix = fix if expr is None else _as_schema(draft, table, id, expr)
            draft.report("DL202.column", (*path, index), name=name, fix=fix)
    return {name: of_its_schema.get(name, (signal, (*path, index))) for name, index in named.items()}


def _meant(draft: Draft, text: str) -> tuple[str, str | None]:
    """The id and the expression of a column that a list names by ``text``; the expression is None for a signal."""
    dotted = re.fullmatch(r"([a-z_]\w*)\.([a-z_]\w*)", text)
    signal = draft.signals.get(dotted[1]) if dotted is not None else None
    if dotted is None or signal is None:
        return re.sub(r"\W+", "_", text.lower()).strip("_") or "my_id", text
    if isinstance(signal.spec, Observed) and signal.spec.family:
        return dotted[2], f"member({dotted[1]}, '{dotted[2]}')"
    return dotted[1], None  # `length.mean`: a row has one length


def _as_schema(draft: Draft, table: str | int, id: str, expr: str) -> str:
    """The fix that turns a table's list of columns into a schema, whose column ``id`` has the expression ``expr``."""
    columns: dict[str, Any] = {}
    for name in draft.spec.tables[str(table)].columns:
        column, said = (name, None) if IDENTIFIER.match(name) else _meant(draft, name)
        columns[column] = {} if said is None else {"expr": said}
    columns[id] = {"expr": expr}
    return f"schemas: {{{table}: {in_flow(columns)}}}   and in the table `schema: {table}` in place of `columns`"


def columns(draft: Draft, specs: Columns, row: Axis) -> tuple[ColumnOp, ...]:
    """Compile columns for rows of the axis ``row``; a wrong column is reported and left out."""
    ops = [_column(draft, name, spec, row, path) for name, (spec, path) in specs.items()]
    seen: dict[str, str] = {}
    for column in ops:
        if column is None:
            continue
        other = seen.setdefault(column.template if column.undeclared is None else "", column.id)
        if other != column.id:
            what, fix = f"named `{column.template}`", "give one of them another `name`"
            if column.undeclared is not None:
                what, fix = "for undeclared columns", "drop one of them"
            draft.report("DL402.columns", specs[column.id][1], other=other, name=column.id, what=what, fix=fix)
    return tuple(column for column in ops if column is not None)


_PATTERN = re.compile(r"\\[dwsbDWSB]|[\])][+*?{]|\.[+*]|\w\+")  # what a regular expression has, and no label


def _column(draft: Draft, name: str, spec: ColumnSpec, row: Axis, path: Path) -> ColumnOp | None:
    for key, pattern in spec.redact.items():
        if _PATTERN.search(key) is not None and _PATTERN.search(pattern) is None:
            fix = f"redact: {in_flow({'secret': key})}"
            draft.report("DL202.redact_label", (*path, "redact", key), label=key, pattern=pattern, fix=fix)
            continue
        try:
            patterns.pattern(pattern)
        except patterns.PatternError as error:
            draft.report("DL202.pattern", (*path, "redact", key), error=error, fix=error.fix)
    if spec.type == "tokens":
        return _of_tokens(draft, name, spec, row, path)
    for key in ("values", "max_tokens"):
        if getattr(spec, key):
            draft.report("DL202.tokens_only", (*path, key), key=key)
    sources = [key for key in ("expr", "call", "undeclared") if getattr(spec, key) is not None]
    if len(sources) > 1:
        draft.report("DL202.one_source", path, shown=" and ".join(f"`{key}`" for key in sources))
        return None
    if spec.undeclared is not None:
        return _undeclared(draft, name, spec, row, path)
    if spec.call is not None:
        return _called(draft, name, spec, spec.call, row, path)
    return _typed_column(draft, name, spec, row, path)


def _op(name: str, spec: ColumnSpec, type: DType, **more: Any) -> ColumnOp:
    """A column with the fields that all kinds of columns share, and ``more`` fields."""
    common: dict[str, Any] = {
        "template": (spec.name or name).replace("{id}", name), "required": spec.required, "role": spec.role,
        "max_chars": None if spec.max_chars is None else spec.max_chars.kept, "redact": tuple(spec.redact.items()),
    }  # fmt: skip
    return ColumnOp(id=name, type=type, **{**common, **more})


def _for_texts(draft: Draft, spec: ColumnSpec, type: DType | None, path: Path) -> None:
    """Refuse keys that only texts have; a wrong type is reported elsewhere."""
    if (spec.max_chars or spec.redact) and type not in (None, DType.TEXT, DType.OBJECT):
        draft.report("DL202.text_only", path)
    if spec.role is not None and type not in (None, DType.TEXT):
        draft.report("DL202.role", (*path, "role"))


def _undeclared(draft: Draft, name: str, spec: ColumnSpec, row: Axis, path: Path) -> ColumnOp | None:
    if row is not Axis.COMPLETION and spec.undeclared != "drop":
        draft.report("DL310.extras", (*path, "undeclared"), row=row.row)
        return None
    return _op(name, spec, DType.OBJECT, template="{member}", required=False, undeclared=spec.undeclared, role=None)


def _origin(draft: Draft, text: str) -> str | None:
    """The name among ``ORIGINS`` that a text is, unless a signal has it that names no groups."""
    groups = None if draft.grouping is None else draft.grouping.of
    is_origin = text in ORIGINS and (text != "group" or groups is not None)
    return text if is_origin and (text not in draft.signals or text in (groups or ())) else None


def _typed_column(draft: Draft, name: str, spec: ColumnSpec, row: Axis, path: Path) -> ColumnOp | None:
    origin = _origin(draft, str(spec.expr or name))
    if origin is not None and (origin not in draft.signals or row is not Axis.COMPLETION):
        node, dtype, family = None, ORIGINS[origin], False
    else:
        node = _typed(draft, name, spec, path)
        if node is None:
            return None
        dtype, family = node.type.dtype, node.type.family
    type = spec.dtype or dtype
    if node is not None and not needs_axis(node.type, row):
        expr, short = coarser(draft, node, row), spec.model_fields_set <= {"type"}
        said = in_flow({name: {"expr": expr}} if short else {"expr": expr})[1:-1]
        draft.report(
            "DL310.column", path, name=name, axis=per(node.type.axis),
            row="has one value" if row is Axis.COMPLETION else f"is a {row.row}",
            fix=_as_schema(draft, path[1], name, expr) if path[0] == "tables" else said,
        )  # fmt: skip
        return None
    if not type.holds(dtype) and not (origin is not None and type.holds(ORIGINS[origin])):
        fix = f"{name if spec.model_fields_set == {'type'} else 'type'}: {dtype}"
        written = of_text(node, [DType.TEXT], draft.functions) if type is DType.TEXT and node is not None else None
        fix = fix if written is None else f"{written}, or {fix}"
        draft.report("DL305.column", (*path, "type"), name=name, type=type, node=node or origin, dtype=dtype, fix=fix)
        return None
    _for_texts(draft, spec, type, path)
    template = spec.name or ("{id}/{member}" if family else "{id}")
    check_template(draft, template, (*path, "name"), family=family, fields=FIELDS)
    return _op(name, spec, type, template=template.replace("{id}", name), expr=node, family=family, origin=origin)


def _typed(draft: Draft, name: str, spec: ColumnSpec, path: Path) -> Node | None:
    """The column's typed expression, by default the signal of its name; None if it is wrong, or off."""
    text, before = name if spec.expr is None else str(spec.expr), len(draft.problems)
    node = typed(draft, text, *_source(spec, path), off=".".join(map(str, path)))
    problems, word = draft.problems[before:], text.partition("(")[0].strip()
    if node is None and spec.expr is None and (call := call_of(draft, name)) is not None:
        entry = {name: {"expr": call, **spec.model_dump(include={"type", "name"} & spec.model_fields_set)}}
        fix = _as_schema(draft, path[1], name, call) if path[0] == "tables" else in_flow(entry)[1:-1]
        draft.problems[before:] = [replace(one, fix=fix) for one in problems]
    elif node is None and word in draft.columns.names():
        said = spec.model_dump(exclude_unset=True, exclude={"expr"}, by_alias=True)
        fix = f"it is a column's function: {in_flow({name: {'call': word, **said}})[1:-1]}"
        draft.problems[before:] = [replace(one, fix=fix) for one in problems]
    elif node is None and spec.expr is None and spec.dtype is not None:
        words = "completion" if spec.dtype is DType.FLOAT else f"completion {spec.dtype}"
        fix = f"declare what you observe: signals: {{any: {{{name}: {words}}}}}"
        draft.problems[before:] = [
            replace(one, fix=fix) if str(one.fix).startswith("declare what") else one for one in problems
        ]
    return node


def _source(spec: ColumnSpec, path: Path) -> Path:
    return path if spec.expr is None else (*path, "expr")


def coarser(draft: Draft, node: Node, axis: Axis) -> str:
    """The expression reduced to one value for each row of ``axis``, for a fix."""
    how = "first" if node.type.text else "any" if node.type.dtype is DType.BOOL else "mean"
    text, at = str(node), node.type.axis
    for fine in (Axis.TOKEN, Axis.COMPLETION, Axis.GROUP):
        if at is fine and axis < fine and (fine is Axis.TOKEN or draft.grouping is not None):
            text, at = f"{how}({text}, over={fine.label})", ABOVE[fine]
    return text


# ---- `call:`, a registered Python function whose parameters are names of signals or constants


def _called(draft: Draft, name: str, spec: ColumnSpec, call: str, row: Axis, path: Path) -> ColumnOp | None:
    """The column of a registered function; None if it is wrong, or reads an entry that is off."""
    with draft.at(*path, "call", off=".".join(map(str, path))):
        function = draft.columns.named(call)
        if function is None:
            fix = library_calls.of_yours(f"`@declog.column` above `def {call}(...)`")
            draft.report("DL303.column_function", (*path, "call"), name=call, known=draft.columns.names(), fix=fix)
            return None
        type = _type(draft, function, name, spec, path)
        before = len(draft.problems)
        args = _arguments(draft, function, row, path)
        check_template(draft, spec.name or name, (*path, "name"), family=False, fields=FIELDS)
        _for_texts(draft, spec, type, path)
        if type is not None and len(draft.problems) == before:
            return _op(name, spec, type, call=function, args=args)
    return None


def _type(draft: Draft, function: RowFunction, name: str, spec: ColumnSpec, path: Path) -> DType | None:
    """The declared type, or the type in the function's annotation; the two must agree."""
    promised, declared = function.returns, spec.dtype
    if declared is None and promised is None:
        draft.report("DL203.column_type", path, name=name)
    if declared is None or promised is None or promised == declared:
        return declared or promised
    if (promised, declared) != (DType.INT, DType.FLOAT) and declared is not DType.OBJECT:
        draft.report(
            "DL305.column_returns", (*path, "type"), name=name, type=declared, function=function.name, returned=promised
        )
    return declared


def _arguments(draft: Draft, function: RowFunction, row: Axis, path: Path) -> tuple[tuple[str, Node], ...]:
    args: list[tuple[str, Node]] = []
    scope, at = SignalScope(draft), (*path, "call")
    for parameter, required in function.params:
        node = None
        try:
            if (required or parameter in draft.signals or parameter != MODE) and scope.resolve(parameter) is not None:
                node = typed(draft, parameter, *at)
        except SwitchedOff:
            if required:
                raise
        if node is not None and not needs_axis(node.type, row):
            draft.report(
                "DL310.column_parameter", at, function=function.name, parameter=parameter, axis=per(node.type.axis),
                label=row.label,
            )  # fmt: skip
        elif node is not None:
            args.append((parameter, node))
        elif required and scope.resolve(parameter) is None:
            draft.report(
                "DL302.column_parameter", at, function=function.name, name=parameter, known=scope.names()
            )  # fmt: skip
    return tuple(args)


# ---- `type: tokens`, a completion's tokens as pieces of text, with values of each


def _of_tokens(draft: Draft, name: str, spec: ColumnSpec, row: Axis, path: Path) -> ColumnOp | None:
    """The column of tokens; None if it is wrong, or reads an entry that is off."""
    before = len(draft.problems)
    if row is not Axis.COMPLETION:
        draft.report("DL310.tokens_rows", path, name=name)
    for key in ("call", "undeclared", "role", "max_chars"):  # keys of other columns
        if getattr(spec, key) is not None:
            fix = "max_tokens: {head: 100, tail: 400}" if key == "max_chars" else f"drop `{key}`"
            draft.report("DL202.tokens_option", (*path, key), key=key, fix=fix)
    node = _typed(draft, name, spec, path)
    if node is not None:
        ids = node.type.dtype is DType.INT and node.type.axis is Axis.TOKEN
        pieces = node.type.dtype is DType.OBJECT and node.type.axis is Axis.COMPLETION
        if node.type.family or not (ids or pieces):
            draft.report("DL305.tokens", _source(spec, path), name=name, node=node, type=node.type)
    values = []
    for key, text in spec.values.items():
        at = (*path, "values", key)
        value = typed(draft, str(text), *at, off=".".join(map(str, at)))
        if key == PIECES:
            draft.report("DL402.tokens", at)
        elif value is not None and fits(draft, value, at, (*NUMERIC, DType.BOOL), Axis.TOKEN, "tokens are"):
            values.append((key, value))
    if node is None or len(draft.problems) > before:
        return None
    kept = spec.max_tokens.kept if spec.max_tokens is not None else TokensOp.DEFAULT
    head, tail = (kept, 0) if isinstance(kept, int) else kept
    return _op(name, spec, DType.OBJECT, expr=node, tokens=TokensOp(head=head, tail=tail, values=tuple(values)))
