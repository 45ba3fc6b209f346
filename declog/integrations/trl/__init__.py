"""Attaches declog to TRL's trainers by one call; a config decides what is logged.

declog reads signals from the arguments and results of TRL's own methods. ``support`` finds the methods that a trainer
has, and reads constants from it. ``capture`` reads the signals, ``report`` merges values into TRL's logs, and ``steps``
follows optimizer steps and checkpoints. Hooks are attributes of the attached trainer; TRL's modules and classes stay
unchanged.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Never

import declog
from declog.errors import CommError, ConfigError, UsageError, in_flow
from declog.errors.habits import instead_of_a_trainer, refuse_arguments, shown_at_the_call
from declog.integrations import open_step
from declog.integrations.hook import Hooks
from declog.integrations.trl.capture import CAPTURE_SIGNALS, Capture, distinct
from declog.integrations.trl.ppo import LOOP_SIGNALS, Loop
from declog.integrations.trl.report import MERGE, Report
from declog.integrations.trl.samples import SAMPLE_SIGNALS, Samples
from declog.integrations.trl.steps import EVAL, Steps, in_training
from declog.integrations.trl.support import CLASSES, SEEN, Support, constants_of, support_of
from declog.sinks import Sink

__all__ = ["attach", "detach"]

log = logging.getLogger("declog")


@shown_at_the_call
def attach(
    trainer: Any,
    config: Any = None,
    overrides: Sequence[str] = (),
    *unnamed: Never,
    merge: str | None = "replace",
    prefix: str = "declog/",
    deliver_s: float = 30.0,
    sinks: Sequence[Sink] = (),
    output_dir: str | Path | None = None,
    wait_s: float = 30.0,
    start_s: float = 20.0,
    **unknown: Never,
) -> declog.Recorder:
    """Log a trainer of TRL or transformers as a config says; call it on every rank, before ``trainer.train()``.

    ``config`` and ``overrides`` are those of ``declog.start``. The default is the preset with the trainer's own names:
    ``trl_grpo``, ``trl_rloo``, ``trl_async_grpo`` or ``trl_ppo``, and ``trainer`` for any other trainer. Constants of
    the config are filled from the trainer's arguments. Log events are the trainer's, each ``logging_steps`` and at each
    evaluation.

    ``merge`` decides whether declog's values go into the ``logs`` that the trainer reports to its trackers, callbacks
    and ``metric_for_best_model``, on every rank: ``replace`` adds them under their own names, and replaces TRL's values
    of these names; ``prefix`` adds them with ``prefix`` before their names; ``None`` leaves ``logs`` alone. A rank
    waits at most ``deliver_s`` for the values; after that TRL's own values stay. ``sinks``, ``wait_s`` and ``start_s``
    are those of ``declog.start``. Files go to ``output_dir`` (by default ``declog`` below the trainer's), or to the
    next number inside it if an earlier run has used it. A run that is resumed from a checkpoint continues in the folder
    of its first part.

    A trainer whose methods are not TRL's trains all the same: its reported numbers pass through to declog's sinks, and
    one warning names the metrics that cannot be computed. If a subclass, or a TRL before 1.9 or after 1.16, has another
    number than declog, the trainer's number stays in ``logs``.

    Raises ``ConfigError`` for a wrong config, such as a constant pinned to another number than the trainer's;
    ``UsageError`` for a preset of the other method; ``CommError`` if another rank does not attach within ``start_s``.

    Returns the recorder. Close it, or use it as a context manager, if the same program reads its files. A trainer that
    has trained, or whose recorder is closed, can be attached again; ``detach`` closes the recorder and removes the
    hooks.
    """
    behind = None if isinstance(trainer, str) else config  # a config in the trainer's place is reported below
    refuse_arguments(attach, behind, overrides, sinks, unnamed, unknown, declog.LogSpec.model_fields)
    if merge is not None and merge not in MERGE:
        raise UsageError.of("DL510.merge_way", name=merge, known=MERGE)
    if (needed := next((name for name in NEEDED if not hasattr(trainer, name)), None)) is not None:
        type_, fix = instead_of_a_trainer(trainer, config)
        raise UsageError.of("DL510.trainer", type=type_, needed=needed, fix=fix)
    before = vars(trainer).get(MARK)
    if isinstance(before, Hooks):
        if not (before.recorder.closed or before.recorder.idle_in):
            raise UsageError.of("DL510.attached")
        detach(trainer)
    support = support_of(trainer)
    if config is None:
        config = "trainer" if support.method is None else f"trl_{support.method}"
    config = declog.compose(config, overrides)
    _refuse_other_method(trainer, support, config, overrides)
    constants = constants_of(trainer, support)
    plan = _planned(trainer, support, config, constants)
    open_step.open_trackers(trainer, plan)
    options: dict[str, Any] = {"sinks": sinks, "output_dir": output_dir, "wait_s": wait_s, "start_s": start_s}
    merging: dict[str, Any] = {"merge": merge, "prefix": prefix, "deliver_s": deliver_s}
    tokenizer = vars(trainer).get("processing_class")
    try:
        recorder = open_step.start(config, plan, trainer.args, constants=constants, tokenizer=tokenizer, **options)
    except CommError as error:
        if error.code != "DL603":
            raise
        raise CommError.of("DL603.attach", cause=error.message) from error
    if trainer.args.process_index == 0:
        _report(trainer, support, config, constants, plan)
        _note_other_preset(trainer, support, config, overrides, constants, plan)
        _note_evaluations(trainer, support, plan)
    hooks = Hooks(trainer, lambda: recorder)
    capture = Capture(trainer, hooks, support)
    if support.rollouts:
        recorder.attached(capture.reward_logs.caller, CAPTURE_SIGNALS, capture.rollout)
    else:
        signals = SAMPLE_SIGNALS if support.samples else LOOP_SIGNALS if support.loop else ()
        recorder.attached(lambda: "training code", signals)
    if support.samples:
        Samples(trainer, hooks, capture)
    late = _inside_a_window(trainer, support)
    if late and trainer.args.process_index == 0:
        log.warning(
            "declog was attached inside a log window: until %s logs next its own numbers pass through, and those of "
            "declog begin then", type(trainer).__name__,
        )  # fmt: skip
    again = partial(attach, trainer, config, **merging, **options)
    steps = Steps(trainer, hooks, capture, again, every=declog.config_of(config).get("every"), late=late)
    if support.loop:
        Loop(trainer, hooks, capture, steps)
    compared = () if support.tested else _presets(support, constants, recorder.plan)
    Report(trainer, hooks, capture, steps, support, compared, **merging)
    setattr(trainer, MARK, hooks)
    return recorder


def detach(trainer: Any) -> None:
    """Close the recorder of ``attach``, and remove its hooks and callbacks from the trainer; idempotent.

    A hook that other code has wrapped since stays, and passes calls through.
    """
    hooks = vars(trainer).get(MARK)
    if isinstance(hooks, Hooks):
        try:
            hooks.recorder.close()
        finally:
            hooks.remove()
            delattr(trainer, MARK)


def _planned(trainer: Any, support: Support, config: Any, constants: dict[str, Any]) -> declog.Plan:
    """The plan of a config; fixes of its problems name the trainer's reward functions."""
    try:
        return declog.plan(config, constants=constants)
    except ConfigError:
        composed = config.origin is not None and not config.origin.running
        if support.rollouts and composed and config.home(("signals", "rollout", "rewards")) is not None:
            line = f"declog.signals.rollout.rewards.family={json.dumps(distinct(trainer.reward_func_names))}"
            declog.plan(declog.compose(config, [line]), constants=constants)
        raise


def _presets(support: Support, constants: dict[str, Any], plan: declog.Plan) -> list[str]:
    """The metric names in a config whose definition equals that in the preset with the trainer's own names."""
    if not (support.rollouts or support.updates or support.loop):
        return []
    preset = declog.plan(f"trl_{support.method}", constants=constants)
    ours, theirs = plan.canonical, preset.canonical
    changed = {
        key.split(".")[1]
        for key in ours.keys() | theirs.keys()
        if key[:8] == "metrics." and ours.get(key) != theirs.get(key)
    }
    return [name.template for op in plan.outputs if op.shown and op.id not in changed for name in op.names]


def _refuse_other_method(trainer: Any, support: Support, config: Any, overrides: Sequence[str]) -> None:
    """Raise ``UsageError`` for a preset of another method's trainer: nearly all of its metrics would be wrong."""
    of = _trainer_of(config)
    if support.method is not None and of in TRAINERS.values() and of != TRAINERS[support.method]:
        name = declog.config_of(config)["run"].get("project")
        other = next(method for method, trainer_class in TRAINERS.items() if trainer_class == of)
        preset = f"trl_{support.method}"
        fix = _attached(config, f"trl_{other}", preset, overrides) or f"defaults: [{preset}, _self_] in your config"
        raise UsageError.of(
            "DL510.other_method", name=name, of=of, type=type(trainer).__name__, method=support.method, fix=fix
        )


def _attached(config: Any, name: str, preset: str, overrides: Sequence[str]) -> str | None:
    """The call with another preset, if a config is the preset ``name`` itself; None if it is built on a preset."""
    origin = config.origin
    if origin is None or origin.config_dir is not None or origin.config_name != name:
        return None
    return f'declog.attach(trainer, "{preset}"' + f", {json.dumps([*overrides])}" * bool(overrides) + ")"


def _trainer_of(config: Any) -> str | None:
    """The trainer whose metrics a config has, by `run.config.trainer` of its preset; None if the config has none."""
    run = declog.config_of(config).get("run") or {}
    return (run.get("config") or {}).get("trainer")


def _inside_a_window(trainer: Any, support: Support) -> bool:
    """Whether the trainer is training, and has trained since its last log, or since training began."""
    if not in_training(trainer):
        return False
    return bool(trainer._metrics["train"] if support.rollouts or support.updates else trainer.state.global_step)


TRAINERS = {method: f"trl.{name}" for (_, name), method in CLASSES.items()}  # `run.config.trainer` of the presets
NEEDED = ("add_callback", "callback_handler", "state", "args", "log", "evaluate", "train")  # of a trainer
MARK = "_declog"  # the attribute of an attached trainer that holds its hooks
MOST = 4  # the most metrics that a note lists


def _report(trainer: Any, support: Support, config: Any, constants: dict[str, Any], plan: declog.Plan) -> None:
    """Warn about the metrics that cannot be computed, because declog does not see all parts of the trainer."""
    if not support.missing:
        return
    complete = declog.plan(config, constants={**constants, **dict.fromkeys(SEEN, True)})
    inactive = ", ".join(f"`{name}`" for name in complete.names() if name not in plan.names())
    if not inactive:
        return
    log.warning(
        "declog does not see all of %s (%s): what it reports passes through, and these are inactive: %s",
        type(trainer).__name__,
        "; ".join(support.missing),
        inactive,
    )


def _note_evaluations(trainer: Any, support: Support, plan: declog.Plan) -> None:
    """Warn of several data sets of evaluations that share a mode: TRL's names of their numbers do not have the set."""
    sets = vars(trainer).get("eval_dataset")
    if not (support.rollouts and isinstance(sets, dict) and EVAL in plan.modes):
        return
    keys = [re.sub(r"\W+", "_", str(name).lower()) for name in sets]
    between = plan.modes[EVAL].prefix[-1:] or "/"
    modes = {f"{EVAL}_{key}": {"prefix": f"{EVAL}_{key}{between}"} for key in keys}
    absent = {name: entry for name, entry in modes.items() if name not in plan.modes}
    if len(absent) > 1:
        renamed = "" if keys == [*sets] else f", and {', '.join(keys)} as the keys of `eval_dataset`"
        log.warning(
            "the data sets of evaluations share the mode `%s`: where the run is read, the last one hides those before"
            "\n  fix: modes: %s%s", EVAL, in_flow(absent), renamed,
        )  # fmt: skip


def _note_other_preset(
    trainer: Any, support: Support, config: Any, overrides: Sequence[str], constants: dict[str, Any], plan: declog.Plan
) -> None:
    """Warn about metrics and tables of the trainer's preset that are absent from a config built on another preset."""
    if support.missing or support.method is None or _trainer_of(config) == TRAINERS[support.method]:
        return
    preset = declog.plan(f"trl_{support.method}", constants=constants)
    absent = [f"`{name}`" for name in preset.names() if name not in plan.names() and "{" not in name]
    names = {table.name for table in plan.tables}
    tables = [f"the table `{table.name}`" for table in preset.tables if table.name not in names]
    if absent or tables:
        more = [f"{len(absent) - MOST} more"] if len(absent) > MOST + 1 else absent[MOST:]
        shown = ", ".join([*absent[:MOST], *more, *tables])
        configured, preset_sinks = ([sink.id for sink in one.sinks] for one in (plan, preset))
        lost = configured != preset_sinks and config.home(("sinks",)) is not None  # sinks of the other preset
        sinks = f", whose sinks are {in_flow(preset_sinks)}: add `sinks: {in_flow(configured)}`;" if lost else ","
        lines = [f"sinks=[{','.join(configured)}]"] * lost + [*overrides]
        fix = _attached(config, plan.name, preset.name, lines)
        fix = fix or f"defaults: [{preset.name}, _self_]{sinks} or declog.attach(trainer)"
        log.warning(
            "not all that %s logs is in `%s`, which is not built on `%s`: %s\n  fix: %s",
            type(trainer).__name__, plan.name, preset.name, shown, fix,
        )  # fmt: skip
