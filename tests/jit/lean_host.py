"""The host's side of a lean kernel, built as it is and called under the driver of `fake_cuda.c`."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ucutlass.emit.gemm.lean import lean
from ucutlass.kernels.access import Access, Product
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.jit import device_compile
from ucutlass.runtime.jit import nvrtc_build as lean_parts
from ucutlass.runtime.toolchain import Toolchain

HERE = Path(__file__).parent
IMAGE = b"\x7fELF"
ADDRESS = 1 << 20
"""Of the first tensor; others follow at this distance."""


@dataclass(frozen=True)
class Call:
    """Arguments of the entry, and what the driver is to do meanwhile: `fail` is a function's name, its
    error and how often; `context` whether the thread has one; `threads` of them call, 0 the main one."""

    tensors: Sequence[int | None] | None
    extents: Sequence[int] | None
    scalars: Sequence[float] | None = ()
    launch_parameters: Sequence[int] | None = (0, 1, 1)
    stream: int = 0
    asks: bool = False
    fail: tuple[str, int, int] = ("", 0, 0)
    device: int = 0
    context: int = 1
    threads: int = 0
    times: int = 1
    workspace: int | None = None


@dataclass(frozen=True)
class Answer:
    """What the entry returned, each time, and what the driver was asked, in order."""

    codes: list[int]
    workspace: int
    said: list[dict[str, Any]]

    def of(self, function: str) -> list[dict[str, Any]]:
        return [one for one in self.said if one["call"] == function]

    @property
    def names(self) -> list[str]:
        return [one["call"] for one in self.said]


@dataclass(frozen=True)
class Answers:
    calls: list[Answer]
    places: dict[str, int]
    """Bytes from the parameters' begin to each field that was asked for."""

    def numbers(self, launch: dict[str, Any], place: str, kind: str) -> tuple[Any, ...]:
        """What lies there in the parameters of a launch, by the letters of `struct`."""
        return struct.unpack_from(f"<{kind}", bytes.fromhex(launch["params"]), self.places[place])


@dataclass(frozen=True)
class Bench:
    """Compilers, and folders with the drivers that are to be found first."""

    toolchain: Toolchain
    cache: Cache
    folder: Path
    made: dict[str, Path] = field(default_factory=dict)

    def host(self, plan: GemmPlan, places: Sequence[str] = ()) -> Host:
        return Host(self, plan, tuple(places))

    def driver(self, name: str) -> Path:
        """A folder with `libcuda.so.1` from a C file."""
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            includes = [f"-I{path}" for path in device_compile.cuda_headers(self.toolchain.nvcc.path)]
            compiler = ["gcc", "-shared", "-fPIC", "-O1", "-pthread", "-w", *includes]
            subprocess.run(
                [*compiler, str(HERE / f"{name}.c"), "-o", str(folder / "libcuda.so.1")], check=True
            )
        return folder


@dataclass(frozen=True)
class Host:
    bench: Bench
    plan: GemmPlan
    places: tuple[str, ...]

    def library(self) -> tuple[Path, str]:
        """With functions that tell where the fields of its parameters lie."""
        kernel = lean(self.plan)
        entry = kernel.device.entry
        params = f"{entry}_kernel::KernelParams"
        asked = {"size": f"sizeof({params})"}
        asked |= {str(i): f"__builtin_offsetof({params}, {place})" for i, place in enumerate(self.places)}
        shown = 'extern "C" __attribute__((visibility("default")))'
        probes = [f"{shown} int probe_{name}() {{ return {value}; }}" for name, value in asked.items()]
        text = "\n".join((kernel.host, *probes, ""))
        folder = self.bench.folder / f"{entry}_{len(self.bench.made)}"
        if text not in self.bench.made:
            folder.mkdir()
            (folder / "host.cpp").write_text(text)
            image = ", ".join(map(str, IMAGE))
            (folder / "image.c").write_text(f"unsigned char const ucc_image[] = {{{image}, 0}};\n")
            shared = lean_parts.driver(self.bench.toolchain, self.bench.cache)
            compiler = str(self.bench.toolchain.host.path)
            line = [compiler, *lean_parts._HOST_FLAGS, f"-I{lean_parts.NATIVE}", "-shared", "host.cpp"]
            parts = ["-x", "c", "image.c", "-x", "none", str(shared.folder / lean_parts.DRIVER_PART)]
            subprocess.run([*line, *parts, "-o", "host.so"], cwd=folder, check=True)
            self.bench.made[text] = folder / "host.so"
        return self.bench.made[text], entry

    def call(self, *calls: Call, driver: str = "fake_cuda", bare: bool = False) -> Answers:
        library, entry = self.library()
        job = {
            "library": str(library),
            "entry": entry,
            "places": self.places,
            "bare": bare,
            "calls": [asdict(one) for one in calls],
        }
        environment = os.environ | {"LD_LIBRARY_PATH": str(self.bench.driver(driver))}
        done = subprocess.run(
            [sys.executable, str(HERE / "lean_child.py")],
            input=json.dumps(job),
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, f"{done.returncode} {done.stderr[-3000:]}"
        answer = json.loads(done.stdout)
        return Answers([Answer(**one) for one in answer["results"]], answer["places"])


# --- what a plan says of its descriptors -------------------------------------------


def product(extents: Sequence[int], modes: Product) -> int:
    made = 1
    for mode in modes:
        made *= extents[mode]
    return made


@dataclass(frozen=True)
class Problem:
    """A plan's extents as numbers."""

    plan: GemmPlan
    extents: tuple[int, ...]

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """M, N, K, batch."""
        p = self.plan.problem
        batch = product(self.extents, p.batch[0]) if p.batch else 1
        return product(self.extents, p.m), product(self.extents, p.n), product(self.extents, p.k[0]), batch

    def descriptor(self, access: Access, modes: str) -> dict[str, Any]:
        """What the driver is to be told of a tensor with these two modes of "mnk"; one is contiguous."""
        size = access.elem.bytes
        strides = {"m": access.m, "n": access.n, "k": access.k[0] if access.k else None}
        lengths = dict(zip("mnkl", self.shape, strict=True))
        if strides[modes[0]] != ():
            modes = modes[::-1]
        inner, outer = modes[0], modes[1]
        stride = strides[outer]
        assert strides[inner] == () and stride is not None
        rows = product(self.extents, stride) * size
        batch = access.batch[0] if access.batch else None
        batches = 1 if batch is None else lengths["l"]
        apart = rows * lengths[outer] if batches == 1 else product(self.extents, batch or ()) * size
        return {
            "extents": [lengths[inner], lengths[outer], batches],
            "strides": [rows, apart],
            "address": tensor(access.pointer),
        }


def tensor(pointer: int) -> int:
    return ADDRESS * (pointer + 1)


def good(plan: GemmPlan, extents: Sequence[int], **changes: Any) -> Call:
    p = plan.problem
    tensors = [tensor(i) for i in range(p.pointers)]
    return replace(Call(tensors, list(extents), [1.5] * p.scalars), **changes)
