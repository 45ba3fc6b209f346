"""What goes wrong between observations, phases, windows and modes says so, word for word."""

from __future__ import annotations

import queue
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

import declog
from declog.runtime.ranks.comm import Comm
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink, run_ranks
from tests.running import profile, run

ROWS = {"axis": "completion"}
ROW = {"row": {**ROWS, "type": "int"}}
IDS = {"completion": {"ids": "row"}}
JOINED = {"late": "mean(reward * loss)"}


def of_two_phases(
    metrics: Mapping[str, Any],
    observed: Mapping[str, Any] = ROW,
    rollout: Mapping[str, Any] | None = None,
    **others: Any,
) -> dict[str, Any]:
    """A profile with a signal of each phase, `reward` and `loss`, more of the rollout, and ids of the rows."""
    return profile(
        observed, metrics, signals={"rollout": {"reward": ROWS, **(rollout or {})}, "update": {"loss": ROWS}}, **others
    )


def raised(config: Mapping[str, Any], body: Callable[[Recorder], object], folder: Path) -> str:
    """The error that a run of a strict profile ends with."""
    with pytest.raises(declog.DeclogError) as error:
        run(config, body, folder)
    return str(error.value)


def refused(config: Mapping[str, Any]) -> str:
    """The text that a profile is refused with."""
    with pytest.raises(declog.ConfigError) as error:
        declog.plan(config)
    return str(error.value)


def observing(*batches: Mapping[str, Any]) -> Callable[[Recorder], None]:
    """One step that observes ``batches``, one after the other."""

    def body(log: Recorder) -> None:
        with log.step(0):
            for batch in batches:
                log.observe(**batch)

    return body


# ---- one batch


def test_signals_of_one_batch_with_different_counts(tmp_path: Path) -> None:
    """Values of one batch describe the same rows: both signals, their counts and their phase are named."""
    body = observing({"reward": [1.0, 2.0, 3.0], "length": [1.0, 2.0]})

    assert raised(profile({}, {"r": "mean(reward)", "l": "mean(length)"},
                          signals={"rollout": {"reward": ROWS, "length": ROWS}}), body, tmp_path) == (
        "[DL505] signals of one batch of phase `rollout` have different counts: "
        "`reward` has 3 completions, `length` has 2\n"
        "  fix: give `length` a value for each of the 3 completions, in a list with None where there is none; "
        "observe values of the same rows together; a signal given again opens the next batch"
    )  # fmt: skip


def test_a_required_signal_that_never_comes(tmp_path: Path) -> None:
    """The first batch of a phase has all that is required of it."""
    config = of_two_phases(
        {
            "r": "mean(reward)",
            "l": "mean(loss)",
            "n": {"observe": {"axis": "step", "phase": "update", "required": True}},
        },
    )

    assert raised(config, observing({"reward": [1.0]}, {"loss": [1.0]}), tmp_path) == (
        "[DL502] `n` was not observed in the first batch of phase `update`\n"
        "  fix: observe(n=...), or drop its `required`, or switch off what needs it"
    )


