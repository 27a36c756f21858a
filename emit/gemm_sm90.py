"""Warp-specialised TMA kernels for Hopper: a plan with an Sm90Schedule to CUTLASS 3.x C++.

The main loop and the epilogue are CUTLASS's, made by its collective builders. The epilogue's
access structure becomes visitor nodes, one for each operand and result, and one node of ours
that calls the arithmetic for each element. Operands over M and N of route "tma" come through
shared memory, the first as CUTLASS's source C; the first result of that route is D. Reductions
leave partial results in the workspace, which a second small kernel combines in a fixed order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.elements import BOOL, Element
from ucutlass.emit import text
from ucutlass.emit.arithmetic import ArithmeticText, arithmetic
from ucutlass.emit.functions import CPP
from ucutlass.plan import (
    Access,
    GemmPlan,
    GemmProblem,
    Product,
    Reduction,
    ScalarKind,
    Sm90Schedule,
    Store,
    Stride,
)

ACCUMULATORS: Mapping[str, str] = MappingProxyType(
    {"f32": "float", "fast": "float", "f16": "cutlass::half_t", "s32": "int32_t"}
)
"""The accumulator's C++ type, by the word in `GemmProblem.accumulate`."""

_WARPS: Mapping[str, tuple[str, str, int]] = MappingProxyType(
    {
        "pingpong": ("KernelTmaWarpSpecializedPingpong", "TmaWarpSpecialized", 4),
        "cooperative": ("KernelTmaWarpSpecializedCooperative", "TmaWarpSpecializedCooperative", 8),
    }
)
"""Main loop schedule, epilogue schedule and the warps that share a tile's epilogue."""

_SCHEDULERS: Mapping[str, str] = MappingProxyType(
    {"persistent": "PersistentScheduler", "stream_k": "StreamKScheduler"}
)

_OPERATIONS: Mapping[str, str] = MappingProxyType({"sum": "Sum", "max": "Max", "min": "Min"})

_FP8_PROMOTION = 4
"""CUTLASS's default: instructions that the tensor core sums before a partial fp8 sum is added
to the f32 accumulator (`mma_promotion_interval`). It has to be whole k tiles."""

_FP8_MMA_K = 32
"""Elements of K that one fp8 wgmma takes."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor as C++: its types, and expressions over the entry's arguments."""

    pointer: int
    element: str
    tma_elements: int  # in 16 bytes
    stride_type: str
    stride_value: str
    strides: tuple[str, ...]  # the dynamic ones


@dataclass(frozen=True, slots=True)
class Node:
    """A visitor node: its C++ name, its declaration and the initialiser of its arguments."""

    name: str
    declaration: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Value:
    """An operand or result inside the visitor: the array of its values, their C++ type in the
    arithmetic and in the array, and the child that makes or takes it; None for CUTLASS's D."""

    name: str
    local: str
    compute: str
    child: int | None


@dataclass(frozen=True, slots=True)
class Combine:
    """The second launch of a reduction, as C++ expressions over the entry's variables."""

    index: int
    op: str
    compute: str
    element: str
    pointer: int
    columns: int
    parts: str
    extent: str
    stride: str
    kept_l: str
    kept_out: str
    summed_l: str


