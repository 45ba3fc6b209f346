"""Checkpoints: the best model by a metric of declog's own, resumed runs, and a job that loses a rank."""

from __future__ import annotations

import json
import pickle
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from tests.integrations.trl import cases
from tests.integrations.trl.jobs import job, two_ranks

# What transformers and the clock say of a part of a run.
OF_A_PART = ("time", "per_second", "train_loss", "total_flos")


def records(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What was logged, without what is of the part of the run that logged it."""
    return [
        {key: _kept(value) for key, value in line.items() if key not in ("time", "run_id")}
        for line in lines if not _of_a_part(str(line.get("name")))
    ]  # fmt: skip


def _of_a_part(name: str) -> bool:
    return any(word in name for word in OF_A_PART)


def _kept(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    return {key: each for key, each in value.items() if not _of_a_part(key)}


def compare(whole: list[dict[str, Any]], parts: list[dict[str, Any]]) -> None:
    """Line for line, tables included."""
    assert len(whole) > 20 and {line["step"] for line in whole} >= {4, 8}
    assert records(whole) == records(parts)


def test_a_run_that_is_resumed_inside_a_window(model: Path, tmp_path: Path) -> None:
    """Its files are those of a run without a break: no step twice, none missing, windows whole.

    Resumed in another folder it is a branch, and nothing of the first run's files changes.
    """
    whole = cases.resumable(model, tmp_path / "whole")
    cases.resumable(model, tmp_path / "parts", until=7)
    compare(whole, cases.resumable(model, tmp_path / "parts", resume=True))
    kept = {path: path.read_bytes() for path in (tmp_path / "whole" / "declog").rglob("*") if path.is_file()}
    cases.resumable(model, tmp_path / "branch", resume=str(next((tmp_path / "whole").glob("checkpoint-*"))))
    assert {path: path.read_bytes() for path in (tmp_path / "whole" / "declog").rglob("*") if path.is_file()} == kept
    first, branch = (declog.read(tmp_path / name / "declog") for name in ("whole", "branch"))
    assert branch.info["parent"]["run_id"] == first.id != branch.id
    steps = {row["step"] for row in branch.scalars}
    assert steps and min(steps) > branch.info["parent"]["step"] and max(steps) == 8


def test_a_job_that_is_resumed_inside_a_window(model: Path, tmp_path: Path) -> None:
    """The same on two ranks, also where no rank has closed the first part."""
    two_ranks("resumed", model, tmp_path)
    whole, *resumed = pickle.loads((tmp_path / "rank0.pickle").read_bytes())
    assert len(resumed) == 3
    for parts in resumed:
        compare(whole, parts)


@pytest.mark.parametrize("ended", ["returned", "raised", "in a thread"])
def test_a_run_that_nobody_closed_is_resumed(model: Path, tmp_path: Path, ended: str) -> None:
    """By another trainer of the process: its folder is that one's, however the training ended."""
    cases.resumable(model, tmp_path / "parts", until=7, ended=ended)
    parts = cases.resumable(model, tmp_path / "parts", resume=True)
    compare(cases.resumable(model, tmp_path / "whole"), parts)


def test_a_trainer_that_is_resumed_itself(model: Path, tmp_path: Path) -> None:
    """It trains on from its checkpoint, in the run that it began: totals have no step twice."""
    again = cases.resumable(model, tmp_path / "again", until=7, ended="trained again")
    compare(cases.resumable(model, tmp_path / "whole"), again)


def test_a_trainer_that_still_trains_keeps_its_folder(model: Path, tmp_path: Path) -> None:
    """In a thread, while another one is resumed from its checkpoint: that one says it, and trains beside it."""
    from transformers import TrainerCallback

    saved, resumed = threading.Event(), threading.Event()

    class Waits(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 2:
                saved.set()
                assert resumed.wait(60)

    first = cases.trainer_of(cases.RESUMABLE, model, tmp_path, callbacks=[Waits()])
    with declog.attach(first, "trl_grpo", ["declog.sinks=[jsonl]"]) as log:
        thread = threading.Thread(target=first.train)
        thread.start()
        assert saved.wait(60)
        second = cases.trainer_of(cases.RESUMABLE, model, tmp_path)
        with declog.attach(second, "trl_grpo", ["declog.sinks=[jsonl]"]) as other:
            second.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
        assert not log.closed and any("DL608" in text and "still open" in text for text in other.failures)
        resumed.set()
        thread.join()
    assert log.failures == {} and log.output_dir == tmp_path / "declog" != other.output_dir
    assert [int(step) for step in declog.read(log)["reward"].steps] == [4, 8]


def test_a_checkpoint_without_a_state_of_declog(model: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said, and the run goes on with new windows."""
    cases.resumable(model, tmp_path, until=3)
    for file in tmp_path.rglob("declog-rank*.pt"):
        file.write_bytes(file.read_bytes()[:100])  # as a disk that was full leaves it
    with caplog.at_level("WARNING", "declog"):
        cases.resumable(model, tmp_path, until=4, resume=True)
    assert "there is no state of declog" in caplog.text


def test_the_best_model_by_a_metric_of_declogs_own(model: Path, tmp_path: Path) -> None:
    """Both ranks read the same values, choose the same checkpoint and end with its weights."""
    two_ranks("best", model, tmp_path)
    ranks = [pickle.loads((tmp_path / f"rank{rank}.pickle").read_bytes()) for rank in range(2)]
    found = [[entry["eval_surprise"] for entry in history if "eval_loss" in entry] for history, *_ in ranks]
    assert found[0] == found[1] and len(set(found[0])) > 1
    lowest = 2 * found[0].index(min(found[0])) + 2
    assert [(metric, step) for _, metric, step, _ in ranks] == [(min(found[0]), lowest)] * 2
    from transformers import Qwen2ForCausalLM

    saved = Qwen2ForCausalLM.from_pretrained(tmp_path / f"checkpoint-{lowest}").lm_head.weight
    for *_, weights in ranks:
        torch.testing.assert_close(weights, saved.detach())


def test_a_rank_is_killed(model: Path, tmp_path: Path) -> None:
    """No hang: the job ends as it does without declog, and what was logged is kept."""
    codes = [job("killed", model, tmp_path / word, env={"ATTACHED": word}).codes for word in ("yes", "no")]
    assert codes == [(1, -signal.SIGKILL)] * 2
    files = (tmp_path / "yes" / "declog" / "jsonl").rglob("*.jsonl")
    assert {json.loads(line)["step"] for file in files for line in file.read_text().splitlines()} >= {2}


def test_the_state_is_beside_the_checkpoint(model: Path, tmp_path: Path) -> None:
    """One file per rank, readable without pickled code, and none that is half written."""
    cases.resumable(model, tmp_path, until=3)
    state = torch.load(tmp_path / "checkpoint-2" / "declog-rank0.pt", weights_only=True)
    assert state["rows"] == 16
    assert not list(tmp_path.rglob("*.part"))
