"""`make soak`: what takes too long for `make test`. Says what failed, and ends with 1 where anything did.

    python -m tests.soak --only alone                   10,000 steps of the demo's shapes: nothing grows
    python -m tests.soak --only together                the same on two ranks
    python -m tests.soak --only faults --rounds 5       every fault again and again
    python -m tests.soak --only kills --rounds 20       a run that is killed at any moment and resumed, again and again
    python -m tests.soak --only oracle --cases 5200     random profiles, against plain loops
    python -m tests.soak --only scopes --programs 3000  random programs of tasks and threads, in several schedules each
    python -m tests.soak --only meaning                 each preset, example and block of the docs in every way
    python -m tests.soak --only interrupts              500 signals at random moments, and one at every third line
    python -m tests.soak --only ppo                     the whole PPO example: each value of each step, twice
    python -m tests.soak --only mutations               mistakes in the metrics of all presets: their tests find them
    python -m tests.soak --only mistakes                all mistakes of new users: each is caught, nearly all answered
    python -m tests.soak --only late                    all metrics of all presets, late beside early: equal, refused
    python -m tests.soak --only trl                     all of TRL, live: without declog, with it, and in its sinks

Each part alone takes less than ten minutes.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import pickle
import random
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np

import declog
from declog.engine import layout
from tests import forks
from tests.config import test_one_meaning
from tests.config.mistakes import score
from tests.config.test_mistakes import UNANSWERED
from tests.faults import jobs, test_faults, test_resume
from tests.faults.cases import FAULTS
from tests.faults.resuming import SAVES, STEPS
from tests.integrations import ppo_runs
from tests.late.test_late import compared
from tests.oracle import ppo
from tests.oracle.compare import differences, report
from tests.oracle.generator import generated
from tests.replay.mutations import ELSEWHERE, KNOWN, survivors
from tests.runtime.scopes.programs import differences as lost_rows

LIMIT_S = 1200.0  # of one run, on a machine that has other things to do
# in the second half of a run, from its first note to its last
MAY_GROW: Mapping[str, float] = {
    "memory": 4 * 2**20,  # bytes: what the allocator takes for its own reasons; 800 bytes a step would be too much
    "objects": 500,  # a list of part files that grows until they are merged
    "threads": 0,
    "handles": 0,
    "keys": 0,
}


KEPT = (0, 1, layout.LAYOUTS)  # layouts of columns whose programs are kept

PARTS = (
    "alone",
    "together",
    "faults",
    "kills",
    "oracle",
    "scopes",
    "meaning",
    "interrupts",
    "ppo",
    "mutations",
    "mistakes",
    "late",
    "trl",
)


def main() -> int:
    """The parts that are chosen."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=PARTS)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cases", type=int, default=5_200)
    parser.add_argument("--programs", type=int, default=3_000)
    chosen = parser.parse_args()
    parts: Mapping[str, Callable[[Path], Iterator[str]]] = {
        "alone": lambda folder: growth(folder, 1, chosen.steps),
        "together": lambda folder: growth(folder, 2, chosen.steps),
        "faults": lambda folder: faults(folder, chosen.rounds),
        "kills": lambda folder: kills(folder, chosen.rounds),
        "oracle": lambda folder: oracle(chosen.cases),
        "scopes": lambda folder: interleavings(chosen.programs),
        "meaning": handed_over,
        "interrupts": interrupted,
        "ppo": learned,
        "mutations": lambda folder: mutations(),
        "mistakes": lambda folder: mistaken(),
        "late": asked_late,
        "trl": live,
    }
    failed = []
    for name, part in parts.items():
        if chosen.only in (None, name):
            start = time.monotonic()
            with tempfile.TemporaryDirectory() as folder:
                failed += [f"{name}: {problem}" for problem in part(Path(folder))]
            print(f"{name}: {time.monotonic() - start:.0f} s", flush=True)
    forks.close()
    for problem in failed:
        print(f"FAILED {problem}")
    return int(bool(failed))


def interleavings(count: int) -> Iterator[str]:
    """New programs, each in the order in which its parts are ready and in three that are drawn."""
    logging.disable(logging.ERROR)  # what the programs lose on purpose
    for seed in range(1_000, 1_000 + count):
        for schedule in (None, seed, seed + 10**6, seed + 2 * 10**6):
            yield from lost_rows(seed, schedule)
    logging.disable(logging.NOTSET)


def handed_over(folder: Path) -> Iterator[str]:
    """Any profile is one plan, by name, file, package, in applications, processes and actors."""
    try:
        test_one_meaning.check(folder, [*test_one_meaning.profiles(folder, blocks=True)])
    except AssertionError as error:
        yield str(error)


