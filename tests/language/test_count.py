"""The language stays as small as it is: what the count says of it has ceilings, which a smaller language lowers."""

from __future__ import annotations

import typing
from collections.abc import Iterator
from typing import Any

from declog.language.model import Model
from tests.language import count

CEILINGS = {"top keys": 20, "keys": 140, "short forms": 14, "longest line": 120}


def test_the_language_grows_in_nothing_that_has_a_ceiling() -> None:
    """More keys, more short forms or a longer line of a preset are a decision: it is made here. Less lowers it."""
    assert count.counted() == CEILINGS


def test_every_key_counts_once_and_is_one_of_yaml() -> None:
    """A key is counted by the name that YAML has, not by Python's, and none twice."""
    keys = count.keys()
    assert len(keys) == len(set(keys))
    assert {"MetricSpec.expr", "Observed.from", "TableSpec.schema", "LogSpec.metrics"} <= set(keys)
    assert not [key for key in keys if key.endswith("_")]


def test_no_key_takes_both_a_list_and_a_map() -> None:
    """Hydra merges neither over the other. Tests are nobody's to merge: what one gives is one call, or several."""
    both = []
    for model in count.models():
        short = [model._short] if model._short is not None else []
        for name, field in model.model_fields.items():
            forms = {*_forms(field.annotation), *(form for each in field.metadata for form in _forms(each))}
            both += [f"{model.__name__}.{name}"] * ({"list", "map"} <= forms)
        both += [model.__name__] * any("list" in _forms(each) for each in short)
    assert both == []
    assert {*_forms(dict[str, int] | list[str])} == {"list", "map"}


def _forms(type_: Any) -> Iterator[str]:
    """The forms of YAML in which a value of a type is written: a list, a map, or none of them."""
    type_ = getattr(type_, "type", type_)  # of what may be written shorter
    origin = typing.get_origin(type_)
    if origin in (list, tuple, frozenset):
        yield "list"
    elif origin is dict or (isinstance(type_, type) and origin is None and issubclass(type_, Model)):
        yield "map"
        yield from _forms(getattr(type_, "_short", None))
    else:
        for each in typing.get_args(type_):
            yield from _forms(each)
