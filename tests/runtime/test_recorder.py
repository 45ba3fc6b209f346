"""The recorder: steps, windows, batches, and what a training loop may do with them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import logged, profile, run

REWARD = {"reward": {"axis": "completion"}}
LOSS = {"loss": {"axis": "step"}}
ROWS = [torch.tensor([1.0, 2.0, 6.0]), torch.tensor([4.0]), torch.tensor([0.5, 3.5])]


def steps(values: list[torch.Tensor], name: str = "reward") -> Any:
    """A body that observes one tensor per step."""

    def body(log: Recorder) -> None:
        for number, value in enumerate(values):
            with log.step(number):
                log.observe(**{name: value})

    return body


# ---- steps and windows


def test_each_step_is_a_log_event(tmp_path: Path) -> None:
    """With `every: 1` a step's values stand under its own number."""
    sink = run(profile(REWARD, {"reward": "mean(reward)"}), steps(ROWS), tmp_path)
    assert sink.scalars == {0: {"reward": 3.0}, 1: {"reward": 4.0}, 2: {"reward": 2.0}}


def test_a_window_pools_its_steps_and_the_tail_is_flushed(tmp_path: Path) -> None:
    """Three steps with `every: 2` are a window of two, exact over its rows, and a tail of one."""
    config = profile(REWARD, {"reward": {"reduce": ["mean", "std", "count"]}}, every=2)
    sink = run(config, steps(ROWS), tmp_path)
    both = torch.cat(ROWS[:2]).double().numpy()
    assert sink.scalars == {
        1: {"reward/mean": both.mean(), "reward/std": both.std(ddof=1), "reward/count": 4},
        2: {"reward/mean": 2.0, "reward/std": np.std([0.5, 3.5], ddof=1), "reward/count": 2},
    }


def test_a_metric_has_a_window_of_its_own(tmp_path: Path) -> None:
    """`every` of a metric is a multiple of the profile's; its last, shorter window is flushed with the tail."""
    metrics = {"each": "sum(reward)", "slow": {"expr": "reward", "reduce": "sum", "every": 4}}
    values = [torch.tensor([float(number)]) for number in range(6)]
    sink = run(profile(REWARD, metrics, every=2), steps(values), tmp_path)
    assert sink.scalars == {1: {"each": 1.0}, 3: {"each": 5.0, "slow": 6.0}, 5: {"each": 9.0, "slow": 9.0}}


def test_a_sink_takes_each_nth_log_event(tmp_path: Path) -> None:
    """`every` of a sink leaves log events out and never pools again."""
    sinks = {"files": {"kind": "jsonl", "every": 2}}
    run(
        profile(REWARD, {"reward": "mean(reward)"}, sinks=[*sinks], sink_options=sinks), steps([*ROWS, *ROWS]), tmp_path
    )
    lines = [json.loads(line) for line in (tmp_path / "files" / "scalars.jsonl").read_text().splitlines()]
    assert [(line["step"], line["scalars"]["reward"]) for line in lines] == [(1, 4.0), (3, 3.0), (5, 2.0)]


def test_a_log_event_can_finish_inside_its_step(tmp_path: Path) -> None:
    """With `blocking: true` the values are in the sink when the step ends."""
    sink, seen = MemorySink(), []
    with declog.start(
        profile(REWARD, {"reward": "mean(reward)"}, run={"blocking": True}), sinks=[sink], output_dir=tmp_path
    ) as log:
        for number, value in enumerate(ROWS):
            with log.step(number):
                log.observe(reward=value)
            seen.append(dict(sink.scalars[number]))
    assert seen == [{"reward": 3.0}, {"reward": 4.0}, {"reward": 2.0}]


def test_a_run_without_steps_logs_nothing(tmp_path: Path) -> None:
    """Nothing is written where nothing happened, and the sink is closed all the same."""
    sink = run(profile(REWARD, {"reward": "mean(reward)"}), lambda log: None, tmp_path)
    assert (sink.events, sink.closed) == ([], True)


def test_close_may_be_called_again(tmp_path: Path) -> None:
    """A second `close`, and one inside a step, change nothing."""
    sink = MemorySink()
    log = declog.start(profile(REWARD, {"reward": "mean(reward)"}), sinks=[sink], output_dir=tmp_path)
    with log.step(0):
        log.observe(reward=ROWS[0])
        log.close()
    log.close()
    assert sink.scalars == {0: {"reward": 3.0}}


