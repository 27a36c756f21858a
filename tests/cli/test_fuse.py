"""`ucc fuse` prints a pipeline with its stages joined, and says what it did."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_machine import LINEAR, Ucc

TEXT = """\
# One block.
pipeline block(x: bf16[T, D], w: bf16[F, D], v: bf16[E, F]) -> bf16[T, E] {
  h: bf16[T, F] = dot[D](x, w)
  g: bf16[T, F] = silu(h)
  return dot[F](g, v)
}
"""
SIZES = ("-s", "T=4096,D=256,F=256,E=256")


@pytest.fixture
def block(tmp_path: Path) -> Path:
    file = tmp_path / "block.ucu"
    file.write_text(TEXT)
    return file


def test_the_joined_program_is_printed(ucc: Ucc, block: Path) -> None:
    result = ucc("fuse", block, *SIZES)
    assert result.status == 0
    assert result.out == TEXT.replace("h: bf16[T, F] = dot[D](x, w)", "h = bf16(dot[D](x, w))")
    assert "ucc: h is joined to g: " in result.err and "ucc: g stays stored for return: " in result.err


def test_each_join_is_a_row(ucc: Ucc, block: Path, tmp_path: Path) -> None:
    output = tmp_path / "joined.ucu"
    result = ucc("fuse", block, *SIZES, "--json", "-o", output)
    assert output.read_text() == result.json["text"]
    h, g = result.json["joins"]
    assert (h["buffers"], h["stages"], h["joined"]) == (["h"], ["h", "g"], True)
    assert 0 < h["together"] < h["apart"]
    assert g["together"] is None and "[UC0300]" in g["why"]


def test_the_program_that_is_read_is_not_written(ucc: Ucc, block: Path) -> None:
    result = ucc("fuse", block, *SIZES, "-o", block)
    assert result.status == 2 and "would be overwritten" in result.err
    assert block.read_text() == TEXT


def test_a_kernel_has_nothing_to_join(ucc: Ucc) -> None:
    result = ucc("fuse", LINEAR, "-s", "M=256,N=256,K=256")
    assert result.status == 0 and result.err == "" and "kernel linear_gelu(" in result.out


def test_missing_extents_are_the_call_s_fault(ucc: Ucc, block: Path) -> None:
    result = ucc("fuse", block, "-s", "T=4")
    assert result.status == 2 and "UC0601" in result.err
