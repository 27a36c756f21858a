"""The dynamic shared memory of attention's thread blocks: tiles of queries, stages of keys and values,
barriers, notes of packed sequences."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.attention.plan import (
    GROUP,
    AttentionProblem,
    AttentionSchedule,
    columns_at_once,
    is_tf32,
)

SHARED_BYTES = ARCHES["sm90a"].shared_memory
"""That a block may ask for."""


def stage_bytes(p: AttentionProblem, s: AttentionSchedule) -> int:
    """Returns the bytes of a block of keys and one of values, in chunks of 64 elements of a head; in TF32, of
    two boxes in rows of 128 bytes, of keys or of columns of values."""
    if is_tf32(p):
        return 2 * 128 * max(s.keys, columns_at_once(p))
    return (-(-p.head // 64) + -(-p.head_v // 64)) * s.keys * 128


def shared_bytes(p: AttentionProblem, s: AttentionSchedule, queries: int = 0) -> int:
    """Returns the bytes with so many stages of queries; 0: one stage, in which the result is staged too."""
    if is_tf32(p):
        boxes = -(-p.head // 32) * GROUP * s.groups * 128
        return 1024 + boxes + s.stages * stage_bytes(p, s) + 16 * (1 + s.stages)
    chunks, chunks_v = -(-p.head // 64), -(-p.head_v // 64)
    rows = GROUP * s.groups * 128
    q, o = chunks * rows, chunks_v * rows if p.plain and not s.split else 0
    tiles = queries * q + o if queries else max(q, o)
    notes = 0 if p.packed is None else max(1, queries) * (32 + 8 * GROUP * s.groups)
    barriers = 16 * (max(1, queries) + 2 * s.stages)
    return 1024 + tiles + s.stages * stage_bytes(p, s) + barriers + notes


def query_stages(p: AttentionProblem, s: AttentionSchedule) -> int:
    """Returns the stages of queries: two where shared memory allows, so that a tile's queries are loaded
    ahead; 0 where the result is staged in the shared memory of the only stage."""
    return next((n for n in (2, 1) if shared_bytes(p, s, n) <= SHARED_BYTES), 0)


def most_stages(p: AttentionProblem, s: AttentionSchedule) -> int:
    """Returns the blocks of keys, and of values, that fit beside a tile of queries."""
    stage = shared_bytes(p, replace(s, stages=1)) - shared_bytes(p, replace(s, stages=0))
    return max(0, (SHARED_BYTES - shared_bytes(p, replace(s, stages=0))) // stage)
