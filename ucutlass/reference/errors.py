"""What can be wrong with a call of a program: one class per mistake.

Every message says which argument, which numbers, and what would mend it.
"""

from __future__ import annotations


class CallError(ValueError):
    """A call does not fit the program; the base of all below, never raised itself."""


class ArgumentCountError(CallError):
    """More or fewer arguments than parameters."""


class ArgumentKindError(CallError):
    """A tensor where the program takes a number, or the other way round."""


class ElementMismatchError(CallError):
    """A tensor's dtype is not the parameter's element type."""


class DeviceMismatchError(CallError):
    """Tensor arguments lie on different devices."""


class RankMismatchError(CallError):
    """A tensor has more or fewer axes than the parameter's type."""


class ExtentMismatchError(CallError):
    """Two places give one dimension different extents, or an axis is not as long as its type says."""


class ExtentUnknownError(CallError):
    """No argument determines a dimension's extent."""


class ExtentRangeError(CallError):
    """A derived extent is negative or divides by zero, or what a `max` or `argmax` selects from is empty."""


class RequirementError(CallError):
    """A `require` of the program does not hold for these extents."""


class CoordinateRangeError(CallError):
    """Gather coordinates lie outside the gathered dimension."""


class OffsetsError(CallError):
    """Segment offsets do not start at 0, decrease, or do not end at the dimension's extent."""


class UnsupportedError(CallError):
    """The reference cannot represent this: an element type without torch dtype, or a torch
    function outside the table."""
