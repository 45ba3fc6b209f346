"""Sinks, profiles and output names: the values that each sink shows, and so the values that are needed."""

from __future__ import annotations

import difflib
import fnmatch
import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import PurePosixPath

from declog import sinks
from declog.compiler.draft import Draft, op_of
from declog.compiler.fixes import suggestions
from declog.compiler.formulas import condition
from declog.compiler.scopes import FACTS
from declog.errors import Path, Problem, SinkError, did_you_mean, elsewhere, in_flow, nearest
from declog.errors.elsewhere import SYNONYMS
from declog.language.fixes import other_tools
from declog.language.fixes.lists_as_maps import selector_of
from declog.language.nodes import Node, members_of
from declog.language.spec import ProfileSpec, SelectorSpec, SinkSpec
from declog.plans.needs import inputs, read
from declog.plans.ops import PREFERRED, FormulaOp, MetricOp, ProfileOp, SinkOp

Output = tuple[str, bool]
Names = tuple[str, bool, str]  # an output, and a glob of the names of its members or labels
Choice = tuple[Output | str, str]  # an output or a table's id, and such a glob
Rules = dict[Output | str, list[tuple[str, bool]]]  # by output or table: globs of names, and whether these are shown
EVERY = "*"


def names(draft: Draft) -> None:
    """Report outputs with equal names; a family member that takes a declared name is refused at run time."""
    seen: dict[str, MetricOp | FormulaOp] = {}
    for op in draft.outputs:
        for item in op.names if op.shown and not draft.implicit(op.id) else ():
            of_members = isinstance(op, MetricOp) and op.family and not op.labels and members_of(*op.args) is not None
            for name in _globs(op, item.template) if of_members else [item.template]:
                other = seen.setdefault(name, op)
                if other.key != op.key and not _of_other_members(op, other):
                    draft.report(
                        "DL402.outputs", ("metrics", op.id, "name"), related=(("metrics", other.id),),
                        other=other.key, key=op.key, template=name,
                    )  # fmt: skip


def _of_other_members(one: MetricOp | FormulaOp, other: MetricOp | FormulaOp) -> bool:
    """Whether one of two metrics covers the family members that match a pattern, and the other those that do not."""
    if not (isinstance(one, MetricOp) and isinstance(other, MetricOp) and one.args and other.args):
        return False
    (first, *_), (second, *_) = one.args, other.args
    alike = first.args == second.args and first.params == second.params
    return alike and {first.op, second.op} == {"only", "without"}


def modes(draft: Draft) -> None:
    """Report modes with equal prefixes, and metrics whose name is that of another in a mode: one curve for two."""
    writers: dict[str, tuple[str, str]] = {}
    templates = {item.template: op.id for op in draft.outputs if op.shown for item in op.names}
    prefixes: dict[str, str] = {}
    for mode in draft.modes.values():
        other = prefixes.setdefault(mode.prefix, mode.name)
        taken = next((mode.prefix + name for name in templates if mode.prefix + name in writers), None)
        if other == mode.name and taken is None:
            writers |= {mode.prefix + name: (mode.name, id) for name, id in templates.items()}
            continue
        name = mode.name if mode.name in draft.spec.modes and mode.name != "train" else other
        fix = f"prefix: {name}/" if mode.prefix != f"{name}/" else f"prefix: {name}_"
        path = ("modes", name, *(("prefix",) if draft.spec.modes[name].prefix else ()))
        if other != mode.name:
            draft.report("DL402.modes", path, other=other, mode=mode.name, fix=fix)
        elif taken is not None:
            of_other, metric = writers[taken]
            draft.report(
                "DL402.mode_name", ("metrics", metric), related=(path,), metric=metric, mode=mode.name, taken=taken,
                same=templates[taken.removeprefix(mode.prefix)], other=of_other,
            )  # fmt: skip


def _options_of(text: str) -> str | None:
    """The fix for `console, wandb`, `wandb:my-project` and `logs/run.jsonl`, where a kind of sink must stand alone.

    None if the text contains no kind.
    """
    kinds, words = sinks.known_kinds(), re.split(r"\W+", text)
    named = [word for word in words if word in kinds]
    meant = [nearest(word, kinds) for word in words] if named and re.fullmatch(r"[\w, +]+", text) else named
    if len(meant) > 1 and None not in meant:
        return f"sinks: {in_flow(list(dict.fromkeys(meant)))}"
    kind = next(iter(named), None)
    return None if kind is None else f"the kind alone, `{kind}`; its options are keys of `sink_options.{kind}`"


