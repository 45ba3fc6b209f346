"""Makes a plan from a config, and starts a recorder with the plan.

The only module that imports both the configuration side and the runtime side. ``plan`` loads no torch: the runtime is
imported when a run starts.
"""

from __future__ import annotations

import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Never
from weakref import ref

from declog.compiler import captures, compile
from declog.config.compose import application_directory, compose, imports_of, working_directory
from declog.config.composed import Composed
from declog.config.interpolation import beside
from declog.config.lint import below_keys, beside_the_node, lint, overruled
from declog.config.presets import declared, fitting
from declog.config.problems.alerts_of_presets import without_presets
from declog.config.problems.fix_trials import about, with_right_declarations, with_tried_fixes, without
from declog.config.search_path import GROUP
from declog.config.source_map import FileLocation, shown_path
from declog.config.upgrades import deprecated, explained, renamed
from declog.errors import ConfigError, InputError, MissingSignalError, Problem, SinkError
from declog.errors.habits import refuse_arguments, shown_at_the_call
from declog.language.functions import DEFAULT as FUNCTIONS
from declog.language.functions import Functions
from declog.language.keys import entries, entry_path
from declog.language.reductions import DEFAULT as REDUCTIONS
from declog.language.reductions import Reductions
from declog.language.row_functions import DEFAULT as COLUMNS
from declog.language.row_functions import RowFunctions
from declog.language.secrets import without_secrets
from declog.language.spec import LogSpec
from declog.language.tree import has
from declog.language.validation import named_nulls, validate
from declog.notes import notes
from declog.plans.ops import Plan
from declog.registry import module_of

if TYPE_CHECKING:
    from declog.runtime.ranks.comm import Comm
    from declog.runtime.recording.recorder import Recorder
    from declog.sinks import Sink


@shown_at_the_call
def plan(
    config: Any,
    overrides: Sequence[str] = (),
    *,
    constants: Mapping[str, Any] | None = None,
    profiles: Sequence[str] = (),
    functions: Functions = FUNCTIONS,
    reductions: Reductions = REDUCTIONS,
    columns: RowFunctions = COLUMNS,
) -> Plan:
    """Compile a config to its plan; takes the config and overrides that ``declog.compose`` takes.

    The modules in ``[tool.declog] imports`` of the project in the working directory are imported first. No module that
    the config names is imported. Raises ``ConfigError`` with all problems of the config, each with its place.
    """
    composed = compose(config, overrides)
    folder = working_directory()
    imports = imports_of(composed)
    data = composed.resolved()
    registered = [(registry, *registry) for registry in (functions, reductions, columns)]
    inputs = _content(composed), registered, repr((constants, tuple(profiles), sorted(imports), folder, sys.path))
    for config_of, inputs_of, earlier in tuple(_plans):
        if inputs_of == inputs and (inputs[0] is not None or config_of() is composed):
            return earlier

    def compiled(spec: LogSpec) -> Plan:
        return compile(
            spec, constants=constants, profiles=[spec.profile, *profiles] if profiles else (),
            functions=functions, reductions=reductions, columns=columns,
            config=composed.shown, imports=imports,
        )  # fmt: skip

    old = list(renamed(composed))
    renamed_entries = {entry_path(problem.path) for problem in old}

    def of_new_names(problems: Iterable[Problem]) -> list[Problem]:
        return [problem for problem in problems if entry_path(problem.path) not in renamed_entries]

    suspects = [*old, *of_new_names(lint(composed, named_nulls(data)))]
    if below := [*below_keys(composed)]:
        raise composed.located(ConfigError(below))
    try:
        plan = compiled(composed.spec)
    except ConfigError as error:
        if old:  # other problems of an entry with an old name are left out: the name causes them
            raise composed.located(ConfigError([*suspects, *of_new_names(error.problems)])) from None
        paths = {problem.path for problem in error.problems}
        of_layers = [without_presets(problem, composed) for problem in error.problems]
        problems = [*of_layers, *_further(data, error.problems, compiled)]
        problems += [
            item for item in suspects if all(item.path[:end] not in paths for end in range(1, len(item.path) + 1))
        ]
        check = partial(_problems, compiled)
        problems = with_tried_fixes(problems, data, check)
        fits = fitting(data, check)
        problems = [declared(problem, composed, fits) for problem in problems]
        raise composed.located(ConfigError(explained(composed, problems))) from None
    if suspects:
        raise composed.located(ConfigError(explained(composed, suspects)))
    names = data.get("metrics") or {} if composed.layers else {}
    plan = replace(
        plan, warnings=(*plan.warnings, *overruled(composed), *beside_the_node(composed), *deprecated(composed)),
        user_metrics=frozenset(name for name in names if composed.home(("metrics", name)) is None),
        user_columns=frozenset(_user_columns(composed) if composed.layers else ()),
    )  # fmt: skip
    _plans.append((ref(composed), inputs, plan))
    return plan


# a cache: adapters plan a config before they start it, and several ranks of one process start the same config
_plans: deque[tuple[ref[Composed], object, Plan]] = deque(maxlen=32)


