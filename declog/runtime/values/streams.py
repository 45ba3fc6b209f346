"""CUDA streams: data made on one stream is read on another only when it is complete, and its memory is kept until then.

The host never waits here, and a thread that waits for one of these events sleeps. Without a GPU none of this is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from typing import Any

import torch

Tensor = torch.Tensor
_RELAXED = 2  # CUDA's CU_STREAM_CAPTURE_MODE_RELAXED


class Streams(dict[Any, Any]):
    """The streams on which tensors were made, each with an event after the last tensor. Never changed in place."""

    def noted(self, devices: Iterable[torch.device]) -> Streams:
        """Return these streams with the devices' current streams, on which a tensor was made just now."""
        after = Streams(self)
        for device in devices:
            stream = torch.cuda.current_stream(device)
            after.setdefault(stream, torch.cuda.Event(blocking=True)).record(stream)
        return after

    def join(self, tensors: Iterable[Tensor]) -> None:
        """Make the current streams wait for these streams, before ``tensors`` are read on them."""
        if not self:
            return
        for stream, event in self.items():
            here = torch.cuda.current_stream(stream.device)
            if here != stream:
                here.wait_event(event)
        for tensor in tensors:
            if tensor.is_cuda:
                tensor.record_stream(torch.cuda.current_stream(tensor.device))

    def ready(self) -> Mapping[torch.device, Any]:
        """Return for each device an event after all its tensors. Call ``join`` before."""
        devices = {stream.device for stream in self}
        after = self.noted(devices)
        return {device: after[torch.cuda.current_stream(device)] for device in devices}


NO_STREAMS = Streams()


def capturing() -> bool:
    """Whether a CUDA graph captures the work of the current stream, so that nothing is computed yet."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def beside_graphs() -> None:
    """Let the calling thread wait for the device while another thread captures a CUDA graph.

    Without this CUDA raises an error in both threads. The setting holds for the thread, and torch has no function for
    it.
    """
    if torch.cuda.is_initialized() and torch.version.cuda is not None:
        ctypes.CDLL("libcuda.so.1").cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))
