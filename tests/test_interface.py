"""The C header of a built kernel, taken by a C and a C++ compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.header import signature_of
from ucutlass.interface import c_header
from ucutlass.shapes import complete

TEXT = """
kernel hostile_name_ucc(a: bf16[M, K], x: bf16[K], s: f32) -> (y: f32[M], peak: f32[]) {
  d = s * dot[K](a, x)
  return y = d, peak = max[M](d)
}
"""


@pytest.mark.parametrize(("compiler", "language"), [("gcc", "c"), ("g++", "c++")])
def test_header_compiles_and_counts(compiler: str, language: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    checked = frontend.read_text(TEXT)
    program = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, program, complete(program, {"M": 512, "K": 256}), "sm90a").planned
    source = source_of(checked, program, planned)
    (tmp_path / "kernel.h").write_text(c_header(signature_of(program), planned, source))
    entry = source.entry
    (tmp_path / "main").write_text(
        f'#include "kernel.h"\n'
        f"int check[({entry}_tensors == 4 && {entry}_extents == 2 && {entry}_scalars == 1) ? 1 : -1];\n"
        f"int32_t (*entry)(void* const*, int64_t const*, double const*, int64_t const*, void*, uint64_t*,\n"
        f"                 void*) = {entry};\n"
        f"int64_t first(void) {{ return {entry}_launch_parameters[0]; }}\n"
    )
    flags = ["-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    command = [compiler, "-x", language, *flags, str(tmp_path / "main")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_names_of_the_program_stand_in_comments_alone() -> None:
    checked = frontend.read_text(TEXT)
    program = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, program, complete(program, {"M": 512, "K": 256}), "sm90a").planned
    text = c_header(signature_of(program), planned, source_of(checked, program, planned))
    code = "\n".join(line for line in text.splitlines() if not line.startswith("//"))
    assert "hostile_name" in text and "hostile_name" not in code and "peak" not in code
