"""Names of other loggers for declog's functions: an attribute that is not there is answered with the one to use.

``attributes.txt`` has them: wandb's, trackio's, TensorBoard's, mlflow's, Lightning's and the standard library's words.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from declog.errors import nearest
from declog.errors.elsewhere import attributes

P = ParamSpec("P")
R = TypeVar("R")

CONFIG = 'what a run was started with is `run.config` of the YAML: declog.start(config, ["run.config.lr=1e-6"])'


def meant(name: str, names: Collection[str], of: str, section: str = "log") -> str:
    """The fix behind Python's own words for an attribute ``name`` that ``of`` does not have, or empty."""
    if (meaning := attributes().get(f"{section}.{name}")) is not None:
        return f"\n  fix: {meaning.replace('LOG', of).replace('RUN', of)}"
    close = None if name.startswith("_") else nearest(name, names)
    return "" if close is None else f"\n  fix: did you mean `{of}.{close}`?"


def answered(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a fix behind Python's own words where it is called with other arguments than it has."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it was called
            raise TypeError(f"{error}\n  fix: {attributes()[f'call.{function.__name__}']}") from None

    return call


def no_more_arguments(
    of: str,
    function: Callable[..., object],
    unnamed: Sequence[object],
    unknown: Mapping[str, Any],
    keys: Collection[str],
) -> None:
    """Raise ``TypeError``, in Python's own words, for arguments that a function does not have.

    ``unnamed`` came behind its positional ones. ``keys`` are those of the language: they are overrides.
    """
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    first = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    named = [name for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
    if unnamed:
        value = unnamed[0]
        call = f"{of}({', '.join(first)}, "
        said = f"{call}{named[0]}=...): the arguments behind have names: {', '.join(named)}"
        said = f"{call}output_dir={os.fspath(value)!r})" if isinstance(value, str | os.PathLike) else said
        raise TypeError(f"{of}() takes {len(first)} arguments without a name, and {value!r} came, too\n  fix: {said}")
    overrides = [text for name, value in unknown.items() for text in _as_overrides(name, value, keys)]
    for name, value in unknown.items():
        if _as_overrides(name, value, keys):
            said = f"{of}(config, {json.dumps(list(dict.fromkeys(overrides)))}): keys of the YAML are overrides"
        elif (option := attributes().get(f"option.{name}")) is not None:
            said = f"{of}({value!r})" if option == "-" else f"{of}(config, {option.replace('{repr}', repr(value))})"
        elif (close := nearest(name, [*first, *named])) is not None:
            said = f"did you mean `{close}`?"
        else:
            said = f'arguments: {", ".join([*first, *named])}; keys of the YAML are overrides: ["every=10"]'
        raise TypeError(f"{of}() got an unexpected keyword argument {name!r}\n  fix: {said}")


def _as_overrides(name: str, value: object, keys: Collection[str]) -> list[str]:
    """The overrides that say what an argument should; none where it is said otherwise."""
    if name in keys and isinstance(value, Mapping):
        below = {f"{name}.{key}": inner for key, inner in value.items()}
        return [text for key, inner in below.items() for text in _as_overrides(key, inner, below)]
    template = "{name}={value}" if name in keys else attributes().get(f"option.{name}", "")
    if "{value}" not in template:
        return []
    shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return template.replace("{name}", name).replace("{value}", shown).split()
