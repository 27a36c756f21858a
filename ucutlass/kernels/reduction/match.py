"""The reduction pattern: no dot; element-wise work, reductions over one set of names or a scan along one,
windows and gathers. `ucutlass.kernels.reduction.problem` gives it extents."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from ucutlass import ir
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.extents import Fixed
from ucutlass.ir.traversal import upwards
from ucutlass.kernels.refused import Refused

SWEPT = frozenset(name for name in ELEMENTS if name not in ("tf32", "s4", "f64"))
"""Element types that reductions read and write."""


@dataclass(frozen=True, slots=True)
class ReductionPattern:
    """A kernel seen as a reduction. `columns` are the names that reductions consume or a scan runs along,
    in the order of `kernel.dims`; `rows` all other names of the results; `windows` the names that
    window reductions sum over. `isolated` names are modes of their own: their coordinates matter."""

    kernel: ir.Kernel
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    windows: tuple[str, ...]
    isolated: frozenset[str]


def match_reduction(kernel: ir.Kernel) -> ReductionPattern:
    """The pattern of a kernel without dots. Raises Refused."""
    nodes = list(upwards(*(r.value for r in kernel.results)))
    windows = _windows(kernel, nodes)
    for node in nodes:
        _supported(kernel, node, windows)
    columns = _columns(kernel, nodes, windows)
    _one_pass(nodes, windows)
    rows = _ordered(kernel, {d for r in kernel.results for d in r.type.dims} - set(columns))
    for result in kernel.results:
        _result(kernel, result, rows, columns)
    return ReductionPattern(
        kernel,
        rows,
        _ordered(kernel, set(columns)),
        _ordered(kernel, set(windows)),
        frozenset(_isolated(nodes)),
    )


def is_window(node: ir.Value, windows: Collection[str]) -> bool:
    """Whether a node reduces over a window; `windows` are the pattern's names."""
    return isinstance(node, ir.Reduce) and not set(windows).isdisjoint(node.over)


def _windows(kernel: ir.Kernel, nodes: list[ir.Value]) -> frozenset[str]:
    """The names of windows: a reduction over them reads its operand at positions that they move together
    with other names. Names of results are none, and what an inner window reads is its own affair."""
    results = {d for r in kernel.results for d in r.type.dims}
    moving: dict[int, frozenset[str]] = {}
    dims: set[str] = set()
    for node in nodes:
        names = frozenset().union(*(moving[id(c)] for c in ir.children(node)), _moving(node))
        if isinstance(node, ir.Reduce) and names & set(node.over) and not results & set(node.over):
            dims |= set(node.over)
            names = frozenset()
        moving[id(node)] = names
    while more := {d for n in nodes if is_window(n, dims) for d in n.over} - dims:  # type: ignore[union-attr]
        dims |= more
    return frozenset(dims)


def _moving(node: ir.Value) -> Iterator[str]:
    """The names by which a node reads at positions of several names."""
    if isinstance(node, ir.Read):
        for p in node.positions:
            if len(p.at.terms) > 1:
                yield from (d for d, _ in p.at.terms)


def _ordered(kernel: ir.Kernel, names: set[str]) -> tuple[str, ...]:
    return tuple(d for d in kernel.dims if d in names)


def _supported(kernel: ir.Kernel, node: ir.Value, windows: frozenset[str]) -> None:
    match node:
        case ir.ParamValue(index=index):
            elem = kernel.params[index].type.elem
            if elem.name not in SWEPT:
                raise Refused(
                    "UC0310",
                    f"no kernel without dot reads {elem.name}",
                    node.span,
                    "tensors may be " + " ".join(sorted(SWEPT)),
                )
        case ir.Segment():
            raise Refused.no_family(kernel, "segment(..) outside the operand of a dot", node.span)
        case ir.Reduce(op=op) if is_window(node, windows) and op in ("logsumexp", "var"):
            raise Refused(
                "UC0313",
                f"{op} is not taken over a window",
                node.span,
                "a window takes sum, mean, max, min, prod, argmax and argmin",
            )


