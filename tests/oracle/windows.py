"""When something is logged, and the metrics of a log event: windows, pools, formulas, conditions and alerts."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.oracle.cases import Case, Point
from tests.oracle.interpreter import World, families_of
from tests.oracle.reductions import Between, Bins, reduced, weighted_tokens
from tests.oracle.trees import Tree, family_of
from tests.oracle.values import ABSENT, OPERATIONS, aggregate, number, there

Piece = tuple[Any, ...]
Cells = dict[str, dict[Piece, Any]]  # by member or label: by piece of a pool: a value
GAP = float("nan")  # this very one is of missing values; another NaN is of infinities


@dataclass(frozen=True)
class Moment:
    """A log event: the steps of each window that ends with it, by the window's length; ``ended``: all that ended."""

    number: int
    mode: str
    windows: Mapping[int, list[int]]
    ended: Mapping[int, list[list[int]]]


@dataclass
class Logged:
    """What one log event shows."""

    number: int
    mode: str
    scalars: dict[str, tuple[Any, float]] = field(default_factory=dict)  # value, and how far it may be off
    tables: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)  # the names that tell of values that are not finite
    alerts: dict[str, tuple[str, float, float]] = field(default_factory=dict)
    off: dict[str, float] = field(default_factory=dict)  # how far a table's numbers may be off


def moments(case: Case) -> Iterator[Moment]:
    """The log events of a job, in order."""
    ended: dict[int, list[list[int]]] = {}
    for step, mode, windows in ends(case):
        for length, blocks in windows.items():
            ended[length] = [*ended.get(length, []), blocks]
        yield Moment(step, mode, windows, {length: ended[length] for length in windows})


def ends(case: Case) -> Iterator[tuple[int, str, dict[int, list[int]]]]:
    """When windows end: step, mode, and the steps of those that do, by their length."""
    base = case.profile.get("every", 1)
    lengths = {base} | {
        entry["every"]
        for section in ("metrics", "tables")
        for entry in case.profile.get(section, {}).values()
        if "every" in entry
    }
    train = [place for place, block in enumerate(case.blocks) if block.mode == "train"]
    for place, block in enumerate(case.blocks):
        if block.mode != "train":
            yield block.number, block.mode, {length: [place] for length in sorted(lengths)}
            continue
        count = train.index(place) + 1
        due = {length: train[count - length : count] for length in sorted(lengths) if count % length == 0}
        first = case.profile.get("first", 0)
        if count == first:
            due[base] = train[:first]
        elif count == base:
            due[base] = train[first:base]
        if due:
            yield block.number, "train", due
    first = case.profile.get("first", 0)
    open_at_the_end = {
        length: train[max(len(train) - len(train) % length, first if length == base and len(train) >= first else 0) :]
        for length in sorted(lengths)
        if len(train) % length and not (length == base and len(train) == first)
    }
    if open_at_the_end:
        yield case.blocks[train[-1]].number, "train", open_at_the_end


POOLS: dict[str, Any] = {
    "window": lambda at: (),
    "step": lambda at: (at.block,),
    "batch": lambda at: (at.block, at.batch),
    "rank": lambda at: (-at.rank,),
    "rank_batch": lambda at: (at.block, at.batch, -at.rank),  # so that the last one is of the lowest rank
}


