"""For each limit a program just past it, and what to print for it where it is long."""

from __future__ import annotations

from ucutlass import limits

_COPY = "kernel k{}(x: f32[M]) -> f32[M] {{ return x }}\n"


def _product(body: str) -> str:
    return f"kernel k(x: bf16[M, K], w: bf16[N, K]) -> f32[M, N] {{\n  return dot[K](x, w)\n{body}}}\n"


def _joined(one: str, count: int, between: str = ", ") -> str:
    return between.join(one.format(i) for i in range(count))


LIMITS: dict[str, tuple[str, str]] = {
    "UC0702": (
        "".join(_COPY.format(i) for i in range(limits.PROGRAMS.most + 1)),
        f"{limits.PROGRAMS.most + 1} kernels.",
    ),
    "UC0703": (
        f"kernel k({_joined('x{}: f32[M]', limits.PARAMETERS.most + 1)}) -> f32[M] {{ return x0 }}\n",
        f"`kernel k(x0: f32[M], x1: f32[M], ..) -> f32[M] {{ return x0 }}` with {limits.PARAMETERS.most + 1} "
        "parameters.",
    ),
    "UC0704": ("kernel k(x: f32[M, P=2147483647*2147483647*4]) -> f32[M] { return sum[P](x) }\n", ""),
    "UC0705": ("kernel k(x: f32[M]) -> f32[M] { return x[M = M - 2147483648] }\n", ""),
    "UC0706": (
        _product("  schedule sm90a when M == 1 { stages 4 }\n" * (limits.BLOCKS.most + 1)),
        f"A kernel with {limits.BLOCKS.most + 1} times `schedule sm90a when M == 1 {{ stages 4 }}`.",
    ),
    "UC0707": (
        _product(
            "  schedule sm90a {\n    tile 128x128x64 or 128x256x64 or 256x128x64 or 64x128x64\n"
            "    cluster 1x1 or 2x1 or 1x2 or 2x2\n    swizzle 1 or 2 or 4 or 8\n"
            "    stages 2 or 3 or 4 or 5 or 6\n  }\n"
        ),
        "",
    ),
    "UC0708": (
        "pipeline p(x: f32[M]) -> f32[M] {\n  h0: f32[M] = x + 1\n"
        + "".join(f"  h{i}: f32[M] = h{i - 1} + 1\n" for i in range(1, limits.STAGES.most))
        + f"  return h{limits.STAGES.most - 1} * 2\n}}\n",
        f"`h0: f32[M] = x + 1  h1: f32[M] = h0 + 1  ..` with {limits.STAGES.most + 1} stages.",
    ),
}
"""Programs that the checker refuses: text, and the words for one too long to print."""

MANY_ERRORS = (
    "kernel k(x: f32[M]) -> f32[M] {\n"
    + "".join(f"  y{i} = nothing{i}\n" for i in range(limits.ERRORS.most + 1))
    + "  return x\n}\n",
    f"`y0 = nothing0  y1 = nothing1  ..` with {limits.ERRORS.most + 1} unknown names.",
)

READINGS = (
    "kernel k(x: f32[M]) -> f32[M] {\n  s0 = x\n"
    + "".join(f"  s{i} = s{i - 1}[M = M - 1] + s{i - 1}[M = M - 2]\n" for i in range(1, 20))
    + "  return s19\n}\n"
)
"""A kernel that no launch computes: every step reads the one before at two places."""

_MASKS = " and ".join(f"index(W) * {3 + i} <= index(H) * {7 + i} + index(D) * {i}" for i in range(40))
CONDITIONS = (
    f"kernel k(x: f32[H, W, D]) -> f32[H, D] {{ return sum[W](where({_MASKS}, x, 0)) }}\n",
    "H=10000,W=10000,D=10000",
    "`sum[W](where(index(W) * 3 <= index(H) * 7 + index(D) * 0 and .., x, 0))` with 40 comparisons, asked "
    "for by `ucc sol`.",
)

ELEMENTS = ("kernel k(x: f32[M, N]) -> f32[M, N] { return relu(x) }\n", "M=1099511627776,N=1099511627776")
