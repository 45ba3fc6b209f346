"""The plan of a config: frozen data that is equal on every rank, and that the runtime executes.

``words.py`` prints a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Literal

from declog.language.absence import too_few
from declog.language.dtypes import Axis, DType
from declog.language.functions import BUILTIN, Function
from declog.language.nodes import SIGNAL, Node, walk
from declog.language.reductions import Reduction
from declog.language.row_functions import RowFunction
from declog.language.smoothing import Smoothing
from declog.plans import fingerprint
from declog.records import Level

TRACE = ".trace"  # the suffix of a column whose rows are rows of tokens
NO_SINK = "the config has no sink: what it logs is written nowhere; add one, such as `sinks: [console, jsonl]`"
PREFERRED = "__prefer"  # the end of the id of the hidden metric that a metric's `prefer` makes
Key = str  # a metric's id, or id.suffix for one of several reductions


def between(low: float, high: float) -> str:
    """Two bounds in words; an infinite one is left out."""
    if low == -inf:
        return "" if high == inf else f"at most {high:g}"
    return f"at least {low:g}" if high == inf else f"{low:g} to {high:g}"


@dataclass(frozen=True, kw_only=True)
class SignalOp:
    """A signal that the plan needs: the name under which it is observed, its type, and its use."""

    name: str
    source: str
    dtype: DType
    axis: Axis
    phase: str
    family: bool = False
    required: bool = False
    recorded: bool = False  # its rows are recorded
    folded: bool = False  # a token fold reads it
    packed: bool = False  # per token; the tokens of all completions are in one row
    unmasked: bool = False  # per token; no mask says which tokens exist
    any: bool = False  # a family that takes every name that no other signal has
    members: tuple[str, ...] = ()  # the only members that the family may have
    homes: tuple[str, ...] = ()  # the phases under which it is declared

    @cached_property
    def key(self) -> tuple[str, None]:
        """The key of the signal's column."""
        return self.name, None

    @cached_property
    def argument(self) -> str:
        """The signal as an argument of ``log.observe``, for messages: its name may be no word of Python."""
        return f"{self.source}=..." if self.source.isidentifier() else f"**{{{self.source!r}: ...}}"

    @cached_property
    def shape_name(self) -> str:
        """The name of the signal's shape in the words of the config."""
        return "packed" if self.packed else self.axis.label

    @cached_property
    def counted(self) -> str:
        """The noun for the signal's rows."""
        return "groups" if self.axis is Axis.GROUP else "tokens" if self.packed else "completions"

    @cached_property
    def number(self) -> bool:
        """Whether the signal is a plain float per step, which is recorded without a check."""
        return self.axis is Axis.STEP and self.dtype is DType.FLOAT and self.recorded and not self.folded


@dataclass(frozen=True, kw_only=True)
class FoldOp:
    """A per-token expression that is folded on the device to statistics per completion.

    If ``expr`` is None, the fold counts the tokens of the mask, without tokens where ``of`` is absent. The columns are
    ``{name}.{stat}``. With ``trace``, the fold keeps the first and the last values instead, in a column of rows.
    """

    name: str
    phase: str
    expr: Node | None
    mask: tuple[Node, ...]
    stats: tuple[str, ...]  # among n, total, m2, min, max, first, last, and hist (a sketch of the whole batch)
    of: Node | None = None
    trace: tuple[int, int] | None = None  # the numbers of first and last values to keep, as the only statistic

    def column(self, stat: str) -> str:
        """The column that holds a statistic."""
        return f"{self.name}.{stat}"

    @cached_property
    def keys(self) -> Mapping[str, tuple[str, None]]:
        """The keys of the fold's columns, by statistic."""
        return {stat: (self.column(stat), None) for stat in self.stats}

    @cached_property
    def sums(self) -> tuple[str | None, str] | None:
        """The names of value and mask, if the fold only counts a mask, or only counts and sums a signal of floats.

        The name of the value is None if the fold only counts. None for any other fold.
        """
        read = [node for node in (*self.mask, self.expr) if node is not None]
        stats = ("n",) if self.expr is None else ("n", "total")
        floats = self.expr is None or self.expr.type.dtype is DType.FLOAT
        if not floats or self.stats != stats or self.of is not None or len(self.mask) != 1:
            return None
        if any(node.op != SIGNAL or node.type.axis is not Axis.TOKEN for node in read):
            return None
        names = [str(node.param("name")) for node in read]
        return None if self.expr is None else names[1], names[0]

    @cached_property
    def reads(self) -> frozenset[str]:
        """The signals that the fold needs, including the signals of its masks."""
        return frozenset(_signals((*self.mask, *(node for node in (self.expr, self.of) if node is not None))))

    @cached_property
    def complete(self) -> bool:
        """Whether no value can be absent once the signals are observed."""
        return not any(too_few(node) for node in (*self.mask, self.expr, self.of) if node is not None)

    @cached_property
    def masks(self) -> frozenset[str]:
        """The signals in the masks."""
        return frozenset(_signals(self.mask))


