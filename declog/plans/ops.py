"""The plan of a config: frozen data that every rank derives alike and the runtime executes.
Imports neither the models of the YAML nor the compiler. ``words.py`` prints it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, KeysView, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import Any, ClassVar, Literal

from declog.language.absence import too_few
from declog.language.dtypes import Axis, DType
from declog.language.nodes import SIGNAL, Node, walk
from declog.language.reductions import Reduction
from declog.language.row_functions import RowFunction
from declog.plans import fingerprint
from declog.records import Level

TRACE = ".trace"  # ends the name of a column of rows of tokens
MOMENTS = frozenset({"n", "total", "m2", "min", "max"})
NO_SINK = "the config has no sink: what it logs is written nowhere; add one, such as `sinks: [console, jsonl]`"
Key = str  # a metric's id, or id.suffix for one of several reductions


def between(low: float, high: float) -> str:
    """Two bounds in words; an infinite one is none."""
    if low == -inf:
        return "" if high == inf else f"at most {high:g}"
    return f"at least {low:g}" if high == inf else f"{low:g} to {high:g}"


@dataclass(frozen=True, kw_only=True)
class SignalOp:
    """A signal that the plan needs: the name it is observed under, its type, and how it is used."""

    name: str
    source: str
    dtype: DType
    axis: Axis
    phase: str
    family: bool = False
    required: bool = False
    recorded: bool = False  # its rows are recorded
    folded: bool = False  # a token fold reads it
    packed: bool = False  # per token, and the tokens of all completions lie in one row
    unmasked: bool = False  # per token, and nothing says which tokens exist
    any: bool = False  # a family of what no other signal is
    members: tuple[str, ...] = ()  # the only ones of a family that there are
    homes: tuple[str, ...] = ()  # the phases that it names

    @cached_property
    def key(self) -> tuple[str, None]:
        """The key of its column."""
        return self.name, None

    @cached_property
    def shape_name(self) -> str:
        """The name of its shape."""
        return "packed" if self.packed else self.axis.label

    @cached_property
    def counted(self) -> str:
        """The noun for its rows."""
        return "groups" if self.axis is Axis.GROUP else "tokens" if self.packed else "completions"

    @cached_property
    def number(self) -> bool:
        """Whether a float is recorded as it comes."""
        return self.axis is Axis.STEP and self.dtype is DType.FLOAT and self.recorded and not self.folded


@dataclass(frozen=True, kw_only=True)
class FoldOp:
    """A per-token expression folded on the device to statistics per completion.

    ``expr`` None counts the tokens of the mask, those at which ``of`` is absent left out. Its columns are
    ``{name}.{stat}``. ``trace`` keeps the first and the last so many of its values instead, in a column of rows.
    """

    name: str
    phase: str
    expr: Node | None
    mask: tuple[Node, ...]
    stats: tuple[str, ...]  # of n, total, m2, min, max, first, last, and hist: a sketch of the whole batch
    of: Node | None = None
    trace: tuple[int, int] | None = None  # how many of the first and of the last; its only statistic is `trace`

    def column(self, stat: str) -> str:
        """The column that holds a statistic."""
        return f"{self.name}.{stat}"

    @cached_property
    def keys(self) -> Mapping[str, tuple[str, None]]:
        """The keys of its columns, by statistic."""
        return {stat: (self.column(stat), None) for stat in self.stats}

    @cached_property
    def plain(self) -> tuple[str | None, str | None] | None:
        """The names of its value and of its mask, where each is a signal or none and it has moments alone."""
        nodes = (self.expr, *self.mask)
        if self.of is not None or len(self.mask) > 1 or not set(self.stats) <= MOMENTS:
            return None
        if any(node is not None and (node.op != SIGNAL or node.type.axis is not Axis.TOKEN) for node in nodes):
            return None
        if self.expr is not None and self.expr.type.dtype is not DType.FLOAT:
            return None
        names = [None if node is None else str(node.param("name")) for node in (*nodes, None)]
        return names[0], names[1]

    @cached_property
    def sums(self) -> tuple[str | None, str] | None:
        """The names of its value and of its mask, where it counts and sums a signal, or counts, and nothing else."""
        value, mask = self.plain or (None, None)
        simple = self.stats == (("n",) if value is None else ("n", "total"))
        return None if mask is None or not simple else (value, mask)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The signals that it needs, with those of its masks."""
        return frozenset(_signals((*self.mask, *(node for node in (self.expr, self.of) if node is not None))))

    @cached_property
    def complete(self) -> bool:
        """Whether none of it is absent where its signals came."""
        return not any(too_few(node) for node in (*self.mask, self.expr, self.of) if node is not None)

    @cached_property
    def masks(self) -> frozenset[str]:
        """The signals that say which of its tokens exist."""
        return frozenset(_signals(self.mask))


