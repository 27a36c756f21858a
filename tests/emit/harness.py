"""Compiles emitted arithmetic for the host or the device and runs it over arrays."""

from __future__ import annotations

import ctypes
import importlib.util
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
import torch

from ucutlass.emit.arithmetic import INCLUDES, ArithmeticText
from ucutlass.emit.functions import CPP
from ucutlass.ir.elements import BF16, BOOL, E4M3, E5M2, F16, F32, I32, I64, S8, TF32, U8, Element
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.access import Access, Store
from ucutlass.kernels.arithmetic import Arithmetic, Compute, Instruction, LoadSlot, ScalarKind
from ucutlass.kernels.gemm.plan import GemmProblem

Array: TypeAlias = npt.NDArray[Any]

UNIT = 2.0**-24
FAST_ERROR = 2.0**-16
NUMPY: dict[ScalarKind, type] = {"f32": np.float32, "i32": np.int32, "i64": np.int64, "bool": np.bool_}
TORCH: dict[ScalarKind, torch.dtype] = {
    "f32": torch.float64,
    "i32": torch.int32,
    "i64": torch.int64,
    "bool": torch.bool,
}

# --- compiling and running -------------------------------------------------------

HOST_SHIM = """
// What the CUDA headers define for device code.
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
"""

RUN_ON_HOST = """
extern "C" int run_@NAME@(
    int64_t count, int64_t const* e, double const* s, void* const* arrays, int64_t const*) {
  for (int64_t i = 0; i < count; ++i) @NAME@::element(@NAME@::arithmetic_params(e, s), arrays, i);
  return 0;
}
"""

RUN_ON_DEVICE = """
__global__ void kernel_@NAME@(int64_t count, @NAME@::ArithmeticParams p, void* const* arrays) {
  int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < count) @NAME@::element(p, arrays, i);
}

extern "C" int run_@NAME@(
    int64_t count, int64_t const* e, double const* s, void* const* arrays, int64_t const* sizes) {
  int64_t const n = sizes[0];
  void** held = new void*[n];  // their addresses on the device
  void** table = nullptr;
  cudaMalloc(&table, n * sizeof(void*));
  for (int64_t a = 0; a < n; ++a) {
    cudaMalloc(&held[a], sizes[a + 1]);
    cudaMemcpy(held[a], arrays[a], sizes[a + 1], cudaMemcpyHostToDevice);
  }
  cudaMemcpy(table, held, n * sizeof(void*), cudaMemcpyHostToDevice);
  kernel_@NAME@<<<unsigned((count + 255) / 256), 256>>>(count, @NAME@::arithmetic_params(e, s), table);
  cudaError_t error = cudaDeviceSynchronize();
  for (int64_t a = 0; a < n; ++a) {
    if (error == cudaSuccess) error = cudaMemcpy(arrays[a], held[a], sizes[a + 1], cudaMemcpyDeviceToHost);
    cudaFree(held[a]);
  }
  cudaFree(table);
  delete[] held;
  return int(error);
}
"""


def headers() -> str:
    quoted = (name if name.startswith("<") else f'"{name}"' for name in INCLUDES)
    return "".join(f"#include {name}\n" for name in (*quoted, "<cstring>"))


def cutlass_include() -> Path:
    spec = importlib.util.find_spec("cutlass_library")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parent / "source" / "include"


