"""Dots whose parts along K are scaled before they are summed:

    sum[G](dot[J](x, w) * sx * sw)    x: e4m3[M, (G J=128)], sx: f32[M, G], w: e4m3[N, (G J)], sw: f32[N, G]

and with sw: f32[P, G] for w: e4m3[(P Q=128), (G J)] the scheme of 1x128 and 128x128 blocks. A pattern of the
grouped GEMM family: G and J are one contracted mode, and each part's sum is scaled as it joins the accumulator.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass import ir
from ucutlass.ir.traversal import find, walk
from ucutlass.kernels.access import Product, Stride
from ucutlass.kernels.addresses import MergedModes, Operand, Sizes, operand
from ucutlass.kernels.gemm.match import pointer
from ucutlass.kernels.grouped_gemm.plan import Scale, Scaled
from ucutlass.kernels.refused import Refused


@dataclass(frozen=True, slots=True)
class ScaledSum:
    """`total` sums the parts over `groups`; each is multiplied by `factors` in order."""

    total: ir.Reduce
    groups: tuple[str, ...]
    inner: tuple[str, ...]
    factors: tuple[tuple[Operand, ...], ...]


def scaled_sum(kernel: ir.Kernel, dot: ir.Dot) -> ScaledSum | None:
    """The sum of parts of this dot with factors; None where the kernel has none that this family scales,
    and GEMM's reductions of the outcome may serve."""
    if dot.compute_type.kind == "int":
        return None
    batch = [d for d in dot.left.dims if d in dot.right.dims and d not in dot.over]
    for total in find(kernel, ir.Reduce):
        groups = tuple(d for d in batch if d in total.over)
        if total.op != "sum" or len(groups) != len(total.over) or dot not in list(walk(total)):
            continue
        factors = _factors(kernel, dot, total.value)
        summed = (*groups, *dot.over)
        if factors and all(_one_mode(kernel, side, summed) for side in (dot.left, dot.right)):
            return ScaledSum(total, groups, dot.over, tuple(factors))
    return None


def _one_mode(kernel: ir.Kernel, side: ir.Value, names: tuple[str, ...]) -> bool:
    """Whether a stored operand ends with these names: K, in parts."""
    if isinstance(side, ir.Cast):
        side = side.value
    if not isinstance(side, ir.ParamValue):
        return False
    type_ = kernel.params[side.index].type
    return isinstance(type_, ir.TensorType) and type_.dims[-len(names) :] == names


def _factors(kernel: ir.Kernel, dot: ir.Dot, value: ir.Value) -> list[tuple[Operand, ...]] | None:
    """In the order in which they multiply; None where the value is no product of the dot and scales."""
    if value is dot:
        return []
    if not isinstance(value, ir.Apply) or value.function != "multiply":
        return None
    left, right = value.args
    inner, other = (left, right) if dot in list(walk(left)) else (right, left)
    before, leaves = _factors(kernel, dot, inner), _leaves(kernel, other)
    if before is None or leaves is None or any(not _one_side(dot, tensor) for tensor in leaves):
        return None
    return [*before, tuple(leaves)]


def _one_side(dot: ir.Dot, tensor: Operand) -> bool:
    """Whether a scale lies along rows or along columns, not both."""
    return any(set(tensor.order) <= set(side.dims) for side in (dot.left, dot.right))


def _leaves(kernel: ir.Kernel, value: ir.Value) -> list[Operand] | None:
    match value:
        case ir.ParamValue(index):
            type_ = kernel.params[index].type
            if isinstance(type_, ir.TensorType) and type_.elem.name in ("f32", "f16", "bf16"):
                return [operand(type_, pointer(kernel, index), value.span)]
        case ir.Apply("multiply", (left, right)) if isinstance(right, ir.ParamValue):
            before, last = _leaves(kernel, left), _leaves(kernel, right)
            return None if before is None or last is None else [*before, *last]
    return None


def _no_scale(what: str, value: ir.Value) -> Refused:
    return Refused(
        "UC0333",
        f"no kernel has {what}",
        value.span,
        "parts are scaled as sum[G](dot[J](x, w) * sx * sw), with sx over rows and G, sw over columns and G",
    )


def scaled(pattern: ScaledSum, modes: MergedModes, sizes: Sizes, span: ir.Value) -> Scaled:
    """The parts with concrete strides. Raises Refused UC0333 for a scale that lies otherwise."""
    if modes.k != ((*pattern.groups, *pattern.inner),):
        raise _no_scale("parts of K that do not lie side by side in both operands", span)
    factors = tuple(
        tuple(_scale(tensor, pattern, modes, sizes, span) for tensor in f) for f in pattern.factors
    )
    return Scaled(sizes.product(pattern.inner), factors)


def _scale(tensor: Operand, pattern: ScaledSum, modes: MergedModes, sizes: Sizes, span: ir.Value) -> Scale:
    ungrouped = [d for d in tensor.order if d not in pattern.groups]
    grouped = [d for d in tensor.order if d in pattern.groups]
    mode, run = ("n", modes.n) if ungrouped and ungrouped[0] in modes.n else ("m", modes.m)
    count = len(ungrouped)
    if tuple(ungrouped) != run[:count] or (grouped and tuple(grouped) != pattern.groups):
        raise _no_scale(f"a scale over {', '.join(tensor.order)}", span)
    for names in (ungrouped, grouped):
        positions = [tensor.order.index(d) for d in names]
        if positions and positions != list(range(positions[0], positions[0] + len(positions))):
            raise _no_scale(f"a scale in the order {', '.join(tensor.order)}", span)

    def stride(names: list[str]) -> Stride:
        return sizes.stride(tuple(names), tensor) if names else None

    within: Product = sizes.product(run[count:]) if count else ()
    return Scale(tensor.pointer, tensor.elem, mode, within, stride(ungrouped), stride(grouped))  # type: ignore[arg-type]
