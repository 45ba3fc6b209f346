"""Integrations with packages that want dependencies of their own: each is tested in a folder that has them.

    python -m tests.integrations.own_env               all of them: what `make integrations` runs
    python -m tests.integrations.own_env verl-0.9.1    some of them

A folder is made once, in ``.own_env`` of the repository, of exactly these packages, without their dependencies; its
tests see it before the environment of the project.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / ".own_env"
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Environment:
    """Packages, by name and version, and the files whose tests need them."""

    name: str
    packages: str
    tests: str


VERLS = (
    "tensordict==0.10.0 torchdata==0.11.0 cachetools==8.0.1 fastapi==0.165.0 codetiming==1.4.0 pybind11==3.1.0"
    " pyvers==0.1.0 cloudpickle==3.1.2 importlib_metadata==10.2.0 lazy_importer==0.1.0 zipp==4.1.2"
)
STORES = (  # what the v1 trainers import, since 0.9
    "TransferQueue==0.1.11 pyzmq==27.3.0 msgspec==0.22.0 aiohttp==3.14.5 aiohappyeyeballs==2.7.1 aiosignal==1.4.0"
    " frozenlist==1.8.0 multidict==7.2.1 propcache==0.5.4 yarl==1.25.1"
)
TINKERS = (
    "tinker==0.38.0 chz==0.4.0 blobfile==3.3.0 lxml==6.1.3 pycryptodomex==3.24.2 tiktoken==0.14.0 termcolor==3.3.0"
    " cloudpickle==3.1.2 aiohttp==3.14.5"
)
MLFLOW = (  # mlflow-skinny with a database, beside the project's pyarrow
    "mlflow-skinny==3.17.2 SQLAlchemy==2.1.9 alembic==1.20.1 Mako==1.4.3 databricks-sdk==0.156.0 sqlparse==0.6.1"
    " cachetools==7.3.2 cloudpickle==3.1.2 importlib_metadata==9.1.0 zipp==4.1.2 fastapi==0.165.0 GitPython==3.2.1"
    " gitdb==4.0.12 smmap==5.0.3 google-auth==2.62.2 pyasn1==0.6.5 pyasn1_modules==0.4.2 cryptography==50.0.2"
    " cffi==2.1.1 pycparser==3.12"
)
SWANLAB = (
    "swanlab==0.10.3 protobuf==6.33.6 nvidia-ml-py==13.615.71 prettytable==3.18.0 pwinput==1.0.3 pyecharts==2.1.0"
    " pyroaring==1.0.3 simplejson==4.3.0 wcwidth==0.9.4 wrapt==2.5.2 pydantic-settings==2.16.3"
)
VERIFIERS = (  # without what runs code
    "aiohttp==3.14.5 aiohappyeyeballs==2.7.1 aiosignal==1.4.0 anthropic==2.12.0 docstring_parser==0.18.0"
    " frozenlist==1.8.0 jiter==0.19.0 multidict==7.2.1 openai==3.54.0 prime-pydantic-config==0.4.3 propcache==0.5.4"
    " renderers==0.1.12 tenacity==9.2.1 tomli_w==1.2.0 yarl==1.25.1"
)
ENVIRONMENTS = (
    Environment("mlflow-3.17.2", MLFLOW, "real_mlflow.py"),
    Environment("swanlab-0.10.3", SWANLAB, "real_swanlab.py"),
    Environment("tinker-0.6.1", f"tinker_cookbook==0.6.1 {TINKERS}", "real_tinker.py"),
    Environment("verifiers-0.4.0", f"verifiers==0.4.0 {VERIFIERS}", "real_verifiers.py"),
    Environment("verl-0.9.1", f"verl==0.9.1 {VERLS} {STORES}", "real_verl.py real_verl_loops.py"),
    *(Environment(f"verl-{each}", f"verl=={each} {VERLS}", "real_verl.py") for each in ("0.8.0", "0.7.1", "0.6.1")),
)


def made(environment: Environment) -> Path:
    """The environment's folder, made on first use, and anew where its packages are others."""
    target = FOLDER / environment.name
    listed = target / "packages.txt"
    if not listed.is_file() or listed.read_text() != environment.packages:
        shutil.rmtree(target, ignore_errors=True)
        FOLDER.mkdir(exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=FOLDER))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--target", str(part)]
        subprocess.run([*pip, *environment.packages.split()], check=True)
        (part / "packages.txt").write_text(environment.packages)
        part.rename(target)
    return target


def main(names: Sequence[str]) -> int:
    """Each environment's tests, and how long they took; 1 where any failed."""
    chosen = [each for each in ENVIRONMENTS if not names or each.name in names]
    if len(chosen) < len(names):
        print(f"there are: {', '.join(each.name for each in ENVIRONMENTS)}")
        return 2
    rows, failed = [], 0
    for environment in chosen:
        folder = made(environment)
        began = time.perf_counter()
        files = [str(HERE / name) for name in environment.tests.split()]
        code = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}, cwd=ROOT,
        ).returncode  # fmt: skip
        failed |= int(code != 0)
        rows.append(f"{environment.name:<20}{'failed' if code else 'passed':<8}{time.perf_counter() - began:6.0f} s")
    print("\n".join(rows))
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
