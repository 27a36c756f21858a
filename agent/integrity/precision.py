"""Where a program works below the precision that its problem declares.

A lane is written as in the language, `bf16`, with `/` before an accumulation that is not the lane's
default, `f16/f16` or `e4m3/fast`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ucutlass import ir
from ucutlass.ir.compute_types import LANES
from ucutlass.ir.elements import ELEMENTS, Element

EXPONENT_BITS: Mapping[str, int] = MappingProxyType(
    {"f64": 11, "f32": 8, "tf32": 8, "bf16": 8, "f16": 5, "e5m2": 5, "e4m3": 4}
)
"""IEEE 754 binary16, 32 and 64; bfloat16 and tf32 have binary32's; OCP 8-bit Floating Point, 2023."""


class UnknownComputeType(ValueError):
    """A declared lane that is no lane, or an accumulation that the lane has not."""


@dataclass(frozen=True, slots=True)
class DeclaredPrecision:
    """The lane of a problem: the least precision that its results may be computed in."""

    lane: str
    accumulate: str

    def __str__(self) -> str:
        return lane_name(self.lane, self.accumulate)


@dataclass(frozen=True, slots=True)
class PrecisionLoss:
    """A place that works in less. `where` names it in the program's words; `kind` is what loses."""

    kind: Literal["lane", "accumulation", "cast", "buffer"]
    where: str
    name: str
    at_end: bool = False
    """Whether it rounds to the element type of every result: what the last store does anyway."""


def lane_name(lane: str, accumulate: str) -> str:
    return lane if accumulate == LANES[lane].accumulations[0] else f"{lane}/{accumulate}"


def declared(text: str) -> DeclaredPrecision:
    """Reads a lane. Raises UnknownComputeType with the lanes there are."""
    lane, _, accumulate = text.partition("/")
    if lane not in LANES:
        raise UnknownComputeType(f"{text!r} is no lane; lanes are {', '.join(LANES)}")
    known = LANES[lane].accumulations
    if accumulate and accumulate not in known:
        raise UnknownComputeType(
            f"lane {lane} does not accumulate in {accumulate!r}; it has {', '.join(known)}"
        )
    return DeclaredPrecision(lane, accumulate or known[0])


def own_lane(program: ir.Program) -> DeclaredPrecision | None:
    """What the memory types of the operands of the program's dots declare: the widest of them,
    f32 for a dot of f32 operands whatever it is cast to. None without a dot on parameters."""
    found = [
        node.elem
        for kernel in kernels(program)
        for dot in nodes(kernel)
        if isinstance(dot, ir.Dot)
        for node in (_source(dot.left), _source(dot.right))
        if isinstance(node, ir.ParamValue) and node.elem.name in LANES
    ]
    widest = max(found, key=lambda e: (e.bits, e.mantissa), default=None)
    return None if widest is None else DeclaredPrecision(widest.name, LANES[widest.name].accumulations[0])


def holds(elem: Element, least: Element) -> bool:
    """Whether every number of `least` is one of `elem`, up to f16's and bf16's denormals."""
    if elem.name == least.name:
        return True
    if elem.kind != "float" or least.kind != "float":
        return elem.kind == least.kind and elem.bits >= least.bits
    wide, narrow = EXPONENT_BITS[elem.name], EXPONENT_BITS[least.name]
    return elem.mantissa >= least.mantissa and wide >= narrow


def losses(program: ir.Program, policy: DeclaredPrecision) -> tuple[PrecisionLoss, ...]:
    """Every dot, accumulation, cast and stored intermediate below the policy, in program order."""
    least = ELEMENTS[policy.lane]
    found = [loss for kernel in kernels(program) for loss in _of_kernel(kernel, policy, least)]
    if isinstance(program, ir.Pipeline):
        ends = {type_.elem.name for _, type_ in program.results}
        results = {name for name, _ in program.results}
        found += [
            PrecisionLoss("buffer", f"buffer {name}", type_.elem.name, ends == {type_.elem.name})
            for name, type_ in program.buffers
            if name not in results and _narrow(type_.elem, least)
        ]
    return tuple(dict.fromkeys(found))


def _of_kernel(kernel: ir.Kernel, policy: DeclaredPrecision, least: Element) -> Iterator[PrecisionLoss]:
    ends = {result.type.elem.name for result in kernel.results}
    operands: set[ir.Value] = set()
    for node in nodes(kernel):
        if isinstance(node, ir.Dot):
            operands |= {node.left, node.right}
            where = f"dot[{', '.join(node.over)}] of {kernel.name}"
            if not holds(node.lane, least):
                yield PrecisionLoss("lane", where, node.lane.name)
            elif node.accumulate not in (LANES[node.lane.name].accumulations[0], policy.accumulate):
                yield PrecisionLoss("accumulation", where, lane_name(node.lane.name, node.accumulate))
    for node in nodes(kernel):
        if isinstance(node, ir.Cast) and node not in operands and _rounds(node, least):
            yield PrecisionLoss("cast", f"a cast of {kernel.name}", node.elem.name, ends == {node.elem.name})


def _narrow(elem: Element, least: Element) -> bool:
    """Whether a float (or, under a float policy, an integer of fewer bits) loses against `least`."""
    if elem.kind == "float":
        return least.kind == "float" and not holds(elem, least)
    return elem.kind == "int" and least.kind == "float" and elem.bits < least.bits


def _rounds(node: ir.Cast, least: Element) -> bool:
    """Whether a cast of a computed float loses against `least`; integers and constants are as given."""
    given = node.value
    if given.elem.kind != "float" or given.elem == node.elem or isinstance(given, ir.Constant):
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
    """Every value once, operands before what uses them."""
    seen: set[ir.Value] = set()

    def visit(value: ir.Value) -> Iterator[ir.Value]:
        if value not in seen:
            seen.add(value)
            for child in ir.children(value):
                yield from visit(child)
            yield value

    for result in kernel.results:
        yield from visit(result.value)