def _without(text: str, listed: Sequence[str]) -> str | None:
    """The fix for `-wandb` in the list of sinks: the list without this sink; None for another text."""
    match = re.fullmatch(r"[-~!](\w+)", text)
    if match is None:
        return None
    names = [name for name in listed if name not in (text, match[1])]
    return f"sinks: {in_flow(names or ['console', 'jsonl'])}" + ("" if names else ": a list names those that are used")


def _of_option(draft: Draft, sink: str, problem: Problem) -> Problem:
    """The problem of a sink's option, with a better fix if no sink has such an option."""
    if problem.code not in ("DL201", "DL202"):
        return problem
    data = draft.spec.model_dump(include={"sinks", "sink_options", "metrics"})
    name = str(problem.path[0])
    fix = other_tools.of_sink_option(sink, name, data)
    if fix is None and problem.code == "DL201" and (word := SYNONYMS.get(name)) in SinkSpec.model_fields:
        fix = f"{word}: {in_flow(data['sink_options'][sink][name])}"
    if fix is None and problem.code == "DL201" and not str(problem.fix).startswith("did you mean"):
        fix = did_you_mean(name, SinkSpec.model_fields, what="options of every sink", otherwise=str(problem.fix))
    return problem if fix is None else replace(problem, fix=fix)


def destinations(draft: Draft) -> None:
    """Compile the sinks, and check the options of their kinds."""
    for name in dict.fromkeys(draft.spec.sinks):
        spec = draft.spec.sink_options.get(name, SinkSpec())
        here = ("sink_options", name) if name in draft.spec.sink_options else ("sinks", draft.spec.sinks.index(name))
        kind = spec.kind or name
        options = dict(spec.model_extra or {})
        module, colon, _ = kind.partition(":")
        at = (*here, "kind") if spec.kind else here
        if colon and module not in draft.imports:
            imported = f'[tool.declog] imports = ["{module}"] in your pyproject.toml, or declog.start(..., sinks=[...])'
            draft.report("DL403.module", at, kind=kind, fix=_options_of(kind) or imported)
            continue
        try:
            accepts = sinks.sink_class(kind).accepts
        except SinkError as error:
            plain = _without(kind, draft.spec.sinks) or _options_of(kind) or elsewhere.keys().get(f"sinks.{kind}")
            fix = plain or error.fix or did_you_mean(kind, sinks.known_kinds(), what="kinds")
            draft.report("DL403.kind", at, cause=error.message, fix=fix)
            continue
        draft.problems += [_of_option(draft, name, problem).at(*here) for problem in sinks.check_options(kind, options)]
        options = {key: value for key, value in options.items() if value is not None}
        per_rank = sinks.traits(kind).per_rank
        if spec.ranks == "each" and kind in sinks.built_in() and not per_rank:
            able = [other for other in sinks.built_in() if sinks.traits(other).per_rank]
            draft.report("DL405.rank_0", (*here, "ranks"), kind=kind, able=", ".join(able))
        profile = spec.profile or draft.spec.profile
        if profile not in (specs := _specs(draft)):
            if spec.profile:  # the one from the config is reported once, below
                draft.report("DL403.name", (*here, "profile"), noun="profile", name=profile, known=specs)
            continue
        draft.sinks.append(op_of(
            SinkOp, spec, id=name, kind=kind, options=tuple(options.items()), profile=profile, accepts=accepts,
            ranks=spec.ranks or ("each" if per_rank else "main"),
        ))  # fmt: skip


WRITTEN = frozenset({"scalars", "histograms", "alerts", "tables", ".scratch"})  # names of files that file sinks make


def places(draft: Draft) -> None:
    """Check folders of sinks: a relative one stays in the run's folder, and no two sinks write to one."""
    folder = draft.spec.run.capture.folder
    if folder is not None and (wrong := leaving(folder)) is not None:
        draft.report("DL202.capture_folder", "run.capture.folder", wrong=wrong)
    taken: dict[str, str] = {}
    for op in draft.sinks:
        folder_of = dict(op.options).get("dir")
        text = folder_of if isinstance(folder_of, str) else op.id
        if (wrong := leaving(text)) is not None:
            draft.report("DL202.sink_dir", ("sink_options", op.id, "dir"), wrong=wrong, sink=op.id)
        elif sinks.traits(op.kind).in_folder:  # some file systems do not distinguish upper and lower case
            here = posixpath.normpath(text).casefold()
            for other, name in taken.items():
                if _collide(here, other) or _collide(other, here):
                    draft.report(
                        "DL609.sinks", ("sinks", draft.spec.sinks.index(op.id)), other=name, sink=op.id, folder=text
                    )
            taken[here] = op.id


