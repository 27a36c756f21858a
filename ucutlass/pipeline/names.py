"""Maps a stage's dimensions to the pipeline's names, and a step to its stage in the text."""

from __future__ import annotations

from collections.abc import Mapping

from ucutlass.ir import Kernel, Pipeline, Stage, TensorType
from ucutlass.pipeline.copy_elision import elided_copies
from ucutlass.pipeline.orders import Orders, permuted
from ucutlass.pipeline.sized import SizedPipeline, Step


def outer_names(sized: SizedPipeline, step: Step) -> Mapping[str, str]:
    """Returns `stage_names` of a step."""
    return stage_names(sized.pipeline, step.stage)


def stage_names(pipeline: Pipeline, stage: Stage) -> Mapping[str, str]:
    """Returns the pipeline's name for each dimension of a stage's kernel, as far as an axis tells it: an axis
    that the two sides split differently tells nothing. The mapping is empty for a torch function."""
    kernel = stage.call
    if not isinstance(kernel, Kernel):
        return {}
    types = {p.name: p.type for p in pipeline.params} | dict(pipeline.buffers) | dict(pipeline.results)
    typed_names = [(p.type, a) for p, a in zip(kernel.params, stage.arguments, strict=True)]
    typed_names += [(r.type, o) for r, o in zip(kernel.results, stage.outputs, strict=True)]
    pipeline_names: dict[str, str] = {}
    for mine, name in typed_names:
        theirs = types[name] if isinstance(name, str) else None
        if not isinstance(mine, TensorType) or not isinstance(theirs, TensorType):
            continue
        for here, there in zip(mine.axes, theirs.axes, strict=True):
            if len(here.dims) == len(there.dims):
                for dim, outer in zip(here.dims, there.dims, strict=True):
                    pipeline_names.setdefault(dim, outer)
    return pipeline_names


def written_stage(pipeline: Pipeline, orders: Orders, step: Step) -> Stage:
    """Returns the stage of the text that a step of the sized pipeline stands for. A step that fills a result
    may be the one that stores the buffer that the text returns."""
    ordered_pipeline = permuted(pipeline, orders)
    stored = {
        result: name
        for name, result in elided_copies(
            ordered_pipeline.stages, ordered_pipeline.buffers, ordered_pipeline.results
        ).items()
    }
    output_names = {stored.get(output, output) for output in step.stage.outputs}
    return next(stage for stage in pipeline.stages if output_names & {*stage.outputs})
