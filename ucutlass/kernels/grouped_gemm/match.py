"""The grouped GEMM pattern: one or two dots over one left operand, over ragged groups or not.

Three spellings:

    silu(dot[D](x, w_gate)) * dot[D](x, w_up)                  a gated pair
    dot[D](x, w[E = segment(T, offsets)])                      each row of x meets its group's weights
    own = segment(T, offsets) == index(E)
    dot[T](bf16(where(own, dy, 0)), bf16(where(own, x, 0)))    each group's rows are summed apart

and a pair of the second kind; sums of scaled parts are in `ucutlass.kernels.grouped_gemm.match_scaled`. Groups are a batch
mode E that the offsets cut out of T. In dot[K](x, bf16(w)) of a narrower w that is the left operand here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ucutlass import ir
from ucutlass.check.indexing import is_rename
from ucutlass.ir.elements import BF16, E4M3, E5M2, F16, F32, I32, I64, S4, S8, TF32, U8
from ucutlass.ir.traversal import walk
from ucutlass.kernels.addresses import Operand, operand
from ucutlass.kernels.epilogue import EpiloguePattern, epilogue
from ucutlass.kernels.gemm.match import LOADED, STORED, pointer
from ucutlass.kernels.grouped_gemm.match_scaled import ScaledSum, scaled_sum
from ucutlass.kernels.refused import Refused


@dataclass(frozen=True, slots=True)
class Groups:
    """The dimension `rows` is cut into as many parts as `groups` has coordinates."""

    rows: str
    groups: str
    offsets: int


@dataclass(frozen=True, slots=True)
class GroupedGemmPattern:
    """A kernel seen as D = epilogue(A B0, A B1). Roles list dimension names as in GemmPattern; with
    `groups`, `m` is the ragged dimension, or else `k` is, and `batch` the groups."""

    kernel: ir.Kernel
    dots: tuple[ir.Dot, ...]
    a: Operand
    b: tuple[Operand, ...]
    m: tuple[str, ...]
    n: tuple[str, ...]
    k: tuple[str, ...]
    batch: tuple[str, ...]
    groups: Groups | None
    epilogue: EpiloguePattern
    scaled: ScaledSum | None = None

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """Every tensor that the kernel touches, the result's first: their orders decide what merges."""
        return (*(o.tensor for o in self.epilogue.outputs), self.a, *self.b, *self.epilogue.inputs)

    @property
    def position(self) -> Mapping[str, int]:
        """Where each dimension stands in the extent array."""
        return {name: i for i, name in enumerate(self.kernel.dims)}


def is_products(kernel: ir.Kernel, dots: Sequence[ir.Dot]) -> bool:
    """Whether these dots of a kernel are this family's to take or refuse: two of which neither needs the
    other, or one over segments or with scaled parts."""
    if len(dots) == 1 and (scaled_sum(kernel, dots[0]) is not None or _widens(dots[0])):
        return True
    if len(dots) == 2:
        return not any(a is not b and a in list(walk(b)) for a in dots for b in dots)
    return len(dots) == 1 and any(isinstance(node, ir.Segment) for node in walk(dots[0]))


@dataclass(frozen=True, slots=True)
class _Side:
    """An operand of a dot: the tensor, the segment that picks its group, and the one that masks it."""

    tensor: Operand
    node: ir.Value
    picked: ir.Gather | None = None
    masked: tuple[ir.Segment, str] | None = None
    widened: bool = False


def match_grouped_gemm(kernel: ir.Kernel, dots: Sequence[ir.Dot]) -> GroupedGemmPattern:
    """The pattern of a kernel with these dots. Raises Refused."""
    for dot in dots:
        if dot.left.elem is not dot.right.elem:
            raise Refused.mixed_fp8(dot.span)
    sides = [(_side(kernel, dot.left), _side(kernel, dot.right)) for dot in dots]
    if len(dots) == 2:
        sides = _shared_first(dots, sides)
    elif sides[0][0].picked is not None or sides[0][1].widened:
        sides = [(sides[0][1], sides[0][0])]
    a, rights = sides[0][0], [right for _, right in sides]
    _only_widened(dots, a, rights)
    _alike(dots, rights)
    groups = _groups(kernel, dots[0], a, rights)
    first, over = rights[0].tensor, dots[0].over
    shared = [d for d in a.tensor.order if d in first.order and d not in over]
    if groups is not None and shared:
        raise _no_groups(f"ragged groups with a batch name, {', '.join(shared)}", dots[0])
    picked = {groups.groups} if groups is not None else set()
    own = a.masked or _own(rights[0])
    if (parts := scaled_sum(kernel, dots[0])) is not None:
        shared = [d for d in shared if d not in parts.groups]
        over = (*parts.groups, *over)
        _only_scaled(dots, groups)
    return GroupedGemmPattern(
        kernel,
        tuple(dots),
        a.tensor,
        tuple(right.tensor for right in rights),
        m=tuple(d for d in a.tensor.order if d not in first.order),
        n=tuple(d for d in first.order if d not in a.tensor.order and d not in picked),
        k=over,
        batch=(groups.groups,) if groups is not None else tuple(shared),
        groups=groups,
        epilogue=_epilogue(kernel, dots, own[0] if own is not None else None, parts),
        scaled=parts,
    )


