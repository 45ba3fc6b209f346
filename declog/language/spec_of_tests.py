"""The models of captures and config tests.

Only shapes are checked here; ``replay`` checks names when it runs the tests.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import Field, field_validator, model_validator

from declog.language.model import Model, Scalar, refused

Signals = dict[str, Any]
Calls = list[Signals]


class CaptureSpec(Model):
    """Inputs of the training code are kept in files, one per rank, for `declog preview`. `true` keeps all."""

    _plain, _plain_type = "enabled", bool
    enabled: bool = True
    """Whether inputs are kept."""
    every: int = Field(1, ge=1)
    """Keeps each N-th log event of a mode, with all its steps."""
    mode: str | None = None
    """Keeps this mode only; by default all."""
    limit: int | str = 1_000_000_000
    """How many bytes the file of a rank may have; then the capture ends. `256MB`, say."""
    queue: int | str = 256_000_000
    """How many bytes may wait to be written; beyond it steps are left out."""
    folder: str | None = None
    """Where the files go, below the run's folder if relative; by default `capture`."""

    @field_validator("limit", "queue", mode="after")
    @classmethod
    def _bytes(cls, value: int | str) -> int:
        """Read a number of bytes, or a text such as `256MB`."""
        size = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kMGT]?i?)B?", str(value).strip(), re.IGNORECASE)
        if size is None or float(size[1]) <= 0:
            raise refused("DL202.bytes", value=value)
        base = 1024 if size[2][1:] else 1000
        return int(float(size[1]) * base ** " KMGT".index(size[2][:1].upper() or " "))


class Expected(Model):
    """An expected value: a number, bounds, or the counts of a histogram."""

    _plain = "value"
    value: float | None = Field(None, strict=True)
    tol: float | None = Field(None, ge=0)
    """How far it may be off, absolutely or relatively; the default is the test's."""
    above: float | None = None
    below: float | None = None
    counts: list[int] | None = None
    """The counts of a histogram."""

    def _check(self) -> None:
        if (self.value, self.above, self.below, self.counts) == (None, None, None, None):
            raise refused("DL202.expects_nothing")


class ExpectedTable(Model):
    """The expected rows of a table, in order. A number is the number of rows."""

    _short = int
    rows: int | None = Field(None, ge=0)
    columns: dict[str, list[Any] | None] = {}
    """Values by column; null: there is no such column."""

    @model_validator(mode="before")
    @classmethod
    def _count(cls, data: Any) -> Any:
        return {"rows": data} if isinstance(data, int) and not isinstance(data, bool) else data


class Expectations(Model):
    """The expected records."""

    expect: dict[str, Expected | None] = {}
    """Values by their name, or by the metric's id; null: it is not logged."""
    tables: dict[str, ExpectedTable | None] = {}
    """Rows by the table's id or name; null: it has none."""
    alerts: list[str] | dict[str, int | None] | None = None
    """The alerts that fire, all of them; or a map of alert to how often it fires, null: it does not."""

    @property
    def expects(self) -> bool:
        """Whether anything is expected."""
        return bool(self.expect or self.tables) or self.alerts is not None


class Input(Model):
    """Inputs of the training code. A map of signals, or a list of maps, stands for `observe`."""

    _short: ClassVar[Any] = Calls
    observe: Signals | Calls | None = None
    """Signals by name; a list is several calls: a signal given again opens its phase's next batch."""
    log_metric: dict[str, Any] = {}
    """Numbers by name."""
    log_extra: dict[str, list[Any]] = {}
    """Columns by name, a value for each completion."""

    @model_validator(mode="before")
    @classmethod
    def _signals(cls, data: Any) -> Any:
        if cls._short is not None and isinstance(data, list):
            return {"observe": data}
        if cls._short is None or not isinstance(data, Mapping) or not data or "observe" in data:
            return data
        signals = [str(key) for key in data if key not in cls.model_fields]
        if len(signals) == len(data):
            return {"observe": data}
        if signals:
            key = next(key for key in data if key in cls.model_fields)
            raise refused("DL202.signal_beside", name=signals[0], key=key)
        return data

    @property
    def calls(self) -> Calls:
        """The calls of `observe`."""
        return [self.observe] if isinstance(self.observe, dict) else self.observe or []

    @property
    def gives(self) -> bool:
        """Whether there is any input."""
        return self.observe is not None or bool(self.log_metric or self.log_extra)


class StepInput(Input, Expectations):
    """One step, or one block of another mode, and its expected records."""

    ranks: list[Input] = []
    """The inputs of each rank, if there are several."""
    mode: str | None = None
    """A block of this mode instead of a step."""
    step: int | None = None
    """Its number; by default one more than that of the step before."""
    flush: bool = False
    """Whether the trainer logs after it: for `every: trainer`."""

    def _check(self) -> None:
        if self.ranks and self.gives:
            raise refused("DL202.given_beside_ranks")


class TestSpec(StepInput):
    """A config test: the inputs of steps, and the expected records. Without `steps` it is one step."""

    __test__: ClassVar[bool] = False  # else pytest would collect the class as a test
    _short = None

    help: str = ""
    """A description in one line."""
    constants: dict[str, Scalar] = {}
    """Values for this test, also of pinned constants."""
    with_: dict[str, Any] = Field({}, alias="with")
    """Changes of the config for this test, such as `{axes: {group: {size: 2}}}`."""
    profile: str | None = None
    """The profile whose output is compared; by default the config's."""
    steps: list[StepInput] = []
    tol: float = Field(1e-6, ge=0)
    """How far numbers may be off, absolutely or relatively."""

    def _check(self) -> None:
        super()._check()
        if self.steps and (self.ranks or self.gives or self.mode):
            raise refused("DL202.steps_or_step")
        if not self.steps and not (self.ranks or self.gives):
            raise refused("DL202.test_gives_nothing")
        if not any(item.expects for item in self.expectations):
            raise refused("DL202.test_expects_nothing")

    @property
    def expectations(self) -> list[Expectations]:
        """The expectations of the test and of its steps."""
        return [self, *self.steps]

    @property
    def inputs(self) -> list[StepInput]:
        """The steps; the test itself if it is a single step."""
        return self.steps or [self]
