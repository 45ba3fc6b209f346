"""Recognition of keys that name secrets, whose values are never stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

# parts of a key that name a secret; `max_tokens` and `pad_token_id` do not match
SECRET = re.compile(
    r"(^|[_\-.])(password|passwd|passphrase|secret|secrets|credentials?|api_?key|access_?key|private_?key|token|auth)$"
    r"|(password|secret|api_?key|credential)",
    re.I,
)
TOKENS = re.compile(r"(pad|eos|bos|unk|sep|cls|mask|stop|image|video|audio)_token$", re.I)  # special tokens


def without_secrets(value: Any) -> Any:
    """Remove the keys that name secrets from a value, at any depth."""
    if isinstance(value, Mapping):
        return {key: without_secrets(item) for key, item in value.items() if not names_secret(str(key))}
    return [without_secrets(item) for item in value] if isinstance(value, list | tuple) else value


def names_secret(key: str) -> bool:
    """Whether a key names a secret."""
    return SECRET.search(key) is not None and TOKENS.search(key) is None
