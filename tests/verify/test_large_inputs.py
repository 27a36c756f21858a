"""Numbers of large tensors, which are drawn by slabs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ucutlass import frontend
from ucutlass.runtime import inputs
from ucutlass.runtime.distributions import ELEMENTWISE, EXACT, MEANINGS, Distribution
from ucutlass.runtime.inputs import generate

TEXT = "kernel k(x: ELEM[M, K], w: ELEM[N, K]) -> f32[M, N] { return dot[K](x, w) }"
SIZES = {"M": 37, "N": 16, "K": 40}


def drawn(elem: str, distribution: Distribution) -> Tensor:
    out = generate(
        frontend.kernel(frontend.read_text(TEXT.replace("ELEM", elem))), SIZES, distribution, seed=5
    )[0]
    assert isinstance(out, Tensor)
    return out


@pytest.mark.parametrize("elem", ["f32", "bf16", "e4m3"])
@pytest.mark.parametrize("distribution", sorted(EXACT))
def test_whole_numbers_are_the_same_however_large_a_slab_is(
    distribution: Distribution, elem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = drawn(elem, distribution)
    monkeypatch.setattr(inputs, "SLAB", 7)
    assert torch.equal(drawn(elem, distribution).float(), whole.float())


@pytest.mark.parametrize("distribution", sorted(ELEMENTWISE - {"zeros"}))
def test_slabs_have_numbers_of_the_distribution_that_do_not_repeat(
    distribution: Distribution, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = drawn("f32", distribution).flatten()
    monkeypatch.setattr(inputs, "SLAB", 64)
    slabs = drawn("f32", distribution).flatten()
    assert slabs.isfinite().all()
    assert 0.5 < slabs.abs().double().mean() / whole.abs().double().mean() < 2
    first, second, *_ = slabs.split(64)
    assert not torch.equal(first, second)


def test_what_depends_on_its_place_is_drawn_whole() -> None:
    others = set(MEANINGS) - ELEMENTWISE - EXACT
    assert others == {"one_hot", "special"}
