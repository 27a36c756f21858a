"""A Hopper kernel that NVRTC builds in seconds: CUTLASS's kernel layer around collectives of our own.

Of a CUTLASS kernel's build nearly all is the layout algebra of CuTe in the epilogue's store and in the
partitioning of loads and multiplications. The main loop and the epilogue here compute addresses by plain
arithmetic instead; kernel layer, tile scheduler and pipelines are CUTLASS's. The host's side is plain C++
without CUTLASS, which fills the same parameters. The arithmetic is linked in (`ucutlass.emit.gemm.arithmetic_unit`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from ucutlass.emit import text
from ucutlass.emit.arithmetic import ArithmeticText, arithmetic
from ucutlass.emit.gemm import sm90 as gemm_sm90
from ucutlass.emit.gemm.arithmetic_unit import KERNEL_NAME, ROUNDED, arithmetic_text, declaration
from ucutlass.emit.gemm.lean_epilogue import (
    KEEP,
    EpilogueTensor,
    RowExchange,
    StoredResult,
    call,
    row_exchanges,
    slots,
    stored_results,
    unused_results,
)
from ucutlass.emit.gemm.lean_f16 import LINE as F16_LINE
from ucutlass.emit.gemm.lean_f16 import ROWS as F16_ROWS
from ucutlass.emit.gemm.lean_f16 import VECTOR as F16_VECTOR
from ucutlass.emit.gemm.lean_f16 import Parts, parts_of
from ucutlass.emit.gemm.lean_mainloop import (
    CROSS,
    TYPES,
    WIDEST,
    Chain,
    Instruction,
    SharedOperand,
    chains,
    instructions,
    modifiers,
    multiplied,
    operands,
    part_step,
    parts,
    passes,
    promotion,
    rest,
    small,
    turn,
    turned_operand,
)
from ucutlass.emit.gemm.lean_reductions import PartialReduction, combines, down
from ucutlass.emit.gemm.lean_split import BLOCKS, GROUP, VECTOR, Split, split_b, splits
from ucutlass.emit.gemm.sm90_epilogue import extent
from ucutlass.emit.parts import Lean, NotServed
from ucutlass.ir.elements import F32, TF32
from ucutlass.kernels.access import Access, Reduction, Store
from ucutlass.kernels.gemm.plan import (
    F32_CHAIN,
    REGISTER_MATHS,
    GemmPlan,
    GemmProblem,
    Sm90Schedule,
    multipliers,
)
from ucutlass.kernels.gemm.smem import SHARED_BYTES, SPLIT_BUFFERS, lean_epilogue

_SCHEDULER_BYTES: Mapping[str, int] = MappingProxyType({"persistent": 120, "stream_k": 280, "cluster_k": 120})
"""Size of CUTLASS's parameters of a tile scheduler (PersistentTileSchedulerSm90Params and its stream-K
sister); both compilers check it."""

TMA_TYPES: Mapping[int, int] = MappingProxyType({1: 0, 2: 1, 4: 2})
"""CUtensorMapDataType of elements that are only moved, by their bytes: UINT8, UINT16, UINT32."""

TMA_TF32 = 11
"""CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: TMA rounds what it loads."""


_COLLECTIVES = "CUTLASS's own collectives serve it"


@dataclass(frozen=True, slots=True)
class LeanLayout:
    """Everything that the templates read as `lean`."""

    a: SharedOperand
    b: SharedOperand
    loaded: tuple[SharedOperand, ...]
    rest: tuple[SharedOperand, ...]
    split_here: tuple[SharedOperand, ...]
    splits: tuple[Split, ...]
    f16_parts: tuple[Parts, ...]
    a_in_registers: bool
    ahead: bool
    a_through_registers: bool
    turns_b: bool
    portion: int
    instruction_k: int
    types: str
    modifiers: str
    constraint: str
    instructions: tuple[Instruction, ...]
    big_instructions: tuple[Instruction, ...]
    cross_instructions: tuple[Instruction, ...]
    chains: tuple[Chain, ...]
    chain: int
    k_chains: int
    chain_steps: tuple[int, int] | None
    promotion: int
    parts: int
    part_step: int
    turn: int
    warp_groups: int
    scheduler_bytes: int
    stream_k: bool
    cluster_k: bool
    columns: int
    store_buffers: int
    load_stages: int
    inputs: tuple[EpilogueTensor, ...]
    written: tuple[EpilogueTensor, ...]
    outputs: tuple[StoredResult, ...]
    combines: tuple[PartialReduction, ...]
    reads_coordinates: bool
    call: str
    two_batches: bool
    statistics: tuple[RowExchange, ...]
    keeps: bool
    keeping_call: str
    unused_results: tuple[str, ...]

    threads: int = 384
    shared_bytes: int = SHARED_BYTES
    split_blocks: int = BLOCKS
    split_buffers: int = SPLIT_BUFFERS

    @property
    def vector(self) -> int:
        return GROUP if self.a_in_registers else VECTOR

    @property
    def f16_vector(self) -> int:
        return F16_VECTOR

    @property
    def f16_rows(self) -> int:
        return F16_ROWS

    @property
    def f16_line(self) -> int:
        return F16_LINE

    @property
    def multiplied(self) -> tuple[SharedOperand, ...]:
        """What lies in shared memory, as wgmma reads it."""
        return tuple(self.b if operand.name == "b" else operand for operand in self.loaded)

    @property
    def turns(self) -> bool:
        return any(split.turned for split in self.splits)

    @property
    def copies(self) -> bool:
        return any(split.copied for split in self.splits)

    @property
    def flags(self) -> bool:
        """Whether the launch that splits says where it met what is not finite."""
        return bool(self.splits) and not self.a_in_registers

    @property
    def cooperative(self) -> bool:
        return self.warp_groups == 2

    @property
    def overlaps(self) -> bool:
        # Its locks are set to 0 on the stream before it, by what need not be a kernel.
        return not self.stream_k

    @property
    def stores(self) -> tuple[EpilogueTensor, ...]:
        return tuple(s for s in self.written if s.shape == "box")

    @property
    def loads(self) -> tuple[EpilogueTensor, ...]:
        return tuple(s for s in self.inputs if s.shape == "box")

    @property
    def staged(self) -> tuple[EpilogueTensor, ...]:
        return tuple(s for s in self.inputs if s.count)

    @property
    def direct_inputs(self) -> tuple[EpilogueTensor, ...]:
        return tuple(s for s in self.inputs if s.shape == "direct")

    @property
    def direct_outputs(self) -> tuple[EpilogueTensor, ...]:
        return tuple(s for s in self.written if s.shape == "direct")

    @property
    def down(self) -> bool:
        return down(self.combines)

    @property
    def destination(self) -> str:
        return next((s.element for s in self.stores), "cutlass::half_t")

    @property
    def coordinates(self) -> bool:
        return self.reads_coordinates or bool(self.direct_inputs)

    @property
    def stage_bytes(self) -> int:
        """That TMA brings for a k tile."""
        return sum(operand.bytes for operand in self.loaded)

    @property
    def boxes(self) -> tuple[EpilogueTensor, ...]:
        return (*self.loads, *self.stores)

    @property
    def load_bytes(self) -> int:
        """That TMA brings for a step."""
        return sum(self.warp_groups * 64 * self.columns * s.size for s in self.loads)

    @property
    def pointers(self) -> tuple[EpilogueTensor, ...]:
        return (*self.staged, *self.direct_inputs, *self.direct_outputs)


def listing(plan: GemmPlan) -> str:
    """The parts of a kernel that is built of them alone, as one file for people to read. Raises NotServed."""
    kernel = lean(plan)
    parts = (kernel.device.code, kernel.host, kernel.arithmetic)
    return text.render(
        "gemm/lean_listing.j2", parts=[part.replace(kernel.device.entry, text.PLACEHOLDER) for part in parts]
    )


def lean(plan: GemmPlan) -> Lean:
    """The plan's kernel for NVRTC. Raises NotServed."""
    try:
        return _lean(plan)
    except NotServed as why:
        served = "use `warps multistage`" if gemm_sm90.is_lean_alone(plan) else _COLLECTIVES
        raise NotServed(f"{why}: {served}") from None


