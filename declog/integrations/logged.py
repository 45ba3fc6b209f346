"""Numbers in what a trainer logs. Imports torch and numpy."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch


def number_of(value: Any) -> float | None:
    """A number as Python's own, also from a tensor or an array of one element; None for any other value.

    Whole numbers stay whole.
    """
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.item() if math.prod(value.shape) == 1 else None
    if not isinstance(value, Real):
        return None
    return int(value) if isinstance(value, Integral) else float(value)
