"""Machine code: what cuobjdump 13 wrote of an sm90a GEMM and a matrix-vector kernel, shortened."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from ucutlass.runtime.profile import cuda_tools, sass
from ucutlass.runtime.ptxas import KernelResources, PtxasReport, PtxasWarning

TEXT = (Path(__file__).parent / "data" / "sm90.sass").read_text()


def test_functions_and_their_instructions() -> None:
    gemm, gemv = sass.parse(TEXT)
    assert gemm.function.startswith("_ZN7cutlass13device_kernel")
    assert gemm.count(*sass.WGMMA) == 8
    assert gemm.opcodes["HGMMA.64x256x16.F32.BF16"] == 8
    assert gemm.count("UTMALDG") == 2 and gemm.count("UTMASTG") == 8
    assert gemm.widths("LDG") == {2: 1}, "a predicated instruction counts"
    assert gemv.count(*sass.TENSOR) == 0 and gemv.count("LDG") > 0


def test_every_instruction_line_counts_once() -> None:
    lines = [line for line in TEXT.splitlines() if "*/  " in line and " ;" in line]
    assert sum(c.total for c in sass.parse(TEXT)) == len(lines)


def test_the_kernel_that_multiplies() -> None:
    codes = sass.parse(TEXT)
    assert sass.main_kernel(codes) is codes[0]
    assert sass.main_kernel(()) is None


@pytest.mark.parametrize(
    ("opcode", "size"),
    [("LDG.E.128", 16), ("LDG.E.64.CONSTANT", 8), ("STG.E", 4), ("LDG.E.U16", 2), ("STG.E.U8", 1)],
)
def test_widths(opcode: str, size: int) -> None:
    assert sass.width(opcode) == size


def test_facts_of_a_build() -> None:
    usage = (
        KernelResources("gemm", "sm_90a", 168, 0, 24, 40, 0, 1),
        KernelResources("finish", "sm_90a", 32, 0, 0, 0, 0, 1),
    )
    report = PtxasReport(
        usage, (PtxasWarning("wgmma-serialised", "gemm", "C7510: Potential ..", "smaller tile"),)
    )
    build_facts = sass.build_facts(report, sass.parse(TEXT))
    assert build_facts.registers == 168 and build_facts.spill_bytes == 64
    assert build_facts.serialised == ("C7510: Potential ..",)
    assert build_facts.wgmma_instructions == 8 and build_facts.local_accesses == 0
    assert build_facts.global_accesses == 1 and build_facts.narrow_accesses == 1


def test_without_a_disassembly_its_numbers_are_unknown() -> None:
    build_facts = sass.build_facts(PtxasReport(), sass.NoCode("no cuobjdump"))
    assert build_facts.tensor_instructions is None and build_facts.local_accesses is None
    assert build_facts.spill_bytes is None and build_facts.serialised is None, (
        "no report says nothing, not zero"
    )


def test_reading_through_the_tool(tmp_path: Path) -> None:
    tool = _program(tmp_path / "cuobjdump", f"cat {Path(__file__).parent / 'data' / 'sm90.sass'}")
    outcome = sass.read(tmp_path / "kernel.so", tool)
    assert not isinstance(outcome, sass.NoCode) and len(outcome) == 2


def test_the_image_of_a_staged_library_is_read_in_its_place(tmp_path: Path) -> None:
    tool = _program(tmp_path / "cuobjdump", 'echo "$2" >&2; exit 1')
    for name in ("kernel.so", "kernel.cubin"):
        (tmp_path / name).write_bytes(b"")
        outcome = sass.read(tmp_path / "kernel.so", tool)
        assert isinstance(outcome, sass.NoCode) and name in outcome.reason


@pytest.mark.parametrize(
    ("script", "words"), [("echo no >&2; exit 3", "status 3: no"), ("true", "no function")]
)
def test_a_failing_tool_says_why(tmp_path: Path, script: str, words: str) -> None:
    outcome = sass.read(tmp_path / "kernel.so", _program(tmp_path / "cuobjdump", script))
    assert isinstance(outcome, sass.NoCode) and words in outcome.reason


def test_tools_are_found_in_order(tmp_path: Path) -> None:
    for home in ("one", "two", "path"):
        folder = tmp_path / home / "bin"
        folder.mkdir(parents=True)
        _program(folder / "sometool", "true")
    path = str(tmp_path / "path" / "bin")
    assert cuda_tools.find("sometool", {"PATH": path}) == tmp_path / "path" / "bin" / "sometool"
    env = {"PATH": path, "CUDA_HOME": str(tmp_path / "two"), "UCUTLASS_CUDA_HOME": str(tmp_path / "one")}
    assert cuda_tools.find("sometool", env) == tmp_path / "one" / "bin" / "sometool"
    assert cuda_tools.find("sometool", {"PATH": "/nowhere"}) is None


def _program(path: Path, script: str) -> Path:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path
