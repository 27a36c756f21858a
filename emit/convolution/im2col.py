"""Convolution as an implicit GEMM of Hopper: TMA's im2col mode fills swizzled shared memory, wgmma
multiplies, the multistage GEMM's epilogue stores. f32 is multiplied in three TF32 passes, with A in registers
(`im2col_split.j2`), or in three f16 passes (`im2col_f16x3.j2`), and TF32 in one of f16 too (`im2col_f16.j2`).

A stage holds `parts` parts of K, each one tap of the windows and up to 128 bytes of channels. Layouts in
shared memory and their descriptors are those of the PTX manual, "Asynchronous Warpgroup Level Matrix
Shared Memory Layout", K-major.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.emit import text
from ucutlass.emit.convolution import operands as convolution
from ucutlass.emit.convolution.stacked import alone, stacked_weights
from ucutlass.emit.gemm import sm80 as gemm_sm80
from ucutlass.emit.gemm import sm80_epilogue as epilogue
from ucutlass.ir.elements import BF16, F16, F32, TF32
from ucutlass.kernels.access import Reduction, Store
from ucutlass.kernels.convolution.plan import (
    IN_F16,
    ConvolutionProblem,
    Im2colSchedule,
    OperandAccess,
    Stack,
    WgradSchedule,
)
from ucutlass.kernels.convolution.plan_im2col import Im2col, im2col
from ucutlass.kernels.convolution.smem import (
    CONSUMER_REGISTERS,
    PARTS,
    deep,
    end_of_tiles,
    rows_staged,
    runs_of,
    tables_bytes,
)
from ucutlass.kernels.gemm.plan import F16_CHAIN, GemmProblem

INCLUDES = (
    "<algorithm>",
    "<atomic>",
    "<cstdint>",
    "<cstring>",
    "<initializer_list>",
    "<type_traits>",
    "<cuda.h>",
    "<cuda_runtime.h>",
    "<cuda/std/limits>",
)
F16_INCLUDES = ("<cuda_fp16.h>", "cutlass/half.h")

RANGE_BLOCKS = 1024
"""Blocks that share a copy in f16 parts, of which each leaves the range that it has met."""


@dataclass(frozen=True, slots=True)
class WgmmaType:
    """How wgmma takes a compute type: operand types, its K, what follows the predicate, TMA's element."""

    types: str
    k: int
    modifiers: str
    tma: str


WGMMA_TYPES: Mapping[str, WgmmaType] = MappingProxyType(
    {
        F16.name: WgmmaType("f32.f16.f16", 16, ", 1, 1, 0, 0", "CU_TENSOR_MAP_DATA_TYPE_FLOAT16"),
        BF16.name: WgmmaType("f32.bf16.bf16", 16, ", 1, 1, 0, 0", "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16"),
        TF32.name: WgmmaType("f32.tf32.tf32", 8, ", 1, 1", "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32"),
        F32.name: WgmmaType("f32.tf32.tf32", 8, ", 1, 1", "CU_TENSOR_MAP_DATA_TYPE_FLOAT32"),
    }
)
"""TMA rounds f32 to TF32 as it reads, to nearest, ties to even, where its element is TFLOAT32."""

_SWIZZLE = {128: 1, 64: 2, 32: 3}
"""The descriptor's code by a row's bytes."""


@dataclass(frozen=True, slots=True)
class DimText:
    """A dimension of a TMA tensor as C++: extent, bytes to the next, coordinate, box."""

    extent: str
    stride: str
    at: str
    box: str


@dataclass(frozen=True, slots=True)
class Im2colAxisText:
    """A spatial axis as C++. `stack`: the remainders of its results that are columns, of which there are `whole` in all;
    the first row begins `shift` before the first."""

    scale: int
    step: int
    tap: int
    results: str
    taps: str
    extent: str
    offset: str
    shared: int
    stack: int
    shift: int
    whole: str


def render(problem: ConvolutionProblem, schedule: Im2colSchedule) -> str:
    """The code of a plan with an Im2colSchedule, for `ucutlass.emit.text.finish`.

    Raises ValueError for a problem that TMA cannot gather, or a schedule that breaks `check`'s rules.
    """
    how = im2col(problem)
    if isinstance(how, str):
        raise ValueError(how)
    if reason := check(problem, schedule):
        raise ValueError(reason)
    layout = layout_of(convolution.epilogue_gemm(problem), how)
    together = not how.scattered and (how.phases == 1 or problem.stacked > 1)
    stores_sums = together and _stores_sums(problem, schedule, layout)
    if schedule.halo and not stores_sums:
        raise ValueError("runs of rows are of results that are stored from registers")
    if problem.stacked > 1 and not stores_sums:
        raise ValueError("stacked columns are stored from registers alone")
    if stores_sums:
        layout = epilogue.EpilogueLayout(layout.contiguous_mode, 1)
    contiguous_mode = epilogue.layout(problem.gemm).contiguous_mode
    apart = problem.stacked == 1 and (how.phases > 1 or how.scattered or schedule.halo > 0)
    return text.render(
        "convolution/im2col.cu.j2",
        stage_rows=rows_staged(problem, schedule, contiguous_mode),
        reduces_rows=_reduces_rows(problem),
        stores_sums=stores_sums,
        apart=apart,
        scattered_images=how.scattered,
        pairs=_stores_pairs(how),
        **_mainloop(problem, schedule),
        **_operands(problem, schedule, how),
        **_epilogue(problem, schedule, how, layout, apart, end_of_tiles(problem, schedule, contiguous_mode)),
    )


