"""Operations on one value at a time, with the rules of what is missing (None) and what is absent (ABSENT).

After docs/language.md: arithmetic with a missing value is missing, a comparison with one is false where it decides,
and what derives from an absent signal is absent.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any


class _Absent:
    def __repr__(self) -> str:
        return "ABSENT"


ABSENT = _Absent()


def there(value: Any) -> bool:
    """Neither missing nor absent."""
    return value is not None and value is not ABSENT


def number(value: Any) -> Any:
    """NaN is missing."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _arithmetic(run: Callable[..., float]) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        if any(item is ABSENT for item in args):
            return ABSENT
        return None if any(item is None for item in args) else number(run(*args))

    return guarded


def _predicate(run: Callable[..., bool]) -> Callable[..., Any]:
    def guarded(*args: Any) -> Any:
        if any(item is ABSENT for item in args):
            return ABSENT
        return False if any(item is None for item in args) else run(*args)

    return guarded


def _divided(a: float, b: float) -> float:
    if b:
        return a / b
    return math.nan if a == 0 else math.copysign(math.inf, a) * math.copysign(1.0, b)


def bucket(x: Any, edges: Sequence[float]) -> Any:
    """The label of a number, by edges that are not negative; those that are whole count things."""
    if not there(x):
        return x
    low: float = 0
    if x < low:
        return "<0"
    whole = all(isinstance(item, int) for item in edges)
    for edge in edges:
        if x <= edge:
            return f"{low}-{edge}"
        low = edge + 1 if whole else edge
    return f"{low}+" if whole else f">{low}"


def _not(x: Any) -> Any:
    return ABSENT if x is ABSENT else x is not None and not x


def _both(a: Any, b: Any) -> Any:
    return ABSENT if ABSENT in (a, b) else bool(a) and bool(b)


def _either(a: Any, b: Any) -> Any:
    return ABSENT if ABSENT in (a, b) else bool(a) or bool(b)


