"""DL1xx: what Hydra composes."""

from declog.errors.catalogue.code import Code, Known

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
    "DL101.append": ("nothing is appended to a list: `{key}` is given whole", "{fix}"),
    "DL101.circle": ("the defaults lists lead in a circle", "let no preset extend one that extends it"),
    "DL101.composed": ("overrides go with a preset's name or a file; this configuration is composed already",
        "put what they change into the configuration, or on its command line"),
    "DL101.curly": ("quotes are plain ones, and these are not: {marks}", "{fix}"),
    "DL101.default": ("there is no `{name}` in the group {group}", "{fix}"),
    "DL101.defaults": ("the defaults list is malformed: {cause}", "defaults: [grpo, _self_]"),
    "DL101.empty_application": ("nothing of `{name}` stands under `{group}`", "defaults: [{group}: grpo, _self_]"),
    "DL101.empty_preset": ("nothing of the preset `{name}` stands under `{group}`",
        "write at least one key of a profile, such as `defaults: [grpo, _self_]`"),
    "DL101.folder_of_file": ("`config_dir` is for presets by name; a file is found as it is", "leave it out"),
    "DL101.hydra": "{cause}",
    "DL101.hydra_key": ("`{line}` is for an application that Hydra runs", "{fix}"),
    "DL101.index": ("keys are joined by dots", "{fix}"),
    "DL101.key_to_add": ("there is no key `{name}` {place}; + adds {added}", "{fix}"),
    "DL101.keys_to_add": ("{key} is a map, and has no `{names}`: + adds a key to it", "{fix}"),
    "DL101.list_as_map": ("{key} is a list, which cannot become a mapping", "{key}=[...]"),
    "DL101.list_group": ("a group that holds a list of options cannot be deleted", "{group}=[]"),
    "DL101.map_as_list": ("{key} is a mapping, which cannot become a list", "{fix}"),
    "DL101.merged": ("`{key}` is a {what} here and a {other} in an earlier layer", "{fix}"),
    "DL101.no_config": ("there is no configuration `{name}` in {folder}", "{fix}"),
    "DL101.no_file": ("there is no file {name}", "{fix}"),
    "DL101.no_folder": ("there is no directory {folder}", "give the directory that holds your `declog` folder"),
    "DL101.no_group": ("there is no group `{name}`", "{fix}"),
    "DL101.no_key": ("there is no key `{name}` {place}", "{fix}"),
    "DL101.no_list": ("`defaults` must be a list", "defaults: [{option}, _self_]"),
    "DL101.no_map": ("{key} is `{value}` here, which has no keys", "set the whole entry: {entry}"),
    "DL101.no_node": ("this configuration has no node `{group}`: no preset is chosen",
        "defaults: [{group}: grpo, _self_]"),
    "DL101.no_option": ("there is no `{name}` in the group {group}", Known("options")),
    "DL101.no_package": ("there is no package `{name}`{error}", "pip install what has it: pkg://acme_logging.conf"),
    "DL101.no_override": ("this is no override", "an override is key=value, +key=value or ~key"),
    "DL101.no_such_config": ("there is no configuration `{name}`", "{fix}"),
    "DL101.no_value": ("this override has no value", "{line}=..."),
    "DL101.not_chosen": ("nothing is chosen of the group {group} yet: add it", "{fix}"),
    "DL101.null_already": ("{key} is null already: an earlier layer deleted it", "leave this override out"),
    "DL101.overrides": ("overrides are a list of texts, and a {type} came", "{fix}"),
    "DL101.package_header": ("this line takes the preset `{name}` out of the node `{group}`",
        "delete it, and write the keys of a profile at the top, without `{group}:`"),
    "DL101.quotes": ("Hydra cannot read `{value}` without quotes", "{fix}"),
    "DL101.quotes_inside": ("inside [...] and {...}, Hydra wants a text that is more than words in quotes", "{fix}"),
    "DL101.renamed": ("`{name}` is called `{new}` now", "{fix}"),
    "DL101.ring": ("`{name}` extends itself: {ring}",
        "give your own preset another name than the one it extends, or extend another"),
    "DL101.sink_not_chosen": ("the sink `{name}` is not chosen", "{fix}"),
    "DL101.slash": ("a key cannot hold `/`: `{name}` may be the entry's `name`, its id is an identifier", "{fix}"),
    "DL101.star": ("an override is of one key, and `*` is none",
        "one override for each key; in a file, what entries share is an anchor, `<<: *name`"),
    "DL101.suffix": ("Hydra reads files that end in .yaml, not {file}", "mv {name} {yaml}"),
    "DL101.sweep": ("`{value}` is a sweep over several values, which needs --multirun; a list has brackets",
        "{key}=[{value}]  or  {text}"),
    "DL101.there_already": ("{key} is there already, and + only adds", "{fix}"),
    "DL101.two_packages": ("`{name}` is shipped by {packages}",
        "uninstall one of them, or let its package call it something else"),
    "DL101.two_presets": ("`{name}` is shipped by {packages}", "name one of them: {fix}"),
    "DL101.unreadable": "Hydra cannot read this value: {cause}",
    "DL101.utf8": ("this character is no text in UTF-8", "save the file as UTF-8"),
    "DL101.yaml": "this is not valid YAML: {cause}",
    "DL101.yaml_alias": ("this is not valid YAML: `*` is a reference, and nothing is called `&{name}`",
        "put the text in quotes: '*{name}'"),
    "DL101.yaml_comment": ("this is not valid YAML: a comment begins with #", "{fix}"),
    "DL101.yaml_escape": ("this is not valid YAML: inside double quotes a backslash is YAML's own",
        "single quotes leave it alone: '{value}'"),
    "DL101.yaml_tag": ("this is not valid YAML: `!` begins a tag", "write `not {word}`"),
    "DL101.yaml_bracket": ("this is not valid YAML: this `{bracket}` is not closed", "close it with `{closing}`"),
    "DL101.yaml_colon": ("this is not valid YAML: a colon and a space start a map, and this is inside a text", "{fix}"),
    "DL101.yaml_first": ("this is not valid YAML: a text cannot begin with `{char}` in YAML", "put the text in quotes"),
    "DL101.yaml_indentation": ("this is not valid YAML: this line is not indented as those above it",
        "give all keys of one map the same indentation"),
    "DL101.yaml_missing": ("this is not valid YAML: inside braces and brackets, ??? needs quotes", "'???'"),
    "DL101.yaml_no_colon": ("this is not valid YAML: a line without a colon between lines that have one",
        "a key needs a colon and a space behind it"),
    "DL101.yaml_quote": ("this is not valid YAML: this quote is not closed",
        "close it; a quote inside single quotes is written twice"),
    "DL101.yaml_tab": ("this is not valid YAML: YAML does not take a tab as indentation", "indent with spaces"),
    "DL101.yaml_twice": ("this is not valid YAML: the key `{name}` stands here a second time", "keep one of the two"),
    "DL101.yaml_question": ("this is not valid YAML: inside {...} and [...], a text that ends in `?` needs quotes",
        "{fix}"),
    "DL101.yaml_unquoted": ("this is not valid YAML: inside {...} and [...], a text with {, }, [, ], a comma, `: ` or "
        "` #` in it needs quotes", "{fix}"),
}),
"DL102": Code("a value is still missing (???)", """
    A key is still `???`, which stands for a value that somebody has to give. Give it in a file or as an override.

    ```yaml
    tables:
      worst: {rows: completion, schema: "???"}
    ```
    """, {
    "DL102.node": ("the node `{group}` has no value yet (???)", "choose a preset: {group}=grpo"),
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
    "DL103.env": ("there is no `${env:...}`", "${oc.env:{name}}"),
    "DL103.hydra_key": ("`{key}` is no key of the configuration: Hydra answers behind a colon, in an application",
        "${hydra:{inner}}; without `output_dir` a run has a folder of its own"),
    "DL103.hydra": "{cause}",
    "DL103.itself": ("{key} refers to what it is a part of", "name a key beside it, not one above it"),
    "DL103.no_key": ("there is no key `{key}`", "an interpolation starts at the top of the whole configuration"),
    "DL103.open": ("this `${` is not closed", "close it with `}`, or write \\${ for a text that holds it as it is"),
    "DL103.other_key": ("there is no key `{key}`", "did you mean `${close}`?"),
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
    "DL104.option": ("there is no `{name}` in the group {group}{notes}", "{fix}"),
    "DL104.preset": ("there is no preset `{name}`{notes}", "{fix}"),
}),
}
