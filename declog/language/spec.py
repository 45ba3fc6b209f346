"""The YAML of a config as pydantic models, nothing else; ``validation.py`` makes them from plain data.

The models know the long form only; ``shorthand.py`` reads the short forms. The models check shapes and literals. The
compiler checks names, axes and expressions.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, field_validator, model_validator

from declog.errors import Path
from declog.language.dtypes import DType
from declog.language.model import (
    Conditional,
    Constants,
    Described,
    Masked,
    Metrics,
    Model,
    Says,
    Scalar,
    Short,
    Signals,
    Switched,
    Windowed,
    refused,
)
from declog.language.smoothing import MOST, Smoothing
from declog.language.spec_of_tables import ColumnSpec, FilterSpec, TableSpec
from declog.language.spec_of_tests import CaptureSpec, TestSpec

Every = int | Literal["trainer", "epoch"]
ANY = "any"  # the phase of signals that may be observed in every phase
AxisName = Literal["step", "group", "completion", "token"]
Over = Literal["window", "step", "batch", "rank", "rank_batch", "run", "run_step", "run_batch", "run_rank_batch"]
COMBINE = ("mean", "min", "max", "sum", "first", "last", "var", "std")

IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]*\Z")


class ConstantSpec(Described):
    """A value known at compile time. A plain value in YAML pins it."""

    _plain = "value"
    default: Scalar | None = None
    """The value if neither the config nor an adapter gives one."""
    value: Scalar | None = None
    """The pinned value."""

    @field_validator("default", "value")
    @classmethod
    def _number(cls, value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"[-+]?\d+,\d+", value):
            raise refused("DL202.decimal_comma", text=value, number=value.replace(",", "."))
        return value


class GroupAxis(Model):
    """The completions of a group: those with one id, or ``size`` consecutive ones."""

    _short = Annotated[int | str, Field(description="Completions per group, or the signal of its ids.")]
    size: int | None = Field(None, ge=1)
    """Completions per group, where groups are consecutive rows; beside `of` it is checked against the ids."""
    of: Signals | list[Signals] | None = None
    """The signal that names each completion's group; of a list the first that a batch has."""
    split: Literal["none", "batches", "ranks"] = "none"
    """How far a group may be spread: within one batch of one rank, over batches of a rank, or over ranks."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The signals that name groups, the preferred one first."""
        return (self.of,) if isinstance(self.of, str) else tuple(self.of or ())


class CompletionAxis(Model):
    """How completions are distinguished."""

    ids: Signals | None = None
    """The signal that names each completion in every phase."""


class TokenAxis(Model):
    """Which tokens exist."""

    _short = Annotated[str, Field(description="The signal that says which tokens exist.")]
    mask: Signals | None = None
    """A signal or expression that is true where a token exists; ``all``: every token."""
    lengths: Signals | None = None
    """Where per-token signals are packed, ``[tokens]``: the signal that says how many tokens each completion has."""


class AxesSpec(Model):
    """The axes of the config's values."""

    group: GroupAxis = GroupAxis()
    completion: CompletionAxis = CompletionAxis()
    token: TokenAxis = TokenAxis()
    rank: Literal["all", "each"] = "all"
    """`each`: a metric without a `by` has a value for each rank, `reward/rank0`, and none of all ranks."""


class ModeSpec(Model):
    """A mode has its own windows; its names get ``prefix``."""

    prefix: str = ""
    """Put before the names of its values."""
    every: Every | Literal["end"] | None = None
    """A log event each N steps of a block, or at its `end`, as without it; train has the config's."""
    first: int | None = Field(None, ge=1)
    """Of train: the first log event after so many steps already, `first: 1` beside the config's `every: 50`."""


class Observed(Masked):
    """A value that the training code observes, as `signals` or `observe` of a metric declares it."""

    _short = Annotated[str, Field(pattern=r"^(step|group|completion|token)\b", description="`completion text`.")]
    axis: AxisName
    """There is one value per step, group, completion or token."""
    type: DType = DType.FLOAT
    """The type of its values."""
    family: bool | list[str] = False
    """One value per member: the training code observes a mapping of member to values. A list names all members."""
    from_: str | None = Field(None, alias="from")
    """The name it is observed under."""
    required: bool = False
    """Each batch has it: the first batch without it is refused. By default it may be absent, also in the whole run."""
    any: bool = False
    """A family of all values under undeclared names: numbers if it is per step, rows if it is per completion."""
    from_log_extra: bool = False
    """Whether a column of log_extra with its name is this signal; by default that is a column of tables only."""

    def _check(self) -> None:
        if self.any and not (self.family is True and self.axis in ("step", "completion") and self.type is DType.FLOAT):
            raise refused("DL202.any")

    @property
    def members(self) -> tuple[str, ...]:
        """The declared members; empty if any member may be observed."""
        return tuple(self.family) if isinstance(self.family, list) else ()


