"""What ranks must agree on: every field of every op, unless it is in the list of what may differ."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import declog
from declog.language import nodes, row_functions
from declog.language.dtypes import DType, Type
from declog.language.functions import BUILTIN, DEFAULT, Function, Functions
from declog.language.origins import origin
from declog.language.row_functions import RowFunctions
from declog.plans import fingerprint, ops
from declog.plans.ops import Plan
from declog.runtime.ranks.comm import Comm
from declog.testing import MemorySink, run_ranks
from tests import forks

FUNCTIONS = Functions(BUILTIN)
COLUMNS = RowFunctions(row_functions.DEFAULT)


@declog.function(registry=FUNCTIONS)
def softened(x: torch.Tensor) -> torch.Tensor:
    """A function of a user's."""
    return x.sigmoid()


@declog.column(registry=COLUMNS)
def first_word(text: str) -> str:
    """A function of a row."""
    return text.partition(" ")[0]


PROFILE: dict[str, Any] = {
    "every": 2,
    "axes": {"group": {"size": 2}, "completion": {"ids": "row"}, "token": {"mask": "mask"}},
    "signals": {
        "rollout": {
            "reward": {"axis": "completion"}, "text": {"axis": "completion", "type": "text"},
            "row": {"axis": "completion", "type": "int"},
        },
        "update": {
            "row": {"axis": "completion", "type": "int"}, "kl": {"axis": "token"},
            "mask": {"axis": "token", "type": "bool"}, "ids": {"axis": "token", "type": "int"},
            "loss": {"axis": "step"},
        },
    },
    "derived": {"words": "len(text)"},
    "metrics": {
        "reward": {"reduce": ["mean", "sum"], "where": "reward > 1", "weight": "words"},
        "p": "p95(reward)",
        "kl": {"expr": "softened(kl)", "reduce": ["mean", "max"]}, "late": "mean(reward * mean(kl, over=token))",
        "change": "mean(loss - prev(loss, 0.0))", "ratio": {"formula": "kl.mean / kl.max"},
    },
    "about": {"reward": {"help": "as given"}, "ratio": {"help": "of two"}},
    "filters": {
        "some": {"first": 3}, "best": {"key": "reward", "top": 1, "from": "some"},
    },
    "schemas": {"s": {
        "text": {"type": "text", "redact": {"n": "[0-9]"}}, "word": {"type": "text", "call": "first_word"},
    }, "tokens": {"ids": {"type": "tokens", "values": {"kl": "kl"}}}},
    "tables": {"t": {"schema": "s", "filter": "best"}, "tokens": {"schema": "tokens"}},
    "modes": {"train": {}, "eval": {"prefix": "eval_", "every": 3}},
    "alerts": {"high": {"when": "kl.mean > 1", "text": "now {kl.mean}"}},
    "sinks": ["lines"], "sink_options": {"lines": {"kind": "jsonl", "profile": "full"}},
    "run": {"name": "everything", "capture": {"every": 3}},
}  # fmt: skip


@functools.cache
def made() -> Plan:
    """The plan of it."""
    return declog.plan(PROFILE, functions=FUNCTIONS, columns=COLUMNS)


def elsewhere() -> None:
    """Another function than there was."""


def changed(value: Any) -> Any:
    """Something else of the same kind."""
    if isinstance(value, Enum):
        return next(one for one in type(value) if one is not value)
    if isinstance(value, nodes.Node):
        return nodes.Graph().make("const", type=Type(DType.FLOAT), value=12345.0)
    if isinstance(value, tuple | frozenset):
        more = nodes.Graph().constant(1) if any(isinstance(one, nodes.Node) for one in value) else "more"
        return (*value, more) if isinstance(value, tuple) else value | {more}
    if isinstance(value, Mapping):
        return {**value, "more": "more"}
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, list):
        return [*value, "more"]
    return elsewhere if callable(value) else "more" if value is None or is_dataclass(value) else value + "x"


