"""f32 by wgmma in three tf32 passes: what splits the operands, what the host makes of it, and the kernel."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.emit.harness import cuda_includes
from tests.emit.test_gemm_sm90 import ACC, access, matrix, plan
from tests.jit.lean_emulated import between
from tests.jit.lean_host import Bench, good, tensor
from tests.jit.lean_plans import CLUSTERS, THREE, THREE_PINGPONG, ordered, three
from tests.jit.machine_code import CALLS, HGMMA, kernels, operations
from tests.kernels.gemm.problems import gemm
from ucutlass import backend, frontend
from ucutlass.emit import emit
from ucutlass.emit.gemm.arithmetic_unit import KERNEL_NAME
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.gemm.lean_split import BLOCKS
from ucutlass.emit.gemm.sm90 import NotServed, render
from ucutlass.ir.elements import F32
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.access import Output, Reduction, Store
from ucutlass.kernels.arithmetic import Arithmetic, Compute
from ucutlass.kernels.gemm.plan import GemmPlan, Route
from ucutlass.kernels.gemm.rules import violations
from ucutlass.kernels.gemm.rules.tiles import COOPERATIVE_M, PINGPONG_M, WIDTHS
from ucutlass.kernels.gemm.schedule import build as candidate_of
from ucutlass.kernels.gemm.schedule import case_of
from ucutlass.runtime.build import make, nvcc_recipe
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import BuiltInPartsAlone, ToolchainError
from ucutlass.runtime.jit import link, nvjitlink, nvrtc
from ucutlass.runtime.jit import nvrtc_build as lean_parts
from ucutlass.runtime.parallel import build_many
from ucutlass.runtime.toolchain import Toolchain, find
from ucutlass.shapes import complete

Array: TypeAlias = npt.NDArray[Any]

MISMATCH = 1
WORKSPACE = 1 << 40

SPLIT_K = replace(THREE, scheduler="stream_k")
STREAM = (0, 1, 0)  # launch parameters


def reduced() -> GemmPlan:
    """With sums over columns and rows beside the product."""
    moved: tuple[tuple[Output, Route], ...] = (
        (Store(replace(matrix(2, F32), align=4)), "tma"),
        (Reduction("sum", access(3, F32, m=())), "direct"),
        (Reduction("max", access(4, F32, n=())), "direct"),
    )
    return plan(F32, Arithmetic((ACC,), (0, 0, 0)), moved, replace(THREE, tile=(128, 128, 32), stages=3))


@pytest.fixture(scope="module")
def tools() -> Toolchain:
    try:
        return find()
    except ToolchainError as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def bench(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    folder = tmp_path_factory.mktemp("split")
    return Bench(tools, Cache(folder / "cache", 10 * 2**30), folder)


# --- the launch that splits -----------------------------------------------------------


HARNESS = """
#include <cuda_runtime.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <ucontext.h>
#define CUTLASS_DEVICE inline
#define CUTLASS_PRAGMA_UNROLL
#define CUTLASS_PRAGMA_NO_UNROLL
#undef __device__
#define __device__
#undef __shared__
#define __shared__ static
struct Index { int x, y; };
static Index blockIdx, threadIdx;
static int met;  // of a block
struct Fiber { ucontext_t context; char stack[1 << 16]; bool done; };
static Fiber fibers[256];
static ucontext_t scheduler;
// Every thread of a block comes to the same barriers, so that each runs up to the next one in its turn.
static void __syncthreads() { swapcontext(&fibers[threadIdx.x].context, &scheduler); }
static int __syncthreads_or(int one) { met |= one; __syncthreads(); return met; }
static float __int_as_float(int bits) { float x; memcpy(&x, &bits, 4); return x; }
static float __uint_as_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static uint32_t __float_as_uint(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
"""

RUN = """
static SplitParams const* params;
static void thread() {
  split(*params);
  fibers[threadIdx.x].done = true;
  __syncthreads();
}
extern "C" void run(SplitParams const* p) {
  params = p;
  for (blockIdx.y = 0; blockIdx.y < 2; ++blockIdx.y)
    for (blockIdx.x = 0; blockIdx.x < SplitBlocks; ++blockIdx.x) {
      met = 0;
      for (Fiber& fiber : fibers) {
        fiber.done = false;
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = sizeof(fiber.stack);
        makecontext(&fiber.context, thread, 0);
      }
      while (!fibers[0].done)
        for (threadIdx.x = 0; threadIdx.x < 256; ++threadIdx.x)
          swapcontext(&scheduler, &fibers[threadIdx.x].context);
    }
}
"""


class SplitOperand(ctypes.Structure):
    _fields_ = (
        ("source", ctypes.c_void_p),
        ("small", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("batches", ctypes.c_int32),
    )


class SplitParams(ctypes.Structure):
    _fields_ = (("operands", SplitOperand * 2), ("flags", ctypes.c_void_p), ("k", ctypes.c_int32))


class TurnedOperand(ctypes.Structure):
    _fields_ = (
        ("source", ctypes.c_void_p),
        ("small", ctypes.c_void_p),
        ("big", ctypes.c_void_p),
        ("row_stride", ctypes.c_int64),
        ("batch_stride", ctypes.c_int64),
        ("rows", ctypes.c_int32),
        ("batches", ctypes.c_int32),
    )


class TurnedParams(ctypes.Structure):
    _fields_ = (("operands", TurnedOperand * 2), ("flags", ctypes.c_void_p), ("k", ctypes.c_int32))


@pytest.fixture(scope="module")
def split(tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    return split_on_host(three(), tools, tmp_path_factory)


def split_on_host(plan: GemmPlan, tools: Toolchain, tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The emitted function on the host, a fiber for each thread."""
    code, folder = lean(plan).device.code, tmp_path_factory.mktemp("host")
    declared = between(code, "constexpr int SplitBlocks", "struct EpilogueParams")
    body = code[code.index("// --- split of f32 into tf32 parts") : code.index("// --- kernel ---")]
    (folder / "split.cpp").write_text(HARNESS + declared + body + RUN)
    line = [str(tools.host.path), "-std=c++17", "-O1", "-w", "-fPIC", "-shared", "-ffp-contract=off"]
    subprocess.run([*line, *cuda_includes(), "split.cpp", "-o", "split.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "split.so"))


def tf32(x: Array) -> Array:
    """To nearest, ties to even."""
    bits = x.view(np.uint32)
    up = (bits + np.uint32(0xFFF) + (bits >> 13 & 1)) & np.uint32(0xFFFFE000)
    return np.where(np.isfinite(x), up, bits).astype(np.uint32).view(np.float32)


def small_part(x: Array) -> Array:
    """What TF32 leaves of x, to 11 bits, so rounded that both parts are no less than x."""
    rest = x - tf32(np.ascontiguousarray(x))
    bits, same = rest.view(np.uint32), np.signbit(rest) == np.signbit(x)
    return ((bits + np.where(same, np.uint32(0x1FFF), np.uint32(0))) & np.uint32(0xFFFFE000)).view(np.float32)


UNTOUCHED = np.float32(7.5)


def run_split(split: ctypes.CDLL, operands: Sequence[Array]) -> tuple[list[Array], Array]:
    """Of operands [batch, row, k] as they lie, k together: their small parts, padded, and the flags."""
    k = operands[0].shape[2]
    padded = -(-k // 4) * 4
    flags = np.full((2, BLOCKS), 9, np.uint8)
    small = [np.full((*x.shape[:2], padded), UNTOUCHED, np.float32) for x in operands]
    params = SplitParams(flags=flags.ctypes.data, k=k)
    for place, x, out in zip(params.operands, operands, small, strict=True):
        assert x.strides[2] == 4 and x.ctypes.data % 16 == 0
        place.source, place.small = x.ctypes.data, out.ctypes.data
        place.row_stride, place.batch_stride = x.strides[1] // 4, x.strides[0] // 4
        place.rows, place.batches = x.shape[1], x.shape[0]
    split.run(ctypes.byref(params))
    return small, flags


def normal(*shape: int) -> Array:
    random = np.random.default_rng(sum(shape)).standard_normal(shape)
    return np.ascontiguousarray(random.astype(np.float32))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        pytest.param((1, 300, 64), (1, 17, 64), id="plain"),
        pytest.param((3, 130, 36), (1, 1000, 36), id="a batch that b lacks"),
        pytest.param((1, 1, 4), (5, 1, 4), id="one vector"),
        pytest.param((2, 3, 300_000), (1, 2, 300_000), id="rows longer than a step"),
    ],
)
def test_small_is_what_rounding_takes(a: tuple[int, ...], b: tuple[int, ...], split: ctypes.CDLL) -> None:
    operands = [normal(*a), normal(*b)]
    small, flags = run_split(split, operands)
    for x, found in zip(operands, small, strict=True):
        assert np.array_equal(found, small_part(x))
        assert (np.abs(found) <= 2.0**-11 * np.abs(x)).all()
    assert not flags.any()


def test_rows_may_lie_anywhere_and_end_within_a_vector(split: ctypes.CDLL) -> None:
    """Batches nearer than rows; what lies beyond K is neither read as a value nor waited for."""
    whole = normal(40, 5, 32)
    whole[:, :, 30:] = np.inf
    lying = whole.transpose(1, 0, 2)[:, :, :30]  # [batch, row, k]
    small, flags = run_split(split, [lying, normal(1, 8, 32)[:, :, :30]])
    assert small[0].shape == (5, 40, 32)
    assert np.array_equal(small[0][:, :, :30], small_part(lying))
    assert not flags.any()


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan, 3.4028235e38])
def test_what_is_not_finite_has_no_small_part_and_is_told(value: float, split: ctypes.CDLL) -> None:
    """The last is finite, and rounds to infinity."""
    a, b = normal(2, 40, 64), normal(1, 30, 64)
    a[1, 37, 61] = value
    small, flags = run_split(split, [a, b])
    assert small[0][1, 37, 61] == 0 and np.isfinite(small[0]).all()
    a[1, 37, 61] = 0
    assert np.array_equal(small[0], small_part(a))
    assert flags[0].sum() == 1 and not flags[1].any()
    small, flags = run_split(split, [b, a])
    assert not flags.any(), "flags are written anew"