@dataclass(frozen=True, kw_only=True)
class LocalOp:
    """A value that each rank computes from its own rows before it sends the window: a column of numbers or labels.

    The expression reads texts, or rows of a later phase ``source`` that belong to the same completions.
    """

    name: str
    phase: str
    expr: Node
    source: str | None = None

    @cached_property
    def reads(self) -> frozenset[str]:
        """The signals that the value is computed from, including the signals of masks."""
        return frozenset(_signals([self.expr]))


@dataclass(frozen=True, kw_only=True)
class JoinOp:
    """A value per completion of one phase, looked up for the rows of a later phase, where it becomes a column.

    If the source phase has only values per step, the column has one value for every batch of the target phase.
    """

    name: str
    source: str
    target: str
    expr: Node
    axis: Axis = Axis.COMPLETION


@dataclass(frozen=True, kw_only=True)
class PreviousOp:
    """The value that an expression had at the previous step. It becomes a column of its phase."""

    name: str
    phase: str
    expr: Node
    first: Node


@dataclass(frozen=True, kw_only=True)
class NameOp:
    """A name template of an output, and whether it is an alias."""

    template: str
    alias: bool = False


@dataclass(frozen=True, kw_only=True)
class AboutOp:
    """The meaning of a value, for its readers. It affects no number."""

    help: str = ""
    title: str = ""
    unit: str = ""
    good: str | None = None  # `up` or `down`
    healthy: tuple[float, float] | None = None  # both bounds are healthy values; infinite: no bound
    runbook: str = ""
    chart: str = ""  # the chart that shows the curve with others

    @property
    def lines(self) -> tuple[str, ...]:
        """The meaning in words, one line for each part that the config gives."""
        better = {"up": "higher is better", "down": "lower is better", None: ""}[self.good]
        bounds = between(*self.healthy) if self.healthy else ""
        facts = (self.unit and f"in {self.unit}", better, bounds and f"healthy: {bounds}")
        what = ": ".join(filter(None, (self.title, self.help)))
        advice = self.runbook and f"what to do: {self.runbook}"
        return tuple(filter(None, (what, "; ".join(filter(None, facts)), advice)))


@dataclass(frozen=True, kw_only=True)
class OutputOp:
    """The common part of metrics and formulas: how the pieces of a window are combined, and the names."""

    id: str
    key: Key
    every: int
    pool: str
    combine: str
    empty: float | None
    family: bool
    names: tuple[NameOp, ...]
    labels: tuple[str, ...] = ()  # the names that `by` reads, one for each part of a label; templates use them
    tags: tuple[str, ...] = ()
    shown: bool = True
    when: Node | None = None
    smoothing: Smoothing | None = None  # the smooth curve over its pieces
    max_labels: int = 64  # for a formula: the greatest limit among the metrics that it reads
    about: AboutOp = AboutOp()

    @property
    def called(self) -> str:
        """The key in messages: the hidden metric of `prefer` is called as the user's metric."""
        return self.key.replace(PREFERRED, "")

    @property
    def over_run(self) -> Literal["moments", "first", "last", "ema", "rolling", "lag"] | None:
        """The kind of state between log events: moments of all rows, the first or latest value, or a smooth curve."""
        return None if self.smoothing is None else self.smoothing.way


