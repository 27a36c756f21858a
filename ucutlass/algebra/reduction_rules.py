"""Rules of sums, products and other reductions: what can be taken out of them, and into them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ucutlass import ir
from ucutlass.algebra.rule import AlgebraRule, Equation, Head
from ucutlass.algebra.terms import Terms
from ucutlass.ir import Dims, Value
from ucutlass.ir.elements import F32
from ucutlass.ir.extents import Fixed
from ucutlass.ir.function_facts import named

LINEAR = "reductions are linear"
BILINEAR = "a dot is linear in each operand"
SUMS = "finite sums may be taken in any order (Fubini)"
ORDER = "non-decreasing functions keep the order"

SUM_OR_MEAN = ("sum", "mean")
EXTREMES = ("max", "min")


def _free(value: Value, over: Dims) -> bool:
    """A value is the same at every coordinate that a reduction runs over."""
    return not {*over} & {*value.dims}


def _float(*values: Value) -> bool:
    """Every value is a float, or a number that is written without a point."""
    return all(v.elem.kind == "float" or isinstance(v, ir.Constant) for v in values)


def _reduce(term: Value, *ops: str) -> ir.Reduce | None:
    if isinstance(term, ir.Reduce) and term.elem is F32 and term.op in ops and _float(term.value):
        return term
    return None


def _applied(terms: Terms, term: ir.Reduce, *functions: str) -> Iterator[tuple[ir.Reduce, tuple[Value, ...]]]:
    """Yields the reduction as one of a float function, with the function's arguments."""
    for inner in terms.graph.members(term.value, ir.Apply):
        if inner.function in functions and inner.elem is F32 and _float(*inner.args):
            view = terms.with_part(term, term.value, inner)
            assert isinstance(view, ir.Reduce)
            yield view, inner.args


# --- sums and means ------------------------------------------------------------------


def _factor_of_sum(terms: Terms, term: Value) -> Iterator[Equation]:
    yield from _hoisted(terms, term, "multiply")


def _divisor_of_sum(terms: Terms, term: Value) -> Iterator[Equation]:
    yield from _hoisted(terms, term, "divide")


def _hoisted(terms: Terms, term: Value, function: str) -> Iterator[Equation]:
    """Takes a factor out of the dimensions that it does not have; what it has is summed afterwards."""
    node = _reduce(term, *SUM_OR_MEAN)
    if node is None:
        return
    for view, (a, b) in _applied(terms, node, function):
        for value, factor in ((a, b),) if function == "divide" else ((a, b), (b, a)):
            inner = tuple(d for d in node.over if d not in factor.dims)
            if not inner or not {*inner} & {*value.dims}:
                continue
            rest = _partial(terms, replace(node, over=inner), value)
            if rest is not None:
                outer = [d for d in node.over if d in factor.dims]
                yield view, terms.fit(terms.reduce(node.op, outer, terms.apply(function, rest, factor)), view)


def _sum_of_sum(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, *SUM_OR_MEAN)
    if node is None:
        return
    for function in ("add", "subtract"):
        for view, (a, b) in _applied(terms, node, function):
            left, right = _partial(terms, node, a), _partial(terms, node, b)
            if left is not None and right is not None:
                yield view, terms.fit(terms.apply(function, left, right), view)


def _partial(terms: Terms, node: ir.Reduce, part: Value) -> Value | None:
    """Returns the sum or mean of what may lack some of the dimensions."""
    inner = terms.reduce(node.op, node.over, part)
    missing = [d for d in node.over if d not in part.dims]
    if node.op == "mean" or not missing:
        return inner
    count = terms.count(missing)
    return None if count is None else terms.times(inner, count)


