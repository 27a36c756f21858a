"""Counts the work of a `.ucu` program for concrete extents: operator by operator, and as a whole.

`compulsory` counts what any kernel must do that computes the program as it is written, in the compute types
that it names: needed elements of every value once, parameters read once, results written once. Elements that
the text masks, windows that fall outside, and products with a zero that the text gives are not counted, nor
is an element-wise operation that can be folded into its neighbours. The count is of the program's own
algorithm: fewer multiplications (Strassen, Winograd) are another program.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from ucutlass.ir import Apply, Constant, Dot, Program, Reduce, Scan, Softmax, TensorType, Value
from ucutlass.ir.elements import F32
from ucutlass.sol.costs import SPECIAL, cost_of, dot_compute_type, folds, sums_products
from ucutlass.sol.demand import Demand, demand, depends_on_data
from ucutlass.sol.graph import TorchBuffer, ValueGraph, axis_length, graph_of, topological_order
from ucutlass.sol.integer_sets import project
from ucutlass.sol.work import Work, total

Data = Literal["least", "most"]
"""What data decides, a gather's coordinates or a mask of data, counts as the fewest elements that may be
needed (`least`) or the most (`most`)."""


def compulsory(program: Program, sizes: Mapping[str, int], data: Data = "least") -> Work:
    """Returns the operations and bytes of one kernel for the whole program.

    `sizes` has every dimension's extent by name. With `least` the counts bound those of every input from
    below: a gather reads one element of its dimension, and neither arm of a `where` on data is needed. With
    `most` every gathered coordinate differs and both arms are needed. Raises ShapeError UC0709 where masks
    take too many conditions to follow.
    """
    return _compulsory(program.name, demand(graph_of(program, sizes), may=data == "most"))


def least_and_most(program: Program, sizes: Mapping[str, int]) -> tuple[Work, Work]:
    """Returns the compulsory work with the fewest elements that data may ask for, and with the most. Raises as
    `compulsory`."""
    needed = demand(graph_of(program, sizes), may=False)
    least = _compulsory(program.name, needed)
    return least, compulsory(program, sizes, "most") if depends_on_data(needed) else least


def _compulsory(name: str, needed: Demand) -> Work:
    graph = needed.graph
    fixed = fixed_values(graph)
    parts = [
        work_of("", operations_of(node, needed, folded=True))
        for node in topological_order(graph)
        if id(node) not in fixed
    ]
    parts += [torch_stage(stage, graph) for stage in graph.torch_stages]
    written = sum(graph.bytes_of(graph.types[name]) for name in graph.results)
    operations = total("", parts).operations
    return Work(name, operations, sum(needed.read_bytes().values()), written)


def fixed_values(graph: ValueGraph) -> set[int]:
    """Returns the values that the text and the extents alone decide, which are known before the launch."""
    fixed: set[int] = set()
    for node in reversed(topological_order(graph)):
        match node:
            case Constant():
                fixed.add(id(node))
            case Apply(args=args) if all(id(a) in fixed for a in args):
                fixed.add(id(node))
            case _:
                pass
    return fixed


def work_of(label: str, operations: Iterable[tuple[str, int]], read: int = 0, written: int = 0) -> Work:
    counts: dict[str, int] = {}
    for compute_type, n in operations:
        if n > 0:
            counts[compute_type] = counts.get(compute_type, 0) + n
    return Work(label, counts, read, written)


def operations_of(node: Value, needed: Demand, folded: bool) -> Iterator[tuple[str, int]]:
    """Yields one node's operations by compute type, over its needed elements. `folded` leaves out those that
    may be folded into their neighbours."""
    if not needed.of(node):
        return
    match node:
        case Dot():
            yield dot_compute_type(node), 2 * needed.terms(node)
        case Apply():
            cost = cost_of(node)
            if cost.special:
                yield SPECIAL, cost.special * needed.count(node)
            if cost.f32 and not (folded and folds(node)):
                yield "f32", cost.f32 * needed.count(node)
        case Reduce() if node.value.elem.kind == "float":
            yield from _reduction(node, needed.reduced(node), needed.count(node), folded)
        case Softmax(over=over, log=log):
            terms, rows = needed.reduced(node), _rows(node, over, needed)
            yield SPECIAL, terms + (rows if log else 0)
            yield "f32", terms - rows
        case Scan(along=along) if node.elem.kind == "float":
            yield "f32", needed.reduced(node) - _rows(node, (along,), needed)
        case _:
            return


def _rows(node: Value, over: Sequence[str], needed: Demand) -> int:
    """Returns the rows of a softmax or scan of which any element is needed."""
    rows = project(needed.of(node), over, needed.graph.extents)
    return needed.points(rows, [d for d in node.dims if d not in over])


def _reduction(node: Reduce, terms: int, results: int, folded: bool) -> Iterator[tuple[str, int]]:
    """Yields n - 1 additions for n terms; a variance also squares them, a logsumexp takes exponentials."""
    match node.op:
        case "sum" | "mean" | "prod":
            yield "f32", terms - results + (terms if folded and sums_products(node) else 0)
        case "var":
            yield "f32", 2 * terms - results
        case "logsumexp":
            yield SPECIAL, terms + results
            yield "f32", terms - results
        case _:
            return


def torch_stage(opaque: TorchBuffer, graph: ValueGraph) -> Work:
    """Returns the work of a torch function, which reads its arguments and writes its results. Operations are
    known for a matrix product; for others none are counted."""
    arguments = [graph.types[a] for a in opaque.arguments if isinstance(a, str)]
    read = sum(graph.bytes_of(a) for a in arguments)
    written = sum(graph.bytes_of(graph.types[name]) for name in opaque.outputs)
    operations = []
    if opaque.call.function == "matmul" and isinstance(arguments[0], TensorType):
        elem = arguments[0].elem
        inner = axis_length(arguments[0].axes[-1], graph.extents)
        results = written * 8 // opaque.call.results[0].elem.bits
        operations = [("tf32x3" if elem is F32 else elem.name, 2 * results * inner)]
    label = f"torch.{opaque.call.function} ({', '.join(opaque.outputs)})"
    return work_of(label, operations, read, written)
