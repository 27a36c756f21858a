"""Attention's schedule in the fields of a program: a tile of rows x keys x head, blocks of keys as stages."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import Request
from ucutlass.kernels.attention.plan import AttentionProblem, AttentionSchedule
from ucutlass.kernels.violation import Finding, Violation, found_by

GROUP = 64
"""Rows of a warp group: one instruction's."""

MOST_GROUPS = 3
MOST_KEYS = 256
"""Rows of a TMA box."""

SHARED_BYTES = ARCHES["sm90a"].shared_memory

HELD = {1: 208, 2: 208, 3: 128}
"""By warp groups: the registers of a thread that scores, their narrowed halves and outcomes may take; the
kernel gives it 232, 240 or 160, and the rest is addresses, maxima and sums."""


def request_of(problem: AttentionProblem, s: AttentionSchedule) -> Request:
    """The schedule as fields."""
    return Request(tile=(GROUP * s.groups, s.keys, problem.head), stages=s.stages)


def asked(
    problem: AttentionProblem, own: AttentionSchedule, request: Request
) -> AttentionSchedule | tuple[Violation, ...]:
    """The planner's own schedule with what a request fixes, or the rules that are broken."""
    if request.given().items() <= request_of(problem, own).given().items():
        return own
    rows, keys, _ = request.tile or request_of(problem, own).tile or (GROUP, GROUP, 0)
    made = replace(own, groups=rows // GROUP, keys=keys, stages=request.stages or own.stages)
    if request.stages is None and request.tile is not None:
        made = replace(made, stages=max(2, min(own.stages, most_stages(problem, made))))
    return found_by(RULES, (problem, made, request)) or made


def held(problem: AttentionProblem, keys: int) -> int:
    """Registers of a thread: f32 scores, two of their 16-bit halves each, and outcomes, for 128 threads of
    64 rows."""
    return keys // 2 + keys // 4 + padded(problem.head_v) // 2


def padded(head: int) -> int:
    """A head's elements as wgmma takes them: whole steps of 16."""
    return -(-head // 16) * 16


def shared_bytes(p: AttentionProblem, s: AttentionSchedule) -> int:
    """The least dynamic shared memory of a block: one tile of queries, whose place the result takes
    (`emit.attention.shared_bytes` without a tile of its own)."""
    chunks, chunks_v = -(-p.head // 64), -(-p.head_v // 64)
    rows, keys = GROUP * s.groups * 128, s.keys * 128
    tile = max(chunks * rows, chunks_v * rows if p.plain and not s.split else 0)
    notes = 0 if p.packed is None else 32 + 8 * GROUP * s.groups
    return 1024 + tile + s.stages * (chunks + chunks_v) * keys + 16 * (1 + 2 * s.stages) + notes


def most_stages(p: AttentionProblem, s: AttentionSchedule) -> int:
    """Blocks of keys, and of values, that fit beside a tile of queries."""
    one = shared_bytes(p, replace(s, stages=1)) - shared_bytes(p, replace(s, stages=0))
    return max(0, (SHARED_BYTES - shared_bytes(p, replace(s, stages=0))) // one)


# --- the rules ----------------------------------------------------------------------------

Candidate = tuple[AttentionProblem, AttentionSchedule, Request]


def _tile(c: Candidate) -> Finding | None:
    problem, s, request = c
    rows, keys, head = request.tile or (GROUP * s.groups, s.keys, problem.head)
    most = 2 if problem.factor is None or problem.packed is not None else MOST_GROUPS
    if head != problem.head:
        said = f"tile {rows}x{keys}x{head}: the last extent is the head's, {problem.head} here"
        return Finding(said, f"use `tile {rows}x{keys}x{problem.head}`", ("tile",), None)
    if rows % GROUP or not 1 <= rows // GROUP <= most:
        why = " where the score has a function of its own, or sequences are packed" if most == 2 else ""
        said = f"{rows} rows: a warp group takes {GROUP}, and 1 to {most} of them share a tile{why}"
        return Finding(
            said, f"use `tile {GROUP * min(most, max(1, rows // GROUP))}x{keys}x{head}`", ("tile",), None
        )
    if keys % 16 or not 16 <= keys <= MOST_KEYS:
        best = min(MOST_KEYS, max(16, round(keys / 16) * 16))
        return Finding(
            f"blocks of {keys} keys: wgmma and TMA take multiples of 16 from 16 to {MOST_KEYS}",
            f"use `tile {rows}x{best}x{head}`",
            ("tile",),
            None,
        )
    if (registers := held(problem, keys)) > HELD[s.groups]:
        room = (HELD[s.groups] - padded(problem.head_v) // 2) * 4 // 3 // 16 * 16
        less = (rows, room) if room >= 16 else (rows - GROUP, keys)
        return Finding(
            f"{keys} keys beside a head of {problem.head_v} take {registers} registers of a thread: "
            f"{s.groups} warp groups leave {HELD[s.groups]}",
            f"use `tile {less[0]}x{less[1]}x{head}`",
            ("tile",),
            None,
        )
    return None


def _stages(c: Candidate) -> Finding | None:
    problem, s, _ = c
    most = most_stages(problem, s) if s.groups and s.keys else s.stages
    if 2 <= s.stages <= most:
        return None
    if most < 2:
        return Finding(
            f"two blocks of {s.keys} keys and values beside {GROUP * s.groups} rows take "
            f"{shared_bytes(problem, replace(s, stages=2))} bytes of shared memory of {SHARED_BYTES}",
            "use fewer keys or rows in `tile`",
            ("tile", "stages"),
            None,
        )
    return Finding(
        f"{s.stages} blocks of {s.keys} keys and values beside {GROUP * s.groups} rows take "
        f"{shared_bytes(problem, s)} bytes of shared memory: a block has {SHARED_BYTES}",
        f"use `stages {most}`",
        ("stages", "tile"),
        None,
    )


RULES = (("UC0475", _tile), ("UC0476", _stages))
"""By code (`ucutlass.codes`), in the order they are asked."""
