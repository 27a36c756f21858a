"""A convolution's schedule in the fields of a program: `warps` is the kernel, the rest that kernel's own."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from ucutlass.ir.schedule import RASTERS, Fold, PartialSchedule, Warps
from ucutlass.kernels.convolution.cost_register_tile import OCTET
from ucutlass.kernels.convolution.plan import (
    ConvolutionSchedule,
    DepthwiseWgradSchedule,
    DirectSchedule,
    Im2colSchedule,
    RegisterTileSchedule,
)
from ucutlass.kernels.convolution.plan_depthwise_wgrad import tile_columns
from ucutlass.kernels.convolution.rules import (
    DEPTHWISE_WGRAD_RULES,
    DIRECT_RULES,
    GATHER_RULES,
    GEMM_RULES,
    GROUPS,
    IM2COL_LAUNCH_RULES,
    IM2COL_RULES,
    MOST_SUMS,
    REGISTER_TILE_RULES,
    WGRAD_RULES,
    ConvolutionCandidate,
    ScheduleBounds,
    most_stages,
    multiplied,
    repeats,
)
from ucutlass.kernels.convolution.schedule_im2col import MOST_BLOCKS
from ucutlass.kernels.convolution.variants import VARIANTS
from ucutlass.kernels.gemm.plan import Sm80Schedule
from ucutlass.kernels.gemm.schedule import RASTER_WORD, warp_tile
from ucutlass.kernels.gemm.smem import stage_bytes
from ucutlass.kernels.rule import broken
from ucutlass.kernels.variant import served
from ucutlass.kernels.violation import Violation

SWIZZLE = 4
"""Tiles side by side where the schedule says nothing."""

QUAD = 4
"""Columns of a register tile that the field `columns` counts as one where threads multiply."""

SM80_STAGES = 4
"""As many as the planner takes at most by itself."""

Launched: TypeAlias = "tuple[ConvolutionSchedule, tuple[int, ...]]"
"""A schedule and the launch parameters: raster, swizzle, splits."""


def request_of(s: ConvolutionSchedule, launch: tuple[int, ...]) -> PartialSchedule:
    """The schedule as fields. One stage, of a sum of one step, is no choice."""
    raster, swizzle, splits = launch
    word = RASTER_WORD[raster]
    match s:
        case DirectSchedule(width, rows, _, _, threads, items):
            lines = items or None
            return PartialSchedule(warps="direct", vector=width, rows=rows, items=lines, threads=threads)
        case DepthwiseWgradSchedule(width, rows, _, threads):
            return PartialSchedule(warps="direct", vector=width, rows=rows, threads=threads)
        case RegisterTileSchedule(rows, columns, threads):
            vectors = columns // (OCTET if s.tensor else QUAD)
            return PartialSchedule(warps="direct", rows=rows, columns=vectors, threads=threads)
        case Sm80Schedule(tile, warp, stages, math_):
            return PartialSchedule(
                warps="multistage",
                tile=tile,
                warp_tile=warp,
                stages=stages,
                split_k=splits,
                raster=word,
                math=None if math_ == "tensor" else math_,
                swizzle=swizzle,
            )
        case Im2colSchedule(tile, _, stages, _, blocks, _, split_k, math_):
            return PartialSchedule(
                warps="cooperative",
                tile=tile,
                stages=stages if stages > 1 else None,
                fold="yes" if s.fold else "rows" if s.halo else "groups" if s.joined else None,
                blocks=blocks,
                math=None if math_ == "tensor" else math_,
                split_k=split_k if split_k > 1 else None,
                raster=word,
                swizzle=swizzle,
            )
    fold: Fold | None = "groups" if s.joined else None
    math = None if s.math == "tensor" else s.math
    return PartialSchedule(warps="cooperative", fold=fold, math=math, raster=word, swizzle=swizzle)


def resolve(
    bounds: ScheduleBounds, own: ConvolutionSchedule, splits: int, request: PartialSchedule
) -> Launched | tuple[Violation, ...]:
    """The planner's own schedule of the kernel with what a request fixes, or the rules that are broken."""
    usual = (RASTERS["heuristic"], SWIZZLE, splits)
    if request.fixed().items() <= request_of(own, usual).fixed().items():
        return own, usual
    launch = (RASTERS[request.raster or "heuristic"], request.swizzle or SWIZZLE, splits)
    match own:
        case DirectSchedule():
            direct = _direct(bounds, own, request)
            return broken(DIRECT_RULES, ConvolutionCandidate(bounds, own, direct, launch)) or (direct, launch)
        case DepthwiseWgradSchedule():
            gradient = replace(
                own,
                width=request.vector or own.width,
                rows=request.rows or own.rows,
                threads=request.threads or own.threads,
            )
            if own.columns:
                columns = tile_columns(bounds.problem, bounds.sizes, gradient, bounds.device)
                gradient = replace(gradient, columns=columns)
            sums = ConvolutionCandidate(bounds, own, gradient, launch)
            return broken(DEPTHWISE_WGRAD_RULES, sums) or (gradient, launch)
        case RegisterTileSchedule():
            vector = OCTET if own.tensor else QUAD
            tile = replace(
                own,
                rows=request.rows or own.rows,
                columns=vector * request.columns if request.columns else own.columns,
                threads=request.threads or own.threads,
            )
            candidate = ConvolutionCandidate(bounds, own, tile, launch)
            return broken(REGISTER_TILE_RULES, candidate) or (tile, launch)
        case Im2colSchedule():
            im2col_ = ConvolutionCandidate(bounds, own, _im2col(bounds, own, request), launch)
            violations = broken(IM2COL_RULES, im2col_) or broken(IM2COL_LAUNCH_RULES, im2col_)
            return violations or (im2col_.schedule, launch)
        case Sm80Schedule():
            parts = request.split_k if isinstance(request.split_k, int) else splits
            launch = (*launch[:2], parts)
            gather = ConvolutionCandidate(bounds, own, _gather(bounds, own, request), launch)
            violations = broken(GEMM_RULES, gather) or broken(GATHER_RULES, gather)
            return violations or (gather.schedule, launch)
    return broken(WGRAD_RULES, request) or (own, launch)


