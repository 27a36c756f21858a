"""A lean kernel's entry, epilogue and second launches as they are emitted, compiled for the host.

Of the epilogue what stands between its beginning and its end is taken as it is, so of kernels without TMA in
it. `lean_emulated.h` stands for the driver and the kernel layer.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path

from tests.emit import host_compiler
from ucutlass.emit.parts import Lean
from ucutlass.runtime.jit.nvrtc_build import NATIVE

HERE = Path(__file__).parent

HEADERS = """
#include <cuda_runtime.h>
#include <cutlass/half.h>
#include <cutlass/numeric_types.h>
#include <cutlass/functional.h>
#include <cutlass/numeric_conversion.h>
#include <limits>
#include "emulator.h"
"""
"""What the device's code begins with."""


class Setup(ctypes.Structure):
    """What `set_up` takes, as in lean_emulated.h."""

    _fields_ = (
        ("tile_m", ctypes.c_int),
        ("tile_n", ctypes.c_int),
        ("registers", ctypes.c_int),
        ("threads", ctypes.c_int),
        ("product", ctypes.c_void_p),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("batch", ctypes.c_int),
    )


def between(text: str, first: str, last: str) -> str:
    start = text.index(first)
    return text[start : text.index(last, start)]


def device(kernel: Lean) -> str:
    """The epilogue and the kernels that finish reductions, as the emulator runs them."""
    code, entry = kernel.device.code, kernel.device.entry
    declared = between(code, 'extern "C" __device__ void ucc_arithmetic(', ";\n")
    outs = re.findall(r"& (out\d+)", declared)
    accumulator = between(code, "using Accumulator = ", ";").split()[-1]
    constants = [line for line in code.splitlines() if line.startswith("constexpr int ")]
    structs = between(code, "struct MainloopParams {", "// --- schedule")
    reductions = between(code, "// --- reductions", "struct Epilogue {")
    body = between(code, "    [[maybe_unused]] int const M =", "    // Counts steps")
    launches = between(code, 'extern "C" __global__ void ucc_combine_', "// What an arithmetic may use")
    names = re.findall(r"void (ucc_combine_out\d+)\(", launches)
    dispatch = "\n".join(
        f'  if (!strcmp(name, "{name}")) {name}(*static_cast<{entry}_kernel::CombineParams const*>(params));'
        for name in names
    )
    before, _, after = reductions.partition("constexpr int Warps")
    return f"""{HEADERS}
#define UCC_LEAN_DRIVER
#include "lean.h"
#define ACCUMULATOR {accumulator}
#include "lean_emulated.h"

template <class... T> struct Shape;
namespace {entry}_kernel {{
using Descriptor = ucc_lean::Descriptor;
{between(code, "struct ArithmeticParams", "extern")}
{declared} {{ {" ".join(f"{out} = acc;" for out in outs)} }}
{structs}
using Accumulator = {accumulator};
{chr(10).join(line for line in constants if not line.startswith("constexpr int Warps"))}
{before}constexpr int Warps{after}
struct Held {{
  Accumulator* held;
  Accumulator* data() {{ return held; }}
}};
using Four = std::tuple<int, int, int, int>;
void epilogue(EpilogueParams const& params, Four problem, Four at, Held accumulators, int thread) {{
{body}
}}
}}
{launches}
void run_tile(void const* given, int m, int n, int l, int thread, void* held) {{
  using namespace {entry}_kernel;
  auto const& p = *static_cast<KernelParams const*>(given);
  Four const problem(p.shape[0], p.shape[1], p.shape[2], p.shape[3]);
  epilogue(p.epilogue, problem, Four(m, n, 0, l), Held{{static_cast<Accumulator*>(held)}}, thread);
}}
void run_combine(char const* name, void const* params) {{
{dispatch}
}}
"""


def built(kernel: Lean, folder: Path) -> ctypes.CDLL:
    program = host_compiler.compiler()
    (folder / "device.cpp").write_text(device(kernel).removeprefix(HEADERS))
    declared = 'extern "C" unsigned char const ucc_image[]'
    assert declared in kernel.host
    (folder / "host.cpp").write_text(
        kernel.host.replace(declared, "extern unsigned char const ucc_image[1] = {}")
    )
    flags = (*host_compiler.LANGUAGE, host_compiler.KERNEL, "-ffp-contract=off", *host_compiler.ALIGNED)
    flags += host_compiler.garbage(program)
    places = (*(f"-I{place}" for place in (HERE, NATIVE)), *host_compiler.includes())
    header = host_compiler.precompiled("lean", HEADERS, flags)
    for name, first in (("device", ("-include", str(header))), ("host", ())):
        command = [program, *flags, *first, *places, "-c", f"{name}.cpp"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, done.stderr[-4000:]
    link = [program, *flags, "-shared", "device.o", "host.o", host_compiler.once(header), "-o", "kernel.so"]
    subprocess.run(link, check=True, cwd=folder)
    return ctypes.CDLL(str(folder / "kernel.so"))
