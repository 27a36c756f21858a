"""Shared memory of the products' Hopper kernel: stages of the main loop, buffers of the epilogue."""

from __future__ import annotations

from dataclasses import replace

from ucutlass.ir.hardware import ARCHES
from ucutlass.kernels.access import Access
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmProblem, WgmmaSchedule

SHARED_BYTES = ARCHES["sm90a"].shared_memory
"""That a block may ask for."""

BARRIERS = 1024
"""Bytes of it beside tiles: barriers, rounded up to the tiles' alignment."""

MOST_STAGES = 12


def promotes(problem: GemmProblem) -> bool:
    """Whether each k tile's fp8 sum is added to an f32 one, which takes a second set of registers."""
    return problem.compute_type.name in ("e4m3", "e5m2") and problem.accumulate != "fast"


def in_boxes(access: Access) -> bool:
    """Whether TMA can store a result: its rows or its columns are made of 16 aligned bytes."""
    return () in (access.m, access.n) and access.align * access.elem.bytes == 16


def stored_in_boxes(problem: GroupedGemmProblem, access: Access) -> bool:
    """Whether TMA stores this result. Rows of ragged groups are told apart in rows alone."""
    ragged = problem.ragged is not None and problem.ragged.mode == "m"
    return in_boxes(access) and not (ragged and access.n != ())


def stage_bytes(problem: GroupedGemmProblem, schedule: WgmmaSchedule) -> int:
    """Returns the bytes of one stage of the main loop."""
    tile_m, tile_n, tile_k = schedule.tile
    bits = tile_m * problem.gemm.a.elem.bits + tile_n * problem.products * problem.compute_type.bits
    return bits * tile_k // 8


def exchange_bytes(problem: GroupedGemmProblem, schedule: WgmmaSchedule) -> int:
    """Returns the bytes through which warp groups and blocks give their sums to others that have the same tile."""
    tile_m, tile_n, _ = schedule.tile
    copies = (schedule.warps == "sliced") + (schedule.parts > 1)
    return 4 * tile_m * tile_n * problem.products * copies


def steps(problem: GroupedGemmProblem, schedule: WgmmaSchedule) -> tuple[int, int]:
    """The columns of a step of the epilogue and the buffers of such steps, as many as shared memory holds.

    A tile's steps are a multiple of the buffers, so that each step has its own. Raises ValueError where
    none fits.
    """
    sizes = [o.access.elem.bytes for o in problem.gemm.outputs if stored_in_boxes(problem, o.access)]
    tile_m, tile_n, _ = schedule.tile
    atoms = tile_m // (128 if schedule.warps == "cooperative" else 64)
    main = schedule.stages * stage_bytes(problem, schedule) + exchange_bytes(problem, schedule)
    for columns in (64, 32):
        if tile_n % columns or any(columns * size > 128 for size in sizes):
            continue
        for buffers in (2, 1) if schedule.parts == 1 else (1,):
            bytes_ = 2 * buffers * 64 * columns * sum(sizes)
            if atoms * (tile_n // columns) % buffers == 0 and main + bytes_ + BARRIERS <= SHARED_BYTES:
                return columns, buffers
    raise ValueError(f"{schedule.stages} stages of {schedule.tile} leave no shared memory for the epilogue")


def most_stages(problem: GroupedGemmProblem, schedule: WgmmaSchedule) -> int:
    """The most stages that leave room for the epilogue; 0 where two do not."""
    most = 0
    for stages in range(2, MOST_STAGES + 1):
        try:
            steps(problem, replace(schedule, stages=stages))
        except ValueError:
            break
        most = stages
    return most
