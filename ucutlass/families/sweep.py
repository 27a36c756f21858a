"""The sweep form: no dot; element-wise work, reductions over one set of names or a scan along one,
windows and gathers. `ucutlass.families.sweep_problem` gives it extents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ucutlass import ir
from ucutlass.elements import ELEMENTS
from ucutlass.extents import Fixed
from ucutlass.families.refuse import Refused, walk

SWEPT = frozenset(name for name in ELEMENTS if name not in ("tf32", "s4", "f64"))
"""Element types that sweeps read and write."""


@dataclass(frozen=True, slots=True)
class SweepForm:
    """A kernel seen as a sweep. `columns` are the names that reductions consume or a scan runs along,
    in the order of `kernel.dims`; `rows` all other names of the results; `windows` the names that
    window reductions sum over. `isolated` names are modes of their own: their coordinates matter."""

    kernel: ir.Kernel
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    windows: tuple[str, ...]
    isolated: frozenset[str]


def recognise_sweep(kernel: ir.Kernel) -> SweepForm:
    """The form of a kernel without dots. Raises Refused."""
    nodes = list(walk(*(r.value for r in kernel.results)))
    for node in nodes:
        _supported(kernel, node)
    columns = _columns(nodes)
    _one_direction(nodes)
    windows = _ordered(kernel, {d for node in nodes if is_window(node) for d in node.over})  # type: ignore[union-attr]
    rows = _ordered(kernel, {d for r in kernel.results for d in r.type.dims} - set(columns))
    for result in kernel.results:
        _result(kernel, result, rows, columns)
    if not any(isinstance(p.type, ir.TensorType) for p in kernel.params):
        raise Refused.no_family(kernel, "a kernel that reads no tensor")
    return SweepForm(kernel, rows, _ordered(kernel, set(columns)), windows, frozenset(_isolated(nodes)))


def is_window(node: ir.Value) -> bool:
    """Whether a reduction runs over a window: over names by which its operand is read at positions."""
    if not isinstance(node, ir.Reduce):
        return False
    moving = {
        d
        for inner in walk(node.value)
        if isinstance(inner, ir.Read)
        for p in inner.positions
        if len(p.at.terms) > 1
        for d, _ in p.at.terms
    }
    return bool(set(node.over) & moving)


def _ordered(kernel: ir.Kernel, names: set[str]) -> tuple[str, ...]:
    return tuple(d for d in kernel.dims if d in names)


def _supported(kernel: ir.Kernel, node: ir.Value) -> None:
    match node:
        case ir.ParamValue(index=index):
            elem = kernel.params[index].type.elem
            if elem.name not in SWEPT:
                raise Refused(
                    "UC0310", f"no kernel without dot reads {elem.name}", node.span,
                    "tensors may be " + " ".join(sorted(SWEPT)),
                )  # fmt: skip
        case ir.Segment():
            raise Refused.no_family(kernel, "segment(..) outside the operand of a dot", node.span)
        case ir.Reduce(op=op) if is_window(node) and op in ("logsumexp", "var"):
            raise Refused(
                "UC0313", f"{op} is not taken over a window", node.span,
                "a window takes sum, mean, max, min, prod, argmax and argmin",
            )  # fmt: skip


def _columns(nodes: list[ir.Value]) -> tuple[str, ...]:
    """The one set of names that is consumed. Raises Refused where there are two."""
    first: tuple[frozenset[str], ir.Value] | None = None
    for node, over in _consuming(nodes):
        if first is None:
            first = over, node
        elif first[0] != over:
            raise Refused(
                "UC0311",
                f"one launch reduces or scans over one set of names; this is over {_names(over)}, another "
                f"over {_names(first[0])}",
                node.span,
                "cut here: store the inner result, in a pipeline: h: f32[..] = ..",
            )
    return () if first is None else tuple(first[0])


def _consuming(nodes: list[ir.Value]) -> Iterator[tuple[ir.Value, frozenset[str]]]:
    for node in nodes:
        match node:
            case ir.Reduce(over=over) if not is_window(node):
                yield node, frozenset(over)
            case ir.Softmax(over=over):
                yield node, frozenset(over)
            case ir.Scan(along=along):
                yield node, frozenset({along})


def _one_direction(nodes: list[ir.Value]) -> None:
    scans = [node for node in nodes if isinstance(node, ir.Scan)]
    if other := next((s for s in scans if s.reverse != scans[0].reverse), None):
        raise Refused(
            "UC0316", "one launch scans in one direction; another scan here goes the other way", other.span,
            "give it a kernel of its own, or a stage of a pipeline",
        )  # fmt: skip
    if nested := next((s for s in scans for n in walk(s.value) if isinstance(n, ir.Scan)), None):
        raise Refused(
            "UC0316", "a scan of a scan is two passes along a row", nested.span,
            "cut here: store the inner one first, in a pipeline: h: f32[..] = ..",
        )  # fmt: skip


def _names(names: frozenset[str]) -> str:
    return "[" + ", ".join(sorted(names)) + "]"


def _result(kernel: ir.Kernel, result: ir.ResultDecl, rows: tuple[str, ...], columns: tuple[str, ...]) -> None:
    if result.type.elem.name not in SWEPT:
        raise Refused(
            "UC0310", f"no kernel without dot writes {result.type.elem.name}", result.span,
            "tensors may be " + " ".join(sorted(SWEPT)),
        )  # fmt: skip
    have = set(result.type.dims)
    if have not in (set(rows), set(rows) | set(columns)):
        raise Refused(
            "UC0312",
            f"results of one launch range over {_names(frozenset(rows))}, with or without what is reduced; "
            f"this one over {_names(frozenset(have))}",
            result.span,
            "give it a kernel of its own, or a stage of a pipeline",
        )
    if any(not axis.dims and axis.extent != Fixed(1) for axis in result.type.axes):
        raise Refused("UC0220", "a nameless axis longer than 1 cannot take part in an expression", result.span,
                      "give the axis a name")  # fmt: skip


def _isolated(nodes: list[ir.Value]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ir.Read(positions=positions):
                for p in positions:
                    yield p.dim
                    yield from (d for d, _ in p.at.terms)
            case ir.Gather(dim=dim):
                yield dim
            case ir.Coordinate(dim=dim):
                yield dim
