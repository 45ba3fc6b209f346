"""Golden pairs: a profile in YAML, and the plan in words or the error text that it gives; and each preset's plan.

``python -m tests.compiler.golden --update`` writes the texts; read the difference before it is committed: the
texts are the specification. A first line ``# constants: {beta: 0.1}`` is what an adapter's trainer gives.
"""

from __future__ import annotations

import contextlib
import re
import sys
from pathlib import Path
from typing import Any, ClassVar

import yaml
from omegaconf import OmegaConf

import declog
from declog.language.row_functions import DEFAULT, RowFunctions, column
from declog.plans.words import explain
from declog.records import Records, RunInfo

FOLDER = Path(__file__).parents[1] / "data" / "golden"
PROFILES = sorted(FOLDER.glob("*.yaml"))
PRESETS = sorted((Path(declog.__file__).parents[1] / "conf" / "declog").glob("*.yaml"))
COLUMNS = RowFunctions(DEFAULT)
_CONSTANTS = re.compile(r"# constants: (\{.*\})")
_FINGERPRINT = re.compile(r"\([0-9a-f]{16}\)")


@column(registry=COLUMNS)
def extract_answer(completion: str) -> str | None:
    """What stands after ``####``."""
    return completion.partition("####")[2].strip() or None


class Numbers:
    """A sink that takes scalars only, as those of some trackers do."""

    accepts: ClassVar[frozenset[str]] = frozenset({"scalar"})

    def open(self, run: RunInfo) -> None:
        """Nothing to open."""

    def write(self, step: int, records: Records) -> None:
        """Nothing to write."""

    def close(self) -> None:
        """Nothing to close."""


def constants_of(profile: Path) -> dict[str, Any]:
    """What an adapter's trainer gives, as a profile's first line says it."""
    given = _CONSTANTS.match(profile.read_text(encoding="utf-8"))
    constants: dict[str, Any] = yaml.safe_load(given.group(1)) if given else {}
    return constants


def shown(profile: Path) -> str:
    """The text of a profile: The plan in words without its fingerprint, or every problem."""
    config = OmegaConf.create(profile.read_text(encoding="utf-8"))
    try:
        with contextlib.chdir(FOLDER):
            plan = declog.plan(config, constants=constants_of(profile), columns=COLUMNS)
    except declog.ConfigError as error:
        return f"{error}\n"
    return _FINGERPRINT.sub("(fingerprint)", explain(plan), count=1)


def shown_preset(preset: Path) -> str:
    """What a preset computes, in words, as it is without a trainer's constants."""
    return _FINGERPRINT.sub("(fingerprint)", explain(declog.plan(declog.compose(preset.stem))), count=1)


def expected(profile: Path) -> Path:
    """The file that holds the text of a profile or a preset."""
    folder = FOLDER if profile in PROFILES else FOLDER.with_name("presets")
    return folder / f"{profile.stem}.txt"


if __name__ == "__main__":
    for each in [*PROFILES, *PRESETS]:
        new = shown(each) if each in PROFILES else shown_preset(each)
        known = expected(each).read_text(encoding="utf-8") if expected(each).exists() else None
        if known != new:
            print(("updated " if "--update" in sys.argv else "differs ") + each.name)
            if "--update" in sys.argv:
                expected(each).write_text(new, encoding="utf-8")
