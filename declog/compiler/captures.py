"""The capture that a config asks for, and the texts to redact in it."""

from __future__ import annotations

from declog.compiler.draft import NAME, Draft, op_of
from declog.language.spec import DerivedSpec
from declog.language.spec_of_tables import ColumnSpec
from declog.language.spec_of_tests import CaptureSpec
from declog.plans.ops import CaptureOp

EXTRA = "*"  # columns of log_extra that are not signals


def capture(spec: CaptureSpec) -> CaptureOp | None:
    """The capture that a config, or the caller of ``start``, asks for."""
    return op_of(CaptureOp, spec, limit=int(spec.limit), queue=int(spec.queue)) if spec.enabled else None


def redactions(draft: Draft) -> dict[str, tuple[tuple[str, str], ...]]:
    """The patterns to redact, by the observed name of a text: those of all schemas, even if no active table uses them.

    A column's patterns hold for every text that its expression reads, directly or through derived signals.
    """
    patterns_of: dict[str, dict[tuple[str, str], None]] = {}
    for columns in draft.spec.schemas.values():
        for name, column in columns.items():
            sources = {EXTRA} if column.undeclared is not None else _texts(draft, _reads(draft, name, column))
            for source in sources if column.redact else ():
                patterns_of.setdefault(source, {}).update(dict.fromkeys(column.redact.items()))
    return {source: tuple(patterns) for source, patterns in patterns_of.items()}


def _reads(draft: Draft, name: str, column: ColumnSpec) -> str:
    """The source of a column: its expression, the parameters of its function, or the signal of its name."""
    function = None if column.call is None else draft.columns.get(column.call)
    if function is not None:
        return " ".join(parameter for parameter, _ in function.params)
    return str(name if column.expr is None else column.expr)


def _texts(draft: Draft, expression: str) -> set[str]:
    """The observed names of the texts and objects that an expression reads."""
    texts: set[str] = set()
    waiting, seen = set(NAME.findall(expression)), set()
    while waiting:
        name = waiting.pop()
        if name not in draft.signals or name in seen:
            continue
        seen.add(name)
        signal = draft.signals[name].spec
        if isinstance(signal, DerivedSpec):
            waiting |= set(NAME.findall(str(signal.expr)))
        elif signal.type in ("text", "object"):
            texts.add(signal.from_ or name)
    return texts
