"""TRL's versions, each in a folder of its own: every key that it logs is compared with declog's value.

    python -m tests.integrations.trl.versions                 all of them, all cases: what `make trl-matrix` runs
    python -m tests.integrations.trl.versions 1.9.2 1.13.0    some of them

A version is installed without its dependencies, once, into ``.trl`` of the repository.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests import forks
from tests.faults import jobs

VERSIONS = ("0.29.1", "1.0.0", "1.4.0", "1.8.0", "1.9.2", "1.10.0", "1.12.0", "1.13.0", "1.14.2", "1.16.0")
FOLDER = forks.ROOT / ".trl"
FEW = (
    "grpo_kl",
    "grpo_clipping",
    "grpo_missing",
    "grpo_off_policy",
    "masked_vespo",
    "served_token_mask",
    "rloo_clipping",
)

# What a version averages in another way: of completions that no function scored TRL made 0, and the extremes of
# clipping were those of ranks, and 0 where no token came. TRL's own stay in the trainer's logs.
EXTREMES, UNSCORED = {"clip_ratio/low_min", "clip_ratio/high_max"}, {"reward", "reward_std", "frac_reward_zero_std"}
SOMETIMES = {"rewards/sometimes/mean", "rewards/sometimes/std"}  # NaN as soon as a generation has none
OTHERWISE = {
    "0.29": EXTREMES | UNSCORED | SOMETIMES,
    "1.0": EXTREMES | UNSCORED,
    "1.4": EXTREMES | UNSCORED,
    "1.8": EXTREMES,
}
# On two ranks `log_metric` averages the ranks' means, in 0.29 nearly everything does.
LIGER, LIGERS = "0.8.5", ("1.9.2", "1.13.0")  # its loss, in versions of TRL that have it
TWO_RANKS = ("0.29.1", "1.9.2", "1.13.0")
RANK_MEANS = {
    "0.29": {
        "entropy", "kl", "cispo_clip_ratio", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean",
    },
    "1.9": {"long"}, "1.13": {"long"},
}  # fmt: skip


@dataclass
class Count:
    """What a version came to: keys of all log events that were compared, and those that were not equal."""

    version: str
    compared: int = 0
    equal: int = 0
    missing: list[str] = field(default_factory=list)
    differ: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)  # cases that this version cannot run itself


def installed(version: str, package: str = "trl") -> Path:
    """The folder that has this version of TRL, or of another package; made once, by whoever comes first."""
    FOLDER.mkdir(exist_ok=True)
    target = FOLDER / (version if package == "trl" else f"{package}-{version}")
    with open(f"{target}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            part = Path(tempfile.mkdtemp(dir=FOLDER))
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile"]
            done = subprocess.run(
                [*pip, "--target", str(part), f"{package}=={version}"], capture_output=True, text=True
            )
            if done.returncode:
                shutil.rmtree(part)
                raise RuntimeError(f"{package} {version} could not be installed:\n{done.stderr}")
            part.rename(target)
    return target


def counted(version: str, names: Sequence[str], model: Path, folder: Path, ranks: int = 1) -> Count:
    """Run the cases in processes that have this version."""
    found = [installed(version), *([installed(LIGER, "liger-kernel")] if "liger" in names else []), forks.ROOT]
    path = os.pathsep.join(map(str, found))
    command: list[str | Path] = [
        "-m", "tests.integrations.trl.versions", "--in-process", version, str(model), str(folder), *names,
    ]  # fmt: skip
    env = {**forks.OFFLINE, "PYTHONPATH": path}
    if ranks > 1:
        ended = jobs.run(folder, ranks, command, env=env, imports=forks.TRAINER, limit_s=8 * forks.PATIENCE_S)
        if set(ended.codes) != {0}:
            raise RuntimeError("\n".join(text[-6000:] for text in ended.outputs))
    else:
        folder.mkdir(parents=True, exist_ok=True)
        done = forks.run(
            command, env=forks.environment(env), cwd=folder, imports=forks.TRAINER, timeout=4 * forks.PATIENCE_S
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-6000:])
    return Count(**json.loads((folder / "count.json").read_text()))


def run(version: str, names: Sequence[str], model: Path, folder: Path) -> Count:
    """In this process, whose TRL it is."""
    import torch
    import trl

    from tests.integrations.trl import cases, ppo

    torch.set_num_threads(1)
    assert trl.__version__ == version, trl.__version__
    found = Count(version)
    for name in names:
        case = cases.LIGER if name == "liger" else {**cases.CASES, **ppo.CASES}[name]
        try:
            cases.trainer_of(case, model, folder / name)
        except (TypeError, ModuleNotFoundError) as error:  # an argument or a trainer that this version has not
            found.left_out.append(f"{name}: {error}")
            continue
        try:
            outcome = cases.run(case, model, folder / name)
        except ValueError as error:
            if "Unknown loss type" not in str(error):
                raise
            found.left_out.append(f"{name}: {error}")
            continue
        if os.environ.get("RANK", "0") != "0":
            continue
        expected = cases.expected(outcome.history)
        steps = [event[:2] for event in expected]
        assert steps == [event[:2] for event in outcome.events], (name, steps, outcome.events)
        for (step, mode, own), (_, _, values) in zip(expected, outcome.events, strict=True):
            found.compared += len(own)
            for key, value in own.items():
                if key not in values:
                    found.missing.append(f"{name} {step} {mode} {key}")
                elif math.isclose(value, values[key], rel_tol=1e-6, abs_tol=1e-6) or (
                    math.isnan(value) and math.isnan(values[key])
                ):
                    found.equal += 1
                else:
                    found.differ.append(f"{name} {step} {mode} {key}: {value} and {values[key]}")
    return found


def unexpected(found: Count, ranks: int) -> Iterator[str]:
    """What is missing, and what differs although nobody said so."""
    version = ".".join(found.version.split(".")[:2])
    otherwise = OTHERWISE.get(version, set()) | (RANK_MEANS.get(version, set()) if ranks > 1 else set())
    for text in [*found.missing, *found.differ]:
        if text.split(": ")[0].split()[-1].removeprefix("eval_") not in otherwise:
            yield text


def main(versions: Sequence[str]) -> int:
    """The table; 1 where a version has something unexpected."""
    from tests.integrations.trl import cases, ppo

    problems = []
    print(f"{'TRL':<8}{'ranks':>6}{'compared':>10}{'equal':>8}{'missing':>9}{'otherwise':>11}  cases that it has not")
    with tempfile.TemporaryDirectory() as folder:
        build = "import sys, pathlib; from tests.integrations.trl import tiny; tiny.build(pathlib.Path(sys.argv[1]))"
        model = forks.run(["-c", build, f"{folder}/model"], imports=forks.TRAINER)
        assert model.returncode == 0, model.stderr
        chosen = versions or VERSIONS
        for version, ranks in [*((one, 1) for one in chosen), *((one, 2) for one in TWO_RANKS if one in chosen)]:
            names = [name for name, case in {**cases.CASES, **ppo.CASES}.items() if ranks in case.ranks]
            names += ["liger"] if ranks == 1 and version in LIGERS else []
            found = counted(version, names, Path(folder) / "model", Path(folder) / f"{version}-{ranks}", ranks)
            problems += [f"{version} on {ranks}: {text}" for text in unexpected(found, ranks)]
            row = (found.compared, found.equal, len(found.missing), len(found.differ))
            left_out = ", ".join(text.split(":")[0] for text in found.left_out) or "-"
            print(f"{version:<8}{ranks:>6}{row[0]:>10}{row[1]:>8}{row[2]:>9}{row[3]:>11}  {left_out}", flush=True)
    forks.close()
    for problem in problems:
        print(f"FAILED {problem}")
    return int(bool(problems))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--in-process"]:
        ours = run(sys.argv[2], sys.argv[5:], Path(sys.argv[3]), Path(sys.argv[4]))
        if os.environ.get("RANK", "0") == "0":
            Path(sys.argv[4], "count.json").write_text(json.dumps(vars(ours)))
    else:
        sys.exit(main(sys.argv[1:]))