OPERATIONS: dict[str, Callable[..., Any]] = {
    "+": _arithmetic(lambda a, b: a + b),
    "-": _arithmetic(lambda a, b: a - b),
    "*": _arithmetic(lambda a, b: a * b),
    "/": _arithmetic(_divided),
    "%": _arithmetic(lambda a, b: a % b if b else math.nan),
    "//": _arithmetic(lambda a, b: a // b if b else math.nan),
    "**": _arithmetic(lambda a, b: float(a) ** b),
    "minimum": _arithmetic(min),
    "maximum": _arithmetic(max),
    "neg": _arithmetic(lambda x: -x),
    "abs": _arithmetic(abs),
    "square": _arithmetic(lambda x: x * x),
    "sqrt": _arithmetic(lambda x: math.sqrt(x) if x >= 0 else math.nan),
    "exp": _arithmetic(math.exp),
    "log": _arithmetic(lambda x: math.log(x) if x > 0 else -math.inf if x == 0 else math.nan),
    "clip": _arithmetic(lambda x, low, high: min(max(x, low), high)),
    "<": _predicate(lambda a, b: a < b),
    "<=": _predicate(lambda a, b: a <= b),
    ">": _predicate(lambda a, b: a > b),
    ">=": _predicate(lambda a, b: a >= b),
    "==": _predicate(lambda a, b: a == b),
    "!=": _predicate(lambda a, b: a != b),
    "lt": _predicate(lambda a, b: a < b),
    "le": _predicate(lambda a, b: a <= b),
    "gt": _predicate(lambda a, b: a > b),
    "ge": _predicate(lambda a, b: a >= b),
    "eq": _predicate(lambda a, b: a == b),
    "ne": _predicate(lambda a, b: a != b),
    "isclose": _predicate(lambda a, b: abs(a - b) <= 1e-8 + 1e-5 * abs(b)),
    "isfinite": _predicate(math.isfinite),
    "isnan": lambda x: ABSENT if x is ABSENT else x is None,
    "present": there,
    "not": _not,
    "and": _both,
    "or": _either,
    "in": _predicate(lambda x, *items: x in items),
    "len": _arithmetic(len),
    "words": _arithmetic(lambda text: len(text.split())),
    "contains": _predicate(lambda text, part: part in text),
    "startswith": _predicate(lambda text, part: text.startswith(part)),
    "matches": _predicate(lambda text, pattern: re.search(pattern, text) is not None),
}


def aggregate(name: str, found: Sequence[Any]) -> Any:
    """One value of many; missing and absent ones are passed over, and where all are absent, so is the result."""
    if found and all(item is ABSENT for item in found):
        return ABSENT
    values = [item for item in found if there(item)]
    if name == "count":
        return len(values)
    if not values:
        return None
    if name in ("any", "all"):
        return any(values) if name == "any" else all(values)
    if name in ("first", "last"):
        return values[0] if name == "first" else values[-1]
    if name in ("min", "max"):
        return min(values) if name == "min" else max(values)
    if name not in ("mean", "sum", "std", "pstd", "var"):
        from tests.oracle.reductions import reduced  # which reads moments here

        return number(reduced(name, [(float(value),) for value in values]))
    return number(moment(name, values))


def total(values: Sequence[float]) -> float:
    """The sum: of integers exact, infinities included."""
    if all(isinstance(item, int) for item in values):
        return sum(values)
    if all(math.isfinite(item) for item in values):
        return math.fsum(values)
    return sum(values)


def moment(name: str, values: Sequence[float]) -> float:
    """Sum, mean or spread of numbers that are all there."""
    count = len(values)
    if name == "sum":
        return total(values)
    mean = total(values) / count
    if name == "mean":
        return mean
    squares = total([(item - mean) ** 2 for item in values])
    if name == "pstd":
        return math.sqrt(squares / count)
    if count == 1:
        return math.nan
    return squares / (count - 1) if name == "var" else math.sqrt(squares / (count - 1))


def pass_at(correct: Sequence[Any], k: int) -> Any:
    """1 - C(n - c, k) / C(n, k) of those that are not missing; missing where n < k."""
    if correct and all(item is ABSENT for item in correct):
        return ABSENT
    known = [bool(item) for item in correct if there(item)]
    if len(known) < k:
        return None
    return 1 - math.comb(len(known) - sum(known), k) / math.comb(len(known), k)


def drawn(k: int, rows: Sequence[Any], worth: Callable[[Sequence[Any]], float]) -> Any:
    """The mean of what all k of some rows are worth; missing where there are fewer."""
    if len(rows) < k:
        return None
    found = [worth(some) for some in combinations(rows, k)]
    return number(total(found) / len(found))


def of_drawn(name: str, found: Sequence[Any], k: int) -> Any:
    """`pass_all`, `best_at`: of values that are not missing."""
    if found and all(item is ABSENT for item in found):
        return ABSENT
    known = [item for item in found if there(item)]
    return drawn(k, known, (lambda some: float(all(some))) if name == "pass_all" else max)


def majority_at(answers: Sequence[Any], correct: Sequence[Any], k: int | None) -> Any:
    """How often the most frequent of k answers is correct; those that tie count in equal parts."""
    if any(found and all(item is ABSENT for item in found) for found in (answers, correct)):
        return ABSENT
    rows = [(answer, right) for answer, right in zip(answers, correct, strict=True)
            if answer is not ABSENT and there(right)]  # fmt: skip
    share = {answer: moment("mean", [float(right) for other, right in rows if other == answer]) for answer, _ in rows}

    def elected(some: Sequence[Any]) -> float:
        votes = [answer for answer, _ in some if answer is not None]
        most = max((votes.count(answer) for answer in votes), default=0)
        winners = {answer for answer in votes if votes.count(answer) == most}
        return math.fsum(share[answer] for answer in winners) / len(winners) if winners else 0.0

    return drawn(len(rows) if k is None else k, rows, elected) if rows else None


def majority(texts: Sequence[Any]) -> Any:
    """The most frequent text, of equal ones the first."""
    known = [item for item in texts if there(item)]
    return max(known, key=lambda item: (known.count(item), -known.index(item))) if known else None


def distinct(texts: Sequence[Any], n: int) -> Any:
    """Distinct n-grams of words by all n-grams, of the texts together."""
    grams = []
    for item in texts:
        words = item.split() if there(item) else []
        grams += [tuple(words[at : at + n]) for at in range(len(words) - n + 1)]
    return len(set(grams)) / len(grams) if grams else None


def jaccard(texts: Sequence[Any]) -> Any:
    """The mean Jaccard distance of the word sets of all pairs."""
    sets = [set(item.split()) for item in texts if there(item)]
    distances = [1 - len(a & b) / len(a | b) if a | b else 0.0 for a, b in combinations(sets, 2)]
    return moment("mean", distances) if distances else None
