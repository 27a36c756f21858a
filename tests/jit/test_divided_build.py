"""Kernels of one file that NVRTC and the host's compiler build side by side."""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.emit.divided_kernels import KERNELS, source
from tests.jit.machine_code import kernels as machine_code
from ucutlass.backend import toolchain
from ucutlass.emit.division import divide
from ucutlass.runtime.build import DIVIDED, Artifact, make
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.jit import device_compile, divided_build, nvrtc
from ucutlass.runtime.jit.link import IMAGE
from ucutlass.runtime.library import load_entry

QUICK = ("convolution by wgmma", "depthwise")
"""Two of KERNELS; the others are slow."""


def built(name: str, cache: Cache) -> Artifact:
    kernel = source(name)
    return make(divided_build.recipe(kernel, divide(kernel), toolchain()), cache)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in KERNELS]
)
def test_a_library_has_the_entry_and_every_kernel(name: str, cache: Cache) -> None:
    """The entry answers what needs no GPU, and the names that it registers are those of the image."""
    artifact = built(name, cache)
    assert artifact.builder == DIVIDED and artifact.seconds > 0
    image = (artifact.folder / IMAGE).read_bytes()
    library = artifact.library.read_bytes()
    registered = set(re.findall(rb"\0(_Z\w+_kernel\w+)", library)) & set(
        re.findall(rb"\.text\.(_Z\w+)\0", image)
    )
    assert len(registered) >= len(divide(source(name)).kernels)
    assert {usage.kernel for usage in artifact.report.usage} >= {kernel.decode() for kernel in registered}
    entry = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7)(
        load_entry(artifact.library, artifact.entry).address
    )
    size = ctypes.c_uint64(1)
    status = entry(
        (ctypes.c_void_p * 8)(),
        (ctypes.c_int64 * 16)(),
        None,
        (ctypes.c_int64 * 8)(),
        None,
        ctypes.byref(size),
        None,
    )
    # Extents of 0 are refused; ragged products answer what workspace they need, none, before they look at extents.
    assert status == (0 if name.startswith("ragged") else 1)


OF_MORE = ("matrix times vector", "ragged groups by wgmma")
"""Those of KERNELS that name what CUTLASS's headers alone declare."""

OF_CUTLASS = "using cutlass::multiply_add;\n"
"""Code that names it too."""

CONVERSIONS = (
    '#define UCC_KERNEL ucc_test\n#include "divided_device.h"\n'
    + "".join(f'#include "{header}"\n' for header in divided_build.CUTLASS_HEADERS)
    + """\
using namespace cutlass;

template <class T> __device__ float wide(T const* x, int at) {
  return float(x[at]) + float(T::bitcast(x[at + 1].raw() + 1));
}

extern "C" __global__ void narrow(float const* x, int const* n, half_t* h, bfloat16_t* b, tfloat32_t* t, float* f) {
  int const i = threadIdx.x;
  h[2 * i] = half_t(x[i]);
  h[2 * i + 1] = half_t(n[i]);
  h[i + 64] = NumericConverter<half_t, float>::convert(x[i + 32]);
  b[2 * i] = bfloat16_t(x[i]);
  b[2 * i + 1] = bfloat16_t(n[i]);
  b[i + 64] = NumericConverter<bfloat16_t, float>::convert(x[i + 32]);
  t[i] = NumericConverter<tfloat32_t, float>::convert(x[i + 64]);
  f[i] = NumericConverter<float, float>::convert(x[i + 96]) + float(tfloat32_t::bitcast(n[i]));
}

extern "C" __global__ void widen(half_t const* h, bfloat16_t const* b, tfloat32_t const* t, float* f) {
  int const i = threadIdx.x;
  f[i] = wide(h, i) + 3 * wide(b, i) + 5 * float(t[i]);
}

template <class To, class From> __device__ void convert(From const* x, void* y) {
  static_cast<To*>(y)[threadIdx.x] = NumericConverter<To, From>::convert(x[threadIdx.x]);
}

extern "C" __global__ void integers(float const* x, int32_t const* n, int64_t const* m, uint8_t const* b, uint8_t* y) {
  convert<int32_t>(x, y);
  convert<int8_t>(x, y + 1024);
  convert<uint8_t>(x, y + 2048);
  convert<int64_t>(x, y + 3072);
  convert<float>(n, y + 4096);
  convert<int8_t>(n, y + 5120);
  convert<int32_t>(m, y + 6144);
  convert<half_t>(n, y + 7168);
  convert<bfloat16_t>(n, y + 8192);
  convert<uint8_t>(b, y + 9216);
}

template <class T> __device__ void eight_bits(float const* x, int const* n, T* narrow, float* wide) {
  int const i = threadIdx.x;
  T const zero[2];
  narrow[4 * i] = T(x[i]);
  narrow[4 * i + 1] = T(n[i]);
  narrow[4 * i + 2] = NumericConverter<T, float>::convert(x[i + 32]);
  narrow[4 * i + 3] = zero[1];
  wide[i] += float(narrow[i + 128]) + float(T::bitcast(narrow[i + 160].raw() + 1));
}

extern "C" __global__ void e4m3(float const* x, int const* n, float_e4m3_t* y, float* f) { eight_bits(x, n, y, f); }
extern "C" __global__ void e5m2(float const* x, int const* n, float_e5m2_t* y, float* f) { eight_bits(x, n, y, f); }

extern "C" __global__ void divide(FastDivmod const d, int* n) {
  CUTLASS_PRAGMA_UNROLL
  for (int i = 0; i < 2; ++i) n[i] = d.div(n[i + 2]) + 3 * d.rem(n[i + 4]);
  CUTLASS_PRAGMA_NO_UNROLL
  for (int i = 0; i < n[6]; ++i) n[7 + i] += 1;
}
"""
)


