"""``declog preview``: what it prints is what each sink would have got."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from declog.cli import main
from declog.runtime.recording.recorder import Recorder
from tests.replay.keeping import captured

PROFILE: dict[str, Any] = {
    "run": {"name": "small"}, "modes": {"train": {}, "eval": {"prefix": "eval_", "every": "end"}},
    "signals": {
        "any": {
            "score": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"},
            "spare": {"axis": "completion"},
        },
    },
    "metrics": {"score": {"expr": "score", "reduce": "mean"}, "most": "max(score)"},
    "schemas": {"s": {"text": "text", "score": "float"}},
    "tables": {"rows": {"schema": "s", "every": 4}},
    "alerts": {"high": {"when": "score > 5.4", "text": "at {score:.1f}"}},
    "profiles": {"slim": {"only": ["score"]}},
    "sinks": ["files", "console"],
    "sink_options": {"files": {"kind": "jsonl"}, "console": {"kind": "console", "profile": "slim", "every": 2}},
}  # fmt: skip

OTHER = """
run: {name: other}
modes: {train: {}, eval: {prefix: "eval_", every: end}}
signals: {any: {score: {axis: completion}, spare: {axis: completion}}}
metrics: {score: "mean(score)", most: "min(score)", spare: "mean(spare)"}
sinks: [files]
sink_options: {files: {kind: jsonl}}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A captured run of eight steps and an evaluation on two ranks; its profile has no sink that is opened."""
    folder = tmp_path_factory.mktemp("run")

    def body(log: Recorder, rank: int) -> None:
        for step in range(8):
            with log.step(step):
                values = torch.tensor([step - 1.0, step + 1.0])
                log.observe(score=values, text=[f"row {rank} of {step}", "a\nlong text that does not fit its place"])
                log.observe(score=values, text=["x", "y"], spare=values * 10)
        with log.mode("eval"):
            log.observe(score=[1.5], text=["z"], spare=[7.0])

    captured({**PROFILE, "sinks": []}, body, folder, world_size=2)
    return folder


@pytest.fixture
def other(tmp_path: Path) -> str:
    """Another profile, in a file."""
    file = tmp_path / "other.yaml"
    file.write_text(OTHER)
    return str(file)


def preview(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    """What the command line prints."""
    assert main(["preview", *words]) == code
    found = capsys.readouterr()
    return found.out if code == 0 else found.err


def test_the_profile_of_the_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Values in columns, some of many steps; the last rows of a table; alerts; the modes apart."""
    lines = preview(capsys, str(run)).splitlines()
    assert lines[0] == f"{run / 'capture'}: 8 steps of 2 ranks"
    assert lines[1:3] == ["small (as captured)", ""]
    assert lines[3].startswith("<code>  the default profile, 9 log events, 18 scalars, ")
    assert lines[4:7] == ["  step   0  1  ...  5  6  7", "  score  0  1       5  6  7", "  most   1  2       6  7  8"]
    assert "  table rows at step 7: 32 rows" in lines and "    ... 28 more" in lines
    assert any(line.startswith("    a\\nlong text that doe...  5") for line in lines)
    assert [line for line in lines if "alert" in line] == ["  alert at step 6: high (warn) at 6.0"]
    assert "  step          7  (eval)" in lines and "  eval_score  1.5" in lines


def test_another_profile(run: Path, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Of a file, with overrides; a signal that it does not know is reported, one that nothing used is there."""
    text = preview(capsys, str(run), other, "metrics.most=p50(score)", "--steps", "3")
    assert "other (" in text and "warning: the run has the signal `text`, which this config does not know" in text
    assert text.splitlines()[-4:] == ["  step    3", "  score   3", "  most    3", "  spare  30"]


def test_overrides_alone_are_of_the_runs_own_config(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Here as everywhere a run's config is the default, also to compare with, and of a capture without its run."""
    words = ["metrics.least=min(score)", "--steps", "3"]
    lines = preview(capsys, str(run / "capture"), *words).splitlines()
    assert lines[1] == "small (as captured metrics.least=min(score))"
    assert [line.split() for line in lines[4:8]] == [["step", "3"], ["score", "3"], ["most", "4"], ["least", "2"]]
    lines = preview(capsys, str(run), "--diff", "metrics.least=min(score)").splitlines()
    differing = [line.split()[:2] for line in lines if line[:3] in ("  +", "  -", "  ~")]
    assert differing == [["+", "least"], ["+", "eval_least"]]
    assert "'declog.metrics.least=" in preview(capsys, str(run), "metrics.least=min(scor)", code=2)


def test_every_value_for_programs(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """JSON with what each sink would have got, of its own profile and turns, and how many bytes that is."""
    file = tmp_path / "own.yaml"
    file.write_text(json.dumps(PROFILE))
    data = json.loads(preview(capsys, str(run), str(file), "--format", "json"))
    assert data["capture"]["steps"] == 8 and data["capture"]["missing_ranks"] == [] and data["failures"] == {}
    files, console = data["sinks"]["files"], data["sinks"]["console"]
    assert [(one["step"], one["mode"]) for one in files] == [*((step, "train") for step in range(8)), (7, "eval")]
    assert [one["scalars"] for one in files[:2]] == [{"score": 0.0, "most": 1.0}, {"score": 1.0, "most": 2.0}]
    shown = {one["step"]: one["scalars"].get("score") for one in console[:-1]}
    assert shown == {1: 1.0, 3: 3.0, 5: 5.0, 6: None, 7: 7.0}  # an alert waits for no turn
    assert [console[-1][key] for key in ("step", "mode")] == [7, "eval"]  # the run ended before its turn
    assert len(files[3]["tables"]["rows"]["text"]) == 32
    assert files[6]["alerts"] == [{"name": "high", "level": "warn", "text": "at 6.0"}]
    line = {key: value for key, value in files[0].items() if key != "bytes"}
    assert files[0]["bytes"] == len(json.dumps(line, ensure_ascii=False))


def test_two_profiles_side_by_side(run: Path, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names that vanish, appear and differ, tables and alerts too."""
    lines = preview(capsys, str(run), "--diff", f"{other} sinks=[]").splitlines()
    found = lines[lines.index("<code>") + 1 :]
    assert "  ~ most             step 0: 1 -> -1; 7 more" in found
    assert any(line.startswith("  + spare") and line.endswith("step 0: 0; 7 more") for line in found)
    assert any(line.startswith("  - alert high") and line.endswith("step 6: at 6.0") for line in found)
    assert found[-1].startswith("  = 3 equal; ")


def test_a_profile_beside_itself(run: Path, capsys: pytest.CaptureFixture[str], other: str) -> None:
    """Nothing differs."""
    lines = preview(capsys, str(run), other, "--diff", other, "--sink", "files").splitlines()
    assert [line.split(";")[0] for line in lines[-2:]] == ["files", "  = 6 equal"]


def test_steps_and_sinks_can_be_chosen(run: Path, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As in Python's slices; what is no range, or no sink, is reported."""
    for steps, expected in (("3", [3]), ("2:4", [2, 3]), (":1,6:", [0, 6, 7, 7]), ("", [*range(8), 7])):
        data = json.loads(preview(capsys, str(run), other, f"--steps={steps}", "--format=json", "--sink=files"))
        assert list(data["sinks"]) == ["files"] and [one["step"] for one in data["sinks"]["files"]] == expected
    assert "`a` is no range of steps" in preview(capsys, str(run), "--steps", "a", code=2)
    assert "did you mean `files`?" in preview(capsys, str(run), other, "--sink", "file", code=2)


def test_a_signal_that_the_capture_lacks(run: Path, other: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The run would have ended at its first step, and why: with the place where it is declared."""
    Path(other).write_text(OTHER.replace("spare: {axis: completion}", "length: {axis: completion, required: true}")
                           .replace("spare", "length"))  # fmt: skip
    error = preview(capsys, str(run), other, code=2)
    assert error.startswith(f"error[DL502] {other}:4:") and "`length` was not observed in the first batch" in error


def test_what_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No capture, no such profile: told in a line, without a traceback."""
    assert "error[DL607] there is no capture in" in preview(capsys, str(tmp_path), code=2)
    assert "capture" in preview(capsys, code=2).lower()
