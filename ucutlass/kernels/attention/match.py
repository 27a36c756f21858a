"""The attention pattern: two dots around a softmax, matched on the typed graph.

    s = f(dot[D](q, k))            f: element-wise, with any operands over the score's names
    o = g(dot[S](cast(softmax[S](s)), v))

A pattern speaks of names and serves every shape; `ucutlass.kernels.attention.problem` gives it extents.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ucutlass import ir
from ucutlass.check.indexing import fixed_coordinates
from ucutlass.ir.elements import F32, TF32, Element
from ucutlass.ir.traversal import walk
from ucutlass.kernels.addresses import Operand, operand
from ucutlass.kernels.attention.match_packed import PackedPattern, packed_of
from ucutlass.kernels.attention.plan import TF32_TYPES
from ucutlass.kernels.epilogue import EpilogueOutput, EpiloguePattern, around, epilogue, require_dims
from ucutlass.kernels.gemm.match import LOADED, STORED, pointer
from ucutlass.kernels.refused import Refused

COMPUTE_TYPES = ("f16", "bf16", *TF32_TYPES)
"""Compute types that the kernels multiply in; both products have the same."""

PACKED_TYPES = ("f16", "bf16")
"""Compute types of attention over packed sequences."""

MOST_HEAD = 256
"""Elements of a head at most: a wider one's outcomes do not fit into registers."""


@dataclass(frozen=True, slots=True)
class AttentionPattern:
    """A kernel seen as attention. `queries` only q has, `keys` are what the softmax runs over, `head` is
    what the first dot sums, `head_v` what of v the result keeps; all other names are batch. `score` is
    the softmax's argument as the first dot's epilogue, without the masks of `packed` sequences; `outcome`
    the second dot's."""

    kernel: ir.Kernel
    first: ir.Dot
    second: ir.Dot
    q: Operand
    k: Operand
    v: Operand
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    head: tuple[str, ...]
    head_v: str
    batch: tuple[str, ...]
    score: EpiloguePattern
    outcome: EpiloguePattern
    packed: PackedPattern | None = None

    @property
    def compute_type(self) -> Element:
        return self.first.compute_type

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """Every tensor that the kernel touches, results first: their orders decide what merges."""
        results = tuple(o.tensor for o in self.outcome.outputs)
        return (*results, self.q, self.k, self.v, *self.score.inputs, *self.outcome.inputs)

    @property
    def position(self) -> Mapping[str, int]:
        """Where each dimension stands in the extent array."""
        return {name: i for i, name in enumerate(self.kernel.dims)}


def is_attention(dots: list[ir.Dot]) -> bool:
    """Whether these are the two dots of attention: one over the softmax of the other."""
    return len(dots) == 2 and any(_weights(a, b) for a, b in (dots, dots[::-1]))


def _weights(second: ir.Dot, first: ir.Dot) -> ir.Softmax | None:
    """The softmax over `first` that is an operand of `second`, apart from its cast."""
    for side in (second.left, second.right):
        value = side.value if isinstance(side, ir.Cast) else side
        if isinstance(value, ir.Softmax) and first in list(walk(value.value)):
            return value
    return None


def match_attention(kernel: ir.Kernel, dots: list[ir.Dot]) -> AttentionPattern:
    """The pattern of a kernel for which `is_attention` holds. Raises Refused."""
    first, second = dots if _weights(dots[1], dots[0]) else dots[::-1]
    weights = _weights(second, first)
    assert weights is not None
    _check_compute_types(kernel, first, second, weights)
    value = second.right if first in list(walk(second.left)) else second.left
    query, key = _sides(first, weights)
    keys = second.over
    head_v = [d for d in value.dims if d not in weights.dims]
    q, k, v = (_stored(kernel, x) for x in (query, key, value))
    innermost = _head_of(q, k, v, first, head_v)
    queries = tuple(d for d in query.dims if d not in key.dims)
    named = {*queries, *keys, *first.over, innermost}
    every = dict.fromkeys((*weights.dims, *value.dims))
    masked, packed = packed_of(kernel, weights.value, queries, keys)
    if packed is not None and first.compute_type.name in TF32_TYPES:
        raise _unserved(kernel, first, second, weights, first, "of packed sequences ", PACKED_TYPES)
    score = _score(kernel, first, masked)
    outcome = epilogue(kernel, second, STORED, LOADED)
    for output in outcome.outputs:
        if output.reduce is not None:
            raise Refused(
                "UC0309",
                "a reduction of attention's result is a launch of its own",
                output.value.span,
                "store the result, reduce it in a second stage",
            )
    return AttentionPattern(
        kernel,
        first,
        second,
        q,
        k,
        v,
        queries,
        keys,
        first.over,
        innermost,
        tuple(d for d in every if d not in named),
        score,
        outcome,
        packed,
    )


def _check_compute_types(kernel: ir.Kernel, first: ir.Dot, second: ir.Dot, weights: ir.Softmax) -> None:
    if weights.log:
        raise Refused.no_family(kernel, "a dot over log_softmax", weights.span)
    for dot in (first, second):
        if (
            dot.compute_type.name not in COMPUTE_TYPES
            or dot.accumulate != "f32"
            or dot.compute_type is not first.compute_type
        ):
            raise _unserved(kernel, first, second, weights, dot)
    if set(second.over) != set(weights.over):
        raise Refused(
            "UC0321",
            f"the softmax runs over {', '.join(weights.over)}, the dot after it sums over "
            f"{', '.join(second.over)}",
            weights.span,
            "let both take the same names, or store the softmax in a stage of its own",
        )


