"""``declog init --from RUN``: reads the names that a run logged, and writes a config that logs them again.

The config computes several statistics of one signal, such as ``score/mean`` and ``score/max``, from the signal's
values. A single number is the trainer's, and passes through. Imports wandb's protocol for wandb's files.
"""

from __future__ import annotations

import json
import re
import struct
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from declog.config.source_map import shown_path
from declog.distribution import install
from declog.errors import UsageError
from declog.records import names_of

if TYPE_CHECKING:
    from declog.plans.ops import Plan

Row = Mapping[str, Any]

NO_METRICS = frozenset({"step", "epoch", "global_step", "mode", "time", "timestamp", "run_id", "partial", "spec"})
BESIDE = ("declog/{member}", "nonfinite/{metric}")  # names that declog itself logs
INSIDE = ("scalars", "data", "metrics", "logs")  # keys under which some loggers nest the values of a line
STATISTICS = {"mean": "mean", "avg": "mean", "max": "max", "min": "min", "std": "std", "sum": "sum", "median": "p50"}
_STATISTIC = rf"(?P<statistic>{'|'.join(STATISTICS)}|p\d\d)"
# `score/mean`, `score_mean` and `mean_score`, after a path
_SUFFIX = re.compile(rf"(?P<head>.*?)(?P<word>[A-Za-z][\w-]*)(?P<mark>[/_.]){_STATISTIC}")
_PREFIX = re.compile(rf"(?P<head>(?:.*/)?){_STATISTIC}_(?P<word>[A-Za-z]\w*)")
# names of numbers that a trainer computes for a step, not for a row
_OF_A_STEP = re.compile(
    r"time|timing|duration|memory|perf|throughput|learning_rate|\blr\b|loss|grad|norm|utilization|pending|flops|mfu"
)
_PER_TOKEN = re.compile(r"advantages?|returns|values?|log_?probs?|entropy|kl|kl_divergence|ratio")
_COUNTED = re.compile(r"len(gth)?s?|tokens?|turns|num|count")


@dataclass(frozen=True)
class Logged:
    """The log of a run: its file, the last number of each name, the types of names without numbers, and a sink."""

    source: Path
    values: Mapping[str, float]
    not_numbers: Mapping[str, str]
    sink: str


@dataclass(frozen=True)
class Distribution:
    """The statistics of one signal. In ``template``, `{reduce}` stands for each key of ``reduce``."""

    signal: str
    template: str
    reduce: Mapping[str, str]
    axis: str
    dtype: str | None

    @property
    def names(self) -> list[str]:
        """The names under which the statistics are logged."""
        return [self.template.replace("{reduce}", key) for key in self.reduce]


@dataclass(frozen=True)
class Adopted:
    """The way in which a config logs each name: by ``preset``, computed from a signal, or passed through."""

    logged: Logged
    preset: str | None
    by_preset: Sequence[str] = ()
    distributions: Sequence[Distribution] = ()
    passed: Sequence[str] = field(default_factory=list)

    @property
    def computed(self) -> int:
        """The number of names that are computed from signals."""
        return len(self.by_preset) + sum(len(signal.names) for signal in self.distributions)

    def text(self, name: str) -> str:
        """The config, as YAML."""
        lines = [
            *_comment(f"The names that {shown_path(str(self.logged.source))} has, as `declog init --from` read them."),
            *_comment(f"Computed from what the training code observes: {self.computed}."),
            *_comment(f"Passed through by log.log_metric(name, value): {len(self.passed)}", self.passed),
        ]
        if self.logged.not_numbers:
            lines += _comment(
                "Left out, since they are no numbers", [f"{k} ({v})" for k, v in self.logged.not_numbers.items()]
            )
        lines += [f"defaults: [{self.preset}, _self_]"] if self.preset else [f"sinks: [console, {self.logged.sink}]"]
        lines += ["", f"run: {{project: {name}}}"]
        tokens = any(one.axis == "token" for one in self.distributions)
        lines += ["axes: {token: {mask: mask}}"] if tokens else []
        if self.distributions:
            lines += ["signals:", "  any:"]
            lines += ["    mask: {axis: token, type: bool}"] if tokens else []
            lines += [f"    {one.signal}: {{axis: {one.axis}{_type(one)}}}" for one in self.distributions]
            lines += ["metrics:", *(f"  {one.signal}: {_metric(one)}" for one in self.distributions)]
        return "\n".join(lines) + "\n"


def adopted(logged: Logged, presets: Mapping[str, Collection[str]]) -> Adopted:
    """Choose how to log each name. ``presets`` has the presets, each with the templates of the names that it logs.

    The preset with the most names is the base if it has at least half of them; else repeated statistics are computed.
    """
    names = list(logged.values)
    best, by_preset = None, list[str]()
    for preset, templates in presets.items():
        pattern = re.compile("|".join(map(names_of, (*templates, *BESIDE))))
        matches = [name for name in names if pattern.fullmatch(name)]
        if len(matches) > len(by_preset):
            best, by_preset = preset, matches
    if len(by_preset) * 2 < len(names):
        best, by_preset = None, []
    rest = [name for name in names if name not in by_preset]
    distributions = [] if best else _distributions(rest, logged.values)
    computed = {name for signal in distributions for name in signal.names}
    return Adopted(logged, best, by_preset, distributions, [name for name in rest if name not in computed])


@cache  # composing all presets takes seconds
def names_by_preset(presets: tuple[str, ...]) -> dict[str, set[str]]:
    """The templates of the names that each preset logs."""
    from declog.api import plan
    from declog.config.compose import compose

    return {preset: _shown(plan(compose(preset))) for preset in presets}


def _shown(plan: Plan) -> set[str]:
    """The templates of all names that sinks get, in every mode, except templates that match any name."""
    shown = set().union(*(plan.profiles[sink.profile].outputs for sink in plan.sinks))
    names = {name.template for op, name in plan.shown_names if (op.key, name.alias) in shown}
    names |= _by_trainer(plan) if not plan.every else set()
    prefixes = {mode.prefix for mode in plan.modes.values()}
    return {prefix + name for name in names if name[:1] != "{" for prefix in prefixes}


def _by_trainer(plan: Plan) -> set[str]:
    """The names of metrics that are inactive by constants of the trainer: the trainer that logged them enables them."""
    metrics: Mapping[str, Any] = plan.config.get("metrics") or {}
    names = set[str]()
    for key, why in plan.inactive:
        section, _, id = key.partition(".")
        entry = metrics.get(id)
        if section == "metrics" and why.startswith("enabled: ") and isinstance(entry, Mapping):
            reduce = entry.get("reduce")
            items = reduce if isinstance(reduce, list) else [""]
            words = [word for item in items for word in (item if isinstance(item, Mapping) else [item])]
            names |= {str(entry.get("name") or id).replace("{reduce}", str(word)) for word in words}
    return names


def _distributions(names: Iterable[str], values: Mapping[str, float]) -> list[Distribution]:
    """The signals of which the names hold several statistics."""
    statistics: dict[tuple[str, str], dict[str, str]] = {}
    for name in names:
        split = _SUFFIX.fullmatch(name)
        template = None if split is None else f"{split['head']}{split['word']}{split['mark']}{{reduce}}"
        if split is None and (split := _PREFIX.fullmatch(name)) is not None:
            template = f"{split['head']}{{reduce}}_{split['word']}"
        if split is not None and template is not None and not _OF_A_STEP.search(name):
            key = split["statistic"]
            statistics.setdefault((template, split["word"]), {})[key] = STATISTICS.get(key, key)
    distributions: dict[str, Distribution] = {}
    for (template, word), reduce in statistics.items():
        if len(reduce) < 2:
            continue
        signal = _identifier(word)
        signal = signal if signal not in distributions else _identifier(template.replace("{reduce}", ""))
        ends = [values[template.replace("{reduce}", key)] for key in reduce if key in ("max", "min")]
        dtype = "int" if all(float(end).is_integer() for end in ends) and _COUNTED.search(signal) else None
        axis = "token" if _PER_TOKEN.fullmatch(signal) else "completion"
        distributions[signal] = Distribution(signal, template, reduce, axis, dtype)
    return list(distributions.values())


