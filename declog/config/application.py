"""What an application's configuration says beside its node ``declog``: how the trainer is configured.

It is kept with the run and given to trackers. What the environment gave stands there as it was written, and what a key
calls a secret is not there at all. Imports Hydra's configuration only.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig

from declog.config.interpolation import at, has, resolved
from declog.config.search_path import GROUP

# parts of a key that name a secret; `max_tokens` and `pad_token_id` are none
SECRET = re.compile(
    r"(^|[_\-.])(password|passwd|passphrase|secret|secrets|credentials?|api_?key|access_?key|private_?key|token|auth)$"
    r"|(password|secret|api_?key|credential)",
    re.I,
)
TOKENS = re.compile(r"(pad|eos|bos|unk|sep|cls|mask|stop|image|video|audio)_token$", re.I)  # of a tokenizer


def beside(config: object) -> dict[str, Any]:
    """The rest of an application's configuration, resolved; empty where ``config`` is a profile and nothing else."""
    if isinstance(config, DictConfig):
        root = config._get_root()
        if not isinstance(root, DictConfig) or GROUP not in list(root):
            return {}
        values = resolved(root)
        data = copy.deepcopy(values.data)
        for path, mask in values.masks.items():
            if has(data, path):
                at(data, path[:-1])[path[-1]] = mask
    elif isinstance(config, Mapping) and GROUP in config:
        data = copy.deepcopy(dict(config))
    else:
        return {}
    rest: dict[str, Any] = without_secrets({key: data[key] for key in data if key not in (GROUP, "hydra")})
    return rest


def without_secrets(value: Any) -> Any:
    """A value in which no key names a secret, at any depth."""
    if isinstance(value, Mapping):
        return {key: without_secrets(item) for key, item in value.items() if not names_secret(str(key))}
    return [without_secrets(item) for item in value] if isinstance(value, list | tuple) else value


def names_secret(key: str) -> bool:
    """Whether a key says that its value is a secret."""
    return SECRET.search(key) is not None and TOKENS.search(key) is None