def render(plan: GemmPlan) -> str:
    """The kernel's code, with `text.PLACEHOLDER` for the entry's name.

    Raises ValueError for a plan that this family cannot hold: another schedule, k in several
    modes, or a reduction over batch modes alone.
    """
    schedule, problem = plan.schedule, plan.problem
    if not isinstance(schedule, Sm90Schedule):
        raise ValueError(f"not a schedule of this family: {schedule}")
    if len(problem.k) != 1:
        raise ValueError(f"a TMA main loop contracts one mode, the plan has {len(problem.k)}")
    operation = arithmetic(problem)
    mainloop, epilogue, warps = _WARPS[schedule.warps]
    source, destination = _source(plan), _destination(plan)
    reductions = [(j, o) for j, o in enumerate(problem.outputs) if isinstance(o, Reduction)]
    combines = [_combine(output, j, operation.outputs[j]) for j, output in reductions]
    nodes, inputs, outputs = _nodes(plan, operation, source, destination)
    a, b = _tensor(problem.a, (problem.a.m, *problem.a.k)), _tensor(problem.b, (problem.b.n, *problem.b.k))
    c = None if source is None else _matrix(problem.inputs[source])
    d = None if destination is None else _matrix(problem.outputs[destination].access)
    fast = problem.accumulate == "fast"
    return text.render(
        "gemm_sm90.j2",
        a=a,
        b=b,
        c=c,
        d=d,
        accumulator=ACCUMULATORS[problem.accumulate],
        arithmetic=operation.text,
        problem_shape=f"Shape<int, int, int, {_batch_type(len(problem.batch))}>",
        void_stride=f"Stride<int64_t, _1, {_grouped('Stride', ['_0'] * len(problem.batch), '_0')}>",
        tile=schedule.tile,
        cluster=schedule.cluster,
        stages=schedule.stages,
        warps=warps,
        mainloop_schedule=mainloop + ("FP8FastAccum" if fast else ""),
        epilogue_schedule=epilogue,
        scheduler=_SCHEDULERS[schedule.scheduler],
        stream_k=schedule.scheduler == "stream_k",
        promotion=_promotion(problem, schedule),
        nodes=nodes,
        tma_loads=any(node.declaration.startswith("TmaLoad") for node in nodes),
        tma_stores=any(node.declaration.startswith("TmaStore") for node in nodes),
        single_loads=any(access.shape in ("scalar", "batch") for access in problem.inputs),
        inputs=inputs,
        outputs=outputs,
        destination=None if destination is None else outputs[destination],
        call=_call(operation, inputs, outputs),
        coordinates=operation.coordinates,
        reductions={_reduced_modes(output) for _, output in reductions},
        combines=combines,
        modes=[_extent(product) for product in (problem.m, problem.n, *problem.k)],
        batch=[_extent(product) for product in problem.batch],
        pointers=problem.pointers,
        scalars=problem.scalars,
        tma=_through_tma(plan, a, b),
        vectors=_vectors(plan),
    )


def _promotion(problem: GemmProblem, schedule: Sm90Schedule) -> int | None:
    """fp8's `mma_promotion_interval` where CUTLASS's own does not fit the k tile."""
    instructions = schedule.tile[2] // _FP8_MMA_K
    promotes = problem.lane.kind == "float" and problem.lane.bits == 8 and problem.accumulate != "fast"
    return instructions if promotes and _FP8_PROMOTION % instructions else None


# --- tensors ----------------------------------------------------------------------


def _extent(product: Product) -> str:
    return text.product(product, "extents")


def _element(elem: Element) -> str:
    """The C++ type in memory. A bool is a byte: CUTLASS's arrays would pack `bool` into bits."""
    return "uint8_t" if elem == BOOL else elem.cpp


def _grouped(maker: str, parts: Sequence[str], none: str) -> str:
    """Batch modes as CUTLASS's one: none, the mode itself, or a nested tuple."""
    match parts:
        case []:
            return none
        case [part]:
            return part
        case _:
            return f"{maker}<{', '.join(parts)}>" if maker[0].isupper() else f"{maker}({', '.join(parts)})"


def _batch_type(modes: int) -> str:
    return _grouped("Shape", ["int"] * modes, "int")


def _stride(strides: Sequence[Stride], unit: int | None) -> tuple[list[str], list[str]]:
    """The types and the values of strides; the one at `unit` is 1 and static."""
    types, values = [], []
    for i, stride in enumerate(strides):
        if stride is None or i == unit:
            types.append("_0" if stride is None else "_1")
            values.append(types[-1] + "{}")
        else:
            types.append("int64_t")
            values.append(_extent(stride) if stride else "int64_t(1)")
    return types, values


def _tensor(access: Access, modes: tuple[Stride, ...]) -> Tensor:
    """The tensor over two modes and the batch; of two unit strides the last mode's is static."""
    unit = max((i for i, stride in enumerate(modes) if stride == ()), default=None)
    types, values = _stride(modes, unit)
    batch_types, batch_values = _stride(access.batch, None)
    types.append(_grouped("Stride", batch_types, "_0"))
    dynamic = [v for t, v in zip((*types[:2], *batch_types), (*values, *batch_values), strict=False) if t == "int64_t"]
    values.append(_grouped("make_stride", batch_values, "_0{}"))
    return Tensor(
        pointer=access.pointer,
        element=_element(access.elem),
        tma_elements=16 // access.elem.bytes,
        stride_type=f"Stride<{', '.join(types)}>",
        stride_value=f"make_stride({', '.join(values)})",
        strides=tuple(dynamic),
    )