def _repeated(terms: Terms, term: Value) -> Iterator[Equation]:
    """A reduction over dimensions along which a value was only repeated (`expand`)."""
    node = _reduce(term, *SUM_OR_MEAN, *EXTREMES)
    if node is None:
        return
    for inner in terms.graph.members(node.value, ir.Apply):
        if inner.function == "where" and inner.args[1] is inner.args[2] and _float(inner.args[1]):
            whole = inner.args[1]
            if not {*node.over} <= {*whole.dims}:
                rest = (
                    _partial(terms, node, whole)
                    if node.op == "sum"
                    else terms.reduce(node.op, node.over, whole)
                )
                if rest is not None:
                    view = terms.with_part(node, node.value, inner)
                    yield view, terms.fit(rest, view)


def _mean_as_sum(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, "mean")
    count = None if node is None else terms.count(node.over)
    if node is not None and count is not None:
        total = terms.reduce("sum", node.over, node.value)
        yield node, terms.times(total, terms.apply("divide", terms.constant(1.0), count))


def _nested(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, "sum", "mean", "max", "min", "prod", "logsumexp")
    if node is None:
        return
    for inner in terms.graph.members(node.value, ir.Reduce):
        if inner.op == node.op and _float(inner.value):
            view = terms.with_part(node, node.value, inner)
            yield view, terms.reduce(node.op, (*node.over, *inner.over), inner.value)


# --- across dot ----------------------------------------------------------------------


def _sum_across_dot(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, *SUM_OR_MEAN)
    if node is None:
        return
    for dot in terms.graph.members(node.value, ir.Dot):
        if dot.elem is not F32 or not _float(dot.left, dot.right):
            continue
        left = [d for d in node.over if d not in dot.right.dims]
        right = [d for d in node.over if d not in dot.left.dims]
        both = [d for d in node.over if d in dot.left.dims and d in dot.right.dims]
        view = terms.with_part(node, node.value, dot)
        product = terms.dot(
            (*dot.over, *both), terms.reduce(node.op, left, dot.left), terms.reduce(node.op, right, dot.right)
        )
        if node.op == "mean" and both:
            count = terms.count(both)
            if count is None:
                continue
            product = terms.times(product, terms.apply("divide", terms.constant(1.0), count))
        yield view, product


def _dots(terms: Terms, term: Value) -> Iterator[tuple[ir.Dot, Value, Value]]:
    """Yields a float product with its operands in both orders."""
    if isinstance(term, ir.Dot) and term.elem is F32 and _float(term.left, term.right):
        yield term, term.left, term.right
        yield term, term.right, term.left


def _factor_of_dot(terms: Terms, term: Value) -> Iterator[Equation]:
    for node, left, right in _dots(terms, term):
        for function in ("multiply", "divide"):
            for inner in terms.graph.members(left, ir.Apply):
                if inner.function != function or inner.elem is not F32 or not _float(*inner.args):
                    continue
                pairs = [inner.args] + ([(inner.args[1], inner.args[0])] if function == "multiply" else [])
                for value, factor in pairs:
                    if _free(factor, node.over) and {*node.over} <= {*value.dims}:
                        view = terms.with_part(node, left, inner)
                        product = terms.dot(node.over, value, right)
                        yield view, terms.fit(terms.apply(function, product, factor), view)


def _dot_of_sum(terms: Terms, term: Value) -> Iterator[Equation]:
    """dot(a + b, w) = dot(a, w) + dot(b, w), where one of the sum has fewer dimensions: a repeated operand."""
    for node, left, right in _dots(terms, term):
        for inner in terms.graph.members(left, ir.Apply):
            if inner.function not in ("add", "subtract") or inner.elem is not F32 or not _float(*inner.args):
                continue
            if all({*a.dims} == {*inner.dims} for a in inner.args):
                continue
            parts = [_product(terms, node, part, right) for part in inner.args]
            view = terms.with_part(node, left, inner)
            yield view, terms.fit(terms.apply(inner.function, *parts), view)


def _product(terms: Terms, node: ir.Dot, part: Value, right: Value) -> Value:
    """Returns the product of an operand that may lack some of the dimensions summed over."""
    missing = [d for d in node.over if d not in part.dims]
    other = terms.reduce("sum", missing, right)
    over = [d for d in node.over if d in part.dims]
    return terms.dot(over, part, other) if over else terms.times(part, other)


