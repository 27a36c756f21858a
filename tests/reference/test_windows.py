"""Windows as views of their sources are what a gather by coordinates gives, bit by bit."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ucutlass import ir
from ucutlass.ir.elements import F32, I32
from ucutlass.ir.extents import Fixed
from ucutlass.reference import indexing
from ucutlass.reference.indexing import LazyRead, read
from ucutlass.reference.named_tensor import Named

EXTENTS = {"N": 3, "P": 5, "Q": 4, "R": 3}


@st.composite
def windows(draw: st.DrawFn) -> LazyRead:
    """A window of x[N, H, W], some of whose axes are read at positions of P, Q and R, and some narrowed."""
    axes = draw(st.lists(st.sampled_from(["H", "W"]), unique=True, max_size=2))
    positions = []
    read_dims = set()
    for dim in axes:
        names = draw(st.lists(st.sampled_from(["P", "Q", "R"]), unique=True, min_size=1, max_size=2))
        terms = tuple((d, draw(st.sampled_from([-2, -1, 1, 1, 2, 3]))) for d in names)
        offset = Fixed(draw(st.integers(-4, 6)))
        positions.append(ir.Position(dim, draw(st.sampled_from([1, 1, 2, 3])), ir.Affine(terms, offset)))
        read_dims |= set(names)
    shape = {"N": 3, "H": draw(st.integers(1, 7)), "W": draw(st.integers(1, 6))}
    dims = tuple(d for d in ("N", "H", "W") if d not in axes) + tuple(sorted(read_dims))
    sizes = {**EXTENTS, **shape}
    whole = draw(st.booleans())
    data = torch.arange(3 * shape["H"] * shape["W"]).reshape(*shape.values()) + 1
    elem = I32 if whole else F32
    if not whole:
        data = data.to(torch.float64)
    if draw(st.booleans()):
        data = data.transpose(1, 2).contiguous().transpose(1, 2)
    fill = draw(st.sampled_from([0.0, float("-inf")]))
    narrowed = {}
    for d in draw(st.lists(st.sampled_from(dims), unique=True)):
        start = draw(st.integers(0, sizes[d] - 1))
        narrowed[d] = range(start, draw(st.integers(start, sizes[d] - 1)) + 1, draw(st.integers(1, 3)))
        if d in read_dims and draw(st.booleans()):
            narrowed[d] = narrowed[d][::-1]
    node = ir.Read(ir.Constant(0.0, elem), tuple(positions), fill, elem, dims)
    return LazyRead(Named(data, ("N", "H", "W")), node, sizes, narrowed)


@settings(max_examples=300, deadline=None)
@given(windows())
def test_a_view_is_what_is_gathered(window: LazyRead) -> None:
    before = window.source.data.clone()
    both = read(window), indexing._gathered(window)
    assert both[0].dims == both[1].dims
    assert torch.equal(both[0].data, both[1].data)
    assert torch.equal(window.source.data, before)


def test_a_convolution_s_window_is_a_view() -> None:
    """Of its source where it is read inside, and of a padded one where it is not."""
    terms = (("P", 1), ("R", 1))
    x = Named(torch.randn(3, 7, dtype=torch.float64), ("N", "H"))
    for offset, inside in ((0, True), (-1, False)):
        node = ir.Read(
            ir.Constant(0.0, F32),
            (ir.Position("H", 1, ir.Affine(terms, Fixed(offset))),),
            0.0,
            F32,
            ("N", "P", "R"),
        )
        data = read(LazyRead(x, node, EXTENTS)).data
        assert (data.untyped_storage().data_ptr() == x.data.untyped_storage().data_ptr()) == inside
        assert data.untyped_storage().nbytes() < 8 * data.numel(), "elements share memory"