@pytest.mark.parametrize("call", ["step", "observe", "enter"])
def test_a_closed_recorder_says_so(call: str, tmp_path: Path) -> None:
    """After `close` only `log_metric`, `log_extra` and `close` are silent."""
    log = declog.start(profile(REWARD, {"reward": "mean(reward)"}), sinks=[MemorySink()], output_dir=tmp_path)
    log.close()
    log.log_metric("late", 1.0)
    with pytest.raises(declog.UsageError) as error:
        if call == "step":
            log.step(0).__enter__()
        elif call == "observe":
            log.observe(reward=[1.0])
        else:
            log.__enter__()
    assert str(error.value) == (
        "[DL510] this recorder is closed\n  fix: indent this into its block, `with declog.start(...) as log:`, whose "
        "end closes it; another run is another declog.start"
    )


def test_observe_outside_a_step_says_so(tmp_path: Path) -> None:
    """Under `strict` it raises; else it is counted."""

    def body(log: Recorder) -> None:
        with pytest.raises(declog.UsageError) as error:
            log.observe(reward=[1.0])
        assert str(error.value).splitlines()[0] == "[DL513] observed outside any step"

    assert run(profile(REWARD, {"reward": "mean(reward)"}), body, tmp_path).events == []


def test_steps_do_not_nest(tmp_path: Path) -> None:
    """A step inside a step is refused, and the outer one goes on."""

    def body(log: Recorder) -> None:
        with log.step(0):
            with pytest.raises(declog.UsageError) as error, log.step(1):
                pass
            log.observe(reward=ROWS[0])
        assert str(error.value).splitlines()[0] == "[DL510] step 1 begins inside step 0"

    assert run(profile(REWARD, {"reward": "mean(reward)"}), body, tmp_path).scalars == {0: {"reward": 3.0}}


# ---- exceptions


def test_an_exception_keeps_what_was_logged_before(tmp_path: Path) -> None:
    """The user's exception comes out unchanged; its step's values and the tail window are written."""
    sink, mine = MemorySink(), ValueError("mine")
    config = profile(
        REWARD | {"other": {"axis": "completion"}}, {"reward": "sum(reward)", "other": "sum(other)"}, every=5
    )
    with (
        pytest.raises(ValueError, match="mine") as error,
        declog.start(config, sinks=[sink], output_dir=tmp_path) as log,
    ):
        with log.step(0):
            log.observe(reward=[1.0, 2.0], other=[1.0, 1.0])
        with log.step(1):
            log.observe(reward=[4.0])  # `other` never comes
            raise mine
    assert error.value is mine
    assert sink.scalars == {1: {"reward": 7.0, "other": 2.0}}


def test_an_exception_in_the_first_step_keeps_its_values(tmp_path: Path) -> None:
    """Signals that did not come any more are no error then."""
    sink = MemorySink()
    config = profile(REWARD | LOSS, {"reward": "sum(reward)", "loss": "mean(loss)"})
    with pytest.raises(KeyboardInterrupt), declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(7):
        log.observe(reward=[1.0, 2.0])
        raise KeyboardInterrupt
    assert sink.scalars == {7: {"reward": 3.0}}


def test_an_error_of_one_phase_leaves_the_others_whole(tmp_path: Path) -> None:
    """When a batch cannot close, the batches of other phases are in the step they belong to."""
    required = {"axis": "completion", "required": True}
    signals = {"one": {"a": required, "b": required}, "two": {"c": {"axis": "completion"}}}
    config = profile({}, {"a": "sum(a)", "b": "sum(b)", "c": "sum(c)"}, signals=signals)

    def body(log: Recorder) -> None:
        with pytest.raises(declog.MissingSignalError), log.step(0):
            log.observe(a=[1.0], c=[2.0])
        with log.step(1):
            log.observe(a=[3.0], b=[4.0], c=[5.0])

    assert run(config, body, tmp_path).scalars == {0: {"c": 2.0}, 1: {"a": 3.0, "b": 4.0, "c": 5.0}}


# ---- batches


def test_a_signal_given_again_opens_the_next_batch(tmp_path: Path) -> None:
    """Micro-batches of uneven rows need no vocabulary; per-step values are one per batch."""
    config = profile(REWARD | LOSS, {"reward": {"reduce": ["mean", "count"]}, "loss": {"reduce": ["mean", "last"]}})
    batches = [{"reward": [1.0, 2.0, 3.0], "loss": 1.0}, {"reward": [10.0], "loss": 3.0}]
    assert logged(config, batches, tmp_path) == {
        "reward/mean": 4.0, "reward/count": 4, "loss/mean": 2.0, "loss/last": 3.0,
    }  # fmt: skip


