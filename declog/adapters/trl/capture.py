"""Signals, read off what TRL's methods take and return: once per generation, once per micro-batch, once per step.

Nothing is computed that TRL has computed: tensors are observed as they are. Row ids are put into what a generation
returns, and come back with its micro-batches, through TRL's shuffle and split. Imports torch.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

import declog
from declog.adapters.trl.hook import Around, hook
from declog.adapters.trl.sight import Sight

Tensor = torch.Tensor
ROW = "declog_row"  # among what a generation returns
UPDATE = "update"
BOTH = ("row", "completion_mask", "advantages")
REPORTED = ("policy_loss", "aux_loss", "entropy_coef")  # numbers of a micro-batch that TRL has gathered itself


class Capture:
    """The hooks that observe. ``rows`` is how many completions this rank has generated: it numbers them."""

    def __init__(self, trainer: Any, log: declog.Recorder, sight: Sight) -> None:
        self.rows = 0
        self.metrics: set[str] = set()  # names that reward functions gave to log_metric
        self._trainer = trainer
        self._log = log
        self._known = log.plan.known
        homes = log.plan.homes
        self._rollout = homes.get("rewards", homes.get("length", "rollout"))
        self._elsewhere = {  # what both parts have, and the profile wants of one
            self._rollout: {name for name in BOTH if homes.get(name, self._rollout) != self._rollout},
            UPDATE: {name for name in BOTH if homes.get(name) == self._rollout != homes.get("logprobs")},
        }
        self._texts = {name: ops[0].kind.value == "text" for name, ops in log.plan.sources.items()}
        self._rloo = sight.method == "rloo"
        self._forwards: list[tuple[Tensor, Tensor | None]] = []  # log-probabilities and entropies, as they come
        self._generated: tuple[Any, ...] = ()
        self._tools = (0, 0)
        self._scored: tuple[Any, ...] = ()
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._calls: Counter[str] = Counter()
        self._extras: defaultdict[str, list[Any]] = defaultdict(list)
        if sight.rollouts:
            hook(trainer, "_generate", self._generate)
            hook(trainer, "_calculate_rewards", self._calculate_rewards)
            hook(trainer, "_generate_and_score_completions", self._score)
            hook(trainer, "_log_metric", self._log_metric)
            hook(trainer, "_log_completion_extra", self._log_extra)
            if hasattr(trainer, "_tool_call_loop"):
                hook(trainer, "_tool_call_loop", self._call_tools)
        if sight.updates:
            hook(trainer, "_compute_loss", self._compute_loss)
            hook(trainer, "training_step", self._train)
        if sight.updates or (sight.rollouts and self._rloo):
            hook(trainer, "_get_per_token_logps_and_entropies", self._forward)

    def observe(self, signals: Mapping[str, Any], without: Collection[str] = ()) -> None:
        """Observe the signals that the profile has."""
        found = {name: value for name, value in signals.items() if name in self._known and name not in without}
        if found:
            self._log.observe(**found)

    # -- what TRL's methods return

    def _forward(self, original: Around, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self._forwards.append((result[0].detach(), None if result[1] is None else result[1].detach()))
        return result

    def _generate(self, original: Around, *args: Any, **kwargs: Any) -> Any:
        self._generated = original(*args, **kwargs)
        return self._generated

    def _call_tools(self, original: Around, *args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        self._tools = result[4], result[5]
        return result

    def _calculate_rewards(
        self, original: Around, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Any:
        rewards = original(inputs, prompts, completions, completion_ids_list)
        self._scored = prompts, completions, completion_ids_list, rewards
        return rewards

    # -- what reward functions log

    def _log_metric(self, original: Around, name: str, value: float) -> None:
        original(name, value)
        self._totals[name] += float(value)
        self._calls[name] += 1
        self.metrics.add(name)

    def _log_extra(self, original: Around, column: str, values: list[Any]) -> None:
        original(column, values)
        self._extras[column].extend(values)

    # -- a generation

    def _score(self, original: Around, inputs: Any) -> Any:
        for kept in (self._forwards, self._totals, self._calls, self._extras):
            kept.clear()
        self._tools = (0, 0)
        if not self._log.in_step:  # such as `trainer.predict`
            return original(inputs)
        known = self._rollout in self._log.plan.known_events
        with self._log.batch(self._rollout) if known else contextlib.nullcontext():
            output = original(inputs)
            count = len(output["completion_ids"])
            rows = torch.arange(self.rows, self.rows + count)
            self.rows += count
            self.observe(self._generation(output, rows), self._elsewhere[self._rollout])
            for column, values in self._extras.items():
                self._log.log_extra(column, values)
        self.observe({"logged_total": dict(self._totals), "logged_calls": dict(self._calls)})
        self._forwards.clear()
        self._generated = self._scored = ()
        return {**output, ROW: rows}

    def _generation(self, output: Mapping[str, Any], rows: Tensor) -> dict[str, Any]:
        trainer = self._trainer
        prompts, completions, ids, rewards = self._scored
        count, rank = len(rows), trainer.accelerator.process_index
        local = rewards[rank * count : (rank + 1) * count]
        generations = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        ends = {*trainer.eos_token_ids, trainer._tokenizer.pad_token_id}
        names = _distinct(trainer.reward_func_names)
        mask, tool_mask = output["completion_mask"], output.get("tool_mask")
        shown = self._generated[2] if tool_mask is not None else None  # 1 where the model wrote the token
        signals = {
            "row": rows,
            "prompt_id": (rank * count + torch.arange(count)) // generations,
            "prompt": self._rendered("prompt", prompts),
            "completion": self._rendered("completion", completions),
            "length": [len(row) for row in ids] if shown is None else [sum(row) for row in shown],
            "truncated": [row[-1] not in ends for row in ids],
            "rewards": {name: local[:, place] for place, name in enumerate(names)},
            "reward_weights": dict(zip(names, trainer.reward_weights.tolist(), strict=True)),
            "completion_mask": mask if tool_mask is None else mask * tool_mask,
            "advantages": output["advantages"],
            "num_input_tokens_seen": int(trainer.state.num_input_tokens_seen),
            "tool_calls": self._tools[0],
            "tool_failures": self._tools[1],
        }
        if self._rloo:
            signals["old_logp_sum"] = output["old_logps"]
            signals["rollout_logprobs"] = self._forwards[0][0]
            if trainer.beta:
                signals["rollout_ref_logprobs"] = self._forwards[1][0]
        elif "importance_sampling_ratio" in output:
            signals["rollout_logprobs"] = output["old_per_token_logps"]
            signals["sampling_logprobs"] = output["sampling_per_token_logps"]
            signals["is_ratio"] = output["importance_sampling_ratio"].expand_as(mask)
        return signals

    def _rendered(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Prompts or completions as the profile declares them: conversations as they are, or as text."""
        found = [_without_images(value) for value in values]
        if self._texts.get(name):
            return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in found]
        return found

    # -- a micro-batch, and a step

    def _compute_loss(self, original: Around, model: Any, inputs: Mapping[str, Any]) -> Any:
        self._forwards.clear()
        if not self._log.in_step:
            return original(model, inputs)
        reported = self._trainer._metrics["train" if self._trainer.model.training else "eval"]
        before = {name: len(reported.get(name, ())) for name in REPORTED}
        loss = original(model, inputs)
        signals = self._update(inputs)
        for name, count in before.items():
            if len(reported.get(name, ())) > count:
                signals[name] = reported[name][-1]
        if not self._trainer.model.training:  # else its share of the step's is known when the micro-batch is done
            signals["loss"] = loss
        self.observe(signals, self._elsewhere[UPDATE])
        self._forwards.clear()
        return loss

    def _update(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        logprobs, entropy = next(each for each in reversed(self._forwards) if each[1] is not None)
        mask, tool_mask = inputs["completion_mask"], inputs.get("tool_mask")
        signals = {
            "completion_mask": mask if tool_mask is None else mask * tool_mask,
            "advantages": inputs["advantages"],
            "logprobs": logprobs,
            "entropy": entropy,
        }
        if ROW in inputs:
            signals["row"] = inputs[ROW]
        if self._rloo:
            return signals
        old = inputs.get("old_per_token_logps")  # None while the policy is the one that sampled
        signals["old_logprobs"] = logprobs if old is None else old
        if "ref_per_token_logps" in inputs:
            signals["ref_logprobs"] = inputs["ref_per_token_logps"]
        if "importance_sampling_ratio" in inputs:
            signals["mb_is_ratio"] = inputs["importance_sampling_ratio"].expand_as(mask)
        return signals

    def _train(self, original: Around, *args: Any, **kwargs: Any) -> Any:
        before = len(self._times())
        loss = original(*args, **kwargs)
        if self._log.in_step:
            self.observe({"loss": loss})
            if len(times := self._times()) > before:
                self.observe({"steps": 1, "step_time": times[-1]})
        return loss

    def _times(self) -> Sequence[float]:
        """TRL's own times of the optimizer steps since its last log."""
        found: Sequence[float] = self._trainer._metrics["train"].get("step_time", ())
        return found


def _distinct(names: Sequence[str]) -> list[str]:
    """Names of reward functions; TRL allows two of one name, as of two lambdas."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return found


def _without_images(value: Any) -> Any:
    """A prompt or completion as JSON can hold it: of an image only that there is one."""
    if not isinstance(value, list):
        return value
    return [
        {**message, "content": [{"type": "image"} if part.get("type") == "image" else part for part in content]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in value
    ]
