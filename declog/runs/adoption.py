"""The names that a run logged, and a config that logs them again: what ``declog init --from RUN`` reads and writes.

Several statistics of one signal, ``score/mean`` and ``score/max``, are computed from its values. A single number is the
trainer's, and passes through. Imports wandb's own protocol for its files.
"""

from __future__ import annotations

import json
import re
import struct
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from declog.config.source_map import shown_path
from declog.distribution import install
from declog.errors import UsageError
from declog.records import names_of

if TYPE_CHECKING:
    from declog.plans.ops import Plan

Row = Mapping[str, Any]

NO_METRICS = frozenset({"step", "epoch", "global_step", "mode", "time", "timestamp", "run_id", "partial", "spec"})
BESIDE = ("declog/{member}", "nonfinite/{metric}")  # names that declog itself adds
INSIDE = ("scalars", "data", "metrics", "logs")  # where some loggers put a line's values, beside its step
STATISTICS = {"mean": "mean", "avg": "mean", "max": "max", "min": "min", "std": "std", "sum": "sum", "median": "p50"}
_STATISTIC = rf"(?P<statistic>{'|'.join(STATISTICS)}|p\d\d)"
# `score/mean`, `score_mean` and `mean_score`, each behind a path
_SUFFIX = re.compile(rf"(?P<head>.*?)(?P<word>[A-Za-z][\w-]*)(?P<mark>[/_.]){_STATISTIC}")
_PREFIX = re.compile(rf"(?P<head>(?:.*/)?){_STATISTIC}_(?P<word>[A-Za-z]\w*)")
# what no row has: the trainer's own numbers of a step
_OF_A_STEP = re.compile(
    r"time|timing|duration|memory|perf|throughput|learning_rate|\blr\b|loss|grad|norm|utilization|pending|flops|mfu"
)
_PER_TOKEN = re.compile(r"advantages?|returns|values?|log_?probs?|entropy|kl|kl_divergence|ratio")
_COUNTED = re.compile(r"len(gth)?s?|tokens?|turns|num|count")


@dataclass(frozen=True)
class Logged:
    """The log of a run: each name with its last value, other entries with their types, and the file."""

    source: Path
    values: Mapping[str, float]
    others: Mapping[str, str]
    sink: str


@dataclass(frozen=True)
class Distribution:
    """Statistics of one signal. ``template`` has `{reduce}` for the key of each in ``reduce``."""

    signal: str
    template: str
    reduce: Mapping[str, str]
    axis: str
    dtype: str | None

    @property
    def names(self) -> list[str]:
        """The names that it is logged under."""
        return [self.template.replace("{reduce}", key) for key in self.reduce]


@dataclass(frozen=True)
class Adopted:
    """The plan for the names: from a preset that has most of them, computed, or passed through."""

    logged: Logged
    preset: str | None
    by_preset: Sequence[str] = ()
    distributions: Sequence[Distribution] = ()
    passed: Sequence[str] = field(default_factory=list)

    @property
    def computed(self) -> int:
        """How many names are computed from what the training code observes."""
        return len(self.by_preset) + sum(len(each.names) for each in self.distributions)

    def text(self, name: str) -> str:
        """The config, as YAML."""
        lines = [
            *_comment(f"The names that {shown_path(str(self.logged.source))} has, as `declog init --from` read them."),
            *_comment(f"Computed from what the training code observes: {self.computed}."),
            *_comment(f"Passed through by log.log_metric(name, value): {len(self.passed)}", self.passed),
        ]
        if self.logged.others:
            lines += _comment(
                "Left out, since they are no numbers", [f"{k} ({v})" for k, v in self.logged.others.items()]
            )
        lines += [f"defaults: [{self.preset}, _self_]"] if self.preset else [f"sinks: [console, {self.logged.sink}]"]
        lines += ["", f"name: {name}"]
        tokens = [each for each in self.distributions if each.axis == "token"]
        if tokens:
            lines += ["axes: {token: {mask: mask}}"]
        if self.distributions:
            lines += ["signals:", "  any:"]
            lines += ["    mask: {axis: token, type: bool}"] if tokens else []
            lines += [f"    {each.signal}: {{axis: {each.axis}{_type(each)}}}" for each in self.distributions]
        if self.distributions:
            lines += ["metrics:", *(f"  {each.signal}: {_metric(each)}" for each in self.distributions)]
        return "\n".join(lines) + "\n"


def adopted(logged: Logged, presets: Mapping[str, Sequence[str]]) -> Adopted:
    """The plan for each name. ``presets`` holds the presets, each with the templates of its names."""
    names = list(logged.values)
    best, known = None, list[str]()
    for preset, templates in presets.items():
        pattern = re.compile("|".join(f"(?:eval[_/])?{names_of(each)}" for each in (*templates, *BESIDE)))
        found = [name for name in names if pattern.fullmatch(name)]
        if len(found) > len(known):
            best, known = preset, found
    if len(known) * 2 < len(names):
        best, known = None, []
    rest = [name for name in names if name not in known]
    distributions = [] if best else _distributions(rest, logged.values)
    computed = {name for each in distributions for name in each.names}
    return Adopted(logged, best, known, distributions, [name for name in rest if name not in computed])