def _columns(kernel: ir.Kernel, nodes: list[ir.Value], windows: frozenset[str]) -> tuple[str, ...]:
    """The one set of names that is consumed. Raises Refused where there are two."""
    first: tuple[frozenset[str], ir.Value] | None = None
    for node, over in _consuming(nodes, windows):
        if first is None:
            first = over, node
        if first[0] != over or over & windows:
            another = windows if over & windows else first[0]
            raise Refused(
                "UC0311",
                f"one launch reduces or scans over one set of names; this is over {_names(kernel, over)}, "
                f"another over {_names(kernel, another)}",
                node.span,
                "store the inner one first, in a pipeline: h: f32[..] = ..",
            )
    return () if first is None else tuple(first[0])


def _consuming(nodes: list[ir.Value], windows: frozenset[str]) -> Iterator[tuple[ir.Value, frozenset[str]]]:
    for node in nodes:
        match node:
            case ir.Reduce(over=over) if not is_window(node, windows):
                yield node, frozenset(over)
            case ir.Softmax(over=over):
                yield node, frozenset(over)
            case ir.Scan(along=along):
                yield node, frozenset({along})


def _one_pass(nodes: list[ir.Value], windows: frozenset[str]) -> None:
    """Raises Refused for what one pass along a row, or one thread's window, cannot do."""
    scans = [node for node in nodes if isinstance(node, ir.Scan)]
    if other := next((s for s in scans if s.reverse != scans[0].reverse), None):
        raise Refused(
            "UC0316",
            "one launch scans in one direction; another scan here goes the other way",
            other.span,
            "give it a kernel of its own, or a stage of a pipeline",
        )
    below: dict[int, tuple[bool, bool]] = {}
    for node in nodes:
        inner = [below[id(c)] for c in ir.children(node)]
        scanned, framed = any(s for s, _ in inner), any(w for _, w in inner)
        scan, window = isinstance(node, ir.Scan), is_window(node, windows)
        if scanned and (scan or isinstance(node, ir.Softmax) or (isinstance(node, ir.Reduce) and not window)):
            what = "a scan" if scan else "a reduction"
            raise Refused(
                "UC0316",
                f"{what} of a scan is two passes along a row, and a scan is the last one",
                node.span,
                "cut here: store the scan first, in a pipeline: h: f32[..] = ..",
            )
        if framed and window:
            raise Refused(
                "UC0314",
                "a window over another window's values",
                node.span,
                "cut here: store the inner one first, in a pipeline: h: f32[..] = ..",
            )
        below[id(node)] = scanned or scan, framed or window


def _names(kernel: ir.Kernel, names: Collection[str]) -> str:
    return "[" + ", ".join(_ordered(kernel, set(names))) + "]"


def _result(
    kernel: ir.Kernel, result: ir.ResultDecl, rows: tuple[str, ...], columns: tuple[str, ...]
) -> None:
    if result.type.elem.name not in SWEPT:
        raise Refused(
            "UC0310",
            f"no kernel without dot writes {result.type.elem.name}",
            result.span,
            "tensors may be " + " ".join(sorted(SWEPT)),
        )
    have = set(result.type.dims)
    if have not in (set(rows), set(rows) | set(columns)):
        raise Refused(
            "UC0312",
            f"results of one launch range over {_names(kernel, rows)}, with or without what is reduced; "
            f"this one over {_names(kernel, have)}",
            result.span,
            "give it a kernel of its own, or a stage of a pipeline",
        )
    if any(not axis.dims and axis.extent != Fixed(1) for axis in result.type.axes):
        raise Refused(
            "UC0220",
            "a nameless axis longer than 1 cannot take part in an expression",
            result.span,
            "give the axis a name",
        )


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
