"""The kernels of one product: TMA and wgmma, matrix-vector, and multistage."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.variant import Variant, served

VARIANTS = (
    Variant(
        "sm90",
        ("pingpong", "cooperative"),
        ("warps", "tile", "cluster", "stages", "math", "swap", "split_k", "partials", "raster", "swizzle"),
    ),
    Variant("gemv", ("gemv",), ("warps", "rows", "columns", "threads", "swap")),
    Variant(
        "sm80",
        ("multistage",),
        ("warps", "tile", "warp_tile", "stages", "math", "swap", "split_k", "raster", "swizzle"),
    ),
)
"""Best first."""

BY_NAME: Mapping[str, Variant] = MappingProxyType({variant.name: variant for variant in VARIANTS})

BY_WORD: Mapping[str, str] = MappingProxyType(
    {word: variant.name for variant in VARIANTS for word in variant.words}
)
"""The name of the kernel that each word of the field `warps` selects."""


def variants_of(request: PartialSchedule) -> tuple[str, ...]:
    """Returns the names of the kernels that have every fixed field, best first; () where none has."""
    names = tuple(variant.name for variant in served(request, VARIANTS))
    return tuple(name for name in names if not (name == "sm80" and request.split_k == "stream"))
