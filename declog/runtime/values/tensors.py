"""Tensors of every kind in a form that can be recorded: dense, with values, in a readable dtype.

Imports torch and numpy only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

Tensor = torch.Tensor
# tensors inside vmap, grad and the like, which have no values yet
wrapped = torch._C._functorch.is_functorch_wrapped_tensor
HALF = (torch.bfloat16, torch.float16)
INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool})
FLOATS = frozenset({torch.float64, torch.float32, *HALF})


def described_array(value: Tensor | np.ndarray[Any, Any]) -> str:
    """A tensor or an array in a few words, for messages."""
    what = "a tensor" if isinstance(value, Tensor) else "an array"
    return f"{what} of {named_dtype(value.dtype)} with shape {tuple(value.shape)}"


def named_dtype(dtype: object) -> str:
    """The name of a dtype of torch or of numpy."""
    return str(dtype).removeprefix("torch.")


def is_number(value: Any) -> bool:
    """Whether a value is a tensor without dimensions."""
    return isinstance(value, Tensor) and not value.ndim


def plain(value: Any) -> bool:
    """Whether a value is a dense tensor of torch's own class, outside of transforms."""
    return type(value) is Tensor and not wrapped(value) and value.layout is torch.strided and not value.is_nested


def readable(value: Tensor) -> Tensor:
    """The same values as a plain tensor; ``ValueError`` says why there are none that can be read.

    Sparse tensors become dense, quantised ones and small floats float32, unsigned integers int64. Complex tensors stay.
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
    """A uint64 tensor as int64, if all values fit; checking this on a device would wait for it."""
    signed = value.view(torch.int64)
    if not value.is_cpu:
        raise ValueError("holds uint64, which may be greater than what int64 holds")
    if len(torch.nonzero(signed < 0)):
        raise ValueError("holds numbers that do not fit 64 bits with a sign")
    return signed
