"""Reductions of lean kernels: entry, epilogue and second launch as they are emitted, run on the host.

The epilogue's own text runs over fragments of a product, and the kernels that finish its reductions over what
it left. What is checked: the workspace is the plain kernel's; each partial result has the bits that CUTLASS's
order gives; elements and tiles beyond the problem do not count; and the results.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest

from tests.emit.test_gemm_sm90 import ACC, access, matrix, plan
from tests.jit.lean_emulated import Setup, built
from tests.jit.machine_code import kernels
from ucutlass import frontend
from ucutlass.emit import emit
from ucutlass.emit.arithmetic import arithmetic
from ucutlass.emit.gemm.arithmetic_unit import KERNEL_NAME
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.gemm.lean_reductions import combines
from ucutlass.emit.gemm.sm90_epilogue import epilogue
from ucutlass.ir.elements import BF16, F32
from ucutlass.kernels.access import Output, Reduction, Store
from ucutlass.kernels.arithmetic import Arithmetic
from ucutlass.kernels.gemm.plan import GemmPlan, Route, Sm90Schedule
from ucutlass.runtime.build import make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import ToolchainError
from ucutlass.runtime.jit import link, nvjitlink, nvrtc
from ucutlass.runtime.jit import nvrtc_build as lean_parts
from ucutlass.runtime.jit.device_compile import cuda_headers
from ucutlass.runtime.toolchain import find
from ucutlass.shapes import complete

Array: TypeAlias = npt.NDArray[Any]

UNIT = 2.0**-24
"""Of rounding to f32, relative."""

UNWRITTEN = 0xA5


@dataclass(frozen=True)
class Case:
    """A program that stores no product, so that its epilogue needs no TMA. `results` are what it returns:
    the operation, what is left, the element."""

    compute_type: str
    results: tuple[tuple[str, str, str], ...]
    schedule: str
    sizes: dict[str, int]

    @property
    def text(self) -> str:
        batch = "B, " if "B" in self.sizes else ""
        letters = [chr(ord("a") + i) for i in range(len(self.results))]
        made = ", ".join(f"{a}: {e}[{left}]" for a, (_, left, e) in zip(letters, self.results, strict=True))
        modes = ["B", "M", "N"] if batch else ["M", "N"]
        values = []
        for a, (op, left, _) in zip(letters, self.results, strict=True):
            over = ", ".join(mode for mode in modes if mode not in left.split(", "))
            values.append(f"{a} = {op}[{over}](d)")
        return (
            f"kernel k(x: {self.compute_type}[{batch}M, K], w: {self.compute_type}[{batch}N, K]) -> ({made}) {{\n"
            f"  d = dot[K](x, w)\n  return {', '.join(values)}\n"
            f"  schedule sm90a {{ {self.schedule}  cluster 1x1  swap no  split_k 1 }}\n}}\n"
        )


CASES = {
    "two atoms, batches": Case(
        "bf16",
        (
            ("sum", "B, M", "f32"),
            ("sum", "B, N", "f32"),
            ("sum", "B", "f32"),
            ("max", "M", "f32"),
            ("min", "N", "bf16"),
            ("sum", "", "f32"),
        ),
        "warps cooperative  tile 256x64x64",
        {"B": 3, "M": 301, "N": 144, "K": 64},
    ),
    "steps of 16 columns": Case(
        "f16",
        (("sum", "N", "f32"), ("max", "", "f32"), ("sum", "", "f32")),
        "warps pingpong  tile 128x48x64",
        {"M": 190, "N": 112, "K": 64},
    ),
    "rows alone, two atoms": Case(
        "f16",
        (("sum", "M", "f32"), ("min", "M", "f16")),
        "warps pingpong  tile 128x128x64",
        {"M": 261, "N": 272, "K": 64},
    ),
    "one number, two atoms": Case(
        "bf16", (("sum", "", "f32"),), "warps pingpong  tile 128x64x64", {"M": 301, "N": 144, "K": 64}
    ),
    "wide sums": Case(
        "s8",
        (
            ("sum", "M", "i32"),
            ("sum", "N", "i32"),
            ("sum", "", "i32"),
            ("max", "N", "i32"),
            ("min", "M", "i32"),
        ),
        "warps cooperative  tile 128x64x128",
        {"M": 140, "N": 80, "K": 128},
    ),
}


# --- the kernel on the host -----------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A plan, the product that was reduced [batch, M, N], and what was left: the workspace and results."""

    plan: GemmPlan
    sizes: dict[str, int]
    product: Array
    workspace: Array
    results: tuple[Array, ...]


def planned(case: Case) -> tuple[GemmPlan, dict[str, int]]:
    checked = frontend.read_text(case.text)
    kernel = frontend.kernel(checked)
    sizes = complete(kernel, case.sizes)
    return frontend.plan_kernel(checked, kernel, sizes, "sm90a").planned.plan, case.sizes