def cuda_includes() -> tuple[str, ...]:
    """Where nvcc, which may be a wrapper, finds the headers of CUDA and its C++ library."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("the CUDA headers are found by way of nvcc, and there is no nvcc")
    dry = [nvcc, "--dryrun", "-x", "c++", "-c", os.devnull, "-o", os.devnull]
    lines = subprocess.run(dry, capture_output=True, text=True, check=True).stderr.splitlines()
    (top,) = (line.removeprefix("#$ TOP=") for line in lines if line.startswith("#$ TOP="))
    return f"-I{top}/include", f"-I{top}/include/cccl"


def _namespace(name: str, text: ArithmeticText) -> str:
    points = 2 + text.batch
    kinds = (text.accumulator, *text.inputs, *text.outputs)
    values = [f"(({CPP[kind]}*)arrays[{i + 1}])[i]" for i, kind in enumerate(kinds)]
    call = text.call(
        "p",
        [f"((int const*)arrays[0])[i * {points} + {c}]" for c in range(points)],
        values[0],
        values[1 : 1 + len(text.inputs)],
        values[1 + len(text.inputs) :],
    )
    signature = "CUTLASS_DEVICE void element(ArithmeticParams const& p, void* const* arrays, int64_t i)"
    return f"namespace {name} {{\n{text.text}\n{signature} {{ {call}; }}\n}}\n"


@dataclass(frozen=True)
class Toolchain:
    """Compiles programs into one shared library, for the host or the device."""

    command: tuple[str, ...]
    prelude: str
    run: str
    suffix: str
    folder: Path

    def build(self, programs: dict[str, ArithmeticText]) -> ctypes.CDLL:
        code = self.prelude + "".join(
            _namespace(name, text) + self.run.replace("@NAME@", name) for name, text in programs.items()
        )
        stem = self.folder / f"program{len(list(self.folder.iterdir()))}"
        source, library = stem.with_suffix(self.suffix), stem.with_suffix(".so")
        source.write_text(code)
        done = subprocess.run(
            [*self.command, str(source), "-o", str(library)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{done.stderr[-4000:]}\n{code[-6000:]}"
        return ctypes.CDLL(str(library))


def execute(  # noqa: PLR0913, PLR0917
    library: ctypes.CDLL,
    name: str,
    text: ArithmeticText,
    values: Sequence[Array],
    points: Array | None = None,
    extents: Sequence[int] = (),
    scalars: Sequence[float] = (),
) -> list[Array]:
    """Runs a program over arrays: the accumulator's, then each input's. Gives the outputs."""
    count = len(values[0])
    if points is None:
        points = np.zeros((count, 2 + text.batch))
    kinds = (text.accumulator, *text.inputs)
    arrays = [np.ascontiguousarray(points, np.int32)]
    arrays += [np.ascontiguousarray(v, NUMPY[kind]) for v, kind in zip(values, kinds, strict=True)]
    outputs: list[Array] = [np.zeros(count, NUMPY[kind]) for kind in text.outputs]
    arrays += outputs
    pointers = (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays))
    sizes = (ctypes.c_int64 * (len(arrays) + 1))(len(arrays), *(a.nbytes for a in arrays))
    e = (ctypes.c_int64 * max(1, len(extents)))(*extents)
    s = (ctypes.c_double * max(1, len(scalars)))(*scalars)
    status = getattr(library, f"run_{name}")(ctypes.c_int64(count), e, s, pointers, sizes)
    assert status == 0
    return outputs


# --- problems --------------------------------------------------------------------


def access(elem: Element, pointer: int = 0) -> Access:
    return Access(pointer, elem, (1,), (), (), (), 1)


def problem(  # noqa: PLR0913, PLR0917
    instructions: Sequence[Instruction],
    results: Sequence[int],
    inputs: Sequence[Element] = (),
    outputs: Sequence[Element] = (F32,),
    compute_type: Element = BF16,
    batch: tuple[tuple[int, ...], ...] = (),
) -> GemmProblem:
    """Extents: 0 and 3 along M, 1 along N, 2 along K."""
    operand = Access(0, compute_type, (2,), None, ((),), (), 8)
    return GemmProblem(
        compute_type,
        "f32",
        (0, 3),
        (1,),
        ((2,),),
        batch,
        operand,
        operand,
        tuple(access(elem) for elem in inputs),
        tuple(Store(access(elem)) for elem in outputs),
        Arithmetic(tuple(instructions), tuple(results)),
        6,
        6,
        2,
    )


def one_function(name: str, kind: ScalarKind = "f32", output: Element = F32) -> GemmProblem:
    """A function of inputs of one kind; those of `where` and the logical ones as they are."""
    function = FUNCTIONS[name]
    elems = {"f32": F32, "i32": I32, "i64": I64, "bool": BOOL}
    kinds: list[ScalarKind] = ["bool" if function.domain == "bool" else kind] * len(function.parameters)
    if function.domain == "any":
        kinds[0] = "bool"
    result: ScalarKind = "bool" if function.outcome == "bool" else kind
    loads: list[Instruction] = [LoadSlot(i, k) for i, k in enumerate(kinds)]
    compute = Compute(name, tuple(range(len(kinds))), result)
    stored = output if result == "f32" else elems[result]
    return problem([*loads, compute], [len(loads)], [elems[k] for k in kinds], [stored])


SPECIAL = np.array(
    [
        *(0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 2.0, 3.0, -3.0, 6.0, -6.0, 20.0),
        *(math.inf, -math.inf, math.nan, 1e-45, -1e-45, 1.17549435e-38, 3.4028235e38, -3.4028235e38),
        *(88.7, -88.7, -87.3, -91.8, -13.1, -10.05, 1e20, -1e20),
    ],
    np.float32,
)
"""Zeros, bends, the ends of the range, and where tails become denormal."""


def samples(parameters: int, count: int = 60_000) -> list[Array]:
    """Values of all magnitudes, many in the range where the functions bend, all special pairs."""
    generator = np.random.default_rng(0)
    arrays = []
    for position in range(parameters):
        signs = generator.choice([-1.0, 1.0], count)
        magnitudes = signs * np.exp2(generator.uniform(-140, 128, count))
        spread = [generator.uniform(-r, r, count) for r in (1.0, 14.0, 100.0)]
        random = np.concatenate([magnitudes, *spread, np.round(spread[-1])]).astype(np.float32)
        generator.shuffle(random)
        pairs = (
            np.meshgrid(*[SPECIAL] * min(parameters, 2))[position % 2].ravel() if parameters > 1 else SPECIAL
        )
        arrays.append(np.concatenate([random, pairs]))
    return arrays


ROUNDED = (F32, F16, BF16, TF32, E4M3, E5M2, S8, U8, I32, I64, BOOL)


def round_reference(value: float, elem: Element) -> float | int | bool:
    """One element, by the rules that `emit.arithmetic` documents."""
    if elem.kind == "bool":
        return value != 0
    if elem.kind == "int":
        lowest, highest = (0, 255) if elem == U8 else (-(2 ** (elem.bits - 1)), 2 ** (elem.bits - 1) - 1)
        if math.isnan(value):
            return 0
        return (
            round(max(min(value, highest), lowest))
            if math.isinf(value)
            else min(max(round(value), lowest), highest)
        )
    if elem == TF32:
        if not math.isfinite(value):
            return value
        bits = int(np.float32(value).view(np.uint32))
        bits += 0xFFF + (bits >> 13 & 1)
        return float(np.uint32(bits & 0xFFFFE000).view(np.float32))
    limit = {"e4m3": 448.0, "e5m2": 57344.0}.get(elem.name, math.inf)
    wide = torch.tensor(value, dtype=torch.float32).clamp(-limit, limit)
    return float(wide.to(getattr(torch, str(elem.torch))).float())