def _lean(plan: GemmPlan) -> Lean:
    schedule, problem = _served(plan)
    operation = arithmetic(problem)
    layout = _layout(plan, problem, schedule, operation)
    mainloop, _, _ = gemm_sm90.WARPS[schedule.warps]
    batches = [extent(mode) for mode in problem.batch]
    values = {
        "lean": layout,
        "schedule": schedule,
        "problem": problem,
        "arithmetic": operation,
        "accumulator": gemm_sm90.ACCUMULATORS[problem.accumulate],
        "mainloop": mainloop,
        "scheduler": gemm_sm90.SCHEDULERS[schedule.scheduler],
        "declaration": declaration(operation),
        "kernel_name": KERNEL_NAME,
        "rounded": ROUNDED,
        "extents": [extent(product) for product in (problem.m, problem.n, problem.k[0])],
        "batch": " * ".join(batches) or "1",
        "batches": batches,
        "maps": _maps(layout, problem),
        "host": False,
    }
    device = text.finish(
        text.render("gemm/lean_device.j2", **values), "", "sm_" + plan.arch.removeprefix("sm")
    )
    host = text.render("gemm/lean_host.j2", **values).replace(text.PLACEHOLDER, device.entry)
    return Lean(device, host, arithmetic_text(operation))


def _served(plan: GemmPlan) -> tuple[Sm90Schedule, GemmProblem]:
    schedule, problem = plan.schedule, plan.problem
    if not isinstance(schedule, Sm90Schedule):
        raise NotServed("only TMA kernels for sm90a are built lean")
    refusals = {
        "k in several modes": len(problem.k) != 1,
        "more than two batch modes": len(problem.batch) > 2,
        "two batch modes in f32 or beside a reduction": len(problem.batch) == 2
        and (problem.compute_type == F32 or any(isinstance(o, Reduction) for o in problem.outputs)),
        "accumulation in f16": problem.accumulate == "f16",
        f"compute type {problem.compute_type.name}, math {schedule.math}": problem.compute_type.name
        not in TYPES
        or (problem.compute_type == F32) != (schedule.math not in ("tensor", "simt")),
        "operands without M, N or K": None in (problem.a.m, problem.b.n, problem.a.k[0], problem.b.k[0]),
        "elements of 8 bytes": any(a.elem.bytes > 4 for a in _accesses(problem)),
        "1-byte operands that are not K-major": problem.compute_type.bytes == 1
        and not problem.a.k[0] == problem.b.k[0] == (),
    }
    for what, refused in refusals.items():
        if refused:
            raise NotServed(what)
    return schedule, problem


