"""The arguments of a verb: argparse, with a suggestion for each unknown word."""

from __future__ import annotations

import argparse
import inspect
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from declog.cli import suggestions

OK, DIFFERENT, INVALID, UNCOMPOSED = 0, 1, 2, 3  # exit codes: `declog.cli` explains them
DIVIDER = "\0--"  # replaces `--`, which argparse would remove


class Wrong(Exception):
    """The command line itself is wrong."""

    def __init__(self, message: str, fix: str | None = None) -> None:
        super().__init__(f"declog: {message}" + (f"\n  fix: {fix}" if fix else ""))


def options(args: argparse.Namespace, *, config: bool = True) -> list[str]:
    """The options of a command line that choose a config, and a module for its functions; the modules alone."""
    chosen = [("--config-dir", args.config_dir), ("--config-name", args.config_name)] if config else []
    chosen += [("--import", module) for module in args.modules or ()]
    return [word for option, value in chosen if value for word in (option, value)]


class Parser(argparse.ArgumentParser):
    """The options and words of one verb."""

    add = argparse.ArgumentParser.add_argument

    def __init__(self, verb: str, summary: str, text: str) -> None:
        super().__init__(
            prog=f"declog {verb}",
            description=f"{summary[0].upper()}{summary[1:]}.",
            epilog=inspect.cleandoc(text).partition("\n\n")[2],
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self.set_defaults(verb=verb)

    def config(self, help: str = "a preset, a YAML file or a run's folder, then overrides") -> None:
        """Add the arguments of a config: its name, overrides, and the folder of an application's own files."""
        self.add("words", nargs="*", metavar="CONFIG OVERRIDES", help=help)
        self.add("--config-dir", metavar="DIR", help="the folder whose `declog` folder holds presets of your own")
        self.add("--config-name", metavar="NAME", help="your application's configuration in --config-dir (or here)")
        self.add(
            "--import",
            metavar="MODULE",
            action="append",
            dest="modules",
            help="a module that registers functions of yours",
        )

    def formats(self, *further: str) -> None:
        """Add ``--format``."""
        self.add("--format", choices=("text", "json", *further), default="text", help="for people or for programs")

    def read(self, words: Sequence[str]) -> argparse.Namespace | None:
        """Parse the words; None after ``--help``. Raises ``Wrong``."""
        try:
            args, unknown = self.parse_known_intermixed_args([DIVIDER if word == "--" else word for word in words])
        except SystemExit:  # --help has printed
            return None
        for word in unknown:
            options = [name for name in self._option_string_actions if name.startswith("--")]
            fix = suggestions.option(word, options, words)
            if fix is None and "--compare" in options:
                at = list(words).index(word)
                fix = shlex.join([*self.prog.split(), *words[:at], "--compare", *words[at:]])
                raise Wrong(f"{self.prog} has no use for `{word}`", fix)
            raise Wrong(f"{self.prog} has no {'option' if fix else 'use for'} `{word}`", fix or self._form())
        return args

    def error(self, message: str) -> NoReturn:
        """Raise ``Wrong`` for a mistake that argparse has found, with the form of the command line as the fix."""
        if flag := re.search(r"(--[a-z-]+): ignored explicit argument '(?i:true|false|yes|no|on|off|[01])'", message):
            raise Wrong(f"{flag[1]} has no value", f"{flag[1]}, or without it")
        if (key := re.search(r"(-[a-z])\S*: ignored explicit argument '(.*)'", message)) is not None:
            raise Wrong(f"{self.prog} has no option `{key[1]}{key[2]}`", f"a key is deleted by ~{key[1][1:]}{key[2]}")
        raise Wrong(f"{self.prog.removeprefix('declog ')}: {message}", self._form())

    def _form(self) -> str:
        """The form of the command line, and the command that explains it."""
        words = [str(action.metavar) for action in self._actions if not action.option_strings]
        if words[:1] == ["RUN"]:
            from declog.runs.folder import runs_below

            words[:1] = [str(path) for path in runs_below(Path())[:1]] or words[:1]
        return f"{' '.join([self.prog, *words])}; {self.prog} --help says more"
