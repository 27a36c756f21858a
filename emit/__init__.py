"""Kernel plans to CUTLASS C++."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any, Protocol, cast

from ucutlass.emit.parts import Lean, NotServed
from ucutlass.emit.text import Source, finish
from ucutlass.kernels.planned import Plan
from ucutlass.spans import span

__all__ = ["Lean", "NotServed", "Source", "emit", "in_parts", "parts"]


class Emitter(Protocol):
    """What the module has that a plan names as its emitter. A module without `parts` and `in_parts`
    writes kernels of one file."""

    def render(self, plan: Any) -> str:
        """The code of a plan, as `ucutlass.emit.text.finish` takes it."""


@span("emitting")
def emit(plan: Plan, header: str) -> Source:
    """The stand-alone CUDA file of a plan, with `header` (any text) as its opening comment.

    Raises NotServed for f32 by wgmma where a lean kernel does not serve the plan.
    """
    source = finish(_emitter(plan).render(plan), header, "sm_" + plan.arch.removeprefix("sm"))
    return replace(source, in_parts=in_parts(plan))


def in_parts(plan: Plan) -> bool:
    """Whether a plan's kernel is built in parts or not at all."""
    asks = getattr(_emitter(plan), "in_parts", None)
    return asks is not None and asks(plan)


def parts(plan: Plan) -> Lean:
    """The plan's kernel in the parts that NVRTC builds. Raises NotServed."""
    divide = getattr(_emitter(plan), "parts", None)
    if divide is None:
        raise NotServed("NVRTC builds kernels of one dot alone")
    return cast(Lean, divide(plan))


def _emitter(plan: Plan) -> Emitter:
    # Imported here: most processes need one emitter, if any.
    return cast(Emitter, import_module(plan.emitter))
