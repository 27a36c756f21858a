"""Convolutions on a GPU: every form, compute type and order against the float64 interpreter, outputs and workspace
poisoned, at small extents that leave edges and at larger ones that fill tiles; for Hopper's kernels and for
those of any GPU."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

import ucutlass
from tests.gpu.turns import build_in_turn
from tests.kernels.convolution_programs import PROGRAMS as ON_HOST
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.emit.text import Source
from ucutlass.ir.hardware import arch_for
from ucutlass.kernels.families import Plan
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify.guards import shifted
from ucutlass.shapes import complete

pytestmark = pytest.mark.gpu

PROGRAMS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    **ON_HOST,
    "groups of four": (
        """kernel k(x: bf16[N, H, W, (G=32 C=4)], w: bf16[(G=32 K=4), R=3, S=3, C=4]) -> bf16[N, P=H, Q=W, (G=32 K=4)] {
  return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w)
}""",
        {"N": 1, "H": 9, "W": 7},
    ),
    "weight gradient, groups of four": (
        """kernel k(x: f16[N, H, W, (G=32 C=4)], y: f16[N, P=H, Q=W, (G=32 K=4)]) -> f16[(G=32 K=4), R=3, S=3, C=4] {
  return dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y)
}""",
        {"N": 1, "H": 9, "W": 7},
    ),
    "weight gradient, groups of four, rows innermost": (
        """kernel k(x: f16[N, (G=32 C=4), H, W], y: f16[N, (G=32 K=4), P=H, Q=W]) -> f16[(G=32 K=4), C=4, R=3, S=3] {
  return dot[N, P, Q](x[H = P + R - 1, W = Q + S - 1], y)
}""",
        {"N": 1, "H": 9, "W": 7},
    ),
    "1x1 weight gradient, odd lines": (
        "kernel k(x: bf16[N, C, H=7, W=7], y: bf16[N, K, H=7, W=7]) -> bf16[K, C] { return dot[N, H, W](x, y) }",
        {"N": 8, "C": 72, "K": 80},
    ),
    "1x1 weight gradient, odd lines in tf32": (
        "kernel k(x: f32[N, C, H=5, W=5], y: f32[N, K, H=5, W=5]) -> f32[K, C] { return dot[N, H, W](tf32(x), tf32(y)) }",
        {"N": 8, "C": 40, "K": 72},
    ),
    "1x1 of odd lines": (
        "kernel k(x: bf16[N, C, H=7, W=7], w: bf16[K, C]) -> bf16[N, K, H=7, W=7] { return relu(dot[C](x, w)) }",
        {"N": 2, "C": 24, "K": 16},
    ),
    "depthwise of odd channels": (
        """kernel k(x: bf16[N, H, W, C], w: bf16[C, R=5, S=5]) -> bf16[N, P=H, Q=W, C] {
  return dot[R, S](x[H = P + R - 2, W = Q + S - 2], w)
}""",
        {"N": 1, "H": 6, "W": 9, "C": 5},
    ),
    "depthwise weight gradient, along lines": (
        """kernel k(x: f32[N, C, H, W], y: f32[N, C, P=H, Q=W]) -> f32[C, S=11] {
  return dot[N, P, Q](x[H = P, W = Q + S - 5], y)
}""",
        {"N": 2, "H": 5, "W": 9, "C": 3},
    ),
}

LARGER: Mapping[str, Mapping[str, int]] = {
    "f16 strided": {"N": 5, "H": 57, "W": 41, "C": 64, "K": 200},
    "bf16 fused": {"N": 3, "H": 31, "W": 29, "C": 136, "K": 136},
    "tf32": {"N": 4, "H": 28, "W": 28, "C": 96, "K": 128},
    "f32": {"N": 2, "H": 23, "W": 19, "C": 67, "K": 131},
    "f16 three channels": {"N": 4, "H": 65, "W": 63, "C": 3, "K": 64},
    "bf16 dilated asymmetric": {"N": 3, "H": 37, "W": 41, "C": 72, "K": 264},
    "f32 channels first": {"B": 3, "C": 64, "H": 30, "W": 29, "K": 128},
    "f16 channels first": {"B": 3, "C": 64, "H": 31, "W": 33, "K": 72},
    "transposed": {"B": 3, "C": 32, "H": 17, "W": 19, "K": 64},
    "data gradient": {"N": 4, "P": 17, "Q": 14, "K": 96, "C": 64},
    "weight gradient": {"N": 8, "H": 28, "W": 23, "C": 64, "K": 128},
    "weight gradient odd": {"N": 5, "H": 33, "W": 31, "C": 3, "K": 67},
    "weight gradient grouped": {"N": 16, "H": 30, "W": 17, "C": 72, "K": 136},
    "weight gradient exchanged": {"N": 16, "H": 41, "W": 30, "C": 136, "K": 200},
    "weight gradient in TF32": {"N": 16, "H": 41, "W": 30, "C": 136, "K": 200},
    "grouped, channels first": {"B": 3, "C": 32, "H": 30, "W": 17, "K": 72},
    "grouped, transposed, three dimensions": {"B": 3, "C": 16, "D": 6, "H": 11, "W": 13, "K": 40},
    "transposed by three": {"B": 3, "C": 64, "H": 17, "W": 19, "K": 136},
    "grouped": {"N": 3, "H": 30, "W": 17, "C": 32, "K": 40},
    "three dimensions": {"N": 2, "D": 7, "H": 15, "W": 13, "C": 32, "K": 64},
    "one dimension": {"N": 5, "L": 331, "C": 128, "K": 72},
    "depthwise": {"N": 3, "H": 57, "W": 43, "C": 200},
    "depthwise channels first": {"B": 3, "C": 67, "L": 1031},
    "depthwise weight gradient": {"N": 16, "H": 57, "W": 43, "C": 104},
    "depthwise weight gradient, channels first": {"N": 8, "C": 67, "H": 31, "W": 33},
    "depthwise data gradient": {"N": 5, "C": 67, "P": 28, "Q": 29},
    "from the far end": {"N": 3, "L": 129, "C": 32, "K": 68},
    "reduced": {"N": 4, "H": 29, "W": 31, "C": 64, "K": 152},
    "along two summed names": {"N": 5, "H": 8, "W": 6, "C": 136, "K": 200},
    "tf32 images innermost": {"C": 16, "W": 16, "H": 28, "N": 2, "K": 64, "R": 3, "S": 1},
    "tf32 images innermost, channels between": {"C": 32, "W": 16, "H": 28, "N": 4, "K": 72},
    "tf32 grouped, rows innermost": {"W": 33, "N": 5, "G": 3, "C": 24, "H": 20, "K": 40},
    "f16 images innermost": {"C": 40, "H": 13, "W": 15, "N": 16, "K": 72},
    "f32 columns across, no channels": {"N": 37, "H": 65, "J": 20, "K": 68},
    "groups of four": {"N": 9, "H": 41, "W": 30},
    "weight gradient, groups of four": {"N": 9, "H": 41, "W": 30},
    "weight gradient, groups of four, rows innermost": {"N": 9, "H": 41, "W": 30},
    "1x1 weight gradient, odd lines": {"N": 16, "C": 330, "K": 200},
    "1x1 weight gradient, odd lines in tf32": {"N": 33, "C": 330, "K": 200},
    "1x1 of odd lines": {"N": 32, "C": 512, "K": 1024},
    "depthwise of odd channels": {"N": 16, "H": 31, "W": 43, "C": 57},
    "depthwise weight gradient, along lines": {"N": 9, "H": 41, "W": 30, "C": 67},
}

CASES = [(name, size) for name in PROGRAMS for size in ("small", "larger")]


def extents(name: str, size: str) -> Mapping[str, int]:
    return PROGRAMS[name][1] if size == "small" else LARGER[name]


@pytest.fixture(scope="session", params=["sm90a", "sm80"])
def arch(request: pytest.FixtureRequest) -> str:
    """A target that this GPU runs."""
    here = arch_for(torch.cuda.get_device_capability(0))
    if request.param == "sm90a" and (here is None or here.name != "sm90a"):
        pytest.skip("no Hopper GPU")
    return str(request.param)


def sources(targets: Sequence[str]) -> list[tuple[Source, Plan]]:
    """The kernel of every case for every target, in their order."""
    pairs = []
    for target, (name, size) in itertools.product(targets, CASES):
        checked = frontend.read_text(PROGRAMS[name][0])
        program = frontend.kernel(checked)
        planned = frontend.plan_kernel(
            checked, program, complete(program, extents(name, size)), target
        ).planned
        pairs.append((source_of(checked, program, planned), planned.plan))
    return pairs


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Every kernel, built once and in parallel; the calls then find them in the cache."""
    here = arch_for(torch.cuda.get_device_capability(0)) if torch.cuda.is_available() else None
    targets = ["sm80"] if here is None or here.name != "sm90a" else ["sm90a", "sm80"]
    build_in_turn("convolution", lambda: sources(targets), [*itertools.product(targets, CASES)])


