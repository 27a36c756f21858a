"""Tensors behind whose last 16 bytes no process may read: a kernel on the host that does ends its process."""

from __future__ import annotations

import ctypes
import mmap

import torch
from torch import Tensor

ALIGNED = 16
"""Bytes that a vector has at most, and whole ones of which are read where a tensor ends within one."""


def guarded(tensor: Tensor) -> Tensor:
    """A copy, as far past a multiple of 16 bytes as the tensor begins; it ends in the last 16 before a page
    that is protected."""
    size = tensor.numel() * tensor.element_size()
    if not size:
        return tensor
    begins = tensor.data_ptr() % ALIGNED
    room = _up(begins + size, ALIGNED)
    end = _up(room, mmap.PAGESIZE)
    memory = mmap.mmap(-1, end + mmap.PAGESIZE)
    page = ctypes.addressof(ctypes.c_char.from_buffer(memory, end))
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), 0):
        raise OSError("mprotect refused a page")
    torch.frombuffer(memory, dtype=torch.uint8, count=room, offset=end - room).fill_(0xFF)
    data = torch.frombuffer(memory, dtype=torch.uint8, count=size, offset=end - room + begins)
    return data.view(tensor.dtype).view(tensor.shape).copy_(tensor)


def _up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple
