"""The base of the models of the YAML."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

Scalar = bool | int | float | str


@dataclass(frozen=True)
class Says:
    """The names that the text of a key uses, and its form: an expression, one name, a selector, or a template."""

    of: Literal["signals", "metrics", "constants", "filters", "schemas"]
    form: Literal["expression", "name", "selector", "template"] = "expression"


@dataclass(frozen=True)
class Short:
    """A key may also hold a value of ``type``, which the shorthand writes out."""

    type: Any


Signals = Annotated[str, Says("signals")]
Metrics = Annotated[str, Says("metrics")]
Constants = Annotated[str, Says("constants")]


def refused(key: str, /, **facts: Any) -> PydanticCustomError:
    """The error for a model's own check, with the key of its message and the message's facts."""
    return PydanticCustomError(key, "", facts)


class Model(BaseModel):
    """A map in a config: its keys are checked, and its values are frozen.

    A value of the type ``_plain_type`` in place of the map is the value of the key ``_plain``, unless that is "".
    ``_short`` is the type of a short form in place of the map, which ``shorthand.py`` writes out.
    """

    _short: ClassVar[Any] = None
    _plain: ClassVar[str] = ""
    _plain_type: ClassVar[type] = object
    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, hide_input_in_errors=True, defer_build=True
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, data: Any) -> Any:
        plain = bool(cls._plain) and not isinstance(data, Mapping) and isinstance(data, cls._plain_type)
        return {cls._plain: data} if plain else data

    @model_validator(mode="after")
    def _checked(self) -> Self:
        self._check()
        return self

    def _check(self) -> None:
        """Raise ``refused(...)`` if keys that are valid one by one contradict each other."""


class Described(Model):
    """An entry with a help text."""

    help: str = ""
    """A description in one line."""


class Switched(Model):
    """An entry that can be switched off."""

    enabled: bool | Constants = True
    """A constant expression. An entry that is off is not compiled, nor is anything that only it needs."""


class Conditional(Model):
    """An entry with a condition."""

    when: Metrics | None = None
    """A condition over metrics' values, checked at each log event."""


class Windowed(Model):
    """An entry that may have its own window."""

    every: int | None = Field(None, ge=1)
    """Its own window in optimizer steps: a multiple of the config's."""


class Masked(Model):
    """An entry that may have values per token."""

    mask: Signals | None = None
    """Which of its tokens exist; ``all``: all of them."""
