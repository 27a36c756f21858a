"""Rules of element-wise functions.

Most are written as two patterns: a tuple is a function of patterns, a string stands for any float term, the same
string for the same class, and a number for itself. A string that begins with `c` stands for a finite constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeAlias, Union

from ucutlass import ir
from ucutlass.algebra.rule import AlgebraRule, Equation, Holds
from ucutlass.algebra.terms import Terms
from ucutlass.ir import Value
from ucutlass.ir.elements import F32
from ucutlass.ir.function_facts import facts, named

Pattern: TypeAlias = Union[str, float, "tuple[str | Pattern, ...]"]
Bound: TypeAlias = Mapping[str, Value]
Condition: TypeAlias = Callable[[Terms, Bound], bool]

RING = "the real numbers are a field"
ORDER = "the real numbers are ordered; NaN is passed on by min and max of the language"
EXPONENTIAL = "functional equations of exp and log"
DEFINITION = "the definition in ucutlass/ir/functions.py"


def _always(terms: Terms, bound: Bound) -> bool:
    return True


def _matches(terms: Terms, pattern: Pattern, term: Value, bound: Bound) -> Iterator[tuple[Value, Bound]]:
    """Yields the terms of a term's class that a pattern matches, with what its names stand for."""
    match pattern:
        case str():
            matched = bound.get(pattern)
            if term.elem.kind != "float" and not isinstance(term, ir.Constant):
                return
            if matched is not None:
                if terms.graph.equal(matched, term):
                    yield matched, bound
            elif not pattern.startswith("c"):
                yield term, {**bound, pattern: term}
            elif (constant := terms.constants(term)) is not None and terms.number(constant) is not None:
                yield constant, {**bound, pattern: constant}
        case tuple():
            for member in terms.graph.members(term, ir.Apply):
                if member.function == pattern[0] and member.elem is F32:
                    yield from _parts(terms, pattern, member, bound)
        case _:
            constant = terms.constants(term)
            if constant is not None and constant.elem.kind != "bool" and constant.value == pattern:
                yield constant, bound


def _parts(
    terms: Terms, pattern: tuple[str | Pattern, ...], term: ir.Apply, bound: Bound
) -> Iterator[tuple[Value, Bound]]:
    orders = [term.args]
    if facts(term.function).commutes and term.args[0] is not term.args[1]:
        orders.append((term.args[1], term.args[0]))
    if len(pattern) - 1 != len(term.args):
        return
    for args in orders:
        matches: list[tuple[tuple[Value, ...], Bound]] = [((), bound)]
        for part, arg in zip(pattern[1:], args, strict=True):
            matches = [
                ((*before, match), after)
                for before, prefix in matches
                for match, after in _matches(terms, part, arg, prefix)
            ]
        for matched, after in matches:
            yield terms.graph.add(ir.Apply(term.function, matched, term.elem, term.dims)), after


def _written(terms: Terms, pattern: Pattern, bound: Bound) -> Value:
    match pattern:
        case str():
            return bound[pattern]
        case tuple():
            name, *parts = pattern
            assert isinstance(name, str)
            return terms.apply(name, *(_written(terms, part, bound) for part in parts))
        case _:
            return terms.constant(pattern)


def _rewrite(
    left: tuple[str | Pattern, ...], right: Pattern, condition: Condition, terms: Terms, term: Value
) -> Iterator[Equation]:
    if not isinstance(term, ir.Apply) or term.elem is not F32 or term.function != left[0]:
        return
    for match, bound in _parts(terms, left, term, {}):
        if condition(terms, bound):
            yield match, terms.fit(_written(terms, right, bound), match)


def _equation(
    name: str,
    text: str,
    holds: Holds,
    source: str,
    left: tuple[str | Pattern, ...],
    right: Pattern,
    condition: str = "",
    test: Condition = _always,
) -> AlgebraRule:
    assert isinstance(left[0], str)
    return AlgebraRule(
        name, text, condition, holds, source, (("Apply", left[0]),), partial(_rewrite, left, right, test)
    )


def _constant(name: str, test: Callable[[float], bool]) -> Condition:
    def holds(terms: Terms, bound: Bound) -> bool:
        value = terms.number(bound[name])
        return value is not None and test(value)

    return holds


def _invertible(c: float) -> bool:
    return 2.0**-60 < abs(c) < 2.0**60


def _never_negative(terms: Terms, bound: Bound) -> bool:
    return terms.range(bound["x"])[0] >= 0.0


# --- by range ------------------------------------------------------------------------


