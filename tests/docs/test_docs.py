"""Every code block of README.md and docs/: Python is run, YAML and overrides are composed, validated and compiled.

A YAML block is a preset of one's own, on top of ``grpo`` unless it has a ``defaults`` list or a ``name``; one with a
title is the file of that name, an application's config included. A shell line may call what ``COMMANDS`` knows.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import re
import shlex
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

import declog
from declog import sinks
from declog.cli import main, verbs
from declog.errors.pages import CODES
from declog.errors.pages import page as page_of
from declog.language.spec import SinkSpec
from declog.plans.words import explain
from declog.testing import MemorySink
from tests import forks
from tests.docs.markdown import ALL, PAGES, ROOT, Block, blocks, lay_out, stands_alone

RUN_PYTHON = """
import contextlib, io, json, sys

names, printed = {"__name__": "__main__"}, []
for label, text in json.load(sys.stdin):
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(text, label, "exec"), names)
    printed.append(output.getvalue())
print(json.dumps(printed))
"""

BLOB, RAW = "https://github.com/declog/declog/blob/main/", "https://raw.githubusercontent.com/declog/declog/main/"
FINGERPRINT = re.compile(r"\([0-9a-f]{16}\)")


def of_language(*languages: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("block", [block for block in ALL if block.language in languages], ids=str)


def run(command: Sequence[str | Path], folder: Path, given: str = "") -> str:
    done = forks.run(command, cwd=folder, env=forks.environment({"HOME": str(folder)}), input=given)
    assert done.returncode == 0, done.stderr
    return done.stdout


def outcome(compile: Callable[[], declog.Plan]) -> str:
    """What a configuration gives: its plan in words, or its errors."""
    try:
        return FINGERPRINT.sub("(...)", explain(compile()))
    except declog.ConfigError as error:
        return f"{error}\n"


def check(block: Block, compile: Callable[[], declog.Plan]) -> None:
    """The block compiles, or gives what the text below it says."""
    found = outcome(compile)
    if block.result is not None and block.result.startswith(("error[", "plan ")):
        assert found == block.result
    else:
        assert not found.startswith("error["), found


# ---- YAML -------------------------------------------------------------------------------------------


@of_language("yaml")
def test_yaml(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a preset or an application's config that compiles, or that fails as the page says."""
    monkeypatch.chdir(tmp_path)
    lay_out(block.page, tmp_path)
    file = Path(block.title or "declog/mine.yaml")
    if file.parent.name != "declog":
        check(block, lambda: application_plan(tmp_path / file.parent, file.stem, []))
        return
    text = block.text if stands_alone(block.text) else block.text + "defaults: [grpo, _self_]\n"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    folder = file.parent.parent
    if block.result is not None and block.result.startswith("error["):
        check(block, lambda: declog.plan(declog.compose(file.stem, config_dir=folder)))
    else:
        cfg = declog.compose(file.stem, config_dir=folder)
        check(block, lambda: declog.compile(declog.validate(declog.config_of(cfg))))


def application_plan(conf: Path, name: str, overrides: list[str]) -> declog.Plan:
    """The plan of an application's own configuration."""
    with initialize_config_dir(str(conf.absolute()), version_base="1.3"):
        return declog.plan(compose(name, overrides=overrides))


# ---- shell ------------------------------------------------------------------------------------------


