"""Run by torchrun on two ranks of one GPU: each observes its own rows there. ``rank_job.py FOLDER BACKEND``."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import declog
from declog.testing import MemorySink
from tests.runtime.ranks import work

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def on_device(value: Any) -> Any:
    """Tensors on the device, also those of mappings."""
    if isinstance(value, Mapping):
        return {name: on_device(item) for name, item in value.items()}
    return value.to(DEVICE) if isinstance(value, torch.Tensor) else value


def main() -> None:
    """Two kinds of groups; the result is in ``result_<rank>.json``."""
    rank, folder = int(os.environ["RANK"]), Path(sys.argv[1])
    dist.init_process_group(sys.argv[2])
    for name in ("rollout", "update", "split_rows"):
        make = getattr(work, name)
        setattr(work, name, lambda *args, make=make: on_device(make(*args)))
    result = {}
    for name, config, train in (
        ("own groups", work.profile(), work.train), ("spread groups", work.split_profile(), work.train_split)
    ):  # fmt: skip
        sink = MemorySink()
        train(declog.start(config, sinks=[sink], output_dir=folder / name), [rank])
        result[name] = work.found(sink)
    (folder / f"result_{rank}.json").write_text(json.dumps(result))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
