"""A pipeline's kernels, built and bound as one: the way that `load` and `ucc` share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ucutlass import ir
from ucutlass.backend import Built, bind, build_sources, place, source_of
from ucutlass.frontend import Checked
from ucutlass.hardware import Device
from ucutlass.pipeline.lanes import MOST_LANES
from ucutlass.pipeline.planning import Draw, PipelinePlan, as_written, plan_pipeline
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.parallel import Failure
from ucutlass.runtime.progress import OnProgress, ignore
from ucutlass.runtime.switches import Stage as HowBuilt

if TYPE_CHECKING:
    from ucutlass.runtime.series import Series


@dataclass(frozen=True, slots=True)
class BuiltPipeline:
    """A pipeline whose kernels lie on disk; `built` by stage, None for a torch function."""

    plan: PipelinePlan
    built: tuple[Built | None, ...]


def build_pipeline(
    checked: Checked, pipeline: ir.Pipeline, sizes: Sequence[int], arch: str, *,
    device: Device | None = None, aligned: Sequence[bool] | None = None, on_progress: OnProgress = ignore,
    stage: HowBuilt | None = None, most_lanes: int = MOST_LANES, draw: Draw = as_written,
) -> BuiltPipeline:  # fmt: skip
    """Plans all stages, then builds the kernels that the cache lacks, as many at once as the machine takes.
    Raises ShapeError and ProgramError as `plan_pipeline`, the first build's failure, and as `build_sources`.
    """
    plan = plan_pipeline(checked, pipeline, sizes, arch, device, aligned, most_lanes, draw)
    made = build_stages(checked, plan, stage=stage, on_progress=on_progress)
    failed = next((m for m in made if m is not None and not isinstance(m, Built)), None)
    if failed is not None:
        raise failed
    return BuiltPipeline(plan, tuple(m if isinstance(m, Built) else None for m in made))


def build_stages(
    checked: Checked, plan: PipelinePlan, *, stage: HowBuilt | None = None, on_progress: OnProgress = ignore
) -> tuple[Built | Failure | None, ...]:
    """The kernels of a plan's stages; a build that fails takes its place. Raises as `build_sources`."""
    found: dict[int, Built | Failure] = {}
    kernels = [
        (i, s.step.kernel, s.chosen)
        for i, s in enumerate(plan.stages)
        if s.step.kernel is not None and s.chosen is not None
    ]
    sources = [source_of(checked, kernel, chosen.planned) for _, kernel, chosen in kernels]
    pairs = [(source, chosen.planned.plan) for source, (_, _, chosen) in zip(sources, kernels, strict=True)]
    made = build_sources(pairs, stage=stage, on_progress=on_progress)
    for (i, kernel, chosen), source, one in zip(kernels, sources, made, strict=True):
        match one:
            case Artifact():
                found[i] = Built(chosen, source, one)
            case BuildError():
                found[i] = one.about(place(checked, kernel))
            case _:
                found[i] = one
    return tuple(found.get(i) for i in range(len(plan.stages)))


def bind_pipeline(made: BuiltPipeline) -> Series:
    """Loads every kernel, asks what workspace each needs, and lays all of it out. Raises as `bind`."""
    from ucutlass.runtime.pipeline import series_of  # here: builds need no torch, which takes a second

    bounds = [
        None if built is None else bind(built, stage.step.name)
        for stage, built in zip(made.plan.stages, made.built, strict=True)
    ]
    return series_of(made.plan.layout, made.plan.lanes, bounds)
