"""Pairs of dots and ragged groups on a GPU against the float64 reference: every way to run them, odd
extents, empty groups, poisoned results."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

import ucutlass
from tests.gpu.turns import build_in_turn
from tests.kernels.grouped_gemm_programs import GROUPED_GEMMS
from ucutlass import frontend
from ucutlass.backend import build_kernel, source_of
from ucutlass.emit.text import Source
from ucutlass.ir.hardware import arch_for, device_named
from ucutlass.kernels.families import Plan
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.offsets import WrongOffsets
from ucutlass.shapes import complete
from ucutlass.tasks import verification

pytestmark = pytest.mark.gpu

PLAIN = [(name, "", i) for name, p in GROUPED_GEMMS.items() for i in range(len(p.large) + 1)]

ONE = (
    "tile 128x256x64  cluster 1x1  warps cooperative",
    "tile 128x256x64  cluster 2x1  warps cooperative",
    "tile 256x128x64  cluster 1x2  warps cooperative",
    "tile 128x128x64  cluster 1x1  warps pingpong",
    "tile 128x128x64  cluster 2x1  warps pingpong  swizzle 1",
    "tile 128x128x64  cluster 1x2  warps pingpong",
    "tile 64x256x64  cluster 2x1  warps pingpong",
    "tile 192x64x64  cluster 2x1  warps pingpong  raster along_m",
    "tile 64x128x64  cluster 1x1  warps pingpong  stages 2  raster along_n",
)
TWO = (
    "tile 128x128x64  cluster 2x1  warps cooperative",
    "tile 256x64x64  cluster 1x2  warps cooperative",
    "tile 128x64x64  cluster 2x1  warps pingpong",
    "tile 64x128x64  cluster 1x1  warps pingpong",
)
FORCED: dict[str, tuple[str, ...]] = {
    "moe": ONE,
    "moe with operands": ONE,
    "moe, gradient of weights": ONE,
    "gated pair": TWO,
    "gated moe": TWO,
}
NARROW = (
    "tile 128x128x64  cluster 2x1  warps cooperative",
    "tile 128x256x64  cluster 1x1  warps cooperative",
    "tile 64x128x64  cluster 1x2  warps pingpong",
    "tile 64x64x64  cluster 2x1  warps pingpong",
    "tile 64x64x128  cluster 2x1  warps pingpong",
    "tile 128x64x128  cluster 2x1  warps cooperative",
    "tile 128x64x64  cluster 1x2  warps cooperative  split_k 2",
    "tile 64x64x128  cluster 2x1  warps sliced  split_k 2",
)
SCALED = ("tile 128x128x128  cluster 2x1  warps cooperative", "tile 64x64x128  cluster 1x2  warps pingpong")
FOUR_BITS = (
    "tile 128x128x128  cluster 2x1  warps cooperative",
    "tile 128x256x128  cluster 1x1  warps cooperative",
    "tile 64x128x64  cluster 1x2  warps pingpong",
    "tile 64x64x128  cluster 2x1  warps pingpong  stages 2",
)
FORCED |= {
    "weights of four bits": FOUR_BITS,
    "narrow weights, scales of parts": ("tile 128x128x64  cluster 2x1  warps cooperative  split_k 3",),
    "weights of four bits, scales of parts": ("tile 128x128x64  cluster 1x2  warps cooperative",),
}
FORCED |= {"narrow weights": NARROW, "narrow weights of fp8": NARROW[::2], "fp8 with scales of rows": SCALED}

CASES = PLAIN + [
    (name, schedule, i)
    for name, schedules in FORCED.items()
    for schedule in schedules
    for i in range(1, len(GROUPED_GEMMS[name].large) + 1)
]


def case(name: str, schedule: str, number: int) -> tuple[str, Mapping[str, int]]:
    products = GROUPED_GEMMS[name]
    text = products.text[: products.text.rindex("}")] + f" schedule sm90a {{ {schedule} }} }}"
    return text if schedule else products.text, (products.small, *products.large)[number]


def sources() -> list[tuple[Source, Plan]]:
    """The kernel of every case, in their order."""
    pairs = []
    for name, schedule, number in CASES:
        text, sizes = case(name, schedule, number)
        checked = frontend.read_text(text)
        kernel = frontend.kernel(checked)
        planned = frontend.plan_kernel(checked, kernel, complete(kernel, sizes), "sm90a").planned
        pairs.append((source_of(checked, kernel, planned), planned.plan))
    return pairs


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Every kernel, built once and in parallel; the calls then find them in the cache."""
    build_in_turn("grouped_gemm", sources, CASES)


@pytest.mark.parametrize("distribution", ["integer", "normal"])
@pytest.mark.parametrize(("name", "schedule", "number"), CASES)
def test_products_agree_with_the_reference(name: str, schedule: str, number: int, distribution: Any) -> None:
    text, sizes = case(name, schedule, number)
    kernel = ucutlass.loads(text)
    arguments = generate(kernel.program, dict(sizes), distribution, seed=7 + number, device="cuda")

    def launch(given: Any, outputs: Any) -> None:
        kernel(*given, out=outputs[0] if len(outputs) == 1 else tuple(outputs))

    verdict = verify.check(kernel.program, launch, arguments)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("name", ["gated pair", "moe", "moe, gradient of weights"])
def test_products_stand_the_suite(name: str) -> None:
    checked = frontend.read_text(GROUPED_GEMMS[name].text)
    kernel = frontend.kernel(checked)
    arch = arch_for(torch.cuda.get_device_capability(0))
    assert arch is not None
    sizes = complete(kernel, GROUPED_GEMMS[name].large[0])
    made = build_kernel(checked, kernel, sizes, arch.name, device=device_named(torch.cuda.get_device_name(0)))
    evidence = verification.run(
        verification.plan(checked, kernel, made, dict(zip(kernel.dims, sizes, strict=True)), seed=20, most=40)
    )
    assert evidence.ok, "\n".join(evidence.failures())


def test_offsets_are_looked_at_where_that_is_asked_for() -> None:
    text = GROUPED_GEMMS["moe"].text
    kernel, plain = ucutlass.loads(text, check_offsets=True), ucutlass.loads(text)
    x, w = torch.randn(128, 64, device="cuda").bfloat16(), torch.randn(3, 64, 64, device="cuda").bfloat16()
    offsets = torch.tensor([0, 40, 70, 128], device="cuda", dtype=torch.int32)
    assert torch.equal(kernel(x, w, offsets), plain(x, w, offsets))
    for at, wrong in ((0, 3), (2, 39), (1, 400), (3, 127)):
        bad = offsets.clone()
        bad[at] = wrong
        with pytest.raises(WrongOffsets, match=rf"offsets\[{at}\] is {wrong}.*end at T = 128"):
            kernel(x, w, bad)
    with pytest.raises(WrongOffsets, match="while a graph is captured"):
        kernel.graph(x, w, offsets)


def test_offsets_that_are_wrong_write_nothing_outside() -> None:
    """Offsets lie on the device and are not checked: what they name is clipped to the rows there are."""
    kernel = ucutlass.loads(GROUPED_GEMMS["moe"].text)
    x, w = torch.randn(128, 64, device="cuda").bfloat16(), torch.randn(3, 64, 64, device="cuda").bfloat16()
    room = torch.full((3, 128, 64), 7.0, device="cuda", dtype=torch.bfloat16)
    offsets = torch.tensor([-50, 70, 40, 100_000], device="cuda", dtype=torch.int32)
    kernel(x, w, offsets, out=room[1])
    torch.cuda.synchronize()
    assert (room[0] == 7).all() and (room[2] == 7).all()
