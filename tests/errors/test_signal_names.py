"""A signal by the name that another trainer gives it is answered with the name that the profile has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import declog
from declog.errors import nearest
from declog.errors.elsewhere import SIGNALS, same_signal
from declog.testing import MemorySink

NAMES = [(names[0], name) for names in SIGNALS for name in names[1:]]
GRPO = sorted(declog.plan("grpo").signal_names)


def test_a_name_stands_in_one_line() -> None:
    """A word of two meanings would be answered with either."""
    every = [name for names in SIGNALS for name in names]
    assert len(every) == len(set(every)) > 250


@pytest.mark.parametrize(
    ("name", "signal"),
    [
        ("mask", "completion_mask"), ("attention_mask", "completion_mask"), ("response_mask", "completion_mask"),
        ("loss_mask", "completion_mask"), ("action_mask", "completion_mask"),
        ("log_probs", "logprobs"), ("logp", "logprobs"), ("per_token_logps", "logprobs"),
        ("action_log_probs", "logprobs"), ("old_log_probs", "old_logprobs"), ("old_per_token_logps", "old_logprobs"),
        ("ref_log_prob", "ref_logprobs"), ("base_action_log_probs", "ref_logprobs"),
        ("ref_per_token_logps", "ref_logprobs"), ("completions", "completion"), ("responses", "completion"),
        ("response_ids", "completion_ids"), ("prompts", "prompt"), ("queries", "prompt"), ("advantage", "advantages"),
        ("adv", "advantages"), ("scores", "reward"), ("rewards_per_func", "rewards"), ("kl_div", "kl"),
        ("policy_entropy", "entropy"), ("response_lengths", "length"), ("pg_loss", "loss"),
        ("gradient_norm", "grad_norm"), ("lr", "learning_rate"), ("Log-Probs", "logprobs"),
    ],
)  # fmt: skip
def test_an_everyday_name_of_grpos_signals(name: str, signal: str) -> None:
    """TRL's, verl's, OpenRLHF's, torchtune's and tinker's words."""
    assert nearest(name, GRPO) == signal


def test_every_name_of_the_table_is_answered() -> None:
    """With the first of its line where that is known, else with any other of it; with nothing where none is known."""
    for first, name in NAMES:
        assert nearest(name, [first, "unrelated"]) == first
        assert same_signal(first, [name, "unrelated"]) == name
        assert same_signal(name, ["unrelated"]) is None


@pytest.mark.parametrize("preset", ["grpo", "ppo", "verl_ppo", "forge_grpo"])
def test_a_name_is_answered_by_what_the_preset_has(preset: str) -> None:
    """Of a preset with another trainer's words the answer is its own word."""
    known = declog.plan(preset).signal_names
    answers = {name: same_signal(name, known) for _, name in NAMES if name not in known}
    assert set(answers.values()) - {None} <= set(known)
    assert same_signal("loss_mask", known) in ("completion_mask", "response_mask")


def test_observing_it_says_so(tmp_path: Path) -> None:
    """At run time, and in an expression."""
    with (
        declog.start("grpo", ["sinks=[]"], sinks=[MemorySink()], output_dir=tmp_path) as log,
        log.step(0),
        pytest.raises(declog.UnknownSignalError, match=r"no signal `mask`\n  fix: did you mean `completion_mask`\?"),
    ):
        log.observe(reward=torch.rand(8), mask=torch.ones(8, 4))
    with pytest.raises(declog.ConfigError, match=r"fix: 'declog.metrics.a=\"mean\(sum\(completion_mask, over=token"):
        declog.plan("grpo", ["metrics.a=mean(sum(mask, over=token))"])
