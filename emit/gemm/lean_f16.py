"""f32 by wgmma in three passes of f16 (`ucutlass.emit.gemm.lean`): x = 2^e * (hi + lo * 2^-11), where e is of the whole
tensor, and the sums over k of hi * hi and of hi * lo + lo * hi (`hopper/f16x3.j2`).

A launch writes both parts of each operand to the workspace with a usual e, in the operand's own order, from where TMA
loads them: wgmma takes f16 in every order. It finds the ends of the range, too, and another one splits anew what that
e does not suit. Where the range is wide, x is the sum of three bf16, exactly, and six products of them are summed.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.gemm.lean_mainloop import SharedOperand
from ucutlass.emit.gemm.sm90_epilogue import extent
from ucutlass.kernels.gemm.plan import GemmProblem

VECTOR = 8
"""Elements that a thread splits at a time."""

ROWS = 32
"""Those along K of which a thread splits groups one after another where an operand lies across K."""

LINE = 64
"""Those of a line of 128 bytes, at which rows of parts begin: TMA's boxes are as wide (of 1944 x 2000 x 4264 an H100
took 241 us where they straddled lines)."""


@dataclass(frozen=True, slots=True)
class Parts:
    """An operand as the launches before the kernel's read it and write its parts, whose places among the host's
    tensors are `hi`, `lo` and `rest`. Extents, and strides in elements, are C++ of the entry; `padded` is a row of parts."""

    name: str
    pointer: int
    hi: int
    lo: int
    rest: int
    along_k: bool
    inner: str
    outer: str
    batches: str
    outer_stride: str
    batch_stride: str
    padded: str


def parts_of(problem: GemmProblem, a: SharedOperand, b: SharedOperand) -> tuple[Parts, Parts]:
    """Both operands, in the order of their blocks."""
    return _parts(problem, a, "M", 0), _parts(problem, b, "N", 1)


def _parts(problem: GemmProblem, operand: SharedOperand, rows: str, index: int) -> Parts:
    access = operand.access
    along_k = operand.inner == "k"
    across = access.m if rows == "M" else access.n
    batch = access.batch[0] if access.batch else None
    return Parts(
        name=operand.name,
        pointer=access.pointer,
        hi=problem.pointers + 3 * index,
        lo=problem.pointers + 3 * index + 1,
        rest=problem.pointers + 3 * index + 2,
        along_k=along_k,
        inner="K" if along_k else rows,
        outer=rows if along_k else "K",
        batches="1" if batch is None else "L",
        outer_stride=extent((across if along_k else access.k[0]) or ()),
        batch_stride="0" if batch is None else extent(batch),
        padded=f"{operand.name}_padded",
    )
