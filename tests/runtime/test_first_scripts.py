"""What people write first, having read the front page only: the answer is the edit that works."""

from __future__ import annotations

from pathlib import Path

import pytest

import declog
from declog.errors import CompositionError, InputError
from declog.testing import MemorySink


def test_prompts_of_groups(tmp_path: Path) -> None:
    """One prompt per group, and a completion each: the fix repeats them, and then it fits."""
    prompt, completion = ["p", "q"], ["a"] * 8
    with declog.start("grpo", ["sinks=[]"], sinks=[MemorySink()], output_dir=tmp_path) as log, log.step(0):
        with pytest.raises(InputError) as caught:
            log.observe(prompt=prompt, completion=completion)
        fix = str(caught.value.fix)
        assert fix == "give `prompt` once per completion: [each for each in prompt for _ in range(4)]"
        log.observe(prompt=[each for each in prompt for _ in range(4)], completion=completion)


def test_a_section_that_is_left_out() -> None:
    """`group.size` is `axes.group.size`."""
    with pytest.raises(CompositionError) as caught:
        declog.plan("grpo", ["group.size=4"])
    assert [problem.fix for problem in caught.value.problems] == ["declog.axes.group.size=4"]
    assert declog.plan("grpo", ["declog.axes.group.size=4"]).grouping is not None
