"""The loops of verl's newer trainers, whole: v1, fully asynchronous, SFT. Their workers are fakes, and so is the store.

What verl's own file logger has is compared with what declog logs at the same step.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

os.environ["VERL_USE_EXTERNAL_MODULES"] = "declog.integrations.verl"

import numpy as np
import pytest
import tensordict
import torch
from omegaconf import OmegaConf
from verl import DataProto
from verl.utils.tracking import Tracking

import declog
from tests.integrations.own_env.real_verl import NEW, Rollout, configuration, differences, here, lines

assert here  # a fixture
pytestmark = [
    pytest.mark.filterwarnings("ignore"), pytest.mark.slow, pytest.mark.skipif(not NEW, reason="they are of 0.9"),
]  # fmt: skip
SETTINGS = (
    "+declog=verl_ppo", "declog.sinks=[jsonl]", "trainer.logger=[console,file]", "trainer.total_epochs=1",
    "trainer.test_freq=2", "trainer.save_freq=-1", "trainer.balance_batch=false", "trainer.log_val_generations=2",
    "actor_rollout_ref.rollout.n=2", "algorithm.adv_estimator=grpo", "trainer.project_name=p",
    "trainer.experiment_name=e", "trainer.critic_warmup=0",
    "+declog.signals.any.acc={axis: completion}", "+declog.metrics.acc={expr: acc}",
)  # fmt: skip


def logged() -> dict[int, dict[str, float]]:
    """What verl's file logger has: by step, all calls of it together."""
    found: dict[int, dict[str, float]] = {}
    for line in Path("p/e.jsonl").read_text().splitlines():
        entry = json.loads(line)
        found.setdefault(entry["step"], {}).update(entry["data"])
    return found


def generations() -> list[tuple[int, str, str, float]]:
    file = Path("checkpoints/p/e/declog/jsonl/tables/generations.jsonl")
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return [(row["step"], row["input"], row["output"], row["score"]) for row in rows]


# -- v1


class Store:
    """verl's TransferQueue in a dict: rows of fields by key, in partitions."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str], dict[str, Any]] = {}
        self.tags: dict[tuple[str, str], dict[str, Any]] = {}

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any = None, tags: Any = None) -> Any:
        from transfer_queue import KVBatchMeta

        for place, key in enumerate(keys):
            row = self.rows.setdefault((partition_id, key), {})
            for name in () if fields is None else fields.keys():
                row[name] = fields[name][place]
            if tags is not None:
                self.tags[partition_id, key] = tags[place]
        held = [self.tags.get((partition_id, key), {}) for key in keys]
        return KVBatchMeta(keys=list(keys), tags=held, partition_id=partition_id)

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str] | None = None) -> Any:
        rows = [self.rows[partition_id, key] for key in keys]
        names = select_fields or list(rows[0])
        if absent := [name for name in names if name not in rows[0] and name not in OPTIONAL]:
            raise ValueError(f"no {absent}")
        found = tensordict.TensorDict({}, batch_size=[len(keys)])
        for name in names:
            column = [row[name] for row in rows if name in row]
            if len(column) < len(rows):  # padding has more
                continue
            whole = all(isinstance(value, torch.Tensor) for value in column)
            found[name] = (
                torch.nested.as_nested_tensor(column, layout=torch.jagged) if whole
                else tensordict.NonTensorStack(*column)
            )  # fmt: skip
        return found

    def kv_clear(self, keys: list[str], partition_id: str) -> None:
        for key in keys:
            self.rows.pop((partition_id, key), None)


OPTIONAL = {"values", "ref_log_prob", "token_level_rewards", "rollout_log_probs"}  # what verl asks for and may lack


class Agents:
    """Generates two responses of each prompt, of one to three tokens; the last one is one of several turns."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.made: dict[str, list[str]] = {"train": [], "val": []}
        self.kept: list[dict[str, Any]] = []

    def generate_sequences(self, batch: Any) -> None:
        validate = "validate" in batch.keys()  # noqa: SIM118
        partition = "val" if validate else "train"
        for number, uid in enumerate(batch["uid"]):
            for session in range(1 if validate else 2):
                length = 1 + (number + session + len(self.kept)) % 3
                score = float((number * 2 + session + len(self.kept)) % 3 == 0)
                row = {
                    "prompts": torch.ones(2 + number % 2).long(), "responses": torch.ones(length).long(),
                    "response_mask": torch.ones(length).long(), "uid": str(uid), "num_turns": 2 + 2 * session,
                    "rm_scores": torch.cat([torch.zeros(length - 1), torch.tensor([score])]),
                    "data_source": "math", "reward_model": {"ground_truth": "1"},
                    "extra_fields": {"reward_extra_info": {"acc": score}},
                }  # fmt: skip
                key = f"{uid}_{session}_0"
                self.store.rows[partition, key] = row
                self.store.tags[partition, key] = {
                    "min_global_steps": 0, "max_global_steps": 0, "seq_len": 2 + number % 2 + length,
                }  # fmt: skip
                self.made[partition].append(key)
                self.kept.append({"partition": partition, **row})


