"""Offsets that are looked at before a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

import ucutlass
from ucutlass.ir.elements import I32
from ucutlass.ir.extents import Combined, Fixed, Free
from ucutlass.runtime.launch_spec import LaunchSpec, SegmentOffsets, SlotAxis, TensorSlot
from ucutlass.runtime.offsets import WrongOffsets, check_offsets, first_wrong, offsets_of

from .conftest import MakeLauncher
from .specs import SCALE_ADD

MOE = (
    "kernel k(alpha: f32, x: bf16[T, D], w: bf16[E, F, D], offsets: i32[E+1]) -> bf16[T, F] "
    "{ return alpha * dot[D](x, w[E = segment(T, offsets)]) }"
)
STAGES = """
kernel up(a: bf16[R, D], w: bf16[E, F, D], cuts: i64[E+1]) -> bf16[R, F] {
  return dot[D](a, w[E = segment(R, cuts)])
}
pipeline moe(x: bf16[T, D], w: bf16[E, F, D], o: i64[E+1], u: bf16[E, G, F]) -> bf16[T, G] {
  h = up(x, w, o)
  return up(h, u, o)
}
"""
SPEC = LaunchSpec(
    "k",
    (("T", Free("T")), ("E", Free("E"))),
    (TensorSlot("o", I32, (SlotAxis((), Combined("+", Free("E"), Fixed(1))),)),),
    (),
    device="cpu",
    offsets=(SegmentOffsets(0, 0),),
)


@pytest.mark.parametrize(
    ("offsets", "wrong"),
    [
        ((0, 3, 3, 8), None),
        ((0, 8), None),
        ((0, 0, 8), None),
        ((1, 3, 8), (0, "the first")),
        ((-1, 3, 8), (0, "the first")),
        ((0, 5, 4, 8), (2, "less than the 5 before it")),
        ((0, 9, 4, 8), (1, "past the end")),
        ((0, 3, 7), (2, "the last")),
        ((0, -2, 8), (1, "less than the 0 before it")),
    ],
)
def test_the_first_wrong_place_is_found(offsets: Sequence[int], wrong: tuple[int, str] | None) -> None:
    assert first_wrong(offsets, 8) == wrong


def test_the_message_has_the_numbers() -> None:
    check_offsets(SPEC, [torch.tensor([0, 2, 8])], (8, 2))
    words = r"k: o\[1\] is 9, past the end; offsets start at 0, do not decrease and end at T = 8"
    with pytest.raises(WrongOffsets, match=words):
        check_offsets(SPEC, [torch.tensor([0, 9, 8])], (8, 2))


def test_what_is_looked_at_is_what_segment_reads() -> None:
    kernel = ucutlass.loads(MOE, check_offsets=True)
    (found,) = kernel.spec.offsets
    assert [p.name for p in kernel.spec.params if isinstance(p, TensorSlot)][found.tensor] == "offsets"
    assert kernel.spec.dims[found.dim][0] == "T" and kernel.route == "python"
    assert ucutlass.loads(MOE).spec.offsets == ()


def test_stages_of_a_pipeline_count() -> None:
    pipeline = ucutlass.loads(STAGES, check_offsets=True)
    (found,) = pipeline.spec.offsets
    assert pipeline.spec.params[found.tensor].name == "o" and pipeline.spec.dims[found.dim][0] == "T"


def test_nothing_to_look_at_is_said() -> None:
    text = "kernel k(x: f32[M]) -> f32[M] { return relu(x) }"
    with pytest.raises(ValueError, match="the kernel k has no parameter"):
        ucutlass.loads(text, check_offsets=True)
    with pytest.raises(ValueError, match="check_offsets"):
        offsets_of(ucutlass.loads(text).program)


def test_every_call_looks_and_wrong_ones_do_not_launch(launcher: MakeLauncher) -> None:
    cuts = replace(SCALE_ADD, offsets=(SegmentOffsets(1, 1),))  # its b, as if it cut K
    kernel, asked = launcher(cuts, "scale_add")
    assert kernel.route == "python"
    x, out = torch.zeros(2, 3), torch.full((2, 3), 7.0)
    good, bad = torch.tensor([0.0, 1.0, 3.0]), torch.tensor([0.0, 2.0, 1.0])
    for _ in range(2):
        kernel(x, 1.0, good, out=out)
        assert out.tolist() == [[0, 1, 3]] * 2
        with pytest.raises(WrongOffsets, match=r"b\[2\] is 1.0, less than the 2.0 before it"):
            kernel(x, 1.0, bad, out=out)
        assert out.tolist() == [[0, 1, 3]] * 2
    assert len(asked) == 1
