"""How attention runs: warp groups, keys of a block, and how many batches' tiles are visited together."""

from __future__ import annotations

import math
from dataclasses import replace

from ucutlass.ir.hardware import Arch, Device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.attention.cost import estimate
from ucutlass.kernels.attention.match import AttentionPattern
from ucutlass.kernels.attention.plan import (
    AttentionPlan,
    AttentionProblem,
    AttentionSchedule,
    is_tf32,
    splits_f32,
)
from ucutlass.kernels.attention.problem import attention_problem
from ucutlass.kernels.attention.rules import (
    MOST_PARTS,
    PROBLEM_RULES,
    SPLIT_RULES,
    AttentionCase,
    SplitKeys,
    prepares_ahead,
)
from ucutlass.kernels.attention.schedule import request_of, resolve
from ucutlass.kernels.attention.smem import most_stages
from ucutlass.kernels.attention.variants import VARIANTS
from ucutlass.kernels.planned import Note, Planned
from ucutlass.kernels.rule import broken
from ucutlass.kernels.violation import Violation, foreign_to


def plan_attention(
    pattern: AttentionPattern,
    sizes: tuple[int, ...],
    arch: Arch,
    device: Device,
    request: PartialSchedule,
    aligned: tuple[bool, ...] | None = None,
) -> Planned | tuple[Violation, ...]:
    """The kernel of attention for these extents, or why there is none. Raises Refused."""
    problem = attention_problem(pattern, sizes, aligned)
    foreign = foreign_to(request, VARIANTS, "attention")
    unserved = broken(PROBLEM_RULES, AttentionCase(arch, problem, sizes))
    if foreign or unserved:
        return (foreign, *unserved) if foreign else unserved
    rows, keys = (math.prod(sizes[i] for i in mode) for mode in (problem.scores.m, problem.scores.n))
    schedule = resolve(problem, schedule_of(problem, rows), request)
    if isinstance(schedule, tuple):
        return schedule
    parts = _fixed_parts(problem, keys, request) or _parts(problem, schedule, sizes, device)
    if isinstance(parts, Violation):
        return (parts,)
    ahead = is_tf32(problem) and prepares_ahead(problem, schedule)
    schedule = replace(schedule, split=parts > 1, across=_across(problem), ahead=ahead)
    plan = AttentionPlan(arch.name, problem, schedule)
    launch = (_section(problem, sizes, keys, device), parts)
    price = estimate(problem, schedule, sizes, arch, device, launch)
    full = replace(request_of(problem, schedule), split_k=parts)
    return Planned(plan, launch, sizes, full, device, price, tuple(_notes(problem, schedule)))


