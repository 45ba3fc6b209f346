"""What a profile says, it does: what would have no effect, or another one than it looks like, is reported."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

import declog
from declog.cli import main
from declog.errors import ConfigError
from declog.language.functions import BUILTIN, Functions
from declog.language.reductions import BUILTIN as REDUCTIONS
from declog.language.reductions import Reductions

BASE: dict[str, Any] = {"signals": {"any": {"r": {"axis": "completion"}}}, "metrics": {"r": "mean(r)"}}
FULL = """
constants: {beta: {default: 1}}
modes: {eval: {prefix: eval/}}
signals: {any: {reward: {axis: completion}, text: {axis: completion, type: text}}}
derived: {double: 2 * reward}
metrics: {reward: {reduce: [mean, {top: max}]}}
filters: {hard: {first: 1}}
schemas: {rows: {reward: float, text: {type: text, redact: {digits: '[0-9]'}}}}
tables: {rows: {schema: rows, to: {jsonl: true}}}
profiles: {slim: {only: [reward]}}
alerts: {low: {when: reward.mean < 0}}
sinks: [jsonl]
sink_options: {jsonl: {every: 1}}
tests: {one: {observe: {reward: [1]}, expect: {reward.mean: 1}}}
"""
SECTIONS = {
    "constants": ("betta", "beta"),
    "modes": ("evall", "eval"),
    "signals": ("anny", "any"),
    "signals.any": ("rewardd", "reward"),
    "derived": ("doubel", "double"),
    "metrics": ("rewardd", "reward"),
    "filters": ("hards", "hard"),
    "schemas": ("row", "rows"),
    "tables": ("row", "rows"),
    "profiles": ("slimm", "slim"),
    "alerts": ("lo", "low"),
    "sink_options": ("json", "jsonl"),
    "tests": ("onne", "one"),
    "schemas.rows": ("rewrd", "reward"),
    "schemas.rows.text.redact": ("digit", "digits"),
    "tables.rows.to": ("json", "jsonl"),
}


def written(folder: Path, **files: str) -> Path:
    """Presets in a folder of their own."""
    (folder / "declog").mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / "declog" / f"{name}.yaml").write_text(text, encoding="utf-8")
    return folder


def nulled(section: str, name: str) -> str:
    """A profile that extends `full` and deletes one entry."""
    opening = "".join(f"{key}: {{" for key in section.split("."))
    return f"defaults: [full, _self_]\n{opening}{name}: null{'}' * (section.count('.') + 1)}\n"


@pytest.mark.parametrize("section", SECTIONS)
def test_null_for_what_does_not_exist_is_refused(section: str, tmp_path: Path) -> None:
    """In every section and in every map whose keys users name; the fix is the nearest entry."""
    wrong, right = SECTIONS[section]
    folder = written(tmp_path, full=FULL, mine=nulled(section, wrong))
    with pytest.raises(ConfigError) as raised:
        declog.plan(declog.compose("mine", config_dir=folder))
    (problem,) = raised.value.problems
    assert (problem.code, problem.key, problem.fix) == ("DL201", f"{section}.{wrong}", f"did you mean `{right}`?")
    assert problem.where is not None and problem.where.excerpt is not None
    excerpt = problem.where.excerpt
    assert excerpt.text[excerpt.start : excerpt.end] == wrong


@pytest.mark.parametrize("section", ["modes", "filters", "alerts", "tests", "sink_options", "schemas.rows.text.redact"])
def test_null_for_what_exists_deletes_it(section: str, tmp_path: Path) -> None:
    """By a file, and by an override; nothing is said."""
    folder = written(tmp_path, full=FULL + "\n", mine=nulled(section, SECTIONS[section][1]))
    assert declog.plan(declog.compose("mine", config_dir=folder)).warnings == ()


def test_a_metric_without_a_value_is_told_how_to_say_the_mean(tmp_path: Path) -> None:
    """`reward:` is null in YAML: of a signal that there is, it stands for the mean."""
    folder = written(tmp_path, mine="signals: {any: {reward: completion}}\nmetrics:\n  reward:\n")
    with pytest.raises(ConfigError) as raised:
        declog.plan(declog.compose("mine", config_dir=folder))
    expected = [("DL201", "metrics.reward", "for the mean of the signal: `reward: mean`")]
    assert [(each.code, each.key, each.fix) for each in raised.value.problems] == expected
    mended = written(tmp_path, mine="signals: {any: {reward: completion}}\nmetrics:\n  reward: mean\n")
    plan = declog.plan(declog.compose("mine", config_dir=mended))
    assert [(op.id, op.reduction.name) for op in plan.metrics][:1] == [("reward", "mean")]


@pytest.mark.parametrize("preset", ["rloo", "ppo", "trl_ppo", "maxent_grpo", "minimal"])
def test_composed_data_that_is_kept_as_a_file_is_the_same_plan(preset: str, tmp_path: Path) -> None:
    """A null of a file without `defaults` deletes nothing, as one of plain data: a run's config.yaml, and a dump."""
    plan = declog.plan(preset, ["sinks=[jsonl]"])
    with declog.start(preset, ["sinks=[jsonl]"], output_dir=tmp_path / "run") as log:
        assert log.plan.fingerprint == plan.fingerprint
    assert declog.plan(str(tmp_path / "run" / "config.yaml")).fingerprint == plan.fingerprint
    data = declog.config_of(declog.compose(preset, ["sinks=[jsonl]"]))
    for dump in (yaml.safe_dump(data, sort_keys=False), OmegaConf.to_yaml(OmegaConf.create(data))):
        folder = written(tmp_path, kept=dump)
        assert declog.plan(declog.compose("kept", config_dir=folder)).fingerprint == plan.fingerprint