def variants(value: Any, seen: set[str]) -> Iterator[tuple[str, Any]]:
    """The value with one field changed, for each field of each dataclass in it, each once: ``MetricOp.every``.

    A function of the language is compared as a whole, by where it comes from.
    """
    if is_dataclass(value) and not isinstance(value, type | Function):
        for item in fields(value):
            label, given = f"{type(value).__name__}.{item.name}", getattr(value, item.name)
            if label not in seen and (given or label not in ("Node.args", "Node.mask")):
                seen.add(label)
                yield label, replace(value, **{item.name: changed(given)})
            for inner, new in variants(given, seen):
                yield inner, replace(value, **{item.name: new})
    elif isinstance(value, tuple):
        for place, one in enumerate(value):
            for inner, new in variants(one, seen):
                yield inner, (*value[:place], new, *value[place + 1 :])
    elif isinstance(value, Mapping):
        for key, one in value.items():
            for inner, new in variants(one, seen):
                yield inner, {**value, key: new}


VARIANTS = dict(variants(made(), set()))


def ops_of(module: ModuleType) -> set[str]:
    """The dataclasses that a module defines; what several share is in each of them."""
    found = [one for one in vars(module).values() if isinstance(one, type) and one.__module__ == module.__name__]
    return {one.__name__ for one in found if dataclasses.is_dataclass(one) and not one.__subclasses__()}


def test_the_profile_has_an_op_of_every_kind() -> None:
    """An op that is added to the plan must be added to the profile above."""
    assert ops_of(ops) | {"Node", "Grouping", "Reduction", "RowFunction"} <= {name.split(".")[0] for name in VARIANTS}


@pytest.mark.parametrize("field", VARIANTS)
def test_every_field_of_every_op_is_compared_or_may_differ(field: str) -> None:
    """A field that changes changes the fingerprint, unless it is in the list: then it does not."""
    own = field in fingerprint.OWN or field.split(".")[0] in ("SinkOp", "CaptureOp", "AboutOp")
    assert (VARIANTS[field].fingerprint == made().fingerprint) == own


def test_what_may_differ_is_there() -> None:
    """The list names fields that ops have."""
    assert set(fingerprint.OWN) <= set(VARIANTS)


def test_a_difference_is_reported_in_the_words_of_the_profile() -> None:
    """Where it is, and what each rank has there."""
    reported = []
    for change in (
        {"modes": {"train": {}, "eval": {"prefix": "eval_", "every": 7}}}, {"every": 4},
        {"metrics": {**PROFILE["metrics"], "reward": {**PROFILE["metrics"]["reward"], "where": "reward > 2"}}},
        {"metrics": {**PROFILE["metrics"], "more": "max(reward)"}}, {"axes": {**PROFILE["axes"], "group": {"size": 4}}},
        {"alerts": {"high": {"when": "kl.mean > 2", "text": "now {kl.mean}"}}},
    ):  # fmt: skip
        other = declog.plan(PROFILE | change, functions=FUNCTIONS, columns=COLUMNS)
        reported.append(fingerprint.difference([made().canonical, other.canonical, other.canonical]))
    assert reported == [
        "modes.eval.every is 3 on rank 0 and 7 on ranks 1, 2",
        "every is 2 on rank 0 and 4 on ranks 1, 2",
        "metrics.reward.mean.where is reward > 1 on rank 0 and reward > 2 on ranks 1, 2",
        "metrics.more is not there on rank 0 and there on ranks 1, 2",
        "axes.group.size is 2 on rank 0 and 4 on ranks 1, 2",
        "alerts.high.when is kl.mean > 1 on rank 0 and kl.mean > 2 on ranks 1, 2",
    ]


