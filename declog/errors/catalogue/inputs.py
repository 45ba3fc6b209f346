"""DL5xx: what the training code gives."""

from declog.errors.catalogue.code import Code, Known

# fmt: off
CODES = {
"DL501": Code("unknown signal", """
    The training code observed a name that the profile does not have. The nearest is suggested; or declare it under
    `signals`.

    ```python
    import declog

    profile = {
        "signals": {"length": {"axis": "completion", "type": "int"}},
        "metrics": {"length": "mean(length)"},
    }
    with declog.start(profile, output_dir="runs") as log:
        try:
            with log.step(0):
                log.observe(lenght=[12, 40])
        except declog.InputError as error:
            print(error)
    ```
    """, {
    "DL501.member": ("the family `{family}` declares no member `{name}`", Known("members")),
    "DL501.observed": ("the profile has no signal `{name}` to observe", "{fix}"),
    "DL501.phase": ("the profile `{profile}` has no phase `{name}`", Known("phases")),
    "DL501.signal": ("the profile `{profile}` has no signal `{name}`", "{fix}"),
}),
"DL502": Code("a required signal was not observed", """
    A required signal was not observed in the first batch of its phase. Observe it, or declare `optional: true`. With
    `strict: true` it is also raised at the end of a run in which a signal came, and then stopped.

    ```python
    import declog

    profile = {
        "signals": {"length": {"axis": "completion"}, "reward": {"axis": "completion"}},
        "metrics": {"length": "mean(length)", "reward": "mean(reward)"},
    }
    with declog.start(profile, output_dir="runs") as log:
        try:
            with log.step(0):
                log.observe(length=[12, 40])
        except declog.InputError as error:
            print(error)
    ```
    """, {
    "DL502": ("{names} {were} not observed in the first batch of phase `{phase}`",
        "observe({source}=...), or declare it optional, or switch off what needs it"),
    "DL502.stopped": ("`{source}` of phase `{phase}` came until {when}, and not since",
        "observe({source}=...) to the end, or say `strict: false`"),
}),
"DL503": Code("a signal has the wrong shape", """
    A tensor has another number of dimensions than its axis says, or a family is no mapping. The message says what was
    declared and what came.

    ```python
    import declog

    profile = {
        "signals": {"length": {"axis": "completion", "type": "int"}},
        "metrics": {"length": "mean(length)"},
    }
    with declog.start(profile, output_dir="runs") as log:
        try:
            with log.step(0):
                log.observe(length=12)
        except declog.InputError as error:
            print(error)
    ```
    """, {
    "DL503.family": ("`{name}` is a family: a mapping of member to values is expected, and {came} came",
        "observe({name}={'name': values})"),
    "DL503.list": ("`{label}` is declared {declared}: a list is expected, and {came} came", "give one value per row"),
    "DL503.members": ("families in `{node}` have different members: {missing} is not in all of them",
        "observe the same members"),
    "DL503.one_number": ("`{label}` is declared {declared}: one number is expected, and {came} came", "{fix}"),
    "DL503.ragged": ("`{label}` came as lists of different lengths, and the profile says that every token exists",
        "set `axes.token.mask` or `axes.token.lengths`"),
    "DL503.shape": ("`{label}` is declared {declared}: {expected} is expected, and a tensor of shape {shape} came",
        "{fix}"),
    "DL503.tensor": ("`{label}` is declared {declared}, and {came} came", "observe a tensor, an array or a list"),
    "DL503.wrapped": ("a tensor of a packet is wrapped by a transform of torch.func (vmap, grad, ...)",
        "make the packet outside of that"),
    "DL503.token_count": ("`{name}` has {count} tokens, and the lengths add up to {lengths}",
        "check axes.token.lengths"),
    "DL503.token_length": ("`{name}` holds {length}, which is no number of tokens", "check axes.token.lengths"),
    "DL503.token_counts": ("`{name}` has {count} tokens in completion {row}, and `{other}` {other_count}",
        "observe signals of the same tokens together"),
    "DL503.token_lists": ("`{label}` is declared {declared}: a list with one list of tokens per completion is expected",
        "give one list per completion"),
    "DL503.token_shapes": ("`{name}` has shape {shape}, and `{other}` {other_shape}",
        "observe signals of the same tokens together"),
}),
"DL504": Code("a signal has the wrong type", """
    A float where an int is declared, a text in a numeric signal, and so on. Convert it, or declare another `type`.

    ```python
    import declog

    profile = {
        "signals": {"length": {"axis": "completion", "type": "int"}},
        "metrics": {"length": "mean(length)"},
    }
    with declog.start(profile, output_dir="runs") as log:
        try:
            with log.step(0):
                log.observe(length=[12.5, 40.0])
        except declog.InputError as error:
            print(error)
    ```
    """, {
    "DL504.bits": ("`{label}` holds a number that does not fit {bits}", "declare `{name}: {type: float}`"),
    "DL504.came": "`{label}` is declared {declared}, and {came} came",
    "DL504.dtype": ("`{label}` is declared {declared}, and a tensor of {dtype} came",
        "convert it, or declare `{name}: {type: float}`"),
    "DL504.elements": ("`{label}` is declared {declared}, and holds what is no number: {error}",
        "give lists of numbers"),
    "DL504.family_rows": ("`{label}` is declared {declared}, and its value {place} is {item}",
        "a mapping of member to values, one value per row: {name}={'a': [...], 'b': [...]}"),
    "DL504.family_text": ("`{label}` is declared {declared}, and {came} came",
        "its members are numbers; a text is a signal of its own, or a column of `log_extra`"),
    "DL504.masked": ("`{label}` is declared {declared}, and a masked array came: no {dtype} per token is missing",
        "fill it, and observe its mask as a signal"),
    "DL504.member": "`{name}` has the member {member!r}: members are named by text",
    "DL504.numbers": ("`{label}` is declared {declared}, and {came} came", "convert it to numbers"),
    "DL504.object": ("`{label}` is declared {declared}, and its value {place} is {item}",
        "convert it, or declare `{name}: {type: object}`"),
    "DL504.tensor": ("`{label}` is declared {declared}, and a tensor came that {error}",
        "convert it to a plain tensor of floats or int64"),
    "DL504.type": ("`{label}` is declared {declared}, and {came} came",
        "convert it, or declare `{name}: {type: {kind}}`"),
    "DL504.value": ("`{label}` is declared {declared}, and its value {place} is {item}",
        "convert it, or declare another type for `{name}`"),
}),
"DL505": Code("signals of one batch have different counts", """
    Two signals of one batch have different numbers of completions or tokens. Observe them of the same rows; begin
    another batch where they are of others.

    ```python
    import declog

    profile = {
        "signals": {"length": {"axis": "completion"}, "reward": {"axis": "completion"}},
        "metrics": {"length": "mean(length)", "reward": "mean(reward)"},
    }
    with declog.start(profile, output_dir="runs") as log:
        try:
            with log.step(0):
                log.observe(length=[12, 40], reward=[0.0, 1.0, 1.0])
        except declog.InputError as error:
            print(error)
    ```
    """, {
    "DL505.counts": (
        "signals of one batch of phase `{phase}` have different counts: `{name}` has {count} {what}, "
        "`{other}` has {other_count}",
        "observe values of the same rows together; a signal given again opens the next batch"),
    "DL505.repeated": (
        "signals of one batch of phase `{phase}` have different counts: `{name}` has {count} {what}, "
        "`{other}` has {other_count}",
        "give `{few}` once per completion: [each for each in {few} for _ in range({times})]"),
    "DL505.groups": (
        "`{name}` has {count} groups, and the batch of phase `{phase}` has {rows} completions in groups of {size}",
        "observe one value per group"),
    "DL505.window": ("`{name}` has {count} groups, and {where}",
        "observe one value per group, with the first rows of the group"),
}),
"DL507": Code("rows cannot be grouped", """
    The rows do not divide into groups of `axes.group.size`, or their group ids never came. Set `axes.group.size`, or
    `axes.group.split` where groups are spread.

    ```python
    import declog

    profile = {
        "strict": True,
        "axes": {"group": {"size": 2}},
        "signals": {"reward": {"axis": "completion"}},
        "metrics": {"spread": "mean(std(reward, over=completion))"},
    }
    try:
        with declog.start(profile, output_dir="runs") as log, log.step(0):
            log.observe(reward=[0.0, 1.0, 1.0])
    except declog.DeclogError as error:
        print(error)
    ```
    """, {
    "DL507.batch": (
        "rows cannot be grouped: groups have {size} completions, and step {step} of rank {rank} has a batch of {rows}",
        "set axes.group.size, or axes.group.split where groups are spread over batches or ranks"),
    "DL507.pieces": ("rows cannot be grouped: groups have {size} completions, and the pieces have {counts}",
        "check axes.group"),
    "DL507.unobserved": (
        "rows cannot be grouped: {names} was not observed in phase `{phase}`",
        "observe it, or set axes.group.size"),
    "DL507.size": (
        "axes.group.size is {size}, and {names} says otherwise: {seen}",
        "{fix}axes.group.size=null: groups are then told apart by the ids"),
}),
"DL508": Code("a run-time name shadows a declared one", """
    A name that is made at run time (a label, a family's member, a number of `log_metric`, a column of `log_extra`) is
    one that the profile declares or another metric wrote first, or one of declog's own, or `step` or `mode`, which
    sinks add to a table; it is left out. Give it a prefix, such as `name: extra/{column}`, or another name.

    ```python
    import logging
    import sys

    import declog
    from declog.testing import MemorySink

    handler = logging.StreamHandler(sys.stdout)
    logging.getLogger("declog").addHandler(handler)
    profile = {
        "signals": {"reward": {"axis": "completion"}},
        "metrics": {"reward": "mean(reward)"},
    }
    with declog.start(profile, sinks=[MemorySink()], output_dir="runs") as log, log.step(0):
        log.observe(reward=[0.0, 1.0])
        log.log_metric("reward", 2.0)
    logging.getLogger("declog").removeHandler(handler)
    ```
    """, {
    "DL508.column": ("the table `{table}` leaves out the run-time column `{name}`: {why}", "give it another name"),
    "DL508.family": ("the table `{table}` leaves out the run-time column `{name}`: {why}",
        "give the family a prefix: `name: family/{{column}}`"),
    "DL508.metric": ("`{key}` would write `{name}`, which is written already: it is left out",
        "log it under another name, or give run-time names a prefix, such as `name: extra/{{column}}`"),
}),
"DL509": Code("a column does not fit", """
    A column of `log_extra` has another length than its batch, holds what no sink could write, came without the rows
    that it describes, or came where a schema says `undeclared: error`: that is raised where it was given. Give one
    plain value per completion, with the rows of its batch and once; declare the column, or `undeclared: keep`.

    In a log event: a declared column holds what its type cannot, or a missing value and is not `nullable: true`. The
    table is left out of this log event, and training goes on.

    ```python
    import declog
    from declog.testing import MemorySink

    profile = {
        "signals": {"text": {"axis": "completion", "type": "text"}},
        "schemas": {"samples": {"text": {"type": "text"}, "extra": {"undeclared": "keep"}}},
        "tables": {"samples": {"schema": "samples"}},
    }
    with declog.start(profile, sinks=[MemorySink()], output_dir="runs") as log:
        try:
            with log.step(0):
                log.observe(text=["a b", "c"])
                log.log_extra("source", ["math", "code", "math"])
        except declog.InputError as error:
            print(error)
    ```
    """, {
    "DL509.given": ("{came} came for {count} completions", "one value per completion, once"),
    "DL509.late": ("it came after its generation was done", "await what gives it"),
    "DL509.name": ("a column is named by text, and {column!r} came", "log_extra('name', values)"),
    "DL509.no_rows": ("the column `{column}` was given for a batch of phase `{phase}` that has no rows",
        "give it with the rows that it describes, once: a column given again opens the next batch"),
    "DL509.null": ("the column `{column}` of the table `{table}` has a missing value and is not nullable",
        "schemas: {...: {{column}: {nullable: true}}}"),
    "DL509.refused": ("the table `{table}` refuses undeclared columns, and `{column}` came",
        "declare it as a signal and in the schema, or `undeclared: keep`"),
    "DL509.reward_count": (
        "the reward function `{name}` returns {came} as the column `{column}`, and {expected} rewards",
        "return one value per reward, None where there is none"),
    "DL509.reward_name": ("the reward function `{name}` returns a column {column!r}, whose name is no text", "name it"),
    "DL509.rows": ("the column `{column}` has {count} values, and the batch has {rows} rows", "give one value per row"),
    "DL509.scalar": ("the column `{column}` needs one value per completion, and {type} came", "give a list"),
    "DL509.signal": ("`{name}` is a signal that the trainer is observed for", "declare a signal of another name"),
    "DL509.tensor": ("the column `{column}` is a tensor that {error}", "convert it to a plain tensor, or give a list"),
    "DL509.twice": ("{what} was given twice for one batch of phase `{phase}`",
        "give each once: under names of their own where several functions do"),
    "DL509.under_way": ("the column `{column}` came when no rows of phase `{phase}` were under way",
        "give it with the rows that it describes"),
    "DL509.value": ("the column `{column}` of the table `{table}` is {type}, and holds what cannot be: {error}",
        "convert it where it is observed"),
    "DL509.values": ("the column `{column}` has {count} values, and the batch has {rows} rows (`{signal}`)",
        "give one value per row"),
}),
"DL510": Code("the recorder is used outside its life", """
    A step inside a step, a step number that repeats or falls, a call after `close`. `with log:`, and in it `with
    log.step(step):` with numbers that rise; a trainer that goes back says so with `log.rewind(step)`.

    ```python
    import declog

    profile = {"signals": {"loss": {"axis": "step"}}, "metrics": {"loss": "mean(loss)"}}
    with declog.start(profile, output_dir="runs") as log:
        for step in (0, 1, 0):
            try:
                with log.step(step):
                    log.observe(loss=0.5)
            except declog.UsageError as error:
                print(error)
    ```
    """, {
    "DL510.actor_rank": ("actor {rank} is not below world_size {world_size}", "pass the number of actors"),
    "DL510.actors": ("the state is of {before} actors, and there are {world_size}", "start as many actors"),
    "DL510.attached": ("declog is attached to this trainer already", "declog.detach(trainer) before"),
    "DL510.bind": ("`bind` is for functions, and this is a generator", "bind what calls it"),
    "DL510.bounds": ("step {step} is out of bounds", "count optimizer steps"),
    "DL510.checkpoints": ("the states are of different checkpoints: their {word} is {shown}", "{fix}"),
    "DL510.closed": ("this recorder is closed", "call declog.start for another run"),
    "DL510.commit": ("`commit` is called, and steps are blocks", 'declog.start(..., steps="commit")'),
    "DL510.driver": ("a driver records nothing: its actors do", "merge what they export"),
    "DL510.entered": ("{scope} is entered twice", "ask the recorder for another one"),
    "DL510.export": ("`export` is for actors", 'declog.start(..., role="actor", rank=, world_size=)'),
    "DL510.tee": ("a {type} is no logger that `tee` knows",
        "give the module `wandb`, a SummaryWriter, or an object with `log(values, step)` or `log_metrics`"),
    "DL510.fork": ("a fork of the run's process has no state", "call it where declog.start was called"),
    "DL510.in_fork": ("process {process} is a fork of the run's: what is observed here is not logged",
        "return the values to the process that called declog.start, and observe them there"),
    "DL510.inside_window": (
        "the state was saved inside a window of {before} ranks, and there are {now}: rows of the others would be lost",
        "resume on {before} ranks or more, or from a checkpoint that was saved where a window ends"),
    "DL510.load": ("`load_state_dict` is called after the first step", "call it before the run"),
    "DL510.merge": ("`merge` is for the driver", 'declog.start(..., role="driver", world_size=)'),
    "DL510.merge_way": ("`merge` is not {name!r}", Known("ways to merge")),
    "DL510.mode": ("the profile `{profile}` has no mode `{name}`", "{fix}"),
    "DL510.nested": ("step {step} begins inside step {open}", "{fix}"),
    "DL510.no_process_group": ("there are several ranks, and no process group",
        "call torch.distributed.init_process_group before declog.start"),
    "DL510.no_state": ("the checkpoint is of {before} ranks, and ranks {missing} were given no state", "{fix}"),
    "DL510.number": ("a step is a whole number, and {step!r} came", "count optimizer steps"),
    "DL510.one_process": "one process has nobody to send to",
    "DL510.other_method": (
        "`{name}` has the metrics of {of}, and {type} trains {method}",
        'declog.attach(trainer, "trl_{method}")',
    ),
    "DL510.other_state": ("rank {rank} was given the state of rank {of}",
        "every rank saves and loads a state of its own; one that the run had not before has none"),
    "DL510.outside": ("`{what}` is called outside a step", "with log.step(step): ..."),
    "DL510.pickle": ("a recorder stays in its process: it holds the run's files and threads",
        "record where declog.start was called; in another process call declog.start(..., role=...)"),
    "DL510.rank": ("rank {rank} is not below world_size {world_size}", "pass the data-parallel rank and size"),
    "DL510.resume": "rank {rank} cannot resume: {error}",
    "DL510.rewind": ("`rewind` is called inside step {step}", "end the step first"),
    "DL510.rises": ("step {step} begins after step {last} has ended: step numbers rise",
        "number steps on from {next}, or say that the trainer goes back: log.rewind({back})"),
    "DL510.role": ("`role: {role}` needs {needed}", "world_size is the number of actors"),
    "DL510.state": ("{came!r} is no state of a recorder",
        "pass what `log.state_dict()` returned, as the trainer's checkpoint kept it: resume=torch.load(path)"),
    "DL510.state_in_step": ("`state_dict` is called inside a step", "call it between two steps"),
    "DL510.state_of": ("this is no state of a recorder: {error}", "pass what `state_dict` returned"),
    "DL510.trainer": ("{type} has no `{needed}`: it is no trainer of transformers",
        "call declog.start, and observe in the loop"),
    "DL510.twice": ("`{name}` is given twice in one call", "give each signal once; calls again for another batch"),
    "DL510.tokenizer": ("`tokenizer` is {type}, which neither decodes nor can be called",
        "a tokenizer, or a function from a list of ids to a list of texts"),
    "DL510.unnamed": ("a value without a name was given: {type}",
        "observe(name=value), or a mapping of names to values"),
    "DL510.version": ("the state has format {version}, and this declog reads {known}",
        "resume with declog {by}, which saved it, or a later one"),
    "DL510.wrap": ("`wrap` cannot use what `{name}` returns: {type}", "{fix}"),
}),
"DL511": Code("rows of two phases cannot be matched", """
    A metric reads values of two phases, and the rows of the later one could not be found in the earlier one: it has
    not come yet, ids are missing or unknown, or the phases had different batches and no ids. Name the rows in every
    phase: `axes: {completion: {ids: row}}`. The metric is left out of this log event, and training goes on.

    ```python
    import declog

    profile = {
        "strict": True,
        "signals": {
            "reward": {"axis": "completion", "phase": "rollout"},
            "advantage": {"axis": "completion", "phase": "update"},
        },
        "metrics": {"together": {"expr": "advantage", "where": "reward > 0"}},
    }
    try:
        with declog.start(profile, output_dir="runs") as log, log.step(0):
            log.observe(reward=[0.0, 1.0])
            log.observe(advantage=[-1.0, 1.0, 0.5])
    except declog.DeclogError as error:
        print(error)
    ```
    """, {
    "DL511.first": ("a batch of phase `{target}` came before any of `{source}`", "observe `{source}` first"),
    "DL511.ids": ("the ids `{ids}` were not observed in phase `{phase}`", "observe them there too"),
    "DL511.missing": "{missing} rows of phase `{target}` have ids `{ids}` that `{source}` does not have",
    "DL511.nothing": "nothing of phase `{source}` came before `{target}`: `{expr}` has no rows to match",
    "DL511.position": (
        "rows of `{target}` and `{source}` cannot be matched by position: a batch of {count} completions, "
        "and batches of {sizes}",
        "name the rows: `axes.completion.ids`"),
    "DL511.twice": (
        "{count} ids `{ids}` stand for several rows of one batch of phase `{phase}`, of which `{expr}` differs",
        "give each completion an id of its own"),
}),
"DL512": Code("a column's function failed", """
    A function that a schema's `call:` names raised an exception, or returned something else than the column's type.
    Where the column is `nullable: true` its value is null there, and that is logged once with the first exception;
    otherwise the table is left out of this log event, and the log has the function's traceback. Correct the function,
    or declare the column nullable.

    ```python
    import declog
    from declog.testing import MemorySink


    @declog.column
    def answer(text: str) -> str:
        return text.split("=")[1]


    profile = {
        "strict": True,
        "signals": {"text": {"axis": "completion", "type": "text"}},
        "schemas": {"samples": {"answer": {"type": "text", "call": "answer"}}},
        "tables": {"samples": {"schema": "samples"}},
    }
    try:
        with declog.start(profile, sinks=[MemorySink()], output_dir="runs") as log, log.step(0):
            log.observe(text=["x = 1", "none"])
    except declog.DeclogError as error:
        print(error)
    ```
    """, {
    "DL512.null": "the column `{column}` of the table `{table}` is null where `{function}` fails: "
        "{count} of {rows} rows, first with {error}",
    "DL512.raised": ("the column `{column}` of the table `{table}`: `{function}` raised {type}",
        "correct the function, or `nullable: true`"),
}),
"DL513": Code("rows belong to no step", """
    A row belongs to the step in which it is observed: in the block of `log.step`, by its code and by tasks that
    are started inside. What is observed outside of any, by a bare thread, by a task whose step has ended, for a
    window that is closed, or what is in a packet that nobody consumes cannot be logged where it belongs. It is
    left out: counted in `log.failures`, reported once with the place of the call, and logged as `declog/dropped` or
    `declog/late`. With `strict: true` it is raised. What runs ahead of its step says which one it is: see
    [asynchronous training](async.md).

    ```python
    import declog

    profile = {"strict": True, "signals": {"loss": {"axis": "step"}}, "metrics": {"loss": "mean(loss)"}}
    with declog.start(profile, output_dir="runs") as log:
        try:
            log.observe(loss=0.5)
        except declog.UsageError as error:
            print(error)
    ```
    """, {
    "DL513.ended": ("observed in {kind} that has ended",
        "{scope} is over: a task that goes on, or runs ahead, says its own step (with log.at(k): ..., or step=k)"),
    "DL513.late": ("rows came for a step whose window is closed",
        "end what contributes to step {step} before its window ends, or give `start` a longer wait_s"),
    "DL513.outside": ("observed outside any step",
        "observe inside `with log.step(k):`; what runs ahead says its step (with log.at(k): ..., or step=k), "
        "and a thread takes it along (declog.bind)"),
    "DL513.partial": ("a window was closed while a scope of one of its steps is open",
        "the one that ends at step {edge} is without what `at` of step(s) {steps} will still record"),
    "DL513.twice": ("a packet was consumed twice in one step: it counts once",
        "step {step} has the rows of {place} already: observe each packet once"),
    "DL513.unbound": ("rows that wait for the next step, and no step ended after them", "end a step after them"),
    "DL513.unopened": ("observed through a handle before its block", "enter {scope} with `with`"),
    "DL513.unused": ("a packet of declog.rows was never observed",
        "log.observe(packet) in a step, or packet.discard() where its rows are dropped on purpose"),
}),
}