def _user_columns(composed: Composed) -> Iterator[tuple[str, str]]:
    """The columns that the user's own lines put into tables, each with its table."""
    for name, table in composed.spec.tables.items():
        listed, schema = ("tables", name, "columns"), table.schema_
        columns = dict.fromkeys(table.columns, listed)
        if schema is not None and not columns:
            columns = {column: ("schemas", schema, column) for column in composed.spec.schemas[schema]}
        yield from ((name, column) for column, path in columns.items() if composed.home(path) is None)


def _content(composed: Composed) -> bytes | None:
    """The content of a config as bytes; None if the config depends on files or the environment, which may change."""
    if composed.origin is not None or composed.masks:
        return None
    try:
        return pickle.dumps((composed.data, composed.written))
    except (pickle.PicklingError, AttributeError, TypeError):  # not plain data
        return None


@shown_at_the_call
def start(
    config: Any = "minimal",
    overrides: Sequence[str] = (),
    *unnamed: Never,
    sinks: Sequence[Sink] = (),
    constants: Mapping[str, Any] | None = None,
    output_dir: str | Path | None = None,
    base_dir: str | Path | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    process_group: Any = None,
    role: Literal["rank", "actor", "driver"] = "rank",
    comm: Comm | None = None,
    resume: Mapping[str, Any] | None = None,
    wait_s: float = 30.0,
    start_s: float = 60.0,
    on_sigterm: Literal["close"] | None = None,
    capture: bool | Mapping[str, Any] | None = None,
    run_config: Mapping[str, Any] | None = None,
    steps: Literal["blocks", "commit"] = "blocks",
    tokenizer: Any = None,
    functions: Functions = FUNCTIONS,
    reductions: Reductions = REDUCTIONS,
    columns: RowFunctions = COLUMNS,
    **unknown: Never,
) -> Recorder:
    """Start logging a run; call it on every rank.

    ``config`` and ``overrides`` are those of ``declog.compose``: a preset's name, a YAML file, an application's
    DictConfig, its ``declog`` node, or a mapping with the lines of a file. By default, the preset ``minimal`` logs
    everything that is observed. ``sinks`` are objects to add to the config's sinks; they show the config's ``profile``.
    ``constants`` sets constants of the config. ``rank`` and ``world_size`` are the data-parallel ones, if they differ
    from those of the process group. ``wait_s`` is the time that rank 0 waits for another rank's rows, in the
    background, before it logs without them. ``start_s`` is the time that ranks wait for each other here, and for sinks
    to open. ``capture`` replaces the config's `capture`: it keeps the inputs of the training code in files, for
    ``declog preview``. Errors are raised here, before step 0: ``ConfigError`` with all problems of the config,
    ``SinkError`` for a sink that cannot open, ``PlanMismatchError`` for ranks with different plans.

    ``run_config`` is the trainer's configuration, for the run's folder, the report and every tracker. In a Hydra
    application, all of its configuration besides ``declog`` is added by itself. Values from the environment stay as
    they are written, and keys that name secrets are left out.

    ``tokenizer`` turns token ids into texts, for columns of `type: tokens`: a tokenizer of transformers, tokenizers or
    tiktoken, or a function from a list of ids to a list of texts. Without a tokenizer, these columns show ids.

    ``steps="commit"``: call ``log.commit(k)`` after everything that belongs to step k, in place of `with log.step(k):`.

    ``output_dir`` is the run's folder. If neither ``output_dir`` nor the config names a folder, the run gets a new one:
    ``base_dir`` (by default Hydra's run directory), or the next number inside it if a run has had that; without either,
    ``outputs/<name>/<time>``. A folder that is in use, or holds an earlier run, raises ``SinkError`` DL609.

    ``resume`` is this rank's ``state_dict`` of an earlier run. The recorder continues that run, in its folder unless
    another one is named. ``role`` is for actor systems, whose ranks have no connection: an ``actor`` exports, the
    ``driver`` merges. Both need ``world_size``, the number of actors, and an actor needs its ``rank``.
    ``on_sigterm="close"`` closes the recorder when the process gets SIGTERM, before the process ends as it would have.
    It works in the main thread only.
    """
    from declog.engine.tables.token_texts import with_texts
    from declog.runtime.run import opening
    from declog.runtime.run.sigterm import close_on_sigterm

    refuse_arguments(start, config, overrides, sinks, unnamed, unknown, LogSpec.model_fields)
    _objects(sinks)
    composed = compose(config, overrides)
    make = partial(plan, composed, constants=constants, functions=functions, reductions=reductions, columns=columns)
    compiled = make(profiles=(composed.profile,) if sinks or role != "rank" else ())
    channel = comm if comm is not None else opening.connect(compiled, role, rank, world_size, process_group, start_s)
    if any(channel.agree("sinks", "given" if sinks else "", start_s)) and not sinks:
        # sinks may be given on rank 0 only, but the plans of all ranks need the metrics that they show
        compiled = make(profiles=(composed.profile,))
    if capture is not None:
        compiled = replace(compiled, capture=captures.capture(validate({"run": {"capture": capture}}).run.capture))
    compiled = with_texts(compiled, tokenizer)
    modules = [module_of(entry.run) for registry in (functions, reductions, columns) for entry in registry]
    options = opening.Start(
        sinks=sinks, output_dir=output_dir, base_dir=base_dir, application=application_directory(), resume=resume,
        wait_s=wait_s, start_s=start_s, modules=modules, packages=composed.packages(),
        overrides=composed.overrides, arguments=composed.arguments,
        locate=partial(locate, composed, partial(plan, **make.keywords)),
        places=partial(places, composed), mask=composed.masked,
        notes=tuple(notes(composed, compiled)) if composed.layers else (), commits=steps == "commit",
        live=_live_metrics if compiled.late else None,
        run_config=without_secrets({**beside(config), **(run_config or {})}),
    )  # fmt: skip
    recorder = opening.open_run(compiled, channel, options)
    if on_sigterm == "close":
        close_on_sigterm(recorder)
    return recorder


