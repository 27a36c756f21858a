"""The radius of a sum and of a product, in few passes: what the corners of the box give."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ucutlass import frontend, ir
from ucutlass.reference.error_bounds import _corners, _of_sums_and_products

NUMBERS = st.floats(-1e6, 1e6, allow_subnormal=False)
RADII = st.none() | st.floats(0.0, 1e3, allow_subnormal=False)


@pytest.mark.parametrize("function", ["add", "subtract", "multiply"])
@given(a=NUMBERS, b=NUMBERS, ea=RADII, eb=RADII)
def test_both_forms_agree(function: str, a: float, b: float, ea: float | None, eb: float | None) -> None:
    if ea is None and eb is None:
        return
    sign = {"add": "+", "subtract": "-", "multiply": "*"}[function]
    text = f"kernel k(x: f32[A], y: f32[A]) -> f32[A] {{ return x {sign} y }}"
    (node,) = (r.value for r in frontend.kernel(frontend.read_text(text)).results)
    assert isinstance(node, ir.Apply) and node.function == function
    args = [torch.tensor([v], dtype=torch.float64) for v in (a, b)]
    radii = [None if r is None else torch.tensor([r], dtype=torch.float64) for r in (ea, eb)]
    centre = {"add": args[0] + args[1], "subtract": args[0] - args[1], "multiply": args[0] * args[1]}[
        function
    ]
    corners, few = _corners(node, args, radii, centre), _of_sums_and_products(node, args, radii)
    # The corners lose what the centre's last bit hides.
    hidden = 4 * math.ulp(max(map(abs, (a, b, a * b)))) + 4 * math.ulp(float(few))
    assert abs(float(corners) - float(few)) <= hidden
