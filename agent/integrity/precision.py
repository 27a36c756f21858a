"""This module finds where a program works below the precision that its problem declares.

A compute type is written as in the language, `bf16`, with `/` before an accumulation that is not the compute type's
default, `f16/f16` or `e4m3/fast`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ucutlass import ir
from ucutlass.ir.compute_types import COMPUTE_TYPES
from ucutlass.ir.elements import ELEMENTS, Element

EXPONENT_BITS: Mapping[str, int] = MappingProxyType(
    {"f64": 11, "f32": 8, "tf32": 8, "bf16": 8, "f16": 5, "e5m2": 5, "e4m3": 4}
)
"""IEEE 754 binary16, 32 and 64; bfloat16 and tf32 have binary32's; OCP 8-bit Floating Point, 2023."""


class UnknownComputeType(ValueError):
    """Raised for a declared compute type that does not exist, or that lacks the declared accumulation."""


@dataclass(frozen=True, slots=True)
class DeclaredPrecision:
    """Describes the compute type of a problem: the least precision that its results may be computed in."""

    compute_type: str
    accumulate: str

    def __str__(self) -> str:
        return precision_name(self.compute_type, self.accumulate)


@dataclass(frozen=True, slots=True)
class PrecisionLoss:
    """Describes a place that works in less. `where` names it in the program's words; `kind` is what loses."""

    kind: Literal["compute type", "accumulation", "cast", "buffer"]
    where: str
    name: str
    at_end: bool = False
    """Whether it rounds to the element type of every result: what the last store does anyway."""


def precision_name(compute_type: str, accumulate: str) -> str:
    return (
        compute_type
        if accumulate == COMPUTE_TYPES[compute_type].accumulations[0]
        else f"{compute_type}/{accumulate}"
    )


def declared(text: str) -> DeclaredPrecision:
    """Reads a compute type. Raises UnknownComputeType, which lists those there are."""
    compute_type, _, accumulate = text.partition("/")
    if compute_type not in COMPUTE_TYPES:
        raise UnknownComputeType(f"{text!r} is no compute type; compute types are {', '.join(COMPUTE_TYPES)}")
    accumulations = COMPUTE_TYPES[compute_type].accumulations
    if accumulate and accumulate not in accumulations:
        raise UnknownComputeType(
            f"compute type {compute_type} does not accumulate in {accumulate!r}; it has {', '.join(accumulations)}"
        )
    return DeclaredPrecision(compute_type, accumulate or accumulations[0])


def operand_precision(program: ir.Program) -> DeclaredPrecision | None:
    """Returns what the memory types of the operands of the program's dots declare: the widest of them, f32
    for a dot of f32 operands whatever it is cast to. None without a dot on parameters."""
    operand_types = [
        node.elem
        for kernel in kernels(program)
        for dot in nodes(kernel)
        if isinstance(dot, ir.Dot)
        for node in (_source(dot.left), _source(dot.right))
        if isinstance(node, ir.ParamValue) and node.elem.name in COMPUTE_TYPES
    ]
    widest = max(operand_types, key=lambda e: (e.bits, e.mantissa), default=None)
    return (
        None
        if widest is None
        else DeclaredPrecision(widest.name, COMPUTE_TYPES[widest.name].accumulations[0])
    )


def holds(elem: Element, least: Element) -> bool:
    """Returns whether every number of `least` is one of `elem`, up to f16's and bf16's denormals."""
    if elem.name == least.name:
        return True
    if elem.kind != "float" or least.kind != "float":
        return elem.kind == least.kind and elem.bits >= least.bits
    wide, narrow = EXPONENT_BITS[elem.name], EXPONENT_BITS[least.name]
    return elem.mantissa >= least.mantissa and wide >= narrow


def losses(program: ir.Program, policy: DeclaredPrecision) -> tuple[PrecisionLoss, ...]:
    """Returns every dot, accumulation, cast and stored intermediate below the policy, in program order."""
    least = ELEMENTS[policy.compute_type]
    result = [loss for kernel in kernels(program) for loss in _of_kernel(kernel, policy, least)]
    if isinstance(program, ir.Pipeline):
        ends = {type_.elem.name for _, type_ in program.results}
        results = {name for name, _ in program.results}
        result += [
            PrecisionLoss("buffer", f"buffer {name}", type_.elem.name, ends == {type_.elem.name})
            for name, type_ in program.buffers
            if name not in results and _narrow(type_.elem, least)
        ]
    return tuple(dict.fromkeys(result))


def _of_kernel(kernel: ir.Kernel, policy: DeclaredPrecision, least: Element) -> Iterator[PrecisionLoss]:
    ends = {result.type.elem.name for result in kernel.results}
    operands: set[ir.Value] = set()
    for node in nodes(kernel):
        if isinstance(node, ir.Dot):
            operands |= {node.left, node.right}
            where = f"dot[{', '.join(node.over)}] of {kernel.name}"
            if not holds(node.compute_type, least):
                yield PrecisionLoss("compute type", where, node.compute_type.name)
            elif node.accumulate not in (
                COMPUTE_TYPES[node.compute_type.name].accumulations[0],
                policy.accumulate,
            ):
                yield PrecisionLoss(
                    "accumulation", where, precision_name(node.compute_type.name, node.accumulate)
                )
    for node in nodes(kernel):
        if isinstance(node, ir.Cast) and node not in operands and _rounds(node, least):
            yield PrecisionLoss("cast", f"a cast of {kernel.name}", node.elem.name, ends == {node.elem.name})


def _narrow(elem: Element, least: Element) -> bool:
    """Returns whether a float (or, under a float policy, an integer of fewer bits) loses against `least`."""
    if elem.kind == "float":
        return least.kind == "float" and not holds(elem, least)
    return elem.kind == "int" and least.kind == "float" and elem.bits < least.bits


def _rounds(node: ir.Cast, least: Element) -> bool:
    """Returns whether a cast of a computed float loses against `least`; integers and constants are as
    given."""
    source = node.value
    if source.elem.kind != "float" or source.elem == node.elem or isinstance(source, ir.Constant):
        return False
    return _narrow(node.elem, least)


def _source(value: ir.Value) -> ir.Value:
    while isinstance(value, (ir.Cast, ir.Read, ir.Gather)):
        value = value.value
    return value


# --- walking -----------------------------------------------------------------------


def kernels(program: ir.Program) -> tuple[ir.Kernel, ...]:
    match program:
        case ir.Kernel():
            return (program,)
        case ir.Pipeline():
            return tuple(s.call for s in program.stages if isinstance(s.call, ir.Kernel))


def nodes(kernel: ir.Kernel) -> Iterator[ir.Value]:
    """Yields every value once, operands before what uses them."""
    visited: set[ir.Value] = set()

    def visit(value: ir.Value) -> Iterator[ir.Value]:
        if value not in visited:
            visited.add(value)
            for child in ir.children(value):
                yield from visit(child)
            yield value

    for result in kernel.results:
        yield from visit(result.value)
