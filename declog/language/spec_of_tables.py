"""The models of filters, columns and tables, which say which samples are kept. Only shapes are checked here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from declog.language.dtypes import DType
from declog.language.model import Described, Model, Says, Scalar, Signals, Switched, Windowed, refused

ColumnType = Literal["float", "int", "bool", "text", "object", "tokens"]

Within = Literal["group", "batch", "step", "window"]


class FilterSpec(Model):
    """Which rows of a table are taken: by one of these keys, or all that `where` allows."""

    key: Signals | None = None
    """The number per row by which `top` and `bottom` order rows."""
    top: int = Field(0, ge=0)
    """How many rows with the greatest numbers."""
    bottom: int = Field(0, ge=0)
    """How many rows with the smallest numbers."""
    first: int | None = Field(None, ge=0)
    """How many of the first rows."""
    random: int | None = Field(None, ge=0)
    """How many random rows."""
    fraction: float | None = Field(None, ge=0, le=1)
    """The share of rows that is taken at random."""
    unique: Signals | None = None
    """The first row of each of its values."""
    take: Literal["row", "group"] = "row"
    """The unit that is chosen: rows, or groups by their values per group, with all their completions."""
    within: Within | Signals | list[Within | Signals] = "window"
    """Where each choice is made: in each of these, or in each value of a label; a list: in each combination."""
    limit: int | None = Field(None, ge=0)
    """The most rows per log event."""
    where: Signals | None = None
    """Which rows can be chosen."""
    from_: Annotated[str, Says("filters", "name")] | None = Field(None, alias="from")
    """A filter whose rows are filtered further."""


class Length(Model):
    """How much of a longer value is kept: a number, or how much of both ends, with a note on the length of the cut."""

    _plain = "most"
    _short = Annotated[int, Field(ge=1, description="So much of its start.")]
    most: int | None = Field(None, ge=1, strict=True, exclude=True)
    head: int = Field(0, ge=0)
    """From its start on."""
    tail: int = Field(0, ge=0)
    """Until its end."""

    def _check(self) -> None:
        if self.most is None and not self.head and not self.tail:
            raise refused("DL202.head_tail")

    @property
    def kept(self) -> int | tuple[int, int]:
        """The number, or head and tail."""
        return (self.head, self.tail) if self.most is None else self.most


class ColumnSpec(Described):
    """One column of a schema: its type is a contract."""

    _plain, _plain_type = "type", str
    _short = str
    type: ColumnType | None = None
    """`tokens`: a completion's tokens as pieces of text, with `values` of each."""
    name: str | None = None
    """Its name; for a family a template with {member}."""
    expr: Annotated[Scalar, Says("signals")] | None = None
    """Its value; by default the signal with its id."""
    call: str | None = None
    """A registered Python function of the row; its parameters are names of signals or constants."""
    required: bool = False
    """No value may be missing."""
    max_chars: Length | None = None
    """Longer texts are cut, also inside lists and maps; `{head: 500, tail: 1500}` keeps so much of both ends."""
    values: dict[str, Annotated[Scalar, Says("signals")]] = {}
    """For `tokens`: values of each token, by name; `logprob: logprobs`."""
    max_tokens: Length | None = None
    """For `tokens`: how many of them; the default is `{head: 128, tail: 384}`."""
    redact: dict[str, str] = {}
    """Regular expressions whose matches are replaced by `[label]`, also inside lists and maps."""
    undeclared: Literal["keep", "drop", "error"] | None = None
    """Columns of log_extra that the schema does not name are kept, dropped, or refused where they are logged."""
    role: Literal["system", "user", "assistant", "tool"] | None = None
    """The speaker of the text, where rows are shown as conversations."""

    @property
    def dtype(self) -> DType | None:
        """The declared type; None without one, and for tokens."""
        return None if self.type in (None, "tokens") else DType(self.type)


class TableSpec(Switched, Windowed, Described):
    """Rows of a schema's columns, picked by a filter, sent to some sinks."""

    name: str | None = None
    """Its name in trackers; by default its id."""
    rows: Literal["completion", "group", "step"] = "completion"
    """One row per completion, group or step; `step`: per batch of its phase on one rank, as for signals per step."""
    schema_: Annotated[str, Says("schemas", "name")] | None = Field(None, alias="schema")
    """Which schema has its columns."""
    columns: list[Annotated[str, Says("signals", "name")]] = []
    """Its columns: names of the schema's, or of signals."""
    filter: Annotated[str, Says("filters", "name")] | FilterSpec | None = None
    """Which rows: a filter's name, a condition, or a filter in place; by default all."""
    keep: Literal["window", "last_batch"] = "window"
    """Rows of the whole window, or of its last batch."""
    to: dict[str, bool] = {}
    """Which sinks take it; by default all that take tables."""
    as_: Literal["table", "trace"] = Field("table", alias="as")
    """`trace`: rows are conversations, for the sinks that can show those; others take it as a table."""
    max_bytes: int | None = Field(None, ge=1)
    """The most bytes of one log event: later rows are cut, with a report."""

    def _check(self) -> None:
        if self.schema_ is None and not self.columns:
            raise refused("DL203.columns")
