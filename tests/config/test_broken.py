"""Forty mistakes and more: each gives exactly the text that is committed, and is gone once its advice is taken."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import cache

import pytest

import declog
from declog.errors import Problem
from tests.config.broken import KINDS, WELL, Case, cases, kind, pasted, plan, shipped_lines, shown, written

CASES = cases()
HERE = [case for case in CASES if not kind(case)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_mistake_is_reported_and_mended(case: Case, found: Found) -> None:
    """Line, column, carets, cause and fix are those of the committed text; the mended profile has nothing wrong."""
    if kind(case):
        assert elsewhere(kind(case))[str(case)] == (case.error, WELL)
    else:
        reported = shipped_lines(f"{declog.ConfigError(found(str(case)))}\n")
        assert (reported, written_once(tuple(case.mended.items()))) == (case.error, WELL)


@cache
def elsewhere(where: str) -> dict[str, tuple[str, str]]:
    """What the cases that run there give, before and after, all in one process."""
    some = [case for case in CASES if kind(case) == where]
    texts = shown([files for case in some for files in (case.files, case.mended)], where)
    return {str(case): pair for case, pair in zip(some, zip(texts[::2], texts[1::2], strict=True), strict=True)}


@cache
def written_once(files: tuple[tuple[str, str], ...]) -> str:
    """What is said of files: the mended ones and those with the fix pasted are often the same."""
    return written(dict(files))


Found = Callable[[str], tuple[Problem, ...]]


@pytest.fixture(scope="module")
def found() -> Found:
    """What is wrong with a case, found once for all tests."""

    @cache
    def problems(name: str) -> tuple[Problem, ...]:
        with pytest.raises(declog.ConfigError) as caught:
            plan(next(case.files for case in CASES if str(case) == name))
        return caught.value.problems

    return problems


@pytest.mark.parametrize("case", HERE, ids=str)
def test_a_fix_that_can_be_pasted_is_right(case: Case, found: Found) -> None:
    """Every problem has a fix; where all are text to paste, pasting them makes the profile compile."""
    assert [problem.message for problem in found(str(case)) if not problem.fix] == []
    mended = pasted(case, found(str(case)))
    if mended is not None:
        assert written_once(tuple(mended.items())) == WELL


def test_many_fixes_can_be_pasted(found: Found) -> None:
    """Advice in words is for what has more than one good answer."""
    assert sum(pasted(case, found(str(case))) is not None for case in HERE) >= 25


def test_the_mistakes_are_of_every_kind() -> None:
    """Files, overrides, packs, applications and packages; every mistake has a place, and says what it is about."""
    counted: Counter[str] = Counter("override" if case.files.get("overrides") else "file" for case in CASES)
    counted += Counter("pack" for case in CASES if any("/packs/" in name for name in case.files))
    counted += Counter(kind(case) for case in CASES if kind(case))
    assert len(CASES) >= 40
    assert all(counted[name] >= least for name, least in [("override", 10), ("pack", 5), ("app", 3), ("team", 3)])
    assert set(KINDS) == {"app", "team", ""}
    assert [str(case) for case in CASES if not case.about.endswith(".") or not case.fixed] == []
    place = re.compile(r"error\[DL\d{3}\] (\S+\.yaml:\d+:\d+|override \'.*\')( in \S+)?")
    heads = [(str(case), line) for case in CASES for line in case.error.splitlines() if line.startswith("error[")]
    assert [(name, head) for name, head in heads if not place.fullmatch(head) and name != "app_default"] == []
