"""Makes the presets known to Hydra as soon as a program has both: the one thing that ``import declog`` does.

Hydra is not imported for it: it takes longer than all of declog, and ``declog --help`` needs none. Where Hydra comes
later, a finder at the front of ``sys.meta_path`` waits for it, once. Imports the composer, when Hydra is there.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


def register() -> None:
    """Make ``declog=<preset>`` known to every Hydra application of this process, now or when it imports Hydra."""
    if "hydra" in sys.modules:
        _register_now()
    elif not any(isinstance(finder, _Waiting) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Waiting())


def _register_now() -> None:
    import_module("declog.config.search_path")  # which registers at its end, also where it is what imports Hydra


class _Waiting(MetaPathFinder):
    """Finds Hydra as everybody else would, and only adds to what is done when it is loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "hydra":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Registering(spec.loader)
        return spec


class _Registering(Loader):
    """Hydra's own loader, and then the search path."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # What reads a module's resources asks its loader: it is Hydra's own again before anything of it runs.
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register_now()