def _identifier(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return plain if plain[:1].isalpha() else f"x_{plain}"


def _type(signal: Distribution) -> str:
    return f", type: {signal.dtype}" if signal.dtype else ""


def _metric(signal: Distribution) -> str:
    reduce = ", ".join(key if key == value else f"{{{key}: {value}}}" for key, value in signal.reduce.items())
    return f'{{expr: {signal.signal}, reduce: [{reduce}], name: "{signal.template}"}}'


def _comment(text: str, names: Sequence[str] | None = None) -> list[str]:
    if names is None:
        return [f"# {text}"]
    return [f"# {text}{':' if names else '.'}", *textwrap.wrap(", ".join(names), 100, initial_indent="#   ",
            subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False)]  # fmt: skip


def read(path: Path) -> Logged:
    """Read the log of a run: a wandb run, JSON lines, a trainer's state or a list of names; in a folder, the newest.

    A folder is searched for these kinds in turn. Raises ``UsageError`` if it has no such file, or the file no number.
    """
    file = _file(path)
    rows = READERS[file.suffix](file)
    values: dict[str, float] = {}
    not_numbers: dict[str, str] = {}
    for row in rows:
        for name, value in row.items():
            if name in NO_METRICS or name.startswith("_"):
                continue
            if isinstance(value, bool | int | float) or value in ("NaN", "Infinity", "-Infinity"):
                values[name] = float(value)
            elif value is not None:
                kind = value.get("_type") if isinstance(value, Mapping) else None
                not_numbers.setdefault(
                    name, str(kind or {"str": "text"}.get(type(value).__name__, type(value).__name__))
                )
    if not values:
        raise UsageError.of("DL607.no_number", file=file)
    not_numbers = {name: kind for name, kind in not_numbers.items() if name not in values}
    return Logged(file, dict(sorted(values.items())), not_numbers, "wandb" if file.suffix == ".wandb" else "jsonl")


def _file(path: Path) -> Path:
    if path.is_file() and path.suffix in READERS:
        return path
    patterns = ("*.wandb", "*/*.wandb", "wandb/*/*.wandb", "trainer_state.json", "checkpoint-*/trainer_state.json",
                "scalars.jsonl", "*/scalars.jsonl", "*.jsonl")  # fmt: skip
    for pattern in patterns if path.is_dir() else ():
        if files := list(path.glob(pattern)):
            return max(files, key=lambda file: file.stat().st_mtime)
    raise UsageError.of("DL607.log", what="there is nothing to read in" if path.exists() else "there is no", path=path)


def _json_lines(file: Path) -> Iterator[Row]:
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            row = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError:
            if number == 1:
                raise UsageError.of("DL607.lines", file=file) from None
            continue  # the run ended while it wrote this line
        if isinstance(row, dict):
            yield _flat(next((row[key] for key in INSIDE if isinstance(row.get(key), dict)), row), "/")


def _json(file: Path) -> Iterator[Row]:
    """The rows of a trainer's state, of a list, or of one map."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError.of("DL607.json", file=file, error=error) from None
    rows = data.get("log_history", [data]) if isinstance(data, dict) else data
    yield from (_flat(row, "/") for row in rows if isinstance(row, dict))


def _text(file: Path) -> Iterator[Row]:
    """The rows of a text: a name per line, or lines of a console such as ``step:3 - actor/pg_loss:0.1 - ...``."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        pairs = re.findall(r"([\w@./-]*[A-Za-z][\w@./-]*):\s*(?:np\.\w+\()?(-?[\d.]+(?:e[+-]?\d+)?|nan)\b", line)
        if pairs:
            yield {name: float(value) for name, value in pairs}
        elif re.fullmatch(r"[\w@.-]+(/[\w@.-]+)*", line.strip()):
            yield {line.strip(): float("nan")}


def _flat(row: Row, mark: str, above: str = "") -> dict[str, Any]:
    """Flatten a row, and join the names of nested maps by ``mark``; wandb's references to files stay maps."""
    flat: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and "_type" not in value:
            flat |= _flat(value, mark, f"{above}{key}{mark}")
        else:
            flat[f"{above}{key}"] = value
    return flat


_BLOCK, _HEADER = 32768, struct.Struct("<IHB")  # LevelDB's log: a checksum, a length, and the kind of part of a record


def _wandb(file: Path) -> Iterator[Row]:
    """The history of a run, from wandb's transaction log."""
    try:
        from wandb.proto import wandb_internal_pb2
    except ImportError:
        raise UsageError.of("DL607.wandb", file=file.name, fix=install("wandb")) from None
    make: Callable[[], Any] = vars(wandb_internal_pb2)["Record"]
    for data in _records(file.read_bytes()):
        record = make()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            row: dict[str, Any] = {}
            for item in record.history.item:
                *above, key = list(item.nested_key) or [item.key]
                values = row
                for name in above:
                    values = values.setdefault(name, {})
                values[key] = json.loads(item.value_json)
            yield _flat(row, ".")


def _records(data: bytes) -> Iterator[bytes]:
    start, record = 7, b""  # after the file's header
    while start + _HEADER.size <= len(data):
        rest = _BLOCK - start % _BLOCK
        _, length, part = _HEADER.unpack_from(data, start)
        if rest < _HEADER.size or part not in (1, 2, 3, 4):
            start += rest
            continue
        piece = data[start + _HEADER.size : start + _HEADER.size + length]
        start += _HEADER.size + length
        record = piece if part in (1, 2) else record + piece
        if part in (1, 4) and len(piece) == length:  # a shorter piece: the run ended while it wrote
            yield record


READERS: Mapping[str, Callable[[Path], Iterable[Row]]] = {
    ".wandb": _wandb, ".jsonl": _json_lines, ".json": _json, ".txt": _text, ".log": _text,
}  # fmt: skip
