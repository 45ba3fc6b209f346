"""What a command line names: presets, files, applications, and packages that are installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import declog
from declog.distribution import NAME, VERSION
from tests.cli.conftest import SMALL, Cli
from tests.conftest import WritePreset
from tests.docs.markdown import ROOT

OK = "ok small: 4 outputs, 1 table, 0 alerts, 1 sink (jsonl)\n"
APP = ROOT / "tests" / "data" / "compose" / "app"


def test_a_preset_of_a_folder(small: Path, cli: Cli) -> None:
    """By name, with --config-dir; a wrong name is reported with the nearest."""
    assert cli("check", "small", "--config-dir", ".").out == OK
    found = cli("check", "smal", "--config-dir", ".")
    assert (found.code, found.err) == (
        3,
        "error[DL104] config\n  there is no preset `smal`\n  fix: did you mean `small`?\n",
    )


@pytest.mark.parametrize("name", ["declog/small.yaml", "./declog/small.yaml"])
def test_a_file_in_a_folder_of_presets(small: Path, cli: Cli, name: str) -> None:
    """It is the preset that Hydra would find there; the answer names it as it was typed."""
    assert cli("check", name).out == OK.replace("small", name)


@pytest.mark.parametrize(
    "name",
    [
        "mine.yaml", "my profile.yaml", "mine.v2.yaml", "deep/er/mine.yaml",
        "12.yaml", "1e5.yaml", "true.yaml", "null.yaml", "a,b.yaml", "(a).yaml",  # other values, to Hydra's grammar
    ],
)  # fmt: skip
def test_a_file_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, name: str) -> None:
    """With its own place in errors; it extends shipped presets and files beside it."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("defaults: [base, _self_]\nmetrics: {reward_p90: p90(rewrad)}\n", encoding="utf-8")
    (file.parent / "base.yaml").write_text(SMALL, encoding="utf-8")
    found = cli("check", name)
    assert (found.code, found.err) == (
        2,
        f"error[DL302] {name}:2:28 in metrics.reward_p90.expr\n"
        "  unknown signal `rewrad`\n"
        "    2 | metrics: {reward_p90: p90(rewrad)}\n"
        "      |                           ^^^^^^\n"
        "  fix: did you mean `reward`?\n",
    ) or found.err.startswith(f"error[DL302] {name}:2:27")


def test_a_file_that_is_not_there_has_a_neighbour(small: Path, cli: Cli) -> None:
    """The nearest file of the folder is named."""
    found = cli("check", "declog/smal.yaml")
    assert (found.code, found.err) == (
        3,
        "error[DL101] config\n  there is no file declog/smal.yaml\n  fix: did you mean `declog/small.yaml`?\n",
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", 0), (b"# nothing\n", 0), (b"- a list\n", 2), (b"just text\n", 2), (b"a: [\n", 3), (b"\xff\xfe\x00", 3),
        (b"metrics: {a: 1\n", 3), (b"metrics: {a: ${x\n", 3),
    ],
)  # fmt: skip
def test_files_that_are_no_profiles(tmp_path: Path, cli: Cli, text: bytes, code: int) -> None:
    """Whatever a file holds, what is wrong is reported without a traceback."""
    file = tmp_path / "odd.yaml"
    file.write_bytes(text)
    found = cli("check", str(file))
    assert (found.code, found.err.startswith("error[DL")) == (code, code != 0)


