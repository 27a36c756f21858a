"""Bugs seeded into the wgmma kernels, which only a GPU can run: edits as in `tests.mutants.lowering`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from tests.mutants.lowering import Base, Lowering, after, change

HOPPER_BASES: Mapping[str, Base] = MappingProxyType(
    {
        "tma": Base(
            "kernel k(x: bf16[M, K], w: bf16[N, K], b: f32[N]) -> (y: bf16[M, N], s: f32[N]) {\n"
            "  d = relu(dot[K](x, w) + b)\n  return y = d, s = sum[M](d)\n"
            "  schedule sm90a { warps cooperative  tile 128x128x64  cluster 1x1  swap no  split_k 1 }\n}\n",
            {"M": 200, "N": 136, "K": 264},
        ),
        "tma_batch": Base(
            "kernel k(x: f16[B, M, K], w: f16[B, N, K]) -> f32[B, M, N] {\n  return dot[K](x, w)\n"
            "  schedule sm90a { warps pingpong  tile 64x128x64  cluster 1x1  swap no  split_k 1 }\n}\n",
            {"B": 3, "M": 72, "N": 136, "K": 136},
        ),
    }
)

_SHAPE = "arguments.problem_shape = make_shape(M, N, K, L);"
_SMEM = "config.dynamicSmemBytes = Kernel::SharedStorageSize;"
_TOO_MUCH = (_SMEM, "config.dynamicSmemBytes = 1 << 20;")
_PART = "int64_t(m) * Warps + args.thread_idx / 32"
_RESIDUE = "if (elem_less(coordinates(first + i), residue)) {"
_SHARED = "    shared[row][column] = value;\n    __syncthreads();"
_LAUNCH = "if (int32_t failure = code(cudaLaunchKernelExC(&launch.config, kernel(), parameters))) {"

HOPPER: tuple[Lowering, ...] = (
    Lowering(
        "tma: rows of the last tile",
        (6, 11),
        "the problem ends with its last whole tile",
        "tma",
        (change(_SHAPE, "(M,", "(M / 128 * 128,"),),
    ),
    Lowering(
        "tma: first batch only",
        (11,),
        "the batch extent is 1",
        "tma_batch",
        (change(_SHAPE, "L)", "L / L)"),),
    ),
    Lowering(
        "tma: K residue dropped",
        (17,),
        "K ends with its last whole tile",
        "tma",
        (change(_SHAPE, " K,", " K / 64 * 64,"),),
    ),
    Lowering(
        "tma: result over an operand",
        (10, 23),
        "the result goes to x",
        "tma",
        (
            (
                "ptr_D = static_cast<cutlass::bfloat16_t*>(address[3])",
                "ptr_D = static_cast<cutlass::bfloat16_t*>(address[0])",
            ),
        ),
    ),
    Lowering("tma: bias assumed zero", (12,), "the bias is not added", "tma", (("= acc + in0;", "= acc;"),)),
    Lowering(
        "tma: relu loses NaN",
        (18,),
        "fmaxf(NaN, 0) is 0",
        "tma",
        (('asm volatile("max.NaN.f32 ', 'asm volatile("max.f32 '),),
    ),
    Lowering(
        "tma: failed launch",
        (25, 26),
        "more shared memory than there is, and it says so",
        "tma",
        (_TOO_MUCH,),
    ),
    Lowering(
        "tma: failed launch passed on as success",
        (25, 26),
        "its status is dropped",
        "tma",
        (
            _TOO_MUCH,
            change(_LAUNCH, "failure = code(", "failure = 0 * code("),
            ("return code(cudaGetLastError());", "cudaGetLastError();\n  return 0;"),
        ),
    ),
    Lowering(
        "tma: warps share a partial sum",
        (27, 32),
        "the last writer's stays",
        "tma",
        (change(_PART, " + args.thread_idx / 32", ""),),
    ),
    Lowering(
        "tma: sum over rows that are not there",
        (11,),
        "rows beyond the last count as relu(bias)",
        "tma",
        ((_RESIDUE, "{"),),
    ),
    Lowering(
        "tma: no barrier in the combination",
        (27,),
        "parts are read before all are written",
        "tma",
        ((_SHARED, "    shared[row][column] = value;"),),
    ),
    Lowering(
        "tma: one part too many",
        (32,),
        "the combination reads on past the last part",
        "tma",
        (("out1_parts, size(L), N, int64_t(1)", "out1_parts + 1, size(L), N, int64_t(1)"),),
    ),
    Lowering(
        "tma: operand overwritten",
        (23,),
        "an operand is cleared behind the kernel",
        "tma",
        (after(_LAUNCH + "\n    return failure;\n  }", "  cudaMemsetAsync(address[1], 0, 16, stream);"),),
    ),
)
"""Rows of `tests.mutants.lowering` that the multistage kernels show on a host are not repeated for
each family; these are what the wgmma kernels do in their own way."""
