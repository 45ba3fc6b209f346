"""The table of keys: the keys of a config, the type of each value, and the names that the text at a key uses.

The table is read from the models.
"""

from __future__ import annotations

import ast
import inspect
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from itertools import pairwise
from textwrap import dedent
from typing import Annotated, Any

from declog.errors import Path
from declog.language.model import Model, Says
from declog.language.spec import LogSpec
from declog.language.tree import map_at


@dataclass(frozen=True)
class Key:
    """A key of a model: its name in Python, and its type with its annotations."""

    model: type[Model]
    name: str
    type: Any

    @property
    def help(self) -> str:
        """The description of the key: the text below it in its model."""
        return _texts(self.model).get(self.name, "")


@cache
def keys(model: type[Model]) -> Mapping[str, Key]:
    """The keys of a model by their names in YAML."""
    of_yaml = {}
    for name, field in model.model_fields.items():
        type_ = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        if not field.exclude:
            of_yaml[field.alias or name] = Key(model, name, type_)
    return of_yaml


@cache
def _texts(model: type[Model]) -> Mapping[str, str]:
    """The text below each key of a model, read from the source. Reading is slow: only help and schemas need it."""
    texts: dict[str, str] = {}
    for base in filter(is_model, reversed(model.__mro__)):
        for pair in pairwise(ast.walk(ast.parse(dedent(inspect.getsource(base))))):
            match pair:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    texts[name] = " ".join(text.split())
    return texts


def below(type_: Any, key: object) -> Any:
    """The type of the value at a key of a model, a map or a list. Of a union, the first member with the key counts.

    Returns None if no member has the key.
    """
    of_keys, of_any = _inside(type_)
    return of_keys.get(str(key), of_any)


@cache  # called for every value of a config
def _inside(type_: Any) -> tuple[Mapping[str, Any], Any]:
    """The types at the keys of models, and the type at any other key of a map or a list; None without either."""
    of_keys: dict[str, Any] = {}
    for atom in atoms(type_):
        if typing.get_origin(atom) in (dict, list):
            return of_keys, typing.get_args(atom)[-1]
        if is_model(atom):
            of_keys = {name: key.type for name, key in keys(atom).items()} | of_keys
    return of_keys, None


def keys_at(path: Iterable[object]) -> Mapping[str, Key]:
    """The keys that a map at a path of a config may have. Empty if the user chooses the names of the keys."""
    model = model_of(reduce(below, path, LogSpec))
    return {} if model is None else keys(model)


@cache
def model_of(type_: Any) -> type[Model] | None:
    """The one model among the types of a value. None if there is no model, or several."""
    inside = list(filter(is_model, atoms(type_)))
    return inside[0] if len(inside) == 1 else None


def models(type_: Any = LogSpec) -> Iterator[type[Model]]:
    """The models of a type, and the models of the values inside of them."""
    for atom in atoms(type_):
        if is_model(atom):
            yield atom
        for inner in [key.type for key in keys(atom).values()] if is_model(atom) else typing.get_args(atom):
            yield from models(inner)


def is_model(type_: Any) -> bool:
    """Whether a type is a model, and not a union or a container of models."""
    return isinstance(type_, type) and issubclass(type_, Model)


def members(type_: Any) -> tuple[Any, ...]:
    """The members of a union, or the bare type of an annotated type. Empty for any other type."""
    origin, inside = typing.get_origin(type_), typing.get_args(type_)
    return inside[:1] if origin is Annotated else inside if origin in (typing.Union, types.UnionType) else ()


@cache
def atoms(type_: Any) -> tuple[Any, ...]:
    """The types that a value may have, without unions and annotations: int and None for ``int | None``."""
    return tuple(atom for member in members(type_) for atom in atoms(member)) or (type_,)


def values(data: Any, type_: Any = LogSpec, path: Path = ()) -> Iterator[tuple[Path, Any, Any]]:
    """Every value inside of a config, or of a part of it, with its path and its type; outer values come first.

    The type is None if the language has no such key, and inside of `run.config`, whose keys are the application's own.
    """
    items = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        inner = below(type_, key)
        yield (*path, key), value, inner
        yield from values(value, inner, (*path, key))


def says(type_: Any) -> Iterator[Says]:
    """The kinds of names that a text of a type uses.

    A text in place of a map uses the names of the key that it stands for.
    """
    if is_model(type_) and type_._plain:
        yield from says(below(type_, type_._plain))
    if typing.get_origin(type_) is Annotated:
        yield from (item for item in type_.__metadata__ if isinstance(item, Says))
    for member in members(type_):
        yield from says(member)


# The keys of a config whose value is a map of entries, by names that the user chooses.
SECTIONS = tuple(
    name for name, key in keys(LogSpec).items()
    if typing.get_origin(atoms(key.type)[0]) is dict and below(key.type, "") is not Any
)  # fmt: skip
# The sections whose entries other keys refer to by name.
_said = {said.of for model in models() for key in keys(model).values() for said in says(key.type)}
NAMED = tuple(section for section in SECTIONS if section in _said)


def sections_with(key: str) -> list[str]:
    """The sections whose entries may have a key."""
    types_of = {section: below(below(LogSpec, section), "") for section in SECTIONS}
    models_of = {section: model_of(type_) or model_of(below(type_, "")) for section, type_ in types_of.items()}
    return [section for section, model in models_of.items() if model is not None and key in keys(model)]


def section_of(entry: Mapping[str, Any]) -> str | None:
    """The section whose entries may have all keys of ``entry``; `metrics` if several fit.

    Returns None if no section fits, or if `name` is the only key.
    """
    homes = [{*sections_with(str(key))} for key in entry]
    common = set.intersection(*homes) if {*entry} - {"name"} else set()
    return min(common, key=lambda section: (section != "metrics", SECTIONS.index(section)), default=None)


def entries(data: Mapping[str, Any], section: str) -> Iterator[tuple[Path, Any]]:
    """The entries of a section with their paths. The entries of `signals` stand one level lower, under their phases."""
    for name, entry in map_at(data, section).items():
        if section != "signals":
            yield (section, name), entry
        elif isinstance(entry, Mapping):
            yield from (((section, name, signal), inner) for signal, inner in entry.items())


def entry_names(data: Mapping[str, Any], *sections: str) -> set[str]:
    """The names of the entries of some sections."""
    return {str(path[-1]) for section in sections for path, _ in entries(data, section)}


def is_entry(path: Path) -> bool:
    """Whether a path leads to an entry of a section, and not to the section or to a key of the entry."""
    return bool(path) and path[0] in SECTIONS and len(path) == (3 if path[0] == "signals" else 2)


def entry_path(path: Path) -> Path:
    """The path of the entry that a path leads into."""
    return path[: 3 if path[:1] == ("signals",) else 2]
