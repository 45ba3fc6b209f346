"""declog's plugin, which Hydra finds in every application: it puts the presets on the search path.

Where declog is installed, every application of Hydra imports this file, so it must be fast to import.
"""

from __future__ import annotations

import atexit
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin

from declog.config.hydra import ConfigFiles, for_declog, jobs, started_with, with_configs
from declog.config.search_path import GROUP, PROVIDER, conf_location, teams


class DeclogSearchPath(SearchPathPlugin):
    """Appends the shipped presets, then those of installed packages: an application's own files of the same name win.

    Each folder of an application that holds configs is added a second time, before itself, read by ``ConfigFiles``.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        # A reloaded module registers a second class; one entry is enough.
        if any(element.provider == PROVIDER for element in search_path.get_path()):
            return
        shipped = [(PROVIDER, conf_location()), *((team.name, f"pkg://{team.conf}") for team in teams())]
        if for_declog.get():
            for provider, path in shipped:
                search_path.append(provider=provider, path=path)
            return
        folders = []
        for element in list(search_path.get_path()):
            entry = with_configs(str(element.path)) if element.provider == "main" else None
            if entry is not None:
                folders.append(str(element.path))
                search_path.prepend("main", entry, SearchPathQuery(provider="main", path=element.path))
        mains = [str(entry.path) for entry in search_path.get_path() if entry.provider == "main"]
        if not _ASKS.intersection(word.partition("=")[0] for word in sys.argv[1:]):
            atexit.register(_explain, sys.argv[1:], folders, mains)
        for provider, path in shipped:
            search_path.append(provider=provider, path=f"{ConfigFiles.scheme()}://{path}")
        places = [*_config_dir(sys.argv[1:]), *_searched(sys.argv[1:])]
        read = [with_configs(entry) for entry in places]
        for entry, with_config in zip(places, read, strict=True) if any(read) else ():  # all, to keep their order
            search_path.append(provider="command-line", path=with_config or entry)
        search_path.append(provider=PROVIDER, path=ConfigFiles.STORE)


def _config_dir(words: Sequence[str]) -> list[str]:
    """The folder that a command line adds to the search path after all plugins have run."""
    return [str(Path(folder).absolute()) for folder in option(words, "--config-dir", "-cd")]


def option(words: Sequence[str], *names: str) -> list[str]:
    """The value of an option of a command line, in a list; an empty list without the option."""
    for word, after in pairwise([*words, ""]):
        name, equals, value = word.partition("=")
        if name in names:
            return [value if equals else after]
    return []


def _searched(words: Sequence[str]) -> list[str]:
    """The places that a command line names in place of its configuration's, which Hydra adds last."""
    for word in words:
        if re.match(r"\+{0,2}hydra\.searchpath=", word):
            with suppress(HydraException):  # reported by Hydra
                places = OverridesParser.create().parse_override(word).value()
                return [str(entry) for entry in places] if isinstance(places, list) else []
    return []


# Options with which an application ends before its job begins, as it should.
_ASKS = frozenset({
    "--cfg", "-c", "--help", "-h", "--hydra-help", "--info", "-i", "--shell-completion", "-sc", "--version",
})  # fmt: skip


def explain_flags(words: Sequence[str]) -> None:
    """Say how an override is written where an application's command line has `--declog.every=10`.

    Hydra's parser ends the process before it asks any plugin. An application of another kind starts a run.
    """
    lines, taken = [], False
    for word, after in pairwise([*words, "--"]):
        if not taken and word.startswith(f"--{GROUP}"):
            taken = "=" not in word and re.match(r"-|.*=", after) is None
            lines.append(word.lstrip("-") + f"={after}" * taken)
        else:
            taken = False
    if not jobs and "declog.runtime.recording.recorder" not in sys.modules:
        from declog.errors import Problem  # no run pays for it

        flags = " ".join(word for word in words if word.startswith(f"--{GROUP}"))
        print(f"\n{Problem.of('DL101.flags', flags=flags, lines=' '.join(lines)).text()}", file=sys.stderr)


def _explain(words: Sequence[str], folders: Sequence[str], mains: Sequence[str]) -> None:
    """Print what to type in place of the words that Hydra refused, if the application ends before its job began.

    ``folders`` are the application's folders that hold configs of declog, ``mains`` all its folders. Hydra's own
    message is about its lexer and structs, and nobody can add to it: Hydra ends the process.
    """
    imported = GROUP in vars(sys.modules["__main__"])
    if jobs or not (folders or imported or started_with or any(GROUP in word for word in words)):
        return
    from declog.config.problems.refused_run import answers, primary  # no run pays for it

    names = option(words, "--config-name", "-cn")
    for problem in answers(words, mains if imported else (), started_with or primary(folders, names)):
        print(f"\n{problem.text()}", file=sys.stderr)
