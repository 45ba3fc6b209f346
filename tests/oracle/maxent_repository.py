"""Cases of the tests of MaxEnt-GRPO's own repository: right here, or their defect is named."""

from __future__ import annotations

from typing import Any

import pytest

from tests.language.runs import one_step, record, values
from tests.oracle.maxent import ROWS, STEP, case, logged


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
    signals = {"kl": {"axis": "step"}}

    assert case["expected"] == {
        **logged(metrics, observed, signals=signals),
        "train/kl_per_completion_token": 0.0,  # the source logs 0 for a KL that was never computed: here it is absent
    }
    assert "train/kl_per_completion_token" not in logged(metrics, observed, signals=signals)


@case("R03")
def _(case: dict[str, Any]) -> None:
    names = ["", "/low_mean", "/low_min", "/high_mean", "/high_max", "/region_mean"]
    metrics: dict[str, Any] = {
        f"c{place}": {"observe": "step", "name": f"train/clip_ratio{name}"} for place, name in enumerate(names)
    }
    metrics["frac"] = {"expr": "clip(clipped_ratio, 0, 1)", "name": "train/completions/clipped_frac"}
    observed = {f"c{place}": value for place, value in enumerate(case["inputs"]["clip"])}

    profile = {"signals": {"any": {"clipped_ratio": STEP}}, "metrics": metrics}

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
        "signals": {"any": {"diag": {"axis": "step"}, "loss_kl": STEP}},
        "metrics": metrics,
    }

    assert case["expected"] == one_step(profile, {"loss_kl": case["inputs"]["loss_kl"]})


@case("R09")
def _(case: dict[str, Any]) -> None:
    """Bucket means, weighted by tokens: rows of the lengths whose means and counts the source gives."""
    means, tokens = case["inputs"]["means"], case["inputs"]["tokens"]
    rows = [(25, 0.1)] * 4 + [(50, 0.05)]
    metrics = {
        "kl": {"expr": "kl", "weight": "length", "by": "bucket(length, 32, 64)",
               "name": "train/kl_per_token_bucket/{label}"},
        "n": {"expr": "length", "reduce": "sum", "by": "bucket(length, 32, 64)",
              "name": "train/kl_per_token_bucket_tokens/{label}"},
    }  # fmt: skip

    assert sorted(means) == sorted(tokens) == ["0-32", "33-64"]
    signals = {"length": {"axis": "completion", "type": "int"}}
    observed = {"length": [length for length, _ in rows], "kl": [kl for _, kl in rows]}
    assert case["expected"] == pytest.approx(logged(metrics, observed, signals=signals))


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
        "loss": {"expr": "compute_loss", "name": "train/loss/total_raw", "alias": ["train/loss/total"]},
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
        "signals": {"any": {"reward": ROWS, "adv": ROWS, "q": ROWS}},
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
        "signals": {"any": {"mean": STEP, "min": STEP, "max": STEP}},
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
        "signals": {"any": {"prompt": {**ROWS, "type": "int"}, "correct": {**ROWS, "type": "bool"}}},
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
