"""Real builds with the machine's nvcc; a few seconds each."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
from runtime_fakes import source

from ucutlass.runtime import errors, nvcc, toolchain
from ucutlass.runtime.build import build
from ucutlass.runtime.cache import Cache

pytestmark = pytest.mark.nvcc

KERNEL = """\
#include <cutlass/numeric_types.h>
__global__ void fill(cutlass::half_t* x) { x[threadIdx.x] = cutlass::half_t(1.0f); }
extern "C" int ucc_0123456789abcdef(void* x) {
  if (!x) return 41;
  fill<<<1, 32>>>(static_cast<cutlass::half_t*>(x));
  return static_cast<int>(cudaGetLastError());
}
"""


@pytest.mark.parametrize("arch", list(nvcc.TARGETS))
def test_every_target_builds_and_loads(arch: str, cache: Cache) -> None:
    artifact = build(source(KERNEL, arch=arch), toolchain.find(), cache)
    library = ctypes.CDLL(str(artifact.library), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    assert getattr(library, artifact.entry)(None) == 41
    built_for = {usage.arch for usage in artifact.report.usage}
    assert arch in built_for and built_for <= {"sm_80", "sm_86", "sm_89", "sm_90", "sm_90a"}
    assert artifact.report.findings == ()


def test_the_same_source_gives_the_same_library(cache: Cache, tmp_path: Path) -> None:
    tools = toolchain.find()
    other = Cache(tmp_path / "elsewhere", cache.limit_bytes)
    first, second = (build(source(KERNEL), tools, c).library.read_bytes() for c in (cache, other))
    assert first == second


def test_a_real_refusal_points_into_the_kept_source(cache: Cache) -> None:
    with pytest.raises(errors.BuildError) as caught:
        build(source(KERNEL.replace("41", "forty_one")), toolchain.find(), cache)
    assert 'source.cu(4): error: identifier "forty_one" is undefined' in caught.value.errors[0]
    assert "forty_one" in caught.value.source.read_text().splitlines()[3]


def test_the_command_for_people_works_on_the_file_alone(tmp_path: Path) -> None:
    tools = toolchain.find()
    (tmp_path / "kernel.cu").write_text(KERNEL)
    command = nvcc.command_line("sm_90a", "kernel.cu", "kernel.so")
    if tools.nvcc.library_folders:
        command += "".join(f" -L{folder}" for folder in tools.nvcc.library_folders)
    environment = {**os.environ, "CUTLASS": str(tools.cutlass.home)}
    environment["PATH"] = f"{tools.nvcc.path.parent}:{environment['PATH']}"
    subprocess.run(command, shell=True, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "kernel.so").stat().st_size > 0


def test_the_shell_line_finds_the_headers() -> None:
    line = nvcc.CUTLASS_FOLDER.replace("python3", sys.executable, 1)
    script = f'{line}; echo "$CUTLASS"'
    completed = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    assert Path(completed.stdout.strip()) == toolchain.find_cutlass().home