def _sum_of_dots(terms: Terms, term: Value) -> Iterator[Equation]:
    """dot(a, w) + dot(b, w) = dot(a + b, w)."""
    if not isinstance(term, ir.Apply) or term.function not in ("add", "subtract") or term.elem is not F32:
        return
    for a in terms.graph.members(term.args[0], ir.Dot):
        for _, left, shared in _dots(terms, a):
            for b in terms.graph.members(term.args[1], ir.Dot):
                for _, other, same in _dots(terms, b):
                    alike = a.over == b.over and {*left.dims} == {*other.dims}
                    if alike and terms.graph.equal(shared, same):
                        view = terms.graph.add(ir.Apply(term.function, (a, b), F32, term.dims))
                        yield (
                            view,
                            terms.fit(
                                terms.dot(a.over, terms.apply(term.function, left, other), shared), view
                            ),
                        )


def _dot_of_repeated(terms: Terms, term: Value) -> Iterator[Equation]:
    """An operand that is only repeated along some names: what it repeats is multiplied once."""
    for node, left, right in _dots(terms, term):
        for inner in terms.graph.members(left, ir.Apply):
            if inner.function == "where" and inner.args[1] is inner.args[2] and _float(inner.args[1]):
                view = terms.with_part(node, left, inner)
                yield view, terms.fit(_product(terms, node, inner.args[1], right), view)


def _dot_of_dot(terms: Terms, term: Value) -> Iterator[Equation]:
    """(A B) C = A (B C): whichever is cheaper."""
    for node, left, right in _dots(terms, term):
        for inner in terms.graph.members(left, ir.Dot):
            for _, a, b in _dots(terms, inner):
                if _free(a, node.over) and _free(right, inner.over):
                    view = terms.with_part(node, left, inner)
                    yield view, terms.dot(inner.over, a, terms.dot(node.over, b, right))


def _dot_as_sum(terms: Terms, term: Value) -> Iterator[Equation]:
    """A product of which one operand has all dimensions: a matrix and a vector, or element by element."""
    for node, left, right in _dots(terms, term):
        if {*right.dims} <= {*left.dims}:
            product = terms.times(terms.cast(left, F32), terms.cast(right, F32))
            yield node, terms.reduce("sum", node.over, product)
            return


def _sum_as_dot(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, "sum")
    if node is None:
        return
    for view, (a, b) in _applied(terms, node, "multiply"):
        if {*node.over} <= {*a.dims} and {*node.over} <= {*b.dims} and a.elem is b.elem is F32:
            yield view, terms.dot(node.over, a, b)


# --- largest and smallest ------------------------------------------------------------


def _extreme_of_function(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, *EXTREMES)
    if node is None:
        return
    for view, args in _applied(terms, node, *named("rises")):
        bounds = [terms.number(a) for a in args[1:]]
        if None in bounds or any(b is not None and b < 0 for b in bounds if len(bounds) == 1):
            continue
        assert isinstance(view.value, ir.Apply)
        extreme = terms.reduce(node.op, node.over, args[0])
        yield view, terms.fit(terms.apply(view.value.function, extreme, *args[1:]), view)


def _extreme_of_sum(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, *EXTREMES)
    if node is None:
        return
    for function in ("add", "subtract"):
        for view, (a, b) in _applied(terms, node, function):
            pairs = [(a, b)] if function == "subtract" else [(a, b), (b, a)]
            for value, offset in pairs:
                if _free(offset, node.over) and not _free(value, node.over):
                    extreme = terms.reduce(node.op, node.over, value)
                    yield view, terms.fit(terms.apply(function, extreme, offset), view)


