"""Builds a pipeline's kernels and binds them as one; `load` and `ucc` share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from ucutlass import ir
from ucutlass.backend import (
    Built,
    bind,
    build_kernel,
    build_sources,
    named_source,
    resized,
    source_line,
    source_of,
)
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import NotServed
from ucutlass.emit.text import Source
from ucutlass.frontend import Checked, ChosenPlan, plan_kernel
from ucutlass.header import Signature, signature_of
from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import show
from ucutlass.kernels.planned import Plan, Planned
from ucutlass.pipeline.orders import permuted
from ucutlass.pipeline.planning import Draw, PipelinePlan, StagePlan, as_written, plan_pipeline
from ucutlass.pipeline.sized import SizedPipeline, Step, sized_pipeline, with_kernels
from ucutlass.pipeline.streams import MOST_STREAMS, StreamAssignment
from ucutlass.pipeline.workspace import pointers
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.evidence import ADOPTED
from ucutlass.runtime.parallel import BuildFailure
from ucutlass.runtime.progress import OnProgress, ignore
from ucutlass.runtime.subject import program_digest
from ucutlass.runtime.switches import BuildPath
from ucutlass.shapes import ShapeError
from ucutlass.spans import span

if TYPE_CHECKING:
    from ucutlass.runtime.launch import BoundKernel
    from ucutlass.runtime.launch_sequence import LaunchSequence
    from ucutlass.runtime.verify import StagedLaunch


@dataclass(frozen=True, slots=True)
class BuiltPipeline:
    """A pipeline whose kernels are on disk; `built` is by stage, None for a torch function."""

    plan: PipelinePlan
    built: tuple[Built | None, ...]


AnyBuilt: TypeAlias = Built | BuiltPipeline


def build_program(
    checked: Checked,
    program: ir.Program,
    sizes: Sequence[int],
    arch: str,
    *,
    device: Device | None = None,
    on_progress: OnProgress = ignore,
    build_path: BuildPath | None = None,
) -> AnyBuilt:
    """Builds a kernel or a pipeline. Raises as `build_kernel` and `build_pipeline` do."""
    if isinstance(program, ir.Pipeline):
        return build_pipeline(
            checked, program, sizes, arch, device=device, on_progress=on_progress, build_path=build_path
        )
    return build_kernel(
        checked, program, sizes, arch, device=device, on_progress=on_progress, build_path=build_path
    )


def code_of(sources: Iterable[Source]) -> str:
    """Returns the code of a program's kernels, in the order of its stages, as evidence has it."""
    return "\n".join(source.code for source in sources)


def kernels_of(built: AnyBuilt) -> tuple[Built, ...]:
    """Every kernel of a built program, a stage each, in order."""
    return tuple(b for b in built.built if b is not None) if isinstance(built, BuiltPipeline) else (built,)


def sizes_of(built: AnyBuilt) -> tuple[int, ...]:
    """Every extent that it was planned for, in the order of the program's dims."""
    return built.plan.sizes if isinstance(built, BuiltPipeline) else built.planned.sizes


def schedule_of(built: AnyBuilt) -> str:
    """The schedules as planned; a pipeline's stage by stage, with where they cut."""
    if not isinstance(built, BuiltPipeline):
        return (
            f"{ADOPTED}{program_digest(built.source.code)}" if built.adopted else show(built.planned.request)
        )
    words = [
        f"{stage.step.name}: {show(kernel.planned.request) if kernel is not None else 'torch'}"
        for stage, kernel in zip(built.plan.stages, built.built, strict=True)
    ]
    return " | ".join(words)


def versions_of(built: AnyBuilt) -> dict[str, str]:
    """The tools that took part in the builds."""
    return {k: v for kernel in kernels_of(built) for k, v in kernel.artifact.versions.items()}