def _matrix(access: Access) -> Tensor:
    return _tensor(access, (access.m, access.n))


# --- the access structure ---------------------------------------------------------


def _source(plan: GemmPlan) -> int | None:
    """The input that becomes CUTLASS's C: the first that TMA loads."""
    routes = plan.routes[: len(plan.problem.inputs)]
    return next((i for i, route in enumerate(routes) if route == "tma"), None)


def _destination(plan: GemmPlan) -> int | None:
    """The output that becomes CUTLASS's D: the first that TMA stores."""
    routes = plan.routes[len(plan.problem.inputs) :]
    return next((j for j, route in enumerate(routes) if route == "tma"), None)


def _nodes(
    plan: GemmPlan, operation: ArithmeticText, source: int | None, destination: int | None
) -> tuple[list[Node], list[Value], list[Value]]:
    """The visitor's children in order, and what passes between them and the arithmetic."""
    problem = plan.problem
    routes = iter(plan.routes)
    nodes = [Node("Parameters", "", "arithmetic_params(extents, scalars)")]
    inputs, outputs = [], []
    for i, (access, kind) in enumerate(zip(problem.inputs, operation.inputs, strict=True)):
        direct = next(routes) == "direct"
        nodes.append(_load(access, f"Input{i}", direct, i == source))
        inputs.append(Value(f"x{i}", CPP[kind], _compute(kind), len(nodes) - 1))
    for j, (output, kind) in enumerate(zip(problem.outputs, operation.outputs, strict=True)):
        direct, child, compute = next(routes) == "direct", None, _compute(kind)
        if j != destination:
            nodes.append(_leave(output, f"Output{j}", direct, compute, j))
            child = len(nodes) - 1
        outputs.append(Value(f"y{j}", CPP[kind], compute, child))
    return nodes, inputs, outputs


def _compute(kind: ScalarKind) -> str:
    """The element of an array of such values; see `_element`."""
    return "uint8_t" if kind == "bool" else CPP[kind]


def _load(access: Access, name: str, direct: bool, is_source: bool) -> Node:
    """The node that brings an operand's values."""
    tensor = _matrix(access)
    address = f"static_cast<{tensor.element} const*>(address[{access.pointer}])"
    arguments = f"{{{address}, {tensor.element}(0), {tensor.stride_value}}}"
    wide = "float" if access.elem.kind == "float" else tensor.element
    match access.shape:
        case "scalar" | "batch":
            batch_types, batch_values = _stride(access.batch, None)
            stride = _grouped("Stride", batch_types, "_0")
            value = _grouped("make_stride", batch_values, "_0{}")
            return Node(name, f"LoadSingle<{tensor.element}, {stride}>", f"{{{address}, {value}}}")
        case "row" if access.n == ():
            kind = f"fusion::Sm90RowBroadcast<0, Tile, {tensor.element}, {wide}, {tensor.stride_type}, 1, false>"
        case "column" if access.m == ():
            kind = f"fusion::Sm90ColBroadcast<0, Tile, {tensor.element}, {wide}, {tensor.stride_type}, 1, false>"
        case "full" if is_source:
            return Node(name, "fusion::Sm90SrcFetch<ElementC>", "{}")
        case "full" if not direct:
            kind = f"TmaLoad<{tensor.element}, {tensor.stride_type}>"
        case _:
            align = access.align if access.shape == "full" else 1
            kind = f"fusion::Sm90AuxLoad<0, void, {tensor.element}, {tensor.stride_type}, void, void, {align}, false>"
    return Node(name, kind, arguments)


