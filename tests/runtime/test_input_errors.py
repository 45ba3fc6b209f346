"""What does not fit: every message of `observe` and `log_extra`, word for word, and that the run goes on after it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import declog
from declog.errors import InputError
from declog.runtime.recording.recorder import Recorder
from declog.testing import MemorySink
from tests.running import profile, run

SIGNALS: dict[str, dict[str, Any]] = {
    "reward": {"axis": "completion"}, "other": {"axis": "completion"}, "length": {"axis": "completion", "type": "int"},
    "done": {"axis": "completion", "type": "bool"}, "rewards": {"axis": "completion", "family": True},
    "logprobs": {"axis": "token"}, "mask": {"axis": "token", "type": "bool"},
    "prompt": {"axis": "completion", "type": "text"}, "note": {"axis": "step", "type": "text"},
    "loss": {"axis": "step"}, "epoch": {"axis": "step", "type": "int"}, "spread": {"axis": "group"},
    "renamed": {"axis": "completion", "from": "given_as"},
}  # fmt: skip
METRICS = {
    "reward": "mean(reward)", "other": "mean(other)", "length": "sum(length)", "done": "mean(done)",
    "rewards": {"reduce": "mean"}, "logprobs": "mean(logprobs)", "prompt": "mean(len(prompt))", "loss": "mean(loss)",
    "epoch": {"reduce": "last"}, "spread": "mean(spread)", "renamed": "mean(renamed)",
}  # fmt: skip
SCHEMAS = {"s": {"note": {"type": "text"}, "extra": {"undeclared": "keep"}}}
CONFIG = profile(
    SIGNALS,
    METRICS,
    schemas=SCHEMAS,
    tables={"t": {"schema": "s"}},
    axes={"group": {"size": 2}, "token": {"mask": "mask"}},
)

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unknown name": (
        {"rewrd": [1.0]},
        "[DL501] the config `small` has no signal `rewrd`\n  fix: did you mean `reward`?",
    ),
    "a name like no other, which a config would have to declare": (
        {"source": ["math", "code"]},
        "[DL501] the config `small` has no signal `source`\n"
        "  fix: one of your own, in the config: signals: {any: {source: completion text}}\n"
        "       or as overrides: ['signals.any.source=completion text']\n"
        "       signals: done, epoch, given_as, length, logged, logprobs, loss, mask, note, other, prompt, reward, "
        "rewards, spread",
    ),
    "several names at once": (
        {"reward": [1.0, 2.0], "rewrd": [1.0, 2.0], "mean_loss": 0.5, "grid": torch.ones(2, 3)},
        "[DL501] the config `small` has no signal `rewrd` and no signal `mean_loss` and no signal `grid`\n"
        "  fix: `rewrd`: did you mean `rewards`?\n"
        "       `mean_loss`: did you mean `loss`?\n"
        "       one of your own, in the config: signals: {any: {mean_loss: step, grid: token}}, "
        "metrics: {mean_loss: mean(mean_loss), grid: mean(grid)}\n"
        "       or as overrides: ['signals.any.mean_loss=step', 'signals.any.grid=token', "
        "'metrics.mean_loss=mean(mean_loss)', 'metrics.grid=mean(grid)']\n"
        "       signals: done, epoch, given_as, length, logged, logprobs, loss, mask, note, other, prompt, reward, "
        "rewards, spread",
    ),
    "the name inside the profile": (
        {"renamed": [1.0]},
        "[DL501] the config `small` has no signal `renamed`\n  fix: `renamed` is observed as `given_as`",
    ),
    "too many axes": (
        {"reward": torch.ones(2, 3)},
        "[DL503] `reward` is declared float per completion: shape [completions] is expected, and a tensor of shape "
        "(2, 3) came\n  fix: `reward.flatten()` for groups of completions, or declare "
        "`signals: {any: {reward: {axis: token}}}`",
    ),
    "too few axes": (
        {"logprobs": torch.ones(2)},
        "[DL503] `logprobs` is declared float per token: shape [completions, tokens] is expected, and a tensor of "
        "shape (2,) came\n  fix: the tokens of each completion: `logprobs=logprobs.split(lengths), "
        "mask=[[True] * n for n in lengths]`, with a list of them, or declare `signals: {any: {logprobs: "
        "{axis: completion}}}`",
    ),
    "logits, or a batch of images": (
        {"logprobs": torch.ones(2, 3, 4)},
        "[DL503] `logprobs` is declared float per token: shape [completions, tokens] is expected, and a tensor of "
        "shape (2, 3, 4) came\n  fix: `logprobs=logprobs.gather(-1, completion_ids[..., None])[..., 0]`, of the "
        "sampled tokens' ids; of logits take `torch.log_softmax(logprobs, -1)` first",
    ),
    "values by name where there is no family": (
        {"reward": {"a": [1.0, 2.0]}},
        "[DL503] `reward` is declared float per completion, and a mapping came\n  fix: `rewards` in place of `reward`: "
        "it has values by name",
    ),
    "values by name that no family is near to": (
        {"spread": {"a": [1.0, 2.0]}},
        "[DL503] `spread` is declared float per group, and a mapping came\n  fix: give one value per group, or declare "
        "`signals: {any: {spread: {family: true}}}` for values by name",
    ),
    "a value per row where one per step is declared": (
        {"loss": torch.ones(3)},
        "[DL503] `loss` is declared float per step: one number is expected, and a tensor of shape (3,) came\n"
        "  fix: `loss.mean()`, or declare `signals: {any: {loss: {axis: completion}}}`",
    ),
    "a list where one number is declared": (
        {"loss": [1.0, 2.0]},
        "[DL503] `loss` is declared float per step: one number is expected, and a list of 2 came\n"
        "  fix: `sum(loss) / len(loss)`",
    ),
    "an array where one number is declared": (
        {"loss": np.ones((2, 2))},
        "[DL503] `loss` is declared float per step: one number is expected, and an array of float64 with shape (2, 2) "
        "came\n  fix: `loss.mean()`, of the tokens that exist `(loss * mask).sum() / mask.sum()`, or declare "
        "`signals: {any: {loss: {axis: token}}}`",
    ),
    "one number where rows are declared": (
        {"reward": 1.0},
        "[DL503] `reward` is declared float per completion, and float 1.0 came\n"
        "  fix: observe a tensor, an array or a list with one value per completion, not their mean; "
        'a mean alone is `log.scalars({"reward_mean": x})`, or declare `signals: {any: {reward: {axis: step}}}`, '
        "if it is a number of the step",
    ),
    "an epoch where rows are declared": (
        {"length": 2},
        "[DL503] `length` is declared int per completion, and int 2 came\n"
        "  fix: observe a tensor, an array or a list with one value per completion, or declare "
        "`signals: {any: {length: {axis: step, type: int}}}`, if it is a number of the step",
    ),
    "an epoch in a tensor where rows are declared": (
        {"length": torch.tensor(2)},
        "[DL503] `length` is declared int per completion: shape [completions] is expected, and a tensor of shape "
        "() came\n  fix: one value per completion, or declare `signals: {any: {length: {axis: step}}}`",
    ),
    "a float tensor for an int": (
        {"length": torch.ones(2)},
        "[DL504] `length` is declared int per completion, and a tensor of float32 came\n"
        "  fix: `length.long()`, or declare `signals: {any: {length: {type: float}}}`",
    ),
    "a float tensor for a mask": (
        {"mask": torch.ones(2, 2)},
        "[DL504] `mask` is declared bool per token, and a tensor of float32 came\n"
        "  fix: pass it as bool: `mask=mask.bool()`",
    ),
    "a list of tokens that are floats where bools are declared": (
        {"logprobs": torch.ones(2, 2), "mask": [[1.0, float("nan")], [1.0, 0.0]]},
        "[DL504] `mask` is declared bool per token, and a tensor of float64 came\n"
        "  fix: pass it as bool: `mask=[[x == 1 for x in row] for row in mask]`",
    ),
    "a float for an int": (
        {"epoch": 0.5},
        "[DL504] `epoch` is declared int per step, and float 0.5 came\n"
        "  fix: `int(epoch)`, or declare `signals: {any: {epoch: {type: float}}}`",
    ),
    "an int of more than 64 bits": (
        {"epoch": 2**70},
        "[DL504] `epoch` holds a number that does not fit 64 bits\n"
        "  fix: declare `signals: {any: {epoch: {type: float}}}`",
    ),
    "a list with an int of more than 64 bits": (
        {"length": [1, 2**70]},
        "[DL504] `length` holds a number that does not fit 64 bits\n"
        "  fix: declare `signals: {any: {length: {type: float}}}`",
    ),
    "a great int beside a missing one": (
        {"length": [None, 2**63]},
        "[DL504] `length` holds a number that does not fit 64 bits\n"
        "  fix: declare `signals: {any: {length: {type: float}}}`",
    ),
    "complex numbers": (
        {"reward": torch.ones(2, dtype=torch.complex64)},
        "[DL504] `reward` is declared float per completion, and a tensor of complex64 came\n"
        "  fix: `reward.real`",
    ),
    "texts for numbers": (
        {"reward": [1.0, "2"]},
        "[DL504] `reward` is declared float per completion, and its value 1 is str '2'\n"
        "  fix: `[float(x) for x in reward]`",
    ),
    "lists for numbers": (
        {"reward": [[1.0], [2.0]]},
        "[DL504] `reward` is declared float per completion, and its value 0 is a list of 1\n"
        "  fix: `[x for row in reward for x in row]`",
    ),
    "a tensor of one value among numbers": (
        {"reward": [torch.tensor(1.0), torch.tensor([2.0])]},
        "[DL504] `reward` is declared float per completion, and its value 1 is a tensor of float32 with shape (1,)\n"
        "  fix: `[float(x) for x in reward]`",
    ),
    "tensors of several values for numbers": (
        {"reward": [torch.ones(2), torch.ones(2)]},
        "[DL504] `reward` is declared float per completion, and its value 0 is a tensor of float32 with shape (2,)\n"
        "  fix: `torch.cat(reward)`",
    ),
    "an array of objects": (
        {"reward": np.array([1.0, "b"], object)},
        "[DL504] `reward` is declared float per completion, and its value 1 is str 'b'\n"
        "  fix: give values of that type, and None where one is absent",
    ),
    "one text for many": (
        {"prompt": "hello"},
        "[DL503] `prompt` is declared text per completion: a list is expected, and str 'hello' came\n"
        "  fix: give one value per row: prompt=['hello'] * n",
    ),
    "numbers for texts": (
        {"prompt": ["a", 3]},
        "[DL504] `prompt` is declared text per completion, and its value 1 is int 3\n"
        "  fix: `[str(x) for x in prompt]`, or declare `signals: {any: {prompt: {type: object}}}`",
    ),
    "a number for a step's text": (
        {"note": 3},
        "[DL504] `note` is declared text per step, and int 3 came\n"
        "  fix: `str(note)`, or declare `signals: {any: {note: {type: object}}}`",
    ),
    "a mapping of each row for a family": (
        {"rewards": [{"right": 1.0}, {"right": 0.0}]},
        "[DL504] `rewards` is declared float per completion, and its value 0 is a mapping, of one row\n  fix: a mapping"
        " of member to values, one value per row: "
        "rewards={key: [(row or {}).get(key) for row in rewards] for key in set().union(*filter(None, rewards))}",
    ),
    "a number for a family": (
        {"rewards": 0.5},
        "[DL503] `rewards` is a family: a mapping of member to values is expected, and float 0.5 "
        "came\n  fix: observe(rewards={'name': values})",
    ),
    "a family with a number for a name": (
        {"rewards": {0: [1.0]}},
        "[DL504] `rewards` has the member 0: members are named by text",
    ),
    "a wrong member of a family": (
        {"rewards": {"a": [1.0, 3.0], "b": 2.0}},
        "[DL503] `rewards['b']` is declared float per completion, and float 2.0 came\n"
        "  fix: observe a tensor, an array or a list with one value per completion, not their mean; "
        'a mean alone is `log.scalars({"rewards_mean": x})`',
    ),
    "no rows beside some": (
        {"reward": [], "other": [1.0, 2.0]},
        "[DL505] signals of one batch of phase `default` have different counts: `reward` has 0 completions, `other` "
        "has 2\n  fix: observe values of the same rows together; a signal given again opens the next batch",
    ),
    "different counts": (
        {"reward": [1.0, 2.0], "other": [1.0, 2.0, 3.0]},
        "[DL505] signals of one batch of phase `default` have different counts: `reward` has 2 completions, `other` "
        "has 3\n  fix: give `reward` a value for each of the 3 completions, in a list with None where there is none; "
        "observe values of the same rows together; a signal given again opens the next batch",
    ),
    "tokens times completions": (
        {"reward": [1.0, 2.0], "logprobs": torch.ones(3, 2)},
        "[DL505] signals of one batch of phase `default` have different counts: `reward` has 2 completions, `logprobs` "
        "has 3\n  fix: `logprobs` has tokens times completions: logprobs=logprobs.T",
    ),
    "a mask of tokens times completions": (
        {"mask": torch.ones(3, 2, dtype=torch.bool), "logprobs": torch.ones(2, 3)},
        "[DL505] signals of one batch of phase `default` have different counts: `mask` has 3 completions, `logprobs` "
        "has 2\n  fix: `mask` has tokens times completions: mask=mask.T",
    ),
    "tokens of all completions in a row": (
        {"reward": [1.0, 2.0], "logprobs": torch.ones(6), "mask": torch.ones(6, dtype=torch.bool)},
        "[DL503] `logprobs` is declared float per token: shape [completions, tokens] is expected, and a tensor of "
        "shape (6,) came\n  fix: `logprobs.view(2, -1)`, if completions have equally many tokens; else the tokens of "
        "each completion: `logprobs.split(lengths)`, with a list of them",
    ),
    "tokens of all completions in a row, beside their numbers": (
        {"length": torch.tensor([3, 2]), "logprobs": torch.ones(5)},
        "[DL503] `logprobs` is declared float per token: shape [completions, tokens] is expected, and a tensor of "
        "shape (5,) came\n  fix: the tokens of each completion: `logprobs=logprobs.split(length.tolist()), "
        "mask=[[True] * n for n in length.tolist()]`",
    ),
    "groups of completions under another name": (
        {"given_as": torch.ones(2, 3)},
        "[DL503] `given_as` is declared float per completion: shape [completions] is expected, and a tensor of shape "
        "(2, 3) came\n  fix: `given_as.flatten()` for groups of completions",
    ),
    "values per token beside others": (
        {"reward": torch.ones(2, 3), "logprobs": torch.ones(2, 3), "mask": torch.ones(2, 3, dtype=torch.bool)},
        "[DL503] `reward` is declared float per completion: shape [completions] is expected, and a tensor of shape "
        "(2, 3) came\n  fix: declare `signals: {any: {reward: {axis: token}}}`, or `reward.sum(1)` of values per token",
    ),
    "messages": (
        {"prompt": [[{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]]},
        "[DL504] `prompt` is declared text per completion, and its value 0 is a list of 1\n"
        "  fix: `[x[-1][\"content\"] for x in prompt]`, or declare `signals: {any: {prompt: {type: object}}}`",
    ),
    "token ids": (
        {"prompt": torch.ones(2, 3, dtype=torch.int64)},
        "[DL503] `prompt` is declared text per completion: a list of texts is expected, and a tensor of int64 with "
        "shape (2, 3) came\n  fix: the texts of token ids: `prompt=tokenizer.batch_decode(prompt, "
        "skip_special_tokens=True)`",
    ),
    "different counts in a family": (
        {"rewards": {"a": [1.0, 2.0], "b": [1.0]}},
        "[DL505] signals of one batch of phase `default` have different counts: `rewards['a']` has 2 completions, "
        "`rewards['b']` has 1\n  fix: observe values of the same rows together; a signal given again opens the next "
        "batch",
    ),
    "different counts of tokens' rows": (
        {"reward": [1.0, 2.0], "logprobs": torch.ones(3, 4)},
        "[DL505] signals of one batch of phase `default` have different counts: `reward` has 2 completions, `logprobs` "
        "has 3\n  fix: observe values of the same rows together; a signal given again opens the next batch",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("values", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_is_refused_where_it_is_given(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    """The error names the signal, what was declared and what came; the next step is logged as if nothing was."""

    def body(log: Recorder) -> None:
        with pytest.raises(declog.InputError) as error, log.step(0):
            log.observe(**values)
        assert str(error.value) == message
        with log.step(1):
            log.observe(loss=0.5)

    assert run(CONFIG, body, tmp_path).scalars[1] == {"loss": 0.5}


AT_THE_END: dict[str, tuple[list[dict[str, Any]], str]] = {
    "tokens of different widths": (
        [{"logprobs": torch.ones(2, 3), "mask": torch.ones(2, 4).bool()}],
        "[DL503] `logprobs` has shape (2, 3), and `mask` (2, 4)\n  fix: observe signals of the same tokens together: "
        "log-probs are of the tokens from the second on, `mask=mask[:, 1:]`",
    ),
    "a mask of the prompt, too": (
        [{"logprobs": torch.ones(2, 3), "mask": torch.ones(2, 9).bool()}],
        "[DL503] `logprobs` has shape (2, 3), and `mask` (2, 9)\n  fix: observe signals of the same tokens together; "
        "`mask` has 6 tokens more; if those are the prompt's, which come first: mask=mask[:, -3:]",
    ),
    "a mask that would broadcast": (
        [{"logprobs": torch.ones(2, 3), "mask": torch.ones(2, 1).bool()}],
        "[DL503] `logprobs` has shape (2, 3), and `mask` (2, 1)\n  fix: observe signals of the same tokens together",
    ),
    "groups that do not add up": (
        [{"reward": [1.0, 2.0, 3.0, 4.0], "spread": [1.0, 2.0, 3.0]}],
        "[DL505] `spread` has 3 groups, and the batch of phase `default` has 4 completions in groups of 2\n"
        "  fix: observe one value per group",
    ),
}


def test_the_type_that_an_error_says_is_pasted(tmp_path: Path) -> None:
    """A signal of a preset, observed with values of another type: texts as ids of rows, of both phases."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("""\
