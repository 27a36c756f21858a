"""Launches bound kernels with memory that the caller owns, the workspace included.

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
from ucutlass.runtime.entry_codes import LaunchError
from ucutlass.runtime.launch import BoundKernel
from ucutlass.runtime.launch_sequence import ENTRY, LaunchSequence, Runner
from ucutlass.runtime.launch_spec import LaunchSpec, ScalarSlot, TensorSlot
from ucutlass.runtime.torch_device import current
from ucutlass.runtime.verify.judge import DirectLaunch


def direct_launch(spec: LaunchSpec, series: LaunchSequence) -> DirectLaunch:
    """Returns the launches of a program for the extents that `series` was made for, on the current stream of
    its arguments' device.

    They raise LaunchError where an entry fails, and trust their arguments' shapes.
    """

    def run(arguments: Sequence[Argument], results: Sequence[Tensor], workspace: Tensor | None) -> None:
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        scalars = [
            check_scalar(spec, slot, value)
            for slot, value in zip(spec.params, arguments, strict=True)
            if isinstance(slot, ScalarSlot)
        ]
        device = device_of((*arguments, *results))
        with current(device):
            Runner(spec.name, series, device).run((*tensors, *results), scalars, workspace)

    # The closure keeps `series`, and with it the entries' libraries.
    return DirectLaunch(run, series.workspace)


def rebind(spec: LaunchSpec, bound: BoundKernel, extents: Sequence[int], device: torch.device) -> BoundKernel:
    """Returns the same kernel for other extents: asks its entry how much workspace they take.

    Raises LaunchError where the kernel does not serve them; some kernels only say so at launch.
    """
    tensors = sum(isinstance(p, TensorSlot) for p in spec.params) + len(spec.results)
    scalars = len(spec.params) + len(spec.results) - tensors
    size = ctypes.c_uint64(0)
    with current(device):
        code = ENTRY(bound.entry)(
            (ctypes.c_void_p * tensors)(),
            (ctypes.c_int64 * len(extents))(*extents),
            (ctypes.c_double * max(1, scalars))(),
            (ctypes.c_int64 * len(bound.launch_parameters))(*bound.launch_parameters),
            None,
            ctypes.byref(size),
            None,
        )
    if code != 0:
        raise LaunchError(spec.name, code)
    return replace(bound, workspace=size.value)
