"""Answers to names of other loggers: the error about an attribute that declog does not have names the one to use.

``attributes.txt`` has the words of wandb, trackio, TensorBoard, mlflow, Lightning and the standard library.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, ParamSpec, TypeVar

from declog.errors import ConfigError, InputError, SinkError, UsageError, in_flow, nearest
from declog.errors.elsewhere import attributes
from declog.errors.messages import filled

P = ParamSpec("P")
R = TypeVar("R")
TWICE = "config_of_the_run"  # the key by which `start("grpo", config={...})` is answered

CONFIG = 'what a run was started with is `run.config` of the YAML: declog.start(config, ["run.config.lr=1e-6"])'


def meant(name: str, names: Collection[str], of: str, section: str = "log", *, in_step: bool = False) -> str:
    """The fix to put behind Python's own words for an attribute ``name`` that ``of`` does not have; empty without one.

    ``in_step``: the attribute is asked for within a step, which the fix must not open a second time.
    """
    noun = re.sub(r"\A(?:add|append|log|record|write)_(?=\w)", "", name)  # `rows` of ``write_row``
    words = [name] if _other_number(name) in names else [name, _other_number(name), noun, _other_number(noun)]
    words += [] if name.startswith("_") else ["*"]
    answers = (attributes().get(f"{section}.{word}") for word in words)
    if (meaning := next(filter(None, answers), None)) is not None:
        if in_step:
            meaning = meaning.replace("with log.step(step): ", "").replace(", inside the block", "")
        return f"\n  fix: {meaning.replace('LOG', of).replace('RUN', of).replace('ATTRIBUTE', name)}"
    close = None if name.startswith("_") else nearest(name, names)
    return "" if close is None else f"\n  fix: did you mean `{of}.{close}`?"


def _other_number(name: str) -> str:
    """The plural of a singular, and the singular of a plural."""
    return name[:-1] if name.endswith("s") else f"{name}s"


def no_attribute(text: str) -> AttributeError:
    """An error with its fix. Python adds no suggestion of its own to it, which could be a private name."""
    return AttributeError(text, name="", obj=None)


class _Text(str):
    """A text whose repr is the text itself."""

    __repr__ = str.__str__


def no_key(text: str) -> KeyError:
    """An error whose text Python shows without quotes."""
    return KeyError(_Text(text))


def shown_at_the_call(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function: errors of its config, its values or its call are shown at the call, without inner frames."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        if "config" in kwargs and "config" in [*inspect.signature(function).parameters][: len(args)]:  # of the run
            kwargs[TWICE] = kwargs.pop("config")
        try:
            return function(*args, **kwargs)
        except Exception as error:
            if isinstance(error, InputError | ConfigError | UsageError) or _of_arguments(error):
                error.__traceback__ = None
            if isinstance(error, ConfigError) and _begins_with_overrides(function, args, kwargs):
                problems = [replace(problem, fix=problem.fix and _as_items(problem.fix)) for problem in error.problems]
                if problems != [*error.problems]:
                    raise type(error)(problems) from error.__cause__
            raise

    setattr(call, "on_init_end", _as_callback)  # noqa: B010 - functions have no such attribute
    return call


def _as_callback(*_: object, **__: object) -> NoReturn:
    """Refuse a function among the callbacks of a trainer of transformers, which calls this method of each first."""
    raise UsageError.of("DL510.callback", fix=attributes()["log.on_init_end"])


_CHECKS = frozenset({"plan", "compose"})  # a command line calls these, too: their edits are words of a shell


def _begins_with_overrides(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a call begins a run, with overrides in a list of Python."""
    if function.__name__ in _CHECKS:
        return False
    return bool(inspect.signature(function).bind_partial(*args, **kwargs).arguments.get("overrides"))


def _as_items(fix: str) -> str:
    """The fix, with several overrides, which are words of a shell, rewritten as items of a list of Python.

    A list stays as it is: one call with overrides may make another, so the fix may have been rewritten before.
    """
    alternatives = []
    for text in fix.split("  or  "):
        try:
            words = shlex.split(text)
        except ValueError:  # prose
            words = []
        several = len(words) > 1 and all(map(_OVERRIDE.match, words)) and not words[0].endswith(",")
        alternatives.append(", ".join(map(repr, words)) if several else text)
    return "  or  ".join(alternatives)


_OVERRIDE = re.compile(r"~[\w./@]+\Z|(\+\+?)?[\w/@]+(\.[\w@/]+)*=")


def _of_arguments(error: Exception) -> bool:
    """Whether ``refuse_arguments`` raised an error."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code is refuse_arguments.__code__


def answered(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate as ``shown_at_the_call``, and put a fix behind Python's own words about wrong arguments."""

    @shown_at_the_call
    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it was called
            raise TypeError(f"{error}\n  fix: {attributes()[f'call.{function.__name__}']}") from None

    return call


