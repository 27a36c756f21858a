"""The convolution pattern: a dot of two stored tensors of which at least one is read at affine positions,
or the same written as `sum[..](x[..] * w)`, with element-wise work on its result.

A pattern speaks of names and serves every shape; `ucutlass.kernels.convolution.problem` gives it extents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.check.indexing import is_rename
from ucutlass.ir.elements import F32, TF32, Element
from ucutlass.ir.extents import Extent, Fixed, agree
from ucutlass.ir.traversal import find
from ucutlass.kernels.addresses import Operand, all_named
from ucutlass.kernels.epilogue import EpiloguePattern, epilogue
from ucutlass.kernels.gemm.match import LOADED, STORED, GemmPattern, pointer
from ucutlass.kernels.refused import Refused


@dataclass(frozen=True, slots=True)
class WindowPosition:
    """How one axis of an operand is read: by the dimension `name`, or at a position."""

    name: str
    position: ir.Position | None


@dataclass(frozen=True, slots=True)
class ConvolutionOperand:
    """A tensor operand of the product, its axes as declared."""

    pointer: int
    elem: Element
    axes: tuple[WindowPosition, ...]

    @property
    def names(self) -> frozenset[str]:
        """The dimensions that take part in its addresses."""
        dims = {p.name for p in self.axes if p.position is None}
        return frozenset(dims | {d for p in self.axes if p.position for d, _ in p.position.at.terms})

    @property
    def windowed(self) -> bool:
        """Whether any axis is read at a position."""
        return any(p.position is not None for p in self.axes)


@dataclass(frozen=True, slots=True)
class ConvolutionPattern:
    """A kernel seen as D = epilogue(A * B) with windows. Roles are as in `GemmPattern`.

    `kernel` and `dot` are those that `epilogue` speaks of; where the program wrote a sum of products,
    they hold a dot in its place and `summed` is true: then every product is a multiply-add in f32.
    """

    kernel: ir.Kernel
    dot: ir.Dot
    a: ConvolutionOperand
    b: ConvolutionOperand
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    batch: tuple[str, ...]
    epilogue: EpiloguePattern
    summed: bool

    @property
    def position(self) -> Mapping[str, int]:
        """Where each dimension stands in the extent array."""
        return {name: i for i, name in enumerate(self.kernel.dims)}

    @property
    def windowed(self) -> bool:
        """Whether an operand is read at positions; without, it is a 1x1 layer or a gradient of one."""
        return self.a.windowed or self.b.windowed

    @property
    def sums_positions(self) -> bool:
        """Whether what is innermost in both operands is summed: of 1x1 layers the gradient of weights."""
        return all(side.axes[-1].name in self.k for side in (self.a, self.b))


def exchanged(pattern: ConvolutionPattern) -> ConvolutionPattern:
    """The same with the operands' roles exchanged: rows of the product are its columns."""
    return replace(pattern, a=pattern.b, b=pattern.a, m=pattern.n, n=pattern.m)


# --- recognition --------------------------------------------------------------------


def is_convolution(kernel: ir.Kernel) -> bool:
    """Whether the kernel is this family's: one dot over windows, or a sum of products with a window."""
    dots = find(kernel, ir.Dot)
    if len(dots) == 1:
        return any(_has_window(kernel, side) for side in (dots[0].left, dots[0].right))
    sums = [] if dots else _sums(kernel)
    return len(sums) == 1 and not _slides(kernel, sums[0])


def _slides(kernel: ir.Kernel, summed: ir.Reduce) -> bool:
    """Whether the sum is over one name's window along the last name of a tensor and of the results: a reduction
    reads what neighbouring windows share as one run (on an H200 it took half the time of this family's
    kernel: 307 and 622 us for 16 x 4096 channels of 4096 positions, 4 taps)."""
    last = {r.type.dims[-1] for r in kernel.results if r.type.dims}
    reads = [r for r in find(kernel, ir.Read) if isinstance(r.value, ir.ParamValue)]
    return len(summed.over) == 1 and any(
        p.dim == r.value.dims[-1] and len(last) == 1 and {*last, *summed.over} == {d for d, _ in p.at.terms}
        for r in reads
        for p in r.positions
    )


