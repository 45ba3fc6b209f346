"""The catalogue of the shipped presets' metrics as Markdown, made of their YAML; and how long each preset is.

A metric stands under the pack that declares it, or under the first preset that says it otherwise; beside it are the
presets that have it just so. What is hidden (`log: false`) is left out. Below the metrics stand the names that their
formulas read, down to signals and constants.
"""

from __future__ import annotations

import functools
import re
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
        found = declog.config_of(source)
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
    """Every metric: its name, what it is, its formula and phase, its unit, what is healthy, what to do, who has it."""
    parts = []
    for title, found in sections():
        rows = []
        for id, entry, havers in found:
            name = f"`{entry.get('name') or id}`"
            what = ": ".join(part for part in (entry.get("title"), entry.get("help")) if part)
            facts = (_phase(title, id, havers), _facts(entry), entry.get("runbook") or "", _shared(havers))
            rows.append((name, what, f"`{formula(entry)}`", *facts))
        heading = title[0].upper() + title[1:] if title.startswith("the pack") else f"The preset {title}"
        head = ("name", "what it is", "formula", "phase", "unit; healthy", "what to do where it is not", "presets")
        parts.append(f"## {heading}\n\n{_table(head, rows)}\n\n{_reads(title, found)}")
    return "\n\n".join(parts)


def _phase(title: str, id: str, havers: Sequence[str]) -> str:
    """The phase whose rows a metric reduces; empty of a formula, and of a metric that is off by default."""
    presets = [source for source in havers if not source.startswith("packs/")]
    by_preset = [_phases(preset, "") for preset in presets] or [_phases("grpo", title.removeprefix("the pack "))]
    return " or ".join(dict.fromkeys(f"`{each[id]}`" for each in by_preset if id in each))


@functools.cache
def _phases(preset: str, pack: str) -> Mapping[str, str]:
    plan = declog.plan(declog.compose(preset, [f"packs=[{pack}]"] if pack else []))
    return {op.id: op.phase for op in plan.metrics}


def _reads(title: str, found: Sequence[tuple[str, Entry, list[str]]]) -> str:
    """What the metrics of a section read: tokens, groups and names, of the first preset and where others differ."""
    configs: dict[str, Mapping[str, Any]] = {}
    phases: dict[str, Mapping[str, str]] = {}
    ids: dict[str, list[str]] = {}
    for id, _, havers in found:
        for preset in [source for source in havers if not source.startswith("packs/")] or [""]:
            named = (preset or "grpo", "" if preset else title.removeprefix("the pack "))
            configs[preset], phases[preset] = _plain(*named), _phases(*named)
            ids.setdefault(preset, []).append(id)
    said: dict[str, tuple[str, str, str]] = {}
    more: list[tuple[str, str, str]] = []
    for preset, config in configs.items():
        for name, row in _names(config, ids[preset], phases[preset]).items():
            if said.setdefault(name, row) != row:
                more.append((f"{row[0]} of {preset}", *row[1:]))
    first = next(iter(configs.values()))
    return f"{_axes(first)}\n\n{_table(('name', 'is', 'where it comes from'), [*said.values(), *more])}"


@functools.cache
def _plain(preset: str, pack: str) -> Mapping[str, Any]:
    return declog.config_of(declog.compose(preset, [f"packs=[{pack}]"] if pack else []))


def _axes(config: Mapping[str, Any]) -> str:
    """Which tokens exist, and which rows are a group."""
    axes = config.get("axes") or {}
    group, mask = axes.get("group") or {}, (axes.get("token") or {}).get("mask")
    by = group.get("of") or []
    ids = " or ".join(f"`{name}`" for name in ([by] if isinstance(by, str) else by))
    split = f", and may be spread over {group['split']}" if group.get("split") not in (None, "none") else ""
    parts = [f"Tokens are those of `{mask}`." if mask else "", f"Rows of a group have one {ids}{split}." if ids else ""]
    return " ".join(part for part in parts if part) or "It reads neither tokens nor groups."


