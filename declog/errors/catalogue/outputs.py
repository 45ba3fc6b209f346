"""DL6xx: sinks, ranks, captures and integrations."""

from declog.distribution import NAME, install
from declog.errors.catalogue.code import Code, Known

# fmt: off
CODES = {
"DL601": Code("a sink could not be opened", """
    A sink's package is missing, its options are wrong, or its tracker refused to start. The run does not start
    without a sink that was asked for. The message names the pip extra, or the option.

    ```python title="closed.py"
    from declog.testing import MemorySink


    class Closed(MemorySink):
        def open(self, run):
            raise ConnectionError("the tracker does not answer")
    ```

    ```python
    import declog
    from closed import Closed

    profile = {"signals": {"loss": {"axis": "step"}}, "metrics": {"loss": "mean(loss)"}}
    try:
        declog.start(profile, sinks=[Closed()], output_dir="runs")
    except declog.SinkError as error:
        print(error)
    ```
    """, {
    "DL601.capture": ("the capture cannot be opened: {error}", "set `capture.folder`"),
    "DL601.capture_folder": ("the capture has no folder on this rank", "set `capture.folder`"),
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
}),
"DL602": Code("a sink could not write", """
    A sink failed to write a log event. Training goes on; the failure is logged once with its traceback, and again at
    the end. See the tracker's own message; file sinks keep what a full disk refused, and write it later.

    ```python title="full.py"
    from declog.testing import MemorySink


    class Full(MemorySink):
        def write(self, step, records):
            raise ValueError("the tracker is full")
    ```

    ```python
    import time

    import declog
    from full import Full

    profile = {"strict": True, "signals": {"loss": {"axis": "step"}}, "metrics": {"loss": "mean(loss)"}}
    try:
        with declog.start(profile, sinks=[Full()], output_dir="runs") as log:
            for step in range(50):
                with log.step(step):
                    log.observe(loss=0.5)
                    time.sleep(0.01)  # training
    except declog.DeclogError as error:
        print(error)
    ```
    """, {
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
}),
"DL603": Code("ranks could not exchange their windows", """
    A message between ranks was late, broken or could not be sent. Rank 0 goes on with the ranks that answered, and
    marks values as partial. Look for the rank that the message names.

    ```python
    import declog
    from declog.testing import FakeComm

    rank_0, rank_1 = FakeComm.job(2)  # two ranks, the second of which never starts
    try:
        rank_0.agree("plan", "mine", deadline_s=0.1)
    except declog.CommError as error:
        print(error)
    ```
    """, {
    "DL603.beginning": "a message does not begin as declog's do",
    "DL603.bytes": "a message has {count} bytes, and its header says {end}",
    "DL603.column": "a message has `{name}` as another column than the plan",
    "DL603.cut": "a message was cut or changed on its way",
    "DL603.dtype": "a message holds the type {dtype!r}",
    "DL603.event": ("{who} sent another log event than this one{detail}: its rows are left out",
        "make the same steps, flushes and blocks of modes on every rank"),
    "DL603.export": ("this is no export of a recorder: {error}", "pass what `export` returned"),
    "DL603.attach": (
        "{cause}",
        "call declog.attach on every rank, and not below `if trainer.is_world_process_zero()`",
    ),
    "DL603.fake_ranks": "ranks {missing} did not start declog within {deadline_s} s",
    "DL603.late_actor": ("actor {rank} exported a log event that was finished without it",
        "a slow actor needs a larger `wait_s` of merge; one that is started again, `resume=`"),
    "DL603.left": "rank 0 has gone before rank {rank} was there",
    "DL603.lost": ("the connection of rank {rank} to rank 0 is lost: {cause}",
        "rank 0 has gone: this rank's rows are not logged any more"),
    "DL603.meta": "a message cannot be read: it says of itself {meta}",
    "DL603.mode": ("rank {rank} makes log events of the mode `{mode}` that rank 0 does not: they are not logged",
        "make the same steps, flushes and blocks of modes on every rank"),
    "DL603.no_actor": "actors {missing} exported no window: those of this step are without their rows",
    "DL603.no_window": ("rank {rank} sent no window: it left, or was not in time",
        "its rows are missing from the values of this step"),
    "DL603.port": ("rank {rank} cannot reach the port that rank 0 opened for declog ({port} of {where})",
        "comm: clone"),
    "DL603.ranks": ("ranks {missing} did not start declog within {deadline_s} s", "call declog.start on every rank"),
    "DL603.rows": "the rows of rank {rank} do not go with those of other ranks",
    "DL603.shape": "a message holds an array of the shape {shape!r}",
    "DL603.start": ("rank {rank} waited {deadline_s} s for rank 0 to start declog", "call declog.start on every rank"),
    "DL603.twice": ("actor {rank} exported a log event twice",
        "merge each export once, and give each actor a rank of its own"),
    "DL603.unknown_mode": "a message is of the mode {mode}, which this plan has not",
    "DL603.unknown_phase": "a message has rows of the phase {phase}, which this plan has not",
    "DL603.unreadable": "a message cannot be read: {error}",
    "DL603.version": ("a message has version {version}, and this process reads {own}",
        "use one version of declog on all ranks"),
}),
"DL604": Code("ranks compiled different plans", """
    Ranks were started from different configurations, with different functions of one name, or with different versions
    of declog. Start every rank from the same ones; the message shows the first difference.

    ```python
    import declog
    from declog.testing import run_ranks


    def rank(comm):
        reduction = "mean" if comm.rank == 0 else "p95"
        profile = {"signals": {"loss": {"axis": "step"}}, "metrics": {"loss": f"{reduction}(loss)"}}
        try:
            declog.start(profile, output_dir="runs", comm=comm)
        except declog.PlanMismatchError as error:
            return str(error)


    print(run_ranks(2, rank)[0])
    ```
    """, {
    "DL604.actor": ("actor {rank} runs another plan ({fingerprint}) than the driver ({own})",
        "start actors and driver from the same configuration"),
    "DL604.ranks": ("ranks compiled different plans: {difference}", "start every rank from the same configuration"),
}),
"DL605": Code("a window could not be evaluated", """
    A metric, a filter or a table failed over a window's values; the others are logged. The message names it; a
    function of your own may be the cause.

    ```python
    import declog


    @declog.reducer
    def spread(values):
        raise ValueError("no values to spread")


    profile = {
        "strict": True,
        "signals": {"reward": {"axis": "completion"}},
        "metrics": {"spread": "spread(reward)"},
    }
    try:
        with declog.start(profile, output_dir="runs") as log, log.step(0):
            log.observe(reward=[0.0, 1.0])
    except declog.DeclogError as error:
        print(error)
    ```
    """, {
    "DL605.backlog": ("steps wait no more: the worker has finished no log event for {seconds} s, and more than "
        "`backlog_bytes` wait for it", "see which function, sink or rank it waits for"),
    "DL605.failed": "{what} could not be evaluated: {error}",
    "DL605.function": "the function `{function}` is not registered in this process",
    "DL605.merged": ("a window was merged into the next one: more than `backlog_bytes` waited",
        "log less often, or say `backlog: wait`"),
    "DL605.nan": "the metric `{metric}` met {count} missing values, and says `nan: raise`",
    "DL605.prev": "`prev` is read from the column that the window carries",
    "DL605.read": ("{names} of phase `{phase}` could not be read: {error}", "observe plain tensors of numbers"),
    "DL605.slow": ("a log event took longer than {seconds} s: the step goes on without",
        "see which sink is slow, or drop `blocking: true`"),
    "DL605.tags": ("`by` takes a text, a number or a list of those, and a {type} came: {value!r}",
        "declare a signal of the labels"),
    "DL605.table": "the table `{table}` could not be evaluated: {type}",
    "DL605.tokens": "{what} of phase `{phase}` could not be computed per token: {error}",
}),
"DL606": Code("ranks recorded the same rows", """
    Several ranks recorded exactly the same rows, as tensor- or context-parallel ranks do, so that each row counts as
    often as it came. Give `declog.start` the data-parallel rank and size, `rank=` and `world_size=`: of processes
    with one rank, one is heard.

    ```python
    import logging
    import sys

    import declog
    from declog.testing import MemorySink, run_ranks

    handler = logging.StreamHandler(sys.stdout)
    logging.getLogger("declog").addHandler(handler)
    profile = {"signals": {"reward": {"axis": "completion"}}, "metrics": {"reward": "mean(reward)"}}


    def rank(comm):
        sinks = [MemorySink()] if comm.rank == 0 else []
        with declog.start(profile, sinks=sinks, output_dir="runs", comm=comm) as log, log.step(0):
            log.observe(reward=[0.25, 0.5])


    run_ranks(2, rank)
    logging.getLogger("declog").removeHandler(handler)
    ```
    """, {
    "DL606": ("several ranks recorded exactly the same rows: each row counts as often as it came",
        "where ranks are not data-parallel, pass the data-parallel place: declog.start(..., rank=..., world_size=...)"),
}),
"DL607": Code("a run, a capture, or a log, cannot be read", """
    `declog.read` takes the folder of a run (with its `run.json`), or of one of its parquet and jsonl sinks.
    `declog adopt` takes a wandb run, a `.jsonl` log, a `trainer_state.json`, a console log or a `.txt` of names, with
    a number in it. `declog preview` takes the folder of a capture (its files are called `rank-00000.declog`), or the
    folder of the run that has one. A run is captured with `declog.capture=true`. Where ranks share no disk, bring the
    files of all ranks into one folder; files of different runs do not go together, and neither do those of another
    version of declog.

    ```python
    import declog
    from declog.replay.capture_reader import load

    try:
        load("runs")
    except declog.UsageError as error:
        print(error)
    ```
    """, {
    "DL607.lines": ("{file} does not hold a JSON object in each line", "give another file"),
    "DL607.json": ("{file} is no JSON: {error}", "give another file"),
    "DL607.log": ("{what} {path}",
        "a wandb run's folder or .wandb file, a .jsonl log, a trainer_state.json, or a .txt with a name in each line"),
    "DL607.no_number": ("{file} has no number under a name", "give a run that has logged something"),
    "DL607.wandb": ("reading {file} takes wandb's package", install("wandb")),
    "DL607.no_run": ("there is no run to read in {path}", "{fix}"),
    "DL607.package": ("`{package}` is not installed", "pip install {package}, or take `arrow()` or `rows()`"),
    "DL607.run_id": ("{path} has no run {run_id}", "{fix}"),
    "DL607.sink": ("no sink wrote files into `{sink}` of {path}", "{fix}"),
    "DL607.none": ("there is no capture in {path}",
        "capture a run: `declog.capture=true`, or declog.start(..., capture=True)"),
    "DL607.runs": ("{folder} holds files of different runs", "keep the files of each run in a folder"),
    "DL607.several": ("{path} has several captures", "name one of them: {shown}"),
    "DL607.version": ("{file} is no capture that this version reads", "capture the run again"),
}),
"DL608": Code("an integration could not record something", """
    In a part of an integration with a trainer something went wrong: declog's part of a hook, or a column that a
    reward function logged. It is reported once, with what it was, and counted in the recorder's `failures`. Training
    goes on as it would without declog, and the trainer's own numbers are as it has them; the values of that log event
    are marked as partial where rows are missing from them. With `strict: true` it is raised. An integration of your
    own guards its parts with `log.guard`.

    ```python
    import declog

    profile = {"signals": {"reward": {"axis": "completion"}}, "metrics": {"reward": "mean(reward)"}}
    scores = {}
    with declog.start(profile, output_dir="runs") as log, log.step(0):
        log.observe(reward=[0.0, 1.0])
        with log.guard("the judge's scores could not be recorded"):
            log.observe(reward=scores["judge"])
    print(*log.failures)
    ```
    """, {
    "DL608": ("{what}: {message}", "{left_out}; training goes on"),
}),
"DL609": Code("a folder is taken", """
    A run writes into a folder of its own. The folder that was named is in use by another run, or holds what an
    earlier one logged; or two sinks of a run would write to one folder. Without `output_dir` a run always gets a new
    folder. A run that goes on (`resume`) takes its own; `append: true` adds a run to the one that is there, and the
    rows say by `run_id` whose they are.

    ```python
    import declog

    profile = {
        "signals": {"loss": {"axis": "step"}},
        "metrics": {"loss": "mean(loss)"},
        "sinks": {"jsonl": {}},
    }
    with declog.start(profile, output_dir="mine") as log:
        with log.step(0):
            log.observe(loss=0.5)
        try:
            declog.start(profile, output_dir="mine")
        except declog.SinkError as error:
            print(error.code, "in use" in error.message)
    try:
        declog.start(profile, output_dir="mine")
    except declog.SinkError as error:
        print(error.code, "holds the run" in error.message)
    ```
    """, {
    "DL609.file": ("{path} is no file of declog's, and would be written over", "give the run another `output_dir`"),
    "DL609.folder": ("the folder {path} {what}",
        "give this run another `output_dir`, or none; or resume that run; or say `append: true`"),
    "DL609.format": ("the folder {path} {said}", "or give this run another `output_dir`"),
    "DL609.in_use": ("the folder {path} is in use by {held}", "{fix}"),
    "DL609.sinks": ("the sinks `{other}` and `{sink}` would write to one folder, `{folder}`", "dir: {sink}"),
}),
"DL610": Code("another project's package is called declog, too", """
    declog is installed as `declog-rl`. The distribution `declog` on the package index belongs to another project, a
    logger of functions, and its package has the same name: the two write into one folder, and `import declog` brings
    whichever was installed last. `declog check` and `declog.start` say so once. Remove the other one, and install
    declog-rl again, because removing it takes files that both had.

    ```python
    import logging
    import sys
    from pathlib import Path

    import declog

    handler = logging.StreamHandler(sys.stdout)
    logging.getLogger("declog").addHandler(handler)
    info = Path("site/declog-0.5.0.dist-info")  # as pip leaves it
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: declog\\nVersion: 0.5.0\\n")
    sys.path.append("site")
    with declog.start("minimal", ["sinks=[jsonl]"], output_dir="runs") as log, log.step(0):
        log.observe(loss=0.5)
    sys.path.remove("site")
    logging.getLogger("declog").removeHandler(handler)
    ```
    """, {
    "DL610": ("declog {version} is installed, too: another project's, whose package has the same name",
        f"pip uninstall -y declog && pip install --force-reinstall --no-deps {NAME} (in a checkout `-e .`)"),
}),
}
