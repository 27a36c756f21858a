"""The places in shared memory that a lean epilogue computes, against TMA's boxes, CuTe's swizzles and the
registers of ldmatrix and stmatrix. The emitted functions run on the host."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.emit.harness import cuda_includes, cutlass_include
from tests.jit.lean_model import EMPTY, Box, write
from tests.jit.lean_plans import biased
from ucutlass.emit.gemm.lean import lean

COLUMNS = (16, 32, 64)
SIZES = (1, 2, 4)
ROWS = 64
WIDEST = 128

STEPS = tuple(
    (c, s, rows) for c in COLUMNS for s in SIZES for rows in (True, False) if not rows or c * s <= WIDEST
)
"""Columns, bytes of an element, and whether the columns are contiguous: then a row is one of TMA's."""

PROGRAM = r"""
#include <cstdint>
#include <cstdio>

#define CUTLASS_DEVICE inline
%s

template <int Size, bool Rows, class Place>
void box(int columns, Place place) {
  std::printf("box %%d %%d %%d", columns, Size, int(Rows));
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < columns; ++column) std::printf(" %%u", place(row, column));
  std::printf("\n");
}
template <bool Rows, class Place>
void matrices(int columns, Place place) {
  std::printf("matrices %%d 2 %%d", columns, int(Rows));
  for (int warp = 0; warp < 4; ++warp)
    for (int column = 0; column < columns; column += 16)
      for (int lane = 0; lane < 32; ++lane) std::printf(" %%u", place(warp, lane, column));
  std::printf("\n");
}
int main() {
%s
}
"""

SWIZZLES = r"""
#define CUTLASS_DEVICE inline
#include <cstdio>
#include <cute/swizzle.hpp>
%s
int main() {
  int wrong = 0;
  for (uint32_t offset = 0; offset < 1 << 16; ++offset) {
    wrong += swizzle_offset<128>(offset) != uint32_t(cute::Swizzle<3, 4, 3>{}(offset));
    wrong += swizzle_offset<64>(offset) != uint32_t(cute::Swizzle<2, 4, 3>{}(offset));
    wrong += swizzle_offset<32>(offset) != uint32_t(cute::Swizzle<1, 4, 3>{}(offset));
    wrong += swizzle_offset<16>(offset) != offset;
  }
  std::printf("%%d\n", wrong);
}
"""


def functions() -> str:
    """The emitted text from the swizzle to the matrices' places."""
    code = lean(biased()).device.code
    start = code.index("template <int Width>\nCUTLASS_DEVICE constexpr uint32_t swizzle_offset(")
    return code[start : code.index("// A thread's values of a box")]


def run(text: str, folder: Path, *includes: str) -> str:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ to compile the places for the host")
    source, binary = folder / "places.cpp", folder / "places"
    source.write_text(text)
    subprocess.run([compiler, "-std=c++17", "-w", *includes, str(source), "-o", str(binary)], check=True)
    return subprocess.check_output([str(binary)], text=True)


Table = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Places:
    """By columns of a step, bytes of an element, and whether the columns are contiguous."""

    boxes: dict[tuple[int, int, bool], Table]
    matrices: dict[tuple[int, bool], Table]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    spaces, calls = [], []
    for columns in COLUMNS:
        space = f"columns_{columns}"
        spaces.append(f"namespace {space} {{ constexpr int Columns = {columns};\n{functions()} }}")
        for kind in (f"{size}, {str(rows).lower()}" for c, size, rows in STEPS if c == columns):
            calls.append(f"box<{kind}>({columns}, {space}::box_offset<{kind}>);")
        for word in ("true", "false"):
            calls.append(f"matrices<{word}>({columns}, {space}::matrix_row_offset<{word}>);")
    text = run(PROGRAM % ("\n".join(spaces), "\n".join(calls)), tmp_path_factory.mktemp("places"))
    found = Places({}, {})
    for line in text.splitlines():
        what, *texts = line.split()
        columns, size, rows, *numbers = map(int, texts)
        table = np.array(numbers, np.int64)
        if what == "box":
            found.boxes[columns, size, bool(rows)] = table.reshape(ROWS, columns)
        else:
            found.matrices[columns, bool(rows)] = table.reshape(4, columns // 16, 4, 8)
    return found


def test_the_swizzle_is_cutes(tmp_path: Path) -> None:
    text = functions()
    one = text[: text.index("// The offset of an element")]
    assert run(SWIZZLES % one, tmp_path, f"-I{cutlass_include()}", *cuda_includes()) == "0\n"


def by_tma(columns: int, size: int, rows: bool) -> Table:
    """[row, column]: where TMA's boxes put an element of 64 rows of a step."""
    memory = np.full(ROWS * columns * size, EMPTY, np.int64)
    number = np.arange(ROWS * columns).reshape(ROWS, columns)
    if rows:
        write(memory, Box(columns, ROWS, size), 0, number)
    else:
        high = min(WIDEST // size, ROWS)
        for i in range(ROWS // high):
            panel = number[i * high : (i + 1) * high].T
            write(memory, Box(high, columns, size), i * columns * high * size, panel)
    assert (memory != EMPTY).all()
    found = np.full(ROWS * columns, EMPTY, np.int64)
    found[memory[::size] // size] = np.arange(0, len(memory), size)
    return found.reshape(ROWS, columns)


@pytest.mark.parametrize(("columns", "size", "rows"), STEPS)
def test_an_element_lies_where_tma_puts_it(columns: int, size: int, rows: bool, places: Places) -> None:
    assert (places.boxes[columns, size, rows] == by_tma(columns, size, rows)).all()


@pytest.mark.parametrize("rows", [True, False])
@pytest.mark.parametrize("columns", COLUMNS)
def test_each_lane_names_a_row_of_the_matrices_of_its_registers(
    columns: int, rows: bool, places: Places
) -> None:
    """PTX, ldmatrix: lane 8 i + r names row r of matrix i, of which thread t has a pair of row t / 4;
    `.trans` exchanges rows and columns. Register i is of row half i % 2 and of 8 columns i / 2."""
    box, made = places.boxes[columns, 2, rows], places.matrices[columns, rows]
    for warp in range(4):
        for pair in range(columns // 16):
            for i in range(4):
                row = warp * 16 + 8 * (i % 2) + np.arange(8)
                column = pair * 16 + 8 * (i // 2) + np.arange(8)
                matrix = box[np.ix_(row, column)]
                lines = matrix if rows else matrix.T
                assert (lines[:, 0] == made[warp, pair, i]).all()
                assert (lines == lines[:, :1] + 2 * np.arange(8)).all(), "16 bytes each"


@pytest.mark.parametrize(("columns", "size"), [(c, s) for c, s, rows in STEPS if rows])
def test_pairs_of_a_row_lie_side_by_side(columns: int, size: int, places: Places) -> None:
    """Threads write two columns at once where the columns are contiguous."""
    box: Any = places.boxes[columns, size, True]
    assert (box[:, 1::2] == box[:, ::2] + size).all()
    assert (box[:, ::2] % (2 * size) == 0).all()
