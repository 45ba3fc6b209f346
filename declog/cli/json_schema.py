"""The JSON Schema of profiles, for editors: from the models of the YAML, with their descriptions.

A file is a part of a profile: nothing is required, ``null`` deletes an entry or resets a leaf, ``${...}`` may stand for
any value, and Hydra's ``defaults`` list is allowed. Whether names, types and axes fit is the compiler's to say.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError

from declog import sinks
from declog.language import spec
from declog.language.shorthand import SIGNAL_KEYS
from declog.language.spec import SECTIONS, LogSpec, SinkSpec
from declog.records import DType

Schema = dict[str, Any]

DIALECT = "https://json-schema.org/draft/2020-12/schema"
REFERENCES = "#/$defs/"
OPEN = {
    "type": "string",
    "pattern": r"\$\{|^\?\?\?$",
    "description": "A value from elsewhere, `${...}`, or one to be given, `???`.",
}
SCALAR = {"type": ["string", "number", "boolean"]}
TEXT = {"type": "string"}
TEXTS = {"type": "array", "items": TEXT}
WORDS = {"anyOf": [TEXT, TEXTS]}
COLUMNS = {"anyOf": [{"type": "object", "additionalProperties": {"anyOf": [
    {"$ref": f"{REFERENCES}ColumnSpec"}, TEXT, {"type": "null"}]}},
    {"type": "array", "items": {"anyOf": [TEXT, {"type": "object"}]}}]}  # fmt: skip
MISSPELT = ["axes", "ax", "dtype", "kind", "types", "expression", "families", "event", "phases", "masks"]  # no signals
PHASE: Schema = {
    "description": "The signals of a phase, by name: `reward: completion`, `source: completion text?`.",
    "type": "object",
    "minProperties": 1,
    "propertyNames": {"not": {"enum": [*sorted(SIGNAL_KEYS - {"mask"}), *MISSPELT]}},
    "additionalProperties": {"anyOf": [{"$ref": f"{REFERENCES}SignalSpec"}, SCALAR, {"type": "null"}]},
}
# What an entry may be instead of a map.
SHORT: Mapping[str, Schema] = {
    "ConstantSpec": SCALAR,
    "SignalSpec": {"anyOf": [SCALAR, PHASE]},
    "MetricSpec": {"anyOf": [SCALAR, TEXTS]},
    "FilterSpec": {"type": "string", "pattern": "[^a-z0-9_]", "description": "Which rows: a condition."},
    "ChartSpec": {"description": "The name of a chart that metrics share.", **TEXT},
    "ColumnSpec": TEXT,
    "Length": {"description": "So much of its start.", "type": "integer", "minimum": 1},
    "TableSpec": {"type": "array", "items": {"anyOf": [TEXT, {"type": "object"}]}},
    "SelectorSpec": WORDS,
    "ProfileSpec": WORDS,
    "AlertSpec": TEXT,
    "SinkSpec": {"description": "The profile that it shows.", **TEXT},
    "GroupAxis": {"description": "Completions per group, or the signal of its ids.", "type": ["integer", "string"]},
    "CompletionAxis": {"description": "The signal of the ids.", **TEXT},
    "TokenAxis": {"description": "The signal that says which tokens exist.", **TEXT},
    "CaptureSpec": {"type": "boolean"},
    "Expected": {"type": "number"},
    "ExpectedTable": {"type": "integer"},
    "RankInput": {"type": "array", "items": {"type": "object"}},
    "StepInput": {"type": "array", "items": {"type": "object"}},
    "TaskInput": {"type": "array", "items": {"type": "object"}},
}
# What a key may hold besides, and keys that are shorter than those of the long form.
SHORTER: Mapping[tuple[str, str], Schema] = {
    ("MetricSpec", "tags"): TEXT,
    ("MetricSpec", "by"): TEXTS,
    ("MetricSpec", "alias"): TEXTS,
    ("MetricSpec", "healthy"): {
        "type": "array",
        "items": {"type": ["number", "null"]},
        "minItems": 2,
        "maxItems": 2,
    },
    ("TableSpec", "columns"): {"description": "Its columns, in place.", "anyOf": [*COLUMNS["anyOf"], TEXT]},
    ("TableSpec", "schema"): COLUMNS,
    ("TableSpec", "filter"): {"$ref": f"{REFERENCES}FilterSpec"},
    ("TableSpec", "to"): WORDS,
    ("ProfileSpec", "include"): WORDS,
    ("ProfileSpec", "exclude"): WORDS,
    ("FilterSpec", "random"): {"description": "So many rows, by chance.", "type": "integer", "minimum": 0},
    ("FilterSpec", "first"): {"description": "The first rows, so many.", "type": "integer", "minimum": 0},
    ("FilterSpec", "unique"): {"description": "The first row of each value of it.", "type": "string"},
    ("LogSpec", "sinks"): {"anyOf": [TEXT, {"type": "array", "items": {"anyOf": [TEXT, {"type": "object"}]}}]},
    ("LogSpec", "modes"): TEXTS,
}
OF_SIGNALS = ("RankInput", "StepInput", "TaskInput")  # maps whose unknown keys are signals
DEFAULTS: Schema = {
    "description": "What this file extends, in order; `_self_` is the place of the file itself.",
    "type": "array",
    "items": {"anyOf": [TEXT, {"type": "object"}]},
}


def json_schema(part: str = "profile") -> Schema:
    """The schema of a preset's file (``profile``), of an application's configuration, or of a group's option.

    A group is a section of the profile: a file of the group ``declog/sinks`` holds a map of sinks.
    """
    definitions = {name: _model(model) for name, model in _models(LogSpec)}
    definitions["open"] = OPEN
    definitions["SinkSpec"]["allOf"] = [_options_if_kind(kind) for kind in sinks.built_in()]
    profile = definitions.pop("LogSpec")
    profile["properties"]["sinks"]["anyOf"][0]["properties"] = {kind: _named_sink(kind) for kind in sinks.built_in()}
    if part == "application":
        definitions["LogSpec"] = profile
        root: Schema = {"type": "object", "properties": {"declog": _reference("LogSpec")}}
    elif part == "profile":
        root = {**profile, "properties": {"defaults": DEFAULTS, **profile["properties"]}}
    else:
        root = {**profile["properties"][part]["anyOf"][0]}
        root["properties"] = {"defaults": DEFAULTS, **root.get("properties", {})}
    return {"$schema": DIALECT, "title": f"declog {part}", **root, "$defs": definitions}


def parts() -> tuple[str, ...]:
    """What there is a schema of."""
    return ("profile", "application", *(name for name in SECTIONS))


def _models(
    model: type[BaseModel], seen: dict[str, type[BaseModel]] | None = None
) -> Iterator[tuple[str, type[BaseModel]]]:
    """The models that a model holds, itself included, by name."""
    seen = {} if seen is None else seen
    if model.__name__ in seen:
        return
    seen[model.__name__] = model
    yield model.__name__, model
    for field in model.model_fields.values():
        for inner in _classes(field.annotation):
            yield from _models(inner, seen)


def _classes(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in typing.get_args(annotation):
        yield from _classes(inner)


def _model(model: type[BaseModel]) -> Schema:
    """A map with known keys."""
    properties = {}
    for name, field in model.model_fields.items():
        if field.exclude:
            continue
        bounded: Any = Annotated[field.annotation, *field.metadata] if field.metadata else None
        value = _nullable(_value(field.annotation) if bounded is None else TypeAdapter(bounded).json_schema())
        key = field.alias or name
        if key in SECTIONS and model is LogSpec:
            value["anyOf"][0]["propertyNames"] = {"pattern": f"^{spec.IDENTIFIER.pattern.removesuffix(chr(92) + 'Z')}$"}
        if (shorter := SHORTER.get((model.__name__, key))) is not None:
            value["anyOf"] += shorter.get("anyOf", [shorter])
        described = {"description": " ".join(field.description.split())} if field.description else {}
        properties[key] = {**described, **value}
    own = {key: schema for (name, key), schema in SHORTER.items() if name == model.__name__ and key not in properties}
    properties |= own
    found: Schema = {"type": "object", "properties": properties}
    if (text := inspect.cleandoc(model.__doc__ or "")) and model.__doc__ != BaseModel.__doc__:
        found["description"] = text
    if model.model_config.get("extra") != "allow" and model.__name__ not in OF_SIGNALS:
        found["additionalProperties"] = False
    return found


def _value(annotation: Any) -> Schema:
    """What a type allows in YAML."""
    origin, inside = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return _value(inside[0])
    if origin is Literal:
        return {"enum": list(inside)}
    if annotation is DType:
        return {"enum": [dtype.value for dtype in DType]}
    if origin in (typing.Union, types.UnionType):
        return {"anyOf": [_value(each) for each in inside]}
    if origin is dict:
        return {"type": "object", "additionalProperties": _nullable(_value(inside[1]))}
    if origin is tuple and Ellipsis not in inside:
        return {"type": "array", "items": _value(inside[0]), "minItems": len(inside), "maxItems": len(inside)}
    if origin in (list, tuple, frozenset):
        return {"type": "array", "items": _value(inside[0]) if inside else {}}
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        name = annotation.__name__
        return {"anyOf": [_reference(name), SHORT[name]]} if name in SHORT else _reference(name)
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
    return {"type": plain[annotation]} if annotation in plain else {}


def _nullable(value: Schema) -> Schema:
    """The value, or null, or a text that stands for it."""
    if not value:
        return {}
    choices = value["anyOf"] if set(value) == {"anyOf"} else [value]
    flat = [inner for each in choices for inner in (each["anyOf"] if set(each) == {"anyOf"} else [each])]
    return {"anyOf": [*(each for each in flat if each != {"type": "null"}), {"type": "null"}, _reference("open")]}


def _reference(name: str) -> Schema:
    return {"$ref": f"{REFERENCES}{name}"}


# ---- sinks: the options of a kind are its constructor's ---------------------------------------------


def _options_if_kind(kind: str) -> Schema:
    return {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": _options(kind)}


def _named_sink(kind: str) -> Schema:
    """An entry that bears a kind's name is of this kind unless it says otherwise."""
    sink = {**_reference("SinkSpec"), "if": {"type": "object", "not": {"required": ["kind"]}}, "then": _options(kind)}
    return {"anyOf": [sink, SHORT["SinkSpec"], {"type": "null"}, _reference("open")]}


def _options(kind: str) -> Schema:
    made = sinks.sink_class(kind)
    hints = typing.get_type_hints(made.__init__)
    own = {name: _nullable(_option(hints.get(name, Any))) for name in sinks.option_names(kind)}
    return {"properties": own, "propertyNames": {"enum": [*SinkSpec.model_fields, *own]}}


def _option(hint: Any) -> Schema:
    try:
        return dict(TypeAdapter(hint).json_schema())
    except PydanticSchemaGenerationError:
        return {}
