"""The reference interpreter: evaluates a typed program exactly, in torch with float64 inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass.ir import (
    Cast,
    Dot,
    Gather,
    Kernel,
    ParamDecl,
    ParamType,
    Pipeline,
    Program,
    Read,
    ScalarType,
    Stage,
    TensorType,
    TorchCall,
    Value,
    children,
)
from ucutlass.reference.binding import bind
from ucutlass.reference.contract import Operand
from ucutlass.reference.errors import (
    ArgumentCountError,
    ArgumentKindError,
    DeviceMismatchError,
    ElementMismatchError,
    RequirementError,
)
from ucutlass.reference.indexing import LazyGather, LazyRead
from ucutlass.reference.liveness import steps, unrealised
from ucutlass.reference.named_tensor import Named, from_memory, to_memory
from ucutlass.reference.nodes import KernelCall, step
from ucutlass.reference.packing import dtypes_of
from ucutlass.reference.recurrences import recurrence, scattered, scattered_sum
from ucutlass.reference.rounding import cast, inner_dtype, outer_dtype, store
from ucutlass.spans import span

Argument: TypeAlias = Tensor | float | int


@span("reference")
def evaluate(program: Program, arguments: Sequence[Argument], *, rounded: bool = True) -> tuple[Tensor, ...]:
    """Returns the program's results for these arguments, on their device (the CPU without tensors).

    Tensor arguments have their parameter's dtype and memory order, with any strides. Results have their
    type's dtype or, with `rounded=False`, are the unrounded float64, int64 or bool values. Casts inside the
    program and buffers between a pipeline's launches round either way. Raises the errors of
    `ucutlass.reference.errors`.
    """
    match program:
        case Kernel():
            return _evaluate_kernel(program, arguments, rounded, {})
        case Pipeline():
            return _evaluate_pipeline(program, arguments, rounded)


def _evaluate_kernel(
    kernel: Kernel,
    arguments: Sequence[Argument],
    rounded: bool,
    around: Mapping[str, int],
    device: torch.device | None = None,
) -> tuple[Tensor, ...]:
    call = open_call(kernel, arguments, around, device)
    values = evaluate_values([r.value for r in kernel.results], call)
    out = []
    for value, result in zip(values, kernel.results, strict=True):
        data = store(value.data, result.type.elem) if rounded else value.data
        out.append(to_memory(value.like(data), result.type, call.sizes))
    return tuple(out)


def sizes_of(
    program: Program, arguments: Sequence[Argument], around: Mapping[str, int] = MappingProxyType({})
) -> dict[str, int]:
    """Returns every dimension's extent for these arguments, as `binding.bind` does."""
    return bind(program, [tuple(a.shape) if isinstance(a, Tensor) else None for a in arguments], around)


def open_call(
    kernel: Kernel,
    arguments: Sequence[Argument],
    around: Mapping[str, int],
    device: torch.device | None = None,
) -> KernelCall:
    """Checks the arguments and binds them to a kernel's parameters; `around` is as in `binding.bind`, and `device`
    that of a kernel without tensors, the CPU by default.

    Raises RequirementError where a `require` does not hold.
    """
    check_arguments(kernel, arguments)
    sizes = sizes_of(kernel, arguments, around)
    device = device_of(arguments, device)
    params = [_parameter(p, a, sizes, device) for p, a in zip(kernel.params, arguments, strict=True)]
    call = KernelCall(sizes, params, device)
    for i, condition in enumerate(kernel.requires):
        if not bool(evaluate_values([condition], call)[0].data):
            extents = ", ".join(f"{d} = {n}" for d, n in sizes.items())
            raise RequirementError(f"requirement {i + 1} of {kernel.name} does not hold for {extents}")
    return call


def device_of(arguments: Sequence[Argument], default: torch.device | None = None) -> torch.device:
    """Returns the device of the first tensor; where there is none the default, which is the CPU's."""
    own = next((a.device for a in arguments if isinstance(a, Tensor)), default)
    return own or torch.device("cpu")


def _parameter(
    decl: ParamDecl, argument: Argument, sizes: Mapping[str, int], device: torch.device
) -> Callable[[], Named]:
    match decl.type:
        case TensorType():
            assert isinstance(argument, Tensor)
            return partial(from_memory, argument, decl.type, sizes)
        case ScalarType(elem):
            number = torch.tensor(argument, dtype=inner_dtype(elem), device=device)
            return partial(Named, cast(number, elem), ())


def evaluate_values(roots: Sequence[Value], call: KernelCall) -> list[Named]:
    """Returns the values of the roots. A value that is used twice is computed once and is released after its
    last use."""
    values: dict[Value, Named] = {}
    value_of = values.__getitem__
    for node, ending in steps(roots):
        operand_of = partial(dot_operand, call=call, value_of=value_of) if isinstance(node, Dot) else value_of
        values[node] = step(node, [operand_of(c) for c in children(node)], call)
        for value in ending:
            del values[value]
    return [values[root] for root in roots]


def dot_operand(node: Value, call: KernelCall, value_of: Callable[[Value], Named]) -> Operand:
    """Returns a dot's operand, which is read lazily where it can be (`liveness.unrealised`)."""
    match node:
        case Read(value=inner) if unrealised(node):
            return LazyRead(value_of(inner), node, call.sizes)
        case Cast(value=Read(value=inner) as window, elem=elem) if unrealised(node):
            source = value_of(inner)
            return LazyRead(source.like(cast(source.data, elem)), window, call.sizes)
        case Gather(value=inner, dim=dim, ids=ids) if unrealised(node):
            return LazyGather(value_of(inner), dim, value_of(ids), node.dims)
        case _:
            return value_of(node)


