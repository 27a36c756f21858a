"""From a pipeline and its extents to a kernel for each stage, the streams they run on, and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from ucutlass import frontend, ir
from ucutlass.frontend import Checked, Chosen
from ucutlass.hardware import Device
from ucutlass.pipeline.lanes import MOST_LANES, Lanes
from ucutlass.pipeline.layout import Layout, Step, layout
from ucutlass.pipeline.workspace import lanes_of, pointers
from ucutlass.spans import span

Draw: TypeAlias = Callable[[ir.Kernel, tuple[int, ...]], ir.Kernel]
"""A kernel with the schedules that it is to be planned with, for these extents."""


def as_written(kernel: ir.Kernel, _: tuple[int, ...]) -> ir.Kernel:
    """The kernel as the program has it."""
    return kernel


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A step with its kernel's plan; None for a torch function."""

    step: Step
    chosen: Chosen | None


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """All of a pipeline that is decided before anything is built. The workspace is laid out once kernels
    have said how much they need (`ucutlass.pipeline.workspace.memory`)."""

    layout: Layout
    stages: tuple[StagePlan, ...]
    lanes: Lanes

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.layout.sizes.values())

    @property
    def torch_stages(self) -> tuple[str, ...]:
        """The names of the stages that the compiler does not look into."""
        return tuple(s.step.name for s in self.stages if s.chosen is None)


@span("planning")
def plan_pipeline(
    checked: Checked, pipeline: ir.Pipeline, sizes: Sequence[int], arch: str, device: Device | None = None,
    aligned: Sequence[bool] | None = None, most_lanes: int = MOST_LANES, draw: Draw = as_written,
) -> PipelinePlan:  # fmt: skip
    """The plan for concrete extents, in the order of `pipeline.dims`. `aligned`: whether each pointer of
    the call (tensor parameters, then results) is a multiple of 16 bytes; None: all are. `draw` may put
    other schedules into each stage's kernel.

    Raises ShapeError as `layout`, and ProgramError where a stage has no legal kernel.
    """
    found = layout(pipeline, sizes)
    outside = (*found.params, *found.results)
    known = dict(zip(outside, aligned or [True] * len(outside), strict=True))
    stages = tuple(_stage(checked, step, arch, device, known, draw) for step in found.steps)
    return PipelinePlan(found, stages, lanes_of(found, most_lanes))


def _stage(
    checked: Checked, step: Step, arch: str, device: Device | None, aligned: Mapping[str, bool], draw: Draw
) -> StagePlan:
    kernel = step.kernel
    if kernel is None:
        return StagePlan(step, None)
    flags = [aligned.get(name, True) for name in pointers(step)]
    drawn = draw(kernel, step.sizes)
    return StagePlan(step, frontend.plan_kernel(checked, drawn, step.sizes, arch, device, flags))