def _epilogue(
    problem: ConvolutionProblem,
    schedule: Im2colSchedule,
    how: Im2col,
    layout: epilogue.EpilogueLayout,
    apart: bool,
    end: int,
) -> dict[str, object]:
    """The variables of convolutions' epilogue; `apart`: of rows by a table, `end` as `hopper_values` takes it."""
    values = convolution.values(problem, layout, "int(row)" if apart else epilogue.ROW)
    values |= hopper_values(problem, schedule, end, values)
    if problem.stacked > 1:
        values["n"] = f"{values['n']} * {problem.stacked}"
    elif how.phases > 1 or how.scattered:
        # Of a cluster, `shared` is the block's own share of the staged rows.
        own = " - 4 * staged(first_row % kStageRows, 0)" if schedule.split_k > 1 else ""
        values["scattered"] = f"row_table(shared{own})"
    if how.across:
        values["modifiers"] = ", 1, 1, 0, 1"
    return values


def _mainloop(problem: ConvolutionProblem, schedule: Im2colSchedule) -> dict[str, object]:
    """How steps of K are divided among stages, groups of warps, and passes."""
    passes, tile = problem.passes, schedule.tile
    whole_group = deep(*tile[:2], schedule.groups, passes)
    halved = whole_group and passes == "tensor"
    sums = tile[0] * tile[1] // schedule.groups
    return {
        "parts": tile[2] // schedule.part,
        "deep": whole_group,
        "consumer_registers": CONSUMER_REGISTERS.get(schedule.groups),
        "split": passes == "tf32x3",
        "in_f16": passes in IN_F16,
        "f16x3": passes == "f16x3",
        "parts_of_a": PARTS[passes][0],
        "parts_of_b": PARTS[passes][1],
        "range_blocks": RANGE_BLOCKS,
        "chain": F16_CHAIN,
        "split_k": schedule.split_k,
        "halo": schedule.halo,
        "runs": runs_of(schedule),
        "halves": 2 if halved else 1,
        "registers": tile[1] // (4 if halved else 2),
        "groups_at_once": 2 if sums <= 4096 or (schedule.blocks == 1 and not whole_group) else 1,
    }


def _operands(problem: ConvolutionProblem, schedule: Im2colSchedule, how: Im2col) -> dict[str, object]:
    """Where images and weights lie, and how TMA gathers them."""
    row_bytes = schedule.part * problem.a.read.bytes
    b_dims = _b_dims(problem, how)
    return {
        "stacked": problem.stacked,
        "stack": stacked_weights(problem, how),
        "alone": alone(problem, how),
        "a_elements": " * ".join(text.extent for text in convolution.layout(problem.a)),
        "b_elements": " * ".join(text.extent for text in convolution.layout(problem.b)),
        "phases": how.phases,
        "windows": _space(problem, how),
        "across": how.across,
        "row_bytes": row_bytes,
        "swizzle_code": _SWIZZLE[row_bytes],
        "image": _image(problem, how),
        "images": _images(problem, how),
        "first_channel": _first_channel(problem, how),
        "channels": _channels(problem, how),
        "grouped": how.group is not None,
        "joined": _joined(problem, how),
        "a_dims": _a_dims(problem, how),
        "b_dims": b_dims,
        "b_rank": len(b_dims),
    }


def hopper_values(
    problem: ConvolutionProblem,
    schedule: Im2colSchedule | WgradSchedule,
    end: int,
    values: Mapping[str, object],
) -> Mapping[str, object]:
    """The variables that both kernels of TMA and wgmma take beside `values`; `end`: bytes of shared memory that
    stages or the epilogue use, behind which the table of rows and the barriers lie."""
    compute_type, (tile_m, _, _) = _wgmma_type(problem), schedule.tile
    return {
        "includes": gemm_sm80.includes(
            (*INCLUDES, *(F16_INCLUDES if problem.passes in IN_F16 else ())),
            convolution.numeric_includes(problem, str(values["arithmetic"])),
        ),
        "tile": schedule.tile,
        "part": schedule.part,
        "groups": schedule.groups,
        "stages": schedule.stages,
        "blocks": schedule.blocks,
        "shared_bytes": end + tables_bytes(tile_m, schedule.stages + runs_of(schedule)),
        "tables": end,
        "barriers": end + 4 * tile_m,
        "instruction_k": compute_type.k,
        "types": compute_type.types,
        "modifiers": compute_type.modifiers,
        "swizzle_name": f"CU_TENSOR_MAP_SWIZZLE_{schedule.part * problem.a.read.bytes}B",
        "tma_type": compute_type.tma,
        "strides_alone": True,
        "early_launches": True,
    }


