"""Keys and words that a new user expects elsewhere, or by another name: the error has the line to write."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import declog
from declog.errors import Problem, elsewhere
from declog.errors.elsewhere import calls
from declog.language import reductions
from declog.language.fixes import unparsable
from declog.language.functions import BUILTIN as FUNCTIONS
from declog.language.functions import Functions
from declog.language.keys import below, keys, model_of
from declog.language.spec import AxesSpec, LogSpec, SinkSpec
from declog.plans.words import explain
from declog.runs.run import Run
from declog.runs.series import Series
from declog.testing import MemorySink
from tests.running import profile

KEYS = "one of the keys: any, axis, family, from, from_log_extra, mask, phase, required, type"


@pytest.mark.parametrize(
    ("sections", "fixes"),
    [
        ({"signals": {"reward": "completion"}}, ["signals: {any: {reward: completion}}"]),
        (
            {"signals": {"a": {"axis": "step", "phase": "update"}}, "derived": {"late": "step > 10"}},
            ["signals: {update: {a: {axis: step}}}"],
        ),
        (
            {"signals": {"a": {"axis": "token", "phase": {"first": "rollout", "second": "update"}}}},
            ["signals: {rollout: {a: {axis: token}}, update: {a: {axis: token}}}"],
        ),
        ({"signals": {"update": {"a": {"axis": "step", "phase": "late"}}}}, ["signals: {late: {a: {axis: step}}}"]),
        ({"signals": {"ratio": "exp(a - b)"}}, ["derived: {ratio: exp(a - b)}"]),
        ({"signals": {"update": {"late": "step > 10"}}}, ['derived: {late: "step > 10"}']),
        ({"signals": {"kl": {"expr": "a - b", "help": "far"}}}, ["derived: {kl: {expr: a - b, help: far}}"]),
        ({"signals": {"update": {"a": {"axis": "step"}, "kl": {"expr": "a"}}}}, ["derived: {kl: {expr: a}}"]),
        ({"derived": {"a": "completion text"}}, ["signals: {any: {a: completion text}}"]),
        ({"signals": {"a": "step", "b": "a"}}, ["signals: {any: {a: step}}", "derived: {b: a}"]),
    ],
)
def test_signals_stand_under_their_phases_and_what_is_derived_in_its_section(sections: Any, fixes: list[str]) -> None:
    """Class: a declaration in the wrong section, or without its phase, is answered with the line to write."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.validate({"run": {"name": "x"}, **sections})
    assert [problem.fix for problem in caught.value.problems] == fixes


