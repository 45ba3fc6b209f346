"""verl by an environment variable: steps, columns, generations, and what may go wrong, on a small verl of our own."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

import declog
from declog.errors import ConfigError

FAKE = Path(__file__).parent / "fake"
Values = dict[str, Any]


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """verl, imported with declog's integration; afterwards neither is imported any more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(FAKE)
    monkeypatch.setenv("VERL_USE_EXTERNAL_MODULES", "declog.integrations.verl")
    finders = list(sys.meta_path)
    yield importlib.import_module("verl")
    sys.meta_path[:] = finders
    for name in list(sys.modules):
        if name == "verl" or name.startswith(("verl.", "declog.integrations.verl")):
            del sys.modules[name]


def config(*overrides: str, preset: str = "verl_ppo") -> Values:
    """A trainer's configuration, as Hydra makes it with ``+declog=...``."""
    few = ["sinks=[jsonl]", "++profiles.full.self_metrics=false", "tests=null"]
    profile = declog.config_of(declog.compose(preset, [*few, *overrides]))
    return {"trainer": {"default_local_dir": "checkpoints"}, "declog": profile}


def tracking(*overrides: str, preset: str = "verl_ppo", backends: Any = "console") -> Any:
    """A Tracking as verl makes it."""
    module = importlib.import_module("verl.utils.tracking")
    return module.Tracking("project", "experiment", backends, config=config(*overrides, preset=preset))


def batch(verl: Any, scores: Sequence[float], **others: Sequence[Any]) -> Any:
    """Responses of one to three tokens, each with its score on its first."""
    rows = len(scores)
    lengths = torch.arange(rows) % 3 + 1
    mask = (torch.arange(3) < lengths[:, None]).long()
    columns = {
        "prompts": torch.ones(rows, 2), "responses": torch.ones(rows, 3), "response_mask": mask,
        "attention_mask": torch.cat([torch.ones(rows, 2), mask], 1),
        "token_level_scores": torch.tensor(scores)[:, None] * torch.tensor([1.0, 0, 0]),
        "advantages": torch.ones(rows, 3),
    }  # fmt: skip
    found = verl.DataProto(columns, {name: np.array(each, dtype=object) for name, each in others.items()})
    found.meta_info = {"global_token_num": (2 + lengths).tolist()}
    return found


def computed(given: Any, seconds: float = 2.0) -> Values:
    """The metrics of a step, by verl's functions, as its trainers call them."""
    module = importlib.import_module("verl.trainer.ppo.metric_utils")
    timing = {"gen": seconds / 2, "step": seconds}
    return {
        "training/global_step": 1, **module.compute_data_metrics(batch=given, use_critic=False),
        **module.compute_timing_metrics(batch=given, timing_raw=timing),
        **module.compute_throughout_metrics(batch=given, timing_raw=timing, n_gpus=2),
    }  # fmt: skip


def lines(folder: str = "checkpoints/declog", kind: str = "scalars") -> list[tuple[int, Any]]:
    """What a run has logged: by step its scalars, or the rows of its generations."""
    found = []
    for file in sorted(Path(folder).glob(f"jsonl/{'tables/' if kind != 'scalars' else ''}{kind}*")):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            found.append((entry["step"], entry["scalars"] if kind == "scalars" else entry))
    return found


def test_a_training(verl: Any) -> None:
    """Numbers of a batch are computed of its columns, once; others pass; the step before training is a step."""
    log = tracking()
    log.log(data={"val-core/math/acc": np.float64(0.25)}, step=0)
    for step in (1, 2):
        reported = {"actor/pg_loss": torch.tensor(0.5), "perf/mfu": np.int64(step)}
        log.log(data={**computed(batch(verl, [1.0, 0.0, 2.0])), **reported}, step=step)
        assert log.declog.recorder.last_step == step
    log.finish()
    log.finish()
    assert dict(log.declog.recorder.failures) == {}
    (zero, before), (one, first), (two, second) = lines()
    assert (zero, one, two, before) == (0, 1, 2, {"val-core/math/acc": 0.25})
    expected = {
        "training/global_step": 1, "critic/score/mean": 1.0, "critic/score/max": 2.0, "critic/score/min": 0.0,
        "timing_s/gen": 1.0, "timing_per_token_ms/gen": 1000 / 6, "perf/throughput": 12 / 4, "actor/pg_loss": 0.5,
        "perf/mfu": 1, "response_length/mean": 2.0, "response_length/clip_ratio": 1 / 3, "prompt_length/mean": 2.0,
        "critic/advantages/mean": 1.0, "response/aborted_ratio": 0.0,
    }  # fmt: skip
    assert {name: first[name] for name in expected} == pytest.approx(expected)
    assert second == {**first, "perf/mfu": 2}
    assert [data for _, data in log.logged][1].keys() <= first.keys()


