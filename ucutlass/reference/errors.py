"""Errors of calls of a program: one class per mistake.

Every message says which argument is wrong, with which numbers, and how to fix it.
"""

from __future__ import annotations


class CallError(ValueError):
    """The base class of errors of calls that do not fit the program; it is never raised itself."""


class ArgumentCountError(CallError):
    """A call has more or fewer arguments than the program has parameters."""


class ArgumentKindError(CallError):
    """A tensor was passed where the program takes a number, or the other way round."""


class ElementMismatchError(CallError):
    """A tensor's dtype is not the parameter's element type."""


class DeviceMismatchError(CallError):
    """Tensor arguments are on different devices."""


class RankMismatchError(CallError):
    """A tensor has more or fewer axes than the parameter's type."""


class ExtentMismatchError(CallError):
    """Two axes give one dimension different extents, or an axis differs from its type in length."""


class ExtentUnknownError(CallError):
    """No argument determines a dimension's extent."""


class ExtentRangeError(CallError):
    """A derived extent is negative or divides by zero, or a `max` or `argmax` runs over no element."""


class RequirementError(CallError):
    """A `require` of the program does not hold for these extents."""


class CoordinateRangeError(CallError):
    """Gather coordinates lie outside the gathered dimension."""


class OffsetsError(CallError):
    """Segment offsets do not start at 0, decrease, or do not end at the dimension's extent."""


class UnsupportedError(CallError):
    """The reference cannot represent this: an element type without a torch dtype, or a torch function outside
    the table."""