@pytest.mark.parametrize("orders", [("mn", "mn"), ("mn", "k"), ("k", "mn")])
def test_an_operand_along_its_rows_is_turned(
    orders: tuple[str, str], tools: Toolchain, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows and K that end within a vector, lines apart, a batch, and what is not finite."""
    split = split_on_host(ordered(three(), *orders), tools, tmp_path_factory)
    k, shapes = 45, ((2, 37), (1, 130))
    whole = [normal(batches, 48, 132 + 4 * i) for i, (batches, _) in enumerate(shapes)]
    whole[0][1, 7, 35] = np.inf
    operands, params = [], TurnedParams(k=k)
    flags = np.full((2, BLOCKS), 9, np.uint8)
    params.flags = flags.ctypes.data
    copies: list[tuple[Array, Array]] = []
    for o, lines, (batches, rows), order in zip(params.operands, whole, shapes, orders, strict=True):
        expected = np.ascontiguousarray(lines[:, :k, :rows].transpose(0, 2, 1))  # [batch, row, k]
        lying = lines if order == "mn" else np.ascontiguousarray(lines[:, :, :rows].transpose(0, 2, 1))
        operands.append((expected, lying))
        small, big = (np.full((batches, rows, 48), UNTOUCHED, np.float32) for _ in range(2))
        copies.append((small, big))
        o.source, o.small, o.big = lying.ctypes.data, small.ctypes.data, big.ctypes.data
        o.row_stride, o.batch_stride = lying.strides[1] // 4, lying.strides[0] // 4
        o.rows, o.batches = rows, batches
    split.run(ctypes.byref(params))
    for (expected, _), (small, big), order in zip(operands, copies, orders, strict=True):
        finite = np.where(np.isfinite(expected), expected, 0)
        assert np.array_equal(small[:, :, :k], small_part(finite)) and not small[:, :, k:].any()
        if order == "mn":
            assert np.array_equal(big[:, :, :k], expected) and not big[:, :, k:].any()
        else:
            assert (big == UNTOUCHED).all()
    assert flags[0].sum() == 1 and not flags[1].any()


# --- the host's side ------------------------------------------------------------------


def rounded(size: int) -> int:
    return -(-size // 256) * 256


def test_the_launch_that_splits_goes_first(bench: Bench) -> None:
    extents, places = (192, 384, 64, 3), ("mainloop.a", "mainloop.a_small", "mainloop.b", "mainloop.b_small")
    one = three(replace(THREE, cluster=(2, 1)), batched=True)
    call = good(one, extents, workspace=WORKSPACE, stream=4096)
    answers = bench.host(one, (*places, "mainloop.flags", "mainloop.tma_transaction_bytes")).call(
        call, call, replace(call, asks=True, tensors=None), replace(call, workspace=None)
    )
    first, second, asked, refused = answers.calls
    assert [a.codes for a in answers.calls] == [[0], [0], [0], [MISMATCH]]
    a_small = 2 * BLOCKS
    b_small = rounded(a_small + 4 * 64 * 192 * 3)
    assert asked.workspace == b_small + 4 * 64 * 384, "B is there once"
    assert not refused.of("cuLaunchKernelEx") and not asked.said
    before, kernel = first.of("cuLaunchKernelEx")
    assert (before["grid"], before["block"], before["shared"]) == ([BLOCKS, 2, 1], [256, 1, 1], 0)
    assert before["stream"] == kernel["stream"] == 4096 and kernel["block"] == [384, 1, 1]
    assert [one["name"] for one in first.of("cuLibraryGetKernel")] == [KERNEL_NAME, "ucc_split"]
    assert not second.of("cuLibraryGetKernel"), "it is looked up once"
    given = SplitParams.from_buffer_copy(bytes.fromhex(before["params"])[: ctypes.sizeof(SplitParams)])
    told = [
        (o.source, o.small - WORKSPACE, o.row_stride, o.batch_stride, o.rows, o.batches)
        for o in given.operands
    ]
    assert told == [(tensor(0), a_small, 3 * 64, 64, 192, 3), (tensor(1), b_small, 64, 0, 384, 1)]
    assert (given.flags, given.k) == (WORKSPACE, 64)
    assert answers.numbers(kernel, "mainloop.flags", "Q") == (WORKSPACE,)
    assert answers.numbers(kernel, "mainloop.tma_transaction_bytes", "I") == (2 * (128 + 192) * 32 * 4,)
    made = {one["number"]: one for one in first.of("cuTensorMapEncodeTiled")}
    maps = {place: made[answers.numbers(kernel, place, "Q")[0]] for place in places}
    assert {one["type"] for one in maps.values()} == {11}, "TMA rounds all of them to tf32"
    for name, address, extents_, strides in (
        ("a", WORKSPACE + a_small, [64, 192, 3], [256, 256 * 192]),
        ("b", WORKSPACE + b_small, [64, 384, 1], [256, 256 * 384]),
    ):
        small, whole = maps[f"mainloop.{name}_small"], maps[f"mainloop.{name}"]
        assert (small["address"], small["extents"], small["strides"]) == (address, extents_, strides)
        assert (small["box"], small["swizzle"]) == (whole["box"], whole["swizzle"])


def test_a_turned_operand_is_loaded_from_its_copy(bench: Bench) -> None:
    extents = (192, 384, 68)
    plan = ordered(three(), "k", "mn")
    answers = bench.host(plan, ("mainloop.a", "mainloop.b", "mainloop.b_small")).call(
        good(plan, extents, workspace=WORKSPACE),
        good(plan, extents, asks=True),
        good(plan, extents, workspace=WORKSPACE, tensors=[tensor(0), tensor(1) + 4, tensor(2)]),
    )
    first, query, shifted = answers.calls
    assert [a.codes for a in answers.calls] == [[0], [0], [MISMATCH]], "16 bytes are read together"
    assert not shifted.of("cuLaunchKernelEx")
    a_small = 2 * BLOCKS
    b_small = rounded(a_small + 4 * 68 * 192)
    b_big = rounded(b_small + 4 * 68 * 384)
    assert query.workspace == b_big + 4 * 68 * 384
    before, kernel = first.of("cuLaunchKernelEx")
    passed = (TurnedOperand * 2).from_buffer_copy(bytes.fromhex(before["params"]))
    assert [o.big for o in passed] == [None, WORKSPACE + b_big]
    assert [(o.source, o.row_stride, o.rows) for o in passed] == [(tensor(0), 68, 192), (tensor(1), 384, 384)]
    encoded = {call["number"]: call for call in first.of("cuTensorMapEncodeTiled")}
    a, b, small = (
        encoded[answers.numbers(kernel, f"mainloop.{name}", "Q")[0]] for name in ("a", "b", "b_small")
    )
    assert (a["address"], b["address"]) == (tensor(0), WORKSPACE + b_big)
    for copy in (b, small):
        assert (copy["extents"], copy["strides"][0]) == ([68, 384, 1], 4 * 68)
    assert (b["box"], b["swizzle"], b["type"]) == (small["box"], small["swizzle"], small["type"])


def test_the_workspaces_follow_one_another(bench: Bench) -> None:
    """The scheduler's first, whose locks the host clears; then partial results; then the parts."""
    extents = (192, 384, 640)
    plain, stream = three(), three(SPLIT_K)
    sizes = [
        bench.host(p)
        .call(good(p, extents, asks=True, launch_parameters=launch_parameters))
        .calls[0]
        .workspace
        for p, launch_parameters in ((plain, (0, 1, 1)), (stream, STREAM), (reduced(), (0, 1, 1)))
    ]
    parts = sizes[0]
    assert parts == rounded(2 * BLOCKS + 4 * 640 * 192) + 4 * 640 * 384
    answers = bench.host(stream, ("mainloop.flags", "workspace")).call(
        good(stream, extents, workspace=WORKSPACE, launch_parameters=STREAM)
    )
    (answer,) = answers.calls
    assert answer.codes == [0]
    kernel = answer.of("cuLaunchKernelEx")[1]
    (flags,) = answers.numbers(kernel, "mainloop.flags", "Q")
    assert answers.numbers(kernel, "workspace", "Q") == (WORKSPACE,)
    assert flags == WORKSPACE + sizes[1] - parts
    for cleared in answer.of("cuMemsetD8Async"):
        assert cleared["address"] + cleared["bytes"] <= flags
    left = rounded(sizes[2] - parts)
    answers = bench.host(reduced(), ("mainloop.flags", "epilogue.out2_partials")).call(
        good(reduced(), extents, workspace=WORKSPACE)
    )
    (answer,) = answers.calls
    before, kernel, *after = answer.of("cuLaunchKernelEx")
    assert before["grid"] == [BLOCKS, 2, 1] and len(after) == 2
    assert answers.numbers(kernel, "mainloop.flags", "Q") == (WORKSPACE + left,)
    assert answers.numbers(kernel, "epilogue.out2_partials", "Q")[0] < WORKSPACE + left


# --- the kernel -----------------------------------------------------------------------


BUILT = {
    "cooperative": three(),
    "pingpong": three(THREE_PINGPONG, batched=True),
    "reductions": reduced(),
    "stream-K": three(SPLIT_K),
    "half a turn": three(replace(THREE_PINGPONG, tile=(128, 96, 32), stages=3)),
    "tall": three(replace(THREE, tile=(256, 96, 16), stages=4)),
}


@pytest.mark.nvcc
@pytest.mark.parametrize("name", BUILT)
def test_machine_code_is_lean(
    name: str, bench: Bench, compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink
) -> None:
    """No spill, no call, no serialised wgmma: three passes a k tile, in a turn of the loop, in one for the
    rest, and where something is not finite."""
    one = BUILT[name]
    artifact = make(link.recipe(emit(one, ""), lean(one), bench.toolchain, bench.cache), bench.cache)
    assert not artifact.report.findings
    assert {"ucc_split", KERNEL_NAME} <= {usage.kernel for usage in artifact.report.usage}
    assert not any(usage.spill_stores or usage.spill_loads or usage.stack for usage in artifact.report.usage)
    code = kernels((artifact.folder / link.IMAGE).read_bytes())
    counted = operations(code[KERNEL_NAME])
    text = lean(one).device.code
    passes = text.count("    wgmma(d + ") // 2
    (more,) = re.findall(r"promoted_tiles\(Int<(\d)>", text) or ["0"]
    assert counted[HGMMA] == passes * (2 + int(more))
    assert not any(counted[call] for call in CALLS)


@pytest.mark.nvcc
def test_both_compilers_put_the_parts_in_the_same_places(
    bench: Bench, compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink
) -> None:
    fields = ("mainloop.a_small", "mainloop.b_small", "mainloop.flags", "epilogue", "hw_info", "workspace")
    kernel = lean(three())
    places = bench.host(three(), fields).call().places
    params = f"(({kernel.device.entry}_kernel::KernelParams*)0)->"
    checks = [f'static_assert(__INTADDR__(&{params}{f}) == {at}, "{f}");\n' for f, at in places.items()]
    text = kernel.device.text + "".join(checks)
    device = replace(kernel.device, text=text, code=text)
    make(lean_parts.recipe(replace(kernel, device=device), bench.toolchain), bench.cache)


def test_each_k_tile_takes_the_smallest_terms_first_and_from_zero() -> None:
    """What is added to a large sum loses its low bits; nothing is large before the last term."""
    code = lean(three()).device.code
    body = between(code, "void issue_wgmma(", "wgmma_commit_group")
    matches = re.findall(r"wgmma\(d \+ \d+, (\w+) \+ \d+, (\w+) \+ \d+, (\w+)\)", body)
    terms = [("a_small", "b"), ("a", "b_small"), ("a", "b")]
    assert [pair[:2] for pair in matches] == [term for term in terms for _ in range(4)]
    assert [pair[2] for pair in matches] == ["0"] + ["1"] * 11


def test_each_k_tile_is_added_in_f32() -> None:
    """By a plain addition, in both loops: where tensor cores added them, long sums would drift."""
    code = lean(three()).device.code
    assert code.count("accumulators[(i / 96 * Parts + part) * 96 + i % 96] += sums[i];") == 1
    special = between(code, "void multiply_non_finite(", "template <class Accumulators>")
    for multiplied in ("issue_wgmma_big", "issue_wgmma_cross"):
        after = special[special.index(multiplied) :]
        assert after.index("wgmma_wait_group<0>();") < after.index("add(accumulators, sums, 0);")
    loop = between(code, "void mma(", "// `mma` leaves")
    assert (
        "issue_wgmma(accumulators" not in loop and "add(accumulators.data(), sums, number % Parts);" in loop
    )


def test_warp_groups_that_share_no_tile_meet_at_barriers_of_their_own() -> None:
    cooperative, pingpong = (lean(three(s)).device.code for s in (THREE, THREE_PINGPONG))
    assert "uint32_t const barrier = 2;" in cooperative
    assert "uint32_t const barrier = 1 + threadIdx.x / 128;" in pingpong


# --- which ways of building serve it --------------------------------------------------


def test_no_other_stage_serves_it(bench: Bench) -> None:
    one, cache = three(), bench.cache
    source = emit(one, "")
    assert source.in_parts and source.entry != lean(one).device.entry and "#error" in source.text
    assert backend.recipe_of(source, one, "auto", cache).builder == "staged-b"
    with pytest.raises(NotServed, match="use UCUTLASS_BUILD_PATH auto or nvrtc, or `warps multistage`"):
        render(one)
    for make_recipe in (
        lambda: backend.recipe_of(source, one, "nvcc", cache),
        lambda: nvcc_recipe(source, bench.toolchain),
    ):
        with pytest.raises(BuiltInPartsAlone, match=r"UCUTLASS_BUILD_PATH.*`warps multistage`"):
            make_recipe()


def test_the_header_names_no_command_that_does_not_build_it() -> None:
    checked = frontend.read_text("kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) }")
    program = frontend.kernel(checked)
    sizes = complete(program, dict.fromkeys("MNK", 4096))
    planned = frontend.plan_kernel(checked, program, sizes, "sm90a").planned
    source = backend.source_of(checked, program, planned)
    assert source.in_parts
    said = source.text[: source.text.index("#error")]
    assert "nvcc -" not in said and "`ucc build` builds it of its parts" in said


def test_among_plain_builds_it_fails_in_its_place(bench: Bench) -> None:
    (failed,) = build_many([emit(three(), "")], bench.toolchain, bench.cache)
    assert isinstance(failed, BuiltInPartsAlone)


def test_what_differs_in_a_part_is_another_source() -> None:
    base = three()
    body = (ACC, Compute("relu", (0,), "f32"))
    other = replace(base, problem=replace(base.problem, arithmetic=Arithmetic(body, (1,))))
    assert lean(other).device.entry == lean(base).device.entry
    assert emit(other, "").entry != emit(base, "").entry


H200, SM90 = DEVICES["H200"], ARCHES["sm90a"]


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(("pingpong", "cooperative")),
    st.sampled_from(PINGPONG_M),
    st.sampled_from(WIDTHS),
    st.integers(1, 16),
    st.sampled_from(CLUSTERS),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.sampled_from(["f32", "bf16"]),
)
def test_what_the_rules_allow_is_served(
    warps: Any,
    rows: int,
    columns: int,
    steps: int,
    cluster: tuple[int, int],
    batched: bool,
    residual: bool,
    bias: bool,
    reduces: bool,
    out: str,
) -> None:
    """No other kernel stands in for it, so that the rules must refuse what it does not serve, and only that:
    they count the bytes of its epilogue."""
    problem, sizes = gemm(
        512,
        512,
        512,
        4 if batched else 1,
        compute_type="f32",
        residual=residual,
        bias=bias,
        reduce=reduces,
        out=out,
    )
    if warps == "cooperative" and rows not in COOPERATIVE_M:
        rows = COOPERATIVE_M[0]
    tile = (rows, columns, 8 * steps)
    request = PartialSchedule(warps=warps, tile=tile, cluster=cluster)
    gemm_candidate = candidate_of(case_of(problem, sizes, SM90, H200), request)
    made, broken = (
        GemmPlan("sm90a", gemm_candidate.problem, gemm_candidate.schedule, gemm_candidate.routes),
        violations(gemm_candidate),
    )
    if not broken:
        assert lean(made)
    elif {v.code for v in broken} == {"UC0426"}:
        with pytest.raises(NotServed, match="shared memory"):
            lean(made)
