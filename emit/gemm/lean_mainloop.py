"""The main loop of a lean kernel (`ucutlass.emit.gemm.lean`): how A and B lie in shared memory, are loaded there
and are multiplied, as numbers and C++ for the templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from ucutlass.emit.gemm import sm90 as gemm_sm90
from ucutlass.emit.parts import NotServed
from ucutlass.ir.compute_types import FP8
from ucutlass.ir.elements import F32, TF32, Element
from ucutlass.kernels.access import Access
from ucutlass.kernels.gemm.plan import F16_CHAIN, REGISTER_MATHS, GemmProblem, Sm90Schedule

WIDEST = 128
"""Bytes of a row of TMA's and wgmma's widest swizzle."""

TYPES: Mapping[str, str] = MappingProxyType(
    {
        "f16": "f16",
        "bf16": "bf16",
        "tf32": "tf32",
        "e4m3": "e4m3",
        "e5m2": "e5m2",
        "s8": "s8",
        "u8": "u8",
        "f32": "tf32",
    }
)
"""A compute type's name in wgmma; f32 is multiplied as sums of two tf32."""

SMALL = "_small"
"""Ends the name of an operand's small parts: what TMA's rounding to tf32 takes from it."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One TMA load of the main loop as C++: where it lands, and its coordinates."""

    place: str
    inner: str
    outer: str


@dataclass(frozen=True, slots=True)
class SharedOperand:
    """A or B of the main loop in shared memory.

    `width` is the bytes of a swizzled row, `box` the elements that one TMA load takes. `leading`, `stride`
    and `swizzle_code` are the matrix descriptor's, in 16 bytes; `group_step` is how far the second warp
    group's rows lie; `instruction_steps` how far each k step lies. A tile is loaded in `slices`, one by
    each block that shares it; `mask` has those blocks.
    """

    name: str
    access: Access
    element: str
    bytes: int
    width: int
    box: tuple[int, int]
    inner: Literal["k", "mn"]
    slices: int
    mask: int
    copies: tuple[Copy, ...]
    leading: int
    stride: int
    group_step: int
    atom_step: int
    instruction_steps: tuple[int, ...]
    batch: str

    @property
    def swizzle_code(self) -> int:
        return {128: 1, 64: 2, 32: 3}[self.width]


@dataclass(frozen=True, slots=True)
class Instruction:
    """One wgmma of a part of a k tile: its first register, its matrices' names and their offsets."""

    register: int
    left: str
    right: str
    a: int
    b: int
    first: bool


def operands(
    problem: GemmProblem, schedule: Sm90Schedule, groups: int
) -> tuple[SharedOperand, SharedOperand]:
    """A and B of a tile that `groups` warp groups share. Raises NotServed where no swizzle fits the tile."""
    tile_m, tile_n, tile_k = schedule.tile
    cluster_m, cluster_n = schedule.cluster
    k = tile_k
    # By the launch before, where they lie otherwise; A that is split in registers may lie as it will.
    turned = schedule.math == "tf32x3"
    copied = schedule.math in REGISTER_MATHS
    a = _operand(
        "a",
        problem.a,
        turned or problem.a.k[0] == (),
        multiplied(problem, problem.a),
        tile_m,
        k,
        cluster_n,
        "y",
        sum(1 << (y * cluster_m) for y in range(cluster_n)),
        groups,
    )
    b = _operand(
        "b",
        problem.b,
        turned or copied or problem.compute_type == TF32 or problem.b.k[0] == (),
        multiplied(problem, problem.b),
        tile_n,
        k,
        cluster_m,
        "x",
        (1 << cluster_m) - 1,
        groups,
    )
    return a, b


def turned_operand(problem: GemmProblem, schedule: Sm90Schedule, groups: int) -> SharedOperand:
    """B as TMA loads it where the kernel turns it along K as it splits it."""
    _, tile_n, tile_k = schedule.tile
    cluster_m, _ = schedule.cluster
    mask = (1 << cluster_m) - 1
    return _operand("b", problem.b, False, problem.compute_type, tile_n, tile_k, cluster_m, "x", mask, groups)


