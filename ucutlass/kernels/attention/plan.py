"""The plan of attention: softmax over keys of scores, times values, in one launch.

A problem of M rows of queries, N keys, a head of `head` elements and values of `head_v`, over batch modes:

    s[m, n] = sum over the head of q[m, :] * k[n, :]
    o[m, :] = sum over n of softmax over n of f(s[m, n]) * v[n, :]

The launch has two parameters: how many batches' tiles are visited together, and into how many parts the keys
of a tile are split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from ucutlass.ir.elements import Element
from ucutlass.ir.extents import Extent
from ucutlass.kernels.arithmetic import CoordinateValue
from ucutlass.kernels.gemm.plan import GemmProblem


@dataclass(frozen=True, slots=True)
class ExtentNumber:
    """An extent as a number; in plans the dimension "3" is extent 3."""

    extent: Extent


@dataclass(frozen=True, slots=True)
class ScoreCall:
    """A function of `ucutlass.ir.functions` of numbers."""

    function: str
    args: tuple[Number, ...]


Number: TypeAlias = float | ExtentNumber | ScoreCall
"""What a launch computes once, in double."""

GROUP = 64
"""Rows of a warp group: one instruction's."""

MAX_TMA_BATCHES = 3
"""Batch modes of one tensor: TMA addresses five dimensions, of which the head and the rows are two."""


@dataclass(frozen=True, slots=True)
class Offsets:
    """Where packed sequences start: pointer, element and number of entries, one more than sequences."""

    pointer: int
    elem: Element
    count: Extent


@dataclass(frozen=True, slots=True)
class Relative:
    """A constant, and for each (side, after, n): n times entry e + after of the offsets of side "q" or "k",
    where e is the row's sequence."""

    constant: Extent
    starts: tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True)
class Packed:
    """Rows and keys are tokens of sequences one after another; a row meets the keys of its own sequence, of
    which the position less the row's is at most each of `above`, at least each of `below`."""

    q: Offsets
    k: Offsets
    above: tuple[Relative, ...]
    below: tuple[Relative, ...]


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """What is computed.

    `scores` is the first product seen as a GEMM over (rows, keys): its operands are q and k, its
    arithmetic the score's function with one f32 output. `results` is the second one over (rows, head of
    the values): operand b is v. Both have the same batch modes. `factor`: the score's function is this
    positive number, and `scores.arithmetic` is not run; None: it is. `above`, `below`: a key's position less
    a row's is at most each of these, at least each of those; in them the dimension "3" is extent 3.
    `query_position` says where the row's position is found among the modes; None: it is the row.
    `plain`: the result is stored as it is.
    """

    compute_type: Element
    head: int
    head_v: int
    scores: GemmProblem
    results: GemmProblem
    factor: Number | None
    above: tuple[Extent, ...]
    below: tuple[Extent, ...]
    plain: bool
    dims: int
    pointers: int
    scalars: int
    query_position: CoordinateValue | None = None
    packed: Packed | None = None


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """`groups` warp groups of 64 rows; `keys` of a block; `stages` blocks of keys, and values, in flight.
    `split`: thread blocks share a tile's keys, and a second launch combines what they found. `across`: a
    tile's first scores are made beside the last outcomes of the one before. `ahead`: of TF32, a stage's
    fragments are prepared while the stage before is multiplied."""

    groups: int
    keys: int
    stages: int
    split: bool = False
    across: bool = False
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Everything that shapes the emitted source."""

    emitter: ClassVar[str] = "ucutlass.emit.attention.emitter"
    launch_parameters: ClassVar[tuple[str, ...]] = ("section", "parts")

    arch: str
    problem: AttentionProblem
    schedule: AttentionSchedule


def padded(head: int) -> int:
    """A head's elements as wgmma takes them: whole steps of 16."""
    return -(-head // 16) * 16


TF32_TYPES = ("tf32", "f32")
"""Compute types of the kernel of TF32, whose operands are f32 in memory."""


def is_tf32(p: AttentionProblem) -> bool:
    """Whether the kernel of TF32 serves the problem."""
    return p.compute_type.name in TF32_TYPES


def splits_f32(p: AttentionProblem) -> bool:
    """Whether products take three passes, over two parts of each operand."""
    return p.compute_type.name == "f32"


def columns_at_once(p: AttentionProblem) -> int:
    """Columns of the result that the kernel of TF32 multiplies at a time: up to 64, in pieces of equal width."""
    pieces = -(-p.head_v // 64)
    return -(-p.head_v // pieces // 8) * 8
