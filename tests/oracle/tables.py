"""The tables of a random profile: their columns, and the filters that choose their rows."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.oracle.expressions import COARSER, Expressions
from tests.oracle.trees import Signals, Tree, family_of, kind_of, text

EVERY = 1000  # more rows than any case has


class Tables:
    """Fills in a profile's tables. ``written`` is how an expression stands in it."""

    def __init__(
        self, random: Random, draw: Expressions, profile: dict[str, Any], signals: Signals, events: list[str],
        grouping: str, written: Callable[[Tree], str],
    ) -> None:  # fmt: skip
        self.random, self.draw, self.profile, self.signals = random, draw, profile, signals
        self.events, self.grouping, self.written = events, grouping, written

    def maybe(self, share: float) -> bool:
        return self.random.random() < share

    def declare(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Tables with columns and filters, each of one event."""
        self.draw.joins = False
        filters: dict[str, Any] = {}
        tables: dict[str, Any] = {}
        for place in range(self.random.choice((0, 1, 1, 2))):
            event = self.random.choice(self.events)
            self.draw.several = False  # the first column says of which event the table is
            kinds = (
                ["completion"] * 4
                + (["group"] if self.draw.can("group", event) else [])
                + (["step"] if self.draw.can("step", event) else [])
            )
            rows = self.random.choice(kinds)
            columns: dict[str, Tree] = {"c0": self.draw.leaf(rows, event) or self.draw.number(rows, event, 0)}
            self.draw.several = True
            for at in range(1, self.random.randint(2, 5)):
                columns[f"c{at}"] = self.column(rows, event)
            schema = {
                name: {"type": kind_of(tree, self.signals), "expr": self.written(tree)}
                for name, tree in columns.items()
            }
            for name, tree in columns.items():
                if family_of(tree, self.signals):
                    schema[name]["name"] = f"{name}/{{member}}"
            self.profile.setdefault("schemas", {})[f"s{place}"] = schema
            table: dict[str, Any] = {"schema": f"s{place}", "rows": rows}
            if self.maybe(0.3):
                table["every"] = self.profile["every"] * self.random.choice((1, 2))
            if self.maybe(0.2):
                table["keep"] = "last_batch"
            if self.maybe(0.75):
                table["filter"] = f"r{place}"
                filters[f"r{place}"] = self.filter(f"r{place}", rows, event)
                if self.maybe(0.3):
                    filters[f"r{place}b"] = self.filter(f"r{place}b", rows, event)
                    self.profile["filters"][f"r{place}b"]["from"] = f"r{place}"
                    table["filter"] = f"r{place}b"
            self.profile.setdefault("tables", {})[f"t{place}"] = table
            tables[f"t{place}"] = {"columns": columns, "event": event}
        return filters, tables

    def column(self, rows: str, event: str) -> Tree:
        """What one column holds."""
        choice = self.random.randrange(5)
        if choice == 0 and self.draw.can(rows, event):
            return self.draw.boolean(rows, event, 2)
        if (
            choice == 1
            and rows == "completion"
            and (leaf := self.draw.leaf("completion", event, ("text", "int", "bool")))
        ):
            return leaf
        if choice == 2 and rows != "group" and self.draw.names(rows, ("float",), event, True):
            return self.draw.family(rows, event, 1, False)
        axes = [axis for axis in (rows, rows, *COARSER[rows]) if self.draw.can(axis, event)]
        return self.draw.number(self.random.choice(axes or [rows]), event, 3)

    def filter(self, name: str, rows: str, event: str) -> dict[str, Any]:
        """A filter of any kind, scope and limit."""
        random = self.random
        kind = random.choice(("all", "top_bottom", "top_bottom", "random", "fraction", "first", "unique"))
        spec: dict[str, Any] = {
            "within": random.choice(
                (
                    "batch",
                    "step",
                    "window",
                    *(("group",) if rows == "completion" and self.grouping != "no" else ()),
                )
            ),
        }
        trees: dict[str, Any] = {}
        if kind == "top_bottom":
            spec["top"], spec["bottom"] = random.choice(((1, 1), (2, 0), (0, 3)))
        if kind in ("random", "first"):
            spec[kind] = random.randint(1, 4)
        if kind == "fraction":
            spec["fraction"] = random.choice((0.0, 0.3, 0.7, 1.0))
        if kind in ("unique", "top_bottom"):
            trees["key"] = self.draw.number(rows, event, 1, exact=True)
            if kind == "unique" and rows == "completion" and (leaf := self.draw.leaf("completion", event, ("text",))):
                trees["key"] = leaf
            spec["unique" if kind == "unique" else "key"] = text(trees["key"])
        if self.maybe(0.4):
            trees["where"] = self.draw.boolean(rows, event, 2)
            spec["where"] = text(trees["where"])
        elif kind == "all":
            spec["first"] = EVERY
        if self.maybe(0.3) and (leaf := self.draw.leaf(rows, event, ("text", "int", "bool"))):
            trees["label"] = leaf
            spec["within"] = [spec["within"], text(leaf)] if self.maybe(0.5) else text(leaf)
        if self.maybe(0.3):
            spec["limit"] = random.randint(1, 5)
        self.profile.setdefault("filters", {})[name] = spec
        return trees
