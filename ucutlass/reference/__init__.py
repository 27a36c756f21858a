"""The reference interpreter of typed programs, and the bound on a kernel's honest error."""

from ucutlass.reference.binding import bind
from ucutlass.reference.expect import Expected, exactly, expect, expect_in
from ucutlass.reference.interpreter import evaluate, sizes_of
from ucutlass.reference.parts import Part, Wanted, known, wanted

__all__ = [
    "Expected",
    "Part",
    "Wanted",
    "bind",
    "evaluate",
    "exactly",
    "expect",
    "expect_in",
    "known",
    "sizes_of",
    "wanted",
]
