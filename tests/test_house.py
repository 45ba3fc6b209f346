"""Names that a finished change has retired do not come back: what they stood for is done in another way."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "declog"
# by what took their place
RETIRED = {
    "Step and Stream": "Lane NextStep Edge closed_to",
    "OpenBatches": "Holder",
    "Batch": "BatchRecord OpenBatch",
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
    "Message": "Known MESSAGES",
    "FileLocation and its where": "FilePlace OverridePlace StorePlace place_alone shown_place",
    "refusal": "in_hydras_words _may_be_added _existing_key _key_problem",
    "config, for the YAML": "profile_of profile_tests ProfileTest ProfileFiles with_profiles profile_text",
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


# They say what happened to a thing, or where it stood, and not what it is.
VAGUE = "found known given made own others each place whole mine gone left lacking odd settled"


def vague_names(source: str) -> list[str]:
    """The names among ``VAGUE`` that a module gives: to classes, functions, parameters, attributes and variables."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.arg):
            names.append(node.arg)
        elif isinstance(node, ast.Attribute | ast.Name) and isinstance(node.ctx, ast.Store):
            names.append(node.attr if isinstance(node, ast.Attribute) else node.id)
    return sorted(name for name in names if name.strip("_") in VAGUE.split())


@pytest.mark.parametrize(
    "room",
    [
        "language",
        "runtime",
        "engine",
        "compiler",
        "plans",
        "replay",
        "cli",
        "config",
        "errors",
        "integrations",
        "sinks",
        "runs",
        "late",
        "*.py",
    ],
)
def test_names_say_what_things_are(room: str) -> None:
    """No class, function, parameter, attribute or variable of a finished room has a name that says nothing."""
    paths = sorted(PACKAGE.glob(room) if room == "*.py" else (PACKAGE / room).rglob("*.py"))
    found = {str(path.relative_to(PACKAGE)): names for path in paths if (names := vague_names(path.read_text()))}
    assert paths and found == {}


def test_no_file_is_long() -> None:
    """A module is read in one sitting; the plan's operations stand together."""
    lengths = {str(path.relative_to(PACKAGE)): len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > 450 and name != "plans/ops.py"} == {}


def test_a_vague_name_is_found() -> None:
    """Wherever a module gives it; names of others, and keywords of their calls, are not its own."""
    source = "def place(own, *, rows):\n    self._known = text(given=1).left\n    found, kept = rows"
    assert vague_names(source) == ["_known", "found", "own", "place"]


# Profiles are selections of metrics, such as slim and full: these verbs say what a config does.
A_CONFIG = re.compile(
    r"\b(the|a|this) profile (`[^`]*` )?(has|declares|defines|requires|imports|logs|pins|needs|does not)\b"
)


def test_a_config_is_not_called_a_profile() -> None:
    """In code, errors, examples and documentation a profile only shows and hides: the YAML is a config."""
    root = PACKAGE.parent
    texts = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md"), *(root / "docs").glob("*.md"), root / "README.md"]
    texts += [*(root / "conf").rglob("*.yaml"), *(root / "examples").rglob("*.py")]
    wrong = [
        f"{path.relative_to(root)}: {hit[0]}"
        for path in texts
        for hit in A_CONFIG.finditer(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []
    assert A_CONFIG.search("the profile `small` has no signal") and not A_CONFIG.search("the profile `slim` shows")