def _accesses(problem: GemmProblem) -> tuple[Access, ...]:
    """Returns the accesses of the operands and results that lie over M and N, or that the kernel reads."""
    return (*problem.inputs, *(o.access for o in problem.outputs if isinstance(o, Store)))


@dataclass(frozen=True, slots=True)
class _MainLoop:
    """How the operands of `problem` come to be multiplied; `multiplied` has the elements that wgmma takes, `a` and `b` are its
    operands."""

    problem: GemmProblem
    schedule: Sm90Schedule
    multiplied: GemmProblem
    a: SharedOperand
    b: SharedOperand

    @property
    def groups(self) -> int:
        return 2 if self.schedule.warps == "cooperative" else 1

    @property
    def atoms(self) -> int:
        """Those of 64 rows that a warp group has."""
        return self.schedule.tile[0] // (64 * self.groups)

    @property
    def registers(self) -> int:
        """Accumulators of a thread."""
        return self.atoms * self.schedule.tile[1] // 2

    @property
    def in_parts(self) -> bool:
        """Whether TMA loads both parts of each operand."""
        return self.schedule.math == "tf32x3"

    @property
    def in_registers(self) -> bool:
        """Whether A is split in registers."""
        return self.schedule.math in REGISTER_MATHS

    @property
    def fused(self) -> bool:
        """Whether B is split in shared memory too."""
        return self.schedule.math == "tf32x3_fused"

    @property
    def in_f16(self) -> bool:
        return self.schedule.math == "f16x3"

    @property
    def a_through_registers(self) -> bool:
        return self.problem.compute_type == TF32 and self.a.inner == "mn"

    @property
    def turns_b(self) -> bool:
        """Whether B is turned in its place in shared memory."""
        return self.problem.compute_type == TF32 and self.problem.b.k[0] != ()

    @property
    def loaded(self) -> tuple[SharedOperand, ...]:
        """The operands that TMA loads."""
        a, b = self.a, self.b
        if self.in_parts or self.in_f16:
            return a, b, small(a), small(b)
        if self.in_registers and not self.fused:
            return a, b, small(b)
        turned = (self.fused and self.problem.b.k[0] != ()) or self.turns_b
        return a, turned_operand(self.problem, self.schedule, self.groups) if turned else b

    @property
    def splits(self) -> tuple[Split, ...]:
        """What a launch of its own splits."""
        if self.in_parts:
            return splits(self.problem, self.a, self.b)
        return split_b(self.problem, self.a, self.b) if self.in_registers and not self.fused else ()

    @property
    def split_here(self) -> tuple[SharedOperand, ...]:
        """Where the kernel writes the parts of B: big ones where B lay, if that was contiguous along K."""
        if not self.fused:
            return ()
        big = (replace(self.b, name="b_big"),) if self.problem.b.k[0] != () else ()
        return (*big, small(self.b))

    @property
    def k_chains(self) -> int:
        """The sums of a step of K that begin anew."""
        steps = len(self.a.instruction_steps)
        return steps // F32_CHAIN if (self.in_parts or self.in_registers) and steps % F32_CHAIN == 0 else 1

    @property
    def chain(self) -> int:
        """Instructions along K of such a sum."""
        return len(self.a.instruction_steps) // self.k_chains

    @property
    def chain_steps(self) -> tuple[int, int] | None:
        if not self.in_parts or self.k_chains == 1:
            return None
        return self.a.instruction_steps[F32_CHAIN], self.b.instruction_steps[F32_CHAIN]

    def instructions(self, columns: int) -> tuple[Instruction, ...]:
        """Of as many columns at a time; none where A passes through registers, which the template multiplies."""
        if self.in_registers or self.a_through_registers:
            return ()
        terms = passes(self.schedule)
        return tuple(instructions(self.a, self.b, self.atoms, columns, terms, slice(self.chain)))

    def big_instructions(self, columns: int) -> tuple[Instruction, ...]:
        return tuple(instructions(self.a, self.b, self.atoms, columns)) if self.in_parts else ()

    def cross_instructions(self, columns: int) -> tuple[Instruction, ...]:
        if not (self.in_parts or self.in_f16):
            return ()
        return tuple(instructions(self.a, self.b, self.atoms, columns, CROSS))

    def loads_ahead(self, reduces: bool) -> bool:
        """Whether registers hold the parts of A of the next turn beside those of this one."""
        most = _MOST_BESIDE if reduces or self.fused else _MOST_AHEAD
        return self.in_registers and self.atoms == 1 and 2 * (self.registers + _TURN) <= most


