"""A GEMM's pattern with concrete extents, its size, and its transpose."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ucutlass import ir
from ucutlass.kernels.access import MAX_BATCH_MODES, Access, Output, Product, Reduction, Store, Stride
from ucutlass.kernels.addresses import MergedModes, Operand, Sizes, access, runs
from ucutlass.kernels.arithmetic import CoordinateValue, Instruction
from ucutlass.kernels.epilogue import ReduceTo
from ucutlass.kernels.epilogue import arithmetic as epilogue_arithmetic
from ucutlass.kernels.gemm.match import GemmPattern
from ucutlass.kernels.gemm.plan import MAX_CLUSTER, MAX_TILE_N, GemmProblem, epilogue_tensors
from ucutlass.kernels.refused import Refused


def gemm_problem(
    pattern: GemmPattern, sizes: Sequence[int], aligned: Sequence[bool] | None = None
) -> GemmProblem:
    """The pattern with concrete extents, in the order of `kernel.dims`.

    `aligned[i]` says whether pointer i is a multiple of 16 bytes; None: all are.
    Raises Refused UC0305 where more batch modes remain than a kernel addresses.
    """
    at = Sizes(pattern.position, tuple(sizes))
    modes = _modes(pattern, at)
    pointers = sum(isinstance(p.type, ir.TensorType) for p in pattern.kernel.params) + len(
        pattern.kernel.results
    )
    fine = tuple(aligned) if aligned is not None else (True,) * pointers

    def reach(tensor: Operand, without_k: bool = True) -> Access:
        return access(
            tensor,
            modes if not without_k else MergedModes(modes.m, modes.n, (), modes.batch),
            at,
            fine[tensor.pointer],
        )

    outputs: list[Output] = [
        Reduction(o.reduce.op, reach(o.tensor)) if isinstance(o.reduce, ReduceTo) else Store(reach(o.tensor))
        for o in pattern.epilogue.outputs
    ]
    if pattern.epilogue.rows:
        _require_whole_rows(pattern, modes, at)
    return GemmProblem(
        compute_type=pattern.dot.compute_type,
        accumulate=pattern.dot.accumulate,
        m=at.product(modes.m),
        n=at.product(modes.n),
        k=tuple(at.product(run) for run in modes.k),
        batch=tuple(at.product(run) for run in modes.batch),
        a=reach(pattern.a, False),
        b=reach(pattern.b, False),
        inputs=tuple(reach(t) for t in pattern.epilogue.inputs),
        outputs=tuple(outputs),
        arithmetic=epilogue_arithmetic(pattern.epilogue, modes, at),
        dims=len(pattern.kernel.dims),
        pointers=pointers,
        scalars=sum(isinstance(p.type, ir.ScalarType) for p in pattern.kernel.params),
    )


def _require_whole_rows(pattern: GemmPattern, modes: MergedModes, sizes: Sizes) -> None:
    """Raises Refused where the names of row statistics are no mode of the product, or longer than the tiles of a
    cluster reach."""
    rows = pattern.epilogue.rows
    length = sizes.number(sizes.product(rows))
    whole = any(set(rows) == set(mode) for mode in (modes.m, modes.n))
    if not whole or length > MAX_CLUSTER * MAX_TILE_N:
        why = (
            f"{length} elements of a row are more than the {MAX_CLUSTER * MAX_TILE_N} that a cluster's tiles hold"
            if whole
            else f"{', '.join(rows)} lie apart in memory"
        )
        raise Refused(
            "UC0303",
            f"a reduction of the dot's result is used again with more work, and {why}",
            pattern.dot.span,
            "cut here: store the dot's result and its reduction, go on in a second stage",
        )


def _modes(pattern: GemmPattern, sizes: Sizes) -> MergedModes:
    m, m_rest = _longest(runs(pattern.m, pattern.tensors), sizes, pattern.a)
    n, n_rest = _longest(runs(pattern.n, pattern.tensors), sizes, pattern.b)
    batch = [*runs(pattern.batch, pattern.tensors), *m_rest, *n_rest]
    merged = _merge_batches(batch, pattern.tensors)
    if len(merged) > MAX_BATCH_MODES:
        raise Refused(
            "UC0305",
            f"{len(merged)} batch dimensions lie apart in memory; a kernel addresses {MAX_BATCH_MODES}",
            pattern.dot.span,
            "store operands or the result with these names next to each other",
        )
    return MergedModes(m, n, runs(pattern.k, (pattern.a, pattern.b)), merged)


LEAST_CONTIGUOUS = 16
"""Elements of a run along which an operand is contiguous that make it the GEMM's own mode, though another is longer:
without it every element is read by itself."""


def _longest(
    parts: tuple[tuple[str, ...], ...], sizes: Sizes, operand: Operand
) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
    """The run that becomes the GEMM's own mode (the one along which the operand is contiguous, else the longest,
    innermost among equals); the rest become batch modes over which the other operand is broadcast."""
    if not parts:
        return (), ()
    lengths = [sizes.number(sizes.product(part)) for part in parts]
    inner = [bool(operand.order) and part[-1] == operand.order[-1] for part in parts]
    best = max(range(len(parts)), key=lambda i: (inner[i] and lengths[i] >= LEAST_CONTIGUOUS, lengths[i], i))
    return parts[best], tuple(p for i, p in enumerate(parts) if i != best)


def _merge_batches(parts: list[tuple[str, ...]], tensors: tuple[Operand, ...]) -> tuple[tuple[str, ...], ...]:
    """Batch runs of different roles that still lie side by side in every tensor."""
    merged = runs([n for part in parts for n in part], tensors)
    return merged if len(merged) < len(parts) else tuple(parts)


# --- its size ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shape:
    """Extents of a problem in elements: `k` and `batch` are the products of their modes.
    `operand_bytes` is A and B, `epilogue_bytes` every other tensor, each counted once."""

    m: int
    n: int
    k: int
    batch: int
    operand_bytes: int
    epilogue_bytes: int

    @property
    def flops(self) -> int:
        return 2 * self.m * self.n * self.k * self.batch


def extent(product: Product, sizes: tuple[int, ...]) -> int:
    """The value of a product of extents."""
    return math.prod(sizes[d] for d in product)


def stride_bytes(stride: Stride, access: Access, sizes: tuple[int, ...]) -> int:
    """Bytes from one element of a mode to the next; 0 where the tensor does not range over it."""
    return 0 if stride is None else extent(stride, sizes) * access.elem.bytes


def shape_of(problem: GemmProblem, sizes: tuple[int, ...]) -> Shape:
    """The problem's extents and bytes for concrete sizes, by position."""
    return Shape(
        extent(problem.m, sizes),
        extent(problem.n, sizes),
        math.prod(extent(k, sizes) for k in problem.k),
        math.prod(extent(b, sizes) for b in problem.batch),
        sum(tensor_bytes(t, problem, sizes) for t in (problem.a, problem.b)),
        sum(tensor_bytes(t, problem, sizes) for t in epilogue_tensors(problem)),
    )