def refuse_arguments(
    function: Callable[..., object],
    config: object,
    overrides: object,
    sinks: object,
    unnamed: Sequence[object],
    unknown: Mapping[str, Any],
    keys: Collection[str],
) -> None:
    """Raise ``TypeError``, in Python's own words, for arguments that a function does not have.

    ``config``, ``overrides`` and ``sinks`` are arguments that it has; sinks by name raise ``SinkError`` DL601.
    ``unnamed`` are arguments behind its positional ones, ``unknown`` those by unknown names. ``keys`` are the keys of
    the language, which are overrides.
    """
    listed = [sinks] if isinstance(sinks, str) else sinks if isinstance(sinks, Sequence) else ()
    names = [sink for sink in listed if isinstance(sink, str)]
    of, parameters = f"declog.{function.__name__}", inspect.signature(function).parameters
    if isinstance(config, list | tuple) and config and all(isinstance(line, str) and "=" in line for line in config):
        preset = "grpo" if parameters["config"].default == "minimal" else None  # others have a config for their trainer
        call = _call(of, [*parameters][: [*parameters].index("config")], preset, config, [], [])
        raise TypeError(f"{of}() takes a config first, and overrides came\n  fix: {call}")
    if not (unnamed or unknown or names):
        return
    kinds = {name: parameter.kind for name, parameter in parameters.items()}
    first = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    named = [name for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
    if unnamed:
        value = unnamed[0]
        call = f"{of}({', '.join(first)}, "
        said = f"{call}{named[0]}=...): the arguments behind have names: {', '.join(named)}"
        if lines := [item for item in unnamed if isinstance(item, str) and "=" in item]:
            said = _call(of, [], config, overrides, lines, [])
        elif isinstance(value, str | os.PathLike):
            said = f"{call}output_dir={os.fspath(value)!r})"
        raise TypeError(f"{of}() takes {len(first)} arguments without a name, and {value!r} came, too\n  fix: {said}")
    texts: list[str] = []
    arguments: list[str] = []
    advice: list[str] = []
    chosen = config
    for name, value in {**unknown, **({"sinks": names} if names else {})}.items():
        option = attributes().get(f"option.{name}", "")
        if option == "-":
            chosen = value
        elif "{repr}" in option:
            arguments.append(option.replace("{repr}", repr(value)))
        elif lines := _as_overrides(name, value, keys):
            texts += [line for line in lines if line not in texts]
        elif (close := nearest(name, [*first, *named])) is not None:
            advice.append(f"did you mean `{close}`?")
        else:
            advice.append(f'arguments: {", ".join([*first, *named])}; keys of the YAML are overrides: ["every=10"]')
    if names and (objects := [sink for sink in listed if not isinstance(sink, str)]):
        classes = [sink if isinstance(sink, type) else type(sink) for sink in objects]
        arguments.append(f"sinks=[{', '.join(f'{cls.__name__}()' for cls in classes)}]")
    if texts or arguments or chosen is not config:
        advice.insert(0, _call(of, first[:-2], chosen, overrides, texts, arguments))
    fix = "\n       ".join(dict.fromkeys(advice))
    if not unknown:
        raise SinkError.of("DL601.named", name=names[0], fix=fix)
    name = next(iter(unknown))
    came = "multiple values for argument 'config'" if name == TWICE else f"an unexpected keyword argument {name!r}"
    raise TypeError(f"{of}() got {came}\n  fix: {fix}")


def instead_of_a_trainer(trainer: object, config: object) -> tuple[str, str]:
    """The type of an object that ``declog.attach`` got and that is no trainer, and the fix of the call."""
    cls = trainer if isinstance(trainer, type) else type(trainer)
    preset = trainer.removeprefix("trl_") if isinstance(trainer, str) else "grpo"
    loop = f'in a loop of your own, `with declog.start("{preset}") as log:` and log.observe(...)'
    by_name = isinstance(trainer, str)
    if hasattr(config, "add_callback") or (by_name and isinstance(config, Sequence | Mapping | None)):
        return cls.__name__, f"the trainer comes first: declog.attach(trainer, {trainer!r})"
    if by_name:
        return type(config).__name__, loop
    if isinstance(trainer, type):
        return cls.__name__, f"declog.attach(trainer), the object that `{cls.__name__}(...)` makes"
    if any(base.__name__ == "TrainingArguments" for base in cls.__mro__):
        return cls.__name__, "declog.attach(trainer), the trainer that is made with these arguments"
    return cls.__name__, f"give the trainer: declog.attach(trainer); {loop}"


def _call(
    of: str, before: Sequence[str], config: object, overrides: object, texts: Sequence[str], arguments: Sequence[str]
) -> str:
    """The text of a function's call with further overrides and arguments; a mapping takes no overrides."""
    if texts and isinstance(config, Mapping):
        return f"put {' '.join(texts)} into the config, or on the command line of its application"
    shown = json.dumps(os.fspath(config)) if isinstance(config, str | os.PathLike) else "config"
    every = json.dumps([*(overrides if isinstance(overrides, list | tuple) else [overrides]), *texts], default=str)
    name = "overrides=" if config is None else ""
    parts = [*before, *([] if config is None else [shown]), *([] if every == "[]" else [name + every]), *arguments]
    return f"{'keys of the YAML are overrides: ' if texts else ''}{of}({', '.join(parts)})"


def _as_overrides(name: str, value: object, keys: Collection[str]) -> list[str]:
    """The overrides that do what an argument was meant to do; none if no override does."""
    if name in keys and isinstance(value, Mapping):
        below = {f"{name}.{key}": inner for key, inner in value.items()}
        return [text for key, inner in below.items() for text in _as_overrides(key, inner, below)]
    template = attributes().get(f"option.{name}", "{name}={value}" if name in keys else "")
    shown = in_flow(value)
    if isinstance(value, list | tuple) and template != "{name}={value}":
        shown = ",".join(map(str, value))
    facts = {"name": name, "value": shown}
    return [filled(part, facts) for part in template.split()] if "{value}" in template else []
