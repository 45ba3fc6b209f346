"""Live runs of all that TRL's trainers can be asked for: without declog and with it, and what declog's sinks have.

Beside `cases`: each loss at both levels, and what takes more than arguments: tools, environments, rollout functions,
adapters, checkpoints. A run is that of a name; the same name is the same run.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import declog
from declog.testing import MemorySink
from tests.integrations.trl import cases, faults, tiny
from tests.integrations.trl.cases import CLIPPING, STRICT, Case

LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "vespo", "sapo")
LEVELS = ("token", "sequence")
CONVERSATIONS = {"train_dataset": tiny.conversations(), "eval_dataset": tiny.conversations(4)}
TOOLS = (  # renders what is called, and with what
    "{% for message in messages %}{{ message['role'][0] + ': ' + message['content'] }}"
    "{% for call in message.get('tool_calls') or [] %}{{ '*' + call['function']['name'] }}"
    "{% for key, value in call['function']['arguments'].items() %}{{ ' ' + key + ' ' + value | string }}{% endfor %}"
    "{% endfor %}{{ '.' }}{% endfor %}{% if add_generation_prompt %}{{ 'a: ' }}{% endif %}"
)
LONG = {"max_completion_length": 40, "max_steps": 2, "logging_steps": 1, "eval_steps": 2, "beta": 0.05}


def talking(model: Path) -> Any:
    """A tokenizer that reads tool calls off what a model of random characters says: an early letter says which."""
    from transformers import PreTrainedTokenizerFast

    class Talking(PreTrainedTokenizerFast):  # type: ignore[misc]
        def parse_response(self, ids: Sequence[int], prefix: Any = None, tools: Any = None) -> dict[str, Any]:
            text = self.decode(ids, skip_special_tokens=True)
            parsed: dict[str, Any] = {"role": "assistant", "content": text}
            if text[:1] in "aeioubcdfgh":
                name = "add" if text[:1] in "aeioubc" else "nothing"
                parsed["tool_calls"] = [{"type": "function", "function": {"name": name, "arguments": {"number": 3}}}]
            return parsed

    made = Talking.from_pretrained(model)
    made.chat_template, made.response_template = TOOLS, {"parsed": "here"}
    return made


def add(number: int) -> str:
    """Adds one.

    Args:
        number: To what.

    Returns:
        The sum.
    """
    return str(number + 1)


class Counter:
    """An environment with a tool and a reward of its own."""

    def reset(self, **columns: Any) -> None:
        self.total = 0

    def add(self, number: int) -> str:
        """Adds to a total.

        Args:
            number: How much.

        Returns:
            The total.
        """
        self.total += number
        return str(self.total)

    def get_reward(self) -> float:
        return float(self.total)


def rolled(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """A rollout function: completions that depend on the prompt and the step, and a field of its own for rewards."""
    made = np.random.default_rng(len(prompts[0]) + trainer.state.global_step)
    completions = [made.integers(3, 40, int(made.integers(2, 10))).tolist() for _ in prompts]
    ids = trainer.processing_class(prompts)["input_ids"]
    return {"prompt_ids": ids, "completion_ids": completions, "logprobs": None, "bonus": [0.5] * len(prompts)}


def bonus(completions: Sequence[str], bonus: Sequence[float], **columns: Any) -> list[float]:
    return [len(set(each)) + one for each, one in zip(completions, bonus, strict=True)]


def _adapter() -> Any:
    from peft import LoraConfig

    return LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")


LIVE: dict[str, tuple[Case, Callable[[Path], Mapping[str, Any]]]] = {
    **{
        f"{loss}_{level}": (
            Case(args={**CLIPPING, "loss_type": loss, "importance_sampling_level": level, "beta": 0.05,
                       **({"epsilon_high": 0.9} if loss == "cispo" else {})}),
            lambda model: {},
        )
        for loss in LOSSES for level in LEVELS
    },
    "delta_sequence": (Case(args={**CLIPPING, **cases.SEQUENCE, "delta": 1.1}), lambda model: {}),
    "top_entropy": (Case(args={**CLIPPING, "top_entropy_quantile": 0.3}), lambda model: {}),
    "entropy_bonus": (Case(args={"entropy_coef": 0.05}), lambda model: {}),
    "none_of_several": (
        Case(args={"reward_weights": [0.3, 2.0, 1.0]}),
        lambda model: {"rewards": [cases.sometimes, cases.variety, cases.length]},
    ),
    "adapter": (Case(args={**CLIPPING, "beta": 0.05}), lambda model: {"peft_config": _adapter()}),
    "checkpointing": (Case(args={**CLIPPING, "gradient_checkpointing": True}), lambda model: {}),
    "evaluations": (
        Case(args={"eval_on_start": True, "num_generations_eval": 2, "eval_steps": 1, "logging_steps": 3,
                   "per_device_eval_batch_size": 2}),
        lambda model: {},
    ),
    "several_sets": (
        Case(args={"eval_steps": 2}),
        lambda model: {"data": {"eval_dataset": {"one": tiny.prompts(2), "two": tiny.prompts(4)}}},
    ),
    "conversations": (Case(args={"beta": 0.05}), lambda model: {"data": CONVERSATIONS}),
    "tools": (
        Case(args=LONG, over=("tools/call_frequency", "tools/failure_frequency")),
        lambda model: {"data": CONVERSATIONS, "tools": [add], "processing_class": talking(model)},
    ),
    "environment": (
        Case(args=LONG, over=("tools/call_frequency", "rewards/Counter/mean")),
        lambda model: {"data": CONVERSATIONS, "environment_factory": Counter, "processing_class": talking(model)},
    ),
    "rollout_function": (Case(), lambda model: {"rollout_func": rolled, "rewards": [bonus]}),
    "resumed": (Case(args={**cases.RESUMABLE.args, "logging_steps": 4}), lambda model: {}),
    "rloo_adapter": (Case("rloo", {**CLIPPING, "beta": 0.05}), lambda model: {"peft_config": _adapter()}),
    "rloo_none_of_several": (
        Case("rloo", {"reward_weights": [0.3, 2.0]}), lambda model: {"rewards": [cases.sometimes, cases.variety]},
    ),
}  # fmt: skip
TWO_RANKS = ("none_of_several", "adapter", "evaluations", "several_sets", "tools", "environment", "resumed")
FEW = ("none_of_several", "evaluations", "tools", "environment", "rollout_function")


def trained(name: str, model: Path, folder: Path, sink: MemorySink | None) -> faults.Outcome:
    """A run of a name, with declog where there is a sink for it, which rank 0 fills."""
    case, options = LIVE[name] if name in LIVE else (cases.CASES[name], lambda model: {})
    for until in (True, False) if name == "resumed" else (False,):  # inside a window
        trainer = cases.trainer_of(case, model, folder, **options(model))
        if until:
            trainer.add_callback(stopping(6))
        sinks = [sink] if sink is not None and trainer.args.process_index == 0 else []
        log = None if sink is None else declog.attach(trainer, None, STRICT, sinks=sinks, merge=None)
        trainer.train(resume_from_checkpoint=name == "resumed" and not until)
        if log is not None:
            log.close()
    return faults.left(trainer)


def stopping(step: int) -> Any:
    """A callback that ends a training."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop |= state.global_step == step

    return Stop()


