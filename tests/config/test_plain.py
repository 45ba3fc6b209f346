"""Files and overrides as plain data, against Hydra's and OmegaConf's own nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from declog.config.plain import NotPlain, merged, overridden, settled
from tests.conftest import examples

KEYS = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from([None, True, 1, 2.5, "x", "", "???", "${a}", "${oc.env:HOME}"])
DATA = st.recursive(LEAVES, lambda below: st.lists(below, max_size=2) | st.dictionaries(KEYS, below, max_size=3))
FILES = st.lists(st.tuples(st.sampled_from(["", "", "a", "b.c"]), st.dictionaries(KEYS, DATA, max_size=3)), max_size=4)
VALUES = st.sampled_from(["1", "null", "x", "[1,2]", "[]", "{a: 1}", "{b: {c: x}}", "{}", "???", "'${a}'", ""])
LINES = st.builds(
    lambda sign, path, value: f"{sign}{'.'.join(path)}{'' if sign == '~' and value == '1' else f'={value}'}",
    st.sampled_from(["", "+", "++", "~"]), st.lists(KEYS, min_size=1, max_size=3), VALUES,
)  # fmt: skip


def in_order(data: Any) -> Any:
    """Maps with the order of their keys."""
    if isinstance(data, dict):
        return [(key, in_order(value)) for key, value in data.items()]
    return [in_order(item) for item in data] if isinstance(data, list) else data


def by_nodes(files: list[tuple[str, Any]]) -> Any:
    """What Hydra merges."""
    made = OmegaConf.create()
    for package, data in files:
        layer = OmegaConf.create()
        OmegaConf.update(layer, package, data, merge=False) if package else layer.update(data)
        made.merge_with(layer)
    return made


@examples(100)
@given(files=FILES)
def test_files_are_merged_as_by_nodes(files: list[tuple[str, Any]]) -> None:
    """Values, ``???`` and the order of keys, wherever plain data says what the merged files are."""
    try:
        found = merged(files)
    except NotPlain:
        return
    assert in_order(found) == in_order(OmegaConf.to_container(by_nodes(files), resolve=False))


@examples(100)
@given(data=st.dictionaries(KEYS, DATA, max_size=3), lines=st.lists(LINES, min_size=1, max_size=2))
def test_overrides_are_applied_as_by_nodes(data: dict[str, Any], lines: list[str]) -> None:
    """Where the result asks for nothing, it is Hydra's; what Hydra refuses is never taken."""
    overrides = OverridesParser.create().parse_overrides(lines)
    try:
        found = overridden(data, overrides)
    except NotPlain:
        return
    if not settled(found):
        return
    config = OmegaConf.create(data)
    OmegaConf.set_struct(config, True)
    ConfigLoaderImpl._apply_overrides_to_config(overrides, config)
    assert in_order(found) == in_order(OmegaConf.to_container(config, resolve=False))


@pytest.mark.parametrize(
    "line", ["a=2", "a.b=2", "c=[2]", "++c=x", "+d=2", "+d.e.f=2", "++a={d: 3}", "+a={d: 3}", "~a", "~a.b"]
)
def test_ordinary_overrides_are_plain(line: str) -> None:
    """What people write takes the short way."""
    data = {"a": {"b": 1}, "c": [1]}
    config = OmegaConf.create(data)
    OmegaConf.set_struct(config, True)
    overrides = OverridesParser.create().parse_overrides([line])
    ConfigLoaderImpl._apply_overrides_to_config(overrides, config)
    assert overridden(data, overrides) == OmegaConf.to_container(config)
    assert data == {"a": {"b": 1}, "c": [1]}


@pytest.mark.parametrize(
    "line", ["d=2", "a.d=2", "a={d: 3}", "+c=x", "~d", "~a.d", "a=???", "a='${c}'", "+c.d=1", "a/b=c"]
)
def test_what_hydra_has_to_answer(line: str) -> None:
    """Mistakes, and what is to be resolved."""
    with pytest.raises(NotPlain):
        overridden({"a": {"b": 1}, "c": [1]}, OverridesParser.create().parse_overrides([line]))


@pytest.mark.parametrize(
    "files",
    [[{"a": "${b}"}, {"a": {"c": 1}}], [{"a": [1]}, {"a": {"c": 1}}], [{"a": {"c": 1}}, {"a": [1]}],
     [{"hydra": {"searchpath": ["x"]}}], [[1]]],
)  # fmt: skip
def test_files_that_hydra_has_to_merge(files: list[Any]) -> None:
    """What is merged into an interpolation, what is merged into nothing like it, and more places to look in."""
    with pytest.raises(NotPlain):
        merged([("", data) for data in files])
