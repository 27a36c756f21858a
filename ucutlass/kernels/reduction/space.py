"""The schedules around a reduction's own."""

from __future__ import annotations

from ucutlass.ir.schedule import FIELDS
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.space import Axes, ladder


def axes(planned: Planned) -> Axes:
    """The values worth trying near a kernel, by field."""
    own = planned.request
    return {
        "threads": ladder("threads", own.threads, 3),
        "rows": ladder("rows", own.rows),
        "items": ladder("items", own.items),
        "vector": ladder("vector", own.vector),
        "cluster": ((1, 1), (1, 2), (1, 4), (1, 8)),
        "split_k": ladder("split_k", own.split_k, 3),
        "keep": FIELDS["keep"].words,
    }
