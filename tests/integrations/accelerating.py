"""A loop with ``Accelerator``, gradient accumulation and a ``DeclogTracker``; what was logged is left in the folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from accelerate import Accelerator

from declog.integrations.accelerate import DeclogTracker
from declog.testing import MemorySink

# Freed after end_training has destroyed the process group, a model that DDP wrapped hangs in gloo, one time in five.
kept: list[object] = []
OVERRIDES = [
    "declog.sinks=[]", "+declog.run.strict=true", "declog.every=2", "+declog.signals.any.error={axis: completion}",
    "+declog.metrics.worst='max(error)'",
]  # fmt: skip


def main(folder: Path) -> None:
    """Four optimizer steps of two micro-batches; the gathered errors of each are logged, on every process."""
    torch.set_num_threads(1)
    sink = MemorySink()
    tracker = DeclogTracker("trainer", OVERRIDES, sinks=[sink], output_dir=folder / "run")
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, log_with=[tracker])
    accelerator.init_trackers("run", config={"lr": 0.1, "nested": {"name": "x"}})
    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.arange(32.0).unsqueeze(1) / 32, torch.arange(32.0).unsqueeze(1) / 16)
    model = torch.nn.Linear(1, 1)
    loader = torch.utils.data.DataLoader(data, batch_size=4 // accelerator.num_processes)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), loader)
    kept.extend([model, optimizer, loader])
    step, steps, errors = 0, [], []
    for x, y in loader:
        with accelerator.accumulate(model):
            error = (model(x) - y).abs().squeeze(1)
            accelerator.backward(error.mean())
            optimizer.step()
            optimizer.zero_grad()
            errors.append(accelerator.gather(error.detach()))
        if accelerator.sync_gradients:
            accelerator.log({"error": torch.cat(errors), "loss": torch.cat(errors).mean(), "note": "x"}, step=step)
            accelerator.log({"time": {"forward": float(step)}}, step=step)
            steps.append(torch.cat(errors).tolist())
            step, errors = step + 1, []
    accelerator.end_training()
    if accelerator.is_main_process:
        log = tracker.tracker
        assert log is not None and log.closed and log.failures == {} and sink.run is not None
        logged = {"steps": steps, "scalars": sink.scalars, "config": dict(sink.run.config)}
        (folder / "kept.json").write_text(json.dumps(logged, default=str))
    else:
        assert tracker.tracker is None


if __name__ == "__main__":
    main(Path(sys.argv[1]))