class Named(Switched):
    """Keys that signals, derived values and metrics have in common."""

    renamed: str | list[str] | None = None
    """Its earlier name: an error for a config that still uses it gives the new one."""
    deprecated: str | None = None
    """The replacement: every other config that uses this entry gets a warning with it."""

    @property
    def before(self) -> tuple[str, ...]:
        """The entry's earlier names."""
        return (self.renamed,) if isinstance(self.renamed, str) else tuple(self.renamed or ())


class SignalSpec(Named, Observed, Described):
    """A signal of a phase."""


class DerivedSpec(Named, Masked, Described):
    """A value per completion, token or step that is computed from signals."""

    _plain = "expr"
    expr: Annotated[Scalar, Says("signals")]
    """The expression; a text in place of the map means the same."""
    phase: str | None = None
    """The phase whose rows have it; by default that of its parts."""


class ObserveSpec(Observed):
    """The signal that a metric declares for itself."""

    phase: str | None = None
    """Where in the step it is observed; by default in any phase."""

    @model_validator(mode="before")
    @classmethod
    def _reported(cls, data: Any) -> Any:
        """Read `from` without `axis` as a number that the training loop computes, and logs by a name."""
        alone = isinstance(data, Mapping) and "from" in data and "axis" not in data
        return {"axis": "step", "phase": "reported", **data} if alone else data


class MetricSpec(Named, Conditional, Windowed):
    """A reduction of an expression, or a formula over other metrics."""

    _short = Scalar
    expr: Annotated[Scalar, Says("signals")] | list[Signals] | None = None
    """The expression that is reduced; by default the signal with the metric's id."""
    reduce: Constants | list[Constants | dict[str, Constants]] | None = None
    """A reduction, or several; `{std: pstd}` is `pstd` with the suffix `std`. The default is mean."""
    prefer: Signals | None = None
    """A signal that replaces the value wherever it arrives, such as a number that the trainer has computed itself. A
    number is of all rows: a metric with `by`, or with a `where` or `weight` of rows, does not take it."""
    formula: Metrics | None = None
    """An expression over other metrics' reduced values."""
    where: Signals | None = None
    """Which values count."""
    weight: Signals | None = None
    """How much each value counts."""
    by: Signals | list[Signals] | None = None
    """A label per row, or a list of tags; one value per label. Several: one value for each of their combinations."""
    max_labels: int = Field(64, ge=1)
    """How many labels have their own value; the rows of all further labels share one, `_other`."""
    name: str | None = None
    """The name in trackers: a template of {id}, {reduce}, {member}, {label}, and the names of the labels in `by`."""
    alias: list[str] = []
    """More names for the same value, tagged ``alias``."""
    tags: Annotated[list[str], Short(str)] = []
    """For selectors: `tag:core`."""
    log: bool = True
    """Whether it is shown; a formula can use it in any case."""
    over: Over | None = None
    """The span of one value: the window by default; each step, batch or rank of it; the run; each step of the run."""
    combine: str | None = None
    """How values of steps, batches or ranks become one: mean, min, max, sum, first, last, var, std, `ema(0.9)`,
    `rolling(50)`, `rolling_std(50)` (also var, median, min, max), `lag(1)`."""
    empty: Scalar | None = None
    """The value where no row counts; by default it is absent."""
    nan: Literal["skip", "propagate", "raise"] | None = None
    """Missing values are skipped, make the result missing, or are an error."""
    ranks: Literal["all", "main"] = "all"
    """The ranks whose rows count: all of them, or rank 0 only."""
    observe: ObserveSpec | None = None
    """Declares the signal of the metric's id, as `signals` would: `step`, or `{axis: step, from: actor/kl_loss}`."""

    @field_validator("tags")
    @classmethod
    def _words(cls, tags: list[str]) -> list[str]:
        words = [word for tag in tags for word in re.split(r"[,\s]+", tag) if word]
        if words != tags:
            raise refused("DL202.tag", tag=next(tag for tag in tags if tag not in words), tags=", ".join(words))
        return tags

    @field_validator("combine")
    @classmethod
    def _combines(cls, combine: str | None) -> str | None:
        if combine is None or combine in COMBINE or Smoothing.of(combine) is not None:
            return combine
        if combine.startswith(("ema", "ewm")):
            raise refused("DL202.ema", text=combine, fix=Smoothing.weighed(combine))
        if (meant := Smoothing.meant(combine)) is not None:
            raise refused("DL202.rolling", text=combine, least=meant.least, most=MOST, fix=meant)
        if (count := Smoothing.other(combine)) is not None:
            raise refused("DL202.rolling_other", text=combine, count=count)
        raise refused(
            "DL202.combine_name", name=combine, known=[*COMBINE, "ema(0.9)", "rolling(50)", "rolling_std(50)", "lag(1)"]
        )

    @property
    def smoothing(self) -> Smoothing | None:
        """The smooth curve that `combine` names, or None."""
        return Smoothing.of(self.combine or "")

    @property
    def cumulative(self) -> bool:
        """Whether a value covers the run so far."""
        return self.over is not None and self.over.startswith("run")

    @property
    def pool(self) -> str:
        """The unit that is reduced at once: the window, or each step, batch or rank."""
        if self.over is None:
            return "window" if self.smoothing is None else "step"
        return self.over.removeprefix("run").removeprefix("_") or "window"


