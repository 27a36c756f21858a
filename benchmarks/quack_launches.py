"""Kernels of quack 0.6.5 (CuTe DSL) for `benchmarks.rows` and `benchmarks.products`, with `--quack`.

    pip install --no-deps quack-kernels==0.6.5 nvidia-cutlass-dsl==4.8.1 nvidia-cutlass-dsl-libs-core==4.8.1 \\
        nvidia-cutlass-dsl-libs-base==4.8.1 nvidia-cutlass-dsl-libs-cu13==4.8.1 apache-tvm-ffi==0.1.15.post2 \\
        torch-c-dlpack-ext einops protobuf

quack's compiled kernels are called without its allocating wrappers, so that its results go to one buffer as ours do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import torch

EPSILON = 1e-5
IGNORED = -100
"""The label that cross entropy leaves out."""


def launch_of(operator: str, args: Sequence[torch.Tensor], out: torch.Tensor) -> Callable[[], object] | None:
    """Returns a launch of quack's kernel into `out`, None where quack has no such operator or refuses the rows: its
    copies are of 4 bytes at least. Raises ImportError where quack is not installed."""
    x, columns = args[0], args[0].shape[-1]
    if columns * x.element_size() % 4:
        return None
    types: Any = import_module("quack.cute_dsl_utils").torch2cute_dtype_map
    match operator:
        case "softmax":
            kernel = import_module("quack.softmax").Softmax.compile(types[x.dtype], types[x.dtype], columns)
            return lambda: kernel(x, out)
        case "cross_entropy":
            number = import_module("cutlass").Int32(IGNORED)
            labels = args[1]
            kernel = import_module("quack.cross_entropy").CrossEntropy.compile(
                types[x.dtype], types[labels.dtype], None, columns, False, False, None, None
            )
            return lambda: kernel(x, labels, None, out, None, None, None, number)
        case "layer_norm" | "rms_norm":
            centred = operator == "layer_norm"
            # quack's layer norm has gains and biases of f32 alone.
            gains = [a.float() if centred else a for a in args[1:]]
            gain, bias = gains[0], gains[1] if centred else None
            kernel = import_module("quack.rmsnorm")._compile_rmsnorm_fwd(
                types[x.dtype],
                types[x.dtype],
                None,
                types[gain.dtype],
                types[bias.dtype] if bias is not None else None,
                None,
                columns,
                False,
                False,
                centred,
                False,
                0.0,
                config=None,
            )
            return lambda: kernel(x, gain, bias, None, out, None, None, None, EPSILON)
        case _:
            return None


def product_of(x: torch.Tensor, w: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
    """Returns a launch of quack's product of [M, K] and [K, N] into `out`, which the first call tunes. Raises
    ImportError where quack is not installed."""
    gemm = import_module("quack.gemm_interface").gemm
    return lambda: gemm(x, w, out=out, tuned=True)
