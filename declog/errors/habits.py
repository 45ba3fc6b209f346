"""Names of other loggers for declog's functions: an attribute that is not there is answered with the one to use.

wandb's, trackio's, TensorBoard's, mlflow's, Lightning's and the standard library's words. Standard library and errors.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ParamSpec, TypeVar

from declog.errors import nearest

P = ParamSpec("P")
R = TypeVar("R")

_TEE = "a loop that logs by wandb keeps its calls: from declog.integrations import wandb"
_START = f'a run begins with `with declog.start("grpo") as log:`, and ends with that block; {_TEE}'
_ENDS = "a run ends with its block, `with declog.start(...) as log:`, or by log.close()"
_NUMBERS = "numbers by name are LOG.scalars({...}, step); what metrics are computed from is LOG.observe(reward=...)"
CONFIG = 'what a run was started with is `run.config` of the YAML: declog.start(config, ["run.config.lr=1e-6"])'
_SETTINGS = "how the trainer is configured is declog.start(config, run_config={...}), and later LOG.config({...})"
_TABLES = "rows of samples are a table of the YAML: tables: {worst: {columns: [prompt, reward], filter: {random: 8}}}"
_ALERTS = 'a condition worth a message is an alert of the YAML: alerts: {kl: "> 0.5"}'
_SHAPES = "observe the values; the YAML says what is logged of them: reward: {expr: reward, reduce: histogram}"
_IMAGES = "a column of a table shows images: observe them as PIL images in a signal of `type: object`"
_FOLDER = "the run's folder is log.output_dir"
_LATE = "a metric that is asked late is `declog add FOLDER 'NAME: EXPR'` in a shell"
_FILES = "declog keeps no files of yours; what it logs lies in `log.output_dir`"
_SUMMARY = "a value over the whole run is a metric of the YAML with `over: run`"
_STEPS = "a step is `with log.step(k):`"
_RUN = "the open run is declog.current()"


def _table(*lines: tuple[str, str]) -> Mapping[str, str]:
    """The answer of each name; a line has the names of one answer."""
    return {name: meaning for names, meaning in lines for name in names.split()}


MEANT = _table(
    ("init setup initialize start_run login new_run create_run begin Run Logger get_logger getLogger", _START),
    ("finish end end_run stop shutdown teardown finalize", _ENDS),
    ("log log_metrics log_dict log_scalar log_scalars log_value log_data add_scalar add_scalars scalar record "
     "record_metrics track write report metrics", _NUMBERS),
    ("log_metric", "one number is LOG.log_metric(name, value)"),
    ("log_params log_param log_hyperparams add_hparams hparams params log_config", _SETTINGS),
    ("Table log_table table add_text log_text log_samples log_completions", _TABLES),
    ("alert alerts warn notify", _ALERTS),
    ("Histogram log_histogram add_histogram histogram", _SHAPES),
    ("Image Video Audio log_image log_images add_image add_images add_video add_figure log_figure plot", _IMAGES),
    ("save Artifact log_artifact log_artifacts log_model use_artifact restore", _FILES),
    ("path folder dir directory run_dir log_dir logdir save_dir out_dir", _FOLDER),
    ("add ask query", _LATE),
    ("summary define_metric", _SUMMARY),
    ("run get_run active_run recorder", _RUN),
    ("begin_step start_step end_step next_step set_step log_step new_step global_step", _STEPS),
    ("evaluation evaluate eval validate validation", 'with LOG.mode("eval"): LOG.observe(...)'),
    ("watch unwatch", "norms of gradients are numbers that the loop observes: LOG.observe(grad_norm=...)"),
    ("SummaryWriter add_graph add_pr_curve add_embedding", "a writer is wrapped: writer = declog.tee(writer)"),
    ("sink sinks add_sink", 'sinks are the YAML\'s: declog.start(config, ["sinks=[console,wandb]"])'),
    ("info debug warning error print", "texts go to Python's own `logging`"),
    ("metric", "metrics are the YAML's; a `@declog.function` computes each value, and a `@declog.reducer` a column"),
)  # fmt: skip
_SCALARS = 'values are RUN["reward"].values, or of all names RUN.wide().pandas(); names are RUN.names()'
OF_A_RUN = _table(
    ("history scan_history metrics metric values data df dataframe log logs get scalar steps step series curve "
     "columns", _SCALARS),
    ("to_pandas pandas to_df to_dataframe to_polars polars arrow to_arrow rows to_dict", _SCALARS),
    ("table samples completions", 'a table is RUN.tables["samples"].pandas(); their names are list(RUN.tables)'),
    ("summary last final", 'the last value is RUN["reward"].values[-1]'),
    ("histogram", "histograms are RUN.histograms"),
    ("alert", "alerts are RUN.alerts"),
    ("hparams args params settings", "how the trainer was configured is RUN.run_config"),
    ("run_id", "its id is RUN.id"),
    ("output_dir folder dir directory", "its folder is RUN.path"),
    ("status finished", "how it ended is RUN.state"),
)  # fmt: skip
_ROWS = "it stands for the logger: LOG.log({'reward': 0.5}, step) as before, and beside it declog.observe(reward=...)"
OF_A_STAND_IN = _table(
    ("step at batch commit observe scalars scope mode micro_batch", _ROWS),
    ("state_dict load_state_dict flush written rewind output_dir", "the recorder has it: LOG.recorder"),
)  # fmt: skip


def meant(name: str, names: Collection[str], of: str, meanings: Mapping[str, str] = MEANT) -> str:
    """The fix behind Python's own words for an attribute ``name`` that ``of`` does not have, or empty."""
    if (meaning := meanings.get(name)) is not None:
        return f"\n  fix: {meaning.replace('LOG', of).replace('RUN', of)}"
    close = None if name.startswith("_") else nearest(name, names)
    return "" if close is None else f"\n  fix: did you mean `{of}.{close}`?"