def _wgmma_type(problem: ConvolutionProblem) -> WgmmaType:
    """How wgmma takes what it reads: the compute type, or parts of it."""
    return WGMMA_TYPES[F16.name if problem.passes in IN_F16 else problem.compute_type.name]


def check(problem: ConvolutionProblem, schedule: Im2colSchedule) -> str:
    """Why the template cannot take this schedule, or ""."""
    m, n, k = schedule.tile
    if problem.compute_type.name not in WGMMA_TYPES or problem.gemm.accumulate != "f32":
        return f"compute type {problem.compute_type.name} accumulated in {problem.gemm.accumulate} has no wgmma here"
    compute_type = _wgmma_type(problem)
    if m % (64 * schedule.groups) or not 8 <= n <= 256 or n % 8:
        return f"tile {m}x{n} is not whole instructions of {schedule.groups} warp groups"
    if isinstance(how := im2col(problem), Im2col) and how.across and n % 64:
        return f"tile N {n} is not whole rows of 128 bytes"
    if (
        schedule.part % compute_type.k
        or schedule.part * problem.a.read.bytes not in _SWIZZLE
        or k % schedule.part
    ):
        return (
            f"parts of {schedule.part} channels are no rows of 32 to 128 bytes, or tile K {k} no whole parts"
        )
    return ""


def _reduces_rows(problem: ConvolutionProblem) -> bool:
    """Whether all results are reductions of rows over columns."""
    outputs = problem.gemm.outputs
    return all(isinstance(o, Reduction) and o.of_rows for o in outputs)


def _stores_sums(
    problem: ConvolutionProblem, schedule: Im2colSchedule, layout: epilogue.EpilogueLayout
) -> bool:
    """Whether results are stored from registers: those of f16 passes whose rows are neighbours in memory. Of rows that
    lie apart, sectors would be written in parts."""
    stored = all(isinstance(o, Store) for o in problem.gemm.outputs)
    return stored and problem.passes in IN_F16 and layout.contiguous_mode == "m" and schedule.split_k == 1


def _stores_pairs(how: Im2col) -> bool:
    """Whether neighbouring columns are neighbouring results, as remainders of the innermost window."""
    stack = how.space[0].stack
    return stack is not None and stack.scale % 2 == 0


def layout_of(gemm: GemmProblem, how: Im2col) -> epilogue.EpilogueLayout:
    """As the multistage GEMM's; along M, no two rows are neighbours where those of several phases, or of several images,
    lie apart."""
    layout = epilogue.layout(gemm)
    apart = how.phases > 1 or how.scattered
    return epilogue.EpilogueLayout("m", 1) if layout.contiguous_mode == "m" and apart else layout


# --- text -------------------------------------------------------------------------


def extent_of(operand: OperandAccess, axis: int) -> str:
    """An axis's extent as it lies when the product reads it, as C++."""
    return next(text.extent for text in convolution.layout(operand) if text.axis == axis)


def _space(problem: ConvolutionProblem, how: Im2col) -> tuple[Im2colAxisText, ...]:
    return tuple(
        Im2colAxisText(
            s.scale,
            s.step,
            s.tap,
            f"e[{s.result}]" if s.stack is None else _stacked_results(s.result, s.stack),
            "1"
            if s.tap_dim is None
            else f"e[{s.tap_dim}]"
            if s.stack is None
            else convolution.spelled(s.stack.length),
            f"e[{s.result}]" if s.folded else extent_of(problem.a, s.axis),
            convolution.spelled(s.offset),
            s.shared,
            1 if s.stack is None else s.stack.scale,
            0 if s.stack is None else s.stack.shift,
            f"e[{s.result}]",
        )
        for s in how.space
    )


def _stacked_results(result: int, stack: Stack) -> str:
    return f"ceil_div(e[{result}]{f' + {stack.shift}' if stack.shift else ''}, {stack.scale})"


def _batch_of(problem: ConvolutionProblem, dim: int) -> str | None:
    return next((f"batch[{i}]" for i, run in enumerate(problem.batch) if run == (dim,)), None)


