"""Rewriting of short forms in the long form, on trees in which each key keeps the location of its text.

The composer rewrites each layer before it merges layers. So layers in either form extend each other, and overrides
address the long form. ``validate`` rewrites all other data. A value that cannot be read stays as it is, and the models
refuse it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from declog.errors import Path, Problem, in_flow, nearest
from declog.language import notation
from declog.language.dtypes import AXES
from declog.language.keys import keys
from declog.language.notation import SEVERAL, WORD
from declog.language.spec import SignalSpec
from declog.language.tree import MISSING, Node, said

SIGNAL_KEYS = frozenset({*keys(SignalSpec), "expr", "phase"})  # `expr`: derived signals; `phase`: `observe`

OF_ROWS = ("expr", "reduce", "where", "by", "weight", "over")  # keys that no metric with a formula has
# The keys that say how a metric is computed. Each drops the listed keys of lower layers, which say another way.
COMPUTED = {"expr": ("formula", "prefer"), "formula": (*OF_ROWS, "prefer", "nan", "ranks")}


def long(layer: Node) -> tuple[Node, list[Problem]]:
    """The long form of one layer of a config, and its problems. Other layers do not change the meaning of a line."""
    writer = _Writer(signal_names(layer))
    return layer.holding({key: writer.section(key, node) for key, node in layer.entries.items()}), writer.problems


_Entry = Callable[[Node, Path], Node | Problem]  # from an entry and its path to its long form, or its problem


@dataclass
class _Writer:
    """Writes sections in the long form. ``signals`` holds the names of this layer's signals."""

    signals: frozenset[Any]
    problems: list[Problem] = field(default_factory=list)

    def section(self, name: Any, node: Node) -> Node:
        if name == "sinks" and isinstance(node.value, str) and not _open(node):
            return node.holding([] if node.value == "none" else [node])
        if not isinstance(node.value, dict):
            return node
        entry: _Entry | None = {
            "signals": self._phase, "derived": self._derived, "metrics": self._metric, "tables": self._table,
            "alerts": self._alert, "axes": self._axis,
        }.get(name)  # fmt: skip
        return node if entry is None else self._written(entry, node, (name,))

    def _written(self, entry: _Entry, node: Node, at: Path) -> Node:
        """A map with its entries in the long form. An entry with a problem stays as it is."""
        return node.holding({key: self._entry(entry, item, (*at, key)) for key, item in node.entries.items()})

    def _entry(self, entry: _Entry, node: Node, at: Path) -> Node:
        written = node if _open(node) else entry(node, at)
        if isinstance(written, Node):
            return written
        self.problems.append(written)
        return node

    # -- signals

    def _phase(self, node: Node, at: Path) -> Node | Problem:
        return self._refused(node, at) if _is_signal(node) else self._written(self._signal, node, at)

    def _signal(self, node: Node, at: Path) -> Node | Problem:
        name = at[1] if at[0] == "metrics" else at[-1]
        if at[0] == "signals" and (problem := self._of_axes(node, at)) is not None:
            return problem
        if isinstance(node.value, dict):
            moved = any((key := node.entries.get(word)) is not None and key.value for word in ("expr", "phase"))
            if at[0] != "signals":
                return node
            foreign = "axis" not in node.entries and not node.entries.keys().isdisjoint(notation.AXIS_KEYS)
            return self._refused(node, at) if moved else self._without_axis(node, at) if foreign else node
        words = notation.words_of(node.plain)
        declared = notation.signal_words(words, at)
        if isinstance(node.value, list) and declared is not None:
            return Problem.of("DL202.signal_list", at, name=name, fix=f"{name}: {' '.join(words)}")
        if isinstance(declared, Problem):
            return declared
        if declared is not None:
            return said(declared, node.location, replaces=True)
        word = " ".join(words)  # may be a description of one word, `score`
        described = at[0] == "signals" and WORD.match(word) and word not in self.signals and nearest(word, AXES) is None
        if (axis := self._with_axis(words) or ("completion" if described else None)) is not None:
            of_step = at[0] == "signals" and at[1] in AXES and not AXES.keys() & {*words}  # a phase with an axis's name
            fix = f"{name}: {axis.replace('completion', str(at[1]))}" if of_step else f"{name}: {axis}"
            if words[0] in notation.PARTS and at[0] == "signals" and at[1] not in (words[0], f"{words[0]}s"):
                keys = fix.replace(": step", ": completion")
                rows = f"signals: {{{words[0]}s: {{{keys}}}}}{notation.OF_PARTS}"
                of_step = words[0] == "call" and at[1] != "rollout"  # of `log.observe`, else of a tool
                fix = f"{fix}, one number per call of `log.observe`; of tool calls, {rows}" if of_step else rows
            return Problem.of("DL202.no_axis", at, words=word, fix=fix)
        if at[0] == "metrics":
            return Problem.of("DL202.observe_axis", at, name=node.value, known=list(AXES))
        return self._refused(node, at)

    def _of_axes(self, node: Node, at: Path) -> Problem | None:
        """The problem of a signal with several axes; None for any other value."""
        fix = notation.of_axes(str(at[-1]), node.plain, at, self.signals)
        return None if fix is None else Problem.of("DL202.axes", at, name=at[-1], fix=fix)

    def _without_axis(self, node: Node, at: Path) -> Problem:
        """The problem of a map without `axis`, or with another library's keys: ``{shape: [batch], dtype: str}``."""
        said_of_it = {
            key: item.plain for key, item in node.entries.items() if key in (*notation.AXIS_KEYS, "axis", "type")
        }
        fix = f"{at[-1]}: {notation.signal_of(node.plain)}"
        return Problem.of("DL202.no_axis", at, words=in_flow(said_of_it)[1:-1], fix=fix)

    def _with_axis(self, words: list[str]) -> str | None:
        """The words of a signal with its axis. None for an expression, such as one that begins with a signal's name."""
        kind = notation.kind_of(words[1]) if len(words) > 1 else ""  # `prompt float`
        typed = words[:1] and words[0] not in AXES and kind in notation.TYPES
        return notation.with_axis(words) if words and (typed or words[0] not in self.signals) else None

    def _refused(self, node: Node, at: Path) -> Problem:
        """The problem of a value in `signals` that is no signal of a phase. Its fix shows where the value belongs."""
        name, keys = at[-1], node.entries
        if (problem := self._of_axes(node, at)) is not None:
            return problem
        words = [] if keys else notation.words_of(node.plain)
        axis_named = "axis" in keys and keys["axis"].plain in AXES
        if keys and not axis_named and keys.keys().isdisjoint(("expr", "phase")):
            problem = self._without_axis(node, at)
            return replace(problem, fix=f"signals: {{any: {{{problem.fix}}}}}")
        if isinstance(node.plain, list) and notation.are_names(words):  # a list of a phase's signals
            fix = f"{name}: {in_flow(dict.fromkeys(words, 'completion'))}"
            return Problem.of("DL202.no_axis", at, words=" ".join(words), fix=fix)
        if (axis := self._with_axis(words)) is not None:
            fix = f"signals: {{any: {{{name}: {axis}}}}}"
            return Problem.of("DL202.no_axis", at, words=" ".join(words), fix=fix)
        if "expr" in keys or (not keys and notation.signal_words(words, at) is None):
            fix = f"derived: {{{name}: {in_flow(node.plain)}}}"
            return Problem.of("DL202.derived", at, name=name, fix=fix)
        said_phases = keys["phase"].plain if "phase" in keys else at[1] if len(at) > 2 else None
        phases = list(said_phases.values()) if isinstance(said_phases, dict) else [said_phases or "any"]
        rest = {key: value.plain for key, value in keys.items() if key != "phase"} if keys else " ".join(words)
        entries = ", ".join(f"{phase}: {{{name}: {in_flow(rest)}}}" for phase in phases)
        return Problem.of("DL202.phase", at, name=name, fix=f"signals: {{{entries}}}")

    def _derived(self, node: Node, at: Path) -> Node | Problem:
        if isinstance(node.value, dict):
            return node
        words = str(node.value).split()
        if notation.signal_words(words, ()) is not None:
            fix = f"signals: {{any: {{{at[-1]}: {node.value}}}}}"
            return Problem.of("DL202.observed", at, name=at[-1], fix=fix)
        return said({"expr": node}, node.location, replaces=True)

    # -- metrics

    def _metric(self, node: Node, at: Path) -> Node:
        if isinstance(node.value, list):
            return node
        if not isinstance(node.value, dict):
            words = node.value.split() if isinstance(node.value, str) else []
            if words and all(word in SEVERAL or notation.is_reduction(word, 1) for word in words):
                return said({"reduce": words[0] if len(words) == 1 else words}, node.location, replaces=True)
            reduced = notation.reduced(node.value) if isinstance(node.value, str) else None
            return said(reduced or {"expr": node}, node.location, replaces=True)
        entry = dict(node.entries)
        if (observe := entry.get("observe")) is not None:
            entry["observe"] = self._entry(self._signal, observe, (*at, "observe"))
        if (tags := entry.get("tags")) is not None and isinstance(tags.value, str):
            entry["tags"] = said(tags.value.split(), tags.location)
        for key in ("expr", "by"):
            if (texts := entry.get(key)) is not None and isinstance(texts.value, list) and len(texts.value) == 1:
                entry[key] = texts.value[0]
        drops = dropped({key: item.value for key, item in entry.items()}) - entry.keys()
        return replace(node.holding(entry), drops=drops)

    # -- tables, alerts

    def _table(self, node: Node, at: Path) -> Node | Problem:
        rows = node.entries.get("filter")
        if rows is not None and rows.value is not None and notation.takes_all(rows.plain):
            return Problem.of("DL403.all_rows", (*at, "filter"), name=in_flow(rows.plain))
        if rows is None or not isinstance(rows.value, str) or WORD.match(rows.value) or _open(rows):
            return node
        return node.holding({**node.entries, "filter": said({"where": rows}, rows.location, replaces=True)})

    def _alert(self, node: Node, at: Path) -> Node:
        if not isinstance(node.value, str):
            return node
        return said(notation.condition(node.value.strip(), at[-1]), node.location, replaces=True)

    # -- axes

    def _axis(self, node: Node, at: Path) -> Node | Problem:
        """The long form of ``group: 4``, ``group: prompt_id`` and ``token: completion_mask``."""
        if isinstance(node.value, bool) or not isinstance(node.value, int | str):
            return node
        if isinstance(node.value, str) and (pair := re.fullmatch(r"(\w+) *[=:] *(\w+)", node.value)):
            return Problem.of("DL202.value", at, cause="it is a map", fix=f"{at[-1]}: {{{pair[1]}: {pair[2]}}}")
        word = {"group": "size" if isinstance(node.value, int) else "of", "token": "mask"}.get(str(at[-1]))
        return node if word is None else said({word: node}, node.location, replaces=True)


