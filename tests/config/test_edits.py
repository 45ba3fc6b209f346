"""What is refused in a file, and the edit that its error names: pasted in, it is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

import declog
from tests.conftest import WritePreset


def fix_of(write_preset: WritePreset, keys: str) -> str:
    """The fix of the one problem of a profile with these keys."""
    folder = write_preset("mine", f"defaults: [grpo, _self_]\n{keys}\n")
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(declog.compose("mine", config_dir=folder))
    (problem,) = caught.value.problems
    assert problem.where is not None and problem.where.line is not None and problem.where.excerpt is not None
    return str(problem.fix)


@pytest.mark.parametrize(
    ("keys", "edit"),
    [
        ("metrics:\n  - name: reward_p95\n    expr: p95(reward)", "metrics: {reward_p95: p95(reward)}"),
        ("metrics:\n  - {id: a/b, expr: reward, reduce: [max, min]}",
            "metrics: {a_b: {expr: reward, reduce: [max, min]}}"),
        ("metrics:\n  - reward_p95: p95(reward)\n  - kl_max: {expr: kl, reduce: max}",
            "metrics: {reward_p95: p95(reward), kl_max: {expr: kl, reduce: max}}"),
        ("metrics: [reward, kl]", "metrics: {reward: mean, kl: mean}; to choose among those that there are: "
            "profiles: {full: {only: [reward, kl]}}"),
        ("alerts:\n  - {name: runaway, when: 'kl > 1, 2'}", "alerts: {runaway: {when: \"kl > 1, 2\"}}"),
        ("tables:\n  - {name: best, columns: [prompt, reward]}", "tables: {best: {columns: [prompt, reward]}}"),
    ],
)  # fmt: skip
def test_a_list_of_entries_is_shown_as_the_map_that_it_is(write_preset: WritePreset, keys: str, edit: str) -> None:
    """Whatever in an entry is its name becomes the id; what else it says stays."""
    assert fix_of(write_preset, keys) == f"write a map, an id for each entry: {edit}"


@pytest.mark.parametrize(
    ("keys", "fix", "edit"),
    [
        ("alerts: {kl > 0.5}", 'kl: "> 0.5"', 'alerts: {kl: "> 0.5"}'),
        ("alerts:\n  reward <= 0.1 for 3:", 'reward: "<= 0.1 for 3"', 'alerts: {reward: "<= 0.1 for 3"}'),
        ("metrics:\n  ~kl:", "kl: null", "metrics: {kl: null}"),
        ("tables:\n  ~samples:", "samples: null", "tables: {samples: null}"),
        ("metrics: {acc: mean(rewards/accuracy)}", "write `\"mean(member(rewards, 'accuracy'))\"`",
            "metrics: {acc: \"mean(member(rewards, 'accuracy'))\"}"),
        ("tables: {few: {columns: [prompt, reward], filter: worst 4}}", "a filter is a map: {key: reward, bottom: 4}",
            "tables: {few: {columns: [prompt, reward], filter: {key: reward, bottom: 4}}}"),
        ("tables: {few: {columns: [prompt, reward], filter: random 4}}", "a filter is a map: {random: 4}",
            "tables: {few: {columns: [prompt, reward], filter: {random: 4}}}"),
        ("tables: {few: {columns: [prompt, reward], rows: 8}}",
            "how many rows is a filter's: filter: {random: 8}, or {key: reward, bottom: 8}",
            "tables: {few: {columns: [prompt, reward], filter: {random: 8}}}"),
        ("output_dir: $HOME/runs", "output_dir: ${oc.env:HOME}/runs", "output_dir: ${oc.env:HOME}/runs"),
        ("output_dir: ~/runs", "output_dir: ${oc.env:HOME}/runs", "output_dir: ${oc.env:HOME}/runs"),
        ("sink_options: {jsonl: {dir: /data/$USER/x}}", "dir: /data/${oc.env:USER}/x",
            "sink_options: {jsonl: {dir: '/data/${oc.env:USER}/x'}}"),
        ("sinks: {jsonl: {every: 2}}", "sinks: [jsonl]\nsink_options: {jsonl: {every: 2}}",
            "sinks: [jsonl]\nsink_options: {jsonl: {every: 2}}"),
        ("extends: rloo", "defaults: [rloo, _self_]", ""),
    ],
)  # fmt: skip
def test_the_edit_is_taken(
    write_preset: WritePreset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, keys: str, fix: str, edit: str
) -> None:
    """Of each the fix is in what works: a condition as a key, `~` in a file, a shell's words, a filter in words."""
    for name in ("HOME", "USER"):
        monkeypatch.setenv(name, str(tmp_path))
    assert fix_of(write_preset, keys) == fix
    folder = write_preset("mine", f"defaults: [grpo, _self_]\n{edit}\n")
    declog.plan(declog.compose("mine", config_dir=folder))


def test_a_section_that_is_empty_is_said_where_it_stands(write_preset: WritePreset) -> None:
    """What presets lack then is no mistake of theirs, and not reported; a mistake of one's own still is."""
    assert fix_of(write_preset, "metrics:") == "delete the line, or write entries below it, indented"
    folder = write_preset("mine", "defaults: [grpo, _self_]\nmetrics:\nsink_options: {console: {colour: blue}}\n")
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(declog.compose("mine", config_dir=folder))
    assert [problem.code for problem in caught.value.problems] == ["DL407", "DL201"]
    write_preset("mine", "defaults: [grpo, _self_]\nalerts:\ntables:\n")
    declog.plan(declog.compose("mine", config_dir=folder))  # nothing else names them
