"""The catalogue of the shipped presets' metrics as Markdown, made of their YAML; and how long each preset is.

A metric stands under the pack that declares it, or under the first preset that says it otherwise; beside it are the
presets that have it just so. What is hidden (`log: false`) is left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

import declog
from declog.language.shorthand import long
from declog.language.tree import tree_of

CONF = Path(__file__).parents[2] / "conf" / "declog"
ABOUT = ("help", "title", "unit", "good", "healthy", "runbook", "chart", "name", "alias", "tags", "log")
FIRST = ("grpo", "rloo", "ppo", "maxent_grpo", "forge_grpo", "minimal", "trainer")  # the others are those of TRL
Entry = Mapping[str, Any]


def presets() -> list[str]:
    """All shipped presets, those that others extend first."""
    return [*FIRST, *sorted(set(declog.presets()) - set(FIRST))]


def packs() -> list[str]:
    """All packs."""
    return sorted(file.stem for file in (CONF / "packs").glob("*.yaml"))


@functools.cache
def metrics(source: str) -> dict[str, Entry]:
    """The metrics of a preset, or those that a pack says, ``packs/NAME``."""
    if source.startswith("packs/"):
        layer, _ = long(tree_of(yaml.safe_load((CONF / f"{source}.yaml").read_text("utf-8"))))
        found = layer.plain
    else:
        found = declog.profile_of(source)
    shown = {name: entry for name, entry in found["metrics"].items() if entry is not None and entry.get("log", True)}
    return {name: {**entry, **(found["about"].get(name) or {})} for name, entry in shown.items()}


@functools.cache
def homes() -> dict[str, str]:
    """The pack that declares each metric of one."""
    return {name: pack for pack in packs() for name in metrics(f"packs/{pack}")}


def formula(entry: Entry) -> str:
    """What it computes, in the words of YAML."""
    said = {key: value for key, value in entry.items() if key not in ABOUT and value is not None}
    return _yaml(said)


def _yaml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = [f"{key}: {_yaml(each)}" for key, each in value.items() if each is not None]
        return "{" + ", ".join(pairs) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml, value))}]"
    return str(value).lower() if isinstance(value, bool) else str(value)


def sections() -> Iterator[tuple[str, list[tuple[str, Entry, list[str]]]]]:
    """Each pack and preset with the metrics that it says: id, entry, and the presets that have it so."""
    sources = [*(f"packs/{pack}" for pack in packs()), *presets()]
    said: dict[tuple[str, str], tuple[Entry, list[str]]] = {}
    for source in sources:
        for id, entry in metrics(source).items():
            said.setdefault((id, formula(entry)), (entry, []))[1].append(source)
    placed: dict[str, list[tuple[str, Entry, list[str]]]] = {}
    for (id, _), (entry, havers) in said.items():
        home = homes().get(id)
        first = havers[0]
        in_pack = home is not None and f"packs/{home}" in havers
        placed.setdefault(f"the pack {home}" if in_pack else first, []).append((id, entry, havers))
    order = [*(f"the pack {pack}" for pack in packs()), *sources]
    yield from ((title, placed[title]) for title in order if title in placed)


def catalogue() -> str:
    """Every metric: its name, what it is, its formula, its unit, what is healthy, what to do, and who has it."""
    parts = []
    for title, found in sections():
        rows = []
        for id, entry, havers in found:
            name = f"`{entry.get('name') or id}`"
            what = ": ".join(part for part in (entry.get("title"), entry.get("help")) if part)
            rows.append((name, what, f"`{formula(entry)}`", _facts(entry), entry.get("runbook") or "", _shared(havers)))
        heading = title[0].upper() + title[1:] if title.startswith("the pack") else f"The preset {title}"
        head = ("name", "what it is", "formula", "unit; healthy", "what to do where it is not", "presets")
        parts.append(f"## {heading}\n\n{_table(head, rows)}")
    return "\n\n".join(parts)


def _facts(entry: Entry) -> str:
    low, high = entry.get("healthy") or (None, None)
    bounds = f"{low:g} to {high:g}" if low is not None and high is not None else ""
    good = {"up": "higher is better", "down": "lower is better", None: ""}[entry.get("good")]
    return "; ".join(part for part in (entry.get("unit"), good, bounds) if part)


def _shared(havers: Sequence[str]) -> str:
    return ", ".join(each for each in havers if not each.startswith("packs/")) or "by `packs:`"


def lengths() -> str:
    """How many lines each preset has: its own, and those of its packs."""
    rows = []
    for name in presets():
        own = _lines(CONF / f"{name}.yaml")
        chosen = [pack for pack in packs() if f" {pack}," in _packs(name) or f" {pack}]" in _packs(name)]
        shared = sum(_lines(CONF / "packs" / f"{pack}.yaml") for pack in chosen)
        rows.append((f"`{name}`", str(len(metrics(name))), str(own), str(shared or "")))
    return _table(("preset", "metrics", "lines of its own", "of its packs"), rows)


def _packs(name: str) -> str:
    text = (CONF / f"{name}.yaml").read_text("utf-8")
    return next((line.replace("[", " ") for line in text.splitlines() if line.startswith("  - packs: [")), "")


def _lines(file: Path) -> int:
    """Lines that are no comments, no blanks, and no tests."""
    before, _, behind = file.read_text("utf-8").partition("\ntests:")
    _, run, after = behind.partition("\n\nrun:")
    lines = f"{before}{run}{after}".splitlines()
    return len([line for line in lines if line.strip() and not line.lstrip().startswith("#")])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *([cell.replace("|", "\\|") for cell in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