@pytest.mark.parametrize("odd", [b"\xff", b"\x00", b"\x1b"])
def test_bytes_that_are_no_text_have_a_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli, odd: bytes
) -> None:
    """Neither the YAML reader nor Python's names the file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "odd.yaml").write_bytes(b"name: a\nmetrics:\n  x: a" + odd + b"b\n")
    reported = "error[DL101] odd.yaml:3:7\n  this character is no text in UTF-8\n  fix: save the file as UTF-8\n"
    assert cli("check", "odd.yaml").err == reported


def test_a_yml_file_is_told_how_it_must_end(tmp_path: Path, cli: Cli) -> None:
    """Hydra reads .yaml only."""
    (tmp_path / "mine.yml").write_text(SMALL, encoding="utf-8")
    assert "Hydra reads files that end in .yaml" in cli("check", str(tmp_path / "mine.yml")).err


@pytest.mark.parametrize(
    "words",
    [
        ["examples/conf/grpo_arithmetic.yaml"],
        ["--config-dir", "examples/conf", "--config-name", "grpo_arithmetic"],
        ["--config-dir", "examples/conf", "--config-name", "grpo_arithmetic", "algorithm=rloo", "steps=3"],
        ["--config-dir", "examples/conf", "--config-name", "grpo_arithmetic", "declog.sinks=[jsonl]"],
    ],
    ids=" ".join,
)
def test_an_application(monkeypatch: pytest.MonkeyPatch, cli: Cli, words: list[str]) -> None:
    """Its own configuration, with its own overrides in Hydra's words."""
    monkeypatch.chdir(ROOT)
    found = cli("check", *words)
    assert (found.code, found.err) == (0, "")
    assert re.search(r"^ok (arithmetic_|examples/conf/grpo_arithmetic\.yaml: )", found.out, re.MULTILINE)
    assert ("rloo" in found.out) == ("algorithm=rloo" in words)


@pytest.mark.parametrize(
    ("words", "reported"),
    [
        (["--config-name", "confg"], "fix: did you mean `config`?"),
        (["--config-name", "config", "app"], "declog: --config-name chooses the configuration"),
        (["--config-name", "config", "bach=3"], "there is no key `bach` at the top"),
        (["--config-name", "config", "declog.metrics.p=p95(reward)"], "Hydra cannot read `p95(reward)` without quotes"),
    ],
)
def test_an_applications_mistakes(cli: Cli, words: list[str], reported: str) -> None:
    """Nothing is read in declog's short words here: it would fail in the application."""
    found = cli("check", "--config-dir", str(APP / "conf"), *words)
    assert found.code in (2, 3)
    assert reported in found.err


def test_an_application_that_asks_hydra_of_its_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_preset: WritePreset, cli: Cli
) -> None:
    """What the run would answer is put in as far as it is known."""
    write_preset("small", SMALL)
    (tmp_path / "train.yaml").write_text(
        "defaults: [{declog: small}, _self_]\nhydra: {run: {dir: out/here}}\nlr: 0.1\ndeclog:\n"
        "  name: run_${hydra:job.name}\n  output_dir: ${hydra:runtime.output_dir}/log\n"
        '  run: {config: {lr: "${lr}"}}\n',
        encoding="utf-8",
    )
    found = json.loads(cli("show", "train.yaml", "--yaml", "--format", "json").out)["config"]
    assert [found["name"], found["output_dir"], found["run"]["config"]] == ["run_train", "out/here/log", {"lr": 0.1}]


