"""The access structure of a Hopper kernel as CUTLASS visitor nodes.

One node for each operand and result, CUTLASS's own where it has one. Operands over M and N of
route "tma" come through shared memory, the first as CUTLASS's source C; the first result of
that route is D. Reductions leave partial results in the workspace.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.emit import text
from ucutlass.emit.arithmetic import ArithmeticText
from ucutlass.emit.functions import CPP
from ucutlass.ir.elements import BOOL, Element
from ucutlass.kernels.access import Access, Output, Product, Reduction, Store, Stride
from ucutlass.kernels.arithmetic import ScalarKind
from ucutlass.kernels.gemm.plan import GemmPlan

_LINE = 100
"""Letters of the longest line of a call."""

_OPERATIONS: Mapping[str, str] = MappingProxyType({"sum": "Sum", "max": "Max", "min": "Min"})


# --- tensors ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor over two modes and the batch as C++. `name` is its role's, `stride` an expression
    over the entry's arguments, `batch_type` the type of its last mode."""

    name: str
    pointer: int
    element: str
    tma_elements: int  # in 16 bytes
    stride_type: str
    batch_type: str
    stride: str

    @property
    def address(self) -> str:
        return f"static_cast<{self.element}*>(address[{self.pointer}])"

    @property
    def stride_name(self) -> str:
        """The variable of the entry that holds `stride`."""
        return f"{self.name}_stride"


def extent(extents: Product) -> str:
    """A product of extents as an int64_t expression in the entry."""
    return text.product(extents, "extents") if extents else "int64_t(1)"


def element(elem: Element) -> str:
    """The C++ type in memory. A bool is a byte: CUTLASS's arrays pack `bool` into bits."""
    return "uint8_t" if elem == BOOL else elem.cpp


def grouped(maker: str, parts: Sequence[str], none: str) -> str:
    """Batch modes as the one mode that CUTLASS has: `none`, the mode itself, or a nested tuple
    that `maker`, such as "Stride<{}>", makes."""
    if len(parts) > 1:
        return maker.format(", ".join(parts))
    return parts[0] if parts else none


def tensor(name: str, access: Access, first: Stride, second: Stride) -> Tensor:
    """The tensor over these modes; where both strides are 1 the second's is the static one."""
    unit = 1 if second == () else 0 if first == () else None
    modes = [_stride(stride, i == unit) for i, stride in enumerate((first, second))]
    batch = [_stride(stride, False) for stride in access.batch]
    batch_type = grouped("Stride<{}>", [kind for kind, _ in batch], "_0")
    batch_value = grouped("make_stride({})", [value for _, value in batch], "_0{}")
    return Tensor(
        name=name,
        pointer=access.pointer,
        element=element(access.elem),
        tma_elements=16 // access.elem.bytes,
        stride_type=f"Stride<{modes[0][0]}, {modes[1][0]}, {batch_type}>",
        batch_type=batch_type,
        stride=f"make_stride({modes[0][1]}, {modes[1][1]}, {batch_value})",
    )


def operands(plan: GemmPlan) -> list[Tensor]:
    """The epilogue's operands and results, in order."""
    inputs = [(f"in{i}", access) for i, access in enumerate(plan.problem.inputs)]
    outputs = [(f"out{j}", output.access) for j, output in enumerate(plan.problem.outputs)]
    return [tensor(name, access, access.m, access.n) for name, access in (*inputs, *outputs)]


def _stride(stride: Stride, unit: bool) -> tuple[str, str]:
    match stride:
        case None:
            return "_0", "_0{}"
        case _ if unit:
            return "_1", "_1{}"
        case _:
            return "int64_t", extent(stride)


# --- nodes ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Node:
    """A visitor node: its C++ name, its type, and the initialiser of its arguments."""

    name: str
    template: str
    parameters: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def type(self) -> str:
        return f"{self.template}<{', '.join(self.parameters)}>" if self.parameters else self.template


@dataclass(frozen=True, slots=True)
class Value:
    """An operand or result inside the visitor: the array of its values, their C++ type in the
    arithmetic and in the array, and the child that makes or takes it; None for CUTLASS's D."""

    name: str
    scalar: str
    element: str
    child: int | None