@of_language("sh")
def test_shell(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line is a command that is known here, and its overrides compose and compile."""
    monkeypatch.chdir(tmp_path)
    lay_out(block.page, tmp_path)
    lines = [line for line in block.text.replace("\\\n", " ").splitlines() if line.strip() and line[0] != "#"]
    assert lines
    printed = []
    for line in lines:
        words = shlex.split(line, comments=True)
        while "=" in words[0]:
            del words[0]
        printed += [COMMANDS[words[0]](block, words[1:])]
    shown = [each for each in printed if each is not None]
    if shown and block.result is not None:
        assert "".join(shown) == block.result


def _make(block: Block, words: list[str]) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    variables = {word for word in words if "=" in word}
    assert set(words) - variables <= targets


def _pip(block: Block, words: list[str]) -> None:
    assert words[0] == "install"
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for word in words:
        for named in re.findall(r"\[(.*?)\]", word):
            assert set(named.split(",")) <= set(extras)
        if word.endswith(".txt"):
            assert (ROOT / word).is_file()


def _python(block: Block, words: list[str]) -> None:
    script, arguments = words[0], words[1:]
    hydra = ("grpo_arithmetic", "ppo_arithmetic", "trl_grpo", "ray_actors", "accelerate_grpo")
    if script in [f"examples/{name}.py" for name in hydra]:
        compose_all(
            block, arguments, lambda some: application_plan(ROOT / "examples" / "conf", Path(script).stem, some)
        )
    elif Path(script).exists():  # a file of the page
        run([script, *arguments], Path.cwd())
    else:
        assert script == "train.py", "an application of the reader's: the preset stands in for its config"
        compose_all(block, arguments, preset_plan)


def _launcher(block: Block, words: list[str]) -> None:
    """A launcher of several processes: behind its own options comes what each of them runs."""
    place = next(place for place, word in enumerate(words) if word.endswith(".py"))
    _python(block, words[place:])


def preset_plan(overrides: list[str]) -> declog.Plan:
    """The plan of an application whose preset is ``grpo``."""
    Path("train.yaml").write_text("defaults: [{declog: grpo}]\n", encoding="utf-8")
    return declog.plan("train.yaml", overrides)


def compose_all(block: Block, words: list[str], plan: Callable[[list[str]], declog.Plan]) -> None:
    """Compile the overrides of a command line, those of each job of a multirun."""
    jobs = [words]
    if words[:1] == ["-m"]:
        parsed = OverridesParser.create().parse_overrides(words[1:])
        (batch,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
        assert len(batch) > 1
        jobs = [list(job) for job in batch]
    for job in jobs:
        check(block, lambda job=job: plan(job))  # type: ignore[misc]


def _declog(block: Block, words: list[str]) -> str:
    """What a line of declog's own command line prints; where the page says nothing of that, all is well."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(words)
    shown = FINGERPRINT.sub("(...)", printed.getvalue().replace(f"{ROOT}/", ""))
    assert code == 0 or block.result is not None, shown
    return shown


def _nothing(block: Block, words: list[str]) -> None:
    """Commands of a shell that have nothing to do with a configuration."""


COMMANDS: dict[str, Callable[[Block, list[str]], str | None]] = {
    "make": _make, "pip": _pip, "python": _python, "declog": _declog, "git": _nothing, "cd": _nothing,
    "trackio": _nothing, "torchrun": _launcher, "accelerate": _launcher,
    "pytest": _nothing,
}  # fmt: skip


# ---- Python -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.language == "python" and not block.title for block in blocks(page))],
    ids=lambda page: page.name,
)
def test_python(page: Path, tmp_path: Path) -> None:
    """The blocks of a page run one after another, and print what the page says that they print."""
    lay_out(page, tmp_path)
    found = [block for block in blocks(page) if block.language == "python" and block.title is None]
    given = json.dumps([(str(block), block.text) for block in found])
    printed: list[str] = json.loads(run(["-c", RUN_PYTHON], tmp_path, given).splitlines()[-1])
    for block, output in zip(found, printed, strict=True):
        if block.result is not None:
            assert FINGERPRINT.sub("(...)", output) == block.result, str(block)


@pytest.mark.parametrize("block", [each for each in ALL if each.language == "python" and each.title], ids=str)
def test_files_of_python(block: Block, tmp_path: Path) -> None:
    """They are Python, and print what the page says; those that a page's command line runs are run there."""
    assert block.title is not None and block.title.endswith(".py")
    compile(block.text, str(block), "exec")
    if block.result is not None:
        lay_out(block.page, tmp_path)
        assert run([block.title], tmp_path) == block.result


# ---- the pages themselves ---------------------------------------------------------------------------


@of_language("toml")
def test_toml(block: Block) -> None:
    """It is read, and says of declog what a project may say."""
    assert list(tomllib.loads(block.text)["tool"]["declog"]) in (["imports"], ["config_dir", "imports"])


