"""The metrics of MaxEnt-GRPO, computed by profiles: each case passes, or its source is wrong and says why here.

``maxent.json`` is data: what that system's own tests and code compute. A case that records a defect of its source
is asserted with the right value and the reason.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.language.runs import one_step, record, values

DATA = Path(__file__).parents[1] / "data" / "maxent.json"
MAXENT: dict[str, dict[str, Any]] = {case["id"]: case for case in json.loads(DATA.read_text(encoding="utf-8"))}

STEP = {"axis": "step"}
ROWS = {"axis": "completion"}
GROUPED = {"group": {"size": 2}}


def flat(groups: list[list[Any]]) -> list[Any]:
    """The rows of all groups."""
    return [item for group in groups for item in group]


def logged(metrics: dict[str, Any], observed: dict[str, Any], **profile: Any) -> dict[str, float]:
    """One step's values; a signal is per step where it is a number, a family where it is a mapping."""
    signals = {}
    for name, value in observed.items():
        inner = next(iter(value.values())) if isinstance(value, dict) else value
        first = inner[0] if isinstance(inner, list) else inner
        signals[name] = {
            "axis": "completion" if isinstance(inner, list) else "step",
            "type": "text" if isinstance(first, str) else "float",
            "family": isinstance(value, dict),
        }
    profile["signals"] = {**signals, **profile.get("signals", {})}
    return one_step({**profile, "metrics": metrics}, observed)


CASES: dict[str, Callable[[dict[str, Any]], None]] = {}


def case(id: str) -> Callable[[Callable[[dict[str, Any]], None]], Callable[[dict[str, Any]], None]]:
    """Marks what asserts a case of maxent.json."""

    def register(run: Callable[[dict[str, Any]], None]) -> Callable[[dict[str, Any]], None]:
        assert id not in CASES
        CASES[id] = run
        return run

    return register


@pytest.mark.parametrize("id", sorted(MAXENT))
def test_a_case_of_maxent(id: str) -> None:
    """The case passes through the public API, or stands in the table of what another part executes."""
    assert (id in CASES) != (id in ELSEWHERE)
    if id in CASES:
        CASES[id](MAXENT[id])


def test_no_case_is_forgotten() -> None:
    """Every case is asserted here or named with the part that it belongs to."""
    assert sorted({*CASES, *ELSEWHERE}) == sorted(MAXENT)


# What is no value of one step, and where it is asserted.
ELSEWHERE = {
    "R13": "which ranks gather: declog has no collectives: tests/windows/test_windows.py",
    "R15": "micro-batches of one step: tests/windows/test_windows.py",
    "R17": "rows of a table with texts: tests of tables (its ranks and sizes are in R29 here)",
    "R19": "defaults of a table's destination: tests of tables",
    "R23": "no lists among a tracker's values: tests of sinks",
    "R31": "a NaN that is named in an error: tests/windows/test_windows.py",
    "E36": "the controller, with `when`: tests/windows/test_windows.py",
    "E42": "should_log: tests/windows/test_windows.py",
    "E44": "should_log: tests/windows/test_windows.py",
    "E46": "should_log with steps -2, taken as 1: the source's defect, refused: tests/windows/test_windows.py",
    "E48": "should_log by epoch: tests/windows/test_windows.py",
    "E50": "should_log off: tests/windows/test_windows.py",
}


@case("R01")
def _(case: dict[str, Any]) -> None:
    given = case["inputs"]
    metrics = {
        "tau": {"expr": "tau", "name": "train/tau"},
        "weighting_tau": {"expr": "tau", "name": "train/weighting/tau"},
        "beta": {"expr": "beta", "name": "train/weighting/beta"},
        "ema": {"expr": "ema", "name": "train/weight_entropy_ema"},
        "kl_per_token": {"expr": "kl / ntok", "name": "train/kl_per_completion_token"},
    }
    observed = {"tau": given["tau"], "beta": given["beta"], "ema": given["_tau_entropy_ema"], "ntok": given["ntok"]}
    signals = {"kl": {"axis": "step", "optional": True}}

    assert case["expected"] == {
        **logged(metrics, observed, signals=signals),
        "train/kl_per_completion_token": 0.0,  # the source logs 0 for a KL that was never computed: here it is absent
    }
    assert "train/kl_per_completion_token" not in logged(metrics, observed, signals=signals)


@case("R03")
def _(case: dict[str, Any]) -> None:
    names = ["", "/low_mean", "/low_min", "/high_mean", "/high_max", "/region_mean"]
    metrics: dict[str, Any] = {
        f"c{place}": {"axis": "step", "name": f"train/clip_ratio{name}"} for place, name in enumerate(names)
    }
    metrics["frac"] = {"expr": "clip(clipped_ratio, 0, 1)", "name": "train/completions/clipped_frac"}
    observed = {f"c{place}": value for place, value in enumerate(case["inputs"]["clip"])}

    profile = {"signals": {"clipped_ratio": STEP}, "metrics": metrics}

    assert case["expected"] == one_step(profile, {**observed, "clipped_ratio": case["inputs"]["clipped_ratio"]})


