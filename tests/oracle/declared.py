"""What a random profile logs: metrics, formulas, conditions, tables, filters, alerts, profiles; each with its trees."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.oracle.expressions import ODD, Expressions
from tests.oracle.pieces import goes_on, pool_of
from tests.oracle.tables import Tables
from tests.oracle.trees import Tree, axis_of, family_of, kind_of, signals_of, text, walk

if TYPE_CHECKING:
    from tests.oracle.generator import Generator

MOMENTS = ("mean", "sum", "min", "max", "std", "pstd", "var", "count")
POOLS = ("window", "window", "step", "batch", "rank", "rank_batch")
BINS = (
    "histogram", "histogram(bins=4)", "histogram(bins=4, low=-1, high=1)", "histogram(low=0)",
    "histogram(bins=8, high=2)",
)  # fmt: skip
SKETCHED = ("p", "top_mean", "bottom_mean")
RANK: Tree = ("name", "rank")
COMBINE = ("mean", "min", "max", "sum", "first", "last", "var", "std")


class Declared:
    """Fills in a generator's profile."""

    def __init__(self, generator: Generator, draw: Expressions) -> None:
        self.random, self.draw, self.profile = generator.random, draw, generator.profile
        self.events, self.signals = generator.events, generator.signals
        self.generator = generator
        self.metrics: dict[str, dict[str, Any]] = {}
        self.trees: dict[str, dict[str, Any]] = {}

    def maybe(self, share: float) -> bool:
        return self.random.random() < share

    def written(self, tree: Tree) -> str:
        """An expression; now and then it, or a part of it, is a derived signal."""
        names: dict[int, str] = {}
        if self.maybe(0.2):
            part = self.random.choice(
                [item for item in walk(tree) if item[0] not in ("signal", "constant", "name")] or [tree]
            )
            if axis_of(part, self.signals):
                name = names[id(part)] = f"d{len(self.generator.derived)}"
                self.generator.derived[name] = text(part)
        return text(tree, names)

    def declare(self) -> dict[str, Any]:
        """The profile's sections; returns the trees that their texts were written from."""
        for event in self.events:  # whatever else is read: what nothing needs is never touched, and makes no batch
            name = "x_rollout" if event == "rollout" else "x"
            self.metrics[f"rows_{event}"] = {"expr": name, "reduce": "count"}
            self.trees[f"rows_{event}"] = {"expr": [("signal", name)], "reduce": {"": "count"}}
            self.by_rank(self.trees[f"rows_{event}"], "completion")
        for place in range(self.random.randint(4, 9)):
            self.metric(f"m{place}")
        for name in [name for name, trees in self.trees.items() if "by" in trees]:
            if self.maybe(0.4) and len(self.trees[name]["expr"]) == 1:  # the same labels, of other rows
                self.metrics[f"{name}n"] = {**self.metrics[name], "reduce": "count"}
                self.trees[f"{name}n"] = {**self.trees[name], "reduce": {"": "count"}}
                for key in ("weight", *(("where",) if self.maybe(0.5) else ())):
                    self.metrics[f"{name}n"].pop(key, None)
                    self.trees[f"{name}n"].pop(key, None)
        for place in range(self.random.randint(0, 3)):
            self.formula(f"z{place}")
        self.conditions()
        self.profile["metrics"] = self.metrics
        filters, tables = Tables(
            self.random, self.draw, self.profile, self.signals, self.events, self.generator.grouping, self.written
        ).declare()
        alerts = self.alerts()
        if self.maybe(0.25):
            self.shown()
        return {"metrics": self.trees, "filters": filters, "tables": tables, "alerts": alerts}

    # ---- metrics

    def axis(self, event: str) -> str:
        """An axis on which there are numbers."""
        axes = [
            axis for axis in ("token", "completion", "completion", "group", "all", "step") if self.draw.can(axis, event)
        ]
        return self.random.choice(axes)

    def metric(self, name: str) -> None:
        """One metric of any shape."""
        random, draw = self.random, self.draw
        event = random.choice(self.events)
        axis = self.axis(event)
        spec: dict[str, Any] = {}
        trees: dict[str, Any] = {}
        choice = random.randrange(10)
        families = "rank" not in self.profile["axes"]
        if axis in ("completion", "step") and choice == 0 and families and draw.names(axis, ("float",), event, True):
            trees["expr"] = [draw.family(axis, event, 2, False)]
            trees["reduce"] = {"": random.choice(MOMENTS)}
        elif (choice == 1 and axis != "token") or (choice == 1 and draw.leaf("token", event, ("bool",))):
            trees["expr"] = [draw.boolean(axis, event, 3)]
            trees["reduce"] = {"": random.choice(("mean", "sum", "count"))}
        elif choice == 2 and axis in ("completion", "group"):
            pair = [("clip", draw.number(axis, event, 1, exact=True), 0, 1), draw.boolean(axis, event, 1)]
            trees["expr"], trees["reduce"] = pair, {"": random.choice(("ece", "ece(bins=4)"))}
            if self.maybe(0.5):
                trees["expr"][1], trees["reduce"] = draw.number(axis, event, 2), {"": "corr"}
        elif choice == 3:
            trees["expr"] = [draw.number(axis, event, 2, exact=True)]
            trees["reduce"] = {
                "": random.choice(
                    (
                        "p05",
                        "p50",
                        "p99.9",
                        "p90",
                        "top_mean",
                        "bottom_mean(share=0.35)",
                        *(BINS if axis != "all" else ()),
                    )
                )
            }
        else:
            trees["expr"] = [draw.number(axis, event, 3)]
            several = random.sample(MOMENTS, random.randint(2, 4))
            trees["reduce"] = (
                {"": random.choice((*MOMENTS, *(("last",) if axis != "token" else ())))}
                if choice < 7
                else {item: item for item in several}
            )
        self.options(name, spec, trees, axis, event)
        self.by_rank(trees, axis)
        exprs = [self.written(tree) for tree in trees["expr"]]
        spec["expr"] = exprs if len(exprs) > 1 else exprs[0]
        reduce = trees["reduce"]
        if "" not in reduce and self.maybe(0.5):
            reduce = trees["reduce"] = {f"as_{key}": key for key in reduce}
        spec["reduce"] = reduce[""] if "" in reduce else [
            reduction if suffix == reduction else {suffix: reduction} for suffix, reduction in reduce.items()
        ]  # fmt: skip
        self.metrics[name], self.trees[name] = spec, trees

    def options(self, name: str, spec: dict[str, Any], trees: dict[str, Any], axis: str, event: str) -> None:
        """Where, weight, by, windows, what is missing or empty."""
        random, draw, profile = self.random, self.draw, self.profile
        reductions = set(trees["reduce"].values())
        plain = reductions <= {*MOMENTS, "last"}
        sketch = axis == "token" and not plain
        binned = any(item.startswith("histogram") for item in reductions)
        if self.maybe(0.35):
            coarse = axis if axis in ("token", "all") or self.maybe(0.5) else "step"
            if axis == "token" and self.maybe(0.4):
                coarse = "completion"
            draw.joins = axis != "token"
            trees["where"] = draw.boolean(coarse if draw.can(coarse, event) else axis, event, 2, device=axis == "token")
            draw.joins = True
            spec["where"] = self.written(trees["where"])
        if reductions <= {"mean", "sum"} and self.maybe(0.3) and kind_of(trees["expr"][0], self.signals) != "bool":
            coarse = "completion" if axis == "token" else axis  # a weight per token is not possible
            draw.joins = axis != "token"
            weight = draw.number(coarse, event, 1, exact=True, device=axis == "token")
            trees["weight"] = weight if self.maybe(0.3) else ("abs", weight)
            draw.joins = True
            spec["weight"] = text(trees["weight"])
        family = family_of(trees["expr"][0], self.signals)
        one = "" in trees["reduce"]
        if axis in ("token", "completion", "group", "step") and not sketch and not family and self.maybe(0.2):
            self.labels(spec, trees, axis, event)
        if not binned and self.maybe(0.45):
            spec["over"] = random.choice(POOLS)
            if spec["over"] != "window" and self.maybe(0.6):
                spec["combine"] = random.choice([how for how in COMBINE if not sketch or how not in ("var", "std")])
        if self.maybe(0.2):
            spec["every"] = profile["every"] * random.choice((1, 2, 3))
        if not binned and not (axis == "token" and "by" in spec) and self.maybe(0.15):
            spec["empty"] = random.choice((0, -1))
        if not binned and not sketch and self.maybe(0.15):
            spec["nan"] = random.choice(("skip", "propagate"))
        quantile = not plain and not sketch and not binned and axis != "all" and "p" in trees["reduce"].get("", "")[:1]
        over = spec.get("over", "window")
        pieces = over != "window"
        if one and (plain or (quantile and pieces)) and over != "rank" and self.maybe(0.3):
            spec["over"] = f"run_{over}" if pieces else "run"
        elif one and (plain or quantile) and over in ("window", "step", "batch") and self.maybe(0.15):
            of_last = ("rolling(3)", "rolling_max(3)", "rolling_min(2)", "rolling_std(3)", "rolling_median(4)")
            spec["combine"] = random.choice(("ema(0.9)", *of_last))
        if self.maybe(0.1):
            spec["ranks"] = "main"
        if self.maybe(0.2):
            spec["tags"] = ["core"]
        if self.maybe(0.08):
            spec["log"] = False
        if one and not family and "by" not in spec and self.maybe(0.1):
            spec["name"] = f"named/{name}/{{reduce}}" if "(" not in str(trees["reduce"]) and False else "named/{id}"

    def by_rank(self, trees: dict[str, Any], axis: str) -> None:
        """With `rank: each` each rank has a value of what has no other label; a sketch, and what is of all, has not."""
        sketch = axis == "token" and not {*trees["reduce"].values()} <= {*MOMENTS, "last"}
        if "rank" in self.profile["axes"] and "by" not in trees and not sketch and axis != "all":
            trees["by"] = RANK

    def labels(self, spec: dict[str, Any], trees: dict[str, Any], axis: str, event: str) -> None:
        """What a metric is distinguished by: of its own axis, or a coarser one."""
        draw = self.draw
        steps = [("signal", name) for name in draw.names("step", ("int",), event)]
        if not steps and "rank" in self.profile["axes"]:
            return
        coarse: Tree = self.random.choice(steps or [RANK])
        draw.joins = axis != "token"
        if axis in ("token", "completion") and self.maybe(0.8):
            trees["by"] = draw.label(event)
        elif axis == "group" and self.maybe(0.7):
            trees["by"] = draw.boolean("group", event, 1)
        else:
            trees["by"] = coarse if axis != "step" or self.maybe(0.7) else draw.boolean("step", event, 1)
        draw.joins = True
        spec["by"] = text(trees["by"])
        if (
            self.maybe(0.4) and axis != "token" and trees["by"] != RANK
        ):  # which are the most frequent, completions say there
            spec["max_labels"] = self.random.randint(1, 4)

    # ---- over metrics

    def keys(self, *, family: bool | None = False) -> list[str]:
        """The metrics that a formula or a condition can read."""
        found = []
        for name, trees in self.trees.items():
            if "by" in trees or self.binned(name):
                continue
            if family is not None and self.is_family(name) is not family:
                continue
            found += [f"{name}.{suffix}" if suffix else name for suffix in trees.get("reduce", {"": ""})]
        return found

    def binned(self, name: str) -> bool:
        """Whether a metric is a histogram."""
        return any(item.startswith("histogram") for item in self.trees[name].get("reduce", {}).values())

    def is_family(self, name: str) -> bool:
        trees = self.trees[name]
        if "formula" in trees:
            return bool(trees["family"])
        return family_of(trees["expr"][0], self.signals)

    def window(self, key: str) -> tuple[Any, ...]:
        """What must agree among what one formula reads."""
        name = key.partition(".")[0]
        spec, trees = self.metrics[name], self.trees[name]
        if "formula" in trees:
            return self.window(trees["reads"])
        event = None
        if goes_on(spec):
            return spec.get("every", self.profile["every"]), "window", None, "mean"
        if pool_of(spec) in ("batch", "rank_batch"):  # batches of two events do not meet
            read = [*trees["expr"], *(trees[item] for item in ("where", "weight", "by") if item in trees)]
            event = max(
                (self.signals[found].get("event", "") for tree in read for found in signals_of(tree)),
                default=None,
                key=lambda item: ([*self.events, ""]).index(item) if item else -1,
            )
        return (
            spec.get("every", self.profile["every"]),
            pool_of(spec),
            event,
            spec.get("combine", "mean"),
        )

    def formula(self, name: str) -> None:
        """One formula over metrics of one window and pool."""
        labelled = [key for key, trees in self.trees.items() if "by" in trees and "" in trees.get("reduce", {"": ""})]
        labelled = [key for key in labelled if not self.binned(key)]
        if self.maybe(0.4) and labelled:
            self.of_labels(name, self.random.choice(labelled))
            return
        family = self.maybe(0.3) and bool(self.keys(family=True))
        keys = [key for key in self.keys(family=family) if not self.sketched(key)]
        if not keys:
            return
        first = self.random.choice(keys)
        others = [
            key
            for key in self.keys(family=None)
            if self.window(key) == self.window(first)
            and not self.sketched(key)
            and (family or not self.is_family(key.partition(".")[0]))
        ]
        a, b = ("name", first), ("name", self.random.choice(others))
        tree: Tree = self.random.choice([
            ("+", a, b), ("/", ("*", ("constant", 1000), a), ("+", ("abs", b), ("constant", 1))),
            ("-", a, ("constant", 2)), ("maximum", a, b),
            ("if", (">", a, ("constant", self.random.choice(ODD))), a, b), ("*", a, b),
        ])  # fmt: skip
        if family and self.maybe(0.5):
            tree, family = (
                ("aggregate", self.random.choice(("mean", "max", "sum", "std", "count", "p90")), "member", tree),
                False,
            )
        spec: dict[str, Any] = {"formula": text(tree)}
        if self.window(first)[0] != self.profile["every"] and self.maybe(0.0):
            spec["every"] = self.window(first)[0]
        if self.maybe(0.3):
            spec["tags"] = ["core"]
        self.metrics[name], self.trees[name] = spec, {"formula": tree, "family": family, "reads": first}

    def of_labels(self, name: str, first: str) -> None:
        """One formula over a metric with `by`, and others that have the same labels, or none."""
        by = self.trees[first]["by"]
        same = [
            key for key, trees in self.trees.items()
            if trees.get("by") == by and "" in trees.get("reduce", {"": ""}) and not self.binned(key)
        ]  # fmt: skip
        keys = [key for key in (*same, *same, *self.keys()) if self.window(key) == self.window(first)]
        a, b = ("name", first), ("name", self.random.choice([key for key in keys if not self.sketched(key)] or [first]))
        tree: Tree = self.random.choice([
            ("/", a, ("+", ("abs", b), ("constant", 1))), ("-", b, a), ("minimum", b, a), ("*", a, ("constant", 2)),
        ])  # fmt: skip
        how = self.random.choice(("mean", "min", "max", "sum", "std", "pstd", "var", "count", "p50"))
        reduced: Tree = ("aggregate", how, "label", tree)
        tree, labelled = self.random.choice([
            (tree, True), (("-", a, reduced), True), (reduced, False), (("/", reduced, ("constant", 2)), False),
        ])  # fmt: skip
        self.metrics[name] = {"formula": text(tree)}
        self.trees[name] = {"formula": tree, "family": False, "reads": first}
        if labelled:
            self.trees[name]["by"] = by

    def sketched(self, key: str) -> bool:
        """Whether a value is only known to a percent."""
        trees = self.trees[key.partition(".")[0]]
        if "formula" in trees:
            return False
        axis = self.draw_axis(trees)
        return axis == "token" and any(
            item.startswith(SKETCHED) and item != "pstd" for item in trees["reduce"].values()
        )

    def draw_axis(self, trees: dict[str, Any]) -> str | None:
        return axis_of(trees["expr"][0], self.signals)

    def condition(self, keys: list[str], last: str = "z") -> Tree:
        """A condition over metrics' values, which no right value is near to; of families up to the ``last`` metric."""
        first: Tree = (
            self.random.choice(("<", ">", "<=")),
            ("name", self.random.choice(keys)),
            ("constant", self.random.choice(ODD)),
        )
        choice = self.random.randrange(6)
        if choice == 0:
            return self.random.choice([("not", first), ("present", first[1]), ("not", ("present", first[1]))])
        if choice == 1:
            return (
                self.random.choice(("and", "or")),
                first,
                (">", ("name", self.random.choice(keys)), ("constant", self.random.choice(ODD))),
            )
        families = [
            key
            for key in self.keys(family=True)
            if "formula" not in self.trees[key.partition(".")[0]]
            and key.partition(".")[0] <= last  # so that no two hide each other
            and not self.sketched(key)
            and self.window(key)[0] == self.window(keys[0])[0]
        ]
        if choice == 2 and families:
            return (
                ">",
                ("aggregate", "max", "member", ("name", self.random.choice(families))),
                ("constant", self.random.choice(ODD)),
            )
        labelled = [
            name for name, trees in self.trees.items()
            if "by" in trees and "reduce" in trees and "" in trees["reduce"] and name <= last and not self.binned(name)
            and not self.sketched(name) and self.window(name)[0] == self.window(keys[0])[0]
        ]  # fmt: skip
        if choice == 3 and labelled:
            inner = ("aggregate", self.random.choice(("min", "max")), "label", ("name", self.random.choice(labelled)))
            return (">", inner, ("constant", self.random.choice(ODD)))
        return first

    def readable(self, every: int) -> list[str]:
        """What a condition of one window can read."""
        return [key for key in self.keys() if self.window(key)[0] == every and not self.sketched(key)]

    def conditions(self) -> None:
        """`when` of some metrics and formulas, over earlier metrics."""
        for name in self.metrics:
            every = self.window(name)[0]
            keys = [
                key
                for key in self.readable(every)
                if key.partition(".")[0] < name and "formula" not in self.trees[key.partition(".")[0]]
            ]
            if keys and self.maybe(0.2):
                tree = self.condition(keys, name)
                self.metrics[name]["when"], self.trees[name]["when"] = text(tree), tree

    def alerts(self) -> dict[str, Any]:
        """Some alerts, with texts that hold values."""
        made: dict[str, Any] = {}
        for place in range(self.random.choice((0, 1, 1, 2))):
            keys = self.readable(self.profile["every"])
            if not keys:
                break
            key = self.random.choice(keys)
            name = f"a{place}"
            spec: dict[str, Any] = {"text": f"alert {place}: {{{key}:.12g}}"}
            if self.maybe(0.5):
                limit, side = self.random.choice(ODD), self.random.choice(("above", "below"))
                tree: Tree = (">" if side == "above" else "<", ("name", key), ("constant", limit))
                if key.isidentifier() and key not in made:  # bounds are of the metric that names the alert
                    name = key
                    spec[side] = limit
                else:
                    spec["when"] = text(tree)
            else:
                tree = ("and", self.condition(keys), (">", ("name", key), ("constant", -17.2931)))
                spec["when"] = text(tree)
            if self.maybe(0.4):
                spec["for"] = 2
            self.profile.setdefault("alerts", {})[name] = spec
            made[name] = {"condition": tree, "key": key}
        return made

    def shown(self) -> None:
        """A profile that shows some of it."""
        names = [name for name in self.metrics if not name.startswith("rows_")]
        profile: dict[str, Any] = {}
        if self.maybe(0.6):
            profile["only"] = [*self.random.sample(names, self.random.randint(1, len(names))), "rows_*"]
            if self.maybe(0.4) and any(spec.get("tags") for spec in self.metrics.values()):
                profile["only"].append("tag:core")
        if self.maybe(0.6) or not profile:
            profile = {"only": ["*"], **profile, "hide": [self.random.choice((*names, "m1*"))]}
        if profile.get("hide") == ["m1*"] and "m1" not in names:
            return
        self.profile["profiles"] = {"slim": profile}
        self.profile["profile"] = "slim"