@pytest.mark.parametrize(
    ("sections", "fix"),
    [
        ({"signals": {"any": {"a": "completion text?"}}}, "write `completion text`"),
        ({"signals": {"any": {"a": "completion? int"}}}, "write `completion int`"),
        ({"signals": {"any": {"a": "step optional"}}}, "write `step`"),
        ({"signals": {"any": {"a": {"axis": "step", "optional": True}}}}, None),
        ({"metrics": {"a": {"observe": {"axis": "step", "optional": True}}}}, None),
        ({"metrics": {"a": {"observe": "step?"}}}, "write `step`"),
        ({"schemas": {"s": {"a": {"type": "float", "nullable": True}}}}, None),
    ],
)
def test_absence_is_the_default(sections: Any, fix: str | None) -> None:
    """Class: a word that lets something be absent is answered with what to write, or with dropping it."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.validate({"run": {"name": "x"}, **sections})
    drop = "drop it: that is the default, and `required: true` says the opposite"
    assert [problem.fix for problem in caught.value.problems] == [fix or drop]


@pytest.mark.parametrize(
    ("metric", "fix"),
    [
        ("mean(sum(rewards, over=column))", "did you mean `member`?"),
        ("mean(column(rewards, 'right'))", "did you mean `member`?"),
        ("mean(columns(rewards))", "did you mean `members`?"),
        ({"expr": "rewards", "name": "rewards/{column}"}, "did you mean `{member}`?"),
    ],
)
def test_a_member_of_a_family_is_no_column(metric: Any, fix: str) -> None:
    """Class: the word for columns of a table, in expressions and templates, is told the one for members."""
    made = {"signals": {"any": {"rewards": {"axis": "completion", "family": True}}}, "metrics": {"m": metric}}
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(made)
    assert caught.value.problems[0].fix == fix


@pytest.mark.parametrize(
    ("keys", "fixes"),
    [
        ({"cumulative": True}, ["over: run"]),
        ({"ema": 0.9}, ["combine: ema(0.9)"]),
        (
            {"combine": "product"},
            [
                "one of the ways: ema(0.9), first, lag(1), last, max, mean, min, rolling(50), rolling_std(50), "
                "std, sum, var"
            ],
        ),
        ({"combine": "ema(9)"}, ["ema(0.889)"]),
    ],
)
def test_over_says_what_a_value_covers_and_combine_how_values_become_one(keys: Any, fixes: list[str]) -> None:
    """Class: a word for it that is no key, or a way that is none, is answered with the line to write."""
    made = {"signals": {"any": {"a": {"axis": "completion"}}}, "metrics": {"m": {"expr": "a", **keys}}}
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(made)
    assert [problem.fix for problem in caught.value.problems] == fixes


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("title", "KL", "about: {m: {title: KL}}"), ("healthy", [0, 0.2], "about: {m: {healthy: [0, 0.2]}}"),
        ("description", "far", "about: {m: {help: far}}"), ("chart", "divergence", "about: {m: {chart: divergence}}"),
    ],
)  # fmt: skip
def test_what_a_metric_means_has_a_section(key: str, value: Any, fix: str) -> None:
    """Class: a key of another section is answered with its line there."""
    made = {"signals": {"any": {"a": {"axis": "completion"}}}, "metrics": {"m": {"expr": "a", key: value}}}
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(made)
    assert [problem.fix for problem in caught.value.problems] == [f"{fix}, a section of its own"]


def test_about_is_of_metrics_that_there_are() -> None:
    """What is said of a deleted metric, or of one that is off, is ignored; a wrong name is not."""
    made = {
        "signals": {"any": {"a": {"axis": "completion"}}}, "metrics": {"m": "mean(a)", "gone": None,
            "off": {"enabled": False}},
        "about": {"m": {"unit": "s"}, "gone": {"unit": "s"}, "off": {"unit": "s"}, "logged": {"title": "Others"}},
    }  # fmt: skip
    assert [op.about.unit for op in declog.plan(made).metrics if op.id == "m"] == ["s"]
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({**made, "about": {"mm": {"unit": "s"}}})
    assert [(one.code, one.path, one.fix) for one in caught.value.problems] == [
        ("DL403", ("about", "mm"), "did you mean `m`?")
    ]


@pytest.mark.parametrize(
    ("metric", "path", "fix"),
    [
        ({"axis": "step", "reduce": "last"}, ("axis",), "observe: step"),
        ({"from": "actor/kl"}, ("from",), "observe: {from: actor/kl}"),
        ({"observe": "stp"}, ("observe",), "did you mean `step`?"),
        ({"observe": {"axis": "step", "enabled": False}}, ("observe", "enabled"), KEYS),
        ({"observe": {"axis": "step", "help": "far"}}, ("observe", "help"), KEYS),
    ],
)
def test_a_metric_observes_its_signal(metric: Any, path: tuple[str, ...], fix: str) -> None:
    """Class: what a metric says of its own signal stands under one key, and what is said twice is refused."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({"metrics": {"m": metric}})
    assert [(problem.path, problem.fix) for problem in caught.value.problems] == [(("metrics", "m", *path), fix)]


