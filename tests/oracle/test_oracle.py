"""Every kind of filter, with every scope and limit, against pandas: on one to four ranks, over windows of steps.

The oracle knows all ranks' rows at once and sorts and groups them with pandas. The recorders have each rank's rows,
and send what their filters may pick.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import declog
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests.conftest import examples
from tests.running import profile

KINDS = ("all", "top_bottom", "random", "fraction", "first", "unique")
SCOPES: dict[str, str | list[str]] = {
    "group": "group", "batch": "batch", "step": "step", "window": "window",
    "text": "source", "int_of_steps": ["step", "level"], "labels_of_groups": ["source", "solved", "group"],
}  # fmt: skip
SPLITS = {"none": ["step", "batch", "rank"], "batches": ["step", "rank"], "ranks": ["step", "batch"]}
SCORES = (0.0, 0.25, 0.5, -1.0, 1e300, math.inf, -math.inf, math.nan, None)  # so that there are many ties
SOURCES = ("math", "größe", "", None)
ORDER = ["step", "batch", "rank", "place"]
SIGNALS = {
    "score": {"axis": "completion"}, "group": {"axis": "completion", "type": "int"},
    "id": {"axis": "completion", "type": "int"}, "source": {"axis": "completion", "type": "text"},
    "level": {"axis": "completion", "type": "int"}, "solved": {"axis": "completion", "type": "bool"},
    "text": {"axis": "completion", "type": "text"},
}  # fmt: skip


class Job(NamedTuple):
    """A job's rows, one after the other as declog merges them, and how it logs them."""

    rows: pd.DataFrame
    batches: Mapping[tuple[int, int], list[int]]  # how many rows each has, by step and rank
    ranks: int
    steps: list[int]
    every: int
    split: str
    ids: bool
    filters: dict[str, dict[str, Any]]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Ranks with different numbers of batches and rows; the numbers of the steps have gaps."""
    ranks, count = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    sizes = st.lists(st.integers(0, 5), min_size=1, max_size=2)
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    steps = [7 + 3 * step for step in range(count)]
    batches = {(step, rank): draw(sizes) for step, rank in itertools.product(steps, range(ranks))}
    rows = [
        {"step": step, "batch": batch, "rank": rank, "place": place, "window": steps.index(step)}
        for (step, rank), sizes_here in batches.items()
        for batch, size in enumerate(sizes_here)
        for place in range(size)
    ]
    every = draw(st.integers(1, 3))
    frame = pd.DataFrame(rows, columns=[*ORDER, "window"]).sort_values(ORDER, ignore_index=True)
    frame["window"] //= every
    frame["score"] = pd.Series([SCORES[code] for code in random.integers(0, len(SCORES), len(frame))], dtype=object)
    frame["group"] = random.integers(0, 3, len(frame))
    frame["source"] = pd.Series([SOURCES[code] for code in random.integers(0, len(SOURCES), len(frame))], dtype=object)
    for label, values in (("level", (2**60, 2**60 + 1, None)), ("solved", (True, False, None))):
        frame[label] = pd.Series([values[code] for code in random.integers(0, 3, len(frame))], dtype=object)
    frame["id"] = random.permutation(len(frame)) + 2**53
    frame["text"] = [".".join(map(str, row)) for row in frame[ORDER].itertuples(index=False)]
    split, ids = draw(st.sampled_from(sorted(SPLITS))), draw(st.booleans())
    return Job(frame, batches, ranks, steps, every, split, ids, filters(random))


def filters(random: np.random.Generator) -> dict[str, dict[str, Any]]:
    """One filter of each kind, scope and limit, and one after each kind."""

    def chosen(kind: str) -> dict[str, Any]:
        n = int(random.integers(1, 4))
        top, bottom = [(1, 1), (2, 0), (0, 3), (2, 1)][random.integers(4)]
        choices: dict[str, dict[str, Any]] = {
            "all": {"first": 1000}, "top_bottom": {"key": "score", "top": top, "bottom": bottom},
            "random": {"random": n}, "first": {"first": n}, "unique": {"unique": "source"},
            "fraction": {"fraction": (0.0, 0.3, 0.7, 1.0)[random.integers(4)]},
        }  # fmt: skip
        return choices[kind]

    made: dict[str, dict[str, Any]] = {}
    for kind, within, limited in itertools.product(KINDS, SCOPES, (False, True)):
        where = {"where": "score < 0.5"} if random.random() < 0.5 else {}
        limit = {"limit": int(random.integers(1, 5))} if limited else {}
        made[f"{kind}_{within}{'_limit' * limited}"] = {
            "within": SCOPES[within],
            **chosen(kind),
            **where,
            **limit,
        }
    names = list(made)
    for kind in KINDS:
        before, follower = f"{kind}_{list(SCOPES)[random.integers(len(SCOPES))]}", names[random.integers(len(names))]
        made[f"after_{kind}"] = {**made[follower], "from": before}
    return made


# ---- what pandas picks


def hashed(job: Job) -> pd.Series[Any]:
    """The hash that `random` and `fraction` pick by, in Python's own integers."""
    mask, golden = 2**64 - 1, 0x9E3779B97F4A7C15

    def mix(x: int) -> int:
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
        return x ^ (x >> 31)

    def one(row: Any) -> int:
        state = 0x632BE59BD9B4E019
        for key in (row.step, row.id) if job.ids else (row.step, row.batch, row.rank, row.place):
            state = mix(state ^ mix((int(key) + golden) & mask))
        return state

    return pd.Series([one(row) for row in job.rows.itertuples()], job.rows.index, dtype=object)