def _image(problem: ConvolutionProblem, how: Im2col) -> str:
    if how.image is None:
        return "0"
    dim = problem.a.axes[how.image].extent
    return "rest" if dim in problem.m else _batch_of(problem, dim) or "0"


def _images(problem: ConvolutionProblem, how: Im2col) -> str:
    """Images that a phase's rows go over."""
    if how.image is None or problem.a.axes[how.image].extent not in problem.m:
        return "1"
    return f"e[{problem.a.axes[how.image].extent}]"


def _first_channel(problem: ConvolutionProblem, how: Im2col) -> str:
    if how.group is None:
        return "0"
    if problem.b.join is not None:
        return "int(tile.n / kTileN) * plan.group"
    return f"int({_batch_of(problem, problem.a.axes[how.group].extent)}) * plan.group"


def _dim(extent: str) -> str:
    return f"cuuint64_t({extent})"


def windowed_dims(
    problem: ConvolutionProblem, channel: int, space: tuple[int, ...], image: int | None, group: int | None
) -> tuple[DimText, ...]:
    """A's axes as TMA's dimensions: channels of all groups, `space` innermost first, images."""
    channels = extent_of(problem.a, channel)
    if group is not None:
        channels = f"{channels} * {extent_of(problem.a, group)}"

    def dim(axis: int) -> DimText:
        return DimText(
            _dim(extent_of(problem.a, axis)), f"cuuint64_t(p.a.stride[{axis}]) * sizeof(ElementA)", "", ""
        )

    dims = [DimText(_dim(channels), "", "", ""), *(dim(axis) for axis in space)]
    if image is not None:
        return (*dims, dim(image))
    last = space[-1]
    return (
        *dims,
        DimText(
            "1", f"cuuint64_t(p.a.stride[{last}] * {extent_of(problem.a, last)}) * sizeof(ElementA)", "", ""
        ),
    )


def _channels(problem: ConvolutionProblem, how: Im2col) -> str:
    """The channels of a tap, of all taps of a folded window."""
    padded = convolution.layout(problem.a)[0].extent
    if problem.b.join is not None:
        return f"{problem.b.join.count} * ({padded})"
    return padded if how.fold is None else f"e[{how.fold.tap_dim}] * ({padded})"


def _joined(problem: ConvolutionProblem, how: Im2col) -> str:
    """The columns of the groups that share a tile, as C++; "" where each has tiles of its own."""
    join = problem.b.join
    return "" if join is None else f"{join.count} * {extent_of(problem.b, how.columns[0])}"


def _a_dims(problem: ConvolutionProblem, how: Im2col) -> tuple[DimText, ...]:
    """A's axes; a folded window's taps are channels, and its results overlap."""
    dims = windowed_dims(problem, how.channel, tuple(s.axis for s in how.space), how.image, how.group)
    if how.fold is None:
        return dims
    channels = DimText(_dim(_channels(problem, how)), "", "", "")
    stride = f"{how.fold.step} * {dims[1].stride}"
    return (channels, DimText(_dim(f"e[{how.fold.result}]"), stride, "", ""), *dims[2:])


def _b_dims(problem: ConvolutionProblem, how: Im2col) -> tuple[DimText, ...]:
    b = problem.b
    dims: list[DimText] = []
    taps = {s.tap_dim: i for i, s in enumerate(how.space) if s.tap_dim is not None}
    columns = False
    for axis in reversed(b.order):
        stride = f"cuuint64_t(p.b.stride[{axis}]) * sizeof(ElementB)"
        if axis == how.channel_b:
            extent = extent_of(b, axis)
            if b.fold is not None:
                extent = f"{extent_of(b, b.fold.axis)} * ({extent})"
            dims.append(DimText(_dim(extent), stride, "channel", "kPart"))
        elif b.fold is not None and axis == b.fold.axis:
            continue
        elif axis in how.columns:
            if not columns:
                extent = " * ".join(extent_of(b, i) for i in how.columns)
                at, box = ("column + 64 * block", "64") if how.across else ("column", "kTileN")
                if how.flat and how.group_b is not None:
                    # A tile's columns beyond its group are the next one's; they are not stored.
                    at += f" + int({_batch_of(problem, b.axes[how.group_b].extent)} * p.n)"
                    extent += f" * {extent_of(b, how.group_b)}"
                dims.append(DimText(_dim(extent), stride, at, box))
            columns = True
        elif axis == how.group_b and how.flat:
            continue
        elif axis == how.group_b:
            dims.append(
                DimText(
                    _dim(extent_of(b, axis)), stride, f"int({_batch_of(problem, b.axes[axis].extent)})", "1"
                )
            )
        else:
            tap = f"weight[{taps[b.axes[axis].extent]}]"
            dims.append(DimText(_dim(extent_of(b, axis)), stride, tap, "1"))
    return tuple(dims)
