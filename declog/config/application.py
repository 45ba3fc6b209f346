"""An application's configuration beside its node ``declog``: how the trainer is configured.

It is kept with the run and given to trackers. Values of the environment stand there as they were written, and secrets,
by the names of their keys, are left out.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from declog.config.interpolation import Resolved, masked
from declog.config.search_path import GROUP
from declog.language.secrets import without_secrets


def beside(config: object) -> dict[str, Any]:
    """The rest of an application's configuration, resolved; empty where ``config`` is a config and nothing else."""
    if isinstance(config, DictConfig):
        root = config._get_root()
        if not isinstance(root, DictConfig) or GROUP not in list(root):
            return {}
        values = Resolved(root)
        data = masked(values.data, values.masks)
    elif isinstance(config, Mapping) and GROUP in config:
        data = copy.deepcopy(dict(config))
    else:
        return {}
    rest: dict[str, Any] = without_secrets({key: data[key] for key in data if key not in (GROUP, "hydra")})
    return rest
