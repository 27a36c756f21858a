"""A pipeline at concrete extents: each stage's own extents, each buffer's shape, and the dependences of
stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from ucutlass import inference, ir
from ucutlass.ir import Kernel, MemoryAxis, Pipeline, Stage, TensorType
from ucutlass.ir.extents import Extent, Fixed, show
from ucutlass.kernels.call_family import CallProblem
from ucutlass.kernels.families import match_call
from ucutlass.pipeline.copy_elision import elided_copies
from ucutlass.shapes import MAX_ELEMENTS, ShapeError, check_requirements
from ucutlass.torch_functions import TORCH_SIGNATURES


@dataclass(frozen=True, slots=True)
class Buffer:
    """A dense tensor of a pipeline: a parameter, a buffer that a stage stores, or a result."""

    name: str
    type: TensorType
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return -(-prod(self.shape) * self.type.elem.bits // 8)


@dataclass(frozen=True, slots=True)
class Step:
    """A stage at concrete extents, given in the order of its kernel's `dims`, or of those of `problem`: what a kernel of
    ours is to compute of a torch function. `after` has the numbers of the steps that fill what this step reads."""

    name: str
    stage: Stage
    sizes: tuple[int, ...]
    after: frozenset[int]
    problem: CallProblem | None = None

    @property
    def by_torch(self) -> bool:
        """Whether torch runs the step."""
        return self.kernel is None and self.problem is None

    @property
    def kernel(self) -> Kernel | None:
        """The stage's kernel; None for a torch function."""
        return self.stage.call if isinstance(self.stage.call, Kernel) else None

    @property
    def reads(self) -> tuple[str, ...]:
        """The names among its arguments, tensors and host scalars alike, each once."""
        return tuple(dict.fromkeys(a for a in self.stage.arguments if isinstance(a, str)))


@dataclass(frozen=True, slots=True)
class SizedPipeline:
    """`pipeline` is the pipeline without elided copies (`without_copies`) and `sizes` has each of its extents
    in its order. `buffers` has the parameters that are tensors, then the buffers that stages fill, in that
    order."""

    pipeline: Pipeline
    sizes: Mapping[str, int]
    steps: tuple[Step, ...]
    buffers: Mapping[str, Buffer]

    @property
    def params(self) -> tuple[str, ...]:
        return tuple(p.name for p in self.pipeline.params if isinstance(p.type, TensorType))

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.pipeline.results)

    @property
    def intermediates(self) -> tuple[str, ...]:
        """The buffers that no caller sees, which the workspace holds."""
        outside = {*self.params, *self.results}
        return tuple(name for name in self.buffers if name not in outside)

    def producer(self, name: str) -> int | None:
        """Returns the step that fills a buffer; None for a parameter."""
        return next((i for i, s in enumerate(self.steps) if name in s.stage.outputs), None)

    def readers(self, name: str) -> tuple[int, ...]:
        return tuple(i for i, s in enumerate(self.steps) if name in s.reads)


def sized_pipeline(pipeline: Pipeline, sizes: Sequence[int]) -> SizedPipeline:
    """Returns the pipeline at these extents, given in the order of `pipeline.dims`.

    A torch function that a family of kernels has is taken as theirs, until `with_kernels` says which are built.

    Raises ShapeError UC0602 where a stage's tensors do not fit its kernel at these extents, and UC0603 where
    the kernel's requirement fails.
    """
    return with_copies(without_copies(pipeline), sizes)