class Metrics:
    """The metrics of one log event."""

    def __init__(self, world: World, moment: Moment) -> None:
        self.world, self.case, self.moment = world, world.case, moment
        self.metrics = self.case.trees["metrics"]
        self._cells: dict[str, Cells | None] = {}
        self._off: dict[str, float] = {}
        self._labels: dict[str, set[str]] = {}  # of metrics with `by`

    def spec(self, name: str) -> Mapping[str, Any]:
        """A metric as the profile has it."""
        return self.case.profile["metrics"][name]  # type: ignore[no-any-return]

    # ---- one metric and reduction

    def cells(self, key: str) -> Cells | None:
        """The values of `id` or `id.suffix` before they are combined; None where it is hidden or not due."""
        if key not in self._cells:
            name, _, suffix = key.partition(".")
            spec, trees = self.spec(name), self.metrics[name]
            blocks = self.window(name)
            if blocks is None:
                self._cells[key] = None
            elif "formula" in trees:
                self._cells[key] = self.formula(trees["formula"]) if self.shown(name) else None
            else:
                self._cells[key] = self.reduced(name, spec, trees, trees["reduce"][suffix], blocks)
                if not self.shown(name):
                    self._cells[key] = None
        return self._cells[key]

    def every(self, name: str) -> int:
        """The length of a metric's window."""
        found: int = self.spec(name).get("every", self.case.profile.get("every", 1))
        return found

    def window(self, name: str) -> list[int] | None:
        """The steps that a metric covers now."""
        spec = self.spec(self.source(name))
        every = spec.get("every", self.case.profile.get("every", 1))
        if not spec.get("cumulative") and "ema" not in spec:
            return self.moment.windows.get(every)
        return [block for window in self.past(name) for block in window] if every in self.moment.windows else None

    def past(self, name: str) -> list[list[int]]:
        """The windows up to now that a metric over the run is of."""
        spec = self.spec(self.source(name))
        ended = self.moment.ended[self.every(self.source(name))]
        if spec.get("pool", "window") == "window" and spec.get("reduce") in ("sum", "count") and "ema" not in spec:
            return ended  # a total is of all modes
        return [window for window in ended if self.case.blocks[window[0]].mode == self.moment.mode]

    def shown(self, name: str) -> bool:
        """Whether its `when` holds."""
        condition = self.metrics[name].get("when")
        return condition is None or self.scalar(condition) is True

    def rows(self, trees: Mapping[str, Any], blocks: list[int], member: str) -> Iterator[tuple[Point, Any, Any, Any]]:
        """The rows that count: where, their values, weights and labels. A value may be missing."""
        world, exprs = self.world, trees["expr"]
        world.window = blocks
        read = [*exprs, *(trees[key] for key in ("where", "weight", "by") if key in trees)]
        event = world.event_of(*read) or self.case.trees["events"][0]
        axis = world.axis(exprs[0])
        for block in blocks:
            for at in world.points(axis, event, block, read):
                yield from self.counted(trees, exprs, at._replace(member=member), of_all=axis == "batch")

    def counted(
        self, trees: Mapping[str, Any], exprs: Sequence[Tree], at: Point, *, of_all: bool = False
    ) -> Iterator[tuple[Point, Any, Any, Any]]:
        """A row, where it counts, once for each of its labels; ``of_all``: it is a value of all ranks."""
        world = self.world
        if self.spec_ranks == "main" and at.rank != 0 and not of_all:
            return
        if "where" in trees and world.value(trees["where"], at) is not True:
            return
        weight = world.value(trees["weight"], at) if "weight" in trees else 1
        label = world.judged(trees["by"], at) if "by" in trees else ""
        values = tuple(world.judged(tree, at) for tree in exprs)
        if weight is ABSENT or weight == 0 or not there(label):
            return
        if weight is None and ABSENT not in values:
            values = (None,)
        for each in label if isinstance(label, list) else [label]:  # a row counts for each of its tags
            yield at, values, weight, each

    def completions(self, trees: Mapping[str, Any], blocks: list[int]) -> Iterator[tuple[Point, Any, Any, Any]]:
        """The completions of a metric over tokens: how frequent a label is, they say."""
        first = {key: trees[key] for key in ("weight", "by") if key in trees}
        if "where" in trees and self.world.axis(trees["where"]) != "token":
            first["where"] = trees["where"]
        event = self.event(trees)
        for block in blocks:
            for at in self.world.points("completion", event, block, []):
                yield from self.counted(first, (), at)

    spec_ranks = "all"

    def reduced(
        self, name: str, spec: Mapping[str, Any], trees: Mapping[str, Any], reduce: str, blocks: list[int]
    ) -> Cells:
        """A metric's cells: by member or label, by piece."""
        world = self.world
        self.spec_ranks = spec.get("ranks", "all")
        world.scale = 0.0
        world.window = blocks
        family = family_of(trees["expr"][0], world.signals)
        members = world.members(trees["expr"][0]) if family else [""]
        pool = POOLS[spec.get("pool", "step" if "ema" in spec else "window")]
        if "ema" in spec and spec.get("pool") == "window":  # of the values of log events
            ends = {block: window[-1] for window in self.past(name) for block in window}
            pool = lambda at: (ends[at.block],)  # noqa: E731
        tokens = world.axis(trees["expr"][0]) == "token"
        found: dict[str, dict[Piece, list[Any]]] = {}
        for member in members:
            rows = list(self.rows(trees, blocks, member))
            kept: dict[Any, str] = {}
            for window in [blocks] if not goes_on(spec) else self.past(name):
                counted = self.completions(trees, window) if tokens else rows
                labels = [label for at, *_, label in counted if at.block in window]
                kept = frequent(labels, spec.get("max_labels", 64), kept)
            self._labels[name] = set(kept.values()) if "by" in trees else set()
            for at, values, weight, label in rows:
                if family and ABSENT in values:
                    continue  # nothing of this member, whatever its batch has
                cell = kept[label] if "by" in trees else member
                found.setdefault(cell, {}).setdefault(pool(at), []).append((at, values, weight))
        if trees.get("by") == ("name", "rank"):  # each rank that there is, though none of its rows counts
            for at in self.batches(trees, blocks):
                found.setdefault(str(at.rank), {})
        if "empty" in spec and not carried(spec):
            for cell, piece in self.here(trees, blocks, pool, members):
                found.setdefault(cell, {}).setdefault(piece, [])
        window = self.moment.windows[self.every(name)]
        full = {
            cell for cell, pieces in found.items() for rows in pieces.values() for row in rows
            if all_there(row) and (not carried(spec) or row[0].block in window)
        }  # fmt: skip
        alone = self.alone(trees["expr"][0])
        if goes_on(spec) and not carried(spec) and reduce == "last" and spec.get("nan") == "propagate":
            found = self.last_whole(name, found)
        cells: Cells = {}
        for cell, pieces in found.items():
            for piece, rows in sorted(pieces.items()):
                plain = {key: each for key, each in spec.items() if key != "empty" or not carried(spec)}
                value = self.piece(plain, reduce, rows, tokens, cell in full if alone else bool(full))
                if value is not None:
                    cells.setdefault(cell, {})[piece] = value
        self._off[name] = self.tolerance(trees)
        if not carried(spec):
            return cells
        names = sorted(found) if "by" in trees else members if self.pieces(trees, blocks, pool) else []
        came = {cell for cell, pieces in cells.items() for value in pieces.values() if value is not GAP}
        return {
            cell: pieces for cell in dict.fromkeys([*cells, *names])
            if (pieces := over_run(spec, cells.get(cell, {}), window, cell in came if alone else bool(came)))
        }  # fmt: skip

    def last_whole(self, name: str, found: dict[str, dict[Piece, list[Any]]]) -> dict[str, dict[Piece, list[Any]]]:
        """The rows without those of earlier windows in which a value was missing: these have no last value."""
        passed = self.past(name)[:-1]
        kept: dict[str, dict[Piece, list[Any]]] = {}
        for cell, pieces in found.items():
            for piece, rows in pieces.items():
                missing = {at.block for at, values, _ in rows if None in values and ABSENT not in values}
                broken = {block for window in passed if missing.intersection(window) for block in window}
                kept.setdefault(cell, {})[piece] = [row for row in rows if row[0].block not in broken]
        return kept

    def here(self, trees: Mapping[str, Any], blocks: list[int], pool: Any, members: list[str]) -> Iterator[Any]:
        """In which pieces each cell came beside those of rows that count: what is `empty` there, and not absent."""
        if trees.get("by") == ("name", "rank"):
            yield from ((str(at.rank), pool(at)) for at in self.batches(trees, blocks))
        elif "by" not in trees:
            expr = trees["expr"][0]
            event = self.event(trees)
            rows = [at for block in blocks for at in self.world.points(self.world.axis(expr), event, block, [expr])]
            of_all = self.spec_ranks == "all" or self.world.axis(expr) == "batch"
            for piece in self.pieces(trees, blocks, pool):
                inside = [at for at in rows if pool(at) == piece and (of_all or at.rank == 0)]
                for member in members:
                    values = [self.world.value(expr, at._replace(member=member)) for at in inside]
                    if not member or not values or any(value is not ABSENT for value in values):
                        yield member, piece

    def pieces(self, trees: Mapping[str, Any], blocks: list[int], pool: Any) -> list[Piece]:
        """The pieces of a window that there are, whether or not anything counts in them."""
        return list(dict.fromkeys(map(pool, self.batches(trees, blocks))))

    def batches(self, trees: Mapping[str, Any], blocks: list[int]) -> list[Point]:
        """Each batch of each rank that counts."""
        points = self.steps(trees, blocks)
        if self.spec_ranks == "main":
            firsts = self.steps(trees, blocks, "batch")
            of_batches = self.world.axis(trees["expr"][0]) == "batch"
            points = [at for at in points if at.rank == 0 or (of_batches and at in firsts)]
        return points

    def alone(self, tree: Tree) -> bool:
        """Whether the members of a family are numbers by name, of which each comes for itself."""
        families = [name for name in families_of(tree) if self.world.signals[name].get("family")]
        return bool(families) and all(self.world.signals[name]["axis"] == "step" for name in families)

    def steps(self, trees: Mapping[str, Any], blocks: list[int], axis: str = "step") -> list[Point]:
        """Each batch of each rank that a metric covers; with ``batch`` each of all ranks."""
        event = self.event(trees)
        return [at for block in blocks for at in self.world.points(axis, event, block, [])]

    def event(self, trees: Mapping[str, Any]) -> str:
        """The event of a metric: the latest that it reads."""
        first: str = self.case.trees["events"][0]
        return self.world.event_of(*self.case_trees(trees)) or first

    def piece(self, spec: Mapping[str, Any], reduce: str, rows: list[Any], tokens: bool, full: bool) -> Any:
        """The value of one piece."""
        counted = [(row[0], (*row[1], row[2])) for row in rows if all_there(row)]
        window = self.moment.windows[spec.get("every", self.case.profile.get("every", 1))]  # of a total: what came last
        if reduce == "count" and spec.get("nan") != "propagate" and any(ABSENT not in values for _, values, _ in rows):
            return len(counted)
        if carried(spec) and spec.get("nan") == "propagate":
            window = [at.block for at, *_ in rows]  # the value of a piece is NaN whenever it came
        missing = any(None in values and ABSENT not in values for at, values, _ in rows if at.block in window)
        if missing and (spec.get("nan") == "propagate" or not full):  # nothing but missing values is NaN
            return GAP
        if reduce == "last":  # of the latest step and batch, and there of the lowest rank
            counted.sort(key=lambda row: (row[0].block, row[0].batch, -row[0].rank, row[0].row, row[0].token))
        if tokens and "weight" in spec:
            value = weighted_tokens(reduce, [(tuple(at[:5]), *row) for at, row in counted])
        else:
            value = reduced(reduce, [row for _, row in counted], tokens=tokens)
        return spec.get("empty") if value is None else value

    def tolerance(self, trees: Mapping[str, Any]) -> float:
        """How far float32 may be off: relative to the greatest number that was met."""
        read = [item for tree in self.case_trees(trees) for item in narrow(tree, self.case, self.world)]
        return 2e-5 * max(1.0, self.world.scale) if read else 0.0

    @staticmethod
    def case_trees(trees: Mapping[str, Any]) -> list[Tree]:
        return [*trees["expr"], *(trees[key] for key in ("where", "weight", "by") if key in trees)]

    # ---- what is computed of metrics

    def combined(self, key: str) -> dict[str, Any]:
        """The values of a metric, by cell."""
        cells = self.cells(key)
        spec = self.spec(self.source(key.partition(".")[0]))
        if cells is None:
            return {}
        found = {cell: combine(spec, pieces) for cell, pieces in cells.items()}
        return {cell: value for cell, value in found.items() if value is not None}

    def source(self, name: str) -> str:
        """Whose pool and combine a metric has: a formula those of what it reads."""
        formula = self.metrics[name].get("formula")
        return name if formula is None else self.source(names_in(formula)[0].partition(".")[0])

    def formula(self, tree: Tree) -> Cells:
        """A formula, cell by cell and piece by piece."""
        read = names_in(tree)
        members: Sequence[str | None] = self.members(tree) or [None]
        found: Cells = {}
        unlike = self.unlike(tree)
        for cell in members:
            if unlike and cell == "_other":
                continue
            inputs = {key: self.of(key, cell) for key in read}
            pieces = dict.fromkeys(piece for values in inputs.values() for piece in values)
            for piece in sorted(pieces):
                value = self.computed(tree, cell, piece)
                if value is None and any(self.is_odd(key, cell, piece) for key in read):
                    value = math.nan
                if there(value):
                    found.setdefault(cell or "", {})[piece] = value
        return found

    def unlike(self, tree: Tree) -> bool:
        """Whether the pooled rests that a formula reads are of other labels each."""
        read = [key.partition(".")[0] for key in names_in(tree) if self.cells(key) is not None]
        labels = [self.labels(name) for name in read]
        found = [item for item in labels if item]
        return any("_other" in item for item in found) and any(item != found[0] for item in found)

    def labels(self, name: str) -> set[str]:
        """The labels of a metric, or of what a formula reads."""
        formula = self.metrics[name].get("formula")
        if formula is None:
            return self._labels.get(name, set())
        return {label for key in names_in(formula) for label in self.labels(key.partition(".")[0])}

    def of(self, key: str, cell: str | None) -> dict[Piece, Any]:
        """A metric's pieces for a cell: a family's or label's own, which may be empty, or a plain metric's for each."""
        cells = self.cells(key) or {}
        if self.is_family(key):
            if cell is not None:
                return cells.get(cell, {})
            return {piece: 0.0 for pieces in cells.values() for piece in pieces}
        return cells.get("", {})

    def is_odd(self, key: str, cell: str | None, piece: Piece) -> bool:
        """Whether a formula reads a NaN or an infinity; of a family that it aggregates, in any member."""
        if self.is_family(key) and cell is None:
            return any(is_odd(pieces.get(piece)) for pieces in (self.cells(key) or {}).values())
        return is_odd(self.of(key, cell).get(piece))

    def is_family(self, key: str) -> bool:
        trees = self.metrics[key.partition(".")[0]]
        if "formula" in trees:
            return bool(self.members(trees["formula"]))
        return "by" in trees or family_of(trees["expr"][0], self.world.signals)

    def members(self, tree: Tree) -> list[str]:
        """The members over which a formula is computed."""
        if tree[0] == "aggregate":
            return []
        if tree[0] == "name":
            return list(self.cells(tree[1]) or {}) if self.is_family(tree[1]) else []
        found: dict[str, None] = {}
        for item in tree[1:]:
            if isinstance(item, tuple):
                found.update(dict.fromkeys(self.members(item)))
        return list(found)

    def computed(self, tree: Tree, cell: str | None, piece: Piece) -> Any:
        """A formula's value in one cell and piece."""
        op, *args = tree
        match op:
            case "name":
                value = self.of(args[0], cell).get(piece, ABSENT)
                return None if isinstance(value, float) and math.isnan(value) else value
            case "constant":
                return args[0]
            case "if":
                condition = self.computed(args[0], cell, piece)
                return ABSENT if condition is ABSENT else self.computed(args[1 if condition else 2], cell, piece)
            case "aggregate":
                members = self.members(args[2])
                found = [self.computed(args[2], member, piece) for member in members]
                return aggregate(args[0], found) if members else ABSENT
        return OPERATIONS[op](*(self.computed(item, cell, piece) for item in args))

    def scalar(self, tree: Tree) -> Any:
        """A condition over the values as they are logged."""
        op, *args = tree
        match op:
            case "name":
                value = self.combined(args[0]).get("", ABSENT)
                return None if isinstance(value, float) and math.isnan(value) else value
            case "constant":
                return args[0]
            case "if":
                condition = self.scalar(args[0])
                return ABSENT if condition is ABSENT else self.scalar(args[1 if condition else 2])
            case "aggregate":
                members = self.combined(args[2][1])
                return aggregate(args[0], [number(members[name]) for name in members]) if members else ABSENT
        return OPERATIONS[op](*(self.scalar(item) for item in args))

    # ---- what is shown

    def logged(self) -> dict[str, tuple[Any, float]]:
        """Names and values, with how far each may be off."""
        prefix = self.prefix
        found: dict[str, tuple[Any, float]] = {}
        for name, trees in self.metrics.items():
            spec = self.spec(name)
            for suffix in trees.get("reduce", {"": ""}):
                if spec.get("log") is False or not chosen(self.case, name, suffix):
                    continue
                key = f"{name}.{suffix}" if suffix else name
                for cell, value in self.combined(key).items():
                    if there(value) and (not isinstance(value, Bins) or value.counts):
                        shown = spec.get("name") or default_name(suffix, cell, self.is_by(name))
                        if "per_rank" in self.case.profile and trees.get("by") == ("name", "rank"):
                            shown = shown.removesuffix("/{label}") + "/rank{label}"
                        shown = shown.format(id=name, reduce=suffix, column=cell, label=cell)
                        found[prefix + shown] = (value, self.off(name))
        return found

    def broken(self) -> set[str]:
        """The names that tell which metrics have values that are not finite, also in a piece of what is combined."""
        found = set()
        for name, trees in self.metrics.items():
            keys = [f"{name}.{suffix}" if suffix else name for suffix in trees.get("reduce", {"": ""})
                    if self.spec(name).get("log") is not False and chosen(self.case, name, suffix)]  # fmt: skip
            values = [value for key in keys for pieces in (self.cells(key) or {}).values() for value in pieces.values()]
            if any(value.outside if isinstance(value, Bins) else is_odd(value) for value in values):
                found.add(f"{self.prefix}nonfinite/{name}")
        return found

    @property
    def prefix(self) -> str:
        """What the mode puts before every name."""
        return str((self.case.profile.get("modes", {}).get(self.moment.mode) or {}).get("prefix", ""))

    def is_by(self, name: str) -> bool:
        return "by" in self.metrics[name]

    def off(self, name: str) -> float:
        """How far a metric's values may be off."""
        formula = self.metrics[name].get("formula")
        if formula is None:
            return self._off.get(name, 0.0)
        return 100 * max(self.off(key.partition(".")[0]) for key in names_in(formula))


