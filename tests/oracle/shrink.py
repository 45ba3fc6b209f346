"""Makes a case that differs smaller while it still differs: fewer metrics, tables, options, steps, batches, operations.

python -m tests.oracle.shrink 4711
"""

from __future__ import annotations

import copy
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from declog.errors import DeclogError, RuntimeFailure
from tests.oracle.cases import Batch, Case
from tests.oracle.compare import differences, report
from tests.oracle.generator import generated
from tests.oracle.trees import Tree, axis_of, family_of, kind_of, text, walk

OPTIONS = ("where", "weight", "by", "over", "combine", "every", "empty", "nan", "ranks", "when", "tags",
           "max_labels", "name", "log", "filter", "keep", "limit", "from", "for")  # fmt: skip


def smaller(case: Case) -> Iterator[Case]:
    """Cases with one thing less, the greatest things first."""
    for section in ("alerts", "tables", "metrics"):
        for name in case.profile.get(section, {}):
            if name.startswith("rows_"):
                continue
            made = copied(case)
            del made.profile[section][name]
            made.trees[section].pop(name, None)
            yield made
    for place in range(len(case.blocks)):
        if len(case.blocks) > 1 and case.blocks[min(place + 1, len(case.blocks) - 1)].mode == "train":
            cut = None if case.cut is None else max(1, case.cut - (place < case.cut))
            yield replace(copied(case), blocks=[*case.blocks[:place], *case.blocks[place + 1 :]], cut=cut)
    if case.ranks > 1:
        for rank in range(case.ranks):
            blocks = [
                replace(
                    block, events={event: [*ranks[:rank], *ranks[rank + 1 :]] for event, ranks in block.events.items()}
                )
                for block in case.blocks
            ]
            yield replace(copied(case), ranks=case.ranks - 1, blocks=blocks)
    if case.cut is not None:
        yield replace(copied(case), cut=None)
    if "run" in case.profile:
        made = copied(case)
        del made.profile["run"]
        yield made
    for key in ("profile", "profiles"):
        if key in case.profile:
            made = copied(case)
            del made.profile[key]
            made.profile.pop("profile", None)
            yield made
    if case.profile.get("every", 1) != 1 and not any("every" in spec for spec in case.profile["metrics"].values()):
        made = copied(case)
        made.profile["every"] = 1
        yield made
    for section in ("metrics", "tables", "filters", "alerts"):
        for name, spec in case.profile.get(section, {}).items():
            for key in OPTIONS:
                if key in spec:
                    made = copied(case)
                    del made.profile[section][name][key]
                    if key == "over":
                        made.profile[section][name].pop("combine", None)
                    made.trees[section].get(name, {}).pop(key, None)
                    yield made
    yield from with_smaller_trees(case)
    yield from with_less_data(case)
    yield from with_fewer_signals(case)


def copied(case: Case) -> Case:
    """A case whose profile and trees can be changed."""
    return replace(case, profile=copy.deepcopy(case.profile), trees=copy.deepcopy(case.trees))


def with_smaller_trees(case: Case) -> Iterator[Case]:
    """One expression of a metric or column replaced by a part of it."""
    for name, trees in case.trees["metrics"].items():
        for key in ("expr", "where", "weight", "by"):
            for place, tree in enumerate(trees.get(key, []) if key == "expr" else [trees[key]] if key in trees else []):
                for part in parts(tree, case):
                    made = copied(case)
                    if key == "expr":
                        made.trees["metrics"][name][key][place] = part
                        written = [text(item) for item in made.trees["metrics"][name][key]]
                        made.profile["metrics"][name][key] = written if len(written) > 1 else written[0]
                    else:
                        made.trees["metrics"][name][key] = part
                        made.profile["metrics"][name][key] = text(part)
                    yield made
        if len(trees.get("reduce", {})) > 1:
            for suffix, reduce in trees["reduce"].items():
                made = copied(case)
                made.trees["metrics"][name]["reduce"] = {suffix: reduce}
                made.profile["metrics"][name]["reduce"] = [{suffix: reduce}]
                yield made
    for name, trees in case.trees["tables"].items():
        schema = case.profile["tables"][name]["schema"]
        for column, tree in trees["columns"].items():
            if len(trees["columns"]) > 1:
                made = copied(case)
                del made.trees["tables"][name]["columns"][column], made.profile["schemas"][schema][column]
                yield made
            for part in parts(tree, case):
                made = copied(case)
                made.trees["tables"][name]["columns"][column] = part
                made.profile["schemas"][schema][column]["expr"] = text(part)
                yield made


