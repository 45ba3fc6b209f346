"""Calls of a loop's logger: numbers by name, and their step. Standard library only."""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

COMMITS = ("commit", "step_finished")  # arguments that mark a step as complete
STEPS = ("step", "global_step", "iteration", "it", "iter", "i_iter", "epoch", "total_steps", "timestep")
VALUES = ("value", "scalar_value", "val", "scalar", "data", "y")
# methods whose numbers need no parameter for a step
PAIRS = (
    "log", "log_metric", "log_scalar", "log_value", "add_scalar", "record", "record_mean", "track", "scalar",
    "report_scalar", "write_scalar", "logkv", "logkv_mean", "log_tabular",
)  # fmt: skip
MAPPINGS = ("log", "log_metrics", "log_dict", "log_scalars", "log_values", "write_scalars", "logkvs", "record_dict")
DUMPS = ("dump", "dumpkvs", "dump_tabular")  # end the step of numbers that were recorded without one
KNOWN = "log, log_metrics, log_dict, log_scalar, add_scalar, record with dump"
# calls with numbers that are no numbers of a step
OTHERS = re.compile(
    r"param|config|setting|hist|image|img|figure|video|audio|text|table|artifact|graph|embed|mesh|model|code|define"
    r"|init|save|watch|tag|note|level|seed|callback|summary"
)
_KINDS = inspect.Parameter


@dataclass(frozen=True)
class Call:
    """One call. ``again`` calls the method with other values and another step; None if it takes no step."""

    values: Mapping[str, Any]
    step: int | None
    commit: bool
    again: Callable[[Mapping[str, Any], int], Any] | None


def read(name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Call | None:
    """The numbers of a call of a logger's method; None if it has none."""
    if name.startswith("_") or OTHERS.search(name):
        return None
    signature = _signature(method, args, kwargs)
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:  # the logger itself will raise
        return None
    given, known = bound.arguments, signature.parameters
    at = next((key for key in STEPS if key in known), None)
    mapping = next((key for key, one in given.items() if isinstance(one, Mapping)), None)
    if any(not isinstance(given[key], str | Mapping) for key in VALUES if key in given):
        mapping = None  # it is about a value
    if mapping is not None and (name in MAPPINGS or at is not None):
        whole = [key for key, one in given.items() if type(one) is int]
        at = at if at is not None else next(iter(whole), None)
        prefix = given.get("prefix") or given.get("main_tag") or None
        values = {str(prefix): given[mapping]} if prefix else dict(given[mapping])

        def again(values: Mapping[str, Any], step: int) -> Any:
            of = {mapping: dict(values)} if at is None else {mapping: dict(values), at: step}
            return _call(method, signature, of)

        return Call(values, _number(given.get(at) if at else None), _commits(given, at), again)
    texts = [key for key, one in given.items() if isinstance(one, str) and key != at]
    others = [key for key, one in given.items() if key != at and not isinstance(one, str) and one is not None]
    named = [key for key in others if key in VALUES]
    if not texts or not (named or others) or (at is None and name not in PAIRS):
        return None
    if at is None and len(others) > 1:
        at = next((key for key in reversed(others) if type(given[key]) is int and key not in named), None)
    value = next(iter(named), None) or next((key for key in others if key != at), None)
    if value is None or known[value].kind in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD):
        return None
    title = (
        "/".join(given[key] for key in texts if list(given).index(key) < list(given).index(value)) or given[texts[0]]
    )

    def pairs(values: Mapping[str, Any], step: int) -> None:
        for each, number in values.items():
            _call(method, signature, {texts[0]: each, value: number, **({} if at is None else {at: step})})

    return Call({title: given[value]}, _number(given.get(at) if at else None), _commits(given, None, pair=True),
                pairs if at is not None and len(texts) == 1 else None)  # fmt: skip


def dumped(method: Callable[..., Any], args: Any, kwargs: Any) -> int | None:
    """The step of a call that ends one."""
    given = _signature(method, args, kwargs).bind(*args, **kwargs).arguments
    return next((one for one in given.values() if type(one) is int), None)


def _commits(given: Mapping[str, Any], at: str | None, *, pair: bool = False) -> bool:
    """Whether a call completes its step: by an argument, or as a mapping without a step."""
    return any(given.get(name) for name in COMMITS) or (not pair and (at is None or given.get(at) is None))


def _number(step: Any) -> int | None:
    return None if step is None or isinstance(step, str | Mapping) else int(step)


def _call(method: Callable[..., Any], signature: inspect.Signature, given: Mapping[str, Any]) -> Any:
    places = {key: given[key] for key in signature.parameters if key in given}
    bound = inspect.BoundArguments(signature, OrderedDict(places))
    return method(*bound.args, **bound.kwargs)


def _signature(method: Callable[..., Any], args: Any, kwargs: Any) -> inspect.Signature:
    """The signature of a method; if a decorator hides its parameters, a signature that fits this call."""
    try:
        found = inspect.signature(method)
    except (TypeError, ValueError):  # of C
        found = inspect.Signature()
    if any(each.kind not in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD) for each in found.parameters.values()):
        return found
    places = [_KINDS(f"_{place}", _KINDS.POSITIONAL_ONLY) for place in range(len(args))]
    return inspect.Signature([*places, *(_KINDS(name, _KINDS.KEYWORD_ONLY) for name in kwargs)])
