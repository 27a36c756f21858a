"""The kernel without a dot and the fields of its schedule."""

from __future__ import annotations

from ucutlass.kernels.variant import Variant

VARIANTS = (
    Variant(
        "reduction",
        (),
        ("threads", "rows", "vector", "items", "keep", "cluster", "split_k", "stages", "blocks"),
    ),
)
