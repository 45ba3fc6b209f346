"""The JSON Schema of configs, for editors: pydantic's schema of the models, with the short forms added.

A file is a part of a config: no key is required, ``null`` deletes an entry or resets a key, ``${...}`` may replace any
value, and Hydra's ``defaults`` list is allowed. The schema does not check names, types and axes; the compiler does.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from pydantic import TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError
from pydantic.json_schema import DEFAULT_REF_TEMPLATE, GenerateJsonSchema
from pydantic_core import core_schema

from declog import sinks
from declog.language.keys import SECTIONS, below, keys, models
from declog.language.model import Model, Short
from declog.language.spec import IDENTIFIER, LogSpec, SinkSpec
from declog.language.spec_of_tests import Input

Schema = dict[str, Any]

OPEN = {
    "type": "string",
    "pattern": r"\$\{|^\?\?\?$",
    "description": "A value from elsewhere, `${...}`, or one to be given, `???`.",
}
DEFAULTS: Schema = {
    "description": "What this file extends, in order; `_self_` is the place of the file itself.",
    "type": "array",
    "items": {"anyOf": [{"type": "string"}, {"type": "object"}]},
}


def json_schema(part: str = "config") -> Schema:
    """The schema of a preset's file (``config``), of an application's configuration, or of an option of a group.

    A group is a section of the config: a file of the group ``declog/metrics`` holds a map of metrics.
    """
    short = short_forms()
    schema = LogSpec.model_json_schema(schema_generator=_PartsOfConfigs)
    config = _of_parts(schema, {_reference(name)["$ref"]: form for name, form in short.items()})
    definitions = {**config.pop("$defs"), "open": OPEN}
    properties = config["properties"]
    for section in SECTIONS:
        properties[section]["anyOf"][0]["propertyNames"] = {"pattern": f"^{IDENTIFIER.pattern[:-2]}$"}
    phase = properties["signals"]["anyOf"][0]["additionalProperties"]["anyOf"][0]
    phase["propertyNames"] = properties["signals"]["anyOf"][0]["propertyNames"]
    definitions["SinkSpec"]["allOf"] = [_options_if_kind(kind) for kind in sinks.built_in()]
    sink = properties["sink_options"]["anyOf"][0]
    sink["properties"] = {kind: _named_sink(kind, sink["additionalProperties"]) for kind in sinks.built_in()}
    if part == "application":
        definitions["LogSpec"] = config
        root: Schema = {"type": "object", "properties": {"declog": _reference("LogSpec")}}
    elif part == "config":
        root = {**config, "properties": {"defaults": DEFAULTS, **properties}}
    else:
        root = {**properties[part]["anyOf"][0]}
        root["properties"] = {"defaults": DEFAULTS, **root.get("properties", {})}
    return {"$schema": GenerateJsonSchema.schema_dialect, "title": f"declog {part}", **root, "$defs": definitions}


def parts() -> tuple[str, ...]:
    """The parts of a configuration that have a schema."""
    return ("config", "application", *SECTIONS)


class _PartsOfConfigs(GenerateJsonSchema):
    """The schema of a part of a config: no key is required, and each may be null, interpolated or short."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Give no titles: a key is its own title."""
        return False

    def default_schema(self, schema: core_schema.WithDefaultSchema) -> Schema:
        """Leave the default out: it would mislead, because another layer may set the key."""
        return self.generate_inner(schema["schema"])

    def model_schema(self, schema: core_schema.ModelSchema) -> Schema:
        """The schema of a map with the model's keys."""
        model: type[Model] = schema["cls"]
        full = super().model_schema(schema)
        properties = {}
        for name, key in keys(model).items():
            said = getattr(key.type, "__metadata__", ())
            short = [self._of(part.type) for part in said if isinstance(part, Short)]
            text = {"description": key.help} if key.help else {}
            properties[name] = _any_of(full["properties"][name] | text, *short)
        result: Schema = {"type": "object", "properties": properties, "description": full["description"]}
        closed = model.model_config["extra"] == "forbid" and (not issubclass(model, Input) or model._short is None)
        return {**result, "additionalProperties": False} if closed else result

    def _of(self, type_: Any) -> Schema:
        return self.generate_inner(TypeAdapter(type_).core_schema)


def _any_of(schema: Schema, *further: Schema) -> Schema:
    """A schema whose values fit any of some schemas, with the description of the first; nested choices are merged."""
    said = {key: value for key, value in schema.items() if key == "description"}
    nested = [{key: value for key, value in schema.items() if key not in said}, *further]
    while any(set(part) == {"anyOf"} for part in nested):
        nested = [inner for part in nested for inner in (part["anyOf"] if set(part) == {"anyOf"} else [part])]
    return {**said, "anyOf": nested}


def _choices(schema: Schema, short: Mapping[str, Schema] = MappingProxyType({})) -> Schema:
    """A schema whose values fit ``schema`` or its short form, or are null or an interpolation; any if it is empty."""
    if not set(schema) - {"description"}:
        return schema
    choices = _any_of(schema)
    inside = [choice for choice in choices["anyOf"] if choice != {"type": "null"}]
    inside += [short[choice["$ref"]] for choice in inside if choice.get("$ref") in short]
    return _any_of(choices | {"anyOf": inside}, {"type": "null"}, _reference("open"))


def _of_parts(schema: Any, short: Mapping[str, Schema]) -> Any:
    """The schema, changed so that each key may be null, interpolated or short."""
    if isinstance(schema, list):
        return [_of_parts(part, short) for part in schema]
    if not isinstance(schema, dict):
        return schema
    parts = {key: _of_parts(value, short) for key, value in schema.items()}
    if "properties" in parts:
        parts["properties"] = {key: _choices(part, short) for key, part in parts["properties"].items()}
    if "$ref" in parts.get("items", ()):
        parts["items"] = _any_of(*(part for part in (parts["items"], short.get(parts["items"]["$ref"])) if part))
    if isinstance(entry := parts.get("additionalProperties"), dict):
        parts["additionalProperties"] = _choices(entry, short)
    return parts


def short_forms() -> dict[str, Schema]:
    """The schema of each model's short form, by the model's name."""
    types = {model.__name__: model._short or below(model, model._plain) for model in models()}
    return {name: TypeAdapter(type_).json_schema() for name, type_ in types.items() if type_ is not None}


def _reference(name: str) -> Schema:
    return {"$ref": DEFAULT_REF_TEMPLATE.format(model=name)}


# ---- sinks: the options of a kind are the arguments of its constructor ------------------------------


def _options_if_kind(kind: str) -> Schema:
    return {"if": {"properties": {"kind": {"const": kind}}, "required": ["kind"]}, "then": _options(kind)}


def _named_sink(kind: str, entry: Schema) -> Schema:
    """The schema of an entry that has the name of a kind: it is of that kind unless it sets ``kind``."""
    sink, *short = entry["anyOf"]
    named = {**sink, "if": {"type": "object", "not": {"required": ["kind"]}}, "then": _options(kind)}
    return {"anyOf": [named, *short]}


def _options(kind: str) -> Schema:
    hints = typing.get_type_hints(sinks.sink_class(kind).__init__)
    options = {name: _option(hints.get(name, Any)) for name in sinks.option_names(kind)}
    return {"properties": options, "propertyNames": {"enum": [*keys(SinkSpec), *options]}}


def _option(hint: Any) -> Schema:
    try:
        return _choices(TypeAdapter(hint).json_schema())
    except PydanticSchemaGenerationError:
        return {}
