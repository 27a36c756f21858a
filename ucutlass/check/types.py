"""Types: from what is written to tensors with named axes, and the dimensions they bring."""

from __future__ import annotations

from ucutlass.check.scope import DimTable, Reject, Scope, combine, did_you_mean, listed
from ucutlass.grammar import syntax
from ucutlass.grammar.syntax import Span
from ucutlass.ir import MemoryAxis, ScalarType, TensorType
from ucutlass.ir.elements import ELEMENTS, Element
from ucutlass.ir.extents import Extent, Fixed, Free, names

MAX_EXTENT = 2**31 - 1


def element(name: str, span: Span) -> Element:
    """The element type of a name. Raises Reject UC0201."""
    elem = ELEMENTS.get(name)
    if elem is None:
        raise Reject(
            "UC0201",
            f"no element type is named {name}",
            span,
            did_you_mean(name, ELEMENTS) or "one of " + " ".join(ELEMENTS),
        )
    return elem


def stored_element(name: str, span: Span) -> Element:
    """An element type that can lie in memory. Raises Reject UC0201 or UC0216."""
    elem = element(name, span)
    if not elem.storable:
        raise Reject(
            "UC0216",
            f"{name} is a way to round an operand of dot; it does not lie in memory",
            span,
            "store f32 and write tf32(x) in the dot",
        )
    return elem


def extent_of(expr: syntax.Expr, dims: DimTable) -> Extent:
    """An extent from its text: numbers, names, size(D), + - * // %. Raises Reject UC0221."""
    match expr:
        case syntax.Number(value=int(value), span=span):
            if value > MAX_EXTENT:
                raise Reject("UC0221", f"an extent of {value} is beyond {MAX_EXTENT}", span)
            return Fixed(value)
        case syntax.Name(name, span):
            if name not in dims.extents:
                hint = did_you_mean(name, dims.extents) or listed("dimensions", dims.extents)
                raise Reject("UC0101", f"no dimension is named {name}", span, hint)
            extent = dims.extents[name]
            return extent if name not in dims.pending else Free(name)
        case syntax.Call(callee="size", brackets=None, arguments=(syntax.Argument(value=inner, name=None),)):
            return extent_of(inner, dims)
        case syntax.Binary(op=("+" | "-" | "*" | "//" | "%") as op, left=left, right=right, span=span):
            b = extent_of(right, dims)
            if op in ("//", "%") and b == Fixed(0):
                raise Reject("UC0221", "division by zero", span)
            return combine(op, extent_of(left, dims), b)
        case syntax.Binary(op="/", span=span):
            raise Reject(
                "UC0221", "`/` gives a fraction; an extent is a whole number", span, "write // to round down"
            )
        case _:
            raise Reject(
                "UC0221", "not an extent", expr.span, "extents are made of whole numbers, names, + - * // %"
            )


def register_names(axes: tuple[syntax.Axis, ...], dims: DimTable, pending: bool) -> None:
    """First pass over a type: makes its names known, before any extent refers to them."""
    for axis in axes:
        for part in _parts(axis):
            if part.name not in dims.extents:
                dims.extents[part.name] = Free(part.name)
                dims.spans[part.name] = part.span
                if pending:
                    dims.pending.add(part.name)


def _parts(axis: syntax.Axis) -> tuple[syntax.NamedAxis, ...]:
    match axis:
        case syntax.NamedAxis():
            return (axis,)
        case syntax.CompositeAxis(parts):
            return parts
        case syntax.NamelessAxis():
            return ()


def memory_axes(type_: syntax.TypeExpr, scope: Scope) -> tuple[MemoryAxis, ...]:
    """Second pass: the axes of a tensor type, extents declared.

    Raises Reject UC0202 for a name that stands twice.
    """
    spans: dict[str, Span] = {}
    axes = []
    for axis in type_.axes or ():
        for part in _parts(axis):
            if part.name in spans:
                raise Reject(
                    "UC0202",
                    f"{part.name} stands twice in one type; each axis needs a name of its own",
                    part.span,
                    f"name the second axis J, say, and read the operand as x[{part.name} = J]",
                    ((f"{part.name} first stands here", spans[part.name]),),
                )
            spans[part.name] = part.span
            if part.extent is not None:
                scope.dims.declare(
                    part.name, positive(extent_of(part.extent, scope.dims), part.span), part.span
                )
        axes.append(_memory_axis(axis, scope))
    return tuple(axes)


def positive(extent: Extent, span: Span) -> Extent:
    """The extent. Raises Reject UC0221 where it is a number below 1."""
    if isinstance(extent, Fixed) and extent.value < 1:
        raise Reject("UC0221", f"an axis of extent {extent.value} holds nothing", span)
    return extent


def _memory_axis(axis: syntax.Axis, scope: Scope) -> MemoryAxis:
    match axis:
        case syntax.NamelessAxis(extent, span):
            return MemoryAxis((), positive(extent_of(extent, scope.dims), span))
        case syntax.NamedAxis(name):
            return named_axis((name,))
        case syntax.CompositeAxis(parts):
            return named_axis(tuple(part.name for part in parts))


def named_axis(dims: tuple[str, ...]) -> MemoryAxis:
    """An axis in memory over one dimension or more, the outer first."""
    product: Extent = Free(dims[0])
    for dim in dims[1:]:
        product = combine("*", product, Free(dim))
    return MemoryAxis(dims, product)


def tensor_type(type_: syntax.TypeExpr, scope: Scope) -> TensorType:
    """A result's or buffer's type. Raises Reject UC0219 for a bare number type."""
    assert type_.element is not None
    elem = stored_element(type_.element, type_.element_span)
    if type_.axes is None:
        raise Reject(
            "UC0219",
            f"a result lies on the device; {elem.name} alone is a number on the host",
            type_.span,
            f"write {elem.name}[] for a single element",
        )
    return TensorType(elem, memory_axes(type_, scope))


def param_type(type_: syntax.TypeExpr, scope: Scope) -> TensorType | ScalarType:
    """A parameter's type: a tensor, or a number passed by value."""
    assert type_.element is not None
    elem = stored_element(type_.element, type_.element_span)
    return ScalarType(elem) if type_.axes is None else TensorType(elem, memory_axes(type_, scope))


def check_determined(params: tuple[tuple[TensorType, Span], ...], dims: DimTable) -> None:
    """Every free dimension must follow from the parameters' shapes.

    Raises Reject UC0213 for composite axes with several unknowns, UC0209 for names that no
    parameter has.
    """
    determined = {name for name, extent in dims.extents.items() if extent != Free(name)}
    pending = [(axis, span) for type_, span in params for axis in type_.axes]
    progress = True
    while progress:
        progress = False
        for axis, _ in pending:
            unknown = [d for d in (axis.dims or names(axis.extent)) if d not in determined]
            if len(unknown) == 1:
                determined.add(unknown[0])
                progress = True
    for axis, span in pending:
        unknown = [d for d in axis.dims if d not in determined]
        if unknown:
            raise Reject(
                "UC0213",
                f"only the product of {' and '.join(unknown)} is known, not each of them",
                span,
                f"give one of them where it stands: ({unknown[0]}=8 ..)",
            )
