"""verl itself, on a CPU: its functions, its Tracking and the loops of its trainers, with fakes of their workers.

Which verl is the environment's. Every number that verl computes is compared with what declog logs under its name.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["VERL_USE_EXTERNAL_MODULES"] = "declog.integrations.verl"

import numpy as np
import pytest
import torch

import declog

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]
with pytest.MonkeyPatch.context() as patch:
    patch.setenv("VERL_USE_EXTERNAL_MODULES", "declog.integrations.verl")
    import verl
    from verl import DataProto
    from verl.trainer.ppo import metric_utils
    from verl.utils.tracking import Tracking, ValidationGenerationsLogger

NEW = tuple(map(int, version("verl").split(".")[:2])) >= (0, 9)
STAGES = ("gen", "reward", "ref", "values", "adv", "update_critic", "update_actor", "step")
Values = dict[str, Any]


def batch(seed: int, *, critic: bool = True, agent: bool = True, weights: bool = False, empty: int = 0) -> DataProto:
    """Sixteen responses to four prompts: left-padded prompts, right-padded responses, tools' tokens among them."""
    made = torch.Generator().manual_seed(seed)
    rows, prompts, responses = 16, 12, 20

    def some() -> torch.Tensor:
        return torch.randn(rows, responses, generator=made)

    prompt_length = torch.randint(1, prompts + 1, (rows,), generator=made)
    length = torch.randint(1, responses + 1, (rows,), generator=made)
    length[:empty] = 0
    mask = torch.arange(responses) < length[:, None]
    own = mask.clone()
    if agent:
        own[:, 5:8] = False
    scores = torch.zeros(rows, responses)
    scores[torch.arange(rows), (length - 1).clamp(min=0)] = torch.randint(0, 3, (rows,), generator=made).float()
    tensors = {
        "prompts": torch.ones(rows, prompts), "responses": torch.ones(rows, responses), "response_mask": own.long(),
        "attention_mask": torch.cat([torch.arange(prompts) >= prompts - prompt_length[:, None], mask], 1).long(),
        "token_level_scores": scores, "token_level_rewards": scores - 0.1 * some().abs() * mask,
        "advantages": some(), "returns": some(), "old_log_probs": -some().abs(),
        "sum_pi_squared": torch.rand(rows, responses, generator=made),
    }  # fmt: skip
    if critic:
        tensors["values"] = some()
    if weights:
        tensors["rollout_is_weights"] = 2 * torch.rand(rows, responses, generator=made)
    draw = np.random.default_rng(seed)
    others: dict[str, Any] = {
        "uid": np.array([f"prompt{row % 4}" for row in range(rows)], dtype=object),
        "data_source": np.array(["gsm8k", "math"] * 8, dtype=object),
        "acc": draw.integers(0, 2, rows).astype(float),
    }
    if agent:
        others |= {"__num_turns__": draw.integers(1, 9, rows), "tool_call_counts": draw.integers(0, 5, rows)}
    found = DataProto.from_dict(tensors=tensors, non_tensors=others)
    found.meta_info["global_token_num"] = tensors["attention_mask"].sum(-1).tolist()
    return found


def computed(given: DataProto, seed: int, *, critic: bool = True) -> Values:
    """A step's metrics, as verl's trainers put them together."""
    draw = np.random.default_rng(seed)
    timing = {name: float(draw.uniform(0.1, 10)) for name in STAGES}
    found = metric_utils.compute_data_metrics(batch=given, use_critic=critic)
    found |= metric_utils.compute_timing_metrics(batch=given, timing_raw=timing)
    found |= metric_utils.compute_throughout_metrics(batch=given, timing_raw=timing, n_gpus=8)
    if "compute_variance_proxy_metrics" in vars(metric_utils):
        found |= metric_utils.compute_variance_proxy_metrics(batch=given, gradient_norm=0.125)
    return dict(found)


def tracking(folder: Path, *overrides: str) -> Tracking:
    """verl's own, with a configuration as verl has one."""
    profile = declog.config_of(declog.compose("verl_ppo", ["sinks=[jsonl]", *overrides]))
    config = {"trainer": {"default_local_dir": str(folder)}, "declog": profile}
    return Tracking("project", "experiment", ["console"], config=config)


def lines(folder: Path) -> dict[int, Values]:
    """The scalars of each step."""
    text = (folder / "declog/jsonl/scalars.jsonl").read_text()
    return {entry["step"]: entry["scalars"] for entry in map(json.loads, text.splitlines())}


