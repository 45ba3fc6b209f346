"""Names that mean a reward function, a member of the family `rewards`: ``format_reward``, ``reward_code``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import NoReturn

from declog.errors import elsewhere, nearest
from declog.language.scope import Scope
from declog.language.syntax import refuse

_OF_ALL = elsewhere.words("of_all")
_OF_REWARDS = re.compile(r"\Arewards?(_func|_fn|_function)?(_|(?=\d))|_rewards?\Z")


def reward_stem(name: str, names: Iterable[str] = ()) -> str | None:
    """The words beside `reward` in a name, `code` in ``code_reward`` and ``reward_code``.

    None for a total, ``mean_reward``, and for a name that means one of ``names`` besides `reward`.
    """
    stem, beside = _OF_REWARDS.sub("", name), {*names} - {"reward", "rewards"}
    is_other = elsewhere.same_signal(name, {*names}) or get_close_matches(name, beside, cutoff=0.85)
    return None if stem in (name, "") or stem.split("_")[0] in _OF_ALL or is_other else stem


def reward_function(name: str, names: Iterable[str], functions: Sequence[str] = ()) -> str | None:
    """The reward function that a name may mean: ``format_reward`` itself, `code` for ``reward_code``; else None.

    ``functions`` are all of them, if the config declares them: ``reward_0`` is then the first one.
    """
    stem = reward_stem(name, names)
    if stem is None or name in functions:
        return name if name in functions else None
    if stem.isdecimal():
        return next(iter(functions[int(stem) :]), None) if functions else "accuracy_reward"
    return nearest(stem, functions) if functions else name if name.endswith(("_reward", "_rewards")) else stem


def refuse_reward(
    function: str, member: str, text: str, span: tuple[int, int], scope: Scope, functions: Sequence[str] = ()
) -> NoReturn:
    """Refuse the name of a reward function; the fix is ``member``, its member of the family of rewards."""
    name, fix = text[slice(*span)], f"write `{text[: span[0]]}{member}{text[span[1] :]}`"
    if function not in functions:
        example = ", as in the name rewards/accuracy_reward/mean"
        fix += ", if that is a reward function"
        fix += {name: "", "accuracy_reward": example}.get(function, f", or '{name}'")
        fix += f"; of a column: signals: {{any: {{{name}: completion}}}}" if scope.noun == "signal" else ""
    refuse("DL302.reward", text, span, name=name, noun=scope.noun, fix=fix)
