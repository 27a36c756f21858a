"""Counts a program's work operator by operator, as an eager framework runs it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ucutlass.ir import (
    Apply,
    Cast,
    Constant,
    Coordinate,
    Dot,
    Gather,
    ParamValue,
    Program,
    Read,
    Reduce,
    Scan,
    Segment,
    Softmax,
    Value,
    children,
)
from ucutlass.ir.compute_types import COMPUTE_TYPES
from ucutlass.ir.elements import BF16, F32, I32, Element
from ucutlass.ir.extents import Fixed
from ucutlass.sol.demand import Demand
from ucutlass.sol.graph import KernelBuffer, ValueGraph, graph_of, topological_order
from ucutlass.sol.integer_sets import FULL
from ucutlass.sol.masks import Masks
from ucutlass.sol.program import fixed_values, operations_of, torch_stage, work_of
from ucutlass.sol.work import Work


def stages(program: Program, sizes: Mapping[str, int]) -> tuple[Work, ...]:
    """Returns the work of each operator as an eager framework runs them, in order.

    Each operator reads its operands and writes its result, in the element type that the framework would
    store: element-wise results in the widest of their float operands, products in their operands' element
    type (fp8 in bf16, s8 in i32), truth values as bytes. Renames move nothing, windows are read by the
    product or reduction over them, masks are computed and stored like other values, and nothing is skipped
    because of a mask.
    """
    graph = graph_of(program, sizes)
    return _Eager(graph).stages()


@dataclass(slots=True)
class _Eager:
    graph: ValueGraph
    elems: dict[int, Element] = field(default_factory=dict)

    def stages(self) -> tuple[Work, ...]:
        nodes = tuple(reversed(topological_order(self.graph)))
        masks = Masks(self.graph, deep=False)
        full_demand = Demand(self.graph, True, masks, masks)
        full_demand.nodes |= {id(n): FULL for n in nodes}
        fixed, views = fixed_values(self.graph), self._views(nodes)
        roots: dict[int, tuple[str, KernelBuffer]] = {
            id(b.value): (name, b) for name, b in self.graph.buffers.items() if isinstance(b, KernelBuffer)
        }
        works: list[Work] = []
        for node in nodes:
            self.elems[id(node)] = self._stored(node)
            root = roots.get(id(node))
            if root is None and (id(node) in fixed or id(node) in views):
                continue
            written = self.graph.bytes_of(root[1].type) if root else self._bytes(node)
            read = sum(self._bytes(o) for o in self._operands(node, fixed, views))
            label = f"{_operator_label(node)} ({', '.join(node.dims)})"
            works.append(work_of(label, operations_of(node, full_demand, folded=False), read, written))
        return (*works, *(torch_stage(stage, self.graph) for stage in self.graph.torch_stages))

    def _views(self, nodes: Sequence[Value]) -> set[int]:
        """Returns the values that are no operators of their own: parameters, coordinates, renames, casts to
        compute types, and windows and groups that only products and reductions read."""
        views = {id(n) for n in nodes if isinstance(n, (ParamValue, Coordinate, Constant))}
        views |= {id(n) for n in nodes if isinstance(n, Cast) and not n.elem.storable}
        views |= {id(n) for n in nodes if isinstance(n, Read) and _renames(n)}
        stored_inputs = {id(c) for n in nodes if not isinstance(n, (Dot, Reduce)) for c in children(n)}
        return views | {id(n) for n in nodes if _read_through(n) and id(n) not in stored_inputs}

    def _operands(self, node: Value, fixed: set[int], views: set[int]) -> list[Value]:
        """Returns what an operator reads from memory, each value once."""
        reads: dict[int, Value] = {}
        stack = list(children(node)) or [node]
        while stack:
            value = stack.pop()
            if id(value) in fixed or isinstance(value, Coordinate):
                continue
            if id(value) in views and not isinstance(value, ParamValue):
                stack += children(value)
            else:
                reads[id(value)] = value
        if isinstance(node, Gather):
            reads[id(node.value)] = min(node.value, node, key=self._bytes)
        return list(reads.values())

    def _bytes(self, node: Value) -> int:
        if isinstance(node, ParamValue):
            return self.graph.bytes_of(self.graph.sources[node.index].type)
        elem = self.elems.get(id(node)) or self._stored(node)
        return -(-self.graph.count(node.dims) * elem.bits // 8)

    def _stored(self, node: Value) -> Element:
        """Returns the element type in which an eager framework stores a value."""
        match node:
            case Dot(compute_type=compute_type):
                return _PRODUCTS.get(compute_type.name, COMPUTE_TYPES[compute_type.name].memory)
            case Cast(elem=elem):
                return elem if elem.storable else F32
            case Apply(args=args) if node.elem.kind == "float":
                floats = [self.elems[id(a)] for a in args if not isinstance(a, Constant)]
                return _widest([e for e in floats if e.kind == "float"])
            case Reduce(value=inner) | Softmax(value=inner) | Scan(value=inner):
                inner_elem = self.elems[id(inner)]
                return inner_elem if node.elem.kind == inner_elem.kind == "float" else node.elem
            case Read(value=inner) | Gather(value=inner):
                return self.elems[id(inner)]
            case _:
                return node.elem


_PRODUCTS: Mapping[str, Element] = {"e4m3": BF16, "e5m2": BF16, "s8": I32}


def _widest(elems: Sequence[Element]) -> Element:
    """Returns the element type by torch's promotion: the widest, f32 for two different ones of 16 bits, f32
    for none."""
    widest = {e for e in elems if e.bits == max(x.bits for x in elems)}
    return widest.pop() if len(widest) == 1 else F32


def _read_through(node: Value) -> bool:
    """Returns whether a convolution, a pooling or a grouped product reads the value without storing it
    first."""
    return isinstance(node, Read) or (isinstance(node, Gather) and isinstance(node.ids, Segment))


def _renames(node: Read) -> bool:
    """Returns whether a read moves nothing because it only renames coordinates."""
    return all(
        p.scale == 1 and p.at.offset == Fixed(0) and len(p.at.terms) == 1 and p.at.terms[0][1] == 1
        for p in node.positions
    )


def _operator_label(node: Value) -> str:
    match node:
        case Apply(function=name):
            return name
        case Dot(over=over):
            return f"dot[{', '.join(over)}]"
        case Reduce(op=op, over=over):
            return f"{op}[{', '.join(over)}]"
        case Softmax(over=over, log=log):
            return f"{'log_' if log else ''}softmax[{', '.join(over)}]"
        case Scan(op=op, along=along):
            return f"{op}[{along}]"
        case Cast(elem=elem):
            return elem.name
        case ParamValue() | Constant() | Coordinate():
            return "copy"
        case _:
            return type(node).__name__.lower()
