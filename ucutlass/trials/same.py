"""Whether two programs compute the same, asked of the float64 reference: an agent may cut a pipeline
elsewhere, but not compute something else.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolate`.
"""

from __future__ import annotations

from typing import Any

from ucutlass.runtime.inputs import Distribution
from ucutlass.trials.audit import reduced_sizes

DRAWS: tuple[Distribution, ...] = ("integer", "normal", "wide", "positive", "negated")
"""What both are asked about: two polynomials that differ agree on random points with probability zero, and
integers leave rounding no room."""


def same(text: str, other: str, name: str, sizes: dict[str, int], seed: int) -> str:
    """"" where every result of the two agrees within both bounds on every draw at reduced extents; else
    where they differ, in words. Raises ReducedSizesError where no reduced extents satisfy the program."""
    from ucutlass import frontend
    from ucutlass.reference import expect
    from ucutlass.runtime.inputs import generate

    ours = frontend.program(frontend.read_text(text), name)
    theirs = frontend.program(frontend.read_text(other), name)
    for cut in reduced_sizes(ours, sizes)[:2]:
        for number, draw in enumerate(DRAWS):
            arguments = generate(ours, cut, draw, seed=seed + number)
            wanted, found = expect(ours, arguments), expect(theirs, arguments)
            for at, (a, b) in enumerate(zip(wanted, found, strict=True)):
                words = _apart(a, b)
                if words:
                    where = ", ".join(f"{d}={n}" for d, n in cut.items())
                    return f"result {at} differs at {where} on {draw} numbers: {words}"
    return ""


def _apart(a: Any, b: Any) -> str:
    import torch

    x, y = a.reference.to(torch.float64), b.reference.to(torch.float64)
    both = x.isfinite() & y.isfinite()
    apart = torch.where(both, (x - y).abs() > a.bound + b.bound, x.nan_to_num(7.0) != y.nan_to_num(7.0))
    if not bool(apart.any()):
        return ""
    at = int(apart.flatten().nonzero()[0])
    return f"element {at} is {float(y.flatten()[at]):.6g}, and should be {float(x.flatten()[at]):.6g}"