def schedule_of(problem: AttentionProblem, rows: int) -> AttentionSchedule:
    """Warp groups and keys that fit registers: 160 of a thread where three groups share a tile, 240 for
    fewer; scores take half of `keys`, the narrowed ones a quarter, outcomes half of the head."""
    head = max(problem.head, problem.head_v)
    fits = _FITS_F32 if splits_f32(problem) else _FITS_TF32 if is_tf32(problem) else _FITS
    groups, keys = next(fit for limit, fit in fits if head <= limit)
    if is_tf32(problem):
        own = AttentionSchedule(min(groups, -(-rows // 64)), keys, 2)
        return replace(own, stages=most_stages(problem, own))
    if problem.factor is None or problem.packed is not None:
        groups = min(groups, 2)  # the score's function needs registers too; so do bounds of each row
    elif problem.above and rows <= SHORT:
        groups = min(groups, 2)
    groups = min(groups, -(-rows // 64))
    return AttentionSchedule(groups, keys, 3 if groups == 1 and head <= DEEP else 2)


DEEP = 128
"""Heads of which three blocks of keys and values fit beside one warp group: few rows wait for memory."""


SHORT = 1024
"""Rows up to which masked tiles of 192 waste more at their ends than they gain (on an H200, for heads of 64:
214 us against 200; of 2,048 rows 321 against 353)."""


_FITS: tuple[tuple[int, tuple[int, int]], ...] = (
    (64, (3, 128)),
    (96, (2, 128)),
    (128, (2, 128)),
    (192, (2, 112)),
    (256, (2, 64)),
)
"""By the wider head: warp groups, and the keys of a block."""

_FITS_F32: tuple[tuple[int, tuple[int, int]], ...] = ((64, (2, 128)), (128, (2, 64)), (256, (2, 32)))

_FITS_TF32: tuple[tuple[int, tuple[int, int]], ...] = ((128, (2, 128)), (256, (2, 64)))


def _across(problem: AttentionProblem) -> bool:
    """Whether a tile's first scores go beside the last outcomes of the one before. Of short heads under masks
    that cut most tiles short that is faster (on an H200 by 3 to 6 % for heads of 64 under a causal mask), of
    others slower (by 1 to 8 %)."""
    whole = problem.packed is None and not is_tf32(problem)
    return max(problem.head, problem.head_v) <= 64 and bool(problem.above) and whole


def _parts(
    problem: AttentionProblem, schedule: AttentionSchedule, sizes: tuple[int, ...], device: Device
) -> int:
    """Into how many parts a tile's keys are split: so many that thread blocks have the least to do, each
    counted as blocks of keys, where that is well below what it is without; 1 where tiles fill the device.
    What a part costs beside its blocks, and the second launch, are measured in blocks."""
    if problem.packed is not None:
        return 1
    rows, keys = (math.prod(sizes[i] for i in mode) for mode in (problem.scores.m, problem.scores.n))
    tiles = math.prod(sizes[i] for mode in problem.scores.batch for i in mode)
    tiles *= -(-rows // (64 * schedule.groups))
    blocks = -(-keys // schedule.keys)
    if tiles >= device.sms or blocks < 4:
        return 1

    def cost(parts: int) -> float:
        launch = COMBINED if parts > 1 else 0.0
        return -(-tiles * parts // device.sms) * (-(-blocks // parts) + 1.0) + launch

    best = min(range(1, min(blocks // 2, MOST_PARTS) + 1), key=cost)
    return best if cost(best) < 0.9 * cost(1) else 1


def _fixed_parts(problem: AttentionProblem, keys: int, request: PartialSchedule) -> int | Violation | None:
    """The parts of the keys that a request fixes; None where it leaves them open."""
    parts = request.split_k
    if parts is None:
        return None
    violations = broken(SPLIT_RULES, SplitKeys(problem, keys, parts))
    if violations:
        return violations[0]
    assert isinstance(parts, int)
    return parts


COMBINED = 4.0
"""Blocks of keys that a thread block would take in the time of the launch that combines parts."""


def _section(problem: AttentionProblem, sizes: tuple[int, ...], keys: int, device: Device) -> int:
    """Batches whose tiles are visited together, longest first: as many as keep their keys in L2, so many
    that thread blocks end together, and, of many, whole halves of a round."""
    bytes_ = problem.compute_type.bytes * keys * (problem.head + problem.head_v)
    bytes_ *= 2 if splits_f32(problem) else 1
    shared = 1
    for mode, stride in zip(problem.scores.batch, problem.scores.b.batch, strict=True):
        shared *= math.prod(sizes[i] for i in mode) if stride is None else 1
    batches, half = max(32, (32 * 2**20 // bytes_) * shared), device.sms // 2
    return batches if batches < half else batches // half * half


# --- notes --------------------------------------------------------------------------


def _notes(problem: AttentionProblem, schedule: AttentionSchedule) -> list[Note]:
    notes = [
        Note(
            "",
            f"tile {64 * schedule.groups}x{schedule.keys}",
            f"{schedule.groups} warp groups of 64 rows that take "
            f"turns; blocks of {schedule.keys} keys fit their registers beside a head of {problem.head_v}",
        )
    ]
    if schedule.split:
        notes.append(
            Note("", "keys are split", "tiles of queries do not fill the device; a second launch combines")
        )
    if problem.packed is not None:
        notes.append(Note("", "blocks of keys are skipped", "rows meet their own sequence's keys alone"))
    elif problem.above or problem.below:
        notes.append(Note("", "blocks of keys are skipped", "the mask is a window of keys around a row"))
    if problem.factor is None:
        notes.append(
            Note(
                "", "scores one by one", "the score's function is more than a window around a positive factor"
            )
        )
    return notes
