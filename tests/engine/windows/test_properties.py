"""Windows by property: however one data set is cut into ranks, steps and micro-batches, pandas gets the same values."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import declog
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.conftest import examples

ROWS = {"axis": "completion"}
TOKENS = 3
FLOATS = st.floats(-100, 100, allow_nan=False, width=32)
POOLS = {"step": ["step"], "batch": ["step", "batch"], "rank": ["rank"], "rank_batch": ["step", "batch", "rank"]}
COMBINE: dict[str, Callable[[pd.Series], float]] = {
    "mean": lambda x: x.mean(), "min": lambda x: x.min(), "max": lambda x: x.max(), "sum": lambda x: x.sum(),
    "last": lambda x: latest(x), "var": lambda x: x.var(),
}  # fmt: skip
REDUCE: dict[str, Callable[[pd.Series], float]] = {
    "mean": lambda x: x.mean(), "sum": lambda x: x.sum(), "min": lambda x: x.min(), "max": lambda x: x.max(),
    "std": lambda x: x.std(), "pstd": lambda x: x.std(ddof=0), "var": lambda x: x.var(), "count": lambda x: x.count(),
    "p05": lambda x: x.quantile(0.05), "p50": lambda x: x.median(), "p95": lambda x: x.quantile(0.95),
}  # fmt: skip
VALUES = [name for name in REDUCE if name != "count"]  # of what is missing altogether NaN
OVER_TOKENS = ("mean", "sum", "min", "max", "std", "pstd", "var", "count")


def latest(pieces: pd.Series) -> float:
    """The value of the latest step and batch, and of the lowest rank."""
    keys = pieces.index.to_frame(index=False)
    order = keys.sort_values(list(keys), ascending=[name != "rank" for name in keys], kind="stable").index
    return float(pieces.iloc[order[-1]])


def train(config: Mapping[str, Any], world_size: int, body: Callable[[Recorder, int], None]) -> MemorySink:
    """Run ``body`` as each rank of a job; what rank 0 logged."""
    sink = MemorySink()
    with tempfile.TemporaryDirectory() as folder:

        def rank(comm: Comm) -> None:
            sinks = [] if comm.rank else [sink]
            profile = {"run": {"name": "cut", "strict": True}, **config}
            with declog.start(profile, sinks=sinks, comm=comm, output_dir=Path(folder)) as log:
                body(log, comm.rank)

        run_ranks(world_size, rank)
    return sink


def logged(values: Mapping[str, float]) -> dict[str, Any]:
    """What declog shows of values: those that are there."""
    return {
        name: pytest.approx(value, rel=1e-9, abs=1e-7) for name, value in values.items() if not math.isnan(value)
    }  # fmt: skip


def nothing(metric: str, names: Collection[str], rows: int) -> dict[str, Any]:
    """What declog shows of a metric of which rows came, all of them missing."""
    return dict.fromkeys(names, pytest.approx(math.nan, nan_ok=True)) | {f"nonfinite/{metric}": rows}


# ---- one window, cut in any way


@st.composite
def cut(draw: st.DrawFn) -> pd.DataFrame:
    """Rows with values, texts and tokens, each in some batch of some step of some rank."""
    count = draw(st.integers(1, 30))
    ranks, steps, batches = draw(st.sampled_from([1, 2, 3, 5, 8])), draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=count, max_size=count))

    tokens = column(st.lists(FLOATS, min_size=TOKENS, max_size=TOKENS))
    frame = pd.DataFrame(
        {
            "reward": column(FLOATS | st.just(math.nan)), "length": column(st.integers(0, 9)),
            "x": column(FLOATS), "y": column(FLOATS | st.just(math.nan)), "source": column(st.sampled_from("abc")),
            "logp": tokens, "tokens": column(st.integers(0, TOKENS)), "rank": column(st.integers(0, ranks - 1)),
            "step": column(st.integers(0, steps - 1)), "batch": column(st.integers(0, batches - 1)),
        }
    )  # fmt: skip
    frame["batch"] = frame.groupby(["rank", "step"])["batch"].transform(lambda x: x.rank(method="dense") - 1)
    frame.attrs.update(ranks=ranks, steps=steps)
    # the order in which a rank sees its rows; a batch's rows keep theirs
    return frame.sort_values(["step", "batch", "rank"], kind="stable", ignore_index=True)


def observed(rows: pd.DataFrame) -> dict[str, Any]:
    """One batch as a trainer has it: tensors with padding that is no number."""
    mask = torch.arange(TOKENS) < torch.tensor(rows["tokens"].to_numpy())[:, None]
    logp = torch.tensor(np.array(rows["logp"].tolist()), dtype=torch.float64)
    return {
        "reward": torch.tensor(rows["reward"].to_numpy(np.float64)), "length": torch.tensor(rows["length"].to_numpy()),
        "rewards": {name: torch.tensor(rows[name].to_numpy(np.float64)) for name in "xy"},
        "source": rows["source"].tolist(), "mask": mask, "logp": torch.where(mask, logp, math.nan),
    }  # fmt: skip


SIGNALS: Mapping[str, Mapping[str, Any]] = {
    "reward": ROWS, "length": {**ROWS, "type": "int"}, "rewards": {**ROWS, "family": True},
    "source": {**ROWS, "type": "text"}, "mask": {"axis": "token", "type": "bool"}, "logp": {"axis": "token"},
}  # fmt: skip


def window(frame: pd.DataFrame, metrics: Mapping[str, Any]) -> dict[str, float]:
    """The values of one window that holds all rows of the frame."""
    steps = frame.attrs["steps"]

    def body(log: Recorder, rank: int) -> None:
        for step in range(steps):
            with log.step(step):
                mine = frame[(frame["rank"] == rank) & (frame["step"] == step)]
                for _, rows in mine.groupby("batch"):
                    log.observe(**observed(rows))

    axes = {"token": {"mask": "mask"}}
    sink = train(
        {"every": steps, "axes": axes, "signals": {"any": SIGNALS}, "metrics": metrics}, frame.attrs["ranks"], body
    )
    assert set(sink.scalars) <= {steps - 1}
    return sink.scalars.get(steps - 1, {})


@examples(12)
@given(cut())
def test_a_window_does_not_depend_on_how_its_rows_were_cut(frame: pd.DataFrame) -> None:
    """All reductions, of rows, families, labels, chosen rows, weighted rows and tokens."""
    metrics = {
        "reward": {"expr": "reward", "reduce": list(REDUCE)},
        "member": {"expr": "rewards", "reduce": list(REDUCE), "name": "member/{member}/{reduce}"},
        "label": {"expr": "reward", "reduce": list(REDUCE), "by": "source", "name": "label/{label}/{reduce}"},
        "chosen": {"expr": "reward", "reduce": list(REDUCE), "where": "length > 4", "name": "chosen/{reduce}"},
        "weighted": {"expr": "rewards", "weight": "length", "name": "weighted/{member}"},
        "logp": {"expr": "logp", "reduce": list(OVER_TOKENS)},
        "short": {"expr": "exp(logp / 100)", "reduce": list(OVER_TOKENS), "where": "length < 5",
                  "name": "short/{reduce}"},
    }  # fmt: skip
    expected: dict[str, float] = {}

    def reduced(prefix: str, values: pd.Series, how: Any = REDUCE) -> None:
        """What nothing came for is absent, sums and counts too; of what came and is missing there are 0."""
        for name in how:
            there = len(values) if name == "count" else values.count()
            expected[f"{prefix}/{name}"] = REDUCE[name](values) if there else math.nan

    reduced("reward", frame["reward"])
    for member in "xy":
        reduced(f"member/{member}", frame[member])
        there = frame[frame[member].notna()]
        weight = there["length"].sum()
        expected[f"weighted/{member}"] = (there[member] * there["length"]).sum() / weight if weight else math.nan
    for label, rows in frame.groupby("source"):
        reduced(f"label/{label}", rows["reward"])
    reduced("chosen", frame.loc[frame["length"] > 4, "reward"])
    flat = frame.apply(lambda row: row["logp"][: row["tokens"]], axis=1).explode().dropna().astype(float)
    reduced("logp", flat, OVER_TOKENS)
    short = flat[flat.index.isin(frame.index[frame["length"] < 5])]
    reduced("short", np.exp(short / 100), OVER_TOKENS)

    broken: dict[str, Any] = {}
    if not frame["reward"].count():
        broken |= nothing("reward", [f"reward/{name}" for name in VALUES], len(frame))
        labels = frame["source"].unique()
        broken |= nothing("label", [f"label/{label}/{name}" for label in labels for name in VALUES], len(frame))
    chosen = frame.loc[frame["length"] > 4, "reward"]
    if len(chosen) and not chosen.count():
        broken |= nothing("chosen", [f"chosen/{name}" for name in VALUES], len(chosen))
    weighed = frame[frame["length"] > 0]  # rows of no weight do not count
    if weighed["y"].isna().any() and not weighed[["x", "y"]].count().sum():
        broken |= nothing("weighted", ["weighted/y"], int(weighed["y"].isna().sum()))
    assert window(frame, metrics) == logged(expected) | broken


@examples(12)
@given(cut())
def test_pools_are_what_their_definition_says(frame: pd.DataFrame) -> None:
    """`over` reduces each piece of the window, `combine` those of its values that there are."""
    metrics: dict[str, Any] = {}
    expected: dict[str, float] = {}
    broken: dict[str, Any] = {}
    for pool, keys in POOLS.items():
        for reduce in ("mean", "p50"):
            pieces = frame.groupby(keys)["reward"].agg(REDUCE[reduce]).dropna()
            of_tokens = frame.assign(flat=frame.apply(lambda row: row["logp"][: row["tokens"]], axis=1))
            tokens = of_tokens.explode("flat").astype({"flat": float}).groupby(keys)["flat"]
            token_pieces = tokens.agg(REDUCE[reduce]).dropna()
            for combine, how in COMBINE.items():
                id = f"{pool}_{reduce}_{combine}"
                metrics[id] = {"expr": "reward", "reduce": reduce, "over": pool, "combine": combine}
                expected[id] = how(pieces) if len(pieces) else math.nan
                if not frame["reward"].count():  # the variance of one piece is absent, whatever it is
                    alone = combine == "var" and len(frame.groupby(keys)) == 1
                    broken |= nothing(id, [] if alone else [id], len(frame))
                if reduce != "p50":  # over tokens quantiles are those of a histogram
                    metrics[f"t_{id}"] = {"expr": "logp", "reduce": reduce, "over": pool, "combine": combine}
                    expected[f"t_{id}"] = how(token_pieces) if len(token_pieces) else math.nan

    assert window(frame, metrics) == logged(expected) | broken


@examples(20)
@given(cut())
def test_last_is_of_the_latest_step_and_batch_and_the_lowest_rank(frame: pd.DataFrame) -> None:
    """Also where ranks have different numbers of batches."""
    there = frame[frame["reward"].notna()].sort_values(
        ["step", "batch", "rank"], ascending=[True, True, False], kind="stable"
    )
    expected = there["reward"].iloc[-1] if len(there) else math.nan

    missing = {} if len(there) else nothing("last", ["last"], len(frame))
    assert window(frame, {"last": "last(reward)"}) == logged({"last": expected}) | missing


@examples(20)
@given(cut())
def test_the_main_rank_alone(frame: pd.DataFrame) -> None:
    """`ranks: main` takes rank 0's rows only, before anything is pooled."""
    mine = frame[frame["rank"] == 0]
    steps = mine.groupby("step")["reward"].sum(min_count=1).dropna()
    metrics = {
        "mean": {"expr": "reward", "ranks": "main"},
        "steps": {"expr": "reward", "reduce": "sum", "over": "step", "combine": "mean", "ranks": "main"},
    }

    broken: dict[str, Any] = {}
    if len(mine) and not mine["reward"].count():
        broken = nothing("mean", ["mean"], len(mine)) | nothing("steps", ["steps"], len(mine))
    assert window(frame, metrics) == logged({"mean": mine["reward"].mean(), "steps": steps.mean()}) | broken


