"""Rules of values that are read at other positions: windows, shifts, renames.

A read outside of what it reads gives its `fill`. A rule moves a read across an operation only where nothing
outside is read, or where 0 is read there and the operation makes 0 of it.
"""

from __future__ import annotations

from collections.abc import Iterator

from ucutlass import ir
from ucutlass.algebra.rule import AlgebraRule, Equation
from ucutlass.algebra.terms import Terms, inside
from ucutlass.ir import Value
from ucutlass.ir.elements import F32
from ucutlass.ir.extents import Fixed, combined
from ucutlass.ir.function_facts import facts

COMPOSITION = "affine maps compose"
POINTWISE = "element-wise functions are computed at each position"


def _fresh(read: ir.Read) -> set[str]:
    return {d for p in read.positions for d, _ in p.at.terms}


def _across_dot(terms: Terms, term: Value) -> Iterator[Equation]:
    """A window of a product is the product of a window, where one operand alone has what is read."""
    if not isinstance(term, ir.Read) or term.elem is not F32:
        return
    within = inside(terms, term.positions)
    if not within and term.fill != 0.0:
        return
    gone = {p.dim for p in term.positions}
    for dot in terms.graph.members(term.value, ir.Dot):
        if _fresh(term) & {*dot.over}:
            continue
        for moved, other in ((dot.left, dot.right), (dot.right, dot.left)):
            if gone <= {*moved.dims} and not gone & {*other.dims}:
                inner = terms.read(moved, term.positions, 0.0)
                view = terms.with_part(term, term.value, dot)
                operands = (inner, other) if moved is dot.left else (other, inner)
                dims = tuple(d for d in terms.graph.dims((*inner.dims, *other.dims)) if d not in dot.over)
                product = ir.Dot(dot.over, *operands, dot.compute_type, dot.accumulate, dot.elem, dims)
                yield view, terms.fit(terms.graph.add(product), view)


def _across_function(terms: Terms, term: Value) -> Iterator[Equation]:
    if not isinstance(term, ir.Read) or term.elem is not F32:
        return
    within = inside(terms, term.positions)
    gone = {p.dim for p in term.positions}
    for inner in terms.graph.members(term.value, ir.Apply):
        if inner.elem is not F32 or any(a.elem.kind != "float" for a in inner.args):
            continue
        zero = term.fill == 0.0 and facts(inner.function).keeps_zero
        scaled = (
            term.fill == 0.0 and inner.function == "multiply" and any(gone & {*a.dims} for a in inner.args)
        )
        if not within and not zero and not scaled:
            continue
        parts = [terms.read(a, term.positions, 0.0) for a in inner.args]
        if not within and scaled and not any(gone <= {*a.dims} for a in inner.args):
            continue
        view = terms.with_part(term, term.value, inner)
        yield view, terms.fit(terms.apply(inner.function, *parts), view)


def _across_reduction(terms: Terms, term: Value) -> Iterator[Equation]:
    if not isinstance(term, ir.Read) or term.elem is not F32:
        return
    within = inside(terms, term.positions)
    for inner in terms.graph.members(term.value, ir.Reduce):
        neutral = inner.op in ("sum", "mean") and term.fill == 0.0
        if (within or neutral) and inner.value.elem.kind == "float" and not _fresh(term) & {*inner.over}:
            if _fresh(term) & {*inner.value.dims} - {p.dim for p in term.positions}:
                continue
            view = terms.with_part(term, term.value, inner)
            yield view, terms.reduce(inner.op, inner.over, terms.read(inner.value, term.positions, 0.0))


def _sum_of_window(terms: Terms, term: Value) -> Iterator[Equation]:
    """A sum over a window in one direction is taken before windows in the others."""
    if not isinstance(term, ir.Reduce) or term.op not in ("sum", "mean"):
        return
    for inner in terms.graph.members(term.value, ir.Read):
        if inner.fill != 0.0 or inner.elem.kind != "float":
            continue
        summed = tuple(p for p in inner.positions if {d for d, _ in p.at.terms} & {*term.over})
        others = tuple(p for p in inner.positions if p not in summed)
        gone = {p.dim for p in others}
        if not others or _fresh(inner) & {*inner.value.dims} or gone & ({*term.over} | _fresh(inner)):
            continue
        total = terms.reduce(term.op, term.over, terms.read(inner.value, summed, 0.0))
        view = terms.with_part(term, term.value, inner)
        yield view, terms.read(total, others, 0.0)


def _composed(terms: Terms, term: Value) -> Iterator[Equation]:
    """A window of a window, where the outer one stays inside."""
    if not isinstance(term, ir.Read) or not inside(terms, term.positions):
        return
    outer = {p.dim: p.at for p in term.positions}
    for inner in terms.graph.members(term.value, ir.Read):
        if not {*outer} <= _fresh(inner) or {*outer} & {*inner.value.dims}:
            continue
        if _fresh(term) & {*inner.dims} or _fresh(term) & {*inner.value.dims}:
            continue
        positions = tuple(_substituted(p, outer) for p in inner.positions)
        view = terms.with_part(term, term.value, inner)
        yield view, terms.read(inner.value, positions, inner.fill)


def _substituted(position: ir.Position, outer: dict[str, ir.Affine]) -> ir.Position:
    factors: dict[str, int] = {}
    offset = position.at.offset
    for dim, factor in position.at.terms:
        if dim not in outer:
            factors[dim] = factors.get(dim, 0) + factor
            continue
        for other, times in outer[dim].terms:
            factors[other] = factors.get(other, 0) + factor * times
        offset = combined("+", offset, combined("*", Fixed(factor), outer[dim].offset))
    nonzero = tuple((d, f) for d, f in factors.items() if f)
    return ir.Position(position.dim, position.scale, ir.Affine(nonzero, offset))


_READ = (("Read", ""),)

TABLE: tuple[AlgebraRule, ...] = (
    AlgebraRule(
        "window of a dot",
        "dot[K](x, w)[P = Q + S] = dot[K](x[P = Q + S], w)",
        "w without P, and 0 is read outside, or nothing is",
        "finite",
        "a product with 0 is 0",
        _READ,
        _across_dot,
    ),
    AlgebraRule(
        "window of a function",
        "f(x)[P = Q + S] = f(x[P = Q + S])",
        "nothing outside is read, or 0 is and f of 0 is 0",
        "finite",
        POINTWISE,
        _READ,
        _across_function,
    ),
    AlgebraRule(
        "window of a reduction",
        "sum[K](x)[P = Q + S] = sum[K](x[P = Q + S]); other reductions likewise",
        "nothing outside is read, or 0 is and sums or means are taken",
        "always",
        POINTWISE,
        _READ,
        _across_reduction,
    ),
    AlgebraRule(
        "sum of a window",
        "sum[P](x[H = P + R, W = Q + S]) = sum[P](x[H = P + R])[W = Q + S]; mean likewise",
        "",
        "finite",
        "finite sums may be taken in any order (Fubini)",
        (("Reduce", "sum"), ("Reduce", "mean")),
        _sum_of_window,
    ),
    AlgebraRule(
        "window of a window",
        "x[H = 2*P + R][P = 2*Q + S] = x[H = 4*Q + 2*S + R]",
        "P stays inside",
        "always",
        COMPOSITION,
        _READ,
        _composed,
    ),
)
