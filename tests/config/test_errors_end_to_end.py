"""The first errors as their reader sees them: from a file, from an override, and inside an application."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import declog
from declog.config.source_map import shown_path
from tests import forks
from tests.conftest import WritePreset

ROOT = Path(__file__).parents[2]
PRESETS = ROOT / "conf" / "declog"
ROLLOUT = {"rewards": {"a": torch.arange(8.0)}, "length": [1] * 8}


def golden(text: str) -> str:
    return textwrap.dedent(text).strip("\n")


def in_preset(name: str, section: str, key: str) -> str:
    """Where a file of the shipped presets sets a key of an entry, as errors name it."""
    file = PRESETS / f"{name}.yaml"
    lines = file.read_text(encoding="utf-8").splitlines()
    start = next(row for row, line in enumerate(lines) if line.startswith(f"{section.split('.')[0]}:"))
    entry = next(row for row in range(start, len(lines)) if lines[row].startswith(f"  {section.split('.')[1]}:"))
    row = next(row for row in range(entry, len(lines)) if f"{key}:" in lines[row])
    return f"{shown_path(str(file))}:{row + 1}:{lines[row].index(f'{key}:') + 1}"


# ---- from a file

FILES: dict[str, tuple[str, str]] = {
    "unknown key": (
        """
        defaults: [grpo, _self_]
        metrics:
          reward: {redcue: mean}
        """,
        """
        error[DL201] declog/mine.yaml:3:12 in metrics.reward.redcue
          unknown key `redcue`
            3 |   reward: {redcue: mean}
              |            ^^^^^^
          fix: did you mean `reduce`?
        """,
    ),
    "unknown signal": (
        """
        defaults: [grpo, _self_]
        metrics:
          reward_p90: p90(rewrd)
        """,
        """
        error[DL302] declog/mine.yaml:3:19 in metrics.reward_p90
          unknown signal `rewrd`
            3 |   reward_p90: p90(rewrd)
              |                   ^^^^^
          fix: did you mean `reward`?
        """,
    ),
    "wrong axis": (
        """
        defaults: [grpo, _self_]
        filters:
          hard:
            random: 4
            where: kl > 1
        """,
        """
        error[DL310] declog/mine.yaml:5:12 in filters.hard.where
          `where` is per token, and rows are per completion: it may not be finer
            5 |     where: kl > 1
              |            ^^^^^^
          fix: where: "any(kl > 1, over=token)"  or  where: "all(kl > 1, over=token)"
        """,
    ),
    "bad reduction": (
        """
        defaults: [grpo, _self_]
        metrics:
          mine:
            expr: reward
            reduce: [{middle: median}]
        """,
        """
        error[DL311] declog/mine.yaml:5:23 in metrics.mine.reduce.0.middle
          unknown reduction `median`
            5 |     reduce: [{middle: median}]
              |                       ^^^^^^
          fix: did you mean `p50`?
        """,
    ),
}


@pytest.mark.parametrize(("text", "expected"), FILES.values(), ids=FILES.keys())
def test_errors_of_a_file(text: str, expected: str, write_preset: WritePreset) -> None:
    """Place, cause, line with carets, fix: before anything is started."""
    directory = write_preset("mine", text)
    with pytest.raises(declog.ConfigError) as error:
        declog.start(declog.compose("mine", config_dir=directory))
    assert str(error.value) == golden(expected)
    assert not (directory / "outputs").exists()


def test_all_errors_of_a_file_come_at_once(write_preset: WritePreset) -> None:
    """One run tells everything that is wrong with expressions, each at its place."""
    directory = write_preset(
        "mine",
        """
        defaults: [grpo, _self_]
        metrics:
          a: p90(rewrd)
          b: {expr: reward, reduce: median}
        filters:
          hard: {where: kl > 1}
        """,
    )
    with pytest.raises(declog.ConfigError) as error:
        declog.plan(declog.compose("mine", config_dir=directory))
    assert [line for line in str(error.value).splitlines() if line.startswith("error")] == [
        "error[DL302] declog/mine.yaml:3:10 in metrics.a",
        "error[DL311] declog/mine.yaml:4:29 in metrics.b.reduce",
        "error[DL310] declog/mine.yaml:6:17 in filters.hard.where",
    ]


# ---- from an override


def overridden(*overrides: str) -> str:
    """The error of the GRPO preset with overrides."""
    with pytest.raises(declog.ConfigError) as error:
        declog.start("grpo", overrides)
    return str(error.value)


def test_an_unknown_key_of_an_override() -> None:
    """The caret is under the key in the override."""
    assert overridden("+declog.metrics.reward.redcue=mean") == golden("""
        error[DL201] override '+declog.metrics.reward.redcue=mean'
          unknown key `redcue`
            +declog.metrics.reward.redcue=mean
                                   ^^^^^^
          fix: +declog.metrics.reward.reduce=mean
    """)


def test_an_unknown_signal_of_an_override() -> None:
    """The layer that the override beat is named too."""
    assert overridden("declog.metrics.reward.expr=rewrd") == golden(f"""
        error[DL302] override 'declog.metrics.reward.expr=rewrd'
          unknown signal `rewrd`
            declog.metrics.reward.expr=rewrd
                                       ^^^^^
          also set in: {in_preset("packs/rewards", "metrics.reward", "expr")}
          fix: declog.metrics.reward.expr=reward
    """)


def test_a_wrong_axis_of_an_override() -> None:
    """An expression in quotes is marked without them."""
    assert overridden("declog.filters.extremes.key='2 * kl'") == golden(f"""
        error[DL310] override 'declog.filters.extremes.key='2 * kl''
          `key` is per token, and rows are per completion: it may not be finer
            declog.filters.extremes.key='2 * kl'
                                         ^^^^^^
          also set in: {in_preset("grpo", "filters.extremes", "key")}
          fix: 'declog.filters.extremes.key="mean(2 * kl, over=token)"'
    """)


def test_a_bad_reduction_of_an_override() -> None:
    """Quantiles go from p0 to p100."""
    assert overridden("declog.metrics.reward.reduce=p950") == golden(f"""
        error[DL311] override 'declog.metrics.reward.reduce=p950'
          unknown reduction `p950`: quantiles are p0 to p100
            declog.metrics.reward.reduce=p950
                                         ^^^^
          also set in: {in_preset("packs/rewards", "metrics.reward", "reduce")}
          fix: declog.metrics.reward.reduce=p95
    """)


# ---- a signal that is missing at run time


def missing(config: Any, values: Mapping[str, Any], folder: Path) -> str:
    """The error of a step that observes too little."""
    with (
        pytest.raises(declog.MissingSignalError) as error,
        declog.start(config, output_dir=folder) as log,
        log.step(0),
    ):
        log.observe(**values)
    assert (error.value.code, error.value.fix is not None) == ("DL502", True)
    return str(error.value)


def test_a_missing_signal_of_a_file(write_preset: WritePreset) -> None:
    """The error shows where the signal is declared, whether under signals or in place."""
    directory = write_preset(
        "mine",
        """
        defaults: [grpo, _self_]
        sinks: null
        signals:
          rollout:
            confidence: {axis: completion, required: true}
        metrics:
          confidence: mean(confidence)
          speed: {observe: {axis: step, phase: rollout, required: true}}
        """,
    )
    config = declog.compose("mine", config_dir=directory)
    assert missing(config, ROLLOUT, directory) == golden("""
        error[DL502] declog/mine.yaml:5:5 in signals.rollout.confidence
          `confidence`, `speed` were not observed in the first batch of phase `rollout`
            5 |     confidence: {axis: completion, required: true}
              |     ^^^^^^^^^^
          fix: observe(confidence=...), or drop its `required`, or switch off what needs it
    """)
    assert missing(config, {**ROLLOUT, "confidence": [0.5] * 8}, directory) == golden("""
        error[DL502] declog/mine.yaml:8:3 in metrics.speed
          `speed` was not observed in the first batch of phase `rollout`
            8 |   speed: {observe: {axis: step, phase: rollout, required: true}}
              |   ^^^^^
          fix: observe(speed=...), or drop its `required`, or switch off what needs it
    """)


def test_a_missing_signal_of_an_override(tmp_path: Path) -> None:
    """A signal that an override declares is shown in the override."""
    override = "+declog.metrics.speed={observe: {axis: step, phase: rollout, required: true}}"
    config = declog.compose("grpo", ["declog.sinks=[]", override])
    assert missing(config, ROLLOUT, tmp_path) == golden("""
        error[DL502] override '+declog.metrics.speed={observe: {axis: step, phase: rollout, required: true}}'
          `speed` was not observed in the first batch of phase `rollout`
            +declog.metrics.speed={observe: {axis: step, phase: rollout, required: true}}
                                  ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
          fix: observe(speed=...), or drop its `required`, or switch off what needs it
    """)


def test_a_missing_signal_of_a_plain_mapping(tmp_path: Path) -> None:
    """A profile that comes from no file has no place to show."""
    signals = {"a": {"axis": "step", "required": True}, "b": {"axis": "step", "required": True}}
    config = {"run": {"name": "x"}, "signals": {"any": signals}, "metrics": {"a": "mean(a)", "b": "mean(b)"}}
    assert missing(config, {"a": 1.0}, tmp_path) == (
        "[DL502] `b` was not observed in the first batch of phase `default`\n"
        "  fix: observe(b=...), or drop its `required`, or switch off what needs it"
    )


# ---- inside an application

APPLICATION = """
import hydra

