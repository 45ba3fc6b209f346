"""As in verl."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class Tracking:
    """Trackers by name, of which this one keeps what it is given."""

    supported_backend: ClassVar[list[str]] = ["console", "wandb"]

    def __init__(
        self, project_name: str, experiment_name: str, default_backend: str | list[str] = "console", config: Any = None
    ) -> None:
        for backend in [default_backend] if isinstance(default_backend, str) else default_backend:
            assert backend in self.supported_backend, f"{backend} is not supported"
        self.logged: list[tuple[int, dict[str, Any]]] = []

    def log(self, data: Mapping[str, Any], step: int, backend: Any = None) -> None:
        self.logged.append((step, dict(data)))

    def finish(self, exit_code: int = 0) -> None:
        pass

    def __del__(self) -> None:
        self.finish()


class ValidationGenerationsLogger:
    """Of the trackers that show tables, which there are none of."""

    def log(self, loggers: Sequence[str], samples: Sequence[Sequence[Any]], step: int) -> None:
        pass