def differences(expected: Values, found: Values) -> Values:
    """What is not equal within 1e-6."""
    return {
        name: (value, found.get(name))
        for name, value in expected.items()
        if name not in found or not math.isclose(value, found[name], rel_tol=1e-6, abs_tol=1e-6)
    }


def end(log: Tracking) -> None:
    """As verl's newer trainers end it, or the interpreter does."""
    run = log.declog
    log.__del__()
    assert (dict(run.recorder.failures), run.recorder.closed) == ({}, True)


@pytest.mark.parametrize("kind", ["whole", "no critic", "one turn", "importance weights", "empty responses"])
def test_verls_own_keys(kind: str, tmp_path: Path) -> None:
    """Every number of verl's functions, three seeds: 57 names of a whole batch, and as many as there are of others."""
    critic = kind != "no critic"
    log, expected = tracking(tmp_path), {}
    for seed in (1, 2, 3):
        given = batch(
            seed, critic=critic, agent=kind != "one turn", weights=kind == "importance weights",
            empty=3 if kind == "empty responses" else 0,
        )  # fmt: skip
        expected[seed] = computed(given, seed, critic=critic)
        log.log(data=expected[seed], step=seed)
    taken = {op.key for op in log.declog.recorder.plan.outputs}
    end(log)
    found = lines(tmp_path)
    assert {seed: differences(values, found[seed]) for seed, values in expected.items()} == {1: {}, 2: {}, 3: {}}
    assert "logged" in taken and (not NEW or kind != "whole" or len(expected[1]) == 57)


def test_nothing_is_passed_through_that_is_computed(tmp_path: Path) -> None:
    """verl's numbers of a batch, here made wrong on their way, are not what is logged."""
    log = tracking(tmp_path)
    expected = computed(batch(1), 1)
    log.log(data=dict.fromkeys(expected, -1.0), step=1)
    end(log)
    assert differences(expected, lines(tmp_path)[1]) == {}


def test_a_percentile_and_pass_rates_of_ones_own(tmp_path: Path) -> None:
    """Metrics of verl's columns, by data source and by prompt."""
    log = tracking(
        tmp_path, "+signals.any.acc={axis: completion}",
        "+signals.any.data_source={axis: completion, type: text}", '+metrics.p90="p90(score)"',
        '+metrics.acc={expr: acc, by: data_source, name: "acc/{label}"}',
        '+metrics.solved="mean(max(acc, over=completion))"',
    )  # fmt: skip
    given = batch(4)
    log.log(data=computed(given, 4), step=1)
    end(log)
    scores, acc = given.batch["token_level_scores"].sum(-1).numpy(), given.non_tensor_batch["acc"]
    expected = {
        "p90": np.quantile(scores, 0.9), "acc/gsm8k": acc[0::2].mean(), "acc/math": acc[1::2].mean(),
        "solved": np.mean([acc[row::4].max() for row in range(4)]),
        "groups/equal_scores": np.mean([len(set(scores[row::4])) == 1 for row in range(4)]),
    }  # fmt: skip
    assert differences(expected, lines(tmp_path)[1]) == {}


# -- trainers


class Rollout:
    """What the legacy trainer's agent loops give back: two tokens of three are each response's own."""

    def __init__(self) -> None:
        self.batches: list[DataProto] = []

    def generate_sequences(self, given: DataProto) -> DataProto:
        rows = len(given)
        draw = torch.Generator().manual_seed(len(self.batches))
        length = torch.randint(1, 4, (rows,), generator=draw)
        mask = (torch.arange(3) < length[:, None]).long()
        tensors = {
            "prompts": torch.ones(rows, 2, dtype=torch.long), "responses": torch.ones(rows, 3, dtype=torch.long),
            "response_mask": mask, "attention_mask": torch.cat([torch.ones(rows, 2).long(), mask], 1),
            "rm_scores": torch.randint(0, 2, (rows, 1), generator=draw) * torch.tensor([1.0, 0, 0]),
        }  # fmt: skip
        others = {
            "__num_turns__": np.full(rows, 2, dtype=np.int32),
            "multi_modal_inputs": np.array([{} for _ in range(rows)], dtype=object),
            "acc": np.array([float(value) for value in tensors["rm_scores"][:, 0]]),
        }
        found = DataProto.from_dict(tensors=tensors, non_tensors=others)
        found.meta_info = {"timing": {"generate": 0.5}, "reward_extra_keys": ["acc"]}
        self.batches.append(found)
        return found


