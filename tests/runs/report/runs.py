"""Runs that declog itself makes for the tests of the report: small ones, and a long one."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch

import declog
from declog.records import Column, DType, Records, RunInfo, Scalar, Table
from declog.sinks.parquet import ParquetSink

GROUP, GROUPS = 4, 2
NAMES = ("Jonas", "Mira", "Aiko", "Leila", "Tomas", "Pablo")
HOSTILE = "</script><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\"><!-- ]]> &amp;"
CONTROL = "a\x1b[31mred\x00\u202egnp.exe\u2066x"
SECRET = "hunter2-is-no-password"

OVERRIDES = [
    "run.name=report_run",
    "sinks=[jsonl,parquet]",
    f"axes.group.size={GROUP}",
    "signals.any.pieces={axis: completion, type: object}",
    "schemas.samples.pieces={type: object, expr: pieces}",
    "filters.everything={first: 1000000}",
    "tables.samples={rows: completion, schema: samples, filter: everything, every: 10}",
    "metrics.reward_spread={expr: reward, reduce: histogram, name: reward/distribution}",
    "about.reward_spread={title: Rewards}",
    "alerts.kl_runaway={when: kl > 0.3, for: 1, level: error, text: 'KL {kl:.3f} left the trust region'}",
]


def completion(step: int, name: str, boxes: int, right: bool, rng: random.Random) -> list[str]:
    """The tokens of a completion: some thoughts, and an answer at its end."""
    total = boxes * 8
    pieces = ["<think>", name, " has", f" {boxes}", " boxes", "."]
    for _ in range(rng.randrange(40, 120)):
        pieces += rng.choice([[" So", " far", " nothing", " contradicts", " it", "."], [" Hmm", ",", " wait", "."]])
    answer = total if right else total + 1
    return [*pieces, "</think>", "\n", "<answer>", str(answer), "</answer>", f" at {step}"]


def log_steps(log: declog.Recorder, steps: range, *, seed: int = 0, broken: bool = False) -> None:
    """Train steps whose reward rises, with an evaluation each tenth one and a KL that runs away at step 15."""
    for step in steps:
        rng = random.Random(1000 * seed + step)
        with log.step(step):
            observe(step, rng, broken=broken)
        if step % 10 == 9:
            with log.mode("eval"):
                declog.observe(rewards={"right": torch.tensor([rng.random() for _ in range(GROUP * GROUPS)])})


def observe(step: int, rng: random.Random, *, broken: bool = False) -> None:
    """One rollout and one update."""
    names = [NAMES[(step // 10 + group) % 2] for group in range(GROUPS) for _ in range(GROUP)]
    right = [rng.random() < 0.1 + step / 25 for _ in names]
    tokens = [completion(step, name, len(name), good, rng) for name, good in zip(names, right, strict=True)]
    advantages = torch.tensor([1.0 if good else -1.0 for good in right])
    values = [[-abs(rng.gauss(0, 1)) for _ in pieces] for pieces in tokens]
    declog.observe(
        prompt=[f"{name} has boxes of eight.\nHow many things are there?" for name in names],
        completion=["".join(pieces) for pieces in tokens],
        pieces=[
            {"tokens": pieces, "logprob": one, "kl": [abs(x) / 9 for x in one], "advantage": [float(a)] * len(pieces)}
            for pieces, one, a in zip(tokens, values, advantages, strict=True)
        ],
        rewards={"right": torch.tensor(right).float(), "form": torch.tensor([rng.random() for _ in right])},
        length=torch.tensor([len(pieces) for pieces in tokens]),
        truncated=torch.tensor([rng.random() < 0.1 for _ in right]),
    )
    gap = 0.1 + (1.0 if 15 <= step < 18 else 0.0)
    count = len(names)
    declog.observe(
        completion_mask=torch.ones(count, 5, dtype=torch.bool),
        advantages=advantages,
        logprobs=torch.full((count, 5), -0.5),
        old_logprobs=torch.full((count, 5), -0.5),
        ref_logprobs=torch.full((count, 5), -0.5 + gap),
        entropy=torch.full((count, 5), 1.0 / (1 + step)),
        loss=math.nan if broken and step % 9 == 2 else 0.1 * rng.random(),
        grad_norm=rng.random(),
        learning_rate=1e-6 * (1 - step / 100),
    )


def small(folder: Path, *more: str, steps: int = 30, seed: int = 0, broken: bool = True) -> Path:
    """A run of the preset `grpo`, with an alert, an evaluation each tenth step, histograms and tokens."""
    log = declog.start("grpo", [*OVERRIDES, *more], output_dir=folder)
    with log:
        log_steps(log, range(steps), seed=seed, broken=broken)
    return folder


def train(folder: Path, steps: int, *, seed: int = 0, breaks: bool = False) -> Path:
    """A run whose reward rises. One that breaks: gradients explode from 178, the reward falls at 180, NaN from 230."""
    rng = np.random.default_rng(seed)
    with declog.start("grpo", ["sinks=[parquet]"], output_dir=folder) as log:
        for step in range(steps):
            kl = 3e-4 + rng.normal(0, 1e-4) + (0.02 * max(0, step - 180) ** 2 if breaks else 0)
            late = breaks and step >= 230
            with log.step(step):
                log.observe(
                    reward=rng.normal(min(step, 180) / 100 - (1 if breaks and step >= 180 else 0), 0.05, 16),
                    prompt=[f"question {step}"] * 16, completion=[f"answer {place}" for place in range(16)],
                    loss=float("nan") if late else rng.normal(0.1, 0.02), kl=float("nan") if late else kl,
                    grad_norm=0.5 * 3 ** max(0, (step - 178) / 12) if breaks else 0.5 + rng.random() / 10,
                )  # fmt: skip
            if step == steps - 1:
                with log.mode("eval"):
                    log.observe(reward=[1.0, 0.0] * 4, prompt=["q"] * 8, completion=["a", "b"] * 4)
    return folder


def hostile(folder: Path) -> Path:
    """One step whose prompts, completions, columns and names are markup, scripts and control characters."""
    every = ["filters.everything={first: 1000000}", "tables.samples.filter=everything"]
    log = declog.start("grpo", ["sinks=[jsonl]", "axes.group.size=2", *every], output_dir=folder)
    texts = [HOSTILE, CONTROL, "größe عربى \ud83d\ude00 ok", "<b>x</b> &lt;"]
    with log, log.step(3):
        declog.observe(prompt=[HOSTILE] * 4, completion=texts, rewards={"<i>sum</i>": torch.arange(4.0)})
        declog.log_extra(HOSTILE, [HOSTILE] * 4)
        declog.log_metric("custom/<u>x</u>", 1.0)
    return folder


def long(folder: Path, *, steps: int = 5_000, names: int = 60, samples: int = 2_000, characters: int = 4_000) -> Path:
    """A run as its parquet files have it: random walks, and completions of words."""
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(size=(steps, names)), axis=0)
    chance = 1 / np.arange(10, 2_010)
    chance /= chance.sum()  # as words of a language are
    words = [f"{'aeiou'[i % 5]}{''.join(rng.choice(list('bcdfglmnprst'), 4))}" for i in range(2_000)]
    sink = ParquetSink()
    sink.open(RunInfo("long", "long-1", folder, "0" * 16, sink="parquet"))
    columns = (Column("prompt", DType.TEXT), Column("completion", DType.TEXT), Column("reward", DType.FLOAT))
    events = []
    for step in range(steps):
        scalars = tuple(Scalar(f"part{i % 6}/value{i}", float(walks[step, i]), f"value{i}") for i in range(names))
        tables: tuple[Table, ...] = ()
        if step % (steps // (samples // 20)) == 0:
            texts = [" ".join(rng.choice(words, characters // 6, p=chance)) for _ in range(20)]
            data = {"prompt": [f"prompt {step}"] * 20, "completion": texts, "reward": rng.normal(size=20).tolist()}
            tables = (Table("samples", "samples", columns, data, 20),)
        events.append((step, Records(time=float(step), scalars=scalars, tables=tables)))
    sink.write_many(events)
    sink.close()
    return folder


def jsonl(folder: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a jsonl sink's file."""
    return [json.loads(line) for line in (folder / "jsonl" / f"{name}.jsonl").read_text().splitlines()]


def last_values(folder: Path) -> dict[tuple[str, str], float]:
    """The last value of each name and mode in the jsonl sink's file, finite or not."""
    return {
        (name, line["mode"]): float(value)
        for line in jsonl(folder, "scalars")
        for name, value in line["scalars"].items()
    }
