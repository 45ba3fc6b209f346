"""Lines that ask for late metrics: their overrides, and the places of their problems.

A line is the YAML of a metric, typed in a command or written as an entry of a YAML file.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from typing import Any

import yaml

from declog.config.files import YamlLoader, of_file
from declog.config.overrides import parsed, written
from declog.config.problems.diagnostics import in_file, in_override
from declog.config.problems.file_errors import not_yaml
from declog.errors import CompositionError, ConfigError, Problem, Where, in_flow

_KEY = r"\+*declog\.metrics\.\w+="
_OVERRIDE = rf"""(?:'{_KEY}[^']*(?:'"'"'[^']*)*'|"{_KEY}[^"]*"|{_KEY}[^\s'"]+)"""  # as `pasted` writes them
_OVERRIDES = re.compile(rf"(?<!\S){_OVERRIDE}(?: {_OVERRIDE})*")


@dataclass(frozen=True)
class Line:
    """The YAML of a metric, ``text``, and the file whose `metrics` contain it, if any."""

    name: str
    text: str
    file: FilePath | None = None

    @property
    def override(self) -> str:
        """The override that declares the metric. Raises ``CompositionError`` if a text of several lines is no YAML."""
        if "\n" not in self.text.rstrip():
            return f"metrics.{self.name}={self.text.strip()}"
        try:
            value: Any = yaml.load(self._typed, YamlLoader)[self.name]
        except yaml.MarkedYAMLError as error:
            problem = not_yaml(error, self._typed)
            raise CompositionError([replace(problem, where=self._where(problem.where))]) from None
        return f"metrics.{self.name}={written(value)}"

    def located(self, problem: Problem) -> Problem:
        """The problem with its place in the line."""
        text, path = self._typed, (self.name, *problem.path[2:])
        if self.file is not None:
            text, path = self.file.read_text(encoding="utf-8"), ("metrics", *path)
        if self.file is None and "\n" not in text:
            where = self._where(Where(excerpt=in_override(problem, text, ":")))
        else:
            _, node = of_file(str(self.file), text).deepest(path)
            where = in_file(problem, node.location)
            where = self._where(where) if self.file is None else where
        if problem.where is not None:
            where = replace(where, earlier=problem.where.earlier, related=problem.where.related)
        return replace(problem, where=where, fix=None if problem.fix is None else self._as_line(problem.fix))

    def _as_line(self, fix: str) -> str:
        """Write the overrides of metrics in a fix as words of ``declog add``, or as the file's `metrics`."""

        def words(match: re.Match[str]) -> str:
            overrides = [override for word in shlex.split(match[0]) if (override := parsed(word)) is not None]
            entries = {override.key_or_group.rpartition(".")[2]: override.value() for override in overrides}
            if self.file is not None:
                return f"metrics: {in_flow(entries)}"
            return " ".join(shlex.quote(f"{name}: {in_flow(value)}") for name, value in entries.items())

        return _OVERRIDES.sub(words, fix)

    def has(self, problem: Problem) -> bool:
        """Whether a problem is about this metric and has no place in a file."""
        where = problem.where
        if where is not None and where.override is not None:
            return where.override.startswith(f"declog.metrics.{self.name}=")
        return (where is None or where.file is None) and problem.path[:2] == ("metrics", self.name)

    @property
    def _typed(self) -> str:
        return f"{self.name}:{'' if self.text[:1].isspace() else ' '}{self.text}"

    def _where(self, where: Where | None) -> Where:
        return Where(name=f"the line `{self.name}`", excerpt=None if where is None else where.excerpt)


@contextmanager
def places(lines: Iterable[Line]) -> Iterator[None]:
    """Give the problems that a block raises their places in the lines."""
    try:
        yield
    except ConfigError as error:
        owners = [(problem, next((line for line in lines if line.has(problem)), None)) for problem in error.problems]
        problems = [problem if line is None else line.located(problem) for problem, line in owners]
        raise type(error)(problems) from None
