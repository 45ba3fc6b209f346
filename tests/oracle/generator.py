"""A random case from a seed: which axes, events, groups and tokens there are, what is observed and logged."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.oracle.cases import Batch, Block, Case
from tests.oracle.data import Values, dtype_of
from tests.oracle.declared import Declared
from tests.oracle.expressions import Expressions

SIGNALS: dict[str, dict[str, Any]] = {
    "x": {"axis": "completion"},
    "y": {"axis": "completion"},
    "n": {"axis": "completion", "type": "int"},
    "b": {"axis": "completion", "type": "bool"},
    "t": {"axis": "completion", "type": "text"},
    "tg": {"axis": "completion", "type": "object"},
    "o": {"axis": "completion"},
    "ob": {"axis": "completion", "type": "bool"},
    "f": {"axis": "completion", "family": True},
    "fo": {"axis": "completion", "family": True},
    "g": {"axis": "group"},
    "s": {"axis": "step"},
    "si": {"axis": "step", "type": "int"},
    "so": {"axis": "step"},
    "h": {"axis": "step", "family": True},
    "u": {"axis": "token"},
    "q": {"axis": "token", "type": "int"},
    "k": {"axis": "token", "type": "bool"},
    "w": {"axis": "token", "mask": "mask_w"},
    "uo": {"axis": "token"},
}
TOKENS = ("u", "q", "k", "w", "uo")
PARTLY = ("o", "ob", "fo", "so", "uo")  # which come now and then


class Generator:
    """Makes the case of a seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.profile: dict[str, Any] = {"run": {"name": f"seed{seed}"}, "axes": {}}
        self.ranks = self.random.choice((1, 1, 1, 1, 2, 2, 2, 3, 4))
        self.events = ["rollout", "update"] if self.maybe(0.35) else ["main"]
        self.joined = len(self.events) > 1
        self.by_ids = self.joined and self.maybe(0.75)
        self.has_ids = self.by_ids or self.maybe(0.2)
        self.named_rows = self.maybe(0.3)
        self.grouping = self.random.choice(("no", "size", "size", "of", "of"))
        self.split = self.random.choice(("none", "none", "batches", "ranks")) if self.grouping != "no" else "none"
        if self.joined:
            self.split = (
                "none" if self.grouping == "size" or not self.by_ids else self.random.choice(("none", "batches"))
            )
        self.size = self.random.choice((1, 2, 2, 3, 4))
        self.tokens = self.random.choice(("no", "mask", "mask", "mask", "packed", "packed mask", "all"))
        self.signals: dict[str, dict[str, Any]] = {}
        self.dtypes: dict[str, str] = {}
        self.infinite = self.random.choice((0.0, 0.0, 0.0, 0.05, 0.05, 0.25))  # the share of infinite values
        if self.maybe(0.12):
            self.profile["axes"]["rank"] = "each"
        self.derived: dict[str, str] = {}  # signals that are written as an expression

    def maybe(self, share: float) -> bool:
        return self.random.random() < share

    def case(self) -> Case:
        """The whole case."""
        self.declare_signals()
        blocks = self.blocks()
        sized = self.tokens in ("mask", "packed mask")
        grouped, whole = self.grouping != "no", self.split != "ranks"
        draw = Expressions(self.random, self.signals, self.events, groups=grouped, whole=whole, sized=sized)
        trees = Declared(self, draw).declare()
        trees |= {"signals": self.signals, "events": self.events}
        self.profile |= {"signals": self.phases(), "derived": self.derived}
        if self.maybe(0.15):
            self.profile["run"] = {"window_bytes": 1}
        cut = self.random.randint(1, len(blocks) - 1) if len(blocks) > 1 and self.maybe(0.15) else None
        return Case(self.seed, self.profile, self.ranks, blocks, self.dtypes, "packed" in self.tokens, trees, cut)

    def phases(self) -> dict[str, dict[str, Any]]:
        """The observed signals as the profile has them: by phase where there are several, `any` for those of all."""
        phases: dict[str, dict[str, Any]] = {}
        for name, spec in self.signals.items():
            several = self.events[:2] if spec.get("several") else ["any"]
            for phase in [spec["event"]] if "event" in spec and self.joined else several:
                phases.setdefault(phase, {})[name] = {key: value for key, value in spec.items() if key in KEYS}
        return phases

    # ---- signals

    def declare_signals(self) -> None:
        """Some of all signals, each at one event."""
        axes: dict[str, Any] = self.profile["axes"]
        last = self.events[-1]
        apart = {"required": True, "event": last, "apart": True}
        for event in self.events:
            for name, spec in SIGNALS.items():
                if name in TOKENS and (self.tokens == "no" or event != last):
                    continue
                if name == "g" and (self.grouping == "no" or self.split != "none" or (self.joined and event == last)):
                    continue
                if name == "w" and self.tokens == "packed":
                    continue
                if name == "x" or self.maybe(0.6):
                    always = {} if name in PARTLY else {"required": True}
                    self.signals[f"{name}_{event}" if event == "rollout" else name] = {**spec, **always, "event": event}
        self.shared: list[str] = []
        for name, axis in (("v", "completion"), ("vs", "step")):
            if self.joined and self.maybe(0.4):
                self.signals[name] = {"axis": axis, "required": True, "several": True}
        if self.tokens in ("mask", "packed mask"):
            axes["token"] = {"mask": "mask"}
            self.signals["mask"] = {"axis": "token", "type": "bool", **apart}
        if self.tokens == "all":
            axes["token"] = {"mask": "all"}
        if "packed" in self.tokens:
            axes.setdefault("token", {})["lengths"] = "lens"
            self.signals["lens"] = {"axis": "completion", "type": "int", **apart}
        if "w" in self.signals:
            self.signals["mask_w"] = {"axis": "token", "type": "bool", "mask": "all", **apart}
        if self.has_ids:
            axes["completion"] = {"ids": "row"}
            kind = "text" if self.named_rows else "int"
            self.signals["row"] = {"axis": "completion", "type": kind, **apart}
            self.shared.append("row")
        if self.grouping == "of":
            kind = self.random.choice(("int", "text"))
            self.signals["gid"] = {"axis": "completion", "type": kind, **apart}
            self.shared.append("gid")
            axes["group"] = {"of": "gid", "split": self.split}
        elif self.grouping == "size":
            axes["group"] = {"size": self.size, "split": self.split}
        for name in self.shared:
            self.signals[name].pop("event")
        for name, spec in self.signals.items():
            self.dtypes[name] = (
                "list" if spec.get("apart") and name not in ("mask", "mask_w") else dtype_of(self.random, spec)
            )

    # ---- data

    def blocks(self) -> list[Block]:
        """Steps, and visits to evaluation between them."""
        random = self.random
        self.profile["every"] = random.choice((1, 1, 2, 3))
        if self.profile["every"] > 1 and self.maybe(0.3):
            self.profile["modes"] = {"train": {"first": random.randint(1, self.profile["every"] - 1)}}
        number = random.choice((0, 7))
        blocks: list[Block] = []
        stride = random.choice((1, 1, 3))
        evaluates = self.maybe(0.3)
        if evaluates:
            train = self.profile.get("modes", {"train": {}})
            self.profile["modes"] = {**train, "eval": {"prefix": random.choice(("eval_", "eval/"))}}
        for place in range(random.randint(1, 5)):
            kept = self.by_ids and place > 0 and self.maybe(0.25)
            blocks.append(
                Block(number, "train", self.step(blocks[-1] if kept and blocks[-1].mode == "train" else None))
            )
            if evaluates and self.maybe(0.5):
                blocks.append(Block(number, "eval", self.step(None)))
            number += stride
        return blocks

    def step(self, before: Block | None) -> dict[str, list[list[Batch]]]:
        """What all ranks observe in a step; ``before``: update the rows of that step's generation once more."""
        made: dict[str, list[list[Batch]]] = {}
        layout = self.layout()
        first, last = self.events[0], self.events[-1]
        if before is not None and before.events.get(first):
            generation = before.events[first]
        elif before is not None:
            return self.step(None)
        else:
            generation = [[self.batch(first, ids, groups) for ids, groups in rank] for rank in layout]
            made[first] = generation
        if self.joined:
            made[last] = [self.updates(last, batches) for batches in generation]
            if self.split == "ranks":
                raise AssertionError
        return made

    def layout(self) -> list[list[tuple[list[Any], list[Any]]]]:
        """By rank and batch: the rows' ids and the groups they belong to."""
        random = self.random
        most = 1 if self.joined and not self.by_ids else 3
        batches = [random.randint(1, most) for _ in range(self.ranks)]
        if self.split == "ranks" or self.maybe(0.6):
            batches = [batches[0]] * self.ranks
        textual = self.signals.get("gid", {}).get("type") == "text"
        names = (f"group {name}" if textual else name for name in random.sample(range(1000), 400))
        numbers = random.sample(range(2000), 1500)
        ids = iter([f"row {number}" for number in numbers] if self.named_rows else numbers)
        sizes = [[random.randint(0, 3) for _ in range(count)] for count in batches]
        made = [[self.rows(groups, names) for groups in rank] for rank in sizes]
        if self.split == "batches":
            made = [self.dealt(rank) for rank in made]
        elif self.split == "ranks":
            for batch in range(batches[0]):
                for rank, rows in enumerate(self.dealt([rank[batch] for rank in made])):
                    made[rank][batch] = rows
        return [[([next(ids) for _ in rows], rows) for rows in rank] for rank in made]

    def rows(self, groups: int, names: Any) -> list[Any]:
        """The groups of a batch's rows; by ids they may be ragged and interleaved."""
        if self.grouping == "no":
            return [None] * self.random.randint(0, 6)
        if self.grouping == "size":
            return [name for name in (next(names) for _ in range(groups)) for _ in range(self.size)]
        found = [name for name in (next(names) for _ in range(groups)) for _ in range(self.random.randint(1, 4))]
        if self.maybe(0.5):
            self.random.shuffle(found)
        if self.maybe(0.3):  # whose rows are nobody's group
            found = [None if self.maybe(0.25) else name for name in found]
        return found

    def dealt(self, parts: list[list[Any]]) -> list[list[Any]]:
        """The same rows cut elsewhere, and for ids in another order."""
        rows = [row for part in parts for row in part]
        if self.grouping == "of":
            self.random.shuffle(rows)
        cuts = sorted(self.random.randint(0, len(rows)) for _ in parts[1:])
        return [rows[low:high] for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True)]

    def updates(self, event: str, generation: list[Batch]) -> list[Batch]:
        """Micro-batches of a generation's rows, in another order; by position the same rows."""
        if not self.by_ids:
            return [
                self.batch(
                    event, batch.get("row") or [0] * self.count(batch), batch.get("gid") or [None] * self.count(batch)
                )
                for batch in generation
            ]
        rows: list[Any] = []
        for batch in generation:
            groups = batch.get("gid") or [place // self.size for place in range(len(batch["row"]))]
            whole: dict[Any, list[Any]] = {}
            for row, group in zip(batch["row"], groups, strict=True):
                whole.setdefault(group, []).append((row, group))
            rows += whole.values()
        self.random.shuffle(rows)
        if self.grouping == "no" or self.split == "batches":
            rows = [[row] for group in rows for row in group]
            self.random.shuffle(rows)
        count = self.random.randint(1, 3)
        cuts = sorted(self.random.randint(0, len(rows)) for _ in range(count - 1))
        parts = [rows[low:high] for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
        return [
            self.batch(
                event, [row for group in part for row, _ in group], [name for group in part for _, name in group]
            )
            for part in parts
        ]

    def count(self, batch: Batch) -> int:
        return len(next(value for name, value in batch.items() if name.startswith("x")))

    def batch(self, event: str, ids: list[Any], groups: list[Any]) -> dict[str, Any]:
        """One batch of a rank."""
        rows, random = len(ids), self.random
        width = random.randint(1, 4)
        tokens = [random.randint(0, width) if "packed" in self.tokens else width for _ in range(rows)]
        made: dict[str, Any] = {}
        for name, spec in self.signals.items():
            if spec.get("event", event) != event or (not spec.get("required") and random.random() < 0.3):
                continue
            if name == "row":
                made[name] = list(ids)
            elif name == "gid":
                made[name] = list(groups)
            elif name == "lens":
                made[name] = tokens
            else:
                whole = {**spec, "missing": spec.get("type") not in ("int", "bool") or spec["axis"] != "step"}
                named = [name for name in groups if name is not None]
                count = len(set(named)) + rows - len(named) if self.grouping == "of" else rows // self.size
                values = Values(random, whole, self.dtypes[name], infinite=self.infinite)
                made[name] = values.drawn(rows, count, tokens)
        return made


KEYS = ("axis", "type", "family", "mask", "required")


def generated(seed: int) -> Case:
    """The case of a seed."""
    return Generator(seed).case()
