"""The wheel on three Pythons, and with the oldest and the newest versions that it allows: what `make versions` runs.

    python -m tests.versions              all environments, a row each
    python -m tests.versions 3.12 oldest  some of them

Each environment is made anew in ``.versions`` of the repository, without torch: what needs it is in extras. There the
plan of every preset, the golden plans and the texts of the mistakes are compared with those in ``tests/data``, and the
command line answers in an empty folder, about a run that this checkout makes. The environment ``trainers`` has torch,
TRL and a team's package: there the examples train.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".versions"
OLDEST = {
    "pydantic": "2.7.0", "omegaconf": "2.3.0", "hydra-core": "1.3.2", "pyarrow": "16.0.0", "numpy": "1.26.0",
    "pyyaml": "6.0", "rich": "13.0.0", "google-re2": "1.1.20240601",
}  # fmt: skip


@dataclass(frozen=True)
class Environment:
    """An interpreter, the wheel's extras there, pins, a team's packages, and commands with what their output has."""

    python: str
    commands: Mapping[str, str]
    extras: str = ""
    pins: Mapping[str, str] = field(default_factory=dict)
    constraints: Path | None = None
    packages: Sequence[Path] = ()


SHOWN = ("pydantic", "omegaconf", "hydra-core", "pyarrow", "numpy")

RUN = """
import torch
import declog

signals = {"rollout": {"reward": "completion", "length": "completion"}}
table = {"columns": ["reward", "length"], "filter": {"key": "reward", "bottom": 1}}
config = {"signals": signals, "metrics": {"reward": "mean(reward)"}, "tables": {"worst": table}, "sinks": ["parquet"]}
with declog.start(config, output_dir="run") as log:
    for step in range(4):
        with log.step(step):
            log.observe(reward=torch.arange(8.0) + step, length=torch.arange(8) * 2)
"""

TEXTS = """
import json
import re
from pathlib import Path

import declog
from tests.compiler import golden
from tests.config import broken

