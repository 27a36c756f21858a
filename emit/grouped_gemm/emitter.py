"""One or two products over one left operand, ragged or not (`ucutlass.kernels.grouped_gemm.plan`).

On Hopper a persistent kernel of our own by TMA and wgmma: columns of both right operands make one tile in
shared memory, so that the main loop is that of one product and a thread has both values of an element.
Its scheduler reads the groups' offsets on the device. Elsewhere, and for what TMA does not take, plain
multiply-adds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from ucutlass.emit.arithmetic import ArithmeticText, arithmetic
from ucutlass.emit.functions import CPP
from ucutlass.emit.gemm import sm90 as gemm_sm90
from ucutlass.emit.gemm.lean import TMA_TF32, TMA_TYPES, TensorMap, tensor_map
from ucutlass.emit.gemm.lean_epilogue import EpilogueTensor, StoredResult, stored_results
from ucutlass.emit.gemm.lean_mainloop import (
    TYPES,
    WIDEST,
    Instruction,
    SharedOperand,
    instructions,
    modifiers,
    operands,
)
from ucutlass.emit.gemm.sm90_epilogue import element, extent
from ucutlass.emit.grouped_gemm import simt as products_simt
from ucutlass.emit.grouped_gemm.scales import ScaleSlot, factors_of
from ucutlass.emit.text import render as template
from ucutlass.ir.elements import TF32, U8
from ucutlass.kernels.access import Access
from ucutlass.kernels.gemm.plan import GemmProblem, Sm90Schedule
from ucutlass.kernels.grouped_gemm.plan import (
    GroupedGemmPlan,
    GroupedGemmProblem,
    SimtSchedule,
    WgmmaSchedule,
)
from ucutlass.kernels.grouped_gemm.smem import SHARED_BYTES, promotes, steps, stored_in_boxes

_INCLUDES = ("<algorithm>", "<atomic>", "<cmath>", "<cstdint>", "<cstring>", "<limits>")


@dataclass(frozen=True, slots=True)
class GroupedGemmLayout:
    """Everything that the template reads as `lean`, a name that it shares with the lean kernels' parts."""

    products: int
    ragged: str
    pairs: bool
    warp_groups: int
    slices: int
    width: int
    columns: int
    buffers: int
    shared_bytes: int
    a: SharedOperand
    b: tuple[SharedOperand, ...]
    instruction_k: int
    types: str
    modifiers: str
    converts: bool
    packed: int
    bias: tuple[str, int]
    parts: tuple[tuple[Instruction, ...], ...]
    constraint: str
    instructions: tuple[Instruction, ...]
    promotion: bool
    factors: tuple[tuple[ScaleSlot, ...], ...]
    inputs: tuple[EpilogueTensor, ...]
    boxes: tuple[EpilogueTensor, ...]
    direct_outputs: tuple[EpilogueTensor, ...]
    outputs: tuple[StoredResult, ...]
    call: str

    @property
    def alternates(self) -> bool:
        """Whether two warp groups that share a tile multiply in turns: beside scaled parts of widened weights, whose
        conversion takes as long as the products."""
        return self.converts and bool(self.factors) and self.warp_groups == 2 and len(self.parts) == 2

    @property
    def two_batches(self) -> bool:
        """As a lean kernel's layout has it, with whose boxes these are moved."""
        return False

    @property
    def stores(self) -> tuple[EpilogueTensor, ...]:
        return self.boxes

    @property
    def loads(self) -> tuple[EpilogueTensor, ...]:
        return ()

    @property
    def scales(self) -> tuple[ScaleSlot, ...]:
        return tuple(slot for factor in self.factors for slot in factor)

    @property
    def direct_inputs(self) -> bool:
        return any(slot.shape == "direct" for slot in self.inputs)

    @property
    def pointers(self) -> tuple[EpilogueTensor, ...]:
        return (*self.inputs, *self.boxes, *self.direct_outputs)


def render(plan: GroupedGemmPlan) -> str:
    """The code of a plan, for `ucutlass.emit.text.finish`. Raises ValueError for a schedule that does not
    fit the problem, or shared memory."""
    match plan.schedule:
        case WgmmaSchedule():
            return _wgmma(plan.problem, plan.schedule)
        case SimtSchedule():
            return products_simt.render(plan.problem, plan.schedule)


def _wgmma(problem: GroupedGemmProblem, schedule: WgmmaSchedule) -> str:
    operation = arithmetic(problem.gemm, problem.products)
    layout = _layout(problem, schedule, operation)
    gemm = problem.gemm
    return template(
        "grouped_gemm/sm90.cu.j2",
        includes=_INCLUDES,
        problem=problem,
        schedule=schedule,
        lean=layout,
        arithmetic=operation,
        accumulator=gemm_sm90.ACCUMULATORS["s32" if gemm.compute_type.kind == "int" else "f32"],
        extents=[extent(product) for product in (gemm.m, gemm.n, gemm.k[0])],
        batch=extent(gemm.batch[0]) if gemm.batch else "1",
        compute_type=gemm.compute_type.cpp,
        part=extent(problem.scaled.length) if problem.scaled else "",
        part_k=PART_K,
        maps=_maps(problem, layout),
        checks=_checks(layout),
    )


