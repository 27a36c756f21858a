"""Runs an emitted mma.sync kernel on the host: its own source, with the PTX in it replaced.

`emulator.h` executes the instructions on fibers. What it cannot show: races between warps that no order of fibers reveals, and the hardware's rounding
inside an MMA (sums are kept in double here).
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.emit import host_compiler
from ucutlass.emit import Source

HEADERS = """unsigned __byte_perm(unsigned, unsigned, unsigned);
#include <cutlass/half.h>
#include <cutlass/numeric_types.h>
#include "emulator.h"
"""
"""What a translated source begins with."""

_MMA = re.compile(r'asm volatile\(\s*"(mma\.sync\.aligned\.\S+) "(.*?)\);\n', re.DOTALL)
_LDMATRIX = re.compile(r'asm volatile\("ldmatrix\.sync\.aligned\.m8n8\.x4(\.trans)?\..*?\);\n', re.DOTALL)
_CALLS = {
    "uint32_t(__cvta_generic_to_shared(pointer))": "uint32_t(static_cast<uint8_t const*>(pointer) - emu::shared())",
    'asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(smem) : "memory")': (
        "word = *reinterpret_cast<uint32_t const*>(emu::shared() + smem)"
    ),
    'asm volatile("st.shared.b32 [%0], %1;" ::"r"(smem), "r"(word) : "memory")': (
        "*reinterpret_cast<uint32_t*>(emu::shared() + smem) = word"
    ),
    'asm volatile("cp.async.commit_group;" ::: "memory")': "emu::fence()",
    'asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreadCount) : "memory")': "emu::sync_named(id, kThreadCount)",
    'asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(kThreadCount) : "memory")': (
        "emu::arrive_named(id, kThreadCount)"
    ),
    "++polls) all = load();": "++polls) (all = load()) ? void() : emu::yield();",
    "if (!all) __trap();": "if (!all) emu::fault(cudaErrorLaunchFailure);",
    'asm volatile("griddepcontrol.launch_dependents;" ::: "memory")': "(void)0",
    'asm volatile("griddepcontrol.wait;" ::: "memory")': "(void)0",
    'asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory")': "emu::wait(kPending)",
}
"""Instructions of multistage kernels and of recurrent layers, as the emulator has them."""
_ON_DEVICE = re.compile(r"#if defined\(__CUDA_ARCH__\).*?#else\n(.*?)#endif\n", re.DOTALL)
_HOPPER = re.compile(r"// --- PTX instructions -.*?(?=// --- tiles -)", re.DOTALL)
"""What of attention's kernel holds PTX."""
_CLUSTER = re.compile(r"__cluster_dims__\((\w+), 1, 1\)")
"""A kernel's blocks of a cluster, where it fixes them."""
_COLUMNS = "attribute.id = cudaLaunchAttributeClusterDimension;"
"""What launches a reduction's clusters, whose size `emu::run_blocks` reads."""
_TMA_RANK = re.compile(r"\b(tma_load|tma_load_multicast|tma_load_im2col|tma_store)_[1-5]d(?=\()")
"""A copy by TMA, whose rank the emulator reads off its arguments."""
_WINDOWS = re.compile(r"// --- PTX instructions -.*?(?=// --- main loop -)", re.DOTALL)
_WINDOW_MAPS = re.compile(r"#ifndef UCC_IM2COL\n.*?// namespace ucc_im2col\n\n#endif\n", re.DOTALL)
"""What of the convolution's kernel holds PTX, and what asks the driver."""
_RING = re.compile(r"// --- bulk copies -.*?(?=// --- ring -)", re.DOTALL)
"""What of a reduction's ring holds PTX."""
_COPY_ASYNC = re.compile(r"__device__ void copy_async\(.*?\n\}\n", re.DOTALL)


_STORED_PACK = "  *reinterpret_cast<Bits<int(sizeof(pack))>*>(target) = bits;\n#endif\n"
"""What `store_pack` does on the host; on a device it is an instruction for global memory."""

_NO_SUMS = "sums[i] = {};"
"""What g++ finds ambiguous of sums in f16, which nvcc does not."""

_SHARED = re.compile(r"(?<!extern )(__shared__ [^;=(]*(?:\([^;=]*?\) [^;=]*)?\b(\w+)(?:\[[^;]*\])?;)")
"""A variable in shared memory, and its name."""


def build(source: Source, folder: Path, threads: int = 0) -> Any:
    """The entry of a source, compiled for the host. `threads`: that many blocks run side by side, each
    launch's in an order of its own; 0: one after another, in order. Skips the test where there is no g++."""
    library = build_unit("", [replace(source, text=translated(source.text))], folder, threads)
    return entry(library, source.entry)