def leaving(folder: str) -> str | None:
    """The problem of a folder that leaves the run's folder, or has a NUL; None for one inside, or an absolute path."""
    if "\0" in folder:
        return "holds a NUL character, which no folder's name can have"
    if ".." in PurePosixPath(folder).parts and not PurePosixPath(folder).is_absolute():
        return f"leaves the run's folder: {folder}"
    return None


def _collide(inner: str, outer: str) -> bool:
    """Whether a sink in ``inner`` would meet files of the sink in ``outer``."""
    if inner == outer:
        return True
    below = inner.removeprefix("" if outer == "." else f"{outer}/")
    first = below.partition("/")[0]
    return (below != inner or outer == ".") and (first in WRITTEN or re.fullmatch(r"rank\d+", first) is not None)


SLIM = [SelectorSpec(select="tag:core")]


def profiles(draft: Draft) -> None:
    """Resolve the selectors of all profiles; the active profiles decide what is compiled."""
    active = {sink.profile for sink in draft.sinks} | draft.requested
    if not draft.sinks and not draft.requested:
        active.add(draft.spec.profile)
    specs = _specs(draft)
    if draft.spec.profile not in specs:
        draft.report("DL403.name", "profile", noun="profile", name=draft.spec.profile, known=specs)
    for name, spec in specs.items():
        if name in active or name in draft.spec.profiles:
            profile = _profile(draft, name, spec)
            draft.profiles |= {name: profile} if name in active else {}


def _specs(draft: Draft) -> dict[str, ProfileSpec]:
    """The profiles by name; `full` and `slim` exist even if they are not declared."""
    return {"full": ProfileSpec(), "slim": ProfileSpec(), **draft.spec.profiles}


def _profile(draft: Draft, name: str, spec: ProfileSpec) -> ProfileOp:
    """Compile a profile to rules for names. The last rule that fits a name decides.

    The order of rules is `only`, `hide` by pattern, `show` by pattern, `hide` by name, `show` by name. So a pattern in
    `show` does not bring back a metric that `hide` names.
    """
    only = spec.only
    if name == "slim" and only is None:
        only = SLIM if any(_matching(draft, SLIM[0].select)) else []
    by_table = any(word.startswith("table:") for item in only or () for word in item.select.split())
    closed = only is not None and not any(item.select == EVERY and item.when is None for item in only)
    conditions: list[tuple[frozenset[Names], Node, bool]] = []

    def selected(key: str, selectors: Sequence[SelectorSpec]) -> tuple[set[Choice], set[Choice]]:
        """The choices of selectors by pattern, and their choices by name."""
        by_pattern, by_name = set[Choice](), set[Choice]()
        for index, selector in enumerate(selectors):
            path = ("profiles", name, key, index)
            words = {word: _select(draft, word, path) for word in selector.select.split()}
            if not words:
                draft.report("DL401.empty", path)
            if selector.when is not None:
                node = condition(draft, selector.when, (*path, "when"))
                of_selector = frozenset[Names]().union(*(outputs_of for outputs_of, _ in words.values()))
                conditions.extend([] if node is None else [(of_selector, node, key == "hide")])
            if selector.when is None or key != "hide":  # a condition hides only while it holds
                for word, (outputs_of, tables_of) in words.items():
                    choices = by_pattern if is_pattern(word) else by_name
                    choices |= {((output, alias), glob) for output, alias, glob in outputs_of}
                    choices |= {(table, EVERY) for table in tables_of}
        return by_pattern, by_name

    chosen, hidden = set[Choice]().union(*selected("only", only or ())), selected("hide", spec.hide)
    always = len(conditions)
    shown = selected("show", spec.show)
    every: Rules = {
        (op.key, item.alias): [(EVERY, not closed)] for op in draft.outputs if op.shown for item in op.names
    }
    active = draft.active("tables")
    every |= {table: [(EVERY, table in active and not (closed and by_table))] for table in draft.spec.tables}
    said = [(chosen if closed else set(), True), (hidden[0], False)]
    rules = _with_rules(every, [*said, (shown[0], True), (hidden[1], False), (shown[1], True)])
    adds = not spec.show or always < len(conditions) or rules != _with_rules(every, [*said, (hidden[1], False)])
    some = [(of, tuple(globs)) for of, globs in sorted(rules.items(), key=str) if any(verdict for _, verdict in globs)]
    return ProfileOp(
        name=name,
        outputs=frozenset(of for of, _ in some if isinstance(of, tuple)),
        tables=frozenset(of for of, _ in some if isinstance(of, str)),
        names={of: globs for of, globs in some if isinstance(of, tuple) and len(globs) > 1},
        hides=frozenset(of for of, _ in hidden[0] | hidden[1] if isinstance(of, tuple)),
        conditions=tuple(conditions),
        runtime=not closed,
        self_metrics=spec.self_metrics,
        idle=not adds,
    )