@dataclass(frozen=True, kw_only=True)
class LocalOp:
    """A value computed where the rows are, before the window is sent: a numeric or label column.

    It is of text, or of the rows of a later phase, ``source``, which are those of this one again.
    """

    name: str
    phase: str
    expr: Node
    source: str | None = None

    @cached_property
    def reads(self) -> frozenset[str]:
        """The signals that it is computed from, with those of its masks."""
        return frozenset(_signals([self.expr]))


@dataclass(frozen=True, kw_only=True)
class JoinOp:
    """A value per completion of one phase, looked up for the rows of a later one: a column of the target.

    Of a phase without rows it is one per step, for every batch of the target.
    """

    name: str
    source: str
    target: str
    expr: Node
    axis: Axis = Axis.COMPLETION


@dataclass(frozen=True, kw_only=True)
class PreviousOp:
    """A value per step as it was the step before: a column of its phase."""

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
    """The meaning of a value for its readers; no number depends on it."""

    help: str = ""
    title: str = ""
    unit: str = ""
    good: str | None = None  # `up` or `down`
    healthy: tuple[float, float] | None = None  # both belong to it; infinite where there is no bound
    runbook: str = ""
    chart: str = ""  # the chart that its curve shares with others

    @property
    def lines(self) -> tuple[str, ...]:
        """The meaning in words, a line for each part that the config has."""
        better = {"up": "higher is better", "down": "lower is better", None: ""}[self.good]
        bounds = between(*self.healthy) if self.healthy else ""
        facts = (self.unit and f"in {self.unit}", better, bounds and f"healthy: {bounds}")
        what = ": ".join(filter(None, (self.title, self.help)))
        advice = self.runbook and f"what to do: {self.runbook}"
        return tuple(filter(None, (what, "; ".join(filter(None, facts)), advice)))


@dataclass(frozen=True, kw_only=True)
class OutputOp:
    """The common part of metrics and formulas: how the values of a window become one, and its names."""

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
    ema: float | None = None  # the weight of the past in a moving average of its pieces
    about: AboutOp = AboutOp()


@dataclass(frozen=True, kw_only=True)
class MetricOp(OutputOp):
    """One reduction of one expression. ``args`` are worker nodes; ``fold`` names the fold of a token value."""

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
    max_labels: int = 64
    prefer: str | None = None  # the metric whose values stand for this one's where it has any
    tokens: str | None = None  # the fold that counts a token metric's tokens, where missing ones matter

    @property
    def clauses(self) -> dict[str, Node]:
        """Which of its values count, by what, and how much each: those keys that it has."""
        nodes = {"where": self.where, "by": self.by, "weight": self.weight}
        return {key: node for key, node in nodes.items() if node is not None}

    @property
    def over_run(self) -> Literal["moments", "last", "ema"] | None:
        """How the value goes on between log events: all rows so far together, the latest value, or an average."""
        if self.ema is not None or not self.cumulative:
            return "ema" if self.ema is not None else None
        latest = self.combine == "last" if self.pool != "window" else not self.reduction.foldable
        return "last" if latest else "moments"

    @property
    def total(self) -> bool:
        """Whether all modes add to it."""
        return self.over_run == "moments" and self.pool == "window" and self.reduction.name in ("sum", "count")


