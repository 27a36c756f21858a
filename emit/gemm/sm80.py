"""The multistage GEMM: cp.async into swizzled shared memory, mma.sync or FFMA.

It takes what Hopper's TMA collectives cannot (any alignment, any strides, any extents) and
runs on compute capability 8.0 and later. The templates are `gemm_sm80*.j2`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from ucutlass.emit import text
from ucutlass.emit.arithmetic import INCLUDES as ARITHMETIC_INCLUDES
from ucutlass.emit.arithmetic import arithmetic
from ucutlass.emit.gemm import sm80_epilogue as epilogue
from ucutlass.ir.elements import BF16, E4M3, E5M2, F16, F32, S8, TF32, Element
from ucutlass.kernels.access import Access
from ucutlass.kernels.gemm.plan import GemmProblem, Sm80Schedule
from ucutlass.kernels.gemm.smem import SM80_PAD_M, SM80_PAD_N, sm80_bytes, sm80_rows


@dataclass(frozen=True, slots=True)
class Mma:
    """How a compute type multiplies on tensor cores.

    `shape` and `types` are those of the `mma.sync` instruction in PTX. `k` is the extent along K in elements of
    the operands' fragments. `multiply` chooses what turns fragments into products, see `gemm/sm80_mma.j2`;
    `fp8` is the narrow type where that widens, `fp8_b` that of B where it is another. `sum` is the type of the
    sums, `registers` how many registers an instruction's sums take, `register` and `constraint` the type of these
    registers in C++ and in asm.
    """

    shape: str
    types: str
    k: int
    multiply: Literal["plain", "tf32", "tf32x3", "fp8"]
    sum: str = "float"
    register: str = "float"
    constraint: str = "f"
    registers: int = 4
    fp8: str = ""
    fp8_b: str = ""


_F16_SUMS = Mma("m16n8k16", "f16.f16.f16.f16", 16, "plain", F16.cpp, "uint32_t", "r", 2)

MMAS: Mapping[tuple[str, str, str], Mma] = MappingProxyType(
    {
        (F16.name, "f32", "tensor"): Mma("m16n8k16", "f32.f16.f16.f32", 16, "plain"),
        (F16.name, "f16", "tensor"): _F16_SUMS,
        (BF16.name, "f32", "tensor"): Mma("m16n8k16", "f32.bf16.bf16.f32", 16, "plain"),
        (TF32.name, "f32", "tensor"): Mma("m16n8k8", "f32.tf32.tf32.f32", 8, "tf32"),
        (F32.name, "f32", "tf32x3"): Mma("m16n8k8", "f32.tf32.tf32.f32", 8, "tf32x3"),
        (S8.name, "s32", "tensor"): Mma("m16n8k32", "s32.s8.s8.s32", 32, "plain", "int32_t", "int32_t", "r"),
        **{
            (elem.name, accumulate, "tensor"): Mma("m16n8k16", "f32.f16.f16.f32", 32, "fp8", fp8=elem.cpp)
            for elem in (E4M3, E5M2)
            for accumulate in ("f32", "fast")
        },
    }
)
"""By compute type, accumulation and math. fp8 products are made in f16, exactly, and added in f32, also
where `fast` would allow less. f32 with `simt` needs no entry."""


@dataclass(frozen=True, slots=True)
class Copies:
    """How a matrix operand gets to shared memory and from there to registers.

    `load` is the way to shared memory and `loader` its C++ type. There, lines of `line` elements lie along K
    where `shared_k` is "true", and `swizzle` has the parameters of CuTe's Swizzle. `read` is the copy to
    registers.
    """

    load: Literal["async", "staged"]
    loader: str
    line: int
    swizzle: str
    shared_k: str
    read: Literal["ldmatrix", "ldmatrix_trans", "element"]


def render(problem: GemmProblem, schedule: Sm80Schedule) -> str:
    """The code of a plan with an Sm80Schedule, for `ucutlass.emit.text.finish`.

    Raises ValueError for a schedule that breaks `check`'s rules.
    """
    if reason := check(problem, schedule):
        raise ValueError(reason)
    mma = _mma(problem, schedule)
    warps = warps_of(schedule)
    layout = epilogue.layout(problem)
    stage_rows = rows_staged(problem, schedule)
    spell = arithmetic(problem)
    return text.render(
        "gemm/sm80.cu.j2",
        includes=includes(INCLUDES),
        tile=schedule.tile,
        warps=warps,
        stages=schedule.stages,
        stage_rows=stage_rows,
        shared_bytes=shared_bytes(problem, schedule),
        a=epilogue.matrix(problem.a, problem.a.m),
        b=epilogue.matrix(problem.b, problem.b.n),
        copy_a=_copies(problem.a, "A", schedule.tile[0], schedule.tile[2]),
        copy_b=_copies(problem.b, "B", schedule.tile[1], schedule.tile[2]),
        mma=mma,
        sum=mma.sum if mma else "float",
        accumulator="int32_t" if problem.compute_type == S8 else "float",
        **staged(layout),
        **epilogue.values(problem, layout, spell),
    )


def staged(layout: epilogue.EpilogueLayout) -> Mapping[str, str]:
    """How accumulators lie in shared memory as C++."""
    return {
        "pitch": f"kTileN + {SM80_PAD_N}" if layout.contiguous_mode == "n" else f"kStageRows + {SM80_PAD_M}",
        "stage_elements": "kStageRows * kStagePitch"
        if layout.contiguous_mode == "n"
        else "kTileN * kStagePitch",
        "sums_per_tile": "kTileM * kTileN",
    }


def warps_of(schedule: Sm80Schedule) -> tuple[int, int]:
    """Warps along M and N."""
    return schedule.tile[0] // schedule.warp_tile[0], schedule.tile[1] // schedule.warp_tile[1]


def rows_staged(problem: GemmProblem, schedule: Sm80Schedule) -> int:
    """The rows that the epilogue takes at a time in the main loop's shared memory."""
    contiguous_mode = epilogue.layout(problem).contiguous_mode
    return sm80_rows(problem, schedule.tile, schedule.warp_tile, schedule.stages, contiguous_mode)


