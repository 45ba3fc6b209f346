"""The metrics of a log event: reductions of rows, formulas and conditions over them, and what is shown of all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tests.oracle.cases import Case
from tests.oracle.pieces import Cells, Piece, combine, is_odd
from tests.oracle.reduced import Reduced
from tests.oracle.reductions import Bins
from tests.oracle.trees import Tree, family_of, leaves_of, names_in
from tests.oracle.values import ABSENT, OPERATIONS, aggregate, number, there

AT_ONCE: Piece = ()  # all pieces of a window


def is_spread(spec: Mapping[str, Any]) -> bool:
    """Whether a metric combines pieces to their variance."""
    return spec.get("combine") in ("var", "std")


class Metrics(Reduced):
    """The metrics of one log event."""

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

    def shown(self, name: str) -> bool:
        """Whether its `when` holds."""
        condition = self.metrics[name].get("when")
        return condition is None or self.scalar(condition) is True

    def combined(self, key: str) -> dict[str, Any]:
        """The values of a metric, by cell."""
        cells = self.cells(key)
        name = key.partition(".")[0]
        spec = self.spec(self.source(name))
        if cells is None:
            return {}
        if "formula" in self.metrics[name] and is_spread(spec):
            return {cell: pieces[AT_ONCE] for cell, pieces in cells.items()}
        found = {cell: combine(spec, pieces) for cell, pieces in cells.items()}
        return {cell: value for cell, value in found.items() if value is not None}

    def read(self, key: str) -> Cells:
        """The values of a metric as formulas read them: a variance of pieces is one value."""
        name = key.partition(".")[0]
        if "formula" not in self.metrics[name] and is_spread(self.spec(name)):
            return {cell: {AT_ONCE: value} for cell, value in self.combined(key).items()}
        return self.cells(key) or {}

    def formula(self, tree: Tree) -> Cells:
        """A formula, cell by cell and piece by piece."""
        members: Sequence[str | None] = self.members(tree) or [None]
        found: Cells = {}
        for cell in members:
            for piece in self.pieces_of(tree, cell):
                value = self.computed(tree, cell, piece)
                if value is None and any(self.is_odd(leaf, cell, piece) for leaf in leaves_of(tree)):
                    value = math.nan
                if there(value):
                    found.setdefault(cell or "", {})[piece] = value
        return found

    def pieces_of(self, tree: Tree, cell: str | None) -> list[Piece]:
        """The pieces in which a formula reads something in a cell."""
        return sorted({piece for leaf in leaves_of(tree) for piece in self.of(leaf, cell)})

    def over_labels(self, tree: Tree) -> dict[Piece, Any]:
        """What a formula reduces over the labels of a metric, piece by piece; it has none itself."""
        _, name, _, inner = tree
        labels = self.members(inner)
        found = {}
        for piece in sorted({piece for label in labels for piece in self.pieces_of(inner, label)}):
            value = aggregate(name, [self.computed(inner, label, piece) for label in labels])
            if value is None and any(self.is_odd(leaf, label, piece) for leaf in leaves_of(inner) for label in labels):
                value = math.nan
            if there(value):
                found[piece] = value
        return found

    def unlike(self, tree: Tree) -> bool:
        """Whether the pooled rests that a formula reads are of other labels each."""
        read = [key.partition(".")[0] for leaf in leaves_of(tree) if leaf[0] == "name" for key in names_in(leaf)
                if self.cells(key) is not None]  # fmt: skip
        labels = [self.labels(name) for name in read]
        found = [item for item in labels if item]
        return any("_other" in item for item in found) and any(item != found[0] for item in found)

    def labels(self, name: str) -> set[str]:
        """The labels of a metric, or of what a formula reads."""
        formula = self.metrics[name].get("formula")
        if formula is None:
            return self._labels.get(name, set())
        keys = [key for leaf in leaves_of(formula) if leaf[0] == "name" for key in names_in(leaf)]
        return {label for key in keys for label in self.labels(key.partition(".")[0])}

    def of(self, leaf: Tree, cell: str | None) -> dict[Piece, Any]:
        """A leaf's pieces for a cell: a family's or label's own, which may be empty, or a plain metric's for each."""
        if leaf[0] == "aggregate":
            return self.over_labels(leaf)
        key = leaf[1]
        cells = self.read(key)
        if self.is_family(key):
            if cell is not None:
                return cells.get(cell, {})
            return {piece: 0.0 for pieces in cells.values() for piece in pieces}
        return cells.get("", {})

    def is_odd(self, leaf: Tree, cell: str | None, piece: Piece) -> bool:
        """Whether a formula reads a NaN or an infinity; of a family that it aggregates, in any member."""
        if leaf[0] == "name" and self.is_family(leaf[1]) and cell is None:
            return any(is_odd(pieces.get(piece)) for pieces in self.read(leaf[1]).values())
        return is_odd(self.of(leaf, cell).get(piece))

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
            return list(self.read(tree[1])) if self.is_family(tree[1]) else []
        found: dict[str, None] = {}
        for item in tree[1:]:
            if isinstance(item, tuple):
                found.update(dict.fromkeys(self.members(item)))
        return [member for member in found if member != "_other" or not self.unlike(tree)]

    def computed(self, tree: Tree, cell: str | None, piece: Piece) -> Any:
        """A formula's value in one cell and piece."""
        op, *args = tree
        match op:
            case "name":
                value = self.of(tree, cell).get(piece, ABSENT)
                return None if isinstance(value, float) and math.isnan(value) else value
            case "constant":
                return args[0]
            case "if":
                condition = self.computed(args[0], cell, piece)
                return ABSENT if condition is ABSENT else self.computed(args[1 if condition else 2], cell, piece)
            case "aggregate" if args[1] == "label":
                value = self.over_labels(tree).get(piece, ABSENT)
                return None if isinstance(value, float) and math.isnan(value) else value
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
                        if "rank" in self.case.profile["axes"] and trees.get("by") == ("name", "rank"):
                            shown = shown.removesuffix("/{label}") + "/rank{label}"
                        shown = shown.format(id=name, reduce=suffix, member=cell, label=cell)
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


def default_name(suffix: str, cell: str, by: bool) -> str:
    """`{id}`, `{id}/{reduce}`, `{id}/{member}`, `{id}/{label}`, or with the reduction before the last."""
    parts = ["{id}", *(["{reduce}"] if suffix else []), *(["{label}"] if by else ["{member}"] if cell else [])]
    return "/".join(parts)


def chosen(case: Case, name: str, suffix: str) -> bool:
    """Whether the profile that is active shows a metric."""
    only = [selector for selector in _active(case).get("only", []) if selector != "*"]
    return (not only or _selected(case, only, name, suffix)) and not hidden(case, name, suffix)


def hidden(case: Case, name: str, suffix: str) -> bool:
    """Whether the profile that is active hides a metric, also in the texts of alerts."""
    return _selected(case, _active(case).get("hide", []), name, suffix)


def _active(case: Case) -> Mapping[str, Any]:
    active: Mapping[str, Any] = case.profile.get("profiles", {}).get(case.profile.get("profile", "full"), {})
    return active


def _selected(case: Case, selectors: Sequence[str], name: str, suffix: str) -> bool:
    for selector in selectors:
        tags = case.profile["metrics"][name].get("tags", [])
        if selector in (name, f"{name}.{suffix}", *(f"tag:{tag}" for tag in tags)):
            return True
        if selector.endswith("*") and name.startswith(selector[:-1]):
            return True
    return False