def interrupted(folder: Path) -> Iterator[str]:
    """Runs that are interrupted, each in a process of its own: finished steps are there, and calls are whole."""
    ways: list[tuple[str, ...]] = [("times", str(seed), "50") for seed in range(100, 110)]
    ways += [("lines", "SIGINT", "3", "1"), ("lines", "SIGTERM", "3", "2"), ("worker", "29", "5")]

    def once(place: int) -> tuple[int, list[str]]:
        where = folder / str(place)
        where.mkdir()
        command: list[str | Path] = ["-m", "tests.runtime.interrupting", where, *ways[place]]
        done = forks.run(command, cwd=where, whole=True, timeout=LIMIT_S)
        if done.returncode:
            return 0, [done.stderr[-4000:]]
        found = json.loads(done.stdout.splitlines()[-1])
        return found["struck"], found["wrong"]

    with ThreadPoolExecutor(4) as pool:
        found = [*pool.map(once, range(len(ways)))]
    print(f"{sum(struck for struck, _ in found)} runs interrupted", flush=True)
    for _, wrong in found:
        yield from wrong


def learned(folder: Path) -> Iterator[str]:
    """The example as it is, under TRL's names and under clean ones: all that it logs is numpy's, and it learns."""
    for preset in ("trl_ppo", "ppo"):
        (folder / preset).mkdir()
        run = ppo_runs.run(folder / preset, 150, f"declog={preset}")
        reward = "objective/scores" if preset == "trl_ppo" else "reward"
        scores = [values[reward] for values in run.logged]
        if sum(scores[-10:]) < 2.5 * sum(scores[:10]):
            yield f"{preset}: the score went from {scores[:10]} to {scores[-10:]}"
        values = 0
        for step, found in enumerate(run.logged):
            pooled = ppo.pooled(*run.rollout(step), run.settings) if preset == "ppo" else None
            expected = pooled or ppo_runs.expected(run, step)
            values += len(expected)
            yield from (f"{preset}, step {step}: {text}" for text in ppo_runs.differences(expected, found))
        print(f"{preset}: {values} values; the score {scores[0]:.2f} .. {scores[-1]:.2f}", flush=True)


def live(folder: Path) -> Iterator[str]:
    """Each run, on one rank and on two: weights bitwise, and history, as without declog; sinks have all of it."""
    from tests.integrations.trl import jobs as trl_jobs
    from tests.integrations.trl import live, tiny
    from tests.integrations.trl.cases import CASES

    model = tiny.build(folder / "model")
    names = [*(name for name, case in CASES.items() if 1 in case.ranks), *live.LIVE]
    found = [live.problems(name, model, folder / name) for name in names]
    trl_jobs.two_ranks("live", model, folder / "two", limit_s=LIMIT_S)
    for rank in range(2):
        found += pickle.loads((folder / "two" / f"rank{rank}.pickle").read_bytes())
    print(f"{len(found)} runs, {sum(values for values, _ in found)} values", flush=True)
    yield from struck(model, folder / "struck")
    for _, problems in found:
        yield from problems


def asked_late(folder: Path) -> Iterator[str]:
    """Every metric that a profile test of a preset logs, asked of the rows that the test kept."""
    found = compared(folder)
    print(found)
    yield from found.different


def mistaken() -> Iterator[str]:
    """Mistakes that are not caught, and lists with more unanswered ones than are known."""
    for kind, known in UNANSWERED.items():
        answered, _, count, wrong = score(kind)
        yield from (f"{mistake} is not caught" for mistake, answer in wrong if not answer.caught)
        if count - answered > known:
            yield f"{kind}: {[str(mistake) for mistake, _ in wrong]} are not answered; {known} would be allowed"


def struck(model: Path, folder: Path) -> Iterator[str]:
    """A fault of each kind in declog, at once and late, and on one of two ranks: training is as without declog."""
    from tests.integrations.trl import faults
    from tests.integrations.trl import jobs as trl_jobs

    alone = faults.outcome(model, folder / "alone", None)
    for name in faults.FAULTS:
        for late in (False, True):
            found = faults.outcome(model, folder / f"{name}-{late}", name, late=late)
            different = faults.differences(alone, found)
            if found.struck == 0 or different:
                yield f"{name}, late {late}: struck {found.struck} times, {different}"
    (folder / "two").mkdir()
    trl_jobs.two_ranks("all_faulty", model, folder / "two", limit_s=LIMIT_S)
    for name in faults.FAULTS:
        for rank in range(2):
            own, found = pickle.loads((folder / "two" / f"{name}-{rank}.pickle").read_bytes())
            if different := faults.differences(own, found):
                yield f"{name} on rank 1, seen on rank {rank}: {different}"


