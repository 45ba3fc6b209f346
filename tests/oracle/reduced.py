"""The metrics that reduce rows, in one log event: which rows count, in which cells and pieces, what they come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tests.oracle.cases import Point
from tests.oracle.interpreter import World, families_of
from tests.oracle.log_events import Moment
from tests.oracle.pieces import (
    GAP,
    POOLS,
    Cells,
    Piece,
    all_there,
    carried,
    frequent,
    goes_on,
    narrow,
    over_run,
    pool_of,
    smooth,
)
from tests.oracle.reductions import reduced, weighted_tokens
from tests.oracle.trees import Tree, family_of, names_in
from tests.oracle.values import ABSENT, there


class Reduced:
    """The reductions of one log event."""

    spec_ranks = "all"

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

    def every(self, name: str) -> int:
        """The length of a metric's window."""
        found: int = self.spec(name).get("every", self.case.profile.get("every", 1))
        return found

    def window(self, name: str) -> list[int] | None:
        """The steps that a metric covers now."""
        spec = self.spec(self.source(name))
        every = spec.get("every", self.case.profile.get("every", 1))
        if not goes_on(spec):
            return self.moment.windows.get(every)
        return [block for window in self.past(name) for block in window] if every in self.moment.windows else None

    def past(self, name: str) -> list[list[int]]:
        """The windows up to now that a metric over the run is of."""
        ended = self.moment.ended[self.every(self.source(name))]
        return [window for window in ended if self.case.blocks[window[0]].mode == self.moment.mode]

    def source(self, name: str) -> str:
        """Whose pool and combine a metric has: a formula those of what it reads."""
        formula = self.metrics[name].get("formula")
        return name if formula is None else self.source(names_in(formula)[0].partition(".")[0])

    def rows(self, trees: Mapping[str, Any], blocks: list[int], member: str) -> Iterator[tuple[Point, Any, Any, Any]]:
        """The rows that count: where, their values, weights and labels. A value may be missing."""
        world, exprs = self.world, trees["expr"]
        world.window = blocks
        read = [*exprs, *(trees[key] for key in ("where", "weight", "by") if key in trees)]
        event = world.event_of(*read) or self.case.trees["events"][0]
        axis = world.axis(exprs[0])
        for block in blocks:
            for at in world.points(axis, event, block, read):
                yield from self.counted(trees, exprs, at._replace(member=member), of_all=axis == "all")

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
        pool = POOLS[pool_of(spec)]
        if smooth(spec) and pool_of(spec) == "window":  # of the values of log events
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
            for cell, piece in self.here(trees, blocks, pool, members, ever=goes_on(spec)):
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

    def here(
        self, trees: Mapping[str, Any], blocks: list[int], pool: Any, members: list[str], *, ever: bool
    ) -> Iterator[Any]:
        """In which pieces each cell came beside those of rows that count: what is `empty` there, and not absent.

        ``ever``: over the run a member came where its family did.
        """
        if trees.get("by") == ("name", "rank"):
            yield from ((str(at.rank), pool(at)) for at in self.batches(trees, blocks))
        elif "by" not in trees:
            expr = trees["expr"][0]
            event = self.event(trees)
            rows = [at for block in blocks for at in self.world.points(self.world.axis(expr), event, block, [expr])]
            of_all = self.spec_ranks == "all" or self.world.axis(expr) == "all"
            for piece in self.pieces(trees, blocks, pool):
                inside = [at for at in rows if pool(at) == piece and (of_all or at.rank == 0)]
                for member in members:
                    values = [self.world.value(expr, at._replace(member=member)) for at in inside]
                    if not member or ever or not values or any(value is not ABSENT for value in values):
                        yield member, piece

    def pieces(self, trees: Mapping[str, Any], blocks: list[int], pool: Any) -> list[Piece]:
        """The pieces of a window that there are, whether or not anything counts in them."""
        return list(dict.fromkeys(map(pool, self.batches(trees, blocks))))

    def batches(self, trees: Mapping[str, Any], blocks: list[int]) -> list[Point]:
        """Each batch of each rank that counts."""
        points = self.steps(trees, blocks)
        if self.spec_ranks == "main":
            firsts = self.steps(trees, blocks, "all")
            of_all = self.world.axis(trees["expr"][0]) == "all"
            points = [at for at in points if at.rank == 0 or (of_all and at in firsts)]
        return points

    def alone(self, tree: Tree) -> bool:
        """Whether the members of a family are numbers by name, of which each comes for itself."""
        families = [name for name in families_of(tree) if self.world.signals[name].get("family")]
        return bool(families) and all(self.world.signals[name]["axis"] == "step" for name in families)

    def steps(self, trees: Mapping[str, Any], blocks: list[int], axis: str = "step") -> list[Point]:
        """Each batch of each rank that a metric covers; with ``all`` the first of each step."""
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
