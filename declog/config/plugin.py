"""What Hydra finds of declog in every application: its presets, on the search path.

Imports Hydra. Each application of Hydra where declog is installed pays for this file.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from hydra.core.config_search_path import ConfigSearchPath, SearchPathQuery
from hydra.plugins.search_path_plugin import SearchPathPlugin

from declog.config.hydra import ProfileFiles, for_declog, with_profiles
from declog.config.search_path import PROVIDER, conf_location, teams


class DeclogSearchPath(SearchPathPlugin):
    """Appends the shipped presets, then those of installed packages: an application's own files of a name win.

    An application's folders that hold profiles stand there a second time before themselves, read by ``ProfileFiles``.
    """

    def manipulate_search_path(self, search_path: ConfigSearchPath) -> None:
        # A reloaded module registers a second class; one entry is enough.
        if any(element.provider == PROVIDER for element in search_path.get_path()):
            return
        shipped = [(PROVIDER, conf_location()), *((package, f"pkg://{conf}") for package, conf in teams())]
        if for_declog.get():
            for provider, path in shipped:
                search_path.append(provider=provider, path=path)
            return
        _explain(sys.argv[1:])
        for element in list(search_path.get_path()):
            place = with_profiles(str(element.path)) if element.provider == "main" else None
            if place is not None:
                search_path.prepend("main", place, SearchPathQuery(provider="main", path=element.path))
        for provider, path in shipped:
            search_path.append(provider=provider, path=f"{ProfileFiles.scheme()}://{path}")
        folder = _config_dir(sys.argv[1:])
        place = None if folder is None else with_profiles(str(Path(folder).absolute()))
        if place is not None:
            search_path.append(provider="command-line", path=place)


def _config_dir(words: Sequence[str]) -> str | None:
    """The folder that a command line adds to the search path once all plugins have been asked."""
    for word, after in pairwise([*words, ""]):
        if word in ("--config-dir", "-cd"):
            return after
        if word.startswith("--config-dir="):
            return word.partition("=")[2]
    return None


_OF_DECLOG = re.compile(r"[+~]*declog[./@\w]*=")


def _explain(words: Sequence[str]) -> None:
    """Print what to type for overrides of declog that an application's Hydra, which comes next, will not read.

    Hydra's own message speaks of its lexer, and nobody can add to it: it ends the process.
    """
    odd = [word for word in words if _OF_DECLOG.match(word)]
    if not odd:
        return
    from declog.config.composition_errors import of_application  # `import declog` does not pay for it

    for word in odd:
        if (problem := of_application(word)) is not None:
            print(f"{problem.text()}\n", file=sys.stderr)
