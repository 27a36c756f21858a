"""The reference interpreter of typed programs, and the bound on a kernel's honest error."""

from ucutlass.reference.binding import bind
from ucutlass.reference.expect import Expected, exactly, expect, expect_stage
from ucutlass.reference.interpreter import evaluate, sizes_of

__all__ = ["Expected", "bind", "evaluate", "exactly", "expect", "expect_stage", "sizes_of"]
