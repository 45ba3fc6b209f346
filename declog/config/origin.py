"""The origin of a configuration: enough to compose it again."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from declog.config.fold import Composition, fold
from declog.config.hydra import Loader, config_loader, merged_in_run, overrides_of_run
from declog.config.overrides import written
from declog.config.search_path import GROUP, ROOT


@dataclass(frozen=True)
class Origin:
    """The way in which a configuration was composed: enough to compose it again.
    ``config_dir`` is a folder, or an entry of Hydra's search path. ``application``: ``config_name`` is the primary
    configuration of an application, not a preset. ``running``: this application is running, and its own loader composes
    the configuration again. ``imports`` are modules that were named beside the config, never in it. ``data``: the
    preset is a mapping in code.
    """

    config_name: str | None
    overrides: tuple[str, ...] = ()
    config_dir: FilePath | str | None = None
    application: bool = False
    running: bool = False
    imports: tuple[str, ...] = ()
    data: dict[str, Any] | None = field(default=None, hash=False)

    @property
    def loader(self) -> Loader:
        """A loader of the configuration's files."""
        return config_loader(self.config_dir, self.data)

    @property
    def root(self) -> str:
        """The primary configuration."""
        return str(self.config_name) if self.application else ROOT

    @property
    def choice(self) -> list[str]:
        """The override that chooses the preset, which declog's own primary configuration leaves open."""
        return [] if self.application else [f"{GROUP}={written(str(self.config_name))}"]

    @property
    def lines(self) -> list[str]:
        """All overrides of the primary configuration, the choice of the preset included."""
        return [*self.choice, *self.overrides]

    def composition(self) -> Composition:
        """The configuration, composed again by the loader that composed it before. Raises Hydra's errors."""
        if self.running:
            lines = [*overrides_of_run("hydra"), *self.lines]
            return fold(*merged_in_run(self.config_name, lines), applied=True)
        return self.fold(self.loader, self.lines)

    def fold(self, loader: Loader, lines: list[str]) -> Composition:
        """Compose it with other overrides. As in Hydra, a plain override of an application adds no key."""
        return fold(*loader.defaults(self.root, lines), lenient=not self.application)
