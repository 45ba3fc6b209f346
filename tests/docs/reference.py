"""The language's reference as Markdown tables, generated from the registries and the models of the YAML.

``python -m tests.docs.reference docs/language.md`` rewrites the parts of a file between its markers
``<!-- reference: NAME -->`` and ``<!-- end -->``; with ``--check`` it only says whether they are up to date.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

import declog
from declog.compiler.filters import KINDS
from declog.engine.filters import KINDS as CHOOSERS
from declog.errors.pages import CODES, page
from declog.language import reductions as _reductions
from declog.language import spec, spec_of_tables
from declog.language.expression import OPERATORS
from declog.language.functions import BUILTIN, operators, structure, text
from declog.language.keys import keys as keys_of
from declog.language.model import Model
from tests.docs import catalogue

DOCS = Path(__file__).parents[2] / "docs"
_MODELS = {
    "GroupAxis": "group",
    "CompletionAxis": "completion",
    "TokenAxis": "token",
    "Expected": "expected value",
    "ExpectedTable": "expected table",
    "Input": "rank",
    "StepInput": "step",
}
_LAYERS = {
    "1": "Composition",
    "2": "Schema",
    "3": "Language and types",
    "4": "Plan",
    "5": "Input at run time",
    "6": "Sinks and ranks",
}
_MARK = re.compile(r"(<!-- reference: (?P<name>[\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def functions() -> str:
    """Every built-in function: how it is written and what it gives, by the file that holds it."""
    rows = []
    for title, module in (("elementwise", operators), ("structure", structure), ("text and labels", text)):
        for item in BUILTIN:
            home = item.run.__module__
            if item.stage == "aggregate":
                home = structure.__name__
            if home == module.__name__ and item.name not in OPERATORS:
                rows.append((f"`{item.signature}`", title, item.help))
    return _table(("function", "", "value"), rows)


def reductions() -> str:
    """Every built-in reduction."""
    rows = []
    for item in _reductions.BUILTIN:
        params = ", ".join(f"{key}={value}" for key, value in (item.params or {}).items())
        state = "mergeable" if item.foldable else "sketch over tokens" if item.sketch is not None else "rows only"
        rows.append((f"`{item.name}{f'({params})' if params else ''}`", str(item.arity), state, item.help))
    quantile = _reductions.BUILTIN.get("p95")
    assert quantile is not None
    rows.append(
        ("`pNN`: `p05`, `p50`, `p99.9`", "1", "sketch over tokens", quantile.help.replace("the 0.95", "the NN %"))
    )
    return _table(("reduction", "expressions", "state", "value"), rows)


def filters() -> str:
    """The ways in which a filter chooses rows, by the docstrings of what chooses."""
    rows = [
        (", ".join(f"`{key}`" for key in KINDS.get(kind, ())) or "none of these", _sentence(choose.__doc__ or ""))
        for kind, choose in CHOOSERS.items()
    ]
    return _table(("keys", "takes"), sorted(rows, key=lambda row: row[0] == "none of these"))


def _sentence(text: str) -> str:
    """The first line of a docstring as a cell: code as Markdown has it, without a capital and a full stop."""
    line = text.split("\n")[0].replace("``", "`").rstrip(".")
    return line[:1].lower() + line[1:]


def keys(model: type[Model]) -> str:
    """A model's keys, their types, defaults and what they mean."""
    rows = []
    for name, key in keys_of(model).items():
        field = model.model_fields[key.name]
        default = "required" if field.is_required() else _default(field.get_default(call_default_factory=True))
        rows.append((f"`{name}`", _type(field.annotation), default, key.help))
    return _table(("key", "type", "default", ""), rows)


def python_api() -> str:
    """Every public name of the package, and the first sentence of its docstring."""
    rows = [
        (f"`{name}`", _sentence(inspect.getdoc(getattr(declog, name)) or ""))
        for name in sorted(declog.__all__, key=str.lower)
    ]
    return _table(("name", "what it is"), rows)


def codes() -> str:
    """Every error code."""
    return _table(("code", "meaning"), [(code, meaning) for code, meaning in CODES.items()])


def error_pages() -> str:
    """All pages under the names of their layers, each with what its example prints, which docs/errors.md has."""
    sections = re.split(r"^### ", (DOCS / "errors.md").read_text("utf-8"), flags=re.MULTILINE)
    printed = {text[:5]: re.findall(r"^```text\n.*?^```$", text, re.MULTILINE | re.DOTALL) for text in sections}
    parts = []
    for layer, title in _LAYERS.items():
        parts.append(f"## {title}")
        parts += [
            "\n\n".join((f"##{page(code).rstrip()}", *printed.get(code, ()))) for code in CODES if code[2] == layer
        ]
    return "\n\n".join(parts)


@functools.cache
def parts() -> dict[str, str]:
    """What can stand between markers, by name."""
    found = {"functions": functions(), "reductions": reductions(), "codes": codes(), "error pages": error_pages()}
    found |= {"filters": filters(), "python api": python_api()}
    found |= {"catalogue": catalogue.catalogue(), "lengths of presets": catalogue.lengths()}
    for name, model in {**vars(spec), **vars(spec_of_tables)}.items():
        if isinstance(model, type) and issubclass(model, Model) and model is not Model:
            found[f"keys of {name}"] = keys(model)
    return found


def rewritten(page: str) -> str:
    """A page with its marked parts generated anew."""
    known = parts()
    return _MARK.sub(lambda mark: f"{mark.group(1)}{known[mark.group('name')]}\n{mark.group(3)}", page)


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _default(value: Any) -> str:
    if isinstance(value, BaseModel) or value in ({}, [], "", None):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _type(annotation: Any) -> str:
    if typing.get_origin(annotation) is typing.Annotated:
        return _type(annotation.__origin__)
    if typing.get_origin(annotation) is Literal:
        return ", ".join(f"`{item}`" for item in typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return ", ".join(dict.fromkeys(_type(item) for item in typing.get_args(annotation) if item is not type(None)))
    if typing.get_origin(annotation) is dict:
        return f"map of {_type(typing.get_args(annotation)[1])}"
    if typing.get_origin(annotation) in (list, tuple):
        return f"list of {_type(typing.get_args(annotation)[0])}"
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return ", ".join(f"`{item.value}`" for item in annotation)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return _MODELS.get(annotation.__name__, annotation.__name__.removesuffix("Spec").lower())
    name = str(getattr(annotation, "__name__", annotation))
    return {"str": "text", "Any": "anything"}.get(name, name)


def main(arguments: Sequence[str]) -> int:
    """Rewrite pages, or check them; 1 where one is not up to date."""
    check = "--check" in arguments
    stale = False
    for name in arguments:
        if name == "--check":
            continue
        path = Path(name)
        page = path.read_text("utf-8")
        made = rewritten(page)
        stale |= made != page
        if made != page and not check:
            path.write_text(made, "utf-8")
    if check and stale:
        print("the reference is not up to date: python -m tests.docs.reference docs/*.md", file=sys.stderr)
    return int(check and stale)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
