"""Calling a bound kernel with memory that the caller owns, the workspace too.

`ucutlass.runtime.launch.Launcher` takes the workspace from torch's allocator; whoever judges a kernel
must poison and guard it, so here it is an argument.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ucutlass.reference.interpreter import Argument, device_of
from ucutlass.runtime.arguments import check_scalar
from ucutlass.runtime.declaration import LaunchSpec, ScalarSlot, TensorSlot
from ucutlass.runtime.entry_codes import LaunchError
from ucutlass.runtime.launch import Bound
from ucutlass.runtime.torch_device import current, stream
from ucutlass.runtime.verify.judge import Exposed

_ENTRY = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7)


def exposed(spec: LaunchSpec, bound: Bound, extents: Sequence[int]) -> Exposed:
    """The kernel's launch for every extent in the order of `spec.dims`, on the current stream of
    its arguments' device. `bound.workspace` must be that of these extents (see `rebound`).

    The launch raises LaunchError where the entry fails, and trusts its arguments' shapes.
    """
    entry = _ENTRY(bound.entry)
    sizes = (ctypes.c_int64 * len(extents))(*extents)
    knobs = (ctypes.c_int64 * len(bound.knobs))(*bound.knobs)

    def run(arguments: Sequence[Argument], results: Sequence[Tensor], workspace: Tensor | None) -> None:
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        scalars = [
            check_scalar(spec, slot, value)
            for slot, value in zip(spec.params, arguments, strict=True)
            if isinstance(slot, ScalarSlot)
        ]
        pointers = [t.data_ptr() for t in (*tensors, *results)]
        device = device_of(arguments)
        with current(device):
            code = entry(
                (ctypes.c_void_p * len(pointers))(*pointers), sizes,
                (ctypes.c_double * len(scalars))(*scalars), knobs,
                None if workspace is None else workspace.data_ptr(), None, stream(device),
            )  # fmt: skip
        if code != 0:
            raise LaunchError(spec.name, code)

    # The closure keeps `bound`, and with it the entry's library.
    return Exposed(run, bound.workspace)


def rebound(spec: LaunchSpec, bound: Bound, extents: Sequence[int], device: torch.device) -> Bound:
    """The same kernel for other extents: asks its entry how much workspace they take.

    Raises LaunchError where the kernel does not serve them; some kernels only say so at launch.
    """
    tensors = sum(isinstance(p, TensorSlot) for p in spec.params) + len(spec.results)
    scalars = len(spec.params) + len(spec.results) - tensors
    size = ctypes.c_uint64(0)
    with current(device):
        code = _ENTRY(bound.entry)(
            (ctypes.c_void_p * tensors)(), (ctypes.c_int64 * len(extents))(*extents),
            (ctypes.c_double * max(1, scalars))(), (ctypes.c_int64 * len(bound.knobs))(*bound.knobs),
            None, ctypes.byref(size), None,
        )  # fmt: skip
    if code != 0:
        raise LaunchError(spec.name, code)
    return replace(bound, workspace=size.value)
