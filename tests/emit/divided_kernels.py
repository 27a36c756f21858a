"""A kernel of every kind that NVRTC builds of one file, by the name of its template."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.emit.text import Source
from ucutlass.kernels.planned import Plan
from ucutlass.typical_sizes import typical_sizes

_CONVOLUTION = (
    "kernel k(x: {t}[N=8, H=28, W=28, C={c}], w: {t}[K={k}, R=3, S=3, C={c}]) -> {t}[N=8, P=28, Q=28, K={k}] {{ "
    "return relu(dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w)) {more} }}"
)
_PRODUCT = "kernel k(x: {t}[M={m}, K=512], w: {t}[N=256, K=512]) -> {t}[M={m}, N=256] {{ return gelu(dot[K](x, w)) {more} }}"
_RAGGED = (
    "kernel k(x: {t}[M=4096, K=1024], w: {t}[G=8, N=1024, K=1024], o: i32[9]) -> "
    "{t}[M=4096, N=1024] {{ return dot[K](x, w[G = segment(M, o)]) }}"
)
_MULTISTAGE = "schedule sm90a { warps multistage }"

KERNELS: Mapping[str, str] = MappingProxyType(
    {
        "convolution by wgmma": _CONVOLUTION.format(t="bf16", c=64, k=64, more=""),
        "convolution in passes of f16": _CONVOLUTION.format(t="f32", c=64, k=64, more=""),
        "parameters of more than 4 KB": "kernel k(x: bf16[N=8, D=7, H=8, W=9, C=32], w: bf16[C=32, T=4, R=4, S=4, K=64]) -> "
        "bf16[N=8, O=20, P=23, Q=26, K=64] { return dot[T, R, S, C](x[3*D = O + 1 - T, 3*H = P + 1 - R, 3*W = Q + 1 - S], w) }",
        "convolution of columns": "kernel k(x: f32[N=8, C=48, H=28, W=28], w: f32[K=96, C=48, R=3, S=3]) -> "
        "f32[N=8, K=96, P=28, Q=28] { return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w) }",
        "multistage convolution": _CONVOLUTION.format(t="f16", c=64, k=64, more=_MULTISTAGE),
        "index that is divided": "kernel k(x: f16[N=8, H=28, W=28, C=64], w: f16[K=64, R=3, S=3, C=64]) -> "
        "f16[N=8, P=28, Q=28, K=64] { return where(index(Q) > 1, dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w), -0.5) "
        + _MULTISTAGE
        + " }",
        "gradient of weights": "kernel k(x: bf16[N=8, H=28, W=28, C=64], y: bf16[N=8, P=28, Q=28, K=64]) -> "
        "bf16[K=64, R=3, S=3, C=64] { return dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y) }",
        "depthwise": "kernel k(x: f32[N=8, H=28, W=28, C=32], w: f32[R=3, S=3, C=32]) -> f32[N=8, P=28, Q=28, C=32] { "
        "return dot[R, S](x[H = P + R - 1, W = Q + S - 1], w) }",
        "depthwise gradient of weights": "kernel k(x: f32[N=8, H=28, W=28, C=32], y: f32[N=8, P=28, Q=28, C=32]) -> "
        "f32[R=3, S=3, C=32] { return dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y) }",
        "few channels": "kernel k(x: f32[N=8, C=3, H=64, W=64], w: f32[K=8, C=3, R=3, S=3]) -> "
        "f32[N=8, K=8, P=64, Q=64] { return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w) }",
        "matrix times vector": _PRODUCT.format(t="bf16", m=1, more=""),
        "multistage product": _PRODUCT.format(t="bf16", m=512, more=_MULTISTAGE),
        "product by multiply-adds": _PRODUCT.format(
            t="f32", m=512, more="schedule sm90a { warps multistage  math simt }"
        ),
        "ragged groups by wgmma": _RAGGED.format(t="bf16"),
        "ragged groups by multiply-adds": _RAGGED.format(t="f32"),
        "softmax": "kernel k(x: bf16[M=512, N=4096]) -> bf16[M=512, N=4096] { return softmax[N](x) }",
        "attention": "kernel k(q: bf16[B=2, H=8, S=512, D=64], k: bf16[B=2, H=8, T=512, D=64], v: bf16[B=2, H=8, T=512, D=64]) "
        "-> bf16[B=2, H=8, S=512, D=64] { return dot[T](bf16(softmax[T](0.125 * dot[D](q, k))), v) }",
    }
)


def source(name: str) -> Source:
    return planned(KERNELS[name])[0]


def planned(text: str) -> tuple[Source, Plan]:
    """The kernel of a text of which every extent is fixed, or has a typical size."""
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    sizes = [size or 1 for size in typical_sizes(program, None) or ()]
    kernel = frontend.plan_kernel(checked, program, sizes, "sm90a").planned
    return source_of(checked, program, kernel), kernel.plan
