"""Shared memory of the tiled kernels, byte for byte as CUTLASS 4.2 lays it out.

The sm90 numbers follow `sm90_compute_tile_shape_or_override` and
`sm90_get_tma_dispatch_policy` (epilogue/collective/builders/sm90_builder.inl), the storage of
`Sm90TmaWarpSpecialized`'s collective and of the `Sm90AuxLoad`, `Sm90AuxStore` and
`Sm90RowBroadcast` visitors, and the kernels' `SharedStorage`
(gemm/kernel/sm90_gemm_tma_warpspecialized_{pingpong,cooperative}.hpp).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from ucutlass.plan import Access, GemmProblem, Route, Sm80Schedule, Sm90Schedule

from ucutlass.rules.candidate import Candidate, ceil_div

BARRIER = 8
"""Bytes of an mbarrier."""

TENSOR_ALIGNMENT = 1024
"""Alignment of a 128-byte swizzled tile (`alignment_for_swizzle`)."""


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """Bytes of shared memory of a block. `stage` is one stage of A and B, `epilogue` what the
    epilogue holds besides the main loop, `barriers` pipelines and padding."""

    stage: int
    stages: int
    epilogue: int
    barriers: int

    @property
    def total(self) -> int:
        return self.stage * self.stages + self.epilogue + self.barriers


def stage_bytes(problem: GemmProblem, tile: tuple[int, int, int]) -> int:
    """Bytes of one stage: a tile of A and one of B as they lie in memory."""
    m, n, k = tile
    return (m * problem.a.elem.bytes + n * problem.b.elem.bytes) * k


def epilogue_tile(
    warps: Literal["pingpong", "cooperative"], tile: tuple[int, int, int], d_bits: int
) -> tuple[int, int]:
    """The M x N part of the tile that the epilogue handles at a time (`EpilogueTileAuto`)."""
    if warps == "cooperative":
        return min(128, tile[0]), math.gcd(32, tile[1])
    wide = 64 if d_bits == 8 and tile[1] % 64 == 0 else 32
    return min(64, tile[0]), math.gcd(wide, tile[1])


def epilogue_bytes(
    problem: GemmProblem, routes: tuple[Route, ...], tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"],
) -> tuple[int, int]:
    """Bytes of the sm90 epilogue's tensors, and the stages of its load pipeline.

    The first TMA input is CUTLASS's C, the first TMA store its D; the others are auxiliary
    loads and stores with as many stages.
    """
    count = len(problem.inputs)
    loads = [t for t, r in zip(problem.inputs, routes[:count], strict=True) if r == "tma"]
    stores = [o.access for o, r in zip(problem.outputs, routes[count:], strict=True) if r == "tma"]
    d_bits = stores[0].elem.bits if stores else 32
    tile_m, tile_n = epilogue_tile(warps, tile, d_bits)
    subtiles = (tile[0] // tile_m or 1) * (tile[1] // tile_n)
    stages_d = min(subtiles, 2)
    reuse = bool(loads and stores) and loads[0].elem.bits == d_bits and d_bits > 8
    stages_c = max(min(subtiles, 4), stages_d + 1) if reuse else min(subtiles, 4)

    def area(tensors: list[Access], stages: int) -> int:
        return sum(_round(tile_m * tile_n * t.elem.bytes * stages, 128) for t in tensors)

    total = area(loads, stages_c) + area(stores[1:] if reuse else stores, stages_d)
    rows = sum(_round(tile[1] * t.elem.bytes, 16) for t in problem.inputs if t.shape == "row")
    return total + rows, stages_c


def sm90_memory(
    problem: GemmProblem, routes: tuple[Route, ...], tile: tuple[int, int, int],
    warps: Literal["pingpong", "cooperative"], stages: int,
) -> SharedMemory:
    """Shared memory of an sm90 kernel with that many stages."""
    epilogue, stages_c = epilogue_bytes(problem, routes, tile, warps)
    order = 2 * BARRIER + (4 * BARRIER if warps == "pingpong" else 0)
    scheduler = 16
    pipelines = 2 * BARRIER * (stages + stages_c) + order + scheduler
    epilogue = _round(epilogue, TENSOR_ALIGNMENT)
    return SharedMemory(stage_bytes(problem, tile), stages, epilogue, _round(pipelines, TENSOR_ALIGNMENT))


def sm80_memory(problem: GemmProblem, tile: tuple[int, int, int], stages: int) -> SharedMemory:
    """Shared memory of a multistage kernel; its epilogue stages through the same bytes."""
    return SharedMemory(stage_bytes(problem, tile), stages, 0, 0)


def memory_of(candidate: Candidate) -> SharedMemory:
    """Shared memory of a candidate."""
    match candidate.schedule:
        case Sm90Schedule(tile, _, stages, warps, _):
            return sm90_memory(candidate.problem, candidate.routes, tile, warps, stages)
        case Sm80Schedule(tile, _, stages, _):
            return sm80_memory(candidate.problem, tile, stages)
        case schedule:
            return SharedMemory(0, 0, ceil_div(schedule.threads, 32) * schedule.rows * schedule.columns * 4, 0)


def most_stages(one: SharedMemory, capacity: int) -> int:
    """The most stages that fit, given the memory with a single one."""
    spare = capacity - one.epilogue - one.barriers
    return spare // one.stage if one.stage else 0


def _round(value: int, to: int) -> int:
    return ceil_div(value, to) * to


__all__ = [
    "SharedMemory", "epilogue_bytes", "epilogue_tile", "memory_of", "most_stages",
    "sm80_memory", "sm90_memory", "stage_bytes",
]
