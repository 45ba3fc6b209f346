"""What TRL 1.16 logged, and the tensors that it was computed from: fed to a recorder as a trainer would.

``tests/data/trl/<case>``: per world size and rank, ``.json`` has the arguments and, per log window, the values that TRL
logged; ``.pt.gz`` has the generations and micro-batches of the same windows.
"""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from declog.runtime.recording.recorder import Recorder

DATA = Path(__file__).parents[2] / "data" / "trl"
CASES = sorted(folder.name for folder in DATA.iterdir())


def raw(case: str, world_size: int, rank: int) -> dict[str, Any]:
    """A rank's arguments and windows of tensors."""
    with gzip.open(DATA / case / f"ws{world_size}_rank{rank}.pt.gz") as file:
        loaded: dict[str, Any] = torch.load(io.BytesIO(file.read()), weights_only=False)
    return loaded


def windows(case: str, world_size: int) -> list[dict[str, Any]]:
    """The windows in which TRL logged metrics of its own; the last entry of a run has its times only."""
    text = (DATA / case / f"ws{world_size}_rank0.json").read_text(encoding="utf-8")
    return [window for window in json.loads(text)["windows"] if window["trl_lists"]]


def constants(data: Mapping[str, Any]) -> dict[str, Any]:
    """The presets' constants from a trainer's arguments."""
    args = data["args"]
    found = {"beta": args["beta"], "epsilon_low": args["epsilon"]}
    found["epsilon_high"] = args["epsilon"] if args["epsilon_high"] is None else args["epsilon_high"]
    if data["kind"] == "grpo":
        same = ("loss_type", "importance_sampling_level", "use_bias_correction_kl", "scale_rewards")
        found |= {name: args[name] for name in (*same, "multi_objective_aggregation")}
        found["delta"] = math.inf if args["delta"] is None else args["delta"]
    elif args["reward_clip_range"]:
        found["reward_clip_low"], found["reward_clip_high"] = args["reward_clip_range"]
    return found


def feed(log: Recorder, data: Mapping[str, Any], rank: int) -> None:
    """All windows of one rank: each generation with its micro-batches, train in steps and eval in its mode."""
    latest: list[dict[str, Any]] = []  # a generation serves the steps until the next one
    for window in data["windows"]:
        if not window["trl_lists"]:
            continue
        if window["mode"] == "eval":
            with log.mode("eval"):
                _window(log, data, window, rank, latest)
        else:
            with log.step(window["global_step"]):
                _window(log, data, window, rank, latest)
            log.flush()


def _window(
    log: Recorder, data: Mapping[str, Any], window: Mapping[str, Any], rank: int, latest: list[dict[str, Any]]
) -> None:
    generations, batches = window["generations"], window["microbatches"]
    starts = [round(place * len(batches) / max(1, len(generations))) for place in range(len(generations) + 1)]
    if not generations:
        starts = [0, len(batches)]
    for place, (start, end) in enumerate(pairwise(starts)):
        if generations:
            latest[:] = [generations[place]]
            log.observe(**_generation(data, window, latest[0], rank))
        for batch in batches[start:end]:
            log.observe(**_micro_batch(data, batch, latest[0]))


def _generation(
    data: Mapping[str, Any], window: Mapping[str, Any], given: Mapping[str, Any], rank: int
) -> dict[str, Any]:
    args = data["args"]
    names: Sequence[str] = args["reward_func_names"]
    rows = torch.arange(len(given["completion_lengths"]))
    observed = {
        "row": rows,
        "prompt_id": (rank * len(rows) + rows) // given["num_generations"],
        "length": given["completion_lengths"],
        "truncated": given["is_truncated"],
        "rewards": {name: given["rewards_per_func"][:, place] for place, name in enumerate(names)},
        "reward_weights": dict(zip(names, args["reward_weights_effective"], strict=True)),
        "completion_mask": given["completion_mask"],
        "advantages": given["advantages"],
        "num_input_tokens_seen": int(window["trl_lists"]["num_tokens"][-1]),
    }
    if data["kind"] == "rloo":
        observed["old_logp_sum"] = given["old_logps"]
        if args["beta"]:
            observed["rollout_logprobs"] = given["old_per_token_logps"]
            observed["rollout_ref_logprobs"] = given["ref_per_token_logps"]
    logged = dict(given["user"]["log_metric"] or {})
    return {**observed, "logged": logged} if logged else observed


def _micro_batch(data: Mapping[str, Any], given: Mapping[str, Any], generation: Mapping[str, Any]) -> dict[str, Any]:
    observed = {
        "logprobs": given["per_token_logps"],
        "entropy": given["entropies"],
        "completion_mask": given["completion_mask"],
        "advantages": given["advantages"].reshape(-1),
    }
    if data["kind"] == "rloo":  # TRL shuffled the rows: each is found by its own log-probability
        sums = generation["old_logps"]
        observed["row"] = torch.stack([(sums == value).nonzero()[0, 0] for value in given["old_logps"]])
        return observed
    if "mask" in given:  # without truncated completions, where they are masked
        observed["completion_mask"] = given["mask"]
    old = given["old_per_token_logps"]  # None while the policy is the one that sampled
    observed["old_logprobs"] = given["per_token_logps"] if old is None else old
    if data["args"]["beta"]:
        observed["ref_logprobs"] = given["ref_per_token_logps"]
    return observed
