"""Who uses a name: every key that the models say is about names, so that renaming by its uses loses none."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.cli import main
from declog.config.uses import declared, readers, texts, uses
from declog.errors import Path as Key
from declog.language.dtypes import AXES
from declog.language.tree import at
from tests.conftest import WritePreset

PROFILE = {
    "axes": {"token": {"mask": "all"}, "group": {"of": ["team", "prompt"]}},
    "constants": {"bins": 7, "on": True, "low": 0.5},
    "signals": {
        "any": {
            "completion_ids": {"axis": "token", "type": "int"}, "entropy": {"axis": "token"},
            "team": {"axis": "completion"}, "prompt": {"axis": "completion", "type": "text"},
            "reward": {"axis": "completion"}, "kl": {"axis": "token"}, "judged": {"axis": "completion"},
            "source": {"axis": "completion", "type": "text"}, "lr": {"axis": "step"}, "given": {"axis": "step"},
        },
    },
    "derived": {"gap": {"expr": "abs(entropy - kl)", "enabled": "on"}},
    "metrics": {
        "kl": {"expr": "kl", "reduce": "histogram(bins=bins)"}, "lr": {"reduce": "last"},
        "reward": {"expr": ["judged", "reward"], "reduce": "ece(bins=bins)", "where": "source == 'reward'"},
        "by": {"expr": "reward", "by": ["source", "team"], "weight": "judged", "prefer": "given"},
        "twice": {"formula": "2 * lr + low", "when": "lr > low", "enabled": "on"},
        "gap": {"expr": "gap", "reduce": [{"few": "histogram(bins=bins)"}, "mean"]},
    },
    "filters": {
        "best": {"key": "reward", "top": 2, "where": "judged > low"},
        "first": {"first": 1, "from": "best"},
    },
    "schemas": {
        "rows": {
            "prompt": {"type": "text"}, "score": {"type": "float", "expr": "judged"},
            "tokens": {"type": "tokens", "expr": "completion_ids", "values": {"entropy": "entropy", "odd": "exp(kl)"}},
        }
    },
    "tables": {"t": {"schema": "rows", "filter": "first", "enabled": "on"}},
    "profiles": {
        "slim": {"only": ["lr", "twice", {"select": "by.*", "when": "lr > low"}], "hide": ["gap"]},
    },
    "alerts": {
        "high": {"when": "lr > 1", "text": "lr is {lr:.2f}"}, "odd": {"when": "twice > 1", "enabled": "on"},
        "twice": {"above": 1},
    },
    "sinks": ["jsonl"], "sink_options": {"jsonl": {"kind": "jsonl"}},
}  # fmt: skip
READ = {
    ("signals", "entropy"): ["derived.gap", "schemas.rows"],
    ("signals", "kl"): ["derived.gap", "metrics.kl", "schemas.rows"],
    ("signals", "judged"): ["metrics.reward", "metrics.by", "filters.best", "schemas.rows"],
    ("signals", "source"): ["metrics.reward", "metrics.by"],
    ("signals", "team"): ["axes.group", "metrics.by"],
    ("signals", "prompt"): ["axes.group", "schemas.rows"],
    ("signals", "reward"): ["metrics.reward", "metrics.by", "filters.best"],
    ("signals", "given"): ["metrics.by"],
    ("signals", "lr"): ["metrics.lr"],
    ("constants", "bins"): ["metrics.kl", "metrics.reward", "metrics.gap"],
    ("constants", "low"): ["metrics.twice", "filters.best", "profiles.slim"],
    ("constants", "on"): ["derived.gap", "metrics.twice", "tables.t", "alerts.odd"],
    ("metrics", "lr"): ["metrics.twice", "profiles.slim", "alerts.high"],
    ("metrics", "twice"): ["alerts.twice", "profiles.slim", "alerts.odd"],
    ("metrics", "by"): ["profiles.slim"],
    ("filters", "best"): ["filters.first"],
    ("filters", "first"): ["tables.t"],
    ("schemas", "rows"): ["tables.t"],
}


@pytest.mark.parametrize(("section", "name"), READ)
def test_who_reads_it(section: str, name: str) -> None:
    """Expressions, lists and maps of them, reductions with parameters, values of tokens, selectors, alerts' texts."""
    assert sorted(readers(PROFILE, section, name)) == sorted(READ[section, name])