def verified(logged: Logged) -> Adopted:
    """What becomes of each name, as the written config's plan logs it: a name that it does not have passes through.

    A preset that logs fewer than half of the names is none that has them; the next one is tried.
    """
    left = dict(_templates(tuple(sys.path)))
    while True:
        found = adopted(logged, left)
        made = _plan(found.text("adopted"))
        known = re.compile("|".join((*(names_of(each) for each in _shown(made)), *map(names_of, BESIDE))))
        kept = [name for name in found.by_preset if known.fullmatch(name)]
        if found.preset is None or len(kept) * 2 >= len(logged.values):
            others = [name for name in found.by_preset if name not in kept]
            return replace(found, by_preset=kept, passed=sorted([*found.passed, *others]))
        del left[found.preset]


def _plan(text: str) -> Plan:
    """The plan of a config, as it will be written."""
    from declog.api import plan
    from declog.config.compose import compose

    with TemporaryDirectory() as folder:
        file = Path(folder) / "adopted.yaml"
        file.write_text(text, encoding="utf-8")
        return plan(compose(file))


@cache  # composing all presets takes seconds
def _templates(path: tuple[str, ...]) -> dict[str, list[str]]:
    """The names that each preset may log, whatever is switched on; run-time names alone say nothing."""
    from declog.api import plan
    from declog.config.compose import compose, presets

    found: dict[str, list[str]] = {}
    for preset in presets():
        composed = compose(preset)
        metrics: Any = composed.data.get("metrics") or {}
        names = {str(entry.get("name") or key) for key, entry in metrics.items() if isinstance(entry, dict)}
        names |= {*plan(composed).names()}
        found[preset] = sorted(name for name in names if name[:1] != "{")
    return found


def _shown(made: Plan) -> set[str]:
    """The templates of all names that sinks get, in every mode; not those that are anything at all."""
    shown = set().union(*(made.profiles[sink.profile].outputs for sink in made.sinks))
    names = {name.template for op in made.outputs if op.shown for name in op.names if (op.key, name.alias) in shown}
    names |= _by_trainer(made) if not made.every else set()
    prefixes = {mode.prefix for mode in made.modes.values()}
    return {prefix + name for name in names if name[:1] != "{" for prefix in prefixes}


def _by_trainer(made: Plan) -> set[str]:
    """The names of metrics that are off by constants which a trainer gives: a trainer that logged them has them on."""
    metrics: Mapping[str, Any] = made.config.get("metrics") or {}
    found = set[str]()
    for key, why in made.inactive:
        section, _, id = key.partition(".")
        entry = metrics.get(id)
        if section == "metrics" and why.startswith("enabled: ") and isinstance(entry, Mapping):
            reduce = entry.get("reduce")
            items = reduce if isinstance(reduce, list) else [""]
            words = [word for item in items for word in (item if isinstance(item, Mapping) else [item])]
            found |= {str(entry.get("name") or id).replace("{reduce}", str(word)) for word in words}
    return found