class AboutSpec(Described):
    """Help for readers of a metric's curve; the section `metrics` says how it is computed."""

    title: str = ""
    """The title of its curve; by default its name."""
    unit: str = ""
    """Its unit, such as nats."""
    good: Literal["up", "down"] | None = None
    """The better direction, if there is one."""
    healthy: Annotated[tuple[float, float] | None, Short(tuple[float | None, float | None])] = None
    """The lowest and the highest value of a healthy run; null for no bound."""
    runbook: str = ""
    """What to do if the value is outside of `healthy`."""
    chart: str = ""
    """The chart of a report: metrics with the same name here share one."""

    @field_validator("healthy", mode="before")
    @classmethod
    def _bounds(cls, healthy: Any) -> Any:
        if healthy is None:
            return None
        pair = healthy if isinstance(healthy, list | tuple) and len(healthy) == 2 else ("", "")
        low, high = (end if one is None else one for one, end in zip(pair, (-math.inf, math.inf), strict=True))
        if not all(isinstance(one, int | float) and not isinstance(one, bool) for one in (low, high)):
            raise refused("DL202.healthy", example="0, 1")
        if not low <= high:
            raise refused("DL202.healthy", example=f"{high:g}, {low:g}")
        return low, high


class SelectorSpec(Conditional):
    """Metrics, reductions or tables by id, tag or glob; several are separated by spaces."""

    _plain, _plain_type = "select", str
    _short = str
    select: Annotated[str, Says("metrics", "selector")]
    """Ids, `id.suffix`, `tag:core`, globs, `table:samples`."""


class ProfileSpec(Described):
    """A selection of metrics to show: all, or a closed list. `slim` is `only: ["tag:core"]` by default."""

    only: list[SelectorSpec] | None = None
    """Only these: a closed list, of tables too if it names one; by default everything, which is also `["*"]`."""
    hide: list[SelectorSpec] = []
    """Not these."""
    show: list[SelectorSpec] = []
    """These too, whatever `only` and `hide` say; but what `hide` names, no pattern brings back."""
    self_metrics: bool = False
    """Show the costs of declog itself, under `declog/...`."""


class AlertSpec(Switched, Conditional, Described):
    """A condition over metrics that sends a message: bounds of the metric with its id, or `when`."""

    _short = str
    above: float | None = None
    """It fires if the metric with its id is above this bound."""
    below: float | None = None
    """It fires if the metric with its id is below this bound; with `above`, outside of both."""
    for_: int = Field(1, alias="for", ge=1)
    """Log events in a row."""
    cooldown: int = Field(0, ge=0)
    """For so many log events after it fired it does not fire again."""
    level: Literal["info", "warn", "error"] = "warn"
    """How bad it is."""
    do: list[Literal["stop"]] = []
    """A further action: `stop` ends training, on every rank after the same step."""
    text: Annotated[str, Says("metrics", "template")] = ""
    """The message, with values by their ids: `KL is {kl:.3f}`."""

    def _check(self) -> None:
        if self.above is not None and self.below is not None and self.above <= self.below:
            raise refused("DL202.no_room", above=f"{self.above:g}", below=f"{self.below:g}")


