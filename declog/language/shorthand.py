"""What may be written shorter, in its long form: a tree in, a tree out, in which each key has the place that says it.

The composer applies it to each layer before it lays one over the others, so that layers in either form extend each
other and overrides address the long form; ``validate`` applies it to all that came by other ways. What it cannot read
it leaves as it is, for the models to refuse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from declog.errors import Path, Problem, did_you_mean
from declog.language import notation
from declog.language.dtypes import AXES
from declog.language.keys import keys
from declog.language.notation import SEVERAL, WORD
from declog.language.spec import SignalSpec
from declog.language.tree import MISSING, Node, said

SIGNAL_KEYS = frozenset(keys(SignalSpec))
# What `from` alone says in `observe` of a metric: a number that the loop has computed, and logs by a name.
REPORTED: Mapping[str, Any] = {"axis": "step", "phase": "reported", "optional": True}


def long(layer: Node, low: Node | None = None) -> tuple[Node, list[Problem]]:
    """A layer of a profile in its long form, and what of it could not be read; ``low`` is what it is laid over."""
    writer = _Writer(Node({}) if low is None else low, _signals_of(layer))
    return layer.holding({key: writer.section(key, node) for key, node in layer.entries.items()}), writer.problems


@dataclass
class _Writer:
    """Writes sections. ``signals`` are this layer's."""

    low: Node
    signals: frozenset[Any]
    problems: list[Problem] = field(default_factory=list)

    def section(self, name: Any, node: Node) -> Node:
        if name == "sinks" and isinstance(node.value, str) and not _open(node):
            return node.holding([] if node.value == "none" else [node])
        if not isinstance(node.value, dict):
            return node
        if name == "signals":
            return self._signals(node)
        entry = {
            "metrics": self._metric, "tables": self._table,
            "alerts": self._alert, "axes": self._axis,
        }.get(name)  # fmt: skip
        if entry is None:
            return node
        return node.holding({key: item if _open(item) else entry(key, item) for key, item in node.entries.items()})

    def _below(self, *path: Any) -> Mapping[Any, Node]:
        """The entries that the layers below have at a path."""
        node = self.low.at(path)
        return {} if node is None else node.entries

    # -- signals

    def _signals(self, section: Node) -> Node:
        made: dict[Any, Node] = {}
        for name, node in section.entries.items():
            if not self._is_group(name, node):
                made[name] = self._signal(name, node, ("signals", name), None)
                continue
            for key, signal in node.entries.items():
                at = ("signals", name, key)
                if key in made or key in section.entries:
                    self.problems.append(Problem.of("DL202.signal_twice", at, name=key))
                    made[name] = node.holding({**(made[name].entries if name in made else {}), key: signal})
                else:
                    made[key] = self._signal(key, signal, at, Node(name, node.place))
        return section.holding(made)

    def _is_group(self, name: Any, node: Node) -> bool:
        """Whether an entry of `signals` is a phase with its signals: no key of it is one of a signal's."""
        if not node.entries:
            return False
        keys, first = {str(key) for key in node.entries}, next(iter(node.entries.values())).value
        declares = isinstance(first, str) and first.replace("?", " ").partition(" ")[0] in AXES
        if keys & (SIGNAL_KEYS - {"mask"}) or (keys == {"mask"} and not declares):
            return False
        if name in self._below("signals"):
            return False
        if len(keys) == 1 and not isinstance(first, dict):  # a key that is misspelt? `rewards` is near to one
            near = {"axis"} if declares else SIGNAL_KEYS - {"renamed", "deprecated"}
            return not (did_you_mean(next(iter(keys)), near, what="keys").startswith("did you mean"))
        return True

    def _signal(self, name: str, node: Node, at: Path, phase: Node | None) -> Node:
        if isinstance(node.value, dict):
            expr = node.entries.get("expr")
            if phase is None or "phase" in node.entries or (expr is not None and expr.value is not None):
                return node
            return node.holding({**node.entries, "phase": phase})
        if _open(node):
            return node
        value = node.value
        entry: dict[str, Any] = {"expr": node}
        words = value.replace("?", " ? ").split() if isinstance(value, str) else []
        if words and words[0] in AXES:
            declared = notation.signal_words(words, at)
            if isinstance(declared, Problem):
                self.problems.append(declared)
                return node
            entry = declared or entry
        elif words and not self._declares(words[0]) and (axis := notation.with_axis(words)) is not None:
            self.problems.append(Problem.of("DL202.no_axis", at, words=value, fix=f"{name}: {axis}"))
            return node
        if phase is not None and "axis" in entry:
            entry["phase"] = phase
        return said(entry, node.place, replaces=True)

    # -- metrics

    def _metric(self, name: str, node: Node) -> Node:
        if isinstance(node.value, list):
            return node
        if not isinstance(node.value, dict):
            words = self._own_reductions(node.value) if isinstance(node.value, str) else []
            if words:
                return said({"reduce": words[0] if len(words) == 1 else words}, node.place, replaces=True)
            reduced = notation.reduced(node.value) if isinstance(node.value, str) else None
            return said(reduced or {"expr": node}, node.place, replaces=True)
        made = dict(node.entries)
        if (observe := made.get("observe")) is not None:
            made["observe"] = self._observed(name, observe)
        tags, by = made.get("tags"), made.get("by")
        if tags is not None and isinstance(tags.value, str):
            made["tags"] = said(tags.value.split(), tags.place)
        if by is not None and isinstance(by.value, list) and len(by.value) == 1:
            made["by"] = by.value[0]
        return node.holding(made)

    def _observed(self, name: str, node: Node) -> Node:
        """The signal that a metric declares, in words or as a map; a name alone is a number that the loop reports."""
        source = node.entries.get("from")
        if source is None or "axis" in node.entries or self._below("metrics", name, "observe"):
            return self._signal(name, node, ("metrics", name, "observe"), None)
        return node.holding({**said(REPORTED, source.place).entries, **node.entries})

    def _own_reductions(self, text: str) -> list[str]:
        """The reductions of the metric's own signal, ``lr: last``; none in an expression, or for a signal's name."""
        words = text.split()
        if not all(WORD.match(word) and not self._declares(word) for word in words):
            return []
        return words if all(word in SEVERAL or notation.is_reduction(word, 1) for word in words) else []

    def _declares(self, signal: str) -> bool:
        return signal in self.signals or signal in self._below("signals")

    # -- tables, alerts

    def _table(self, name: str, node: Node) -> Node:
        rows = node.entries.get("filter")
        if rows is None or not isinstance(rows.value, str) or WORD.match(rows.value) or _open(rows):
            return node
        return node.holding({**node.entries, "filter": said({"where": rows}, rows.place, replaces=True)})

    def _alert(self, name: str, node: Node) -> Node:
        if not isinstance(node.value, str):
            return node
        return said(notation.condition(node.value.strip(), name), node.place, replaces=True)

    # -- axes

    def _axis(self, name: str, node: Node) -> Node:
        """``group: 4``, ``group: prompt_id``, ``token: completion_mask``."""
        if isinstance(node.value, bool) or not isinstance(node.value, int | str):
            return node
        words = {"group": "size" if isinstance(node.value, int) else "of", "token": "mask", "completion": "ids"}
        return said({words[name]: node}, node.place, replaces=True) if name in words else node


def _open(node: Node) -> bool:
    """Whether nothing stands there, or a text for a value from elsewhere or for one that is to be given."""
    value = node.value
    return value is None or (isinstance(value, str) and ("${" in value or value == MISSING))


def _signals_of(layer: Node) -> frozenset[Any]:
    """Names that may be signals of a profile: those of its phases too."""
    section = layer.entries.get("signals", layer)
    entries = section.entries.items() if section is not layer else ()
    return frozenset(name for key, node in entries for name in (key, *node.entries))
