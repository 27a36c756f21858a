"""Convolution as an implicit GEMM on mma.sync or FFMA: the multistage GEMM with operands gathered by
cp.async from where the windows lie. It takes any stride, dilation, padding, groups and order of names,
and runs on compute capability 8.0 and later. The templates are `conv_*.j2` and the GEMM's own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from ucutlass.emit import text
from ucutlass.emit.convolution import operands as convolution
from ucutlass.emit.gemm import sm80 as gemm_sm80
from ucutlass.emit.gemm import sm80_epilogue as epilogue
from ucutlass.emit.gemm.sm80 import INCLUDES, MMAS, Copies, Mma
from ucutlass.ir.elements import S8, TF32, Element
from ucutlass.kernels.convolution.plan import ConvolutionProblem, GatheredOperand, sides
from ucutlass.kernels.gemm.plan import GemmProblem, Sm80Schedule


def render(problem: ConvolutionProblem, schedule: Sm80Schedule) -> str:
    """The code of a plan with an Sm80Schedule, for `ucutlass.emit.text.finish`.

    Raises ValueError for a schedule that breaks `check`'s rules.
    """
    if reason := check(problem, schedule):
        raise ValueError(reason)
    gemm = convolution.epilogue_gemm(problem)
    mma = _mma(problem, schedule)
    side_a, side_b = sides(problem)
    values = convolution.values(problem, epilogue.layout(gemm))
    values["checks"] = [*_listed(values["checks"]), *_checks(problem)]
    return text.render(
        "convolution/sm80.cu.j2",
        includes=gemm_sm80.includes(
            INCLUDES, convolution.numeric_includes(problem, str(values["arithmetic"]))
        ),
        tile=schedule.tile,
        warps=gemm_sm80.warps_of(schedule),
        stages=schedule.stages,
        stage_rows=gemm_sm80.rows_staged(gemm, schedule),
        shared_bytes=gemm_sm80.shared_bytes(gemm, schedule),
        copy_a=_copies(side_a, "A", schedule),
        copy_b=_copies(side_b, "B", schedule),
        mma=mma,
        sum=mma.sum if mma else "float",
        accumulator="int32_t" if problem.compute_type == S8 else "float",
        **values,
    )


def _listed(value: object) -> list[object]:
    assert isinstance(value, list)
    return value


def check(problem: ConvolutionProblem, schedule: Sm80Schedule) -> str:
    """Why the template cannot take this schedule, or ""."""
    threads = 32 * schedule.tile[0] * schedule.tile[1] // (schedule.warp_tile[0] * schedule.warp_tile[1])
    for name, side in zip("AB", sides(problem), strict=True):
        read = side.access.read
        if read.bytes == 1:
            return f"operand {name}: elements of one byte are not gathered"
        if side.copy_width * read.bytes < 4:
            return f"operand {name}: neighbours of {read.name} are not read 4 bytes at a time"
        if side.along_k and schedule.tile[2] // side.copy_width > threads:
            return f"operand {name}: tile K is longer than a line of threads"
    return gemm_sm80.check(_as_multiplied(problem), schedule)


def _as_multiplied(problem: ConvolutionProblem) -> GemmProblem:
    gemm = convolution.epilogue_gemm(problem)
    return replace(gemm, compute_type=multiplied(problem), accumulate="f32") if widened(problem) else gemm


def widened(problem: ConvolutionProblem) -> bool:
    """Whether operands of 16 bits are copied to f32 first: exact in tf32."""
    return problem.a.packed is not None and problem.a.packed != problem.a.elem


def multiplied(problem: ConvolutionProblem) -> Element:
    """The compute type in which the multipliers work."""
    return TF32 if widened(problem) else problem.compute_type


def _mma(problem: ConvolutionProblem, schedule: Sm80Schedule) -> Mma | None:
    if schedule.math == "simt":
        return None
    accumulate = "f32" if widened(problem) else problem.gemm.accumulate
    return MMAS[multiplied(problem).name, accumulate, schedule.math]


def _copies(side: GatheredOperand, name: str, schedule: Sm80Schedule) -> Copies:
    operand, along_k = side.access, side.along_k
    depth = schedule.tile[2]
    width = schedule.tile[0 if name == "A" else 1]
    line, swizzle = gemm_sm80.shared_lines(operand.read, depth if along_k else width, along_k)
    load: Literal["async"] = "async"
    flag = "true" if along_k else "false"
    rows_text = "kTileM" if name == "A" else "kTileN"
    loader = f"GatherLoad<Access{name}, Shared{name}, {rows_text}, {flag}, {side.copy_width}, {line}>"
    return Copies(load, loader, line, swizzle, flag, gemm_sm80.smem_read(operand.read, along_k))


def _checks(problem: ConvolutionProblem) -> list[object]:
    """Alignments of operands that are read as they lie."""
    return [
        {"data": f"p.{name}.data", "align": side.copy_width, "strides": [f"e[{side.access.axes[-1].extent}]"]}
        for name, side in zip("ab", sides(problem), strict=True)
        if side.access.pack is None and side.copy_width > 1
    ]
