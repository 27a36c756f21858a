"""Plans and facts for the tests of advice."""

from __future__ import annotations

from ucutlass import frontend
from ucutlass.advice import KernelFacts, facts_of
from ucutlass.ir.hardware import Device
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
    block = f"schedule {arch} {{ {schedule} }}" if schedule else ""
    checked = frontend.read_text(text.replace("SCHEDULE", block))
    program = frontend.kernel(checked)
    extents = complete(program, {"M": m, "N": n, "K": k})
    return frontend.plan_kernel(checked, program, extents, arch, device).planned


def facts(text: str, m: int, n: int, k: int, schedule: str = "") -> KernelFacts:
    return facts_of(planned(text, m, n, k, schedule))
