"""The plan of the products family: one or two dots over one left operand, over ragged groups of rows
(mixture of experts), over ragged lengths of the contracted mode (its weights' gradient), or neither.

The problem is a GEMM's whose one batch mode may be the groups: A has no stride along it where its rows
are ragged, B the stride from one group's weights to the next. The group of a row, or the part of K that
is a group's, is read from offsets on the device: no launch depends on how rows are divided.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

from ucutlass.ir.elements import Element
from ucutlass.kernels.access import Access, Product, Stride
from ucutlass.kernels.gemm.plan import GemmProblem


@dataclass(frozen=True, slots=True)
class Ragged:
    """Group e has coordinates offsets[e] .. offsets[e + 1] - 1 along `mode`; the groups are the problem's
    one batch mode. `pointer` is the offsets' place in the pointer array, `elem` i32 or i64."""

    mode: Literal["m", "k"]
    pointer: int
    elem: Element


@dataclass(frozen=True, slots=True)
class Scale:
    """A factor of each part of a sum, one for rows or columns: element `(x / within) * stride + part * group`
    of a tensor, x the coordinate along `mode`; a stride of None is 0."""

    pointer: int
    elem: Element
    mode: Literal["m", "n"]
    within: Product
    stride: Stride
    group: Stride


@dataclass(frozen=True, slots=True)
class Scaled:
    """K is summed in parts of `length` elements; each part's sum is multiplied by the factors, in order,
    and added to the accumulator in f32. A factor is the product of its scales, left to right."""

    length: Product
    factors: tuple[tuple[Scale, ...], ...]


@dataclass(frozen=True, slots=True)
class GroupedGemmProblem:
    """What is computed: `gemm` with its `a` and `b`, and where there is a `second` right operand, of the
    same element and the same modes, the arithmetic takes both accumulators (`Accumulator.index`).

    `gemm` has one contracted mode and at most one batch mode. Where weights are narrower than the compute type they
    are its A, whatever side the program has them on: wgmma takes A from registers, where they are widened.
    """

    gemm: GemmProblem
    second: Access | None
    ragged: Ragged | None
    scaled: Scaled | None = None

    @property
    def pointers(self) -> int:
        return self.gemm.pointers

    @property
    def scalars(self) -> int:
        return self.gemm.scalars

    @property
    def compute_type(self) -> Element:
        return self.gemm.compute_type

    @property
    def converts(self) -> bool:
        """Whether A lies in memory narrower than the compute type, and is widened on its way to the multipliers."""
        return self.gemm.a.elem.bits < self.gemm.compute_type.bits

    @property
    def products(self) -> int:
        return 1 if self.second is None else 2


CLUSTERS = ((1, 1), (2, 1), (1, 2))
"""Clusters that the Hopper kernel has."""


@dataclass(frozen=True, slots=True)
class WgmmaSchedule:
    """A warp-specialised TMA kernel. `tile` is M x N x K of each product: a thread block multiplies N
    columns of every right operand, which lie behind each other in shared memory as one tile.

    `cooperative`: two warp groups share a tile; `pingpong`: each has its own, and one's epilogue runs
    while the other multiplies; `sliced`: both have the same tile and take its steps of K in turns, and one adds
    the other's sums through shared memory.

    K is cut into `parts`: as many blocks, which are a cluster, have the same tile, and each adds the others' sums of
    its steps of the epilogue through distributed shared memory.
    """

    tile: tuple[int, int, int]
    cluster: tuple[int, int]
    stages: int
    warps: Literal["pingpong", "cooperative", "sliced"]
    parts: int = 1


@dataclass(frozen=True, slots=True)
class SimtSchedule:
    """Multiply-adds in f32 (i32 for s8) by plain threads: any strides, alignments and compute types."""

    tile: tuple[int, int, int]


GroupedGemmSchedule: TypeAlias = WgmmaSchedule | SimtSchedule


@dataclass(frozen=True, slots=True)
class GroupedGemmPlan:
    """Everything that shapes the emitted source. Its one launch parameter is the band: tiles along M that are taken
    for a column of tiles before the next column."""

    emitter: ClassVar[str] = "ucutlass.emit.grouped_gemm.emitter"
    launch_parameters: ClassVar[tuple[str, ...]] = ("band",)

    arch: str
    problem: GroupedGemmProblem
    schedule: GroupedGemmSchedule