def _only_scaled(dots: Sequence[ir.Dot], groups: Groups | None) -> None:
    if len(dots) > 1 or groups is not None:
        raise Refused(
            "UC0333",
            "no kernel scales the parts of K of a pair of dots or of ragged groups",
            dots[0].span,
            "compute one dot over whole operands",
        )


NARROW = (S4, S8, U8, E4M3, E5M2)
"""Elements that f16 and bf16 hold exactly: stored operands of them are widened in the main loop."""


def widens(value: ir.Value) -> bool:
    """Whether an operand of a dot is stored narrower than its compute type, and its cast loses nothing."""
    match value:
        case ir.Cast(ir.ParamValue(elem=stored), elem):
            return elem in (BF16, F16) and stored in NARROW
    return False


def _widens(dot: ir.Dot) -> bool:
    return widens(dot.left) != widens(dot.right)


def _only_widened(dots: Sequence[ir.Dot], a: _Side, rights: Sequence[_Side]) -> None:
    """Raises Refused UC0308 where something else than the one left operand would be widened."""
    others = any(right.widened for right in rights)
    if others or (a.widened and (len(dots) > 1 or a.masked is not None or rights[0].picked is not None)):
        raise Refused(
            "UC0308",
            "one operand of one dot is widened on its way to the multipliers, not those of a pair, of ragged "
            "groups or both",
            dots[0].span,
            f"store it first, in a pipeline: h: {dots[0].compute_type.name}[..] = ..",
        )


def _own(side: _Side) -> tuple[ir.Segment, str] | None:
    if side.picked is None:
        return None
    assert isinstance(side.picked.ids, ir.Segment)
    return side.picked.ids, side.picked.dim


def _epilogue(
    kernel: ir.Kernel, dots: Sequence[ir.Dot], own: ir.Segment | None, parts: ScaledSum | None
) -> EpiloguePattern:
    begins = dots[0] if parts is None else parts.total
    pattern = epilogue(kernel, begins, STORED, LOADED, tuple(dots[1:]), own)
    for output in pattern.outputs:
        if output.reduce is not None:
            raise Refused(
                "UC0309",
                "a pair of dots, or one over ragged groups, reduces nothing in its epilogue",
                output.value.span,
                "store the outcome and reduce it in a second stage",
            )
    return pattern


# --- operands -----------------------------------------------------------------------


def _side(kernel: ir.Kernel, value: ir.Value) -> _Side:
    outer, compute_type = value, value.elem
    masked, widened = None, widens(value)
    if isinstance(value, ir.Cast):
        inner = value.value
        if widened or isinstance(inner, ir.Apply) or (value.elem is TF32 and inner.elem is F32):
            value = inner
    if isinstance(value, ir.Apply) and (mask := _mask(value)) is not None:
        value, masked = mask[0], mask[1:]
        if value.elem is not compute_type and (value.elem, compute_type) != (F32, TF32):
            raise _stored_first(
                f"{compute_type.name}(..) of {value.elem.name} rows", outer, compute_type.name
            )
    picked = value if isinstance(value, ir.Gather) else None
    if picked is not None:
        if not isinstance(picked.ids, ir.Segment):
            raise Refused.no_family(kernel, "a dot over gathered operands", value.span)
        value = picked.value
    rename: dict[str, str] = {}
    while isinstance(value, ir.Read) and picked is None:
        if not is_rename(value, kernel.dims):
            raise Refused.no_family(kernel, "a dot over windows of an operand", value.span)
        rename |= {p.dim: rename.get(p.at.terms[0][0], p.at.terms[0][0]) for p in value.positions}
        value = value.value
    match value:
        case ir.ParamValue(index):
            type_ = kernel.params[index].type
            if isinstance(type_, ir.TensorType):
                tensor = operand(type_, pointer(kernel, index), value.span, rename)
                return _Side(tensor, outer, picked, masked, widened)
            raise Refused("UC0302", "an operand of dot is a tensor in memory", value.span)
        case _:
            raise _stored_first("what is computed", value, compute_type.name)


def _stored_first(what: str, value: ir.Value, compute_type: str) -> Refused:
    return Refused(
        "UC0302",
        f"the operands of dot are read as they lie in memory, and {what} does not lie there",
        value.span,
        f"store it first, in a pipeline: h: {compute_type}[..] = ..",
    )


