"""`make bench`: all benchmarks, each in a process of its own, as one text in Markdown; some ten minutes.

``--write`` puts each section where a page of the documentation has one of the same heading. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path

from declog.distribution import VERSION
from tests.benchmarks.measure import Aims, table

ROOT = Path(__file__).parents[2]
PAGES = tuple(ROOT / "docs" / f"{name}.md" for name in ("design", "sinks", "trainers"))
PARTS = ("language", "worker", "late", "release", "samples", "wall", "runtime", "sinks", "report", "trl")
_SECTION = re.compile(r"^### ([^\n]+)\n(.*?)(?=^#|\Z)", re.MULTILINE | re.DOTALL)


def main() -> None:
    """Everything; ``--short`` tries whether all of it runs, in numbers that mean nothing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--short", action="store_true", help="one round of each")
    parser.add_argument("--write", action="store_true", help="into the pages of docs/")
    parser.add_argument("--only", choices=PARTS, nargs="+", default=PARTS)
    chosen = parser.parse_args()
    found, aims, failed = {"Measured with": measured_with()}, list[str](), list[str]()
    show(found)
    for part in chosen.only:
        rounds = ["--rounds=1"] if chosen.short and part != "report" else []
        command = [sys.executable, "-m", f"tests.benchmarks.bench_{part}", *rounds]
        began = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        failed += [f"bench_{part}"] if done.returncode else []
        print(f"bench_{part} ended after {time.monotonic() - began:.0f} s", file=sys.stderr)
        new = sections(done.stdout)
        aims += [line for line in new.pop(Aims.HEADING, "").splitlines() if line.startswith("|")]
        show(new)
        found |= new
    if aims:  # one table of all
        head, *rows = dict.fromkeys(tuple(cell.strip() for cell in line.strip("|").split("|")) for line in aims)
        found[Aims.HEADING] = table(head, [row for row in rows if not row[0].startswith("-")]) + "\n"
        show({Aims.HEADING: found[Aims.HEADING]})
    if chosen.write:
        if len(chosen.only) < len(PARTS):  # the last table is of all parts
            found.pop(Aims.HEADING, None)
        for page in PAGES:
            page.write_text(written(page.read_text(encoding="utf-8"), found), encoding="utf-8")
    if failed:
        sys.exit(f"ended with an error: {', '.join(failed)}")


def measured_with() -> str:
    """Versions and the machine."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("torch", "numpy", "torchmetrics"))
    return (
        f"declog {VERSION}, {packages}, "
        f"Python {platform.python_version()}; {os.cpu_count()} cores of {_processor()}, with a load of "
        f"{os.getloadavg()[0]:.1f} at the start; torch.set_num_threads(1), gloo on loopback.\n"
    )


def _processor() -> str:
    cores = Path("/proc/cpuinfo")
    lines = cores.read_text().splitlines() if cores.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def sections(text: str) -> dict[str, str]:
    """What stands below each heading of the third level."""
    return {title: body.strip("\n") + "\n" for title, body in _SECTION.findall(text)}


def show(found: Mapping[str, str]) -> None:
    """Print sections."""
    for title, body in found.items():
        print(f"### {title}\n\n{body}", flush=True)


def written(page: str, found: Mapping[str, str]) -> str:
    """A page with what stands below these headings now."""

    def one(section: re.Match[str]) -> str:
        return section[0] if section[1] not in found else f"### {section[1]}\n\n{found[section[1]]}\n"

    return _SECTION.sub(one, page).rstrip("\n") + "\n"


if __name__ == "__main__":
    main()