def code_of(
    compiler: nvrtc.Nvrtc, device: str, headers: Mapping[str, str], names: Sequence[str] = ()
) -> list[bytes]:
    tools = toolchain()
    folders = (*device_compile.cuda_headers(tools.nvcc.path), tools.cutlass.include)
    options = (*divided_build.DEVICE_FLAGS, *(f"-I{path}" for path in folders))
    output = nvrtc.compile_program(compiler, device, "device.cu", options, headers, names)
    return sorted(machine_code(output.code).values())


def test_what_stands_for_cutlass_does_the_same_bit_by_bit(compiler: nvrtc.Nvrtc) -> None:
    ours, theirs = (divided_build.device_headers(CONVERSIONS + more) for more in ("", OF_CUTLASS))
    assert "cutlass/cutlass.h" in ours and "cutlass/cutlass.h" not in theirs
    code = code_of(compiler, CONVERSIONS, ours)
    assert len(code) == 6 and code == code_of(compiler, CONVERSIONS, theirs)


@pytest.mark.parametrize("more", [OF_CUTLASS, '#include "cutlass/complex.h"\n', "CUTLASS_HOST int i;\n"])
def test_code_that_has_more_of_cutlass_reads_its_headers(more: str) -> None:
    assert not divided_build.device_headers(CONVERSIONS + more).keys() & set(divided_build.CUTLASS_HEADERS)


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_as_cutlass_headers_make_them(name: str, compiler: nvrtc.Nvrtc) -> None:
    sides = divide(source(name))
    ours, theirs = (divided_build.device_headers(sides.device + more) for more in ("", OF_CUTLASS))
    assert (ours == theirs) == (name in OF_MORE)
    code = code_of(compiler, sides.device, ours, sides.kernels)
    assert code == code_of(compiler, sides.device, theirs, sides.kernels)


DIVISORS = """\
#include "cutlass/fast_math.h"
using Theirs = cutlass::FastDivmod;
#define FastDivmod Ours
{ours}
#undef FastDivmod
int main() {{
  for (int64_t d = 1; d < INT32_MAX; d += d < 5000 ? 1 : d / 977) {{
    Theirs const a(d);
    cutlass::Ours const b(d);
    if (a.divisor != b.divisor || a.multiplier != b.multiplier || a.shift_right != b.shift_right) return 1;
  }}
}}
"""


@pytest.mark.slow
def test_the_host_divides_as_cutlass_does(tmp_path: Path) -> None:
    header = (divided_build.NATIVE / divided_build.HOST_HEADER).read_text()
    (ours,) = re.findall(r"struct FastDivmod \{.*?\n\};\n", header, re.DOTALL)
    (tmp_path / "divisors.cpp").write_text(DIVISORS.format(ours=f"namespace cutlass {{\n{ours}}}"))
    tools = toolchain()
    folders = (*device_compile.cuda_headers(tools.nvcc.path), tools.cutlass.include)
    includes = [f"-isystem{path}" for path in folders]
    command = [
        str(tools.host.path),
        "-std=c++17",
        "-include",
        "cuda_runtime.h",
        *includes,
        "-o",
        "divisors",
        "divisors.cpp",
    ]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "divisors"], check=False).returncode == 0


def test_an_artifact_keeps_its_sides_and_no_objects(cache: Cache) -> None:
    names = {path.name for path in built(QUICK[0], cache).folder.iterdir()}
    assert names == {
        "build.json",
        "build.log",
        "device.cu",
        "divided_host.h",
        "host.cpp",
        IMAGE,
        "kernel.so",
        "source.cu",
    }


@pytest.mark.parametrize(("side", "file"), [("device", "device.cu"), ("host", "host.cpp")])
def test_a_side_that_is_refused_is_kept_with_the_errors(side: str, file: str, cache: Cache) -> None:
    kernel = source(QUICK[1])
    sides = divide(kernel)
    wrong = replace(sides, **{side: getattr(sides, side) + "int f() { return gone; }\n"})
    with pytest.raises(BuildError, match="gone") as refused:
        make(divided_build.recipe(kernel, wrong, toolchain()), cache)
    assert refused.value.source.name == file and refused.value.source.is_file()
    assert "gone" in refused.value.log.read_text()


def test_parameters_of_two_layouts_are_refused(cache: Cache) -> None:
    kernel = source(QUICK[1])
    sides = divide(kernel)
    other = replace(sides, host=sides.host.replace("struct Params {", "struct Params { int64_t more;"))
    with pytest.raises(BuildError, match=r"parameters take \(\d+,\) bytes for the host's compiler"):
        make(divided_build.recipe(kernel, other, toolchain()), cache)


def test_a_change_of_a_side_or_of_its_header_is_another_artifact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = source(QUICK[1])
    sides = divide(kernel)
    keys = {divided_build.recipe(kernel, sides, toolchain()).key}
    keys |= {
        divided_build.recipe(kernel, replace(sides, **{side: ""}), toolchain()).key
        for side in ("device", "host")
    }
    for name in (divided_build.DEVICE_HEADER, divided_build.CUTLASS_HEADER, divided_build.HOST_HEADER):
        (tmp_path / name).write_text("//")
    monkeypatch.setattr(divided_build, "NATIVE", tmp_path)
    keys.add(divided_build.recipe(kernel, sides, toolchain()).key)
    assert len(keys) == 4