def _names(config: Mapping[str, Any], ids: Sequence[str], phases: Mapping[str, str]) -> dict[str, tuple[str, str, str]]:
    """The names that metrics of a config read: metrics of formulas, derived values, signals and constants."""
    metrics_of = {name: entry for name, entry in config["metrics"].items() if entry is not None}
    derived, constants = config.get("derived") or {}, config.get("constants") or {}
    signals: dict[str, tuple[list[str], Entry]] = {}
    for phase, entries in (config.get("signals") or {}).items():
        for name, entry in entries.items():
            if entry is not None:
                signals.setdefault(name, ([], entry))[0].append(f"`{phase}`")
    rows: dict[str, tuple[str, str, str]] = {}
    waiting = [(name, entry) for id in ids for name, entry in [(id, metrics_of.get(id) or {})]]
    seen = set[str]()
    while waiting:
        id, entry = waiting.pop(0)
        inside_formula = set(_read(entry.get("formula"), entry.get("when")))
        for name in sorted(inside_formula & set(metrics_of)):
            if name not in ids and name not in seen:
                seen.add(name)
                rows[f"metric {name}"] = (
                    f"`{name}`",
                    f"`{formula(metrics_of[name])}`",
                    f"a metric, of `{phases.get(name, '')}`",
                )
                waiting.append((name, metrics_of[name]))
        keys = ("expr", "where", "weight", "by", "prefer", "enabled", "mask")
        read = _read(*(entry.get(key) for key in keys)) or ([] if entry.get("formula") else [id])
        for name in [*read, *(inside_formula & set(constants))]:
            if name in seen and name in rows:
                continue
            if name in derived:
                more = derived[name]
                phase = f", of `{more['phase']}`" if more.get("phase") else ""
                rows[name] = (f"`{name}`", f"`{more['expr']}`", f"computed{phase}")
                seen.add(name)
                waiting.append((name, more))
            elif name in signals:
                named, more = signals[name]
                seen.add(name)
                rows[name] = (
                    f"`{name}`",
                    _signal(more),
                    f"observed in {' and '.join(named)}{_observed_as(name, more)}",
                )
            elif name in constants:
                seen.add(name)
                value = constants[name].get("value", constants[name].get("default"))
                rows[name] = (f"`{name}`", f"{value}: {constants[name].get('help') or 'a constant'}", "a constant")
    return rows


def _signal(entry: Entry) -> str:
    words = ["of a", str(entry["axis"]), "" if entry.get("type") in (None, "float") else f"({entry['type']})"]
    text = " ".join(word for word in words if word)
    text += ", one for each member" if entry.get("family") else ""
    return f"{text}: {entry['help']}" if entry.get("help") else text


def _observed_as(name: str, entry: Entry) -> str:
    return f" as `{entry['from']}`" if entry.get("from") not in (None, name) else ""


def _read(*texts: Any) -> list[str]:
    """The names in expressions, without those of axes, functions' parameters and texts in quotes."""
    listed = [each for text in texts for each in (text if isinstance(text, list) else [text]) if each is not None]
    joined = " ; ".join(map(str, listed))
    joined = re.sub(r"'[^']*'|\"[^\"]*\"|(over|within)=\w+|(size|index)\(\w+\)", " ", joined)
    return list(dict.fromkeys(re.findall(r"(?<![\w.])[A-Za-z_]\w*(?!\s*\()", joined)))


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
        modes = declog.config_of(name).get("modes") or {}
        prefixes = [f"`{mode['prefix']}`" for mode in modes.values() if mode and mode.get("prefix")]
        rows.append((f"`{name}`", str(len(metrics(name))), ", ".join(prefixes), str(own), str(shared or "")))
    return _table(("preset", "metrics", "before the names of a mode", "lines of its own", "of its packs"), rows)


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
