"""Call a function as soon as another package's module is imported: ``after("verl.trainer", wrap)``.

Nothing is imported early. A finder at the front of ``sys.meta_path`` waits for the module, looks it up in the usual
way, and removes itself when the module is loaded.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

Then = Callable[[ModuleType], object]


def after(name: str, then: Then) -> None:
    """Call ``then`` with the module of that name: now if it is imported already, else after its code has run."""
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Waiting(name, then))


class _Waiting(MetaPathFinder):
    """Waits for one module. It still waits after a mere look-up and after a failed import, which may be tried again."""

    def __init__(self, name: str, then: Then) -> None:
        self._name, self._then = name, then
        self._asking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self._name or self._asking:
            return None
        self._asking = True
        try:
            spec = find_spec(name)
        finally:
            self._asking = False
        if spec is not None and spec.loader is not None:
            spec.loader = _Loading(spec.loader, self._loaded)
        return spec

    def _loaded(self, module: ModuleType) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            self._then(module)


class _Loading(Loader):
    """Loads a module with the module's own loader, then calls ``then``."""

    def __init__(self, loader: Loader, then: Then) -> None:
        self._loader, self._then = loader, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Restore the module's own loader before its code runs: readers of the module's resources ask the loader.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._then(module)
