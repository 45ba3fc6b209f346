"""One rank of a job in which some ranks end early: which, and how, are the arguments.

    leaving.py FOLDER 1=raise 2=die     after three steps rank 1 raises, and rank 2 dies without a word

The survivors train on and end as they would without declog.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import torch.distributed as dist

import declog
from tests.ranks import work

FOLDER = Path(sys.argv[1])
LEAVERS = dict(argument.split("=") for argument in sys.argv[2:])
RANK = os.environ["RANK"]


def main() -> None:
    """Seven steps, of which a leaver has three."""
    dist.init_process_group("gloo")
    config = {**work.split_profile(), "strict": False, "tables": {}, "sinks": {"lines": {"kind": "jsonl"}}}
    config["blocking"] = True  # so that what is before the barrier was sent
    with declog.start(config, output_dir=FOLDER, wait_s=3.0) as log:
        for step in range(7):
            with log.step(step):
                log.observe(reward=[1.0, 2.0], prompt_id=[1, 1 + int(RANK)], text=["", ""])
            if step == 2:
                dist.barrier()
                time.sleep(0.5)  # the others have left the barrier too
                if LEAVERS.get(RANK) == "die":
                    os._exit(9)
                if LEAVERS.get(RANK) == "raise":
                    raise ValueError("mine")
    print(f"rank {RANK} trained {step + 1} steps")


if __name__ == "__main__":
    main()