def dropped(metric: Mapping[str, Any]) -> frozenset[str]:
    """The keys of lower layers that a metric drops, because it is computed in another way."""
    return frozenset(key for way in COMPUTED if metric.get(way) is not None for key in COMPUTED[way])


def _open(node: Node) -> bool:
    """Whether a node has no value yet: it is empty, contains an interpolation, or is ``???``."""
    value = node.value
    return value is None or (isinstance(value, str) and ("${" in value or value == MISSING))


def signal_names(layer: Node) -> frozenset[Any]:
    """The names of a layer's signals, observed and derived, without deleted ones."""
    sections = [*layer.entries.get("signals", Node({})).entries.values(), layer.entries.get("derived", Node({}))]
    return frozenset(name for section in sections for name, node in section.entries.items() if node.value is not None)


def _is_signal(node: Node) -> bool:
    """Whether an entry directly below `signals` is a signal instead of a phase: it has keys of a signal."""
    if not isinstance(node.value, dict):
        return True

    def declares(key: Any, item: Node) -> bool:
        is_axis = key == "axis" and item.value in AXES
        text = str(item.value).split()[:1] if isinstance(item.value, str) else []
        return isinstance(item.value, dict | None) or (not is_axis and bool(set(text) & set(AXES)))

    if node.entries.keys() <= {*notation.AXIS_KEYS, *SIGNAL_KEYS}:  # `{shape: [batch], dtype: str}`
        values = [item.plain for key, item in node.entries.items() if key in notation.AXIS_KEYS]
        if any(not isinstance(value, dict) and {*str(value).split()[:1]}.isdisjoint(AXES) for value in values):
            return True
    return any(key in SIGNAL_KEYS and not declares(key, item) for key, item in node.entries.items())
