"""Attributes, arguments and values of other loggers, which are not there: each is answered with an edit."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import declog
import declog.config
from declog.errors import SinkError
from declog.testing import MemorySink

PROFILE = {"signals": {"any": {"loss": {"axis": "step"}}}, "metrics": {"loss": "mean(loss)"}}


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with declog.start(PROFILE, sinks=[MemorySink()], output_dir=tmp_path / "run") as recorder:
        yield recorder


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("init", 'with declog.start("grpo") as log:'), ("start_run", "declog.start("), ("login", "declog.start("),
        ("log", "declog.scalars({...}, step)"), ("log_metrics", "declog.observe(reward=...)"),
        ("finish", "log.close()"), ("run", "declog.current()"), ("Table", "tables: {worst:"),
        ("alert", 'alerts: {kl: "> 0.5"}'), ("Histogram", "reduce: histogram"), ("summary", "over: run"),
        ("watch", "declog.observe(grad_norm=...)"), ("SummaryWriter", "declog.tee(writer)"),
        ("save", "log.output_dir"), ("strat", "did you mean `declog.start`?"), ("obesrve", "`declog.observe`"),
    ],
)  # fmt: skip
def test_a_module_of_another_logger(name: str, edit: str) -> None:
    """wandb's, trackio's, mlflow's and TensorBoard's names are no names of declog's, and say which one is."""
    assert not hasattr(declog, name)
    with pytest.raises(AttributeError) as caught:
        getattr(declog, name)
    assert str(caught.value).startswith(f"module 'declog' has no attribute '{name}'\n  fix: ")
    assert edit in str(caught.value)


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("log", "log.scalars({...}, step)"), ("log_dict", "log.observe(reward=...)"),
        ("add_scalar", "log.scalars({...}, step)"), ("finish", "log.close()"), ("end", "log.close()"),
        ("log_config", "log.config({...})"), ("log_hyperparams", "run_config"),
        ("add_histogram", "reduce: histogram"), ("log_table", "tables: {worst:"), ("set_step", "with log.step(k):"),
        ("observ", "did you mean `log.observe`?"), ("flsh", "did you mean `log.flush`?"),
    ],
)  # fmt: skip
def test_a_recorder_is_another_logger(log: Any, name: str, edit: str) -> None:
    """The same of a recorder, whose own names are the nearest."""
    assert not hasattr(log, name)
    with pytest.raises(AttributeError) as caught:
        getattr(log, name)
    assert str(caught.value).startswith(f"'Recorder' object has no attribute '{name}'\n  fix: ")
    assert edit in str(caught.value)


def test_names_of_python_are_asked_as_ever(log: Any) -> None:
    """What copying, pickling and inspection look for is not there, without advice."""
    for owner in (declog, log, declog.config):
        with pytest.raises(AttributeError, match=r"has no attribute '__of_python__'$"):
            _ = owner.__of_python__
    assert isinstance(declog.__version__, str)
    assert pickle.loads(pickle.dumps(declog.start)) is declog.start


@pytest.mark.parametrize(
    "code", ["config['lr'] = 1", "config.lr = 1", "config.update({'lr': 1})", "config['lr']", "config.lr"]
)
def test_the_package_that_is_no_config_of_wandb(code: str) -> None:
    """`declog.config` is a package: values are neither kept there nor lost without a word."""
    with pytest.raises((AttributeError, TypeError), match=r"fix: .*run\.config\.lr=1e-6"):
        exec(code, {"config": declog.config})


@pytest.mark.parametrize(
    ("options", "edit"),
    [
        ({"profile": "slim"}, 'declog.start(config, ["profile=slim"])'),
        ({"every": 10}, 'declog.start(config, ["every=10"])'),
        ({"log_dir": "runs"}, "declog.start(config, output_dir='runs')"),
        ({"project": "mine"}, '["sinks=[console,wandb]", "sink_options.wandb.project=mine"]'),
        ({"report_to": "wandb"}, '["sinks=[wandb]"]'),
        ({"log_every": 5}, '["every=5"]'),
        ({"world_sze": 2}, "did you mean `world_size`?"),
        ({"qqq": 2}, "arguments: config, overrides, sinks"),
    ],
)
def test_arguments_of_another_logger(options: dict[str, Any], edit: str) -> None:
    """Of `start`, `attach` and `callback`: Python's error, with the override or the argument that is meant."""
    for function in (declog.start, declog.callback):
        with pytest.raises(TypeError) as caught:
            function("grpo", **options)
        of = f"declog.{function.__name__}"
        assert str(caught.value).startswith(
            f"{of}() got an unexpected keyword argument '{next(iter(options))}'\n  fix: "
        )
        if function is declog.start or not {"world_sze", "qqq"} & set(options):
            assert edit.replace("declog.start", of) in str(caught.value)
    trainer: Any = object()
    with pytest.raises(TypeError, match=r"declog\.attach\(\) got an unexpected keyword argument"):
        declog.attach(trainer, "trl_grpo", **options)


@pytest.mark.parametrize(
    ("sinks", "edit"),
    [
        (["wandb"], 'declog.start("grpo", ["sinks=[wandb]"])'),
        (["console", "wandb"], 'declog.start("grpo", ["sinks=[console,wandb]"])'),
        ("wandb", 'declog.start("grpo", ["sinks=[wandb]"])'),
        ([MemorySink], "MemorySink()"),
        (MemorySink(), "sinks=[...]"),
        ([object()], "open, write and close"),
        ([{"wandb": {}}], "open, write and close"),
    ],
)
def test_sinks_that_are_no_objects(sinks: Any, edit: str, tmp_path: Path) -> None:
    """By name, as a class, or without a list: refused before anything opens, with what works."""
    with pytest.raises(SinkError, match=r"^\[DL601\] `sinks` takes objects, and ") as caught:
        declog.start("grpo", sinks=sinks, output_dir=tmp_path / "run")
    assert edit in str(caught.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "texts"),
    [
        ({"every": 10, "profile": "slim"}, ["every=10", "profile=slim"]),
        ([{"every": 10}], ["every=10"]),
        ("every=10", ["every=10"]),
        ({"metrics.loss.reduce": ["mean", "p95"], "tables.samples": None},
            ["metrics.loss.reduce=[mean, p95]", "tables.samples=null"]),
    ],
)  # fmt: skip
def test_overrides_that_are_no_list_of_texts(overrides: Any, texts: list[str]) -> None:
    """A map, a list of maps, one text: the fix is the list, and is taken."""
    with pytest.raises(declog.CompositionError) as caught:
        declog.plan("grpo", overrides)
    (problem,) = caught.value.problems
    assert problem.fix == str(texts)
    assert declog.plan("grpo", texts).fingerprint != declog.plan("grpo").fingerprint
