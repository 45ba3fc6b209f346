"""Overrides: values as people write them in Hydra's grammar, and the keys that a plain ``=`` may add."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Literal

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, QuotedString
from hydra.errors import HydraException

from declog.config.quoting import value_end
from declog.config.search_path import GROUP
from declog.errors import in_flow
from declog.language.keys import SECTIONS, entry_path, is_entry
from declog.language.spec import LogSpec
from declog.language.tree import Node

# A plain ``=`` may add any value of a key, whole entries of a map, or nothing new. It adds any key below an entry that
# exists, and none below an entry that does not: that is mostly a typo.
Adds = Literal["anything", "entries", "nothing"]
ADDS: dict[str, Adds] = {key: "entries" if key in SECTIONS else "anything" for key in LogSpec.model_fields}
ADDS |= {"constants": "nothing", "sink_options": "anything"}


def taken(value: str) -> str:
    """A value as Hydra's grammar takes it: in quotes if the grammar would refuse or change the text."""
    override = parsed(f"key={value}")
    if override is None:
        return _requoted(value) or _literal(value) or quoted(value)
    read = override._value
    return quoted(value) if isinstance(read, str) and not isinstance(read, QuotedString) and read != value else value


def pasted(line: str) -> str:
    """An override as one word of a shell, in quotes only where it needs them."""
    if "'" in line and not re.search(r'["$`\\!]', line):
        return f'"{line}"'
    return line if re.fullmatch(r"[+\w./@=,:-]+", line) else shlex.quote(line)


def with_equals(line: str) -> str | None:
    """The override that ``every: 2`` or ``every = 2`` is meant as; None for another text."""
    pair = re.fullmatch(r"(\+*[a-z_][\w.]*)\s*[:=]\s*(?!//)(\S.*)", line, re.DOTALL)
    return f"{pair[1]}={pair[2]}" if pair else None


def with_colons(value: str) -> str:
    """The map that ``{expr: reward, log=true}`` is meant as, with a colon behind each key; any other text as it is."""
    if value[:1] != "{" or value[-1:] != "}":
        return value
    parts = [re.sub(r"\A(\s*[a-z_]\w*) *=(?!=) *", r"\1: ", part) for part in _parts(value[1:-1])]
    inside = (re.sub(r"(?s)(?<=: )\{.*\}\Z", lambda match: with_colons(match[0]), part) for part in parts)
    return f"{{{','.join(inside)}}}"


def setting(key: str, value: object) -> str:
    """The override ``key=value`` as one word of a shell; ``key`` has its sign."""
    return pasted(f"{key}={written(value)}")


def parsed(line: str) -> Override | None:
    """The parsed override; None if Hydra's grammar does not take it."""
    try:
        (override,) = OverridesParser.create().parse_overrides([line])
    except HydraException:
        return None
    return override


def written(data: object) -> str:
    """A value in Hydra's grammar."""
    return in_flow(data, _text)


def _text(data: str) -> str:
    override = parsed(f"key={data}")
    return data if override is not None and override._value == data else quoted(data)


def quoted(text: str) -> str:
    """A text in double quotes. Backslashes count double before a quote only."""
    inside = re.sub(r'(\\*)"', lambda match: f'{match[1] * 2}\\"', text)
    return f'"{inside}{chr(92) * (len(inside) - len(inside.rstrip(chr(92))))}"'


def may_be_added(config: Node, override: Override) -> bool:
    """Whether a plain override may add its key, or keys to the map at its key: ``ADDS`` says where."""
    node, *path = override.key_or_group.split(".")
    depth, holder = config.deepest((node, *path))
    if node != GROUP or depth == 0 or not isinstance(holder.value, dict):
        return False  # a text has no keys
    if depth > len(path):
        return isinstance(override.value(), dict)
    adds = ADDS.get(path[0])
    below = adds is not None and depth > len(entry_path(tuple(path)))
    return below or adds == "anything" or (adds == "entries" and is_entry(tuple(path)))


def _requoted(value: str) -> str | None:
    """A list or a map with quotes around each text that needs them for Hydra; None if that is not enough."""

    def inside(text: str) -> str:
        if text[:1] in ("[", "{") and text[-1:] in ("]", "}"):
            return text[0] + ", ".join(inside(part.strip()) for part in _parts(text[1:-1])) + text[-1]
        name, colon, rest = text.partition(":")
        if colon and name.strip().isidentifier():
            return f"{name}: {inside(rest.strip())}"
        return text if re.fullmatch(r"[\w.+ /-]*", text) or text[:1] in ("'", '"') else quoted(text)

    line = inside(value) if value[:1] in ("[", "{") else ""
    return line if line and parsed(f"key={line}") is not None else None


def _parts(text: str) -> Iterator[str]:
    """The parts of a text between the commas that are outside all brackets."""
    start = 0
    while (end := value_end(text, start)) is not None:
        yield text[start:end]
        start = end + 1
    yield text[start:]


def _literal(value: str) -> str | None:
    """A list or a map in good YAML, written in Hydra's grammar; None for any other value."""
    if value[:1] not in ("[", "{"):
        return None
    try:
        data = yaml.safe_load(value)
    except yaml.YAMLError:
        return None
    line = written(data)
    return line if isinstance(data, dict | list) and parsed(f"key={line}") is not None else None
