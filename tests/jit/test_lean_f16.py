"""f32 by wgmma in three passes of f16: main loop and launches as they are emitted, run on the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.jit.test_lean_registers import Case, as_matrices, operand, product

CASES = {
    "K-major": Case(math="f16x3", schedule="tile 128x16x64  swap no", sizes=(1, 140, 20, 200)),
    "weights along N": Case(
        math="f16x3", w="K, N", schedule="tile 128x32x32  swap no", sizes=(1, 140, 20, 68)
    ),
    "rows along M": Case(math="f16x3", x="K, M", schedule="tile 128x16x64  swap no", sizes=(1, 140, 12, 68)),
    "neither along K": Case(
        math="f16x3", x="K, M", w="K, N", schedule="tile 128x64x32  swap no", sizes=(1, 140, 76, 68)
    ),
    "turned": Case(math="f16x3", w="K, N", schedule="tile 128x16x64  swap yes", sizes=(1, 13, 140, 100)),
    "batched": Case(
        math="f16x3", x="B, M, K", w="B, K, N", schedule="tile 128x16x32  swap no", sizes=(2, 36, 12, 40)
    ),
    "batch of one operand": Case(
        math="f16x3", x="M, K", w="B, K, N", schedule="tile 128x16x32  swap no", sizes=(3, 13, 36, 40)
    ),
    "interleaved batch": Case(
        math="f16x3", x="M, B, K", w="N, B, K", schedule="tile 128x16x32  swap no", sizes=(2, 13, 36, 40)
    ),
    "K of less than a group": Case(math="f16x3", schedule="tile 128x16x16  swap no", sizes=(1, 140, 20, 4)),
    "two atoms": Case(math="f16x3", schedule="tile 256x16x32  swap no", sizes=(1, 260, 13, 68)),
    "parts of K": Case(
        math="f16x3", schedule="tile 128x16x16  swap no", sizes=(1, 13, 20, 196), parts=3
    ),
    "cluster": Case(
        math="f16x3",
        x="K, M",
        w="K, N",
        schedule="tile 128x32x32  swap no  cluster 2x2",
        sizes=(1, 260, 60, 68),
    ),
}

QUICK = ("K-major", "neither along K", "batched")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_products_are_those_of_f32(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    sizes = dict(zip("BMNK", case.sizes, strict=True))
    x, w = operand(case.x, sizes, 1), operand(case.w, sizes, 2)
    x *= np.float32(2.0**40)
    w *= np.float32(2.0**-90)
    a, b = as_matrices(case.x, x, "M"), as_matrices(case.w, w, "N")
    actual = product(case, x, w, tmp_path).astype(np.float64)
    exact, magnitude = a @ b.swapaxes(1, 2), np.abs(a) @ np.abs(b).swapaxes(1, 2)
    assert (np.abs(actual - exact) <= 2.0**-20 * magnitude).all()
