"""g++ for emulated kernels, behind headers that are compiled once and kept beside pytest's cache."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.emit.harness import cuda_includes, cutlass_include

HERE = Path(__file__).parent
PRECOMPILED = HERE.parent.parent / ".pytest_cache" / "precompiled"

ALIGNED = ("-fsanitize=alignment", "-static-libubsan")
"""Every access is checked to be aligned to its type; `alignment.h` has what is called where one is not."""

# -fpermissive: CUTLASS names device intrinsics in templates that are never instantiated here.
KERNEL = "-Og"
"""How kernels are optimised: they compile in two thirds of the time of -O1, and run hardly longer."""

LANGUAGE = ("-std=c++17", "-w", "-fpermissive", "-fPIC")

USUAL = """
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include "cutlass/cutlass.h"
#include "cutlass/fast_math.h"
#include "cutlass/functional.h"
#include "cutlass/numeric_conversion.h"
"""
"""What most emitted kernels include. Compiled with an emulator's headers, it takes a third off a kernel's own time."""


def compiler() -> str:
    """Where g++ is. Skips the test where there is none."""
    path = shutil.which("g++")
    if path is None:
        pytest.skip("no g++ to compile for the host")
    return path


@cache
def garbage(compiler: str) -> tuple[str, ...]:
    """The flag that fills variables without an initialiser with a pattern, where the compiler has it (g++ 12,
    clang 8): what reads one before it is written computes from garbage in every run, not by chance from 0."""
    flag = "-ftrivial-auto-var-init=pattern"
    empty = subprocess.run([compiler, flag, "-x", "c++", "-E", "/dev/null"], capture_output=True)
    return () if empty.returncode else (flag,)


@cache
def includes() -> tuple[str, ...]:
    """Where the emulators, CUTLASS and CUDA have their headers."""
    return (f"-I{HERE}", f"-I{cutlass_include()}", *cuda_includes())


@cache
def precompiled(name: str, text: str, flags: Sequence[str]) -> Path:
    """A header of this text, compiled with `flags` and `includes()`; `-include` it first of all. It is compiled
    once for all processes, and anew where the text, the flags, an emulator or the compiler changed."""
    program = compiler()
    headers = [
        *sorted(HERE.glob("*.h")),
        cutlass_include() / "cutlass" / "cutlass.h",
        Path(program).resolve(),
    ]
    states = [f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in headers]
    digest = hashlib.sha256("\0".join([text, *flags, *includes(), *states]).encode()).hexdigest()[:16]
    header = PRECOMPILED / name / digest / "headers.hpp"
    compiled = header.with_suffix(".hpp.gch")
    header.parent.parent.mkdir(parents=True, exist_ok=True)
    with (header.parent.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if compiled.exists():
            return header

        for stale in header.parent.parent.iterdir():
            if stale.is_dir():
                shutil.rmtree(stale)
        header.parent.mkdir()
        header.write_text(text)
        for kind, output in (
            (("-O2", "-DEMULATED_ONCE", "-x", "c++", "-c"), once(header)),
            (("-x", "c++-header"), Path(f"{compiled}.new")),
        ):
            command = [program, *flags, *includes(), *kind, str(header), "-o", str(output)]
            done = subprocess.run(command, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr[-4000:]
        compiled.with_name(f"{compiled.name}.new").rename(compiled)
    return header


def once(header: Path) -> Path:
    """The object with the functions of a precompiled header's emulator, to link what is compiled behind it with."""
    return header.with_name("once.o")
