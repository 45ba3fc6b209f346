"""A plan goes to other processes: those of spawn, Ray and submitit, which know nothing of the one that made it."""

from __future__ import annotations

import os
import pickle
from ast import literal_eval
from dataclasses import replace
from pathlib import Path

import pytest

import declog
from declog.language.reductions import DEFAULT, Reductions
from declog.testing import config_tests
from tests import forks

ROOT = Path(__file__).parents[2]
PRESETS = ("maxent_grpo", "trl_grpo", "verl_ppo")
TESTS = ("verl_ppo:batch",)  # of a large preset
TEAM = '''
import declog

@declog.function
def halved(x):
    """A function of values."""
    return x / 2

@declog.column
def shouted(text: str) -> str:
    """A function of a row."""
    return text.upper()
'''
CONFIG = """
signals:
  any: {x: {axis: completion}, text: {axis: completion, type: text}}
metrics: {half: mean(halved(x)), above: "above(x, bound=2)", p90: p90(x)}
schemas: {texts: {text: {call: shouted}}}
tables: {texts: {schema: texts}}
tests:
  numbers:
    observe: {x: [1, 3, 5, 5], text: [a, b, c, d]}
    expect: {half: 1.75, above: 0.75, p90: 5.0}
    tables: {texts: {rows: 4, columns: {text: [A, B, C, D]}}}
"""
# The reduction stands in the program itself, and one of its parameters must be given.
PROGRAM = """
import multiprocessing, sys
from dataclasses import replace
import declog
from declog.testing import config_tests
import team

@declog.reducer
def above(values, *, bound):
    return float((values > bound).mean())

def results(plans):
    lines = []
    for word, plan in plans.items():
        (test,) = tests(word)
        lines.append((plan.fingerprint, test.plan.fingerprint, str(replace(test, plan=plan).run())))
    return lines

def tests(word):
    config, _, name = word.partition(":")
    return config_tests(config, select=name)

if __name__ == "__main__":
    plans = {word: test.plan for word in sys.argv[1:] for test in tests(word)}
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(*results(plans), *pool.apply(results, [plans]), sep="\\n")
"""


@pytest.mark.slow
def test_a_spawned_process_gets_the_plan(tmp_path: Path) -> None:
    """The same fingerprints and numbers, with the functions of a package, of a row and of the program itself.

    A plan that the other process compiles has that fingerprint, too: no default of a parameter is a process's own.
    """
    for name, text in {"team.py": TEAM, "team.yaml": CONFIG, "app.py": PROGRAM}.items():
        (tmp_path / name).write_text(text)
    environment = forks.environment({"PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))})
    done = forks.run([tmp_path / "app.py", tmp_path / "team.yaml", *TESTS], env=environment, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [literal_eval(line) for line in done.stdout.splitlines()]
    here, there = lines[: len(lines) // 2], lines[len(lines) // 2 :]
    assert here == there and len(here) == 1 + len(TESTS)
    assert all(sent == compiled and result.startswith("ok") for sent, compiled, result in there)


def test_cloudpickle_takes_functions_along() -> None:
    """As Ray and submitit send those that no other process can import: pickle refuses them by name."""
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    reductions = Reductions(DEFAULT)
    declog.reducer(lambda values, *, power: float((values**power).sum()), name="powers", registry=reductions)
    config = {
        "signals": {"any": {"x": {"axis": "completion"}}}, "metrics": {"cubes": "powers(x, power=3)"},
        "tests": {"sum": {"observe": {"x": [1, 2, 3]}, "expect": {"cubes": 36}}},
    }  # fmt: skip
    (test,) = config_tests(config, reductions=reductions)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(test.plan)
    copy = replace(test, plan=cloudpickle.loads(cloudpickle.dumps(test.plan)))
    assert copy.run().passed and copy.plan.metrics[0].reduction is not test.plan.metrics[0].reduction


@pytest.mark.parametrize("preset", PRESETS)
def test_a_plan_is_equal_to_its_copy(preset: str) -> None:
    """Its expressions are other objects; what they say and declog's reductions are equal."""
    plan = declog.plan(preset)
    copy = pickle.loads(pickle.dumps(plan))
    assert copy.canonical == plan.canonical and copy.windows == plan.windows
    assert [op.reduction for op in copy.metrics] == [op.reduction for op in plan.metrics]