def test_the_v1_trainer(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`fit`, its steps, advantages, padding and validation: each number that verl logs is there at its step."""
    from transfer_queue import KVBatchMeta
    from verl.trainer.ppo.v1 import trainer_base, trainer_sync

    store = Store()
    for name in ("kv_batch_get", "kv_batch_put", "kv_clear"):
        monkeypatch.setattr(trainer_base.tq, name, getattr(store, name))
    agents = Agents(store)
    config = configuration(
        *SETTINGS, "data.train_batch_size=3", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.calculate_log_probs=false",
    )  # fmt: skip

    class Buffer:
        def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict[str, float]]:
            keys, agents.made[partition_id] = agents.made[partition_id], []
            tags = [store.tags[partition_id, key] for key in keys]
            return KVBatchMeta(keys=keys, tags=tags, partition_id=partition_id), {"buffer/size": float(len(keys))}

    class Workers:
        _dispatch_info = MappingProxyType({"actor": [0]})

        def update_actor(self, batch: Any) -> Any:
            return {"metrics": {"pg_loss": [0.1, 0.3], "grad_norm": [2.0], "mfu": [0.5]}}

        def compute_log_prob(self, batch: Any) -> Any:
            for key in batch.keys:
                row = store.rows[batch.partition_id, key]
                zeros = torch.zeros(len(row["prompts"]) + len(row["responses"]))
                row |= {"entropy": zeros + 0.5, "log_probs": zeros - 1}
            return batch

    class Trainer(trainer_sync.PPOTrainerSync):  # type: ignore[misc]  # verl is not typed here
        def __init__(self) -> None:
            self.config = config
            self.use_critic = self.use_reference_policy = self.use_teacher_policy = False
            self.trainer_mode, self.parameter_sync_step, self.global_steps = "sync", 1, 0
            self.steps_per_epoch = self.total_training_steps = 3
            self._rollout_moe_lb_metrics_accumulator, self._restored_tq_prompt_count = None, 0
            self.replay_buffer, self.actor_rollout_wg = Buffer(), Workers()
            self.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
            self.checkpoint_manager = SimpleNamespace(update_weights=lambda step: None, sleep_replicas=lambda: None)
            self.tokenizer = SimpleNamespace(
                eos_token_id=0, pad_token_id=0, decode=lambda ids, **_: f"text {int(ids.sum())}"
            )
            self.val_dataloader = [{"raw_prompt": np.array(["a", "b"], dtype=object)}]
            self.dump_executor = SimpleNamespace(shutdown=lambda **_: None)

        def prepare_step(self) -> dict[str, Any]:
            uids = [f"{self.global_steps}-{number}" for number in range(3)]
            agents.generate_sequences({"uid": uids})
            return {}

        def _get_n_gpus_for_throughput(self) -> int:
            return 2

        def _shutdown_dump_executor(self) -> None: ...

    trainer = Trainer()
    trainer.fit(agents)
    run = trainer.logger.declog
    trainer.logger.finish()
    capsys.readouterr()
    expected, found = logged(), lines(Path("checkpoints/p/e"))
    assert found.keys() == expected.keys() == {0, 1, 2, 3}
    assert {step: differences(values, found[step]) for step, values in expected.items()} == {step: {} for step in found}
    assert len(expected[2].keys()) > 60 and dict(run.recorder.failures) == {}
    rows = [row for row in agents.kept if row["partition"] == "train"]
    for step in (1, 2, 3):
        assert found[step]["acc"] == np.mean([float(row["rm_scores"].sum()) for row in rows[6 * step - 6 : 6 * step]])
    assert [step for step, *_ in generations()] == [0, 0, 2, 2, 3, 3]


# -- fully asynchronous


class Remote:
    """An actor of Ray's: `method.remote()` gives what is awaited."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        class Answer:
            def __init__(self, value: Any) -> None:
                self.value = value

            def __await__(self) -> Iterator[Any]:
                return iter(asyncio.sleep(0, self.value).__await__())

            def future(self) -> Any:
                import concurrent.futures

                done: concurrent.futures.Future[Any] = concurrent.futures.Future()
                done.set_result(self.value)
                return done

        return SimpleNamespace(remote=lambda *args: Answer(self.answers[name]()))


@pytest.mark.parametrize("mini_batches", [1, 2])
def test_the_fully_asynchronous_trainer(
    mini_batches: int, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its `fit`: mini-batches whose metrics verl aggregates are of the step at which verl logs their aggregate."""
    module: Any = importlib.import_module("verl.experimental.fully_async_policy.fully_async_trainer")
    monkeypatch.setattr(module.ray, "get", lambda given: [each.value for each in given])
    config = configuration(
        *SETTINGS, "+async_training={trigger_parameter_sync_step: 1, use_trainer_do_validate: false}",
        "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    )  # fmt: skip
    kept: list[DataProto] = []
    seconds = iter(range(1, 100))

    async def nothing(*args: Any, **kwargs: Any) -> None: ...

    own: Any = module.FullyAsyncTrainer.__ray_metadata__.modified_class.__mro__[1]

    class Trainer(own):  # type: ignore[misc]  # verl is not typed here
        def __init__(self) -> None:
            state: dict[str, Any] = self.__dict__
            off = ("rm", "critic", "reference_policy", "prefix_grouper", "teacher_policy")
            state.update({f"use_{name}": False for name in off}, config=config)
            state.update(dict.fromkeys(("prev_step_profile", "curr_step_profile", "is_last_step"), False))
            state.update(dict.fromkeys(("global_steps", "epoch", "max_steps_duration", "current_param_version"), 0))
            state.update(dict.fromkeys(("stale_trajectory_processed", "last_ckpt_version"), 0))
            state.update(distillation_config=None, dynamic_resource_controller=None, reward_tensor=None)
            state.update(train_dataset=[], last_val_metrics={}, metrics={}, timing_raw={}, only_hybrid=True)
            state.update(reward_extra_infos_dict={}, dynamic_schedule_enabled=False, staleness_threshold=1)
            state.update(required_samples=4, _step_wait_times=[], _step_wait_samples=[], local_trigger_step=1)
            self.trigger_parameter_sync_step = mini_batches
            self.logger = Tracking("p", "e", ["console", "file"], OmegaConf.to_container(config, resolve=True))
            self.message_queue_client = SimpleNamespace(get_queue_size_sync=lambda: 0)
            self.metrics_aggregator = module.MetricsAggregator(total_gpus=2)
            self.progress_bar = SimpleNamespace(update=lambda n: None, close=lambda: None)
            self.dynamic_schedule_ctx = SimpleNamespace(step_required_samples=4)
            self.resource_pool_manager = SimpleNamespace(get_n_gpus=lambda: 2)
            self.actor_rollout_wg = SimpleNamespace()
            self.rollouter = Remote(
                get_total_produced_samples=lambda: 4,
                get_completed_steps=lambda: 1,
                reset_staleness=lambda: {"fully_async/rollouter/idle_ratio": 0.25 * next(seconds)},
                do_validate=lambda: {"val-core/math/acc/mean@1": 0.5},
            )
            self.rollout = Rollout()

        async def _get_samples_from_queue(self) -> Any:
            if len(kept) == 7 - mini_batches:
                return None, None
            found = self.rollout.generate_sequences([None] * 4)
            found.non_tensor_batch["uid"] = np.array(list("aabb"), dtype=object)
            found.meta_info |= {"trajectory_param_versions": [0] * 4}
            found.meta_info["global_token_num"] = found.batch["attention_mask"].sum(-1).tolist()
            kept.append(found)
            return 0, found

        def _compute_old_log_prob(self, given: DataProto) -> Any:
            zeros = torch.zeros(given.batch["responses"].shape)
            return DataProto.from_dict({"old_log_probs": zeros - 1, "entropys": zeros + 0.5}), 0.25

        def _update_actor(self, given: DataProto) -> DataProto:
            metrics = {"actor/pg_loss": [float(len(kept))], "actor/grad_norm": [1.0]}
            return DataProto.from_single_dict(data={}, meta_info={"metrics": metrics})

        def _fit_save_checkpoint(self, force: bool = False) -> None: ...
        def _start_profiling(self, on: bool) -> None: ...
        def _stop_profiling(self, on: bool) -> None: ...

    trainer = Trainer()
    asyncio.run(trainer.fit())
    capsys.readouterr()
    run = trainer.logger.declog
    assert (run.recorder.closed, dict(run.recorder.failures)) == (True, {})
    expected, found = logged(), lines(Path("checkpoints/p/e"))
    steps = {2: [0], 3: [1], 4: [2], 5: [3], 6: [4]} if mini_batches == 1 else {1: [0], 2: [1, 2]}
    assert found.keys() == expected.keys() == steps.keys() | {1}
    for step, places in steps.items():
        differ = differences(expected[step], found[step])
        if len(places) > 1:  # verl averages means and rates of mini-batches
            differ = {name: each for name, each in differ.items() if not name.startswith("timing_per_token_ms/")}
            mask = torch.cat([kept[place].batch["response_mask"] for place in places]).bool()
            for name in ("advantages", "returns"):
                exact = torch.cat([kept[place].batch[name] for place in places])[mask].mean().item()
                assert differ.pop(f"critic/{name}/mean")[1] == pytest.approx(exact)
        assert differ == {}
        scores = np.concatenate([kept[place].non_tensor_batch["acc"] for place in places])
        assert (found[step]["acc"], found[step]["critic/score/mean"]) == (scores.mean(), scores.mean())


# -- SFT


def test_the_sft_trainer(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Its `fit`, on a worker that does nothing: losses of training and of validation are one step."""
    qwen = importlib.import_module("transformers.models.qwen2_vl.modeling_qwen2_vl")
    if not hasattr(qwen, "Qwen2VLCausalLMOutputWithPast"):  # which this transformers has no more
        monkeypatch.setattr(qwen, "Qwen2VLCausalLMOutputWithPast", type("Output", (), {}), raising=False)
    module: Any = importlib.import_module("verl.trainer.sft_trainer")
    monkeypatch.setattr(module.torch.distributed, "barrier", lambda: None)
    for name in ("log_gpu_memory_usage", "aggressive_empty_cache", "log_with_rank"):  # of GPUs, and of several ranks
        monkeypatch.setattr(module, name, lambda *args, **kwargs: None)
    losses = iter(range(1, 100))
    profile = declog.config_of(declog.compose("trainer", ["sinks=[jsonl]"]))
    config = OmegaConf.create({
        "declog": profile, "model": {"use_remove_padding": True},
        "trainer": {"project_name": "p", "experiment_name": "e", "logger": ["console", "file"], "total_epochs": 2,
                    "default_local_dir": "checkpoints/p/e"},
        "data": {"use_dynamic_bsz": True, "max_token_len_per_gpu": 8, "micro_batch_size_per_gpu": 2, "pad_mode": "x"},
    })  # fmt: skip

    class Worker:
        def train_batch(self, data: Any) -> Any:
            metrics = {"loss": 1.0 / next(losses), "grad_norm": 0.5, "lr": 1e-5, "mfu": 0.1}
            return tensordict.TensorDict({"metrics": tensordict.NonTensorData(metrics)})

        def infer_batch(self, data: Any) -> Any:
            return tensordict.TensorDict({"metrics": tensordict.NonTensorData({"loss": 10.0 * next(losses)})})

        def step_profile(self) -> None: ...

    class Trainer(module.SFTTrainer):  # type: ignore[misc]  # verl is not typed here
        def __init__(self) -> None:
            self.config, self.rank, self.device_name = config, 0, "cpu"
            self.engine = SimpleNamespace(
                is_mp_src_rank_with_outputs=lambda: True,
                get_data_parallel_rank=lambda: 0,
                get_data_parallel_size=lambda: 1,
                get_data_parallel_group=lambda: None,
            )
            self.training_client = Worker()
            rows = {"input_ids": torch.nested.as_nested_tensor([torch.ones(3), torch.ones(2)], layout=torch.jagged)}
            self.train_dataloader = [dict(rows) for _ in range(3)]
            self.val_dataloader = [dict(rows) for _ in range(2)]
            self.train_sampler = SimpleNamespace(set_epoch=lambda epoch: None)
            self.ckpt_handler = SimpleNamespace(save_checkpoint=lambda step: None)
            self.model_config = SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=0))
            self.resume_global_step, self.total_training_steps, self.steps_per_epoch = 0, 6, 3
            self.test_freq, self.save_freq, self.global_batch_size = 2, -1, 2
            self.start_profile_step = self.end_profile_step = -1

    Trainer().fit()
    capsys.readouterr()
    for run in list(sys.modules["declog.integrations.verl.run"]._open):  # verl's leaves it to the interpreter's end
        run.close()
        assert dict(run.recorder.failures) == {}
    expected, found = logged(), lines(Path("checkpoints/p/e"))
    assert found.keys() == expected.keys() == set(range(1, 7))
    assert found == expected
    assert ["val/loss" in found[step] for step in range(1, 7)] == [False, True] * 3