@dataclass(frozen=True, kw_only=True)
class FormulaOp(OutputOp):
    """An expression over the values of other metrics, cell by cell, in dependency order."""

    expr: Node
    max_labels: int = 64  # of an average over the run: as many as those that it reads

    @property
    def over_run(self) -> Literal["moments", "last", "ema"] | None:
        """Whether it goes on from log event to log event: as a moving average."""
        return None if self.ema is None else "ema"


@dataclass(frozen=True, kw_only=True)
class FilterOp:
    """Which rows of ``axis`` are taken; ``source`` is filtered first.

    ``keyed`` says where there is a key whose text may stay on its rank. ``ids`` name rows, where a filter goes by that.
    """

    id: str
    kind: str
    phase: str
    key: Node | None
    where: Node | None
    top: int
    bottom: int
    within: str
    n: int
    fraction: float
    limit: int | None
    source: FilterOp | None = None
    axis: Axis = Axis.COMPLETION
    keyed: Node | None = None
    ids: Node | None = None
    take: str = "row"  # or `group`: its axis is groups, and it takes their completions

    @property
    def reads(self) -> dict[str, Node]:
        """The expressions of its keys, by key."""
        key = "unique" if self.kind == "unique" else "key"
        return {name: node for name, node in ((key, self.key), ("where", self.where)) if node is not None}

    @cached_property
    def chain(self) -> tuple[FilterOp, ...]:
        """This filter and what it filters, the first to run first."""
        return (*(self.source.chain if self.source else ()), self)


@dataclass(frozen=True, kw_only=True)
class TokensOp:
    """The tokens of a column: how many of the first and of the last, and ``values`` of each token by name.
    The column's own expression gives their ids, or pieces of text. What is recorded has ``margin`` more at each cut,
    where something is to be redacted. ``pieces`` makes texts of ids.
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
        """How many of the first and of the last tokens are recorded."""
        return self.head + self.margin, self.tail + self.margin


@dataclass(frozen=True, kw_only=True)
class ColumnOp:
    """A column of a table: an ``expr``, a ``call`` with its ``args`` by name, or where columns of ``log_extra`` go."""

    id: str
    template: str
    type: DType
    expr: Node | None = None
    family: bool = False
    required: bool = False
    max_chars: int | tuple[int, int] | None  # head and tail
    redact: tuple[tuple[str, str], ...]
    undeclared: str | None = None
    call: RowFunction | None = None
    args: tuple[tuple[str, Node], ...] = ()
    role: str | None = None  # the speaker of the text, in a conversation
    tokens: TokensOp | None = None  # of a column of tokens

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The expressions that the column reads."""
        values = () if self.tokens is None else tuple(node for _, node in self.tokens.values)
        return tuple(node for _, node in self.args) if self.expr is None else (self.expr, *values)

    @property
    def keeps(self) -> bool:
        """Whether columns of ``log_extra`` go here."""
        return self.undeclared == "keep"


@dataclass(frozen=True, kw_only=True)
class TableOp:
    """Rows of some columns, picked by a filter."""

    id: str
    name: str
    axis: Axis
    phase: str
    columns: tuple[ColumnOp, ...]
    filter: FilterOp | None
    every: int
    keep: str
    sinks: tuple[str, ...]
    texts: tuple[str, ...] = ()  # columns of text that only picked rows need
    as_trace: bool = False
    max_bytes: int | None = None
    local: frozenset[str] = frozenset()  # sinks to which each rank writes its own rows


@dataclass(frozen=True, kw_only=True)
class ProfileOp:
    """The contents of a profile: outputs by (key, alias), tables by id.
    ``only`` and ``without`` are of outputs whose members or labels are not all shown, with a glob of their names;
    ``also`` are shown whatever ``without`` says.
    ``conditions`` hide names at a log event: (names, a condition, whether they are hidden where it holds or where it
    does not).
    """

    name: str
    outputs: frozenset[tuple[Key, bool]]
    tables: frozenset[str]
    conditions: tuple[tuple[frozenset[tuple[Key, bool, str]], Node, bool], ...] = ()
    runtime: bool = True  # values of log_metric are shown
    self_metrics: bool = False  # declog's own costs are shown
    only: frozenset[tuple[Key, bool, str]] = frozenset()
    without: frozenset[tuple[Key, bool, str]] = frozenset()
    also: frozenset[tuple[Key, bool, str]] = frozenset()