def test_observe_is_a_declaration_of_signals() -> None:
    """In its words, and as a map: the signal is that of `signals`."""
    signal = {"axis": "completion", "type": "int"}
    plans = [
        declog.plan({"run": {"name": "x"}, "metrics": {"m": {"observe": "completion int"}}}),
        declog.plan({"run": {"name": "x"}, "metrics": {"m": {"observe": signal}}}),
        declog.plan({"run": {"name": "x"}, "signals": {"any": {"m": signal}}, "metrics": {"m": {}}}),
    ]
    assert len({plan.fingerprint for plan in plans}) == len({explain(plan) for plan in plans}) == 1


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("strict", True, "run: {strict: true}"),
        ("window_bytes", 1, "run: {window_bytes: 1}"),
        ("capture", {"every": 2}, "run: {capture: {every: 2}}"),
        ("run_config", {"method": "grpo"}, "run: {config: {method: grpo}}"),
    ],
)
def test_how_a_run_behaves_stands_under_run(key: str, value: Any, fix: str) -> None:
    """Class: a key of a section that stands at the top. The error has the lines to write, with the value."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({"signals": {"any": {"a": {"axis": "step"}}}, "metrics": {"m": "mean(a)"}, key: value})
    assert [(one.code, one.path, one.fix) for one in caught.value.problems] == [("DL201", (key,), fix)]


@pytest.mark.parametrize(
    ("entry", "fixes"),
    [
        ({"include": ["tag:core"]}, ["show: [tag:core] adds it; only: [tag:core] shows nothing else"]),
        (
            {"include": ["a"], "exclude": "b"},
            ["show: [a] adds it; only: [a] shows nothing else", "hide: [b]"],
        ),
    ],
)
def test_other_words_for_the_selectors_of_a_profile(entry: Any, fixes: list[str]) -> None:
    """Class: what other tools call a list of what is shown, or of what is hidden, is answered with the key."""
    made = {"signals": {"any": {"a": {"axis": "step"}}}, "metrics": {"m": "mean(a)"}, "profiles": {"slim": entry}}
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan(made)
    assert [problem.fix for problem in caught.value.problems] == fixes


@pytest.mark.parametrize(
    ("slim", "names"),
    [
        (None, {"core_one"}),
        ({"show": ["other"]}, {"core_one", "other"}),
        ({"only": ["other"]}, {"other"}),
        ({"only": ["*"], "hide": ["tag:core"]}, {"other", "third"}),
        ({"hide": ["core_one"], "show": ["core_one"]}, {"core_one"}),
    ],
)
def test_slim_is_there_in_every_config(slim: Any, names: set[str]) -> None:
    """It shows what is tagged `core`; `show` adds and wins over `hide`, `only` is a closed list."""
    metrics = {"core_one": {"expr": "a", "tags": ["core"]}, "other": "mean(a)", "third": "max(a)"}
    made = {"signals": {"any": {"a": {"axis": "step"}}}, "metrics": metrics, "profile": "slim"}
    plan = declog.plan(made if slim is None else made | {"profiles": {"slim": slim}})
    assert {key.split(".")[0] for key, _ in plan.profiles["slim"].outputs} - {"logged"} == names


def test_a_member_that_is_shown_wins_over_its_family_that_is_hidden(tmp_path: Path) -> None:
    """Class: `show` wins for names of members and labels as for metrics."""
    signals = {"rewards": {"axis": "step", "family": True}}
    chosen = {"hide": ["rewards/*"], "show": ["rewards/b"]}
    made = profile(signals, {"rewards": {"expr": "rewards", "name": "rewards/{member}"}}, profiles={"full": chosen})
    with declog.start(made, sinks=[sink := MemorySink()], output_dir=tmp_path) as log, log.step(0):
        log.observe(rewards={"a": 1.0, "b": 2.0})
    assert [item.name for item in sink.events[0][1].scalars] == ["rewards/b"]


ARGUMENTS = {"c": "correct", "m": "correct", "t": "completion", "s": "'a'", "g": "source", "k": "0.9"}
ARGUMENTS |= {"l": "logprobs", "l2": "old_logprobs", "s2": "'b'", "text": "source", "int": "number"}
CALLS = [f"{name}{call[call.index('(') :]}" for call in calls() for name in call.partition("(")[0].split("|")]


@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_another_library_is_answered_with_what_compiles(call: str) -> None:
    """Class: numpy's, torch's, pandas' and SQL's functions by their own names, called plainly or as methods of `np`."""
    name, parameters = call.partition("(")[0], re.findall(r"\w+", call.partition("(")[2])
    written = f"{name}({', '.join(ARGUMENTS.get(each, 'reward') for each in parameters)})"
    signals = {"reward": "completion", "correct": "completion bool", "completion": "completion text"}
    signals |= {
        "number": "completion int",
        "source": "completion text",
        "mask": "token bool",
        "logprobs": "token",
        "old_logprobs": "token",
    }

    functions, reducers = Functions(FUNCTIONS), reductions.Reductions(reductions.BUILTIN)

    def problems(metric: object, **beside: object) -> Sequence[Problem]:
        metrics = {**beside, "x": metric}
        data = {"signals": {"any": signals}, "axes": {"group": 4, "token": {"mask": "mask"}}, "metrics": metrics}
        try:
            declog.compile(declog.validate(data), functions=functions, reductions=reducers)
        except declog.ConfigError as error:
            return error.problems
        return []

    own = name in functions.names()  # the language has it by this name, too: plainly called it is right
    for text in (f"np.{written}",) if own else (written, f"np.{written}"):
        (problem,) = problems(text)
        assert problem.fix is not None
        if problem.fix.startswith("write"):
            continue
        if yours := re.match(
            r"one of yours: `@declog\.(\w+)` above `(def \w+\([^()]*\)(?: -> str)?): (.+)`, in a module", problem.fix
        ):
            if text == written:
                continue
            scope: dict[str, Any] = {"np": np}
            exec(f"{yours[2]}: {yours[3].replace('...', 'return None')}", scope)  # what the fix says
            registry: Any = functions if yours[1] == "function" else reducers
            registry.adopt(name, scope[name])
            named = [f"{each}=1" if f"*, {each}" in yours[2] else ARGUMENTS.get(each, "reward") for each in parameters]
            called = f"{name}({', '.join(named)})"
            assert problems(f"mean(len({called}))" if yours[2].endswith("-> str") else called) == []
            continue
        if problem.fix.startswith("metrics: "):
            *beside, metric = yaml.safe_load(problem.fix)["metrics"].items()
            assert problems(metric[1], **dict(beside)) == []
            continue
        fix = problem.fix.replace("majority(source)", "mean(len(majority(source)))")  # a text, which a metric measures
        fix = re.sub(r"\}: .+", "}", fix)  # words behind it
        assert problems(yaml.safe_load(fix) if fix.startswith("{") else fix) == []


@pytest.mark.parametrize(
    ("word", "quantile"),
    [
        ("p9O", "p90"),
        ("p900", "p90"),
        ("p950", "p95"),
        ("p999", "p99.9"),
        ("p9999", "p99.99"),
        ("p101", "p99"),
        ("q95", "p95"),
    ],
)
def test_digits_that_are_no_quantile_name_the_one_they_stand_for(word: str, quantile: str) -> None:
    """Class: a level above 100, or with letters for digits."""
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({"signals": {"any": {"x": "completion"}}, "metrics": {"a": {"expr": "x", "reduce": word}}})
    assert caught.value.problems[0].fix == f"did you mean `{quantile}`?"


# An entry of each section, beside which a key of another tool stands.
ENTRIES: dict[str, dict[str, Any]] = {
    "about": {"x": {"unit": "s"}},
    "metrics": {"m": {"expr": "reward"}}, "signals": {"any": {"s": {"axis": "completion"}}},
    "derived": {"d": {"expr": "reward * 2"}}, "constants": {"c": {"value": 1}}, "axes": {"group": {"of": "group"}},
    "modes": {"eval": {"prefix": "eval/"}}, "filters": {"f": {"where": "reward > 0"}},
    "schemas": {"w": {"reward": {"type": "float"}}}, "tables": {"t": {"columns": ["reward"]}},
    "profiles": {"p": {"hide": []}}, "alerts": {"a": {"when": "reward > 1"}}, "run": {},
}  # fmt: skip


@pytest.mark.parametrize("section", ["", *ENTRIES])
def test_keys_of_other_tools(section: str) -> None:
    """Each is unknown to the language, and answered with its line; where that begins with a key, the key exists."""
    words = elsewhere.keys()
    for word in words:
        of_section, _, key = word.rpartition(".")
        if of_section != section:
            continue
        sections = copy.deepcopy({section: ENTRIES[section]} if section else {})
        entry: Any = sections.get(section, sections)
        while isinstance(inner := next(iter(entry.values()), None), dict):
            entry = inner
        if word == "axes.of":  # a key of groups alone
            sections["axes"] = {"completion": (entry := {})}
        assert key not in entry, word
        entry[key] = 3
        with pytest.raises(declog.ConfigError) as caught:
            declog.validate({"run": {"name": "x"}, **sections})
        problems = [problem for problem in caught.value.problems if problem.path[-1:] == (key,)]
        assert [problem.code for problem in problems] == ["DL201"], word
        fix = str(problems[0].fix)
        assert not re.search("<(key|value|id|expr)>", fix), word
        first = re.match(r"([a-z_]+): ", fix)
        if first is not None and first[1] not in {*keys(LogSpec), "defaults"}:
            models_of = [model_of(reduce(below, problems[0].path[:-1], LogSpec)), SinkSpec]
            models_of += (
                [AxesSpec, *(model_of(key.type) for key in keys(AxesSpec).values())] if section == "axes" else []
            )
            named = first[1] == problems[0].path[-2]  # the entry as a whole
            assert named or any(first[1] in keys(model) for model in models_of if model is not None), (word, fix)


def test_attributes_of_other_loggers() -> None:
    """Each is no attribute of declog's own, so that its line is what is said."""
    kinds: dict[str, list[object]] = {"log": [declog, declog.Recorder], "run": [Run], "series": [Series]}
    for word, text in elsewhere.attributes().items():
        section, _, name = word.partition(".")
        assert text and not all(hasattr(kind, name) for kind in kinds.get(section, [None])), word