def build_pipeline(
    checked: Checked,
    pipeline: ir.Pipeline,
    sizes: Sequence[int],
    arch: str,
    *,
    device: Device | None = None,
    aligned: Sequence[bool] | None = None,
    on_progress: OnProgress = ignore,
    build_path: BuildPath | None = None,
    max_streams: int = MOST_STREAMS,
    draw: Draw = as_written,
) -> BuiltPipeline:
    """Plans all stages, then builds the kernels that the cache lacks, as many at once as the machine takes.
    Raises ShapeError and ProgramError as `plan_pipeline`, the first build's failure, and as `build_sources`.
    """
    plan = plan_pipeline(checked, pipeline, sizes, arch, device, aligned, max_streams, draw)
    results = build_stages(checked, plan, build_path=build_path, on_progress=on_progress)
    failed = next((m for m in results if m is not None and not isinstance(m, Built)), None)
    if failed is not None:
        raise failed
    return BuiltPipeline(plan, tuple(m if isinstance(m, Built) else None for m in results))


def resized_pipeline(built: BuiltPipeline, pipeline: ir.Pipeline, sizes: Sequence[int]) -> BuiltPipeline:
    """Returns the same kernels for other extents of the pipeline, in the order of its `dims`, which they may refuse
    as they are bound or launched. Raises ShapeError as `sized_pipeline` does."""
    plan = built.plan
    sized = sized_pipeline(permuted(pipeline, plan.orders), sizes)
    sized = with_kernels(sized, [kernel is not None for kernel in built.built])
    kernels = [
        None if kernel is None else resized(kernel, step.sizes)
        for kernel, step in zip(built.built, sized.steps, strict=True)
    ]
    stages = tuple(
        StagePlan(step, None if kernel is None else kernel.chosen)
        for step, kernel in zip(sized.steps, kernels, strict=True)
    )
    return BuiltPipeline(replace(plan, sized=sized, stages=stages), tuple(kernels))


@dataclass(frozen=True, slots=True)
class ProgramAtSizes:
    """A program with the extents to build it for, in the order of its dims. `draw` may put other schedules into
    its kernels."""

    checked: Checked
    program: ir.Program
    sizes: tuple[int, ...]
    draw: Draw = as_written


ProgramFailure: TypeAlias = BuildFailure | ProgramError | ShapeError | NotServed


MOST_IN_UNIT = 16
"""Kernels of programs that nvcc compiles as one translation unit, where there are more than cores."""


def start_programs(
    programs: Sequence[ProgramAtSizes],
    arch: str,
    *,
    device: Device | None = None,
    build_path: BuildPath | None = None,
    on_progress: OnProgress = ignore,
) -> Callable[[], tuple[AnyBuilt | ProgramFailure, ...]]:
    """Plans all programs for aligned tensors, and starts to build the kernels of all of them that the cache
    lacks, as many at once as the machine takes. Returns a function that waits for them. What fails takes its
    program's place and stops no other. The function raises ToolchainError."""
    plans: list[PipelinePlan | ChosenPlan | ProgramFailure] = []
    pairs: list[list[tuple[Source, Plan]]] = []
    for job in programs:
        try:
            plan, own = planned_sources(job, arch, device)
            plans.append(plan)
            pairs.append(own)
        except (ProgramError, ShapeError, NotServed) as problem:
            plans.append(problem)
            pairs.append([])
    every = [pair for own in pairs for pair in own]
    builder = ThreadPoolExecutor(1, thread_name_prefix="ucutlass-programs")
    building = builder.submit(
        build_sources, every, build_path=build_path, on_progress=on_progress, group=MOST_IN_UNIT
    )
    builder.shutdown(wait=False)

    def results() -> tuple[AnyBuilt | ProgramFailure, ...]:
        with span("building"):
            artifacts = iter(building.result())
        return tuple(
            _outcome(planned, own, [next(artifacts) for _ in own])
            for planned, own in zip(plans, pairs, strict=True)
        )

    return results


def _outcome(
    planned: PipelinePlan | ChosenPlan | ProgramFailure,
    kernels: Sequence[tuple[Source, Plan]],
    artifacts: Sequence[Artifact | BuildFailure],
) -> AnyBuilt | ProgramFailure:
    if isinstance(planned, Exception):
        return planned
    failed = next((a for a in artifacts if not isinstance(a, Artifact)), None)
    if failed is not None:
        return failed
    ready = [(s, a) for (s, _), a in zip(kernels, artifacts, strict=True) if isinstance(a, Artifact)]
    return _assembled(planned, ready)


