"""Observes arguments and results of TRL's methods as signals: per generation, per micro-batch and per step.

declog computes nothing that TRL has computed: it observes the tensors as they are. It adds row ids to the result of a
generation. TRL shuffles and splits them with the rows, so they return with the micro-batches. Imports torch.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from declog.integrations.hook import Hooks, Part
from declog.integrations.trl.reward_logs import RewardLogs
from declog.integrations.trl.support import Support, ends_of
from declog.records import DType

Tensor = torch.Tensor
ROW = "declog_row"  # the key of the row ids in the result of a generation
UPDATE = "update"
BOTH = ("row", "completion_mask", "completion_ids", "advantages")
ROWS_READ, MOST_LABELS, LABEL_LENGTH = 1000, 100, 64  # rows of a data set; distinct texts of a label; their characters
SERVER_KEYS = {"importance_sampling_ratio", "sampling_per_token_logps", "old_per_token_logps"}  # of vLLM's generations
REPORTED = ("policy_loss", "aux_loss", "entropy_coef")  # numbers of a micro-batch that TRL has gathered over ranks
CAPTURE_SIGNALS = frozenset({
    "row", "prompt_id", "prompt", "completion", "length", "truncated", "rewards", "reward_weights", "completion_mask",
    "completion_ids", "advantages", "num_input_tokens_seen", "tool_calls", "tool_failures", "old_logp_sum",
    "rollout_logprobs", "rollout_ref_logprobs", "sampling_logprobs", "is_ratio", "rank_tokens", "sequence_is_ratio",
    "logged_total", "logged_calls", "logged_nans", "logprobs", "entropy", "old_logprobs", "ref_logprobs",
    "mb_is_ratio", "loss", "steps", "step_time", *REPORTED,
})  # fmt: skip


class Capture:
    """The hooks that observe. ``rows`` is the number of completions that this rank has generated; it gives row ids.

    ``rollout`` is the phase of generations.
    """

    def __init__(self, trainer: Any, hooks: Hooks, support: Support) -> None:
        log = hooks.recorder
        self.rows = 0
        self.reward_logs = RewardLogs(trainer, log.guard)
        self._trainer = trainer
        self._log = log
        self._guard = log.guard
        self._declared = log.plan.signal_names
        homes = log.plan.homes
        self.rollout = homes.get("rewards", homes.get("length", "rollout"))
        self._elsewhere = {  # by phase: signals that both phases could observe, and the config has in the other
            self.rollout: {name for name in BOTH if homes.get(name, self.rollout) != self.rollout},
            UPDATE: {name for name in BOTH if homes.get(name) == self.rollout != homes.get("logprobs")},
        }
        self._per_row = {  # signals that columns of the data set and of `log_extra` may give
            name
            for name, ops in (*log.plan.sources.items(), *log.plan.unread.items())
            if name not in CAPTURE_SIGNALS and ops[0].axis.label == "completion" and not ops[0].family
        }
        self._labels = labels_of(trainer.train_dataset) - log.plan.observed - CAPTURE_SIGNALS
        self._texts = {name: ops[0].dtype is DType.TEXT for name, ops in log.plan.sources.items()}
        self._rloo = support.method == "rloo"
        self._forwards: list[tuple[Tensor, Tensor | None]] = []  # log-probabilities and entropies, by forward pass
        self._generated: tuple[Any, ...] = ()
        self._tools = (0, 0)
        self._scored: tuple[Any, ...] = ()
        if support.rollouts:
            hooks.add("_generate", self._generate)
            hooks.add("_calculate_rewards", self._calculate_rewards)
            hooks.add("_generate_and_score_completions", self._score)
            hooks.add("_log_metric", self.reward_logs.log_metric)  # since 1.0
            hooks.add("_log_completion_extra", self.reward_logs.log_extra)
            hooks.add("_tool_call_loop", self._call_tools)  # only GRPO
        if support.updates:
            hooks.add("_compute_loss", self._compute_loss)
            hooks.add("training_step", self._train)
        if support.updates or (support.rollouts and self._rloo):
            hooks.add("_get_per_token_logps_and_entropies", self._forward)

    def observe(self, signals: Mapping[str, Any], without: Collection[str] = ()) -> None:
        """Observe the signals that the config declares, ``without`` some names."""
        needed = {name: value for name, value in signals.items() if name in self._declared and name not in without}
        if needed:
            self._log.observe_reserved(needed)

    # -- results of TRL's methods

    def _forward(self, *args: Any, **kwargs: Any) -> Part:
        result = yield None
        self._forwards.append((result[0].detach(), None if result[1] is None else result[1].detach()))

    def _generate(self, *args: Any, **kwargs: Any) -> Part:
        self._generated = yield None

    def _call_tools(self, *args: Any, **kwargs: Any) -> Part:
        result = yield None
        self._tools = result[4], result[5]

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any, *args: Any, **kwargs: Any
    ) -> Part:
        rewards = yield None
        self._scored = prompts, completions, completion_ids_list, rewards

    # -- a generation

    def _score(self, inputs: Any, *args: Any, **kwargs: Any) -> Part:
        self._forwards.clear()
        self._generated, self._tools, self._scored = (), (0, 0), ()
        if not self._log.in_step:  # for example in `trainer.predict`
            with self._log.idle(), self.reward_logs.generation():
                yield None
            return None
        declared = self.rollout in self._log.plan.known_phases
        batch = self._log.batch(self.rollout, rows=len(inputs)) if declared else contextlib.nullcontext()
        with self.reward_logs.generation():
            with batch:
                output = yield None
                count = len(output["completion_ids"])
                rows = torch.arange(self.rows, self.rows + count)
                self.rows += count
                with self._guard("what a generation returned could not be recorded"):
                    self.observe(self._generation(output, rows), self._elsewhere[self.rollout])
                with self._guard("prompts and completions could not be recorded", "tables lack them"):
                    self.observe(self._conversations())
                columns = dict(self.reward_logs.columns(count))
                for column, values in columns.items():
                    declared = column in self._log.plan.extras
                    with self._guard(self.reward_logs.of(column), "" if declared else "the column is left out"):
                        self._log.log_extra(column, values)
                of_data = {column: [row[column] for row in inputs] for column in self._per_row.intersection(*inputs)}
                for column in self._per_row & {**of_data, **columns}.keys():
                    of = self.reward_logs.of(column) if column in columns else f"the column `{column}` of the data set"
                    with self._guard(f"{of} could not be recorded as the signal"):
                        if not self._log.came(column):  # a reward function's own call of `observe` has priority
                            self._log.observe_generated({column: columns.get(column) or of_data[column]})
                self._log.keep(**{name: [row.get(name) for row in inputs] for name in self._labels})
            with self._guard("what reward functions gave to `log_metric` could not be recorded"):
                logged = self.reward_logs
                calls = {"logged_calls": dict(logged.calls), "logged_nans": dict(logged.nans)}
                self.observe({"logged_total": dict(logged.totals), **calls})
        self._forwards.clear()
        self._generated = self._scored = ()
        return {**output, ROW: rows}

    def _generation(self, output: Mapping[str, Any], rows: Tensor) -> dict[str, Any]:
        trainer = self._trainer
        _, _, ids, rewards = self._scored
        count, rank = len(rows), trainer.accelerator.process_index
        local = rewards[rank * count : (rank + 1) * count]
        generations = trainer.num_generations
        if not trainer.model.training:
            generations = getattr(trainer, "num_generations_eval", generations)  # older versions lack it
        ends = ends_of(trainer)
        names = distinct(trainer.reward_func_names)
        mask, tool_mask = output["completion_mask"], output.get("tool_mask")
        shown = self._generated[2] if tool_mask is not None else None  # 1 for each token of the model
        signals = {
            "row": rows,
            "prompt_id": (rank * count + torch.arange(count)) // generations,
            "length": [len(row) for row in ids] if shown is None else [sum(row) for row in shown],
            "truncated": [row[-1] not in ends for row in ids],
            "rewards": {name: local[:, column] for column, name in enumerate(names)},
            "reward_weights": dict(zip(names, trainer.reward_weights.tolist(), strict=True)),
            "completion_mask": mask if tool_mask is None else mask * tool_mask,
            "completion_ids": output["completion_ids"],
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
        # A copy of TRL's class, such as Unsloth's, has hidden states of another shape there.
        elif output.keys() >= SERVER_KEYS and output["old_per_token_logps"].shape == mask.shape:
            signals["rollout_logprobs"] = output["old_per_token_logps"]
            signals["sampling_logprobs"] = output["sampling_per_token_logps"]
            signals["is_ratio"] = weights = output["importance_sampling_ratio"]
            signals["rank_tokens"] = signals["completion_mask"].sum().expand(count)
            if weights.shape[1] == 1:  # one weight per completion
                signals["sequence_is_ratio"] = weights.squeeze(1)
        return signals

    def _conversations(self) -> dict[str, Any]:
        prompts, completions, *_ = self._scored
        return {"prompt": self.rendered("prompt", prompts), "completion": self.rendered("completion", completions)}

    def rendered(self, name: str, values: Sequence[Any]) -> list[Any]:
        """Prompts or completions for the signal ``name``: conversations as JSON if its type is text, else unchanged."""
        if self._texts.get(name):
            return [
                value if isinstance(value, str) else json.dumps(_without_data(value), ensure_ascii=False)
                for value in values
            ]
        return list(values)

    # -- a micro-batch, and a step

    def _compute_loss(self, model: Any, inputs: Mapping[str, Any], *args: Any, **kwargs: Any) -> Part:
        self._forwards.clear()
        if not self._log.in_step:
            return
        reported = self._trainer._metrics["train" if self._trainer.model.training else "eval"]
        before = {name: len(reported.get(name, ())) for name in REPORTED}
        loss = yield None
        signals = self._update(inputs)
        for name, count in before.items():
            if len(reported.get(name, ())) > count:
                signals[name] = reported[name][-1]
        if not self._trainer.model.training:  # in training `training_step` returns the micro-batch's share of the loss
            signals["loss"] = loss
        self.observe(signals, self._elsewhere[UPDATE])
        self._forwards.clear()

    def _update(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        logprobs, entropy = next(pair for pair in reversed(self._forwards) if pair[1] is not None)
        mask, tool_mask = inputs["completion_mask"], inputs.get("tool_mask")
        signals = {
            "completion_mask": mask if tool_mask is None else mask * tool_mask,
            "completion_ids": inputs["completion_ids"],
            "advantages": inputs["advantages"],
            "logprobs": logprobs,
            "entropy": entropy,
        }
        if ROW in inputs:
            signals["row"] = inputs[ROW]
        if self._rloo:
            return signals
        old = inputs.get("old_per_token_logps")  # None as long as the policy is the one that sampled
        signals["old_logprobs"] = logprobs if old is None else old
        if "ref_per_token_logps" in inputs:
            signals["ref_logprobs"] = inputs["ref_per_token_logps"]
        if "importance_sampling_ratio" in inputs:
            signals["mb_is_ratio"] = inputs["importance_sampling_ratio"]
        return signals

    def _train(self, *args: Any, **kwargs: Any) -> Part:
        before = len(self._times())
        loss = yield None
        if self._log.in_step:
            self.observe({"loss": loss})
            if len(times := self._times()) > before:
                self.observe({"steps": 1, "step_time": times[-1]})

    def _times(self) -> Sequence[float]:
        """TRL's own durations of the optimizer steps since its last log."""
        times: Sequence[float] = self._trainer._metrics["train"].get("step_time", ())
        return times


