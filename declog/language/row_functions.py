"""``@declog.column``: Python functions of one row, which YAML names with `call:`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from declog.errors import UsageError
from declog.errors.habits import shown_at_the_call
from declog.language.annotations import dtype_of, signature
from declog.records import DType
from declog.registry import Registry


@dataclass(frozen=True)
class RowFunction:
    """A function of one row. ``params``: its parameters, and whether each is required. ``returns``: its return type."""

    name: str
    params: tuple[tuple[str, bool], ...]
    run: Callable[..., Any]
    returns: DType | None = None
    help: str = ""


class RowFunctions(Registry[RowFunction]):
    """The functions of one row that `call:` in a schema can name."""

    noun = "column function"
    group = "declog.columns"

    def adopt(self, name: str, run: Callable[..., Any]) -> RowFunction:
        """Register a plain function of a row under a name."""
        params = []
        written = signature(self.noun, name, run)
        for item in written.parameters.values():
            if item.kind in (item.VAR_POSITIONAL, item.VAR_KEYWORD, item.POSITIONAL_ONLY):
                raise UsageError.of("DL304.column_parameter", name=name, parameter=item)
            params.append((item.name, item.default is item.empty))
        help = (run.__doc__ or "").strip().split("\n")[0]
        return self.add(RowFunction(name, tuple(params), run, dtype_of(written.return_annotation), help))


DEFAULT = RowFunctions(RowFunctions())


@shown_at_the_call
def column(run: Callable[..., Any] | None = None, *, name: str | None = None, registry: RowFunctions = DEFAULT) -> Any:
    """Register a function of one row, for a schema's `call:` to use by name.

    The function's parameters have the names of signals or constants of the config. declog calls the function with the
    row's values as plain Python: numbers, texts, lists and maps, None for a missing value, a mapping of member to value
    for a family. The function runs in the background, only for the rows that a table's filter picked. It returns one
    value of the column's type, or None.

    >>> @declog.column                      # doctest: +SKIP
    ... def extract_answer(completion: str) -> str | None:
    ...     return completion.partition("####")[2].strip() or None
    """
    return registry.decorator(run, name)