def planned_sources(
    job: ProgramAtSizes, arch: str, device: Device | None
) -> tuple[PipelinePlan | ChosenPlan, list[tuple[Source, Plan]]]:
    """Returns a program's plan for aligned tensors, and the source and the plan of each kernel in the order of
    the stages. Raises ProgramError, ShapeError and NotServed."""
    if isinstance(job.program, ir.Pipeline):
        plan = plan_pipeline(job.checked, job.program, job.sizes, arch, device, draw=job.draw)
        pairs = [
            (step_source(job.checked, plan.sized, s.step, s.chosen.planned), s.chosen.planned.plan)
            for s in plan.stages
            if s.chosen is not None
        ]
        return plan, pairs
    kernel = job.draw(job.program, job.sizes)
    chosen = plan_kernel(job.checked, kernel, job.sizes, arch, device)
    return chosen, [(source_of(job.checked, kernel, chosen.planned), chosen.planned.plan)]


def _assembled(plan: PipelinePlan | ChosenPlan, kernels: Sequence[tuple[Source, Artifact]]) -> AnyBuilt:
    if isinstance(plan, ChosenPlan):
        ((source, artifact),) = kernels
        return Built(plan, source, artifact)
    rest = iter(kernels)
    return BuiltPipeline(
        plan,
        tuple(None if stage.chosen is None else Built(stage.chosen, *next(rest)) for stage in plan.stages),
    )


def step_source(checked: Checked, sized: SizedPipeline, step: Step, planned: Planned) -> Source:
    """Returns the stand-alone CUDA file of a step's plan. Raises NotServed as `source_of` does."""
    return named_source(checked, step_signature(sized, step), planned)


def step_signature(sized: SizedPipeline, step: Step) -> Signature:
    """Returns what the entry of a step's kernel takes."""
    match step.stage.call:
        case ir.Kernel() as kernel:
            return signature_of(kernel)
        case ir.TorchCall(function):
            tensors = tuple((name, sized.buffers[name].type) for name in pointers(step))
            dims = () if step.problem is None else step.problem.dims
            return Signature(f"torch.{function}", dims, tensors)


def build_stages(
    checked: Checked,
    plan: PipelinePlan,
    *,
    build_path: BuildPath | None = None,
    on_progress: OnProgress = ignore,
) -> tuple[Built | BuildFailure | None, ...]:
    """Returns the kernels of a plan's stages; a failed build is returned in its kernel's place. Raises as
    `build_sources` does."""
    results: dict[int, Built | BuildFailure] = {}
    kernels = [(i, s.step, s.chosen) for i, s in enumerate(plan.stages) if s.chosen is not None]
    sources = [step_source(checked, plan.sized, step, chosen.planned) for _, step, chosen in kernels]
    pairs = [(source, chosen.planned.plan) for source, (_, _, chosen) in zip(sources, kernels, strict=True)]
    artifacts = build_sources(pairs, build_path=build_path, on_progress=on_progress)
    for (i, step, chosen), source, artifact in zip(kernels, sources, artifacts, strict=True):
        match artifact:
            case Artifact():
                results[i] = Built(chosen, source, artifact)
            case BuildError():
                results[i] = artifact.about(source_line(checked, step.kernel or step.stage))
            case _:
                results[i] = artifact
    return tuple(results.get(i) for i in range(len(plan.stages)))


def bind_pipeline(built: BuiltPipeline, streams: StreamAssignment | None = None) -> LaunchSequence:
    """Loads every kernel, asks how much workspace each needs, and lays all of it out, on the plan's streams
    or on the given ones. Raises as `bind` does."""
    from ucutlass.runtime.pipeline import sequence_of  # here: builds need no torch, which takes a second

    return sequence_of(built.plan.sized, streams or built.plan.streams, _bounds(built))


def bind_stages(built: BuiltPipeline) -> StagedLaunch:
    """Returns the pipeline as the verifier takes it: as a whole, and each stage alone. Raises as `bind`
    does."""
    from ucutlass.runtime.pipeline import staged_launch

    return staged_launch(built.plan.sized, built.plan.streams, _bounds(built))


def _bounds(pipeline: BuiltPipeline) -> list[BoundKernel | None]:
    return [
        None if built is None else bind(built, stage.step.name)
        for stage, built in zip(pipeline.plan.stages, pipeline.built, strict=True)
    ]
