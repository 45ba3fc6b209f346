"""DL6xx: sinks, ranks, captures and integrations."""

from collections.abc import Mapping

from declog.distribution import NAME, install
from declog.errors.catalogue.messages import Known, Message

# fmt: off
MESSAGES: Mapping[str, Message] = {
    "DL601.capture": ("the capture cannot be opened: {error}", "set `run.capture.folder`"),
    "DL601.capture_folder": ("the capture has no folder on this rank", "set `run.capture.folder`"),
    "DL601.json": ("{path}:{number} is not JSON: {cause}", "remove the line"),
    "DL601.json_object": ("{path}:{number} is no JSON object", "remove the line"),
    "DL601.kind": ("unknown sink kind `{name}`", Known("kinds")),
    "DL601.leaves": ("the folder `{folder}` leaves the run's, {output_dir}", "give an absolute `dir`"),
    "DL601.no_trackers": (
        "no Accelerator has given its trackers",
        "start with `declog.integrations.accelerate.start(accelerator, ...)` after `accelerator.init_trackers()`, or "
        "name them: `trackers: [tensorboard]`"),
    "DL601.no_accelerator": (
        "accelerate's trackers need its state", "make the `Accelerator`, or an `accelerate.PartialState()`, before"),
    "DL601.load": "the sink kind `{kind}`{by} could not be loaded from `{module}:{name}`: {cause}",
    "DL601.no_class": "the sink kind `{kind}`{by} is `{module}:{name}`, which is not a class",
    "DL601.no_sink": ("the sink kind `{kind}`{by} is `{module}:{name}`, which has no `{lacks}`",
        "a sink has open, write and close; declog.sinks.BaseSink has the rest"),
    "DL601.named": ("`sinks` takes objects, and `{name}` is none", "{fix}"),
    "DL601.nul": ("a folder's name cannot hold a NUL character", "give it another `dir`"),
    "DL601.options": "{reasons}",
    "DL601.package": ("the {kind} sink needs `{package}`, which cannot be imported: {reason}", "{fix}"),
    "DL601.part": ("{part} cannot be read: {cause}", "move it out of the folder"),
    "DL601.rank": "rank {rank} could not start: {cause}",
    "DL601.run_folder": ("the run's folder cannot be made: {error}", "set `output_dir`"),
    "DL601.sink": ("sink `{sink}` could not be {what}: {reason}", "{fix}"),
    "DL601.slow": ("it did not open within {timeout_s} s", "see why, or raise `start_s`"),
    "DL601.tracker": ("accelerate knows no tracker `{name}`", Known("trackers")),
    "DL601.tracker_settings": ("`settings` has `{name}`, which `trackers` does not name", Known("trackers")),
    "DL601.trackio": ("no trackio run is open", "call trackio.init() before, or use `run: auto`"),
    "DL601.trackio_folder": (
        "trackio was imported before this sink and keeps its data in {used}, not in {requested}",
        "set TRACKIO_DIR={requested} before trackio is imported, leave `dir` out, or in a multirun, whose "
        "jobs share a process, give one absolute `dir` for all: `${hydra:runtime.cwd}/trackio`"),
    "DL601.trackio_variable": ("{variable} is set, and the trackio sink logs locally", "unset {variable}"),
    "DL601.swanlab": ("no swanlab run is open", "call swanlab.init() before, or use `run: auto`"),
    "DL601.swanlab_open": ("a swanlab run is open, and a process has one only", "finish it before, or use `run: auto`"),
    "DL601.wandb": ("no wandb run is open", "call wandb.init() before, or use `run: auto`"),

    "DL602.lines": "{reasons} (its lines wait, up to 8 MiB a file, for the next log event)",
    "DL602.lost": "sink `{sink}`: log events {what}",
    "DL602.parts": "{reasons}",
    "DL602.parquet_column": "column `{name}` does not fit {type}: {cause}",
    "DL602.parts_column": ("column `{column}` of `{table}` is {now}, and was {before} before",
        "give the table another id, or the run another output_dir"),
    "DL602.sink": "sink `{sink}` failed: {cause}",
    "DL602.wandb": "wandb could not log step {step}: {cause}",
    "DL602.wandb_joined": (
        "the run of wandb's that was joined takes no more: {cause}", "close the recorder before `wandb.finish()`"),

    "DL603.beginning": "a message does not begin as declog's do",
    "DL603.bytes": "a message has {count} bytes, and its header says {end}",
    "DL603.cut": "a message was cut or changed on its way",
    "DL603.event": ("{who} sent another log event than this one{detail}: its rows are left out",
        "make the same steps, flushes and blocks of modes on every rank"),
    "DL603.export": ("this is no export of a recorder: {error}", "pass what `export` returned"),
    "DL603.attach": (
        "{cause}",
        "call declog.attach on every rank, and not below `if trainer.is_world_process_zero()`",
    ),
    "DL603.late_actor": ("actor {rank} exported a log event that was finished without it",
        "a slow actor needs a larger `wait_s` of merge; one that is started again, `resume=`"),
    "DL603.left": "rank 0 has gone before rank {rank} was there",
    "DL603.lost": ("the connection of rank {rank} to rank 0 is lost: {cause}",
        "rank 0 has gone: this rank's rows are not logged any more"),
    "DL603.mode": ("rank {rank} makes log events of the mode `{mode}` that rank 0 does not: they are not logged",
        "make the same steps, flushes and blocks of modes on every rank"),
    "DL603.no_actor": "actors {missing} exported no window: those of this step are without their rows",
    "DL603.no_window": ("rank {rank} sent no window: it left, or was not in time",
        "its rows are missing from the values of this step"),
    "DL603.port": ("rank {rank} cannot reach the port that rank 0 opened for declog ({port} of {where})",
        "open the ports between hosts, which gloo and NCCL need as well; or make ranks actors"),
    "DL603.ranks": ("ranks {missing} did not start declog within {deadline_s} s", "call declog.start on every rank"),
    "DL603.rows": "the rows of rank {rank} do not go with those of other ranks",
    "DL603.start": ("rank {rank} waited {deadline_s} s for rank 0 to start declog", "call declog.start on every rank"),
    "DL603.twice": ("actor {rank} exported a log event twice",
        "merge each export once, and give each actor a rank of its own"),
    "DL603.unreadable": "a message cannot be read: {error}",
    "DL603.version": ("a message has version {version}, and this process reads {readable}",
        "use one version of declog on all ranks"),

    "DL604.actor": ("actor {rank} runs another plan ({fingerprint}) than the driver ({driver})",
        "start actors and driver from the same configuration"),
    "DL604.ranks": ("ranks compiled different plans: {difference}", "start every rank from the same configuration"),

    "DL605.backlog": ("steps wait no more: the worker has finished no log event for {seconds} s, and more than "
        "`run.backlog_bytes` wait for it", "see which function, sink or rank it waits for"),
    "DL605.failed": "{what} could not be evaluated: {error}",
    "DL605.function": "the function `{function}` is not registered in this process",
    "DL605.nan": "the metric `{metric}` met {count} missing values, and says `nan: raise`",
    "DL605.prev": "`prev` is read from the column that the window carries",
    "DL605.read": ("{names} of phase `{phase}` could not be read: {error}", "observe plain tensors of numbers"),
    "DL605.slow": ("a log event took longer than {seconds} s: the step goes on without",
        "see which sink is slow, or drop `run.blocking`"),
    "DL605.tags": ("`by` takes a text, a number or a list of those, and a {type} came: {value!r}",
        "declare a signal of the labels"),
    "DL605.tokens": "{what} of phase `{phase}` could not be computed per token: {error}",

    "DL606": ("several ranks recorded exactly the same rows: each row counts as often as it came",
        "where ranks are not data-parallel, pass the data-parallel place: declog.start(..., rank=..., world_size=...)"),

    "DL607.lines": ("{file} does not hold a JSON object in each line", "give another file"),
    "DL607.json": ("{file} is no JSON: {error}", "give another file"),
    "DL607.log": ("{what} {path}",
        "a wandb run's folder or .wandb file, a .jsonl log, a trainer_state.json, or a .txt with a name in each line"),
    "DL607.no_number": ("{file} has no number under a name", "give a run that has logged something"),
    "DL607.wandb": ("reading {file} needs wandb's package", install("wandb")),
    "DL607.no_run": ("there is no run to read in {path}", "{fix}"),
    "DL607.package": ("`{package}` is not installed", "pip install {package}, or take `arrow()` or `rows()`"),
    "DL607.prompts": ("{what} a column of prompts and one of scores among its rows of this mode",
        "a table with `prompt` and `reward` in its schema, or `by=` the column of scores"),
    "DL607.run_id": ("{path} has no run {run_id}", "{fix}"),
    "DL607.sink": ("no sink wrote files into `{sink}` of {path}", "{fix}"),
    "DL607.none": ("there is no capture in {path}",
        "capture a run: `declog.run.capture=true`, or declog.start(..., capture=True)"),
    "DL607.runs": ("{folder} holds files of different runs", "keep the files of each run in a folder"),
    "DL607.several": ("{path} has several captures", "name one of them: {shown}"),
    "DL607.version": ("{file} is no capture that this version reads", "capture the run again"),

    "DL607.rows": ("the run in {path} kept no rows", "rows are kept where `run.keep_bytes` is not 0"),

    "DL608": ("{what}: {message}", "{left_out}; training goes on"),

    "DL609.file": ("{path} was not written by declog, and would be overwritten", "give the run another `output_dir`"),
    "DL609.folder": ("the folder {path} {what}",
        "give this run another `output_dir`, or none; or resume that run; or say `run: {append: true}`"),
    "DL609.format": ("the folder {path} {said}", "or give this run another `output_dir`"),
    "DL609.in_use": ("the folder {path} is in use by {held}", "{fix}"),
    "DL609.sinks": ("the sinks `{other}` and `{sink}` would write to one folder, `{folder}`", "dir: {sink}"),

    "DL610": ("declog {version} is installed, too: another project's, whose package has the same name",
        f"pip uninstall -y declog && pip install --force-reinstall --no-deps {NAME} (in a checkout `-e .`)"),

    "DL611.stopped": ("the run keeps no more rows from here on: {error}",
        "make room on the disk; metrics that are added later have values up to here"),
    "DL611.thinned": ("{folder} holds more than {bytes} bytes: its oldest rows were deleted",
        "`run.keep_bytes` sets the limit"),

    "DL612.empty": ("the rows of the run have no value of `{name}`: {why}",
        "ask for what `rows/rows.json` says is kept"),
    "DL612.logged": ("the run logs `{name}` already", "give the metric another name"),
    "DL612.signal": ("the run kept no rows of `{name}`: {reason}", "ask for what `rows/rows.json` says is kept"),
    "DL612.together": ("`{name}` was asked together with {missing}, which would go with its earlier values",
        "ask for all of them again, or give the metric another name"),
    "DL612.tokens": ("{what} is per token, and the run kept nothing of it per completion",
        "ask for what a metric of the run computes from tokens"),

    "DL613.answers": ("an alert stops the run, and processes {ranks} did not answer within {seconds} s",
        "ask `log.should_stop` on every rank: those that did not answer may train on"),
    "DL613.verdict": ("an alert stops the run, and rank 0 did not say after which step within {seconds} s: "
        "training goes on after step {step}", "see whether rank 0 still trains"),
}
