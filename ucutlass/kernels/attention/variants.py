"""The kernel of attention and the fields of its schedule."""

from __future__ import annotations

from ucutlass.kernels.variant import Variant

VARIANTS = (Variant("attention", (), ("tile", "stages", "split_k")),)
