"""Products by TMA and wgmma on the host: the emitted CUDA file, emulated, against the float64 reference."""

from __future__ import annotations

import shutil

import pytest

from tests.emit.hopper import judge
from tests.kernels.grouped_gemm_programs import GROUPED_GEMMS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

CASES = (
    ("moe", "", "T=150,D=72,F=136,E=5"),
    ("gated moe", "", "T=90,D=72,F=72,E=3"),
    ("moe with operands", "tile 64x128x64  cluster 2x1  warps pingpong", "T=150,D=72,F=136,E=3"),
    ("moe", "tile 128x256x64  cluster 1x2  warps cooperative", "T=150,D=72,F=520,E=2"),
    ("gated pair", "tile 128x64x64  cluster 2x1  warps pingpong", "T=300,D=136,F=136"),
    ("gated pair, weights by columns", "", "T=70,D=136,F=136"),
    ("gated pair of tf32", "", "T=70,D=72,F=72"),
    ("gated pair of fp8", "", "T=70,D=272,F=80"),
    ("moe, gradient of weights", "", "T=203,D=136,F=72,O=6"),
    ("narrow weights", "", "M=150,K=272,N=200"),
    ("narrow weights", "tile 128x128x64  cluster 2x1  warps cooperative", "M=150,K=272,N=200"),
    ("narrow weights of fp8", "tile 64x128x64  cluster 1x2  warps pingpong  stages 3", "M=70,K=208,N=136"),
    ("narrow weights, scales of parts", "", "M=70,G=3,J=128,N=136"),
    ("narrow weights, scales of parts", "tile 64x64x128  cluster 2x1  warps sliced", "M=70,G=3,J=128,N=136"),
    ("narrow weights, scales of parts", "tile 128x96x128  warps cooperative", "M=300,G=3,J=128,N=200"),
    ("narrow weights", "tile 64x32x128  warps sliced  stages 3", "M=70,K=1040,N=136"),
    ("narrow weights", "tile 64x32x64  cluster 1x2  warps sliced", "M=70,K=64,N=136"),
    ("weights of four bits, scales of parts", "tile 64x128x128  warps sliced", "M=70,G=4,J=128,N=136"),
    ("narrow rows", "", "M=100,K=272,N=72"),
    ("narrow weights", "tile 64x128x128  cluster 1x2  warps pingpong", "M=150,K=272,N=200"),
    ("weights of four bits", "", "M=150,K=288,N=200"),
    ("weights of four bits", "tile 128x128x64  cluster 2x1  warps cooperative", "M=150,K=288,N=200"),
    ("weights of four bits, f16", "tile 64x128x128  cluster 1x2  warps pingpong", "M=70,K=224,N=136"),
    ("weights of four bits, scales of parts", "", "M=70,G=3,J=128,N=136"),
    ("weights of four bits, scales of parts", "", "M=70,G=3,J=64,N=136"),
    ("fp8 with scales of blocks", "", "M=150,G=3,J=128,P=2,Q=128"),
    ("fp8 with scales of rows", "tile 128x64x128  cluster 1x1  warps cooperative", "M=150,G=2,J=384,N=72"),
    ("bf16 with scales of parts", "", "M=100,G=3,J=128,N=72"),
    ("narrow weights", "tile 128x64x64  cluster 1x1  warps cooperative  split_k 3", "M=150,K=528,N=200"),
    ("narrow weights", "tile 128x128x64  cluster 1x1  warps cooperative  split_k 2", "M=300,K=400,N=1000"),
    ("narrow weights", "tile 64x32x64  warps sliced  split_k 8", "M=70,K=528,N=136"),
    (
        "narrow weights, scales of parts",
        "tile 64x64x128  cluster 2x1  warps sliced  split_k 2",
        "M=70,G=5,J=128,N=136",
    ),
    (
        "weights of four bits, scales of parts",
        "tile 128x64x64  cluster 1x2  warps cooperative  split_k 4",
        "M=70,G=5,J=128,N=136",
    ),
    ("fp8 with scales of rows", "tile 128x64x128  warps cooperative  split_k 2", "M=150,G=3,J=384,N=72"),
    ("gated pair", "tile 128x64x64  warps cooperative  split_k 3", "T=300,D=528,F=136"),
    ("gated pair", "tile 128x96x64  cluster 2x1  warps cooperative  split_k 2", "T=300,D=400,F=200"),
    ("gated pair", "tile 256x32x64  cluster 1x2  warps cooperative  split_k 4", "T=300,D=400,F=200"),
    ("gated pair", "tile 64x96x64  warps pingpong", "T=150,D=136,F=200"),
    ("gated pair of tf32", "tile 128x32x32  warps cooperative  split_k 2", "T=150,D=136,F=72"),
)
QUICK = (CASES[0], CASES[11], CASES[27])
"""The others are slow tests, for their number."""


@pytest.mark.parametrize(
    ("name", "schedule", "sizes"),
    [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in CASES],
)
def test_products_compute_their_programs(name: str, schedule: str, sizes: str) -> None:
    text = GROUPED_GEMMS[name].text
    if schedule:
        text = text[: text.rindex("}")] + f" schedule sm90a {{ {schedule} }} }}"
    extents = {d: int(n) for d, n in (pair.split("=") for pair in sizes.split(","))}
    assert judge(text, extents) == ""