@pytest.mark.parametrize("file", ["keys.txt", "attributes.txt", "calls.txt"])
def test_a_word_has_one_answer(file: str) -> None:
    """No word of a section, and no call of so many arguments, stands in two lines: the later one would win unseen."""
    lines = [line.partition(": ")[0] for line in elsewhere._lines(file)]
    words = [
        (section, word) for section, _, names in (line.rpartition(".") for line in lines) for word in names.split()
    ]
    if file == "calls.txt":
        calls_of = [line.partition("(") for line in lines]
        words = [  # a call of a text, an int or a float has a line of its own
            (behind if behind in ("text)", "int)", "float)") else str(behind.count(",")), name)
            for names, _, behind in calls_of for name in names.split("|")
        ]  # fmt: skip
    assert [word for word, count in Counter(words).items() if count > 1] == []


def test_a_reduction_is_no_word_of_elsewhere() -> None:
    """`max(reward) by source` is asked for as `max`; the name `count` is a size, too."""
    assert set(reductions.BUILTIN.names()) & elsewhere.SYNONYMS.keys() == {"count"}
    for word in ("mean", "sum", "min", "max", "std", "var", "count", "last"):
        assert f"reduce: {word}, by: source" in str(unparsable.of_text(f"{word}(reward) by source", "by"))


