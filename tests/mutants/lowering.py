"""Lowerings with a bug seeded into them: edits of emitted source text, each the bug of a row of the
gaming catalogue that only our own code can have.

An edit replaces a text that must stand in the source; where an emitter changes, the edit fails loudly
and is written anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

Edit = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Base:
    """An honest program with extents that leave residues."""

    text: str
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Lowering:
    """One mutant. `patterns` are rows of the catalogue; `quick`: part of the test command."""

    name: str
    patterns: tuple[int, ...]
    bug: str
    base: str
    edits: tuple[Edit, ...]
    quick: bool = False


class EditStale(AssertionError):
    """An edit's text does not stand in the emitted source any more."""


def mutated(text: str, mutant: Lowering) -> str:
    """The source with the bug. Raises EditStale."""
    return replaced(text, mutant.name, mutant.edits)


def replaced(text: str, name: str, edits: Sequence[Edit]) -> str:
    """The source with a named change. Raises EditStale."""
    for old, new in edits:
        if old not in text:
            raise EditStale(f"{name}: the emitted source has no {old!r}; write the edit anew")
        text = text.replace(old, new)
    return text


def change(text: str, *pairs: str) -> Edit:
    """Within `text`, the first of each two becomes the second."""
    new = text
    for old, other in zip(pairs[::2], pairs[1::2], strict=True):
        assert old in new
        new = new.replace(old, other)
    return text, new


def after(text: str, more: str) -> Edit:
    """`text` with a line behind it."""
    return text, f"{text}\n{more}"


def _kernel(signature: str, value: str, schedule: str) -> str:
    return f"kernel k({signature} {{\n  return {value}\n  schedule sm90a {{ {schedule} }}\n}}\n"


BASES: Mapping[str, Base] = MappingProxyType(
    {
        "bias": Base(
            _kernel(
                "x: f16[M, K], w: f16[N, K], b: f32[N]) -> f16[M, N]",
                "relu(dot[K](x, w) + b)",
                "warps multistage  tile 32x32x32",
            ),
            {"M": 40, "N": 37, "K": 56},
        ),
        "low": Base(
            _kernel(
                "x: f16[M, K], w: f16[N, K]) -> f16[M, N]",
                "dot[K](x, w)",
                "warps multistage  tile 64x64x32  stages 2",
            ),
            {"M": 72, "N": 72, "K": 56},
        ),
        "split": Base(
            _kernel(
                "x: f16[M, K], w: f16[N, K], b: f32[N]) -> f32[M, N]",
                "dot[K](x, w) + b",
                "warps multistage  tile 32x32x32  split_k 3  swizzle 2",
            ),
            {"M": 72, "N": 72, "K": 136},
        ),
        "moments": Base(
            "kernel k(x: f16[M, K], w: f16[N, K]) -> (y: f16[M, N], top: f32[M], s: f32[N]) {\n"
            "  d = dot[K](x, w)\n  return y = d, top = max[N](d), s = sum[M](d)\n"
            "  schedule sm90a { warps multistage  tile 32x32x32 }\n}\n",
            {"M": 37, "N": 40, "K": 40},
        ),
        "residual": Base(
            _kernel(
                "x: f16[M, K], w: f16[K, N], r: f16[M, N]) -> f16[M, N]",
                "dot[K](x, w) + r",
                "warps multistage  tile 32x32x32",
            ),
            {"M": 40, "N": 72, "K": 40},
        ),
        "batch": Base(
            _kernel(
                "x: bf16[B, M, K], w: bf16[B, N, K]) -> f32[B, M, N]",
                "gelu(dot[K](x, w))",
                "warps multistage  tile 32x32x32",
            ),
            {"B": 3, "M": 33, "N": 40, "K": 40},
        ),
        "f32": Base(
            _kernel(
                "x: f32[M, K], w: f32[N, K]) -> f32[M, N]",
                "dot[K](x, w)",
                "warps multistage  tile 32x32x16  math tf32x3",
            ),
            {"M": 40, "N": 40, "K": 40},
        ),
        "vector": Base(
            _kernel(
                "x: f16[M, K], w: f16[N, K], b: f32[M]) -> f32[M, N]",
                "abs(dot[K](x, w)) + b",
                "warps gemv  rows 1  columns 2  threads 64",
            ),
            {"M": 37, "N": 2, "K": 539},
        ),
        "vector_sum": Base(
            "kernel k(x: f16[M, K], w: f16[N, K]) -> (y: f32[M, N], s: f32[N]) {\n"
            "  d = dot[K](x, w)\n  return y = d, s = sum[M](d)\n"
            "  schedule sm90a { warps gemv }\n}\n",
            {"M": 37, "N": 2, "K": 200},
        ),
    }
)


