"""Numbers in what a trainer or a loop logs. Imports torch and numpy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any

import numpy as np
import torch


def number_of(value: Any) -> float | None:
    """The value as a Python int or float, also from a tensor or an array of one element; None if it is no number."""
    if type(value) is float:  # the usual case; `isinstance(value, Real)` takes ten times as long
        return value
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.item() if math.prod(value.shape) == 1 else None
    if not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)


def numbers_in(values: Mapping[str, Any]) -> dict[str, float]:
    """The values that are numbers, as Python ints and floats."""
    return {name: number for name, value in values.items() if (number := number_of(value)) is not None}


def split_by_mode(
    numbers: Mapping[str, float], mode: str | None, prefix: str, names: Mapping[str, str] = MappingProxyType({})
) -> tuple[dict[str, float], dict[str, float]]:
    """Split a trainer's numbers into those of the mode, by names without its prefix, and the others, by full names.

    In training, where ``mode`` is None, all numbers are of the mode. ``prefix`` is the one that transformers puts
    before the names of an evaluation. ``names`` has some of the mode's numbers, each with its name without prefix.
    """
    of_mode: dict[str, float] = {}
    other: dict[str, float] = {}
    for name, value in numbers.items():
        if name in names:
            of_mode[names[name]] = value
        elif mode is None or name.startswith((f"{mode}_", f"{prefix}_")):
            of_mode[name if mode is None else name.removeprefix(f"{mode}_")] = value
        elif name != "epoch":
            other[name] = value
    return of_mode, other


def flat(values: Mapping[str, Any], between: str = "/", before: str = "") -> dict[str, Any]:
    """Flatten nested mappings: their keys are joined by ``between``, and ``before`` begins each name."""
    items: dict[str, Any] = {}
    for name, value in values.items():
        inside = isinstance(value, Mapping)
        items |= flat(value, between, f"{before}{name}{between}") if inside else {f"{before}{name}": value}
    return items