def _with_rules(rules: Rules, further: Iterable[tuple[set[Choice], bool]]) -> Rules:
    """The rules, and behind them a rule for each choice, which shows it or not; no rule for what it does not change."""
    rules = dict(rules)
    for choices, shown in further:
        for of, glob in sorted((choice for choice in choices if choice[0] in rules), key=str):
            before = next(
                verdict for other, verdict in reversed(rules[of])
                if other in (glob, EVERY) or (verdict is not shown and _meet(other, glob))
            )  # fmt: skip
            if before is not shown:
                rules[of] = [*(rules[of] if glob != EVERY else ()), (glob, shown)]
    return rules


def is_pattern(word: str) -> bool:
    """Whether a word of a selector is a pattern or a tag, and not a name."""
    return word.startswith("tag:") or not {*"*?["}.isdisjoint(word)


def _select(draft: Draft, word: str, path: Path) -> tuple[set[Names], set[str]]:
    """The outputs and the tables that a word of a selector names."""
    glob = word.removeprefix("table:")
    if glob != word:
        tables = set(fnmatch.filter(draft.spec.tables, glob))
        if not tables and not fnmatch.filter(draft.spec.deleted, f"tables.{glob}"):
            draft.report("DL401.tables", path, word=word, fix=did_you_mean(glob, draft.spec.tables, what="tables"))
        return set(), tables
    outputs = {(*output, EVERY) for output in _matching(draft, word)} or set(_named(draft, word))
    if not outputs and not _is_off(draft, word):
        draft.report("DL401.outputs", path, word=word, fix=_suggestion(draft, word, path))
    return outputs, set()


def _matching(draft: Draft, word: str) -> Iterable[Output]:
    for op in draft.outputs:
        for item in op.names:
            if word.startswith("tag:"):
                tag = word.removeprefix("tag:")
                if tag in op.tags or (tag == "alias" and item.alias):
                    yield op.key, item.alias
            elif fnmatch.fnmatchcase(op.key, word) or fnmatch.fnmatchcase(op.id, word):
                yield op.key, item.alias


def _named(draft: Draft, word: str) -> Iterable[Names]:
    """The outputs with a member or label whose name, as trackers show it, a selector may match.

    Names of `log_metric` count only if the config declares `logged`; else every misspelt selector would match them.
    """
    for op in draft.outputs:
        for item in op.names if not draft.implicit(op.id) else ():
            globs = _globs(op, item.template)
            if globs != [item.template] and any(_meet(word, glob) for glob in globs):
                yield op.key, item.alias, word


def _globs(op: MetricOp | FormulaOp, template: str) -> list[str]:
    """The names of a template as globs: one for each declared member, with `*` for a label and for other members."""
    glob = template
    for field in ("label", *op.labels):
        glob = glob.replace(f"{{{field}}}", "*")
    members = members_of(*op.args) if isinstance(op, MetricOp) else None
    return [glob.replace("{member}", member) for member in members or ("*",)] if "{member}" in glob else [glob]


def _meet(one: str, two: str) -> bool:
    """Whether some name matches both globs; a set of characters may be any of them."""
    one, two = (re.sub(r"\[[^\]]+\]", "?", glob) for glob in (one, two))

    @cache
    def rest(at: int, other: int) -> bool:
        """Whether some name matches the rest of both globs, from these positions."""
        if one[at : at + 1] == "*":
            return rest(at + 1, other) or (other < len(two) and rest(at, other + 1))
        if two[other : other + 1] == "*":
            return rest(at, other + 1) or (at < len(one) and rest(at + 1, other))
        if at == len(one) or other == len(two):
            return at == len(one) and other == len(two)
        return ("?" in (one[at], two[other]) or one[at] == two[other]) and rest(at + 1, other + 1)

    return rest(0, 0)


def _is_off(draft: Draft, word: str) -> bool:
    """Whether the selector names an entry that is off or deleted, or a metric whose own mistake is reported."""
    entries = [*draft.inactive, *draft.spec.deleted]
    off = [key.removeprefix("metrics.") for key in entries if key.startswith("metrics.")]
    refused = draft.spec.metrics.keys() - {op.id for op in draft.outputs}
    off += [*refused, *(draft.spec.metrics[id].name or id for id in refused)]
    tag = word.removeprefix("tag:")
    if tag != word:
        return tag == "alias" or any(tag in draft.spec.metrics[name].tags for name in off if name in draft.spec.metrics)
    return any(fnmatch.fnmatchcase(name, word.split(".")[0]) for name in off)