def _live_metrics(*arguments: Any) -> Any:
    from declog.late.live import Live

    return Live(*arguments)


def _objects(sinks: object) -> None:
    """Raise ``SinkError`` DL601 if ``sinks`` is not a list of sink objects."""
    from declog.sinks import what_lacks

    items = sinks if isinstance(sinks, Sequence) else [sinks]
    for item in items:
        if isinstance(item, type):
            raise SinkError.of("DL601.named", name=repr(item), fix=f"{item.__name__}()")
        if lacks := what_lacks(item):
            raise SinkError.of("DL601.no_object", name=type(item).__name__, lacks="`, `".join(lacks))
    if items is not sinks:
        raise SinkError.of("DL601.named", name=repr(sinks), fix="sinks=[...], a list of them")


def places(config: Composed) -> dict[str, str]:
    """The places that declare metrics, by `metrics.ID`: file and line, or an override. Unknown ones are left out."""
    locations = {}
    for name in config.data.get("metrics") or {}:
        if layers := config.deciding(("metrics", name)):
            location = layers[-1].location
            text = _portable(location) if isinstance(location, FileLocation) else str(location.where)
            locations[f"metrics.{name}"] = text
    return locations


def _portable(location: FileLocation) -> str:
    """A file and line in a form that is the same on every machine.

    A file outside the working directory is shown by its path from its folder ``declog`` on, or by its name.
    """
    file = Path(shown_path(location.file))
    if file.is_absolute():
        depth = max((at for at, part in enumerate(file.parts) if part == GROUP), default=len(file.parts) - 1)
        file = Path(*file.parts[depth:])
    return f"{file}:{(location.key or location.value).line}"


def locate(config: Composed, plan_of: Callable[[Any], Plan], error: InputError) -> InputError:
    """Complete an error of the run: a missing signal gets the place of its declaration.

    From other errors, edits that the config would refuse are removed.
    """
    if not isinstance(error, MissingSignalError):
        return InputError(error.code, error.message, with_right_declarations(error.fix, config.data, plan_of))
    name = error.signals[0]
    path = next((path for path, _ in entries(config.data, "signals") if path[-1] == name), ("metrics", name))
    problem = Problem(error.code, error.message, path, error.fix)
    (located,) = config.located(ConfigError([problem])).problems
    return error if located.where is None else error.at(located.text())


# sections that the rest of a config reads
_ROOTS = frozenset({"axes", "constants", "modes", "schemas", "signals", "derived"})


def _further(
    data: Mapping[str, Any], problems: Sequence[Problem], compiled: Callable[[LogSpec], Plan]
) -> list[Problem]:
    """The problems of names, expressions and options in entries without a problem so far, to report with the others.

    An entry whose only problems are keys to drop is checked without these keys.
    """
    dropped = {item.path for item in problems if len(item.path) > 2 and (item.fix or "").startswith("drop it")}
    wrong = {problem.path[:2] for problem in problems if problem.path not in dropped}
    edited = [(problem, (problem.fix or "").partition(": ")[0]) for problem in problems if len(problem.path) == 2]
    wrong |= {(problem.path[0], name) for problem, name in edited if has(data, (problem.path[0], name))}
    missing = any(not item.path or (len(item.path) == 1 and item.code == "DL201") for item in problems)
    names = {str(path[-1]) for path in wrong if path}
    rest = [item for item in _problems(compiled, without(data, wrong | dropped)) if not about(item, names)]
    of_sinks = [item for item in rest if item.path[:1] == ("sink_options",)]
    if missing or any(path[0] in _ROOTS or path == ("metrics",) for path in wrong):
        return of_sinks  # others read these sections: most further problems would have this one cause
    return [*(item for item in rest if item.code.startswith("DL3") or item.code == "DL403"), *of_sinks]


def _problems(compiled: Callable[[LogSpec], Plan], data: Mapping[str, Any]) -> Sequence[Problem]:
    """The problems of a config as plain data."""
    try:
        compiled(validate(data))
    except ConfigError as error:
        return error.problems
    return ()