# --- arguments -------------------------------------------------------------------


def check_arguments(program: Program, arguments: Sequence[Argument]) -> None:
    """Checks number, kind, dtype and device of the arguments; `bind` checks their shapes."""
    if len(arguments) != len(program.params):
        names = ", ".join(p.name for p in program.params)
        raise ArgumentCountError(
            f"{program.name} takes {len(program.params)} arguments ({names}), {len(arguments)} were given"
        )
    device: torch.device | None = None
    for decl, argument in zip(program.params, arguments, strict=True):
        _check_kind(decl.name, decl.type, argument)
        if isinstance(argument, Tensor):
            device = device or argument.device
            if argument.device != device:
                raise DeviceMismatchError(
                    f"{decl.name} lies on {argument.device}, the arguments before it on {device}"
                )


def _check_kind(name: str, kind: ParamType, argument: Argument) -> None:
    match kind:
        case TensorType(elem=elem):
            if not isinstance(argument, Tensor):
                raise ArgumentKindError(
                    f"{name} is a tensor of {elem.name}, a {type(argument).__name__} was given"
                )
            if argument.dtype not in (dtypes := dtypes_of(elem)):
                raise ElementMismatchError(
                    f"{name} is {elem.name} ({dtypes[0]}), a tensor of {argument.dtype} was given"
                )
        case ScalarType(elem=elem):
            if isinstance(argument, Tensor) or not isinstance(argument, (int, float)):
                raise ArgumentKindError(
                    f"{name} is a number of type {elem.name}, a {type(argument).__name__} was given; "
                    f"a value on the device would be written {elem.name}[]"
                )


# --- pipelines -------------------------------------------------------------------


def _evaluate_pipeline(
    pipeline: Pipeline, arguments: Sequence[Argument], rounded: bool
) -> tuple[Tensor, ...]:
    check_arguments(pipeline, arguments)
    sizes = sizes_of(pipeline, arguments)
    buffers: dict[str, Argument] = {p.name: a for p, a in zip(pipeline.params, arguments, strict=True)}
    read_later, device = _last_reads(pipeline.stages), device_of(arguments)
    result_names = {name for name, _ in pipeline.results}
    for i, stage in enumerate(pipeline.stages):
        values = stage_arguments(stage, buffers)
        keep = not rounded and all(
            name in result_names and read_later.get(name, -1) < i for name in stage.outputs
        )
        stored = run_stage(stage, values, sizes, rounded=not keep, device=device)
        buffers.update(zip(stage.outputs, stored, strict=True))
    results = [buffers[name] for name, _ in pipeline.results]
    return tuple(r for r in results if isinstance(r, Tensor))


def _last_reads(stages: Sequence[Stage]) -> dict[str, int]:
    return {a: i for i, stage in enumerate(stages) for a in stage.arguments if isinstance(a, str)}


def stage_arguments(stage: Stage, buffers: Mapping[str, Argument]) -> list[Argument]:
    return [buffers[a] if isinstance(a, str) else a for a in stage.arguments]


def run_stage(
    stage: Stage,
    arguments: Sequence[Argument],
    sizes: Mapping[str, int],
    *,
    rounded: bool = True,
    device: torch.device | None = None,
) -> tuple[Tensor, ...]:
    """Returns what a stage stores; `device` is that of one without tensors, the CPU by default."""
    match stage.call:
        case Kernel():
            return _evaluate_kernel(stage.call, arguments, rounded, sizes, device)
        case TorchCall():
            return torch_call(stage.call, arguments)


TORCH_FUNCTIONS: Mapping[str, Callable[..., Tensor | tuple[Tensor, ...]]] = MappingProxyType(
    {
        "argsort": torch.argsort,
        "cumprod": torch.cumprod,
        "cumsum": torch.cumsum,
        "diag": torch.diag,
        "flip": lambda x, dims=0: torch.flip(x, [dims]),
        "gru": recurrence("gru", 1),
        "inverse": torch.linalg.inv,
        "log_softmax": torch.log_softmax,
        "lstm": recurrence("lstm", 2),
        "matmul": torch.matmul,
        "relu": torch.relu,
        "rnn_relu": recurrence("rnn_relu", 1),
        "rnn_tanh": recurrence("rnn_tanh", 1),
        "roll": torch.roll,
        "scatter": scattered,
        "scatter_add": scattered_sum,
        "softmax": torch.softmax,
        "sort": lambda x, dim=-1, descending=False: torch.sort(x, dim=dim, descending=descending).values,
        "tril": torch.tril,
        "triu": torch.triu,
    }
)
"""What `torch.NAME(..)` may call: functions of tensors with one tensor or several as results. `ucutlass.torch_functions`
says what each takes and returns; the checker has refused everything else by it."""


def torch_call(call: TorchCall, arguments: Sequence[Argument]) -> tuple[Tensor, ...]:
    """Calls the torch function in its arguments' own dtypes and converts its results to the declared ones."""
    typed_results = zip(torch_results(call, arguments), call.results, strict=True)
    return tuple(result.to(outer_dtype(type_.elem)) for result, type_ in typed_results)


def torch_results(call: TorchCall, arguments: Sequence[Argument]) -> tuple[Tensor, ...]:
    """Calls the torch function in its arguments' own dtypes. Returns the results that the call gives."""
    results = TORCH_FUNCTIONS[call.function](*arguments, **dict(call.keywords))
    every = results if isinstance(results, tuple) else (results,)
    return tuple(every[number] for number in call.gives)