def _distributions(names: Iterable[str], values: Mapping[str, float]) -> list[Distribution]:
    """The signals with several statistics."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for name in names:
        split = _SUFFIX.fullmatch(name)
        template = None if split is None else f"{split['head']}{split['word']}{split['mark']}{{reduce}}"
        if split is None and (split := _PREFIX.fullmatch(name)) is not None:
            template = f"{split['head']}{{reduce}}_{split['word']}"
        if split is not None and template is not None and not _OF_A_STEP.search(name):
            key = split["statistic"]
            found.setdefault((template, split["word"]), {})[key] = STATISTICS.get(key, key)
    made: dict[str, Distribution] = {}
    for (template, word), reduce in found.items():
        if len(reduce) < 2:
            continue
        signal = _identifier(word)
        signal = signal if signal not in made else _identifier(template.replace("{reduce}", ""))
        whole = all(
            float(values[template.replace("{reduce}", key)]).is_integer() for key in reduce if key in ("max", "min")
        )
        dtype = "int" if whole and _COUNTED.search(signal) else None
        made[signal] = Distribution(
            signal, template, reduce, "token" if _PER_TOKEN.fullmatch(signal) else "completion", dtype
        )
    return list(made.values())


def _identifier(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    return plain if plain[:1].isalpha() else f"x_{plain}"


def _type(each: Distribution) -> str:
    return f", type: {each.dtype}" if each.dtype else ""


def _metric(each: Distribution) -> str:
    reduce = ", ".join(key if key == value else f"{{{key}: {value}}}" for key, value in each.reduce.items())
    return f'{{expr: {each.signal}, reduce: [{reduce}], name: "{each.template}"}}'


def _comment(text: str, names: Sequence[str] | None = None) -> list[str]:
    if names is None:
        return [f"# {text}"]
    return [f"# {text}{':' if names else '.'}", *textwrap.wrap(", ".join(names), 100, initial_indent="#   ",
            subsequent_indent="#   ", break_long_words=False, break_on_hyphens=False)]  # fmt: skip


# -- what exists


def read(path: Path) -> Logged:
    """What a run logged: a wandb run, JSON lines, a trainer's state or a list of names; of a folder, its newest such.

    Raises ``UsageError`` where there is nothing of the kind, or no number in it.
    """
    file = _file(path)
    rows = READERS[file.suffix](file)
    values: dict[str, float] = {}
    others: dict[str, str] = {}
    for row in rows:
        for name, value in row.items():
            if name in NO_METRICS or name.startswith("_"):
                continue
            if isinstance(value, bool | int | float) or value in ("NaN", "Infinity", "-Infinity"):
                values[name] = float(value)
            elif value is not None:
                kind = value.get("_type") if isinstance(value, Mapping) else None
                others.setdefault(name, str(kind or {"str": "text"}.get(type(value).__name__, type(value).__name__)))
    if not values:
        raise UsageError.of("DL607.no_number", file=file)
    others = {name: kind for name, kind in others.items() if name not in values}
    return Logged(file, dict(sorted(values.items())), others, "wandb" if file.suffix == ".wandb" else "jsonl")


def _file(path: Path) -> Path:
    if path.is_file() and path.suffix in READERS:
        return path
    places = ("*.wandb", "*/*.wandb", "wandb/*/*.wandb", "trainer_state.json", "checkpoint-*/trainer_state.json",
              "scalars.jsonl", "*/scalars.jsonl", "*.jsonl")  # fmt: skip
    for place in places if path.is_dir() else ():
        if found := sorted(path.glob(place), key=lambda file: file.stat().st_mtime):
            return found[-1]
    raise UsageError.of("DL607.log", what="there is nothing to read in" if path.exists() else "there is no", path=path)


def _json_lines(file: Path) -> Iterator[Row]:
    for number, line in enumerate(file.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        try:
            found = json.loads(line) if line.strip() else {}
        except json.JSONDecodeError:
            if number == 1:
                raise UsageError.of("DL607.lines", file=file) from None
            continue  # a run that ended while it wrote
        if isinstance(found, dict):
            yield _flat(next((found[key] for key in INSIDE if isinstance(found.get(key), dict)), found), "/")


def _json(file: Path) -> Iterator[Row]:
    """A trainer's state, a list of rows, or one row."""
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError.of("DL607.json", file=file, error=error) from None
    rows = data.get("log_history", [data]) if isinstance(data, dict) else data
    yield from (_flat(row, "/") for row in rows if isinstance(row, dict))


def _text(file: Path) -> Iterator[Row]:
    """Names, one in a line; or lines of a console such as ``step:3 - actor/pg_loss:0.1 - ...``."""
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        pairs = re.findall(r"([\w@./-]*[A-Za-z][\w@./-]*):\s*(?:np\.\w+\()?(-?[\d.]+(?:e[+-]?\d+)?|nan)\b", line)
        if pairs:
            yield {name: float(value) for name, value in pairs}
        elif re.fullmatch(r"[\w@.-]+(/[\w@.-]+)*", line.strip()):
            yield {line.strip(): float("nan")}


def _flat(row: Row, mark: str, above: str = "") -> dict[str, Any]:
    """A row in which maps of values are names of their own; what wandb keeps in files is as it is."""
    found: dict[str, Any] = {}
    for key, value in row.items():
        if isinstance(value, Mapping) and "_type" not in value:
            found |= _flat(value, mark, f"{above}{key}{mark}")
        else:
            found[f"{above}{key}"] = value
    return found


_BLOCK, _HEADER = 32768, struct.Struct("<IHB")  # LevelDB's log: a checksum, a length, and which part of a record


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
                place = row
                for each in above:
                    place = place.setdefault(each, {})
                place[key] = json.loads(item.value_json)
            yield _flat(row, ".")


def _records(data: bytes) -> Iterator[bytes]:
    place, record = 7, b""  # behind the file's own head
    while place + _HEADER.size <= len(data):
        left = _BLOCK - place % _BLOCK
        _, length, part = _HEADER.unpack_from(data, place)
        if left < _HEADER.size or part not in (1, 2, 3, 4):
            place += left
            continue
        piece = data[place + _HEADER.size : place + _HEADER.size + length]
        place += _HEADER.size + length
        record = piece if part in (1, 2) else record + piece
        if part in (1, 4) and len(piece) == length:  # else the run ended while it wrote
            yield record


READERS: Mapping[str, Callable[[Path], Iterable[Row]]] = {
    ".wandb": _wandb, ".jsonl": _json_lines, ".json": _json, ".txt": _text, ".log": _text,
}  # fmt: skip
