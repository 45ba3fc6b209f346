"""A late question about rows that nobody can match: one answer, and no log line that says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

import declog
from declog.cli import main
from declog.errors import ConfigError
from declog.late import ask

SIGNALS = {
    "rollout": {"reward": {"axis": "completion"}},
    "update": {"entropy": {"axis": "completion"}},
}
SCORES = {"axis": "completion", "family": True}
BY_SOURCE = {"expr": "reward", "by": "source"}
LINE = "{expr: entropy, where: reward == 0}"


def recorded(folder: Path, ids: bool) -> Path:
    """A run whose rewards come as one batch, and whose entropies in two micro-batches."""
    signals = {**SIGNALS, "any": {"row_id": {"axis": "completion", "type": "int"}}} if ids else SIGNALS
    axes = {"axes": {"completion": {"ids": "row_id"}}} if ids else {}
    config = {
        "run": {"name": "rows"},
        **axes,
        "signals": signals,
        "metrics": {"r": "mean(reward)", "e": "mean(entropy)"},
    }
    with declog.start(config, output_dir=folder, sinks=[]) as log:
        for step in range(3):
            with log.step(step):
                named = [{"row_id": [0, 1, 2, 3]}, {"row_id": [0, 1]}, {"row_id": [2, 3]}] if ids else [{}, {}, {}]
                log.observe(reward=[0.0, 1.0, 0.0, 1.0], **named[0])
                log.observe(entropy=[1.0, 2.0], **named[1])
                log.observe(entropy=[3.0, 4.0], **named[2])
    return folder


def test_rows_that_cannot_be_matched(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Class: micro-batches without ids. What the fix says of the next run gives the value then."""
    run = recorded(tmp_path / "run", ids=False)
    with pytest.raises(ConfigError, match="cannot be matched by position") as caught:
        ask(run, {"hard": LINE})
    (problem,) = caught.value.problems
    assert problem.code == "DL612" and str(problem.fix).startswith("in the next run, name the rows: `axes:")
    assert "DL511" not in caplog.text
    assert main(["add", str(run), f"hard: {LINE}"]) == 2
    said = capsys.readouterr()
    assert (said.out + said.err).count("fix:") == 1
    late = ask(recorded(tmp_path / "named", ids=True), {"hard": LINE})
    assert [scalar.value for _, records in late.events for scalar in records.scalars] == [2.0] * 3


@declog.function(name="late_failing")
def late_failing(text: str) -> float:
    """Has no value of any text."""
    raise RuntimeError("no model")


VALUELESS = [
    ("{expr: reward, where: reward > 5}", "none of them counts for `q` under `where: reward > 5`", "another `where`"),
    (
        "{expr: reward, where: source == 'c', by: source}",
        "under `where: source == 'c'`, `by: source`",
        "another `where`",
    ),
    ("{expr: reward, when: k > 5}", "under `when: k > 5`", "another `when`"),
    ("{expr: reward, weight: reward - reward}", "under `weight: reward - reward`", "another `weight`"),
    ("mean(other)", "no value of `q`: other never came", "in the next run, observe what it reads"),
    ("{expr: reward, where: other > 1}", "no value of `q`: other never came", "in the next run, observe what it reads"),
    ("mean(only(scores, 'c'))", "none of them counts for `q`: what it reads is absent", "member or label that came"),
    ("mean(late_failing(source))", "could be computed: the metric `q`: `late_failing` failed", "return None for a row"),
    ("{expr: reward, enabled: false}", "`q` has no value, as it is off: enabled: false", "drop its `enabled`"),
]


@pytest.mark.parametrize(("line", "why", "fix"), VALUELESS)
def test_a_line_without_a_value(line: str, why: str, fix: str, tmp_path: Path) -> None:
    """Class: what gives no value although its rows are kept. Each is told by its cause, and the fix is about that."""
    signals = {"reward": "completion", "other": "completion", "source": "completion text", "scores": SCORES}
    metrics = {"r": "mean(reward)", "o": "mean(other)", "s": BY_SOURCE, "m": {"expr": "scores", "name": "m/{member}"}}
    config = {"signals": {"any": signals}, "metrics": metrics, "constants": {"k": 2}}
    with declog.start(config, output_dir=tmp_path, sinks=[]) as log, log.step(0):
        log.observe(reward=[0.0, 1.0], source=["a", "b"], scores={"a": [1.0, 2.0]})
    with pytest.raises(ConfigError) as caught:
        ask(tmp_path, {"q": line})
    (problem,) = caught.value.problems
    assert problem.code == "DL612" and why in problem.message and fix in str(problem.fix)


def test_a_run_that_kept_no_rows_yet(tmp_path: Path) -> None:
    """It has no log event: what is asked is not what is wrong."""
    config = {"signals": {"any": {"reward": "completion"}}, "metrics": {"r": "mean(reward)"}}
    with declog.start(config, output_dir=tmp_path, sinks=[]):
        pass
    with pytest.raises(ConfigError, match="no value of `q`: the run kept rows of no log event"):
        ask(tmp_path, {"q": "max(reward)"})
