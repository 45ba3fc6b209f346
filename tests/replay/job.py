"""A rank of a job under torchrun whose run is captured; rank 0 alone names the folder."""

from __future__ import annotations

import sys
from pathlib import Path

import torch.distributed as dist

import declog
from tests.replay.keeping import KeptSink
from tests.runtime.ranks import work


def main(folder: Path) -> None:
    """Three steps of a GRPO job, logged on rank 0."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    sinks = [] if rank else [KeptSink()]
    log = declog.start(work.profile(), sinks=sinks, output_dir=None if rank else folder, capture=True)
    work.train(log, [rank])
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
