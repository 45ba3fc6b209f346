"""One profile is one plan and one fingerprint, in whatever way it is handed over."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import declog
from declog.plans.fingerprint import difference
from tests import forks
from tests.config.handing_over import OF_HYDRA, PRESETS, Handed, Plans, written
from tests.docs.markdown import ALL, ROOT, lay_out, stands_alone

OWN = {
    "a metric beside pools": """
        defaults: [trl_grpo, _self_]
        metrics: {reward_max: max(reward)}
        """,
    "short forms over a preset": """
        defaults: [grpo, _self_]
        profile: slim
        signals: {rollout: {source: 'completion text', turns: 'completion int'}}
        derived: {gap: abs(logprobs - old_logprobs)}
        metrics:
          reward: p95(reward)
          mine: max(reward)
          turns: mean max
          by_source: {expr: reward, by: [source], tags: core}
        tables: {worst: {columns: [prompt, reward], filter: {key: reward, bottom: 4}, to: {jsonl: true}}}
        alerts: {kl: "> 0.5", odd: "kl > 1 and reward < 0 for 3"}
        profiles: {few: {only: [reward, mine]}}
        modes: {train: {}, eval: {prefix: eval/}}
        sinks: [console, jsonl]
        sink_options: {jsonl: {profile: few}}
        """,
    "anchors, and what is deleted": """
        defaults: [grpo, _self_]
        metrics:
          one: {<<: &shared {expr: reward, over: batch}, reduce: max}
          two: {<<: *shared, combine: max}
          kl: null
          entropy: null
        alerts: {kl: null}
        filters: {extremes: {top: 3}}
        """,
    "signals that columns may be": """
        defaults: [grpo, _self_]
        signals:
          rollout:
            truncated: {from_log_extra: true}
            judged: {axis: completion, from_log_extra: true}
        metrics: {judged: mean(judged)}
        """,
    "values from elsewhere": """
        defaults: [grpo, _self_]
        every: 4
        run: {name: "${.config.method}", config: {period: "${...every}"}}
        tables: {samples: {every: "${...every}"}}
        constants: {epsilon_low: 0.1, epsilon_high: "${.epsilon_low}"}
        """,
}  # fmt: skip
TEAMS = (("examples/team-preset", "acme_grpo"), ("tests/data/team", "acme_core"))
# One of each kind: a preset and one without metrics, overrides, a team's, an example's; beside those above.
KINDS = {"grpo", "tee", "overrides", "examples/team-preset: acme_grpo", "examples/ray_actors.yaml", *OWN}


def package(folder: Path, at: Path) -> str:
    """The name under which the folder ``at`` is imported from ``folder``."""
    for place in [at, *at.parents][: len(at.relative_to(folder).parts)]:
        (place / "__init__.py").touch()
    return ".".join(at.relative_to(folder).parts)


def profiles(folder: Path, *, blocks: bool = False) -> Iterator[Handed]:
    """Every preset, every team's, the examples', those above, and the applications, or all ``blocks``, of the docs."""
    shipped = str(ROOT / "conf")
    for name in declog.presets():
        yield Handed(name, shipped, name, "conf")
    for label, text in OWN.items():
        name = label.replace(" ", "_").replace(",", "")
        (folder / "own" / "declog").mkdir(parents=True, exist_ok=True)
        (folder / "own" / "declog" / f"{name}.yaml").write_text(dedent(text))
        yield Handed(label, str(folder / "own"), name, package(folder, folder / "own"))
    words = ("declog.metrics.kl=null", "++declog.metrics.m={expr: reward, reduce: max}")
    yield Handed("overrides", shipped, "grpo", "conf", words=words)
    for place, (team, name) in enumerate(TEAMS):
        copy = folder / f"team_{place}"
        shutil.copytree(ROOT / team, copy, ignore=shutil.ignore_patterns("__pycache__", "tests"))
        conf = copy / "acme_logging" / "conf"
        yield Handed(f"{team}: {name}", str(conf), name, package(folder, conf))
    shutil.copytree(ROOT / "examples" / "conf", folder / "examples")
    for file in sorted((ROOT / "examples" / "conf").glob("*.yaml")):
        yield Handed(f"examples/{file.name}", str(folder / "examples"), file.stem, application=True)
    yield from (handed for handed in documented(folder) if blocks or handed.application)


def documented(folder: Path) -> Iterator[Handed]:
    """Every YAML block of the docs that is no mistake."""
    for place, block in enumerate(ALL):
        if block.language != "yaml" or (block.result or "").startswith("error["):
            continue
        page = folder / f"page_{place}"
        lay_out(block.page, page)
        (page / "pyproject.toml").unlink(missing_ok=True)
        file = page / (block.title or "declog/mine.yaml")
        file.parent.mkdir(parents=True, exist_ok=True)
        alone = file.parent.name != "declog" or stands_alone(block.text)
        file.write_text(block.text if alone else block.text + "defaults: [grpo, _self_]\n")
        if file.parent.name == "declog":
            conf = file.parents[1]
            yield Handed(str(block), str(conf), file.stem, package(folder, conf))
        else:
            yield Handed(str(block), str(file.parent), file.stem, application=True)


def check(folder: Path, handed: list[Handed]) -> set[str]:
    """Each profile is one plan in every way, by name, file, package, Hydra's API and more; the ways that were tried."""
    written(folder, handed)
    program = ROOT / "tests" / "config" / "handing_over.py"
    outputs = [folder / f"{part}.txt" for part in ("compose", "apply")]
    started = [forks.start([program, folder, file.stem], cwd=folder, output=file) for file in outputs]
    assert [fork.wait() for fork in started] == [0, 0], "".join(file.read_text() for file in outputs)
    done = forks.run([program, folder, "receive"], cwd=folder)
    assert done.returncode == 0, done.stderr
    plans: Plans = {one.label: {} for one in handed}
    for part in ("compose", "apply", "receive"):
        for label, ways in json.loads((folder / f"{part}.json").read_text()).items():
            plans[label] |= ways
    found: dict[tuple[str, str], str | None] = {}
    for one in handed:
        ways = plans[one.label]
        expected = ways["file"], ways.pop("driver")  # a driver's and an actor's plan has what sinks in code would show
        found |= {(one.label, way): difference([expected[way == "actor"], other]) for way, other in ways.items()}
        inside = sum(way.startswith("@hydra.main") for way in ways)
        assert (inside, {*OF_HYDRA, "pickled", "pickled by declog", "actor"} - {*ways}) == (1, set()), one.label
    assert {label: said for label, said in found.items() if said is not None} == {}
    return {way for ways in plans.values() for way in ways}


def test_a_profile_is_one_plan_however_it_is_handed_over(tmp_path: Path) -> None:
    """By name, file, package, Hydra's API and applications, code, as data, in another process, to an actor.

    A profile of each kind; `make soak` has every preset, every example and every YAML block of the documentation.
    """
    some = [one for one in profiles(tmp_path) if one.label in KINDS or one.label.startswith("docs/")]
    assert {one.label for one in some} > KINDS
    ways = check(tmp_path, some)
    assert ways >= {*PRESETS, "@hydra.main (run)", "@hydra.main (multirun)"}


def test_a_difference_is_noticed() -> None:
    """Profiles that differ in one key of one metric have different plans: the comparison can fail."""
    one, other = (declog.plan("grpo", words) for words in ([], ["metrics.reward.over=batch"]))
    assert one.fingerprint != other.fingerprint
    assert "reward" in str(difference([one.canonical, other.canonical]))