import declog
from tests import forks


@hydra.main(version_base=None, config_path="conf", config_name="config")
def main(cfg):
    try:
        with declog.start(cfg) as log, log.step(0):
            log.observe(rewards={"a": [1.0] * 8}, length=[1] * 8)
    except declog.DeclogError as error:
        print(error, end="\\n\\n")


main()
"""
MISSING = (
    """
    defaults: [grpo, _self_]
    sinks: null
    signals:
      rollout:
        confidence: {axis: completion, required: true}
    metrics:
      confidence: mean(confidence)
    """,
    """
    error[DL502] declog/mine.yaml:5:5 in signals.rollout.confidence
      `confidence` was not observed in the first batch of phase `rollout`
        5 |     confidence: {axis: completion, required: true}
          |     ^^^^^^^^^^
      fix: observe(confidence=...), or drop its `required`, or switch off what needs it
    """,
)


def test_errors_inside_an_application(tmp_path: Path) -> None:
    """A user's own `@hydra.main` shows the same texts with the places of its own files, one job per preset."""
    presets = {name.replace(" ", "_"): texts for name, texts in {**FILES, "missing": MISSING}.items()}
    folder = tmp_path / "conf" / "declog"
    folder.mkdir(parents=True)
    (tmp_path / "train.py").write_text(APPLICATION)
    (tmp_path / "conf" / "config.yaml").write_text("defaults: [declog: missing, _self_]\n")
    for name, (text, _) in presets.items():
        (folder / f"{name}.yaml").write_text(golden(text) + "\n")
    done = forks.run(["train.py", "-m", f"declog={','.join(presets)}", "hydra.sweep.dir=jobs"], cwd=tmp_path)
    logged = ("[HYDRA]", "[declog][WARNING]")  # the second: of a run whose first step failed most metrics are inactive
    shown = "\n".join(line for line in done.stdout.splitlines() if not any(word in line for word in logged)).strip("\n")
    expected = [
        golden(text).replace("declog/mine.yaml", f"conf/declog/{name}.yaml") for name, (_, text) in presets.items()
    ]
    assert (done.returncode, shown) == (0, "\n\n".join(expected)), done.stderr