def test_a_batch_can_be_made_explicit(tmp_path: Path) -> None:
    """`with log.batch(phase)` closes at its end, so that the next values describe other rows."""
    config = profile(REWARD | {"weight": {"axis": "completion"}}, {"r": "sum(reward)", "w": "sum(weight)"})

    def body(log: Recorder) -> None:
        with log.step(0):
            with log.batch("default"):
                log.observe(reward=[1.0, 2.0])
            log.observe(weight=[5.0], reward=[4.0])

    assert run(config, body, tmp_path).scalars == {0: {"r": 7.0, "w": 5.0}}


def test_an_unknown_phase_is_refused_with_the_nearest(tmp_path: Path) -> None:
    """A phase that the profile has is accepted even where the plan needs nothing of it."""
    signals = {"rollout": {"a": {"axis": "step"}}, "update": {"b": {"axis": "step"}}}

    def body(log: Recorder) -> None:
        with log.step(0):
            with log.batch("rollout"):
                log.observe(a=1.0)
            log.observe(b=2.0)
            with pytest.raises(declog.UnknownSignalError) as error, log.batch("rolout"):
                pass
        assert str(error.value) == "[DL501] the config `small` has no phase `rolout`\n  fix: did you mean `rollout`?"

    assert run(profile({}, {"b": "mean(b)"}, signals=signals), body, tmp_path).scalars == {0: {"b": 2.0}}


def test_signals_of_no_phase_share_one(tmp_path: Path) -> None:
    """Where nobody names a phase, completions, tokens and steps are observed together."""
    signals = REWARD | LOSS | {"mask": {"axis": "token", "type": "bool"}, "kl": {"axis": "token"}}
    config = profile(
        signals, {"reward": "mean(reward)", "loss": "mean(loss)", "kl": "mean(kl)"}, axes={"token": {"mask": "mask"}}
    )
    kl, mask = torch.tensor([[1.0, 2.0], [6.0, 9.0]]), torch.tensor([[True, True], [True, False]])
    values = {"reward": [1.0, 3.0], "loss": 0.5, "kl": kl, "mask": mask}
    assert logged(config, [values], tmp_path) == {"reward": 2.0, "loss": 0.5, "kl": 3.0}


def test_one_phase_that_all_name_is_the_default(tmp_path: Path) -> None:
    """With one named phase, everything is in it."""
    signals = {"train": {"reward": {"axis": "completion"}, "loss": {"axis": "step"}}}
    config = {**profile({}, {"reward": "mean(reward)", "loss": "mean(loss)"}), "signals": signals}
    assert list(declog.plan(config).phases) == ["train", "logged"]
    assert logged(config, [{"reward": [2.0], "loss": 1.0}], tmp_path) == {"reward": 2.0, "loss": 1.0}


def test_values_per_token_whose_mask_never_comes_are_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody knows which of their tokens exist: they are left out, and that is said once; of them alone."""
    signals = {
        "kl": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"},
        "beta": {"axis": "step"}, "advantage": {"axis": "completion"},
    }  # fmt: skip
    config = profile(signals, {"kl": "mean(beta * kl * advantage)"}, axes={"token": {"mask": "mask"}})
    with caplog.at_level(logging.WARNING, logger="declog"):
        assert logged(config, [{"kl": torch.ones(2, 3), "beta": 0.1, "advantage": [1.0, 2.0]}], tmp_path) == {}
    (message,) = [record.getMessage() for record in caplog.records]
    assert message == (
        "1 of 1 metric is inactive: kl (mask never came: observe it, your padding mask, as `mask=mask`, or of lists of "
        "different lengths `mask=[[True] * len(row) for row in kl]`; without padding, say `axes.token.mask: all`)"
    )


def test_an_phase_that_never_comes_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Metrics of a phase without any batch are named once, at the first log event; `strict` raises for its signals."""
    signals = {"rollout": {"a": {"axis": "step", "required": True}}, "update": {"b": {"axis": "step"}}}
    with caplog.at_level(logging.WARNING, logger="declog"):
        config = profile({}, {"a": "mean(a)", "b": "mean(b)"}, signals=signals)
        run({**config, "run": {"strict": False}}, steps([torch.tensor(1.0)] * 3, "b"), tmp_path / "warned")
        assert [record.getMessage() for record in caplog.records] == [
            "1 of 2 metrics is inactive: a (no signal of rollout came, which `log.observe(a=...)` gives)"
        ]
        with pytest.raises(declog.MissingSignalError, match="`a` was not observed"):
            run(config, steps([torch.tensor(1.0)] * 3, "b"), tmp_path / "raised")