def all_there(row: tuple[Point, tuple[Any, ...], Any]) -> bool:
    """Whether a row's values are neither missing nor absent."""
    return all(there(value) for value in row[1])


def carried(spec: Mapping[str, Any]) -> bool:
    """Whether pieces over the run become one value."""
    return "ema" in spec or (bool(spec.get("cumulative")) and spec.get("pool", "window") != "window")


def goes_on(spec: Mapping[str, Any]) -> bool:
    """Whether a metric is over the run."""
    return "ema" in spec or bool(spec.get("cumulative"))


def over_run(spec: Mapping[str, Any], pieces: dict[Piece, Any], window: list[int], came: bool) -> dict[Piece, Any]:
    """The one value of what goes on over the run; ``window``: the steps that came last; ``came``: any ever did."""
    values = [value for _, value in sorted(pieces.items()) if value is not GAP]
    gone = any(value is GAP and piece[0] in window for piece, value in pieces.items())
    if gone and (not came or spec.get("nan") == "propagate"):
        return {(): math.nan}
    if not values:
        return {(): spec["empty"]} if "empty" in spec else {}
    if "ema" in spec:
        average = values[0]
        for value in values[1:]:
            average = spec["ema"] * average + (1 - spec["ema"]) * value
        return {(): average}
    found = together(spec.get("combine", "mean"), values)
    found = spec.get("empty") if found is None else found
    return {} if found is None else {(): found}