class SinkSpec(Model):
    """A sink; keys that are not listed here are options of its kind."""

    model_config = ConfigDict(extra="allow")

    kind: str | None = None
    """Which sink; by default that of its name."""
    profile: str | None = None
    """The profile that it shows; by default the config's."""
    every: int = Field(1, ge=1)
    """Takes each N-th log event, and all of a mode that logs once per block, such as an evaluation."""
    prefix: str = ""
    """Put before every name."""
    ranks: Literal["main", "each"] | None = None
    """Who writes a table without a filter: `each` rank its own rows, as file sinks do, or `main`: rank 0, all."""
    on_error: Literal["report", "raise"] = "report"
    """Whether a failure of it is a failure of the log event, too."""
    queue_bytes: int = Field(64 * 2**20, ge=1)
    """How much may wait for it; then log events wait for the sink."""


class RunSpec(Model):
    """How declog behaves in a run, and which data of the run it keeps."""

    project: str = "run"
    """What the run is compared in: the folder below `outputs`, and the project of trackers."""
    name: str | None = None
    """The name of the run in trackers and on its page; by default trackers get its id."""
    append: bool = False
    """Add this run to the folder `output_dir` where that holds an earlier one; rows say by `run_id` whose they are."""
    strict: bool = False
    """Raise declog's own later failures instead of reporting them: for tests."""
    blocking: bool = False
    """Finish each log event inside its step."""
    window_bytes: int = Field(256 * 2**20, ge=1)
    """The most bytes of a window on rank 0; beyond it the rows of closed steps are folded to statistics."""
    backlog_bytes: int = Field(2**30, ge=1)
    """The most bytes of rows that wait on a rank for its worker; beyond it steps wait."""
    keep_bytes: int = Field(2 * 10**9, ge=0)
    """The most bytes of rows that the run keeps in its folder, for metrics that are added later; 0: none."""
    late: bool = False
    """Whether the running job logs metrics that are added during the run, from then on."""
    capture: CaptureSpec = CaptureSpec(enabled=False)
    """Which inputs of the training code are kept, for `declog preview`."""
    config: dict[str, Any] = {}
    """How the run is configured, sent once to every tracker."""


class LogSpec(Model):
    """A config."""

    spec: Literal[1] = 1
    """The version of the language."""
    profile: str = "full"
    """The default profile; a sink may name another."""
    every: Every = 1
    """A log event each N optimizer steps; `trainer`: when the trainer logs; `epoch`: at the end of its epochs."""
    output_dir: str | None = None
    """Where local files go; by default a new folder: Hydra's run directory, else `outputs/<name>/<time>`."""
    run: RunSpec = RunSpec()
    """How declog behaves in a run; the logged values do not depend on it."""
    constants: dict[str, ConstantSpec] = {}
    """Values known at compile time."""
    axes: AxesSpec = AxesSpec()
    """Groups, completions and tokens: how they are told apart."""
    modes: dict[str, ModeSpec] = {}
    """Train and eval, each with its own windows."""
    signals: dict[str, dict[str, SignalSpec]] = {}
    """The values that the training code observes, by phase: `rollout`, `update`; `any` is for every phase."""
    derived: dict[str, DerivedSpec] = {}
    """Values that are computed from signals: `ratio: exp(logprobs - old_logprobs)`."""
    metrics: dict[str, MetricSpec] = {}
    """The logged values."""
    about: dict[str, AboutSpec] = {}
    """Help for metrics, by their ids: titles, units, healthy ranges, runbooks."""
    filters: dict[str, FilterSpec] = {}
    """Which rows tables take."""
    schemas: dict[str, dict[str, ColumnSpec]] = {}
    """Tables' columns."""
    tables: dict[str, TableSpec] = {}
    """Samples: rows of a schema, picked by a filter."""
    profiles: dict[str, ProfileSpec] = {}
    """Selections of metrics to show, by name."""
    alerts: dict[str, AlertSpec] = {}
    """Conditions that send a message."""
    sinks: Annotated[list[str], Short(str)] = []
    """The outputs: kinds of sinks, or names from `sink_options`; `none` opens none."""
    sink_options: dict[str, SinkSpec] = {}
    """Options of sinks, by their names."""
    tests: dict[str, TestSpec] = {}
    """Config tests."""
    deleted: frozenset[str] = Field(frozenset(), exclude=True)

    @property
    def declared(self) -> list[tuple[Path, SignalSpec | DerivedSpec]]:
        """All signals, observed and derived, with their paths."""
        observed = [
            (("signals", phase, name), spec)
            for phase, names in sorted(self.signals.items())
            for name, spec in names.items()
        ]
        return [*observed, *((("derived", name), spec) for name, spec in self.derived.items())]