def _layout(
    plan: GemmPlan, problem: GemmProblem, schedule: Sm90Schedule, operation: ArithmeticText
) -> LeanLayout:
    loop = _main_loop(problem, schedule)
    a, b, atoms, registers = loop.a, loop.b, loop.atoms, loop.registers
    inputs, outputs = slots(plan, problem, schedule)
    reduced = combines(problem, schedule, operation)
    epilogue = lean_epilogue(problem, plan.routes, schedule)
    if epilogue is None:
        raise NotServed("shared memory, which it uses less sparingly")
    accumulate = "s32" if problem.compute_type.kind == "int" else "f32"
    types = (TYPES[multiplied(loop.multiplied, operand).name] for operand in (problem.a, problem.b))
    promoted = promotion(loop.multiplied, schedule)
    count = parts(schedule, promoted, registers)
    columns = schedule.tile[1] // count
    return LeanLayout(
        a=a,
        b=b,
        loaded=loop.loaded,
        rest=(rest(a), rest(b)) if loop.in_f16 else (),
        split_here=loop.split_here,
        splits=loop.splits,
        f16_parts=parts_of(problem, a, b) if loop.in_f16 else (),
        a_in_registers=loop.in_registers,
        ahead=loop.loads_ahead(bool(reduced)),
        a_through_registers=loop.a_through_registers,
        turns_b=loop.turns_b,
        portion=math.gcd(schedule.tile[2] // 8, max(1, 4 // atoms)),
        instruction_k=32 // loop.multiplied.compute_type.bytes,
        types=".".join((accumulate, *types)),
        modifiers=modifiers(loop.multiplied, a, b),
        constraint="r" if accumulate == "s32" else "f",
        instructions=loop.instructions(columns),
        big_instructions=loop.big_instructions(columns),
        cross_instructions=loop.cross_instructions(columns),
        chains=tuple(chains(a, b, atoms, columns)) if loop.in_f16 else (),
        chain=loop.chain,
        k_chains=loop.k_chains,
        chain_steps=loop.chain_steps,
        promotion=promoted,
        parts=count,
        part_step=part_step(b, columns),
        turn=turn(schedule, promoted, registers, atoms),
        warp_groups=loop.groups,
        scheduler_bytes=_SCHEDULER_BYTES[schedule.scheduler],
        stream_k=schedule.scheduler == "stream_k",
        cluster_k=schedule.scheduler == "cluster_k",
        columns=epilogue.columns,
        store_buffers=epilogue.store_buffers,
        load_stages=epilogue.load_stages,
        inputs=tuple(inputs),
        written=tuple(outputs),
        outputs=stored_results(outputs, operation),
        combines=reduced,
        reads_coordinates=operation.coordinates,
        two_batches=len(problem.batch) == 2,
        call=call(operation, inputs, later=bool(operation.statistics)),
        statistics=row_exchanges(operation, inputs),
        keeps=operation.keeps,
        keeping_call=call(operation, inputs, ready=0, target=KEEP),
        unused_results=unused_results(operation),
    )


def _main_loop(problem: GemmProblem, schedule: Sm90Schedule) -> _MainLoop:
    factors = multipliers(problem, schedule.math)
    a, b = operands(factors, schedule, 2 if schedule.warps == "cooperative" else 1)
    return _MainLoop(problem, schedule, factors, a, b)


_TURN = 32
"""Registers of the parts of A of a turn: of four steps of K, two numbers for each of 4 elements."""

_MOST_AHEAD, _MOST_BESIDE = 192, 176
"""Those with two sets of accumulators and the parts of two turns, and where the epilogue reduces or B is split here:
ptxas 13.0 keeps them, but for six bytes beside stream-K of 128 columns, outside of the loop."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """One TMA descriptor: its place in the parameters, its tensor's position, and as C++ the extents and
    strides (in elements) of its inner, outer and batch modes; `box` has the elements of the first two."""

    place: str
    pointer: int
    type: int
    size: int
    inner: str
    outer: str
    batch: str
    outer_stride: str
    batch_stride: str
    box: tuple[int, int]
    swizzle: int
    second: str = "1"
    second_stride: str = "0"


_SWIZZLES: Mapping[int, int] = MappingProxyType({16: 0, 32: 1, 64: 2, 128: 3})
"""CUtensorMapSwizzle by the bytes of a box's row."""


def _maps(layout: LeanLayout, problem: GemmProblem) -> list[TensorMap]:
    maps = []
    for operand, mode in ((layout.a, "M"), (layout.loaded[1], "N")):
        access = operand.access
        across = access.m if mode == "M" else access.n
        along_k = operand.inner == "k"
        rounded = problem.compute_type in (TF32, F32) and not layout.a_in_registers
        kind = TMA_TF32 if rounded else TMA_TYPES[problem.compute_type.bytes]
        extents = ("K", mode) if along_k else (mode, "K")
        outer = across if along_k else access.k[0]
        maps.append(
            tensor_map(
                f"mainloop.{operand.name}",
                access,
                kind,
                problem.compute_type.bytes,
                extents,
                extent(outer or ()),
                operand.box,
                operand.width,
            )
        )
    maps = _split_maps(layout, maps)
    for slot in layout.boxes:
        access, rows = slot.access, slot.rows == "true"
        width = layout.columns * slot.size if rows else min(WIDEST, 64 * slot.size)
        box = (layout.columns, 64) if rows else (width // slot.size, layout.columns)
        outer = access.m if rows else access.n
        maps.append(
            tensor_map(
                f"epilogue.{slot.name}_map",
                access,
                TMA_TYPES[slot.size],
                slot.size,
                ("N", "M") if rows else ("M", "N"),
                extent(outer or ()),
                box,
                width,
            )
        )
    return maps


def _split_maps(layout: LeanLayout, maps: list[TensorMap]) -> list[TensorMap]:
    """The operands' descriptors, those of copies for the operands that are copied, and those of small parts."""
    if layout.f16_parts:
        return [
            TensorMap(
                place=f"mainloop.{operand.name}",
                pointer=pointer,
                type=TMA_TYPES[2],
                size=2,
                inner=parts.inner,
                outer=parts.outer,
                batch=parts.batches,
                outer_stride=parts.padded,
                batch_stride=f"{parts.padded} * {parts.outer}",
                box=operand.box,
                swizzle=_SWIZZLES[operand.width],
            )
            for parts in layout.f16_parts
            for operand, pointer in zip(
                (o for o in (*layout.loaded, *layout.rest) if o.name.startswith(parts.name)),
                (parts.hi, parts.lo, parts.rest),
                strict=True,
            )
        ]
    if layout.a_in_registers and layout.splits:
        # A row of the copy ends with zeros, among which the last group's elements may lie.
        (split,) = layout.splits
        batch = f"padded * {split.rows}"
        big = replace(maps[1], pointer=split.big, inner="padded", outer_stride="padded", batch_stride=batch)
        return [maps[0], big, replace(big, place=f"mainloop.{layout.loaded[2].name}", pointer=split.small)]
    for i, split in enumerate(layout.splits):
        if split.turned:
            maps[i] = replace(
                maps[i], pointer=split.big, outer_stride="padded", batch_stride=f"padded * {split.rows}"
            )
    for split, operand in zip(layout.splits, layout.loaded[2:], strict=False):
        maps.append(
            replace(
                tensor_map(
                    f"mainloop.{operand.name}",
                    operand.access,
                    TMA_TF32,
                    4,
                    ("K", split.rows),
                    "padded",
                    operand.box,
                    operand.width,
                ),
                pointer=split.small,
                batch_stride=f"padded * {split.rows}",
            )
        )
    return maps


def tensor_map(
    place: str,
    access: Access,
    kind: int,
    size: int,
    extents: tuple[str, str],
    outer_stride: str,
    box: tuple[int, int],
    width: int,
) -> TensorMap:
    names = ("L0", "L1") if len(access.batch) == 2 else ("L",)
    modes = [
        ("1", "0") if stride is None else (name, extent(stride))
        for name, stride in zip(names, access.batch, strict=False)
    ]
    (batch, batch_stride), (second, second_stride) = (*modes, ("1", "0"), ("1", "0"))[:2]
    return TensorMap(
        place=place,
        pointer=access.pointer,
        type=kind,
        size=size,
        inner=extents[0],
        outer=extents[1],
        batch=batch,
        outer_stride=outer_stride,
        batch_stride=batch_stride,
        box=box,
        swizzle=_SWIZZLES[width],
        second=second,
        second_stride=second_stride,
    )
