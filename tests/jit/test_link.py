"""What is linked from a skeleton and an arithmetic: what is built, what is reused, what is reported."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.jit.arithmetic_plans import gelu, scaled_relu
from tests.jit.machine_code import kernels
from ucutlass import backend, frontend
from ucutlass.emit import emit
from ucutlass.emit.gemm.arithmetic_unit import KERNEL_NAME
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.parts import Lean
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.runtime import errors, nvcc, process
from ucutlass.runtime.build import BUILDERS, Artifact, make
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.jit import compiler_process, link, nvjitlink, nvrtc, nvrtc_build
from ucutlass.runtime.toolchain import Toolchain, find
from ucutlass.shapes import complete

pytestmark = pytest.mark.nvcc

WORKER = compiler_process.__name__


@pytest.fixture
def tools(compiler: nvrtc.Nvrtc, linker: nvjitlink.NvJitLink) -> Toolchain:
    return find()


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Of all tests here, so that a skeleton is built once."""
    return Cache(tmp_path_factory.mktemp("warm"), 10 * 2**30)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What each run of a compiler is to make, and WORKER for NVRTC and nvJitLink."""
    outputs: list[str] = []
    real = process.run

    def run(command: list[str], **rest: object) -> object:
        outputs.append(command[command.index("-o") + 1] if "-o" in command else command[2])
        return real(command, **rest)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "run", run)
    yield outputs


def linked(plan: GemmPlan, tools: Toolchain, cache: Cache, kernel: Lean | None = None) -> Artifact:
    return make(link.recipe(emit(plan, ""), kernel or lean(plan), tools, cache), cache)


def with_arithmetic(kernel: Lean, old: str, new: str) -> Lean:
    assert old in kernel.arithmetic
    return replace(kernel, arithmetic=kernel.arithmetic.replace(old, new))


def test_the_library_has_the_entry_and_the_image(tools: Toolchain, warm: Cache) -> None:
    artifact = linked(gelu(), tools, warm)
    library = ctypes.CDLL(str(artifact.library), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    assert hasattr(library, artifact.entry)
    image = (artifact.folder / link.IMAGE).read_bytes()
    assert image in artifact.library.read_bytes()
    assert kernels(image).keys() == {KERNEL_NAME}
    assert [usage.kernel for usage in artifact.report.usage] == [KERNEL_NAME]
    assert artifact.builder == BUILDERS["nvrtc"] and artifact.source.read_text() == emit(gelu(), "").text


def test_a_refused_arithmetic_leaves_its_skeleton_to_the_next(
    tools: Toolchain, cache: Cache, runs: list[str]
) -> None:
    broken = with_arithmetic(lean(gelu()), "out0 =", "gone =")
    with pytest.raises(errors.BuildError) as caught:
        linked(gelu(), tools, cache, broken)
    assert 'error: identifier "gone" is undefined' in caught.value.errors[0]
    assert caught.value.source.read_text() == broken.arithmetic
    assert "gone" in caught.value.log.read_text()
    builders = [entry.about["builder"] for entry in cache.entries() if isinstance(entry, CacheEntry)]
    assert sorted(builders) == ["lean-driver", "lean-skeleton"]
    runs.clear()
    linked(scaled_relu(), tools, cache)
    assert runs == [WORKER, nvcc.LIBRARY]


def test_parts_that_do_not_meet_are_a_build_error(tools: Toolchain, warm: Cache) -> None:
    other = with_arithmetic(lean(gelu()), "__device__ void ucc_arithmetic(", "__device__ void another(")
    with pytest.raises(errors.BuildError) as caught:
        linked(gelu(), tools, warm, other)
    assert any("ucc_arithmetic" in line for line in caught.value.errors)


@pytest.mark.parametrize("version", ["13.9.1", "12.5.86"])
def test_libraries_of_another_version_are_not_taken(version: str, tools: Toolchain, cache: Cache) -> None:
    other = replace(tools, nvcc=replace(tools.nvcc, version=version))
    with pytest.raises(nvrtc.NvrtcMissing, match=f"nvcc {version} .* found: .*13"):
        link.recipe(emit(gelu(), ""), lean(gelu()), other, cache)


PROGRAM = """\
# A line before it.
kernel scaled(x: f16[M, K], w: f16[N, K]) -> f16[M, N] {
  return gelu(dot[K](x, w))
  schedule sm90a { warps pingpong  tile 64x64x64 }
}
"""


def test_a_broken_arithmetic_shows_the_programs_line_first(
    tools: Toolchain, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "parts", lambda plan: with_arithmetic(lean(plan), "out0 =", "gone ="))
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(cache.root))
    checked = frontend.read_text(PROGRAM)
    program = frontend.kernel(checked)
    sizes = complete(program, {"M": 256, "N": 256, "K": 256})
    with pytest.raises(errors.BuildError) as caught:
        backend.build_kernel(checked, program, sizes, "sm90a", build_path="nvrtc")
    first, second, third = str(caught.value).splitlines()[:3]
    assert first.endswith(":2: kernel scaled(x: f16[M, K], w: f16[N, K]) -> f16[M, N] {")
    assert second.startswith("the compiler refused the emitted source of ucc_")
    assert 'identifier "gone" is undefined' in third


def test_the_command_for_people_shows_the_arithmetics_errors_again(
    tools: Toolchain, warm: Cache, tmp_path: Path
) -> None:
    kernel = lean(gelu())
    broken = with_arithmetic(kernel, "out0 =", "gone =")
    with pytest.raises(errors.BuildError) as caught:
        linked(gelu(), tools, warm, broken)

    def compiled_again(text: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / caught.value.source.name).write_text(text)
        command = caught.value.command
        return subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=False)

    again = compiled_again(broken.arithmetic)
    assert again.returncode != 0 and 'identifier "gone" is undefined' in again.stderr
    assert compiled_again(kernel.arithmetic).returncode == 0


def test_a_skeleton_is_another_artifact_than_what_is_linked_of_it(tools: Toolchain, cache: Cache) -> None:
    skeleton = nvrtc_build.recipe(lean(gelu()), tools).key
    keys = {link.recipe(emit(plan, ""), lean(plan), tools, cache).key for plan in (gelu(), scaled_relu())}
    assert len(keys) == 2 and skeleton not in keys
