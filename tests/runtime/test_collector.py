"""Ranks that are at another log event, or whose message is wrong: reported, left out, never mixed in."""

from __future__ import annotations

import json
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

import declog
from declog.engine.blocks import Block, batches_of, texts_of
from declog.engine.frame import Frame
from declog.language.dtypes import Axis
from declog.runtime.ranks.comm import Comm, Event
from declog.runtime.ranks.message import VERSION, encode
from declog.runtime.ranks.store_comm import StoreComm
from declog.runtime.recording.recorder import Recorder
from declog.testing import FakeComm, MemorySink, run_ranks

PROFILE: dict[str, Any] = {
    "run": {"name": "apart"}, "every": 1, "signals": {
        "any": {
            "x": {"axis": "completion"}, "loss": {"axis": "step"},
            "text": {"axis": "completion", "type": "text"},
        },
    },
    "metrics": {"x": {"reduce": ["sum", "count"]}, "loss": "mean(loss)"},
    "schemas": {"s": {"text": {"type": "text"}}}, "filters": {"f": {"first": 9}},
    "tables": {"t": {"schema": "s", "filter": "f"}},
    "modes": {"train": {}, "eval": {"prefix": "eval/", "every": "end"}},
}  # fmt: skip
Work = Callable[[Recorder, int], None]
Logged = list[tuple[int, str, dict[str, float]]]


def threads(job: list[Any], body: Callable[[Comm], Any]) -> list[Any]:
    """One thread for each rank of a job over a real store."""
    found: dict[int, Any] = {}
    running = [threading.Thread(target=lambda comm=comm: found.update({comm.rank: body(comm)})) for comm in job]
    for one in running:
        one.start()
    for one in running:
        one.join(60.0)
    return [found[rank] for rank in sorted(found)]


def over_tcp(ranks: int, body: Callable[[Comm], Any]) -> list[Any]:
    """As ``run_ranks``, over the port that rank 0 opens."""
    store = dist.HashStore()  # type: ignore[attr-defined]  # torch does not declare it
    first = StoreComm.connect(0, ranks, store, 10.0, "apart")
    return threads([first, *(StoreComm.connect(rank, ranks, store, 10.0, "apart") for rank in range(1, ranks))], body)


