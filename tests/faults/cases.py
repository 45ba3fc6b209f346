"""Every fault that the runtime is held to, at a glance: who is struck, by what, and what is logged nevertheless.

All jobs make eight steps and are struck in step 4, which is the fifth; they all-reduce in each step, unless
``together=False``. Whatever happens, the exit codes and the weights are those of the same job without declog,
nothing hangs, and rank 0's files have the steps 0 .. ``steps`` - 1, each once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.faults import strikes
from tests.faults.strikes import AT, STEPS, Run

ALL = frozenset(range(STEPS))
FROM_THEN = frozenset(range(AT, STEPS))
THEN = frozenset({AT})
NEVER: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Fault:
    """One fault, where it strikes, and what must come of it."""

    strike: Callable[[Run], None] = strikes.none  # in the step, before its gradients are reduced
    after: Callable[[Run], None] = strikes.none  # in the step, when the others are done with it
    on: tuple[int, ...] = (1,)  # the ranks that it strikes
    ranks: int = 2
    together: bool = True  # whether training all-reduces: then nobody goes on when one is gone
    at_the_end: Callable[[Run], None] | None = None  # after the steps, before the log is closed
    unclosed: bool = False  # no `with log`: the interpreter's end closes it
    starts: tuple[int, ...] = (0, 1, 2, 3)  # the ranks that start declog
    garble: Callable[[bytes], bytes] | None = None  # what rank 1 sends in place of its message of one event
    profile: Mapping[str, Any] = field(default_factory=dict)
    start: Mapping[str, Any] = field(default_factory=dict)  # options of `declog.start`
    close_s: float = 30.0  # how long a sink may take at the end, and a step waits for a worker that stands still
    steps: int = STEPS  # that are in rank 0's files
    more: list[int] = field(default_factory=list)  # steps that only the others made: they may be there too
    partial: frozenset[int] = NEVER  # steps that rank 0 must have logged without a rank
    maybe: frozenset[int] = NEVER  # steps that it may have logged without a rank
    shows: str = ""  # what rank 0's output has to say
    shows_elsewhere: str = ""  # what rank 1's output has to say


def sink(kind: str, **options: Any) -> dict[str, Any]:
    """A profile with one more sink."""
    return {"sinks": ["bad"], "sink_options": {"bad": {"kind": f"tests.faults.sinks:{kind}", **options}}}


EVALUATES = {"modes": {"train": {}, "eval": {"prefix": "eval/", "every": "end"}}}
BLOCKING = {"run": {"blocking": True}}  # where a rank dies without a word, so that what it observed before was sent
SHORT = {"wait_s": 0.5}  # rank 0 gives up on a rank that takes three times as long
GONE = {"wait_s": 3.0}  # rank 0 learns only by waiting that a rank was killed

FAULTS: Mapping[str, Fault] = {
    # nothing: what all others are compared to
    "none": Fault(),
    "none, 4 ranks": Fault(ranks=4),
    # a rank ends
    "a rank raises": Fault(strikes.error, steps=AT + 1, maybe=THEN),
    "a rank is killed": Fault(strikes.kill, start=GONE, steps=AT + 1, profile=BLOCKING, partial=THEN),
    "a rank is killed in the background": Fault(strikes.kill, start=GONE, steps=AT + 1, maybe=ALL),
    "a rank of 4 is killed": Fault(
        strikes.kill, on=(2,), ranks=4, start=GONE, steps=AT + 1, profile=BLOCKING, partial=THEN
    ),
    "a rank calls sys.exit": Fault(strikes.leave, steps=AT + 1, maybe=THEN),
    "a rank gets Ctrl-C": Fault(strikes.interrupt, steps=AT + 1, maybe=THEN),
    "a rank gets SIGTERM": Fault(strikes.terminate, start=GONE, steps=AT + 1, profile=BLOCKING, partial=THEN),
    "a rank gets SIGTERM, and handles it": Fault(
        strikes.terminate, steps=AT + 1, start={"on_sigterm": "close"}, maybe=THEN
    ),
    "a rank raises, the others go on": Fault(
        strikes.error, ranks=3, together=False, partial=FROM_THEN - THEN, maybe=THEN, shows="rank 1 sent no window"
    ),
    "a rank is killed, the others go on": Fault(
        strikes.kill, ranks=3, together=False, profile=BLOCKING, start=SHORT, partial=FROM_THEN,
        shows="rank 1 sent no window",
    ),
    # rank 0 ends
    "rank 0 raises": Fault(strikes.error, on=(0,), steps=AT + 1, maybe=THEN),
    "rank 0 is killed": Fault(strikes.kill_when_written, on=(0,), steps=AT, maybe=ALL),
    "rank 0 calls sys.exit": Fault(strikes.leave, on=(0,), steps=AT + 1, maybe=THEN),
    "rank 0 gets Ctrl-C": Fault(strikes.interrupt, on=(0,), steps=AT + 1, maybe=THEN),
    "rank 0 gets SIGTERM": Fault(strikes.terminate, on=(0,), steps=AT, profile=BLOCKING),
    "rank 0 gets SIGTERM, and handles it": Fault(
        strikes.terminate, on=(0,), steps=AT + 1, start={"on_sigterm": "close"}, maybe=THEN
    ),
    "rank 0 raises, the others go on": Fault(
        strikes.error, on=(0,), together=False, steps=AT + 1, more=[AT + 1], maybe=THEN,
        shows_elsewhere="rank 1 trained 8 steps",
    ),
    "rank 0 is killed, the others go on": Fault(
        strikes.kill_when_written, on=(0,), together=False, steps=AT, maybe=ALL,
        shows_elsewhere="rank 0 has gone: this rank's rows are not logged any more",
    ),
    "all ranks raise": Fault(strikes.error, on=(0, 1), steps=AT + 1),
    "all ranks get Ctrl-C": Fault(strikes.interrupt, on=(0, 1), steps=AT + 1),
    # a rank is slow
    "a rank is slow": Fault(after=strikes.sleep, start=SHORT, partial=THEN, maybe=FROM_THEN - {STEPS - 1}),
    "a rank stops and comes back": Fault(after=strikes.stop, start=SHORT, partial=THEN, maybe=FROM_THEN - {STEPS - 1}),
    "rank 0 is slow": Fault(after=strikes.sleep, on=(0,), start=SHORT),
    "rank 0 stops and comes back": Fault(after=strikes.stop, on=(0,), start=SHORT),
    "rank 0 stops and comes back, others go on": Fault(after=strikes.stop, on=(0,), together=False),
    # a sink fails
    "a sink raises": Fault(profile=sink("Raising"), shows="ConnectionRefusedError: the backend is away"),
    "a sink raises, and says `on_error: raise`": Fault(
        profile=sink("Raising", on_error="raise"),
        shows="sink `bad` failed: ConnectionRefusedError: the backend is away",
    ),
    "a sink takes 3 s": Fault(profile=sink("Slow")),
    "a sink takes 3 s, its queue is full": Fault(profile=sink("Slow", queue_bytes=1)),
    "a sink blocks for ever": Fault(profile=sink("Blocked"), close_s=5.0, shows="was left behind"),
    "a sink blocks for ever, its queue is full": Fault(
        profile=sink("Blocked", queue_bytes=1), start=SHORT, close_s=5.0, shows="was left behind"
    ),
    "the disk is full": Fault(strikes.fill_disk, on=(0,), steps=AT, shows="File too large"),
    "the disk is full for a while": Fault(
        strikes.fill_disk, on=(0,), at_the_end=strikes.free_disk, shows="File too large"
    ),
    # the end
    "exit without close": Fault(unclosed=True),
    "a rank raises, nobody closes": Fault(strikes.error, unclosed=True, steps=AT + 1, maybe=THEN),
    "the process group is destroyed first": Fault(at_the_end=strikes.no_group),
    "it is destroyed first, nobody closes": Fault(at_the_end=strikes.no_group, unclosed=True),
    # declog's own work fails
    "a user's reduction raises": Fault(
        profile={"metrics": {"bad": "broken(reward)"}}, shows="ZeroDivisionError: mine"
    ),
    "a user's function raises on one rank": Fault(
        profile={"metrics": {"bad": "mean(crash(kl))"}}, shows_elsewhere="IndexError: mine"
    ),
    "half a message comes": Fault(garble=strikes.cut, partial=THEN, shows="a message was cut or changed on its way"),
    "a message of another version comes": Fault(
        garble=strikes.other_version, partial=THEN, shows="a message has version 99"
    ),
    "a message comes that is none": Fault(garble=strikes.no_message, partial=THEN, shows="DL603"),
    "a message comes without its chunks": Fault(garble=strikes.lacking, partial=THEN, shows="DL603"),
    "an empty message comes": Fault(garble=strikes.empty, partial=THEN, shows="DL603"),
    "a message of another mode comes": Fault(
        garble=strikes.other_mode, profile=EVALUATES, partial=THEN, shows="rank 1 sent another log event than this one"
    ),
    "a message of another step comes": Fault(
        garble=strikes.other_step, partial=THEN, shows="rank 1 sent another log event than this one"
    ),
    "strangers connect to rank 0's port": Fault(strikes.strangers, on=(0,)),
    "a rank alone evaluates": Fault(
        strikes.evaluate, profile=EVALUATES, shows="that rank 0 does not: they are not logged"
    ),
    "DataLoader workers are forked": Fault(strikes.load_data, on=(0, 1)),
}  # fmt: skip
