"""Compares the batches of one step, and warns once of rows that cannot be paired and of rows that count twice.

If one task makes a call for each reward function, the calls form one batch. If several tasks do so, or if a batch lacks
a value, nothing tells which rows belong together, and each batch counts as separate rows. So do values that are
observed with the rollout, and again with the micro-batches of its update.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from functools import cache
from itertools import combinations, permutations

from declog.errors.messages import listed
from declog.language.dtypes import Axis
from declog.language.notation import part_of
from declog.plans.needs import Clauses, Need, conditions_of, marks, signals_of, tables_of, values_of
from declog.plans.ops import Plan
from declog.runtime.rows.batch import Batch

log = logging.getLogger("declog")
MOST = 8  # how many metrics a message names
STEPS = 10  # the first steps with several batches, in which rows that count twice are looked for


class PairedRows:
    """Compares the batches of a phase within a step."""

    def __init__(self, plan: Plan) -> None:
        # without signals per step, which have no rows to pair
        signals = {
            name: [op for op in phase.signals if op.axis is not Axis.STEP] for name, phase in plan.phases.items()
        }
        self._names = {name: frozenset(op.name for op in ops) - marks(plan) for name, ops in signals.items()}
        self._families = {name: frozenset(op.name for op in ops if op.family) for name, ops in signals.items()}
        self._undeclared = {op.name for ops in signals.values() for op in ops if op.any}
        self._required = {
            name: frozenset(op.name for op in ops if op.required and not op.family) for name, ops in signals.items()
        }
        self._read_together = cache(self._of_values_and_tables)  # called only if batches of a step differ
        self._conditions = cache(self._expressions)
        self._given_once: dict[str, Set[str]] = {}  # by phase, the signals that further epochs of a step lacked
        # by kind of warning, the phases that it may still name: each is warned of once
        self._warn_of_ids, self._warn_of_tokens = {*signals}, {*signals}
        self._warn_of_pairs, self._warn_of_twice = {*signals}, {*signals}
        self._sources = {op.name: op.source for ops in signals.values() for op in ops}
        self._plan = plan
        self._steps = Counter[str]()  # by phase, the number of steps with several batches

    def compare(self, phase: str, before: Batch, batch: Batch, came: set[Set[str]]) -> None:
        """Compare a batch with the one before in its step; a ``partial`` batch need not have all required signals.

        ``came`` has the sets of signals that the step's batches have had so far; this adds the batch's set.
        """
        if phase in self._warn_of_twice and not (before.partial or batch.partial):
            self._compare_names(phase, before, batch)
        if phase not in self._warn_of_pairs or self._plan.ids in before.names & batch.names:  # row ids pair the rows
            return
        families, required = self._families[phase], self._required[phase]
        different = []
        if families and (members := before.members) and (second := batch.members):
            # undeclared values belong to other rows if the numbers of rows differ, or one batch has no rows
            other_rows = self._undeclared if before.completions != batch.completions else set[str]()
            differing = [pair for pair in members ^ second if pair[0] in families and pair[0] not in other_rows]
            different = sorted(one if name in self._undeclared else f"{name}[{one!r}]" for name, one in differing)
        if not (before.partial or batch.partial) and before.names & required and batch.names & required:
            different += sorted((before.names ^ batch.names) & required)
        if apart := self._apart(phase, before.names, batch.names, came):
            self._warn_of_pairs.discard(phase)
            log.warning(
                "%s of phase `%s` came in different batches of a step (each thread and each task has its own): metrics "
                "and tables of several of them miss values. If their rows are the same, observe them in one task, or "
                "inside `with log.step(k), log.batch():`",
                ", ".join(f"`{name}`" for name in apart), phase,
            )  # fmt: skip
        elif different:
            self._warn_of_pairs.discard(phase)
            log.warning(
                "%s: in one step some batches of phase `%s` have it and others do not. What different tasks observe, "
                "or a value that never came, cannot be paired with its rows: metrics of several signals miss values "
                "there. Observe all values of the same rows in one task, or inside `with log.step(k), log.batch():`",
                ", ".join(f"`{name}`" for name in different), phase,
            )  # fmt: skip

    def compare_ids(self, phase: str, kinds: Mapping[frozenset[str], Set[object]], calls: Collection[Set[str]]) -> None:
        """Warn if a value needs signals of batches of a step that row ids did not join, or joined for some rows only.

        ``kinds`` has the sets of signals of the step's batches with row ids, each with the ids of its rows; batches of
        the same rows are joined there. ``calls`` has the sets of signals before.
        """
        if phase not in self._warn_of_ids or len(kinds) < 2:
            return
        values, _ = self._read_together(phase)
        for one, other in combinations(sorted(kinds, key=sorted), 2):
            read = next((sets for sets in values if _in_both(sets, one, other)), None)
            if read is not None:
                self._warn_of_ids.discard(phase)
                names = frozenset[str]().union(*read) & (one ^ other)
                log.warning(
                    "%s of phase `%s` came in calls of one step of which neither has all row ids, `%s`, of the other: "
                    "metrics of several of them miss values. Give the ids of the same rows in each, every id once and "
                    "none missing, or observe them in one call",
                    self._named(names), phase, self._plan.ids,
                )  # fmt: skip
                return
        self._compare_epochs(phase, kinds, calls)

    def _compare_epochs(
        self, phase: str, kinds: Mapping[frozenset[str], Set[object]], calls: Collection[Set[str]]
    ) -> None:
        """Warn if rows with all that a metric reads, joined of several calls, come again without a part of it."""
        reads = () if part_of(phase) is not None else self._conditions(phase)
        for one, other in permutations(sorted(kinds, key=sorted), 2) if reads else ():
            if kinds[one].isdisjoint(kinds[other]):
                continue
            once = frozenset[str]()
            for expr, beside in reads:
                sets, here = [*expr, *beside], frozenset[str]().union(*expr) & other
                if here and _has_all(sets, one) and not any(_has_all(sets, names) for names in (other, *calls)):
                    once |= frozenset[str]().union(*sets) & one - other
            if once:
                self._warn_of_ids.discard(phase)
                self._given_once[phase] = once
                log.warning(
                    "%s of phase `%s` came once in a step, and the same rows again without, as in a further epoch: "
                    "there %s. Observe %s in each of these calls",
                    self._named(once), phase, self._miss(phase, once, other), self._named(once),
                )  # fmt: skip
                return

    def compare_tokens(self, phase: str, calls: Collection[Set[str]]) -> None:
        """Warn if a value per token needs signals of several batches of a step, and no single batch has them all.

        Row ids cannot join these batches, because tokens are reduced when their batch closes.
        """
        if phase not in self._warn_of_tokens or len(calls) < 2:
            return
        op, came = self._plan.phases[phase], frozenset[str]().union(*calls)
        reads = [fold.reads | ({op.lengths} if op.lengths is not None else set()) for fold in op.folds]
        reads = [read for read in reads if read <= came and not any(read <= names for names in calls)]
        for read in reads:
            if read.isdisjoint(self._given_once.get(phase, ())):
                self._warn_of_tokens.discard(phase)
                most = max(calls, key=lambda names: (len(read & names), len(names), sorted(names)))
                largest = read & most
                apart = self._named(read - largest)
                log.warning(
                    "%s of phase `%s` came in another call of a step than %s: tokens are reduced call by call, so that "
                    "%s. Observe %s in that call",
                    apart, phase, self._named(largest), self._miss(phase, read - largest, largest, reads), apart,
                )  # fmt: skip
                return

    def _named(self, names: Collection[str]) -> str:
        return ", ".join(f"`{self._sources.get(name, name)}`" for name in sorted(names))

    def _miss(self, phase: str, apart: Set[str], together: Set[str], reads: Collection[Set[str]] = ()) -> str:
        """The metrics that miss values because signals came ``apart`` from those ``together``; the user's come first.

        They read some of both, and if ``reads`` has sets of signals, all of one set.
        """
        needs = {id: _names_of(clauses, phase) for id, clauses in signals_of(self._plan).items()}
        marked = marks(self._plan)
        metrics = [
            id for id, names in needs.items()
            if names & apart and names & together - marked and (not reads or any(read <= names for read in reads))
        ]  # fmt: skip
        metrics.sort(key=lambda id: id not in self._plan.user_metrics)
        return f"{listed(metrics, MOST) or 'columns of tables'} {'misses' if len(metrics) == 1 else 'miss'} values"

    def _expressions(self, phase: str) -> list[tuple[list[frozenset[str]], list[frozenset[str]]]]:
        """The sets of signals that each metric's expression needs, and those that its conditions need."""
        needs = ([self._of_rows(phase, clauses) for clauses in both] for both in conditions_of(self._plan, phase))
        return [(expr, beside) for expr, beside in needs if len(expr) + len(beside) > 1]

    def _of_values_and_tables(self, phase: str) -> tuple[list[list[frozenset[str]]], list[frozenset[str]]]:
        """Return the sets of a phase's signals that each value reads, and all such signals that each table reads.

        A value needs one signal of each of its sets; values with a single set are left out.
        """
        values = (self._of_rows(phase, clauses) for clauses in values_of(self._plan, phase))
        tables = (self._of_rows(phase, clauses) for clauses in tables_of(self._plan, phase))
        return [sets for sets in values if len(sets) > 1], [frozenset[str]().union(*sets) for sets in tables]

    def _of_rows(self, phase: str, clauses: Clauses) -> list[frozenset[str]]:
        """The signals with rows of a phase that each clause names."""
        sets = (frozenset(need.name for need in clause if need.phase == phase) for clause in clauses)
        return [names for names in (one & self._names[phase] for one in sets) if names]

    def _apart(self, phase: str, before: Set[str], batch: Set[str], came: set[Set[str]]) -> list[str]:
        """Return the signals that only one of two batches of a step has, and that a value or a table needs with others.

        A value needs both batches if neither alone has all the signals that it reads, and both together have them. A
        table needs both if each batch has some of its columns, and no column is in both.
        """
        came.add(before)
        if batch in came:
            return []
        values, tables = self._read_together(phase)
        for names in came:
            read = [frozenset[str]().union(*sets) for sets in values if _in_both(sets, names, batch)]
            read += [names_of_table for names_of_table in tables if _in_each(names_of_table, names, batch)]
            if read:
                return sorted({self._sources[name] for name in read[0] & (names ^ batch)})
        came.add(batch)
        return []

    def _compare_names(self, phase: str, before: Batch, batch: Batch) -> None:
        """Warn if signals were observed with another phase's signals, and again in a call with more of their own phase.

        The second batch must have at least twice as many signals and no more rows, and a metric or a column must be
        computable from the first batch alone. A second epoch over a batch has the signals of the first epoch, or few
        more, so it causes no warning.
        """
        if before.number == 0:
            self._steps[phase] += 1
            if self._steps[phase] > STEPS:
                self._warn_of_twice.discard(phase)
                return
        first, second = before.names & self._names[phase], batch.names & self._names[phase]
        if not first or not first <= second or not first <= before.shared or batch.shared or batch.rows > before.rows:
            return
        if 2 * len(first) > len(second) or not (counted := first & self._counted(phase, before.names)):
            return
        self._warn_of_twice.discard(phase)
        names = ", ".join(f"`{name}`" for name in sorted(counted))
        log.warning(
            "%s of phase `%s`: in one step it came in a call with signals of another phase, and again in a later call "
            "with %s. These are two batches, so the rows of the first call count, too. If they are the same rows, "
            "leave it out of the first call",
            names, phase, ", ".join(f"`{name}`" for name in sorted(second - first)),
        )  # fmt: skip

    def _counted(self, phase: str, names: Set[str]) -> set[str]:
        """The signals that metrics and columns read, of those that can be computed from the signals ``names`` alone."""
        here = {Need(phase, name) for name in names}
        return {
            need.name for clauses in values_of(self._plan, phase)
            if clauses and _has_all(clauses, here)
            for clause in clauses for need in here.intersection(clause)
        }  # fmt: skip


def _names_of(needs: Clauses, phase: str) -> frozenset[str]:
    """The names of a phase's signals in ``needs``."""
    return frozenset(need.name for clause in needs for need in clause if need.phase == phase)


def _has_all(sets: Iterable[Iterable[object]], names: Set[object]) -> bool:
    """Whether a batch has a signal of each set."""
    return not any(map(names.isdisjoint, sets))


def _in_both(sets: Sequence[Set[str]], one: Set[str], other: Set[str]) -> bool:
    """Whether two batches together have a signal of each set, and neither batch alone has."""
    have = [(not names.isdisjoint(one), not names.isdisjoint(other)) for names in sets]
    return all(map(any, have)) and not any(map(all, zip(*have, strict=True)))


def _in_each(names: Set[str], one: Set[str], other: Set[str]) -> bool:
    """Whether each of two batches has some of these signals, and no signal is in both."""
    first, second = names & one, names & other
    return bool(first and second) and first.isdisjoint(second)
