"""How the cases of the correctness campaign are written: schedules, shapes, programs."""

from __future__ import annotations

from tests.cases.campaign import Case

ALL = ("normal", "integer", "positive", "one_hot", "wide", "zeros")
USUAL = ("normal", "integer")

PLAIN = "(x: {e}[M, K], w: {e}[N, K]) -> {r}[M, N]"

PINGPONG = "warps pingpong  tile {t}  cluster {c}  swap no  split_k 1"
COOPERATIVE = "warps cooperative  tile {t}  cluster {c}  swap no  split_k 1"
MULTISTAGE = "warps multistage  tile {t}  stages 3  swap no  split_k 1"
GEMV = "warps gemv  rows {r}  columns {c}  threads {t}  swap {s}"


def pingpong(tile: str = "64x128x64", cluster: str = "1x1") -> str:
    return PINGPONG.format(t=tile, c=cluster)


def cooperative(tile: str = "128x128x64", cluster: str = "1x1") -> str:
    return COOPERATIVE.format(t=tile, c=cluster)


def multistage(tile: str = "64x64x32", more: str = "") -> str:
    return MULTISTAGE.format(t=tile) + more


def gemv(rows: int = 4, columns: int = 1, threads: int = 64, swap: str = "no") -> str:
    return GEMV.format(r=rows, c=columns, t=threads, s=swap)


def sizes(names: str, *rows: tuple[int, ...]) -> tuple[dict[str, int], ...]:
    """`sizes("M N K", (1, 8, 8), (127, 264, 72))` as mappings."""
    return tuple(dict(zip(names.split(), row, strict=True)) for row in rows)


def case(
    name: str,
    signature: str,
    body: str,
    schedule: str,
    shapes: tuple[dict[str, int], ...],
    distributions: tuple[str, ...] = USUAL,
) -> Case:
    text = f"kernel k{signature} {{\n{body}\n  schedule sm90a {{ {schedule} }}\n}}\n"
    return Case(name, text, shapes, distributions)


# Every extent that TMA reads along its contiguous mode, and that a result's rows have, is a multiple
# of 16 (bytes of 8-bit operands: also 16 elements); M is free, for no stride depends on it.
TMA = sizes(
    "M N K",
    (1, 16, 16),
    (2, 32, 48),
    (13, 80, 16),
    (127, 144, 80),
    (128, 128, 64),
    (129, 272, 208),
    (257, 256, 512),
    (509, 1040, 1008),
)
FEW = sizes("M N K", (1, 16, 16), (127, 144, 80), (129, 272, 208), (256, 512, 320))
SMALL_K = sizes("M N K", (1, 16, 16), (127, 144, 80), (129, 272, 256))
ODD = sizes(
    "M N K",
    (1, 1, 1),
    (1, 7, 3),
    (13, 1, 7),
    (3, 13, 31),
    (31, 3, 127),
    (127, 129, 1),
    (129, 127, 509),
    (509, 509, 129),
)
FEW_ODD = sizes("M N K", (1, 1, 1), (13, 7, 31), (127, 129, 131), (509, 131, 257))
EVEN = sizes("M N K", (2, 2, 2), (2, 130, 6), (62, 2, 34), (130, 254, 510))
HUGE = sizes("M N K", (8205, 2949, 5921))
