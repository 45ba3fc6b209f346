"""``SummaryWriter`` of torch's, whose scalars go through declog: change one import.

    from declog.integrations.tensorboard import SummaryWriter    # was: from torch.utils.tensorboard

The config is the preset ``tee``, or the file of that name among the project's own presets. ``tee.py`` has the rest.
"""

from __future__ import annotations

from typing import Any

from torch.utils import tensorboard

import declog

__all__ = ["SummaryWriter"]


def SummaryWriter(*args: Any, **kwargs: Any) -> Any:
    """A writer as torch makes it, teed."""
    return declog.tee(tensorboard.SummaryWriter(*args, **kwargs))
