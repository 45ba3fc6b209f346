"""The arrows from a configuration to a plan in one function, as ``start`` and the command line take them.

Sees the composer, the models and the compiler; nothing of the runtime, so that no torch is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from declog.columns import DEFAULT as COLUMNS
from declog.columns import RowFunctions
from declog.compiler import compile
from declog.compose import compose, defaulted, located, profile_of
from declog.errors import ConfigError
from declog.functions import DEFAULT as FUNCTIONS
from declog.functions import Functions
from declog.plan import Plan
from declog.reducers import DEFAULT as REDUCTIONS
from declog.reducers import Reductions
from declog.validation import validate


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

    Raises ``ConfigError`` with everything that is wrong, each at its place.
    """
    if isinstance(config, str):
        config = compose(config)
    data = profile_of(config)
    try:
        spec = validate(data)
        return compile(
            spec,
            constants=constants,
            profiles=[spec.profile, *profiles] if profiles else (),
            functions=functions,
            reductions=reductions,
            columns=columns,
            config=data,
            defaulted=defaulted(config) if "metric_defaults" in data else None,
        )
    except ConfigError as error:
        raise located(error, config) from None