@pytest.mark.parametrize(("name", "size"), CASES)
def test_values(name: str, size: str, arch: str) -> None:
    text, given = PROGRAMS[name][0], extents(name, size)
    kernel = ucutlass.loads(text, arch=arch)
    for distribution in ("integer", "normal"):
        arguments = generate(kernel.program, dict(given), distribution, seed=3, device="cuda")
        verdict = verify.check(kernel.program, _launch(kernel), arguments)
        assert verdict.ok, str(verdict)


@pytest.mark.parametrize("name", ["f16 strided", "depthwise", "weight gradient", "tf32 images innermost"])
def test_tensors_that_are_not_aligned(name: str, arch: str) -> None:
    kernel = ucutlass.loads(PROGRAMS[name][0], arch=arch)
    made = generate(kernel.program, dict(PROGRAMS[name][1]), "integer", seed=5, device="cuda")
    arguments = [shifted(a, a.element_size()) if isinstance(a, Tensor) else a for a in made]
    verdict = verify.check(kernel.program, _launch(kernel), arguments)
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("name", ["f16 strided", "weight gradient"])
def test_a_thread_without_a_context(name: str) -> None:
    """Maps of TMA are encoded by the driver, which takes the context of the calling thread."""
    kernel = ucutlass.loads(PROGRAMS[name][0])
    given = generate(kernel.program, dict(PROGRAMS[name][1]), "integer", seed=7, device="cuda")
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(kernel, *given).result()
    assert torch.equal(result, kernel(*given))


@pytest.mark.parametrize("parts", [2, 8])
def test_blocks_of_a_cluster_share_a_sum(parts: int, arch: str) -> None:
    if arch != "sm90a":
        pytest.skip("clusters are Hopper's")
    text = (
        "kernel k(x: f32[N=2, C=40, H=12, W=12], w: f32[K=72, C, R=3, S=3]) -> f32[N, K, P=12, Q=12] "
        "{ return dot[C, R, S](tf32(x[H = P + R - 1, W = Q + S - 1]), tf32(w)) "
        f"schedule sm90a {{ warps cooperative  split_k {parts} }} }}"
    )
    kernel = ucutlass.loads(text, arch=arch)
    arguments = generate(kernel.program, {}, "normal", seed=7, device="cuda")
    verdict = verify.check(kernel.program, _launch(kernel), arguments)
    assert verdict.ok, str(verdict)


def _launch(kernel: Any) -> verify.JudgedLaunch:
    def launch(arguments: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        kernel(*arguments, out=outputs[0] if len(outputs) == 1 else tuple(outputs))

    return launch