@case("R05")
@case("R07")
def _(case: dict[str, Any]) -> None:
    """The loss' KL stands in for a diagnostic that is missing."""
    metrics = {"kl": {"expr": "diag if present(diag) else loss_kl", "name": "train/kl"}}
    if "kl_target" in case["inputs"]:
        metrics["error"] = {"formula": "kl - target", "name": "train/kl_error_to_target"}
    profile = {
        "constants": {"target": case["inputs"].get("kl_target", 0.0)},
        "signals": {"diag": {"axis": "step", "optional": True}, "loss_kl": STEP},
        "metrics": metrics,
    }

    assert case["expected"] == one_step(profile, {"loss_kl": case["inputs"]["loss_kl"]})


@case("R09")
def _(case: dict[str, Any]) -> None:
    """Bucket means, weighted by tokens: rows of the lengths whose means and counts the source gives."""
    means, tokens = case["inputs"]["means"], case["inputs"]["tokens"]
    rows = [(25.0, 0.1)] * 4 + [(50.0, 0.05)]
    metrics = {
        "kl": {"expr": "kl", "weight": "length", "by": "bucket(length, 32, 64)",
               "name": "train/kl_per_token_bucket/{label}"},
        "n": {"expr": "length", "reduce": "sum", "by": "bucket(length, 32, 64)",
              "name": "train/kl_per_token_bucket_tokens/{label}"},
    }  # fmt: skip

    assert sorted(means) == sorted(tokens) == ["0-32", "33-64"]
    assert case["expected"] == pytest.approx(
        logged(metrics, {"length": [length for length, _ in rows], "kl": [kl for _, kl in rows]})
    )


@case("R11")
def _(case: dict[str, Any]) -> None:
    metrics = {
        "clip": {"expr": "clip_loss", "name": "train/loss/clip"},
        "kl": {"expr": "kl / ntok", "name": "train/kl_per_completion_token"},
    }

    assert case["expected"] == logged(metrics, case["inputs"])


@case("R21")
def _(case: dict[str, Any]) -> None:
    metrics = {
        "entropy": {"expr": "H", "name": "train/weight_entropy"},
        "denom": {"expr": "denom", "name": "train/weight_norm_denom"},
        "kl": {"expr": "kl", "name": "train/kl"},
    }
    given = {"h" if name == "H" else name: value for name, value in case["inputs"].items()}
    metrics["entropy"]["expr"] = "h"

    assert case["expected"] == logged(metrics, given)


@case("R25")
def _(case: dict[str, Any]) -> None:
    """A negative ratio is clipped to 0, as the source does; every name has its prefix from the profile."""
    metrics = {
        name: {"expr": expr, "name": f"train/{shown}"}
        for name, expr, shown in (
            ("loss", "loss", "loss"), ("kl", "kl", "kl"), ("frac", "clip(ratio, 0, 1)", "completions/clipped_frac"),
        )
    }  # fmt: skip
    given = case["inputs"]
    made = logged(metrics, {"loss": given["loss"], "kl": given["kl"], "ratio": given["completions/clipped_ratio"]})

    assert case["expected"]["train/completions/clipped_frac"] == made["train/completions/clipped_frac"]
    assert all(name.startswith(case["expected"]["all_keys_prefix"]) for name in made)


@case("R27")
def _(case: dict[str, Any]) -> None:
    """A small loss is not rounded away: the computed one is logged under both names."""
    metrics = {
        "loss": {"expr": "compute_loss", "name": "train/loss/total_raw", "alias": "train/loss/total"},
    }

    assert case["expected"] == logged(metrics, {"compute_loss": case["inputs"]["compute_loss"]})


@case("R29")
def _(case: dict[str, Any]) -> None:
    """Places, ranks and masses of rows, as columns of a table."""
    given, expected = case["inputs"], case["expected"]
    columns = {
        "prompt_index": {"type": "int", "expr": "index(group)"},
        "completion_index": {"type": "int", "expr": "index(completion)"},
        "reward_total": {"type": "float", "expr": "reward"},
        "q_mass": {"type": "float", "expr": "q"},
        "update_mass_proxy": {"type": "float", "expr": "abs(adv) / sum(abs(adv), over=completion) * 2 * q"},
        "reward_rank_desc": {"type": "int", "expr": "rank(-reward, within=group)"},
    }
    profile = {
        "axes": {"group": {"size": given["G"]}},
        "signals": {"reward": ROWS, "adv": ROWS, "q": ROWS},
        "schemas": {"row": columns},
        "tables": {"rows": {"schema": "row"}},
    }
    sink = record(profile, [[{"reward": given["rewards"], "adv": given["adv"], "q": given["q"]}]])
    ((_, table),) = sink.tables("rows")

    assert expected["row0"] == {name: pytest.approx(table.data[name][0]) for name in expected["row0"]}
    assert expected["row1"]["reward_rank_desc"] == table.data["reward_rank_desc"][1]


