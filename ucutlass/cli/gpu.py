"""This module finds the GPU that a command works on."""

from ucutlass.runtime.gpu import CurrentGpu, at_hand

__all__ = ["CurrentGpu", "at_hand"]