def shared_bytes(problem: GemmProblem, schedule: Sm80Schedule) -> int:
    """Dynamic shared memory of a thread block, in bytes."""
    return sm80_bytes(problem, schedule, epilogue.layout(problem).contiguous_mode)


def check(problem: GemmProblem, schedule: Sm80Schedule) -> str:
    """Why the template cannot take this schedule, or "": what divides what. Shared memory and
    registers are the legality rules' business."""
    key = (problem.compute_type.name, problem.accumulate, schedule.math)
    if key not in MMAS and (schedule.math, problem.compute_type) != ("simt", F32):
        return f"compute type {key[0]} accumulated in {key[1]} has no math '{key[2]}'"
    mma = _mma(problem, schedule)
    m, n, k = schedule.tile
    warp_m, warp_n = schedule.warp_tile
    steps = {"warp tile M": (warp_m, 16), "warp tile N": (warp_n, 16 if mma else 32)}
    steps["tile K"] = (k, 2 * mma.k if mma else 16)
    for what, (value, step) in steps.items():
        if value < step or value % step:
            return f"{what} is {value}, not a multiple of {step}"
    if m % warp_m or n % warp_n:
        return f"tile {m}x{n} is not whole warp tiles of {warp_m}x{warp_n}"
    warps = (m // warp_m) * (n // warp_n)
    if warps > 32 or warps & (warps - 1):
        return f"{warps} warps: a power of two up to 32 is needed"
    if not 2 <= schedule.stages <= 16:
        return f"{schedule.stages} stages: 2 to 16 are possible"
    return ""


def _mma(problem: GemmProblem, schedule: Sm80Schedule) -> Mma | None:
    if schedule.math == "simt":
        return None
    mma, a, b = (
        MMAS[problem.compute_type.name, problem.accumulate, schedule.math],
        problem.a.elem,
        problem.b.elem,
    )
    return replace(mma, fp8=a.cpp, fp8_b=b.cpp) if mma.fp8 and a is not b else mma


INCLUDES = (
    "<algorithm>",
    "<atomic>",
    "<cstdint>",
    "<cstring>",
    "<initializer_list>",
    "<numeric>",
    "<type_traits>",
    "<cuda_runtime.h>",
    "<cuda/std/limits>",
)
"""The headers of a multistage kernel."""


def includes(own: Sequence[str], arithmetic: Sequence[str] = ARITHMETIC_INCLUDES) -> tuple[str, ...]:
    """The headers' names as #include takes them: the template's own, then the arithmetic's."""
    every = dict.fromkeys((*own, *arithmetic))
    system = [name for name in every if name.startswith("<")]
    return (*system, *(f'"{name}"' for name in every if not name.startswith("<")))


# --- operands --------------------------------------------------------------------


def vector(access: Access) -> int:
    """Elements that one copy moves along the contiguous mode: at most 16 bytes."""
    return min(access.align, 16 // access.elem.bytes) if access.contiguous else 1


def _copies(access: Access, name: str, rows: int, depth: int) -> Copies:
    elem, width = access.elem, vector(access)
    contiguous = access.contiguous
    along_k = contiguous not in ("m", "n")
    # ldmatrix transposes 16-bit elements only; FFMA and TF32 read 32-bit ones in either order.
    shared_k = along_k or elem.bits == 8
    shared = f"Shared{name}, kTile{'M' if name == 'A' else 'N'}"
    direct = width * elem.bytes >= 4 and along_k == shared_k
    load: Literal["async", "staged"] = "async" if direct else "staged"
    line, swizzle = shared_lines(elem, depth if shared_k else rows, shared_k)
    flags = f"{_bool(along_k)}, {_bool(contiguous is not None)}"
    loader = (
        f"AsyncLoad<{elem.cpp}, {shared}, {flags}, {width}, {line}>"
        if direct
        else f"StagedLoad<{elem.cpp}, {shared}, {flags}, {_bool(shared_k)}>"
    )
    return Copies(
        load=load,
        loader=loader,
        line=line,
        swizzle=swizzle,
        shared_k=_bool(shared_k),
        read=smem_read(elem, shared_k),
    )


def _bool(value: bool) -> str:
    return "true" if value else "false"


def shared_lines(elem: Element, extent: int, shared_k: bool) -> tuple[int, str]:
    """Returns the elements of a line in shared memory and the swizzle of eight lines, as bits, base and shift;
    both repeat over the tile. Lines lie along K where `shared_k`, else along the rows; `extent` is the tile's
    there.

    A line is up to 128 bytes. The 16-byte chunks in one place of eight lines fall into different
    banks, as ldmatrix reads them. 32-bit operands along the rows are read one by one, by lanes
    4 K apart and 8 rows wide: chunks of 32 bytes move by K modulo 4.
    """
    longest = 128 // elem.bytes
    line = next(n for n in (longest, longest // 2, longest // 4) if extent % n == 0)
    chunk = (16 // elem.bytes).bit_length() - 1
    bits = (line * elem.bytes // 16).bit_length() - 1
    return line, f"{bits}, {chunk}, 3" if shared_k or elem.bits == 16 else f"{bits - 1}, 3, 2"


def smem_read(elem: Element, shared_k: bool) -> Literal["ldmatrix", "ldmatrix_trans", "element"]:
    """Returns how a fragment is read from shared memory."""
    if shared_k:
        return "ldmatrix"
    return "ldmatrix_trans" if elem.bits == 16 else "element"
