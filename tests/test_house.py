"""Names that a finished change has retired do not come back: what they stood for is done in another way."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "declog"
# by what took their place
RETIRED = {
    "Step and Stream": "Lane NextStep Edge closed_to",
    "OpenBatches": "Holder",
    "Refused": "_openers _note_opener",
    "dropped_rows and logged_numbers": "Misplaced misplaced Reported RunsAhead",
    "hooks and a clock": "CallLog call_log.keeps calls.keeps",
    "a flag of the recorder": "InFork in_fork.py",
    "fates of packets by id": "WeakSet _count_packets",
    "a store that rank 0 opens": "_clone _new_connection Via",
    "Block and State": "_Fused _Picked _Together states_of _by_values",
    "LogEvent": "WindowItem Envelope",
    "MetricValues and ValueBlock": "Found Settled",
    "Program": "take_alike requested_tokens",
    "Input": "TaskInput RankInput",
    "Node.deepest": "_deepest",
    "refusal": "in_hydras_words _may_be_added _existing_key _key_problem",
}


def uses(names: str, text: str) -> list[str]:
    """Which of some names a text has, as words of their own."""
    return [name for name in names.split() if re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text)]


@pytest.mark.parametrize("instead", RETIRED)
def test_retired_names_do_not_come_back(instead: str) -> None:
    """A class or a module that was replaced has no second life beside what replaced it."""
    texts = {path: path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py") if "sinks" not in path.parts}
    found = {
        str(path.relative_to(PACKAGE)): names for path, text in texts.items() if (names := uses(RETIRED[instead], text))
    }
    assert found == {}


def test_a_retired_name_is_found() -> None:
    """As a word of its own, and not as a part of another one."""
    assert uses("Lane Edge", "class Lane(Thing): Edges, Planes = 1, 2") == ["Lane"]
