"""Rules of softmax, its logarithm and logsumexp."""

from __future__ import annotations

from collections.abc import Iterator

from ucutlass import ir
from ucutlass.algebra.rule import AlgebraRule, Equation
from ucutlass.algebra.terms import Terms
from ucutlass.ir import Value
from ucutlass.ir.elements import F32

DEFINITION = "the definition of softmax"


def _shift(terms: Terms, term: Value) -> Iterator[Equation]:
    if not isinstance(term, ir.Softmax):
        return
    for inner, value, _ in _shifted(terms, term.value, term.over):
        yield (
            terms.with_part(term, term.value, inner),
            terms.fit(terms.softmax(term.over, value, term.log), term),
        )


def _shifted(terms: Terms, value: Value, over: ir.Dims) -> Iterator[tuple[ir.Apply, Value, Value]]:
    """Yields a sum as a value and an offset without the dimensions."""
    for inner in terms.graph.members(value, ir.Apply):
        if inner.function in ("add", "subtract") and inner.elem is F32:
            a, b = inner.args
            pairs = [(a, b)] if inner.function == "subtract" else [(a, b), (b, a)]
            for part, offset in pairs:
                if {*over} <= {*part.dims} and not {*over} & {*offset.dims} and part.elem.kind == "float":
                    yield inner, terms.cast(part, F32), offset


def _logsumexp_shift(terms: Terms, term: Value) -> Iterator[Equation]:
    if not isinstance(term, ir.Reduce) or term.op != "logsumexp":
        return
    for inner, value, offset in _shifted(terms, term.value, term.over):
        view = terms.with_part(term, term.value, inner)
        yield (
            view,
            terms.fit(terms.apply(inner.function, terms.reduce("logsumexp", term.over, value), offset), view),
        )


def _total(terms: Terms, term: Value) -> Iterator[Equation]:
    if not isinstance(term, ir.Reduce) or term.op not in ("sum", "mean"):
        return
    for inner in terms.graph.members(term.value, ir.Softmax):
        if inner.log or not {*inner.over} <= {*term.over}:
            continue
        rest = [d for d in term.over if d not in inner.over]
        count = terms.count(rest if term.op == "sum" else inner.over)
        if count is None:
            continue
        whole = count if term.op == "sum" else terms.apply("divide", terms.constant(1.0), count)
        view = terms.with_part(term, term.value, inner)
        yield view, terms.fit(whole, view)


def _logarithm(terms: Terms, term: Value) -> Iterator[Equation]:
    if not isinstance(term, ir.Apply) or term.function not in ("log", "exp"):
        return
    for inner in terms.graph.members(term.args[0], ir.Softmax):
        if inner.log is (term.function == "exp"):
            view = terms.with_part(term, term.args[0], inner)
            yield view, terms.softmax(inner.over, inner.value, not inner.log)


def _normalised(terms: Terms, term: Value) -> Iterator[Equation]:
    """exp(x) / sum[N](exp(x)) = softmax[N](x)."""
    if not isinstance(term, ir.Apply) or term.function != "divide":
        return
    for total in terms.graph.members(term.args[1], ir.Reduce):
        if total.op != "sum" or not terms.graph.equal(total.value, term.args[0]):
            continue
        for inner in terms.graph.members(term.args[0], ir.Apply):
            if inner.function == "exp" and {*total.over} <= {*inner.args[0].dims}:
                whole = terms.with_part(total, total.value, inner)
                view = terms.graph.add(ir.Apply("divide", (inner, whole), F32, term.dims))
                yield view, terms.softmax(total.over, inner.args[0], False)


def _log_of_sum(terms: Terms, term: Value) -> Iterator[Equation]:
    if not isinstance(term, ir.Apply) or term.function != "log":
        return
    for total in terms.graph.members(term.args[0], ir.Reduce):
        if total.op != "sum":
            continue
        for inner in terms.graph.members(total.value, ir.Apply):
            if inner.function == "exp" and inner.args[0].elem.kind == "float":
                view = terms.with_part(term, term.args[0], terms.with_part(total, total.value, inner))
                yield view, terms.reduce("logsumexp", total.over, inner.args[0])


def _minus_logsumexp(terms: Terms, term: Value) -> Iterator[Equation]:
    if not isinstance(term, ir.Apply) or term.function != "subtract":
        return
    for total in terms.graph.members(term.args[1], ir.Reduce):
        if total.op == "logsumexp" and terms.graph.equal(total.value, term.args[0]):
            same = terms.with_part(total, total.value, term.args[0])
            view = terms.graph.add(ir.Apply("subtract", (term.args[0], same), F32, term.dims))
            yield view, terms.softmax(total.over, term.args[0], True)


def _of_one(terms: Terms, term: Value) -> Iterator[Equation]:
    if isinstance(term, ir.Softmax) and all(terms.fixed(d) == 1 for d in term.over):
        yield term, terms.fit(terms.constant(0.0 if term.log else 1.0), term)


TABLE: tuple[AlgebraRule, ...] = (
    AlgebraRule(
        "shift of softmax",
        "softmax[N](x + y) = softmax[N](x); log_softmax and differences likewise",
        "y without N",
        "finite",
        DEFINITION,
        (("Softmax", ""),),
        _shift,
    ),
    AlgebraRule(
        "softmax of one",
        "softmax[N](x) = 1 and log_softmax[N](x) = 0",
        "N of extent 1",
        "finite",
        DEFINITION,
        (("Softmax", ""),),
        _of_one,
    ),
    AlgebraRule(
        "shift of logsumexp",
        "logsumexp[N](x + y) = logsumexp[N](x) + y; differences likewise",
        "y without N",
        "finite",
        DEFINITION,
        (("Reduce", "logsumexp"),),
        _logsumexp_shift,
    ),
    AlgebraRule(
        "sum of a softmax",
        "sum[N](softmax[N](x)) = 1; mean gives 1 / size(N)",
        "",
        "finite",
        DEFINITION,
        (("Reduce", "sum"), ("Reduce", "mean")),
        _total,
    ),
    AlgebraRule(
        "logarithm of softmax",
        "log(softmax[N](x)) = log_softmax[N](x) and exp(log_softmax[N](x)) = softmax[N](x)",
        "",
        "finite",
        DEFINITION,
        (("Apply", "log"), ("Apply", "exp")),
        _logarithm,
    ),
    AlgebraRule(
        "softmax",
        "exp(x) / sum[N](exp(x)) = softmax[N](x)",
        "",
        "finite",
        DEFINITION,
        (("Apply", "divide"),),
        _normalised,
    ),
    AlgebraRule(
        "logsumexp",
        "log(sum[N](exp(x))) = logsumexp[N](x)",
        "",
        "finite",
        DEFINITION,
        (("Apply", "log"),),
        _log_of_sum,
    ),
    AlgebraRule(
        "log_softmax",
        "x - logsumexp[N](x) = log_softmax[N](x)",
        "",
        "finite",
        DEFINITION,
        (("Apply", "subtract"),),
        _minus_logsumexp,
    ),
)
