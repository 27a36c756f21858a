"""Runs the front end on an unknown text, whose hang or growth then harms no other process."""

from __future__ import annotations

from collections.abc import Mapping


def read(text: str, program: str, sizes: Mapping[str, int], arch: str, device: str) -> bool:
    """Reads a text and, with sizes, plans and bounds one of its programs at these extents, as `check`,
    `explain` and `sol` do. Whether it got through without being refused."""
    from ucutlass import frontend, ir
    from ucutlass.diagnostics import ProgramError
    from ucutlass.ir.hardware import DEVICES
    from ucutlass.pipeline.planning import plan_pipeline
    from ucutlass.shapes import ShapeError
    from ucutlass.sol.bounds import bounds

    try:
        checked = frontend.read_text(text)
        if not sizes:
            return True
        entry, extents = frontend.program(checked, program), tuple(sizes.values())
        with checked.limits(entry):
            if isinstance(entry, ir.Pipeline):
                plan_pipeline(checked, entry, extents, arch, DEVICES[device])
            else:
                frontend.plan_kernel(checked, entry, extents, arch, DEVICES[device])
            bounds(entry, sizes, DEVICES[device])
    except (ProgramError, ShapeError):
        return False
    return True