def test_an_alert_ends_training(verl: Any) -> None:
    """verl takes the next step for its last one."""
    module = importlib.import_module("verl.trainer.ppo.ray_trainer")
    stops = "+alerts.too_far={when: actor_ppo_kl > 0.5, do: [stop]}"
    metric = "+metrics.actor_ppo_kl={observe: {axis: step, from: actor/far}}"
    metrics = [{"actor/far": 0.9 if step > 3 else 0.1} for step in range(1, 200)]
    trainer = module.RayPPOTrainer(config(metric, stops), metrics)
    log = module.Tracking.log

    def slow(self: Any, data: Any, step: Any, backend: Any = None) -> None:
        log(self, data, step, backend)
        self.declog.recorder.written()

    module.Tracking.log = slow
    trainer.fit()
    steps = [step for step, _ in trainer.logger.logged]
    assert steps[-1] in (6, 7) and trainer.logger.declog.recorder.closed
    assert [step for step, _ in lines()] == steps


def test_a_trainer_that_extends_fit(verl: Any) -> None:
    """Its run ends with the outermost `fit`, failed if that fails; a Tracking that is not the trainer's stays open."""
    module = importlib.import_module("verl.trainer.ppo.ray_trainer")

    class Extended(module.RayPPOTrainer):  # type: ignore[misc,name-defined]
        def fit(self) -> None:
            super().fit()
            self.logger.log({"final": 1.0}, step=self.global_steps)
            raise ValueError("after training")

    mine = tracking()
    mine.log({"mine": 1.0}, step=1)
    trainer = Extended(config(), [{"a": 1.0}, {"a": 2.0}])
    with pytest.raises(ValueError, match="after training"):
        trainer.fit()
    run = declog.read(trainer.logger.declog.recorder)
    assert (run.state, run.names()) == ("failed", ["a", "final"])
    mine.log({"mine": 2.0}, step=2)
    mine.finish()
    assert lines() == [(1, {"mine": 1.0}), (2, {"mine": 2.0})]


def test_a_trainer_that_fails_before_it_logs(verl: Any) -> None:
    """Its run, begun before training as the fully asynchronous trainer's is, has failed and was not killed."""
    module = importlib.import_module("verl.trainer.ppo.ray_trainer")

    class Fails(module.RayPPOTrainer):  # type: ignore[misc,name-defined]
        def fit(self) -> None:
            raise ValueError("no GPU")

    log = tracking()
    with pytest.raises(ValueError, match="no GPU"):
        Fails(config(), []).fit()
    assert declog.read(log.declog.recorder).state == "failed"


def test_a_trainer_with_a_base_of_another_library(verl: Any) -> None:
    """Class: a base that learns of its subclasses learns of none of verl's trainers, because declog wraps `fit`."""
    module = importlib.import_module("verl.trainer.ppo.ray_trainer")

    class Registered:
        def __init_subclass__(cls, name: str = "", **options: Any) -> None:
            super().__init_subclass__(**options)
            names[name] = cls

    names: dict[str, type] = {}

    class Trainer(module.RayPPOTrainer, Registered, name="mine"):  # type: ignore[misc,name-defined]
        """A trainer that another library knows by its name."""

    assert names == {"mine": Trainer}


def test_own_metrics_of_columns(verl: Any) -> None:
    """A profile of one's own declares any column of the batch; metrics of prompts and of data sources are of those."""
    log = tracking(
        "+signals.any.acc={axis: completion}",
        "+signals.any.data_source={axis: completion, type: text}",
        '+metrics.acc={expr: acc, by: data_source, name: "acc/{label}"}',
        '+metrics.solved="mean(max(score, over=completion) > 0)"',
        "~metrics.score",
    )  # fmt: skip
    given = batch(
        verl, [1.0, 0.0, 0.0, 0.0], uid=["a", "b", "a", "b"], acc=[1, 0, None, 1], data_source=["x", "x", "y", "y"]
    )
    log.log(data=computed(given), step=5)
    log.finish()
    ((step, values),) = lines()
    own = {name: values[name] for name in ("acc/x", "acc/y", "solved", "groups/equal_scores", "critic/score/mean")}
    assert (step, own) == (
        5,
        {"acc/x": 0.5, "acc/y": 1.0, "solved": 0.5, "groups/equal_scores": 0.5, "critic/score/mean": 0.25},
    )


