"""The kernels of a convolution: TMA and wgmma, multistage, and plain threads."""

from __future__ import annotations

from ucutlass.kernels.variant import Variant

VARIANTS = (
    Variant(
        "im2col",
        ("cooperative",),
        ("warps", "tile", "stages", "fold", "blocks", "math", "split_k", "raster", "swizzle"),
    ),
    Variant(
        "gather",
        ("multistage",),
        ("warps", "tile", "warp_tile", "stages", "math", "split_k", "raster", "swizzle"),
    ),
    Variant("direct", ("direct",), ("warps", "vector", "rows", "items", "columns", "threads")),
)