def configuration(*overrides: str) -> Any:
    """verl's own configuration, by its Hydra."""
    from hydra import compose, initialize_config_dir

    folder = Path(verl.__file__).parent / "trainer/config"
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer", overrides=list(overrides))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.skipif(not NEW, reason="its fit needs others of its parts")
def test_the_legacy_trainer(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its `fit` and `_validate`, whole, with workers that do nothing: all that verl's file logger has, declog has."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    config = configuration(
        "+declog=verl_ppo", "declog.sinks=[jsonl]", "trainer.logger=[console,file,declog]", "trainer.total_epochs=1",
        "trainer.test_freq=2", "trainer.save_freq=-1", "trainer.balance_batch=false", "trainer.log_val_generations=2",
        "actor_rollout_ref.rollout.n=2", "algorithm.adv_estimator=grpo", "trainer.project_name=p",
        "trainer.experiment_name=e", "trainer.critic_warmup=0", "trainer.use_v1=false",
        "+declog.signals.any.acc={axis: completion}", "+declog.metrics.acc={expr: acc}",
    )  # fmt: skip
    kept: list[DataProto] = []

    class Trainer(RayPPOTrainer):  # type: ignore[misc]  # verl is not typed here
        def __init__(self) -> None:
            self.config = config
            self.tokenizer = SimpleNamespace(eos_token_id=0, pad_token_id=0, decode=lambda ids, **_: f"text {len(ids)}")
            self.use_rm = self.use_critic = self.use_reference_policy = self.use_teacher_policy = False
            self.use_prefix_grouper = False
            self.async_rollout_manager = Rollout()
            self.checkpoint_manager = SimpleNamespace(update_weights=print, sleep_replicas=lambda: None)
            self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 4)
            self.actor_rollout_wg = SimpleNamespace()
            self.train_dataset: list[Any] = []
            self.train_dataloader = [self.rows(4) for _ in range(3)]
            self.val_dataloader = [self.rows(4)]
            self.total_training_steps = 3
            self.validation_generations_logger = ValidationGenerationsLogger("p", "e")
            self._init_dump_executor()

        def rows(self, count: int) -> Values:
            return {
                "dummy_tensor": torch.zeros(count, 1), "raw_prompt": np.array([[]] * count + [None], dtype=object)[:-1],
                "data_source": np.array(["math"] * count, dtype=object),
                "reward_model": np.array([{"ground_truth": "1"}] * count, dtype=object),
            }  # fmt: skip

        def _load_checkpoint(self) -> int:
            return 0

        def _compute_old_log_prob(self, given: DataProto) -> Any:
            zeros = torch.zeros_like(given.batch["rm_scores"])
            return DataProto.from_dict({"old_log_probs": zeros - 1, "entropys": zeros + 0.5}), 0.25

        def _update_actor(self, given: DataProto) -> DataProto:
            kept.append(given)
            return DataProto.from_single_dict(
                data={}, meta_info={"metrics": {"actor/pg_loss": [0.1, 0.3], "actor/grad_norm": [1.0]}}
            )

    Trainer().fit()
    capsys.readouterr()
    expected = {entry["step"]: entry["data"] for entry in map(json.loads, Path("p/e.jsonl").read_text().splitlines())}
    found = lines(Path("checkpoints/p/e"))
    assert found.keys() == expected.keys() == {0, 1, 2, 3}
    assert {step: differences(values, found[step]) for step, values in expected.items()} == {
        step: {} for step in expected
    }
    assert [found[step]["acc"] for step in (1, 2, 3)] == [each.non_tensor_batch["acc"].mean() for each in kept]
    rows = Path("checkpoints/p/e/declog/jsonl/tables/generations.jsonl").read_text().splitlines()
    assert [json.loads(row)["step"] for row in rows] == [0, 0, 2, 2, 3, 3]