def test_a_step_in_several_calls(verl: Any) -> None:
    """As the SFT and the fully asynchronous trainers log: calls of one step are one, which the next one's call ends."""
    log = tracking()
    log.log({"train/loss": 1.0}, step=1)
    log.log({"val/loss": 2.0}, step=1)
    first = computed(batch(verl, [1.0, 0.0]))  # of step 2: mini-batches of which verl logs an aggregate
    log.log({"timing_s/param_sync": 3.0}, step=2)
    computed(batch(verl, [1.0, 1.0]))
    log.log({**first, "train/loss": 0.5}, step=2)
    log.log({"val-core/acc": 0.75}, step=2)
    assert log.declog.recorder.last_step == 1
    log.finish()
    (one, _), (two, values) = found = lines()
    assert ([one, two], found[0][1]) == ([1, 2], {"train/loss": 1.0, "val/loss": 2.0})
    expected = {"critic/score/mean": 0.75, "timing_s/param_sync": 3.0, "train/loss": 0.5, "val-core/acc": 0.75}
    assert {name: values[name] for name in expected} == expected
    assert dict(log.declog.recorder.failures) == {}


def test_mini_batches_that_verl_aggregates(verl: Any) -> None:
    """They are of the step at which verl logs their aggregate, without the latest; stages' seconds add up."""
    log = tracking()
    aggregator = importlib.import_module("verl.experimental.fully_async_policy.detach_utils").MetricsAggregator()
    for step, scores in enumerate([[1.0], [3.0], [0.0], [5.0]]):
        found = computed(batch(verl, scores))
        if step % 2:
            log.log({**aggregator.kept[-1], "mine": 1.0}, step=step)
        aggregator.add_step_metrics(metrics=found, sample_count=1)
    log.finish()
    names = ("critic/score/mean", "timing_s/gen", "perf/time_per_step", "perf/throughput")
    assert [(step, [values[name] for name in names]) for step, values in lines()] == [
        (1, [1.0, 1.0, 2.0, 3 / 4]), (3, [1.5, 2.0, 4.0, 3 / 4]),
    ]  # fmt: skip


def test_more_of_a_step_that_has_ended(verl: Any) -> None:
    """The step is logged again with all of it; from then on steps end with the next one."""
    log = tracking()
    for step in (1, 2):
        log.log(computed(batch(verl, [1.0])), step=step)
        log.log({"val/loss": float(step)}, step=step)
    log.finish()
    assert [(step, values.get("critic/score/mean"), values.get("val/loss")) for step, values in lines()] == [
        (1, 1.0, 1.0), (2, 1.0, 2.0),
    ]  # fmt: skip
    assert dict(log.declog.recorder.failures) == {}


def test_training_again_loses_nothing(verl: Any) -> None:
    """From its first step, as where a trainer of transformers trains twice."""
    log = tracking()
    for score in (1.0, 2.0):
        for step in (1, 2, 3):
            log.log(computed(batch(verl, [score])), step=step)
    log.finish()
    both = [(step, score) for score in (1.0, 2.0) for step in (1, 2, 3)]
    assert [(step, values["critic/score/mean"]) for step, values in lines()] == both


def test_a_profile_that_knows_no_column(verl: Any) -> None:
    """All numbers are verl's own, each step's its own log event; windows of several steps are the profile's matter."""
    log = tracking(preset="trainer")
    expected = [(step, {**computed(batch(verl, [1.0, 0.0])), "mine": float(step)}) for step in (1, 2)]
    for step, data in expected:
        log.log(data, step=step)
    log.finish()
    assert (lines(), dict(log.declog.recorder.failures)) == (expected, {})


def test_a_window_of_steps(verl: Any) -> None:
    """What is computed is of all its batches; what passes is averaged."""
    log = tracking("every=2")
    for step, scores in ((1, [1.0, 0.0, 0.0]), (2, [1.0])):
        log.log({**computed(batch(verl, scores)), "mine": float(step)}, step=step)
    log.finish()
    ((step, values),) = lines()
    names = ("critic/score/mean", "critic/score/max", "mine", "perf/throughput")
    assert (step, [values[name] for name in names]) == (2, [0.5, 1.0, 1.5, (12 + 3) / 8])


