"""Which rows a table takes, and what its columns hold: plain lists, sorted by Python."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from tests.oracle.cases import Point
from tests.oracle.interpreter import World
from tests.oracle.log_events import Moment
from tests.oracle.pieces import narrow
from tests.oracle.trees import family_of, kind_of
from tests.oracle.values import there

WORD, GOLDEN = 2**64 - 1, 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """The last steps of splitmix64."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & WORD
    return x ^ (x >> 31)


def hashed(*keys: int) -> int:
    """What `random` and `fraction` pick by, in Python's own integers."""
    state = 0x632BE59BD9B4E019
    for key in keys:
        state = mix(state ^ mix((key + GOLDEN) & WORD))
    return state


def numbered(row: int | str) -> int:
    """A row's id, or the 64 bits of a text's digest."""
    if isinstance(row, int):
        return row
    return int.from_bytes(hashlib.blake2b(row.encode(), digest_size=8).digest(), "little", signed=True)


class Tables:
    """The tables of one log event."""

    def __init__(self, world: World, moment: Moment) -> None:
        self.world, self.case, self.moment = world, world.case, moment
        self.off: dict[str, float] = {}  # how far a table's numbers may be off, where tokens are float32
        self.axis, self.ids, self.every_point = "completion", world.ids, list[Point]()

    def logged(self) -> dict[str, list[dict[str, Any]]]:
        """Rows by table; a table whose window is not over, or that has no rows, is left out."""
        found = {}
        for name, table in self.case.profile.get("tables", {}).items():
            blocks = self.moment.windows.get(table.get("every", self.case.profile.get("every", 1)))
            rows = self.rows(name, table, blocks) if blocks else []
            if rows:
                found[name] = rows
        return found

    def rows(self, name: str, table: dict[str, Any], blocks: list[int]) -> list[dict[str, Any]]:
        """The rows of a table."""
        trees = self.case.trees["tables"][name]
        axis, event = table.get("rows", "completion"), trees["event"]
        self.world.window = blocks
        points = [at for block in blocks for at in self.world.points(axis, event, block, [])]
        if table.get("keep") == "last_batch":  # also where that has no rows
            last = max(
                [(block, batch) for block in blocks for batch, _, _ in self.case.batches(block, event)], default=(0, 0)
            )
            points = [at for at in points if (at.block, at.batch) == last]
        self.axis, self.every_point = axis, points
        self.ids = None if axis == "step" else self.world.ids  # a group is named by its first row
        if "filter" in table:
            points = self.filtered(table["filter"], points)
        self.world.scale = 0.0
        for column, tree in trees["columns"].items() if points else ():
            if family_of(tree, self.world.signals):
                self.world.shown.setdefault((name, column), {}).update(dict.fromkeys(self.world.members(tree)))
        rows = [self.columns(name, trees["columns"], at) for at in points]
        loose = any(narrow(tree, self.case, self.world) for tree in trees["columns"].values())
        self.off[name] = 2e-5 * max(1.0, self.world.scale) if loose else 0.0
        return rows

    def columns(self, name: str, columns: dict[str, Any], at: Point) -> dict[str, Any]:
        """A row's values by column."""
        made: dict[str, Any] = {}
        for column, tree in columns.items():
            if family_of(tree, self.world.signals):
                for member in self.world.shown[name, column]:
                    made[f"{column}/{member}"] = self.cell(tree, at._replace(member=member))
            else:
                made[column] = self.cell(tree, at)
        return made

    def cell(self, tree: Any, at: Point) -> Any:
        value = self.world.value(tree, at)
        if not there(value):
            return None
        return float(value) if kind_of(tree, self.world.signals) == "float" else value

    # ---- which

    def filtered(self, name: str, points: Sequence[Point]) -> list[Point]:
        """The rows that a filter takes, in their order."""
        spec, trees = self.case.profile["filters"][name], self.case.trees["filters"][name]
        rows = self.filtered(spec["from"], points) if "from" in spec else list(points)
        if "where" in trees:
            rows = [at for at in rows if self.world.value(trees["where"], at) is True]
        labels = {at: self.world.value(trees["label"], at) if "label" in trees else 0 for at in rows}
        rows = [at for at in rows if there(labels[at])]
        within = spec.get("within", "step")
        word = within[0] if isinstance(within, list) else within if "label" not in trees else "window"
        scopes: dict[Any, list[Point]] = {}
        for at in rows:
            scopes.setdefault((self.scope(word, at), labels[at]), []).append(at)
        taken = {at for scope in scopes.values() for at in self.taken(spec, trees, scope)}
        found = [at for at in rows if at in taken]
        return found[: spec["limit"]] if "limit" in spec else found

    def scope(self, within: str, at: Point) -> Any:
        """What a row is chosen from."""
        if within == "group":
            return self.world.group(at)[0]
        return {"batch": (at.block, at.batch), "step": at.block, "window": 0}[within]

    def taken(self, spec: dict[str, Any], trees: dict[str, Any], rows: list[Point]) -> list[Point]:
        """The rows that are taken of one scope."""
        if "first" in spec:
            return rows[: spec["first"]]
        if "random" in spec:
            return sorted(rows, key=self.hashed)[: spec["random"]]
        if "fraction" in spec:
            return [at for at in rows if self.hashed(at) < spec["fraction"] * 2.0**64]
        if "key" not in trees:
            return rows
        keys = {at: self.world.value(trees["key"], at) for at in rows}
        rows = [at for at in rows if there(keys[at])]
        if "unique" in spec:
            seen: dict[Any, Point] = {}
            for at in rows:
                seen.setdefault(keys[at], at)
            return list(seen.values())
        tie = self.tie()
        top = sorted(rows, key=lambda at: (-keys[at], tie(at)))[: spec.get("top", 0)]
        rest = sorted((at for at in rows if at not in top), key=lambda at: (keys[at], tie(at)))
        return [*top, *rest[: spec.get("bottom", 0)]]

    def tie(self) -> Callable[[Point], Any]:
        """By (step, batch, rank, row), or by (step, id)."""
        if self.ids:
            return lambda at: (at.block, numbered(self.world.observed(self.ids, at)))
        return lambda at: at

    def hashed(self, at: Point) -> int:
        """A row's hash."""
        number = self.case.blocks[at.block].number
        if self.ids:
            return hashed(number, numbered(self.world.observed(self.ids, at)))
        here = [other for other in self.every_point if other[:4] == at[:4]]
        return hashed(number, at.batch, at.rank, here.index(at))
