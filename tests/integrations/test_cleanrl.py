"""cleanrl's PPO with the preset `ppo`: under cleanrl's names, by a profile of eleven lines, with its numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import declog
from declog.testing import MemorySink
from tests.integrations.cleanrl import Args, train

PROFILE = """\
defaults: [ppo, _self_]
run: {strict: true}
constants: {epsilon_low: 0.2, epsilon_high: 0.2, value_clip: 0.2}
metrics:
  learning_rate: {name: charts/learning_rate}
  value_loss: {name: losses/value_loss, over: batch, combine: last}
  policy_loss: {name: losses/policy_loss, over: batch, combine: last}
  entropy: {name: losses/entropy, over: batch, combine: last}
  approx_kl: {name: losses/approx_kl, over: batch, combine: last}
  clipfrac: {expr: "abs(ratio - 1) > epsilon_low", name: losses/clipfrac}
  explained_variance: {name: losses/explained_variance}
"""


def run(config: Any, folder: Path) -> tuple[list[dict[str, float]], MemorySink]:
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=folder) as log:
        return train(Args(), log), sink


def test_cleanrls_own_numbers(tmp_path: Path) -> None:
    """All that its writer gets but its speed: of the last minibatch what cleanrl takes of that, else of all."""
    profile = tmp_path / "mine.yaml"
    profile.write_text(PROFILE)
    written, sink = run(declog.compose(str(profile), ["declog.sinks=[]"]), tmp_path / "run")
    assert len(written) == len(sink.scalars) == 4
    for expected, found in zip(written, sink.scalars.values(), strict=True):
        assert expected == pytest.approx({name: found.get(name) for name in expected}, rel=1e-5, abs=1e-6)
        assert len(expected) == 7
    assert max(found["losses/clipfrac"] for found in written) > 0
    assert "charts/episodic_return" in sink.scalars[4]


def test_the_preset_as_it_is(tmp_path: Path) -> None:
    """No reference and no lengths: what is made of them is absent, and the rest is there."""
    _, sink = run(declog.compose("ppo", ["declog.sinks=[]", "declog.run.strict=true"]), tmp_path)
    found = sink.scalars[4]
    assert {
        "reward", "policy_loss", "value_loss", "entropy", "approx_kl", "ratio/mean", "ratio/max", "loss", "grad_norm",
        "clip_ratio/region_mean", "clip_ratio/value_mean", "explained_variance", "values/mean", "returns/std",
        "advantages/std", "episodes", "learning_rate",
    } <= set(found)  # fmt: skip
    assert not {"kl", "kl/sequence", "reward_after_kl", "rewards"} & set(found)
    assert found["reward"] == 32 and found["episodes"] == 4 * 128
    assert found["ratio/mean"] == pytest.approx(1, abs=0.1)
