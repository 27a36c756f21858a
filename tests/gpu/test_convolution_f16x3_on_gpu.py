"""Convolutions of f32 in three f16 passes and of TF32 in one on a GPU: against the float64 interpreter, and of any range of
elements no worse than eager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import conv1d

import ucutlass
from tests.kernels.test_convolution_passes import (
    BACKWARD,
    FARTHER,
    FORWARD,
    GROUPED,
    LINE,
    STRIDED,
    TRANSPOSED,
    passed,
)
from tests.kernels.test_convolution_row_reductions import APART
from tests.kernels.test_stacked_windows import VOLUMES
from ucutlass.agent.compute_type_casts import in_compute_type
from ucutlass.ir.hardware import arch_for
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import generate

pytestmark = pytest.mark.gpu

CASES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "forward": (passed(FORWARD, "f16x3"), {"B": 6, "C": 136, "H": 29, "W": 31, "F": 200}),
    "wide tile": (passed(FORWARD, "f16x3", "tile 64x128x64"), {"B": 6, "C": 72, "H": 33, "W": 32, "F": 128}),
    "strided": (passed(STRIDED, "f16x3"), {"N": 5, "H": 57, "W": 41, "C": 64, "K": 200}),
    "few channels": (passed(STRIDED, "f16x3", "fold yes"), {"N": 5, "H": 57, "W": 41, "C": 3, "K": 64}),
    "transposed": (passed(TRANSPOSED, "f16x3", "fold no"), {"B": 5, "C": 64, "H": 33, "W": 31, "F": 136}),
    "results between neighbours": (
        passed(TRANSPOSED, "f16x3", "fold yes"),
        {"B": 5, "C": 64, "H": 33, "W": 31, "F": 136},
    ),
    "results between neighbours, few channels": (
        VOLUMES.replace("SCHEDULE", ""),
        {"B": 3, "C": 3, "D": 6, "H": 11, "W": 13, "F": 16},
    ),
    "rows that lie apart, reduced": (APART, {"B": 3, "C": 40, "H": 21, "W": 30, "K": 200}),
    "taps share rows": (
        passed(FORWARD, "f16x3", "fold rows"),
        {"B": 6, "C": 136, "H": 29, "W": 31, "F": 200},
    ),
    "taps share short rows": (
        passed(FORWARD, "f16x3", "fold rows"),
        {"B": 6, "C": 16, "H": 9, "W": 61, "F": 30},
    ),
    "mirrored taps share rows": (
        passed(BACKWARD, "f16x3", "fold rows"),
        {"B": 5, "C": 32, "H": 30, "W": 75, "F": 64},
    ),
    "taps three apart share rows": (
        passed(FARTHER, "f16x3", "fold rows"),
        {"B": 5, "C": 48, "L": 900, "F": 72},
    ),
    "taps of groups share rows": (
        passed(GROUPED, "f16x3", "fold rows"),
        {"B": 3, "G": 4, "C": 32, "H": 30, "W": 17, "F": 72},
    ),
    "grouped": (passed(GROUPED, "f16x3"), {"B": 3, "G": 4, "C": 32, "H": 30, "W": 17, "F": 72}),
}


@pytest.fixture(autouse=True)
def hopper() -> None:
    here = arch_for(torch.cuda.get_device_capability(0)) if torch.cuda.is_available() else None
    if here is None or here.name != "sm90a":
        pytest.skip("no Hopper GPU")


def one_pass(text: str) -> str:
    """The program of three f16 passes in TF32, and one."""
    return in_compute_type(text, "k", "tf32").replace("math f16x3", "math f16")


@pytest.mark.parametrize("math", ["f16x3", "f16"])
@pytest.mark.parametrize("name", CASES)
def test_values(name: str, math: str) -> None:
    text, extents = CASES[name]
    kernel = ucutlass.loads(text if math == "f16x3" else one_pass(text))

    def launch(arguments: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        kernel(*arguments, out=outputs[0])

    # Taps that lie between the positions of a phase are left out, and with them 0 * infinity. The minimum of all
    # channels has a special one among them everywhere.
    special = () if name in ("transposed", "rows that lie apart, reduced") else ("special",)
    for distribution in ("integer", "normal", "wide", "denormal", *special):
        arguments = generate(kernel.program, dict(extents), distribution, seed=3, device="cuda")
        verdict = verify.check(kernel.program, launch, arguments)
        assert verdict.ok, f"{distribution}: {verdict}"


@pytest.mark.parametrize("math", ["f16x3", "f16"])
@pytest.mark.parametrize("wide", ["by one element", "by an image", "by a filter"])
def test_any_range_of_elements_is_no_worse_than_eager(wide: str, math: str) -> None:
    text = passed(LINE, "f16x3")
    kernel = ucutlass.loads(text if math == "f16x3" else one_pass(text))
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(8, 300, 64, device="cuda", generator=generator) * 1e-3
    w = torch.randn(96, 3, 64, device="cuda", generator=generator)
    if wide == "by one element":
        x[0, 5, 7] = 1e30
    elif wide == "by an image":
        x[3] *= 1e-30
    else:
        w[5] *= 1e-25
    rows, taps = x.permute(0, 2, 1), w.permute(0, 2, 1)
    exact = conv1d(rows.double(), taps.double()).permute(0, 2, 1)
    sums = conv1d(rows.double().abs(), taps.double().abs()).permute(0, 2, 1)
    eager = (conv1d(rows, taps).permute(0, 2, 1).double() - exact).abs() / sums
    own = (kernel(x, w).double() - exact).abs() / sums
    # TF32 rounds either operand by up to 2^-11 of itself, and eager in TF32 need not multiply in it.
    roundings = 2 * 2.0**-11 if math == "f16" else 0.0
    assert own.max() <= 2 * eager.max() + roundings
