"""The plan of attention: softmax over keys of scores, times values, in one launch.

A problem of M rows of queries, N keys, a head of `head` elements and values of `head_v`, over batch modes:

    s[m, n] = sum over the head of q[m, :] * k[n, :]
    o[m, :] = sum over n of softmax over n of f(s[m, n]) * v[n, :]

The launch has one knob: how many batches' tiles are visited together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from ucutlass.elements import Element
from ucutlass.extents import Extent
from ucutlass.plan import GemmProblem


@dataclass(frozen=True, slots=True)
class ExtentNumber:
    """An extent as a number; in plans the dimension "3" is extent 3."""

    extent: Extent


@dataclass(frozen=True, slots=True)
class Call:
    """A function of `ucutlass.functions` of numbers."""

    function: str
    args: tuple[Number, ...]


Number: TypeAlias = "float | ExtentNumber | Call"
"""What a launch computes once, in double."""

MAX_TMA_BATCHES = 3
"""Batch modes of one tensor: TMA addresses five dimensions, of which the head and the rows are two."""


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """What is computed.

    `scores` is the first product seen as a GEMM over (rows, keys): its operands are q and k, its
    arithmetic the score's function with one f32 output. `results` is the second one over (rows, head of
    the values): operand b is v. Both have the same batch modes. `factor`: the score's function is this
    positive number, and `scores.arithmetic` is not run; None: it is. `above`, `below`: a key's position less
    a row's is at most each of these, at least each of those; in them the dimension "3" is extent 3.
    `plain`: the result is stored as it is.
    """

    lane: Element
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


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """`groups` warp groups of 64 rows; `keys` of a block; `stages` blocks of keys, and values, in flight."""

    groups: int
    keys: int
    stages: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Everything that shapes the emitted source."""

    arch: str
    problem: AttentionProblem
    schedule: AttentionSchedule
