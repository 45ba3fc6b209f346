"""Finds metrics that have no values because signals do not come, and warns once about each.

A metric is inactive if its first window gave no value and a signal that it reads never came. A signal has stopped if
it stays away for twice as many steps as ever before. Runs on rank 0's worker only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from functools import cache, partial

from declog.engine.cells import MetricValues
from declog.engine.frame import GROUP_ID, Frame
from declog.engine.log_event import EventFacts
from declog.engine.spans import PHASE, Arrivals, ModeState, Span
from declog.engine.tables.table import EXTRA
from declog.engine.warnings.silent import Silent, SilentColumns
from declog.errors import MissingSignalError
from declog.errors.elsewhere import KNOWN
from declog.errors.messages import listed
from declog.language.dtypes import Axis
from declog.language.moments import FORMULAS
from declog.language.nodes import LOGGED, SIGNAL, TIMERS, walk
from declog.plans.modes import ModesOfMetrics
from declog.plans.needs import Clause, Need, groups_of, of_groups, signals_of, tables_of_groups
from declog.plans.ops import Plan, SignalOp

log = logging.getLogger("declog")
GROUPS, METRICS, SIGNALS = 8, 4, 3  # how many reasons, metrics per reason and signals a message names
WHICH = ", which "  # in a reason, before the call that gives a signal of a phase
NEVER = " never came"
APART = " came, and gave no value yet: no row had all that it reads, or its condition held for none"
NO_GROUPS = "nothing says what a group is: observe {ids}, or say `axes.group.size=N`"
PLAIN = 4  # up to so many reasons that `_unobserved` finds are listed one by one
RARE = 10  # a signal that came only once has stopped after so many batches of its phase
_Strays = dict[Need, str]  # signals that a metric reads, with the other phase in which they came


class Inactive:
    """Tracks by mode which signals of a plan came and which metrics are inactive.

    ``changed`` is called with the reasons by metric whenever they change.
    """

    def __init__(self, plan: Plan, changed: Callable[[Mapping[str, str]], None]) -> None:
        self._plan = plan
        self._changed = changed
        self._needs = signals_of(plan)
        self._of_groups = cache(partial(of_groups, plan))
        self._tables_of_groups = cache(partial(tables_of_groups, plan))
        self._keys: dict[str, list[str]] = {}
        self._every = {op.id: op.every for op in plan.outputs}
        self._modes_of: dict[str, set[str]] = {}
        modes = ModesOfMetrics(plan.outputs, plan.modes)
        for op in plan.outputs:
            if op.shown and op.id != LOGGED:
                self._keys.setdefault(op.id, []).append(op.key)
                self._modes_of.setdefault(op.id, set()).update(modes.of(op.key))
        self._signals = {Need(op.phase, op.name): op for op in plan.signals if not op.any and op.name != LOGGED}
        self._labels = {
            op.id: {item.leaf for item in walk(op.by) if item.op == SIGNAL} for op in plan.metrics if op.by is not None
        }
        self._masks = {name for fold in plan.folds.values() for name in fold.masks}
        self._modes = {mode: ModeState() for mode in plan.modes}
        # the variance of the only piece of a window is absent
        spread = [op for op in plan.outputs if FORMULAS[op.combine].least > 1 and op.over_run is None]
        self._variances = {op.key: op.combine for op in spread}
        self.silent = Silent(plan, self._keys)
        self._columns = SilentColumns(plan, self._came)
        self.judges = True  # False at a step that ended with an error: its signals may be missing

    # -- signals that come

    def came(self, mode: str, event: int, count: int, arrivals: Arrivals) -> None:
        """Note the signals of one rank at log event ``event``; the mode has had ``count`` steps by then.

        A mode that logs once per block is counted in log events instead of steps.
        """
        state, in_steps = self._modes[mode], self._in_steps(mode)
        for phase, names in arrivals.items():
            for name, span_of_rank in names.items():
                span, at = (span_of_rank, count) if in_steps else (Span(event, event), event)
                need = Need(phase, name)
                state.spans[need] = state.spans.get(need, span).then(span)
                state.counts[need] = max(at, state.counts.get(need, at))

    def ungrouped(self, mode: str, frames: Mapping[str, Frame]) -> None:
        """Note the phases whose rows are in no groups. Rows of an evaluation need not fit `axes.group.size`."""
        misfits = self._modes[mode].misfits
        for phase, frame in frames.items():
            if phase in misfits or frame.ungrouped is not True:  # groups of one have no std, which is no fault
                continue
            ids = "" if frame.grouping is None or frame.has(GROUP_ID) else listed(frame.grouping.of, SIGNALS, "or")
            if frame.misfit is None:
                misfits[phase] = NO_GROUPS.format(ids=ids)
            else:
                misfits[phase] = f"{frame.misfit.message}; observe whole groups" + f", or {ids}" * bool(ids)

    def rewind(self, mode: str, step: int) -> None:
        """Take a mode back to an earlier step; it continues after that step, and counts steps anew."""
        state = self._modes[mode]
        state.counts, state.begun = dict.fromkeys(state.counts, 0), None
        for need, span in state.spans.items():
            state.spans[need] = span._replace(first=min(span.first, step), last=min(span.last, step))

    # -- signals that do not come

    def judge(
        self, event: EventFacts, periods: Collection[int], results: MetricValues, empty: Collection[str] = ()
    ) -> None:
        """Update the inactive metrics at a log event at which the windows of ``periods`` end.

        ``results`` has the values of these windows. ``empty`` has the ids of the tables that got no rows.
        """
        mode, state = event.mode, self._modes[event.mode]
        if not self.judges or (mode == "train" and not event.count):  # no step has ended
            return
        before = state.inactive.copy()
        for id in [id for id in state.inactive if self._has_value(id, results)]:
            del state.inactive[id]
            state.unfed.discard(id)
        for id in state.unfed & state.inactive.keys():  # signals may have come since
            state.inactive[id] = self._why(id, state) or self._apart(id, state)
        now = (event.step, event.count) if self._in_steps(mode) else (event.event, event.event)
        state.begun = state.begun or now
        self._note_stopped(mode, state, now, results)
        self._note_inactive(mode, state, periods, results)
        self._note_ungrouped(mode, state, periods, results, empty)
        self._columns.judge([op.id for op in self._plan.tables if op.every in periods and op.id not in empty])
        if results.numbers or results.cells:
            self._tell_silent(self.silent.judge(mode, periods, lambda id: self._has_value(id, results)))
        if state.inactive != before:
            self._changed(self.reasons)

    def _note_inactive(self, mode: str, state: ModeState, periods: Collection[int], results: MetricValues) -> None:
        due = [id for id in self._keys if self._every[id] in periods and mode in self._modes_of[id]]
        first = [id for id in due if id not in state.judged]
        if mode != "train":  # a phase without any batch is not meant to be in this mode
            came = {need.phase for need in state.spans if need.name == PHASE}
            first = [id for id in first if any(need.phase in came for clause in self._needs[id] for need in clause)]
        state.judged.update(first)
        reasons = {id: why for id in first if not self._has_value(id, results) and (why := self._why(id, state))}
        if not reasons:
            return
        state.inactive |= reasons
        state.unfed |= reasons.keys()
        self._warn(mode, first, self._together(reasons, state), state)

    def _note_ungrouped(
        self, mode: str, state: ModeState, periods: Collection[int], results: MetricValues, empty: Collection[str]
    ) -> None:
        """Warn once of the metrics and tables that are empty because the rows of a phase are in no groups."""
        for phase, why in state.misfits.items():
            grouped = self._of_groups(phase) if why else ()
            absent = [
                id for id in self._keys
                if id in grouped and id not in state.inactive and self._every[id] in periods
                and not self._has_value(id, results)
            ]  # fmt: skip
            tables = [op.id for op in self._tables_of_groups(phase) if why and op.id in empty]
            if absent or tables:
                state.misfits[phase] = ""
                state.inactive |= dict.fromkeys(absent, why)
                said = []
                if absent:
                    said.append(f"{listed(absent, METRICS)} {'has' if len(absent) == 1 else 'have'} no values")
                if tables:
                    said.append(f"the table{'s' * (len(tables) > 1)} {listed(tables, METRICS)} can take no rows")
                said[0] = said[0] if mode == "train" else f"{mode}: {said[0]}"
                log.warning("%s: %s", ", and ".join(said), why)

    def end(self) -> None:
        """Warn of the metrics and columns of tables that had no value in the whole run."""
        self._tell_silent(self.silent.end())
        self._columns.end()

    def _came(self) -> set[Need]:
        """The signals that came, in any mode."""
        return {need for state in self._modes.values() for need in state.spans}

    def _tell_silent(self, ids: Collection[str]) -> None:
        """Warn of the user's metrics that have had no value in many windows, though all that they read came."""
        told, reasons = dict[str, list[str]](), self.reasons
        for id in [id for id in ids if id not in reasons]:
            variance = not self._variances.keys().isdisjoint(self._keys[id])
            why = f"no value in {self.silent.stop_counting(id)} log events, though all that it reads came"
            why += "; a variance needs two values in a window, so `every: 2` or more" * variance
            told.setdefault(why, []).append(id)
            self._modes["train"].inactive[id] = why
        for why, group in told.items():
            log.warning("%s: %s", listed(group, METRICS), why)
        if told:
            self._changed(self.reasons)

    def _unobserved(self, reasons: Mapping[str, list[str]], state: ModeState) -> list[str]:
        """The reasons of a preset's metrics that only say that signals never came. A loop need not observe them all.

        Empty if there are at most ``PLAIN``: these are listed one by one.
        """
        user = self._plan.user_metrics
        plain = [
            why for why, ids in reasons.items()
            if (why.endswith(NEVER) or "log.timer(" in why) and user.isdisjoint(ids)
        ]  # fmt: skip
        return plain if len(plain) > PLAIN else []

    def _warn(self, mode: str, first: Collection[str], reasons: Mapping[str, list[str]], state: ModeState) -> None:
        user, plain = self._plan.user_metrics, self._unobserved(reasons, state)
        groups = sorted(reasons.items(), key=lambda item: user.isdisjoint(item[1]))  # the user's own ones first
        groups = [(why, ids) for why, ids in groups if why not in plain]
        some = [
            f"{listed(sorted(ids, key=lambda id: id not in user), METRICS)} ({why})" for why, ids in groups[:GROUPS]
        ]
        unnamed = sum(len(ids) for _, ids in groups[GROUPS:])
        some += [f"and {unnamed} more (`log.missing` has them all)"] if unnamed else []
        if plain:
            ids = [id for why in plain for id in reasons[why]]
            never = [one for id in ids for one in self._absent(id, state) if not self._strays([one], state)]
            names = dict.fromkeys(map(self._named, never))
            which = f"{len(ids)} that read" if some else "they read"
            some += [f"{which} {listed([*names], SIGNALS)}, which this loop does not observe (`log.missing` has each)"]
        count, slower = sum(map(len, reasons.values())), min(self._every[id] for id in first)
        log.warning(
            "%s%d of %d metric%s%s %s inactive:%s",
            "" if mode == "train" else f"{mode}: ", count, len(first), "s" * (len(first) > 1),
            f" over {slower} steps" if slower > self._plan.every else "", "is" if count == 1 else "are",
            f" {some[0]}" if len(some) == 1 else "".join(f"\n  {one}" for one in some),
        )  # fmt: skip

    def _absent(self, id: str, state: ModeState) -> list[Clause]:
        """The signals that a metric reads and that never came."""
        absent = [clause for clause in sorted(self._needs[id]) if not state.spans.keys() & clause]
        train = self._modes["train"]
        if not self._plan.every and state is not train:  # a trainer reports its numbers of a step in training only
            steps = {need for need, op in self._signals.items() if op.axis is Axis.STEP} & train.spans.keys()
            absent = [clause for clause in absent if not steps.issuperset(clause)]
        return absent

    def _why(self, id: str, state: ModeState) -> str:
        """Why a metric has no value; empty if all signals that it reads came."""
        absent = self._absent(id, state)
        for clause in absent:
            if clause == groups_of(self._plan, clause[0].phase):
                return NO_GROUPS.format(ids=self._named(clause))
        absent = [clause for clause in absent if self._signals.keys() & clause]
        if not absent:
            return ""
        for op in (self._signals[need] for clause in absent for need in clause if need in self._signals):
            if any(Need(phase, EXTRA + op.source) in state.spans for phase in self._plan.phases):
                key = f"signals.{(*op.homes, 'any')[0]}.{op.name}.from_log_extra"
                return f"{op.source} came as a column of log_extra: `{key}: true` observes it"
        if strays := self._strays(absent, state):
            return self._of_strays(strays, state)
        absent = [clause for clause in absent if not self._strays([clause], state)]
        needs = sorted(need for clause in absent for need in clause)
        needs.sort(key=lambda need: need.name in self._masks)
        silent = list(dict.fromkeys(need.phase for need in needs if Need(need.phase, PHASE) not in state.spans))
        signals = [self._signals[need] for need in needs if need.phase in silent and need in self._signals]
        if signals and len({need.phase for need in self._signals}) > 1:
            first = signals[0]
            call = 'with log.timer("generate"):' if first.source == TIMERS else f"log.observe({first.argument})"
            return f"no signal of {listed(silent, SIGNALS)} came{WHICH}`{call}` gives"
        names = list(dict.fromkeys(self._named(clause) for clause in absent))
        if len(absent) == 1 and len(absent[0]) == 1 and absent[0][0].name in self._masks:
            tokens = [op.source for need, op in self._signals.items() if op.axis is Axis.TOKEN and need in state.spans]
            lists = [
                f", your padding mask, as `{names[0]}={names[0]}`, or of lists of different lengths "
                f"`{names[0]}=[[True] * len(row) for row in {source}]`" for source in tokens[:1]
            ]  # fmt: skip
            return f"{names[0]} never came: observe it{''.join(lists)}; without padding, say `axes.token.mask: all`"
        of_label = {need.name for clause in absent for need in clause} <= self._labels.get(id, set())
        return f"{'its label ' * of_label}{listed(names, SIGNALS)}{NEVER}"

    def _apart(self, id: str, state: ModeState) -> str:
        """The reason of a metric that has no value although all signals that it reads came by now."""
        came = {need for clause in self._needs[id] for need in clause if need in state.spans} & self._signals.keys()
        names = sorted({self._signals[need].source for need in came if need.name not in self._masks})
        return f"{listed(names, SIGNALS)}{APART}"

    def _together(self, reasons: Mapping[str, str], state: ModeState) -> dict[str, list[str]]:
        """The ids of metrics by reason. Metrics whose signals came in another phase share one edit.

        Metrics of a phase that never came share the call that one of them needs, if possible of the user's own.
        """
        strays = {id: self._strays(self._absent(id, state), state) for id in reasons}
        shared: dict[tuple[str, str, bool] | None, _Strays] = {}
        for of_one in strays.values():
            way = self._way(of_one)
            shared[way] = shared.get(way, {}) | of_one
        ids: dict[str, list[str]] = {}
        for id, why in reasons.items():
            way = self._way(strays[id])
            ids.setdefault(self._of_strays(shared[way], state) if way else why.partition(WHICH)[0], []).append(id)
        named = {why: min(group, key=lambda id: id not in self._plan.user_metrics) for why, group in ids.items()}
        return {reasons[named[why]] if WHICH in reasons[named[why]] else why: group for why, group in ids.items()}

    # -- signals of another phase

    def _strays(self, absent: Collection[Clause], state: ModeState) -> _Strays:
        """The signals that came in another phase than they are read in, with that phase; empty if a clause has none."""
        strays: _Strays = {}
        for clause in absent:
            came = {
                need: phase for need in clause if need in self._signals
                for phase in self._plan.phases if Need(phase, need.name) in state.spans
            }  # fmt: skip
            if not came:
                return {}
            strays |= came
        return strays

    def _way(self, strays: _Strays) -> tuple[str, str, bool] | None:
        """The phase in which the first signal came, the phase that reads it, and whether `_moved` has an edit."""
        for need, came in strays.items():
            return came, need.phase, bool(self._moved(strays))
        return None

    def _moved(self, strays: _Strays) -> list[str]:
        """The signals to delete from the phase that reads them: then their metrics read the phase in which they came.

        Empty if that does not help, because a metric also reads signals that cannot come in that phase.
        """
        moved = [need for need in sorted(strays) if need.name not in self._masks] or [*strays]
        phase, came = moved[0].phase, strays[moved[0]]
        direct = [
            {need for clause in self._needs[id] for need in clause} for id in {op.id for op in self._plan.metrics}
        ]
        read = set[Need]().union(strays, *(needs for needs in direct if not needs.isdisjoint(moved)))
        both = all(
            need in self._signals and (need.phase == came or {phase, came} <= {*self._signals[need].homes})
            for need in read
        )
        return [need.name for need in moved] if both else []

    def _of_strays(self, strays: _Strays, state: ModeState) -> str:
        """The reason of metrics whose signals came in another phase, with the fix."""
        (need, came), *_ = strays.items()
        names = list(dict.fromkeys(self._signals[need].source for need in sorted(strays)))
        alone = [one for one, op in self._signals.items() if one.phase == need.phase and op.homes == (one.phase,)]
        alone.sort(key=lambda one: self._signals[one].source not in KNOWN)  # `reward` before one of the user
        beside = next((one for one in alone if one in state.spans), next(iter(alone), None))
        it, verb = ("them", "are") if len(names) > 1 else ("it", "is")
        fix = f"observe {it}{f' with {self._signals[beside].source}' if beside else ''} in {need.phase}"
        there = {Need(phase, one.name) for one, phase in strays.items()}
        if moved := self._moved(strays):
            nulls = ", ".join([*(f"{name}: null" for name in moved[:GROUPS]), *["..."] * (len(moved) > GROUPS)])
            fix += f", or `signals: {{{need.phase}: {{{nulls}}}}}`, as override `signals.{need.phase}={{{nulls}}}`"
        elif any(there.intersection(clause) for clauses in self._needs.values() for clause in clauses):
            fix += ", too"
        return f"{listed(names, SIGNALS)} came in {came}, and {verb} read in {need.phase}: {fix}"

    def _named(self, clause: Clause) -> str:
        """The signals of a clause, as they are observed."""
        names = [self._signals[need].source if need in self._signals else need.name for need in clause]
        return listed(list(dict.fromkeys(names)), SIGNALS, "or")

    def _note_stopped(self, mode: str, state: ModeState, now: tuple[int, int], results: MetricValues) -> None:
        """Warn of signals that have stopped, and mark the metrics that lack them as inactive."""
        stopped: dict[int, list[Need]] = {}
        step, count = state.begun or now
        stride = max((now[0] - step) / max(now[1] - count, 1), 1.0)  # by how much step numbers grow per step
        phase_gaps = {need.phase: span.gap for need, span in state.spans.items() if need.name == PHASE}
        for need, span in state.spans.items():
            if need not in self._signals:
                continue
            phase_gap = phase_gaps[need.phase]  # a signal has stopped if it stays away twice as long as ever before
            gap = max(span.gap, phase_gap) if span.gap else phase_gap * RARE / 2
            if not gap or now[1] - state.counts[need] < 2 * max(gap / stride, 1.0):
                state.stopped.pop(need, None)
            elif need not in state.stopped:
                state.stopped[need] = span.last
                stopped.setdefault(span.last, []).append(need)
        for last, needs in stopped.items():
            ids = [id for id in self._keys if id in state.judged and not self._has_value(id, results)]
            ids = [id for id in ids if any(need in clause for clause in self._needs[id] for need in needs)]
            names = list(dict.fromkeys(self._signals[need].source for need in needs))
            why = f"{listed(names, SIGNALS)} stopped after {self._when(mode, last)}"
            state.inactive |= {id: why for id in ids if id not in state.inactive}
            if state.warned.issuperset(needs):
                continue
            state.warned.update(needs)
            log.warning(
                "%s%s: %s", "" if mode == "train" else f"{mode}: ", why,
                f"{listed(ids, METRICS)} {'has' if len(ids) == 1 else 'have'} no values since"
                if ids else "nothing new comes for what reads it",
            )  # fmt: skip

    def _in_steps(self, mode: str) -> bool:
        """Whether a mode is counted in steps, not in log events."""
        return mode == "train" or bool(self._plan.modes[mode].every)

    def _when(self, mode: str, number: int) -> str:
        return f"step {number}" if self._in_steps(mode) else f"log event {number + 1} of mode {mode}"

    def _has_value(self, id: str, results: MetricValues) -> bool:
        return any(key in results.numbers or self._has_cells(key, results) for key in self._keys[id])

    def _has_cells(self, key: str, results: MetricValues) -> bool:
        cells, how = results.cells.get(key), self._variances.get(key)
        if cells is None:
            return False
        return bool(cells.histograms or (cells if how is None else cells.logged(how)).there.any())

    # -- reports

    @property
    def reasons(self) -> dict[str, str]:
        """The reasons of the inactive metrics, by id; a reason begins with the mode's name if that is not training."""
        reasons: dict[str, str] = {}
        for mode, state in self._modes.items():
            for id, why in state.inactive.items():
                reasons.setdefault(id, why if mode == "train" else f"{mode}: {why}")
        return reasons

    @property
    def errors(self) -> list[MissingSignalError]:
        """The errors of `strict` at the end of a run.

        DL502: signals that stopped, the user's metrics that lack signals, and required signals that never came.
        """
        train = self._modes["train"]
        began = train.judged and not self._signals.keys().isdisjoint(train.spans)  # any declared signal came at all
        errors = [
            MissingSignalError.of(
                "DL502.stopped", source=self._signals[need].source, phase=need.phase, when=self._when(mode, last),
                argument=self._signals[need].argument,
            )
            for mode, state in self._modes.items() for need, last in state.stopped.items()
        ]  # fmt: skip
        errors += [
            MissingSignalError.of("DL502.never", id=id, why=why)
            for mode, state in self._modes.items() for id in state.inactive
            if id in self._plan.user_metrics and (mode == "train" or "train" not in self._modes_of[id])
            and (why := self._why(id, state))
        ]  # fmt: skip
        absent: dict[str, list[SignalOp]] = {}
        for need, op in self._signals.items():
            phase = train.spans.get(Need(need.phase, PHASE))
            if phase is not None and not phase.gap:  # only one step, whose call may have been refused
                continue
            if began and op.required and need not in train.spans:
                absent.setdefault(need.phase, []).append(op)
        return errors + [
            MissingSignalError.of(
                "DL502.first_batch", names=", ".join(f"`{op.source}`" for op in ops),
                were="was" if len(ops) == 1 else "were", phase=phase, argument=ops[0].argument,
            )
            for phase, ops in absent.items()
        ]  # fmt: skip
