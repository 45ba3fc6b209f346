"""Inside functions that torch compiles: declog's code is left to Python, as one clean break of the graph.

Imports nothing of torch's compiler that the training code has not imported.
"""

from __future__ import annotations

import sys

_left_out = False


def leave_out() -> None:
    """Tell torch's compiler, once it is there, to trace nothing of declog; for a full graph it names the call."""
    global _left_out
    if not _left_out and (dynamo := sys.modules.get("torch._dynamo.trace_rules")) is not None:
        _left_out = True
        dynamo.add("declog")