STOP = "stop"  # the action of an alert that stops the run


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
    fields: tuple[tuple[str, Node], ...] = ()  # the metrics that the text names, as it names them

    @property
    def reads(self) -> tuple[Node, ...]:
        """The expressions of its condition and of its text."""
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
    """The capture of the training code's calls: each N-th log event, within bounds in bytes."""

    every: int
    mode: str | None  # of this mode only
    limit: int
    queue: int
    folder: str | None


@dataclass(frozen=True, kw_only=True)
class ModeOp:
    """A mode has its own windows: a log event each ``every`` steps, or (0) at the end of its block."""

    name: str
    prefix: str
    every: int


@dataclass(frozen=True, kw_only=True)
class PhaseOp:
    """A phase's signals, folds and locals, in the order in which they are recorded.

    ``unread`` are the declared signals of which no metric or table reads rows here. Columns of those that are
    ``recorded`` are kept with the run's rows.
    """

    name: str
    signals: tuple[SignalOp, ...]
    folds: tuple[FoldOp, ...]
    locals: tuple[LocalOp, ...]
    unread: tuple[SignalOp, ...] = ()
    lengths: str | None = None  # the signal that says how packed tokens belong to completions
    sent: frozenset[str] = frozenset()  # text signals that every rank sends whole: labels

    @cached_property
    def has_completions(self) -> bool:
        """Whether a signal of it says how many completions a batch has."""
        return any(signal.axis is Axis.COMPLETION and signal.recorded for signal in self.signals)

    @cached_property
    def reads(self) -> frozenset[str]:
        """The signals that its folds need."""
        return frozenset(name for fold in self.folds for name in fold.reads)