def tensor_bytes(access: Access, problem: GemmProblem, sizes: tuple[int, ...]) -> int:
    """Bytes of a tensor: the modes it ranges over, nothing for those it is broadcast along."""
    modes = (
        (access.m, problem.m),
        (access.n, problem.n),
        *zip(access.k, problem.k, strict=False),
        *zip(access.batch, problem.batch, strict=False),
    )
    return access.elem.bytes * math.prod(extent(e, sizes) for stride, e in modes if stride is not None)


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def accumulator_bytes(problem: GemmProblem) -> int:
    """Bytes of one accumulator element."""
    return 2 if problem.accumulate == "f16" else 4


# --- its transpose ----------------------------------------------------------------


def transpose(problem: GemmProblem) -> GemmProblem:
    """The same computation with D transposed: what `swap yes` runs. Its own inverse."""
    arithmetic = problem.arithmetic
    instructions = tuple(map(_instruction, arithmetic.instructions))
    statistics = tuple(replace(s, along="m" if s.along == "n" else "n") for s in arithmetic.statistics)
    return replace(
        problem,
        m=problem.n,
        n=problem.m,
        a=_access(problem.b),
        b=_access(problem.a),
        inputs=tuple(map(_access, problem.inputs)),
        outputs=tuple(replace(output, access=_access(output.access)) for output in problem.outputs),
        arithmetic=replace(arithmetic, instructions=instructions, statistics=statistics),
    )


def _access(access: Access) -> Access:
    return replace(access, m=access.n, n=access.m)


def _instruction(instruction: Instruction) -> Instruction:
    match instruction:
        case CoordinateValue(mode="m"):
            return replace(instruction, mode="n")
        case CoordinateValue(mode="n"):
            return replace(instruction, mode="m")
        case _:
            return instruction
