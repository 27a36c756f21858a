"""This module has the tasks by which a skill is evaluated: what an agent is asked, and a program to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SkillTask:
    """`prompt` is what an agent is asked; `program` computes it, and `sizes` are extents to plan and compare
    for. The first program of the text is the one that is asked for."""

    name: str
    prompt: str
    program: str
    sizes: Mapping[str, int]


TASKS: Sequence[SkillTask] = (
    SkillTask(
        "linear_gelu",
        "Write a uCUTLASS kernel linear_gelu of x, bf16 of M by K, w, bf16 of N by K, and bias, bf16 of N. It "
        "returns the exact GELU of x times the transpose of w plus bias, as bf16 of M by N.",
        "kernel linear_gelu(x: bf16[M, K], w: bf16[N, K], bias: bf16[N]) -> bf16[M, N] {\n"
        "  return gelu(dot[K](x, w) + bias)\n}\n",
        {"M": 256, "N": 256, "K": 256},
    ),
    SkillTask(
        "layer_norm",
        "Write a uCUTLASS kernel layer_norm of x, f16 of T by D, with weight g and bias b, f16 of D each: layer "
        "normalisation over D with the biased variance and an epsilon of 1e-5. It returns f16 of T by D.",
        "kernel layer_norm(x: f16[T, D], g: f16[D], b: f16[D]) -> f16[T, D] {\n"
        "  d = x - mean[D](x)\n  return d * rsqrt(mean[D](d * d) + 1e-5) * g + b\n}\n",
        {"T": 512, "D": 1024},
    ),
    SkillTask(
        "cross_entropy",
        "Write a uCUTLASS pipeline cross_entropy of logits z, f32 of T by V, and target, i64 of T: the mean over T "
        "of the cross entropy of each row, as one f32 on the device.",
        "pipeline cross_entropy(z: f32[T, V], target: i64[T]) -> f32[] {\n"
        "  loss: f32[T] = logsumexp[V](z) - z[V = target]\n  return mean[T](loss)\n}\n",
        {"T": 512, "V": 1024},
    ),
    SkillTask(
        "average_pool",
        "Write a uCUTLASS kernel average_pool of x, f32 of N by C by H by W: the average over windows of 3 by 3 "
        "with a stride of 2 and a padding of 1, zeros of the padding counted. The result has (H + 1) // 2 rows P "
        "and (W + 1) // 2 columns Q.",
        "kernel average_pool(x: f32[N, C, H, W]) -> f32[N, C, P=(H+1)//2, Q=(W+1)//2] {\n"
        "  return sum[R=3, S=3](x[H = 2*P + R - 1, W = 2*Q + S - 1]) / 9\n}\n",
        {"N": 2, "C": 8, "H": 32, "W": 32},
    ),
    SkillTask(
        "gated_mlp",
        "Write a uCUTLASS pipeline gated_mlp of x, bf16 of T by D, gate and up, bf16 of F by D each, and down, bf16 "
        "of D by F: silu(x times the transpose of gate) times (x times the transpose of up), stored as bf16, then "
        "times the transpose of down, as bf16 of T by D.",
        "pipeline gated_mlp(x: bf16[T, D], gate: bf16[F, D], up: bf16[F, D], down: bf16[D, F]) -> bf16[T, D] {\n"
        "  h: bf16[T, F] = silu(dot[D](x, gate)) * dot[D](x, up)\n  return dot[F](h, down)\n}\n",
        {"T": 256, "D": 256, "F": 512},
    ),
)
