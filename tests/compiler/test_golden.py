"""Every golden profile gives exactly the text that is committed beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

import declog
from declog.errors.pages import CODES
from declog.language.reductions import BUILTIN
from tests.compiler.golden import FOLDER, PRESETS, PROFILES, expected, shown, shown_preset


@pytest.mark.parametrize("profile", PROFILES, ids=lambda path: path.stem)
def test_the_text_of_a_profile(profile: Path) -> None:
    """A profile's plan in words, or all that is wrong with it, is what people read here last."""
    assert expected(profile).read_text(encoding="utf-8") == shown(profile)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda path: path.stem)
def test_what_a_preset_computes(preset: Path) -> None:
    """A preset may say it otherwise; what it computes changes only where the committed text of its plan does."""
    assert expected(preset).read_text(encoding="utf-8") == shown_preset(preset)


def test_the_pairs_cover_the_language() -> None:
    """There are at least sixty pairs, a third of them invalid, and every code of schema, language and plan has one."""
    texts = [expected(profile).read_text(encoding="utf-8") for profile in PROFILES]
    invalid = [text for text in texts if text.startswith("error[")]
    codes = {code for code in CODES if "DL200" < code < "DL500"}
    never_at_compile_time = {"DL314"}  # a function's result is seen when it runs

    assert len(PROFILES) >= 60
    assert len(PROFILES) <= 3 * len(invalid) <= 2.5 * len(PROFILES)
    assert codes - never_at_compile_time == {code for code in codes if any(f"[{code}]" in text for text in invalid)}
    assert sorted(path.stem for path in FOLDER.glob("*.txt")) == [profile.stem for profile in PROFILES]


def test_every_problem_has_a_fix() -> None:
    """No problem is reported without what to write instead."""
    texts = [expected(profile).read_text(encoding="utf-8") for profile in PROFILES]
    problems = [block for text in texts if text.startswith("error[") for block in text.strip().split("\n\n")]
    assert [problem for problem in problems if "\n  fix: " not in problem] == []


def test_a_name_that_is_like_no_reduction_gets_the_list_of_all() -> None:
    """Those that are registered, and what quantiles look like."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(declog.compose("grpo", ["declog.metrics.reward.reduce=quxify"]))
    names = sorted([*BUILTIN.names(), "p50", "p95", "p99.9"])
    [fix] = [str(problem.fix) for problem in caught.value.problems]
    assert fix.startswith("one of yours: `@declog.reducer` above `def quxify(values): ...`, ")
    assert fix.splitlines()[1:] == [f"reductions: {', '.join(names)}"]
