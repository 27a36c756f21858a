"""f32 by wgmma in three tf32 passes (`ucutlass.emit.gemm.lean`): x = big + small, each a tf32, and the sum over k
of small * big + big * small + big * big.

TMA rounds what it loads to tf32, so that big is loaded from the operand itself. A launch before the kernel's
writes x - big to the workspace, from where TMA loads small. An operand that is contiguous along its rows is turned:
the launch copies it there too, contiguous along K.

Where A is split in registers, the launch writes both parts of B alone: what is not finite keeps its place in one of
them, beside ones in the other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ucutlass.emit.gemm.lean_mainloop import SMALL, SharedOperand
from ucutlass.emit.gemm.sm90_epilogue import extent
from ucutlass.kernels.gemm.plan import GemmProblem

BLOCKS = 256
"""Thread blocks that split an operand. Each tells in a byte whether it met what is not finite: a warp reads
the bytes of both operands at once, 16 a lane."""

VECTOR = 4
"""Elements that a thread splits at a time; rows of small parts are padded to it."""

GROUP = 8
"""Those of B where A is split in registers: what a wgmma takes along K."""


@dataclass(frozen=True, slots=True)
class Split:
    """An operand as the launch before the kernel's reads and writes it. `small` is the place of the small
    parts among the host's tensors, `big` that of the others where they are `copied`; rows, batches, and strides in elements
    are C++ of the entry. `row_stride` of a turned operand lies between its lines along the rows. Of an `interleaved` one each
    group of 8 along K has the even ones first, as a thread reads A that is contiguous along its rows."""

    name: str
    pointer: int
    small: int
    rows: str
    batches: str
    row_stride: str
    batch_stride: str
    turned: bool
    copied: bool
    interleaved: bool
    big: int

    @property
    def offset(self) -> str:
        return f"{self.name}{SMALL}_offset"


def splits(problem: GemmProblem, a: SharedOperand, b: SharedOperand) -> tuple[Split, ...]:
    """Both operands, in the order of their blocks."""
    parts = []
    for i, (operand, rows) in enumerate(((a, "M"), (b, "N"))):
        access = operand.access
        across = access.m if rows == "M" else access.n
        turned = access.k[0] != ()
        batch = access.batch[0] if access.batch else None
        parts.append(
            Split(
                name=operand.name,
                pointer=access.pointer,
                small=problem.pointers + i,
                rows=rows,
                batches="1" if batch is None else "L",
                row_stride=extent((access.k[0] if turned else across) or ()),
                batch_stride="0" if batch is None else extent(batch),
                turned=turned,
                copied=turned,
                interleaved=False,
                big=problem.pointers + 2 + i,
            )
        )
    return tuple(parts)


def split_b(problem: GemmProblem, a: SharedOperand, b: SharedOperand) -> tuple[Split]:
    """B alone, where A is split in registers."""
    _, split = splits(problem, a, b)
    small, interleaved = problem.pointers, a.inner == "mn"
    return (replace(split, small=small, big=small + 1, copied=True, interleaved=interleaved),)