def build_unit(preamble: str, sources: Sequence[Source], folder: Path, threads: int = 0) -> Path:
    """The library of translated sources, compiled as one unit after `preamble`."""
    program = host_compiler.compiler()
    text, library = folder / f"{sources[0].entry}.cpp", folder / f"{sources[0].entry}.so"
    flags = (
        *host_compiler.LANGUAGE,
        host_compiler.KERNEL,
        *host_compiler.ALIGNED,
        *host_compiler.garbage(program),
    )
    first: tuple[str, ...]
    once: tuple[str, ...]
    if threads:
        # Else the loader would give the emulator's variables of another library, which are no thread's own.
        flags += (f"-DEMULATOR_THREADS={threads}", "-pthread", "-fno-gnu-unique", "-Wl,-Bsymbolic")
        first, once = (), ()
        parts = [preamble, *(source.text for source in sources)]
    else:
        header = host_compiler.precompiled("emulator", HEADERS + host_compiler.USUAL, flags)
        first, once = ("-include", str(header)), (str(host_compiler.once(header)),)
        parts = [preamble, *(source.text.removeprefix(HEADERS) for source in sources)]
    text.write_text("\n".join(parts), encoding="utf-8")
    includes = (f"-I{folder}", *host_compiler.includes())
    done = subprocess.run(
        [program, *flags, "-shared", *first, *includes, str(text), *once, "-o", str(library)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return library


def entry(library: Path, name: str) -> Any:
    """An entry of a library that `build_unit` made."""
    function = getattr(ctypes.CDLL(str(library)), name)
    function.restype = ctypes.c_int32
    return function


def translated(text: str) -> str:
    """The kernel's source for the host: its inline PTX and its shared memory replaced."""
    text = _COPY_ASYNC.sub(
        "__device__ void copy_async(uint32_t smem, void const* source, int valid, bool copies = true) {\n"
        "  if (copies) emu::copy_async<kBytes>(emu::shared() + smem, source, valid);\n}\n",
        text,
    )
    text = _HOPPER.sub(_hopper, _RING.sub('#include "emulator_ring.h"\n\n', text))
    text = _LDMATRIX.sub(_emulated_ldmatrix, _MMA.sub(_emulated_mma, text))
    for instruction, call in _CALLS.items():
        text = text.replace(instruction, call)
    text = text.replace("extern __shared__ uint8_t dynamic[];", "uint8_t* const dynamic = emu::shared();")
    text = _TMA_RANK.sub(r"\1", _WINDOWS.sub(_windows, text))
    text = _WINDOW_MAPS.sub('#include "emulator_im2col_maps.h"\n', text).replace(
        "extern __shared__ uint8_t unaligned[];", "uint8_t* const unaligned = emu::shared();"
    )
    text = text.replace(
        "extern __shared__ __align__(128) uint8_t shared[];", "uint8_t* const shared = emu::shared();"
    )
    text = text.replace(
        "extern __shared__ __align__(128) uint8_t ring_bytes[];", "uint8_t* const ring_bytes = emu::shared();"
    )
    text = text.replace(
        _STORED_PACK, f"  if constexpr (sizeof(pack) > 4) emu::check_global(target);\n{_STORED_PACK}"
    )
    text = text.replace(_NO_SUMS, "sums[i] = std::decay_t<decltype(sums[i])>(0);")
    text = _SHARED.sub(r"\1 { static EMULATED_LOCAL unsigned long block = 0; emu::begin(\2, block); }", text)
    text = _ON_DEVICE.sub(r"\1", text)
    assert "asm" not in re.sub(r"//.*", "", text), "inline PTX that the emulator does not know"
    if size := _CLUSTER.search(text):
        text = text.replace("cudaLaunchKernelEx(", f"emu::launch_clusters<{size[1]}>(")
    else:
        assert "__cluster" not in text or _COLUMNS in text, (
            "a cluster of blocks, which the emulator does not know"
        )
    return f"{HEADERS}{text}"


def _hopper(found: re.Match[str]) -> str:
    """The device functions of `emulator_hopper.h`, told the elements of operands and of results."""
    compute_type, out = re.findall(r"cvt\.rn\.(\w+)x2\.f32", found[0]), "EMU_OUT_BF16"
    lines = [
        f"#define EMU_TF32 {int(not compute_type)}",
        f"#define EMU_BF16 {int(compute_type[:1] == ['bf16'])}",
        f"#define {out} {int(compute_type[-1:] == ['bf16'])}",
        '#include "emulator_hopper.h"',
        "#undef EMU_TF32",
        "#undef EMU_BF16",
        f"#undef {out}\n\n",
    ]
    return "\n".join(lines)


def _windows(found: re.Match[str]) -> str:
    """The device functions of `emulator_im2col.h`, told the elements and which way operands lie."""
    products = re.findall(r"\.f32\.(\w+)\.\w+ .*?p(, 1, 1[, 01]*);", found[0], re.DOTALL)
    compute_type, after = products[0] if products else ("tf32", "")
    defines = {
        "EMU_WGMMA": bool(products),
        "EMU_BF16": compute_type == "bf16",
        "EMU_ELEMENT": 4 if compute_type == "tf32" else 2,
        "EMU_ACROSS": after in (", 1, 1, 0, 1", ", 1, 1, 1, 1"),
        "EMU_ACROSS_A": after == ", 1, 1, 1, 1",
    }
    lines = [f"#define {name} {int(value)}" for name, value in defines.items()]
    lines += ['#include "emulator_im2col.h"', *(f"#undef {name}" for name in defines), "\n"]
    return "\n".join(lines)


def _emulated_mma(found: re.Match[str]) -> str:
    """A call of the emulator for an instruction whose sums are read and written in place."""
    sums = re.findall(r'"\+[fr]"\(([^()]+)\)', found[2])
    operands = re.findall(r'(?<!\+)"r"\(([^()]+)\)', found[2])
    given = ", ".join(f"std::as_const({name})" for name in (*operands, *sums))
    return f'emu::mma("{found[1]}", std::tie({", ".join(sums)}), std::forward_as_tuple({given}));\n'


def _emulated_ldmatrix(found: re.Match[str]) -> str:
    transposed = "true" if found[1] else "false"
    return f"emu::ldmatrix({transposed}, emu::shared() + smem, r[0], r[1], r[2], r[3]);\n"