@dataclass(frozen=True, slots=True)
class Epilogue:
    """Everything that the templates say of the epilogue. `source` and `destination` are the
    tensors that become CUTLASS's C and D, `result` the value that D takes."""

    source: Tensor | None
    destination: Tensor | None
    result: Value | None
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    call: str
    combines: tuple[Combine, ...]

    @property
    def templates(self) -> frozenset[str]:
        """The node templates in use."""
        return frozenset(node.template for node in self.nodes)


def epilogue(plan: GemmPlan, arithmetic: ArithmeticText) -> Epilogue:
    """The access structure of the plan.

    Raises ValueError for a reduction over batch modes alone.
    """
    problem, tensors = plan.problem, operands(plan)
    in_tensors, out_tensors = tensors[: len(problem.inputs)], tensors[len(problem.inputs) :]
    in_routes, out_routes = plan.routes[: len(problem.inputs)], plan.routes[len(problem.inputs) :]
    source = next((i for i, route in enumerate(in_routes) if route == "tma"), None)
    destination = next((j for j, route in enumerate(out_routes) if route == "tma"), None)
    nodes = [Node("Parameters", "Parameters", (), ())]
    inputs, outputs = [], []
    for i, (access, route) in enumerate(zip(problem.inputs, in_routes, strict=True)):
        nodes.append(_load(access, in_tensors[i], f"Input{i}", "source" if i == source else route))
        kind = arithmetic.inputs[i]
        inputs.append(Value(f"x{i}", CPP[kind], _array(kind), len(nodes) - 1))
    for j, (output, route) in enumerate(zip(problem.outputs, out_routes, strict=True)):
        kind, child = arithmetic.outputs[j], None
        if j != destination:
            nodes.append(_leave(output, out_tensors[j], f"Output{j}", route, _array(kind)))
            child = len(nodes) - 1
        outputs.append(Value(f"y{j}", CPP[kind], _array(kind), child))
    return Epilogue(
        source=None if source is None else in_tensors[source],
        destination=None if destination is None else out_tensors[destination],
        result=None if destination is None else outputs[destination],
        nodes=tuple(nodes),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        call=_call(arithmetic, inputs, outputs),
        combines=tuple(
            _combine(output, out_tensors[j], _array(arithmetic.outputs[j]))
            for j, output in enumerate(problem.outputs)
            if isinstance(output, Reduction)
        ),
    )


def _array(kind: ScalarKind) -> str:
    """The element of an array of such values; see `element`."""
    return "uint8_t" if kind == "bool" else CPP[kind]


def _load(access: Access, t: Tensor, name: str, route: str) -> Node:
    """The node that brings an operand's values."""
    arguments: tuple[str, ...] = (t.address, f"{t.element}(0)", t.stride_name)
    wide = "float" if access.elem.kind == "float" else t.element
    match access.shape:
        case "scalar" | "batch":
            arguments = (t.address, f"get<2>({t.stride_name})")
            return Node(name, "LoadSingle", (t.element, t.batch_type), arguments)
        case "row" if access.n == ():
            return Node(name, "LoadRow", (t.element, wide, t.stride_type), arguments)
        case "column" if access.m == ():
            return Node(name, "LoadColumn", (t.element, wide, t.stride_type), arguments)
        case "full" if route == "source":
            return Node(name, "LoadSource", (), ())
        case "full" if route == "tma":
            return Node(name, "LoadTma", (t.element, t.stride_type), arguments)
        case shape:
            align = access.align if shape == "full" else 1
            return Node(name, "LoadDirect", (t.element, t.stride_type, str(align)), arguments)


def _leave(output: Output, t: Tensor, name: str, route: str, value: str) -> Node:
    """The node that takes a result away, unless it is D."""
    match output:
        case Reduction(op):
            operation = f"{_OPERATIONS[op]}<{value}>"
            return Node(name, f"Reduce{_removed(output)}", (operation, value), (f"{t.name}_partials",))
        case Store() if route == "tma":
            return Node(name, "StoreTma", (t.element, t.stride_type), (t.address, t.stride_name))
        case Store():
            parameters = (t.element, t.stride_type, str(output.access.align))
            return Node(name, "StoreDirect", parameters, (t.address, t.stride_name))