@dataclass(frozen=True, kw_only=True)
class MetricOp(OutputOp):
    """One reduction of one expression.

    ``args`` are nodes that the worker evaluates; ``fold`` names the fold of a value per token.
    """

    suffix: str | None
    reduction: Reduction
    params: tuple[tuple[str, Any], ...]
    args: tuple[Node, ...]
    fold: str | None
    phase: str
    axis: Axis
    dtype: DType
    where: Node | None
    by: Node | None
    weight: Node | None
    nan: str
    cumulative: bool = False
    ranks: str = "all"
    prefer: str | None = None  # the metric whose values, if any, replace this metric's values
    tokens: str | None = None  # the fold that counts the metric's tokens, if missing tokens must be counted

    @property
    def clauses(self) -> dict[str, Node]:
        """The metric's `where`, `by` and `weight`, if given."""
        nodes = {"where": self.where, "by": self.by, "weight": self.weight}
        return {key: node for key, node in nodes.items() if node is not None}

    @property
    def over_run(self) -> Literal["moments", "first", "last", "ema", "rolling", "lag"] | None:
        """As for any output. A metric over the run keeps moments, or a first or latest value if it has no moments."""
        if self.smoothing is not None or not self.cumulative:
            return super().over_run
        if self.pool != "window":
            return "first" if self.combine == "first" else "last" if self.combine == "last" else "moments"
        return "moments" if self.reduction.foldable else "last"

    @property
    def total(self) -> bool:
        """Whether the value adds up over the run."""
        return self.over_run == "moments" and self.pool == "window" and self.reduction.name in ("sum", "count")


@dataclass(frozen=True, kw_only=True)
class FormulaOp(OutputOp):
    """An expression over the values of other metrics, cell by cell; formulas are in the order of their dependencies."""

    expr: Node


@dataclass(frozen=True, kw_only=True)
class FilterOp:
    """A choice of rows of ``axis``. ``source`` is a filter that runs before.

    The filter chooses ``within`` the window, or each step, batch or group of it, and within each value of ``label``.
    ``keyed`` marks the rows that have a key and a label, if one of these is a text that may stay on its rank. ``ids``
    identify rows, for filters that choose by id.
    """

    id: str
    kind: str
    phase: str
    key: Node | None
    where: Node | None
    top: int
    bottom: int
    within: tuple[str, ...]
    label: Node | None
    n: int
    fraction: float
    limit: int | None
    source: FilterOp | None = None
    axis: Axis = Axis.COMPLETION
    keyed: tuple[Node, ...] = ()
    ids: Node | None = None
    take: str = "row"  # or `group`: then the axis is groups, and the filter takes their completions

    @property
    def reads(self) -> dict[str, Node]:
        """The expressions of the filter, by their keys in the config."""
        key = "unique" if self.kind == "unique" else "key"
        nodes = {key: self.key, "where": self.where, "within": self.label}
        return {name: node for name, node in nodes.items() if node is not None}

    @property
    def keys(self) -> tuple[Node, ...]:
        """The expressions for which a row must have a value."""
        return tuple(node for node in (self.key, self.label) if node is not None)

    @cached_property
    def chain(self) -> tuple[FilterOp, ...]:
        """The filters in the order in which they run, this one last."""
        return (*(self.source.chain if self.source else ()), self)


@dataclass(frozen=True, kw_only=True)
class TokensOp:
    """The tokens of a column: the first ``head`` and the last ``tail`` tokens, and ``values`` per token by name.

    The expression of the column gives the tokens' ids, or pieces of text. If texts are redacted, ``margin`` more tokens
    are recorded at each cut. ``pieces`` turns ids into texts.
    """

    DEFAULT: ClassVar[tuple[int, int]] = (128, 384)
    MARGIN: ClassVar[int] = 32

    head: int
    tail: int
    values: tuple[tuple[str, Node], ...] = ()
    margin: int = 0
    pieces: Callable[[Sequence[int]], list[str]] | None = None

    @property
    def recorded(self) -> tuple[int, int]:
        """The numbers of first and last tokens that are recorded."""
        return self.head + self.margin, self.tail + self.margin


