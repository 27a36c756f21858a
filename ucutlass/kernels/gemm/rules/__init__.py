"""Legality: every rule once, as a function that returns its reason; the checker, the planner,
the tuner, the guide and the agent all ask this table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.kernels.gemm.rules import multistage, operands, tiles, vector
from ucutlass.kernels.gemm.schedule import GemmCandidate
from ucutlass.kernels.gemm.variants import VARIANTS
from ucutlass.kernels.rule import Rule, broken
from ucutlass.kernels.violation import Violation

_SM90: frozenset[str] = frozenset({"sm90"})
_SM80: frozenset[str] = frozenset({"sm80"})
_GEMV: frozenset[str] = frozenset({"gemv"})
_TILED = _SM90 | _SM80
_ALL = _TILED | _GEMV

_BUILDER = "CUTLASS gemm/collective/builders/sm90_gmma_builder.inl"
_PTX = "PTX ISA, wgmma.mma_async"

RULES: tuple[Rule[GemmCandidate], ...] = (
    Rule(
        "UC0410",
        "architecture",
        "pingpong and cooperative need sm90a",
        "CUTLASS sm90 kernels: kMinComputeCapability 90; PTX ISA: wgmma needs sm_90a",
        operands.arch_has_family,
        _ALL,
        in_guide=True,
    ),
    Rule(
        "UC0411",
        "compute type",
        "wgmma takes f16, bf16, tf32, e4m3, e5m2, s8, and f32 in three passes: one batch mode at "
        "most, no 8-byte elements in the epilogue",
        _PTX + "; emit/gemm/lean.py, which alone serves f32",
        operands.compute_type_has_kernel,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0412",
        "math",
        "`math` is for f32; `simt`: multistage, `_rs`, `f16x3`: cooperative",
        "CUTLASS arch/mma.h: OpMultiplyAddFastF32",
        operands.math_fits_compute_type,
        _TILED,
        in_guide=True,
    ),
    Rule(
        "UC0413",
        "contracted modes",
        "TMA kernels iterate over one contracted mode; multistage over several",
        "CUTLASS sm90 collectives: StrideA is [M, K, L]",
        operands.one_k_mode,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0415",
        "operand order",
        "A is contiguous along M or K and B along N or K",
        "cuTensorMapEncodeTiled: the innermost stride is one element",
        operands.operand_order,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0416",
        "operands contiguous along K",
        "e4m3, e5m2 and s8 are contiguous along K",
        _PTX + ": transposed descriptors are for 16-bit types only",
        operands.k_major,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0417",
        "tf32 operand order",
        "tf32, B contiguous along N: 3 stages or more, tile N in 32s, K 32 or, of tile N 32, in 32s; batches: N in 32s",
        _PTX + ": transposed descriptors are for 16-bit types only",
        operands.tf32_order,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0418",
        "TMA alignment",
        "A and B have 16-byte aligned addresses and strides",
        "cuTensorMapEncodeTiled: globalAddress, globalStrides",
        operands.tma_operands,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0419",
        "tile M",
        "tile M: 128 or 256 cooperative; 64, 128, 192 or 256 pingpong",
        "CUTLASS sm90_gemm_tma_warpspecialized_cooperative.hpp; " + _PTX,
        tiles.tile_m,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0420",
        "tile N",
        "tile N: a multiple of 16 from 16 to 256",
        _PTX + "; CUTLASS sm90_epilogue_tma_warpspecialized.hpp (24, 40, 72, 248 do not compile)",
        tiles.tile_n,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0421",
        "tile K",
        "tile K: a multiple of 32 bytes up to 256 elements (fp8 and f32: to 128)",
        "cute/arch/mma_sm90.hpp, ss_op_selector",
        tiles.tile_k,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0423",
        "accumulator registers",
        "accumulators a thread: 208, f32 192, tf32 not along K 160 (tile M x N / 256 cooperative, / 128 "
        "pingpong; fp8 in f32, and f32, count twice)",
        "CUTLASS HeavyRegisterPressure; NVIDIA/cutlass issues 2219 and 3372",
        tiles.accumulators_fit,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0424",
        "cluster",
        "cluster sides 1, 2, 4 or 8, product at most 8",
        "CUDA C++ Programming Guide, Thread Block Clusters; CUTLASS FastDivmodU64Pow2",
        tiles.cluster_size,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0425",
        "multicast slices",
        "tile N divides into 8-row slices by cluster M, tile M by cluster N",
        "CUTLASS make_tma_atom with num_multicast; swizzle atoms of 8 rows",
        tiles.multicast_slices,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0426",
        "stages and shared memory",
        "2 stages or more; stages and epilogue within 227 KiB (sm90a), 163 KiB (sm80), 99 KiB (sm89)",
        _BUILDER + ", compute_stage_count_or_override; CUDA C++ Programming Guide",
        tiles.stages_fit,
        _TILED,
        in_guide=True,
    ),
    Rule(
        "UC0427",
        "stream-K",
        "split_k needs cooperative",
        "CUTLASS sm90_gemm_tma_warpspecialized_pingpong.hpp static_assert",
        tiles.stream_k_is_cooperative,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0428",
        "split-K",
        "split_k: at most one part for each step of K",
        "CUTLASS gemm/kernel/tile_scheduler_params.h",
        tiles.splits_fit,
        _TILED,
        in_guide=True,
    ),
    Rule(
        "UC0430",
        "extents",
        "extents and tile counts below 2^31, TMA strides below 2^40 bytes",
        "CUDA C++ Programming Guide, grid extents; cuTensorMapEncodeTiled",
        operands.extents_fit,
        _ALL,
        in_guide=True,
    ),
    Rule(
        "UC0431",
        "epilogue routes",
        "whole tensors go by TMA only with 16-byte rows",
        "cuTensorMapEncodeTiled",
        operands.routes_are_possible,
        _ALL,
        in_guide=True,
    ),
    Rule(
        "UC0432",
        "swizzle",
        "swizzle is 1, 2, 4 or 8",
        "CUTLASS tile_scheduler_params.h, get_log_swizzle_size",
        tiles.swizzle_is_power,
        _TILED,
        in_guide=True,
    ),
    Rule(
        "UC0433",
        "reductions over batches",
        "TMA kernels reduce over rows, columns or both, not batch names alone",
        "emit/gemm/sm90_epilogue.py: a reduction begins within a tile",
        operands.reduces_a_tile,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0434",
        "parts of K in a cluster",
        "`partials cluster`: no reductions",
        "emit/gemm/lean_cluster.j2; CUDA C++ Programming Guide, Distributed Shared Memory",
        tiles.partials_in_cluster,
        _SM90,
        in_guide=True,
    ),
    Rule(
        "UC0435",
        "statistics of rows",
        "reductions of a row that the epilogue goes on with: TMA kernels of f16 or bf16, a row within a cluster's "
        "tiles",
        "emit/gemm/lean_statistics.j2; PTX ISA, st.async",
        tiles.rows_in_cluster,
        _ALL,
    ),
    Rule(
        "UC0440",
        "multistage tile K",
        "multistage tile K: a multiple of 64 bytes (simt: 16) up to 256 elements",
        "emit/gemm/sm80.py: two steps of mma.sync are in flight",
        multistage.tile_k,
        _SM80,
        in_guide=True,
    ),
    Rule(
        "UC0441",
        "warp tile",
        "warp tile: multiples of 16x16 (simt: 16x32) that divide the tile",
        "emit/gemm/sm80.py: TiledMMA of 16 x 16 a warp",
        multistage.warp_tile,
        _SM80,
        in_guide=True,
    ),
    Rule(
        "UC0442",
        "warps",
        "multistage: 1, 2, 4, 8, 16 or 32 warps a block",
        "CUDA C++ Programming Guide: 1024 threads a block",
        multistage.warps,
        _SM80,
        in_guide=True,
    ),
    Rule(
        "UC0443",
        "warp registers",
        "multistage: warp tiles of at most 4096 elements, for f32 2048",
        "CUDA C++ Programming Guide: 255 registers a thread, 65536 an SM",
        multistage.accumulators_fit,
        _SM80,
        in_guide=True,
    ),
    Rule(
        "UC0450",
        "columns",
        "gemv: N (M with swap) at most 8; columns 1, 2, 4 or 8, not below N",
        "emit/gemm/gemv.py",
        vector.columns,
        _GEMV,
        in_guide=True,
    ),
    Rule(
        "UC0451",
        "rows",
        "gemv rows: a power of two up to 16, up to 64 where the matrix is contiguous along M",
        "emit/gemm/gemv.py",
        vector.rows,
        _GEMV,
        in_guide=True,
    ),
    Rule(
        "UC0452",
        "threads",
        "gemv threads: a block of a power of two from 32 to 1024; along M it has rows x threads",
        "emit/gemm/gemv.py",
        vector.threads,
        _GEMV,
        in_guide=True,
    ),
    Rule(
        "UC0453",
        "running sums",
        "gemv: at most 64 sums a thread (rows x columns), fewer in large blocks",
        "65536 registers of an SM",
        vector.sums,
        _GEMV,
        in_guide=True,
    ),
    Rule(
        "UC0454",
        "gemv shared memory",
        "gemv: sums within shared memory",
        "CUDA C++ Programming Guide",
        vector.memory,
        _GEMV,
        in_guide=True,
    ),
)
"""In the order of their codes. UC0439 (`planner.foreign_fields`) judges a schedule before there is a candidate."""

BY_CODE: Mapping[str, Rule[GemmCandidate]] = MappingProxyType({rule.code: rule for rule in RULES})

_FOR_VARIANT: Mapping[str, tuple[Rule[GemmCandidate], ...]] = MappingProxyType(
    {v.name: tuple(r for r in RULES if v.name in r.variants) for v in VARIANTS}
)


def violations(candidate: GemmCandidate) -> tuple[Violation, ...]:
    """Every rule that the candidate breaks, in the order of the table; () where it is legal."""
    return broken(_FOR_VARIANT[candidate.family], candidate)


def legal(candidate: GemmCandidate) -> bool:
    """Whether no rule is broken; stops at the first that is."""
    return all(r.check(candidate) is None for r in _FOR_VARIANT[candidate.family])
