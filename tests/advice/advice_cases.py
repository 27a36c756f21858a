"""Plans and facts for the tests of advice."""

from __future__ import annotations

from ucutlass import frontend
from ucutlass.advice import KernelFacts, facts_of
from ucutlass.ir.hardware import Device
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.gemm.problem import transpose
from ucutlass.kernels.gemm.schedule import candidate_of
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete

PLAIN = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) SCHEDULE }"
GELU = (
    "kernel k(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] "
    "{ return gelu(dot[K](x, w) + b) SCHEDULE }"
)
RELU = (
    "kernel k(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] "
    "{ return relu(dot[K](x, w) + b) SCHEDULE }"
)
FP8 = "kernel k(x: e4m3[M, K], w: e4m3[N, K]) -> bf16[M, N] { return dot[K](x, w) SCHEDULE }"
RESIDUAL = (
    "kernel k(x: bf16[M, K], w: bf16[N, K], r: f32[M, N]) -> bf16[M, N] { return dot[K](x, w) + r SCHEDULE }"
)


def planned(
    text: str, m: int, n: int, k: int, schedule: str = "", arch: str = "sm90a", device: Device | None = None
) -> Planned:
    return facts(text, m, n, k, schedule, arch, device).planned


def facts(
    text: str, m: int, n: int, k: int, schedule: str = "", arch: str = "sm90a", device: Device | None = None
) -> KernelFacts:
    block = f"schedule {arch} {{ {schedule} }}" if schedule else ""
    checked = frontend.read_text(text.replace("SCHEDULE", block))
    program = frontend.kernel(checked)
    extents = complete(program, {"M": m, "N": n, "K": k})
    plan = frontend.plan_kernel(checked, program, extents, arch, device).planned
    return facts_of(checked, program, plan)


def problem_of(f: KernelFacts) -> GemmProblem:
    """The GEMM as the program states it, whether or not the plan swaps its operands."""
    c = candidate_of(f.planned)
    return transpose(c.problem) if c.swapped else c.problem
