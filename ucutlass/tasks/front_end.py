"""Runs the front end on an unknown text, whose hang or growth then harms no other process.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`: a text goes in once, and
the checked program comes out as a payload of `ucutlass.handoff`, so that nobody parses the text again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def read(text: str, file: str) -> dict[str, Any]:
    """Returns `program`, the payload of the checked text, or `refused`, the payload of its diagnostics."""
    from ucutlass import frontend
    from ucutlass.diagnostics import ProgramError
    from ucutlass.handoff import diagnostics_payload, program_payload

    try:
        return {"program": program_payload(frontend.read_text(text, file))}
    except ProgramError as error:
        return {"refused": diagnostics_payload(error.diagnostics)}


def planned(program: dict[str, Any], name: str, sizes: Mapping[str, int], arch: str, device: str) -> bool:
    """Plans and bounds a program at these extents, as `explain` and `sol` do. Whether it got through without
    being refused."""
    from ucutlass import frontend, ir
    from ucutlass.diagnostics import ProgramError
    from ucutlass.handoff import checked_of
    from ucutlass.ir.hardware import DEVICES
    from ucutlass.pipeline.planning import plan_pipeline
    from ucutlass.shapes import ShapeError
    from ucutlass.sol.bounds import bounds

    checked = checked_of(program)
    entry, extents = frontend.program(checked, name), tuple(sizes.values())
    try:
        with checked.limits(entry):
            if isinstance(entry, ir.Pipeline):
                plan_pipeline(checked, entry, extents, arch, DEVICES[device])
            else:
                frontend.plan_kernel(checked, entry, extents, arch, DEVICES[device])
            bounds(entry, sizes, DEVICES[device])
    except (ProgramError, ShapeError):
        return False
    return True