def _call(arithmetic: ArithmeticText, inputs: Sequence[Value], outputs: Sequence[Value]) -> str:
    """The call of the arithmetic on element i of the arrays."""
    coordinates = ["0"] * (2 + arithmetic.batch)
    if arithmetic.coordinates:
        coordinates = ["m0 + get<0>(at)", "n0 + get<1>(at)", *(f"b{i}" for i in range(arithmetic.batch))]
    call = arithmetic.call(
        "parameters",
        coordinates,
        f"{CPP[arithmetic.accumulator]}(accumulator[i])",
        [f"{x.name}[i] != 0" if x.scalar == "bool" else f"{x.scalar}({x.name}[i])" for x in inputs],
        [f"out{j}" for j in range(len(outputs))],
    )
    return textwrap.fill(call, _LINE, subsequent_indent=" " * 12, break_long_words=False)


@dataclass(frozen=True, slots=True)
class Vectors:
    """A matrix that threads move in vectors: its address is a multiple of `bytes`, and its contiguous extent,
    as C++, of `elements`; every other stride is a multiple of that extent."""

    pointer: int
    bytes: int
    extent: str
    elements: int


def vectors(plan: GemmPlan) -> list[Vectors]:
    """The matrices that threads move in vectors."""
    problem = plan.problem
    accesses = [*problem.inputs, *(output.access for output in problem.outputs)]
    return [
        Vectors(a.pointer, a.align * a.elem.bytes, "N" if a.n == () else "M", a.align)
        for a, route in zip(accesses, plan.routes, strict=True)
        if route == "direct" and a.shape == "full" and a.align > 1
    ]


def through_tma(plan: GemmPlan) -> list[Tensor]:
    """The operands and results that TMA moves in the epilogue."""
    return [t for t, route in zip(operands(plan), plan.routes, strict=True) if route == "tma"]


# --- reductions -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Combine:
    """The second launch of a reduction, as C++ expressions over the entry's variables: `parts`
    partial results for each of `extent` elements of each batch become the result, whose
    elements are `stride` apart. The layouts map kept and summed batches to the linear batch,
    kept ones to places in the result."""

    name: str
    operation: str
    value: str
    address: str
    columns: int
    parts: str
    extent: str
    stride: str
    kept: str
    placed: str
    summed: str


def _removed(output: Reduction) -> str:
    """Which of M and N the reduction removes."""
    access = output.access
    removed = ("M" if access.m is None else "") + ("N" if access.n is None else "")
    if not removed:
        raise ValueError("a reduction over batch modes alone is no epilogue of this family")
    return removed


def _combine(output: Reduction, t: Tensor, value: str) -> Combine:
    access = output.access
    parts, remains, stride = {
        "MN": ("int64_t(ceil_div(M, TileM{})) * ceil_div(N, TileN{}) * Warps", "1", ()),
        "M": ("int64_t(ceil_div(M, TileM{})) * Warps", "N", access.n or ()),
        "N": ("ceil_div(N, TileN{})", "M", access.m or ()),
    }[_removed(output)]
    modes = [i for i, s in enumerate(access.batch) if s is not None]
    summed = [i for i, s in enumerate(access.batch) if s is None]
    linear = [" * ".join(["int64_t(B0)", "B1"][:i]) or "int64_t(1)" for i in range(len(access.batch))]
    return Combine(
        name=t.name,
        operation=f"{_OPERATIONS[output.op]}<{value}>",
        value=value,
        address=t.address,
        columns=1 if remains == "1" else 32,
        parts=parts,
        extent=remains,
        stride=extent(stride),
        kept=_layout((f"B{i}", linear[i]) for i in modes),
        placed=_layout((f"B{i}", extent(access.batch[i] or ())) for i in modes),
        summed=_layout((f"B{i}", linear[i]) for i in summed),
    )


def _layout(modes: Iterable[tuple[str, str]]) -> str:
    """A CuTe layout of modes, each an extent and a stride."""
    pairs = tuple(modes)
    if not pairs:
        return "Layout<_1, _0>{}"
    shape, stride = (", ".join(column) for column in zip(*pairs, strict=True))
    return f"make_layout(make_shape({shape}), make_stride({stride}))"
