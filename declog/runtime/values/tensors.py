"""Makes tensors of every kind recordable: dense, with values, in a dtype that declog reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Tensor = torch.Tensor
# whether a tensor is inside vmap, grad or a similar transform, where it has no values yet
wrapped = torch._C._functorch.is_functorch_wrapped_tensor
HALF = (torch.bfloat16, torch.float16)
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})
FLOATS = frozenset({torch.float64, torch.float32, *HALF})


def described_array(value: Tensor | np.ndarray[Any, Any]) -> str:
    """Describe a tensor or an array in a few words, for messages."""
    what = "a tensor" if isinstance(value, Tensor) else "an array"
    return f"{what} of {named_dtype(value.dtype)} with shape {tuple(value.shape)}"


def named_dtype(dtype: object) -> str:
    """The name of a dtype of torch or of numpy."""
    return str(dtype).removeprefix("torch.")


def is_scalar(value: Any) -> bool:
    """Whether a value is a tensor without dimensions."""
    return isinstance(value, Tensor) and not value.ndim


def plain(value: Any) -> bool:
    """Whether a value is a dense tensor of torch's own class, outside of transforms."""
    return type(value) is Tensor and not wrapped(value) and value.layout is torch.strided and not value.is_nested


def readable(value: Tensor) -> Tensor:
    """Return the same values as a plain tensor; raises ``ValueError``, with the reason, if they cannot be read.

    Sparse tensors become dense. Quantised tensors and floats of 8 bits become float32, uint16, uint32 and uint64 become
    int64. Complex tensors stay.
    """
    if type(value).__torch_dispatch__ is not Tensor.__torch_dispatch__:
        raise ValueError(f"is a {type(value).__name__}, whose values only its own class can read")
    with torch._C.DisableTorchFunctionSubclass():
        value = value.detach() if type(value) is Tensor else value.detach().as_subclass(Tensor)
    if wrapped(value):
        raise ValueError("is wrapped by a transform of torch.func (vmap, grad, ...): observe it outside of that")
    if value.is_meta:
        raise ValueError("is on the meta device and has no values")
    if value.is_nested:
        raise ValueError("is a nested tensor")
    shown = named_dtype(value.dtype)
    try:
        if value.layout is not torch.strided:
            value = value.to_dense()
        if value.is_quantized:
            value = value.dequantize()
        if value.dtype in INTEGERS or value.dtype in FLOATS or value.dtype.is_complex:
            return value
        if value.dtype is torch.uint64:
            return _signed(value)
        if value.dtype.is_floating_point:
            return value.float()
        if value.dtype in (torch.uint16, torch.uint32):
            return value.long()
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"holds {shown}, which cannot be converted: {error}") from error
    raise ValueError(f"holds {shown}, which are no numbers")


def _signed(value: Tensor) -> Tensor:
    """Return a uint64 tensor as int64; raises ``ValueError`` if a value does not fit.

    Also raises for a tensor on a device, because the check would wait for the device.
    """
    signed = value.view(torch.int64)
    if not value.is_cpu:
        raise ValueError("holds uint64, which may be greater than what int64 holds")
    if len(torch.nonzero(signed < 0)):
        raise ValueError("holds numbers that do not fit 64 bits with a sign")
    return signed
