"""Logs the judgements of a reward function in three ways: extracted answers, gold labels, accuracy and calibration.

    python examples/trl_reward_functions.py              all three ways
    python examples/trl_reward_functions.py returned     one of them: returned, logged or called

The reward functions are plain functions, as TRL calls them: `declog.attach` does not change them. Here a loop of two
steps calls them, so that the example runs in seconds. docs/samples.md explains when to use each way.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import declog
from declog.testing import MemorySink

STEPS = (  # completions with a stated confidence, and their gold labels
    (["4 (90%)", "5 (60%)", "6 (80%)", "no idea"], ["4", "5", "7", "8"]),
    (["10 (70%)", "11 (95%)", "12 (55%)", "13 (99%)"], ["10", "11", "12", "14"]),
)
CONFIG: dict[str, Any] = {
    "run": {"name": "calibration"},
    "signals": {
        "any": {
            "completion": {"axis": "completion", "type": "text"},
            "gold": {"axis": "completion", "type": "text"},
            "rewards": {"axis": "completion", "family": True},
        }
    },
    "schemas": {
        "judged": {
            "completion": {"type": "text"},
            "gold": {"type": "text"},
            "rewards": {"type": "float", "name": "{member}"},
            "extra": {"undeclared": "keep"},
        }
    },
    "tables": {"judged": {"schema": "judged"}},
}
# With `from_log_extra`, a column that a reward function returns or logs is a signal that metrics may use.
JUDGED: dict[str, Any] = {
    "signals": {
        "any": {
            "correct": {"axis": "completion", "type": "bool", "from_log_extra": True},
            "confidence": {"axis": "completion", "from_log_extra": True},
            "extracted": {"axis": "completion", "type": "text", "from_log_extra": True},
        }
    },
    "metrics": {"accuracy": "mean(correct)", "ece": "ece(confidence, correct, bins=10)"},
    "schemas": {"judged": {"extracted": {"type": "text"}}},
}


def judged(text: str, gold: str) -> tuple[str | None, float, bool]:
    """The answer in a text, its stated confidence, and whether it is right."""
    found = re.match(r"(\d+) \((\d+)%\)", text)
    return (found[1], int(found[2]) / 100, found[1] == gold) if found else (None, 0.0, False)


@declog.reward
def returned(completions: Sequence[str], gold: Sequence[str], **columns: Any) -> Any:
    """Return the columns beside the rewards: this function does not know any logger, so tests can call it directly."""
    answers, confidence, correct = zip(*map(judged, completions, gold), strict=True)
    return list(map(float, correct)), {"extracted": answers, "confidence": confidence, "correct": correct}


def logged(completions: Sequence[str], gold: Sequence[str], **columns: Any) -> list[float]:
    """Log the columns where they are computed, which may be at any depth; `log_metric` logs another number."""
    answers, confidence, correct = zip(*map(judged, completions, gold), strict=True)
    declog.log_extra("extracted", answers)
    declog.log_extra("confidence", confidence)
    declog.log_extra("correct", correct)
    declog.log_metric("unparsed", answers.count(None) / len(answers))
    return list(map(float, correct))


def called(completions: Sequence[str], gold: Sequence[str], **columns: Any) -> list[float]:
    """Return only rewards, as without declog. The config computes the column, for the rows that a table shows."""
    return [float(judged(*each)[2]) for each in zip(completions, gold, strict=True)]


@declog.column
def extract_answer(completion: str) -> str | None:
    """The answer in a completion; `call:` in a schema uses this function."""
    return judged(completion, "")[0]


WAYS: Mapping[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "returned": (returned, JUDGED),
    "logged": (logged, JUDGED),
    "called": (
        called,
        {
            "metrics": {"accuracy": "mean(sum(rewards, over=member))"},
            "schemas": {"judged": {"extracted": {"type": "text", "call": "extract_answer"}}},
        },
    ),
}


def run(way: str) -> MemorySink:
    """Run two steps with the reward function of a way, and return the sink with everything that was logged."""
    function, added = WAYS[way]
    config = {
        **CONFIG,
        **added,
        "signals": {
            phase: {**CONFIG["signals"].get(phase, {}), **added.get("signals", {}).get(phase, {})}
            for phase in {**CONFIG["signals"], **added.get("signals", {})}
        },
        "schemas": {"judged": {**CONFIG["schemas"]["judged"], **added["schemas"]["judged"]}},
    }
    sink = MemorySink()
    with declog.start(config, sinks=[sink]) as log:
        for step, (completions, gold) in enumerate(STEPS):
            with log.step(step):
                rewards = function(completions=completions, gold=gold)
                log.observe(completion=completions, gold=gold, rewards={"right": rewards})
    return sink


if __name__ == "__main__":
    for name in sys.argv[1:] or WAYS:
        found = run(name)
        print(name)
        for at, values in found.scalars.items():
            print("  step", at, {key: round(value, 4) for key, value in sorted(values.items())})
        for at, table in found.tables("judged"):
            print("  step", at, "extracted", list(table.data["extracted"]))
