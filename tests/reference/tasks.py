"""The twenty tasks, shrunk, each with the same computation in plain torch.

`plain` takes the arguments widened to one dtype and gives the results unrounded: in float64 it is
the reference's judge, in float32 an honest device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from tests.typed import check
from ucutlass.ir import Program

PROGRAMS = Path(__file__).parent.parent.parent / "examples" / "tasks"

Plain = Callable[..., Any]


@dataclass(frozen=True)
class Task:
    """`fixed` replaces extents in the text (`M=8192`), `sizes` gives the free ones."""

    file: str
    program: str
    fixed: Mapping[str, int]
    sizes: Mapping[str, int]
    plain: Plain


def load(task: Task) -> Program:
    return _load(task.file, task.program, tuple(task.fixed.items()))


@lru_cache
def _load(file: str, program: str, fixed: tuple[tuple[str, int], ...]) -> Program:
    text = (PROGRAMS / f"{file}.ucu").read_text()
    for dim, extent in fixed:
        text = re.sub(rf"\b{dim}=\d+", f"{dim}={extent}", text)
    text = re.sub(r"schedule [^{]*\{[^}]*\}", "", text)
    return named(text, program)


def named(text: str, program: str) -> Program:
    return next(p for p in check(text).programs if p.name == program)


def _gelu(x: Any) -> Any:
    """By erfc in float64: torch's own gelu cancels far below 0, which the contract does not allow."""
    d = x.double()
    return (0.5 * d * torch.erfc(-d * 0.5**0.5)).to(x.dtype)


def _silu(x: Any) -> Any:
    return F.silu(x.double()).to(x.dtype)


