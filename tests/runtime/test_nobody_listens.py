"""What is recorded for nobody is said once: where no run is open, and where a profile has no sink."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import declog
from declog.testing import MemorySink
from tests import forks

CALLS = {
    "observe": "declog.observe(reward=[1.0])", "log_metric": "declog.log_metric('a', 1.0)",
    "log_extra": "declog.log_extra('text', ['a'])", "scalars": "assert declog.scalars({'a': 1}) == {'a': 1}",
    "timer": "declog.timer('work').__enter__()",
}  # fmt: skip
PROFILE = {"run": {"name": "x"}, "signals": {"any": {"r": {"axis": "step"}}}, "metrics": {"r": "mean(r)"}}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_without_a_run_is_told_once_in_a_process(call: str, tmp_path: Path) -> None:
    """Whichever function it is, and whichever come after it; before a run and behind one."""
    lines = ["import declog", CALLS[call], CALLS[call], *CALLS.values()]
    done = forks.run(["-c", "\n".join(lines)], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("no run is open here") == 1
    assert f"declog.{call}: no run is open here, so nothing is recorded" in done.stderr
    within = ["import declog", f"with declog.start({PROFILE!r}, output_dir='run') as log, log.step(0):",
              "    declog.observe(r=1.0)", "    declog.log_metric('a', 1.0)"]  # fmt: skip
    done = forks.run(["-c", "\n".join(within)], cwd=tmp_path)
    assert done.returncode == 0 and "no run is open" not in done.stderr, done.stderr


@pytest.mark.parametrize("case", ["none", "a sink", "in code", "a capture", "answers"])
def test_a_profile_without_a_sink_is_told_once(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At the first log event that nobody gets; not where a sink, a capture or a caller does."""
    others: dict[str, dict[str, Any]] = {
        "a sink": {"sinks": ["jsonl"]}, "a capture": {"run": {"capture": True}}, "answers": {"every": "trainer"},
    }  # fmt: skip
    config = {**PROFILE, **others.get(case, {})}
    sinks = [MemorySink()] if case == "in code" else []
    with (
        caplog.at_level(logging.WARNING, logger="declog"),
        declog.start(config, sinks=sinks, output_dir=tmp_path / "run") as log,
    ):
        for step in range(5):
            with log.step(step):
                log.observe(r=1.0)
            if case == "answers":
                log.flush(10.0)
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == (case == "none")
    assert case != "none" or told[0].startswith("the config has no sink: what it logs is written nowhere; add one")
