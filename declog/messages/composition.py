"""DL1xx: what Hydra composes."""

from declog.messages.code import Code

# fmt: off
CODES = {
"DL101": Code("Hydra could not compose the configuration", """
    A file, a group or an override that Hydra refuses: a key that is not there, a value that needs quotes, a group
    without such an option, broken YAML. The message points at the override or the line; [Edits from the
    shell](hydra.md) shows the shape of awkward ones.

    ```sh
    python train.py '+declog.metrics.median=p50(reward)'
    ```
    """, {
    "DL101.circle": ("the defaults lists lead in a circle", "let no preset extend one that extends it"),
    "DL101.composed": ("overrides go with a preset's name or a file; this configuration is composed already",
        "put what they change into the configuration, or on its command line"),
    "DL101.defaults": ("the defaults list is malformed: {cause}", "defaults: [grpo, _self_]"),
    "DL101.empty_preset": "nothing of the preset `{name}` stands under `{group}`",
    "DL101.merged": ("`{key}` is a {what} here and a {other} in an earlier layer", "{fix}"),
    "DL101.folder_of_file": ("`config_dir` is for presets by name; a file is found as it is", "leave it out"),
    "DL101.no_file": ("there is no file {name}", "{fix}"),
    "DL101.suffix": ("Hydra reads files that end in .yaml, not {file}", "mv {name} {yaml}"),
    "DL101.no_config": ("there is no configuration `{name}` in {folder}", "{fix}"),
    "DL101.no_folder": ("there is no directory {folder}", "give the directory that holds your `declog` folder"),
    "DL101.no_node": ("this configuration has no node `{group}`: no preset is chosen",
        "defaults: [{group}: grpo, _self_]"),
    "DL101.overrides": ("overrides are a list of texts, not one text", "[{overrides!r}]"),
    "DL101.two_packages": ("`{name}` is shipped by {packages}",
        "uninstall one of them, or let its package call it something else"),
    "DL101.utf8": ("this character is no text in UTF-8", "save the file as UTF-8"),
    "DL101.yaml": ("this is not valid YAML: {cause}", "{fix}"),
}),
"DL102": Code("a value is still missing (???)", """
    A key is still `???`, which stands for a value that somebody has to give. Give it in a file or as an override.

    ```yaml
    tables:
      worst: {rows: completion, schema: "???"}
    ```
    """, {
    "DL102.node": "the node `{group}` has no value yet (???)",
    "DL102.value": ("{key} has no value yet (???)", "give one: {full}=..."),
}),
"DL103": Code("an interpolation does not resolve", """
    `${...}` names a key that is not there, or goes round in a circle. Correct its path; it starts at the top of the
    whole configuration.

    ```yaml
    metrics:
      here: {expr: reward, name: "${name}/reward"}
    ```
    """, {
    "DL103.brings_too_much": ("interpolations bring in more than {limit} values", "refer to less"),
    "DL103.itself": "{key} refers to what it is a part of",
    "DL103.no_key": ("there is no key `{key}`", "{fix}"),
    "DL103.reads_too_much": ("this interpolation reads more than {limit} values", "refer to less"),
    "DL103.unreadable": ("this cannot be read as an interpolation", "a text that holds ${ needs \\${"),
}),
"DL104": Code("no such preset", """
    `declog=NAME` or `compose(NAME)` names no preset. `declog.presets()` lists them; a preset of one's own is
    `declog/NAME.yaml` in a configuration folder.

    ```yaml
    defaults: [gpro, _self_]
    ```
    """, {
    "DL104": ("there is no preset `{name}`", "{fix}"),
}),
}
