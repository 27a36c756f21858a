"""The kernel plan of the GEMM families: one kernel, one concrete schedule, one
architecture, proven legal. Emitters read this and nothing else.

A plan holds no extents: extents reach the kernel at launch, so one build serves every
shape with the same alignments. Dimensions are referred to by their position in the
launch's extent array, tensors by their position in its pointer array: no name that a
program chose gets here.

The binary interface of every emitted kernel (C linkage, one entry):

    int32_t ENTRY(void* const* tensors,      // device pointers: tensor parameters in
                                             // order, then results in order
                  int64_t const* extents,    // one per dimension of the program
                  double const* scalars,     // host scalars in parameter order
                  int64_t const* launch_parameters,  // LaunchParameters, in field order
                  void* workspace,           // device memory, 256-byte aligned, or null
                  uint64_t* workspace_size,  // not null: write the bytes needed, launch nothing
                  void* stream);             // cudaStream_t

It returns 0, or `1` where the arguments are not what the plan was made for, or `1000 + e`
for CUDA error e, or `2000 + s` for cutlass::Status s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal, TypeAlias

from ucutlass.ir.elements import F16, Element
from ucutlass.kernels.access import Access, Output, Product
from ucutlass.kernels.arithmetic import Arithmetic
from ucutlass.kernels.hashed_once import HashedOnce

MAX_CLUSTER = 8
"""Thread blocks of a portable cluster (CUDA C++ Programming Guide)."""

MAX_TILE_N = 256
"""Columns of the widest tile of wgmma."""


@dataclass(frozen=True, slots=True)
class GemmProblem(HashedOnce):
    """What is computed, with no schedule in it:
    D[m, n, batch] = arithmetic(sum over k of A[m, k, batch] * B[n, k, batch], operands).

    `compute_type` is the element type that the multipliers take; `a.elem` and `b.elem` are what lies
    in memory (f32 in memory for compute type tf32). `k` has more than one entry where the contracted
    dimensions do not merge into one in both operands; the last is innermost.
    """

    compute_type: Element
    accumulate: str
    m: Product
    n: Product
    k: tuple[Product, ...]
    batch: tuple[Product, ...]
    a: Access
    b: Access
    inputs: tuple[Access, ...]
    outputs: tuple[Output, ...]
    arithmetic: Arithmetic
    dims: int
    pointers: int
    scalars: int

    __hash__ = HashedOnce.__hash__


@dataclass(frozen=True, slots=True)
class LaunchParameters:
    """What a launch may choose without another build.

    `raster`: 0 heuristic, 1 along M, 2 along N. `swizzle`: largest log-free swizzle (1, 2, 4,
    8). `splits`: parts of K, 1 none; for stream-K 0 lets the scheduler choose.
    """

    raster: int = 0
    swizzle: int = 1
    splits: int = 1


Math: TypeAlias = Literal["tensor", "tf32x3", "tf32x3_rs", "tf32x3_fused", "f16x3", "f16", "simt"]
"""How a compute type is multiplied: as it is by tensor cores, f32 in three passes of tf32 or f16, or in FFMA. Of
`tf32x3` by wgmma a launch before the kernel's splits both operands, of `tf32x3_rs` B alone: A is split in registers. Of
`tf32x3_fused` there is no such launch: B is split in shared memory. Of `f16x3` a launch
splits both, and another one splits anew what is scaled unusually."""

REGISTER_MATHS: frozenset[Math] = frozenset({"tf32x3_rs", "tf32x3_fused"})
"""Of wgmma with A split in registers."""

COOPERATIVE_MATHS: frozenset[Math] = REGISTER_MATHS | {"f16x3"}
"""Of two warp groups that share a tile."""


F32_CHAIN = 4
"""Steps of K of TF32 whose products the tensor core sums before they go to f32 registers, where a tile has a multiple
of them. Of positive numbers an H200's sums are too small by 1.2e-7 with four steps and 2.6e-7 with eight; parts are
rounded away from 0 (`round_away`) to meet the first."""

F16_CHAIN = 2
"""Steps of K of f16 whose products the tensor core sums before they go to f32 registers: it cuts the low bits of each
sum. Of positive numbers (512 x 384 x 4096) an H100's were too small by 1.8 of the error of eager's sums with four steps,
by 0.8 with two and by 0.4 with one."""


def multipliers(problem: GemmProblem, math: Math) -> GemmProblem:
    """The problem with the compute type of wgmma: of `f16x3` both parts of an operand are f16."""
    return replace(problem, compute_type=F16) if math == "f16x3" else problem


@dataclass(frozen=True, slots=True)
class Sm90Schedule:
    """A CUTLASS 3.x warp-specialised TMA kernel. `tile` is M x N x K in elements. `math` is the compute type's way
    of multiplying; `simt` is there for the rules to refuse. Of `cluster_k` a cluster has as many blocks for each of
    its tiles as K has parts, which add their sums through distributed shared memory."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    stages: int
    warps: Literal["pingpong", "cooperative"]
    scheduler: Literal["persistent", "stream_k", "cluster_k"]
    math: Math = "tensor"


@dataclass(frozen=True, slots=True)
class Sm80Schedule:
    """A multistage kernel on mma.sync or FFMA. `math` is the compute type's way of multiplying:
    `tensor`, `tf32x3` (three tf32 passes for f32) or `simt`. `splits` above 1 needs f32 or
    i32 partial sums in the workspace."""

    tile: tuple[int, int, int]
    warp_tile: tuple[int, int]
    stages: int
    math: Math


@dataclass(frozen=True, slots=True)
class GemvSchedule:
    """A bandwidth-bound kernel for few columns: N at most `columns` (1, 2, 4 or 8).

    The matrix is operand A; each thread block takes `rows` rows of it (or, where A is
    contiguous along M, `rows` columns of threads) and `threads` threads share K.
    """

    rows: int
    columns: int
    threads: int


GemmSchedule: TypeAlias = Sm90Schedule | Sm80Schedule | GemvSchedule

Route: TypeAlias = Literal["tma", "direct"]
"""How an epilogue tensor over M and N moves: through shared memory by TMA, or by each thread."""


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """Everything that shapes the emitted source. `routes` has one entry per input and output
    (inputs first); vectors and reductions are always "direct"."""

    emitter: ClassVar[str] = "ucutlass.emit.gemm.emitter"
    launch_parameters: ClassVar[tuple[str, ...]] = ("raster", "swizzle", "splits")

    arch: str
    problem: GemmProblem
    schedule: GemmSchedule
    routes: tuple[Route, ...]


def epilogue_tensors(problem: GemmProblem) -> tuple[Access, ...]:
    """Epilogue tensors, inputs first: `GemmPlan.routes` has an entry for each."""
    return problem.inputs + tuple(output.access for output in problem.outputs)
