"""The kernels of pairs, groups and scaled parts: TMA and wgmma, and plain threads."""

from __future__ import annotations

from ucutlass.kernels.variant import Variant

VARIANTS = (
    Variant(
        "products",
        ("pingpong", "cooperative", "sliced"),
        ("warps", "tile", "cluster", "stages", "split_k", "raster", "swizzle"),
    ),
    Variant("simt", ("direct",), ("warps",)),
)