def labels_of(dataset: Any) -> frozenset[str]:
    """The columns of a data set that are kept as labels: numbers, bools, and few and short texts.

    The first rows decide that for the whole run, so all ranks agree. A streamed data set has no labels.
    """
    rows = [dataset[row] for row in range(min(ROWS_READ, len(dataset)))] if hasattr(dataset, "__len__") else []
    names = {name for row in rows if isinstance(row, Mapping) for name in row}
    return frozenset(name for name in names if _is_label([row.get(name) for row in rows]))


def _is_label(values: Sequence[Any]) -> bool:
    there = [value for value in values if value is not None]
    texts = {value for value in there if isinstance(value, str)}
    if texts:
        short = all(len(text) <= LABEL_LENGTH for text in texts)
        return short and len(texts) <= MOST_LABELS and all(isinstance(value, str) for value in there)
    return bool(there) and all(isinstance(value, bool | int | float) for value in there)


def distinct(names: Sequence[str]) -> list[str]:
    """The names of reward functions, numbered where they repeat: TRL allows two of one name, such as two lambdas."""
    seen: Counter[str] = Counter()
    distinct = []
    for name in names:
        seen[name] += 1
        distinct.append(name if seen[name] == 1 else f"{name}_{seen[name]}")
    return distinct


def _without_data(messages: Sequence[Any]) -> list[Any]:
    """A conversation without data such as images: a content part without text keeps only its type."""
    return [
        {**message, "content": [part if part.get("text") else {"type": part.get("type")} for part in content]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]
