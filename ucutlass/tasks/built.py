"""Hands a built program to another process: its plans, and the keys of its artefacts in the cache.

Where these arrive nothing is planned or built again, so no compiler is needed where a GPU is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ucutlass.runtime.errors import CacheError

if TYPE_CHECKING:
    from ucutlass import ir
    from ucutlass.api import LoadedKernel, LoadedPipeline
    from ucutlass.assembly import AnyBuilt, BuiltPipeline
    from ucutlass.backend import Built
    from ucutlass.emit import Source
    from ucutlass.frontend import Checked
    from ucutlass.kernels.planned import Planned
    from ucutlass.runtime.build import Artifact


class ArtifactGone(CacheError):
    """An artefact that should lie in the cache does not any more."""


def artifact_of(key: str) -> Artifact:
    """Returns the artefact of a key in this process's cache. Raises ArtifactGone, CacheError."""
    from ucutlass.runtime.build import cached_artifact
    from ucutlass.runtime.cache import Cache

    cache = Cache.from_switches()
    artifact = cached_artifact(key, cache)
    if artifact is None:
        words = f"{cache.root} has no entry {key[:16]}"
        raise ArtifactGone(words, "give the cache more room, and run it again")
    return artifact


def built_payload(built: AnyBuilt) -> dict[str, Any]:
    """Returns a built program as JSON values for `loaded_built`."""
    from ucutlass.assembly import BuiltPipeline, sizes_of

    kernels = built.built if isinstance(built, BuiltPipeline) else (built,)
    orders = built.plan.orders if isinstance(built, BuiltPipeline) else {}
    return {
        "sizes": list(sizes_of(built)),
        "kernels": [None if k is None else _payload_of(k) for k in kernels],
        "orders": {buffer: list(order) for buffer, order in orders.items()},
    }


def _payload_of(built: Built) -> dict[str, Any]:
    payload = kernel_payload(built.planned, built.artifact.key)
    return payload | {"adopted": built.source.text} if built.adopted else payload


def kernel_payload(planned: Planned, key: str) -> dict[str, Any]:
    """Returns a plan and the key of its artefact."""
    from ucutlass.handoff import plan_payload

    return {"plan": plan_payload(planned), "key": key}


def loaded_built(
    checked: Checked, name: str | None, arch: str | None, payload: Mapping[str, Any]
) -> LoadedKernel | LoadedPipeline:
    """Returns a program as a callable that takes what is built where it is called with the extents of the
    payload. Raises HandoffError, ArtifactGone, CacheError, and as `ucutlass.frontend.program`."""
    from ucutlass import frontend, ir
    from ucutlass.api import LoadedKernel, LoadedPipeline

    program = frontend.program(checked, name)
    if isinstance(program, ir.Pipeline):
        return LoadedPipeline(checked, program, arch, ready=_pipeline(checked, program, payload))
    return LoadedKernel(checked, program, arch, ready=_kernel(checked, program, payload))


def _kernel(checked: Checked, kernel: ir.Kernel, payload: Mapping[str, Any]) -> Built:
    (only,) = payload["kernels"]
    return built_kernel(checked, kernel, only)


def built_kernel(checked: Checked, program: ir.Kernel, payload: Mapping[str, Any]) -> Built:
    """Returns the built kernel of a `kernel_payload`, from this process's cache; its `adopted` is a source that
    was written by hand. Raises as `loaded_built`."""
    from ucutlass.backend import source_of

    return _built(lambda planned: source_of(checked, program, planned), payload)


def _built(source_of_plan: Callable[[Planned], Source], payload: Mapping[str, Any]) -> Built:
    from ucutlass.backend import Built
    from ucutlass.frontend import ChosenPlan
    from ucutlass.handoff import planned_of

    planned = planned_of(payload["plan"])
    artifact = artifact_of(payload["key"])
    if "adopted" in payload:
        from ucutlass.adopt.source import checked as checked_source

        source = checked_source(payload["adopted"].encode(), artifact.arch)
        return Built(ChosenPlan(planned, None), source, artifact, adopted=True)
    return Built(ChosenPlan(planned, None), source_of_plan(planned), artifact)


def _pipeline(checked: Checked, pipeline: ir.Pipeline, payload: Mapping[str, Any]) -> BuiltPipeline:
    """Lays out the pipeline around kernels that are planned and built: its extents, orders and streams follow
    from the program."""
    from ucutlass.assembly import BuiltPipeline, step_source
    from ucutlass.pipeline.orders import permuted
    from ucutlass.pipeline.planning import PipelinePlan, StagePlan
    from ucutlass.pipeline.sized import sized_pipeline, with_kernels
    from ucutlass.pipeline.workspace import streams_of

    orders = {buffer: tuple(order) for buffer, order in payload["orders"].items()}
    kernels = payload["kernels"]
    steps = sized_pipeline(permuted(pipeline, orders), tuple(payload["sizes"]))
    sized = with_kernels(steps, [kernel is not None for kernel in kernels])
    built = tuple(
        None if kernel is None else _built(partial(step_source, checked, sized, step), kernel)
        for step, kernel in zip(sized.steps, kernels, strict=True)
    )
    stages = tuple(
        StagePlan(step, None if kernel is None else kernel.chosen)
        for step, kernel in zip(sized.steps, built, strict=True)
    )
    return BuiltPipeline(PipelinePlan(sized, stages, streams_of(sized), orders), built)