def renamed(data: Mapping[str, Any], section: str) -> dict[str, Any]:
    """The profile with another name for each entry of a section, at all its uses; but of those that an axis has."""
    made = copy.deepcopy(dict(data))
    spans: dict[Key, list[tuple[int, int]]] = {}
    names = list(dict.fromkeys(str(path[-1]) for path, _ in declared(data, section) if path[-1] not in AXES))
    for name in names:
        for use in uses(data, section, name):
            if use.span is not None:
                spans.setdefault(use.path, []).append(use.span)
    for path, several in spans.items():
        inside = at(made, path[:-1])
        for start, end in sorted(several, reverse=True):
            text = inside[path[-1]]
            inside[path[-1]] = f"{text[:start]}{text[start:end]}_too{text[end:]}"
    entries = {path[:-1] for path, _ in declared(data, section)}
    for above in entries:
        of_above = at(made, above)
        renamed = {f"{name}_too" if name in names else name: entry for name, entry in of_above.items()}
        of_above.clear()
        of_above.update(renamed)
    return made


@pytest.mark.parametrize("section", ["signals", "constants"])
@pytest.mark.parametrize("preset", ["grpo", "trl_grpo", "trl_rloo", "ppo", "maxent_grpo", "verl_ppo"])
def test_renaming_by_the_uses_leaves_none_out(preset: str, section: str) -> None:
    """Every entry of a section under another name, all uses with it: the profile compiles, to as many operations."""
    data = {key: value for key, value in declog.config_of(preset).items() if key != "tests"}
    if section == "signals":  # what reads a signal of its own id says nothing that could be renamed
        for name, metric in data["metrics"].items():
            if metric is not None and not {"expr", "formula", "axis"} & set(metric):
                metric["expr"] = name
        for columns in data["schemas"].values():
            for name, column in columns.items():
                if column is not None and not {"expr", "call", "undeclared"} & set(column):
                    column["expr"] = name
    if not data.get(section):
        pytest.skip("it has none")
    before, after = (declog.compile(declog.validate(some)) for some in (data, renamed(data, section)))
    assert [op.key for op in before.outputs] == [op.key for op in after.outputs]
    assert [len(phase.folds) for phase in before.phases.values()] == [
        len(phase.folds) for phase in after.phases.values()
    ]


def test_every_text_of_an_expression_is_said_to_be_one() -> None:
    """What the models say is found at every place of the profile above, and nowhere else."""
    said = {".".join(map(str, path)) for path, _, _ in texts(PROFILE)}
    assert {
        "schemas.rows.tokens.values.odd", "metrics.gap.reduce.0.few", "metrics.reward.expr.0", "axes.group.of.1",
        "profiles.slim.only.0", "profiles.slim.only.2.select", "alerts.high.text", "filters.first.from",
    } <= said  # fmt: skip
    assert not {path for path in said if path.endswith((".type", ".kind", ".axis", ".name"))}


def test_a_signal_of_tokens_values_is_renamed_and_deprecated(
    write_preset: WritePreset, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """In `values` of a column of tokens: DL408 with a caret, a warning where it is deprecated, and `why` names it."""
    base = """
        axes: {token: {mask: all}}
        signals:
          any:
            completion_ids: {axis: token, type: int}
            logp: {axis: token, renamed: logprobs}
            entropy: {axis: token, deprecated: use surprise}
        schemas:
          s: {tokens: {type: tokens, expr: completion_ids, values: {logprob: logp}}}
        tables: {t: {schema: s}}
        metrics: {n: count(completion_ids)}
        """
    write_preset("base", base)
    folder = write_preset("old", "defaults: [base, _self_]\nschemas: {s: {tokens: {values: {logprob: logprobs}}}}\n")
    with pytest.raises(declog.ConfigError, match=r"(?s)DL408.*schemas\.s\.tokens\.values\.logprob.*`logp`"):
        declog.plan(declog.compose("old", config_dir=folder))
    write_preset("new", "defaults: [base, _self_]\nschemas: {s: {tokens: {values: {odd: entropy}}}}\n")
    warnings = declog.plan(declog.compose("new", config_dir=folder)).warnings
    assert [text for text in warnings if "new.yaml" in text and "`entropy` is deprecated" in text] != []
    assert main(["show", "new", "--why", "signals.any.entropy", "--config-dir", str(folder)]) == 0
    assert "read by schemas.s" in capsys.readouterr().out


def test_a_word_that_a_key_has_is_no_name() -> None:
    """`within: group` is the scope, whatever signals there are; beside it a label is a use, also in a list."""
    signals = {name: {"axis": "completion", "type": "text"} for name in ("group", "topic")}
    filters = {"one": {"first": 1, "within": "group"}, "each": {"first": 1, "within": ["step", "topic"]}}
    data = {"signals": {"any": signals}, "filters": filters}
    assert [use.path for use in uses(data, "signals", "group")] == [("signals", "any", "group")]
    assert [use.path for use in uses(data, "signals", "topic")][1:] == [("filters", "each", "within", 1)]
