"""Convolutions of few channels whose warps multiply by mma.sync what their lanes gather: on the host behind the emulator,
and which layers they are chosen for."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.kernels.convolution_emulated import judge, plan
from tests.kernels.test_register_tile import (
    ADJACENT,
    BESIDE,
    CUBES,
    FIRST,
    LARGEST,
    LAST,
    MIRRORED,
    NORMED,
    STRIDED,
    SUM,
)
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.convolution.plan import ConvolutionPlan, RegisterTileSchedule
from ucutlass.kernels.planned import Planned

emulated = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")

ROUNDED = FIRST.replace("E[", "f32[").replace("(x[", "(tf32(x[").replace("], w)", "]), tf32(w))")
ROUNDED_LAST = ADJACENT.replace("E[", "f32[").replace("(x[", "(tf32(x[").replace("], w)", "]), tf32(w))")


def _by_warps(rows: int, columns: int, threads: int = 64) -> Callable[[Planned], Planned]:
    """Changes a plan's tile to one whose warps multiply."""

    def changed(planned: Planned) -> Planned:
        assert isinstance(planned.plan, ConvolutionPlan)
        own = planned.plan.schedule
        assert isinstance(own, RegisterTileSchedule)
        tile = replace(own, rows=rows, columns=columns, threads=threads, channels=1, tensor=True)
        return replace(planned, plan=replace(planned.plan, schedule=tile))

    return changed


@emulated
@pytest.mark.parametrize(
    ("text", "element", "tile", "sizes"),
    [
        pytest.param(
            ADJACENT, "bf16", (1, 16), {"N": 1, "H": 14, "W": 12, "C": 4, "K": 12}, id="rows of bf16"
        ),
        pytest.param(NORMED, "f16", (2, 8), {"N": 1, "H": 9, "W": 9, "C": 3, "K": 20}, id="rows of a norm"),
        pytest.param(LAST, "bf16", (1, 8), {"N": 2, "H": 7, "W": 6, "C": 8, "K": 8}, id="channels last"),
        pytest.param(MIRRORED, "f16", (1, 8), {"N": 1, "C": 6, "H": 6, "W": 7, "K": 3}, id="mirrored"),
        pytest.param(STRIDED, "bf16", (4, 8), {"N": 1, "C": 5, "H": 9, "W": 12, "K": 6}, id="strided"),
        pytest.param(CUBES, "f16", (1, 8), {"N": 2, "C": 1, "D": 4, "H": 7, "W": 8, "K": 4}, id="cubes"),
        pytest.param(SUM, "bf16", (1, 16), {"N": 1, "C": 4, "H": 6, "W": 7, "K": 9}, id="sum"),
        pytest.param(LARGEST, "f16", (1, 8), {"N": 2, "C": 2, "H": 6, "W": 7, "K": 24}, id="largest"),
        pytest.param(BESIDE, "f16", (1, 8), {"N": 2, "C": 3, "H": 9, "W": 13, "K": 5}, id="two names"),
        pytest.param(
            FIRST, "f16", (2, 8), {"N": 2, "C": 3, "H": 40, "W": 40, "K": 5}, id="several tiles of a block"
        ),
        pytest.param(ROUNDED, "f32", (1, 8), {"N": 1, "C": 3, "H": 5, "W": 6, "K": 4}, id="tf32"),
        pytest.param(
            ROUNDED_LAST, "f32", (1, 40), {"N": 1, "H": 9, "W": 8, "C": 3, "K": 40}, id="wide rows of tf32"
        ),
    ],
)
def test_warps_compute_their_program(
    text: str, element: str, tile: tuple[int, int], sizes: dict[str, int]
) -> None:
    written = text.replace("E[", f"{element}[").replace("SCHEDULE", "columns 1")
    assert judge(written, sizes, arch="sm90a", change=_by_warps(*tile)) == []


@pytest.mark.parametrize(
    ("element", "images", "tensor"), [("bf16", 32, True), ("bf16", 1, False), ("f32", 32, False)]
)
def test_warps_multiply_many_positions_of_narrow_elements(element: str, images: int, tensor: bool) -> None:
    text = STRIDED.replace("E[", f"{element}[").replace("  schedule sm90a { SCHEDULE }\n", "")
    chosen = plan(text, {"N": images, "C": 3, "H": 224, "W": 224, "K": 24}, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, RegisterTileSchedule)
    assert chosen.schedule.tensor == tensor


def test_columns_of_warps_are_eights() -> None:
    sizes = {"N": 32, "C": 3, "H": 224, "W": 224, "K": 64}
    text = STRIDED.replace("E[", "f16[")
    chosen = plan(text.replace("SCHEDULE", "columns 3  threads 64"), sizes, "sm90a").plan
    assert isinstance(chosen, ConvolutionPlan) and isinstance(chosen.schedule, RegisterTileSchedule)
    assert (chosen.schedule.columns, chosen.schedule.threads) == (24, 64)
    with pytest.raises(ProgramError, match="at most 128 sums"):
        plan(text.replace("SCHEDULE", "columns 8  rows 4"), sizes, "sm90a")
