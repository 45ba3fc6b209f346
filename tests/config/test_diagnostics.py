"""The error renderer: golden texts, over real files and overrides."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from declog.config.compose import compose
from declog.config.problems.diagnostics import as_dict, located
from declog.config.source_map import Provenance
from declog.errors import CompositionError, ConfigError, Problem
from tests.conftest import WritePreset

PRESET = r"""
profile: full
metrics:
  reward: {expr: rewrd, reduce: mean}
  kl: mean(kl) + 1
  quoted: 'source == ''math'' and kl > 1'
  escaped: "source == \"math\" and kl > 1"
  folded: >
    kl > 1 and
    reward > 0
  block: |
    kl > 1
    and reward > 0
  wrapped: kl > 1
    and reward > 0
  奖励: 奖励 > kl
  nothing:
filters:
  hard:
    where: kl > 1
    tags: [core, slow]
  "odd key": {n: 4}
"""


def golden(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


@pytest.fixture
def directory(write_preset: WritePreset) -> Path:
    """One preset with every way to write a scalar, and one on top of it."""
    write_preset("base", PRESET)
    return write_preset("team", "defaults: [base, _self_]\nmetrics:\n  reward:\n    reduce: p95\n")


def render(problems: list[Problem], known: Provenance, **options: Any) -> str:
    return ConfigError(located(problems, known, **options)).text()


def provenance(name: str, overrides: Sequence[str] = (), *, config_dir: Path) -> Provenance:
    """The layers of a preset with overrides."""
    return compose(name, overrides, config_dir=config_dir).provenance


def shown(directory: Path, problem: Problem, *overrides: str, name: str = "base") -> str:
    return render([problem], provenance(name, overrides, config_dir=directory))


def test_a_value_is_shown_at_its_column(directory: Path) -> None:
    """The form that DESIGN promises: place, cause, line with carets, fix."""
    problem = Problem(
        "DL310",
        "filters.hard.where is per token; a filter needs one value per completion",
        ("filters", "hard", "where"),
        fix="any(kl > 1, over=token)  or  mean(kl, over=token) > 1",
        source="kl > 1",
        span=(0, 6),
    )
    assert shown(directory, problem) == golden("""
        error[DL310] declog/base.yaml:19:12
          filters.hard.where is per token; a filter needs one value per completion
            19 |     where: kl > 1
               |            ^^^^^^
          fix: any(kl > 1, over=token)  or  mean(kl, over=token) > 1
    """)


@pytest.mark.parametrize(
    ("key", "source", "span", "expected"),
    [
        (
            "kl",
            "mean(kl) + 1",
            (11, 12),
            """
            error[DL305] declog/base.yaml:4:18 in metrics.kl
              wrong
                4 |   kl: mean(kl) + 1
                  |                  ^
            """,
        ),
        (
            "quoted",
            "source == 'math' and kl > 1",
            (21, 23),
            """
            error[DL305] declog/base.yaml:5:35 in metrics.quoted
              wrong
                5 |   quoted: 'source == ''math'' and kl > 1'
                  |                                   ^^
            """,
        ),
        (
            "escaped",
            'source == "math" and kl > 1',
            (10, 16),
            r"""
            error[DL305] declog/base.yaml:6:23 in metrics.escaped
              wrong
                6 |   escaped: "source == \"math\" and kl > 1"
                  |                       ^^^^^^^^
            """,
        ),
        (
            "folded",
            "kl > 1 and reward > 0\n",
            (11, 17),
            """
            error[DL305] declog/base.yaml:9:5 in metrics.folded
              wrong
                9 |     reward > 0
                  |     ^^^^^^
            """,
        ),
        (
            "block",
            "kl > 1\nand reward > 0\n",
            (11, 17),
            """
            error[DL305] declog/base.yaml:12:9 in metrics.block
              wrong
                12 |     and reward > 0
                   |         ^^^^^^
            """,
        ),
        (
            "wrapped",
            "kl > 1 and reward > 0",
            (11, 17),
            """
            error[DL305] declog/base.yaml:14:9 in metrics.wrapped
              wrong
                14 |     and reward > 0
                   |         ^^^^^^
            """,
        ),
        # Wide characters take two columns of a terminal, one of an editor's count.
        (
            "奖励",
            "奖励 > kl",
            (5, 7),
            """
            error[DL305] declog/base.yaml:15:12 in metrics.奖励
              wrong
                15 |   奖励: 奖励 > kl
                   |                ^^
            """,
        ),
        # A span behind the end: something is missing there.
        (
            "kl",
            "mean(kl) + 1",
            (12, 12),
            """
            error[DL305] declog/base.yaml:4:19 in metrics.kl
              wrong
                4 |   kl: mean(kl) + 1
                  |                   ^
            """,
        ),
        # The text in the file is another one: all of the value, rather than a wrong part of it.
        (
            "kl",
            "reward",
            (0, 2),
            """
            error[DL305] declog/base.yaml:4:7 in metrics.kl
              wrong
                4 |   kl: mean(kl) + 1
                  |       ^^^^^^^^^^^^
            """,
        ),
    ],
)
def test_the_caret_stands_under_the_part_at_fault(
    directory: Path, key: str, source: str, span: tuple[int, int], expected: str
) -> None:
    """Plain and quoted scalars are shown where they stand, scalars over several lines on their own."""
    problem = Problem("DL305", "wrong", ("metrics", key), source=source, span=span)
    assert shown(directory, problem) == golden(expected)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        # An unknown key: the key itself.
        (
            Problem("DL201", "unknown key `tags`", ("filters", "hard", "tags")),
            """
            error[DL201] declog/base.yaml:20:5 in filters.hard.tags
              unknown key `tags`
                20 |     tags: [core, slow]
                   |     ^^^^
            """,
        ),
        # A key in quotes is marked with them.
        (
            Problem("DL204", "not an identifier", ("filters", "odd key")),
            """
            error[DL204] declog/base.yaml:21:3 in filters.odd key
              not an identifier
                21 |   "odd key": {n: 4}
                   |   ^^^^^^^^^
            """,
        ),
        # A required key that is missing: the innermost key that is there.
        (
            Problem("DL203", "filters.hard needs `kind`", ("filters", "hard", "kind")),
            """
            error[DL203] declog/base.yaml:18:3 in filters.hard.kind
              filters.hard needs `kind`
                18 |   hard:
                   |   ^^^^
            """,
        ),
        # A value that is a mapping or a list: its key.
        (
            Problem("DL202", "must be a text", ("filters", "hard")),
            """
            error[DL202] declog/base.yaml:18:3 in filters.hard
              must be a text
                18 |   hard:
                   |   ^^^^
            """,
        ),
        # A value without a text: its key.
        (
            Problem("DL202", "must be a text", ("metrics", "nothing")),
            """
            error[DL202] declog/base.yaml:16:3 in metrics.nothing
              must be a text
                16 |   nothing:
                   |   ^^^^^^^
            """,
        ),
        # The entry of a list.
        (
            Problem("DL401", "matches nothing", ("filters", "hard", "tags", 1)),
            """
            error[DL401] declog/base.yaml:20:18 in filters.hard.tags.1
              matches nothing
                20 |     tags: [core, slow]
                   |                  ^^^^
            """,
        ),
        # A value without a source is marked as a whole.
        (
            Problem("DL202", "not a number", ("filters", "odd key", "n")),
            """
            error[DL202] declog/base.yaml:21:18 in filters.odd key.n
              not a number
                21 |   "odd key": {n: 4}
                   |                  ^
            """,
        ),
        # The short form of an entry: the expression is part of the entry's own value.
        (
            Problem("DL302", "unknown signal `kl`", ("metrics", "kl", "expr"), source="kl", span=(0, 2)),
            """
            error[DL302] declog/base.yaml:4:12 in metrics.kl
              unknown signal `kl`
                4 |   kl: mean(kl) + 1
                  |            ^^
            """,
        ),
        # A message of several lines stays one block.
        (
            Problem("DL402", "two outputs have one name:\nkl and low", ("metrics", "kl")),
            """
            error[DL402] declog/base.yaml:4:7 in metrics.kl
              two outputs have one name:
              kl and low
                4 |   kl: mean(kl) + 1
                  |       ^^^^^^^^^^^^
            """,
        ),
        # Nothing was written: the problem as it is.
        (
            Problem("DL203", "the profile needs `spec`", ("spec",), fix="spec: 1"),
            """
            error[DL203] spec
              the profile needs `spec`
              fix: spec: 1
            """,
        ),
    ],
)
def test_keys_values_and_entries_have_their_own_place(directory: Path, problem: Problem, expected: str) -> None:
    """What is wrong decides what is marked: the key, the value, or the innermost key that was written."""
    assert shown(directory, problem) == golden(expected)


@pytest.mark.parametrize(
    ("override", "problem", "expected"),
    [
        (
            '+declog.metrics.long.expr="rewrd * 2"',
            Problem("DL302", "unknown signal", ("metrics", "long", "expr"), source="rewrd * 2", span=(0, 5)),
            """
            error[DL302] override '+declog.metrics.long.expr="rewrd * 2"'
              unknown signal
                +declog.metrics.long.expr="rewrd * 2"
                                           ^^^^^
            """,
        ),
        (
            '+declog.metrics.long={expr: "rewrd * 2", wher: kl}',
            Problem("DL302", "unknown signal", ("metrics", "long", "expr"), source="rewrd * 2", span=(0, 5)),
            """
            error[DL302] override '+declog.metrics.long={expr: "rewrd * 2", wher: kl}' in metrics.long.expr
              unknown signal
                +declog.metrics.long={expr: "rewrd * 2", wher: kl}
                                             ^^^^^
            """,
        ),
        (
            "+declog.metrics.long={expr: reward, wher: kl}",
            Problem("DL201", "unknown key `wher`", ("metrics", "long", "wher")),
            """
            error[DL201] override '+declog.metrics.long={expr: reward, wher: kl}' in metrics.long.wher
              unknown key `wher`
                +declog.metrics.long={expr: reward, wher: kl}
                                                    ^^^^
            """,
        ),
        (
            "+declog.metrics.long.wher=kl",
            Problem("DL201", "unknown key `wher`", ("metrics", "long", "wher")),
            """
            error[DL201] override '+declog.metrics.long.wher=kl'
              unknown key `wher`
                +declog.metrics.long.wher=kl
                                     ^^^^
            """,
        ),
        # The value is there, the expression is not found in it as it is (escapes): all of the value.
        (
            r'+declog.metrics.long.where="task == \"math\""',
            Problem("DL302", "unknown signal", ("metrics", "long", "where"), source='task == "math"', span=(0, 4)),
            r"""
            error[DL302] override '+declog.metrics.long.where="task == \"math\""'
              unknown signal
                +declog.metrics.long.where="task == \"math\""
                                            ^^^^^^^^^^^^^^^^
            """,
        ),
        # What was deleted, and is still used.
        (
            "~declog.metrics.kl",
            Problem("DL407", "alerts.runaway still uses metrics.kl", ("metrics", "kl")),
            """
            error[DL407] override '~declog.metrics.kl'
              alerts.runaway still uses metrics.kl
                ~declog.metrics.kl
                ^^^^^^^^^^^^^^^^^^
              also set in: declog/base.yaml:4:3
            """,
        ),
    ],
)
def test_an_override_is_its_own_place(directory: Path, override: str, problem: Problem, expected: str) -> None:
    """A key that an override set is shown in the override, with the caret in its text."""
    assert shown(directory, problem, override) == golden(expected)


def test_earlier_layers_are_reported_latest_first(directory: Path) -> None:
    """Where else the key was set, so that nobody edits the file that loses."""
    problem = Problem("DL311", "unknown reduction `p95x`", ("metrics", "reward", "reduce"), source="p95x", span=(0, 4))
    assert shown(directory, problem, "declog.metrics.reward.reduce=p95x", name="team") == golden("""
        error[DL311] override 'declog.metrics.reward.reduce=p95x'
          unknown reduction `p95x`
            declog.metrics.reward.reduce=p95x
                                         ^^^^
          also set in: declog/team.yaml:4:5, declog/base.yaml:3:25
    """)


def test_a_file_elsewhere_is_shown_with_its_whole_path(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths are relative to the working directory only where the file lies below it."""
    elsewhere = directory / "elsewhere"
    elsewhere.mkdir()
    known = provenance("base", config_dir=directory)
    monkeypatch.chdir(elsewhere)
    first, *_ = render([Problem("DL202", "wrong", ("profile",))], known).splitlines()
    assert first == f"error[DL202] {directory / 'declog' / 'base.yaml'}:1:10 in profile"


