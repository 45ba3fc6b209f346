"""Random data of a case: eighths that every dtype holds exactly, missing and infinite values, junk in the padding."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Any

from tests.oracle.expressions import MEMBERS, TEXTS

INTS = {
    "int8": (-100, 100),
    "uint8": (0, 250),
    "int16": (-300, 300),
    "int32": (-300, 300),
    "int64": (-300, 300),
    "list": (-9, 9),
    "scalar": (-9, 9),
}
WHOLE = ("int8", "uint8", "int16", "int32", "int64")
FLOATS = ("float64", "float32", "float16", "bfloat16")


class Values:
    """Draws what one signal has, in the shape that the interpreter reads: plain lists."""

    def __init__(self, random: Random, spec: dict[str, Any], dtype: str, *, infinite: float = 0.0) -> None:
        self.random, self.spec, self.dtype, self.infinite = random, spec, dtype, infinite

    def one(self) -> Any:
        """One value; None or NaN is missing."""
        random, kind = self.random, self.spec.get("type", "float")
        missing = self.spec.get("missing", True) and random.random() < 0.12
        if kind == "object":  # tags
            return None if missing else random.sample(TEXTS, random.randint(0, 3))
        if kind == "text":
            return None if missing else random.choice(TEXTS)
        if kind == "bool":
            return None if missing and self.dtype == "list" else random.random() < 0.5
        if kind == "int" or self.dtype in WHOLE:
            low, high = INTS[self.dtype]
            return None if missing and self.dtype == "list" else random.randint(low, high)
        if self.dtype == "bool":
            return float(random.random() < 0.5)
        if self.infinite and random.random() < self.infinite:
            return random.choice((math.inf, math.inf, -math.inf))
        return (None if self.dtype == "list" else float("nan")) if missing else random.randint(-24, 24) / 8

    def drawn(self, rows: int, groups: int, tokens: list[int]) -> Any:
        """The values of a batch; tokens have ``tokens[row]`` places."""
        axis = self.spec["axis"]
        if axis == "token":
            return [[self.one() for _ in range(count)] for count in tokens]
        make: Callable[[], Any] = (
            self.one
            if axis == "step"
            else lambda: [self.one() for _ in range({"completion": rows, "group": groups}[axis])]
        )
        if not self.spec.get("family"):
            return make()
        members = self.random.sample(MEMBERS, len(MEMBERS))
        if self.random.random() < 0.4:  # they come and go
            members = members[: self.random.randint(1, 2)]
        return {member: make() for member in members}


def dtype_of(random: Random, spec: dict[str, Any]) -> str:
    """As what a signal is observed: a list, or a tensor or array of a dtype."""
    kind, axis = spec.get("type", "float"), spec["axis"]
    lists: tuple[str, ...] = () if axis == "token" else ("list",)
    choices: tuple[str, ...] = (*FLOATS, "float64", *lists)
    if kind in ("text", "object"):
        choices = ("list",)
    elif axis == "step":
        choices = ("scalar",)
    elif kind == "bool":
        choices = ("bool", "bool", "uint8 of bool", *lists)
    elif kind == "int":
        choices = (*WHOLE, *lists)
    elif random.random() < 0.25:
        choices = (*WHOLE, "bool")
    return choices[0] if len(choices) == 1 else random.choice(choices)
