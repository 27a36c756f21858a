"""Runs a products kernel for Hopper on the host: its own source, with TMA, mbarriers and wgmma emulated.

`hopper.h` says how, and what that cannot show.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests import isolated
from tests.emit import emulator, host_compiler
from tests.emit.harness import HOST_SHIM
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.emit import Source
from ucutlass.kernels.grouped_gemm.plan import SimtSchedule
from ucutlass.kernels.planned import Planned
from ucutlass.reference import expect
from ucutlass.runtime import isolation, verify
from ucutlass.runtime.inputs import Distribution, generate
from ucutlass.shapes import complete

DISTRIBUTIONS: tuple[Distribution, ...] = ("integer", "normal")
LIMIT_SECONDS = 600.0

_ASM = re.compile(r"asm(?: volatile)?\((.*?)\);(?=\s)", re.DOTALL)
_TMA = re.compile(r"#ifndef UCC_TMA\n.*?encode_tiled\n\n#endif\n", re.DOTALL)
_HEADERS = re.compile(r'#include "(?:cute|cutlass/arch)/.*"\n')
_WGMMA = re.compile(r"m64n(\d+)k\d+\.\w+\.(\w+)\.\w+")


class NotEmulable(Exception):
    """A kernel whose headers hold PTX: CUTLASS's conversions of some elements."""


NOT_EMULABLE = "not emulable"

HEADERS = f"""inline unsigned __byte_perm(unsigned x, unsigned y, unsigned select) {{
  unsigned long long const both = x | (unsigned long long)(y) << 32;
  unsigned bytes = 0;
  for (int i = 0; i < 4; ++i) bytes |= unsigned(both >> (select >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return bytes;
}}
#include <cutlass/half.h>
#include <cutlass/numeric_types.h>
#include "hopper.h"
#include <cmath>
{HOST_SHIM}"""
"""What a translated source begins with."""


def build(source: Source, folder: Path) -> Any:
    """The entry of a source, compiled for the host. Skips the test where there is no g++."""
    program = host_compiler.compiler()
    text, library = folder / f"{source.entry}.cpp", folder / f"{source.entry}.so"
    text.write_text(translated(source.text).removeprefix(HEADERS))
    flags = (
        *host_compiler.LANGUAGE,
        host_compiler.KERNEL,
        *host_compiler.ALIGNED,
        *host_compiler.garbage(program),
    )
    header = host_compiler.precompiled("hopper", HEADERS + host_compiler.USUAL, flags)
    done = subprocess.run(
        [
            *(program, *flags, "-shared", "-include", str(header), *host_compiler.includes()),
            *(str(text), str(host_compiler.once(header)), "-o", str(library)),
        ],
        capture_output=True,
        text=True,
    )
    if "no such instruction" in done.stderr:
        raise NotEmulable("PTX in CUTLASS's headers")
    assert done.returncode == 0, done.stderr[-4000:]
    entry = getattr(ctypes.CDLL(str(library)), source.entry)
    entry.restype = ctypes.c_int32
    return entry


def translated(text: str) -> str:
    """The kernel's source for the host."""
    text = _HEADERS.sub("", _TMA.sub("", text))
    text = text.replace(
        "extern __shared__ __align__(1024) char memory[];", "char* const memory = hopper::memory();"
    )
    text = emulated_asm(text)
    assert not re.search(r"\basm\b", re.sub(r"//.*", "", text)), "inline PTX that the emulator does not know"
    return f"{HEADERS}{text}"


def emulated_asm(text: str) -> str:
    """The text with calls of the emulator in place of PTX."""
    return _ASM.sub(_emulated, text)


