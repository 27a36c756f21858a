"""What a name means at a place in a program, and the findings gathered so far."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from heapq import nlargest
from itertools import islice

from ucutlass.check.graph import Graph
from ucutlass.diagnostics import Diagnostic
from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Span
from ucutlass.ir import Dims, Value, extents
from ucutlass.ir.extents import Extent, Fixed, Free
from ucutlass.ir.functions import NAMED
from ucutlass.limits import DIMENSIONS, ERRORS, MAGNITUDE, TERMS, LimitPassed, within


class Reject(Exception):
    """What is wrong in a statement; the checker goes on with the next. `diagnostics` has one
    finding, or those of several operands."""

    def __init__(
        self,
        code: str,
        message: str,
        span: Span,
        hint: str | None = None,
        notes: tuple[tuple[str, Span], ...] = (),
    ) -> None:
        super().__init__(message)
        self.diagnostics: tuple[Diagnostic, ...] = (Diagnostic(code, message, span, hint, notes),)


class Repeated(Reject):
    """What was wrong in an earlier expansion of the same call."""

    def __init__(self, first: Reject) -> None:
        Exception.__init__(self, *first.args)
        self.diagnostics = first.diagnostics


def beyond(problem: LimitPassed, span: Span) -> Reject:
    """A limit that a statement passed, as what is wrong with it."""
    return Reject(problem.limit.code, problem.message, span, problem.limit.hint)


class Cascade(Exception):
    """The statement uses a name whose own definition was already rejected."""


@dataclass(frozen=True, slots=True)
class Poisoned:
    """Stands for the value of a rejected statement."""


@dataclass(slots=True)
class DimTable:
    """The dimensions of one program in order of first appearance.

    `extents` maps a name to its extent; `pending` holds names that a result's type uses
    before the body says how long they are.
    """

    extents: dict[str, Extent] = field(default_factory=dict)
    spans: dict[str, Span] = field(default_factory=dict)
    pending: set[str] = field(default_factory=set)
    positions: dict[str, int] = field(default_factory=dict)

    def order(self, dims: Iterable[str]) -> Dims:
        if len(self.positions) != len(self.extents):  # names are only ever added
            within(DIMENSIONS, len(self.extents))
            self.positions = {d: i for i, d in enumerate(self.extents)}
        return tuple(sorted({d for d in dims if d in self.positions}, key=self.positions.__getitem__))

    def declare(self, name: str, extent: Extent, span: Span) -> None:
        """Adds a dimension or confirms its extent.

        Raises Reject UC0210 where the extent was given differently before.
        """
        declared = self.extents.get(name)
        if declared is None or name in self.pending or declared == Free(name):
            self.extents[name] = extent
            self.spans.setdefault(name, span)
            self.pending.discard(name)
        elif declared != extent and extent != Free(name):
            raise Reject(
                "UC0210",
                f"{name} is {extents.show(extent)} here and {extents.show(declared)} before; a name is one "
                "extent throughout",
                span,
                f"use another name for the second extent, or rename by indexing: x[{name} = NEW]",
                ((f"{name} first stands here", self.spans[name]),),
            )

    def resolve(self) -> None:
        """Expresses every extent by free ones alone: `P=H, H=2*G` makes P `2 * G`.

        Raises Reject UC0221 for extents that are defined by each other, and LimitPassed.
        """
        within(DIMENSIONS, len(self.extents))
        resolved: dict[str, Extent] = {}
        for name in self.extents:
            self.extents[name] = self._expand(Free(name), frozenset(), resolved)

    def expand(self, extent: Extent) -> Extent:
        """An extent in terms of free ones. Raises as `resolve` does."""
        return self._expand(extent, frozenset(), {})

    def _expand(self, extent: Extent, around: frozenset[str], resolved: dict[str, Extent]) -> Extent:
        """Returns the extent with each dimension's definition in its place. `resolved` keeps those of dimensions, so
        that each is followed once."""
        match extent:
            case Free(dim) if self.extents[dim] != extent:
                if dim in around:
                    raise Reject(
                        "UC0221",
                        f"the extent of {dim} is defined by itself",
                        self.spans[dim],
                        "give one of the extents as a number, or leave it free",
                    )
                if dim not in resolved:
                    resolved[dim] = self._expand(self.extents[dim], around | {dim}, resolved)
                return resolved[dim]
            case extents.Combined(op, left, right):
                return combine(
                    op, self._expand(left, around, resolved), self._expand(right, around, resolved)
                )
            case _:
                return extent


def combine(op: str, left: Extent, right: Extent) -> Extent:
    """`left op right`, folded where both are numbers. Raises LimitPassed for more terms, or a greater
    number, than extents are followed with."""
    extent = extents.Combined(op, left, right)  # type: ignore[arg-type]
    if isinstance(left, Fixed) and isinstance(right, Fixed) and not (op in ("//", "%") and right.value == 0):
        value = extents.evaluate(extent, {})
        within(MAGNITUDE, abs(value))
        return Fixed(value)
    within(TERMS, extents.terms(left) + extents.terms(right))
    return extent


@dataclass(slots=True)
class Scope:
    """Names in one program, or inside one expansion of a function.

    `alias` maps a function's dimension names to the program's; None in a program's own scope,
    where dimensions stand for themselves. `stack` names the functions being expanded. `checker` is
    `expressions.check`, handed in so that calls and indexing can recurse without importing it. `expansions`
    has what each function gave for each list of arguments, `unknown` what was said of a name at a place that
    stands for nothing, both in all of a program; `bound` every name that the body binds, sooner or later.
    """

    checker: Callable[[syntax.Expr, Scope], Value]
    dims: DimTable
    graph: Graph
    functions: Mapping[str, syntax.Function]
    programs: Mapping[str, syntax.Program]
    values: dict[str, Value | Poisoned]
    alias: Mapping[str, str] | None = None
    stack: tuple[str, ...] = ()
    expansions: dict[tuple[object, ...], Value | Reject] = field(default_factory=dict)
    unknown: dict[Span, Reject] = field(default_factory=dict)
    bound: Mapping[str, Span] = field(default_factory=dict)

    def check(self, expr: syntax.Expr) -> Value:
        """The value of an expression here. Raises Reject or Cascade."""
        return self.checker(expr, self)

    def check_all(self, exprs: Iterable[syntax.Expr]) -> tuple[Value, ...]:
        """The values of several operands; what is wrong in each is told at once.

        Raises Reject or Cascade.
        """
        values: list[Value] = []
        rejected: Reject | None = None
        cascaded = False
        for expr in exprs:
            try:
                values.append(self.check(expr))
            except Cascade:
                cascaded = True
            except Reject as problem:
                if rejected is not None:
                    # One function may be wrong in the same way in both.
                    both = dict.fromkeys(rejected.diagnostics + problem.diagnostics)
                    problem.diagnostics = tuple(islice(both, ERRORS.most + 1))
                rejected = problem
                if len(problem.diagnostics) > ERRORS.most:
                    break
        if rejected is not None:
            raise rejected
        if cascaded:
            raise Cascade
        return tuple(values)

    def dim(self, name: str) -> str | None:
        """The program's name of a dimension, or None."""
        if self.alias is not None:
            return self.alias.get(name)
        return name if name in self.dims.extents else None

    def known(self, name: str) -> bool:
        """Whether a name stands for a value or a dimension."""
        return name in self.values or self.dim(name) is not None

    def extent_known(self, name: str) -> bool:
        """Whether a name is a dimension of which the extent is known."""
        return self.dim(name) is not None and name not in self.dims.pending

    def need_dim(self, name: str, span: Span) -> str:
        """As `dim`. Raises Reject UC0101."""
        dim = self.dim(name)
        if dim is None:
            raise self.unknown_dim(name, span)
        return dim

    def unknown_dim(self, name: str, span: Span) -> Reject:
        dims = list(self.alias) if self.alias is not None else list(self.dims.extents)
        hint = did_you_mean(name, dims) or listed("dimensions", dims)
        if name in self.values:
            return Reject("UC0101", f"{name} is a value, and a dimension is due here", span, hint)
        return Reject("UC0101", f"no dimension is named {name}", span, hint)

    def written(self, dim: str) -> str:
        """What a dimension of the program is called here, the reverse of `dim`."""
        return next((own for own, outer in (self.alias or {}).items() if outer == dim), dim)

    def extent(self, name: str, span: Span) -> Extent:
        """The extent of a dimension. Raises Reject UC0209 while it is pending."""
        if name in self.dims.pending:
            raise Reject(
                "UC0209",
                f"the extent of {name} is not known here",
                span,
                f"give it where {name} is introduced, for example {name}=3 or {name}=2*H",
            )
        return self.dims.extents[name]


