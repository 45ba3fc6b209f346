"""Refusals of names for the number of completions of a group, such as ``num_generations``: a function counts them."""

from __future__ import annotations

import re

from declog.language.scope import Scope
from declog.language.syntax import refuse

_NAMES = re.compile(
    r"(?:axes\.)?group\.(?:size|n|count)|group_size|num_generations|n_generations|num_return_sequences|rollout_n"
    r"|(?:n_|num_)?(?:samples|rollouts|completions|generations)_per_(?:prompt|group)"
)
SIZE = "size(completion)"


def is_group_size(name: str) -> bool:
    """Whether a name means the number of completions of a group."""
    return _NAMES.fullmatch(name) is not None


def refuse_group_size(text: str, span: tuple[int, int], scope: Scope) -> None:
    """Refuse ``group.size`` and ``num_generations`` in an expression of signals. Any other name is accepted."""
    start, end = span
    if scope.noun == "signal" and scope.groups and is_group_size(name := text[start:end]):
        refuse("DL302.group_size", text, span, name=name, fix=f"{text[:start]}{SIZE}{text[end:]}")
