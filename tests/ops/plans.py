"""Plans of an operator's program for given tensors, which need no data."""

from __future__ import annotations

import torch

from ucutlass import frontend, ir
from ucutlass.ops.programs import ProgramCall, served
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.runtime.arguments import bind
from ucutlass.runtime.launch_spec import TensorSlot, spec_of


def plan_call(call: ProgramCall, dtype: torch.dtype, arch: str) -> None:
    """Raises ProgramError where no legal kernel exists."""
    loaded = served(call.file, call.name, dtype, call.activation).loaded
    spec = spec_of(loaded.program)
    slots = [p for p in spec.params if isinstance(p, TensorSlot)]
    tensors = [a for a in call.arguments if isinstance(a, torch.Tensor)]
    sizes = bind(spec, [(s.name, tuple(t.shape), s) for s, t in zip(slots, tensors, strict=True)])
    if isinstance(loaded.program, ir.Pipeline):
        plan_pipeline(loaded.checked, loaded.program, sizes, arch)
    else:
        frontend.plan_kernel(loaded.checked, loaded.program, sizes, arch)
