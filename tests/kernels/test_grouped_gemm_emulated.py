"""Products by plain multiply-adds on the host: the emitted CUDA file against the float64 reference."""

from __future__ import annotations

import shutil

import pytest

from tests.emulated import Job, emulate
from tests.kernels.grouped_gemm_programs import GROUPED_GEMMS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

QUICK = {"gated pair", "moe with operands"}
"""The others are slow tests, for their number."""


@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in GROUPED_GEMMS]
)
def test_products_compute_their_programs(name: str) -> None:
    products = GROUPED_GEMMS[name]
    row = emulate(Job(name, products.text, "k", dict(products.small), None, 0))
    assert row.status == "right", row.detail