def test_every_block_is_of_a_language_that_is_tested() -> None:
    """No block escapes because of how its fence is written."""
    assert {block.language for block in ALL} <= {"yaml", "sh", "python", "toml", "text"}
    assert {"yaml", "sh", "python"} <= {block.language for block in ALL}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    """Every link of a page to a file of the repository names a file that is there.

    The links of README.md are whole addresses, since an index of packages shows it without the repository.
    """
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    targets = [target.removeprefix(BLOB).removeprefix(RAW) for target in re.findall(r"\]\(([^)#]+)", text)]
    assert [target for target in targets if "://" not in target and not (page.parent / target).exists()] == []
    if page.name == "README.md":
        assert all("://" in target for target in re.findall(r"\]\(([^)]+)", text))


# ---- tables that the code knows better --------------------------------------------------------------


def section(page: str, heading: str) -> str:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    found = re.findall(rf"^(##+) {re.escape(heading)}\n(.*?)(?=^\1 |\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, f"docs/{page} needs a section `{heading}`"
    return str(found[0][1])


def rows(text: str) -> list[tuple[str, str]]:
    """The first two cells of a table's rows, which are code or plain text."""
    return [(name, default) for name, default in re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", text, re.MULTILINE)]


def test_every_error_code_is_explained() -> None:
    """docs/errors.md has each code once, in order, with the meaning that the code has."""
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert re.findall(r"^### (DL\d+): (.+)\n\n\S", text, re.MULTILINE) == list(CODES.items())


@pytest.mark.parametrize("code", CODES)
def test_the_page_of_a_code_has_an_example_of_it(code: str) -> None:
    """docs/errors.md holds the page, and below it what its example prints, which has this code and no other."""
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    _, page, rest = text.partition(page_of(code).rstrip())
    printed = re.match(r"\n\n```text\n(.*?)^```$", rest, re.MULTILINE | re.DOTALL)
    assert page.endswith("```") and printed is not None
    assert set(re.findall(r"DL\d{3}", printed[1])) == {code}


def test_every_sink_is_described() -> None:
    """A section for each kind that is built in."""
    text = (ROOT / "docs" / "sinks.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^## ([a-z]+)$", text, re.MULTILINE)) == set(sinks.built_in())


def test_every_verb_is_described() -> None:
    """A row of docs/cli.md for each, which leads to its section."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^\| \[`(\w+)`\]\(.+?\) \|", text, re.MULTILINE)) == sorted(verbs())


@pytest.mark.parametrize("kind", sinks.built_in())
def test_a_sinks_options_are_those_of_its_class(kind: str) -> None:
    """Names, order and defaults in docs/sinks.md are the constructor's."""
    parameters = inspect.signature(sinks.sink_class(kind)).parameters
    assert rows(section("sinks.md", kind)) == [
        (name, shown(parameters[name].default)) for name in sinks.option_names(kind)
    ]


def test_the_self_metrics_are_those_of_a_run(tmp_path: Path) -> None:
    """All that declog logs about itself where a profile asks, each with its meaning."""
    config = {
        "signals": {"any": {"x": {"axis": "completion"}}}, "metrics": {"x": "mean(x)"},
        "profiles": {"full": {"self_metrics": True}},
    }  # fmt: skip
    sink = MemorySink()
    with declog.start(config, sinks=[sink], output_dir=tmp_path) as log, log.step(0):
        log.observe(x=[1.0])
    described = dict(
        re.findall(r"^\| `(declog/\w+)` \| (.+?) \|$", section("ranks.md", "The cost of logging"), re.MULTILINE)
    )
    assert described.keys() == sink.scalars[0].keys() - {"x"}


def test_the_keys_of_every_sink_are_those_of_the_model() -> None:
    """Their defaults too, where they are not another key's value."""
    fields = SinkSpec.model_fields
    described = dict(rows(section("sinks.md", "Keys of every sink")))
    assert list(described) == list(fields)
    assert described == {
        **{name: shown(field.default) for name, field in fields.items()},
        "kind": "its name",
        "profile": "the config's",
        "prefix": '""',
    }


def shown(value: object) -> str:
    """A default as YAML has it."""
    return value if isinstance(value, str) else json.dumps(value)
