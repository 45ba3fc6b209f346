"""``declog explain``: the cause and cure of an error code, with an example and its messages.

declog explain DL310
declog explain          all codes in a line each
"""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import BOLD, answer, columns, paragraphs
from declog.errors import did_you_mean

GROUP = "look"
SUMMARY = "explain an error code"


def arguments(parser: Parser) -> None:
    """Add the code."""
    parser.add("words", nargs="*", metavar="CODE", help="such as DL310, 310 or dl310; without one, all of them")
    parser.formats()


def run(args: argparse.Namespace) -> int:
    """Print the page and the messages of a code, or all codes."""
    from declog.errors.messages import messages
    from declog.errors.pages import CODES, page

    if not args.words:
        answer(args, CODES, [columns(list(CODES.items()), colour=BOLD)])
        return 0
    word, *more = args.words
    code = word.strip("[]").upper()
    code = code if code.startswith("DL") else f"DL{code}"
    if code not in CODES:
        raise Wrong(f"there is no error code `{word}`", _meant(word, more) or did_you_mean(code, CODES, what="codes"))
    if more:
        raise Wrong(f"declog explain takes one code, and `{more[0]}` came, too", f"declog explain {code}")
    shown = [
        (message.text, None if message.nearest or message.fix == "{fix}" else message.fix)
        for message in messages(code).values()
    ]
    lines = [f"- {text}" + (f"\n  fix: {fix}" if fix else "") for text, fix in shown]
    data = {"code": code, "meaning": CODES[code], "page": page(code), "messages": shown}
    answer(args, data, [paragraphs(page(code)), *lines])
    return 0


def _meant(word: str, more: list[str]) -> str | None:
    """The command that shows a config or an entry of one, if the word is such a name; None if it is nearly a code."""
    if more:
        return f"of an entry of a config: declog show {shlex.join([word, '--why', more[0]])}"
    from declog.config.presets import options

    if Path(word).exists() or word in [option.name for option in options()]:
        return f"declog show {shlex.quote(word)}"
    if word.isidentifier() and not re.search(r"\d{2}", word):
        return f"of an entry of a config, `declog show CONFIG --why {word}` says what it is, and what feeds it"
    return None
