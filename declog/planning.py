"""The arrows from a configuration to a plan in one function, as ``start`` and the command line take them.

Sees the composer, the models and the compiler; nothing of the runtime, so that no torch is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from declog.compiler import compile
from declog.config.compose import (
    columns_settled,
    compose,
    defaulted,
    deleted,
    located,
    masked,
    prefix_of,
    profile_of,
    working_directory,
)
from declog.config.ineffective import null_of_nothing, self_first
from declog.config.outside import asked_outside
from declog.config.presets import clashes
from declog.config.project import load_imports
from declog.config.provenance import imports_of
from declog.config.yaml_pitfalls import surprises
from declog.errors import ConfigError, Problem
from declog.language.functions import DEFAULT as FUNCTIONS
from declog.language.functions import Functions
from declog.language.reductions import DEFAULT as REDUCTIONS
from declog.language.reductions import Reductions
from declog.language.row_functions import DEFAULT as COLUMNS
from declog.language.row_functions import RowFunctions
from declog.language.validation import named_nulls, validate
from declog.plans.ops import Plan


def plan(
    config: Any,
    *,
    constants: Mapping[str, Any] | None = None,
    profiles: Sequence[str] = (),
    functions: Functions = FUNCTIONS,
    reductions: Reductions = REDUCTIONS,
    columns: RowFunctions = COLUMNS,
) -> Plan:
    """The plan of a configuration: a composed config, a mapping, or a preset's name.

    The modules that the project in the working directory names in ``[tool.declog] imports`` are imported first; nothing
    is imported that the configuration names. Raises ``ConfigError`` with everything that is wrong, each at its place.
    """
    if isinstance(config, str):
        config = compose(config)
    imports = frozenset({*load_imports(working_directory()), *imports_of(config)})
    data = columns_settled(config, profile_of(config))
    shown = columns_settled(config, masked(config))
    gone = deleted(config)

    def compiled(some: Mapping[str, Any]) -> Plan:
        spec = validate(some, deleted=gone)
        return compile(
            spec,
            constants=constants,
            profiles=[spec.profile, *profiles] if profiles else (),
            functions=functions,
            reductions=reductions,
            columns=columns,
            config=shown,
            imports=imports,
            defaulted=defaulted(config) if "metric_defaults" in data else None,
        )

    prefix = prefix_of(config)
    odd = [*surprises(config, prefix), *null_of_nothing(config, data, named_nulls(data), prefix)]
    odd += [*asked_outside(config, data, prefix), *clashes(config)]
    try:
        made = compiled(data)
    except ConfigError as error:
        told = [problem for problem in odd if all(problem.path != each.path for each in error.problems)]
        found = [*error.problems, *_further(data, error.problems, compiled), *told]
        raise located(ConfigError(found), config) from None
    if odd:
        raise located(ConfigError(odd), config)
    return replace(made, warnings=(*made.warnings, *self_first(config, prefix)))


_ROOTS = frozenset({"axes", "constants", "modes", "schemas", "signals"})  # what the rest of a profile stands on


def _further(
    data: Mapping[str, Any], problems: Sequence[Problem], compiled: Callable[[Mapping[str, Any]], Plan]
) -> list[Problem]:
    """What is wrong with names and expressions beside the entries that are wrong already: told in one go with them."""
    wrong = {problem.path[:2] for problem in problems}
    missing = any(not each.path or (len(each.path) == 1 and each.code == "DL201") for each in problems)
    if missing or any(path[0] in _ROOTS or path == ("metrics",) for path in wrong):
        return []  # what others need is not there: most of what would be found has this one cause
    rest = {
        key: {name: entry for name, entry in value.items() if (key, str(name)) not in wrong}
        if isinstance(value, Mapping)
        else value
        for key, value in data.items()
        if (key,) not in wrong
    }
    try:
        compiled(rest)
    except ConfigError as error:
        names = {str(path[-1]) for path in wrong}
        kept = [each for each in error.problems if each.code.startswith("DL3") or each.code == "DL403"]
        return [each for each in kept if not _about(each, names)]
    return []


def _about(problem: Problem, names: Collection[str]) -> bool:
    """Whether a problem speaks of something that is only missing because it is wrong itself."""
    return any(re.search(rf"`{re.escape(name)}\b", problem.message) for name in names)
