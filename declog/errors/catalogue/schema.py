"""DL2xx: keys and literals."""

from declog.errors.catalogue.code import Code, Known

# fmt: off
CODES = {
"DL201": Code("unknown key", """
    A key that the language does not have at this place. The nearest key is suggested.

    ```yaml
    metrics:
      solved: {expr: reward, whre: reward > 0.5}
    ```
    """, {
    "DL201.deletes_nothing": ("`{name}: null` deletes nothing: there is no such entry in {what}",
        Known("entries of {what}")),
    "DL201.empty_metric": ("`{name}:` without a value is `null`, which would delete the metric, and there is none",
        "for the mean of the signal: `{name}: mean`"),
    "DL201.entry_empty": ("`{name}` is empty: what should be its keys stands beside it",
        "indent the lines below it, two blanks more than `{name}:`"),
    "DL201.key": ("unknown key `{key}`", "{fix}"),
    "DL201.project": ("unknown key `{key}` in [{table}]", Known("keys")),
    "DL201.sink_option": ("the sink kind `{kind}` has no option `{name}`", Known("options")),
}),
"DL202": Code("a value has the wrong type or is not allowed", """
    A literal of the wrong type, or outside what is allowed here. The message names what is allowed.

    ```yaml
    filters:
      some: {kind: random, n: 010}
    ```
    """, {
    "DL202.at_least": ("`{key}` must be at least {least}", "{key}: {least}"),
    "DL202.axis_or_expr": ("a signal has either an `axis` (it is observed) or an `expr` (it is derived)", "{fix}"),
    "DL202.bytes": ("a number of bytes is expected, and {value!r} came", "256MB"),
    "DL202.capture_folder": ("`folder` {wrong}", "folder: capture, or an absolute one"),
    "DL202.combine": ("`combine` joins the values of pieces, and `pool: window` has one",
        "add `pool: batch`, or drop `combine`"),
    "DL202.config_dir": ("`config_dir` of [{table}] is a folder", 'config_dir = "conf"'),
    "DL202.config": ("a profile is a mapping, not a {type}",
        "a preset's name, a YAML file, a mapping, or what `declog.compose` returns"),
    "DL202.decimal_comma": ("`{text}` is a text: a number has a point", "{number}"),
    "DL202.either": ("{message}, or {other}", "{fix}"),
    "DL202.empty": ("`empty` is a number, not {empty!r}", "empty: 0"),
    "DL202.every_multiple": ("`every` must be a multiple of the profile's {period}", "every: {every}"),
    "DL202.every_negative": ("`every` counts optimizer steps and cannot be {every}", "every: 10"),
    "DL202.alias": ("`*{name}` stands inside what it stands for", "write out what is needed"),
    "DL202.expects_nothing": ("nothing is expected here", "value: 0.5, or above, below or counts"),
    "DL202.file_depth": ("maps and lists are nested more than {limit} deep", "write out what is needed"),
    "DL202.file_size": ("the file has {size} bytes; a configuration has at most {limit}", "write out what is needed"),
    "DL202.file_values": ("the file holds more than {limit} values, those that `*` repeats counted each time",
        "write out what is needed"),
    "DL202.filter_option": ("`kind: {kind}` has no `{option}`", "drop `{option}`"),
    "DL202.head_tail": ("of `head` and `tail` at least one is more than 0", "{head: 500, tail: 1500}"),
    "DL202.formula_key": ("a formula has no `{key}`: it is computed from other metrics", "drop `{key}`"),
    "DL202.given_beside_ranks": ("with `ranks`, each of them says what it gives", "ranks: [{...}, {...}]"),
    "DL202.first": ("`first: {first}` is no earlier than `every: {every}` has it", "a smaller number, or drop it"),
    "DL202.healthy": ("`healthy` is the least and the greatest value, in this order", "healthy: [{example}]"),
    "DL202.imports": ("`imports` of [{table}] is a list of modules", 'imports = ["my_package.metrics"]'),
    "DL202.mode_every": ("`every` counts steps and cannot be {every}", "every: end"),
    "DL202.any": ("`any` is a family of numbers per step or per completion",
        "{axis: completion, family: true, any: true}"),
    "DL202.labels": ("`by` names no label", "by: source"),
    "DL202.signal_twice": ("the signal `{name}` is declared twice", "write it once, under its phase or without"),
    "DL202.no_axis": ("`{words}` does not say what the signal has one value per: step, group, completion or token",
        "{fix}"),
    "DL202.word": ("`{word}` says nothing of a signal", "{fix}"),
    "DL202.no_map": ("a profile is a map, not {type}", "write `metrics: {...}`"),
    "DL202.node": ("the node `{group}` is {kind}; a profile is a mapping", "defaults: [{group}: grpo]"),
    "DL202.one_of": ("`{key}` must be {one_of}{names}", "{fix}"),
    "DL202.one_source": ("a column has one of {shown}, not both", "drop one of them (null)"),
    "DL202.outside": ("`{key}: {text}` is outside of the run's folder, and {package}'s preset asks for it",
        "where it is wanted, say it in a file of your own, or as an override"),
    "DL202.pattern": ("the pattern cannot be read: {error}", "{fix}"),
    "DL202.profiles": ("`profile` names one, and selections are `profiles`", "profiles: {mine: [reward, kl]}"),
    "DL202.role": ("`role` is of a text: messages say theirs", "drop it"),
    "DL202.signal_beside": ("`{name}` stands beside `{key}`: signals then stand under `observe`",
        "observe: {{name}: ...}"),
    "DL202.sink_dir": ("`dir` {wrong}", "dir: {sink}, or an absolute one"),
    "DL202.sink_flag": ("a sink is a map of its options", "sinks: [{name}] chooses it; or `{name}: {kind: {name}}`"),
    "DL202.sink_option": ("the option `{name}` of the sink kind `{kind}` must be {reasons}, not {value!r}", "{fix}"),
    "DL202.task_expects": ("what a task of a step gives is logged with the step", "expect it of the step"),
    "DL202.task_place": ("a task is `at` a step, or in a `mode`, which may have a `step`", "drop one of them"),
    "DL202.task_mode": ("the mode `{mode}` has steps of its own (`every: {every}`), and is no task's",
        "give it as a step"),
    "DL202.test_ranks": ("this step is of {ranks} rank(s), and another one of {others}",
        "say what each rank gives, in every step"),
    "DL202.steps_or_step": ("a test has `steps`, or is one step itself", "move it into `steps: [...]`"),
    "DL202.test_expects_nothing": ("nothing is expected, so that nothing can fail", "expect: {reward: 0.5}"),
    "DL202.test_gives_nothing": ("nothing is given", "observe: {rewards: {...}}"),
    "DL202.tag": ("a tag is one word, and `{tag}` is several", "tags: [{tags}]"),
    "DL202.take_within": ("`take: group` chooses among groups, and cannot choose within one", "within: step"),
    "DL202.tokens_only": ("`{key}` is of columns of tokens", "type: tokens, or drop `{key}`"),
    "DL202.tokens_option": ("a column of tokens has no `{key}`", "{fix}"),
    "DL202.text_only": ("`max_chars` and `redact` are for text", "drop them"),
    "DL202.toml": ("the file is no TOML: {error}", "correct it"),
    "DL202.value": ("{cause}", "{fix}"),
    "DL202.shell": ("`{word}` is a shell's word, which YAML leaves as it is", "{key}: {text}"),
    "DL202.too_deep": ("maps and lists are nested more than {limit} deep", "flatten them"),
    "DL202.too_many": ("maps and lists hold more than {limit} values", "make it smaller"),
    "DL202.train_every": ("the mode `train` logs as the profile says", "set the profile's `every`"),
    "DL202.trainer_every": ("the trainer says when it logs: there is no other `every`", "drop it"),
    "DL202.type": ("`{key}` must be {noun}", "{key}: {example}"),
}),
"DL203": Code("a required key is missing", """
    An entry lacks a key without which it means nothing. Add the key.

    ```yaml
    filters:
      some: {kind: random}
    ```
    """, {
    "DL203.alert": ("an alert has `when`, or a `metric` with `above` or `below`", 'when: "kl > 0.2"'),
    "DL203.column_type": ("the column `{name}` has a `call` and no `type`", "type: text"),
    "DL203.constant": ("the constant `{name}` has no value", "constants: {{name}: {default: ...}}"),
    "DL203.expr": ("`expr` names no expression", "expr: [confidence, correct]"),
    "DL203.filter_option": ("`kind: {kind}` needs `{needed}`", "add `{needed}:`"),
    "DL203.key": ("`{key}` is required here", "add `{key}:`"),
    "DL203.sink_option": ("the sink kind `{kind}` needs the option `{name}`", "add `{name}:`"),
    "DL203.token_mask": ("`{name}` is per token, and nothing says which of its tokens exist: padding would count",
        "{fix}  or  axes: {token: {mask: all}}, where every token exists"),
    "DL203.top_bottom": ("`kind: top_bottom` needs `top` or `bottom`", "add `top: 2`"),
    "DL203.trace": ("`as: trace` shows conversations, and the schema `{schema}` has no column of those",
        "a column of `type: object`, whose values are lists of messages, or of text with a `role: user`"),
}),
"DL204": Code("an entry's id is not an identifier", """
    An id holds something else than lower-case letters, digits and `_`; Hydra could not address it. Give it an
    identifier, and what trackers show as its `name`.

    ```yaml
    metrics:
      rewards/median: p50(reward)
    ```
    """, {
    "DL204.id": ("`{key}` is not an id: ids are lower-case letters, digits and _", "{fix}"),
    "DL204.text": ("the key `{key}` is no text", 'put it in quotes: "{key}"'),
    "DL204.word": ("`{key}` is a word of the language", "call it `{key}_value`"),
}),
"DL205": Code("this part of the language is not executed yet", """
    The language has this, and this version does not execute it. Drop it, or take the alternative that the message
    names. README.md lists what is refused today.

    ```yaml
    signals:
      answers: {axis: completion, type: text, family: true}
    ```
    """, {
    "DL205.fold_call": ("`{item}` in a per-token expression is not executed yet", "{fix}"),
    "DL205.fold_family": ("a family in a per-token expression is not executed yet", "{fix}"),
    "DL205.nan": ("`nan: {nan}` is not executed yet for `{reduction}` over tokens", "drop `nan`"),
    "DL205.text_family": ("a family of text is not executed yet", "declare one signal per member"),
    "DL205.token_family": ("a family per token is not executed yet", "declare one signal per member"),
}),
}