_DEPTH = "return int(min(int64_t(kTileK), p.k[kContracted - 1] - int64_t(inner) * kTileK));"
_INNER = "int64_t const inner = ceil_div(p.k[kContracted - 1], kTileK);"
_FETCH = "load_a.fetch(next.offset_a, depth,"
_MULTIPLY = "multiply(fragment_a[step], fragment_b[step], sums);"
_LOCATE = "Tile const tile = locate(p, block);"
_ROWS = "tile.rows = int(min(int64_t(kTileM), p.m - tile.m));"
_BLOCKS = "int64_t const blocks = tiles_m * tiles_n * p.batches;"
_COUNT = "int const count = min(kWidth, fast_extent - fast);"
_STORE = "target[kAxisStride == AxisStride::kUnit ? i : i * stride] = narrow<Element>(value[i]);"
_STAGE = "stage[staged(m, n)] = Accumulator(sums[i])"
_LAUNCH = "error = cudaLaunchKernelEx(&config, kKernel, args...);"
_STATUS = "return 1000 + int(error);"
_PARTIAL = "if constexpr (kPass == Pass::kPartial) {"
_FINISH = "for (int split = 0; split < p.splits; ++split) {"
_LANES = "for (int distance = 16; distance >= kApart;"
_TARGET = "target[i * kThreads] = Accumulator(sums[i]);"
_WAIT = "cp_async_wait_group<kStages - 2>();"
_SYNC = "__syncthreads();"
_FIRST = "int(int64_t(p.k_tiles) * tile.split / p.splits)"
_LAST = "int(int64_t(p.k_tiles) * (tile.split + 1) / p.splits)"
_SHARE = "p.k_tiles / p.splits"
_GELU = "return x * (x < 0.0f ? tail : 1.0f - tail);"
_FAILS = change(_LAUNCH, "cudaLaunchKernelEx(&config, kKernel, args...)", "cudaErrorInvalidValue")
_MAXIMA = "if (lane == 0) partial[m * parts + part] = value;"
_SUMS = "partial[n * parts + part] = value;"
_CONVERT = "cutlass::NumericConverter<Element, float>::convert(x)"