def _suggestion(draft: Draft, word: str, path: Path) -> str:
    meant = f"table:{word}" if word in draft.spec.tables else selector_of(word)
    if meant != word:
        return f"did you mean `{meant}`?"
    if word.endswith(","):
        return "selectors have blanks between them, or are a list: [reward, kl]"
    if word.startswith("tag:"):
        tags = Counter(tag for op in draft.outputs for tag in op.tags)
        return did_you_mean(word, [f"tag:{tag}" for tag in tags], what="tags")
    head = word.split(".")[0]
    family = next((op for op in draft.outputs if op.family and word.startswith(f"{op.id}.")), None)
    if family is not None and not difflib.get_close_matches(word, draft.output_keys, n=1, cutoff=0.8):
        name = family.names[0].template.replace("{member}", word.removeprefix(f"{family.id}."))
        return f"a member is selected by the name that trackers show, such as `{name}`"
    if (shown := draft.metric_shown(word)) is not None and shown.is_value and shown.key in draft.output_keys:
        return f"did you mean `{shown.key}`?"
    if is_pattern(word) and _shown_as(draft, word):
        return f"by their ids, not as trackers show them: {_by_ids(draft, str(path[1]), str(path[2]))}"
    if head in FACTS:
        return f"metrics: {{{head}: {{formula: {head}}}}} logs it"
    is_one_of_several = ".".join(word.rsplit("_", 1)) in draft.output_keys
    if not is_one_of_several and (defined := suggestions.definition(draft, word)) is not None:
        near = difflib.get_close_matches(word, draft.output_keys, n=1, cutoff=0.85)
        return f"{f'did you mean `{near[0]}`? Or ' if near else ''}define it: metrics: {in_flow(defined)}"
    return did_you_mean(word, {*draft.output_keys, *(key.split(".")[0] for key in draft.output_keys)}, what="metrics")


def _by_ids(draft: Draft, profile: str, key: str) -> str:
    """A list of selectors of a profile, with ids in place of globs that only names in trackers match."""
    items: list[object] = []
    for selector in getattr(draft.spec.profiles[profile], key):
        words = selector.select.split()
        ids = [id for word in words for id in ([] if [*_matching(draft, word)] else _shown_as(draft, word)) or [word]]
        items += ids if selector.when is None else [{"select": " ".join(ids), "when": selector.when}]
    return in_flow({key: items})[1:-1]


def _shown_as(draft: Draft, glob: str) -> list[str]:
    """The selectors of the metrics whose names in trackers match a glob: an id, or keys if not all of the id match."""
    ops = {op.key: op for op in draft.outputs if op.key in draft.output_keys}
    shown = [key for key, op in ops.items() if fnmatch.fnmatchcase(op.names[0].template, glob)]
    partly = {op.id for key, op in ops.items() if key not in shown}
    return [*dict.fromkeys(key if ops[key].id in partly else ops[key].id for key in shown)]


def selection(draft: Draft) -> None:
    """Drop the metrics that no active profile, formula or alert needs."""
    needed = {key for profile in draft.profiles.values() for key, _ in profile.outputs}
    conditions = [node for alert in draft.alerts for node in alert.reads]
    conditions += [node for profile in draft.profiles.values() for _, node, _ in profile.conditions]
    needed |= set(read(*conditions))
    outputs = {op.key: op for op in draft.outputs}
    waiting = [key for key in needed if key in outputs]
    while waiting:  # a needed metric needs those that it reads
        further = inputs(outputs[waiting.pop()]) - needed
        needed |= further
        waiting += further
    hidden = f"no active profile ({', '.join(sorted(draft.profiles))}) shows it"
    for op in draft.outputs:
        if op.key not in needed and not op.id.endswith(PREFERRED):
            draft.inactive[f"metrics.{op.key}"] = hidden if op.shown else "`log: false` and nothing reads it"
    draft.metrics = [op for op in draft.metrics if op.key in needed]
    draft.formulas = [op for op in draft.formulas if op.key in needed]


def unseen(draft: Draft) -> None:
    """The metrics that no sink shows, although nothing says `log: false`: a profile leaves them out."""
    seen = {key.split(".")[0] for sink in draft.sinks for key, _ in draft.profiles[sink.profile].outputs}
    shown = dict.fromkeys(op.id for op in draft.outputs if op.shown and op.id in draft.spec.metrics)
    draft.unseen = tuple(name for name in shown if name not in seen) if draft.sinks else ()
