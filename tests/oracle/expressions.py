"""Random expressions that are well typed.

Where a comparison decides something, its sides are exact (eighths and integers, added and compared only), or one of
them is a number that nothing else comes near: else two right computations may differ in the last bit, and so in the
answer.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from tests.oracle.trees import COMPARED, REMOVED, WORDS, Signals, Tree

FINER = {coarse: fine for fine, coarse in REMOVED.items()}
COARSER = {
    "token": ("completion", "step"), "completion": ("group", "all", "step"), "group": ("all", "step"),
    "all": (), "step": ("all",),
}  # fmt: skip
OF_VALUES = ("p50", "p90", "top_mean")  # aggregates that need the values themselves
EXACT = (0, 1, 2, -1.5, 0.5, 3, 0.125)
ODD = (0.31371, -0.7193, 1.61803, 2.23607, -1.41421, 5.5511, 17.2931)
COMPARISONS = (*COMPARED, *WORDS.values())  # as words now and then
TEXTS = ("a", "b c", "", "yes", "the cat", "a b a", "ünï ✓", "other")
MEMBERS = ("left", "right", "up")


class Expressions:
    """Draws expressions over signals. ``order``: the events, the earlier ones readable from the later."""

    def __init__(
        self, random: Random, signals: Signals, order: list[str], *, groups: bool, whole: bool, sized: bool
    ) -> None:
        self.random, self.signals, self.order = random, signals, order
        self.groups, self.whole, self.sized = groups, whole, sized
        self.several = True  # whether what is of several events may be read
        self.joins = True  # whether what is per completion may be of an earlier event, too

    def maybe(self, share: float) -> bool:
        return self.random.random() < share

    # ---- signals

    def names(self, axis: str, kinds: tuple[str, ...], event: str, family: bool = False) -> list[str]:
        """The signals that can be read at an event: of earlier ones what is per completion."""
        place = self.order.index(event)
        events = set(self.order[: place + 1]) if axis == "completion" and self.joins else {event}
        return [
            name
            for name, spec in self.signals.items()
            if spec["axis"] == axis and spec.get("type", "float") in kinds and bool(spec.get("family")) is family
            and (spec.get("event") in events or (self.several and spec.get("several"))) and not spec.get("apart")
        ]  # fmt: skip

    def leaf(self, axis: str, event: str, kinds: tuple[str, ...] = ("float", "int")) -> Tree | None:
        found = self.names(axis, kinds, event)
        return ("signal", self.random.choice(found)) if found else None

    def can(self, axis: str, event: str) -> bool:
        """Whether there are numbers on an axis."""
        if axis in ("group", "all"):
            return (self.groups or axis == "all") and bool(self.names("completion", ("float", "int"), event))
        return bool(self.names(axis, ("float", "int"), event))

    # ---- numbers

    def number(self, axis: str, event: str, depth: int, *, exact: bool = False, device: bool = False) -> Tree:
        """A number whose finest axis is ``axis``."""
        return self.alone(axis, lambda: self._number(axis, event, depth, exact, device))

    def _number(self, axis: str, event: str, depth: int, exact: bool, device: bool) -> Tree:
        random, device = self.random, device or axis == "token"
        choice = random.randrange(12) if depth > 0 else 0
        leaf = self.leaf(axis, event)
        if choice < 2 or depth <= 0:
            return leaf or self.aggregated(axis, event, 0, exact)
        below = axis in FINER and self.can(FINER[axis], event) and (axis == "completion" or not device)
        if choice < 5 and below:
            return self.aggregated(axis, event, depth - 1, exact)
        if choice == 5 and axis == "token" and self.sized and event == self.order[-1]:
            place: Tree = ("index", "token")
            return ("+", self.number("token", event, 0), place) if leaf else place
        if choice == 5 and axis == "completion":
            return self.special(event, depth - 1, exact, device)
        if choice == 5 and axis == "step" and not device and leaf and self.signals[leaf[1]].get("required"):
            return ("prev", leaf, random.choice(EXACT[:3]))
        if choice == 6 and axis in ("completion", "step") and not device and self.names(axis, ("float",), event, True):
            name = random.choice(
                ["sum", "min", "max", "count"] if exact else ["mean", "sum", "std", "max", "count", "first", "last"]
            )
            return ("aggregate", name, "member", self.family(axis, event, depth - 1, exact))
        if choice == 7:
            sides = [
                self.number(axis, event, depth - 1, exact=exact, device=device),
                self.other(axis, event, depth - 1, exact, device),
            ]
            random.shuffle(sides)
            if leaf and not exact and self.maybe(0.2):  # the second where the first is not there
                here, stand_in = ("present", leaf), sides[1]
                return ("if", here, leaf, stand_in) if self.maybe(0.5) else ("if", ("not", here), stand_in, leaf)
            return ("if", self.boolean(axis, event, depth - 1, device=device), *sides)
        if choice == 8 and self.maybe(0.3):  # of exact numbers: it jumps
            sides = [self.number(axis, event, depth - 1, exact=True, device=device),
                     self.other(axis, event, depth - 1, True, device)]  # fmt: skip
            random.shuffle(sides)
            return (random.choice(("%", "//")), *sides)
        if choice < 10:
            sides = [
                self.number(axis, event, depth - 1, exact=exact, device=device),
                self.other(axis, event, depth - 1, exact, device),
            ]
            random.shuffle(sides)
            op = random.choice(
                ["+", "-", "minimum", "maximum"] if exact else ["+", "-", "*", "minimum", "maximum", "/", "ratio"]
            )
            if op == "ratio":
                return ("/", sides[0], ("+", ("abs", sides[1]), ("constant", 1)))
            if op == "/":
                return (
                    "/",
                    self.number(axis, event, depth - 1, device=device),
                    ("constant", random.choice((2, 3, -0.7))),
                )
            return (op, *sides)
        inner = self.number(axis, event, depth - 1, exact=exact, device=device)
        if choice == 11 and self.maybe(0.4):  # a mask as a factor, and a literal for no value
            truth = self.boolean(axis, event, depth - 1, device=device)
            return random.choice([("*", inner, truth), ("if", truth, inner, ("constant", None))])
        op = random.choice(
            ["neg", "abs", "clip"] if exact else ["neg", "abs", "clip", "square", "sqrt", "exp", "log", "**", "ln"]
        )
        if op == "exp":
            return ("exp", ("clip", inner, -2, 2))
        if op == "log":
            return ("log", ("+", ("abs", inner), ("constant", 1)))
        if op == "ln":
            return ("log", ("+", inner, ("constant", 0.31371)))
        return {"clip": ("clip", inner, -1, 2.5), "**": ("**", inner, ("constant", 2))}.get(op, (op, inner))

    def other(self, axis: str, event: str, depth: int, exact: bool, device: bool) -> Tree:
        """A number on ``axis``, coarser, or a constant."""
        choice = self.random.randrange(4)
        if choice == 0 or depth < 0:
            return ("constant", self.random.choice(EXACT))
        coarser = [
            item for item in COARSER[axis] if self.can(item, event) and (not device or item in ("completion", "step"))
        ]
        earlier = self.order[: self.order.index(event)]
        if axis == "completion" and self.joins and not device and earlier and self.maybe(0.4):
            event = self.random.choice(earlier)  # of the same rows, also what their group or their batch's step had
            coarser = [item for item in COARSER[axis] if self.can(item, event)]
        if choice == 1 or not coarser:
            return self.number(axis, event, depth, exact=exact, device=device)
        return self.number(self.random.choice(coarser), event, depth, exact=exact, device=device)

    def alone(self, axis: str, draw: Callable[[], Tree]) -> Tree:
        """What is drawn for a group or a batch reads one event: of another one there are completions only."""
        before, self.joins = self.joins, self.joins and axis in ("completion", "step")
        drawn = draw()
        self.joins = before
        return drawn

    def aggregated(self, axis: str, event: str, depth: int, exact: bool) -> Tree:
        """One value per ``axis`` of the next finer axis."""
        return self.alone(axis, lambda: self._aggregated(axis, event, depth, exact))

    def _aggregated(self, axis: str, event: str, depth: int, exact: bool) -> Tree:
        finer, random = FINER[axis], self.random
        over = finer
        if axis == "all" and (not self.groups or self.maybe(0.5)):
            finer, over = "completion", "step"
        names = (
            ["sum", "min", "max", "count", "first", "last"]
            if exact
            else ["mean", "sum", "min", "max", "std", "pstd", "var", "count", "first", "last", *OF_VALUES]
        )
        if finer == "token":
            names = [name for name in names if name not in ("first", "last", *OF_VALUES)]
        if self.maybe(0.25) and (finer != "token" or self.leaf("token", event, ("bool",))):
            return (
                "aggregate",
                random.choice(["sum", "count"] if exact else ["mean", "sum", "count"]),
                over,
                self.boolean(finer, event, depth),
            )
        return ("aggregate", random.choice(names), over, self.number(finer, event, depth, exact=exact))

    def special(self, event: str, depth: int, exact: bool, device: bool) -> Tree:
        """Numbers per completion that know how axes nest, and of texts."""
        found: list[Tree] = []
        if self.sized and event == self.order[-1]:
            found.append(("size", "token"))
        if not device:
            if self.groups:
                found += [("rank", "group", self.number("completion", event, depth, exact=True))]
                found += [("index", "completion"), ("size", "completion"), ("index", "group")]
                found += [("pass_at", self.boolean("completion", event, 0), 1 + self.maybe(0.4))]
                found += [("pass_all", self.boolean("completion", event, 0), 1 + self.maybe(0.4))]
                found += [("best_at", self.number("completion", event, 0), self.random.randint(1, 3))]
                voted = self.alone(
                    "group", lambda: ("majority_at", self.voted(event), self.boolean("completion", event, 0))
                )
                if voted[1] is not None:
                    found += [voted, (*voted, self.random.randint(1, 3))]
            found += [("rank", "step", self.number("completion", event, depth, exact=True)), ("name", "step")]
            if text := self.leaf("completion", event, ("text",)):
                found += [("len", text), ("words", text), ("len", text)]
                if not exact:
                    found += [("distinct_n", text, 1)]
                    if self.groups and self.whole:  # texts of a group must be on one rank
                        found += [("len", ("majority", text)), ("jaccard", text), ("distinct", text)]
                        found += [("distinct_of", text, self.random.randint(1, 2))]
            for name in self.names("completion", ("float",), event, True):
                found += [("member", ("signal", name), self.random.choice(MEMBERS)), ("members", ("signal", name))]
        if found:
            picked = self.random.choice(found)
            drawn = ("pass_at", "pass_all", "best_at", "majority_at")
            if picked[0] in drawn:
                picked = ("index", "completion") if exact else picked
            if picked[0] in (
                "name",
                "members",
                "index",
                "size",
                *drawn,
                "len",
                "distinct_of",
                "distinct",
                "jaccard",
            ):  # some are coarser, or constant
                return ("+", self.number("completion", event, 0, exact=True), picked)
            return picked
        return self.number("completion", event, 0, exact=exact)

    def voted(self, event: str) -> Tree | None:
        """An answer per completion: a text, where a group has all of its texts on one rank, or an int."""
        return self.leaf("completion", event, ("text", "int") if self.whole else ("int",))

    def family(self, axis: str, event: str, depth: int, exact: bool) -> Tree:
        """A family of numbers."""
        name = self.random.choice(self.names(axis, ("float",), event, True))
        choice = self.random.randrange(3) if depth > 0 else 0
        if choice == 1:
            other = self.other(axis, event, depth - 1, exact, False)
            return (self.random.choice(("+", "-") if exact else ("+", "-", "*")), ("signal", name), other)
        if choice == 2:
            leaf = self.leaf(axis, event) or ("constant", 1)
            return ("if", ("<", ("signal", name), ("constant", 0.5)), ("signal", name), leaf)
        return ("signal", name)

    # ---- bools

    def boolean(self, axis: str, event: str, depth: int, *, device: bool = False) -> Tree:
        """A bool whose finest axis is ``axis``."""
        return self.alone(axis, lambda: self._boolean(axis, event, depth, device))

    def _boolean(self, axis: str, event: str, depth: int, device: bool) -> Tree:
        random, device = self.random, device or axis == "token"
        choice = random.randrange(10) if depth > 0 else random.choice((0, 2))
        leaf = self.leaf(axis, event, ("bool",))
        if choice < 2 and leaf:
            return leaf
        if choice == 5:
            return ("not", self.boolean(axis, event, depth - 1, device=device))
        if choice == 6:
            return (
                random.choice(("and", "or")),
                self.boolean(axis, event, depth - 1, device=device),
                self.boolean(axis, event, depth - 1, device=device),
            )
        below = axis in FINER and self.can(FINER[axis], event) and (axis == "completion" or not device)
        if choice == 7 and below and (FINER[axis] != "token" or self.leaf("token", event)):
            name = random.choice(("any", "all"))
            return ("aggregate", name, FINER[axis], self.boolean(FINER[axis], event, depth - 1))
        if choice == 8:
            return (random.choice(("present", "isnan", "isfinite")), self.number(axis, event, 0, device=device))
        text = self.leaf("completion", event, ("text",)) if axis == "completion" and not device else None
        if choice == 4 and text:
            return random.choice([
                ("==", text, ("constant", random.choice(TEXTS))), ("!=", text, ("constant", random.choice(TEXTS))),
                ("contains", text, "a"), ("startswith", text, "a"), ("matches", text, "c.t|^a"),
                ("in", text, *random.sample(TEXTS, 2)), ("present", text),
            ])  # fmt: skip
        if choice == 3:
            exact = self.number(axis, event, depth - 1, exact=True, device=device)
            return (
                "chain",
                ("constant", -1),
                random.choice(("<", "<=")),
                exact,
                random.choice(("<", "<=")),
                ("constant", random.choice((1, 2.5))),
            )
        if self.maybe(0.5):
            return (
                random.choice(("<", "<=", ">", ">=", "lt", "ge")),
                self.number(axis, event, depth - 1, device=device),
                ("constant", random.choice(ODD)),
            )
        sides = [
            self.number(axis, event, depth - 1, exact=True, device=device),
            self.other(axis, event, depth - 1, True, device),
        ]
        random.shuffle(sides)
        return (random.choice(COMPARISONS), *sides)

    def label(self, event: str) -> Tree:
        """What a metric per completion is distinguished by."""
        found: list[Tree] = [("signal", name) for name in self.names("completion", ("text", "int", "bool"), event)]
        found += [("//", ("signal", name), ("constant", self.random.choice((2, -3, 0))))
                  for name in self.names("completion", ("int",), event)]  # fmt: skip
        halved: Tree = ("/", self.number("completion", event, 1, exact=True), ("constant", 2))  # a float, for sure
        edges = self.random.choice(((0, 1, 4), (0.5, 1.5, 4.0625)))
        found.append(("bucket", self.random.choice((halved, self.leaf("completion", event) or halved)), *edges))
        found.append(self.boolean("completion", event, 1))
        found += [("signal", name) for name in self.names("completion", ("object",), event)]
        if self.maybe(0.3):  # several: a label for each combination, and for each tag
            coarse = [("signal", name) for name in self.names("step", ("int",), event)]
            return ("labels", *self.random.choices([*found, *found, *coarse], k=self.random.randint(2, 3)))
        return self.random.choice(found)
