"""Compose configs with Hydra: the result is plain data, with the location of every key.

Only this package imports Hydra and OmegaConf.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any, NoReturn

from declog.errors.habits import CONFIG, no_attribute


class _Room(ModuleType):
    """This package, which is not `wandb.config`. An error tells users who take it for that where such values go."""

    def __getattr__(self, name: str) -> NoReturn:
        hint = "" if name.startswith("_") else f"\n  fix: {CONFIG}"
        raise no_attribute(f"module {self.__name__!r} has no attribute {name!r}{hint}")

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("_") and not isinstance(value, ModuleType):
            raise no_attribute(f"module {self.__name__!r} takes no values\n  fix: {CONFIG}")
        super().__setattr__(name, value)

    def __getitem__(self, key: object) -> NoReturn:
        raise TypeError(f"module {self.__name__!r} holds no values\n  fix: {CONFIG}")

    def __setitem__(self, key: object, value: Any) -> NoReturn:
        raise TypeError(f"module {self.__name__!r} takes no values\n  fix: {CONFIG}")


sys.modules[__name__].__class__ = _Room
