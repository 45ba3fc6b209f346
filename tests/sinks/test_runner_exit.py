"""The interpreter's end with a sink's thread still running: no hang, no abort."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sinks.samples import python


@pytest.mark.parametrize("forever", ["time.sleep(60)", "os.read(zero, 4096)"])
def test_the_interpreter_exits_with_a_sink_stuck_in_a_write(tmp_path: Path, forever: str) -> None:
    """Neither a hang nor an abort: the process ends with its own exit code, soon after the deadline."""
    code = f"""
import atexit, os, sys, time
from pathlib import Path
from declog.records import Records, RunInfo
from declog.sinks.runner import SinkRunner

class Stuck:
    accepts = frozenset()
    def open(self, run): pass
    def write(self, step, records):
        while True:
            {forever}
    def close(self): pass

zero = os.open("/dev/zero", os.O_RDONLY)
runner = SinkRunner("stuck", Stuck())
runner.open(RunInfo("n", "r", Path(sys.argv[1]), "f"))
runner.submit(0, Records())
atexit.register(lambda: print(runner.close(0.2).pending))
print("end")
"""
    assert python(code, str(tmp_path)) == "end\n1\n"


def test_the_interpreter_exits_while_an_unclosed_sink_writes(tmp_path: Path) -> None:
    """A process that forgot to close still exits with 0 while the thread is inside pyarrow."""
    code = """
import sys
from pathlib import Path
from declog.records import RunInfo
from declog.sinks import make_sink
from declog.sinks.runner import SinkRunner
from tests.sinks.samples import event
runner = SinkRunner("files", make_sink("parquet", {}))
runner.open(RunInfo("n", "r", Path(sys.argv[1]), "f"))
for step in range(200):
    runner.submit(step, event(step))
print("end")
"""
    assert python(code, str(tmp_path)) == "end\n"
