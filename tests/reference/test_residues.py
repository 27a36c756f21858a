"""Products with windows that a scale leaves gaps in are summed residue by residue: what one sum gives."""

from __future__ import annotations

import pytest
import torch

from tests.reference.tasks import named
from ucutlass.reference import contract as contract_module
from ucutlass.reference import evaluate, expect
from ucutlass.reference.indexing import LazyRead
from ucutlass.runtime.inputs import generate

CASES = {
    "stride 2": ("w: f32[C, K=5, R=3]", "P=2*H", "2*H = P - R + 1"),
    "stride 3 of 2 taps": ("w: f32[C, K=5, R=2]", "P=3*H", "3*H = P - R"),
    "dilated": ("w: f32[C, K=5, R=3]", "P=4*H", "4*H = P - 2*R + 3"),
    "rising": ("w: f32[C, K=5, R=3]", "P=2*H", "2*H = P + R - 1"),
    "no gaps": ("w: f32[C, K=5, R=3]", "P=H", "H = P - R + 1"),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("distribution", ["normal", "integer", "special"])
def test_residues_give_the_whole(name: str, distribution: str, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, result, position = CASES[name]
    text = f"""kernel k(x: f32[B=2, C=6, H=9], {weights}) -> f32[B, K, {result}] {{
      return dot[C, R](x[{position}], w)
    }}"""
    program = named(text, "k")
    arguments = generate(program, {}, distribution, seed=3)
    (whole,), (value,) = expect(program, arguments), evaluate(program, arguments)
    monkeypatch.setattr(contract_module, "GAPPED", 0)
    (parts,), (again,) = expect(program, arguments), evaluate(program, arguments)
    torch.testing.assert_close(again, value, rtol=1e-6, atol=0.0, equal_nan=True)
    known = whole.bound.isfinite()
    assert torch.equal(known, parts.bound.isfinite())
    torch.testing.assert_close(
        parts.reference[known], whole.reference[known], rtol=1e-6, atol=0.0, equal_nan=True
    )
    assert bool((parts.bound <= whole.bound * (1 + 1e-9)).all())


def test_products_with_gaps_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    program = named(
        """kernel k(x: f32[B=2, C=6, H=9], w: f32[C, K=5, R=4]) -> f32[B, K, P=2*H] {
          return dot[C, R](x[2*H = P - R + 1], w)
        }""",
        "k",
    )
    monkeypatch.setattr(contract_module, "GAPPED", 0)
    unrolled: list[int] = []
    read = contract_module.read

    def counted(window: LazyRead) -> object:
        unrolled.append(window.numel)
        return read(window)

    monkeypatch.setattr(contract_module, "read", counted)
    expect(program, generate(program, {}, "normal", seed=3))
    assert sum(unrolled) == 2 * 6 * 18 * 4 // 2, "half of the taps meet zeros alone"
