"""Kernels scheduled badly on purpose: what advice is tested on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_PLAIN = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
_BATCHED = "kernel k(x: bf16[B, M, K], w: bf16[B, N, K]) -> bf16[B, M, N] { return dot[K](x, w) }"
_RELU = "kernel k(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] { return relu(dot[K](x, w) + b) }"
_F32 = "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) }"


@dataclass(frozen=True, slots=True)
class Bad:
    """A kernel, its extents, and the schedule that does not fit; `rule` is the one that must speak."""

    name: str
    program: str
    sizes: Mapping[str, int]
    schedule: str
    rule: int

    @property
    def text(self) -> str:
        return self.program.removesuffix("}") + f" schedule sm90a {{ {self.schedule} }} }}"


def _mnk(m: int, n: int, k: int) -> Mapping[str, int]:
    return {"M": m, "N": n, "K": k}


_COOPERATIVE, _PINGPONG = "warps cooperative", "warps pingpong"

TABLE: tuple[Bad, ...] = (
    Bad("small tile, 4096", _PLAIN, _mnk(4096, 4096, 4096), f"{_PINGPONG} tile 64x64x64", 11),
    Bad("small tile, 8192", _PLAIN, _mnk(8192, 8192, 8192), f"{_PINGPONG} tile 128x64x64 cluster 1x1", 11),
    Bad(
        "small tile, wide", _PLAIN, _mnk(4096, 14336, 4096), f"{_COOPERATIVE} tile 128x64x64 cluster 1x1", 11
    ),
    Bad("mma.sync, 4096", _PLAIN, _mnk(4096, 4096, 4096), "warps multistage", 16),
    Bad("mma.sync, 512 rows", _PLAIN, _mnk(512, 4096, 4096), "warps multistage", 16),
    Bad("mma.sync, 64 rows", _PLAIN, _mnk(64, 4096, 4096), "warps multistage", 16),
    Bad("FFMA for f32", _F32, _mnk(2048, 2048, 2048), "warps multistage math simt", 16),
    Bad("cluster 8x1", _PLAIN, _mnk(4096, 4096, 4096), f"{_COOPERATIVE} tile 128x256x64 cluster 8x1", 5),
    Bad("cluster 4x2", _PLAIN, _mnk(4096, 8192, 4096), f"{_COOPERATIVE} tile 128x256x64 cluster 4x2", 5),
    Bad("tail of a wave", _PLAIN, _mnk(3072, 1536, 8192), f"{_COOPERATIVE} tile 128x256x64 split_k 1", 4),
    Bad("few tiles, 512 rows", _PLAIN, _mnk(512, 4096, 4096), f"{_COOPERATIVE} tile 256x128x64", 4),
    Bad("few tiles, long K", _PLAIN, _mnk(1024, 1024, 32768), f"{_COOPERATIVE} tile 128x256x64 split_k 1", 4),
    Bad("few tiles, 128 rows", _PLAIN, _mnk(128, 4096, 4096), f"{_COOPERATIVE} tile 128x256x64 split_k 1", 4),
    Bad(
        "16 rows in 128",
        _PLAIN,
        _mnk(16, 4096, 4096),
        f"{_COOPERATIVE} tile 128x128x64 swap no split_k 1",
        22,
    ),
    Bad("32 rows in 64", _PLAIN, _mnk(32, 8192, 8192), f"{_PINGPONG} tile 64x256x64 swap no", 22),
    Bad("64 rows in 128", _PLAIN, _mnk(64, 4096, 14336), f"{_COOPERATIVE} tile 128x256x64 swap no", 22),
    Bad("1 row in 128", _PLAIN, _mnk(1, 4096, 4096), f"{_COOPERATIVE} tile 128x128x64 swap no split_k 1", 22),
    Bad(
        "swizzle beyond the grid",
        _PLAIN,
        _mnk(1152, 4352, 4096),
        f"{_COOPERATIVE} tile 128x256x64 swizzle 8",
        22,
    ),
    Bad("1 row by wgmma", _PLAIN, _mnk(1, 14336, 4096), f"{_PINGPONG} tile 64x256x64 swap no", 12),
    Bad("8 rows by wgmma", _PLAIN, _mnk(8, 8192, 8192), f"{_PINGPONG} tile 64x128x64 swap no", 12),
    Bad(
        "split of a short K",
        _BATCHED,
        {"B": 32, **_mnk(512, 512, 512)},
        f"{_COOPERATIVE} tile 128x64x64 swap yes cluster 1x1 split_k 4",
        9,
    ),
    Bad(
        "split without need",
        _PLAIN,
        _mnk(4096, 4096, 4096),
        f"{_COOPERATIVE} tile 128x256x64 cluster 2x1 split_k 16",
        9,
    ),
    Bad("K 64, small tile", _PLAIN, _mnk(4096, 4096, 64), f"{_PINGPONG} tile 64x16x64 swap no", 9),
    Bad(
        "two stages, 4096",
        _PLAIN,
        _mnk(4096, 4096, 4096),
        f"{_COOPERATIVE} tile 128x256x64 cluster 2x1 stages 2",
        7,
    ),
    Bad(
        "two stages, 2048",
        _PLAIN,
        _mnk(2048, 2048, 4096),
        f"{_PINGPONG} tile 128x128x64 cluster 2x1 stages 2",
        7,
    ),
    Bad("deep tile", _PLAIN, _mnk(8192, 8192, 4096), f"{_COOPERATIVE} tile 128x256x128 cluster 2x1", 8),
    Bad(
        "wrong raster",
        _PLAIN,
        _mnk(16384, 2048, 4096),
        f"{_COOPERATIVE} tile 128x256x64 cluster 2x1 raster along_m",
        13,
    ),
    Bad("no multicast", _PLAIN, _mnk(8192, 8192, 8192), f"{_PINGPONG} tile 64x256x64 cluster 1x1", 6),
    Bad("exposed epilogue", _RELU, _mnk(8192, 8192, 256), f"{_COOPERATIVE} tile 128x128x64 cluster 1x1", 10),
    Bad("exposed epilogue, narrow tile", _RELU, _mnk(16384, 4096, 128), f"{_COOPERATIVE} tile 128x64x64", 9),
)