def heads(rows: pd.DataFrame, by: Sequence[str], scope: list[str], n: int, *, down: bool = False) -> pd.DataFrame:
    """The first ``n`` of each scope, in the order of the columns ``by``, of which the first may descend."""
    ordered = rows.sort_values(list(by), ascending=[not down, *[True] * (len(by) - 1)], kind="stable")
    return ordered.groupby(scope, sort=False).head(n)


def picked(job: Job, name: str) -> pd.DataFrame:
    """The rows that a filter takes, in their order."""
    filter = job.filters[name]
    rows = picked(job, filter["from"]) if "from" in filter else job.rows.assign(order=job.rows.index)
    rows = rows.assign(score=rows.score.astype(float))
    if "where" in filter:
        rows = rows[rows.score < 0.5]
    scopes = {
        "group": [*SPLITS[job.split], "group"], "batch": ["step", "batch"], "step": ["step"], "window": ["window"],
    }  # fmt: skip
    within = [filter["within"]] if isinstance(filter["within"], str) else filter["within"]
    labels = [name for name in within if name not in scopes]
    rows = rows.dropna(subset=labels)  # a row without a label is not taken
    # a log event's rows are chosen from alone, whatever the scope: a step is never in two windows
    scope = [column for name in within for column in scopes.get(name, ["window", name])]
    ties = ["step", "id"] if job.ids else ["order"]
    match next(key for key in ("first", "unique", "key", "random", "fraction") if key in filter):
        case "first":
            found = heads(rows, ["order"], scope, filter["first"])
        case "unique":
            found = rows.dropna(subset=["source"]).drop_duplicates([*scope, "source"])
        case "key":
            keyed = rows.dropna(subset=["score"])
            top = heads(keyed, ["score", *ties], scope, filter["top"], down=True)
            found = pd.concat([top, heads(keyed.drop(top.index), ["score", *ties], scope, filter["bottom"])])
        case "random":
            found = heads(rows.assign(hash=hashed(job)), ["hash"], scope, filter["random"])
        case "fraction":
            found = rows[hashed(job)[rows.index] < filter["fraction"] * 2.0**64]
    found = found.sort_values("order")
    return found.groupby("window").head(filter["limit"]) if "limit" in filter else found


# ---- what declog picks


def logged(job: Job, made: Mapping[str, Any], folder: Path) -> MemorySink:
    """What rank 0 logs of the job."""

    def rank(comm: Comm) -> MemorySink:
        sink = MemorySink()
        with declog.start(made, sinks=[sink], output_dir=folder, comm=comm) as log:
            for step in job.steps:
                mine = job.rows[(job.rows["rank"] == comm.rank) & (job.rows.step == step)]
                with log.step(step):
                    for batch in range(len(job.batches[step, comm.rank])):
                        part = mine[mine.batch == batch]
                        log.observe(**{name: part[name].tolist() for name in SIGNALS})
        return sink

    return run_ranks(job.ranks, rank)[0]


def compiled(job: Job) -> dict[str, Any]:
    """A profile with a table for each filter."""
    axes: dict[str, Any] = {"group": {"of": "group", "split": job.split}}
    if job.ids:
        axes["completion"] = {"ids": "id"}
    schema = {"text": {"type": "text"}, "score": {"type": "float"}}
    return profile(
        SIGNALS,
        axes=axes, schemas={"s": schema}, every=job.every, filters=job.filters,
        tables={name: {"schema": "s", "filter": name} for name in job.filters},
    )  # fmt: skip


# an example is a whole job, too slow to be shrunk
@settings(examples(10, HealthCheck.data_too_large), phases=[Phase.reuse, Phase.generate])
@given(job=jobs())
def test_every_filter_picks_what_pandas_picks(job: Job, tmp_path_factory: pytest.TempPathFactory) -> None:
    """All kinds, scopes and limits at once, with rows that tie, have no key, or are in no batch of some rank."""
    sink = logged(job, compiled(job), tmp_path_factory.mktemp("run"))
    for name, filter in job.filters.items():
        rows = picked(job, name)
        expected = {
            job.steps[min((window + 1) * job.every, len(job.steps)) - 1]: part.text.tolist()
            for window, part in rows.groupby("window")
        }
        assert {step: list(table.data["text"]) for step, table in sink.tables(name)} == expected, filter
        scores = [score for _, table in sink.tables(name) for score in table.data["score"]]
        assert scores == [None if math.isnan(score) else score for score in rows.score.astype(float)], filter
