"""The plan of attention: softmax over keys of scores, times values, in one launch.

A problem of M rows of queries, N keys, a head of `head` elements and values of `head_v`, over batch modes:

    s[m, n] = sum over the head of q[m, :] * k[n, :]
    o[m, :] = sum over n of softmax over n of f(s[m, n]) * v[n, :]

The launch's knobs, in order: the bits of the scale (a double, times log2(e)), the most and the least
that a key's position may exceed a row's (a window; +-2**29 for none), and how many batches' tiles are
visited together.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.elements import Element
from ucutlass.plan import GemmProblem

NO_WINDOW = 2**29
"""A bound that leaves every key in."""

MAX_TMA_BATCHES = 3
"""Batch modes of one tensor: TMA addresses five dimensions, of which the head and the rows are two."""


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """What is computed.

    `scores` is the first product seen as a GEMM over (rows, keys): its operands are q and k, its
    arithmetic the score's function with one f32 output. `results` is the second one over (rows, head of
    the values): operand b is v. Both have the same batch modes. `folded`: the score's function is a
    positive factor, which is a knob, and `scores.arithmetic` is not run. `above`, `below`: keys are
    bounded by a row's position from above, from below. `plain`: the result is stored as it is.
    """

    lane: Element
    head: int
    head_v: int
    scores: GemmProblem
    results: GemmProblem
    folded: bool
    above: bool
    below: bool
    plain: bool
    dims: int
    pointers: int
    scalars: int


@dataclass(frozen=True, slots=True)
class AttentionSchedule:
    """`groups` warp groups of 64 rows; `keys` in a block; `stages` blocks of keys, and of values, in flight."""

    groups: int
    keys: int
    stages: int


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Everything that shapes the emitted source."""

    arch: str
    problem: AttentionProblem
    schedule: AttentionSchedule
