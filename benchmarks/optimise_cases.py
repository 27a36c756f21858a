"""Problems of KernelBench for the agent: kernels here, pipelines from `benchmarks.pipeline_cases`, each with
what a PyTorch user would write.

Extents are KernelBench's own. Programs are written in bf16; a compute type makes others of them (`in_compute_type`). Images
lie channels last, for both sides. Every class of what the language expresses has some: E a contraction with
its epilogue, R one with reductions behind it, W reductions, M maps, S scans, A attention, P pipelines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from benchmarks import pipeline_cases
from benchmarks.pipeline_cases import in_compute_type
from ucutlass import frontend, ir
from ucutlass.agent.problem import OptimizationProblem, problem_of
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse

Letter: TypeAlias = Literal["E", "R", "W", "M", "S", "A", "P"]
Sizes: TypeAlias = Mapping[str, int]
Twin: TypeAlias = Callable[..., Tensor]

ARCH = "sm90a"


@dataclass(frozen=True, slots=True)
class Task:
    """A problem in a compute type. `small` are extents for the interpreter; `twin` takes the parameters in order."""

    name: str
    level: int
    letter: Letter
    compute_type: str
    text: str
    sizes: Sizes
    small: Sizes
    twin: Twin

    @property
    def checked(self) -> tuple[frontend.Checked, ir.Program]:
        text = frontend.read_text(self.text, f"{self.name}.ucu")
        return text, frontend.program(text)

    @property
    def problem(self) -> OptimizationProblem:
        return problem_of(self.text, f"{self.name}.ucu", None, self.sizes, ARCH, self.compute_type)


@dataclass(frozen=True, slots=True)
class _Case:
    name: str
    letter: Letter
    text: str
    sizes: Sizes
    small: Sizes
    twin: Twin


# --- the kernels ------------------------------------------------------------------------


def _first(x: Tensor) -> Tensor:
    """Channels last to channels first, as torch sees the same memory."""
    return x.permute(0, 3, 1, 2)


def _conv(x: Tensor, w: Tensor, b: Tensor | None = None, **more: Any) -> Tensor:
    return F.conv2d(_first(x), _first(w), b, **more)


def _last(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1)


def _transposed(x: Tensor, w: Tensor) -> Tensor:
    """`w` lies [C, R, S, K]; torch names its axes [C, K, R, S]."""
    return _last(F.conv_transpose2d(_first(x), _first(w)))


def _swishes(x: Tensor, w: Tensor, b: Tensor, add: Tensor) -> Tensor:
    return F.hardtanh(F.gelu(torch.tanh(F.silu(F.linear(x, w, b) + add))), -1.0, 1.0)


def _triplet(a: Tensor, p: Tensor, n: Tensor) -> Tensor:
    return F.triplet_margin_loss(a, p, n, margin=1.0)


def _new_gelu(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))


def _norm4(x: Tensor, g: Tensor, b: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[1:], g, b)


def _rms(x: Tensor) -> Tensor:
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-5)


def _linear(name: str, body: str, twin: Twin, m: int, n: int, k: int, more: str = "") -> _Case:
    text = f"kernel k(x: bf16[M, K], w: bf16[N, K], b: bf16[N]{more}) -> bf16[M, N] {{ return {body} }}"
    return _Case(name, "E", text, {"M": m, "N": n, "K": k}, {"M": 6, "N": 9, "K": 12}, twin)


def _matmul(name: str, a: str, b: str, twin: Twin, m: int, n: int, k: int) -> _Case:
    text = f"kernel k(a: bf16[{a}], b: bf16[{b}]) -> bf16[M, N] {{ return dot[K](a, b) }}"
    return _Case(name, "E", text, {"M": m, "N": n, "K": k}, {"M": 5, "N": 7, "K": 11}, twin)


def _row(name: str, letter: Letter, head: str, body: str, twin: Twin, sizes: Sizes, small: Sizes) -> _Case:
    return _Case(name, letter, f"kernel k({head} {{ {body} }}", sizes, small, twin)


_Y = "dot[K](x, w) + b"
_SQUARE = {"A": 32768, "L": 32768}
_ODD = {"A": 5, "L": 7}
_MAP = "x: bf16[A, L]) -> bf16[A, L]"
_IMAGE = {"B": 2, "H": 6, "W": 7, "C": 4, "K": 5}
_WINDOW = "dot[R, S, C](x[H = P + R, W = Q + S], w)"
_LAYER = "d = x - mean[C, H, W](x)\n return d * rsqrt(mean[C, H, W](d * d) + 1e-5) * g + b"

_KERNELS: tuple[_Case, ...] = (
    _matmul("l1_01_square_matmul", "M, K", "K, N", torch.matmul, 4096, 4096, 4096),
    _matmul("l1_06_large_k", "M, K", "K, N", torch.matmul, 256, 256, 524288),
    _matmul("l1_08_irregular", "M, K", "K, N", torch.matmul, 8205, 5921, 2949),
    _matmul("l1_09_tall_skinny", "M, K", "K, N", torch.matmul, 32768, 32768, 32),
    _matmul("l1_16_transposed_a", "K, M", "K, N", lambda a, b: a.T @ b, 2048, 4096, 8192),
    _matmul("l1_17_transposed_b", "M, K", "N, K", lambda a, b: a @ b.T, 2048, 4096, 8192),
    _matmul("l1_18_transposed_both", "K, M", "N, K", lambda a, b: a.T @ b.T, 2048, 4096, 8192),
    _Case(
        "l1_03_batched_matmul",
        "E",
        "kernel k(a: bf16[B, M, K], b: bf16[B, K, N]) -> bf16[B, M, N] { return dot[K](a, b) }",
        {"B": 128, "M": 512, "N": 2048, "K": 1024},
        {"B": 3, "M": 4, "N": 5, "K": 6},
        torch.bmm,
    ),
    _Case(
        "l1_04_matrix_vector",
        "E",
        "kernel k(a: bf16[M, K], b: bf16[K, 1]) -> bf16[M, 1] { return dot[K](a, b) }",
        {"M": 2048, "K": 1048576},
        {"M": 5, "K": 33},
        torch.matmul,
    ),
    _Case(
        "l1_10_tensor_matmul",
        "E",
        "kernel k(a: bf16[B, M, K], b: bf16[K, N]) -> bf16[B, M, N] { return dot[K](a, b) }",
        {"B": 16, "M": 1024, "N": 768, "K": 2048},
        {"B": 3, "M": 4, "N": 5, "K": 6},
        torch.matmul,
    ),
    _Case(
        "l1_55_conv2d",
        "E",
        "kernel k(x: bf16[B, H, W, C], w: bf16[K, R=3, S=3, C]) -> bf16[B, P=H-2, Q=W-2, K] "
        f"{{ return {_WINDOW} }}",
        {"B": 8, "H": 512, "W": 1024, "C": 64, "K": 128},
        _IMAGE,
        lambda x, w: _last(_conv(x, w)),
    ),
    _Case(
        "l1_71_conv_transpose2d",
        "E",
        "kernel k(x: bf16[B, H, W, C], w: bf16[C, R=3, S=3, K]) -> bf16[B, P=H+2, Q=W+2, K] "
        "{ return dot[R, S, C](x[H = P - R, W = Q - S], w) }",
        {"B": 8, "H": 512, "W": 1024, "C": 32, "K": 32},
        _IMAGE,
        _transposed,
    ),
    _Case(
        "l2_57_conv_relu_hardswish",
        "E",
        "kernel k(x: bf16[B, H, W, C], w: bf16[K, R=3, S=3, C], b: bf16[K]) -> "
        f"bf16[B, P=H-2, Q=W-2, K] {{ return hardswish(relu({_WINDOW} + b)) }}",
        {"B": 128, "H": 128, "W": 128, "C": 8, "K": 64},
        _IMAGE,
        lambda x, w, b: _last(F.hardswish(F.relu(_conv(x, w, b)))),
    ),
    _linear(
        "l2_53_gemm_scaling_hardtanh_gelu",
        f"gelu(clamp(({_Y}) * 0.5, -2, 2))",
        lambda x, w, b: F.gelu(F.hardtanh(F.linear(x, w, b) * 0.5, -2.0, 2.0)),
        2048,
        8192,
        8192,
    ),
    _linear(
        "l2_59_matmul_swish_scaling",
        f"silu({_Y}) * 2",
        lambda x, w, b: F.silu(F.linear(x, w, b)) * 2.0,
        128,
        32768,
        32768,
    ),
    _linear(
        "l2_63_gemm_relu_divide",
        f"relu({_Y}) / 2",
        lambda x, w, b: F.relu(F.linear(x, w, b)) / 2.0,
        1024,
        8192,
        8192,
    ),
    _linear(
        "l2_86_matmul_divide_gelu",
        f"gelu(({_Y}) / 10)",
        lambda x, w, b: F.gelu(F.linear(x, w, b) / 10.0),
        1024,
        8192,
        8192,
    ),
    _linear(
        "l2_95_matmul_add_swish_tanh_gelu_hardtanh",
        f"hardtanh(gelu(tanh(silu({_Y} + add))))",
        _swishes,
        1024,
        8192,
        8192,
        ", add: bf16[N]",
    ),
    _row(
        "l1_23_softmax",
        "W",
        _MAP,
        "return softmax[L](x)",
        lambda x: torch.softmax(x, 1),
        {"A": 4096, "L": 393216},
        _ODD,
    ),
    _row(
        "l1_36_rms_norm",
        "W",
        "x: bf16[B, C, H, W]) -> bf16[B, C, H, W]",
        "return x * rsqrt(mean[C](x * x) + 1e-5)",
        _rms,
        {"B": 112, "C": 64, "H": 512, "W": 512},
        {"B": 2, "C": 6, "H": 3, "W": 5},
    ),
    _row(
        "l1_40_layer_norm",
        "W",
        "x: bf16[B, C, H, W], g: bf16[C, H, W], b: bf16[C, H, W]) -> bf16[B, C, H, W]",
        _LAYER,
        _norm4,
        {"B": 16, "C": 64, "H": 256, "W": 256},
        {"B": 2, "C": 3, "H": 4, "W": 5},
    ),
    _row(
        "l1_47_sum_over_middle",
        "W",
        "x: bf16[A, L, C]) -> bf16[A, 1, C]",
        "return sum[L](x)",
        lambda x: x.sum(1, keepdim=True),
        {"A": 128, "L": 4096, "C": 4095},
        {"A": 3, "L": 9, "C": 5},
    ),
    _row(
        "l1_51_argmax_over_middle",
        "W",
        "x: bf16[A, L, C]) -> i64[A, C]",
        "return argmax[L](x)",
        lambda x: x.argmax(1),
        {"A": 128, "L": 4096, "C": 4095},
        {"A": 3, "L": 9, "C": 5},
    ),
    _row(
        "l1_94_mse_loss",
        "W",
        "x: bf16[A, L], y: bf16[A, L]) -> bf16[]",
        "d = x - y\n return mean[A, L](d * d)",
        F.mse_loss,
        _SQUARE,
        _ODD,
    ),
    _row(
        "l1_12_diagonal_matmul",
        "M",
        "a: bf16[A], x: bf16[A, L]) -> bf16[A, L]",
        "return a * x",
        lambda a, x: a[:, None] * x,
        {"A": 4096, "L": 4096},
        _ODD,
    ),
    _row(
        "l1_25_swish",
        "M",
        _MAP,
        "return silu(x)",
        lambda x: x * torch.sigmoid(x),
        {"A": 4096, "L": 393216},
        _ODD,
    ),
    _row("l1_88_new_gelu", "M", _MAP, "return gelu_tanh(x)", _new_gelu, {"A": 8192, "L": 8192}, _ODD),
    _row("l1_89_cumsum", "S", _MAP, "return cumsum[L](x)", lambda x: torch.cumsum(x, 1), _SQUARE, _ODD),
    _row(
        "l1_91_cumsum_reverse",
        "S",
        _MAP,
        "return cumsum[L](x, reverse=true)",
        lambda x: torch.cumsum(x.flip(1), 1).flip(1),
        _SQUARE,
        _ODD,
    ),
    _row(
        "l1_93_masked_cumsum",
        "S",
        "x: bf16[A, L], m: bool[A, L]) -> bf16[A, L]",
        "return cumsum[L](where(m, x, 0))",
        lambda x, m: torch.cumsum(x * m, 1),
        _SQUARE,
        _ODD,
    ),
)

# --- the pipelines ------------------------------------------------------------------------

_ATTENTION = """
pipeline attend(q: bf16[B, H, L, D], k: bf16[B, H, S, D], v: bf16[B, H, S, D]) -> bf16[B, H, L, D] {
  s: f32[B, H, L, S] = dot[D](q, k) * rsqrt(size(D))
  p: bf16[B, H, L, S] = softmax[S](s)
  return dot[S](p, v)
}
"""
_CROSS_ENTROPY = """
pipeline cross_entropy(x: bf16[T, V], t: i64[T]) -> bf16[] {
  l: f32[T] = logsumexp[V](x) - x[V = t]
  return mean[T](l)
}
"""
_SEPARABLE = """
pipeline separable(x: bf16[B, H, W, C], d: bf16[R=3, S=3, C], w: bf16[K, C]) -> bf16[B, P=H, Q=W, K] {
  h: bf16[B, P, Q, C] = dot[R, S](x[H = P + R - 1, W = Q + S - 1], d)
  return dot[C](h, w)
}
"""


def _separable(x: Tensor, d: Tensor, w: Tensor) -> Tensor:
    h = F.conv2d(_first(x), d.permute(2, 0, 1)[:, None], padding=1, groups=x.shape[3])
    return _last(F.conv2d(h, w[:, :, None, None]))


def _cross_entropy(x: Tensor, t: Tensor) -> Tensor:
    return F.cross_entropy(x, t)


_PIPELINES: tuple[_Case, ...] = (
    _Case(
        "l1_97_attention",
        "A",
        _ATTENTION,
        {"B": 32, "H": 32, "L": 512, "S": 512, "D": 1024},
        {"B": 2, "H": 2, "L": 5, "S": 6, "D": 7},
        F.scaled_dot_product_attention,
    ),
    _Case(
        "l1_95_cross_entropy", "W", _CROSS_ENTROPY, {"T": 32768, "V": 4096}, {"T": 7, "V": 9}, _cross_entropy
    ),
    _Case(
        "l1_86_depthwise_separable",
        "P",
        _SEPARABLE,
        {"B": 16, "H": 512, "W": 512, "C": 64, "K": 128},
        _IMAGE,
        _separable,
    ),
)

_LETTERS: Mapping[str, Letter] = {
    "l2_17": "R",
    "l2_22": "R",
    "l2_30": "R",
    "l2_33": "R",
    "l2_37": "R",
    "l2_62": "R",
    "l2_64": "R",
    "l2_88": "R",
    "l2_91": "R",
    "l2_99": "R",
    "l2_45": "P",
    "l2_46": "P",
    "l2_84": "P",
    "l2_85": "P",
    "l3_01": "P",
    "l3_03": "P",
    "l3_43": "P",
    "l3_44": "P",
    "l3_50": "P",
}
"""Classes of the pipelines of `benchmarks.pipeline_cases` that are here."""


def _known() -> dict[str, _Case]:
    others = (
        _Case(c.name, _LETTERS[c.name[:5]], c.text, c.sizes, c.small, c.twin)
        for c in pipeline_cases.CASES
        if c.name[:5] in _LETTERS
    )
    return {c.name[:5]: c for c in (*_KERNELS, *_PIPELINES, *others)}


# --- which of them, in which compute types, in which order --------------------------------------------

ORDER = """
l2_86 tf32, l1_88 f32, l2_99 bf16, l1_40 f32, l1_89 f32, l1_97 bf16, l3_43 bf16, l2_57 tf32,
l1_17 tf32, l2_88 tf32, l1_12 f32, l1_95 f32, l3_01 bf16, l1_55 bf16, l1_91 f32, l2_22 bf16,
l1_16 bf16, l2_84 tf32, l2_63 f32, l2_30 f16, l1_86 bf16, l1_03 f16, l1_93 f32, l2_64 tf32,
l2_59 bf16, l3_50 tf32, l1_04 f32, l1_94 f32, l2_33 bf16, l1_09 f16, l1_71 f16, l2_53 tf32,
l2_17 bf16, l2_45 tf32, l1_10 bf16, l1_08 tf32, l1_47 f32, l1_06 bf16, l3_44 bf16, l2_95 f16,
l1_01 tf32, l2_62 tf32, l1_51 f32, l1_88 bf16, l2_86 bf16, l1_40 bf16, l2_99 tf32, l1_97 f16,
l1_01 bf16, l1_18 bf16, l2_91 bf16, l2_85 bf16, l2_46 tf32, l3_03 tf32, l2_37 bf16, l1_17 f32,
l1_36 f32, l1_25 f32, l1_23 f32
"""
"""Classes, levels and compute types in turns, and what is quick to judge before what is slow, so that a run that ends
early has seen most kinds. A problem that the compute type changes nothing of stands once."""


def _task(words: str) -> Task:
    short, compute_type = words.split()
    case = _KNOWN[short]
    text = format_file(parse(in_compute_type(case.text, compute_type)))
    return Task(
        f"{case.name} {compute_type}",
        int(short[1]),
        case.letter,
        compute_type,
        text,
        case.sizes,
        case.small,
        case.twin,
    )


_KNOWN = _known()
TASKS: tuple[Task, ...] = tuple(map(_task, ORDER.replace("\n", " ").strip(" ,").split(",")))
