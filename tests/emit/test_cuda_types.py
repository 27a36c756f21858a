"""Reductions know CUDA's element types alone: what they include, how they round and divide."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.emit import emulator, plan_reference
from tests.emit.harness import HOST_SHIM, SPECIAL, round_reference, samples
from tests.emulated import as_large
from ucutlass import frontend
from ucutlass.backend import source_of, toolchain
from ucutlass.emit.cuda_types import CUDA_TYPES, plain
from ucutlass.emit.text import Source
from ucutlass.ir.elements import BF16, E4M3, E5M2, ELEMENTS, F16, I32, S8, TF32, U8, Element
from ucutlass.kernels.gemm.plan import LaunchParameters
from ucutlass.runtime.build import build
from ucutlass.runtime.cache import Cache
from ucutlass.shapes import complete

needs_host = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile for the host")

HEADERS = {name: known.header for name, known in CUDA_TYPES.items()}


def emitted(text: str, arch: str = "sm90a", **sizes: int) -> Source:
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked, "k")
    planned = frontend.plan_kernel(checked, kernel, complete(kernel, sizes), arch).planned
    return source_of(checked, kernel, planned)


def included(source: Source) -> set[str]:
    return set(re.findall(r"#include (\S+)", source.code))


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "e4m3", "e5m2", "s8", "u8", "i32", "i64"])
def test_a_reduction_reads_the_headers_of_its_own_elements_alone(name: str) -> None:
    source = emitted(f"kernel k(x: {name}[A, L]) -> {name}[A, L] {{ return x }}", A=64, L=512)
    assert included(source) & set(HEADERS.values()) == ({HEADERS[name]} if name in HEADERS else set())
    assert "cutlass" not in source.code.lower()


def test_a_cluster_and_a_rounding_need_no_header_of_their_own() -> None:
    text = "kernel k(x: f32[T, D]) -> f32[T, D] { return softmax[D](x) schedule sm90a { cluster 1x8 } }"
    rows = emitted(text, T=4, D=65_536)
    assert "__cluster_map_shared_rank" in rows.code
    compute_type = emitted("kernel k(x: f32[L]) -> f32[L] { return f32(tf32(x)) }", L=512)
    assert (
        included(rows)
        == included(compute_type)
        == {"<cmath>", "<cstdint>", "<cstring>", "<limits>", "<type_traits>", "<cuda_runtime.h>"}
    )


def test_every_narrow_float_has_a_type_of_cuda() -> None:
    assert all("cutlass" not in plain(e).cpp for e in ELEMENTS.values() if e.name != "s4")


TIES = [464, 465, 480, 61440, 61439, 65519, 65520, 127.5, 128.5, 2.5, 3.5, 1 + 2**-11, 1 + 3 * 2**-11]
STORED = (F16, BF16, E4M3, E5M2, S8, U8, I32)


@needs_host
@pytest.mark.parametrize("count", [1, 4096], ids=["one by one", "in words"])
def test_what_is_stored_is_rounded_as_the_reference_says(count: int, tmp_path: Path) -> None:
    """To nearest, ties to even; 8-bit floats and integers saturate; NaN stays or gives 0."""
    results = ", ".join(f"r_{e.name}: {e.name}[L]" for e in STORED)
    values = ", ".join(f"r_{e.name} = {e.name}(x)" for e in STORED)
    with as_large():
        source = emitted(
            f"kernel k(x: f32[L]) -> ({results}, r_tf32: f32[L]) {{ return {values}, r_tf32 = f32(tf32(x)) }}",
            L=count,
        )
    entry = emulator.build(replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}"), tmp_path)
    every = np.concatenate([SPECIAL, np.array(TIES, np.float32), -np.array(TIES, np.float32)])
    every = np.concatenate([every, samples(1, 4096)[0]])[: 4096 if count > 1 else 101]
    x = torch.from_numpy(every.astype(np.float32))
    buffers = [torch.empty(len(x), dtype=getattr(torch, e.torch)) for e in (*STORED, TF32)]
    addresses = [t.data_ptr() for t in (x, *buffers)]
    assert plan_reference.call(entry, addresses, (len(x),), (), LaunchParameters(), "cpu", 0) == 0
    for elem, actual in zip((*STORED, TF32), buffers, strict=True):
        wrong = [
            (float(v), g, want)
            for v, g in zip(
                x, actual.tolist() if elem.kind == "int" else actual.float().tolist(), strict=True
            )
            if not _same(g, want := round_reference(float(v), elem), elem)
        ]
        assert not wrong, f"{elem.name}: (value, got, want) {wrong[:5]}"


def _same(got: float, want: float | int | bool, elem: Element) -> bool:
    return got == want or (elem.kind == "float" and got != got and want != want)


@pytest.mark.nvcc
@pytest.mark.parametrize("arch", ["sm80", "sm89", "sm90a"])
def test_every_element_builds_on_every_target(arch: str, tmp_path: Path) -> None:
    """sm80 has no instruction for 8-bit floats."""
    source = emitted(
        "kernel k(x: e4m3[A, L], y: f16[A, L]) -> (a: e5m2[A, L], b: bf16[A, L], c: f32[A, L], d: u8[A, L])"
        "{\nm = max(f32(x), f32(y))\nreturn a = e5m2(m), b = bf16(m), c = f32(tf32(m)), d = u8(m)\n}",
        arch,
        A=64,
        L=512,
    )
    assert build(source, toolchain(), Cache(tmp_path, 2**30)).library.is_file()


@needs_host
def test_division_by_a_number_is_exact(tmp_path: Path) -> None:
    code = emitted("kernel k(x: f32[A, B, C]) -> f32[C, A, B] { return x }", A=3, B=5, C=7).code
    (struct,) = re.findall(r"struct Divisor \{.*?\n\};\n", code, re.DOTALL)
    text, library = tmp_path / "divisor.cpp", tmp_path / "divisor.so"
    text.write_text(
        f"#include <cstdint>\n#define __device__\n{struct}"
        'extern "C" int wrong(int n) {\n'
        "  Divisor const by(n);\n"
        "  for (int64_t x = 0; x <= 2147483647; x += x < 70000 || x > 2147400000 ? 1 : 9973) {\n"
        "    int q, r;\n    by(q, r, int(x));\n    if (q != x / n || r != x % n) return int(x) + 1;\n"
        "    int const edge = int(x / n * n);\n"
        "    by(q, r, edge);\n    if (r != 0) return edge + 1;\n  }\n  return 0;\n}\n"
    )
    subprocess.run(["g++", "-O1", "-shared", "-fPIC", str(text), "-o", str(library)], check=True)
    wrong = ctypes.CDLL(str(library)).wrong
    numbers = [*range(1, 70), 127, 128, 129, 641, 65535, 65536, 65537, 2**30 - 1, 2**30, 2**30 + 1, 2**31 - 1]
    assert {n: wrong(n) for n in numbers} == dict.fromkeys(numbers, 0)


@needs_host
def test_an_extent_that_leaves_nothing_to_divide_by_is_refused(tmp_path: Path) -> None:
    """Of three elements no vector of four is whole: the host must not divide by their number."""
    with as_large():
        source = emitted("kernel k(x: f32[A, L], y: f32[L, A]) -> f32[A, L] { return x + y }", A=8, L=64)
    assert "Divisor(int((e[" in source.code
    entry = emulator.build(replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}"), tmp_path)
    tensors = [torch.zeros(1024) for _ in range(3)]
    addresses = [t.data_ptr() for t in tensors]
    sizes = [(8, 3), (3, 3)]
    assert [plan_reference.call(entry, addresses, s, (), LaunchParameters(), "cpu", 0) for s in sizes] == [
        1,
        1,
    ]