def bounded(low: float, high: float) -> Any:
    """What lies between two bounds; infinities and NaN are what they are."""
    return Between(low, high) if math.isfinite(low) and math.isfinite(high) else low + high


def together(how: str, values: Sequence[Any]) -> Any:
    """One value of several, of which NaN and infinities are some."""
    if any(isinstance(value, Between) for value in values):
        low, high = ([getattr(value, side) if isinstance(value, Between) else value for value in values]
                     for side in ("low", "high"))  # fmt: skip
        return bounded(together(how, low), together(how, high))
    if how == "last":
        return values[-1]
    if how == "var" and len(values) == 1:
        return None
    if any(isinstance(value, float) and math.isnan(value) for value in values):
        return math.nan
    found = aggregate(how, values)
    return math.nan if found is None else found  # of infinities


def is_odd(value: Any) -> bool:
    """Whether a value is a NaN, or infinite."""
    return isinstance(value, float) and not math.isfinite(value)


def default_name(suffix: str, cell: str, by: bool) -> str:
    """`{id}`, `{id}/{reduce}`, `{id}/{column}`, `{id}/{label}`, or with the reduction before the last."""
    parts = ["{id}", *(["{reduce}"] if suffix else []), *(["{label}"] if by else ["{column}"] if cell else [])]
    return "/".join(parts)