def _absorbed(terms: Terms, term: Value) -> Iterator[Equation]:
    """A bound that a value cannot pass, whatever the inputs."""
    if not isinstance(term, ir.Apply) or term.elem is not F32:
        return
    for view in terms.views(term):
        assert isinstance(view, ir.Apply)
        ranges = [terms.range(a) for a in view.args]
        numbers = all(terms.number(a) is not None for a in view.args[1:])
        same: Value | None = None
        match view.function, ranges:
            case function, [(low, _), *_] if low >= 0 and facts(function).keeps_positive and numbers:
                same = view.args[0]
            case "relu", [(_, 0.0)]:
                same = terms.constant(0.0)
            case (("clamp" | "hardtanh"), [(low, high), (_, least), (most, _)]) if (
                least <= low and high <= most
            ):
                same = view.args[0]
            case (("clamp" | "hardtanh"), [(_, high), (least, _), (most, _)]) if (
                high <= least <= most and numbers
            ):
                same = view.args[1]
            case (("clamp" | "hardtanh"), [(low, _), _, (_, most)]) if most <= low and numbers:
                same = view.args[2]
            case "max", [(low, _), (_, other)] if other <= low:
                same = view.args[0]
            case "max", [(_, other), (low, _)] if other <= low:
                same = view.args[1]
            case "min", [(_, high), (other, _)] if high <= other:
                same = view.args[0]
            case "min", [(other, _), (_, high)] if high <= other:
                same = view.args[1]
        if same is not None and same.elem.kind == "float":
            yield view, terms.fit(same, view)


def _of_repeated(terms: Terms, term: Value) -> Iterator[Equation]:
    """A function of a value that is only repeated along some names."""
    if not isinstance(term, ir.Apply) or term.elem is not F32 or not _repeats(term):
        return
    for part in term.args:
        for inner in terms.graph.members(part, ir.Apply):
            if (
                inner.function == "where"
                and inner.args[1] is inner.args[2]
                and inner.args[1].elem.kind == "float"
            ):
                view = terms.with_part(term, part, inner)
                args = [inner.args[1] if a is inner else a for a in ir.children(view)]
                yield view, terms.fit(terms.apply(term.function, *args), view)


def _repeats(term: ir.Apply) -> bool:
    return not (term.function == "where" and term.args[1] is term.args[2])


def _nested_clamps(terms: Terms, term: Value) -> Iterator[Equation]:
    pattern: tuple[str | Pattern, ...] = ("clamp", ("clamp", "x", "c1", "c2"), "c3", "c4")
    if not isinstance(term, ir.Apply):
        return
    for match, bound in _parts(terms, pattern, term, {}):
        a, b, c, d = (terms.number(bound[n]) or 0.0 for n in ("c1", "c2", "c3", "c4"))
        low, high = min(max(a, c), d), min(max(b, c), d)
        new = terms.apply("clamp", bound["x"], terms.constant(low), terms.constant(high))
        yield match, terms.fit(new, match)


_positive = _constant("c", lambda c: 2.0**-60 < c < 2.0**60)
_usable = _constant("c", _invertible)