def _unserved(
    kernel: ir.Kernel,
    first: ir.Dot,
    second: ir.Dot,
    weights: ir.Softmax,
    dot: ir.Dot,
    which: str = "",
    types: tuple[str, ...] = COMPUTE_TYPES,
) -> Refused:
    return Refused(
        "UC0320",
        f"attention {which}multiplies in {', '.join(types)}, both dots in one compute type, with sums "
        f"in f32; this dot is {dot.compute_type.name}, its sums {dot.accumulate}",
        dot.span,
        f"store q, k and v in one of these, and cast the softmax to it; or cut, in a pipeline: "
        f"{_cut(kernel, first, second, weights)}",
    )


def _cut(kernel: ir.Kernel, first: ir.Dot, second: ir.Dot, weights: ir.Softmax) -> str:
    """Attention as three stages of a pipeline, whose dots multiply in any compute type."""
    compute_type = first.compute_type
    value = second.right if first in list(walk(second.left)) else second.left
    sides = ((first.left, "q"), (first.right, "k"), (value, "v"))
    query, key, values = (_name(kernel, side, name) for side, name in sides)
    stored, probabilities = compute_type.name, "p"
    if not compute_type.storable:
        stored, probabilities = "f32", f"{compute_type.name}(p)"
        query, key, values = (f"{compute_type.name}({name})" for name in (query, key, values))
    axes, summed = ", ".join(weights.dims), ", ".join(weights.over)
    stages = (
        f"s: f32[{axes}] = dot[{', '.join(first.over)}]({query}, {key})",
        f"p: {stored}[{axes}] = softmax[{summed}](s)",
        f"return dot[{summed}]({probabilities}, {values})",
    )
    more = "" if weights.value is first else ", with scale and mask in s"
    return "  ".join(stages) + more


def _name(kernel: ir.Kernel, value: ir.Value, other: str) -> str:
    """What the program calls a stored operand, without casts; `other` for what has no name."""
    inner = value.value if isinstance(value, ir.Cast) else value
    return kernel.params[inner.index].name if isinstance(inner, ir.ParamValue) else other


def _sides(first: ir.Dot, weights: ir.Softmax) -> tuple[ir.Value, ir.Value]:
    """The first dot's operands, the one with the keys second."""
    keys = set(weights.over)
    for query, key in ((first.left, first.right), (first.right, first.left)):
        if keys <= set(key.dims) and not keys & set(query.dims):
            return query, key
    raise Refused(
        "UC0321",
        f"the names of the softmax, {', '.join(weights.over)}, must be one operand's of the first dot alone",
        weights.span,
        "rename them in the other operand: x[S = J]",
    )


def _stored(kernel: ir.Kernel, value: ir.Value) -> Operand:
    """Returns a tensor in memory, under other names and at one coordinate of some axes."""
    rename: dict[str, str] = {}
    coordinates: dict[str, int] = {}
    inner = value.value if isinstance(value, ir.Cast) and value.elem is TF32 else value
    while isinstance(inner, ir.Read) and (fixed := fixed_coordinates(inner, kernel.dims)) is not None:
        moved = {p.dim: p.at.terms[0][0] for p in inner.positions if p.at.terms}
        coordinates = {
            **coordinates,
            **fixed,
            **{d: coordinates[n] for d, n in moved.items() if n in coordinates},
        }
        rename |= {dim: rename.get(name, name) for dim, name in moved.items()}
        inner = inner.value
    if isinstance(inner, ir.ParamValue):
        type_ = kernel.params[inner.index].type
        if isinstance(type_, ir.TensorType):
            return operand(type_, pointer(kernel, inner.index), value.span, rename, coordinates)
    raise Refused(
        "UC0302",
        "q, k and v of attention are read as they lie in memory, whole or at one coordinate of an axis",
        value.span,
        "store it first, in a pipeline: h: bf16[..] = ..",
    )


def _head_of(q: Operand, k: Operand, v: Operand, first: ir.Dot, head_v: list[str]) -> str:
    """The name of v's head, after the heads are found to lie innermost."""
    head = first.over
    for what, tensor, side in (("q", q, first.left), ("k", k, first.right)):
        last = tensor.order[-len(head) :]
        if last != q.order[-len(head) :] or set(last) != set(head):
            raise Refused(
                "UC0322",
                f"{', '.join(head)} must be the last names of q and of k, in one order; {what} "
                f"lies as [{', '.join(tensor.order)}]",
                side.span,
                "declare the tensor with these names last, or change its order in a stage of its own",
            )
    if not head_v or v.order[-1] not in head_v:
        raise Refused(
            "UC0322",
            f"the last name of v must be one that the result keeps; it is [{', '.join(v.order)}]",
            first.span,
            "declare v with its head last: [.., S, D]",
        )
    return v.order[-1]


def _score(kernel: ir.Kernel, first: ir.Dot, masked: ir.Value) -> EpiloguePattern:
    for node in walk(masked):
        if isinstance(node, ir.Softmax | ir.Reduce | ir.Scan):
            raise Refused(
                "UC0303",
                "a score is made of the dot's value at one place; a reduction needs a whole row",
                node.span,
                "cut here: store the scores, go on in a second stage",
            )
    require_dims(masked, first)
    output = EpilogueOutput(Operand(-1, F32, ()), masked, None)
    return around(kernel, first, (output,), LOADED)