def chosen_word(request: PartialSchedule, direct: bool) -> Warps | None:
    """The kernel that a request means, by its word: what it says, or the one kernel that has its fields; None
    where the planner chooses, among the tiled ones or, where there is no tile to share, the `direct` one. Parts of a
    sum alone are the multistage kernel's: the one of TMA and wgmma shares sums where its word stands beside them."""
    if request.warps is None and request.math is not None:
        return "cooperative" if request.math in ("f16x3", "f16") else "multistage"
    if request.split_k is not None and request.warps is None:
        return "multistage"
    among = served(request, VARIANTS)
    names = {variant.name for variant in among}
    undecided = "direct" in names if direct else {"im2col", "gather"} <= names
    return request.warps or (None if undecided else among[0].words[0])


# --- what follows from what is fixed ------------------------------------------------------


def _direct(bounds: ScheduleBounds, own: DirectSchedule, r: PartialSchedule) -> DirectSchedule:
    threads = r.threads or own.threads
    if own.innermost:
        # The window lies along the neighbours, so that these are the repeats; one by one they stay so.
        rows = r.rows or (r.vector if r.vector and own.width > 1 else own.rows)
        width = r.vector or (rows if own.width > 1 else 1)
        wide = own.wide and width == own.width
        items = r.items or min(own.items, MOST_SUMS // rows)
        return replace(own, width=width, rows=rows, threads=threads, items=items, wide=wide)
    width = r.vector or own.width
    rows = r.rows or (own.rows if repeats(bounds.problem, width) else 1)
    taps = bounds.taps(rows) if rows > 1 else 0
    items = r.items or (own.items if taps else 0)
    return replace(own, width=width, rows=rows, taps=taps, threads=threads, items=items)


def _im2col(bounds: ScheduleBounds, own: Im2colSchedule, r: PartialSchedule) -> Im2colSchedule:
    tile = r.tile or own.tile
    groups = own.groups if tile[0] == own.tile[0] else GROUPS.get(tile[0], 1)
    split_k = r.split_k if isinstance(r.split_k, int) else own.split_k
    if own.halo:
        most = most_stages(bounds, own, tile, groups, 1, split_k)
        return replace(
            own, tile=tile, groups=groups, blocks=r.blocks or 1, stages=r.stages or most, split_k=split_k
        )
    held = {b: most_stages(bounds, own, tile, groups, b, split_k) for b in range(1, MOST_BLOCKS + 1)}
    fits = [b for b in (*range(own.blocks, 0, -1), *range(own.blocks + 1, MOST_BLOCKS + 1)) if held[b] > 0]
    blocks = r.blocks or next(iter(fits), own.blocks)
    stages = r.stages or held.get(blocks, 0) or own.stages
    return replace(own, tile=tile, groups=groups, blocks=blocks, stages=stages, split_k=split_k)


def _gather(bounds: ScheduleBounds, own: Sm80Schedule, r: PartialSchedule) -> Sm80Schedule:
    math_, tile = r.math or own.math, r.tile or own.tile
    same = tile == own.tile and math_ == own.math
    warps = r.warp_tile or (own.warp_tile if same else warp_tile(tile, math_))
    fit = bounds.arch.shared_memory // stage_bytes(multiplied(bounds.problem), tile)
    return Sm80Schedule(tile, warps, r.stages or max(2, min(own.stages if same else SM80_STAGES, fit)), math_)
