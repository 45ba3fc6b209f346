"""Attributes, arguments and values of other loggers, which are not there: each is answered with an edit."""

from __future__ import annotations

import ast
import functools
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import declog
import declog.config
from declog.errors import SinkError
from declog.language.reductions import DEFAULT
from declog.testing import MemorySink

PROFILE = {"signals": {"any": {"loss": {"axis": "step"}}}, "metrics": {"loss": "mean(loss)"}}


@pytest.fixture
def log(tmp_path: Path) -> Any:
    with declog.start(PROFILE, sinks=[MemorySink()], output_dir=tmp_path / "run") as recorder:
        yield recorder


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("init", 'run_config={...}) as log:` in place of `declog.init`, and in it `with log.step(step):`'),
        ("start_run", "declog.start("), ("login", "declog.start("),
        ("log", "declog.scalars({...}, step)"), ("log_metrics", "log.observe(reward=rewards)"),
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
        ("log", "log.scalars({...}, step)"), ("log_dict", "log.observe(reward=rewards)"),
        ("add_scalar", "log.scalars({...}, step)"), ("finish", "log.close()"), ("end", "log.close()"),
        ("log_config", "log.config({...})"), ("log_hyperparams", "run_config"),
        ("add_histogram", "reduce: histogram"), ("log_table", "tables: {worst:"), ("set_step", "with log.step(k):"),
        ("observ", "did you mean `log.observe`?"), ("flsh", "did you mean `log.flush`?"),
        ("row", "tables: {worst:"), ("rows", "tables: {worst:"), ("log_row", "tables: {worst:"),
        ("add_rows", "tables: {worst:"), ("write_tables", "tables: {worst:"), ("histograms", "reduce: histogram"),
        ("log_figures", "shows images"), ("steps", "did you mean `log.step`?"),
        ("log_extras", "did you mean `log.log_extra`?"),
    ],
)  # fmt: skip
def test_a_recorder_is_another_logger(log: Any, name: str, edit: str) -> None:
    """The same of a recorder, whose own names are the nearest."""
    assert not hasattr(log, name)
    with pytest.raises(AttributeError) as caught:
        getattr(log, name)
    assert str(caught.value).startswith(f"'Recorder' object has no attribute '{name}'\n  fix: ")
    assert edit in str(caught.value)


@pytest.mark.parametrize("name", ["values", "metrics", "history", "summary", "['reward']"])
def test_values_are_asked_of_the_recorder(name: str, tmp_path: Path) -> None:
    """Class: values are read from the recorder, by attribute or by item. The fix is code that gives the last value."""
    with declog.start({**PROFILE, "sinks": ["jsonl"]}, output_dir=tmp_path) as log, log.step(0):
        log.observe(loss=0.5)
    asked = f"log{name.replace('reward', 'loss')}" if "[" in name else f"log.{name}"
    with pytest.raises((AttributeError, TypeError), match=r"^'Recorder' object (has no|is not sub)") as caught:
        eval(asked, {"log": log})
    edit = re.search(r"declog\.read\(log\)\S+\]", str(caught.value))
    assert edit is not None
    assert eval(edit[0].replace("reward", "loss"), {"declog": declog, "log": log}) == 0.5
    assert ("reward" in edit[0]) is ("[" not in name)
    for walk in ("iter(log)", "'loss' in log", "dict(log)"):  # Python asks for no items 0, 1, ...
        with pytest.raises(TypeError, match=r"'Recorder' object is not (iterable|a container)$"):
            eval(walk, {"log": log})


@pytest.mark.parametrize("logger", ["log", "declog"])
def test_in_a_step_no_other_one_is_opened(log: Any, logger: str) -> None:
    """Of the recorder and of the module: the block that is there already is no part of the edit."""
    with log.step(0), pytest.raises(AttributeError) as caught:
        {"log": log, "declog": declog}[logger].log  # noqa: B018
    assert "fix: `log.observe(reward=rewards)`, one value per completion" in str(caught.value)
    assert str(caught.value).endswith(f"{logger}.scalars({{...}}, step)")
    with log, pytest.raises(AttributeError, match=r"fix: `with log\.step\(step\): log\.observe"):
        log.log  # noqa: B018


@pytest.mark.parametrize(
    ("name", "edit"),
    [
        ("history", 'run["reward"].values'), ("to_pandas", "run.wide().pandas()"), ("table", 'run.tables["samples"]'),
        ("summary", 'run["reward"].values[-1]'), ("alert", "run.alerts"), ("scalar", 'run["reward"]'),
        ("promts", "did you mean `run.prompts`?"),
    ],
)  # fmt: skip
def test_a_run_that_was_read_is_one_of_another_logger(log: Any, name: str, edit: str) -> None:
    """The same of a run on disk."""
    log.close()
    with pytest.raises(AttributeError) as caught:
        getattr(declog.read(log.output_dir), name)
    assert str(caught.value).startswith(f"'Run' object has no attribute '{name}'\n  fix: ")
    assert edit in str(caught.value)


