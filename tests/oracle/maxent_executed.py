"""Values that the code of MaxEnt-GRPO was seen to compute: right here, or its defect is named."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.language.runs import one_step, record, values
from tests.oracle.maxent import GROUPED, ROWS, STEP, case, flat, logged


@case("E02")
@case("E04")
def _(case: dict[str, Any]) -> None:
    """The source's deviation is the population's."""
    mean, std = case["expected"]
    made = logged({"x": {"expr": "x", "reduce": ["mean", "pstd", "std"]}}, {"x": case["inputs"]})

    assert (mean, std) == (made["x/mean"], made["x/pstd"])
    assert ("x/std" in made) == (len(case["inputs"]) > 1)  # the sample's is absent for one value


@case("E06")
@case("E08")
@case("E10")
def _(case: dict[str, Any]) -> None:
    """Exact quantiles, interpolated linearly."""
    made = logged({"x": {"expr": "x", "reduce": list(case["expected"]), "name": "{reduce}"}}, {"x": case["inputs"]})

    assert case["expected"] == pytest.approx(made, abs=1e-12)


@case("E12")
def _(case: dict[str, Any]) -> None:
    metrics = {"zero": "mean(pstd(x, over=completion) == 0)"}

    assert {"zero": case["expected"]} == logged(metrics, {"x": flat(case["inputs"])}, axes=GROUPED)


@case("E14")
def _(case: dict[str, Any]) -> None:
    """The source takes deviations below 1e-8 for 0, and so says the expression."""
    metrics = {"zero": "mean(pstd(x, over=completion) < 1e-8)", "exact": "mean(pstd(x, over=completion) == 0)"}

    assert {"zero": case["expected"], "exact": 0.0} == logged(
        metrics, {"x": [float(item) for item in flat(case["inputs"])]}, axes=GROUPED
    )


@case("E16")
def _(case: dict[str, Any]) -> None:
    """Rewards, advantages and the entropy of the weights of each group."""
    given, expected = case["inputs"], case["expected"]
    quantiles = list(expected["reward_quantiles"])
    metrics = {
        "reward": {"expr": "reward", "reduce": ["mean", {"std": "pstd"}], "name": "reward_{reduce}"},
        "adv": {"expr": "adv", "reduce": ["mean", {"std": "pstd"}, "count"],
                "name": "advantage_{reduce}"},
        "zero": {"expr": "pstd(grouped, over=completion) == 0", "name": "frac_zero_std"},
        "quantiles": {"expr": "reward", "reduce": quantiles, "name": "{reduce}"},
        "base": {"expr": "rewards", "reduce": ["mean", {"std": "pstd"}], "name": "{member}/{reduce}"},
        "h": {"expr": "sum(-q * log(q), over=completion)", "reduce": ["mean", {"std": "pstd"}, "min", "max"],
              "name": "q_entropy_{reduce}"},
        "semantic": {"expr": "semantic", "reduce": ["mean", "min"], "name": "semantic_entropy_{reduce}"},
    }  # fmt: skip
    made = logged(
        metrics,
        {"reward": given["total_utils"], "adv": given["adv"], "grouped": given["adv_grouped"][0], "q": given["q"][0],
         "rewards": {"base": given["total_utils"]}},
        axes=GROUPED, signals={"semantic": ROWS},
    )  # fmt: skip

    for name in ("reward_mean", "reward_std", "advantage_mean", "advantage_std", "advantage_count", "frac_zero_std",
                 "q_entropy_mean", "q_entropy_std", "q_entropy_min", "q_entropy_max"):  # fmt: skip
        assert expected[name] == pytest.approx(made[name], abs=1e-12), name
    assert expected["reward_quantiles"] == pytest.approx({name: made[name] for name in quantiles})
    assert expected["per_reward"]["base"] == {"mean": made["base/mean"], "std": made["base/std"]}
    # the source logs 0 for entropies of an empty set, and scales and maxima it did not compute: here they are absent
    assert expected["semantic_entropy_mean"] == 0.0
    assert not [name for name in made if name.startswith("semantic")]


@case("E18")
def _(case: dict[str, Any]) -> None:
    """Entropies and scales of the seed weighting: moments, the pinned alpha, and its greatest possible entropy."""
    given = case["inputs"]
    mean, std, least, greatest, scale, low, high, alpha, bound = case["expected"]
    made = logged(
        {"ent": {"expr": "ent", "reduce": ["mean", "pstd", "min", "max"]},
         "scale": {"expr": "scale", "reduce": ["mean", "min", "max"]},
         "alpha": {"expr": "alpha + 0 * size"}, "bound": {"expr": "log(size)"}},
        {"ent": given["ent"], "scale": given["scale"], "size": 8}, constants={"alpha": given["alpha"]},
    )  # fmt: skip

    assert [mean, std, least, greatest] == pytest.approx(
        [made[f"ent/{name}"] for name in ("mean", "pstd", "min", "max")]
    )
    assert [scale, low, high] == pytest.approx([made["scale/mean"], made["scale/min"], made["scale/max"]])
    assert [alpha, bound] == pytest.approx([made["alpha"], made["bound"]])


@case("E20")
def _(case: dict[str, Any]) -> None:
    """The entropy of a group's weights. The source's stub returned fixed values: the right ones are asserted."""
    weights = flat(case["inputs"])
    ids = [place for place, group in enumerate(case["inputs"]) for _ in group]
    profile = {
        "axes": {"group": {"of": "prompt"}},
        "signals": {"any": {"prompt": {**ROWS, "type": "int"}, "w": ROWS}},
        "derived": {"entropy": "sum(-w * log(w), over=completion)"},
        "metrics": {
            "entropy": {"expr": "entropy", "reduce": ["mean", "min", "max"]},
            "norm": {"expr": "entropy / log(size(completion))", "where": "size(completion) > 1"},
        },
    }
    made = one_step(profile, {"prompt": ids, "w": weights})

    assert {
        "entropy/mean": math.log(2) / 2,
        "entropy/min": 0.0,
        "entropy/max": math.log(2),
        "norm": 1.0,
    } == pytest.approx(made)
    assert case["expected"]["entropy_min"] != made["entropy/min"]  # 0.3 for a group of one weight, which has 0


@case("E23")
def _(case: dict[str, Any]) -> None:
    """Advantages: the reward less the group's mean, of ragged groups."""
    rewards = [float(item) for item in flat(case["inputs"])]
    ids = [place for place, group in enumerate(case["inputs"]) for _ in group]
    profile = {
        "axes": {"group": {"of": "prompt"}},
        "signals": {"any": {"prompt": {**ROWS, "type": "int"}, "reward": ROWS}},
        "schemas": {"row": {"adv": {"type": "float", "expr": "reward - mean(reward, over=completion)"}}},
        "tables": {"rows": {"schema": "row"}},
    }
    ((_, table),) = record(profile, [[{"prompt": ids, "reward": rewards}]]).tables("rows")

    assert case["expected"][1] == table.data["adv"]