def _layout(
    problem: GroupedGemmProblem, schedule: WgmmaSchedule, operation: ArithmeticText
) -> GroupedGemmLayout:
    gemm, groups = problem.gemm, 2 if schedule.warps == "cooperative" else 1
    tile_m, tile_n, _ = schedule.tile
    a, first = _operands(problem, schedule, groups)
    second = () if problem.second is None else (replace(first, name="b1", access=problem.second),)
    width, atoms = tile_n * problem.products, tile_m // (64 * groups)
    slots = tuple(_result(problem, j, o.access) for j, o in enumerate(gemm.outputs))
    boxes = tuple(slot for slot in slots if slot.shape == "box")
    every = tuple(instructions(a, first, atoms, width))
    columns, buffers = steps(problem, schedule)
    compute_type, integer = TYPES[gemm.compute_type.name], gemm.compute_type.kind == "int"
    inputs = tuple(_input(i, access) for i, access in enumerate(gemm.inputs))
    return GroupedGemmLayout(
        products=problem.products,
        ragged=problem.ragged.mode if problem.ragged else "",
        pairs=schedule.cluster == PAIR,
        warp_groups=groups,
        slices=2 if schedule.warps == "sliced" else 1,
        width=width,
        columns=columns,
        buffers=buffers,
        shared_bytes=SHARED_BYTES,
        a=a,
        b=(replace(first, name="b0"), *second),
        instruction_k=32 // gemm.compute_type.bytes,
        types=f"{'s32' if integer else 'f32'}.{compute_type}.{compute_type}",
        modifiers=_modifiers(problem, a, first),
        converts=problem.converts,
        packed=gemm.a.elem.packed,
        bias=_BIASES.get(gemm.compute_type.name, ("0", 0)),
        parts=_parts(every, schedule.tile[2] // PART_K),
        constraint="r" if integer else "f",
        instructions=every,
        promotion=promotes(gemm),
        factors=factors_of(problem.scaled),
        inputs=inputs,
        boxes=boxes,
        direct_outputs=tuple(slot for slot in slots if slot.shape == "direct"),
        outputs=stored_results(slots, operation),
        call=_call(operation, inputs, problem.products),
    )


PAIR = (2, 1)
"""The cluster of which either operand is loaded in halves, one by each of its blocks."""


def _operands(
    problem: GroupedGemmProblem, schedule: WgmmaSchedule, groups: int
) -> tuple[SharedOperand, SharedOperand]:
    """The left operand, and the first right one, in shared memory."""
    gemm, pairs = problem.gemm, schedule.cluster == PAIR

    def shared(cluster: tuple[int, int]) -> tuple[SharedOperand, SharedOperand]:
        as_gemm = Sm90Schedule(schedule.tile, cluster, schedule.stages, _as_gemm(schedule), "persistent")
        return operands(gemm, as_gemm, groups)

    a, first = (shared((1, 2))[0], shared((2, 1))[1]) if pairs else shared(schedule.cluster)
    if problem.converts:
        slices = (1, 2) if pairs else schedule.cluster
        a = _narrow(gemm, replace(schedule, cluster=slices), groups, len(first.instruction_steps))
    return a, first


def _result(problem: GroupedGemmProblem, number: int, access: Access) -> EpilogueTensor:
    shape = "box" if stored_in_boxes(problem, access) else "direct"
    return EpilogueTensor(f"out{number}", access, element(access.elem), shape, False)


def _as_gemm(schedule: WgmmaSchedule) -> Literal["pingpong", "cooperative"]:
    """The warps of a GEMM whose operands lie as this one's."""
    return "cooperative" if schedule.warps == "cooperative" else "pingpong"


PART_K = 64
"""Of K in the registers of a widened A at a time."""

_BIASES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {"bf16": ("0x43084308", 136), "f16": ("0x64086408", 1032)}
)
"""Two numbers 128 or 1024 whose low bits are units, with the sign of four bits turned into an offset: by
exclusive or with s4 they are those plus 8 plus the value; and what to take away."""


def _parts(every: tuple[Instruction, ...], count: int) -> tuple[tuple[Instruction, ...], ...]:
    """The instructions of each part of a k tile whose A is widened."""
    each = len(every) // max(1, count)
    return tuple(every[i * each : (i + 1) * each] for i in range(count))


def _modifiers(problem: GroupedGemmProblem, a: SharedOperand, b: SharedOperand) -> str:
    """A in registers has no order that an instruction could exchange."""
    return f", 1, 1, {int(b.inner == 'mn')}" if problem.converts else modifiers(problem.gemm, a, b)