def test_validation_generations(verl: Any) -> None:
    """They are rows of a table, at their step; those without a score are left out."""
    log = tracking()
    generations = importlib.import_module("verl.utils.tracking").ValidationGenerationsLogger()
    generations.log(["console"], [("q", "a", 1.0), ("p", "b", 0.0)], 0)
    log.log({"val-core/acc": 0.5}, step=0)
    generations.log(["console"], [("r", "c", np.float64(0.5)), ("s", "d")], 1)
    log.log(computed(batch(verl, [1.0])), step=1)
    log.finish()
    rows = [(step, row["input"], row["output"], row["score"]) for step, row in lines(kind="generations")]
    assert rows == [(0, "q", "a", 1.0), (0, "p", "b", 0.0), (1, "r", "c", 0.5)]
    generations.log(["console"], [("q", "a", 1.0)], 2)  # where no run is open


def test_a_second_run(verl: Any) -> None:
    """Each Tracking has a run in a folder of its own; a batch belongs to the one that logs its metrics."""
    first, second = tracking(), tracking()
    data = [computed(batch(verl, [score])) for score in (1.0, 0.0)]
    second.log(data[0], step=1)
    first.log({"train/loss": 1.0}, step=1)
    second.finish()
    data = [computed(batch(verl, [3.0]))]
    first.log(data[0], step=2)
    first.finish()
    assert [(step, values.get("critic/score/mean")) for step, values in lines()] == [(1, None), (2, 3.0)]
    assert [(step, values["critic/score/mean"]) for step, values in lines("checkpoints/declog/2")] == [(1, 0.5)]


def test_a_batch_of_a_v1_trainer(verl: Any) -> None:
    """Its metrics' batch has few columns; what a profile needs beside them is read from where verl stores rows."""
    log = tracking(
        "+signals.any.acc={axis: completion}",
        "+signals.any.data_source={axis: completion, type: text}",
        "+metrics.acc={expr: acc}",
        '+metrics.by_source={expr: score, by: data_source, name: "score/{label}"}',
    )
    asked: list[list[str]] = []

    class Column(list[Any]):
        def tolist(self) -> list[Any]:
            return list(self)

    def stored(keys: Sequence[str], partition_id: str, select_fields: list[str]) -> Values:
        asked.append(select_fields)
        columns = {
            "data_source": Column(["x", "y", "pad"]),
            "extra_fields": Column([{"reward_extra_info": {"acc": 1.0}}, {"reward_extra_info": {"acc": 0.0}}, {}]),
        }
        if not columns.keys() >= set(select_fields):
            raise ValueError(f"no {select_fields}")
        return {name: columns[name] for name in select_fields}

    module = importlib.import_module("verl.trainer.ppo.metric_utils")
    for step in (1, 2):
        module.get_metric_data_with_optional_routed_experts(
            keys=["a_0_0", "a_1_0", "pad12_0_0"], partition_id="train", fields=["data_source"], kv_batch_get=stored
        )
        log.log(computed(batch(verl, [1.0, 1.0])), step=step)
    log.finish()
    names = ("acc", "score/x", "score/y", "groups/equal_scores")
    assert [{name: values[name] for name in names} for _, values in lines()] == [
        {"acc": 0.5, "score/x": 1.0, "score/y": 1.0, "groups/equal_scores": 1.0}
    ] * 2
    assert [asked.count([name]) for name in ("values", "data_source", "returns")] == [1, 4, 1]
    assert dict(log.declog.recorder.failures) == {}


def test_where_padding_was_removed(verl: Any) -> None:
    """Columns of as many tokens as each response has are padded, and padding counts nowhere."""
    log = tracking()
    given = batch(verl, [1.0, 0.0, 2.0])
    mask = given.batch["response_mask"].bool()
    for name in ("advantages", "response_mask"):
        given.batch[name] = torch.nested.as_nested_tensor(
            [row[kept] for row, kept in zip(given.batch[name], mask, strict=True)], layout=torch.jagged
        )
    log.log(computed(given), step=1)
    log.finish()
    ((_, values),) = lines()
    assert (values["critic/advantages/mean"], values["critic/advantages/min"]) == (1.0, 1.0)


