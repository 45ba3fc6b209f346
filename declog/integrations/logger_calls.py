"""Reads a call of a loop's logger: the numbers by name, and their step. Standard library only."""

from __future__ import annotations

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

COMMITS = ("commit", "step_finished")  # arguments that complete a step
STEPS = ("step", "global_step", "iteration", "it", "iter", "i_iter", "epoch", "total_steps", "timestep")
VALUES = ("value", "scalar_value", "val", "scalar", "data", "y")
PREFIXES = ("prefix", "main_tag")  # arguments that prefix the names in a mapping
# methods with a name and a number that need no parameter for a step
PAIRS = (
    "log", "log_metric", "log_scalar", "log_value", "add_scalar", "record", "record_mean", "track", "scalar",
    "report_scalar", "write_scalar", "logkv", "logkv_mean", "log_tabular",
)  # fmt: skip
MAPPINGS = ("log", "log_metrics", "log_dict", "log_scalars", "log_values", "write_scalars", "logkvs", "record_dict")
DUMPS = ("dump", "dumpkvs", "dump_tabular")  # methods that end the step of numbers recorded without one
EXAMPLES = "log, log_metrics, log_dict, log_scalar, add_scalar, record with dump"
# methods whose numbers do not belong to a step
NO_NUMBERS = re.compile(
    r"param|config|setting|hist|image|img|figure|video|audio|text|table|artifact|graph|embed|mesh|model|code|define"
    r"|init|save|watch|tag|note|level|seed|callback|summary|curve|tensor"
)
_KINDS = inspect.Parameter


@dataclass(frozen=True)
class Call:
    """One call. ``again`` repeats it with other values and another step; None if the call cannot be repeated so."""

    values: Mapping[str, Any]
    step: int | None
    commit: bool
    again: Callable[[Mapping[str, Any], int], Any] | None


def read(name: str, method: Callable[..., Any], args: Any, kwargs: Any) -> Call | None:
    """Read the values and the step of a call of a logger's method; None if the call has no numbers of a step."""
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
        mapping = None  # the call has a value of its own
    if mapping is not None and (name in MAPPINGS or step is not None):
        return _of_mapping(method, signature, arguments, mapping, step)
    return _of_pair(name, method, signature, arguments, step)


def _of_mapping(
    method: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any], mapping: str,
    step: str | None,
) -> Call:  # fmt: skip
    """Read a call with a mapping of numbers; ``mapping`` and ``step`` name its arguments."""
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
    """Read a call with a name and a value; ``step`` names the argument of its step, if the method takes one."""
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
    """The step that a dump ends: its first int argument; None if it has none."""
    arguments = _signature(method, args, kwargs).bind(*args, **kwargs).arguments
    return next((value for value in arguments.values() if type(value) is int), None)


def _commits(arguments: Mapping[str, Any]) -> bool:
    """Whether an argument completes the step."""
    return any(arguments.get(name) for name in COMMITS)


def _step(arguments: Mapping[str, Any], key: str | None) -> int | None:
    step = None if key is None else arguments.get(key)
    return None if step is None or isinstance(step, str | Mapping) else int(step)


def _call(method: Callable[..., Any], signature: inspect.Signature, arguments: Mapping[str, Any]) -> Any:
    ordered = OrderedDict((key, arguments[key]) for key in signature.parameters if key in arguments)
    bound = inspect.BoundArguments(signature, ordered)
    return method(*bound.args, **bound.kwargs)


def _signature(method: Callable[..., Any], args: Any, kwargs: Any) -> inspect.Signature:
    """The signature of a method; a signature that fits this call if a decorator hides the parameters."""
    try:
        signature = inspect.signature(method)
    except (TypeError, ValueError):  # a method written in C
        signature = inspect.Signature()
    if any(item.kind not in (_KINDS.VAR_POSITIONAL, _KINDS.VAR_KEYWORD) for item in signature.parameters.values()):
        return signature
    positional = [_KINDS(f"_{number}", _KINDS.POSITIONAL_ONLY) for number in range(len(args))]
    return inspect.Signature([*positional, *(_KINDS(name, _KINDS.KEYWORD_ONLY) for name in kwargs)])