def parts(tree: Tree, case: Case) -> Iterator[Tree]:
    """Trees with one node replaced by a part of it of the same kind and axis."""
    signals = case.trees["signals"]

    def shape(item: Tree) -> Any:
        return axis_of(item, signals), family_of(item, signals), kind_of(item, signals)

    for item in list(walk(tree))[1:]:
        if shape(item) == shape(tree):
            yield item
    for place, item in enumerate(tree):
        if place and isinstance(item, tuple):
            for part in parts(item, case):
                yield (*tree[:place], part, *tree[place + 1 :])


def with_less_data(case: Case) -> Iterator[Case]:
    """Without one batch of one rank."""
    for place, block in enumerate(case.blocks):
        for event, ranks in block.events.items():
            for rank, batches in enumerate(ranks):
                for batch in range(len(batches)):
                    if len(batches) > 1:
                        kept = [*batches[:batch], *batches[batch + 1 :]]
                        events = {**block.events, event: [*ranks[:rank], kept, *ranks[rank + 1 :]]}
                        blocks = [*case.blocks[:place], replace(block, events=events), *case.blocks[place + 1 :]]
                        yield replace(copied(case), blocks=blocks)


def with_fewer_signals(case: Case) -> Iterator[Case]:
    """Without the filters and schemas that no table has, and without the signals that nothing reads."""
    made = copied(case)
    tables = list(made.profile.get("tables", {}).values())
    schemas = {table["schema"] for table in tables}
    filters = {table.get("filter") for table in tables}
    filters |= {made.profile["filters"][name].get("from") for name in filters if name}
    for section, these in (("schemas", schemas), ("filters", filters), ("tables", None), ("alerts", None)):
        if section in made.profile:
            made.profile[section] = {
                name: spec for name, spec in made.profile[section].items() if these is None or name in these
            }
            if not made.profile[section]:
                del made.profile[section]
    made.trees["filters"] = {name: trees for name, trees in made.trees["filters"].items() if name in filters}
    axes = str(made.profile["axes"])
    shown = str([made.trees[section] for section in ("metrics", "tables", "filters")])
    used = {name for name, spec in made.trees["signals"].items() if f"'{name}'" in shown or f"'{name}'" in axes}
    used |= {mask for name in used if (mask := made.trees["signals"][name].get("mask")) not in (None, "all")}
    for event in made.trees["events"]:  # something that says how many rows there are
        used.add("x_rollout" if event == "rollout" else "x")
    phases = made.profile["signals"].items()
    made.profile["signals"] = {
        phase: {name: spec for name, spec in signals.items() if name in used} for phase, signals in phases
    }
    made.profile["derived"] = {name: spec for name, spec in made.profile.get("derived", {}).items() if name in used}

    def kept(ranks: list[list[Batch]]) -> list[list[Batch]]:
        return [[{name: value for name, value in batch.items() if name in used} for batch in rank] for rank in ranks]

    blocks = [
        replace(block, events={event: kept(ranks) for event, ranks in block.events.items()}) for block in made.blocks
    ]
    if made.profile != case.profile:
        yield replace(made, blocks=blocks, dtypes={name: dtype for name, dtype in made.dtypes.items() if name in used})


def shrunk(case: Case, differs: Callable[[Case], bool], *, tries: int = 400) -> Case:
    """The smallest case found that still differs."""
    left, changed = tries, True
    while changed and left > 0:
        changed = False
        for candidate in smaller(case):
            left -= 1
            if left <= 0:
                break
            if differs(candidate):
                case, changed = candidate, True
                break
    return case


def found(case: Case) -> list[str]:
    """What differs, or the failure of declog's own; a case that is refused or cannot be evaluated says nothing."""
    try:
        with tempfile.TemporaryDirectory() as folder:
            return differences(case, Path(folder))
    except RuntimeFailure as failure:
        return [str(failure)]
    except (DeclogError, LookupError, ValueError, TypeError, AssertionError, ArithmeticError):
        return []


def main() -> None:
    """Shrinks the cases of the seeds that are given, and prints them with what is observed."""
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    for seed in sys.argv[1:]:
        whole = generated(int(seed))
        failed = any("[DL" in line for line in found(whole))  # a failure stays one

        def differs(item: Case, failed: bool = failed) -> bool:
            lines = found(item)
            return bool(lines) and any("[DL" in line for line in lines) is failed

        case = shrunk(whole, differs)
        print(report(case, found(case)))
        for block in case.blocks:
            print(block.number, block.mode)
            for event, ranks in block.events.items():
                for rank, batches in enumerate(ranks):
                    for batch in batches:
                        print("  ", event, "rank", rank, dict(batch))


if __name__ == "__main__":
    main()
