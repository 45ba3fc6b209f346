"""As in verl, for some of the names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from verl import DataProto


def compute_data_metrics(batch: DataProto, use_critic: bool = True) -> dict[str, Any]:
    score = batch.batch["token_level_scores"].sum(-1)
    return {"critic/score/mean": score.mean().item(), "critic/score/max": score.max().item()}


def compute_timing_metrics(batch: DataProto, timing_raw: Mapping[str, float]) -> dict[str, Any]:
    tokens = batch.batch["attention_mask"][:, -batch.batch["responses"].shape[-1] :].sum().item()
    seconds = {f"timing_s/{name}": value for name, value in timing_raw.items()}
    return {**seconds, "timing_per_token_ms/gen": timing_raw["gen"] * 1000 / tokens}


def compute_throughout_metrics(batch: DataProto, timing_raw: Mapping[str, float], n_gpus: int) -> dict[str, Any]:
    return {"perf/throughput": sum(batch.meta_info["global_token_num"]) / (timing_raw["step"] * n_gpus)}


def get_metric_data_with_optional_routed_experts(
    keys: Sequence[str], partition_id: str, fields: Sequence[str], kv_batch_get: Callable[..., Any]
) -> Any:
    return kv_batch_get(keys=keys, partition_id=partition_id, select_fields=fields)
