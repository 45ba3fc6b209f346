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
PREFIXES = ("prefix", "main_tag")  # stand before the names in a mapping
# methods whose numbers need no parameter for a step
PAIRS = (
    "log", "log_metric", "log_scalar", "log_value", "add_scalar", "record", "record_mean", "track", "scalar",
    "report_scalar", "write_scalar", "logkv", "logkv_mean", "log_tabular",
)  # fmt: skip
MAPPINGS = ("log", "log_metrics", "log_dict", "log_scalars", "log_values", "write_scalars", "logkvs", "record_dict")
DUMPS = ("dump", "dumpkvs", "dump_tabular")  # end the step of numbers that were recorded without one
EXAMPLES = "log, log_metrics, log_dict, log_scalar, add_scalar, record with dump"
# calls with numbers that are no numbers of a step
NO_NUMBERS = re.compile(
    r"param|config|setting|hist|image|img|figure|video|audio|text|table|artifact|graph|embed|mesh|model|code|define"
    r"|init|save|watch|tag|note|level|seed|callback|summary|curve|tensor"
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
    if name.startswith("_") or NO_NUMBERS.search(name):
        return None
    signature = _signature(method, args, kwargs)
    try:
        arguments = signature.bind(*args, **kwargs).arguments
    except TypeError:  # the logger itself will raise
        return None
    step = next((key for key in STEPS if key in signature.parameters), None)
    mapping = next((key for key, value in arguments.items() if isinstance(value, Mapping)), None)
    if any(not isinstance(arguments[key], str | Mapping) for key in VALUES if key in arguments):
        mapping = None  # it is about a value
    if mapping is not None and (name in MAPPINGS or step is not None):
        return _of_mapping(method, signature, arguments, mapping, step)
    return _of_pair(name, method, signature, arguments, step)


def _of_mapping(
    method: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any], mapping: str,
    step: str | None,
) -> Call:  # fmt: skip
    """A call with numbers by name; ``mapping`` and ``step`` are the keys of its arguments."""
    step = step or next((key for key, value in arguments.items() if type(value) is int), None)
    prefix = next((key for key in PREFIXES if arguments.get(key)), None)

    def again(values: Mapping[str, Any], number: int) -> Any:
        return _call(method, signature, {mapping: dict(values)} | ({} if step is None else {step: number}))

    bare = prefix is None or signature.parameters[prefix].default is not _KINDS.empty
    values = dict(arguments[mapping]) if prefix is None else {str(arguments[prefix]): arguments[mapping]}
    number = _step(arguments, step)
    return Call(values, number, number is None or _commits(arguments), again if bare else None)


def _of_pair(
    name: str, method: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any], step: str | None
) -> Call | None:
    """A call with a name and a value; ``step`` is the key of its step, if its method takes one."""
    texts = [key for key, value in arguments.items() if isinstance(value, str) and key != step]
    rest = [key for key, value in arguments.items() if key not in (step, *texts) and value is not None]
    named = [key for key in rest if key in VALUES]
    if not texts or not rest or (step is None and name not in PAIRS):
        return None
    if step is None and len(rest) > 1:
        step = next((key for key in reversed(rest) if type(arguments[key]) is int and key not in named), None)
    value = next((key for key in [*named, *rest] if key != step), None)
    if value is None or signature.parameters[value].kind in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD):
        return None
    keys = list(arguments)
    title = "/".join(arguments[key] for key in texts if keys.index(key) < keys.index(value)) or arguments[texts[0]]

    def again(values: Mapping[str, Any], number: int) -> None:
        for label, amount in values.items():
            _call(method, signature, {texts[0]: label, value: amount, **({} if step is None else {step: number})})

    return Call(
        {title: arguments[value]}, _step(arguments, step), _commits(arguments),
        again if step is not None and len(texts) == 1 else None,
    )  # fmt: skip


def dump_step(method: Callable[..., Any], args: Any, kwargs: Any) -> int | None:
    """The step of a call that ends one."""
    arguments = _signature(method, args, kwargs).bind(*args, **kwargs).arguments
    return next((value for value in arguments.values() if type(value) is int), None)


def _commits(arguments: Mapping[str, Any]) -> bool:
    """Whether an argument says that the step is complete."""
    return any(arguments.get(name) for name in COMMITS)


def _step(arguments: Mapping[str, Any], key: str | None) -> int | None:
    step = None if key is None else arguments.get(key)
    return None if step is None or isinstance(step, str | Mapping) else int(step)


def _call(method: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any]) -> Any:
    ordered = OrderedDict((key, arguments[key]) for key in signature.parameters if key in arguments)
    bound = inspect.BoundArguments(signature, ordered)
    return method(*bound.args, **bound.kwargs)


def _signature(method: Callable[..., Any], args: Any, kwargs: Any) -> inspect.Signature:
    """The signature of a method; if a decorator hides its parameters, a signature that fits this call."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # of C
        signature = inspect.Signature()
    if any(item.kind not in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD) for item in signature.parameters.values()):
        return signature
    positional = [_KINDS(f"_{number}", _KINDS.POSITIONAL_ONLY) for number in range(len(args))]
    return inspect.Signature([*positional, *(_KINDS(name, _KINDS.KEYWORD_ONLY) for name in kwargs)])
