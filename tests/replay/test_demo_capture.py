"""The demo, captured as it trains: its capture gives what it logged, without training."""

from __future__ import annotations

import contextlib
import pickle

import pytest

from declog.records import Records
from declog.replay import capture_reader
from tests.docs.test_demo import Demo, demo
from tests.replay.keeping import timeless

KEPT = "{kind: 'tests.replay.keeping:KeptSink'}"
OVERRIDES = (
    "steps=12", "prompts=8", "minibatch=16", "declog.run.capture=true", f"+declog.sink_options.kept={KEPT}",
    "declog.sinks=[console,jsonl,parquet,trackio,kept]",
    "declog.tables.best.every=4", "declog.tables.worst.every=4", "declog.sink_options.console.every=3",
    "+declog.metrics.late='mean(reward * elapsed)'",
    "+declog.alerts.reward={above: 0.1, for: 2}",
)  # fmt: skip


@pytest.fixture(scope="module", params=["grpo", "rloo"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Demo:
    """A short run of the demo that is captured at every step."""
    folder = tmp_path_factory.mktemp("captured")
    (folder / "pyproject.toml").write_text('[tool.declog]\nimports = ["tests.replay.keeping"]\n')
    return demo(folder, f"algorithm={request.param}", *OVERRIDES)


def test_the_capture_gives_what_the_demo_logged(run: Demo) -> None:
    """Record for record, wall times apart: scalars, tables of texts, alerts."""
    live: list[tuple[int, Records]] = pickle.loads((run.run / "kept.pickle").read_bytes())
    with contextlib.chdir(run.cwd):  # where its project is
        found = capture_reader.replay(run.run)
    assert [step for step, _ in live] == [*range(12), 11]  # the table of groups at the end
    assert sum(len(records.scalars) for _, records in live) > 300
    assert sum(len(records.tables) for _, records in live) == 7 and any(records.alerts for _, records in live)
    assert timeless(found["kept"]) == timeless(live)
    assert list(found) == ["console", "jsonl", "parquet", "trackio", "kept"]
    assert [step for step, records in found["console"] if records.scalars] == [2, 5, 8, 11]


def test_the_capture_is_of_the_raw_tensors(run: Demo) -> None:
    """It holds what was observed, per token, and is as large as that."""
    loaded = capture_reader.load(run.run)
    signals = {
        name: value for call in loaded.calls(0) if call.name == "observe" for name, value in call.what[0].items()
    }
    assert loaded.steps == 12 and loaded.gaps == 0
    assert signals["logprobs"].shape == signals["completion_mask"].shape == (16, 4)
    assert len(signals["completion"]) == 64