def _extreme_of_bound(terms: Terms, term: Value) -> Iterator[Equation]:
    """Bounds that are the same along a line are applied to its extreme."""
    node = _reduce(term, *EXTREMES)
    if node is None:
        return
    for function in EXTREMES:
        for view, (a, b) in _applied(terms, node, function):
            for value, bound in ((a, b), (b, a)):
                if _free(bound, node.over) and not _free(value, node.over):
                    extreme = terms.reduce(node.op, node.over, value)
                    yield view, terms.fit(terms.apply(function, extreme, bound), view)


def _extreme_of_multiple(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, *EXTREMES)
    if node is None:
        return
    for view, (a, b) in _applied(terms, node, "multiply"):
        for value, factor in ((a, b), (b, a)):
            number = terms.number(factor)
            if number is None or number == 0.0 or _free(value, node.over):
                continue
            other: ir.ReduceOp = "min" if node.op == "max" else "max"
            op = node.op if number > 0 else other
            yield view, terms.fit(terms.times(terms.reduce(op, node.over, value), factor), view)


def _variance(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, "var")
    if node is None:
        return
    for function in ("add", "subtract", "multiply"):
        for view, (a, b) in _applied(terms, node, function):
            pairs = [(a, b)] if function == "subtract" else [(a, b), (b, a)]
            for value, other in pairs:
                if _free(other, node.over) and not _free(value, node.over):
                    inner = terms.reduce("var", node.over, value)
                    whole = terms.times(inner, terms.times(other, other)) if function == "multiply" else inner
                    yield view, terms.fit(whole, view)


def _one(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, "sum", "mean", "max", "min", "prod", "logsumexp")
    if node is not None and all(terms.fixed(d) == 1 for d in node.over):
        positions = tuple(ir.Position(d, 1, ir.Affine((), Fixed(0))) for d in node.over)
        yield node, terms.cast(terms.read(node.value, positions, 0.0), F32)


def _variance_of_one(terms: Terms, term: Value) -> Iterator[Equation]:
    node = _reduce(term, "var")
    if node is not None and all(terms.fixed(d) == 1 for d in node.over):
        yield node, terms.fit(terms.constant(0.0), node)


def _heads(*ops: str) -> tuple[Head, ...]:
    return tuple(("Reduce", op) for op in ops)


_SUMS, _DOT = _heads(*SUM_OR_MEAN), (("Dot", ""),)

