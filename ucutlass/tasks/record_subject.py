"""Makes the subject of an evidence record from a built kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ucutlass import ir
from ucutlass.assembly import AnyBuilt, code_of, kernels_of, schedule_of, sizes_of
from ucutlass.backend import Built
from ucutlass.runtime.evidence import RecordSubject
from ucutlass.runtime.subject import subject_of

if TYPE_CHECKING:
    from ucutlass.frontend import Checked


def subject_of_built(checked: Checked, program: ir.Program, built: AnyBuilt) -> RecordSubject:
    """Returns the subject with every schedule field as planned, the emitted code, and the libraries as they
    now lie on disk. Raises OSError where these cannot be read."""
    kernels = kernels_of(built)
    return subject_of(
        program,
        checked.source,
        sizes_of(built),
        arch=kernels[0].planned.plan.arch if kernels else "",
        compute_type="+".join(sorted({kernel.planned.plan.problem.compute_type.name for kernel in kernels})),
        schedule=schedule_of(built),
        code=code_of(kernel.source for kernel in kernels),
        library=kernels[0].artifact.library
        if isinstance(built, Built)
        else [kernel.artifact.library for kernel in kernels],
    )