@pytest.mark.parametrize("name", ["tail", "mean", "iloc", "rolling", "plot", "to_list", "of_no_library"])
def test_a_series_is_one_of_pandas(name: str, tmp_path: Path) -> None:
    """Whatever is asked of the values of a run: they are an array, and a series of pandas on request."""
    with declog.start({**PROFILE, "sinks": ["jsonl"]}, output_dir=tmp_path) as log:
        for step in range(2):
            with log.step(step):
                log.observe(loss=step)
    loss = declog.read(log)["loss"]
    with pytest.raises(AttributeError) as caught:
        getattr(loss, name)
    edit = "run['loss'].values[-10:].mean()"
    assert f"as in {edit}; run['loss'].pandas() is a pandas.Series" in str(caught.value)
    assert eval(edit, {"run": declog.read(log)}) == 0.5
    assert not hasattr(loss, "__float__")


CALLS: dict[str, tuple[Callable[[Any], object], str]] = {
    "a mapping": (lambda log: log.log_metric({"kl": 1}), 'scalars({"kl": 0.1, "lr": 1e-6})'),
    "a step": (lambda log: log.log_metric("kl", 1, step=3), 'log_metric("kl", 0.1)'),
    "by keyword": (lambda log: log.log_metric(kl=1), 'log_metric("kl", 0.1)'),
    "a module's": (lambda log: declog.log_metric({"kl": 1}), 'scalars({"kl": 0.1, "lr": 1e-6})'),  # type: ignore
    "no name": (lambda log: log.log_extra([1, 2]), 'log_extra("source", values)'),
    "no name of a time": (lambda log: log.timer(), 'with log.timer("generate"):'),
    "a mode": (lambda log: log.at(0, mode="eval"), 'with log.mode("eval", step=k):'),
    "a step without a mode": (lambda log: log.mode(step=3), 'with log.mode("eval", step=k):'),
    "numbers by keyword": (lambda log: log.scalars(kl=1), 'scalars({"kl": 0.1}, step)'),
    "a handle's": (lambda log: log.at(3).log_metric(kl=1), 'log_metric("kl", 0.1)'),
}


@pytest.mark.parametrize("case", CALLS)
def test_calls_of_another_logger(log: Any, case: str) -> None:
    """What has other arguments elsewhere: Python's own words, and how it is called here."""
    call, edit = CALLS[case]
    with pytest.raises(TypeError, match=r"argument.*\n  fix: ") as caught:
        call(log)
    assert edit in str(caught.value)


def test_an_error_inside_a_call_is_its_own(log: Any) -> None:
    """A ``TypeError`` of what a call does says nothing of how it is called."""

    class Wrong:
        def __index__(self) -> int:
            raise TypeError("mine")

        def __repr__(self) -> str:
            raise TypeError("mine, too")

    with pytest.raises(TypeError, match=r"^mine, too$"):
        log.step(Wrong())


@pytest.mark.parametrize("decorator", [declog.function, declog.reducer, declog.column])
def test_a_decorator_that_is_given_no_function(decorator: Any) -> None:
    """A name in its place, a value, or a function without a name."""
    for given, name in (("mine", "mine"), (3, "my_name"), (functools.partial(max, 1), "my_name")):
        with pytest.raises(declog.UsageError, match=r"^\[DL303\] .* takes a function with a name") as caught:
            decorator(given)
        assert f'@declog.{decorator.__name__}(name="{name}")' in str(caught.value)


def test_a_function_that_was_made_by_exec(tmp_path: Path) -> None:
    """It has no module, and is registered as one of the program's: later runs start as ever."""
    space: dict[str, Any] = {"__name__": None}
    exec("def of_no_module(x): return float(x.max())", space)
    declog.reducer(space["of_no_module"])
    try:
        config = {"signals": {"any": {"reward": "completion"}}, "metrics": {"best": "of_no_module(reward)"}}
        sink = MemorySink()
        with declog.start(config, sinks=[sink], output_dir=tmp_path / "run") as log, log.step(0):
            log.observe(reward=[1.0, 3.0])
        assert sink.scalars[0]["best"] == 3.0
    finally:
        DEFAULT.discard("of_no_module")


def test_a_config_of_an_application() -> None:
    """All of it in place of a config, as data: one error, not one for each key."""
    config: dict[str, Any]
    for config in ({"lr": 1e-6, "steps": 100}, {"model": {"name": "x"}, "trainer": {"epochs": 1}, "seed": 1}):
        with pytest.raises(declog.ConfigError, match=r"no key here is one of a logging config: `") as caught:
            declog.plan(config)
        assert len(caught.value.problems) == 1
        assert 'declog.start("grpo", run_config=config)' in str(caught.value)
    for config in ({"metric": {"reward": "mean"}, "signal": {}}, {"reward": "mean", "lr": "max"}):
        with pytest.raises(declog.ConfigError) as caught:
            declog.plan(config)
        assert "no key here" not in str(caught.value)