TABLE: tuple[AlgebraRule, ...] = (
    _equation(
        "sums associate",
        "(x + y) + z = x + (y + z)",
        "finite",
        RING,
        ("add", ("add", "x", "y"), "z"),
        ("add", "x", ("add", "y", "z")),
    ),
    _equation(
        "products associate",
        "(x * y) * z = x * (y * z)",
        "finite",
        RING,
        ("multiply", ("multiply", "x", "y"), "z"),
        ("multiply", "x", ("multiply", "y", "z")),
    ),
    _equation(
        "common factor",
        "x * y + x * z = x * (y + z)",
        "finite",
        RING,
        ("add", ("multiply", "x", "y"), ("multiply", "x", "z")),
        ("multiply", "x", ("add", "y", "z")),
    ),
    _equation(
        "value and its multiple",
        "x + c * x = (1 + c) * x",
        "finite",
        RING,
        ("add", "x", ("multiply", "c", "x")),
        ("multiply", ("add", 1.0, "c"), "x"),
    ),
    _equation(
        "common factor of a difference",
        "x * y - x * z = x * (y - z)",
        "finite",
        RING,
        ("subtract", ("multiply", "x", "y"), ("multiply", "x", "z")),
        ("multiply", "x", ("subtract", "y", "z")),
    ),
    _equation(
        "common divisor",
        "x / z + y / z = (x + y) / z",
        "finite",
        RING,
        ("add", ("divide", "x", "z"), ("divide", "y", "z")),
        ("divide", ("add", "x", "y"), "z"),
    ),
    _equation(
        "common divisor of a difference",
        "x / z - y / z = (x - y) / z",
        "finite",
        RING,
        ("subtract", ("divide", "x", "z"), ("divide", "y", "z")),
        ("divide", ("subtract", "x", "y"), "z"),
    ),
    _equation(
        "common summand",
        "(x + z) - (y + z) = x - y",
        "finite",
        RING,
        ("subtract", ("add", "x", "z"), ("add", "y", "z")),
        ("subtract", "x", "y"),
    ),
    _equation(
        "common subtrahend",
        "(x - z) - (y - z) = x - y",
        "finite",
        RING,
        ("subtract", ("subtract", "x", "z"), ("subtract", "y", "z")),
        ("subtract", "x", "y"),
    ),
    _equation("twice", "x + x = 2 * x", "always", RING, ("add", "x", "x"), ("multiply", 2.0, "x")),
    _equation(
        "constant across a sum",
        "c * (x + y) = c * x + c * y",
        "finite",
        RING,
        ("multiply", "c", ("add", "x", "y")),
        ("add", ("multiply", "c", "x"), ("multiply", "c", "y")),
    ),
    _equation(
        "difference as a sum",
        "x - y = x + (-1) * y",
        "always",
        RING,
        ("subtract", "x", "y"),
        ("add", "x", ("multiply", -1.0, "y")),
    ),
    _equation(
        "sum as a difference",
        "x + (-1) * y = x - y",
        "always",
        RING,
        ("add", "x", ("multiply", -1.0, "y")),
        ("subtract", "x", "y"),
    ),
    _equation("negative", "-x = (-1) * x", "always", RING, ("negate", "x"), ("multiply", -1.0, "x")),
    _equation(
        "quotient by a constant",
        "x / c = x * (1 / c) of c and 1 / c that are normal",
        "finite",
        RING,
        ("divide", "x", "c"),
        ("multiply", "x", ("divide", 1.0, "c")),
        test=_usable,
    ),
    _equation("plus 0", "x + 0 = x", "always", RING, ("add", "x", 0.0), "x"),
    _equation("times 1", "x * 1 = x", "always", RING, ("multiply", "x", 1.0), "x"),
    _equation("over 1", "x / 1 = x", "always", RING, ("divide", "x", 1.0), "x"),
    _equation("times 0", "x * 0 = 0", "finite", RING, ("multiply", "x", 0.0), 0.0),
    _equation("difference of equals", "x - x = 0", "finite", RING, ("subtract", "x", "x"), 0.0),
    _equation("smaller of equals", "min(x, x) = x", "always", ORDER, ("min", "x", "x"), "x"),
    _equation("larger of equals", "max(x, x) = x", "always", ORDER, ("max", "x", "x"), "x"),
    _equation(
        "largest of constants",
        "max(max(x, c1), c2) = max(x, max(c1, c2))",
        "always",
        ORDER,
        ("max", ("max", "x", "c1"), "c2"),
        ("max", "x", ("max", "c1", "c2")),
    ),
    _equation(
        "smallest of constants",
        "min(min(x, c1), c2) = min(x, min(c1, c2))",
        "always",
        ORDER,
        ("min", ("min", "x", "c1"), "c2"),
        ("min", "x", ("min", "c1", "c2")),
    ),
    _equation(
        "clamp from below",
        "max(min(x, c2), c1) = clamp(x, c1, c2)",
        "always",
        ORDER,
        ("max", ("min", "x", "c2"), "c1"),
        ("clamp", "x", "c1", "c2"),
        "c1 <= c2",
        lambda terms, b: (terms.number(b["c1"]) or 0.0) <= (terms.number(b["c2"]) or 0.0),
    ),
    _equation(
        "clamp",
        "min(max(x, c1), c2) = clamp(x, c1, c2)",
        "always",
        DEFINITION,
        ("min", ("max", "x", "c1"), "c2"),
        ("clamp", "x", "c1", "c2"),
    ),
    _equation(
        "hardtanh",
        "hardtanh(x, c1, c2) = clamp(x, c1, c2)",
        "always",
        DEFINITION,
        ("hardtanh", "x", "c1", "c2"),
        ("clamp", "x", "c1", "c2"),
    ),
    AlgebraRule(
        "nested clamps",
        "clamp(clamp(x, c1, c2), c3, c4) = clamp(x, clamp(c1, c3, c4), clamp(c2, c3, c4))",
        "",
        "always",
        ORDER,
        (("Apply", "clamp"),),
        _nested_clamps,
    ),
    AlgebraRule(
        "function of a repeated value",
        "f(expand[N](x), y) = expand[N](f(x, y))",
        "",
        "always",
        DEFINITION,
        (("Apply", ""),),
        _of_repeated,
    ),
    _equation("max with 0", "max(x, 0) = relu(x)", "always", DEFINITION, ("max", "x", 0.0), ("relu", "x")),
    AlgebraRule(
        "absorbed bound",
        "relu(x) = x; abs, leaky_relu, elu, clamp, hardtanh, min and max likewise, and a bound that x never passes",
        "x >= 0 for all inputs, or within the bounds",
        "no NaN",
        "the range of the functions that make x",
        tuple(("Apply", f) for f in (*sorted(named("keeps_positive")), "clamp", "hardtanh", "max", "min")),
        _absorbed,
    ),
    _equation(
        "scale across relu",
        "relu(c * x) = c * relu(x)",
        "always",
        ORDER,
        ("relu", ("multiply", "c", "x")),
        ("multiply", "c", ("relu", "x")),
        "c > 0",
        _positive,
    ),
    _equation(
        "scale across leaky_relu",
        "leaky_relu(c * x, y) = c * leaky_relu(x, y)",
        "finite",
        ORDER,
        ("leaky_relu", ("multiply", "c", "x"), "y"),
        ("multiply", "c", ("leaky_relu", "x", "y")),
        "c > 0",
        _positive,
    ),
    _equation(
        "scale across clamp",
        "clamp(c * x, y, z) = c * clamp(x, y / c, z / c)",
        "always",
        ORDER,
        ("clamp", ("multiply", "c", "x"), "y", "z"),
        ("multiply", "c", ("clamp", "x", ("divide", "y", "c"), ("divide", "z", "c"))),
        "c > 0",
        _positive,
    ),
    _equation(
        "exp of log",
        "exp(log(x)) = x",
        "always",
        EXPONENTIAL,
        ("exp", ("log", "x")),
        "x",
        "x >= 0 for all inputs",
        _never_negative,
    ),
    _equation("log of exp", "log(exp(x)) = x", "finite", EXPONENTIAL, ("log", ("exp", "x")), "x"),
    _equation(
        "product of exponentials",
        "exp(x) * exp(y) = exp(x + y)",
        "finite",
        EXPONENTIAL,
        ("multiply", ("exp", "x"), ("exp", "y")),
        ("exp", ("add", "x", "y")),
    ),
    _equation(
        "quotient of exponentials",
        "exp(x) / exp(y) = exp(x - y)",
        "finite",
        EXPONENTIAL,
        ("divide", ("exp", "x"), ("exp", "y")),
        ("exp", ("subtract", "x", "y")),
    ),
    _equation(
        "root of a square",
        "sqrt(x * x) = abs(x)",
        "finite",
        RING,
        ("sqrt", ("multiply", "x", "x")),
        ("abs", "x"),
    ),
    _equation(
        "square of a root",
        "sqrt(x) * sqrt(x) = x",
        "always",
        RING,
        ("multiply", ("sqrt", "x"), ("sqrt", "x")),
        "x",
        "x >= 0 for all inputs",
        _never_negative,
    ),
    _equation(
        "inverse root",
        "1 / sqrt(x) = rsqrt(x)",
        "always",
        DEFINITION,
        ("divide", 1.0, ("sqrt", "x")),
        ("rsqrt", "x"),
    ),
    _equation(
        "quotient by a root",
        "x / sqrt(y) = x * rsqrt(y)",
        "always",
        DEFINITION,
        ("divide", "x", ("sqrt", "y")),
        ("multiply", "x", ("rsqrt", "y")),
    ),
    _equation(
        "silu",
        "x * sigmoid(x) = silu(x)",
        "always",
        DEFINITION,
        ("multiply", "x", ("sigmoid", "x")),
        ("silu", "x"),
    ),
    _equation(
        "mish",
        "x * tanh(softplus(x)) = mish(x)",
        "always",
        DEFINITION,
        ("multiply", "x", ("tanh", ("softplus", "x"))),
        ("mish", "x"),
    ),
    _equation(
        "softplus",
        "log(1 + exp(x)) = softplus(x)",
        "finite",
        DEFINITION,
        ("log", ("add", 1.0, ("exp", "x"))),
        ("softplus", "x"),
    ),
    _equation(
        "softplus by log1p",
        "log1p(exp(x)) = softplus(x)",
        "finite",
        DEFINITION,
        ("log1p", ("exp", "x")),
        ("softplus", "x"),
    ),
    _equation(
        "sigmoid",
        "1 / (1 + exp((-1) * x)) = sigmoid(x)",
        "finite",
        DEFINITION,
        ("divide", 1.0, ("add", 1.0, ("exp", ("multiply", -1.0, "x")))),
        ("sigmoid", "x"),
    ),
    _equation(
        "log of sigmoid",
        "log(sigmoid(x)) = (-1) * softplus((-1) * x)",
        "finite",
        EXPONENTIAL,
        ("log", ("sigmoid", "x")),
        ("multiply", -1.0, ("softplus", ("multiply", -1.0, "x"))),
    ),
    _equation("square", "pow(x, 2) = x * x", "always", RING, ("pow", "x", 2.0), ("multiply", "x", "x")),
    _equation("square by **", "x ** 2 = x * x", "always", RING, ("power", "x", 2.0), ("multiply", "x", "x")),
    _equation("first power", "pow(x, 1) = x", "always", RING, ("pow", "x", 1.0), "x"),
)