def multiplied(problem: GemmProblem, operand: Access) -> Element:
    """The element as which wgmma takes an operand: of fp8 the operand's own, else the problem's."""
    return operand.elem if problem.compute_type in FP8 else problem.compute_type


def _operand(
    name: str,
    access: Access,
    along_k: bool,
    compute_type: Element,
    rows: int,
    tile_k: int,
    slices: int,
    slice_index: str,
    mask: int,
    groups: int,
) -> SharedOperand:
    size, first = compute_type.bytes, "m0" if name == "a" else "n0"
    length = (tile_k if along_k else rows) * size
    width = next((w for w in (WIDEST, 64, 32) if length % w == 0), None)
    across = rows if along_k else tile_k
    if width is None or across % (8 * slices):
        raise NotServed(f"a tile of {rows} x {tile_k} in {slices} slices")
    panels, part = length // width, across // slices
    panel_bytes, per_row = across * width, width // size
    sliced = f" + {slice_index} * {part}" if slices > 1 else ""
    copies = []
    for panel in range(panels):
        place = f"{panel * panel_bytes}" + (f" + {slice_index} * {part * width}" if slices > 1 else "")
        inner = f"{'k' if along_k else first} + {panel * per_row}"
        outer = f"{first if along_k else 'k'}{sliced}"
        copies.append(Copy(place, inner, outer))
    step_bytes = 32  # of K, for every compute type's instruction
    if along_k:
        steps = [(at // width) * panel_bytes + at % width for at in range(0, tile_k * size, step_bytes)]
        row_step = width
    else:
        steps = [at * width for at in range(0, tile_k, step_bytes // size)]
        row_step = panel_bytes * size // width  # 64 rows are one panel: A is always that wide
    return SharedOperand(
        name=name,
        access=access,
        element=compute_type.cpp,
        bytes=rows * tile_k * size,
        width=width,
        box=(per_row, part),
        inner="k" if along_k else "mn",
        slices=slices,
        mask=mask,
        copies=tuple(copies),
        leading=1 if along_k else panel_bytes // 16,
        stride=8 * width // 16,
        group_step=64 * row_step // 16,
        atom_step=64 * groups * row_step // 16,
        instruction_steps=tuple(step // 16 for step in steps),
        batch=batch_coordinates(access),
    )


def batch_coordinates(access: Access) -> str:
    """Where a tile's batch lies in a tensor, along each of its batch modes."""
    names = ("l", "l2") if len(access.batch) == 2 else ("l",)
    at = ["0" if stride is None else name for name, stride in zip(names, access.batch, strict=False)]
    return ", ".join(at) or "0"


REST = "_rest"
"""Ends the name of what two bf16 leave of an operand: it is loaded where small parts lie."""

PRODUCT: tuple[tuple[str, str], ...] = (("a", "b"),)
CROSS: tuple[tuple[str, str], ...] = (("a" + SMALL, "b"), ("a", "b" + SMALL))
"""The matrices that an instruction multiplies: the operands, and for tf32x3 the products with small parts."""

SMALLEST: tuple[tuple[str, str], ...] = (("a" + SMALL, "b" + SMALL),)
"""The small parts, which are multiplied where they are bf16."""


def passes(schedule: Sm90Schedule) -> tuple[tuple[str, str], ...]:
    """The smallest terms first: a sum loses the bits below its largest term's last."""
    return CROSS + PRODUCT if schedule.math == "tf32x3" else PRODUCT


def small(operand: SharedOperand) -> SharedOperand:
    """An operand's small parts, which lie and are loaded as the operand itself."""
    return replace(operand, name=operand.name + SMALL)


def rest(operand: SharedOperand) -> SharedOperand:
    """What two bf16 leave of an operand."""
    return replace(operand, name=operand.name + REST)


_FEW = 64
"""Accumulators a thread, of which registers hold three sets."""


def parts(schedule: Sm90Schedule, promotion: int, registers: int) -> int:
    """Returns how many parts a tile's columns have, multiplied one after another. Where sums are promoted
    after each k tile, one is added while the next one is under way: that of the next k tile or, where registers do
    not hold two,
    of the other half of the columns. f32 stays whole: halves would read A once more for each of three terms
    (4096 x 3072 x 4096 by 256x96 tiles took an H200 1100 us, whole 854)."""
    halves = promotion == 1 and schedule.math == "tensor" and registers > _FEW
    return 2 if halves else 1


def turn(schedule: Sm90Schedule, promotion: int, registers: int, atoms: int) -> int:
    """k tiles that a turn of the loop takes which promotes after each of them, 0 for another loop: as many
    as ptxas 13.0 keeps in registers (read off its account of ten kernels of fp8 and forty of f32). The k
    tile of f32 is long: of two warp groups that share a tile one multiplies while the other one adds (by
    128x128 tiles 867 us so, and 907 with a third set of registers); pingpong's multiply in turns."""
    if promotion != 1 or schedule.math in REGISTER_MATHS:
        return 0
    if schedule.math == "tf32x3":
        return 2 if schedule.warps == "pingpong" and registers <= _FEW and atoms == 1 else 1
    if registers <= _FEW:
        return 4
    return 2 if atoms == 1 else 1


def instructions(
    a: SharedOperand,
    b: SharedOperand,
    atoms: int,
    columns: int,
    terms: tuple[tuple[str, str], ...] = PRODUCT,
    steps: slice = slice(None),
) -> Iterator[Instruction]:
    """Those of `columns` columns of the tile and some steps of K, term after term; a part's columns follow the last
    part's by `part_step`."""
    pairs = list(zip(a.instruction_steps, b.instruction_steps, strict=True))[steps]
    for term, (left, right) in enumerate(terms):
        for k, (a_step, b_step) in enumerate(pairs):
            for atom in range(atoms):
                at = atom * a.atom_step + a_step
                yield Instruction(atom * columns // 2, left, right, at, b_step, k == term == 0)


@dataclass(frozen=True, slots=True)
class Chain:
    """The instructions of the steps of K whose sums of big products go to f32 registers together: those products, the
    ones that are summed beside them of f16 parts, and of bf16."""

    big: tuple[Instruction, ...]
    cross: tuple[Instruction, ...]
    bf16_cross: tuple[Instruction, ...]


def chains(a: SharedOperand, b: SharedOperand, atoms: int, columns: int) -> Iterator[Chain]:
    for first in range(0, len(a.instruction_steps), F16_CHAIN):
        big, cross, bf16_cross = (
            tuple(instructions(a, b, atoms, columns, terms, slice(first, first + F16_CHAIN)))
            for terms in (PRODUCT, CROSS, CROSS + SMALLEST)
        )
        yield Chain(big, cross, bf16_cross)


def part_step(b: SharedOperand, columns: int) -> int:
    """How far so many columns of B lie, in 16 bytes; B is contiguous along K."""
    return columns * b.width // 16


def modifiers(problem: GemmProblem, a: SharedOperand, b: SharedOperand) -> str:
    """What follows the scale of D: signs of A and B, and of 16-bit types whether they are transposed."""
    if problem.compute_type.kind == "int":
        return ""
    signs = ", 1, 1"
    return (
        f"{signs}, {int(a.inner == 'mn')}, {int(b.inner == 'mn')}"
        if problem.compute_type.bytes == 2
        else signs
    )


def promotion(problem: GemmProblem, schedule: Sm90Schedule) -> int:
    """k tiles whose products the tensor core sums before they go to f32 registers, 0 for all: for fp8 as in
    CUTLASS; for f32 one, since each addition there cuts low bits off, and long sums drift."""
    if problem.compute_type == F32:
        return 1
    if problem.compute_type.name not in ("e4m3", "e5m2") or problem.accumulate == "fast":
        return 0
    instructions = schedule.tile[2] // gemm_sm90.FP8_INSTRUCTION_K
    return max(1, gemm_sm90.FP8_PROMOTION // instructions)