def _narrow(gemm: GemmProblem, schedule: WgmmaSchedule, groups: int, steps: int) -> SharedOperand:
    """A of narrower elements, as bytes along K: no instruction reads it, but `steps` have its elements."""
    m, n, k = schedule.tile
    elem = gemm.a.elem
    in_bytes = Sm90Schedule(
        (m, n, k // elem.packed), schedule.cluster, schedule.stages, _as_gemm(schedule), "persistent"
    )
    a, _ = operands(replace(gemm, compute_type=U8), in_bytes, groups)
    at = f"k / {elem.packed}" if elem.packed > 1 else "k"
    copies = tuple(replace(c, inner=at + c.inner.removeprefix("k")) for c in a.copies)
    return replace(a, element=element(elem), copies=copies, instruction_steps=(0,) * steps)


_SHAPES: Mapping[str, str] = MappingProxyType({"scalar": "single", "batch": "single", "full": "direct"})


def _input(index: int, access: Access) -> EpilogueTensor:
    shape = _SHAPES.get(access.shape, access.shape)
    return EpilogueTensor(f"in{index}", access, element(access.elem), shape, True)


def _call(operation: ArithmeticText, inputs: tuple[EpilogueTensor, ...], products: int) -> str:
    names = ["m", "n", *(["l"] * operation.batch)]
    values = []
    for slot, kind in zip(inputs, operation.inputs, strict=True):
        at = {"direct": f"{slot.name}[e]", "row": f"{slot.name}[e]", "column": f"{slot.name}[i]"}
        value = at.get(slot.shape, slot.name)
        values.append(f"{value} != 0" if kind == "bool" else f"{CPP[kind]}({value})")
    return operation.call(
        "p.arithmetic",
        names if operation.coordinates else ["0"] * len(names),
        "d[at]" if products == 1 else "d[at], d[at + TileN / 2]",
        values,
        [f"out{j}" for j in range(len(operation.outputs))],
    )


@dataclass(frozen=True, slots=True)
class Check:
    """A tensor's address is a multiple of `bytes`, and N and its strides, C++, are of `elements`."""

    pointer: int
    bytes: int
    elements: int
    strides: tuple[str, ...]


def _in_pairs(slot: EpilogueTensor) -> bool:
    """Whether neighbours of an operand over M and N are read two at a time; the template asks the same."""
    return slot.shape == "direct" and slot.reads and slot.rows == "true" and slot.access.align > 1


def _checks(layout: GroupedGemmLayout) -> list[Check]:
    checks = []
    for slot in layout.pointers:
        elements = 16 // slot.size if slot.shape == "box" else 2
        if slot.shape == "box" or _in_pairs(slot):
            m, n, per_batch = slot.strides
            strides = ("N", m, per_batch) if slot.rows == "true" else ("M", n, per_batch)
            checks.append(Check(slot.access.pointer, elements * slot.size, elements, strides))
    return checks


def _in_bytes(map_: TensorMap, packed: int) -> TensorMap:
    """A map whose units hold so many elements each."""
    if packed == 1:
        return map_
    inner, outer, batch = (f"({x}) / {packed}" for x in (map_.inner, map_.outer_stride, map_.batch_stride))
    return replace(map_, inner=inner, outer_stride=outer, batch_stride=batch)


def _maps(problem: GroupedGemmProblem, layout: GroupedGemmLayout) -> list[TensorMap]:
    gemm = problem.gemm
    kind = TMA_TF32 if gemm.compute_type == TF32 else TMA_TYPES[gemm.compute_type.bytes]
    maps = []
    for operand, mode in ((layout.a, "M"), *((b, "N") for b in layout.b)):
        access = operand.access
        along_k = operand.inner == "k"
        outer = (access.m if mode == "M" else access.n) if along_k else access.k[0]
        names = ("K", mode) if along_k else (mode, "K")
        size = max(1, access.elem.bytes)
        map_ = tensor_map(
            operand.name,
            access,
            kind if size == gemm.compute_type.bytes else TMA_TYPES[size],
            size,
            names,
            extent(outer or ()),
            operand.box,
            operand.width,
        )
        maps.append(_in_bytes(map_, access.elem.packed))
    for slot in layout.boxes:
        rows = slot.rows == "true"
        width = layout.columns * slot.size if rows else min(WIDEST, 64 * slot.size)
        maps.append(
            tensor_map(
                f"{slot.name}_map",
                slot.access,
                TMA_TYPES[slot.size],
                slot.size,
                ("N", "M") if rows else ("M", "N"),
                extent((slot.access.m if rows else slot.access.n) or ()),
                (layout.columns, 64) if rows else (width // slot.size, layout.columns),
                width,
            )
        )
    return maps