@pytest.fixture(params=[run_ranks, over_tcp], ids=["threads", "tcp"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., tuple[Logged, list[list[str]]]]:
    """Run some work on ranks: what rank 0 logs, and what each rank says that failed."""

    def job(ranks: int, work: Work, **profile: Any) -> tuple[Logged, list[list[str]]]:
        sink = MemorySink()

        def rank(comm: Comm) -> list[str]:
            sinks = [sink] if comm.rank == 0 else []
            with declog.start(PROFILE | profile, sinks=sinks, output_dir=tmp_path, comm=comm, wait_s=1.0) as log:
                work(log, comm.rank)
            return list(log.failures)

        failed = request.param(ranks, rank)
        return [(step, one.mode, {item.name: item.value for item in one.scalars}) for step, one in sink.events], failed

    return job


def steps(log: Recorder, numbers: Any, x: float = 1.0) -> None:
    """Steps of two rows."""
    for number in numbers:
        with log.step(number):
            log.observe(x=[x, x])


def trained(step: int, ranks: int, of: int = 2) -> tuple[int, str, dict[str, float]]:
    """What is logged of a training step of so many ranks."""
    return (
        step,
        "train",
        {"x/sum": 2.0 * ranks, "x/count": 2 * ranks} | ({} if ranks == of else {"declog/ranks": ranks}),
    )


def test_an_evaluation_on_rank_0_before_any_step_has_ended(run: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Class: rank 0 evaluates alone, first in the step that is open, when no other rank has sent anything yet.

    The rank that does not enter the mode is named once, and no failure is reported.
    """

    def work(log: Recorder, rank: int) -> None:
        for step in range(2):
            with log.step(step):
                log.observe(x=[1.0, 1.0])
                if rank == 0:
                    with log.mode("eval"):
                        log.observe(x=[100.0])

    logged, failed = run(2, work)
    assert [one for one in logged if one[1] == "train"] == [trained(step, 2) for step in range(2)]
    assert failed[0] == []
    assert sum("`eval` is of 1 of 2 ranks: rank 1 has not entered it" in text for text in caplog.messages) == 1


@pytest.mark.parametrize("alone", [0, 1])
def test_a_mode_that_only_some_ranks_enter_is_never_mixed_with_another(
    alone: int, run: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Training values stay those of all ranks; the mode's are of rank 0 and marked, or not logged and told."""

    def work(log: Recorder, rank: int) -> None:
        steps(log, range(2))
        if rank == alone:
            with log.mode("eval"):
                log.observe(x=[100.0])
        steps(log, range(2, 5))

    logged, failed = run(2, work)
    assert [one for one in logged if one[1] == "train"] == [trained(step, 2) for step in range(5)]
    others = [one for one in logged if one[1] == "eval"]
    if alone == 0:
        assert others == [(1, "eval", {"eval/x/sum": 100.0, "eval/x/count": 1, "declog/ranks": 1})]
        assert failed[0] == []
        assert [text for text in caplog.messages if "`eval`" in text] == [
            "`eval` is of 1 of 2 ranks: rank 1 has not entered it (`declog/ranks` beside its values says so); "
            "if it should, enter `with log.mode('eval'):` on every rank"
        ]
    else:
        assert others == []
        assert failed[0] == [
            "[DL603] rank 1 makes log events of the mode `eval` that rank 0 does not: they are not logged\n"
            f"  fix: {ALIKE}"
        ]


def test_a_rank_that_is_slow_to_enter_a_mode_is_no_rank_that_never_does(run: Any) -> None:
    """Its first evaluation comes after the others gave it up: a failure, as soon as anything of it is there."""
    entered, seen = threading.Event(), threading.Event()

    def work(log: Recorder, rank: int) -> None:
        steps(log, range(2))
        with log.mode("eval"):
            log.observe(x=[100.0])
            if rank == 1:
                entered.wait(20)
                time.sleep(0.2)
        if rank == 0:
            time.sleep(1.5)  # longer than wait_s
            entered.set()
            seen.wait(20)
        steps(log, range(2, 4))
        seen.set()

    logged, failed = run(2, work)
    assert [values for _, mode, values in logged if mode == "eval"] == [
        {"eval/x/sum": 100.0, "eval/x/count": 1, "declog/ranks": 1}
    ]
    assert [text.splitlines()[0] for text in failed[0]] == [
        "[DL603] rank 1 sent no window: it left, or was not in time"
    ]


ALIKE = "make the same steps, flushes and blocks of modes on every rank"


def test_a_rank_of_another_step_is_left_out_and_reported_once_in_detail(run: Any) -> None:
    """A step that one rank leaves out, or counts otherwise: its rows would be another step's."""
    logged, failed = run(2, lambda log, rank: steps(log, range(4) if rank == 0 else (0, 2, 3)))
    assert logged == [trained(0, 2), *(trained(step, 1) for step in (1, 2, 3))]
    assert failed == [
        [
            "[DL603] rank 1 sent another log event than this one (step 2, its 2. of mode train, where this is step 1, "
            f"the 2. of mode train): its rows are left out\n  fix: {ALIKE}",
            f"[DL603] rank 1 sent another log event than this one: its rows are left out\n  fix: {ALIKE}",
            *failed[0][2:],
        ],
        [],
    ]


def test_a_rank_that_flushes_more_often_is_left_out(run: Any) -> None:
    """Its second log event is of the first step."""

    def work(log: Recorder, rank: int) -> None:
        for number in range(3):
            steps(log, [number])
            if rank or number == 1:
                log.flush()

    logged, failed = run(2, work, every="trainer")
    assert logged[0] == (1, "train", {"x/sum": 4.0, "x/count": 4, "declog/ranks": 1})
    assert sum(values["x/count"] for _, _, values in logged) == 6  # rank 0's rows, and none of rank 1's
    assert any("rank 1 sent another log event than this one (step 0, its 1. of" in text for text in failed[0])


@pytest.mark.parametrize("longer", [0, 1])
@pytest.mark.parametrize("every", [1, 3])
def test_ranks_that_make_different_numbers_of_steps(longer: int, every: int, run: Any) -> None:
    """All rows of all ranks are logged, in the window of their steps, and marked where a rank has ended."""
    logged, failed = run(2, lambda log, rank: steps(log, range(7 if rank == longer else 5)), every=every)
    if longer == 0:
        assert sum(values["x/count"] for _, _, values in logged) == 2 * 7 + 2 * 5
    of_both = 5 // every * every  # steps in windows that both have whole
    for step, _, values in logged:
        assert ("declog/ranks" in values) == (step >= of_both), (step, values)
    assert all(text.startswith("[DL603]") for texts in failed for text in texts)


# ---- what no rank sends


class Crafty(FakeComm):
    """A rank whose message of one log event is another."""

    crafted: bytes | None = None

    def send(self, event: Event, data: bytes) -> None:
        super().send(event, self.crafted if event.number == 1 and self.crafted is not None else data)


def crafted(data: bytes, folder: Path) -> tuple[Logged, list[str]]:
    """What three ranks log of three steps, where rank 1's message of the second one is `data`."""
    job = Crafty.job(3)
    job[1].crafted = data
    sink = MemorySink()

    def rank(comm: Comm) -> list[str]:
        sinks = [sink] if comm.rank == 0 else []
        with declog.start(PROFILE, sinks=sinks, output_dir=folder, comm=comm, wait_s=20.0) as log:
            for step in range(3):
                with log.step(step):
                    log.observe(x=[1.0, 1.0], loss=2.0, text=[f"{comm.rank}.{step}", None])
        return list(log.failures)

    failed = threads(job, rank)
    return [(step, one.mode, {item.name: item.value for item in one.scalars}) for step, one in sink.events], failed[0]


def meta(**others: Any) -> dict[str, Any]:
    """What rank 1 says of its second log event."""
    return {
        "event": 1, "mode": "train", "step": 1, "steps": 2, "tail": False, "part": False, "last": False,
        "sent": {"train": 1}, "error": None, "intact": True, "figures": {}, "arrivals": {},
    } | others  # fmt: skip


def rows(**others: Any) -> Frame:
    """Its rows."""
    parts: dict[str, Any] = {
        "batches": batches_of([(1, 0, 1, 2, 0.0, 0)]),
        "blocks": [Block(Axis.COMPLETION, (("x", None),), np.array([[1.0, 1.0]]))],
        "texts": {("text", None): (Axis.COMPLETION, texts_of(["a", None]))},
    } | others
    return Frame("default", **parts)


def sealed(header: bytes, body: bytes = b"") -> bytes:
    """A message with a valid head around any header."""
    rest = header + b"\0" * (-len(header) % 8) + body
    return struct.pack("<6sHII", b"DECLOG", VERSION, len(header), zlib.crc32(rest)) + rest


def changed(path: tuple[Any, ...], value: Any) -> bytes:
    """A whole message with something else at one place of its header."""
    data = encode({"default": rows()}, meta())
    length = struct.unpack_from("<I", data, 8)[0]
    header = json.loads(data[16 : 16 + length])
    inner = header
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    start = 16 + length + -(16 + length) % 8
    return sealed(json.dumps(header).encode(), data[start:])


def block(axis: Axis, name: str, values: Any) -> list[Block]:
    """One column."""
    return [Block(axis, ((name, None),), np.asarray(values)[None])]


CRAFTED: Mapping[str, bytes] = {
    "nothing": b"",
    "another mode": encode({"default": rows()}, meta(mode="eval")),
    "another step": encode({"default": rows()}, meta(step=0)),
    "another number of steps": encode({"default": rows()}, meta(steps=9)),
    "another event": encode({"default": rows()}, meta(event=2)),
    "no meta": encode({}, {}),
    "deep": sealed(b'{"phases":{},"meta":' + b"[" * 100_000 + b"]" * 100_000 + b',"sizes":[]}'),
    "texts behind the end": changed(("phases", "default", "texts", 0, 3, "places"), [7]),
    "a shape beyond all": changed(("phases", "default", "blocks", 0, "data", "shape"), [2**40, 2**40]),
    "another container": b"PAR1" * 100,
}  # fmt: skip


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_message_loses_its_own_part_only(name: str, tmp_path: Path) -> None:
    """The log event has the other ranks' rows, and says that it is partial; those before and after are whole."""
    logged, failed = crafted(CRAFTED[name], tmp_path)
    assert [(step, values["x/sum"], values["loss"], values.get("declog/ranks")) for step, _, values in logged] == [
        (0, 6.0, 2.0, None), (1, 4.0, 2.0, 2), (2, 6.0, 2.0, None),
    ]  # fmt: skip
    assert len(failed) == 1 and failed[0].startswith("[DL603]") and len(failed[0]) < 700


def test_what_is_crafted_is_near_what_is_right(tmp_path: Path) -> None:
    """The messages above are refused for what was changed in them."""
    logged, failed = crafted(changed(("meta", "step"), 1), tmp_path)
    assert [values["x/sum"] for _, _, values in logged] == [6.0, 6.0, 6.0] and failed == []
