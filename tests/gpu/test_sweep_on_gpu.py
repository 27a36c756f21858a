"""Sweeps on a GPU against the float64 reference: large and odd extents, poisoned results."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

import pytest
import torch

import ucutlass
from tests.families.sweep_programs import SWEEPS
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.reference import expect
from ucutlass.runtime import verify
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.inputs import DISTRIBUTIONS, generate
from ucutlass.shapes import complete

pytestmark = pytest.mark.gpu

CASES = [(name, i) for name, sweep in SWEEPS.items() for i in range(len(sweep.large) + 1)]


def sizes_of(name: str, number: int) -> Mapping[str, int]:
    sweep = SWEEPS[name]
    return (sweep.small, *sweep.large)[number]


@pytest.fixture(scope="module", autouse=True)
def built() -> None:
    """Every kernel, built once and in parallel; the calls then find them in the cache."""
    if not torch.cuda.is_available() or shutil.which("nvcc") is None:
        pytest.skip("no NVIDIA GPU or no nvcc")
    pairs = []
    for name, number in CASES:
        checked = frontend.read_text(SWEEPS[name].text)
        program = frontend.kernel(checked)
        planned = frontend.plan_kernel(
            checked, program, complete(program, sizes_of(name, number)), "sm90a"
        ).planned
        pairs.append((source_of(checked, program, planned), planned.plan))
    for made, (name, number) in zip(build_sources(pairs), CASES, strict=True):
        assert isinstance(made, Artifact), f"{name} {number}: {made}"


@pytest.mark.parametrize("distribution", ["integer", "normal"])
@pytest.mark.parametrize(("name", "number"), CASES)
def test_sweeps_agree_with_the_reference(name: str, number: int, distribution: Any) -> None:
    assert distribution in DISTRIBUTIONS
    kernel = ucutlass.loads(SWEEPS[name].text)
    program = kernel.program
    arguments = generate(program, dict(sizes_of(name, number)), distribution, seed=7, device="cuda")

    def launch(given: Any, outputs: Any) -> None:
        kernel(*given, out=outputs[0] if len(outputs) == 1 else tuple(outputs))

    verdict = verify.check(program, launch, arguments, expected=expect(program, arguments))
    assert verdict.ok, str(verdict)
