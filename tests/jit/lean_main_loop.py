"""A lean kernel's main loop and the launch that splits its operands as they are emitted, run on the host with the entry
that fills their parameters. `lean_main_loop.h` stands for the driver and the kernel layer."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from tests.emit import host_compiler
from tests.emit.hopper import HEADERS as HOPPER
from tests.emit.hopper import emulated_asm
from tests.jit.lean_emulated import between
from ucutlass.emit.parts import Lean
from ucutlass.runtime.jit.nvrtc_build import NATIVE

HERE = Path(__file__).parent

HEADERS = f"{HOPPER}\n#include <tuple>\n"
"""What the device's code begins with."""


class Setup(ctypes.Structure):
    """What `set_up` takes, as in lean_main_loop.h."""

    _fields_ = (
        ("tile_m", ctypes.c_int),
        ("tile_n", ctypes.c_int),
        ("groups", ctypes.c_int),
        ("cluster", ctypes.c_int),
        ("parts", ctypes.c_int),
        ("sums", ctypes.c_void_p),
        ("height", ctypes.c_int64),
        ("width", ctypes.c_int64),
        ("batch", ctypes.c_int),
    )


def device(kernel: Lean) -> str:
    """The main loop and the launch before it, as the emulator runs them."""
    code, entry = kernel.device.code, kernel.device.entry
    main_loop = between(code, "// --- main loop", "// --- epilogue").replace(
        "  struct Arguments {};",
        "  static constexpr int registers() { return Registers; }\n  struct Arguments {};",
    )
    heading = next((h for h in ("// --- split of B", "// --- split of A and B") if h in code), None)
    split = between(code, heading, "// --- kernel") if heading else ""
    kernels = ("split", *(["split_again"] if "split_again" in split else ())) if heading else ()
    call = "\n".join(
        f'  if (!strcmp(name, "ucc_{kernel}")) {entry}_kernel::{kernel}('
        f"*static_cast<{entry}_kernel::SplitParams const*>(params));"
        for kernel in kernels
    )
    return f"""#define UCC_LEAN_DRIVER
#include "lean.h"
#include "lean_main_loop.h"

namespace {entry}_kernel {{
using namespace cute;
using Descriptor = TmaDescriptor;
{between(code, "struct ArithmeticParams", "extern")}
{between(code, "struct MainloopParams {", "// --- schedule")}
{between(code, "constexpr int TileM", "// --- main loop")}
{emulated_asm(main_loop)}
{emulated_asm(split)}
}}
void run_block(void const* params, int m, int n, int l, int first, int count) {{
  using namespace {entry}_kernel;
  run_main_loop<Mainloop>(*static_cast<KernelParams const*>(params), m, n, l, first, count, ClusterM);
}}
void run_split(char const* name, void const* params) {{
{call}
}}
"""


def built(kernel: Lean, folder: Path) -> ctypes.CDLL:
    """The entry's library. Skips the test where there is no g++."""
    program = host_compiler.compiler()
    (folder / "device.cpp").write_text(device(kernel))
    declared = 'extern "C" unsigned char const ucc_image[]'
    assert declared in kernel.host
    (folder / "host.cpp").write_text(
        kernel.host.replace(declared, "extern unsigned char const ucc_image[1] = {}")
    )
    flags = (
        *host_compiler.LANGUAGE,
        host_compiler.KERNEL,
        *host_compiler.ALIGNED,
        *host_compiler.garbage(program),
    )
    places = (*(f"-I{place}" for place in (HERE, NATIVE)), *host_compiler.includes())
    header = host_compiler.precompiled("lean_main_loop", HEADERS, flags)
    for name, first in (("device", ("-include", str(header))), ("host", ())):
        command = [program, *flags, *first, *places, "-c", f"{name}.cpp"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder)
        assert done.returncode == 0, done.stderr[-4000:]
    link = [program, *flags, "-shared", "device.o", "host.o", host_compiler.once(header), "-o", "kernel.so"]
    subprocess.run(link, check=True, cwd=folder)
    return ctypes.CDLL(str(folder / "kernel.so"))
