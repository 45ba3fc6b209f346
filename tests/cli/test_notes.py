"""Notes on lines that are hardly meant: said where they are true, and of nothing that only looks like it.

The class: maps that are metrics and maps that are a key's value, variances with and without windows of other modes,
numbers of a step that are declared for later.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import declog
from declog.testing import MemorySink
from tests.cli.conftest import Cli

METRIC = "is a metric of its own here"


SIGNALS = "signals: {any: {reward: completion, lr: step}}\n"
GRPO = "defaults: [grpo, _self_]\n"


def checked(cli: Cli, folder: Path, text: str, header: str = SIGNALS) -> str:
    """What `declog check` prints of a config, in one line."""
    file = folder / "mine.yaml"
    file.write_text(f"{header}{text}")
    result = cli("check", str(file))
    return " ".join((result.out + result.err).split())


@pytest.mark.parametrize(
    ("entry", "outdented"),
    [
        ("every: {expr: reward, where: reward > 0}", False), ("by: {formula: 2 * a}", False),
        ("over: {expr: reward}", False), ("weight: {reduce: mean, expr: reward}", False),
        ("every: reward", True), ("by: mean(reward)", False), ("where: reward > 0", True),
    ],
)  # fmt: skip
def test_a_metric_named_as_a_key(entry: str, outdented: bool, cli: Cli, tmp_path: Path) -> None:
    """A map that says how it is computed is a metric; what may be a key's value is noted."""
    answer = checked(cli, tmp_path, f"metrics:\n  a: mean(reward)\n  {entry}\n  lr: mean(lr)\n")
    assert (METRIC in answer) is outdented


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        ("{}", "`v` never has a value: of one step"), ("{eval: {prefix: eval/}}", "`v` never has a value: of one step"),
        ("{eval: {prefix: eval/, every: 10}}", "`v` never has a value in training: of one step"),
    ],
)  # fmt: skip
def test_a_variance_of_one_step(modes: str, said: str, cli: Cli, tmp_path: Path) -> None:
    """A mode with windows of several steps has one."""
    metrics = "metrics: {v: {expr: reward, over: step, combine: var}, lr: mean}\n"
    assert said in checked(cli, tmp_path, f"{metrics}modes: {modes}\n")


