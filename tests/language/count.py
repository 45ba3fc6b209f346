"""How large the language is: its keys, short forms, functions and verbs, and the words of each preset.

``python -m tests.language.count`` prints it. It reads models and files only: run as a script with another checkout
first on the path, it counts that one.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import yaml

import declog
from declog.language.functions import BUILTIN
from declog.language.model import Model
from declog.language.reductions import BUILTIN as REDUCTIONS
from declog.language.spec import LogSpec

FOLDER = Path(declog.__file__).parents[1] / "conf" / "declog"
_ASIDE = ("TestSpec", "CaptureSpec")  # of tests and captures: no profile that is trained with needs them


def parts(type_: Any) -> tuple[Any, ...]:
    """What a type is made of: the members of a union, what a list or a map holds."""
    inside = (type_.__origin__,) if typing.get_origin(type_) is Annotated else typing.get_args(type_)
    return tuple(each for each in inside if each is not type(None))


def models(type_: Any = LogSpec, known: dict[Any, None] | None = None) -> list[type[Model]]:
    """The models below a type, each once, those of tests and captures aside."""
    known = {} if known is None else known
    is_model = isinstance(type_, type) and not isinstance(type_, types.GenericAlias) and issubclass(type_, Model)
    if is_model and type_ not in known and type_.__name__ not in _ASIDE:
        known[type_] = None
        for field in type_.model_fields.values():
            models(field.annotation, known)
    for each in () if is_model else parts(type_):
        models(each, known)
    return list(known)


def keys() -> list[str]:
    """Every key that YAML may have, as `Model.key`; whoever wants the top ones takes those of `LogSpec`."""
    return list(dict.fromkeys(
        f"{declared_by(model, name)}.{field.alias or name}"
        for model in models()
        for name, field in model.model_fields.items()
        if not field.exclude
    ))  # fmt: skip


def declared_by(model: type[Model], name: str) -> str:
    """The model that has a key first: what several models have from one base is one key."""
    return next(base.__name__ for base in reversed(model.__mro__) if name in vars(base).get("__annotations__", {}))


def short_forms() -> list[str]:
    """Where something else than the long form may stand: each type of it is one form."""
    found = []
    for model in models():
        name = next((base.__name__ for base in model.__mro__ if "_short" in vars(base)), model.__name__)
        found += [f"{name} as {each}" for each in _types(getattr(model, "_short", None))]
        if getattr(model, "_plain", "") and getattr(model, "_short", None) is None:
            found.append(f"{name} as its `{model._plain}`")
        for key, field in model.model_fields.items():
            shorter = [each for each in field.metadata if type(each).__name__ == "Short"]
            shorter += [each for part in parts(field.annotation) for each in getattr(part, "__metadata__", ())
                        if type(each).__name__ == "Short"]  # fmt: skip
            found += [f"{name}.{key} as {each}" for one in shorter for each in _types(one.type)]
    return list(dict.fromkeys(found))


def _types(shorter: Any) -> Iterator[str]:
    if shorter is None:
        return
    if typing.get_origin(shorter) is Annotated:
        yield from _types(shorter.__origin__)
    elif typing.get_origin(shorter) in (typing.Union, types.UnionType):
        several = set(typing.get_args(shorter))
        scalars = {bool, int, float, str} <= several
        yield from ["a scalar"] * scalars
        for each in typing.get_args(shorter):
            yield from () if scalars and each in (bool, int, float, str) else _types(each)
    elif shorter is not type(None):
        yield getattr(shorter, "__name__", str(shorter)) if not typing.get_args(shorter) else str(shorter)


def verbs() -> list[str]:
    """The verbs of the command line."""
    package = importlib.import_module("declog.cli.verbs")
    return sorted(each.name for each in pkgutil.iter_modules(package.__path__) if not each.name.startswith("_"))


def words(file: Path) -> int:
    """The words of a file's YAML without comments: keys, values and those of its texts."""
    return len(re.findall(r"[\w.*/<>=+-]+", " ".join(_texts(yaml.safe_load(file.read_text(encoding="utf-8"))))))


def _texts(value: Any) -> Iterator[str]:
    listed = [(None, each) for each in value] if isinstance(value, list) else []
    for key, each in value.items() if isinstance(value, dict) else listed:
        yield from () if key is None else (str(key),)
        yield from _texts(each) if isinstance(each, dict | list) else (str(each),)


def longest(file: Path) -> int:
    """The length of a file's longest line."""
    return max(map(len, file.read_text(encoding="utf-8").splitlines()))


def counted() -> dict[str, int]:
    """What has a ceiling."""
    every = keys()
    return {
        "top keys": sum(each.startswith("LogSpec.") for each in every),
        "keys": len(every),
        "short forms": len(short_forms()),
        "longest line": max(longest(file) for file in FOLDER.rglob("*.yaml")),
    }


if __name__ == "__main__":
    for what, count in counted().items():
        print(f"{count:6} {what}")
    print(f"{len(BUILTIN.names()):6} functions\n{len(REDUCTIONS.names()):6} reductions\n{len(verbs()):6} verbs")
    print("\n words  longest line  over 120")
    for preset in sorted(FOLDER.glob("*.yaml")):
        lines = preset.read_text(encoding="utf-8").splitlines()
        print(f"{words(preset):6} {longest(preset):13} {sum(len(line) > 120 for line in lines):9}  {preset.stem}")
