"""NVRTC and nvJitLink through ctypes: what they make, and what they say when they refuse."""

from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests.emit.test_gemm_sm90 import batched_with_reductions, bias_gelu, fp8_two_stores
from tests.jit.arithmetic_plans import biased, everything, scaled_relu
from tests.jit.machine_code import kernels
from ucutlass.emit.arithmetic import arithmetic
from ucutlass.emit.function_forms import FORMS
from ucutlass.emit.gemm.arithmetic_unit import arithmetic_text
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.arithmetic import Compute, LiteralValue
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.runtime.jit import compiler_process, device_compile, nvjitlink, nvrtc
from ucutlass.runtime.toolchain import find

OPTIONS = ("-std=c++17", "-arch=sm_90a", "-dlto", "-rdc=true")
LINK = ("-lto", "-arch=sm_90a")

SKELETON = """
extern "C" __device__ float arithmetic(float x);
extern "C" __global__ void kernel(float* x) { x[threadIdx.x] = arithmetic(x[threadIdx.x]); }
"""


def every_function() -> GemmPlan:
    """The sum of every function of floats: a compilation of each alone takes half a second."""
    functions = {n: f for n, f in FUNCTIONS.items() if f.domain == "float" and n in FORMS}
    assert len(functions) > 10
    instructions: list[LiteralValue | Compute] = [LiteralValue(0.5, "f32")]
    total = 2
    for name, function in functions.items():
        arguments = (2, *(3 for _ in function.parameters[1:]))
        value = 3 + len(instructions)
        instructions += [Compute(name, arguments, "f32"), Compute("add", (total, value), "f32")]
        total = value + 1
    return biased(*instructions)


def unit(plan: GemmPlan) -> str:
    return arithmetic_text(arithmetic(plan.problem))


@pytest.mark.parametrize(
    "make", [bias_gelu, fp8_two_stores, batched_with_reductions, scaled_relu, everything]
)
def test_takes_every_arithmetic(make: Callable[[], GemmPlan], compiler: nvrtc.Nvrtc) -> None:
    compiled = nvrtc.compile_program(compiler, unit(make()), "arithmetic.cu", OPTIONS)
    assert compiled.code and not compiled.log


def test_takes_every_float_function_without_a_header(compiler: nvrtc.Nvrtc) -> None:
    nvrtc.compile_program(compiler, unit(every_function()), "arithmetic.cu", OPTIONS)


def test_a_refused_source_comes_with_its_line(compiler: nvrtc.Nvrtc) -> None:
    with pytest.raises(nvrtc.NvrtcRefused, match=r'part\.cu\(2\): error: identifier "gone" is undefined'):
        nvrtc.compile_program(compiler, "__device__ int f() {\n  return gone; }", "part.cu", OPTIONS)


def test_an_empty_header_stands_for_one_on_disk(compiler: nvrtc.Nvrtc, tmp_path: Path) -> None:
    (tmp_path / "other.h").write_text("#error it is read")
    options, text = [*OPTIONS, f"-I{tmp_path}"], '#include "other.h"'
    with pytest.raises(nvrtc.NvrtcRefused, match="it is read"):
        nvrtc.compile_program(compiler, text, "part.cu", options)
    compiled = nvrtc.compile_program(compiler, text, "part.cu", options, {"other.h": ""})
    assert compiled.code and not compiled.log


def test_an_image_has_the_kernels_that_are_named(compiler: nvrtc.Nvrtc) -> None:
    text = "namespace n { namespace { template <int kCount> __global__ void f(int* p) { *p = kCount; } } } using namespace n;"
    options = ("-std=c++17", "-arch=sm_90a")
    compiled = nvrtc.compile_program(compiler, text, "part.cu", options, kernels=("f<3>", "f<5>"))
    assert kernels(compiled.code).keys() == set(compiled.names) and len(compiled.names) == 2
    assert all(name.startswith("_ZN1n") for name in compiled.names)


def test_an_unknown_option_is_the_machines_fault(compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink) -> None:
    with pytest.raises(nvrtc.NvrtcFailed, match="nvrtcCompileProgram: NVRTC_ERROR_INVALID_OPTION"):
        nvrtc.compile_program(compiler, "", "part.cu", ["-no-such-option"])
    with pytest.raises(nvjitlink.NvJitLinkFailed, match="nvJitLinkCreate: nvJitLink unrecognised option"):
        nvjitlink.link(linker, {}, ["-no-such-option"])