def test_the_profile_may_stand_elsewhere(directory: Path) -> None:
    """`prefix` is the node under which the profile was composed."""
    application = directory / "train.yaml"
    application.write_text("defaults: [{declog: team}]\n")
    known = compose(application, ["+declog@eval_log=base", "eval_log.profile=slm"]).provenance
    problem = Problem("DL403", "no such profile", ("profile",), source="slm")
    assert render([problem], known, prefix=("eval_log",)) == golden("""
        error[DL403] override 'eval_log.profile=slm'
          no such profile
            eval_log.profile=slm
                             ^^^
          also set in: declog/base.yaml:1:1
    """)


def test_all_problems_are_rendered_in_order(directory: Path) -> None:
    """Problems are separated by an empty line, and keep the order in which they were found."""
    problems = [Problem("DL202", "first", ("profile",)), Problem("DL203", "second", ("spec",))]
    assert render(problems, provenance("base", config_dir=directory)) == golden("""
        error[DL202] declog/base.yaml:1:10 in profile
          first
            1 | profile: full
              |          ^^^^

        error[DL203] spec
          second
    """)


def test_without_provenance_the_problems_stay_plain() -> None:
    """A profile that is plain data has no places: the renderer shows what the exception would."""
    problems = [Problem("DL302", "unknown signal", ("metrics", "x"), source="rewrd", span=(0, 5))]
    assert render(problems, Provenance({}, {})) == str(ConfigError(problems))
    assert compose({"profile": "full"}).located(ConfigError(problems)).problems == tuple(problems)


