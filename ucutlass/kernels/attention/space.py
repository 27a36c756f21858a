"""The schedules around an attention kernel's own."""

from __future__ import annotations

import itertools

from ucutlass.kernels.planned import Planned
from ucutlass.kernels.space import Axes


def axes(planned: Planned) -> Axes:
    """The values worth trying near a kernel, by field."""
    own = planned.request
    assert own.tile is not None
    tiles = itertools.product((64, 128, 192), range(64, 257, 16), own.tile[2:])
    return {"tile": tuple(tiles), "stages": (2, 3, 4)}