def test_a_number_for_later(cli: Cli, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`declog check` says that nothing reads it; a run, for which it may be declared on purpose, does not."""
    assert "no metric reads `lr`; metrics: {lr: mean(lr)} logs it" in checked(
        cli, tmp_path, "metrics: {reward: mean}\n"
    )
    with (
        caplog.at_level("WARNING", logger="declog"),
        declog.start(str(tmp_path / "mine.yaml"), sinks=[MemorySink()], output_dir=tmp_path / "run") as log,
        log.step(0),
    ):
        log.observe(reward=[1.0], lr=0.1)
    assert not [record for record in caplog.records if "lr" in record.getMessage()]


@pytest.mark.parametrize("ids", ["both", "neither"])
def test_rows_that_ids_match(ids: str, cli: Cli, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """`declog check` cannot know whether they come; a run says it where they do not, and is silent where they do."""
    config = "defaults: [grpo, _self_]\nmetrics: {wrong: {expr: advantages, where: reward == 0}}\nsinks: []\n"
    file = tmp_path / "mine.yaml"
    file.write_text(config)
    assert "ids match them: `row_id` in both calls" in " ".join(cli("check", str(file)).out.split())
    with caplog.at_level("WARNING", logger="declog"):
        with declog.start(str(file), sinks=[sink := MemorySink()], output_dir=tmp_path / "run") as log, log.step(0):
            rows = list(range(4))
            log.observe(reward=[0.0, 1.0, 0.0, 1.0], **({"row_id": rows} if ids == "both" else {}))
            for part in (rows[:2], rows[2:]):
                log.observe(advantages=[float(row) for row in part], **({"row_id": part} if ids == "both" else {}))
        said = [record.getMessage() for record in caplog.records if "row_id" in record.getMessage()]
    if ids == "both":
        assert (said, sink.scalars[0]["wrong"]) == ([], 1.0)
    else:
        assert "give `row_id` in both calls" in said[0] and "wrong" not in sink.scalars[0]


CHOSEN = {
    "a count": ("{expr: count(length), where: advantages > 0}", True),
    "a sum by a label": ("{expr: sum(length), by: advantages > 0}", True),
    "a mean": ("{expr: mean(length), where: advantages > 0}", False),
    "rows of the same phase": ("{expr: sum(length), where: reward > 0}", False),
    "values of the later phase": ("{expr: sum(advantages), where: advantages > 0}", False),
    "no choice": ("{expr: sum(length)}", False),
}


@pytest.mark.parametrize("case", CHOSEN)
def test_rows_that_come_again_in_a_later_phase(case: str, cli: Cli, tmp_path: Path) -> None:
    """A sum or a count of values of the rollout has a row once per epoch where an update's values choose its rows."""
    entry, again = CHOSEN[case]
    answer = checked(cli, tmp_path, f"metrics: {{m: {entry}}}\n", GRPO)
    assert ("`m` has the rows of update" in answer) is again


def test_a_count_has_a_row_in_each_epoch(tmp_path: Path) -> None:
    """The numbers that the note is about: two epochs count twice, and the mean is that of one."""
    entries = "n: {expr: count(length), where: advantages > 0}, m: {expr: mean(length), where: advantages > 0}"
    file = tmp_path / "mine.yaml"
    file.write_text(f"defaults: [grpo, _self_]\nmetrics: {{{entries}}}\nsinks: []\n")
    with declog.start(str(file), sinks=[sink := MemorySink()], output_dir=tmp_path / "run") as log, log.step(0):
        log.observe(reward=[1.0, 0.0, 0.0, 1.0], length=[3, 4, 5, 6], row_id=[0, 1, 2, 3])
        for _ in range(2):
            log.observe(advantages=[1.0, -1.0, -1.0, 1.0], row_id=[0, 1, 2, 3])
    assert (sink.scalars[0]["n"], sink.scalars[0]["m"]) == (4, 4.5)


PIECES = {
    "a quantile of steps": ("{expr: p99(reward), over: run_step}", "`m` is the mean of the p99 of each step: "),
    "several of batches": (
        "{expr: reward, reduce: [std, mean], over: run_batch}",
        "`m.std` is the mean of the std",
    ),
    "the greatest": ("{expr: max(reward), over: run_step}", "`over: run` has that of all rows"),
    "on purpose": ("{expr: p99(reward), over: run_step, combine: mean}", None),
    "combined in another way": ("{expr: p99(reward), over: run_step, combine: max}", None),
    "a mean": ("{expr: mean(reward), over: run_step}", None),
    "of the window's steps": ("{expr: p99(reward), over: step}", None),
    "all rows": ("{expr: max(reward), over: run}", None),
}


@pytest.mark.parametrize("case", PIECES)
def test_the_mean_of_a_quantile_of_each_step(case: str, cli: Cli, tmp_path: Path) -> None:
    """Where nothing says how the steps of the run are combined, and their mean is not that of all rows."""
    entry, said = PIECES[case]
    answer = checked(cli, tmp_path, f"metrics: {{m: {entry}, lr: mean}}\n")
    assert (said in answer) if said else ("is the mean of" not in answer)


@pytest.mark.parametrize(
    ("entries", "off"),
    [
        ('metrics: {kl: null}\nalerts: {kl: "> 0.5 for 3"}\n', "`alerts.kl` is off: the metric `kl` was deleted;"),
        ('metrics: {kl: null}\nalerts: {mine: "kl > 0.5"}\n', "`alerts.mine` is off: the metric `kl` was deleted;"),
        ('metrics: {kl: {log: false}}\nalerts: {kl: "> 0.5 for 3"}\n', None),
        ("metrics: {kl: null}\n", None),  # the preset's own alert goes with its metric
        ('metrics: {kl: null}\nalerts: {kl: "> 0.5", broken_kl: null}\n', "{kl: {log: false}}, in place of that"),
    ],
)  # fmt: skip
def test_an_alert_whose_metric_was_deleted(entries: str, off: str | None, cli: Cli, tmp_path: Path) -> None:
    """One's own alert is told, with the edit that hides the metric in place of deleting it."""
    answer = checked(cli, tmp_path, entries, GRPO)
    assert off in answer if off else "is off" not in answer


def test_what_is_deleted_is_not_replaced(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text('defaults: [grpo, _self_]\nalerts: {kl: "> 0.5"}\n')
    assert "drops the preset's `for: 3`" in cli("check", str(file)).out
    assert "drops the preset" not in cli("check", str(file), "~alerts.kl").out


@pytest.mark.parametrize("alert", ["w.mean > 1", "w.max > 1", "r > 1", "{when: w.max > 1 and r < 2}"])
def test_an_alert_that_says_its_reduction(alert: str, cli: Cli, tmp_path: Path) -> None:
    """Nothing is noted of a reduction that is written, nor of a metric with one reduction."""
    metrics = "metrics: {w: {expr: reward, reduce: [mean, max]}, r: mean(reward), lr: mean}\n"
    assert "judges" not in checked(cli, tmp_path, f"{metrics}alerts: {{x: {alert}}}\n")
    assert "judges `w.mean`" in checked(cli, tmp_path, f"{metrics}alerts: {{x: w > 1}}\n")


@pytest.mark.parametrize(
    ("below", "entry", "kept"),
    [
        ("p95(reward)", "{expr: length}", "p95"), ("sum(reward)", "{expr: reward > 0.5}", "sum"),
        ("mean(reward)", "{expr: length}", None), ("reward", "{expr: length}", None),
        ("{expr: reward, reduce: max}", "{expr: length}", None), ("p95(reward)", "{expr: length, reduce: max}", None),
        ("p95(reward)", "mean(length)", None), ("p95(reward)", "{where: length > 5}", None),
    ],
)  # fmt: skip
def test_an_expression_over_a_short_form(below: str, entry: str, kept: str | None, cli: Cli, tmp_path: Path) -> None:
    """An `expr` keeps the reduction that another file's short form names, and nothing on the line says so."""
    (tmp_path / "base.yaml").write_text(f"{GRPO}axes: {{group: {{size: 4}}}}\nmetrics: {{m: {below}}}\n")
    answer = checked(cli, tmp_path, f"metrics: {{m: {entry}}}\n", "defaults: [base, _self_]\n")
    assert (f"`metrics.m` keeps `reduce: {kept}`" in answer) is (kept is not None), answer