@dataclass(frozen=True, kw_only=True)
class ColumnOp:
    """A column of a table: an ``expr``, a ``call`` with its ``args``, or (``undeclared``) columns of ``log_extra``.

    ``origin`` names a field of ``Places``, whose values the column has where the ``expr`` has none.
    """

    id: str
    template: str
    type: DType
    expr: Node | None = None
    family: bool = False
    required: bool = False
    max_chars: int | tuple[int, int] | None  # a pair: the characters of head and tail
    redact: tuple[tuple[str, str], ...]
    undeclared: str | None = None
    origin: str | None = None
    call: RowFunction | None = None
    args: tuple[tuple[str, Node], ...] = ()
    role: str | None = None  # the speaker of the text, for conversations
    tokens: TokensOp | None = None  # set if the column has tokens

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The expressions that the column reads."""
        values = () if self.tokens is None else tuple(node for _, node in self.tokens.values)
        return tuple(node for _, node in self.args) if self.expr is None else (self.expr, *values)

    @property
    def keeps(self) -> bool:
        """Whether the op keeps undeclared columns of ``log_extra``."""
        return self.undeclared == "keep"


@dataclass(frozen=True, kw_only=True)
class TableOp:
    """A table: columns, and a filter that chooses its rows."""

    id: str
    name: str
    axis: Axis
    phase: str
    columns: tuple[ColumnOp, ...]
    filter: FilterOp | None
    every: int
    keep: str
    sinks: tuple[str, ...]
    texts: tuple[str, ...] = ()  # text columns that are only needed for chosen rows
    as_trace: bool = False
    max_bytes: int | None = None
    local: frozenset[str] = frozenset()  # the sinks to which each rank writes its own rows


@dataclass(frozen=True, kw_only=True)
class ProfileOp:
    """The contents of a profile: outputs by (key, alias), tables by id.

    ``names`` choose among the members and labels of an output: globs of names, each with whether it shows or hides. The
    last glob that fits counts. ``conditions`` hide names at a log event: (names, a condition, whether the names are
    hidden if the condition holds or if it does not). ``hides``: the outputs, or some of their names, that its `hide`
    selects. ``idle``: the profile's `show` adds nothing.
    """

    name: str
    outputs: frozenset[tuple[Key, bool]]
    tables: frozenset[str]
    conditions: tuple[tuple[frozenset[tuple[Key, bool, str]], Node, bool], ...] = ()
    runtime: bool = True  # values of log_metric are shown
    self_metrics: bool = False  # declog's own costs are shown
    names: Mapping[tuple[Key, bool], tuple[tuple[str, bool], ...]] = field(default_factory=dict)
    hides: frozenset[tuple[Key, bool]] = frozenset()
    idle: bool = False


STOP = "stop"  # the action of an alert that stops the run
NAME = "name"  # the format, in an alert's text, that prints the name of a value: `{by_level:name}`


@dataclass(frozen=True, kw_only=True)
class AlertOp:
    """A condition over metrics' values."""

    id: str
    when: Node
    for_: int
    cooldown: int
    level: Level
    do: tuple[str, ...]
    text: str
    fields: tuple[tuple[str, Node], ...] = ()  # the metrics in the text, by the name that the text uses

    @property
    def reads(self) -> tuple[Node, ...]:
        """The expressions in the condition and in the text."""
        return (self.when, *(node for _, node in self.fields))


@dataclass(frozen=True, kw_only=True)
class SinkOp:
    """A configured sink."""

    id: str
    kind: str
    options: tuple[tuple[str, Any], ...]
    profile: str
    every: int
    prefix: str
    ranks: str
    on_error: Literal["report", "raise"]
    queue_bytes: int
    accepts: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class CaptureOp:
    """The capture of the training code's calls: every N-th log event, with limits in bytes."""

    every: int
    mode: str | None  # capture only this mode
    limit: int
    queue: int
    folder: str | None


@dataclass(frozen=True, kw_only=True)
class ModeOp:
    """A mode with its own windows: a log event every ``every`` steps, or (0) at the end of each block."""

    name: str
    prefix: str
    every: int


