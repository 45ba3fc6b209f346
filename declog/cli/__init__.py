"""The command line: ``declog VERB ...``, one file of ``verbs/`` per verb.

A verb is a module with ``SUMMARY``, its line of help, ``GROUP``, its heading in the help, ``arguments(parser)``, which
adds its arguments, and ``run(args)``, which executes it and returns the exit code. Heavy imports stand inside ``run``:
``declog --help`` and ``declog VERB --help`` load neither Hydra nor torch nor a tracker.

    0  all is well
    1  there are warnings, under ``--strict``; or a lock differs
    2  the config or the command line is wrong, or one of the config's tests fails
    3  Hydra could not compose the config
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import pkgutil
import sys
from collections.abc import Sequence
from types import ModuleType

from declog.cli import suggestions
from declog.cli import verbs as _verbs
from declog.cli.arguments import INVALID, OK, UNCOMPOSED, Parser, Wrong
from declog.cli.output import masked, write_error, write_json
from declog.distribution import NAME, VERSION, install
from declog.errors import CompositionError, ConfigError, DeclogError

GROUPS = ("write", "check", "look", "runs")  # of verbs, in the order in which a user needs them


def verbs() -> tuple[str, ...]:
    """The names of all verbs, sorted."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(_verbs.__path__)))


def verb_of(name: str) -> ModuleType:
    """The module of a verb."""
    return importlib.import_module(f"{_verbs.__name__}.{name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line, and return the exit code. A user's mistake is reported without a traceback."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:  # the process ends after it: the last collection would take a fifth of the time
        atexit.register(gc.freeze)
    threshold = gc.get_threshold()
    gc.set_threshold(200_000)  # a short command has no garbage to collect: collections took a tenth of the time
    with masked():
        try:
            return _run(words)
        except Wrong as wrong:
            print(wrong, file=sys.stderr)
            return INVALID
        except DeclogError as error:
            write_error(error)
            return UNCOMPOSED if isinstance(error, CompositionError) else INVALID
        except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return OK
        except KeyboardInterrupt:
            return 130
        finally:
            gc.set_threshold(*threshold)


def _run(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return OK if words else INVALID
    if words[0] == "--version":
        print(f"{NAME} {VERSION}")
        return OK
    if words[0] not in verbs():
        raise Wrong(f"there is no verb `{words[0]}`", suggestions.verb(words[0], verbs()))
    module = verb_of(words[0])
    parser = Parser(words[0], module.SUMMARY, module.__doc__ or "")
    module.arguments(parser)
    args = parser.read(words[1:])
    if args is None:
        return OK
    try:
        return int(module.run(args))
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise Wrong(f"`declog {words[0]}` needs torch, which is not installed", install("torch")) from None
    except ConfigError as error:
        if "format" not in args or args.format != "json":
            raise
        from declog.config.problems.diagnostics import as_dict

        write_json({"ok": False, "problems": [as_dict(problem) for problem in error.problems]})
        return UNCOMPOSED if isinstance(error, CompositionError) else INVALID


def _help() -> str:
    lines = ["usage: declog VERB ..."]
    for group in GROUPS:
        members = [verb for verb in verbs() if group == verb_of(verb).GROUP]
        lines += ["", f"{group}:", *(f"  {verb:<8} {verb_of(verb).SUMMARY}" for verb in members)]
    lines += [
        "",
        "A config is a preset's name, a YAML file, REV:FILE of git or a run's folder, with overrides behind it:",
        "  declog check grpo metrics.reward.reduce=p95 'metrics.spread=std(reward)' sinks=[jsonl]",
        "`declog VERB --help` shows the arguments of a verb.",
    ]
    return "\n".join(lines)