@pytest.mark.parametrize("word", ["preset", "extends", "base"])
def test_a_mapping_that_would_extend_a_preset(word: str) -> None:
    """By another word than a file has: the answer is that of a file, and its line is one of the mapping."""
    rest = {"every": 3, "metrics": {"best": "max(reward)"}}
    with pytest.raises(declog.ConfigError) as caught:
        declog.start({word: "grpo", **rest})
    (problem,) = caught.value.problems
    plan = declog.plan({**yaml.safe_load(str(problem.fix)), **rest})
    assert (plan.every, "best" in plan.user_metrics, plan.name) == (3, True, "grpo")


def test_names_of_python_are_asked_as_ever(log: Any) -> None:
    """What copying, pickling and inspection look for is not there, without advice."""
    log.close()
    owners: list[Any] = [declog, log, declog.config, declog.read(log.output_dir)]
    for owner in owners:
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
        ({"profile": "slim"}, 'declog.start("grpo", ["profile=slim"])'),
        ({"every": 10}, 'declog.start("grpo", ["every=10"])'),
        (
            {"every": 10, "group_size": 4, "sinks": ["console"]},
            'declog.start("grpo", ["every=10", "axes.group.size=4", "sinks=[console]"])',
        ),
        ({"num_generations": 8, "log_dir": "a b"}, 'declog.start("grpo", ["axes.group.size=8"], output_dir=\'a b\')'),
        ({"params": {"lr": 0.1}}, '["run.config={lr: 0.1}"]'),
        ({"every": 10, "world_sze": 2}, "did you mean `world_size`?"),
        ({"log_dir": "runs"}, "declog.start(\"grpo\", output_dir='runs')"),
        (
            {"name": "a", "project": "mine"},
            '["run.name=a", "run.project=mine"]',
        ),
        ({"project": "mine"}, '["run.project=mine"]'),
        ({"entity": "us"}, '["sinks=[console,wandb]", "sink_options.wandb.entity=us"]'),
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


@pytest.mark.parametrize("overrides", [["profile=slim"], "profile=slim"])
def test_overrides_that_were_passed_stay(overrides: Any, tmp_path: Path) -> None:
    """The answer is the call with all of them, which works; a file is named as it was, and a mapping takes none."""
    functions: list[Any] = [declog.start, declog.callback, declog.attach]
    start, callback, attach = functions
    with pytest.raises(TypeError) as caught:
        start("minimal", overrides, every=10, sinks=["jsonl"], tags=["a b"], output_dir=tmp_path)
    config, texts = ast.literal_eval(str(caught.value).partition(": declog.start")[2].partition("\n")[0])
    assert (config, texts) == ("minimal", ["profile=slim", "every=10", "sinks=[jsonl]"])
    assert declog.plan(config, texts).every == 10
    for config, edit in ((Path("conf/mine.yaml"), '("conf/mine.yaml", ["every=10"])'), (PROFILE, "put every=10 into")):
        with pytest.raises(TypeError, match=re.escape(edit)):
            callback(config, every=10)
    with pytest.raises(TypeError, match=re.escape('declog.attach(trainer, overrides=["every=10"])')):
        attach(object(), every=10)
    with pytest.raises(SinkError, match=re.escape('declog.attach(trainer, "trl_grpo", ["sinks=[console]"])')):
        attach(object(), "trl_grpo", sinks=["console"])


@pytest.mark.parametrize(
    ("sinks", "edit"),
    [
        (["wandb"], 'declog.start("grpo", ["sinks=[wandb]"])'),
        (["console", "wandb"], 'declog.start("grpo", ["sinks=[console,wandb]"])'),
        ("wandb", 'declog.start("grpo", ["sinks=[wandb]"])'),
        ([MemorySink], "MemorySink()"),
        (MemorySink(), "sinks=[...]"),
        ([object()], "open(run), write(step, records), close() and `accepts"),
        ([{"wandb": {}}], "open(run), write(step, records), close() and `accepts"),
        (["console", MemorySink()], 'declog.start("grpo", ["sinks=[console]"], sinks=[MemorySink()])'),
    ],
)
def test_sinks_that_are_no_objects(sinks: Any, edit: str, tmp_path: Path) -> None:
    """By name, as a class, or without a list: refused before anything opens, with what works."""
    with pytest.raises(SinkError, match=r"^\[DL601\] `sinks` (takes objects, and|has (object|dict),) ") as caught:
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