def _has_window(kernel: ir.Kernel, value: ir.Value) -> bool:
    while isinstance(value, ir.Cast | ir.Read):
        if isinstance(value, ir.Read) and not is_rename(value, kernel.dims):
            return True
        value = value.value
    return False


def _sums(kernel: ir.Kernel) -> list[ir.Reduce]:
    """Sums of a product of two stored tensors, one of them read at windows."""
    return [r for r in find(kernel, ir.Reduce) if r.op == "sum" and _is_windowed_product(kernel, r.value)]


def _is_windowed_product(kernel: ir.Kernel, value: ir.Value) -> bool:
    match value:
        case ir.Apply("multiply", (left, right), elem) if elem is F32:
            stored = all(_stored(kernel, side) for side in (left, right))
            return stored and any(_has_window(kernel, side) for side in (left, right))
    return False


def _stored(kernel: ir.Kernel, value: ir.Value) -> bool:
    while isinstance(value, ir.Read):
        value = value.value
    is_tensor = isinstance(value, ir.ParamValue) and isinstance(
        kernel.params[value.index].type, ir.TensorType
    )
    return is_tensor and value.elem.kind == "float"


def match_convolution(kernel: ir.Kernel) -> ConvolutionPattern:
    """The pattern of a kernel for which `is_convolution` holds. Raises Refused."""
    dots = find(kernel, ir.Dot)
    if dots:
        return _pattern(kernel, dots[0], summed=False)
    (summed,) = _sums(kernel)
    rewritten, dot = _with_dot(kernel, summed)
    return _pattern(rewritten, dot, summed=True)


def _with_dot(kernel: ir.Kernel, summed: ir.Reduce) -> tuple[ir.Kernel, ir.Dot]:
    """The kernel with a dot where it sums products: the same numbers, f32 sums of f32 products."""
    product = summed.value
    assert isinstance(product, ir.Apply)
    left, right = product.args
    dot = ir.Dot(summed.over, left, right, F32, "f32", F32, summed.dims, summed.span)
    done: dict[int, ir.Value] = {id(summed): dot}

    def visit(node: ir.Value) -> ir.Value:
        if id(node) not in done:
            done[id(node)] = ir.with_children(node, visit)
        return done[id(node)]

    results = tuple(replace(r, value=visit(r.value)) for r in kernel.results)
    return replace(kernel, results=results), dot


def as_gemm(pattern: ConvolutionPattern) -> GemmPattern | None:
    """The pattern as one of no windows, where each is of one tap and stands still: a convolution of 1 x 1 and
    step 1, however it is written. None for any other."""
    if pattern.summed:
        return None
    extents_ = pattern.kernel.dims
    alone = {d for d in pattern.k if extents_[d] == Fixed(1)}
    a, b = (_standing(side, extents_, alone) for side in (pattern.a, pattern.b))
    k = tuple(d for d in pattern.k if d not in alone)
    if a is None or b is None or not k:
        return None
    return GemmPattern(
        pattern.kernel, pattern.dot, a, b, pattern.m, pattern.n, k, pattern.batch, pattern.epilogue
    )


def _standing(side: ConvolutionOperand, extents_: Mapping[str, Extent], alone: set[str]) -> Operand | None:
    """The operand by the names that move over it, without axes of extent 1; None if a window moves."""
    order: list[str] = []
    for axis in side.axes:
        if axis.position is None:
            order += [] if axis.name in alone else [axis.name]
            continue
        terms = [(d, c) for d, c in axis.position.at.terms if d not in alone]
        still = axis.position.scale == 1 and axis.position.at.offset == Fixed(0)
        if len(terms) != 1 or terms[0][1] != 1 or not still:
            return None
        if not agree(extents_[axis.name], extents_[terms[0][0]]):
            return None
        order.append(terms[0][0])
    return Operand(side.pointer, side.elem, tuple(order)) if len(set(order)) == len(order) else None