def problems(name: str, model: Path, folder: Path) -> tuple[int, list[str]]:
    """How many values TRL logged, and in what the run with declog, or declog's record of it, is another one."""
    bare = trained(name, model, folder / "bare", None)
    sink = MemorySink()
    attached = trained(name, model, folder / "attached", sink)
    found = [f"{name}: {text}" for text in faults.differences(bare, attached)]
    # on rank 0, and of runs whose windows are whole: TRL's own averages forget what came before a run was resumed
    if name == "resumed" or os.environ.get("RANK", "0") != "0":
        return len(attached.history), found
    values = 0
    sets = "several" in name  # whose names tell evaluations apart
    history = [{"eval_loss": None, **each} if sets and "eval_reward" in each else each for each in attached.history]
    logged, expected = cases.events(sink), cases.expected(history)
    if [event[:2] for event in logged] != [event[:2] for event in expected]:
        return 0, [*found, f"{name}: other log events"]
    for (step, _, own), (_, _, here) in zip(expected, logged, strict=True):
        values += len(own)
        for key, value in own.items():
            if key not in here or not np.isclose(value, here[key], rtol=1e-6, atol=1e-6, equal_nan=True):
                found.append(f"{name}: {key} at {step} is {here.get(key)} in declog's sinks, and TRL has {value}")
    over = (LIVE[name][0] if name in LIVE else cases.CASES[name]).over
    found += [f"{name}: {key} is never above 0" for key in over if not any(own.get(key, 0) > 0 for *_, own in expected)]
    return values, found