def test_one_wrong_column(verl: Any, caplog: pytest.LogCaptureFixture) -> None:
    """It is left out and reported, and training goes on; all others count."""
    log = tracking(
        "+signals.any.acc={axis: completion}", "+metrics.acc={expr: acc}",
        "+signals.any.prompts={axis: token}", "+metrics.prompts=mean(prompts)",
    )  # fmt: skip
    log.log({**computed(batch(verl, [1.0, 0.0], acc=["right", "wrong"])), "odd": "text", "none": None}, step=1)
    log.finish()
    ((_, values),) = lines()
    assert (values["critic/score/mean"], values.keys() & {"acc", "prompts", "odd", "none"}) == (0.5, set())
    assert [name for name in ("`acc`", "`prompts`", "`odd`", "`none`") if name not in caplog.text] == []


def test_the_mask_is_observed_before_other_columns(verl: Any) -> None:
    """In whatever order the plan has them: a column of other tokens is refused, and not the mask because of it."""
    from declog.integrations.verl.columns import MASK, tensors  # which needs a verl

    given = batch(verl, [1.0, 0.0])
    for names in (["prompts", "advantages", "response_mask"], ["response_mask", "prompts"]):
        assert next(iter(tensors(given, dict.fromkeys(names).keys()))) == MASK


def test_a_wrong_profile(verl: Any) -> None:
    """It is an error where verl checks its own configuration, before models are loaded; nothing else is."""
    checks = importlib.import_module("verl.utils.config")
    wrong = config()
    wrong["declog"]["metrics"]["odd"] = {"expr": "scroe"}
    with pytest.raises(ConfigError, match="scroe"):
        checks.validate_config(config=OmegaConf.create(wrong), use_reference_policy=False, use_critic=False)
    checks.validate_config(OmegaConf.create(config()), False, False)
    checks.validate_config(OmegaConf.create({"trainer": {}}), False, False)
    tracking_of = importlib.import_module("verl.utils.tracking").Tracking
    with pytest.raises(ConfigError, match="scroe"):
        tracking_of("project", "experiment", "console", wrong)


def test_a_tracking_of_ones_own(verl: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """One without a configuration has the preset; one that verl's `__init__` did not make has no run, and goes on."""
    module = importlib.import_module("verl.utils.tracking")
    log = module.Tracking("project", "experiment")
    log.log({"mine": float("nan")}, step=1)
    log.finish()
    folder = log.declog.recorder.output_dir
    assert (folder.parts[-3:-1], log.declog.recorder.plan.name) == (("outputs", "verl_ppo"), "verl_ppo")
    found = {row["name"]: row["value"] for row in declog.read(folder).scalars}
    assert np.isnan(found["mine"])

    class Own(module.Tracking):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            self.logged: list[tuple[int, Values]] = []

    own = Own()
    own.log({"mine": 1.0}, step=1)
    own.finish()
    assert own.logged == [(1, {"mine": 1.0})]


def test_names_of_the_run(verl: Any) -> None:
    """`trainer.logger` may name declog; its trackers get verl's project and experiment, unless they join verl's run."""
    log = tracking(backends=["console", "declog"])
    log.log({"a": 1.0}, step=1, backend=["console"])
    log.log({"b": 1.0}, step=1, backend=["declog"])
    log.finish()
    assert lines() == [(1, {"b": 1.0})]
    named = importlib.import_module("declog.integrations.verl.run").named
    sinks = [{"kind": "wandb"}, {"kind": "trackio", "project": "mine"}, {"kind": "jsonl"}]
    assert [named(sink, "p", "e", ["trackio"]) for sink in sinks] == [
        {"kind": "wandb", "project": "p", "name": "e"}, *sinks[1:],
    ]  # fmt: skip
    run = json.loads(Path("checkpoints/declog/run.json").read_text())
    assert run["name"] == "verl_ppo"


def test_modules_that_are_imported_already(verl: Any) -> None:
    """Where the integration comes late, functions that others hold are wrapped, too."""
    module: Any = importlib.import_module("verl.trainer.ppo.metric_utils")
    integration = importlib.import_module("declog.integrations.verl.hooks")
    own = module.compute_data_metrics.__wrapped__
    trainer = type(sys)("verl.a_trainer")
    sys.modules["verl.a_trainer"] = trainer
    vars(trainer)["compute_data_metrics"] = vars(module)["compute_data_metrics"] = own
    integration.install()
    assert vars(trainer)["compute_data_metrics"] is module.compute_data_metrics is not own
    assert module.compute_data_metrics.__wrapped__ is own