def _leave(output: Store | Reduction, name: str, direct: bool, compute: str, index: int) -> Node:
    """The node that takes a result away, unless it is D."""
    tensor = _matrix(output.access)
    arguments = f"{{static_cast<{tensor.element}*>(address[{tensor.pointer}]), {tensor.stride_value}}}"
    match output:
        case Reduction():
            kind = f"Reduce{_reduced_modes(output)}<{_OPERATIONS[output.op]}<{compute}>, {compute}>"
            return Node(name, kind, f"{{partials{index}}}")
        case Store() if direct:
            kind = (
                f"fusion::Sm90AuxStore<0, void, {tensor.element}, cutlass::FloatRoundStyle::round_to_nearest, "
                f"{tensor.stride_type}, void, void, {output.access.align}, false>"
            )
            return Node(name, kind, arguments)
        case Store():
            return Node(name, f"TmaStore<{tensor.element}, {tensor.stride_type}>", arguments)


def _call(operation: ArithmeticText, inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    coordinates = ["0"] * (2 + operation.batch)
    if operation.coordinates:
        coordinates = ["m0 + get<0>(at)", "n0 + get<1>(at)", *(f"b{i}" for i in range(operation.batch))]
    arguments = [f"{x.name}[i] != 0" if x.local == "bool" else f"{x.local}({x.name}[i])" for x in inputs]
    results = [f"out{j}" for j in range(len(outputs))]
    return operation.call("parameters", coordinates, f"{CPP[operation.accumulator]}(accumulator[i])", arguments, results)


# --- reductions -------------------------------------------------------------------


def _reduced_modes(output: Reduction) -> str:
    match (output.access.m is None, output.access.n is None):
        case (True, True):
            return "MN"
        case (True, False):
            return "M"
        case (False, True):
            return "N"
        case _:
            raise ValueError("a reduction over batch modes alone needs a kernel of its own")


def _combine(output: Reduction, index: int, kind: ScalarKind) -> Combine:
    access, compute = output.access, _compute(kind)
    parts, extent, stride = {
        "MN": ("int64_t(ceil_div(M, TileM{})) * ceil_div(N, TileN{}) * Warps", "1", "int64_t(0)"),
        "M": ("int64_t(ceil_div(M, TileM{})) * Warps", "N", _extent(access.n or ())),
        "N": ("int64_t(ceil_div(N, TileN{}))", "M", _extent(access.m or ())),
    }[_reduced_modes(output)]
    kept = [i for i, s in enumerate(access.batch) if s is not None]
    summed = [i for i, s in enumerate(access.batch) if s is None]
    steps = ["int64_t(1)"] + ["int64_t(" + " * ".join(f"B{j}" for j in range(i)) + ")" for i in range(1, len(access.batch))]
    return Combine(
        index=index,
        op=f"{_OPERATIONS[output.op]}<{compute}>",
        compute=compute,
        element=_element(access.elem),
        pointer=access.pointer,
        columns=1 if extent == "1" else 32,
        parts=parts,
        extent=extent,
        stride=stride,
        kept_l=_layout(kept, [steps[i] for i in kept]),
        kept_out=_layout(kept, _stride([access.batch[i] for i in kept], None)[1]),
        summed_l=_layout(summed, [steps[i] for i in summed]),
    )


def _layout(modes: Sequence[int], strides: Sequence[str]) -> str:
    shape = ", ".join(f"B{i}" for i in modes)
    return f"make_layout(make_shape({shape}), make_stride({', '.join(strides)}))" if modes else "Layout<_1, _0>{}"


# --- what the arguments must be ---------------------------------------------------


def _through_tma(plan: GemmPlan, a: Tensor, b: Tensor) -> list[Tensor]:
    problem = plan.problem
    accesses = [*problem.inputs, *(output.access for output in problem.outputs)]
    return [a, b, *(_matrix(access) for access, route in zip(accesses, plan.routes, strict=True) if route == "tma")]


def _vectors(plan: GemmPlan) -> list[tuple[str, int]]:
    """The contiguous extent and the vector length of what threads move directly in vectors."""
    problem = plan.problem
    accesses = [*problem.inputs, *(output.access for output in problem.outputs if isinstance(output, Store))]
    routes = [*plan.routes[: len(problem.inputs)], *(
        route for route, output in zip(plan.routes[len(problem.inputs) :], problem.outputs, strict=True) if isinstance(output, Store)
    )]
    return [
        ("N" if access.n == () else "M", access.align)
        for access, route in zip(accesses, routes, strict=True)
        if route == "direct" and access.shape == "full" and access.align > 1
    ]