@case("R33")
def _(case: dict[str, Any]) -> None:
    """Statistics of two steps: the mean of means, the least minimum, the greatest maximum."""
    profile = {
        "every": 2,
        "signals": {"mean": STEP, "min": STEP, "max": STEP},
        "metrics": {"mean": "mean", "min": {"reduce": "min"}, "max": {"reduce": "max"}},
    }
    steps = [[{name: items[place] for name, items in case["inputs"].items()}] for place in range(2)]

    assert case["expected"] == values(profile, steps)


@case("R35")
def _(case: dict[str, Any]) -> None:
    """Fractions of groups that are all right, all wrong, mixed; the mask leaves rows out of a ragged group."""
    rows = [
        (group, bool(correct))
        for group, (items, mask) in enumerate(zip(case["inputs"]["corr"], case["inputs"]["mask"], strict=True))
        for correct, there in zip(items, mask, strict=True)
        if there
    ]
    metrics = {
        "all_correct": "mean(all(correct, over=completion))",
        "any_correct": "mean(any(correct, over=completion))",
        "all_wrong": "mean(not any(correct, over=completion))",
        "mixed": {"expr": "any(correct, over=completion) and not all(correct, over=completion)"},
    }
    profile = {
        "axes": {"group": {"of": "prompt"}},
        "signals": {"prompt": {**ROWS, "type": "int"}, "correct": {**ROWS, "type": "bool"}},
        "metrics": metrics,
    }

    assert case["expected"] == one_step(
        profile, {"prompt": [group for group, _ in rows], "correct": [correct for _, correct in rows]}
    )


@case("R37")
def _(case: dict[str, Any]) -> None:
    """Rates of a step from what it measured."""
    metrics = {
        "samples_per_s": "mean(num_data / learn)",
        "learn_to_actor": "mean(learn / actor)",
        "learn_frac": "mean(learn / total)",
        "useful_update_rate": "mean(1 - skip)",
    }

    assert case["expected"] == logged(metrics, case["inputs"])


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
        "reward": {"expr": "reward", "reduce": {"mean": "mean", "std": "pstd"}, "name": "reward_{reduce}"},
        "adv": {"expr": "adv", "reduce": {"mean": "mean", "std": "pstd", "count": "count"},
                "name": "advantage_{reduce}"},
        "zero": {"expr": "pstd(grouped, over=completion) == 0", "name": "frac_zero_std"},
        "quantiles": {"expr": "reward", "reduce": quantiles, "name": "{reduce}"},
        "base": {"expr": "rewards", "reduce": {"mean": "mean", "std": "pstd"}, "name": "{column}/{reduce}"},
        "h": {"expr": "sum(-q * log(q), over=completion)", "reduce": {"mean": "mean", "std": "pstd", "min": "min",
              "max": "max"}, "name": "q_entropy_{reduce}"},
        "semantic": {"expr": "semantic", "reduce": ["mean", "min"], "name": "semantic_entropy_{reduce}"},
    }  # fmt: skip
    made = logged(
        metrics,
        {"reward": given["total_utils"], "adv": given["adv"], "grouped": given["adv_grouped"][0], "q": given["q"][0],
         "rewards": {"base": given["total_utils"]}},
        axes=GROUPED, signals={"semantic": {**ROWS, "optional": True}},
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
        "signals": {"prompt": {**ROWS, "type": "int"}, "w": ROWS, "entropy": "sum(-w * log(w), over=completion)"},
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
        "signals": {"prompt": {**ROWS, "type": "int"}, "reward": ROWS},
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
        "signals": {"w": ROWS, "h": "sum(-w * log(w), over=completion)"},
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
        "signals": {"text": {**ROWS, "type": "text"}},
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
    metrics: dict[str, Any] = {name: {"axis": "step", "name": f"train/meta/{name}"} for name in (*given, *settings)}
    metrics["grad_norm"] = {"expr": "sqrt(square(tau_grad) + square(beta_grad))", "name": "train/meta/grad_norm"}

    assert case["expected"] == one_step({"signals": {}, "metrics": metrics}, {**given, **settings})


@case("E40")
def _(case: dict[str, Any]) -> None:
    """A signal that comes in one step of the window only is averaged over the steps in which it came."""
    profile = {
        "every": 2,
        "signals": {"a": STEP, "g": {"axis": "step", "optional": True}},
        "metrics": {"a": "a", "g": "g"},
    }

    assert case["expected"] == values(profile, [[item] for item in case["inputs"]])


@case("E53")
@case("E56")
def _(case: dict[str, Any]) -> None:
    """Epochs from steps. The source divides by 1 where no length is known; here that is absent, not 50."""
    given = case["inputs"]
    made = logged(
        {"epoch": "mean(at / per_epoch if per_epoch > 0 else 0 / 0)"}, {"at": 50, "per_epoch": given["steps_per_epoch"]}
    )

    assert ({"epoch": case["expected"]} if given["steps_per_epoch"] else {}) == made