def test_attaching_places_keeps_the_error_what_it_is(directory: Path) -> None:
    """The new error has the class and the code of the old one, and its problems with their places."""
    error = CompositionError([Problem("DL202", "wrong", ("profile",))])
    found = compose("base", config_dir=directory).located(error)
    assert (type(found), found.code) == (CompositionError, "DL202")
    assert [replace(problem, where=None) for problem in found.problems] == list(error.problems)
    assert str(found) == render(list(error.problems), provenance("base", config_dir=directory))


def test_a_place_that_is_known_is_kept(directory: Path) -> None:
    """What already has its place is not looked for a second time."""
    error = compose("base", config_dir=directory).located(ConfigError([Problem("DL202", "wrong", ("profile",))]))
    other = compose("base", ["declog.profile=x"], config_dir=directory)
    assert other.located(error).problems == error.problems


def test_a_problem_as_plain_values(directory: Path) -> None:
    """For programs: the place, what is marked in the line, and the layers that lost."""
    known = provenance("team", ["declog.metrics.reward.reduce=p95x"], config_dir=directory)
    problem = Problem("DL311", "unknown", ("metrics", "reward", "reduce"), "p95", source="p95x", span=(0, 4))
    (in_override,) = located([problem], known)
    (in_file,) = located([Problem("DL202", "wrong", ("profile",))], known)
    assert json.loads(json.dumps([as_dict(each) for each in (in_override, in_file, Problem("DL102", "no"))])) == [
        {
            "code": "DL311", "severity": "error", "message": "unknown", "path": "metrics.reward.reduce",
            "file": None, "line": None, "column": None, "override": "declog.metrics.reward.reduce=p95x",
            "source": "declog.metrics.reward.reduce=p95x", "marked": [30, 34], "fix": "p95",
            "earlier": [
                {"file": "declog/team.yaml", "line": 4, "column": 5},
                {"file": "declog/base.yaml", "line": 3, "column": 25},
            ],
            "related": [],
        },
        {
            "code": "DL202", "severity": "error", "message": "wrong", "path": "profile",
            "file": "declog/base.yaml", "line": 1, "column": 10, "override": None,
            "source": "profile: full", "marked": [10, 14], "fix": None, "earlier": [], "related": [],
        },
        {
            "code": "DL102", "severity": "error", "message": "no", "path": None, "file": None, "line": None,
            "column": None, "override": None, "source": None, "marked": None, "fix": None, "earlier": [], "related": [],
        },
    ]  # fmt: skip