def test_an_phase_that_never_comes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is said at the first log event, and the rest is logged."""
    config = of_two_phases({"r": "mean(reward)", "l": "mean(loss)"}, run={"strict": False})

    assert run(config, observing({"reward": [1.0]}), tmp_path).scalars == {0: {"r": 1.0}}
    assert [record.getMessage() for record in caplog.records if record.name == "declog"] == [
        "1 of 2 metrics is inactive: l (no signal of update came, which `log.observe(loss=...)` gives)"
    ]


def test_an_unknown_name(tmp_path: Path) -> None:
    """A misspelt signal is named with the nearest one."""
    assert raised(of_two_phases({"r": "mean(reward)"}), observing({"rewrd": [1.0]}), tmp_path) == (
        "[DL501] the config `small` has no signal `rewrd`\n  fix: did you mean `reward`?"
    )


def test_an_unknown_phase(tmp_path: Path) -> None:
    """A misspelt phase of `log.batch` is named with the nearest one."""

    def body(log: Recorder) -> None:
        with log.step(0), log.batch("rolout"):
            pass

    assert raised(of_two_phases({"r": "mean(reward)"}), body, tmp_path) == (
        "[DL501] the config `small` has no phase `rolout`\n  fix: did you mean `rollout`?"
    )


def test_an_unknown_mode(tmp_path: Path) -> None:
    """A misspelt mode is named with the nearest one."""

    def body(log: Recorder) -> None:
        with log.mode("evla"):
            pass

    config = of_two_phases({"r": "mean(reward)"}, modes={"train": {}, "eval": {"prefix": "eval/"}})

    assert raised(config, body, tmp_path) == (
        "[DL510] the config `small` has no mode `evla`\n  fix: did you mean `eval`?"
    )


def test_a_mode_that_nobody_declared(tmp_path: Path) -> None:
    """What to write in the profile is said."""

    def body(log: Recorder) -> None:
        with log.mode("eval"):
            pass

    assert raised(of_two_phases({"r": "mean(reward)"}), body, tmp_path) == (
        "[DL510] the config `small` has no mode `eval`\n  fix: declare it: `modes: {eval: {prefix: eval/}}`"
    )


EVALUATED = [
    {"r": "mean(reward)"}, {"r": {"expr": "reward", "where": "mode == 'eval'"}},
    {"r": {"expr": "reward", "by": "kind"}, "all": "mean(reward)"},
]  # fmt: skip


@pytest.mark.parametrize("metrics", EVALUATED)
@pytest.mark.parametrize("prefix", ["eval/", "eval_"])
def test_blocks_of_one_mode_in_one_step(
    prefix: str, metrics: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: an evaluation in several blocks of one step, by batches or by data sets; the last one hides the others.

    The run says it once. Modes as it declares them, or one block, log all of it, and so do blocks of several steps.
    """
    signals = {"rollout": {"reward": ROWS, "kind": {**ROWS, "type": "text"}}}

    def read(modes: Mapping[str, Any], *blocks: tuple[int, str, Sequence[float]]) -> Any:
        config = profile({}, metrics, signals=signals, modes={"eval": {"prefix": prefix}, "train": {}, **modes})
        folder = tmp_path / str(len(caplog.records))
        caplog.clear()
        with declog.start({**config, "sinks": ["jsonl"]}, output_dir=folder) as log:
            for step, mode, batches in blocks:
                with log.mode(mode, step=step):
                    for reward in batches:
                        log.observe(reward=[reward, reward], kind=["a", "a"])
        return declog.read(folder)

    read({}, (0, "eval", [1.0]), (0, "eval", [2.0]), (0, "eval", [3.0]), (1, "eval", [3.0]), (1, "eval", [4.0]))
    (said,) = [record.getMessage() for record in caplog.records if "several log events" in record.getMessage()]
    assert said.startswith("step 0 has several log events of the mode `eval`")
    declared = yaml.safe_load(said.partition("a mode each: `")[2].partition("`")[0])["modes"]
    assert declared == {"eval_math": {"prefix": f"{prefix[:-1]}_math{prefix[-1]}"}}
    name = "all" if "all" in metrics else "r"
    if metrics is not EVALUATED[1]:
        run_of_two = read(declared, (0, "eval", [1.0, 2.0]), (0, "eval_math", [3.0]), (1, "eval", [4.0]))
        assert run_of_two[f"{prefix}{name}"].values.tolist() == [1.5, 4.0]
        assert run_of_two[f"{declared['eval_math']['prefix']}{name}"].values.tolist() == [3.0]
        assert "several log events" not in caplog.text