LOWERINGS: tuple[Lowering, ...] = (
    # --- tiles nobody writes, subsets (6, 11) ---
    Lowering(
        "last tile skipped",
        (6, 11),
        "the grid is one thread block short",
        "bias",
        (change(_BLOCKS, "p.batches", "p.batches - 1"),),
    ),
    Lowering(
        "small tiles skipped",
        (6, 11),
        "tiles of few rows return early",
        "bias",
        (after(_LOCATE, "  if (tile.rows < kTileM / 2) return;"),),
    ),
    Lowering(
        "tail columns unwritten",
        (6,),
        "columns count in eights",
        "bias",
        (("fast_extent = columns", "fast_extent = columns & ~7"),),
    ),
    Lowering(
        "first batch only",
        (11,),
        "the grid covers one batch",
        "batch",
        (change(_BLOCKS, " * p.batches", ""),),
    ),
    Lowering(
        "swizzle revisits tiles",
        (6, 11),
        "a band's tiles all map to its first column",
        "split",
        (("band * p.swizzle + rest % width", "band * p.swizzle"),),
    ),
    Lowering(
        "every other row",
        (11,),
        "odd rows are sampled away",
        "vector",
        (after(_LOCATE, "  if (tile.tile_m % 2) return;"),),
        quick=True,
    ),
    # --- aliasing and neighbours (10) ---
    Lowering(
        "output aliases the residual",
        (10, 23),
        "the result goes to an operand's memory",
        "residual",
        (("static_cast<cutlass::half_t*>(tensors[3])", "static_cast<cutlass::half_t*>(tensors[2])"),),
    ),
    Lowering(
        "residual aliases the output",
        (10,),
        "the residual is read where the result goes",
        "residual",
        (("half_t const*>(tensors[2])", "half_t const*>(tensors[3])"),),
    ),
    Lowering(
        "tail columns unmasked",
        (10,),
        "stores go on past the last column",
        "bias",
        (change(_COUNT, "min(kWidth, fast_extent - fast)", "kWidth"),),
    ),
    Lowering(
        "rows unmasked",
        (10,),
        "stores go on past the last row",
        "residual",
        (change(_ROWS, "int(min(int64_t(kTileM), p.m - tile.m))", "kTileM"),),
    ),
    # --- structure of the inputs (12) ---
    Lowering(
        "weights shared over batches",
        (12,),
        "the batch stride of w is 0",
        "batch",
        (("p.b.batch[0] = e[3] * e[2];", "p.b.batch[0] = 0;"),),
    ),
    Lowering("bias assumed zero", (12,), "the bias is not added", "bias", (("= acc + in0;", "= acc;"),)),
    Lowering(
        "input assumed positive", (12,), "abs is simplified away", "vector", (("= fabsf(acc);", "= acc;"),)
    ),
    Lowering(
        "pre-activation assumed positive",
        (12,),
        "relu is simplified away",
        "bias",
        (("return ucc_max(x, 0.0f);", "return x;"),),
    ),
    Lowering(
        "activation assumed saturated",
        (12,),
        "gelu becomes relu",
        "batch",
        ((_GELU, "return fmaxf(x, 0.0f);"),),
    ),
    # --- K (17) ---
    Lowering(
        "K residue unmasked", (17,), "the last k-tile reads on past K", "bias", ((_DEPTH, "return kTileK;"),)
    ),
    Lowering(
        "K residue dropped",
        (17,),
        "k-tiles are counted with the floor",
        "bias",
        (change(_INNER, "ceil_div(p.k[kContracted - 1], kTileK)", "p.k[kContracted - 1] / kTileK"),),
    ),
    Lowering(
        "vector's K residue dropped",
        (17,),
        "k-tiles are counted with the floor",
        "vector",
        (change(_INNER, "ceil_div(p.k[kContracted - 1], kTileK)", "p.k[kContracted - 1] / kTileK"),),
        quick=True,
    ),
    Lowering(
        "split forgets k-tiles",
        (17, 32),
        "each split takes the floor of its share",
        "split",
        ((_FIRST, f"{_SHARE} * tile.split"), (_LAST, f"{_SHARE} * (tile.split + 1)")),
    ),
    Lowering(
        "small k-blocks skipped",
        (17,),
        "a k-tile that is not whole counts as zeros",
        "bias",
        (change(_FETCH, "depth,", "depth < kTileK ? 0 : depth,"),),
    ),
    Lowering(
        "sparsity assumed",
        (17,),
        "every other step of K is left out",
        "bias",
        (change(_MULTIPLY, "multiply(", "if (step % 2 == 0) multiply("),),
    ),
    # --- NaN and infinity (18) ---
    Lowering(
        "relu loses NaN",
        (18,),
        "fmaxf(NaN, 0) is 0",
        "bias",
        (("return a > b || a != a ? a : b;", "return fmaxf(a, b);"), ("max.NaN.f32", "max.f32")),
    ),
    Lowering(
        "maximum loses NaN",
        (18,),
        "the reduction's comparison drops it",
        "moments",
        (("a > b || a != a ? a : b", "a > b ? a : b"),),
    ),
    Lowering(
        "infinity becomes NaN",
        (18,),
        "infinity minus infinity in the split of f32",
        "f32",
        (("bool const finite = fabsf(low) < INFINITY;", "bool const finite = true;"),),
    ),
    Lowering(
        "NaN stored as zero",
        (18,),
        "stores filter NaN",
        "bias",
        (change(_STORE, "(value[i])", "(value[i] == value[i] ? value[i] : Value(0))"),),
    ),
    # --- inputs changed (23) ---
    Lowering(
        "operand overwritten",
        (23,),
        "a used operand is cleared for the next call",
        "vector",
        (
            after(
                _LOCATE,
                "  if (threadIdx.x == 0 && block + 1 == tiles) "
                "const_cast<ElementA*>(p.a.data)[p.a.row - 1] = ElementA(0);",
            ),
        ),
    ),
    # --- launches (25, 26) ---
    Lowering(
        "too little shared memory",
        (25,),
        "half of what the stages need",
        "bias",
        (("config.dynamicSmemBytes = shared_bytes;", "config.dynamicSmemBytes = shared_bytes / 2;"),),
    ),
    Lowering(
        "failed launch passed on as success",
        (25, 26),
        "its status is dropped",
        "vector",
        (_FAILS, (_STATUS, "return 0;")),
    ),
    Lowering("failed launch", (25, 26), "the launch fails and says so", "vector", (_FAILS,)),
    # --- order (27) ---
    Lowering(
        "no barrier before the epilogue",
        (27,),
        "accumulators are read before all are staged",
        "bias",
        ((f"      {_SYNC}\n      epilogue(p, tile,", "      epilogue(p, tile,"),),
    ),
    Lowering(
        "no barrier in the main loop",
        (27,),
        "a stage is read before all copies are there",
        "bias",
        ((f"        {_WAIT}\n        {_SYNC}", f"        {_WAIT}"), (f"  {_WAIT}\n  {_SYNC}", f"  {_WAIT}")),
    ),
    Lowering(
        "wait one stage short",
        (27,),
        "a stage is read while its copy is in flight",
        "bias",
        ((_WAIT, "cp_async_wait_group<kStages - 1>();"),),
    ),
    Lowering(
        "no barrier between halves of a tile",
        (27,),
        "staged rows are overwritten while they are read",
        "low",
        ((f"if (first_row > 0) {_SYNC}", ""),),
    ),
    Lowering(
        "no barrier between parts",
        (27,),
        "sums of other warps are read too early",
        "vector",
        ((f"last, parts);\n    {_SYNC}", "last, parts);"),),
    ),
    Lowering(
        "lanes left out of a sum",
        (27, 11),
        "a warp's sum covers half of its lanes",
        "vector",
        (change(_LANES, "distance = 16", "distance = 8"),),
    ),
    Lowering(
        "right every other launch",
        (27, 37),
        "odd launches leave the last tile out",
        "vector",
        (
            (
                "  " + _BLOCKS,
                "  static int launches = 0;\n  int64_t const blocks = "
                "tiles_m * tiles_n * p.batches - launches++ % 2;",
            ),
        ),
    ),
    # --- workspace (32) ---
    Lowering(
        "partial sums not written",
        (32,),
        "the last split's are those of the previous run",
        "split",
        (after(_PARTIAL, "    if (tile.split + 1 == p.splits) return;"),),
    ),
    Lowering(
        "one split too many",
        (32,),
        "the sum reads on past the last split",
        "split",
        (change(_FINISH, "split < p", "split <= p"),),
    ),
    Lowering(
        "partial sums not initialised",
        (32,),
        "sums add to what the workspace held",
        "split",
        (change(_TARGET, " = ", " += "),),
    ),
    Lowering(
        "partial maxima kept",
        (32,),
        "rows of small tiles leave the previous run's maxima",
        "moments",
        (change(_MAXIMA, "lane == 0", "lane == 0 && rows > kStageRows / 2"),),
    ),
    Lowering(
        "vector's partial sums kept",
        (32,),
        "only the first part of a sum is written",
        "vector_sum",
        (change(_SUMS, "partial[n", "if (part == 0) partial[n"),),
    ),
    # --- precision, by a lowering (14, 15, 16) ---
    Lowering(
        "sums rounded to f16",
        (14, 15),
        "accumulators pass through half precision",
        "split",
        (change(_STAGE, "(sums[i])", "(cutlass::half_t(float(sums[i])))"),),
    ),
    Lowering(
        "one tf32 pass for f32",
        (15,),
        "the cross products are left out",
        "f32",
        (
            (
                "  multiply_fragments(a_small, b_cross, sums);\n  multiply_fragments(a_cross, b_small, sums);\n",
                "",
            ),
        ),
    ),
    Lowering(
        "stores scaled down",
        (14, 16),
        "results are 2**-11 too small, as truncation would",
        "bias",
        (change(_CONVERT, "(x)", "(x * (1.0f - 0x1p-11f))"),),
    ),
    # --- addresses (11) ---
    Lowering(
        "row stride of the result",
        (11,),
        "rows lie M apart instead of N",
        "bias",
        (("p.output0.m = e[2];", "p.output0.m = e[0];"),),
    ),
)
