"""DL4xx: names, references and what a plan may hold."""

from collections.abc import Mapping

from declog.errors.catalogue.messages import Known, Message

# fmt: off
MESSAGES: Mapping[str, Message] = {
    "DL401.empty": ("the selector is empty", "select: 'tag:core'"),
    "DL401.outputs": ("`{word}` matches nothing", "{fix}"),
    "DL401.tables": ("`{word}` matches no table", "{fix}"),

    "DL402.columns": ("the columns `{other}` and `{name}` are both {what}", "{fix}"),
    "DL402.tokens": ("`tokens` are the pieces of text themselves", "another name"),
    "DL402.constant": ("`{name}` is a signal and a constant; they share one namespace", "rename one of them"),
    "DL402.phases": ("`{name}` is declared in `{first}` and in `{other}` with another `{key}`",
        "declare it alike in both, or delete it in one: {other}.{name}: null"),
    "DL402.places": ("`{name}` stands in `{first}` and in `{other}`", "delete one of them: {other}.{name}: null"),
    "DL402.metric": ("`{name}` is declared under signals too",
        "drop `observe` here: the metric's default expression is the signal of its id"),
    "DL402.mode_name": ("the mode `{mode}` would write `{taken}`, which is a name of the mode `{other}`", "{fix}"),
    "DL402.modes": ("the modes `{other}` and `{mode}` would write the same names", "{fix}"),
    "DL402.outputs": ("`{other}` and `{key}` both write `{template}`",
        "give one of them another `name`, or put {{reduce}} into it"),

    "DL403.about": ("there is no metric `{name}` to describe", Known("metrics")),
    "DL403.config_dir": ("[{table}] says `config_dir = {name!r}`, and there is no such folder in {folder}",
        "correct it, or make the folder"),
    "DL403.name": ("unknown {noun} `{name}`", Known("{noun}s")),
    "DL403.imports": ("[{table}] imports `{name}`, which cannot be imported: {error}",
        "correct the name, or the module"),
    "DL403.kind": ("{cause}", "{fix}"),
    "DL403.metric": ("the config logs nothing as `{name}`", Known("metrics")),
    "DL403.none": ("there is no {noun} `{name}`", Known("{noun}s")),
    "DL403.module": ("`{kind}` names a module, and a config imports none",
        '[tool.declog] imports = ["{module}"] in your pyproject.toml, or declog.start(..., sinks=[...])'),
    "DL403.sink_to_add": ("the config has no sink `{name}`", "add it: sinks: [..., {name}]"),

    "DL404.empty": ("the name is empty", "drop `name`: the default is the id"),
    "DL404.field": ("`{field}` is not known in a name", "{fix}"),
    "DL404.format": ("`{form}` is no format of a number", "{{name}:.3f}"),
    "DL404.has": ("the name `{template}` has {field}, and {why}", "{key}: {right}"),
    "DL404.lacks": ("{what}, and the name `{template}` has no {field}", "{key}: {right}"),
    "DL404.text": ("the text cannot be read: {error}", "a brace of the text itself is {{ or }}"),
    "DL404.unreadable": ("the name `{template}` cannot be read: {error}", "{{id}}/{{reduce}}"),

    "DL405.rank_0": ("a sink of the kind `{kind}` writes on rank 0 only", "of {able}: each"),
    "DL405.size": ("{message}: the sink `{sink}` is not given so much",
        "give it a filter or `max_bytes`, or send it to file sinks only"),
    "DL405.tables": ("the sink `{sink}` takes no tables", "send it to another sink"),

    "DL406": ("`{name}` is pinned to {value!r}, and the trainer has {given!r}",
        "constants: {{name}: {default: {value!r}}}"),

    "DL407.used": ("the {noun} `{name}` was deleted, and is used here", "delete what uses it, or keep {how}"),
    "DL407.removed": ("`{name}` completes a {what} that {homes} no longer has: declog.lock has it, of {before}",
        "delete it, or write all of it{near}"),
    "DL407.section": ("`{section}:` is empty here, which deletes all its entries in the presets",
        "delete the line, or write entries below it, indented"),

    "DL408.renamed": ("`{name}` is called `{new}` now{by}", "write `{new}`: `declog check --fix` does"),
}