def test_a_mode_that_begins_with_anothers_name(tmp_path: Path) -> None:
    """Class: a data set's own mode, such as `eval_aime`; its declaration comes first, as YAML and as an override."""
    config = of_two_phases({"r": "mean(reward)"}, modes={"train": {}, "eval": {"prefix": "eval_"}})
    for name in ("eval_aime", "eval/aime", "eval-aime"):

        def body(log: Recorder, name: str = name) -> None:
            with log.mode(name):
                pass

        use = "" if name == "eval_aime" else ', and `log.mode("eval_aime")`'
        assert raised(config, body, tmp_path) == (
            f"[DL510] the config `small` has no mode `{name}`\n  fix: declare it: `modes: {{eval_aime: {{prefix: "
            f"eval_aime_}}}}`, as override `modes.eval_aime={{prefix: eval_aime_}}`{use}"
        )


# ---- rows of two phases


def joined(*batches: Mapping[str, Any], folder: Path, axes: Mapping[str, Any] = IDS) -> str:
    """The error of batches whose rows cannot be matched."""
    return raised(of_two_phases(JOINED, axes=dict(axes)), observing(*batches), folder)


def test_missing_ids(tmp_path: Path) -> None:
    """The ids were observed with one phase and not with the other."""
    config = of_two_phases(JOINED, axes=IDS)
    body = observing({"row": [0, 1], "reward": [1.0, 2.0]}, {"loss": [1.0, 2.0]})

    assert raised(config, body, tmp_path) == (
        "[DL511] the ids `row` were not observed in phase `update`\n  fix: observe them there too"
    )


def test_required_ids_that_are_missing(tmp_path: Path) -> None:
    """Ids that are required are missed where the batch closes."""
    config = of_two_phases(JOINED, {"row": {**ROW["row"], "required": True}}, axes=IDS)
    body = observing({"row": [0, 1], "reward": [1.0, 2.0]}, {"loss": [1.0, 2.0]})

    assert raised(config, body, tmp_path) == (
        "[DL502] `row` was not observed in the first batch of phase `update`\n"
        "  fix: observe(row=...), or drop its `required`, or switch off what needs it"
    )


def test_unknown_ids(tmp_path: Path) -> None:
    """A row whose id the earlier phase did not have is never matched with another."""
    batches = {"row": [0, 1, 2], "reward": [1.0, 2.0, 3.0]}, {"row": [2, 7, 9], "loss": [1.0, 2.0, 3.0]}

    assert joined(*batches, folder=tmp_path) == (
        "[DL511] 2 rows of phase `update` have ids `row` that the latest step of `rollout` does not have\n"
        "  fix: for rows of earlier steps, as a buffer has them, the call gives its own: "
        "signals: {update: {own_reward: completion float}}; log.observe(..., own_reward=...), "
        "and metrics of `update` read these"
    )


def test_rows_of_a_replay_buffer(tmp_path: Path) -> None:
    """Rows of two steps before carry their own values, as the fix says: another name, in the phase of the update."""
    rewards, losses = [[1.0, 2.0], [3.0, 5.0], [7.0, 9.0]], [0.5, 2.0]

    def body(log: Recorder) -> None:
        for step, drawn in enumerate(rewards):
            with log.step(step):
                log.observe(row=[2 * step, 2 * step + 1], reward=drawn)
                if step == 2:
                    log.observe(row=[0, 1], loss=losses, **({"own_reward": rewards[0]} if carried else {}))

    carried = False
    assert "signals: {update: {own_reward: completion float}}" in raised(
        of_two_phases(JOINED, axes=IDS), body, tmp_path / "refused"
    )
    carried = True
    mended = of_two_phases({"late": "mean(own_reward * loss)", "reward": "mean"}, axes=IDS)
    mended["signals"]["update"] = {**mended["signals"]["update"], "own_reward": "completion float"}
    logged = run(mended, body, tmp_path / "mended").scalars
    assert logged[2] == {"late": (1.0 * 0.5 + 2.0 * 2.0) / 2, "reward": 8.0}


