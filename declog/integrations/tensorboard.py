"""torch's ``SummaryWriter``, with scalars that go through declog: change one import.

    from declog.integrations.tensorboard import SummaryWriter    # was: from torch.utils.tensorboard

The config is the preset ``tee``, or the project's own preset of that name. ``tee.py`` records the scalars.
"""

from __future__ import annotations

from typing import Any

from torch.utils import tensorboard

import declog
from declog.integrations import tee

__all__ = ["SummaryWriter"]


class SummaryWriter(tensorboard.SummaryWriter):
    """torch's writer with a tee inside, so that subclasses are teed, too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._tee = tee.Tee(super(), declog.compose(tee.PRESET))

    @property
    def recorder(self) -> declog.Recorder:
        """The recorder of the writer's tee."""
        return self._tee.recorder

    def add_scalar(self, *args: Any, **kwargs: Any) -> None:
        self._tee.add_scalar(*args, **kwargs)

    def add_scalars(self, *args: Any, **kwargs: Any) -> None:
        self._tee.add_scalars(*args, **kwargs)

    def flush(self) -> None:
        self._tee.flush()

    def close(self) -> None:
        self._tee.close()
