"""Trees laid over each other and overrides, against Hydra's and OmegaConf's own nodes."""

from __future__ import annotations

from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hypothesis import assume, given
from hypothesis import strategies as st
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from declog.config.fold import overridden
from declog.config.problems.override_errors import refusal
from declog.language.tree import Node, over, said, tree_of
from tests.conftest import examples

KEYS = st.sampled_from(["a", "b", "c"])
LEAVES = st.sampled_from([None, True, 1, 2.5, "x", "", "???"])
DATA = st.recursive(LEAVES, lambda below: st.lists(below, max_size=2) | st.dictionaries(KEYS, below, max_size=3))
FILES = st.lists(
    st.tuples(st.sampled_from([(), ("a",), ("b", "c")]), st.dictionaries(KEYS, DATA, max_size=3)), max_size=4
)
VALUES = st.sampled_from(["1", "null", "x", "[1,2]", "[]", "{a: 1}", "{b: {c: x}}", "{}"])
LINES = st.builds(
    lambda sign, path, value: f"{sign}{'.'.join(path)}{'' if sign == '~' and value == '1' else f'={value}'}",
    st.sampled_from(["", "+", "++", "~"]), st.lists(KEYS, min_size=1, max_size=3), VALUES,
)  # fmt: skip


def in_order(data: Any) -> Any:
    """Maps with the order of their keys."""
    if isinstance(data, dict):
        return [(key, in_order(value)) for key, value in data.items()]
    return [in_order(item) for item in data] if isinstance(data, list) else data


@examples(100)
@given(files=FILES)
def test_files_are_laid_over_each_other_as_by_nodes(files: list[tuple[tuple[str, ...], Any]]) -> None:
    """Values, ``???`` and the order of keys, wherever Hydra can merge the files."""
    tree, config = Node({}), OmegaConf.create()
    for package, data in files:
        layer, node = tree_of(data), OmegaConf.create()
        for key in reversed(package):
            layer = Node({key: layer}, ())
        tree = over(tree, layer)
        OmegaConf.update(node, ".".join(package), data, merge=False) if package else node.update(data)
        try:
            config.merge_with(node)
        except (OmegaConfBaseException, TypeError):
            assume(False)  # a list over a map
    assert in_order(tree.plain) == in_order(OmegaConf.to_container(config, resolve=False))


def by_hydra(data: Any, line: str) -> Any:
    """What Hydra makes of an override; None where it refuses it."""
    config = OmegaConf.create(data)
    OmegaConf.set_struct(config, True)
    try:
        ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides([line]), config)
    except (HydraException, OmegaConfBaseException, TypeError, ValueError, IndexError, AttributeError, AssertionError):
        return None
    return OmegaConf.to_container(config)


def by_tree(data: Any, line: str) -> Any:
    """What a tree with the override is; None where it is refused."""
    (override,) = OverridesParser.create().parse_overrides([line])
    tree = said(data, "a file")
    return None if refusal(tree, override) is not None else overridden(tree, override)[1].plain


@examples(200)
@given(data=st.dictionaries(KEYS, DATA, max_size=3), line=LINES)
def test_an_override_does_what_hydra_does(data: dict[str, Any], line: str) -> None:
    """Adding, changing and deleting, of what is there and of what is not: applied alike, or refused alike."""
    assert in_order(by_tree(data, line)) == in_order(by_hydra(data, line))


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("a=2", {"a": 2, "c": [1, 2]}),
        ("a.b=2", {"a": {"b": 2}, "c": [1, 2]}),
        ("c.1=5", {"a": {"b": 1}, "c": [1, 5]}),
        ("c.2=5", None),
        ("~c.0", {"a": {"b": 1}, "c": [2]}),
        ("d=2", None),
        ("a.d=2", None),
        ("a={d: 3}", None),
        ("+c=x", None),
        ("+d.e.f=2", {"a": {"b": 1}, "c": [1, 2], "d": {"e": {"f": 2}}}),
        ("~d", None),
    ],
)
def test_what_is_applied_and_what_is_refused(line: str, expected: Any) -> None:
    """Items of lists too, which Hydra changes and cannot delete."""
    assert by_tree({"a": {"b": 1}, "c": [1, 2]}, line) == expected