defaults: [grpo, _self_]
axes: {group: {size: 2}}
metrics: {x: {expr: entropy, where: reward == 0}}
sinks: [parquet]
""")

    def log_two_batches(folder: Path) -> declog.Run:
        with declog.start(mine, output_dir=folder) as log, log.step(0):
            log.observe(reward=[0.0, 1.0, 0.0, 1.0], row_id=["a-1", "b", "c", "d"])
            for values, ids in (([1.0, 2.0], ["d", "c"]), ([3.0, 4.0], ["b", "a-1"])):
                log.observe(entropy=torch.tensor(values)[:, None], completion_mask=torch.ones(2, 1).bool(), row_id=ids)
        return declog.read(log)

    with pytest.raises(InputError) as caught:
        log_two_batches(tmp_path / "before")
    edit = re.search("fix: declare `(.*)`", str(caught.value))
    assert edit is not None and edit[1] == "signals: {any: {row_id: {type: text}}}"
    mine.write_text(f"{mine.read_text()}{edit[1]}\n")
    assert log_two_batches(tmp_path / "after")["x"].values == [3.0]


@pytest.mark.parametrize(("batches", "message"), AT_THE_END.values(), ids=AT_THE_END.keys())
def test_what_does_not_fit_together_is_refused_at_the_end(
    batches: list[dict[str, Any]], message: str, tmp_path: Path
) -> None:
    """What only the whole batch shows is reported when it closes."""

    def body(log: Recorder) -> None:
        with pytest.raises(declog.InputError) as error, log.step(0):
            for batch in batches:
                log.observe(**batch)
        assert str(error.value) == message

    assert run(CONFIG, body, tmp_path).scalars == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"a": 1.0}, "[DL502] `b`, `c` were not observed in the first batch of phase `default`\n"
         "  fix: observe(b=...), or drop its `required`, or switch off what needs it"),
        ({"a": 1.0, "b": 1.0}, "[DL502] `c` was not observed in the first batch of phase `default`\n"
         "  fix: observe(c=...), or drop its `required`, or switch off what needs it"),
    ],
)  # fmt: skip
def test_a_required_signal_must_be_in_the_first_batch(given: dict[str, float], message: str, tmp_path: Path) -> None:
    """All that are missing are named by the names they are observed under."""
    needed = {"axis": "step", "required": True}
    signals = {"a": needed, "b": needed, "inner": {**needed, "from": "c"}}

    def body(log: Recorder) -> None:
        with pytest.raises(declog.MissingSignalError) as error, log.step(0):
            log.observe(**given)
        assert str(error.value) == message

    run(profile(signals, {"a": "mean(a)", "b": "mean(b)", "inner": "mean(inner)"}), body, tmp_path)


# ---- log_extra

EXTRA: dict[str, tuple[Any, str]] = {
    "too many": (
        [1, 2, 3],
        "[DL509] the column `x` has 3 values, and the batch has 2 rows (`reward`)\n  fix: give one value per row",
    ),
    "a text": ("abc", "[DL509] the column `x` needs one value per completion, and str came\n  fix: give a list"),
    "a number": (3, "[DL509] the column `x` needs one value per completion, and int came\n  fix: give a list"),
}


@pytest.mark.parametrize(("values", "message"), EXTRA.values(), ids=EXTRA.keys())
def test_a_column_that_does_not_fit_is_refused_where_it_is_given(values: Any, message: str, tmp_path: Path) -> None:
    """Lengths and types of run-time columns are checked before anything is sent."""

    def body(log: Recorder) -> None:
        with log.step(0):
            log.observe(reward=[1.0, 2.0])
            with pytest.raises(declog.InputError) as error:
                log.log_extra("x", values)
        assert str(error.value) == message

    [(_, table)] = run(CONFIG, body, tmp_path).tables("t")
    assert (table.rows, sorted(table.data)) == (2, ["note"])


def test_a_column_given_before_its_rows_is_checked_at_the_end(tmp_path: Path) -> None:
    """A reward function may log a column before the rewards are observed."""

    def body(log: Recorder) -> None:
        with log.step(0):
            log.log_extra("x", np.array([1, 2]))
            log.observe(reward=[1.0, 2.0])
        with pytest.raises(declog.InputError) as error, log.step(1):
            log.log_extra("x", [1, 2, 3])
            log.observe(reward=[1.0, 2.0])
        assert str(error.value) == (
            "[DL509] the column `x` has 3 values, and the batch has 2 rows\n  fix: give one value per row"
        )

    (step, table), (later, other) = run(CONFIG, body, tmp_path).tables("t")
    assert (step, table.data["x"]) == (0, [1, 2])
    assert (later, other.rows, other.data["x"]) == (1, 2, [None, None])  # the column alone is lost


def test_every_column_that_does_not_fit_is_reported(tmp_path: Path) -> None:
    """The first is raised, the others are failures; columns that fit and the rows are there."""
    config = {**CONFIG, "run": {"strict": False}}
    sink = MemorySink()
    log = declog.start(config, sinks=[sink], output_dir=tmp_path)
    with pytest.raises(declog.InputError, match="the column `x` has 3 values"), log.step(0):
        for name, values in {"x": [1, 2, 3], "fine": [1, 2], "y": [1]}.items():
            log.log_extra(name, values)
        log.observe(reward=[1.0, 2.0])
    log.close()
    ((_, table),) = sink.tables("t")
    assert (table.data["fine"], {"x", "y"} & set(table.data)) == ([1, 2], set())
    assert [text.splitlines()[0] for text in log.failures] == [
        "[DL509] the column `y` has 1 values, and the batch has 2 rows"
    ]


def test_a_column_after_the_last_rows_is_reported(tmp_path: Path) -> None:
    """Such as a thread's that is late: nothing else would say that it is lost."""
    with declog.start({**CONFIG, "run": {"strict": False}}, sinks=[MemorySink()], output_dir=tmp_path) as log:
        with log.step(0):
            log.observe(reward=[1.0, 2.0])
        log.log_extra("x", [1, 2])
    (failure,) = log.failures
    assert "the column `x` was given for a batch of phase `default` that has no rows" in failure