def growth(folder: Path, ranks: int, steps: int) -> Iterator[str]:
    """A long run; each count of its second half, and its slope."""
    ended = jobs.run(folder, ranks, ["-m", "tests.faults.soaking", folder, str(steps)], limit_s=LIMIT_S)
    if ended.codes != (0,) * ranks:
        yield f"{ranks} ranks ended with {ended.codes}: {ended.outputs}"
        return
    for rank in range(ranks):
        noted = [json.loads(line) for line in (folder / f"noted_{rank}.jsonl").read_text().splitlines()]
        yield from grown(f"rank {rank} of {ranks}", [note for note in noted if note["step"] >= steps / 2])


def grown(who: str, notes: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """What has grown more than it may."""
    at = [note["step"] for note in notes]
    for name, most in MAY_GROW.items():
        values = [note[name] for note in notes]
        slope = float(np.polyfit(at, values, 1)[0])
        gained = slope * (at[-1] - at[0])
        print(f"{who}: {name} {values[0]:.0f} .. {values[-1]:.0f}, {slope:+.4f} a step", flush=True)
        if round(gained) > most:
            yield f"{who}: {name} grew by {gained:.0f} in steps {at[0]} to {at[-1]}; {most:.0f} would be allowed"


def faults(folder: Path, rounds: int) -> Iterator[str]:
    """Each fault, ``rounds`` times, in another order each time."""

    def once(item: tuple[int, str]) -> str | None:
        turn, name = item
        place = folder / f"{turn}-{list(FAULTS).index(name)}"
        try:
            logged = test_faults.job(name, place / "log", "log")
            test_faults.compare(FAULTS[name], logged, test_faults.job(name, place / "bare", "bare"))
        except AssertionError as error:
            return f"{name} (round {turn}): {error}"
        return None

    turns = [(turn, name) for turn in range(rounds) for name in random.sample(list(FAULTS), len(FAULTS))]
    with ThreadPoolExecutor(4) as pool:
        yield from filter(None, pool.map(once, turns))
    print(f"{len(turns)} jobs with a fault, and as many without declog", flush=True)


def kills(folder: Path, rounds: int) -> Iterator[str]:
    """Two ranks, one of which is killed in some step, resumed until they come to the end; ``rounds`` times."""
    killed = 0
    for turn in range(rounds):
        where = folder / str(turn)
        for _ in range(6):
            victim, at = random.randrange(2), random.randrange(SAVES, STEPS)  # a checkpoint is there
            test_resume.resume(where, 2, victim, at)
            killed += 1
        ended = test_resume.resume(where, 2)
        try:
            test_resume.check_whole(where / "run", 2)
        except AssertionError as error:
            yield f"round {turn}: {error}; {ended.outputs}"
    print(f"{killed} times started to be killed, {rounds} times to the end", flush=True)


def oracle(cases: int) -> Iterator[str]:
    """Random profiles whose seeds `make test` does not have; on all cores."""
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as pool:
        seeds = [*range(10_000, 10_000 + cases - 1), 700_425]
        yield from filter(None, pool.map(differing, seeds, chunksize=50))
    print(f"{cases} random profiles", flush=True)


def differing(seed: int) -> str | None:
    """What is wrong about the case of a seed, if anything is; by the seed no layout, one or many are kept."""
    layout.LAYOUTS = KEPT[seed % len(KEPT)]
    try:
        case = generated(seed)
        with tempfile.TemporaryDirectory() as folder:
            found = differences(case, Path(folder))
    except Exception:  # noqa: BLE001  whatever it is, the seed is what one needs to know
        return f"seed {seed}: {traceback.format_exc()}"
    return report(case, found) if found else None


def mutations() -> Iterator[str]:
    """Mistakes in the presets' metrics that no test of theirs finds, and listed ones that are found."""
    presets = [preset for preset in declog.presets() if preset not in ELSEWHERE]
    for preset in (*presets, "grpo+packs=[evaluation,diversity,sources,tools,off_policy]"):
        name, *overrides = preset.split("+")
        found, known = survivors(name, *overrides), set(KNOWN.get(name, ()))
        yield from (f"{preset}: no test finds {each}" for each in sorted(found - known))
        yield from (f"{preset}: {each} is found, and is listed" for each in sorted(known - found))


if __name__ == "__main__":
    raise SystemExit(main())
