"""Loggers of any shape, teed: whichever method carries numbers, and what is said where none does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.testing import MemorySink


class Kept:
    """Keeps every call of its methods, which return what was called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def _keep(self, *call: Any) -> Any:
        self.calls.append(call)
        return len(self.calls)


class StableBaselines(Kept):
    def log(self, *args: Any, level: int = 20) -> Any:
        return self._keep("log", args)

    def record(self, key: str, value: Any, exclude: Any = None) -> Any:
        return self._keep("record", key, value)

    def record_mean(self, key: str, value: Any, exclude: Any = None) -> Any:
        return self._keep("record_mean", key, value)

    def dump(self, step: int = 0) -> Any:
        return self._keep("dump", step)


class Rlogger(Kept):
    def log_scalar(self, name: str, value: float, step: int | None = None) -> Any:
        return self._keep(name, value, step)

    def log_hparams(self, cfg: Mapping[str, Any]) -> Any:
        return self._keep("hparams", cfg)


class Tune(Kept):
    def log(self, name: str, data: Any, step: int) -> Any:
        return self._keep(name, data, step)

    def log_dict(self, payload: Mapping[str, Any], step: int) -> Any:
        return self._keep(payload, step)


class Board(Kept):
    def add_scalar(self, tag: str, scalar_value: Any, global_step: int | None = None) -> Any:
        return self._keep(tag, scalar_value, global_step)


class Baselines(Kept):
    def logkv(self, key: str, val: Any) -> Any:
        return self._keep(key, val)

    def dumpkvs(self) -> Any:
        return self._keep("dump")


class Clu(Kept):
    def write_scalars(self, step: int, scalars: Mapping[str, Any]) -> Any:
        return self._keep(step, scalars)


class Aim(Kept):
    def track(self, value: Any, name: str | None = None, step: int | None = None, *, context: Any = None) -> Any:
        return self._keep(value, name, step)


class Mlflow(Kept):
    def log_metric(self, key: str, value: float, step: int | None = None) -> Any:
        return self._keep(key, value, step)


class Unheard(Kept):
    def emit_numbers(self, bunch: Mapping[str, Any], iteration: int) -> Any:
        return self._keep(bunch, iteration)

    def log(self, text: str) -> Any:
        return self._keep(text)


def stable(log: Any, step: int) -> Any:
    yield log.log("a text", step)
    yield log.record("loss", step / 2)
    yield log.record("kl", 9.0)
    yield log.record("kl", float(step), exclude="csv")
    yield log.record_mean("time", 1.0)
    yield log.record_mean("time", 3.0)
    yield log.dump(step)


