"""Names of other trainers' constants in an expression: ``clip_eps`` and ``kl_coef``, which are numbers of a run."""

from __future__ import annotations

import re

from declog.language.scope import Scope
from declog.language.syntax import refuse

_EXAMPLES = {  # numbers of a run, by the words of their names
    512: re.compile("(^|_)(max|min|limit|threshold|budget)(_|$)"),
    0.2: re.compile("(^|_)(coeff?|eps|epsilon|clip|cliprange|gamma|lam|lambda|temperature)(_|$)"),
}


def example(name: str) -> float | None:
    """A number that a constant of this name may have; None if the name is no constant's."""
    return next((number for number, words in _EXAMPLES.items() if words.search(name)), None)


def refuse_bound(name: str, text: str, span: tuple[int, int], constant: str, scope: Scope) -> None:
    """Refuse ``epsilon`` where the scope has a lower and an upper bound; ``constant`` is one of them, or a stem."""
    stem = constant.removesuffix("_high").removesuffix("_low")
    low, high = bounds = f"{stem}_low", f"{stem}_high"
    sign = text[: span[0]].rstrip()[-1:]
    if {*bounds} <= {*scope.names()} and (sign in ("+", "-") or re.search("low|high", name) is None):
        here = f"write `{text[: span[0]]}{low if sign == '-' else high}{text[span[1] :]}`"
        beside = "" if sign in ("+", "-") else f", if it is the upper one: `{name}` is `{low}` and `{high}` here"
        refuse("DL302.undeclared", text, span, name=name, fix=f"{here}{beside}")