def test_a_batch_that_says_how_many_rows_it_has(tmp_path: Path) -> None:
    """What is of another length, or given twice, is refused on its own line, also before the rows are there."""

    def body(log: Recorder) -> None:
        with log.step(0), log.batch("default", rows=2):
            with pytest.raises(declog.InputError, match="the column `x` has 3 values, and the batch has 2 rows"):
                log.log_extra("x", [1, 2, 3])
            with pytest.raises(
                declog.InputError, match="`reward` has 3 completions, and the batch of phase `default` has 2"
            ):
                log.observe(reward=[1.0, 2.0, 3.0])
            log.log_extra("x", [1, 2])
            with pytest.raises(declog.InputError, match="the column `x` was given twice for one batch"):
                log.log_extra("x", [3, 4])
            log.observe(reward=[1.0, 2.0])
            with pytest.raises(declog.InputError, match="`reward` was given twice for one batch"):
                log.observe(reward=[3.0, 4.0])
        with log.step(1), log.batch("default", rows=2):
            pass  # nothing came: there is no batch

    [(step, table)] = run(CONFIG, body, tmp_path).tables("t")
    assert (step, table.data["x"], table.rows) == (0, [1, 2], 2)


@pytest.mark.parametrize("without", [[], [None]])
def test_a_mapping_per_row_becomes_a_mapping_of_columns(without: list[None], tmp_path: Path) -> None:
    """Rewards as one mapping per row are no `reward`: the fix, run as it stands, gives `rewards` its columns."""
    reward = [{"task": 1.0, "style": 0.5}, {"task": 0.0}, *without, {"task": 1.0, "style": 0.5}]
    words = [f"axes.group.size={len(reward)}", "sinks=[jsonl]"]
    with declog.start("grpo", words, output_dir=tmp_path) as log, log.step(0):
        with pytest.raises(InputError) as raised:
            log.observe(reward=reward)
        edit = str(raised.value.fix).removesuffix(", in place of `reward`")
        log.observe(**eval(f"dict({edit})", {"reward": reward}))
    run = declog.read(log)
    assert run["rewards/task/mean"].values[-1] == pytest.approx(2 / 3)
    assert run["rewards/style/mean"].values[-1] == pytest.approx(0.5)
    assert run["reward"].values[-1] == pytest.approx((1.5 + 0.0 + 1.5) / 3)