@pytest.mark.skipif(not NEW, reason="it is of 0.9")
def test_the_v1_trainer(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its `_compute_metrics`, whole, on a fake of its store: few columns, without padding, in rows of other order."""
    import tensordict
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1 import trainer_base

    lengths = [(2, 3), (1, 1), (2, 2), (1, 2), (7, 1)]  # of prompts and responses; the last one fills up the batch
    scores = [1.0, 0.0, 0.5, 0.5, 0.0]
    keys = ["a_0_0", "b_0_0", "a_1_0", "b_1_0", "pad12_0_0"]

    def nested(values: list[float], place: int = 1) -> torch.Tensor:
        rows = [torch.zeros(length[place]) for length in lengths]
        for row, value in zip(rows, values, strict=True):
            row[0] = value
        return torch.nested.as_nested_tensor(rows, layout=torch.jagged)

    columns = {
        "prompts": nested([1.0] * 5, 0), "responses": nested([1.0] * 5), "response_mask": nested([1.0] * 5),
        "advantages": nested(scores), "returns": nested(scores), "rm_scores": nested(scores),
    }  # fmt: skip
    others: dict[str, list[Any]] = {
        "num_turns": [2, 4, 2, 6, 0], "data_source": ["x", "x", "y", "y", "x"],
        "extra_fields": [{"reward_extra_info": {"acc": value > 0.5}} for value in scores],
    }  # fmt: skip
    asked = []

    def kv_batch_get(keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        asked.append(select_fields)
        absent = set(select_fields) - columns.keys() - others.keys() - {"values", "token_level_rewards"}
        if absent:
            raise ValueError(f"no {absent}")
        found = tensordict.TensorDict(
            {name: columns[name] for name in select_fields if name in columns}, batch_size=[5]
        )
        for name in set(select_fields) & others.keys():
            found.set(name, tensordict.NonTensorStack(*others[name]))
        return found

    monkeypatch.setattr(trainer_base.tq, "kv_batch_get", kv_batch_get)
    config = configuration(
        "+declog=verl_ppo", "declog.sinks=[jsonl]", "trainer.project_name=p", "trainer.experiment_name=e",
        "+declog.signals.any.acc={axis: completion}", "+declog.metrics.acc={expr: acc}",
        "+declog.signals.any.data_source={axis: completion, type: text}",
        "+declog.metrics.by_source={expr: score, by: data_source, name: 'score/{label}'}",
    )  # fmt: skip

    class Trainer(trainer_base.PPOTrainer):  # type: ignore[misc]  # verl is not typed here
        def __init__(self) -> None:
            self.config, self.use_critic = config, False
            self._rollout_moe_lb_metrics_accumulator = None

        def _get_n_gpus_for_throughput(self) -> int:
            return 2

    Trainer.__abstractmethods__ = frozenset()
    from omegaconf import OmegaConf

    trainer, timing = Trainer(), {"gen": 1.0, "step": 4.0, "update_actor": 2.0}
    log = Tracking("p", "e", "console", OmegaConf.to_container(config, resolve=True))
    expected = {}
    for step in (1, 2):
        tags = [{"min_global_steps": 0, "max_global_steps": 0, "is_padding": key.startswith("pad")} for key in keys]
        meta = KVBatchMeta(keys=keys, tags=tags, partition_id="train")
        expected[step] = {"actor/grad_norm": 0.5}
        trainer._compute_metrics(meta, expected[step], timing, global_steps=step, epoch=0)
        log.log(data=expected[step], step=step)
    end(log)
    found = lines(Path("checkpoints/p/e"))
    assert [differences(values, found[step]) for step, values in expected.items()] == [{}] * 2
    own = {"acc": 0.25, "score/x": 0.5, "score/y": 0.5, "groups/equal_scores": 0.0, "num_turns/mean": 3.5}
    assert differences(own, found[2]) == {}
    assert [asked.count([name]) for name in ("tool_call_counts", "data_source")] == [1, 2]


def test_hydra_and_verls_checks() -> None:
    """`+declog=...` on verl's command line is the profile; one that is wrong ends the program before Ray starts."""
    if importlib.util.find_spec("verl.utils.config") is None:
        pytest.skip("this verl checks its configuration elsewhere")
    from verl.utils import config

    assert config.validate_config.__wrapped__ is not None
    made = configuration("+declog=verl_ppo", "~declog.metrics.score", "+declog.metrics.p90='p90(score)'")
    from omegaconf import OmegaConf

    from declog.integrations.verl import run

    plain = OmegaConf.to_container(made, resolve=True)
    names = [{op.id for op in declog.plan(run.config_named_by(each)).outputs} for each in (made, plain)]
    assert [("p90" in each, "score" in each) for each in names] == [(True, False)] * 2
