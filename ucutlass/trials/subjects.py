"""What a built kernel is as the subject of an evidence record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucutlass import ir
from ucutlass.runtime.evidence import Subject
from ucutlass.runtime.subject import subject_of
from ucutlass.schedule import show

if TYPE_CHECKING:
    from ucutlass.backend import Built
    from ucutlass.frontend import Checked


def subject_of_built(checked: Checked, program: ir.Kernel, built: Built) -> Subject:
    """The subject with every schedule field as planned, the emitted code, and the library as it now
    lies on disk. Raises OSError where that cannot be read."""
    planned = built.planned
    return subject_of(
        program, checked.source, planned.sizes,
        arch=planned.plan.arch,
        lane=planned.plan.problem.lane.name,
        schedule=show(planned.request),
        code=built.source.code,
        library=built.artifact.library,
    )  # fmt: skip
