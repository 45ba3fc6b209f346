"""Those who have a configuration file only: declog by name in Axolotl and ms-swift.

Neither is installed beside declog here, so what each calls stands in, by its contract.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import ValidationError
from transformers import TrainerCallback

import declog
from tests.integrations.trl import cases
from tests.integrations.trl.cases import Case

SHORT = Case(args={"max_steps": 2, "logging_steps": 1, "eval_strategy": "no"})
OVERRIDES = ["declog.sinks=[]", "+declog.metrics.reward_p95='p95(reward)'"]


@pytest.fixture
def standing_in() -> Iterator[Callable[..., None]]:
    """Modules that are not installed, with what declog needs of them."""
    before = set(sys.modules)

    def put(name: str, **contents: Any) -> None:
        parts = name.split(".")
        for place in range(1, len(parts) + 1):
            sys.modules[".".join(parts[:place])] = ModuleType(".".join(parts[:place]))
        vars(sys.modules[name]).update(contents)

    yield put
    for name in set(sys.modules) - before:
        if name.split(".")[0] in ("axolotl", "swift") or name.startswith("declog.integrations."):
            del sys.modules[name]


def p95s(trainer: Any) -> list[float]:
    return [entry["reward_p95"] for entry in trainer.state.log_history if "reward" in entry]


def test_axolotl(standing_in: Callable[..., None], model: Path, tmp_path: Path) -> None:
    """A plugin of its configuration: attached when the trainer is made, closed when training has ended."""

    class BasePlugin:  # of axolotl 0.19
        pass

    class Cfg(dict[str, Any]):  # its DictDefault: a key that is not there is None
        def __getattr__(self, name: str) -> Any:
            return self.get(name)

    standing_in("axolotl.integrations.base", BasePlugin=BasePlugin)
    module = importlib.import_module("declog.integrations.axolotl")
    plugin = module.DeclogPlugin()
    path, _, name = plugin.get_input_args().rpartition(".")
    accepts = getattr(sys.modules[path], name)
    cfg = Cfg(declog={"config": "trl_grpo", "overrides": OVERRIDES})
    assert accepts.model_validate(cfg).declog.overrides == OVERRIDES
    with pytest.raises(ValidationError):
        accepts.model_validate({"declog": {"overides": []}})
    trainer = cases.trainer_of(SHORT, model, tmp_path)
    plugin.post_trainer_create(cfg, trainer)
    trainer.train()
    plugin.post_train(cfg, trainer.model)
    assert len(p95s(trainer)) == 2 and "train" not in vars(trainer)
    other = module.DeclogPlugin()
    other.post_trainer_create(Cfg(), cases.trainer_of(SHORT, model, tmp_path / "other"))
    assert other.trainer._declog.recorder.plan.name == "trl_grpo"
    other.post_train(Cfg(), None)


def test_swift(standing_in: Callable[..., None], model: Path, tmp_path: Path) -> None:
    """A callback by name, which is made before its trainer is whole: attached when training begins, each time."""
    from trl import GRPOTrainer

    class Base(TrainerCallback):  # type: ignore[misc]  # of ms-swift 4.6
        def __init__(self, args: Any, trainer: Any) -> None:
            self.args = args
            self.trainer = trainer

    callbacks_map: dict[str, Any] = {}
    standing_in("swift.callbacks", TrainerCallback=Base, callbacks_map=callbacks_map)
    importlib.import_module("declog.integrations.swift").register("trl_grpo", OVERRIDES)

    class Swift(GRPOTrainer):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, callbacks=[callbacks_map["declog"](kwargs["args"], self)], **kwargs)

    trainer = cases.trainer_of(SHORT, model, tmp_path, cls=Swift)
    trainer.train()
    assert len(p95s(trainer)) == 2
    trainer.train()
    assert len(p95s(trainer)) == 2 and list(tmp_path.glob("declog*"))


def test_a_trainer_that_generates_in_its_own_way(model: Path, tmp_path: Path) -> None:
    """As ms-swift's: what TRL computes there never runs, so what the trainer reports is taken for it."""
    from trl import GRPOTrainer

    class Own(GRPOTrainer):  # type: ignore[misc]
        def _prepare_inputs(self, inputs: Any) -> Any:
            generated = GRPOTrainer._generate_and_score_completions(self, inputs)
            self._metrics["train"]["reward"][-1] = 99.0
            return generated

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            return super()._compute_loss(model, inputs)

    case = Case(args={"max_steps": 2, "logging_steps": 1, "eval_strategy": "no", "gradient_accumulation_steps": 1})
    trainer = cases.trainer_of(case, model, tmp_path, cls=Own)
    sink = declog.testing.MemorySink()
    with declog.attach(trainer, overrides=cases.STRICT, sinks=[sink]):
        trainer.train()
    for (_, _, own), (_, _, values) in zip(cases.expected(trainer.state.log_history), cases.events(sink), strict=True):
        assert own == pytest.approx({name: values.get(name) for name in own})
    assert [values["reward"] for _, _, values in cases.events(sink)[:2]] == [99.0, 99.0]