@case("E25")
def _(case: dict[str, Any]) -> None:
    """Entropies of weights. The source adds 1e-8 before the logarithm; the right values differ by 1e-8."""
    weights = flat(case["inputs"])
    mean, least, greatest, gaps = case["expected"]
    profile = {
        "axes": GROUPED,
        "signals": {"any": {"w": ROWS}},
        "derived": {"h": "sum(-w * log(w), over=completion)"},
        "metrics": {"h": {"expr": "h", "reduce": ["mean", "min", "max"], "name": "{reduce}"}},
        "schemas": {"row": {"gap": {"type": "float", "expr": "w - mean(w, over=completion)"}}},
        "tables": {"rows": {"schema": "row"}},
    }
    sink = record(profile, [[{"w": weights}]])
    ((_, table),) = sink.tables("rows")

    assert {"mean": mean, "min": least, "max": greatest} == pytest.approx(sink.scalars[0], abs=2e-8)
    assert gaps == pytest.approx(table.data["gap"])


@case("E27")
def _(case: dict[str, Any]) -> None:
    """Lengths where every completion was cut. The source logs 0 for the lengths of no rows: they are absent."""
    metrics = {
        "length": {"expr": "length", "reduce": ["min", "mean", "max"], "name": "{reduce}_length"},
        "clipped": {"expr": "truncated == 1", "name": "clipped_ratio"},
        "terminated": {"expr": "length", "where": "truncated == 0", "reduce": ["min", "mean", "max"],
                       "name": "{reduce}_terminated"},
        "total": {"expr": "length", "reduce": "sum"},
    }  # fmt: skip
    made = logged(metrics, {"length": case["inputs"], "truncated": [1 for _ in case["inputs"]]})
    defects = {name for name in case["expected"] if name.endswith("_terminated")}

    assert {name: value for name, value in case["expected"].items() if name not in defects} == made
    assert {0.0} == {case["expected"][name] for name in defects}