def test_ids_of_several_rows(tmp_path: Path) -> None:
    """A prompt's id is none of its completions: what differs between them is refused, what does not is looked up."""
    source = {"source": {**ROWS, "type": "text"}}
    same = {"by": {"expr": "loss", "by": "source", "reduce": "sum"}}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(row=[7, 7, 8], reward=[1.0, 2.0, 3.0], source=["a", "a", "b"])
            log.observe(row=[8, 7, 7], loss=[1.0, 2.0, 4.0])

    assert raised(of_two_phases({**JOINED, **same}, rollout=source, axes=IDS), body, tmp_path) == (
        "[DL511] 1 ids `row` stand for several rows of one batch of phase `rollout`, and one value of `reward` is "
        "needed\n"
        "  fix: give each completion an id of its own; rows that are parts of a completion, such as turns, come with "
        "all that is read beside them, observed in `rollout`"
    )
    sink = run(of_two_phases(same, rollout=source, axes=IDS), body, tmp_path / "same")
    assert sink.scalars == {0: {"by/a": 6.0, "by/b": 1.0}}


@pytest.mark.parametrize("ok", [[1.0, 0, 1, 0, 5, 5], [1.0, 0, 0, 0, 5, 5]])
@pytest.mark.parametrize("calls", [1, 3])
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("late", [False, True])
def test_turns_beside_values_of_the_update(
    ok: list[float], calls: int, epochs: int, late: bool, tmp_path: Path
) -> None:
    """Class: a value of each turn is read with a row of a later phase, which has one row for all turns.

    It is refused, also where the turns of a completion have one value, or come in several calls; observed with the
    turns it is right.
    """
    signals = {"any": ROW, "rollout": {"reward": ROWS}, "update": {"advantage": ROWS}}
    signals["turns"] = {"ok": ROWS, "turn_advantage": ROWS}
    rows, advantages = np.array([0, 2, 1, 2, 3, 2]), np.array([1.0, -1, 1, -1])

    def body(log: Recorder) -> None:
        def turns() -> None:
            for some in np.array_split(np.arange(6), calls):
                log.observe(row=rows[some], ok=np.array(ok)[some], turn_advantage=advantages[rows[some]])

        with log.step(0):
            log.observe(row=range(4), reward=[0.0] * 4)
            if not late:
                turns()
            for _ in range(epochs):
                log.observe(row=range(4), advantage=advantages)
            if late:
                turns()

    def metrics(value: str) -> dict[str, Any]:
        return {"good": {"expr": "ok", "where": f"{value} > 0"}, "product": f"mean(ok * {value})"}

    error = raised(profile({}, metrics("advantage"), signals=signals, axes=IDS), body, tmp_path / "joined")
    assert "[DL511] several rows of phase `turns` are of one completion (1 such), and one value of `ok`" in error
    assert "fix: observe what is read beside `ok` in `turns`, too, in the calls of its rows" in error
    sink = run(profile({}, metrics("turn_advantage"), signals=signals, axes=IDS), body, tmp_path / "beside")
    here, of_rows = np.array(ok), advantages[rows]
    assert sink.scalars == {0: {"good": here[of_rows > 0].mean(), "product": (here * of_rows).mean()}}


@pytest.mark.parametrize("order", ["one call", "before", "behind", "all behind"])
@pytest.mark.parametrize("phase", ["calls", "critic", "zeta"])
def test_epochs_of_two_phases_are_matched_in_their_order(order: str, phase: str, tmp_path: Path) -> None:
    """Class: rows of two phases come several times in a step, in one call or one after the other."""
    signals = {"any": ROW, phase: {"epoch": {**ROWS, "type": "int"}}, "update": {"loss": ROWS}}
    config = profile({}, {"by": {"expr": "loss", "by": "epoch"}, "first": {"expr": "loss", "where": "epoch == 0"}},
                     signals=signals, axes=IDS)  # fmt: skip

    def body(log: Recorder) -> None:
        for step in range(2):
            with log.step(step):
                calls = [
                    ({"row": rows, "epoch": [epoch] * 2}, {"row": rows, "loss": [epoch + 1.0] * 2})
                    for epoch in range(3) for rows in ([3, 0], [1, 2])
                ]  # fmt: skip
                if order == "all behind":
                    for _, of_other in calls:
                        log.observe(**of_other)
                for of_one, of_other in calls:
                    match order:
                        case "one call":
                            log.observe(**{**of_other, **of_one})
                        case "before" | "behind":
                            for signals_of_call in (of_one, of_other) if order == "before" else (of_other, of_one):
                                log.observe(**signals_of_call)
                        case _:
                            log.observe(**of_one)

    expected = {"by/0": 1.0, "by/1": 2.0, "by/2": 3.0, "first": 1.0}
    assert run(config, body, tmp_path).scalars == {0: expected, 1: expected}