def with_copies(pipeline: Pipeline, sizes: Sequence[int]) -> SizedPipeline:
    """Does what `sized_pipeline` does and keeps the stages that only copy."""
    named_sizes = dict(zip(pipeline.dims, sizes, strict=True))
    types: dict[str, TensorType] = {p.name: p.type for p in pipeline.params if isinstance(p.type, TensorType)}
    types |= dict(pipeline.buffers) | dict(pipeline.results)
    buffers: dict[str, Buffer] = {
        p: _buffer(p, types[p], named_sizes) for p in types if p in _tensors(pipeline)
    }
    filled: dict[str, int] = {}
    steps: list[Step] = []
    for number, stage in enumerate(pipeline.stages):
        for name in stage.outputs:
            buffers[name] = _buffer(name, types[name], named_sizes)
        problem = _call_problem(stage, buffers, pipeline.dims)
        if problem is not None:
            extents = problem.sizes
        else:
            extents = stage_sizes(stage, buffers, named_sizes) if isinstance(stage.call, Kernel) else ()
        needs = frozenset(filled[a] for a in stage.arguments if isinstance(a, str) and a in filled)
        steps.append(Step(stage_name(stage), stage, extents, needs, problem))
        filled |= dict.fromkeys(stage.outputs, number)
    return SizedPipeline(pipeline, named_sizes, tuple(steps), buffers)


def alone(sized: SizedPipeline, step: Step) -> Pipeline:
    """Returns a pipeline of one step, whose parameters are the tensors that it reads, each once."""
    tensors = [sized.buffers[name] for name in step.reads if name in sized.buffers]
    results = tuple((name, sized.buffers[name].type) for name in step.stage.outputs)
    types = [t.type for t in tensors] + [kind for _, kind in results]
    names = {name for kind in types for name in kind.dims}
    dims = {name: extent for name, extent in sized.pipeline.dims.items() if name in names}
    params = tuple(ir.ParamDecl(t.name, t.type) for t in tensors)
    return Pipeline(step.name, dims, params, results, (), (step.stage,))


def with_kernels(sized: SizedPipeline, has_kernel: Sequence[bool]) -> SizedPipeline:
    """Returns the pipeline as it is launched; `has_kernel` says by step whether a kernel of ours computes it."""
    pairs = zip(sized.steps, has_kernel, strict=True)
    return replace(sized, steps=tuple(s if own else replace(s, problem=None) for s, own in pairs))


def _tensors(pipeline: Pipeline) -> frozenset[str]:
    return frozenset(p.name for p in pipeline.params if isinstance(p.type, TensorType))


def stage_name(stage: Stage) -> str:
    """Returns a stage's name for reports: the buffers that it fills, and the kernel or function that it
    calls."""
    outputs = ", ".join(stage.outputs)
    match stage.call:
        case Kernel(name=name):
            return outputs if name in stage.outputs else f"{outputs} = {name}"
        case ir.TorchCall(function):
            return f"{outputs} = torch.{function}"


def _buffer(name: str, type_: TensorType, sizes: Mapping[str, int]) -> Buffer:
    return Buffer(name, type_, tuple(inference.length(axis, sizes) for axis in type_.axes))


# --- a stage's extents -----------------------------------------------------------


def _call_problem(
    stage: Stage, buffers: Mapping[str, Buffer], dims: Mapping[str, Extent]
) -> CallProblem | None:
    """Returns the problem of a stage that calls a torch function for which there are kernels, where its extents are those
    of every call; None of another stage, and of one that converts what torch gives."""
    if not isinstance(stage.call, ir.TorchCall):
        return None
    tensors = [buffers[a] for a in stage.arguments if isinstance(a, str) and a in buffers]
    if not all(_is_fixed(axis, dims) for tensor in tensors for axis in tensor.type.axes):
        return None
    call = stage.call
    gives = TORCH_SIGNATURES[call.function].gives
    if any(result.elem != gives(tensors[0].type.elem) for result in call.results):
        return None
    elements, shapes = [t.type.elem for t in tensors], [t.shape for t in tensors]
    return match_call(call.function, dict(call.keywords), call.gives, elements, shapes)


def _is_fixed(axis: MemoryAxis, dims: Mapping[str, Extent]) -> bool:
    extents = [dims[d] for d in axis.dims] or [axis.extent]
    return all(isinstance(extent, Fixed) for extent in extents)