def _attention(q: Any, k: Any, v: Any) -> Any:
    k, v = (t.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for t in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    s = s.masked_fill(~torch.ones(s.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    return s.softmax(-1).to(torch.bfloat16).to(q.dtype) @ v


def _linear_norm(x: Any, w: Any, b: Any, g: Any, beta: Any) -> Any:
    h = (x @ w.T + b).to(torch.bfloat16).to(x.dtype)
    return _gelu(F.layer_norm(h, h.shape[-1:], g, beta, 1e-5))


def _batch_norm(x: Any, w: Any, b: Any, mean: Any, var: Any, g: Any, beta: Any) -> Any:
    return F.relu(F.batch_norm(F.conv2d(x, w, b, padding=1), mean, var, g, beta, eps=1e-5))


def _moe(x: Any, w: Any, offsets: Any) -> Any:
    rows = [x[a:b] @ w[e].T for e, (a, b) in enumerate(pairwise(offsets.tolist()))]
    return _silu(torch.cat(rows))


def _swiglu(x: Any, gate: Any, up: Any, down: Any) -> Any:
    h = (_silu(x @ gate.T) * (x @ up.T)).to(torch.bfloat16).to(x.dtype)
    return h @ down.T


def _exclusive(x: Any, keep: Any) -> Any:
    masked = torch.where(keep, x, 0)
    return F.pad(masked.cumsum(1), (0, 0, 1, 0))[:, :-1]


def _amax(a: Any, b: Any, sa: Any, sb: Any) -> Any:
    o = (sa * sb * (a @ b.T)).to(torch.bfloat16).to(a.dtype)
    return o, o.abs().amax(1)


def _causal(x: Any, w: Any, b: Any) -> Any:
    return _silu(F.conv1d(F.pad(x, (w.shape[-1] - 1, 0)), w, b, groups=x.shape[1]))


def _project(x: Any, w: Any, b: Any) -> Any:
    return (x @ w + b).unflatten(-1, (4, 5)).transpose(1, 2)


def _tril(a: Any, b: Any) -> Any:
    return (a.tril() @ b.tril()).tril()


def _mean_loss(z: Any, target: Any) -> Any:
    return F.cross_entropy(z, target, reduction="none").to(torch.float32).to(z.dtype).mean()


def _max_gelu(x: Any, w: Any) -> Any:
    m = (x @ w.T).amax(1, keepdim=True)
    return _gelu(m - m.mean(1, keepdim=True))


TASKS: tuple[Task, ...] = (
    Task(
        "task_a_linear_relu_residual",
        "linear_relu_residual",
        {"M": 33, "K": 70, "N": 17},
        {},
        lambda x, w, b, r: F.relu(x @ w.T + b) + r,
    ),
    Task(
        "task_b_causal_gqa", "causal_gqa", {"B": 2, "H": 2, "G": 3, "L": 11, "D": 8, "S": 11}, {}, _attention
    ),
    Task(
        "task_c_layer_norm",
        "layer_norm",
        {"T": 9, "D": 130},
        {},
        lambda x, g, b: F.layer_norm(x, x.shape[-1:], g, b, 1e-5),
    ),
    Task(
        "task_d_linear_layer_norm_gelu", "linear_layer_norm_gelu", {"I": 40, "O": 24}, {"T": 7}, _linear_norm
    ),
    Task("task_e_conv_bn_relu", "conv_bn_relu", {"C": 5, "K": 6}, {"B": 2, "H": 7, "W": 6}, _batch_norm),
    Task(
        "task_f_gemm_max_subtract_gelu", "gemm_max_subtract_gelu", {"M": 9, "K": 20, "N": 11}, {}, _max_gelu
    ),
    Task("task_g_cross_entropy", "cross_entropy", {"T": 21, "V": 50}, {}, _mean_loss),
    Task("task_h_moe_up_silu", "moe_up", {"D": 30, "F": 12}, {"T": 23, "E": 5}, _moe),
    Task("task_i_swiglu_mlp", "swiglu_mlp", {}, {"T": 6, "D": 20, "F": 33}, _swiglu),
    Task("task_j_cumsum", "cumsum_middle", {"A": 3, "L": 40, "C": 5}, {}, lambda x: x.cumsum(1)),
    Task("task_j_cumsum", "masked_exclusive_cumsum", {"A": 3, "L": 40, "C": 5}, {}, _exclusive),
    Task(
        "task_k_rms_norm_channels",
        "rms_norm",
        {"B": 2, "C": 9, "H": 4, "W": 5},
        {},
        lambda x: x * (x.square().mean(1, keepdim=True) + 1e-5).rsqrt(),
    ),
    Task(
        "task_l_conv_transpose_tanh",
        "conv_transpose_tanh",
        {"C": 4, "K": 3},
        {"B": 2, "H": 5, "W": 4},
        lambda x, w, b, s: torch.tanh(F.conv_transpose2d(x, w, b, stride=2, padding=1) - s),
    ),
    Task("task_m_causal_conv_silu", "causal_conv_silu", {}, {"B": 2, "C": 5, "L": 13}, _causal),
    Task("task_n_fp8_gemm_amax", "fp8_gemm_amax", {}, {"M": 9, "N": 7, "K": 48}, _amax),
    Task("task_o_matvec", "matvec", {"M": 5, "K": 1024}, {}, lambda a, x: a @ x),
    Task(
        "task_p_group_norm",
        "group_norm",
        {"B": 2, "G": 3, "C": 4, "H": 5, "W": 6},
        {},
        lambda x, g, b: F.group_norm(x, 3, g, b, 1e-5),
    ),
    Task("task_q_project_heads", "project_heads", {"K": 30, "A": 4, "D": 5}, {"B": 2, "L": 6}, _project),
    Task(
        "task_r_embedding_scaled",
        "embed",
        {},
        {"V": 9, "D": 6, "B": 2, "L": 5},
        lambda table, ids: table[ids] * table.shape[-1] ** 0.5,
    ),
    Task("task_s_tril_matmul", "tril_matmul", {"M": 12, "K": 12, "N": 12}, {}, _tril),
    Task(
        "task_t_avgpool_hardswish",
        "avgpool_hardswish",
        {},
        {"N": 2, "C": 3, "H": 7, "W": 6},
        lambda x: F.hardswish(F.avg_pool2d(x, 3, 2, 1)),
    ),
)


def widened(arguments: Any, dtype: torch.dtype) -> list[Any]:
    """Float tensors in one dtype, everything else as it is."""
    return [a.to(dtype) if torch.is_tensor(a) and a.is_floating_point() else a for a in arguments]


def results(task: Task, arguments: Any, dtype: torch.dtype) -> tuple[Any, ...]:
    out = task.plain(*widened(arguments, dtype))
    return out if isinstance(out, tuple) else (out,)
