"""What YAML 1.1 makes of words and numbers, reported before it counts: each word as PyYAML reads it."""

from __future__ import annotations

import pytest
import yaml

import declog
from declog.config.yaml_lint import surprise, suspicious
from tests.conftest import WritePreset

WORDS = ["on", "Off", "YES", "no", "010", "-07", "0_17", "1:30", "-1:30:00", "190:20:30", "1:30.5", "2_0:05.25"]
PLAIN = [
    "10",
    "0",
    "0.5",
    "0x1F",
    "1e3",
    "y",
    "n",
    "oN",
    "089",
    "true",
    "reward",
    "2026-11-21",
    "a:b",
    "1:75",
    "12:",
    "",
]


@pytest.mark.parametrize("word", WORDS)
def test_what_a_word_becomes_is_what_yaml_makes_of_it(word: str) -> None:
    """The message names the value that PyYAML would give."""
    value = yaml.safe_load(f"key: {word}")["key"]
    reported = surprise(word)
    assert reported is not None
    assert reported[0].startswith(f"`{word}` is {str(value).lower()} in YAML")
    assert isinstance(value, bool | int | float)


@pytest.mark.parametrize("word", PLAIN)
def test_what_is_as_it_looks_is_no_surprise(word: str) -> None:
    """Ordinary numbers and texts are left alone."""
    assert surprise(word) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: {top: 010}", True), ("a: 010  # eight", True), ("- 010", True), ("on: 1", True),
        ("a: {no: 1}", True), ("a: 10", False), ("a: 0", False), ("a: 'top: 010'", False), ("a: on", False),
        ("a: 1:30", True), ("a: [2:00, 3]", True), ("a: 1:30.5 # x", True), ("a: '1:30'", False), ("a: x:30", False),
        ("a: 0.5", False), ("a: \"010\"", False), ("one: 1", False),
    ],
)  # fmt: skip
def test_a_file_without_such_words_is_not_read_twice(text: str, expected: bool) -> None:
    """The quick look at a file finds all that may be intended, and little else."""
    assert suspicious(text) is expected


def test_a_word_that_a_later_layer_replaced_is_no_error(write_preset: WritePreset) -> None:
    """Only what is in effect is reported."""
    write_preset("base", "defaults: [grpo, _self_]\nfilters: {extremes: {top: 010}}\n")
    directory = write_preset("mine", "defaults: [base, _self_]\nfilters: {extremes: {top: 3}}\n")
    assert declog.plan(declog.compose("mine", config_dir=directory)).name == "grpo"
    with pytest.raises(declog.ConfigError, match="`010` is 8 in YAML"):
        declog.plan(declog.compose("base", config_dir=directory))
    declog.plan(declog.compose("base", ["declog.filters.extremes.top=4"], config_dir=directory))


def test_a_word_as_a_key_of_metadata_is_reported(write_preset: WritePreset) -> None:
    """Where a key may be any text, YAML's words still are none."""
    directory = write_preset("mine", "defaults: [grpo, _self_]\nrun: {config: {no: 1}}\n")
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(declog.compose("mine", config_dir=directory))
    assert str(caught.value).splitlines()[:2] == [
        "error[DL204] declog/mine.yaml:2:16 in run.config.False",
        "  `no` is false in YAML",
    ]