# ---- joins


JOINED = {
    "any": {"row": {**ROWS, "type": "int"}},
    "rollout": {"reward": ROWS, "label": {**ROWS, "type": "text"}},
    "update": {"loss": ROWS},
}


@examples(20)
@given(st.data())
def test_rows_are_joined_by_their_ids(data: st.DataObject) -> None:
    """As a merge of pandas does it: over batches in any order, and over windows where a generation is used again."""
    ranks, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 4))
    reuse, every = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    rollouts, updates = [], []
    for rank in range(ranks):
        count = data.draw(st.integers(1, 6))
        for step in range(steps):
            if step % reuse == 0:
                for row in data.draw(st.permutations(range(count))):
                    rollouts.append((rank, step, data.draw(st.integers(0, 1)), row, data.draw(FLOATS),
                                     data.draw(st.sampled_from("ab"))))  # fmt: skip
            for row in data.draw(st.permutations(range(count))):
                updates.append(
                    (rank, step, step // reuse * reuse, data.draw(st.integers(0, 2)), row, data.draw(FLOATS))
                )
    rollout = pd.DataFrame(rollouts, columns=["rank", "made", "batch", "row", "reward", "label"])
    update = pd.DataFrame(updates, columns=["rank", "step", "made", "batch", "row", "loss"])

    def body(log: Recorder, rank: int) -> None:
        for step in range(steps):
            with log.step(step):
                for _, rows in rollout[(rollout["rank"] == rank) & (rollout["made"] == step)].groupby("batch"):
                    log.observe(**{name: rows[name].tolist() for name in ("row", "reward", "label")})
                for _, rows in update[(update["rank"] == rank) & (update["step"] == step)].groupby("batch"):
                    log.observe(**{name: rows[name].tolist() for name in ("row", "loss")})

    metrics = {
        "both": {"expr": "reward * loss", "reduce": ["mean", "std", "count"]},
        "by": {"expr": "loss", "by": "label", "reduce": "sum"},
        "chosen": {"expr": "loss", "where": "reward > 0"},
    }
    axes = {"completion": {"ids": "row"}}
    sink = train({"every": every, "axes": axes, "signals": JOINED, "metrics": metrics}, ranks, body)

    merged = update.merge(rollout.drop(columns="batch"), on=["rank", "made", "row"], validate="many_to_one")
    assert len(merged) == len(update)
    merged["both"] = merged["reward"] * merged["loss"]
    ends = np.minimum((merged["step"] // every + 1) * every, steps) - 1
    expected = {}
    for end, rows in merged.groupby(ends):
        sums = rows.groupby("label")["loss"].sum()
        expected[end] = logged(
            {
                "both/mean": rows["both"].mean(), "both/std": rows["both"].std(), "both/count": len(rows),
                "chosen": rows.loc[rows["reward"] > 0, "loss"].mean(),
                **{f"by/{label}": value for label, value in sums.items()},
            }
        )  # fmt: skip
    assert sink.scalars == expected


@examples(15)
@given(st.data())
def test_rows_are_joined_by_their_position(data: st.DataObject) -> None:
    """Without ids, where each phase had one batch with as many rows in the step."""
    ranks, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    pairs = st.lists(st.tuples(FLOATS, FLOATS), min_size=1, max_size=5)
    made = {(rank, step): data.draw(pairs) for rank in range(ranks) for step in range(steps)}

    def body(log: Recorder, rank: int) -> None:
        for step in range(steps):
            with log.step(step):
                log.observe(reward=[reward for reward, _ in made[rank, step]])
                log.observe(loss=[loss for _, loss in made[rank, step]])

    signals = {"rollout": {"reward": ROWS}, "update": {"loss": ROWS}}
    sink = train({"signals": signals, "metrics": {"both": "sum(reward * loss)"}}, ranks, body)

    assert sink.scalars == {
        step: logged({"both": sum(a * b for rank in range(ranks) for a, b in made[rank, step])})
        for step in range(steps)
    }


# ---- what runs on from window to window


@examples(20)
@given(st.data())
def test_prev_is_a_shift_per_rank(data: st.DataObject) -> None:
    """The last value of the latest step before this one that had any; `first` where there was none."""
    ranks, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 6))
    every = data.draw(st.integers(1, 3))
    batches = st.lists(st.none() | FLOATS, min_size=1, max_size=3)
    made = {(rank, step): data.draw(batches) for rank in range(ranks) for step in range(steps)}

    def body(log: Recorder, rank: int) -> None:
        for step in range(steps):
            with log.step(step):
                for value in made[rank, step]:
                    log.observe(x=math.nan if value is None else value)

    signals = {"x": {"axis": "step"}}
    metrics = {"before": {"expr": "prev(x, -7)", "reduce": ["sum", "count"]}}
    sink = train({"every": every, "signals": {"any": signals}, "metrics": metrics}, ranks, body)

    frame = pd.DataFrame(
        [(rank, step, value) for (rank, step), values in made.items() for value in values],
        columns=["rank", "step", "x"],
    ).astype({"x": float})
    latest = frame.groupby(["rank", "step"])["x"].last()  # skips what is missing
    before = latest.groupby("rank").ffill().groupby("rank").shift(1).fillna(-7.0).rename("before")
    frame = frame.join(before, on=["rank", "step"])
    ends = np.minimum((frame["step"] // every + 1) * every, steps) - 1
    assert sink.scalars == {
        end: logged({"before/sum": rows["before"].sum(), "before/count": len(rows)})
        for end, rows in frame.groupby(ends)
    }


@examples(20)
@given(st.data())
def test_cumulative_is_a_running_sum_of_each_mode(data: st.DataObject) -> None:
    """Each mode adds to its own total, and shows it at its own log events."""
    ranks, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5))
    rows = st.lists(st.integers(0, 50), min_size=0, max_size=4)
    evals = {step for step in range(steps) if data.draw(st.booleans())}
    made = {
        (rank, step, mode): data.draw(rows) for rank in range(ranks) for step in range(steps)
        for mode in ("train", "eval")
    }  # fmt: skip

    def body(log: Recorder, rank: int) -> None:
        for step in range(steps):
            with log.step(step):
                log.observe(length=torch.tensor(made[rank, step, "train"], dtype=torch.int64))
            if step in evals:
                with log.mode("eval"):
                    log.observe(length=torch.tensor(made[rank, step, "eval"], dtype=torch.int64))

    metrics = {"tokens": {"expr": "length", "reduce": "sum", "over": "run"}, "n": "count(length)"}
    config = {"signals": {"any": {"length": {**ROWS, "type": "int"}}}, "metrics": metrics}
    sink = train({**config, "modes": {"train": {}, "eval": {"prefix": "eval_"}}}, ranks, body)

    phases = [
        (step, mode) for step in range(steps) for mode in ("train", "eval") if mode == "train" or step in evals
    ]  # fmt: skip
    sums = [sum(sum(made[rank, *phase]) for rank in range(ranks)) for phase in phases]
    counts = [sum(len(made[rank, *phase]) for rank in range(ranks)) for phase in phases]
    expected: dict[int, dict[str, float]] = {}
    seen, total = {"train": 0, "eval": 0}, {"train": 0, "eval": 0}
    for (step, mode), added, count in zip(phases, sums, counts, strict=True):
        prefix = "eval_" if mode == "eval" else ""
        seen[mode], total[mode] = seen[mode] + count, total[mode] + added
        if seen[mode]:  # of nothing there is neither a sum nor a count
            expected.setdefault(step, {})[f"{prefix}tokens"] = total[mode]
        if count:
            expected[step][f"{prefix}n"] = count
    assert sink.scalars == expected


# ---- what is there for a step over all ranks, in some batches only, or in other phases


@examples(25)
@given(cut(), st.sampled_from([1, 2, 9]))
def test_a_value_of_all_rows_of_a_step_counts_once(frame: pd.DataFrame, every: int) -> None:
    """However many batches and ranks have the rows: by itself, with rows, by pools, chosen and weighed by it."""
    value = "max(mean(x, over=completion), over=group)"
    metrics: dict[str, Any] = {
        "best": {"expr": value, "reduce": list(REDUCE)}, "groups": {"expr": "size(group)", "reduce": ["sum", "count"]},
        "gap": f"mean(x - {value})", "chosen": {"expr": "x", "where": f"{value} > 0"},
        "weighted": {"expr": "x", "weight": "size(group)"}, "pools": {"expr": value, "over": "step", "combine": "max"},
        "some": {"expr": value, "where": "size(group) > 1", "reduce": "sum"}, "main": {"expr": value, "ranks": "main"},
        "share": {"formula": "best.sum / groups.sum"},
    }  # fmt: skip
    ranks, steps = frame.attrs["ranks"], frame.attrs["steps"]

    def body(log: Recorder, rank: int) -> None:
        for step in range(steps):
            with log.step(step):
                mine = frame[(frame["rank"] == rank) & (frame["step"] == step)]
                for _, rows in mine.groupby("batch"):
                    log.observe(x=rows["x"].tolist(), source=rows["source"].tolist())

    axes = {"group": {"of": "source"}}
    signals = {"x": ROWS, "source": SIGNALS["source"]}
    sink = train({"every": every, "axes": axes, "signals": {"any": signals}, "metrics": metrics}, ranks, body)

    rows = frame.copy()
    keys = ["step", "batch"]
    groups = rows.groupby([*keys, "rank", "source"])["x"].mean()
    rows["best"] = rows["step"].map(groups.groupby("step").max())
    rows["groups"] = rows["step"].map(groups.groupby("step").count())
    expected = {}
    for end, part in rows.groupby(np.minimum((rows["step"] // every + 1) * every, steps) - 1):
        once = part.groupby("step")[["best", "groups"]].first()
        best = {f"best/{name}": how(once["best"]) for name, how in REDUCE.items()}
        expected[end] = logged({
            **best, "groups/sum": once["groups"].sum(), "groups/count": len(once),
            "gap": (part["x"] - part["best"]).mean(), "chosen": part.loc[part["best"] > 0, "x"].mean(),
            "weighted": np.average(part["x"], weights=part["groups"]),
            "pools": once["best"].groupby("step").mean().max(), "main": once["best"].mean(),
            "some": once.loc[once["groups"] > 1, "best"].sum(min_count=1),
            "share": best["best/sum"] / once["groups"].sum(),
        })  # fmt: skip
    assert sink.scalars == expected


@examples(25)
@given(cut(), st.data())
def test_batches_without_a_signal_add_nothing(frame: pd.DataFrame, data: st.DataObject) -> None:
    """What is computed of a signal is that of the batches that have it, on the ranks that do."""
    keys = ["step", "batch", "rank"]
    cells = frame[keys].drop_duplicates()
    has = dict(zip(map(tuple, cells.to_numpy().tolist()), data.draw(
        st.lists(st.booleans(), min_size=len(cells), max_size=len(cells))), strict=True))  # fmt: skip
    steps, every = frame.attrs["steps"], data.draw(st.integers(1, 3))
    partly = ("reward", "source", "logp", "length")
    metrics = {
        "low": "mean(not reward > 0)", "either": "mean(reward > 0 or x > 0)", "size": "mean(1 if length > 4 else 0)",
        "is_a": "mean(source != 'a')", "any": "mean(any(logp > 0, over=token))", "tokens": "mean(not logp > 0)",
        "guarded": "mean(present(length) and length > 4)", "chosen": {"expr": "x", "where": "not length > 4"},
        "by": {"expr": "x", "by": "source", "reduce": "sum"}, "all": "mean(x)",
        "gap": {"formula": "low - size"}, "flag": {"formula": "1 if not low > 0.5 else 0"},
    }  # fmt: skip

    def body(log: Recorder, rank: int) -> None:
        for step in range(steps):
            with log.step(step):
                mine = frame[(frame["rank"] == rank) & (frame["step"] == step)]
                for batch, rows in mine.groupby("batch"):
                    given = {"x": rows["x"].tolist(), **observed(rows)}
                    del given["rewards"]
                    if not has[step, batch, rank]:
                        given = {name: value for name, value in given.items() if name not in partly}
                    log.observe(**given)

    late = {name: SIGNALS[name] for name in partly}
    signals = {"x": ROWS, "mask": SIGNALS["mask"], **late}
    config = {"every": every, "axes": {"token": {"mask": "mask"}}, "signals": {"any": signals}, "metrics": metrics}
    sink = train(config, frame.attrs["ranks"], body)

    frame["has"] = [has[cell] for cell in map(tuple, frame[keys].to_numpy().tolist())]
    expected = {}
    for end, rows in frame.groupby(np.minimum((frame["step"] // every + 1) * every, steps) - 1):
        here = rows[rows["has"]]
        tokens = [row["logp"][: row["tokens"]] for _, row in here.iterrows()]
        flat = pd.Series([value for values in tokens for value in values], dtype=float)
        known = here[here["reward"].notna()]  # of the others a comparison is neither true nor false
        low, size = (~(known["reward"] > 0)).mean(), (here["length"] > 4).mean()
        sums = here.groupby("source")["x"].sum()
        positive = pd.Series([any(value > 0 for value in values) for values in tokens if len(values)], dtype=float)
        expected[end] = logged({
            "low": low, "either": ((known["reward"] > 0) | (known["x"] > 0)).mean(), "size": size,
            "is_a": (here["source"] != "a").mean(), "any": positive.mean(), "tokens": (~(flat > 0)).mean(),
            "guarded": (rows["has"] & (rows["length"] > 4)).mean(),
            "chosen": here.loc[~(here["length"] > 4), "x"].mean(), "all": rows["x"].mean(),
            "gap": low - size, "flag": float(not low > 0.5) if len(here) else math.nan,  # NaN > 0.5 is false
            **{f"by/{label}": value for label, value in sums.items()},
        })  # fmt: skip
        if len(here) and not len(known):
            expected[end] |= nothing("low", ["low"], len(here)) | nothing("either", ["either"], len(here))
            expected[end] |= nothing("gap", ["gap"], 1)
        if len(here) and not len(positive):
            expected[end] |= nothing("any", ["any"], len(here))
    assert sink.scalars == expected


@examples(25)
@given(st.data())
def test_a_formula_meets_values_of_two_phases_where_both_are(data: st.DataObject) -> None:
    """By step or rank, whatever the batches of either; a step that one of them lacks adds nothing."""
    ranks, steps, every = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    batches = st.lists(st.lists(FLOATS, min_size=1, max_size=3), max_size=2)
    made = {(rank, step, name): data.draw(batches) for rank in range(ranks) for step in range(steps) for name in "ab"}

    def body(log: Recorder, rank: int) -> None:
        for step in range(steps):
            with log.step(step):
                for name in "ab":
                    for values in made[rank, step, name]:
                        log.observe(**{name: values})

    metrics: dict[str, Any] = {}
    for pool in ("window", "step", "rank"):
        pooled = {} if pool == "window" else {"over": pool, "combine": "sum"}
        metrics |= {f"a_{pool}": {"expr": "a", **pooled}, f"b_{pool}": {"expr": "b", **pooled},
                    f"gap_{pool}": {"formula": f"a_{pool} - 2 * b_{pool}"}}  # fmt: skip
    signals = {"rollout": {"a": ROWS}, "update": {"b": ROWS}}
    config = {"every": every, "signals": signals, "metrics": metrics, "run": {"strict": False}}  # a phase may end
    sink = train(config, ranks, body)

    frame = pd.DataFrame(
        [(rank, step, name, value) for (rank, step, name), parts in made.items() for part in parts for value in part],
        columns=["rank", "step", "name", "value"],
    )
    expected: dict[int, Any] = {}
    for end, rows in frame.groupby(np.minimum((frame["step"] // every + 1) * every, steps) - 1):
        found: dict[str, float] = {}
        for pool in ("window", "step", "rank"):
            key = pd.Series(0, rows.index) if pool == "window" else rows[pool]
            means = rows.groupby([key, "name"])["value"].mean().unstack().reindex(columns=["a", "b"])
            columns = {"a": means["a"], "b": means["b"], "gap": means["a"] - 2 * means["b"]}
            found |= {f"{name}_{pool}": values.sum(min_count=1) for name, values in columns.items()}
        expected[end] = logged(found)
    assert sink.scalars == expected