def names_in(tree: Tree) -> list[str]:
    """The metrics that a formula reads."""
    if tree[0] == "name":
        return [tree[1]]
    return [name for item in tree[1:] if isinstance(item, tuple) for name in names_in(item)]


def narrow(tree: Tree, case: Case, world: World) -> list[str]:
    """The signals of a per-token part that hold less than 64 bits."""
    return [
        name
        for name in dict.fromkeys(_token_parts(tree, world, False))
        if case.dtypes.get(name) in ("float32", "float16", "bfloat16")
    ]


def _token_parts(tree: Tree, world: World, inside: bool) -> Iterator[str]:
    if tree[0] == "signal":
        if inside or world.signals[tree[1]]["axis"] == "token":
            yield tree[1]
        return
    inside = inside or any(item[0] == "signal" and world.signals[item[1]]["axis"] == "token" for item in _flat(tree))
    for item in tree[1:]:
        if isinstance(item, tuple):
            yield from _token_parts(item, world, inside)


def _flat(tree: Tree) -> Iterator[Tree]:
    yield tree
    for item in tree[1:]:
        if isinstance(item, tuple):
            yield from _flat(item)


def frequent(labels: list[Any], most: int, known: Mapping[Any, str]) -> dict[Any, str]:
    """The name of each label: what is known, then the most frequent, of equal ones the first; the rest is pooled."""
    counts = Counter(label for label in labels if label not in known)
    order = sorted(counts, key=lambda label: (-counts[label], label.split("/") if isinstance(label, str) else label))
    return {
        **known,
        **{label: shown(label) if place < most else "_other" for place, label in enumerate(order, len(known))},
    }


