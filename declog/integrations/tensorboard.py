"""``SummaryWriter`` of torch's, whose scalars go through declog: change one import.

    from declog.integrations.tensorboard import SummaryWriter    # was: from torch.utils.tensorboard

The config is the preset ``tee``, or the file of that name among the project's own presets. ``tee.py`` has the rest.
"""

from __future__ import annotations

from typing import Any

from torch.utils import tensorboard

import declog
from declog.integrations import tee

__all__ = ["SummaryWriter"]


class SummaryWriter(tensorboard.SummaryWriter):
    """torch's writer, teed: also in classes made of it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tee = tee.Tee(super(), declog.compose(tee.PRESET))

    @property
    def recorder(self) -> declog.Recorder:
        """What declog records with."""
        return self._tee.recorder

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        self._tee.add_scalar(*args, **kwargs)

    def add_scalars(self, *args: Any, **kwargs: Any) -> None:
        self._tee.add_scalars(*args, **kwargs)

    def flush(self) -> None:
        self._tee.flush()

    def close(self) -> None:
        self._tee.close()