@dataclass(frozen=True, kw_only=True)
class Grouping:
    """What a group is: ``size`` consecutive rows, or the rows of one value of the first signal of ``of`` that came."""

    size: int | None = None
    of: tuple[str, ...] = ()
    split: str = "none"  # none | batches | ranks


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
    extra: str | None = None  # the phase whose rows log_extra describes
    ids: str | None = None  # the signal that names rows, where phases are joined by it
    joins: tuple[JoinOp, ...] = ()
    previous: tuple[PreviousOp, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)  # observed names that have one phase, needed or not
    modes: Mapping[str, ModeOp] = field(default_factory=dict)
    inactive: tuple[tuple[str, str], ...] = ()  # entries that are not compiled, and why
    unseen: tuple[str, ...] = ()  # metrics that no sink shows
    user_metrics: frozenset[str] = frozenset()  # metrics that the lines of the user's config and overrides declare
    warnings: tuple[str, ...] = ()  # probable mistakes
    signal_names: frozenset[str] = frozenset()  # names that may be observed, needed or not
    renamed: Mapping[str, str] = field(default_factory=dict)  # the names that they had before
    extras: frozenset[str] = frozenset()  # signals that columns of log_extra feed
    known_phases: frozenset[str] = frozenset()  # phases that the config has, needed or not
    run_config: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    in_code: bool = False  # sinks are given in code, which take every table that their profile shows
    output_dir: str | None = None
    append: bool = False  # the folder may hold an earlier run
    strict: bool = False
    blocking: bool = False
    first: int = 0  # a log event after so many steps already; 0: none
    keep_bytes: int = 2 * 10**9  # bytes of rows that are kept in the run's folder; 0: none are
    late: bool = False  # metrics may be asked for while the run goes on
    window_bytes: int = 256 * 2**20  # size of a window at which its closed steps are folded
    backlog_bytes: int = 2**30  # size of the queue before the worker
    capture: CaptureOp | None = None
    redactions: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)  # of texts that are captured
    offered: Mapping[str, Any] = field(default_factory=dict)  # constants that an adapter offers
    requested: frozenset[str] = frozenset()  # profiles of sinks that are given in code
    functions: Mapping[str, str] = field(default_factory=dict)  # of others than declog's: where each comes from

    @cached_property
    def kept(self) -> str | None:
        """The phase whose completions `log.keep` describes; None where no rows are kept or no phase has completions."""
        described = [self.extra] if self.extra is not None else []
        described += [phase.name for phase in self.phases.values() if phase.has_completions]
        return described[0] if described and self.keep_bytes else None

    @property
    def outputs(self) -> tuple[MetricOp | FormulaOp, ...]:
        """Metrics and formulas together."""
        return (*self.metrics, *self.formulas)

    def taken(self, signals: Mapping[str, Any]) -> dict[str, Any]:
        """The signals that may be observed; a family with `any` takes all names."""
        every = any(op.any for ops in self.sources.values() for op in ops)
        return {name: value for name, value in signals.items() if every or name in self.signal_names}

    @cached_property
    def sources(self) -> dict[str, tuple[SignalOp, ...]]:
        """The needed signals by the name they are observed under; one may be needed in several phases."""
        return _by_source(op for phase in self.phases.values() for op in phase.signals)

    @cached_property
    def unread(self) -> dict[str, tuple[SignalOp, ...]]:
        """The signals that are kept and not read, by the name they are observed under."""
        return _by_source(op for phase in self.phases.values() for op in phase.unread if op.recorded)

    @cached_property
    def observed(self) -> KeysView[str]:
        """The names whose values are recorded or kept, in the plan's order, which is the same in every process."""
        return dict.fromkeys((*self.sources, *self.unread)).keys()

    @cached_property
    def folds(self) -> dict[str, FoldOp]:
        """All token folds by name."""
        return {fold.name: fold for phase in self.phases.values() for fold in phase.folds}

    def ends(self, mode: str, count: int, period: int) -> bool:
        """Whether windows of a period end with the step that is the ``count``-th of its mode."""
        early = mode == "train" and period == self.every and count == self.first
        return bool(period) and (count % period == 0 or early)

    @cached_property
    def periods(self) -> tuple[int, ...]:
        """The windows of metrics and tables, in optimizer steps, ascending; the config's own is among them."""
        return tuple(sorted({self.every, *(op.every for op in self.outputs), *(op.every for op in self.tables)}))

    @cached_property
    def fingerprint(self) -> str:
        """A digest of what every rank must agree on: 16 hexadecimal digits."""
        return fingerprint.digest(self.canonical)

    @cached_property
    def windows(self) -> str:
        """A digest of what an open window depends on: a run goes on inside one where it is equal."""
        return fingerprint.windows(self)

    @cached_property
    def canonical(self) -> dict[str, str]:
        """The plan as text by path, on which ranks must agree: equal on two ranks if their plans are."""
        return fingerprint.canonical(self)

    @property
    def ops(self) -> int:
        """The number of operations: recorded signals, folds, reductions, formulas, tables."""
        recorded = sum(len(phase.signals) + len(phase.folds) + len(phase.locals) for phase in self.phases.values())
        return recorded + len(self.outputs) + len(self.tables)

    def names(self) -> list[str]:
        """The names that trackers see, as templates; a family's has ``{member}`` in it."""
        return list(dict.fromkeys(item.template for op in self.outputs if op.shown for item in op.names))


def _by_source(signals: Iterable[SignalOp]) -> dict[str, tuple[SignalOp, ...]]:
    by_source: dict[str, tuple[SignalOp, ...]] = {}
    for op in signals:
        by_source[op.source] = (*by_source.get(op.source, ()), op)
    return by_source


def _signals(roots: Iterable[Node]) -> Iterator[str]:
    """The names of the signals below some nodes, and below their masks."""
    for node in walk(*roots):
        if node.op == SIGNAL:
            yield str(node.param("name"))
        yield from _signals(node.mask)