def test_functions_of_ones_own(small: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    """``--import`` loads the module that registers them."""
    name = "functions_of_a_command_line"
    (small / f"{name}.py").write_text(
        "import declog\n\n@declog.function\ndef twice_of_ours(x):\n    return 2 * x\n", encoding="utf-8"
    )
    words = ["check", "small", "metrics.t=mean(twice_of_ours(reward))", "--config-dir", "."]
    assert "DL303" in cli(*words).err
    monkeypatch.syspath_prepend(str(small))
    try:
        assert cli(*words, "--import", name).code == 0
    finally:
        from declog.language.functions import DEFAULT

        DEFAULT.discard("twice_of_ours")
        sys.modules.pop(name, None)


OF_YOURS = {
    "function": ("def odd_share(text: str) -> float: return 0.5", "metrics.t=mean(odd_share(completion))"),
    "condition": (
        "def odd_long(text: str) -> bool: return True",
        "metrics.t={expr: reward, where: odd_long(completion)}",
    ),
    "elsewhere": ("def json_valid(text: str) -> bool: return True", "metrics.t=mean(json_valid(completion))"),
    "reducer": ("def gini(values): return float(values.max())", "metrics.t=gini(reward)"),
    "reduce": ("def odd_top(values): return float(values.max())", "metrics.t={expr: reward, reduce: [mean, odd_top]}"),
    "column": ("def odd_word(completion) -> str: return 'a'", "schemas.rows={word: {call: odd_word}}"),
}


@pytest.mark.parametrize("case", OF_YOURS)
def test_an_unknown_name_may_be_one_of_yours(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    """Whatever it is: the answer has one wording, whose command line knows it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which `--import` adds
    code, entry = OF_YOURS[case]
    kind = {"condition": "function", "elsewhere": "function", "reduce": "reducer"}.get(case, case)
    name, module = code.split("(")[0].removeprefix("def "), f"train_{case}"
    Path("signals.yaml").write_text("signals: {any: {reward: completion, completion: completion text}}\n"
                                    "tables: {rows: {schema: rows}}\nschemas: {rows: {reward: float}}\n")  # fmt: skip
    Path(f"{module}.py").write_text(f"import declog\n\n@declog.{kind}\n{code}\n", encoding="utf-8")
    refused = cli("check", "signals.yaml", entry)
    said = " ".join(refused.err.split())
    assert (refused.code, f"`@declog.{kind}`" in said) == (2, True)
    assert "in a module that is imported first: `declog check FILE --import train`, or [tool.declog] imports" in said
    try:
        assert cli("check", "signals.yaml", entry, "--import", module).code == 0
        assert cli("check", "signals.yaml", entry).code == 0  # it is registered in this process
    finally:
        from declog.language import functions, reductions, row_functions

        for registry in (functions.DEFAULT, reductions.DEFAULT, row_functions.DEFAULT):
            registry.discard(name)
        sys.modules.pop(module, None)


# ---- packages with presets --------------------------------------------------------------------------


@pytest.fixture
def team(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Two installed packages with presets: one of their names is shipped by both, one by declog too."""
    for package, version, presets in (
        ("acme-logging", "2.1", ["acme_full", "both"]),
        ("zeta", "0.3", ["both", "rloo"]),
    ):
        module = package.replace("-", "_")
        conf = tmp_path / "site" / module / "conf"
        (conf / "declog").mkdir(parents=True)
        for folder in (conf.parent, conf):
            (folder / "__init__.py").write_text("", encoding="utf-8")
        for name in presets:
            (conf / "declog" / f"{name}.yaml").write_text(
                f"# Of {package}.\ndefaults: [grpo, _self_]\n"
                f"run: {{name: {module}}}\nmetrics: {{team: mean(reward)}}\n",
                encoding="utf-8",
            )
        info = tmp_path / "site" / f"{module}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n", encoding="utf-8"
        )
        (info / "entry_points.txt").write_text(f"[declog.presets]\n{module} = {module}.conf\n", encoding="utf-8")
        (info / "top_level.txt").write_text(f"{module}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("acme_logging", "zeta")]:
        del sys.modules[name]


def test_presets_of_installed_packages(team: Path, cli: Cli) -> None:
    """One entry point in the group `declog.presets`, and nothing else."""
    found = cli("check", "acme_full", "--strict")
    assert (found.code, found.err) == (0, "")
    assert found.out.startswith("ok acme_full: ")
    shown = cli("show", "acme_full", "--why", "metrics.team").out
    assert "site/acme_logging/conf/declog/acme_full.yaml:4:11" in shown


@pytest.mark.parametrize(
    ("preset", "owners"),
    [("both", "acme-logging 2.1 and by zeta 0.3"), ("rloo", f"{NAME} {VERSION} and by zeta 0.3")],
)
def test_two_packages_with_one_preset(team: Path, cli: Cli, preset: str, owners: str) -> None:
    """Nobody could say which it stands for: an error that names both, of the command line and of a run alike."""
    found = cli("check", preset)
    assert found.code == 2
    assert f"`declog/{preset}` is shipped by {owners}" in found.err + found.out
    with pytest.raises(declog.ConfigError, match=f"is shipped by {re.escape(owners)}"):
        declog.plan(preset)


def test_ls_says_what_shadows_what(team: Path, write_preset: WritePreset, cli: Cli) -> None:
    """Packages with their versions; a file of one's own that hides a shipped one is no warning, but is listed."""
    write_preset("grpo", "run: {name: mine}\nsignals: {any: {x: {axis: step}}}\nmetrics: {x: mean(x)}\nsinks: jsonl\n")
    listed = json.loads(cli("ls", "presets", "--config-dir", ".", "--format", "json").out)
    rows = {each["name"]: each["what"] for each in listed}
    assert rows["acme_full"][-1] == "Of acme-logging"
    assert rows["both"][0] == "acme-logging 2.1, shadows zeta 0.3"
    assert rows["grpo"][0].startswith(f"{team}, shadows declog-rl 0.")
    assert ", shadows zeta 0.3" in rows["rloo"][0]
    assert cli("check", "grpo", "--config-dir", ".", "--strict").code == 0


@pytest.mark.parametrize("module", ["acme_logging", "zeta"])
def test_pkg_names_one_of_two_packages(team: Path, cli: Cli, module: str) -> None:
    """`pkg://` says which of two presets of a name is meant: it is obeyed, also for what that preset extends."""
    extends = team / "site" / module / "conf" / "declog" / "of_both.yaml"
    extends.write_text("defaults: [both, _self_]\n", encoding="utf-8")
    for preset in ("both", "of_both"):
        place = f"pkg://{module}.conf/{preset}"
        assert json.loads(cli("check", place, "--format", "json").out)["name"] == module
        assert declog.plan(place).name == module
    assert cli("check", f"pkg://{module}.conf").code == 0


def test_the_plain_name_is_refused_with_both_places(team: Path, cli: Cli) -> None:
    """What is to be typed stands there, and the place is the name itself, no file of declog's."""
    said = " ".join(cli("check", "both").err.split())
    assert said.startswith("error[DL101] preset `both` `declog/both` is shipped by acme-logging 2.1 and by zeta 0.3")
    assert "fix: name one of them: pkg://acme_logging.conf/both or pkg://zeta.conf/both" in said
    said = " ".join(cli("check", "rloo").err.split())
    assert re.search(r"fix: name one of them: \S*/declog/rloo\.yaml or pkg://zeta\.conf/rloo", said) or (
        "pkg://declog.conf/rloo or pkg://zeta.conf/rloo" in said
    )


def test_a_file_that_extends_such_a_name_is_where_it_is_said(team: Path, cli: Cli, write_preset: WritePreset) -> None:
    """The line of its defaults list, with carets; a file of one's own of that name is nobody else's."""
    write_preset("mine", "defaults: [both, _self_]\n")
    said = cli("check", "declog/mine.yaml").err
    assert "declog/mine.yaml:1:12" in said and "^^^^" in said
    write_preset("both", "defaults: [grpo, _self_]\nrun: {name: own}\n")
    assert json.loads(cli("check", "declog/mine.yaml", "--format", "json").out)["name"] == "own"


def test_an_application_that_chooses_such_a_name_is_refused(team: Path) -> None:
    """As on the command line, at the line of its own file: it would get whichever package comes first."""
    (team / "conf").mkdir()
    (team / "conf" / "config.yaml").write_text("defaults: [{declog: both}, _self_]\n", encoding="utf-8")
    (team / "train.py").write_text(
        "import hydra, declog\n"
        '@hydra.main(version_base=None, config_path="conf", config_name="config")\n'
        "def main(cfg):\n    print(declog.plan(cfg).name)\nmain()\n",
        encoding="utf-8",
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(team / "site"), str(ROOT)])}

    done = subprocess.run(
        [sys.executable, "train.py"], cwd=team, env=environment, capture_output=True, text=True, check=False
    )
    assert "conf/config.yaml:1:21" in done.stderr
    assert "`declog/both` is shipped by acme-logging 2.1 and by zeta 0.3" in done.stderr