TABLE: tuple[AlgebraRule, ...] = (
    AlgebraRule(
        "factor of a sum",
        "sum[N](x * y) = sum[N](x) * y; mean likewise",
        "y without N",
        "finite",
        LINEAR,
        _SUMS,
        _factor_of_sum,
    ),
    AlgebraRule(
        "divisor of a sum",
        "sum[N](x / y) = sum[N](x) / y; mean likewise",
        "y without N",
        "finite",
        LINEAR,
        _SUMS,
        _divisor_of_sum,
    ),
    AlgebraRule(
        "sum of a sum",
        "sum[N](x + y) = sum[N](x) + sum[N](y); differences and mean likewise",
        "",
        "finite",
        LINEAR,
        _SUMS,
        _sum_of_sum,
    ),
    AlgebraRule(
        "sum of a repeated value",
        "sum[N](expand[N](x)) = x * size(N); mean, max and min give x",
        "",
        "finite",
        LINEAR,
        _heads(*SUM_OR_MEAN, *EXTREMES),
        _repeated,
    ),
    AlgebraRule(
        "mean as a sum",
        "mean[N](x) = sum[N](x) * (1 / size(N)) of fixed N",
        "",
        "finite",
        LINEAR,
        _heads("mean"),
        _mean_as_sum,
    ),
    AlgebraRule(
        "nested reductions",
        "sum[M](sum[N](x)) = sum[M, N](x); mean, max, min, prod and logsumexp likewise",
        "",
        "finite",
        SUMS,
        _heads("sum", "mean", "max", "min", "prod", "logsumexp"),
        _nested,
    ),
    AlgebraRule(
        "sum across dot",
        "sum[N](dot[K](x, w)) = dot[K](x, sum[N](w)) of x without N, and dot[K, N](x, w) of a name of both; mean likewise",
        "",
        "finite",
        BILINEAR,
        _SUMS,
        _sum_across_dot,
    ),
    AlgebraRule(
        "factor of a dot",
        "dot[K](x * y, w) = dot[K](x, w) * y; quotients likewise",
        "y without K",
        "finite",
        BILINEAR,
        _DOT,
        _factor_of_dot,
    ),
    AlgebraRule(
        "dot of a sum",
        "dot[K](x + y, w) = dot[K](x, w) + dot[K](y, w) of x or y with fewer names; differences likewise",
        "",
        "finite",
        BILINEAR,
        _DOT,
        _dot_of_sum,
    ),
    AlgebraRule(
        "dot of a repeated value",
        "dot[K](expand[M](x), w) = expand[M](dot[K](x, w)), and x * sum[K](w) of expand[K](x)",
        "",
        "finite",
        BILINEAR,
        _DOT,
        _dot_of_repeated,
    ),
    AlgebraRule(
        "sum of dots",
        "dot[K](x, w) + dot[K](y, w) = dot[K](x + y, w); differences likewise",
        "",
        "finite",
        BILINEAR,
        (("Apply", "add"), ("Apply", "subtract")),
        _sum_of_dots,
    ),
    AlgebraRule(
        "dot of a dot",
        "dot[K](dot[J](x, v), w) = dot[J](x, dot[K](v, w))",
        "x without K and w without J",
        "finite",
        SUMS,
        _DOT,
        _dot_of_dot,
    ),
    AlgebraRule(
        "dot as a sum",
        "dot[K](x, w) = sum[K](x * w) of x with all names of w",
        "",
        "always",
        "the definition of dot",
        _DOT,
        _dot_as_sum,
    ),
    AlgebraRule(
        "sum as a dot",
        "sum[K](x * w) = dot[K](x, w) of f32",
        "",
        "always",
        "the definition of dot",
        _heads("sum"),
        _sum_as_dot,
    ),
    AlgebraRule(
        "extreme of an increasing function",
        "max[N](f(x)) = f(max[N](x)); min likewise",
        "f never falls: relu, exp, sigmoid, tanh, softplus, selu, erf, floor, round, clamp, hardtanh, and leaky_relu and elu with constants that are not negative",
        "always",
        ORDER,
        _heads(*EXTREMES),
        _extreme_of_function,
    ),
    AlgebraRule(
        "extreme of a sum",
        "max[N](x + y) = max[N](x) + y; min and differences likewise",
        "y without N",
        "finite",
        ORDER,
        _heads(*EXTREMES),
        _extreme_of_sum,
    ),
    AlgebraRule(
        "extreme of a bound",
        "max[N](min(x, y)) = min(max[N](x), y); max(x, y) and the least likewise",
        "y without N",
        "always",
        ORDER,
        _heads(*EXTREMES),
        _extreme_of_bound,
    ),
    AlgebraRule(
        "extreme of a multiple",
        "max[N](c * x) = c * max[N](x), or c * min[N](x) for c < 0; min likewise",
        "c a number",
        "always",
        ORDER,
        _heads(*EXTREMES),
        _extreme_of_multiple,
    ),
    AlgebraRule(
        "variance of a line",
        "var[N](x + y) = var[N](x) and var[N](x * y) = var[N](x) * y * y",
        "y without N",
        "finite",
        "the definition of a variance",
        _heads("var"),
        _variance,
    ),
    AlgebraRule(
        "reduction of one",
        "sum[N](x) = x[N = 0]; mean, max, min, prod and logsumexp likewise",
        "N of extent 1",
        "always",
        "the definitions",
        _heads("sum", "mean", "max", "min", "prod", "logsumexp"),
        _one,
    ),
    AlgebraRule(
        "variance of one",
        "var[N](x) = 0",
        "N of extent 1",
        "finite",
        "the definition of a variance",
        _heads("var"),
        _variance_of_one,
    ),
)
