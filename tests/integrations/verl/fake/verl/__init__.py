"""What declog's integration sees of verl 0.9.1, as small as that: the real one is in `make integrations`."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class DataProto:
    """A batch: tensors, other columns and facts."""

    batch: dict[str, torch.Tensor]
    non_tensor_batch: dict[str, np.ndarray] = field(default_factory=dict)
    meta_info: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.batch["responses"])


for name in os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(","):
    importlib.import_module(name)