@case("E29")
def _(case: dict[str, Any]) -> None:
    """Diversity per group and per completion. The source's n-grams run on from one completion into the next."""
    metrics = {
        "distinct_1": "mean(distinct_n(text, 1, over=completion))",
        "distinct_2": "mean(distinct_n(text, 2, over=completion))",
        "jaccard": "mean(jaccard(text, over=completion))",
    }
    made = logged(metrics, {"text": flat(case["inputs"])}, axes=GROUPED)

    # a b c a b d: 4 of 6 words; x x x x: 1 of 4
    assert case["expected"]["distinct_1"] == pytest.approx(made["distinct_1"])
    # ab bc ab bd: 3 of 4; xx xx: 1 of 2. Across completions there would be ca and xx too: (4/5 + 1/3) / 2
    assert made["distinct_2"] == pytest.approx(0.625)
    assert case["expected"]["distinct_2"] == pytest.approx((4 / 5 + 1 / 3) / 2)
    # {a b c} and {a b d}: 1 - 2/4; {x} and {x}: 0
    assert case["expected"]["jaccard"] == pytest.approx(made["jaccard"])


@case("E32")
def _(case: dict[str, Any]) -> None:
    """No texts: nothing is logged."""
    profile = {
        "axes": GROUPED,
        "signals": {"any": {"text": {**ROWS, "type": "text"}}},
        "metrics": {"distinct": {"expr": "distinct_n(text, 1, over=completion)"}},
    }

    assert case["expected"] == one_step(profile, {"text": case["inputs"]})


@case("E34")
def _(case: dict[str, Any]) -> None:
    """The bonus' impact from losses with and without it: their values, gap, and gap by either."""
    without, with_bonus, gap, relative, share = case["expected"]
    metrics = {"a": "mean(a)", "b": "mean(b)", "gap": "mean(b - a)", "relative": "mean((b - a) / abs(a))",
               "share": "mean((b - a) / abs(b))"}  # fmt: skip
    made = logged(metrics, {"a": without, "b": with_bonus})

    assert [gap, relative, share] == pytest.approx([made["gap"], made["relative"], made["share"]])


@case("E38")
def _(case: dict[str, Any]) -> None:
    """The norm of two gradients; settings pass through."""
    given = case["inputs"]
    settings = {
        name.rsplit("/", 1)[1]: value for name, value in case["expected"].items() if not name.endswith(("grad", "norm"))
    }
    metrics: dict[str, Any] = {name: {"observe": "step", "name": f"train/meta/{name}"} for name in (*given, *settings)}
    metrics["grad_norm"] = {"expr": "sqrt(square(tau_grad) + square(beta_grad))", "name": "train/meta/grad_norm"}

    assert case["expected"] == one_step({"signals": {}, "metrics": metrics}, {**given, **settings})


@case("E40")
def _(case: dict[str, Any]) -> None:
    """A signal that comes in one step of the window only is averaged over the steps in which it came."""
    profile = {
        "every": 2,
        "signals": {"any": {"a": STEP, "g": {"axis": "step"}}},
        "metrics": {"a": "a", "g": "g"},
    }

    assert case["expected"] == values(profile, [[item] for item in case["inputs"]])


@case("E53")
@case("E56")
def _(case: dict[str, Any]) -> None:
    """Epochs from steps. The source divides by 1 where no length is known; here that is missing, not 50."""
    given = case["inputs"]
    made = logged(
        {"epoch": "mean(at / per_epoch if per_epoch > 0 else 0 / 0)"}, {"at": 50, "per_epoch": given["steps_per_epoch"]}
    )

    if given["steps_per_epoch"]:
        assert {"epoch": case["expected"]} == made
    else:
        assert list(made) == ["nonfinite/epoch", "epoch"] and math.isnan(made["epoch"])
