"""The texts of alerts that fired, with the values and names that a sink's profile does not hide."""

from __future__ import annotations

import fnmatch
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from declog.engine.naming import Output
from declog.plans.needs import read
from declog.plans.ops import NAME, AlertOp, ProfileOp
from declog.records import Alert

HIDDEN = "hidden"  # stands in a text for a value that the sink's profile hides


@dataclass(frozen=True)
class FiredAlert:
    """An alert that fired, with the values of its text and their names, by the name that the text uses."""

    op: AlertOp
    numbers: Mapping[str, float | None]
    named: Mapping[str, str]

    def shown(self, profile: ProfileOp | None = None) -> Alert:
        """The alert as a sink shows it: without the values that the profile's `hide` selects."""
        numbers: dict[str, float | str | None] = {**self.numbers}
        named = {**self.named}
        for text, node in self.op.fields:
            if any(_is_hidden(profile, (key, False), self.named[text]) for key in read(node)):
                numbers[text], named[text] = HIDDEN, str(node)
        return Alert(self.op.id, self.op.level, _worded(self.op, numbers, named))


def _is_hidden(profile: ProfileOp | None, output: Output, name: str) -> bool:
    """Whether a name of an output is hidden by the profile's `hide`, and not only left out by `only`."""
    if profile is None or output not in profile.hides:
        return False
    return output not in profile.outputs or not is_chosen(name, profile.names.get(output, ()))


def is_chosen(name: str, rules: Sequence[tuple[str, bool]]) -> bool:
    """Whether a profile shows a name of an output. The last of its rules that matches decides; without one it does."""
    return next((shown for glob, shown in reversed(rules) if fnmatch.fnmatchcase(name, glob)), True)


def _worded(op: AlertOp, numbers: Mapping[str, float | str | None], named: Mapping[str, str]) -> str:
    """The alert's text, filled with its metrics' values and their names; one that cannot be filled stays as it is."""
    try:
        return _Text(named).vformat(op.text, (), numbers)
    except (KeyError, ValueError):
        return op.text


class _Text(string.Formatter):
    """A formatter that reads ``{length.max}`` as one name, not as an attribute; ``{kl:name}`` is the name itself."""

    def __init__(self, named: Mapping[str, str]) -> None:
        self._named = named

    def get_field(self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, str]:
        return (field_name, kwargs[field_name]), field_name

    def format_field(self, value: Any, format_spec: str) -> str:
        name, number = value
        if format_spec == NAME:
            return self._named[name]
        if number is None or number == HIDDEN:
            return number or "absent"
        return str(super().format_field(number, format_spec or ("g" if number % 1 else ".15g")))
