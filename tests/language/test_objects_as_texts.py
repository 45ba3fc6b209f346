"""An object is a text where a text is taken: what the messages of a conversation say, a text itself, else its JSON.

The class: functions of texts, users' ones, comparisons, and those of a group, in each preset whose completions may be
conversations.
"""

from __future__ import annotations

from typing import Any

import pytest

import declog
from declog.errors import ConfigError
from declog.language.functions import BUILTIN, Functions
from declog.language.functions.user import function
from tests.language.runs import values

FUNCTIONS = Functions(BUILTIN)


@function(registry=FUNCTIONS)
def repetition(completion: str) -> float:
    """The share of words that come again."""
    words = completion.split()
    return 1 - len({*words}) / max(len(words), 1)


@function(registry=FUNCTIONS)
def unannotated(completion):  # type: ignore[no-untyped-def]
    """It takes tensors, since it does not say that it takes a text."""
    return completion


CHATS: list[Any] = [
    "a b a",
    [{"role": "assistant", "content": "w3 w3"}],
    [{"role": "assistant", "content": [{"type": "text", "text": "x"}]}, {"role": "tool", "content": "y y"}],
    None,
    {"answer": 4},
    [{"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add", "arguments": {"x": 1}}}]}],
    [{"role": "assistant", "content": "a", "tool_calls": {"name": "add", "arguments": {}}}],
    [{"role": "assistant", "content": "b", "tool_calls": 5}],
    [{"role": "assistant", "content": None, "tool_calls": None}],
]
TEXTS = ["a b a", "w3 w3", "x\ny y", None, '{"answer":4}', '→ add({"x":1})', "a\n→ add({})", "b\n5", ""]
EXPRESSIONS = [
    "len(completion)", "words(completion)", "(1 if contains(completion, 'w3') else 0)", "distinct_n(completion, 1)",
    "(1 if matches(completion, '^[a-z] ?') else 0)", "(1 if completion == 'w3 w3' else 0)", "repetition(completion)",
    "(1 if completion != 'a b a' else 0)", "distinct(completion, over=completion)",
    "jaccard(completion, over=completion)", "len(majority(completion))",
]  # fmt: skip


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_a_conversation_is_what_it_says(expr: str) -> None:
    """The values of objects are those of the texts that they are."""

    def value(type: str, completions: list[Any]) -> dict[str, Any]:
        config = {
            "axes": {"group": {"size": 3}},
            "signals": {"any": {"completion": {"axis": "completion", "type": type}}},
            "metrics": {"a": {"expr": expr, "reduce": ["sum", "count"]}},
        }
        return values(config, [[{"completion": completions}]], functions=FUNCTIONS)

    assert value("object", CHATS) == value("text", TEXTS) != {}


@pytest.mark.parametrize("preset", ["trl_grpo", "trl_rloo", "trl_async_grpo"])
@pytest.mark.parametrize("expr", EXPRESSIONS[:6])
def test_completions_of_trainers_are_texts(preset: str, expr: str) -> None:
    assert any(op.id == "a" for op in declog.plan(preset, [f'+metrics.a="mean({expr})"']).metrics)


def test_an_unannotated_function_is_answered() -> None:
    config = {
        "signals": {"any": {"completion": {"axis": "completion", "type": "object"}}},
        "metrics": {"a": "mean(unannotated(completion))"},
    }
    with pytest.raises(ConfigError, match=r"def unannotated\(completion: str\) -> float"):
        values(config, [[{"completion": CHATS}]], functions=FUNCTIONS)