def _emulated(found: re.Match[str]) -> str:
    inside = found[1]
    matches = re.findall(r'"[rlhf]"\(((?:[^()]|\([^()]*\))*)\)', inside)
    if made := _WGMMA.search(inside):
        flags = re.search(r"p, 1, 1(?:, (\d))?(?:, (\d))?;", inside)
        across = [g for g in (flags.groups() if flags else ()) if g is not None]
        b = across[-1] if across else "0"
        a = across[0] if len(across) == 2 else "0"
        left = "a" if '"r"(a[0])' in inside else "desc_a"
        return f"hopper::wgmma(d, {left}, desc_b, scale_d, {made[1]}, hopper::Lane::{made[2]}, {a}, {b});"
    if "lop3" in inside:  # (a & b) ^ c, of which there is but one
        (made,), (a, b, c) = re.findall(r'"=r"\((\w+)\)', inside), re.findall(r' "r"\((.*?)\)(?:,|$)', inside)
        return f"{made} = (({a}) & ({b})) ^ ({c});"
    if "shared::cluster" in inside and "ld." in inside:
        return f"v = hopper::get_from({matches[-2]}, {matches[-1]});"
    if "mbarrier.arrive.release.cluster" in inside:
        return "cutlass::arch::ClusterBarrier::arrive(static_cast<uint64_t const*>(barrier), rank, true);"
    if "mbarrier.try_wait.parity.acquire.cluster" in inside:
        return "cutlass::arch::ClusterBarrier::wait(static_cast<uint64_t const*>(barrier), parity);"
    if "ld.shared" in inside:
        made, (address,), (offset,) = (re.findall(rf'"{c}"\((.*?)\)', inside) for c in ("=[rh]", "r", "n"))
        return f"hopper::get({address} + {offset}, {', '.join(made)});"
    if "stmatrix" in inside:
        return f"hopper::stmatrix({'true' if '.trans' in inside else 'false'}, smem, r);"
    if "st.shared.b8" in inside:
        return f"hopper::put({matches[0]}, uint8_t({matches[1]}));"
    if "st.shared.b16" in inside:
        return f"hopper::put({matches[0]}, {matches[1]});"
    if "st.shared" in inside:
        return f"hopper::put({', '.join(matches)});"
    return ";"


# --- judging --------------------------------------------------------------------------


def judge(text: str, sizes: dict[str, int], seed: int = 0) -> str:
    """What is wrong with what a program's planned kernel computes, "" for nothing, or NOT_EMULABLE; in a
    process of its own, which an emulated kernel ends where it does what a GPU would not survive."""
    job = {"text": text, "sizes": sizes, "seed": seed}
    outcome = isolated.run("tests.emit.hopper:judge_here", job, limit_seconds=LIMIT_SECONDS)
    match outcome:
        case isolation.Returned(value=str(wrong)):
            return wrong
        case _:
            return str(outcome)[-1500:]


def _entry(source: Source, planned: Planned, folder: Path) -> Any:
    if isinstance(getattr(planned.plan, "schedule", None), SimtSchedule):
        return emulator.build(replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}"), folder)
    return build(source, folder)


def judge_here(text: str, sizes: dict[str, int], seed: int) -> str:
    torch.set_num_threads(1)
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    extents = complete(kernel, sizes)
    planned = frontend.plan_kernel(checked, kernel, extents, "sm90a").planned
    with tempfile.TemporaryDirectory() as folder:
        try:
            entry = _entry(source_of(checked, kernel, planned), planned, Path(folder))
        except NotEmulable:
            return NOT_EMULABLE
    wrong = []
    for distribution in DISTRIBUTIONS:
        arguments = generate(kernel, sizes, distribution, seed=seed)

        def launch(given: Sequence[Any], outputs: Sequence[Tensor]) -> None:
            addresses = [t.data_ptr() for t in (*given, *outputs) if isinstance(t, Tensor)]
            scalars = [float(a) for a in given if not isinstance(a, Tensor)]
            code = entry(
                (ctypes.c_void_p * len(addresses))(*addresses),
                (ctypes.c_int64 * len(extents))(*extents),
                (ctypes.c_double * max(1, len(scalars)))(*scalars),
                (ctypes.c_int64 * 3)(*planned.launch),
                None,
                None,
                None,
            )
            if code:
                raise RuntimeError(f"the entry returned {code}")

        verdict = verify.check(kernel, launch, arguments, expected=expect(kernel, arguments))
        if not verdict.ok:
            wrong.append(f"{distribution}: {verdict}")
    return "\n".join(wrong)
