"""``declog schema``: the JSON Schema of profiles, so that an editor completes keys, shows help and marks what is wrong.

  declog schema -o declog.schema.json
  declog schema sinks -o sinks.schema.json      of files in a group's folder: declog/sinks/mine.yaml
  declog schema application                     of your application's own configuration, with its node `declog`

The first line of a YAML file names its schema, for VS Code's YAML extension and every other yaml-language-server:

  # yaml-language-server: $schema=declog.schema.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from declog.cli.arguments import Parser, Wrong
from declog.cli.output import write_file
from declog.errors import did_you_mean

SUMMARY = "write the JSON Schema of profiles, for editors"


def arguments(parser: Parser) -> None:
    """Of what, and where to."""
    parser.add("part", nargs="?", default="profile", metavar="PART", help="profile, application, or a section")
    parser.add("-o", "--output", metavar="FILE", help="write it there instead of printing it")


def run(given: argparse.Namespace) -> int:
    """Write it."""
    from declog.cli.json_schema import json_schema, parts

    if given.part not in parts():
        raise Wrong(f"there is no schema of `{given.part}`", did_you_mean(given.part, parts(), what="schemas"))
    text = json.dumps(json_schema(given.part), indent=2, ensure_ascii=False)
    if given.output is None:
        print(text)
        return 0
    write_file(Path(given.output), f"{text}\n")
    print(f"{given.output}: put `# yaml-language-server: $schema={given.output}` at the top of a YAML file")
    return 0
