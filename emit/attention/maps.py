"""TMA descriptors of attention's operands, and the copies of keys and values that TF32 kernels load."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.gemm import sm80_epilogue as epilogue
from ucutlass.emit.text import product
from ucutlass.kernels.access import Access, Stride
from ucutlass.kernels.attention.plan import (
    AttentionProblem,
    AttentionSchedule,
    columns_at_once,
    is_tf32,
    splits_f32,
)
from ucutlass.kernels.gemm.plan import GemmProblem

_TMA_TYPES = {"f16": "FLOAT16", "bf16": "BFLOAT16", "tf32": "TFLOAT32", "f32": "FLOAT32"}
"""TMA rounds f32 to TF32 as it reads, where its element is TFLOAT32."""


@dataclass(frozen=True, slots=True)
class AttentionMap:
    """A TMA descriptor: address, extents and strides in C++, `box` rows of a box, `modes` the batch modes it
    has."""

    name: str
    data: str
    type: str
    extents: tuple[str, ...]
    strides: tuple[str, ...]
    box: int
    modes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class OperandCopy:
    """An operand at `data` that a launch before the kernel's copies to the workspace: `lines` of `line` elements, rounded
    up to `step`, for each of `extents`. `row` and `batch`, pairs of stride and extent, address the operand;
    `aligned` are the strides that 16 bytes divide. `count` threads copy. All but numbers are C++."""

    name: str
    data: str
    head: int
    line: str
    step: int
    lines: str
    extents: tuple[str, ...]
    row: str
    batch: tuple[tuple[str, str], ...]
    aligned: tuple[str, ...]
    count: str


def maps(p: AttentionProblem, s: AttentionSchedule) -> list[AttentionMap]:
    """The descriptors, in the order of the kernel's parameters."""
    q, k, v, o = p.scores.a, p.scores.b, p.results.b, p.results.outputs[0].access
    rows, keys = product(p.scores.m), product(p.scores.n)
    queries = _map("q", q, p.head, rows, q.m, 64 * s.groups, p.scores, p.compute_type.name)
    if is_tf32(p):
        return [queries, *_copied_maps(p, s)]
    operands = [
        queries,
        _map("k", k, p.head, keys, k.n, s.keys, p.scores, k.elem.name),
        _map("v", v, p.head_v, keys, v.k[0], s.keys, p.results, v.elem.name),
    ]
    if not p.plain or s.split:
        return operands
    return [*operands, _map("o", o, p.head_v, rows, o.m, 64, p.results, o.elem.name)]


def _map(
    name: str, a: Access, head: int, count: str, row: Stride, box: int, problem: GemmProblem, elem: str
) -> AttentionMap:
    modes = _modes(a)
    extents = (str(head), count if row is not None else "1", *(product(problem.batch[i]) for i in modes))
    strides = ("1", epilogue.stride(row), *(epilogue.stride(a.batch[i]) for i in modes))
    return AttentionMap(name, data_of(a), _TMA_TYPES[elem], extents, strides, box, modes)


def data_of(a: Access) -> str:
    """Returns the address of what is read of a tensor, in C++."""
    if not a.start:
        return f"tensors[{a.pointer}]"
    elements = " + ".join(f"{at} * {product(stride)}" for at, stride in a.start)
    return f"static_cast<void*>(static_cast<char*>(tensors[{a.pointer}]) + {a.elem.bytes} * ({elements}))"


def _modes(a: Access) -> tuple[int, ...]:
    return tuple(i for i, stride in enumerate(a.batch) if stride is not None)


# --- copies ------------------------------------------------------------------------


def copies(p: AttentionProblem) -> tuple[OperandCopy, ...]:
    """What is copied: values, which lie along the head, and keys where they are split."""
    if not is_tf32(p):
        return ()
    keys, k, v = product(p.scores.n), p.scores.b, p.results.b
    values = _copy(
        "v",
        v,
        p.head_v,
        (keys, 8, str(p.head_v)),
        v.k[0],
        p.results,
        f"v_elements / v_lines / v_line * ((v_line + 31) / 32) * {-(-p.head_v // 32) * 32}",
    )
    if not splits_f32(p):
        return (values,)
    return (
        _copy(
            "k",
            k,
            p.head,
            (str(p.head), 4, keys),
            k.n,
            p.scores,
            "k_line / 4 * ((k_lines + 3) / 4) * (k_elements / k_line / k_lines)",
        ),
        values,
    )


def _copy(
    name: str,
    a: Access,
    head: int,
    lines: tuple[str, int, str],
    row: Stride,
    problem: GemmProblem,
    count: str,
) -> OperandCopy:
    modes = _modes(a)
    own = tuple(
        (epilogue.stride(stride), product(problem.batch[i]) if i in modes else "1")
        for i, stride in enumerate(a.batch)
    )
    return OperandCopy(
        name,
        data_of(a),
        head,
        *lines,
        tuple(product(problem.batch[i]) for i in modes),
        epilogue.stride(row),
        own or (("0", "1"),),
        (epilogue.stride(row), *(epilogue.stride(a.batch[i]) for i in modes)),
        count,
    )


def _copied_maps(p: AttentionProblem, s: AttentionSchedule) -> list[AttentionMap]:
    """Descriptors of keys and values: of the copies, both parts where operands are split."""
    k, v, keys, type_ = p.scores.b, p.results.b, product(p.scores.n), _TMA_TYPES[p.compute_type.name]
    if not splits_f32(p):
        own = _map("k", k, p.head, keys, k.n, s.keys, p.scores, p.compute_type.name)
        return [own, _copied("v", "v_big", "v_line", str(p.head_v), v, p.results, columns_at_once(p), type_)]
    parts = [("", "big"), ("_small", "small")]
    return [
        *(
            _copied(f"k{end}", f"k_{part}", str(p.head), keys, k, p.scores, s.keys, type_)
            for end, part in parts
        ),
        *(
            _copied(f"v{end}", f"v_{part}", "v_line", str(p.head_v), v, p.results, columns_at_once(p), type_)
            for end, part in parts
        ),
    ]


def _copied(
    name: str, data: str, inner: str, lines: str, a: Access, problem: GemmProblem, box: int, type_: str
) -> AttentionMap:
    modes, line = _modes(a), f"{name[0]}_line"
    extents = tuple(product(problem.batch[i]) for i in modes)
    strides = tuple(" * ".join((line, lines, *extents[i + 1 :])) for i in range(len(modes)))
    return AttentionMap(name, data, type_, (inner, lines, *extents), ("1", line, *strides), box, modes)