def test_colours_are_for_terminals(directory: Path) -> None:
    """The same text, with the code, the place, the carets and the word `fix` coloured; never by itself."""
    known = provenance("base", config_dir=directory)
    problem = Problem("DL202", "wrong", ("profile",), "full")
    error = ConfigError(located([problem], known))
    assert error.text(colour=True).splitlines() == [
        "\x1b[1;31merror[DL202]\x1b[0m \x1b[1mdeclog/base.yaml:1:10 in profile\x1b[0m",
        "  wrong",
        "    \x1b[2m1 | \x1b[0mprofile: full",
        "    \x1b[2m  | \x1b[0m         \x1b[1;31m^^^^\x1b[0m",
        "  \x1b[32mfix:\x1b[0m full",
    ]
    assert re.sub("\x1b\\[[0-9;]*m", "", error.text(colour=True)) == error.text() == str(error)


def test_tabs_keep_the_caret_in_its_column(write_preset: WritePreset) -> None:
    """A tab is as wide as the terminal makes it: the line of carets repeats it."""
    directory = write_preset("tabs", "metrics: {a: 'kl\t', b: rewrd}\n")
    problem = Problem("DL302", "unknown signal", ("metrics", "b"), source="rewrd", span=(0, 5))
    assert shown(directory, problem, name="tabs").splitlines()[2:] == [
        "    1 | metrics: {a: 'kl\t', b: rewrd}",
        "      |                 \t      ^^^^^",
    ]