@dataclass(frozen=True, kw_only=True)
class PhaseOp:
    """A phase's signals, folds and local columns, in the order in which they are recorded.

    ``unread`` are declared signals whose rows no metric or table reads in this phase. If they are ``recorded``, their
    columns are kept with the run's rows.
    """

    name: str
    signals: tuple[SignalOp, ...]
    folds: tuple[FoldOp, ...]
    locals: tuple[LocalOp, ...]
    unread: tuple[SignalOp, ...] = ()
    lengths: str | None = None  # the signal with the number of packed tokens of each completion
    sent: frozenset[str] = frozenset()  # columns of texts that every rank sends in full, because they are labels
    groups_of: str | None = None  # the earlier phase in which the same rows have their groups

    @cached_property
    def declared(self) -> frozenset[str]:
        """The names of this phase's signals, without a family that takes any name."""
        return frozenset(signal.name for signal in self.signals if not signal.any)

    @cached_property
    def integers(self) -> frozenset[str]:
        """The names of integer signals, including signals that nothing reads."""
        return frozenset(signal.name for signal in (*self.signals, *self.unread) if signal.dtype is DType.INT)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The signals that the folds read."""
        return frozenset(name for fold in self.folds for name in fold.reads)


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """The grouping of rows: ``size`` consecutive rows, or equal values of the first signal of ``of`` in a batch."""

    size: int | None = None
    of: tuple[str, ...] = ()
    split: str = "none"  # how far a group may be spread: none | batches | ranks


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything the runtime needs to know; see ``declog.compiler.compile``."""

    name: str
    every: int
    phases: Mapping[str, PhaseOp]
    grouping: Grouping | None
    metrics: tuple[MetricOp, ...]
    formulas: tuple[FormulaOp, ...]
    tables: tuple[TableOp, ...]
    profiles: Mapping[str, ProfileOp]
    sinks: tuple[SinkOp, ...]
    alerts: tuple[AlertOp, ...] = ()
    logged: SignalOp | None = None  # the signal that log_metric feeds
    extra: str | None = None  # the phase to whose rows log_extra adds columns
    ids: str | None = None  # the signal of row ids, if phases are joined by them
    joins: tuple[JoinOp, ...] = ()
    previous: tuple[PreviousOp, ...] = ()
    # the phase of each observed name that has only one phase, including signals that the plan does not need
    homes: Mapping[str, str] = field(default_factory=dict)
    modes: Mapping[str, ModeOp] = field(default_factory=dict)
    inactive: tuple[tuple[str, str], ...] = ()  # entries that are not compiled, with the reason
    unseen: tuple[str, ...] = ()  # metrics that no sink shows
    user_metrics: frozenset[str] = frozenset()  # metrics that are declared in the user's own files and overrides
    user_columns: frozenset[tuple[str, str]] = frozenset()  # columns that these put into tables: (table, column)
    warnings: tuple[str, ...] = ()  # probable mistakes
    signal_names: frozenset[str] = frozenset()  # all names that may be observed
    renamed: Mapping[str, str] = field(default_factory=dict)  # former names of signals, with the new ones
    extras: frozenset[str] = frozenset()  # signals that columns of log_extra may feed
    known_phases: frozenset[str] = frozenset()  # all phases of the config
    project: str = "run"
    run_config: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    in_code: bool = False  # sinks were passed in Python; they take every table that their profile shows
    output_dir: str | None = None
    append: bool = False  # the folder may hold an earlier run
    strict: bool = False
    blocking: bool = False
    first: int = 0  # the number of steps before the first log event; 0: `every`
    keep_bytes: int = 2 * 10**9  # the most bytes of rows that are kept in the run's folder; 0: none are kept
    late: bool = False  # metrics may be added while the run goes on
    window_bytes: int = 256 * 2**20  # the size in bytes at which an open window is folded
    backlog_bytes: int = 2**30  # the limit of the worker's queue in bytes
    capture: CaptureOp | None = None
    redactions: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)  # patterns by captured text
    offered: Mapping[str, Any] = field(default_factory=dict)  # constants that an integration may set
    requested: frozenset[str] = frozenset()  # profiles of sinks that were passed in Python
    functions: Mapping[str, Function] = field(default_factory=dict)  # the functions that are not declog's own

    @cached_property
    def kept(self) -> str | None:
        """The phase to whose completions `log.keep` adds columns. None if no rows are kept, or no phase has rows."""
        # a recorded signal gives the number of completions in a batch
        described = (op.phase for op in self.signals if op.axis is Axis.COMPLETION and op.recorded)
        return (self.extra or next(described, None)) if self.keep_bytes else None

    @property
    def outputs(self) -> tuple[MetricOp | FormulaOp, ...]:
        """Metrics and formulas together."""
        return (*self.metrics, *self.formulas)

    def taken(self, signals: Mapping[str, Any]) -> dict[str, Any]:
        """The given signals that may be observed: all of them if a family takes any name."""
        every = any(op.any for op in self.signals)
        return {name: value for name, value in signals.items() if every or name in self.signal_names}

    @property
    def signals(self) -> Iterator[SignalOp]:
        """The needed signals of all phases."""
        return (op for phase in self.phases.values() for op in phase.signals)

    @cached_property
    def sources(self) -> dict[str, tuple[SignalOp, ...]]:
        """The needed signals by the name under which they are observed. Several phases may need one name."""
        return _by_source(self.signals)

    @cached_property
    def unread(self) -> dict[str, tuple[SignalOp, ...]]:
        """The signals that are kept but not read, by the name under which they are observed."""
        return _by_source(op for phase in self.phases.values() for op in phase.unread if op.recorded)

    @cached_property
    def observed(self) -> KeysView[str]:
        """The names whose values are recorded or kept, in the plan's order, which is the same in every process."""
        return dict.fromkeys((*self.sources, *self.unread)).keys()

    @cached_property
    def folds(self) -> dict[str, FoldOp]:
        """All token folds by name."""
        return {fold.name: fold for phase in self.phases.values() for fold in phase.folds}

    def function(self, name: str) -> Function | None:
        """The function of an operation in the plan's expressions."""
        return self.functions.get(name) or BUILTIN.get(name)

    def ends(self, mode: str, count: int, period: int) -> bool:
        """Whether windows of a period end with the ``count``-th step of a mode."""
        early = mode == "train" and period == self.every and count == self.first
        return bool(period) and (count % period == 0 or early)

    @cached_property
    def periods(self) -> tuple[int, ...]:
        """The lengths of all windows in optimizer steps, ascending, including the config's `every`."""
        return tuple(sorted({self.every, *(op.every for op in self.outputs), *(op.every for op in self.tables)}))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the parts of the plan that must be equal on every rank: 16 hexadecimal digits."""
        return fingerprint.digest(self.canonical)

    @cached_property
    def windows(self) -> str:
        """A digest of the parts that decide rows and states: if it is equal, a run can continue inside of a window."""
        return fingerprint.digest(fingerprint.canonical(self, fingerprint.SHOWN))

    @cached_property
    def canonical(self) -> dict[str, str]:
        """The plan as text by path, for the comparison between ranks."""
        return fingerprint.canonical(self)

    @property
    def ops(self) -> int:
        """The number of operations: recorded signals, folds, reductions, formulas, tables."""
        recorded = sum(len(phase.signals) + len(phase.folds) + len(phase.locals) for phase in self.phases.values())
        return recorded + len(self.outputs) + len(self.tables)

    @property
    def shown_names(self) -> Iterator[tuple[MetricOp | FormulaOp, NameOp]]:
        """Each name that trackers see, with its metric."""
        return ((op, item) for op in self.outputs if op.shown for item in op.names)

    def names(self) -> list[str]:
        """The templates of all names that trackers see. The name of a family contains ``{member}``."""
        return list(dict.fromkeys(item.template for _, item in self.shown_names))


def _by_source(signals: Iterable[SignalOp]) -> dict[str, tuple[SignalOp, ...]]:
    by_source: dict[str, tuple[SignalOp, ...]] = {}
    for op in signals:
        by_source[op.source] = (*by_source.get(op.source, ()), op)
    return by_source


def _signals(roots: Iterable[Node]) -> Iterator[str]:
    """The names of all signals in some expressions and in their masks."""
    for node in walk(*roots):
        if node.op == SIGNAL:
            yield str(node.param("name"))
        yield from _signals(node.mask)
