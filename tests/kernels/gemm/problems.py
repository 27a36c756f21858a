"""Problems for the tests of rules and planner: dense GEMMs as the recogniser makes them."""

from __future__ import annotations

from ucutlass.ir.elements import ELEMENTS, F16, F32, I32, Element
from ucutlass.kernels.access import Access, Reduction, Store, Stride
from ucutlass.kernels.arithmetic import Accumulator, Arithmetic, Compute, Instruction, LoadSlot
from ucutlass.kernels.gemm.plan import GemmProblem

M, N, K, B = ((0,), (1,), (2,), (3,))
"""The dimensions of every test problem stand in this order."""


def align(elem: Element, *strides: int) -> int:
    """Largest power of two up to 16 bytes that divides all strides but the unit one."""
    return next(a for a in (16, 8, 4, 2, 1) if a * elem.bytes <= 16 and all(s % a == 0 for s in strides))


def matrix(
    pointer: int, elem: Element, rows: str, columns: str, sizes: dict[str, int], batched: bool
) -> Access:
    """A row-major matrix `rows` x `columns`, named by modes m, n, k, packed batch by batch."""
    index = {"m": M, "n": N, "k": K}
    strides: dict[str, Stride] = {rows: index[columns], columns: ()}
    batch: tuple[Stride, ...] = (index[rows] + index[columns],) if batched else ()
    steps = [sizes[columns]] + ([sizes[rows] * sizes[columns]] if batched else [])
    ks: tuple[Stride, ...] = (strides["k"],) if "k" in strides else ()
    return Access(pointer, elem, strides.get("m"), strides.get("n"), ks, batch, align(elem, *steps))


def gemm(
    m: int,
    n: int,
    k: int,
    batch: int = 1,
    *,
    compute_type: str = "f16",
    order: str = "KK",
    out: str | None = None,
    accumulate: str | None = None,
    residual: bool = False,
    bias: bool = False,
    reduce: bool = False,
) -> tuple[GemmProblem, tuple[int, ...]]:
    """A dense problem and its sizes. `order` is `K` or `M` for A, then `K` or `N` for B: what is
    contiguous. `out` is the result's element, by default the operands'."""
    element = ELEMENTS[compute_type]
    memory = F32 if compute_type == "tf32" else element
    sizes = {"m": m, "n": n, "k": k}
    batched = batch > 1
    a = matrix(0, memory, *(("m", "k") if order[0] == "K" else ("k", "m")), sizes, batched)
    b = matrix(1, memory, *(("n", "k") if order[1] == "K" else ("k", "n")), sizes, batched)
    kind = "i32" if compute_type == "s8" else "f32"
    instructions: list[Instruction] = [Accumulator(kind)]
    inputs: list[Access] = []
    result = ELEMENTS[out] if out else (I32 if compute_type == "s8" else F16 if element.bits == 8 else memory)
    if residual:
        inputs.append(matrix(2, result, "m", "n", sizes, batched))
    if bias:
        nothing: tuple[Stride, ...] = (None,) if batched else ()
        inputs.append(Access(3, result, None, (), (), nothing, align(result)))
    for slot in range(len(inputs)):
        instructions.append(LoadSlot(slot, kind))
        instructions.append(Compute("add", (len(instructions) - 2, len(instructions) - 1), kind))
    output = matrix(4, result, "m", "n", sizes, batched)
    outputs: list[Store | Reduction] = [Store(output)]
    if reduce:
        spread: tuple[Stride, ...] = (M,) if batched else ()
        outputs.append(Reduction("sum", Access(5, F32, (), None, (), spread, 1)))
    last = len(instructions) - 1
    problem = GemmProblem(
        element,
        accumulate or ("s32" if compute_type == "s8" else "f32"),
        M,
        N,
        (K,),
        (B,) if batched else (),
        a,
        b,
        tuple(inputs),
        tuple(outputs),
        Arithmetic(tuple(instructions), (last,) * len(outputs)),
        dims=4,
        pointers=6,
        scalars=0,
    )
    return problem, (m, n, k, batch)
