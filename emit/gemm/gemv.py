"""The matrix-vector product: few columns, so that reading the matrix is all the time.

The matrix is operand A. Products and sums are plain multiply-adds in f32 (i32 for s8), whatever
the compute type. The template is `gemm/gemv.cu.j2`; parameters and epilogue are the multistage GEMM's.
"""

from __future__ import annotations

from ucutlass.emit import text
from ucutlass.emit.arithmetic import arithmetic
from ucutlass.emit.gemm import sm80_epilogue as epilogue
from ucutlass.emit.gemm.sm80 import includes
from ucutlass.ir.elements import S8
from ucutlass.kernels.gemm.plan import GemmProblem, GemvSchedule
from ucutlass.kernels.gemm.smem import gemv_bytes, gemv_cover, gemv_staged

_INCLUDES = (
    "<algorithm>",
    "<atomic>",
    "<cstdint>",
    "<cstring>",
    "<initializer_list>",
    "<type_traits>",
    "<cuda_runtime.h>",
    "<cuda/std/limits>",
    "cutlass/array.h",
)


def render(problem: GemmProblem, schedule: GemvSchedule) -> str:
    """The code of a plan with a GemvSchedule, for `ucutlass.emit.text.finish`.

    Raises ValueError for a schedule that breaks `check`'s rules.
    """
    if reason := check(problem, schedule):
        raise ValueError(reason)
    how = gemv_cover(problem, schedule)
    widest = epilogue.layout(problem)
    fast = schedule.columns if widest.contiguous_mode == "n" else how.tile_m
    layout = epilogue.EpilogueLayout(widest.contiguous_mode, min(widest.width, fast))
    a, b = problem.a, problem.b
    return text.render(
        "gemm/gemv.cu.j2",
        includes=includes(_INCLUDES),
        compute_type=problem.compute_type.name,
        order=how.order,
        tile_m=how.tile_m,
        tile_n=schedule.columns,
        threads_m=how.threads_m,
        threads_k=how.threads_k,
        vector=how.vector,
        unroll=how.unroll,
        parts=how.parts,
        shared_bytes=gemv_bytes(problem, schedule),
        a=epilogue.matrix(a, a.m),
        b=epilogue.matrix(b, b.n),
        a_unit_k=a.contiguous == "k",
        b_unit_k=b.contiguous == "k",
        pack_a=how.vector if a.contiguous else 1,
        pack_b=min(b.align, how.vector) if b.contiguous == "k" else 1,
        accumulator="int32_t" if problem.compute_type == S8 else "float",
        pitch="kTileN" if layout.contiguous_mode == "n" else "kStageRows",
        stage_elements=gemv_staged(problem, schedule),
        sums_per_tile="kTileM * kTileN",
        **epilogue.values(problem, layout, arithmetic(problem)),
    )


def check(problem: GemmProblem, schedule: GemvSchedule) -> str:
    """Why the template cannot take this schedule, or ""."""
    rows, columns, threads = schedule.rows, schedule.columns, schedule.threads
    for what, value in (("rows", rows), ("columns", columns), ("threads", threads)):
        if value < 1 or value & (value - 1):
            return f"{what} is {value}, not a power of two"
    if columns > 8:
        return f"{columns} columns: at most 8 are possible"
    block = rows * threads if problem.a.contiguous == "m" else threads
    if not 32 <= block <= 1024:
        return f"{block} threads a block: 32 to 1024 are possible"
    if problem.a.contiguous != "m" and rows > 16:
        return f"{rows} rows: at most 16 are possible where the matrix is not contiguous along M"
    return ""