def test_a_null_beside_defaults_must_delete_something(tmp_path: Path) -> None:
    """What the file's own text says decides, not the word `defaults` in a value of another file."""
    folder = written(tmp_path, full=FULL, kept="metrics: {none: null}\n", last="defaults: [kept, full, _self_]\n")
    declog.plan(declog.compose("last", config_dir=folder))
    folder = written(tmp_path, full=FULL, last="defaults: [full, _self_]\nmetrics: {none: null}\n")
    with pytest.raises(ConfigError, match="deletes nothing"):
        declog.plan(declog.compose("last", config_dir=folder))


def test_an_override_and_a_second_layer_are_distinguished_too(tmp_path: Path) -> None:
    """What one layer deleted, another need not find; what an override nulls must be there."""
    folder = written(tmp_path, full=FULL, mine=nulled("alerts", "low"), last="defaults: [mine]\nalerts: {low: null}\n")
    assert declog.plan(declog.compose("last", config_dir=folder)).alerts == ()
    with pytest.raises(ConfigError, match="deletes nothing"):
        declog.plan(declog.compose("full", ["+declog.alerts.lo=null"], config_dir=folder))


@pytest.mark.parametrize(
    ("option", "expected"),
    [("project", ()), ("projectt", (("DL201", "did you mean `project`?"),))],
)
def test_null_for_a_sinks_option_takes_it_back(
    option: str, expected: tuple[tuple[str, str], ...], tmp_path: Path
) -> None:
    """An option that the kind has is reset to its default; another is unknown, null or not."""
    folder = written(
        tmp_path,
        full=f"{FULL}\n",
        mine=f"defaults: [full, _self_]\nsinks: [wandb]\nsink_options: {{wandb: {{{option}: null}}}}\ntables: null\n",
    )
    config = declog.compose("mine", config_dir=folder)
    found: Sequence[Any] = ()
    try:
        assert [op.options for op in declog.plan(config).sinks if op.id == "wandb"] == [()]
    except ConfigError as error:
        found = error.problems
    assert tuple((each.code, each.fix) for each in found) == expected


@pytest.mark.parametrize(
    ("defaults", "expected"),
    [("[_self_, full]", True), ("[full, _self_]", False), ("[full]", False), ("\n  - _self_\n  - full", True)],
)
def test_self_before_what_it_should_override(defaults: str, expected: bool, tmp_path: Path) -> None:
    """The file's own keys lose: reported by name, in every way to write the list, and only where something is lost."""
    folder = written(tmp_path, full=f"every: 1\n{FULL}", mine=f"defaults: {defaults}\nevery: 5\n")
    made = declog.plan(declog.compose("mine", config_dir=folder))
    assert made.every == (1 if expected else 5)
    assert ["`_self_` stands before `full`" in warning and " every" in warning for warning in made.warnings] == (
        [True] * expected
    )


def test_self_first_is_nobodys_business_where_nothing_is_lost(tmp_path: Path) -> None:
    """Other keys than those of the preset are as good before it."""
    folder = written(tmp_path, full=FULL, mine="defaults: [_self_, full]\nrun: {name: mine}\n")
    assert declog.plan(declog.compose("mine", config_dir=folder)).warnings == ()