# Calls that are written otherwise elsewhere: of other arguments than they have.
_CALLS = _table(
    ("log_metric", 'a number of the open step is log_metric("kl", 0.1), several are scalars({"kl": 0.1, "lr": 1e-6})'),
    ("log_extra", 'a column of the open step is log_extra("source", values), one value per completion'),
    ("timer", 'a time has a name: `with log.timer("generate"):`'),
    ("at", 'a step has a number only: `with log.at(k):`; a mode is `with log.mode("eval", step=k):`'),
    ("mode", 'a mode has a name and a step: `with log.mode("eval", step=k):`'),
    ("scalars", 'numbers by name are scalars({"kl": 0.1}, step)'),
)  # fmt: skip


def answered(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with a fix behind Python's own words where it is called with other arguments than it has."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # it was called
            raise TypeError(f"{error}\n  fix: {_CALLS[function.__name__]}") from None

    return call


# Arguments of `wandb.init`, of trainers and of writers, for those of `declog.start`.
_OPTIONS = _table(
    ("log_dir logdir logging_dir dir save_dir out_dir outdir output_path path folder root run_dir",
     "output_dir={repr}"),
    ("project entity group notes job_type experiment experiment_name tracking_uri",
     "sinks=[console,wandb] sink_options.wandb.project={value}"),
    ("name run_name run_id", "run.name={value}"),
    ("backend backends report_to tracker trackers logger loggers log_with sink", "sinks=[{value}]"),
    ("log_every log_interval logging_steps log_freq frequency interval", "every={value}"),
    ("preset yaml config_path config_name config_file spec", ""),
    ("params hparams hyperparameters args run_args", '["run.config.lr=1e-6"], a key for each'),
    ("append strict blocking window_bytes backlog_bytes", "run.{name}={value}"),
)  # fmt: skip


def no_more_arguments(
    of: str,
    function: Callable[..., object],
    unnamed: Sequence[object],
    unknown: Mapping[str, Any],
    keys: Collection[str],
) -> None:
    """Raise ``TypeError``, in Python's own words, for arguments that a function does not have.

    ``unnamed`` came behind its positional ones. ``keys`` are those of the language: they are overrides.
    """
    kinds = {name: parameter.kind for name, parameter in inspect.signature(function).parameters.items()}
    first = [name for name, kind in kinds.items() if kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    named = [name for name, kind in kinds.items() if kind is inspect.Parameter.KEYWORD_ONLY]
    if unnamed:
        value = unnamed[0]
        call = f"{of}({', '.join(first)}, "
        said = f"{call}{named[0]}=...): the arguments behind have names: {', '.join(named)}"
        said = f"{call}output_dir={os.fspath(value)!r})" if isinstance(value, str | os.PathLike) else said
        raise TypeError(f"{of}() takes {len(first)} arguments without a name, and {value!r} came, too\n  fix: {said}")
    overrides = [text for name, value in unknown.items() for text in _as_overrides(name, value, keys)]
    for name, value in unknown.items():
        if _as_overrides(name, value, keys):
            said = f"{of}(config, {json.dumps(list(dict.fromkeys(overrides)))}): keys of the YAML are overrides"
        elif name in _OPTIONS:
            said = f"{of}(config, {_OPTIONS[name]})" if _OPTIONS[name] else f"{of}({value!r})"
            said = said.replace("{repr}", repr(value))
        elif (close := nearest(name, [*first, *named])) is not None:
            said = f"did you mean `{close}`?"
        else:
            said = f'arguments: {", ".join([*first, *named])}; keys of the YAML are overrides: ["every=10"]'
        raise TypeError(f"{of}() got an unexpected keyword argument {name!r}\n  fix: {said}")


def _as_overrides(name: str, value: object, keys: Collection[str]) -> list[str]:
    """The overrides that say what an argument should; none where it is said otherwise."""
    if name in keys and isinstance(value, Mapping):
        below = {f"{name}.{key}": inner for key, inner in value.items()}
        return [text for key, inner in below.items() for text in _as_overrides(key, inner, below)]
    template = "{name}={value}" if name in keys else _OPTIONS.get(name, "")
    if "{value}" not in template:
        return []
    shown = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return template.replace("{name}", name).replace("{value}", shown).split()