@pytest.mark.parametrize(
    ("metric", "fix"),
    [
        ("mean(update.advantages)", "write `mean(advantages)`, and where it {moved}"),
        ("mean(rollout.advantages)", "write `mean(advantages)`"),
        ("mean(update.logprobs)", "write `mean(logprobs)`"),
        ({"expr": "advantages", "phase": "update"}, "drop it, and where `advantages` {moved}"),
        ({"expr": "square(steep)", "phase": "update"}, "drop it, and where `advantages` {moved}"),
        ({"expr": "advantages", "phase": "rollout"}, "drop it: its signals are read in that phase"),
        ({"expr": "ratio * advantages", "phase": "update"}, "drop it: its signals are read in that phase"),
        ({"expr": "reward", "phase": "update"}, "its signals say it: signals: {{update: {{...}}}}"),
    ],
)
def test_a_metrics_phase(metric: Any, fix: str) -> None:
    """Class: a metric is told which phase it reads; the fix is an edit with which it does, where one is needed."""
    moved = "comes in `update` only: `signals: {rollout: {advantages: null}}`"
    config = declog.config_of("ppo")
    config["derived"]["steep"] = {"expr": "advantages > 1"}
    with pytest.raises(declog.ConfigError) as caught:
        declog.plan({**config, "metrics": {**config["metrics"], "mine": metric}})
    assert caught.value.problems[0].fix == fix.format(moved=moved)
    config["signals"]["rollout"]["advantages"] = None
    plan = declog.plan({**config, "metrics": {**config["metrics"], "mine": "mean(advantages)"}})
    assert {op.phase for op in plan.metrics if op.id == "mine"} == {"update"}
