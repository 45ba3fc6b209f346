"""What people write first, having read the front page only: the answer is the edit that works."""

from __future__ import annotations

import ast
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.errors import CompositionError, InputError
from declog.runtime.ranks.comm import Comm
from declog.runtime.ranks.fake_comm import run_ranks
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.conftest import WritePreset


def test_prompts_of_groups(tmp_path: Path) -> None:
    """One prompt per group, and a completion each: the fix repeats them, and then it fits."""
    prompt, completion = ["p", "q"], ["a"] * 8
    with declog.start("grpo", ["sinks=[]"], sinks=[MemorySink()], output_dir=tmp_path) as log, log.step(0):
        with pytest.raises(InputError) as caught:
            log.observe(prompt=prompt, completion=completion)
        fix = str(caught.value.fix)
        assert fix == (
            "give all 8 values of `prompt`; where it has one per group, `[x for x in prompt for _ in range(4)]`; "
            "of a micro-batch of 2 completions, give the 2 values of `completion` that belong to them; "
            "where only some rows count, give all values, and `where` in the metric, or None for a value that is absent"
        )
        log.observe(prompt=[x for x in prompt for _ in range(4)], completion=completion)


@pytest.mark.parametrize("together", [True, False])
def test_advantages_of_more_than_a_micro_batch(together: bool, tmp_path: Path) -> None:
    """Values per token are never one per group: the answer is what else the call should have."""
    advantages, logprobs, sink = torch.tensor([1.0, -1.0, 2.0, -2.0]), -torch.ones(2, 3), MemorySink()
    rest = {"old_logprobs": logprobs, "completion_mask": torch.ones(2, 3, dtype=torch.bool)}
    with declog.start("grpo", ["sinks=[]"], sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        with pytest.raises(InputError) as caught:
            if together:
                log.observe(advantages=advantages, logprobs=logprobs, **rest)
            log.observe(advantages=advantages)
            log.observe(logprobs=logprobs, **rest)
        fix = "of this micro-batch, give the 2 values of `advantages` that belong to the completions of `logprobs`"
        assert caught.value.fix == fix


@pytest.mark.parametrize("parts", [(2, 2), (3, 1), (1, 3)])
@pytest.mark.parametrize("name", ["advantages", "logprobs"])
def test_values_of_an_update_with_the_rollout(name: str, parts: tuple[int, int], tmp_path: Path) -> None:
    """Whatever value of an update comes with those of the rollout, and however many rows a minibatch has.

    The answer is an edit of both calls, with which each row counts once.
    """
    rows = {"advantages": torch.tensor([1.0, -1.0, 2.0, -3.0]), "logprobs": -torch.arange(12.0).reshape(4, 3)}
    early, sink = {name: rows.pop(name)}, MemorySink()
    rows |= {"old_logprobs": -torch.ones(4, 3), "completion_mask": torch.ones(4, 3, dtype=torch.bool)}
    rollout = {"reward": [1.0, 0.0, 1.0, 1.0], "length": [3, 3, 3, 3]}
    minibatches = torch.arange(4).split(parts)
    with declog.start("grpo", ["sinks=[]"], sinks=[sink], output_dir=tmp_path) as log:
        with log.step(0), pytest.raises(InputError) as caught:
            log.observe(**rollout, **early)
            log.observe(**{key: value[minibatches[0]] for key, value in rows.items()})
        assert str(caught.value.fix).startswith(f"leave `{name}` out of the earlier call")
        assert str(caught.value.fix).endswith(f"log.observe(..., {name}={name}[indices])")
        with log.step(1):
            log.observe(**rollout)
            for indices in minibatches:
                log.observe(**{key: value[indices] for key, value in (rows | early).items()})
    assert sink.scalars[1]["advantages/mean"] == pytest.approx(-0.25)


def test_a_section_that_is_left_out() -> None:
    """`group.size` is `axes.group.size`."""
    with pytest.raises(CompositionError) as caught:
        declog.plan("grpo", ["group.size=4"])
    assert [problem.fix for problem in caught.value.problems] == ["declog.axes.group.size=4"]
    assert declog.plan("grpo", ["declog.axes.group.size=4"]).grouping is not None


def test_a_wrong_call_is_shown_where_it_stands(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The traceback has the caller's lines, not declog's own, and nothing is said of what would have come later."""
    with (
        pytest.raises(InputError) as caught,
        declog.start("grpo", ["sinks=[]"], sinks=[MemorySink()], output_dir=tmp_path) as log,
        log.step(0),
    ):
        log.observe(rewrad=[1.0])
    frames = [frame.f_code.co_name for frame, _ in traceback.walk_tb(caught.value.__traceback__)]
    assert frames in ([frames[0]], [frames[0], "observe"]) and frames[0].startswith("test_a_wrong_call")
    assert not [record for record in caplog.records if "inactive" in record.getMessage()]


def test_numbers_that_a_preset_computes_itself(tmp_path: Path) -> None:
    """A name of a metric is answered by what it is computed from, and the edits that are printed log one's own."""
    values = {"policy_loss": torch.rand(()), "learning_rates": 0.5}
    with (
        declog.start("ppo", ["sinks=[]"], sinks=[MemorySink()], output_dir=tmp_path / "first") as log,
        log.step(0),
        pytest.raises(InputError) as caught,
    ):
        log.observe(**values)
    near, in_config, as_overrides, drop = str(caught.value.fix).splitlines()
    assert drop == (
        "or drop `policy_loss`: `ppo` computes it, from advantages, completion_mask, logprobs, old_logprobs, "
        "of all rows of a log event at once: another number than a mean of batches"
    )
    assert near == "`learning_rates`: did you mean `learning_rate`?"
    assert in_config.endswith("signals: {any: {policy_loss: step}}, metrics: {policy_loss: mean(policy_loss)}")
    overrides = ast.literal_eval(as_overrides.removeprefix("or as overrides: "))
    sink = MemorySink()
    output_dir = tmp_path / "second"
    with declog.start("ppo", ["sinks=[]", *overrides], sinks=[sink], output_dir=output_dir) as log, log.step(0):
        log.observe(policy_loss=0.25, learning_rate=0.5)
    assert sink.scalars[0]["policy_loss"] == 0.25


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_says_what_check_notes(
    ranks: int, write_preset: WritePreset, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Lines of the user's own that are hardly meant, once on all ranks; nothing of what a preset says, or data."""
    write_preset("mine", "defaults: [grpo, _self_]\nprofile: slim\nsinks: [jsonl]\nmetrics: {len_p99: p99(length)}\n")
    note = "note: no sink shows `len_p99`: profiles: {slim: {show: [len_p99]}}"

    def main(comm: Comm, config: Any, folder: Path) -> None:
        with declog.start(config, comm=comm, output_dir=folder) as log, log.step(0):
            log.observe(reward=[1.0, comm.rank / 2], length=[1, 2], prompt=["a", "a"])

    with caplog.at_level("WARNING", logger="declog"):
        for place, config in enumerate(("declog/mine.yaml", "grpo", declog.compose("declog/mine.yaml").data)):
            run_ranks(ranks, partial(main, config=config, folder=tmp_path / f"run{place}"))
    assert [text for record in caplog.records if (text := record.getMessage()).startswith("note")] == [note]


@pytest.mark.parametrize("member", [name for name in dir(Recorder) if not name.startswith("_")])
def test_no_value_takes_the_place_of_a_member(member: str, tmp_path: Path) -> None:
    """Class: ``log.mode = "eval"``, as ``model.training`` is set. It raises, and what follows counts where it did."""
    config, sink = {"metrics": {"a": "mean(a)"}, "signals": {"any": {"a": "completion"}}}, MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        with pytest.raises(AttributeError, match=f"`log.{member}` cannot be set"):
            setattr(log, member, "eval")
        log.observe(a=[1.0])
    assert sink.scalars == {0: {"a": 1.0}}


def test_attributes_that_may_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of steps, a function in place of a method, as tests do, and names that mean nothing to declog."""
    with declog.start("grpo", ["sinks=[]"], sinks=[sink := MemorySink()], output_dir=tmp_path) as log:
        log.total_steps = 10
        log.best_so_far = 0.5  # type: ignore[attr-defined]
        with monkeypatch.context() as patch:
            patch.setattr(log, "observe", lambda **values: "patched")
            assert log.observe(reward=[1.0]) == "patched"  # type: ignore[func-returns-value]
        with log.step(0):
            log.observe(reward=[1.0])
        assert (log.total_steps, log.best_so_far) == (10, 0.5)  # type: ignore[attr-defined]
    assert sink.scalars[0]["reward"] == 1.0
