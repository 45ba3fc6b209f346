"""What an expression is worth at a point: loops over plain lists, after docs/language.md."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from itertools import product
from typing import Any

from tests.oracle.cases import Case, Point
from tests.oracle.trees import COMPARED, Tree, axis_of, kind_of, masks_of, signals_of, walk
from tests.oracle.values import (
    ABSENT,
    OPERATIONS,
    aggregate,
    bucket,
    distinct,
    jaccard,
    majority,
    majority_at,
    number,
    of_drawn,
    pass_at,
    there,
)


def combinations(values: list[Any]) -> list[str]:
    """The labels of a row of several: one for each choice of its tags."""
    choices = [value if isinstance(value, list) else [str(value).lower() if isinstance(value, bool) else str(value)]
               for value in values]  # fmt: skip
    return ["/".join(choice) for choice in product(*choices)]


ASKED = (*COMPARED, "isclose", "in", "contains", "startswith", "matches")


def asks(tree: Tree) -> bool:
    """Whether a tree asks `present`."""
    return any(item[0] == "present" for item in walk(tree))


def needed(tree: Tree) -> list[str]:
    """The signals that a tree cannot do without.

    Those that it does not ask `present` for, nor has in one side of a choice that asks it alone.
    """
    requested = [name for item in walk(tree) if item[0] == "present" for name in signals_of(item)]
    choices = [item for item in walk(tree) if item[0] == "if" and asks(item[1])]
    requested += [name for item in choices for side in item[2:] for name in signals_of(side)]
    both = [name for item in walk(tree) if item[0] == "if" for name in needed(item[2]) if name in needed(item[3])]
    return [name for name in signals_of(tree) if name not in requested or name in both]


def families_of(tree: Tree) -> list[str]:
    """The signals whose members are those of a tree: not those of which one value is made."""
    if tree[0] == "signal":
        return [tree[1]]
    if tree[0] in ("member", "members") or (tree[0] == "aggregate" and tree[2] == "member"):
        return []
    return [name for item in tree[1:] if isinstance(item, tuple) for name in families_of(item)]


class World:
    """A case that can be asked for values. ``scale``: the greatest number met since it was last set."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.signals = case.trees["signals"]
        axes = case.profile.get("axes", {})
        self.groups = axes.get("group", {})
        self.mask = axes.get("token", {}).get("mask")
        self.lengths = axes.get("token", {}).get("lengths")
        self.ids = axes.get("completion", {}).get("ids")
        self.scale = 0.0
        self._known: dict[tuple[int, Point], tuple[Any, float]] = {}  # values, and the greatest number met for each
        self._facts: dict[int, tuple[Tree, str | None, str | None]] = {}  # by tree: itself, its event and its axis
        self.shown: dict[tuple[str, str], dict[str, None]] = {}  # the members that tables have columns for
        self.window = list(range(len(case.blocks)))  # the steps that are looked at

    # ---- where things are

    def event_of(self, *trees: Tree) -> str | None:
        """The latest event of what trees read; None: any."""
        read = [name for tree in trees for name in signals_of(tree)]
        if self.mask and any(item in (("size", "token"), ("index", "token")) for tree in trees for item in walk(tree)):
            read.append(self.mask)
        named = [self.signals[name].get("event") for name in read]
        return max((name for name in named if name), default=None, key=self.case.trees["events"].index)

    def here(self, at: Point) -> Any:
        """The batch of a point."""
        return self.case.blocks[at.block].events[at.event][at.rank][at.batch]

    def rows_of(self, batch: Any) -> int:
        """How many completions a batch has."""
        for name, value in batch.items():
            if self.signals[name]["axis"] in ("completion", "token"):
                return len(next(iter(value.values())) if self.signals[name].get("family") else value)
        return 0

    def rows(self, block: int, event: str) -> list[Point]:
        """Every completion of a step, in order."""
        return self._rows[block, event]

    @cached_property
    def _rows(self) -> dict[tuple[int, str], list[Point]]:
        return {
            (block, event): [
                Point(block, event, batch, rank, row, reader="row")
                for batch, rank, values in self.case.batches(block, event)
                for row in range(self.rows_of(values))
            ]
            for block in range(len(self.case.blocks))
            for event in self.case.trees["events"]
        }

    def grouped(self, block: int, event: str) -> dict[Any, list[Point]]:
        """The rows of a step by their groups, in order of first appearance."""
        if (block, event) not in self._groups:
            found: dict[Any, list[Point]] = defaultdict(list)
            places: dict[Any, int] = defaultdict(int)
            split = self.groups.get("split", "none")
            for at in self.rows(block, event):
                scope = {"none": (at.batch, at.rank), "batches": (at.rank,), "ranks": (at.batch,)}[split]
                if "of" in self.groups:
                    key = self.value(("signal", self.groups["of"]), at)
                    key = at if key is None else key  # without an id it is alone
                else:
                    key = places[scope] // self.groups["size"]
                    places[scope] += 1
                found[scope, key].append(at)
            self._groups[block, event] = found
        return self._groups[block, event]

    @cached_property
    def _groups(self) -> dict[tuple[int, str], dict[Any, list[Point]]]:
        return {}

    def group(self, at: Point) -> list[Point]:
        """The rows of a row's group."""
        bare = at._replace(token=0, member="")
        return next(rows for rows in self.grouped(at.block, at.event).values() if bare in rows)

    def groups_of_step(self, at: Point) -> list[Point]:
        """The first row of each group of a step, over all batches and ranks."""
        return [rows[0] for rows in self.grouped(at.block, at.event).values()]

    def tokens(self, trees: list[Tree], at: Point) -> list[Point]:
        """The tokens of a completion that exist for what trees read."""
        names = sorted(set().union(*(masks_of(tree, self.signals, self.mask) for tree in trees)))
        masks = [self.observed(name, at) for name in names]
        reads = [self.observed(name, at) for tree in trees for name in signals_of(tree)
                 if self.signals[name]["axis"] == "token"]  # fmt: skip
        reads = [values for values in reads if values is not ABSENT]
        if any(values is ABSENT for values in masks):
            return []
        if self.lengths is not None:  # says it also where nothing else of the tokens came
            reads.append([None] * self.observed(self.lengths, at))
        if not masks and not reads:
            return []
        count = len((masks or reads)[0])
        return [at._replace(token=place) for place in range(count) if all(mask[place] for mask in masks)]

    def nowhere(self, tree: Tree, at: Point) -> bool:
        """Whether nothing says which tokens exist for a tree: of `mask: all` the tokens are those of what came."""
        if self.lengths is not None or masks_of(tree, self.signals, self.mask):
            return False
        read = [name for name in signals_of(tree) if self.signals[name]["axis"] == "token"]
        return all(self.observed(name, at) is ABSENT for name in read)

    def moved(self, at: Point, event: str | None) -> Point:
        """The same completion at an earlier event."""
        if event in (None, at.event):
            return at
        assert event is not None
        mode = self.case.blocks[at.block].mode
        for block in range(at.block, -1, -1):
            if self.case.blocks[block].mode == mode and self.case.blocks[block].events.get(event, [[]] * 9)[at.rank]:
                if not self.ids:
                    return at._replace(block=block, event=event, batch=0)
                mine = self.observed(self.ids, at)
                for row in self.rows(block, event):
                    if row.rank == at.rank and self.observed(self.ids, row) == mine:
                        return row._replace(member=at.member)
        raise LookupError(at)

    def members(self, tree: Tree, *, ever: bool = False) -> list[str]:
        """The members of the families that a tree reads, in the order in which the window first has them."""
        seen: dict[str, None] = {}
        for name in families_of(tree):
            if self.signals[name].get("family"):
                for block in range(len(self.case.blocks)) if ever else self.reached(name):
                    for event in self.case.trees["events"]:
                        for _, _, values in self.case.batches(block, event):
                            seen.update(dict.fromkeys(values.get(name, {})))
        return list(seen)

    def reached(self, name: str) -> list[int]:
        """The steps in which a window finds a signal: those of its own, and the ones that its rows are looked up in."""
        event, blocks = self.signals[name].get("event"), self.case.blocks
        found = set(self.window)
        for block in self.window:
            mine = [place for place in range(block + 1) if blocks[place].mode == blocks[block].mode]
            found.update([place for place in mine if event and any(blocks[place].events.get(event, []))][-1:])
        return sorted(found)

    # ---- what they are worth

    def observed(self, name: str, at: Point) -> Any:
        """What was observed at a point: a row's value, or the list of its tokens."""
        whole, declared = self.here(at).get(name, ABSENT), self.signals[name]
        if declared["axis"] == "step" and at.reader:
            return self.held(name, at)
        if whole is not ABSENT and declared.get("family"):
            whole = whole.get(at.member, ABSENT)
        if whole is ABSENT or declared["axis"] == "step":
            return whole if whole is ABSENT else number(whole)
        if not whole:  # a batch without rows
            return None
        if declared["axis"] == "group":
            mine = self.group(at)[0]
            order = [rows[0] for rows in self.grouped(at.block, at.event).values()]
            here = [row for row in order if (row.batch, row.rank) == (at.batch, at.rank)]
            return number(whole[here.index(mine)])
        return whole[at.row] if declared["axis"] == "token" else number(whole[at.row])

    def held(self, name: str, at: Point) -> Any:
        """A value per step as a row reads it: of its batch, or of the last one before in the step, or of the next.

        Tokens are folded when their batch closes: they read no later value.
        """
        found = [
            (batch, values[name].get(at.member, ABSENT) if self.signals[name].get("family") else values[name])
            for batch, rank, values in self.case.batches(at.block, at.event)
            if rank == at.rank and name in values
        ]
        came = [(batch, value) for batch, value in found if value is not ABSENT]
        before = [value for batch, value in came if batch <= at.batch]
        behind = [value for batch, value in came if batch > at.batch and at.reader == "row"]
        return number([*before[-1:], *behind][0]) if before or behind else ABSENT

    def reads_rows(self, tree: Any) -> bool:
        """Whether a value per step is computed of rows, also of those of its tokens."""
        if not isinstance(tree, tuple) or tree[0] == "prev":
            return False
        if tree[0] == "signal":
            return str(self.signals[tree[1]]["axis"]) != "step"
        return tree[0] in ("index", "size") or any(map(self.reads_rows, tree[1:]))

    def value(self, tree: Tree, at: Point) -> Any:
        """The value at a point: None is missing, ABSENT is absent.

        What is computed is one value per its own axis, of the latest event that it reads: whatever reads it, it is the
        same.
        """
        at = self.read_at(tree, at)
        key = (id(tree), at)
        if key not in self._known:
            before, self.scale = self.scale, 0.0
            found = self._value(tree, at)
            if isinstance(found, float | int) and abs(found) != float("inf"):
                self.scale = max(self.scale, abs(float(found)))
            self._known[key] = found, self.scale
            self.scale = before
        found, peak = self._known[key]
        self.scale = max(self.scale, peak)
        return found

    def read_at(self, tree: Tree, at: Point) -> Point:
        """The point at which a tree is read for a row: of its own event and axis, and who reads its values per step."""
        if id(tree) not in self._facts:
            self._facts[id(tree)] = (tree, self.event_of(tree), axis_of(tree, self.signals))
        _, event, axis = self._facts[id(tree)]
        at = self.moved(at, event)
        if axis == "step" and not at.reader and self.reads_rows(tree):  # a value per step beside one of rows
            at = at._replace(reader="row")
        if axis == "token" and at.reader:  # what a token reads per completion is folded with it
            at = at._replace(reader="token")
        if axis == "group":
            at = self.group(at)[0]._replace(member=at.member)
        return at

    def _value(self, tree: Tree, at: Point) -> Any:
        op, *args = tree
        match op:
            case "constant":
                return args[0]
            case "name":
                return at.rank if args[0] == "rank" else self.case.blocks[at.block].number
            case "signal":
                found = self.observed(args[0], at)
                per_token = isinstance(found, list) and self.signals[args[0]]["axis"] == "token"
                return number(found[at.token]) if per_token else found
            case "if":
                return self.chosen(args, at)
            case "and" | "or":
                return self.joined(op, args, at)
            case "aggregate":
                return self.aggregated(args[0], args[1], args[2], at)
            case "rank":
                return self.ranked(args[0], args[1], at)
            case "prev":
                return self.before(args[0], args[1], at)
            case "member":
                return self.value(args[0], at._replace(member=args[1]))
            case "members":
                found = [self.value(args[0], at._replace(member=member)) for member in self.members(args[0], ever=True)]
                return sum(value is not ABSENT for value in found) or ABSENT
            case "pass_at" | "pass_all" | "best_at" | "majority_at" | "jaccard" if self.too_few(tree, at):
                return ABSENT
            case "pass_all" | "best_at":
                return of_drawn(op, [self.judged(args[0], row) for row in self.group(at)], args[1])
            case "majority_at":
                found = [[self.judged(item, row) for row in self.group(at)] for item in args[:2]]
                return majority_at(found[0], found[1], args[2] if len(args) > 2 else None)
            case "distinct_of" | "distinct" | "jaccard":
                found = [self.value(args[0], row) for row in self.group(at)]
                if all(item is ABSENT for item in found):
                    return ABSENT
                if op == "distinct":
                    return len({item for item in found if there(item)})
                return jaccard(found) if op == "jaccard" else distinct(found, args[1])
            case "pass_at" | "majority":
                found = [self.judged(args[0], row) for row in self.group(at)]
                return majority(found) if op == "majority" else pass_at(found, args[1])
            case "chain":
                low, first, x, second, high = args
                one, two = self.value((first, low, x), at), self.value((second, x, high), at)
                return OPERATIONS["and"](one, two)
            case "bucket":
                return bucket(self.value(args[0], at), args[1:])
            case "index" | "size":
                return self.place(op, args[0], at)
            case "labels":
                found = [self.judged(item, at) for item in args]
                gone = [item for item in found if not there(item)]
                return gone[0] if gone and ABSENT not in gone else ABSENT if gone else combinations(found)
            case "distinct_n":
                text = self.value(args[0], at)
                return text if not there(text) else distinct([text], args[1])
        return OPERATIONS[op](*(self.value(item, at) if isinstance(item, tuple) else item for item in args))

    def chosen(self, args: list[Tree], at: Point) -> Any:
        """The side of `x if c else y`; where `c` is one per row and asks no `present`, both must be there."""
        condition = self.value(args[0], at)
        if condition is ABSENT:
            return ABSENT
        sides = [self.value(side, at) for side in args[1:]]
        if ABSENT in sides and self.by_row(args[0]):
            return ABSENT
        for value, other, asked in ((0, 1, ("present", args[1])), (1, 0, ("not", ("present", args[2])))):
            if args[0] == asked and bool(condition) is (value == 1) and sides[other] is ABSENT is not sides[value]:
                return None  # what came is missing
        return sides[0 if condition else 1]

    def by_row(self, condition: Tree) -> bool:
        """Whether a condition is one per row and does not ask `present`."""
        return not asks(condition) and axis_of(condition, self.signals) not in (None, "step", "all")

    def judged(self, tree: Tree, at: Point) -> Any:
        """A value as it is reduced: a comparison of what is missing is missing."""
        found = self.value(tree, at)
        return None if found is not ABSENT and self.undecided(tree, at) else found

    def undecided(self, tree: Tree, at: Point) -> bool:
        """Whether a bool is neither true nor false, since something that it compares is missing.

        It is read where its value is: at the latest event, by the same reader of values per step.
        """
        at = self.read_at(tree, at)
        op, *args = tree
        if op in ASKED:
            return any(self.value(item, at) is None for item in args if isinstance(item, tuple))
        if op == "not":
            return self.undecided(args[0], at)
        if op == "member":
            return self.undecided(args[0], at._replace(member=args[1]))
        if op == "chain":
            return any(self.value(item, at) is None for item in args[::2])
        if op in ("and", "or"):
            gaps = [self.undecided(item, at) for item in args]
            decided = [asks(item) and not gap and bool(self.value(item, at)) is (op == "or")
                       for item, gap in zip(args, gaps, strict=True)]  # fmt: skip
            return any(gaps) and not any(decided)
        if kind_of(tree, self.signals) != "bool" or op in ("present", "isnan", "isfinite"):
            return False
        if op == "if":
            gaps = [self.undecided(item, at) for item in args]
            if gaps[0] or self.by_row(args[0]):
                return any(gaps)
            return gaps[1 if self.value(args[0], at) else 2]
        return self.value(tree, at) is None

    def joined(self, op: str, sides: list[Tree], at: Point) -> Any:
        """`and` and `or`: a side that asks `present` decides alone where it can."""
        values = [self.value(side, at) for side in sides]
        for side, value in zip(sides, values, strict=True):
            decided = value is not ABSENT and bool(value) is (op == "or") and asks(side)
            if decided and ABSENT in values and not self.undecided(side, at):
                return op == "or"
        return OPERATIONS[op](*values)

    def aggregated(self, name: str, over: str, tree: Tree, at: Point) -> Any:
        """One value of those below a point."""
        if over == "member":
            points = [at._replace(member=member) for member in sorted(self.members(tree, ever=True))]
            if not points:
                return ABSENT
        elif over == "token":
            points = self.tokens([tree], at)
            if not points and self.nowhere(tree, at):
                return ABSENT
            if not points and any(self.observed(item, at) is ABSENT for item in needed(tree)):
                return ABSENT
        else:
            of_step = self.rows(at.block, at.event) if over == "step" else self.groups_of_step(at)
            points = self.group(at) if over == "completion" else of_step
            points = [point._replace(member=at.member) for point in points]
            if not points:  # the step has no rows, or no group begins in it
                return ABSENT
        found = [self.judged(tree, point) for point in points]
        return ABSENT if name in ("std", "var") and sum(map(there, found)) == 1 else aggregate(name, found)

    def too_few(self, tree: Tree, at: Point) -> bool:
        """Whether a group has values, and fewer than what is computed of it takes."""
        op, *args = tree
        read = args[1] if op == "majority_at" else args[0]
        least = 2 if op == "jaccard" else args[2] if len(args) > 2 else 1 if op == "majority_at" else args[1]
        return 0 < sum(there(self.judged(read, row)) for row in self.group(at)) < least

    def ranked(self, within: str, tree: Tree, at: Point) -> Any:
        """One more than how many come before, of those that are not missing."""
        others = self.group(at) if within == "group" else self.rows(at.block, at.event)
        mine = self.value(tree, at)
        if not there(mine):
            return mine
        place = others.index(at._replace(token=0, member=""))
        found = [self.value(tree, other) for other in others]
        return 1 + sum((value, index) < (mine, place) for index, value in enumerate(found) if there(value))

    def place(self, op: str, axis: str, at: Point) -> int:
        """`index` and `size`."""
        if axis == "token":
            mask = self.observed(self.mask, at)
            return sum(map(bool, mask)) if op == "size" else sum(map(bool, mask[: at.token]))
        if axis == "completion":
            rows = self.group(at)
            return len(rows) if op == "size" else rows.index(at._replace(token=0, member=""))
        at = self.group(at)[0] if op == "index" else at
        firsts = self.groups_of_step(at)
        return len(firsts) if op == "size" else firsts.index(at)

    def before(self, tree: Tree, first: Any, at: Point) -> Any:
        """The last value of the latest step before this one, in its mode and rank, that had any."""
        blocks = self.case.blocks
        for block in range(at.block - 1, -1, -1):
            if blocks[block].mode == blocks[at.block].mode:
                found = [
                    self.value(tree, at._replace(block=block, batch=batch))
                    for batch, rank, _ in self.case.batches(block, at.event)
                    if rank == at.rank
                ]
                if any(there(value) for value in found):
                    return [value for value in found if there(value)][-1]
        return first

    # ---- where an expression has values

    def points(self, axis: str, event: str, block: int, trees: list[Tree]) -> list[Point]:
        """Where an axis has values in a step, in order."""
        if axis == "token":
            return [point for row in self.rows(block, event) for point in self.tokens(trees, row)]
        if axis == "completion":
            return self.rows(block, event)
        if axis == "group":
            return [rows[0] for rows in self.grouped(block, event).values()]
        found = [Point(block, event, batch, rank) for batch, rank, _ in self.case.batches(block, event)]
        if axis == "step":
            return found
        return found[:1]

    def axis(self, tree: Tree) -> str:
        """The axis of a tree that is no constant."""
        found = axis_of(tree, self.signals)
        assert found
        return found