def _pattern(kernel: ir.Kernel, dot: ir.Dot, summed: bool) -> ConvolutionPattern:
    a, b = _source(kernel, dot.left), _source(kernel, dot.right)
    shared = a.names & b.names
    unshared = [d for d in dot.over if d not in shared]
    names = (*dot.dims, *dot.over)
    own = {side: [d for d in names if d in side.names and d not in dot.over] for side in (a, b)}
    return ConvolutionPattern(
        kernel,
        dot,
        a,
        b,
        m=tuple(d for d in own[a] if d not in b.names),
        n=tuple(d for d in own[b] if d not in a.names),
        k=tuple(d for d in dot.over if d not in unshared) + tuple(unshared),
        batch=tuple(d for d in own[a] if d in b.names),
        epilogue=epilogue(kernel, dot, STORED, LOADED),
        summed=summed,
    )


def _source(kernel: ir.Kernel, value: ir.Value) -> ConvolutionOperand:
    compute_type, span = value.elem, value.span
    positions: dict[str, ir.Position] = {}
    while isinstance(value, ir.Read | ir.Cast):
        if isinstance(value, ir.Cast):
            if value.elem is not TF32 or value.value.elem is not F32:
                raise Refused(
                    "UC0308",
                    f"{compute_type.name}(..) of a {value.value.elem.name} operand needs a pass over memory before "
                    "the dot",
                    span,
                    f"store it first, in a pipeline: h: {compute_type.name}[..] = ..",
                )
        else:
            positions = _composed(value, positions)
        value = value.value
    type_ = kernel.params[value.index].type if isinstance(value, ir.ParamValue) else None
    if not isinstance(value, ir.ParamValue) or not isinstance(type_, ir.TensorType):
        raise Refused(
            "UC0302",
            "the operands of a convolution are read as they lie in memory; only tf32(..) may stand around "
            "them",
            span,
            f"store it first, in a pipeline: h: {compute_type.name}[..] = ..",
        )
    all_named(type_, span)
    axes = tuple(_axis(kernel, d, positions.get(d)) for d in type_.dims)
    return ConvolutionOperand(pointer(kernel, value.index), type_.elem, axes)


def _composed(read: ir.Read, outer: Mapping[str, ir.Position]) -> dict[str, ir.Position]:
    """The positions of `read` with those taken of its value put in. Raises Refused for a window of a
    window that is no plain renaming: where the inner reads zeros, the outer's coordinates may be inside."""
    if not outer:
        return {p.dim: p for p in read.positions}
    positions = dict(outer)
    for inner in read.positions:
        at = [positions.pop(d, None) for d, _ in inner.at.terms]
        if not any(at):
            positions[inner.dim] = inner
            continue
        simple = (
            len(at) == 1 and inner.at.terms[0][1] == 1 and inner.at.offset == Fixed(0) and inner.scale == 1
        )
        if not simple or at[0] is None:
            raise Refused(
                "UC0304",
                "a window of a window is not read in one kernel",
                read.span,
                "write one position, x[H = 2*P + R - 1]",
            )
        positions[inner.dim] = replace(at[0], dim=inner.dim)
    return positions


def _axis(kernel: ir.Kernel, dim: str, position: ir.Position | None) -> WindowPosition:
    if position is None:
        return WindowPosition(dim, None)
    terms = position.at.terms
    plain = position.scale == 1 and position.at.offset == Fixed(0) and len(terms) == 1 and terms[0][1] == 1
    if plain and kernel.dims[dim] == kernel.dims[terms[0][0]]:
        return WindowPosition(terms[0][0], None)
    return WindowPosition(dim, position)
