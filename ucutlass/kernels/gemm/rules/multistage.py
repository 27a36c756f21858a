"""Rules on the multistage kernel's tile, warps and registers (emit/gemm/sm80.py)."""

from __future__ import annotations

from ucutlass.kernels.gemm.plan import Sm80Schedule
from ucutlass.kernels.gemm.rules.tiles import BYTES_K, MAX_TILE, accumulators_per_thread, tile_text
from ucutlass.kernels.gemm.schedule import ACCUMULATORS, GemmCandidate, changed, nearest
from ucutlass.kernels.rule import Breach

SM_REGISTERS = 65536

FALLBACK = 128
"""Tile side that is legal for every compute type."""

WARPS = (1, 2, 4, 8, 16, 32)
"""Warps of a block."""


def _schedule(c: GemmCandidate) -> Sm80Schedule:
    assert isinstance(c.schedule, Sm80Schedule)
    return c.schedule


def warp_steps(c: GemmCandidate) -> tuple[int, int]:
    """Warp tiles come in multiples of this: two 16 x 8 instructions, or 4 x 8 lanes of FFMA."""
    return (16, 32) if _schedule(c).math == "simt" else (16, 16)


def k_step(c: GemmCandidate) -> int:
    """Tile K comes in multiples of this many elements: two steps of mma.sync, or of FFMA."""
    return 16 if _schedule(c).math == "simt" else 2 * BYTES_K // c.problem.compute_type.bytes


def tile_k(c: GemmCandidate) -> Breach | None:
    s = _schedule(c)
    k, step = s.tile[2], k_step(c)
    if k % step == 0 and 0 < k <= MAX_TILE:
        return None
    best = nearest(k, tuple(range(step, MAX_TILE + 1, step)))
    return Breach(
        f"multistage tile K {k} is not a multiple of {step} up to {MAX_TILE}: its pipeline takes two steps "
        f"of {step // 2} elements",
        f"use tile K {best}",
        ("tile",),
        changed(c, tile=(*s.tile[:2], best), stages=None),
    )


def warp_tile(c: GemmCandidate) -> Breach | None:
    s = _schedule(c)
    steps = warp_steps(c)
    if all(
        w >= step and w % step == 0 and side % w == 0
        for w, side, step in zip(s.warp_tile, s.tile, steps, strict=False)
    ):
        return None
    warp, tile = _whole_warps(s.warp_tile, s.tile, steps)
    fix = changed(c, warp_tile=warp) if tile == s.tile else changed(c, tile=tile, warp_tile=warp, stages=None)
    text = f"`warp_tile {warp[0]}x{warp[1]}`" + ("" if tile == s.tile else f" in tile {tile_text(tile)}")
    return Breach(
        f"warp tile {s.warp_tile[0]}x{s.warp_tile[1]} in tile {s.tile[0]}x{s.tile[1]}: warp tiles are "
        f"multiples of {steps[0]}x{steps[1]} that divide the tile",
        f"use {text}",
        ("warp_tile", "tile"),
        fix,
    )


def _whole_warps(
    warp: tuple[int, int], tile: tuple[int, int, int], steps: tuple[int, int]
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """The nearest warp tile that divides the tile, and the tile brought to whole steps if none does."""
    sides = [
        side if side % step == 0 else max(step, side // step * step)
        for side, step in zip(tile, steps, strict=False)
    ]
    sides_ = [
        nearest(w, tuple(d for d in range(step, side + 1, step) if side % d == 0))
        for w, side, step in zip(warp, sides, steps, strict=True)
    ]
    return (sides_[0], sides_[1]), (sides[0], sides[1], tile[2])


def warps(c: GemmCandidate) -> Breach | None:
    s = _schedule(c)
    (m, n), (rows, columns, _) = s.warp_tile, s.tile
    if rows % m or columns % n:
        return None
    warps = (rows // m) * (columns // n)
    if warps in WARPS:
        return None
    return Breach(
        f"warp tile {m}x{n} in a tile of {rows}x{columns} makes {warps} warps: "
        f"a power of two up to {WARPS[-1]} is needed",
        "use a tile of a power of two of warp tiles",
        ("warp_tile", "tile"),
        changed(
            c,
            tile=(m * nearest(rows // m, (1, 2, 4)), n * nearest(columns // n, (1, 2, 4)), s.tile[2]),
            stages=None,
        ),
    )


def accumulators_fit(c: GemmCandidate) -> Breach | None:
    s, held = _schedule(c), accumulators_per_thread(c)
    threads = 32 * (s.tile[0] // s.warp_tile[0]) * (s.tile[1] // s.warp_tile[1])
    limit = min(ACCUMULATORS[s.math], SM_REGISTERS // max(32, threads) // 2)
    if held <= limit:
        return None
    m, n = s.warp_tile
    tile = tuple(min(side, FALLBACK) for side in s.tile[:2])
    half = (m // 2, n) if m >= n else (m, n // 2)
    return Breach(
        f"a warp tile of {m}x{n} in {threads} threads is {held} accumulators each; beyond {limit} they spill",
        "use a smaller tile or warp tile",
        ("warp_tile", "tile"),
        changed(c, warp_tile=half)
        if _halves(c, s, half)
        else changed(c, tile=(*tile, s.tile[2]), warp_tile=None, stages=None),
    )


def _halves(c: GemmCandidate, s: Sm80Schedule, warp: tuple[int, int]) -> bool:
    """Whether a smaller warp tile keeps the rules and the registers of a block."""
    steps = warp_steps(c)
    warps = (s.tile[0] // warp[0]) * (s.tile[1] // warp[1])
    held = warp[0] * warp[1] // 32
    return (
        all(w % step == 0 for w, step in zip(warp, steps, strict=True))
        and held * 2 * 32 * warps <= SM_REGISTERS
    )