@pytest.mark.parametrize(
    ("defaults", "told"),
    [
        (
            "[team, rloo, _self_]",
            "which overrides what that says of axes.group.size, sinks; a file for several presets extends none",
        ),
        ("[rloo, team, _self_]", None),
        ("[team, {packs: [tools]}, _self_]", None),
        ("[team, other, _self_]", None),
    ],
)
def test_a_preset_behind_a_teams_file_is_told(tmp_path: Path, defaults: str, told: str | None) -> None:
    """A shipped preset takes back the team's keys; a pack adds, and another file of the team's may override."""
    team = "defaults: [grpo, _self_]\naxes: {group: {size: 4}}\nsinks: [jsonl]\n"
    folder = written(tmp_path, team=team, other="sinks: [parquet]\n", mine=f"defaults: {defaults}\n")
    warnings = declog.plan(declog.compose("mine", config_dir=folder)).warnings
    assert [told is not None and told in warning for warning in warnings if "stands before" in warning] == [True] * (
        told is not None
    )


def test_a_whole_config_below_a_key(tmp_path: Path) -> None:
    """Hydra's `@` puts a file of metrics below `metrics`; a file with a preset of its own belongs at the top."""
    team = "defaults: [grpo, _self_]\naxes: {group: {size: 4}}\n"
    folder = written(tmp_path, team=team, some="late: p95(reward)\n", mine="defaults: [team, some@metrics, _self_]\n")
    written(tmp_path, more="defaults: [some, _self_]\nlast: p90(reward)\n")
    for defaults in ("some@metrics", "more@metrics"):  # the second has a file below it
        written(tmp_path, mine=f"defaults: [team, {defaults}, _self_]\n")
        assert "late" in {op.id for op in declog.plan(declog.compose("mine", config_dir=folder)).outputs}, defaults
    (folder / "declog" / "mine.yaml").write_text("defaults: [grpo, team@metrics.team, _self_]\n")
    with pytest.raises(ConfigError) as caught:
        declog.plan(declog.compose("mine", config_dir=folder))
    (problem,) = caught.value.problems
    assert problem.message.startswith("`team` is a whole config") and problem.fix == "- team"


