"""What entries of a file share is YAML's own anchors: expanded when the file is read, with places and carets kept."""

from __future__ import annotations

from pathlib import Path

import pytest

import declog
from declog.cli import main
from declog.errors.visible import visible_lines
from tests.conftest import WritePreset

SIGNALS = "signals: {any: {loss: step, lr: step, tau: step, length: completion}}\n"
SHARED = {
    "flow": (
        "metrics:\n  loss: {<<: &batch {over: batch, combine: max}, reduce: mean}\n"
        "  lr: {<<: *batch, reduce: last}\n  tau: {<<: *batch, combine: min}\n",
        "metrics: {loss: {over: batch, combine: max, reduce: mean}, lr: {over: batch, combine: max, reduce: last},"
        " tau: {over: batch, combine: min}}\n",
    ),
    "block": (
        "metrics:\n  loss: &loss\n    expr: loss\n    reduce: [mean, max]\n    tags: core\n"
        "  lr:\n    <<: *loss\n    expr: lr\n",
        "metrics: {loss: {expr: loss, reduce: [mean, max], tags: core},"
        " lr: {expr: lr, reduce: [mean, max], tags: core}}\n",
    ),
    "several, of which the first wins": (
        "metrics:\n  loss: {<<: &a {reduce: last, empty: 0}}\n  lr: {<<: &b {reduce: max, tags: slow}}\n"
        "  tau: {<<: [*b, *a], expr: tau}\n",
        "metrics: {loss: {reduce: last, empty: 0}, lr: {reduce: max, tags: slow},"
        " tau: {expr: tau, reduce: max, tags: slow, empty: 0}}\n",
    ),
    "one that takes another": (
        "metrics:\n  loss: &loss {<<: &last {reduce: last}, tags: core}\n  lr: {<<: *loss, empty: 0}\n"
        "  tau: {<<: *last}\n",
        "metrics: {loss: {reduce: last, tags: core}, lr: {reduce: last, tags: core, empty: 0}, tau: {reduce: last}}\n",
    ),
    "null for what is shared": (
        "metrics:\n  length: {<<: &cut {expr: length, where: length > 2, weight: length}}\n"
        "  all: {<<: *cut, where: null}\n",
        "metrics: {length: {expr: length, where: length > 2, weight: length}, all: {expr: length, weight: length}}\n",
    ),
    "a value": (
        "metrics:\n  length: {where: &long length > 2}\n  longest: {expr: length, reduce: max, where: *long}\n",
        "metrics: {length: {where: length > 2}, longest: {expr: length, reduce: max, where: length > 2}}\n",
    ),
    "alerts, columns and sinks": (
        "metrics: {loss: mean}\nalerts:\n  loss: {<<: &often {for: 3, level: info}, above: 2}\n"
        "  low: {<<: *often, when: loss < 0}\n"
        "schemas:\n  s:\n    length: {<<: &maybe {required: true}, type: float}\n"
        "    n: {<<: *maybe, type: float, expr: 2 * length}\n"
        "tables: {t: {schema: s}}\n"
        "sink_options: {jsonl: {<<: &slow {every: 5}, kind: jsonl}, console: {<<: *slow, kind: console}}\n",
        "metrics: {loss: mean}\nalerts: {loss: {for: 3, level: info, above: 2},"
        " low: {for: 3, level: info, when: loss < 0}}\n"
        "schemas: {s: {length: {type: float, required: true},"
        " n: {type: float, required: true, expr: 2 * length}}}\n"
        "tables: {t: {schema: s}}\n"
        "sink_options: {jsonl: {every: 5, kind: jsonl}, console: {every: 5, kind: console}}\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("anchors", "written"), SHARED.values(), ids=SHARED.keys())
def test_shared_keys_are_written_keys(anchors: str, written: str, write_preset: WritePreset) -> None:
    """A file with anchors is the file that says all of it, alone and extended."""
    write_preset("anchors", SIGNALS + anchors)
    write_preset("written", SIGNALS + written)
    own = "metrics: {loss: {tags: mine}}\n" if "loss" in written else "metrics: {length: {tags: mine}}\n"
    plans = []
    for base in ("anchors", "written"):
        folder = write_preset(f"on_{base}", f"defaults: [{base}, _self_]\n{own}")
        plans.append([declog.plan(declog.compose(name, config_dir=folder)) for name in (base, f"on_{base}")])
    assert [plan.canonical for plan in plans[0]] == [plan.canonical for plan in plans[1]]


BROKEN = """\
signals: {any: {loss: step, lr: step}}
metrics:
  loss: {<<: &shared {expr: los, reduce: mena, ovr: batch}, name: Loss}
  lr: {<<: *shared, expr: lr}
  both:
    <<: [&high {where: lr > 1 and}, *shared]
    expr: lr
sinks: [console]
"""
SAID = """\
error[DL201] declog/anchors.yaml:3:48 in metrics.loss.ovr
  unknown key `ovr`
    3 | ... s: &shared {expr: los, reduce: mena, ovr: batch}, name: Loss}
      |                                           ^^^^
  fix: did you mean `over`?
"""


def test_an_error_of_a_shared_key_is_said_once(write_preset: WritePreset, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a caret under the text of the anchor, whoever takes it; an entry's own key has its own place."""
    folder = write_preset("anchors", BROKEN)
    monkeypatch.chdir(folder)

    def said() -> list[tuple[str, str, str]]:
        with pytest.raises(declog.ConfigError) as caught:
            declog.plan("declog/anchors.yaml")
        found = []
        for problem in caught.value.problems:
            where = problem.where
            assert where is not None and where.excerpt is not None
            excerpt = where.excerpt
            found.append((f"{where.line}:{where.column}", problem.code, excerpt.text[excerpt.start : excerpt.end]))
        return found

    others = [("3:29", "DL302", "los"), ("3:42", "DL311", "mena"), ("6:34", "DL301", "}")]
    assert said() == [*others[:2], ("3:48", "DL201", "ovr"), others[2]]
    write_preset("anchors", BROKEN.replace("ovr", "over"))
    assert said() == others


def test_an_override_of_one_entry_changes_that_alone(
    write_preset: WritePreset, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each key has the place at which it is written, also in `show`; nothing is shared once the file is read."""
    folder = write_preset(
        "base", "signals: {any: {loss: step, lr: step}}\nmetrics:\n"
        "  loss: {<<: &last {reduce: last, tags: [core]}, name: Loss}\n  lr: {<<: *last, tags: null}\n",
    )  # fmt: skip
    monkeypatch.chdir(folder)
    write_preset("own", "defaults: [base, _self_]\nmetrics: {lr: {empty: 0}}\n")
    composed = declog.compose("own", ["metrics.loss.reduce=max"], config_dir=folder)
    assert {op.key: (op.reduction.name, op.tags) for op in declog.plan(composed).metrics if op.id != "logged"} == {
        "loss": ("max", ("core",)), "lr": ("last", ()),
    }  # fmt: skip
    assert main(["show", "base", "--config-dir", str(folder), "--key", "metrics"]) == 0
    shown = [line.split("#") for line in visible_lines(capsys.readouterr().out).splitlines()]
    assert [(what.strip(), Path(place[0].strip()).name) for what, *place in shown if place] == [
        ("reduce: last", "base.yaml:3:21"), ("tags: [core]", "base.yaml:3:35"), ("name: Loss", "base.yaml:3:50"),
        ("reduce: last", "base.yaml:3:21"), ("tags: null", "base.yaml:4:19"),
    ]  # fmt: skip