def test_linked_code_is_that_of_one_file(compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink) -> None:
    body = "{ return fmaf(x, x, 1.0f); }"
    device = 'extern "C" __device__ float arithmetic(float x) '
    texts = (SKELETON, device + body)
    parts = [nvrtc.compile_program(compiler, text, "part.cu", OPTIONS).code for text in texts]
    whole = nvrtc.compile_program(compiler, device + body + SKELETON, "one.cu", OPTIONS).code
    both = dict(zip(("skeleton", "arithmetic"), parts, strict=True))
    apart, said = nvjitlink.link(linker, both, (*LINK, "-Xptxas=-v"))
    together, _ = nvjitlink.link(linker, {"one": whole}, LINK)
    assert kernels(apart).keys() == {"kernel"}, "the arithmetic is inlined, and dropped"
    assert kernels(apart) == kernels(together)
    assert "Compiling entry function 'kernel' for 'sm_90a'" in said


def test_a_missing_part_is_named(compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink) -> None:
    part = nvrtc.compile_program(compiler, SKELETON, "part.cu", OPTIONS).code
    with pytest.raises(nvjitlink.LinkRefused, match="'arithmetic'"):
        nvjitlink.link(linker, {"skeleton": part}, LINK)


def test_what_is_no_ir_is_refused_by_its_name(linker: nvjitlink.NvJitLink) -> None:
    with pytest.raises(nvjitlink.LinkRefused, match="broken"):
        nvjitlink.link(linker, {"broken": b"no such IR"}, LINK)


@pytest.mark.parametrize(
    ("load", "error"), [(nvrtc.load, nvrtc.NvrtcMissing), (nvjitlink.load, nvjitlink.NvJitLinkMissing)]
)
def test_a_library_that_does_not_load_says_so(load: Any, error: type[Exception], tmp_path: Path) -> None:
    with pytest.raises(error, match=r"cannot be loaded: .*cannot open shared object file"):
        load(str(tmp_path / "libgone.so.13"))


# --- the worker's status ----------------------------------------------------------


def status_of(text: str, folder: Path, output: Path, *outs: str) -> int:
    """Of a worker that compiles this file, into each of `outs`, and speaks into `output`."""
    (folder / "part.cu").write_text(text)
    work = [asdict(device_compile.NvrtcCompile("part.cu", out, OPTIONS)) for out in outs or ("part.ltoir",)]
    (folder / "job.json").write_text(
        json.dumps({"nvrtc": nvrtc.locate(find().nvcc), "compile": work, "link": None, "seconds": "s.json"})
    )
    env = device_compile._environment()
    env.pop("PYTHONUNBUFFERED", None)  # which hides what words in a buffer do to the status
    command = [sys.executable, "-m", compiler_process.__name__, "job.json"]
    with output.open("w") as out:
        return subprocess.run(command, cwd=folder, env=env, stdout=out, check=False).returncode


REFUSED = "__device__ int f() { return gone; }"


def test_a_refusal_has_its_own_status_and_words(compiler: nvrtc.Nvrtc, tmp_path: Path) -> None:
    assert status_of(REFUSED, tmp_path, tmp_path / "log") == compiler_process.REFUSED
    assert "gone" in (tmp_path / "log").read_text()


def test_words_that_find_no_room_are_a_full_disk(compiler: nvrtc.Nvrtc, tmp_path: Path) -> None:
    assert status_of(REFUSED, tmp_path, Path("/dev/full")) == compiler_process.FULL[errno.ENOSPC]


def test_a_part_that_finds_no_room_is_one_too(compiler: nvrtc.Nvrtc, tmp_path: Path) -> None:
    """Also where there were words of an earlier part."""
    (tmp_path / "full.ltoir").symlink_to("/dev/full")
    outs, text = ("part.ltoir", "full.ltoir"), f"#warning of this\n{SKELETON}"
    assert status_of(text, tmp_path, tmp_path / "log", "part.ltoir") == 0
    assert "of this" in (tmp_path / "log").read_text()
    assert status_of(text, tmp_path, Path("/dev/full"), *outs) == compiler_process.FULL[errno.ENOSPC]


def test_another_failure_to_write_is_no_full_disk(compiler: nvrtc.Nvrtc, tmp_path: Path) -> None:
    (tmp_path / "part.ltoir").mkdir()
    assert status_of(SKELETON, tmp_path, tmp_path / "log") not in (
        0,
        compiler_process.REFUSED,
        *compiler_process.FULL.values(),
    )