def test_all_processes_make_the_same_fingerprint() -> None:
    """It does not depend on the order of sets, nor on addresses."""
    program = "from tests.plans.test_fingerprint import made; print(made().fingerprint)"
    root = Path(__file__).parents[2]
    environment = {**os.environ, "PYTHONHASHSEED": "1", "PYTHONPATH": str(root)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == made().fingerprint


APPLICATION = """
import pickle, subprocess, sys
import declog, hydra
CHILD = "import pickle, sys, declog; print(declog.plan(pickle.load(sys.stdin.buffer)).fingerprint)"
@hydra.main(version_base="1.3", config_path=None)
def main(cfg):
    sent = subprocess.run([sys.executable, "-c", CHILD], input=pickle.dumps(cfg), stdout=subprocess.PIPE, check=True)
    print(declog.plan(cfg).fingerprint, sent.stdout.decode().strip())
main()
"""


@pytest.mark.parametrize("preset", ["grpo", "rloo"])
def test_an_application_may_send_its_configuration_to_another_process(preset: str, tmp_path: Path) -> None:
    """There nobody knows which file declared what: the plan is the same."""
    (tmp_path / "app.py").write_text(APPLICATION)
    done = forks.run([tmp_path / "app.py", f"+declog={preset}"], cwd=tmp_path)
    here, there = done.stdout.split()
    assert here == there


# ---- functions


def scaled(factor: float) -> Any:
    """A function that holds a value."""

    def scale(x: torch.Tensor) -> torch.Tensor:
        return x * factor

    return scale


def test_the_origin_of_a_function() -> None:
    """Its module and name; the package and its version; what differs in its code or in what it holds differs."""
    assert origin(declog.function) == "declog.language.functions.user:function"
    assert origin(pytest.approx).endswith(f"approx of pytest {pytest.__version__} (" + origin(pytest.approx)[-9:])
    assert origin(scaled(2.0)).startswith("tests.plans.test_fingerprint:scaled.<locals>.scale (")
    assert origin(scaled(2.0)) == origin(scaled(2.0)) != origin(scaled(3.0))
    assert origin(functools.partial(math.pow, 2)) != origin(functools.partial(math.pow, 3))


PROGRAM = """
import multiprocessing, pickle, sys
from declog.language.origins import origin
def mine(x): return 2 * x
class Scale:
    def __init__(self, by): self.by = by
    def __call__(self, x): return self.by * x
    def call(self, x): return x
def origins(): return [origin(mine), origin(Scale(2)), origin(Scale), origin(Scale(2).call), origin(lambda x: x)]
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        for found in (origins(), pool.apply(origins)):
            print(found)
"""


def test_a_program_s_own_functions_have_one_origin(tmp_path: Path) -> None:
    """In the program, in a process that it spawns, and in one that imports it."""
    (tmp_path / "app.py").write_text(PROGRAM)
    commands = (["app.py"], ["-c", "import app; print(app.origins())"])
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((root, str(tmp_path)))}
    run = functools.partial(subprocess.run, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True)
    ways = [line for command in commands for line in run([sys.executable, *command]).stdout.splitlines()]
    assert len(ways) == 3 and len(set(ways)) == 1
    assert "app:mine (" in ways[0] and "app:Scale (" in ways[0] and "app:Scale.call (" in ways[0]
    typed = "from declog.language.origins import origin; print(origin(lambda x: x))"
    assert run([sys.executable, "-c", typed]).stdout.startswith("__main__:<lambda> (")


def test_functions_of_one_name_that_differ_are_refused(tmp_path: Path) -> None:
    """Ranks that would compute something else under one name do not start."""
    config = {
        "run": {"name": "own"},
        "signals": {"any": {"x": {"axis": "completion"}}},
        "metrics": {"y": "mean(mine(x))"},
    }

    def rank(comm: Comm) -> str:
        functions = Functions(DEFAULT)
        declog.function(scaled(2.0 + comm.rank), name="mine", registry=functions)
        with pytest.raises(declog.PlanMismatchError) as error:
            declog.start(config, sinks=[MemorySink()], output_dir=tmp_path, comm=comm, functions=functions)
        return str(error.value)

    texts = run_ranks(2, rank)
    assert texts[0] == texts[1]
    assert "functions.mine is tests.plans.test_fingerprint:scaled.<locals>.scale (" in texts[0]