assert Path(declog.__file__).is_relative_to(broken.ROOT)
texts = {f"preset {one.stem}": (golden.shown_preset(one), golden.expected(one)) for one in golden.PRESETS}
texts |= {f"golden {one.stem}": (golden.shown(one), golden.expected(one)) for one in golden.PROFILES}
different = [name for name, (text, file) in texts.items() if text != file.read_text(encoding="utf-8")]
cases = [case for case in broken.cases() if not broken.kind(case)]
different += [f"mistake {case}" for case in cases if broken.written(case.files) != case.error]
print(json.dumps([len(texts) + len(cases), different]))
"""

ANSWERS = {
    "declog check grpo": "ok grpo: ",
    "declog ls": "reductions",
    "declog show grpo": "reward",
    "declog diff grpo rloo": "token folds",
    "declog explain DL302": "# DL302",
    "declog init mine": "wrote",
    "declog check mine --lock": "ok mine",
    "declog samples run": "worst",
    "declog report run --output run.html": "run.html",
    "declog add run 'spread: std(reward)'": "4 values, steps 0 to 3",
    "declog check grpo 'declog.metrics.x=p95(rewrad)'": "fix: 'declog.metrics.x=\"p95(reward)\"'",
    'python -c \'import declog; print(*declog.read("run")["reward"].values)\'': "3.5 4.5 5.5 6.5",
}
WITHOUT_TORCH = {"declog preview grpo": "`declog preview` needs torch", "declog test grpo": "`declog test` needs torch"}
TRAINING = {
    "declog test grpo": "passed",
    "declog check acme_grpo": "ok acme_grpo",
    "declog test acme_grpo": "passed",
    "python examples/grpo_arithmetic.py steps=4": "trackio show",
    "python examples/trl_grpo.py trainer.max_steps=4": "scalars.jsonl",
    "python examples/trl_reward_functions.py": "extracted",
}
ENVIRONMENTS = {
    "3.11": Environment("python3.11", ANSWERS | WITHOUT_TORCH),
    "3.12": Environment("python3.12", ANSWERS | WITHOUT_TORCH),
    "3.13": Environment("python3.13", ANSWERS | WITHOUT_TORCH),
    "oldest": Environment("python3.11", ANSWERS | WITHOUT_TORCH, pins=OLDEST),
    "trainers": Environment(
        "python3.11", ANSWERS | TRAINING, extras="[trl,trackio]", constraints=ROOT / "constraints.txt",
        packages=[ROOT / "examples" / "team-preset"],
    ),
}  # fmt: skip


def shell(command: str | Sequence[str | Path], folder: Path, bin: Path | None = None, **more: str) -> tuple[int, str]:
    """The exit code of a command in a folder and what it printed; ``bin`` is where its programs are looked for."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "DECLOG"))}
    path = os.pathsep.join([*([str(bin)] if bin else []), os.environ["PATH"]])
    done = subprocess.run(
        command, shell=isinstance(command, str), cwd=folder, env={**kept, "PATH": path, **more}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout


def checked(command: str | Sequence[str | Path], folder: Path, bin: Path | None = None, **more: str) -> str:
    """What a command printed that has to succeed."""
    code, text = shell(command, folder, bin, **more)
    if code:
        raise RuntimeError(f"{command}\n{text}")
    return text


def made(name: str, wheel: Path) -> Path:
    """A fresh environment with the wheel in it; the folder of its programs."""
    one = ENVIRONMENTS[name]
    home = FOLDER / name
    shutil.rmtree(home, ignore_errors=True)
    checked([program(one.python), "-m", "venv", home], ROOT)
    pip: list[str | Path] = [home / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    constraints: list[str | Path] = [] if one.constraints is None else ["-c", one.constraints]
    if constraints:
        checked([*pip, *constraints, "torch"], ROOT)  # first, before anything else asks for another build
    pins = [f"{package}=={version}" for package, version in one.pins.items()]
    checked([*pip, *constraints, "pytest", f"{wheel}{one.extras}", *pins], ROOT)
    return home / "bin"


def program(interpreter: str) -> str:
    """Where an interpreter is: on the path, or among those of pyenv."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    known = sorted(versions.glob(f"{interpreter.removeprefix('python')}.*/bin/python"))
    for path in (sys.executable if interpreter.endswith(f"{sys.version_info[0]}.{sys.version_info[1]}") else None,
                 shutil.which(interpreter), *map(str, known)):  # fmt: skip
        if path is not None and not shell([path, "-c", "import ssl"], ROOT)[0]:
            return path
    raise RuntimeError(f"{interpreter} is not installed")


def problems_of(name: str, bin: Path) -> tuple[int, list[str]]:
    """How many texts and commands were compared in an environment, and what is wrong with which."""
    folder = FOLDER / f"{name}-folder"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    checked([sys.executable, "-c", RUN], folder)
    printed = checked([bin / "python", "-c", TEXTS], ROOT, PYTHONPATH=str(ROOT)).splitlines()
    different: list[str] = []
    count, different = json.loads(printed[-1])
    commands, packages = ENVIRONMENTS[name].commands, ENVIRONMENTS[name].packages
    if packages:  # not before: the texts name the functions that are there
        checked([bin / "python", "-m", "pip", "install", "--quiet", "--no-deps", *packages], ROOT)
    for command, expected in commands.items():
        _, text = shell(command, folder, bin, TRACKIO_DIR=str(folder))
        if expected not in text or "Traceback" in text:
            different.append(f"{command}\n{text}")
    return count + len(commands), different


def main(names: Sequence[str]) -> int:
    """The table; 1 where an environment answers differently."""
    FOLDER.mkdir(exist_ok=True)
    checked([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", FOLDER, ROOT], ROOT)
    wheel = max(FOLDER.glob("*.whl"), key=lambda file: file.stat().st_mtime)
    problems = []
    print(
        f"{'':<8}{'Python':<9}{''.join(f'{name:<12}' for name in SHOWN)}{'compared':>9}{'different':>10}{'seconds':>8}"
    )
    for name in names or ENVIRONMENTS:
        began = time.monotonic()
        bin = made(name, wheel)
        count, different = problems_of(name, bin)
        versions = dict(re.findall(r"^(\S+)==(\S+)$", checked([bin / "python", "-m", "pip", "freeze"], ROOT), re.M))
        versions = {package.lower(): version for package, version in versions.items()}
        python = checked([bin / "python", "-c", "import platform; print(platform.python_version())"], ROOT).strip()
        shown = "".join(f"{versions[package]:<12}" for package in SHOWN)
        seconds = time.monotonic() - began
        print(f"{name:<10}{python:<9}{shown}{count:>9}{len(different):>10}{seconds:>8.0f}", flush=True)
        problems += [f"{name}: {text}" for text in different]
    for problem in problems:
        print(f"FAILED {problem}")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