def shown(label: Any) -> str:
    """A label as text."""
    return str(label).lower() if isinstance(label, bool) else str(label)


def combine(spec: Mapping[str, Any], pieces: dict[Piece, Any]) -> Any:
    """One value of the values of a window's pieces."""
    if spec.get("pool", "window") == "window" or spec.get("cumulative") or "ema" in spec:
        return next(iter(pieces.values()), None)
    values = [value for _, value in sorted(pieces.items())]
    if not values:
        return None
    return together(spec.get("combine", "mean"), values)


def chosen(case: Case, name: str, suffix: str) -> bool:
    """Whether the profile that is active shows a metric."""
    profile = case.profile.get("profiles", {}).get(case.profile.get("profile", "full"), {})

    def matches(selectors: Mapping[str, str]) -> bool:
        for selector in (item for text in selectors.values() for item in text.split()):
            tags = case.profile["metrics"][name].get("tags", [])
            if selector in (name, f"{name}.{suffix}", *(f"tag:{tag}" for tag in tags)):
                return True
            if selector.endswith("*") and name.startswith(selector[:-1]):
                return True
        return False

    included = profile.get("include", {})
    metric_selectors = {key: text for key, text in included.items() if not text.startswith("table:")}
    return (not metric_selectors or matches(metric_selectors)) and not matches(profile.get("exclude", {}))
