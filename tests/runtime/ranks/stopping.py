"""A loop of one's own on a rank that an alert ends: ``python -m tests.runtime.ranks.stopping FOLDER``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch.distributed as dist

import declog
from tests.runtime.test_stopping import CONFIG, trained

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    with declog.start(CONFIG, output_dir=folder / "run") as log:
        last = trained(log, 10, lambda: 0.04 if rank else 0.002)
        alerts = [[step, alert.name] for step, alert in log.alerts]
    result = {"last": last, "alerts": alerts, "failures": dict(log.failures)}
    (folder / f"{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()