CALLED: dict[str, tuple[type[Kept], Any]] = {
    "SB3's logger": (StableBaselines, stable),
    "torchrl's": (
        Rlogger, lambda log, step: [
            log.log_scalar("loss", step / 2, step=step), log.log_scalar("kl", step, step),
            log.log_scalar("time", 2.0, step),
        ],
    ),
    "torchtune's by name": (
        Tune, lambda log, step: [log.log("loss", step / 2, step), log.log("kl", step, step), log.log("time", 2, step)],
    ),
    "torchtune's of a mapping": (
        Tune, lambda log, step: [log.log_dict({"loss": step / 2, "kl": step, "time": 2}, step=step)],
    ),
    "a writer without texts": (
        Board, lambda log, step: [
            log.add_scalar(*each, step) for each in (("loss", step / 2), ("kl", step), ("time", 2))
        ],
    ),
    "baselines'": (
        Baselines, lambda log, step: [
            log.logkv("loss", step / 2), log.logkv("kl", step), log.logkv("time", 2), log.dumpkvs(),
        ],
    ),
    "clu's": (Clu, lambda log, step: [log.write_scalars(step, {"loss": step / 2, "kl": step, "time": np.array(2.0)})]),
    "aim's": (
        Aim, lambda log, step: [
            log.track(torch.tensor(step / 2), name="loss", step=step), log.track(step, "kl", step),
            log.track(2, name="time", step=step, context={"subset": "train"}),
        ],
    ),
    "without steps": (
        Mlflow, lambda log, step: [
            log.log_metric("loss", step / 2), log.log_metric("kl", step), log.log_metric("time", 2.0),
        ],
    ),
    "of no name that is known": (
        Unheard, lambda log, step: [log.emit_numbers({"loss": step / 2, "kl": step, "time": 2}, step)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CALLED)
def test_whichever_method_carries_numbers(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A name and a value, or a mapping, and a step, or a dump: declog has them, the logger its calls and results."""
    kind, use = CALLED[case]
    plain, teed, sink = kind(), kind(), MemorySink()
    log = declog.tee(teed, "tee", ["sinks=none", "profile=full"], sinks=[sink], output_dir=tmp_path)
    for step in range(3):
        assert list(use(log, step)) == list(use(plain, step))
    log.close()
    assert teed.calls == plain.calls
    assert sink.scalars == {step: {"loss": step / 2, "kl": step, "time": 2} for step in range(3)}
    assert [record for record in caplog.records if record.levelname == "WARNING"] == []


@pytest.mark.parametrize("kind", [Board, Mlflow])
def test_names_that_count_steps_of_their_own(
    kind: type[Kept], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Batches, epochs and none: declog has each number at the last step; a name that goes back is told once."""
    teed, sink = kind(), MemorySink()
    log: Any = declog.tee(teed, "tee", ["sinks=none", "profile=full"], sinks=[sink], output_dir=tmp_path)
    add = log.add_scalar if kind is Board else log.log_metric
    for epoch in range(3):
        add("loss", epoch / 2, 10 * epoch)
        add("accuracy", epoch, epoch)
        add("seconds", 2.0)
    add("loss", 7.0, 5)
    log.close()
    assert len(teed.calls) == 10
    expected = {10 * epoch: {"loss": epoch / 2, "accuracy": epoch, "seconds": 2.0} for epoch in range(3)}
    assert sink.scalars == {**expected, 20: {**expected[20], "loss": 7.0}}
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert told == ["`loss` goes back from step 20 to 5: it is recorded at step 20"]


def test_names_that_the_profile_hides_are_the_loggers_all_the_same(tmp_path: Path) -> None:
    """What the loop logs itself reaches its logger whatever is shown; what declog computes besides comes in its way."""
    profile = {
        "signals": {"any": {"kl": {"axis": "step", "from": "actor/kl"}}}, "profile": "slim",
        "metrics": {"kl": {"expr": "kl", "tags": ["core"]}, "twice": {"formula": "2 * kl", "tags": ["core"]}},
        "profiles": {"slim": {"only": ["tag:core"]}},
    }  # fmt: skip
    tune = Tune()
    with declog.tee(tune, profile, output_dir=tmp_path) as log:
        for step in range(3):
            log.log_dict({"actor/kl": step, "success_rate/train": 0.5}, step)
    own = [({"actor/kl": step, "success_rate/train": 0.5}, step) for step in range(3)]
    assert [call for call in tune.calls if call in own] == own
    assert [call for call in tune.calls if call not in own] == [
        ({"kl": step, "twice": 2 * step}, step) for step in range(3)
    ]


@pytest.mark.parametrize("calls", [0, 1, 12])
def test_a_tee_that_recorded_nothing_says_so(calls: int, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Once: after ten calls, or at its end; with the methods that were called and those that it knows."""
    unheard = Unheard()
    log = declog.tee(unheard, output_dir=tmp_path)
    for step in range(calls):
        log.log(f"loss {step}")
    told = [record.getMessage() for record in caplog.records if "recorded nothing" in record.getMessage()]
    assert len(told) == (calls > 10)
    log.close()
    (text,) = [record.getMessage() for record in caplog.records if "recorded nothing" in record.getMessage()]
    assert text.startswith("the tee of Unheard has recorded nothing: ")
    assert ("called `log`" if calls else "nobody has called it") in text and "log_dict, log_scalar" in text
    assert len(unheard.calls) == calls


@pytest.mark.parametrize("of", [torch.tensor, np.array], ids=["tensor", "array"])
def test_an_array_has_the_edit_that_logs_its_mean(
    of: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A value per row is no number: the call in the note logs its mean, by the name that the loop gives it."""
    monkeypatch.chdir(tmp_path)
    rewards = [[0.0, 1.0, 5.0], [2.0, 4.0, 9.0]]

    def looped(logger: Any) -> str:
        caplog.clear()
        for step, reward in enumerate(rewards):
            logger.log_dict({"train/reward": of(reward), "kl": 0.1}, step)
        logger.recorder.close()
        return caplog.text.partition("fix: ")[2].splitlines()[0] if "fix: " in caplog.text else ""

    edit = looped(declog.tee(Tune(), output_dir="first"))
    names: dict[str, Any] = {"declog": declog, "logger": Tune()}
    exec(edit, names)
    assert not looped(names["logger"])
    assert declog.read(names["logger"].recorder.output_dir)["train/reward"].values.tolist() == [2.0, 5.0]
