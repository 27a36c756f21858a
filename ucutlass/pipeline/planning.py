"""Plans a pipeline at concrete extents: a kernel for each stage, the streams that they run on, and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from ucutlass import frontend, ir
from ucutlass.frontend import Checked, ChosenPlan
from ucutlass.ir.hardware import ARCHES, Device
from ucutlass.kernels.families import plan_call
from ucutlass.pipeline.orders import Orders, choose_orders, permuted
from ucutlass.pipeline.sized import SizedPipeline, Step, sized_pipeline
from ucutlass.pipeline.streams import MOST_STREAMS, StreamAssignment
from ucutlass.pipeline.workspace import pointers, streams_of
from ucutlass.spans import span

Draw: TypeAlias = Callable[[ir.Kernel, tuple[int, ...]], ir.Kernel]
"""Returns a kernel with the schedules that it is to be planned with at these extents."""


def as_written(kernel: ir.Kernel, _: tuple[int, ...]) -> ir.Kernel:
    """Returns the kernel as the program has it."""
    return kernel


@dataclass(frozen=True, slots=True)
class StagePlan:
    """A step with the plan of its kernel; None for a torch function that torch computes."""

    step: Step
    chosen: ChosenPlan | None


@dataclass(frozen=True, slots=True)
class PipelinePlan:
    """Everything about a pipeline that is decided before anything is built. The workspace is laid out once
    the kernels have reported how much they need (`ucutlass.pipeline.workspace.workspace_layout`). `orders`
    are those of the buffers whose memory order the text leaves out; the sized pipeline has them applied."""

    sized: SizedPipeline
    stages: tuple[StagePlan, ...]
    streams: StreamAssignment
    orders: Orders = field(default_factory=dict)

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.sized.sizes.values())

    @property
    def torch_stages(self) -> tuple[str, ...]:
        """The names of the stages that torch computes, which the compiler treats as opaque."""
        return tuple(s.step.name for s in self.stages if s.chosen is None)


@span("planning")
def plan_pipeline(
    checked: Checked,
    pipeline: ir.Pipeline,
    sizes: Sequence[int],
    arch: str,
    device: Device | None = None,
    aligned: Sequence[bool] | None = None,
    max_streams: int = MOST_STREAMS,
    draw: Draw = as_written,
) -> PipelinePlan:
    """Returns the plan for concrete extents, given in the order of `pipeline.dims`. `aligned` says whether
    each pointer of the call (tensor parameters, then results) is a multiple of 16 bytes; None means that all
    are. `draw` may put other schedules into each stage's kernel.

    Raises ShapeError as `sized_pipeline` does, and ProgramError where a stage has no legal kernel.
    """
    extents = tuple(sizes)
    orders = choose_orders(pipeline, extents, estimator(checked, arch, device, draw))
    sized = sized_pipeline(permuted(pipeline, orders), extents)
    outside = (*sized.params, *sized.results)
    alignment = dict(zip(outside, aligned or [True] * len(outside), strict=True))
    stages = tuple(_stage(checked, step, arch, device, alignment, draw) for step in sized.steps)
    planned = replace(sized, steps=tuple(stage.step for stage in stages))
    return PipelinePlan(planned, stages, streams_of(planned, max_streams), orders)


def in_order(checked: Checked, pipeline: ir.Pipeline, sizes: Sequence[int], arch: str) -> ir.Pipeline:
    """Returns the pipeline with an order for every buffer. Raises ShapeError as `sized_pipeline` does."""
    if not pipeline.unordered:
        return pipeline
    return permuted(pipeline, choose_orders(pipeline, tuple(sizes), estimator(checked, arch)))


def estimator(
    checked: Checked, arch: str, device: Device | None = None, draw: Draw = as_written
) -> Callable[[Step], float]:
    """Returns a function from a step to its estimated seconds on aligned tensors; it raises ProgramError
    where the step has no legal kernel."""

    def seconds(step: Step) -> float:
        if step.kernel is None:
            return 0.0
        chosen = _stage(checked, step, arch, device, {}, draw).chosen
        return 0.0 if chosen is None else chosen.planned.seconds

    return seconds


def _stage(
    checked: Checked, step: Step, arch: str, device: Device | None, aligned: Mapping[str, bool], draw: Draw
) -> StagePlan:
    kernel = step.kernel
    if kernel is None:
        planned = None if step.problem is None else plan_call(step.problem, ARCHES[arch], device)
        if planned is None:
            return StagePlan(replace(step, problem=None), None)
        return StagePlan(step, ChosenPlan(planned, None))
    flags = [aligned.get(name, True) for name in pointers(step)]
    scheduled = draw(kernel, step.sizes)
    return StagePlan(step, frontend.plan_kernel(checked, scheduled, step.sizes, arch, device, flags))
