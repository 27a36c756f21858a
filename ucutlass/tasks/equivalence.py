"""Decides by the float64 reference whether two programs compute the same: an agent may cut a pipeline
elsewhere, but not compute something else.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`; programs are payloads of
`ucutlass.handoff`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ucutlass.runtime.inputs import Distribution
from ucutlass.tasks.audit import reduced_sizes
from ucutlass.tasks.result_difference import first_difference

DRAWS: tuple[Distribution, ...] = ("integer", "normal", "wide", "positive", "negated")
"""What both are asked about: two polynomials that differ agree on random points with probability zero, and
integers leave rounding no room."""

NEAR = 1e-7
"""Relative difference of two results in float64: what is larger is no matter of the order of sums. Of the
largest number that takes part NEAR**1.5, for what cancels."""


def same(program: dict[str, Any], other: dict[str, Any], name: str, sizes: dict[str, int], seed: int) -> str:
    """ "" where on every draw at reduced extents every result of the two agrees within both bounds, and to
    NEAR where neither rounds: where many stages follow each other, bounds allow anything. Else where they
    differ, in words. Raises ReducedSizesError where no reduced extents satisfy the program."""
    from ucutlass import frontend
    from ucutlass.handoff import checked_of
    from ucutlass.reference import evaluate, expect
    from ucutlass.reference.unrounded import unrounded, wide
    from ucutlass.runtime.inputs import generate

    ours = frontend.program(checked_of(program), name)
    theirs = frontend.program(checked_of(other), name)
    for cut in reduced_sizes(ours, sizes)[:2]:
        for number, draw in enumerate(DRAWS):
            arguments = generate(ours, cut, draw, seed=seed + number)
            exact = wide(arguments)
            pairs = zip(
                expect(ours, arguments),
                expect(theirs, arguments),
                evaluate(unrounded(ours), exact),
                evaluate(unrounded(theirs), exact),
                strict=True,
            )
            for at, (a, b, x, y) in enumerate(pairs):
                words = first_difference(a.reference, b.reference, a.bound + b.bound)
                words = words or first_difference(x, y, _near(x, arguments))
                if words:
                    where = ", ".join(f"{d}={n}" for d, n in cut.items())
                    return f"result {at} differs at {where} on {draw} numbers: {words}"
    return ""


def _near(x: Any, arguments: Sequence[Any]) -> Any:
    """Returns how far two may be from each other that compute `x` in float64, each in an order of its
    own."""
    import torch

    tensors = [t.double().nan_to_num(0.0, 0.0, 0.0) for t in (x, *arguments) if isinstance(t, torch.Tensor)]
    return NEAR * x.double().abs() + NEAR**1.5 * max(float(t.abs().max()) for t in tensors)