def _mask(value: ir.Apply) -> tuple[ir.Value, ir.Segment, str] | None:
    """`where(segment(T, offsets) == index(E), e, 0)` as (e, the segment, E)."""
    if value.function != "where":
        return None
    own, passed, other = value.args
    if not (isinstance(other, ir.Constant) and other.value == 0):
        return None
    if not (isinstance(own, ir.Apply) and own.function == "equal"):
        return None
    match own.args:
        case (ir.Segment() as of, ir.Coordinate(group)) | (ir.Coordinate(group), ir.Segment() as of):
            return passed, of, group
    return None


# --- which operands meet --------------------------------------------------------------


def _shared_first(dots: Sequence[ir.Dot], sides: list[tuple[_Side, _Side]]) -> list[tuple[_Side, _Side]]:
    """Each dot's sides with the operand that both dots have in front. Raises Refused UC0330."""
    first, second = sides
    for i in (0, 1):
        for j in (0, 1):
            if first[i].node is second[j].node:
                return [(first[i], first[1 - i]), (second[j], second[1 - j])]
    raise Refused(
        "UC0330",
        "two dots are one launch where they have an operand in common, as dot[D](x, a) and dot[D](x, b) do",
        dots[1].span,
        "compute one of them in a stage of its own",
    )


def _alike(dots: Sequence[ir.Dot], rights: Sequence[_Side]) -> None:
    """Raises Refused UC0330 where two dots differ in names, compute types or groups."""
    if len(dots) == 1:
        return
    a, b = dots
    first, second = rights
    differ = [
        (set(a.over) != set(b.over), f"names summed, {', '.join(a.over)} and {', '.join(b.over)}"),
        (
            a.compute_type is not b.compute_type,
            f"compute type, {a.compute_type.name} and {b.compute_type.name}",
        ),
        (a.accumulate != b.accumulate, f"accumulation, {a.accumulate} and {b.accumulate}"),
        (
            set(first.tensor.order) != set(second.tensor.order) or set(a.dims) != set(b.dims),
            f"names, {', '.join(first.tensor.order)} and {', '.join(second.tensor.order)}",
        ),
        (_own(first) != _own(second) or first.masked != second.masked, "groups of rows"),
    ]
    for differs, what in differ:
        if differs:
            raise Refused(
                "UC0330",
                f"two dots of one launch have all but their numbers in common; these differ in their {what}",
                b.span,
                "compute one of them in a stage of its own",
            )


def _groups(kernel: ir.Kernel, dot: ir.Dot, a: _Side, rights: Sequence[_Side]) -> Groups | None:
    """What is ragged. Raises Refused UC0331."""
    right = rights[0]
    if a.picked is not None:
        raise _no_groups("groups picked on both sides of a dot", dot)
    if (a.masked is None) != (right.masked is None):
        raise _no_groups(
            "rows masked on one side alone: 0 times an infinity of another group is a NaN of this one's",
            dot,
            "mask both operands: dot[T](bf16(where(own, a, 0)), bf16(where(own, b, 0)))",
        )
    if a.masked is not None:
        return _masked_groups(kernel, dot, a, right)
    if (own := _own(right)) is None:
        return None
    segment, group = own
    if group not in right.tensor.order or segment.dim not in a.tensor.order:
        raise _no_groups(f"weights picked along {segment.dim}, which the left operand has not", dot)
    if segment.dim in dot.over or segment.dim in right.tensor.order or group in dot.over:
        raise _no_groups(f"groups of {segment.dim} where it is no row of the result", dot)
    others = [d for d in a.tensor.order if d not in dot.over and d not in right.tensor.order]
    if others != [segment.dim]:
        raise _no_groups(
            f"rows of {', '.join(others)}, of which only {segment.dim} is ragged",
            dot,
            "store the left operand with one name for its rows",
        )
    return Groups(segment.dim, group, _offsets(kernel, segment, dot))


def _masked_groups(kernel: ir.Kernel, dot: ir.Dot, a: _Side, right: _Side) -> Groups:
    assert a.masked is not None
    if a.masked != right.masked or right.picked is not None:
        raise _no_groups("operands masked by different groups", dot)
    segment, group = a.masked
    if dot.over != (segment.dim,) or group in a.tensor.order or group in right.tensor.order:
        raise _no_groups(f"a sum over {', '.join(dot.over)} of rows masked along {segment.dim}", dot)
    return Groups(segment.dim, group, _offsets(kernel, segment, dot))


def _offsets(kernel: ir.Kernel, segment: ir.Segment, dot: ir.Dot) -> int:
    """The offsets' place in the pointer array."""
    match segment.offsets:
        case ir.ParamValue(index, elem) if elem in (I32, I64):
            return pointer(kernel, index)
    raise _no_groups("offsets that are not a parameter i32[E+1] or i64[E+1]", dot)


def _no_groups(what: str, dot: ir.Dot, hint: str | None = None) -> Refused:
    return Refused(
        "UC0331",
        f"no kernel has {what}",
        dot.span,
        hint
        or "groups are dot[D](x, w[E = segment(T, offsets)]) over rows T of x, or a sum over T with "
        "both operands masked by segment(T, offsets) == index(E)",
    )
