"""``declog explain``: the cause and cure of an error code, with an example and its messages.

declog explain DL310
declog explain          all codes in a line each
"""

from __future__ import annotations

import argparse
import re

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import BOLD, answer, columns, paragraphs
from declog.errors import did_you_mean

GROUP = "look"
SUMMARY = "explain an error code"


def arguments(parser: Parser) -> None:
    """Add the code."""
    parser.add("code", nargs="?", metavar="CODE", help="such as DL310, 310 or dl310; without one, all of them")
    parser.formats()


def run(args: argparse.Namespace) -> int:
    """Print its page."""
    from declog.errors.messages import messages
    from declog.errors.pages import CODES, page

    if args.code is None:
        answer(args, CODES, [columns(list(CODES.items()), colour=BOLD)])
        return 0
    code = args.code.strip("[]").upper()
    code = code if code.startswith("DL") else f"DL{code}"
    if code not in CODES:
        fix: str | None = did_you_mean(code, CODES, what="codes")
        if args.code.isidentifier() and not re.search(r"\d{2}", args.code):
            fix = f"of an entry of a config, `declog show CONFIG --why {args.code}` says what it is, and what feeds it"
        raise Wrong(f"there is no error code `{args.code}`", fix)
    shown = [
        (message.text, None if message.nearest or message.fix == "{fix}" else message.fix)
        for message in messages(code).values()
    ]
    lines = [f"- {text}" + (f"\n  fix: {fix}" if fix else "") for text, fix in shown]
    data = {"code": code, "meaning": CODES[code], "page": page(code), "messages": shown}
    answer(args, data, [paragraphs(page(code)), *lines])
    return 0
