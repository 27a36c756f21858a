"""Attention of f32 operands in TF32, by three passes and by one, on the host behind the emulator."""

from __future__ import annotations

import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import ucutlass
from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from tests.emulated import Job, emulate
from tests.kernels.convolution_emulated import call
from tests.programs_attention import PROGRAMS, in_tf32
from ucutlass import frontend
from ucutlass.emit import emit
from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.shapes import complete, free_dims

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")

SIZES = {"B": 1, "H": 2, "G": 2, "L": 70, "S": 150, "E": 72, "O": 6}
NAMES = [name for name in PROGRAMS if not name.startswith("packed")]
QUICK = {("tf32", "gate")}
"""The others are slow tests, for their number."""


def right(program: str, sizes: dict[str, int]) -> None:
    kernel = frontend.kernel(frontend.read_text(program))
    row = emulate(Job("attention", program, "attention", {d: sizes[d] for d in free_dims(kernel)}, None, 3))
    assert row.status == "right", row.detail


@pytest.mark.parametrize(
    ("compute_type", "name"),
    [
        (t, n) if (t, n) in QUICK else pytest.param(t, n, marks=pytest.mark.slow)
        for t in ("f32", "tf32")
        for n in NAMES
    ],
)
def test_programs_compute_attention(compute_type: str, name: str) -> None:
    right(in_tf32(name, compute_type, 32, "128x64"), SIZES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("compute_type", "head", "tile"),
    [
        ("f32", 8, "128x64"),
        ("f32", 72, "128x64"),
        ("f32", 96, "64x96"),
        ("f32", 128, "128x64"),
        ("f32", 256, "128x32"),
        ("tf32", 72, "128x96"),
        ("tf32", 128, "128x128"),
        ("tf32", 256, "128x64"),
    ],
)
def test_heads_compute_attention(compute_type: str, head: int, tile: str) -> None:
    """Several tiles a thread block, heads and columns in pieces, and boxes beyond the head."""
    right(in_tf32("window", compute_type, head, tile), SIZES | {"H": 3, "L": 200})


@pytest.mark.slow
@pytest.mark.parametrize("compute_type", ["f32", "tf32"])
def test_parts_of_keys_are_combined(compute_type: str) -> None:
    right(in_tf32("grouped causal at the end", compute_type, 64, "64x64"), SIZES | {"L": 5, "S": 1700})


def test_what_is_not_finite_stays_in_its_rows_and_columns() -> None:
    """Infinities, NaN of any payload and what TF32 would round to infinity: a score's arithmetic turns infinite
    scores into finite weights, so that each operand's are told apart."""
    text = in_tf32("capped", "f32", 16, "64x32")
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    sizes = {"B": 1, "H": 1, "L": 70, "S": 40}
    extents = complete(kernel, {d: sizes[d] for d in free_dims(kernel)})
    planned = frontend.plan_kernel(checked, kernel, extents, "sm90a").planned
    source = emit(planned.plan, "")
    folder = Path(tempfile.mkdtemp(prefix="attention-"))
    try:
        entry = emulator.build(replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}"), folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    random = torch.Generator().manual_seed(3)
    q, k, v = (torch.randn(1, 1, rows, 16, generator=random) for rows in (70, 40, 40))
    payload = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)[0]
    q[0, 0, 3, 2], q[0, 0, 9, 15], q[0, 0, 40, 0], q[0, 0, 41, 1] = torch.inf, -torch.inf, payload, 3.4028e38
    q[0, 0, 42] = 0
    k[0, 0, 7, 4], k[0, 0, 30, 11] = torch.inf, -torch.inf
    v[0, 0, 5, 1], v[0, 0, 6, 2], v[0, 0, 7, 3], v[0, 0, 8, 4] = torch.inf, -torch.inf, payload, 1e35
    out = torch.empty(1, 1, 70, 16)
    assert call(entry, (q, k, v, out), extents, (), planned.launch) == 0
    scores = torch.tanh(q.double() @ k.double().mT * 0.25 / 30.0) * 30.0
    expected = torch.softmax(scores, -1) @ v.double()
    assert torch.equal(torch.isnan(out), torch.isnan(expected))
    special = ~torch.isfinite(expected) & ~torch.isnan(expected)
    assert torch.equal(out[special].double(), expected[special]) and bool(special.any())
    finite = torch.isfinite(expected)
    assert bool(((out.double() - expected).abs() <= 2e-6 * expected.abs().clamp_min(1.0))[finite].all())


def test_small_products_come_first_and_every_stage_begins_from_zero() -> None:
    """Tensor cores cut sums off, which costs little while these are small: the emulator's sums are exact."""
    checked = frontend.read_text(in_tf32("causal", "f32", 64, "128x64"))
    kernel = frontend.kernel(checked)
    extents = complete(kernel, {d: SIZES[d] for d in free_dims(kernel)})
    code = emit(frontend.plan_kernel(checked, kernel, extents, "sm90a").planned.plan, "").code
    for product in ("qk", "pv"):
        calls = re.findall(rf"{product}::wgmma\(partial, f\.(\w+)\[k\], \w_(\w+) \+ 2 \* k, (.*?)\);", code)
        assert calls == [("small", "big", "k > 0"), ("big", "small", "1"), ("big", "big", "1")]
        first = code.index(f"{product}::wgmma(partial, f.small")
        assert (
            "for (int k = 0; k < 4; ++k)"
            in code[first : code.index(f"{product}::wgmma(partial, f.big[k], {product[-1]}_big")]
        )


@pytest.mark.parametrize("compute_type", ["f32", "tf32"])
def test_f32_is_attention_without_a_schedule(compute_type: str) -> None:
    text = in_tf32("causal", compute_type, 64, "128x64").replace("tile 128x64x64", "stages 2")
    checked = frontend.read_text(text)
    kernel = frontend.kernel(checked)
    planned = frontend.plan_kernel(
        checked, kernel, complete(kernel, {"B": 2, "H": 4, "L": 512, "S": 512}), "sm90a"
    )
    assert isinstance(planned.planned.plan, AttentionPlan)


@pytest.mark.slow
def test_an_f32_module_becomes_one_kernel() -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    q, k, v = (torch.randn(2, 4, 128, 64) for _ in range(3))
    assert ucutlass.from_torch(Attention(), q, k, v).text.startswith("kernel")