def stage_sizes(stage: Stage, buffers: Mapping[str, Buffer], around: Mapping[str, int]) -> tuple[int, ...]:
    """Returns every extent of a stage's kernel, in the order of its `dims`; `around` has the pipeline's
    extents. Raises ShapeError as `sized_pipeline` does."""
    kernel = stage.call
    assert isinstance(kernel, Kernel)
    operand_axes = [
        operand_axis
        for decl, argument in zip(kernel.params, stage.arguments, strict=True)
        if isinstance(decl.type, TensorType) and isinstance(argument, str)
        for operand_axis in inference.operand_axes(decl.name, decl.type.axes, buffers[argument].shape)
    ]
    inferred = inference.infer(kernel.dims, operand_axes, around, least=1)
    if not isinstance(inferred, inference.Inferred):
        raise ShapeError("UC0602", f"stage {stage_name(stage)}: {_problem_text(kernel, inferred)}")
    sizes = {d: inferred.sizes[d] for d in kernel.dims}
    for dim, size in sizes.items():
        if size > MAX_ELEMENTS:
            raise ShapeError("UC0601", f"stage {stage_name(stage)}: {dim} is {size}, at most 2**40 fit")
    for decl, name in zip(kernel.results, stage.outputs, strict=True):
        shape = tuple(inference.length(axis, sizes) for axis in decl.type.axes)
        if shape != buffers[name].shape:
            raise ShapeError(
                "UC0602",
                f"stage {stage_name(stage)}: its result has shape {list(shape)} at these extents, "
                f"{name} is {list(buffers[name].shape)}",
            )
    check_requirements(kernel, sizes)
    return tuple(sizes.values())


def _problem_text(kernel: Kernel, problem: inference.Problem) -> str:
    match problem:
        case inference.UnknownExtents(dims):
            return f"nothing says how long {', '.join(dims)} is"
        case inference.DividesByZero(dim, _):
            return f"{dim} = {show(kernel.dims[dim])} divides by zero"
        case inference.TooSmall(dim, inferred):
            return f"{dim} is {inferred.sizes[dim]}; every extent is at least 1"
        case inference.UnevenSplit(operand_axis, _, length, _) | inference.ExtentConflict(
            operand_axis, length, _
        ):
            return f"axis {operand_axis.axis} of {operand_axis.argument} has {operand_axis.size} elements where {length} fit"


# --- copies ----------------------------------------------------------------------


def without_copies(pipeline: Pipeline) -> Pipeline:
    """Returns the pipeline without stages that only copy a stored buffer into a result of the same type: the
    buffer becomes that result. A buffer that is returned twice, or a parameter, is still copied."""
    renamed = elided_copies(pipeline.stages, pipeline.buffers, pipeline.results)
    if not renamed:
        return pipeline
    stages = [s for s in pipeline.stages if s.outputs[0] not in renamed.values()]
    return replace(
        pipeline,
        buffers=tuple((n, t) for n, t in pipeline.buffers if n not in renamed),
        stages=tuple(_renamed(stage, renamed) for stage in stages),
    )


def _renamed(stage: Stage, names: Mapping[str, str]) -> Stage:
    call = stage.call
    if isinstance(call, Kernel) and call.name in stage.outputs:  # written in place, so named after its buffer
        call = replace(call, name=names.get(call.name, call.name))
    return replace(
        stage,
        call=call,
        arguments=tuple(names.get(a, a) if isinstance(a, str) else a for a in stage.arguments),
        outputs=tuple(names.get(o, o) for o in stage.outputs),
    )


def kernels(pipeline: Pipeline) -> Iterator[Kernel]:
    """Yields the kernel of every stage that is no torch function, in order and once each."""
    visited: set[int] = set()
    for stage in without_copies(pipeline).stages:
        if isinstance(stage.call, Kernel) and id(stage.call) not in visited:
            visited.add(id(stage.call))
            yield stage.call