def test_a_warning_is_an_error_under_strict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1."""
    folder = written(tmp_path, full=f"every: 1\n{FULL}", mine="defaults: [_self_, full]\nevery: 5\n")
    place = str(folder / "declog" / "mine.yaml")
    assert [main(["check", place]), main(["check", place, "--strict"])] == [0, 1]
    assert "write `_self_` last: [full, _self_]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ({}, 1),
        ({"run": {"name": "x"}}, 1),
        ({"signals": BASE["signals"]}, 1),
        ({"metrics": {"a": None}}, 1),
        (BASE, 0),
        ({"signals": BASE["signals"], "schemas": {"s": {"r": "float"}}, "tables": {"t": {"schema": "s"}}}, 0),
    ],
)
def test_an_empty_profile_says_so(profile: dict[str, Any], expected: int) -> None:
    """Nothing but what `log_metric` gives would be logged."""
    assert ["no metric and no table" in each for each in declog.plan(profile).warnings] == [True] * expected


@pytest.mark.parametrize(
    ("metric", "intended"),
    [
        ({"expr": "r", "reduce": "p0.95"}, "p95"),
        ("p0.5(r)", "p50"),
        ({"expr": "r", "reduce": ["mean", "p0_99"]}, "p99"),
        ({"expr": "r", "reduce": [{"high": "p0.999"}]}, "p99.9"),
        ({"expr": "r", "reduce": "p99.9"}, None),
        ({"expr": "r", "reduce": "p1"}, None),
        ({"expr": "r", "reduce": "p0"}, None),
    ],
)
def test_a_quantile_below_one_percent_is_doubted(metric: Any, intended: str | None) -> None:
    """`p0.95` is the 0.95 % quantile: the warning names the one that is mostly intended."""
    warnings = declog.plan({**BASE, "metrics": {"m": metric}}).warnings
    assert [each.rpartition("is ")[2] for each in warnings] == ([] if intended is None else [f"`{intended}`"])


@pytest.mark.parametrize(
    ("modes", "metrics", "path"),
    [
        ({"eval": {}}, {}, "modes.eval"),
        ({"train": {}, "eval": {"every": "end"}}, {}, "modes.eval"),
        ({"eval": {"prefix": "e/"}, "test": {"prefix": "e/"}}, {}, "modes.test.prefix"),
        ({"train": {"prefix": "x/"}, "eval": {"prefix": "x/"}}, {}, "modes.eval.prefix"),
        ({"eval": {"prefix": "eval/"}}, {"s": {"expr": "r", "name": "eval/r"}}, "metrics.s"),
        ({"eval": {"prefix": "eval/"}}, {"s": {"expr": "r", "name": "eval_r"}}, None),
        ({"train": {"prefix": "train/"}, "eval": {}}, {}, None),
    ],
)
def test_modes_never_share_a_name(modes: dict[str, Any], metrics: dict[str, Any], path: str | None) -> None:
    """Without a prefix of its own a mode would write into another's curves; nor may a metric's own name be one."""
    profile = {**BASE, "modes": modes, "metrics": {**BASE["metrics"], **metrics}}
    found = []
    try:
        declog.plan(profile)
    except ConfigError as error:
        found = [(problem.code, problem.key) for problem in error.problems]
    assert found == ([] if path is None else [("DL402", path)])


SINK = """
from declog.testing import MemorySink as Sink
def shared(x): return x * {factor}
def shared_reduction(values): return float(values.sum())
def shared_call(r: float) -> float: return r
"""
ENTRIES = """
[declog.functions]
{name} = {module}:shared
[declog.reducers]
{name} = {module}:shared_reduction
[declog.columns]
{name} = {module}:shared_call
[declog.sinks]
{name} = {module}:Sink
"""


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two installed packages that provide the same names, and one of them a name of declog's own."""
    for factor, package in ((2, "acme"), (3, "zenith")):
        module = f"declog_test_{package}"
        (tmp_path / f"{module}.py").write_text(SINK.format(factor=factor), encoding="utf-8")
        info = tmp_path / f"{package}-{factor}.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {factor}.0\n", "utf-8")
        entries = ENTRIES.format(name="shared", module=module)
        entries += "".join(
            f"[{group}]\n{name} = {module}:{what}\n"
            for group, name, what in (
                ("declog.functions", "clip", "shared"),
                ("declog.reducers", "max", "shared_reduction"),
                ("declog.sinks", "jsonl", "Sink"),
            )
            if package == "zenith"
        )
        (info / "entry_points.txt").write_text(_merged(entries), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "declog_test_acme" not in sys.modules


def _merged(text: str) -> str:
    """An INI file has each of its sections once."""
    sections: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if line.startswith("["):
            current = sections.setdefault(line, [])
        elif line:
            current.append(line)
    return "\n".join(f"{head}\n" + "\n".join(lines) for head, lines in sections.items())


BOTH = "provided by acme 2.0 and by zenith 3.0"
OWN = "provided by declog itself and by zenith 3.0"


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("profile", "given"),
    [
        ({"metrics": {"m": "mean(shared(r))"}}, f"function `shared` is {BOTH}"),
        ({"metrics": {"m": "mean(clip(r, 0, 1))"}}, f"function `clip` is {OWN}"),
        ({"metrics": {"m": "shared(r)"}}, f"reduction `shared` is {BOTH}"),
        ({"metrics": {"m": {"expr": "r", "reduce": "shared"}}}, f"reduction `shared` is {BOTH}"),
        ({"metrics": {"m": "max(r)"}}, f"reduction `max` is {OWN}"),
        ({"schemas": {"s": {"c": {"call": "shared"}}}, "tables": {"t": {"schema": "s"}}}, f"`shared` is {BOTH}"),
        ({"sinks": ["shared"]}, f"sink `shared` is {BOTH}"),
        ({"sinks": ["mine"], "sink_options": {"mine": {"kind": "jsonl"}}}, f"sink `jsonl` is {OWN}"),
    ],
)
def test_a_name_that_two_packages_provide_is_refused_where_it_is_used(profile: dict[str, Any], given: str) -> None:
    """Functions, reductions, columns and sinks: one problem that names both packages with their versions."""
    with pytest.raises(ConfigError) as raised:
        declog.plan({**BASE, **profile}, functions=Functions(BUILTIN), reductions=Reductions(REDUCTIONS))
    (problem,) = raised.value.problems
    assert given in problem.message


@pytest.mark.usefixtures("packages")
def test_what_a_profile_does_not_use_is_not_its_problem(capsys: pytest.CaptureFixture[str]) -> None:
    """Other names compile, and `ls` tells where each comes from."""
    made = declog.plan({**BASE, "metrics": {"m": "mean(abs(r))"}})
    assert made.metrics[0].key == "m"
    for what in ("functions", "reductions", "calls", "sinks"):
        assert main(["ls", what]) == 0
        (line,) = [line for line in capsys.readouterr().out.split("\n") if line.startswith("shared")]
        assert line.endswith("acme 2.0 and zenith 3.0")
