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
                  int64_t const* knobs,      // Knobs, in field order
                  void* workspace,           // device memory, 256-byte aligned, or null
                  uint64_t* workspace_size,  // not null: write the bytes needed, launch nothing
                  void* stream);             // cudaStream_t

It returns 0, or `1` where the arguments are not what the plan was made for, or `1000 + e`
for CUDA error e, or `2000 + s` for cutlass::Status s.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from ucutlass.elements import Element

Product: TypeAlias = tuple[int, ...]
"""A product of extents, as positions in the extent array; () is 1. An extent, or a stride in
elements."""

MAX_BATCH_MODES = 5
"""Batch modes that a kernel addresses besides m and n; each costs every block a division. A TMA tensor
has five modes in all: CuTe folds those beyond into the last, whose stride divides theirs."""

Stride: TypeAlias = Product | None
"""None: the tensor does not range over this mode (stride 0)."""


@dataclass(frozen=True, slots=True)
class Access:
    """How a tensor is addressed by the problem's modes; strides count elements.

    `pointer` is its position in the pointer array. `align` is the largest power-of-two
    number of elements, up to 16 bytes, that divides the base address and every stride
    but the unit one, along its contiguous mode; 1 if no mode is contiguous.
    """

    pointer: int
    elem: Element
    m: Stride
    n: Stride
    k: tuple[Stride, ...]
    batch: tuple[Stride, ...]
    align: int

    @property
    def shape(self) -> Literal["scalar", "batch", "row", "column", "full"]:
        """Which of the result's modes it ranges over.

        `row`: values along N, the same in every row (a bias); `column`: values along M;
        `batch`: one value a batch; `full`: over M and N.
        """
        match (self.m is not None, self.n is not None):
            case (True, True):
                return "full"
            case (True, False):
                return "column"
            case (False, True):
                return "row"
            case _:
                return "batch" if any(s is not None for s in self.batch) else "scalar"

    @property
    def contiguous(self) -> Literal["m", "n", "k", None]:
        """The mode of unit stride, if any; modes of extent 1 count as written."""
        for name, stride in (("n", self.n), ("k", self.k[-1] if self.k else None), ("m", self.m)):
            if stride == ():
                return name  # type: ignore[return-value]
        return None


# --- the arithmetic --------------------------------------------------------------

ScalarKind: TypeAlias = Literal["f32", "i32", "i64", "bool"]
"""What an instruction computes in; narrower floats are widened on load, rounded by casts."""


@dataclass(frozen=True, slots=True)
class Accumulator:
    """A dot's value at this element: f32 (also when accumulated in f16), or i32. `index` tells dots
    apart where a kernel has several."""

    kind: ScalarKind
    index: int = 0


@dataclass(frozen=True, slots=True)
class LoadSlot:
    """The value of epilogue operand `slot` (position in `GemmProblem.inputs`) at this element."""

    slot: int
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class HostScalar:
    """Entry `index` of the scalars array."""

    index: int
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class Literal_:
    value: float | int | bool
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class ExtentValue:
    """A product of extents, as a number."""

    extent: Product
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class CoordinateValue:
    """The coordinate along one dimension: `(mode / product(inner)) % product(extent)`, where
    `mode` is the element's coordinate along "m", "n" or batch mode `batch`."""

    mode: Literal["m", "n", "batch"]
    batch: int
    inner: Product
    extent: Product
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class Compute:
    """A function of `ucutlass.functions.FUNCTIONS` over earlier instructions."""

    function: str
    args: tuple[int, ...]
    kind: ScalarKind


@dataclass(frozen=True, slots=True)
class Round:
    """Rounds to a narrower element and back (a cast in the program)."""

    arg: int
    elem: Element
    kind: ScalarKind


Instruction: TypeAlias = (
    Accumulator | LoadSlot | HostScalar | Literal_ | ExtentValue | CoordinateValue | Compute | Round
)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """A pure function of scalars in static single assignment: instruction i may use those
    before it; `results[j]` is the instruction that output j receives. Never reads memory."""

    instructions: tuple[Instruction, ...]
    results: tuple[int, ...]


# --- the access structure --------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Store:
    """Writes a value for every (m, n, batch): a result over M and N."""

    access: Access


@dataclass(frozen=True, slots=True)
class Reduction:
    """Combines the values over the modes that `access` lacks (m, n, batch): `sum`, `max`, `min`.

    The result's modes tell which: over N only (access has m), over M only (access has n), or
    both. A mean is a sum of values already divided. A sum of integers takes and adds i64 values and
    saturates to the element at the end (`wide`); everything else arrives in the element's own kind.
    """

    op: Literal["sum", "max", "min"]
    access: Access

    @property
    def wide(self) -> bool:
        """Whether the values are 64 bits wide."""
        return self.op == "sum" and self.access.elem.kind == "int"


Output: TypeAlias = Store | Reduction


@dataclass(frozen=True, slots=True)
class GemmProblem:
    """What is computed, with no schedule in it:
    D[m, n, batch] = arithmetic(sum over k of A[m, k, batch] * B[n, k, batch], operands).

    `lane` is the element type that the multipliers take; `a.elem` and `b.elem` are what lies
    in memory (f32 in memory for lane tf32). `k` has more than one entry where the contracted
    dimensions do not merge into one in both operands; the last is innermost.
    """

    lane: Element
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


@dataclass(frozen=True, slots=True)
class Knobs:
    """What a launch may choose without another build.

    `raster`: 0 heuristic, 1 along M, 2 along N. `swizzle`: largest log-free swizzle (1, 2, 4,
    8). `splits`: parts of K, 1 none; for stream-K 0 lets the scheduler choose.
    """

    raster: int = 0
    swizzle: int = 1
    splits: int = 1


Math: TypeAlias = Literal["tensor", "tf32x3", "simt"]
"""How a lane is multiplied: as it is by tensor cores, f32 in three tf32 passes, or in FFMA."""


@dataclass(frozen=True, slots=True)
class Sm90Schedule:
    """A CUTLASS 3.x warp-specialised TMA kernel. `tile` is M x N x K in elements. `math` is the lane's way
    of multiplying, as in `Sm80Schedule`; `simt` is there for the rules to refuse."""

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    stages: int
    warps: Literal["pingpong", "cooperative"]
    scheduler: Literal["persistent", "stream_k"]
    math: Math = "tensor"


@dataclass(frozen=True, slots=True)
class Sm80Schedule:
    """A multistage kernel on mma.sync or FFMA. `math` is the lane's way of multiplying:
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


Route: TypeAlias = Literal["tma", "direct"]
"""How an epilogue tensor over M and N moves: through shared memory by TMA, or by each thread."""


@dataclass(frozen=True, slots=True)
class GemmPlan:
    """Everything that shapes the emitted source. `routes` has one entry per input and output
    (inputs first); vectors and reductions are always "direct"."""

    arch: str
    problem: GemmProblem
    schedule: Sm90Schedule | Sm80Schedule | GemvSchedule
    routes: tuple[Route, ...]
