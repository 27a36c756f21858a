"""`ucutlass.load` of a pipeline, as far as it goes without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import ucutlass
from ucutlass import ir
from ucutlass.runtime.arguments import RequirementFailed, WrongDevice
from ucutlass.shapes import ShapeError

MLP = Path(__file__).parent.parent.parent / "examples" / "mlp.ucu"

TWO = """
kernel half(x: f32[M]) -> f32[P=M//2] { require M % 2 == 0  return x[M = P] }
pipeline quarter(x: f32[A]) -> f32[B=A//2//2] {
  h = half(x)
  return half(h)
}
"""


def test_one_load_one_call_one_reference() -> None:
    k = ucutlass.load(MLP)
    assert isinstance(k, ucutlass.LoadedPipeline) and "pipeline mlp" in repr(k)
    assert [p.name for p in k.spec.params] == ["x", "up", "up_bias", "down", "down_bias"]
    given = [torch.randn(*shape).bfloat16() for shape in ((4, 6), (8, 6), (8,), (6, 8), (6,))]
    result = k.reference(*given)
    assert isinstance(result, torch.Tensor) and result.shape == (4, 6)
    with pytest.raises(WrongDevice, match="mlp: x is on cpu"):
        k(*given)


def test_a_files_only_pipeline_needs_no_name() -> None:
    assert ucutlass.loads(TWO).program.name == "quarter"
    assert isinstance(ucutlass.loads(TWO, "half").program, ir.Kernel)
    with pytest.raises(ShapeError, match="say which one"):
        ucutlass.loads(TWO + TWO.replace("half", "other").replace("quarter", "eighth"))


def test_a_stage_that_does_not_fit_is_a_requirement_in_its_own_words() -> None:
    (fits,) = ucutlass.loads(TWO).spec.requires
    assert fits.holds({"A": 8, "B": 2})
    with pytest.raises(RequirementFailed, match=r"quarter: .*half.* UC0603|quarter: requirement 1 of half"):
        fits.holds({"A": 6, "B": 1})
    with pytest.raises(RequirementFailed, match="requirement 1 of half does not hold for M=7"):
        fits.holds({"A": 7, "B": 1})