def test_turns_with_ids_of_their_own(tmp_path: Path) -> None:
    """Class: each turn is a row of the update, too; then a row reads its turn."""
    signals = {"any": ROW, "turns": {"ok": ROWS}, "update": {"loss": ROWS}}

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(row=range(4), ok=[1.0, 2.0, 3.0, 4.0])
            log.observe(row=[3, 2, 1, 0], loss=[1.0, 10.0, 100.0, 1000.0])

    sink = run(profile({}, {"m": "sum(ok * loss)"}, signals=signals, axes=IDS), body, tmp_path)
    assert sink.scalars == {0: {"m": 4.0 + 30.0 + 200.0 + 1000.0}}


@pytest.mark.parametrize("first", ["rollout", "update"])
@pytest.mark.parametrize("shared", [True, False])
def test_a_phase_that_is_observed_before_the_rows_that_it_reads(
    first: str, shared: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Class: tool calls while episodes run, or the update on the rows of the step before. The order decides.

    It is told of where ids come again in each step, so that either could be meant. The first step has no update.
    """

    def body(log: Recorder) -> None:
        for step in range(6):
            rows = {name: {"row": [at if shared else 2 * of + at for at in range(2)]} for name, of in steps(step)}
            calls = {"rollout": {"reward": [float(step), 0.0]}, "update": {"loss": [1.0, 1.0]}}
            with log.step(step):
                for phase in (first, "update" if first == "rollout" else "rollout"):
                    if dict(steps(step))[phase] >= 0:
                        log.observe(**calls[phase], **rows[phase])

    def steps(step: int) -> list[tuple[str, int]]:
        behind = first == "update" and (not shared or not step)
        return [("rollout", step), ("update", step - behind)]

    config = {**of_two_phases(JOINED, axes=IDS), "run": {"strict": False}}
    values = {step: logged.get("late") for step, logged in run(config, body, tmp_path).scalars.items()}
    behind = first == "update"
    assert [values[step] for step in range(1, 6)] == [(step - behind) / 2 for step in range(1, 6)]
    told = [record.getMessage() for record in caplog.records if "came before `rollout`, so" in record.getMessage()]
    assert len(told) == (behind and shared)


def test_phases_on_different_ranks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Class: one rank rolls out, and another one learns from the same rows. A packet brings the values to its rank."""
    packets: queue.Queue[Any] = queue.Queue()

    def body(comm: Comm, carried: bool) -> None:
        folder, sinks = tmp_path / f"{carried}-{comm.rank}", [MemorySink()]
        with declog.start({**config, "run": {"strict": False}}, sinks=sinks, output_dir=folder, comm=comm) as log:
            for step in range(2):
                rows = {"row": [2 * step, 2 * step + 1]}
                with log.step(step):
                    if comm.rank == 1 and carried:
                        packets.put(declog.rows(reward=[1.0, 3.0], **rows))
                    elif comm.rank == 1:
                        log.observe(reward=[1.0, 3.0], **rows)
                    else:
                        if carried:
                            log.observe(packets.get(timeout=30))
                        log.observe(loss=[2.0, 1.0], **rows)
        if comm.rank == 0:
            logged[carried] = [records.scalars[0].value for _, records in sinks[0].events if records.scalars]

    config, logged = of_two_phases(JOINED, axes=IDS), dict[bool, list[float]]()
    run_ranks(2, lambda comm: body(comm, False))
    said = "[DL511] rows of `update` came on rank 0, and those of `rollout` on rank 1: rows of different ranks are not"
    assert sum(said in text and "finished" not in text for text in caplog.messages) == 1
    run_ranks(2, lambda comm: body(comm, True))
    assert logged == {False: [], True: [2.5, 2.5]}


def test_update_before_rollout(tmp_path: Path) -> None:
    """Ids that neither the steps before nor the step itself has are looked up nowhere else."""
    batches = {"row": [0], "loss": [1.0]}, {"row": [1], "reward": [1.0]}

    assert joined(*batches, folder=tmp_path) == (
        "[DL511] a batch of phase `update` came before any of `rollout`\n"
        "  fix: observe `rollout` first in each step; else rows are those of the step before, by their ids"
    )


def test_an_update_without_any_rollout(tmp_path: Path) -> None:
    """Nothing came that it could be joined with."""
    assert joined({"row": [0], "loss": [1.0]}, folder=tmp_path) == (
        "[DL511] nothing of phase `rollout` came before `update`: `reward` has no rows to match"
    )


@pytest.mark.parametrize(
    ("rollouts", "sizes"), [([[1.0, 2.0, 3.0]], "3"), ([[1.0], [2.0]], "1 and 1")], ids=["counts", "batches"]
)
def test_positions_that_do_not_match(rollouts: list[list[float]], sizes: str, tmp_path: Path) -> None:
    """By position only where each phase had one batch with as many rows."""
    batches = [*({"reward": rows} for rows in rollouts), {"loss": [1.0, 2.0]}]

    assert joined(*batches, folder=tmp_path, axes={}) == (
        "[DL511] rows of `update` and `rollout` cannot be matched by position: "
        f"a batch of 2 completions, and of {sizes}\n"
        "  fix: name the rows: `axes: {completion: {ids: row_id}}, signals: {any: {row_id: completion int}}`, and give "
        "`row_id` in both calls: log.observe(..., row_id=indices), the same number for the same completion"
    )


def test_what_cannot_be_joined_takes_nothing_else_with_it(tmp_path: Path) -> None:
    """The metrics of one phase are logged; those that need both are absent, and the failure is reported."""
    config = of_two_phases({**JOINED, "r": "mean(reward)", "l": "mean(loss)"}, axes=IDS, run={"strict": False})
    body = observing({"row": [0], "reward": [1.0]}, {"row": [5], "loss": [3.0]})

    assert run(config, body, tmp_path).scalars == {0: {"r": 1.0, "l": 3.0}}


OF_TWO_PHASES: list[Any] = [
    {"expr": "kl", "where": "reward > 0"}, {"expr": "tokens", "where": "reward > 0"}, "mean(loss * kl * reward)",
    {"expr": "kl", "weight": "reward"}, {"expr": "kl", "by": "reward > 0"}, "mean(mean(tokens, over=token) * reward)",
]  # fmt: skip


@pytest.mark.parametrize("mask", ["all", "mask"])
@pytest.mark.parametrize("axes", [IDS, {}], ids=["ids", "positions"])
@pytest.mark.parametrize("metric", OF_TWO_PHASES)
def test_rows_that_nothing_reads_need_not_be_matched(metric: Any, axes: Any, mask: str, tmp_path: Path) -> None:
    """Where a signal of the later phase never comes, its metric is inactive, and no failure: whatever else came."""
    update = {"loss": ROWS, "kl": ROWS, "tokens": {"axis": "token"}, "scale": {"axis": "step"}, "mask": "token bool"}
    config = profile(
        ROW, {"m": metric, "s": "mean(scale)"}, axes={**axes, "token": {"mask": mask}},
        signals={"rollout": {"reward": ROWS}, "update": update},
    )  # fmt: skip
    rollouts = [{"reward": [1.0, 2.0]}, {"reward": [3.0, 4.0]}]
    for observed in ({"scale": 1.0}, {"scale": 1.0, "loss": [1.0, 2.0, 3.0]}):
        with (
            declog.start(
                {**config, "run": {"name": "quiet"}}, sinks=[MemorySink()], output_dir=tmp_path / str(len(observed))
            ) as log,
            log.step(0),
        ):
            for batch in (*rollouts, observed):
                log.observe(**batch)
        assert (log.failures, sorted(log.missing)) == ({}, ["m"])
    both = {"loss": [1.0], "kl": [1.0], "tokens": [[1.0]], "mask": [[True]]}
    assert "DL511" in raised(config, observing(*rollouts, both), tmp_path / "both")


# ---- groups


def test_a_group_split_over_batches_where_the_profile_says_it_is_not(tmp_path: Path) -> None:
    """Groups of 4, and a micro-batch of 2."""
    config = profile({"reward": ROWS}, {"s": "mean(std(reward, over=completion))"}, axes={"group": {"size": 4}})

    assert raised(config, observing({"reward": [1.0, 2.0]}, {"reward": [3.0, 4.0]}), tmp_path) == (
        "[DL507] the metric `s`: rows cannot be grouped: groups have 4 completions, "
        "and step 0 of rank 0 has a batch of 2\n"
        '  fix: groups spread over batches? "axes.group.split=batches"; over ranks? "axes.group.split=ranks"\n'
        "       else observe whole groups in a batch, a multiple of 4 completions"
    )


def test_a_group_split_over_ranks_where_the_profile_says_it_is_not(tmp_path: Path) -> None:
    """A group of 4 that two ranks have halves of is never taken for two groups."""
    config = profile({"reward": ROWS}, {"s": "mean(std(reward, over=completion))"}, axes={"group": {"size": 4}})

    def body(comm: Comm) -> None:
        sinks = [] if comm.rank else [MemorySink()]
        with declog.start(config, sinks=sinks, comm=comm, output_dir=tmp_path) as log, log.step(3):
            log.observe(reward=[1.0, 2.0])

    with pytest.raises(declog.DeclogError) as error:
        run_ranks(2, body)
    assert str(error.value) == (
        "[DL507] the metric `s`: rows cannot be grouped: groups have 4 completions, "
        "and step 3 of rank 0 has a batch of 2\n"
        '  fix: groups spread over batches? "axes.group.split=batches"; over ranks? "axes.group.split=ranks"\n'
        "       else observe whole groups in a batch, a multiple of 4 completions"
    )


# ---- what the compiler refuses

MASK = {"mask": {"axis": "token", "type": "bool"}}
TOKENS = {"rollout": {"sampled": {"axis": "token"}}, "update": {"trained": {"axis": "token"}}}


def test_an_expression_per_token_over_two_phases() -> None:
    """Tokens are folded where they are: nothing is kept of them to join with."""
    assert refused(profile(MASK, {"gap": "mean(trained - sampled)"}, signals=TOKENS, axes={"token": "mask"})) == (
        "error[DL313] metrics.gap\n"
        "  `trained` is per token in phase `update`, and `sampled` is observed in `rollout`\n"
        "    trained - sampled\n"
        "              ^^^^^^^\n"
        "  fix: observe it in `update` too, and declare it there: signals: {update: {sampled: token}}"
    )


def test_a_signal_that_is_needed_in_an_phase_it_is_not_declared_for() -> None:
    """A per-token mask of one phase, and a per-token value of the other."""
    signals = {**TOKENS, "rollout": {**TOKENS["rollout"], **MASK}}

    assert refused(profile({}, {"t": "mean(trained)"}, signals=signals, axes={"token": {"mask": "mask"}})) == (
        "error[DL313] signals.rollout.mask\n"
        "  `mask` is needed in phase `update`, and is observed in `rollout`\n"
        "  fix: observe it there too, and declare it: signals: {update: {mask: token bool}}"
    )


def test_a_window_is_a_multiple_of_the_profiles() -> None:
    """A metric's `every` of 3 does not fit in windows of 2."""
    assert refused(of_two_phases({"r": {"expr": "reward", "every": 3}}, every=2)) == (
        "error[DL202] metrics.r.every\n  `every` must be a multiple of the config's 2\n  fix: every: 4\n"
        "       or at the top `every: 1`, and `every: 2` for what shall have fewer values"
    )


def test_a_formula_over_different_windows() -> None:
    """Values of different log events never meet."""
    metrics = {"r": "mean(reward)", "b": {"expr": "reward", "every": 2}, "f": {"formula": "r - b"}}

    assert refused(of_two_phases(metrics)) == (
        "error[DL310] metrics.f.formula\n"
        "  the metrics of a formula have values at different steps: `r` with `every: 1` and `b` with `every: 2`\n"
        "    r - b\n"
        "  fix: metrics: {b: {every: null, expr: reward}}"
    )


def test_a_first_log_event_is_an_early_one() -> None:
    """After as many steps as all others it is none of its own."""
    for every in (3, 2, "trainer"):
        shown = refused(of_two_phases({"r": "mean(reward)"}, every=every, modes={"train": {"first": 3}}))
        assert shown == (
            "error[DL202] modes.train.first\n"
            f"  `first: 3` is not earlier than the first log event of `every: {every}`\n"
            "  fix: a smaller number, or drop it"
        )
    shown = refused(of_two_phases({"r": "mean(reward)"}, every=3, modes={"eval": {"prefix": "eval/", "first": 1}}))
    assert shown == (
        "error[DL202] modes.eval.first\n  only the mode `train` has a `first` log event of its own\n"
        "  fix: modes: {train: {first: 1}}"
    )


def test_what_goes_on_over_the_run_needs_no_rows_of_it() -> None:
    """A quantile of all so far would need them; a value of each rank and whole window is cut as windows are."""
    assert refused(of_two_phases({"r": {"expr": "reward", "reduce": "p50", "over": "run"}})) == (
        "error[DL312] metrics.r.over\n"
        "  `p50` needs all its rows at once, and `over: run` keeps none from the start of the run\n"
        "  fix: reduce: mean, or another one with a mergeable state"
    )
    assert refused(of_two_phases({"r": {"expr": "reward", "over": "rank", "combine": "ema(0.9)"}})) == (
        "error[DL312] metrics.r.over\n"
        "  `ema` goes on from step to step, and `over: rank` has a value for each rank of a whole window\n"
        "  fix: over: step"
    )
    assert refused(of_two_phases({"r": {"expr": "reward", "over": "run", "combine": "ema(0.9)"}})) == (
        "error[DL312] metrics.r.over\n  `ema` goes on from step to step already, without `over: run`\n  fix: over: step"
    )
    assert refused(of_two_phases({"r": "mean(reward)", "f": {"formula": "r + 1", "over": "run"}})) == (
        "error[DL202] metrics.f.over\n  a formula has no `over`: it is computed from other metrics\n"
        "  fix: metrics: {r_of_run: {expr: reward, reduce: mean, over: run, log: false}, f: {formula: r_of_run + 1}}"
    )


def test_an_unknown_metric_in_a_condition() -> None:
    """`when` reads metrics, not signals."""
    assert refused(of_two_phases({"r": {"expr": "reward", "when": "loss > 1"}})) == (
        "error[DL302] metrics.r.when\n"
        "  `loss` is a signal; here only metrics and constants are known\n"
        "    loss > 1\n"
        "    ^^^^\n"
        '  fix: where: "loss > 1", which chooses rows; `when` chooses log events: declare a metric: '
        "metrics: {loss: {expr: loss}}"
    )