_LONGEST, _COMPARED, _CLOSEST = 40, 200, 8
"""Of a suggestion: characters of a name, names that are compared by their letters, and in full."""


def did_you_mean(name: str, candidates: Iterable[str]) -> str | None:
    """Returns a hint with the nearest candidate: one that differs in upper and lower case alone, or is spelled
    most like the name. None where there is none."""
    if len(name) > _LONGEST:
        return None
    candidates = list(candidates)
    matcher = difflib.SequenceMatcher(b=name)

    def alike(other: str) -> float:
        matcher.set_seq1(other)
        return matcher.quick_ratio()

    same = [other for other in candidates if other.lower() == name.lower()]
    likely = (k for k in candidates if len(name) <= 3 * len(k) and len(k) <= min(3 * len(name), _LONGEST))
    near = nlargest(_CLOSEST, islice(likely, _COMPARED), key=alike)
    close = same or difflib.get_close_matches(name, near, n=1)
    return f"did you mean {close[0]}?" if close else None


def used_before(name: str, binding: Span, span: Span) -> Reject:
    """Returns the error for a name that stands above its binding."""
    return Reject(
        "UC0101",
        f"{name} is used before it is bound",
        span,
        f"write the binding of {name} first",
        (("the binding", binding),),
    )


def unknown_value(
    name: str, values: Iterable[str], dims: Iterable[str], functions: Collection[str], span: Span
) -> Reject:
    """Returns the error for a name that stands for no value; the others are those that there are."""
    if name in NAMED or name in functions:
        return Reject("UC0101", f"{name} is a function, not a value", span, f"call it, as in {name}(..)")
    hint = did_you_mean(name, [*values, *dims, *NAMED, *functions]) or listed("values", values)
    return Reject("UC0101", f"nothing is named {name} here", span, hint)


_MOST_LISTED = 12


def listed(what: str, names: Iterable[str]) -> str | None:
    """The first names that there are, for who named none of them."""
    every = list(names)
    more = ", .." if len(every) > _MOST_LISTED else ""
    return f"{what} here: {', '.join(every[:_MOST_LISTED])}{more}" if every else None


def describe(dims: Iterable[str]) -> str:
    return "[" + ", ".join(dims) + "]"


def show_value(value: Value) -> str:
    """A value's type as a person would write it."""
    return f"{value.elem.name}{describe(value.dims)}" if value.dims else f"one {value.elem.name}"