TYPES = {"f32": np.float32, "f16": np.float16, "i32": np.int32, "bf16": np.uint16}


@pytest.fixture(scope="module", params=CASES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    case = CASES[request.param]
    plan, sizes = planned(case)
    kernel, schedule = lean(plan), plan.schedule
    assert isinstance(schedule, Sm90Schedule)
    library = built(kernel, tmp_path_factory.mktemp("lean"))
    entry = getattr(library, kernel.device.entry)
    tile_m, tile_n, _ = schedule.tile
    threads = 256 if schedule.warps == "cooperative" else 128
    batch, m, n = sizes.get("B", 1), sizes["M"], sizes["N"]
    random = np.random.default_rng(sum(sizes.values()))
    # A tile more than the problem has, and what must not count.
    height, width = (-(-m // tile_m) + 1) * tile_m, (-(-n // tile_n) + 1) * tile_n
    product: Array
    if case.compute_type == "s8":
        product = np.full((batch, height, width), -(2**31), np.int32)
        product[:, :m, :n] = random.integers(-(2**31), 2**31, (batch, m, n))
        product[:, :2, :n] = 2**31 - 1  # sums beyond 32 bits
    else:
        product = np.full((batch, height, width), np.nan, np.float32)
        product[:, :m, :n] = random.standard_normal((batch, m, n))
    registers, at = tile_m * tile_n // threads, product.ctypes.data
    setup = Setup(tile_m, tile_n, registers, threads, at, height, width, batch)
    library.set_up(ctypes.byref(setup))
    results = tuple(
        np.zeros(tuple(sizes[mode] for mode in left.split(", ") if mode), TYPES[element])
        for _, left, element in case.results
    )
    tensors = (ctypes.c_void_p * plan.problem.pointers)(*[64] * plan.problem.pointers)
    for output, result in zip(plan.problem.outputs, results, strict=True):
        tensors[output.access.pointer] = result.ctypes.data
    extents = (ctypes.c_int64 * plan.problem.dims)(*(sizes[d] for d in order(plan, sizes)))
    launch_parameters, size = (ctypes.c_int64 * 3)(0, 1, 1), ctypes.c_uint64()
    assert entry(None, extents, None, launch_parameters, None, ctypes.byref(size), None) == 0
    assert entry(tensors, extents, None, launch_parameters, None, None, None) != 0, "no workspace"
    workspace = np.full(size.value, UNWRITTEN, np.uint8)
    assert (
        entry(
            tensors, extents, None, launch_parameters, workspace.ctypes.data_as(ctypes.c_void_p), None, None
        )
        == 0
    )
    return Run(plan, sizes, product[:, :m, :n], workspace, results)


def order(plan: GemmPlan, sizes: dict[str, int]) -> list[str]:
    """The names of the extents, by their place among the entry's."""
    (k,) = plan.problem.k
    places = {"M": plan.problem.m, "N": plan.problem.n, "K": k}
    if plan.problem.batch:
        places["B"] = plan.problem.batch[0]
    return [name for _, name in sorted((place, name) for name, (place,) in places.items())]


# --- what must be there ---------------------------------------------------------------


def valued(run: Run) -> list[tuple[Reduction, Array, Array]]:
    """Of each reduction its partial results [part, batch, element], where the plain kernel has them, and
    what they must be."""
    problem, schedule = run.plan.problem, run.plan.schedule
    assert isinstance(schedule, Sm90Schedule)
    warps = 8 if schedule.warps == "cooperative" else 4
    names = {
        "M": run.sizes["M"],
        "N": run.sizes["N"],
        "Warps": warps,
        "int64_t": int,
        "ceil_div": lambda a, b: -(-a // b),
        "TileM": schedule.tile[0],
        "TileN": schedule.tile[1],
    }
    operation = arithmetic(problem)
    plain = epilogue(run.plan, operation).combines
    at, found = 0, []
    for combine, output in zip(plain, problem.outputs, strict=True):
        assert isinstance(output, Reduction)
        parts, extent = (int(eval(t.replace("{}", ""), {}, names)) for t in (combine.parts, combine.extent))
        kind = {"float": np.float32, "int32_t": np.int32, "int64_t": np.int64}[combine.value]
        at, count = -(-at // 256) * 256, parts * len(run.product) * extent
        end = at + count * np.dtype(kind).itemsize
        held = run.workspace[at:end].view(kind).reshape(parts, len(run.product), extent)
        found.append((output, held, partials(output, run.product.astype(kind), schedule, warps)))
        at = end
    assert at == len(run.workspace)
    return found


APPLY: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def integral(kind: np.dtype[Any]) -> bool:
    return bool(np.issubdtype(kind, np.integer))


def identity(op: str, kind: np.dtype[Any]) -> Array:
    if op == "sum":
        return np.zeros((), kind)
    ends = (np.iinfo(kind).min, np.iinfo(kind).max) if integral(kind) else (-np.inf, np.inf)
    return np.array(ends[op == "min"], kind)


def partials(output: Reduction, product: Array, schedule: Sm90Schedule, warps: int) -> Array:
    """[part, batch, element], as CUTLASS's epilogue adds them (EpilogueTileAuto; PTX, wgmma's D): a thread
    goes through subtiles down M first, in each through pairs of columns, row halves and the pair; then lanes
    add by twos. Elements beyond the problem are left out."""
    batch, m, n = product.shape
    tile_m, tile_n, _ = schedule.tile
    tiles_m, tiles_n, op = -(-m // tile_m), -(-n // tile_n), APPLY[output.op]
    none = identity(output.op, product.dtype)
    padded = np.full((batch, tiles_m * tile_m, tiles_n * tile_n), none, product.dtype)
    padded[:, :m, :n] = product
    groups, wide = warps // 4, np.gcd(32, tile_n)
    atoms = tile_m // (64 * groups)
    # batch, tile, atom, group, warp, half, quad | tile, step, columns of 8, lane of the quad, of the pair
    cut = padded.reshape(batch, tiles_m, atoms, groups, 4, 2, 8, tiles_n, tile_n // wide, wide // 8, 4, 2)
    B, TM, A, G, W, H, Q, TN, S, J, L, E = range(12)
    kept, walked = {
        (False, True): ((TN, B, TM, A, G, W, H, Q), (S, J, E)),
        (True, False): ((TM, G, W, B, TN, S, J, L, E), (A, H)),
        (True, True): ((TN, TM, G, W, B), (S, A, J, H, E)),
    }[output.access.m is None, output.access.n is None]
    lanes = tuple(axis for axis in (Q, L) if axis not in kept)
    turned = cut.transpose(*kept, *walked, *lanes)
    shape = [cut.shape[axis] for axis in kept]
    count = int(np.prod([cut.shape[axis] for axis in walked]))
    flat = turned.reshape(*shape, count, -1)
    value = reduce(op, (flat[..., i, :] for i in range(count)), none)
    while value.shape[-1] > 1:  # the lanes by twos, those next to each other first
        value = op(value[..., ::2], value[..., 1::2])
    if output.access.m is not None:
        return value.reshape(tiles_n, batch, -1)[..., :m]
    if output.access.n is not None:
        return value.reshape(tiles_m * warps, batch, -1)[..., :n]
    return value.reshape(tiles_n * tiles_m * warps, batch, 1)


@pytest.mark.slow
def test_every_partial_result_is_there_with_the_bits_of_cutlass(run: Run) -> None:
    for output, held, expected in valued(run):
        assert held.shape == expected.shape
        one, other = (a.astype(held.dtype, order="C", copy=True).view(np.uint8) for a in (held, expected))
        assert np.array_equal(one, other), output


def test_results(run: Run) -> None:
    for output, result in zip(run.plan.problem.outputs, run.results, strict=True):
        assert isinstance(output, Reduction)
        batch = bool(output.access.batch) and output.access.batch[0] is None
        removed = (batch or not output.access.batch, output.access.m is None, output.access.n is None)
        axes = tuple(axis for axis, gone in enumerate(removed) if gone)
        wide = run.product.astype(np.int64 if integral(run.product.dtype) else np.float64)
        expected = APPLY[output.op].reduce(wide, axis=axes)
        if integral(run.product.dtype):
            assert np.array_equal(result, np.clip(expected, -(2**31), 2**31 - 1)), output
            continue
        actual = result.astype(np.float64)
        if output.access.elem.name == "bf16":
            actual = (result.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        # Each addition rounds once, and so does the result's element.
        terms = int(np.prod([wide.shape[axis] for axis in axes])) if output.op == "sum" else 0
        unit = 2.0**-output.access.elem.mantissa
        added = terms * UNIT / (1 - terms * UNIT) * np.abs(wide).sum(axis=axes)
        error = added + unit * (np.abs(expected) + added)
        assert (np.abs(actual - expected) <= error).all(), output


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_second_launch_is_the_plain_kernels(case: Case) -> None:
    plan, _ = planned(case)
    assert isinstance(plan.schedule, Sm90Schedule)
    operation = arithmetic(plan.problem)
    ours, theirs = combines(plan.problem, plan.schedule, operation), epilogue(plan, operation).combines
    for one, other in zip(ours, theirs, strict=True):
        for name in ("name", "operation", "value", "columns", "extent", "stride"):
            assert getattr(one, name) == getattr(other, name)


DRIVER = r"""
#include <cuda.h>
#include <cstdio>
int lookups = 0;
extern "C" CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, char const* name) {
  std::printf("%s of %zu\n", name, size_t(library));
  *kernel = CUkernel(48);
  return lookups++ ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
extern "C" CUresult cuLaunchKernelEx(CUlaunchConfig const* c, CUfunction function, void** params, void**) {
  std::printf("%zu: %u %u %u x %u %u %u, ", size_t(function), c->gridDimX, c->gridDimY, c->gridDimZ,
              c->blockDimX, c->blockDimY, c->blockDimZ);
  int const given = *static_cast<int*>(params[0]);
  std::printf("%u bytes, stream %zu, %d\n", c->sharedMemBytes, size_t(c->hStream), given);
  return c->numAttrs ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
"""

CALLER = r"""
#include <cstdio>
#include "lean.h"
int main() {
  ucc_lean::Kernel kernel{};
  kernel.library = reinterpret_cast<void*>(16);
  void* found = nullptr;
  int params = 7;
  auto launch = [&](int columns, int64_t extent, int64_t batches) {
    void* stream = reinterpret_cast<void*>(64);
    char const* name = "ucc_combine_out1";
    std::printf("%d\n", ucc_lean_beside(&kernel, name, &found, columns, extent, batches, &params, stream));
  };
  launch(32, 65, 3);
  launch(32, 65, 3);
  launch(1, 1, 70000);
}
"""


def test_the_second_launch_is_looked_up_once_and_a_failure_is_not_kept(tmp_path: Path, cache: Cache) -> None:
    """Nothing else is asked of the driver, so that a launch may be captured."""
    try:
        tools = find()
    except ToolchainError as missing:
        pytest.skip(str(missing))
    shared = lean_parts.driver(tools, cache).folder / lean_parts.DRIVER_PART
    text = (lean_parts.NATIVE / lean_parts.DRIVER_SOURCE).read_text()
    asked = set(re.findall(r'look_up\(library, "(\w+)"', text)) - {"cuLibraryGetKernel", "cuLaunchKernelEx"}
    others = "".join(
        f'extern "C" int {name}() {{ std::puts("{name}"); return 0; }}\n' for name in sorted(asked)
    )
    (tmp_path / "driver.cpp").write_text(DRIVER)
    (tmp_path / "others.cpp").write_text(f"#include <cstdio>\n{others}")
    (tmp_path / "caller.cpp").write_text(CALLER)
    includes = [f"-I{path}" for path in (*cuda_headers(tools.nvcc.path), lean_parts.NATIVE)]
    line = [str(tools.host.path), "-std=c++17", "-w", *includes]
    library, program = tmp_path / "libcuda.so.1", tmp_path / "caller"
    fakes = [str(tmp_path / name) for name in ("driver.cpp", "others.cpp")]
    subprocess.run([*line, "-fPIC", "-shared", *fakes, "-o", str(library)], check=True)
    subprocess.run([*line, str(tmp_path / "caller.cpp"), str(shared), "-ldl", "-o", str(program)], check=True)
    output = subprocess.check_output([str(program)], env={"LD_LIBRARY_PATH": str(tmp_path)}, text=True)
    out_of_memory = 1002  # 1000 and the driver's error
    assert output.splitlines() == [
        "ucc_combine_out1 of 16",
        str(out_of_memory),
        "ucc_combine_out1 of 16",
        "48: 3 3 1 x 256 1 1, 0 bytes, stream 64, 7",
        "0",
        "48: 1 65535 1 x 256 1 1, 0 bytes, stream 64, 7",
        "0",
    ]


@pytest.mark.nvcc
def test_a_built_kernel_brings_the_second_launches_and_spills_nothing(
    compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink, cache: Cache
) -> None:
    """The widest tile, where registers are fewest; both compilers check that they agree on parameters."""
    moved: tuple[tuple[Output, Route], ...] = (
        (Store(matrix(2, BF16)), "tma"),
        (Reduction("sum", access(3, F32, m=())), "direct"),
        (Reduction("max", access(4, F32, n=())), "direct"),
    )
    one = plan(BF16, Arithmetic((ACC,), (0, 0, 0)), moved)
    artifact = make(link.recipe(emit(one, ""), lean(one), find(), cache), cache)
    names = {KERNEL_NAME, "ucc_combine_out1", "ucc_combine_out2"}
    assert kernels((artifact.folder / link.IMAGE).read_bytes()).keys() == names
    assert {usage.kernel for usage in artifact.report.usage} == names
    assert not any(usage.spill_stores or usage.spill_loads for usage in artifact.report.usage)
