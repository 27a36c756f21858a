"""The GPU that a command works on."""

from ucutlass.runtime.gpu import Found, at_hand

__all__ = ["Found", "at_hand"]
