"""Launches that overlap the one before: every kernel waits before it reads, or no launch overlaps."""

from __future__ import annotations

import re

import pytest

from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.emit.dependent_launch import overlapping, overlapping_source
from ucutlass.emit.text import Source
from ucutlass.shapes import complete

KERNELS = {
    "rows": "kernel k(x: f32[M=64, N=512]) -> f32[M, N] { return softmax[N](x) }",
    "parts of rows": "kernel k(x: f32[M=2, N=90000]) -> f32[M, N] { return softmax[N](x) schedule sm90a { split_k 4 } }",
    "depthwise": "kernel k(x: f32[B=2, G=8, H=9, W=9], w: f32[G, R=3, S=3]) -> f32[B, G, P=7, Q=7]"
    " { return relu(dot[R, S](x[H = P + R, W = Q + S], w)) }",
    "convolution": "kernel k(x: bf16[B=2, H=16, W=16, C=64], w: bf16[K=64, R=3, S=3, C]) -> bf16[B, P=14, Q=14, K]"
    " { return dot[R, S, C](x[H = P + R, W = Q + S], w) }",
    "f32 by three passes": "kernel k(x: f32[B=2, H=16, W=16, C=64], w: f32[K=64, R=3, S=3, C]) -> f32[B, P=14, Q=14, K]"
    " { return dot[R, S, C](x[H = P + R, W = Q + S], w) }",
    "matrix and vector": "kernel k(x: f32[M=256, K=512], y: f32[K]) -> f32[M] { return dot[K](x, y) }",
    "multistage": "kernel k(x: bf16[M=64, K=64], y: bf16[N=64, K]) -> bf16[M, N]"
    " { return dot[K](x, y) schedule sm90a { warps multistage } }",
    "attention": "kernel k(x: bf16[H=2, L=256, D=64], y: bf16[H, S=256, D], z: bf16[H, S, E=64]) -> bf16[H, L, E]"
    " { return dot[S](bf16(softmax[S](dot[D](x, y) * 0.125)), z) }",
}

LEFT = {
    "lean": "kernel k(x: bf16[M=256, K=512], y: bf16[N=256, K]) -> bf16[M, N] { return dot[K](x, y) }",
    "another architecture": "kernel k(x: f32[M=64, N=512]) -> f32[M, N] { return softmax[N](x) }",
}


def emitted(text: str, arch: str = "sm90a") -> Source:
    checked = frontend.read_text(text)
    program = frontend.program(checked, "k")
    chosen = frontend.plan_kernel(checked, program, complete(program, {}), arch)
    return source_of(checked, program, chosen.planned)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel_waits_where_it_begins(name: str) -> None:
    before = emitted(KERNELS[name])
    after = overlapping_source(before)
    bodies = re.findall(r"__global__[^{;]*\{\s*(asm[^\n]*)\n\s*(asm[^\n]*)\n", after.code)
    assert len(bodies) == after.code.count("__global__") == before.code.count("__global__")
    assert all("griddepcontrol.wait" in a and "griddepcontrol.launch_dependents" in b for a, b in bodies)
    assert after.code.count("cudaLaunchKernelEx(") == 1, "the helper's alone"
    assert after.code.count("launch_overlapping(config") == before.code.count("cudaLaunchKernelEx(")


@pytest.mark.parametrize("name", KERNELS)
def test_it_is_a_kernel_of_another_name(name: str) -> None:
    before = emitted(KERNELS[name])
    after = overlapping_source(before)
    assert after.entry != before.entry and before.entry not in after.text and after.entry in after.code
    assert after.text.endswith(after.code) and after == overlapping_source(before)
    assert after.text.removesuffix(after.code) == before.text.removesuffix(before.code)


@pytest.mark.parametrize("name", LEFT)
def test_others_stay_as_they_are(name: str) -> None:
    source = emitted(LEFT[name], "sm80" if name == "another architecture" else "sm90a")
    assert overlapping_source(source) == source


@pytest.mark.parametrize(
    ("there", "instead"),
    [
        ("cudaLaunchKernelEx(&config, ", "cudaLaunchKernelExC(&config, "),
        ("cudaError_t error", "cudaMemsetAsync(workspace, 0, size, stream);\n  cudaError_t error"),
        ("config = {};", "config = {};\n  other<<<1, 1>>>();"),
        ("__global__ void", "__global__ __cluster_dims__(x{1}) void"),
    ],
)
def test_a_launch_of_another_form_leaves_all_as_they_are(there: str, instead: str) -> None:
    code = emitted(KERNELS["rows"]).code
    assert there in code and overlapping(code) != code
    changed = code.replace(there, instead)
    assert overlapping(changed) == changed
