"""Edits of emitted files that a user could hand to `ucc adopt`: wrong ones, each with the checks that it may fall
by, and honest ones, which must be adopted.

They are edits of today's text, as those of `tests.mutants.lowering`, of which some are taken over: there the
emitter is wrong and the judge alone must see it, here a user is and every check may.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias

from tests.mutants.hopper import HOPPER, HOPPER_BASES
from tests.mutants.lowering import BASES, LOWERINGS, Base, Edit, Lowering, after, change, replaced
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.emit.text import Source
from ucutlass.shapes import complete

ARCH = "sm90a"

Stage: TypeAlias = Literal["text", "build", "gpu"]


@dataclass(frozen=True, slots=True)
class SourceEdit:
    """`checks` are the codes (`ucutlass.adopt.refusals`) of which one refuses it, none for an honest edit. `stage`
    is what it takes to see it: the text, the compiled object, or a GPU. `case`: seconds for a case of the suite."""

    name: str
    base: str
    bug: str
    edits: tuple[Edit, ...]
    checks: tuple[str, ...] = ("wrong",)
    stage: Stage = "gpu"
    case: float = 30.0

    @property
    def honest(self) -> bool:
        return not self.checks


def _kernel(signature: str, body: str, schedule: str) -> str:
    return f"kernel k({signature} {{\n  {body}\n  schedule sm90a {{ {schedule} }}\n}}\n"


# Schedules are written out, so that what is emitted does not depend on the GPU.
SOURCE_BASES: Mapping[str, Base] = MappingProxyType(
    {
        **BASES,
        **HOPPER_BASES,
        "rows": Base(
            _kernel(
                "x: f16[T, D], g: f16[D], b: f16[D]) -> f16[T, D]",
                "d = x - mean[D](x)\n  return d * rsqrt(mean[D](d * d) + 1e-5) * g + b",
                "cluster 1x1  rows 2  threads 64  vector 8  items 2  keep registers",
            ),
            {"T": 301, "D": 1024},
        ),
        "two sums": Base(
            _kernel(
                "x: f32[T, D]) -> f32[T]",
                "s = sum[D](abs(x))\n  return sum[D](x * x / s)",
                "cluster 1x1  rows 1  threads 256  vector 4  items 1  keep registers",
            ),
            {"T": 301, "D": 1024},
        ),
        "pointwise": Base(
            _kernel(
                "x: f32[A, B], y: f32[A, B]) -> f32[A, B]",
                "return gelu(x) * y",
                "rows 256  vector 4  items 1  keep registers",
            ),
            {"A": 301, "B": 1000},
        ),
        "parts": Base(
            _kernel(
                "x: f32[A, L]) -> f32[A]",
                "return sum[L](x * x)",
                "split_k 30  rows 1  threads 256  vector 4  items 4  keep reread",
            ),
            {"A": 3, "L": 300000},
        ),
        "scan": Base(
            _kernel(
                "x: f32[B, L]) -> f32[B, L]",
                "return cumsum[L](x)",
                "rows 1  threads 256  vector 4  items 8  keep registers",
            ),
            {"B": 2, "L": 300000},
        ),
        "attention": Base(
            _kernel(
                "q: bf16[B, H, L, D=64], k: bf16[B, H, S, D=64], v: bf16[B, H, S, D=64]) -> bf16[B, H, L, D=64]",
                "s = dot[D](q, k) * 0.125\n  p = softmax[S](where(index(S) <= index(L), s, -inf))\n"
                "  return dot[S](bf16(p), v)",
                "tile 128x128x64  stages 2  split_k 1",
            ),
            {"B": 1, "H": 2, "L": 300, "S": 300},
        ),
        "grouped": Base(
            _kernel(
                "x: bf16[T, D], w: bf16[E, F, D], offsets: i32[E+1]) -> bf16[T, F]",
                "return silu(dot[D](x, w[E = segment(T, offsets)]))",
                "warps pingpong  tile 64x64x64  cluster 2x1  stages 6",
            ),
            {"T": 300, "D": 136, "E": 4, "F": 136},
        ),
        "grouped direct": Base(
            _kernel(
                "x: f32[T, D], w: f32[E, F, D], offsets: i32[E+1]) -> f32[T, F]",
                "return dot[D](x, w[E = segment(T, offsets)])",
                "warps direct",
            ),
            {"T": 300, "D": 136, "E": 4, "F": 136},
        ),
        "direct": Base(
            _kernel(
                "x: f32[N, C, H, W], w: f32[C, R=3, S=3]) -> f32[N, C, P=H, Q=W]",
                "return dot[R, S](x[H = P + R - 1, W = Q + S - 1], w)",
                "warps direct  rows 4  threads 128  vector 4",
            ),
            {"N": 2, "C": 6, "H": 21, "W": 24},
        ),
        "im2col": Base(
            _kernel(
                "x: f16[N, H, W, C], w: f16[K, R=3, S=3, C], b: f32[K]) -> f16[N, P=H, Q=W, K]",
                "return relu(dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w) + b)",
                "warps cooperative  tile 64x64x64  stages 4",
            ),
            {"N": 2, "H": 14, "W": 14, "C": 72, "K": 72},
        ),
    }
)

_ENTRY = 'extern "C" int32_t ucc_'
_BEGIN = "namespace {"
_STORE = "store<kVector, 8>(p.t3 + o, out0);"
_MERGED = "    __syncthreads();\n    a[0] = of_row[threadIdx.x % kWarps];"
_SIZE = "    *workspace_size = size;"
_RESULT = "p.t1[o] = narrow<float>(wide0).value[0];"
_PARTIAL = "partials[l * kSplits + blockIdx.y] = r3[l];"
_NO_ERROR = "cudaError_t error = cudaSuccess;"
_TOTALS = "if (warp == 0) scan_totals<Op>(totals, look_back);\n  __syncthreads();"
_LAUNCHED = "if (error == cudaSuccess) return 0;"


def _line(text: str) -> Edit:
    """Puts a line where the kernel's own namespace begins."""
    return after(_BEGIN, text)


def _text(name: str, base: str, bug: str, edit: Edit, check: str) -> SourceEdit:
    return SourceEdit(name, base, bug, (edit,), (check,), "text")


def _built(name: str, base: str, bug: str, check: str, *edits: Edit) -> SourceEdit:
    return SourceEdit(name, base, bug, edits, (check,), "build")


def _wrong(name: str, base: str, bug: str, *edits: Edit, case: float = 30.0) -> SourceEdit:
    return SourceEdit(name, base, bug, edits, case=case)


def _honest(name: str, base: str, what: str, *edits: Edit) -> SourceEdit:
    return SourceEdit(name, base, what, edits, ())


_TEXTS = (
    _text("an entry of another name", "rows", "it is named run_..", change(_ENTRY, "ucc_", "run_"), "entry"),
    _text("an entry of C++", "scan", "its name is mangled", change(_ENTRY, 'extern "C" ', ""), "entry"),
    _text(
        "two entries", "parts", "which one?", _line('extern "C" int32_t ucc_b(void*) { return 0; }'), "entry"
    ),
    _text(
        "extents of 32 bits",
        "attention",
        "int for int64_t",
        change("void* const* tensors, int64_t const* e,", "int64_t const* e", "int const* e"),
        "signature",
    ),
    _text(
        "a parameter too few",
        "im2col",
        "no stream",
        change("uint64_t* workspace_size, void* cuda_stream)", ", void* cuda_stream", ""),
        "signature",
    ),
    _text("a header of the system", "pointwise", "#include", ("#include <cmath>", "#include <unistd.h>"), "include"),
    _text("a file as a header", "direct", "#include", ("#include <cmath>", '#include "/etc/passwd"'), "include"),
    _text("a file as data", "grouped direct", "#embed", after("#include <cstdint>", "#embed </etc/passwd>"), "directive"),
    _text(
        "a renamed function",
        "grouped",
        "a pragma redirects memcpy",
        after("#include <cstdint>", "#pragma redefine_extname memcpy system"),
        "directive",
    ),
    _text(
        "a constructor", "tma", "it runs before anybody asks", after("#include <cstdint>", "__attribute__((constructor)) static void early() {}"), "startup"
    ),
    _text(
        "a system call",
        "bias",
        "in assembly",
        _line('inline void pause_() { asm volatile("syscall" ::: "memory"); }'),
        "assembly",
    ),
    _text(
        "another module", "split", "the kernel lies elsewhere", _line("inline void f() { cuModuleLoadData(nullptr, nullptr); }"), "host-call"
    ),
    _text("the caller's end", "vector", "exit", ("return 1000 + int(error);", "exit(int(error));"), "host-call"),
    _text("text that shows otherwise", "rows", "a direction mark", after(_BEGIN, "// \u202e"), "encoding"),
)  # fmt: skip

_BUILDS = (
    _built(
        "a static object",
        "pointwise",
        "its constructor runs when the library is loaded",
        "startup",
        _line("volatile float one = 1.0f;\nfloat const factor_ = std::exp(one);"),
        (_LAUNCHED, "if (error == cudaSuccess && factor_ > 0.0f) return 0;"),
    ),
    _built(
        "a process",
        "rows",
        "std::system, which <cmath> brings along",
        "host-call",
        (_NO_ERROR, f'if (std::system("true") != 0) return 1;\n  {_NO_ERROR}'),
    ),
    _built(
        "the environment",
        "parts",
        "another kernel while somebody judges",
        "host-call",
        (_NO_ERROR, f'if (std::getenv("UCUTLASS_JUDGE") != nullptr) return 1;\n  {_NO_ERROR}'),
    ),
    _built(
        "a callback",
        "scan",
        "the host computes",
        "host-call",
        (_LAUNCHED, f"if (cudaLaunchHostFunc(stream, [](void*) {{}}, nullptr) != cudaSuccess) return 1;\n  {_LAUNCHED}"),
    ),
    _built(
        "another device",
        "pointwise",
        "the caller goes on elsewhere",
        "host-call",
        (_NO_ERROR, "cudaError_t error = cudaSetDevice(0);"),
    ),
    _built(
        "queries and keys as f16",
        "attention",
        "the instruction reads bf16 as f16",
        "precision",
        ("m64n128k16.f32.bf16.bf16", "m64n128k16.f32.f16.f16"),
    ),
    _built(
        "windows as e4m3",
        "im2col",
        "twice the elements an instruction",
        "precision",
        ("m64n64k16.f32.f16.f16", "m64n64k32.f32.e4m3.e4m3"),
        ("%32, %33, p, 1, 1, 0, 0;", "%32, %33, p, 1, 1;"),
    ),
    _built(
        "operands as bf16",
        "low",
        "the instruction reads f16 as bf16",
        "precision",
        change(
            '      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "',
            "m16n8k16.row.col.f32.f16.f16.f32",
            "m16n8k16.row.col.f32.bf16.bf16.f32",
        ),
    ),
    _built(
        "no fence before the store",
        "attention",
        "TMA may read what threads have not written yet",
        "fence",
        ("  fence_proxy_async();\n", ""),
    ),
    _built("no fence before a box", "grouped", "the same", "fence", ("      tma_store_fence();\n", "")),
    _built("no fence of the barriers", "im2col", "TMA may see them as they were", "fence", ("fence_mbarrier_init();", ";")),
    _built(
        "an answer too large",
        "parts",
        "more workspace than any GPU has",
        "workspace",
        (_SIZE, "    *workspace_size = ~uint64_t(0) >> 8;"),
    ),
    _built("no answer", "rows", "the workspace's size is not written", "workspace", (_SIZE, "")),
)  # fmt: skip

_REDUCTIONS = (
    _wrong("a row left out", "rows", "off by one", change("p.rows = (e[0]);", "(e[0])", "(e[0]) - 1")),
    _wrong("a row too many", "rows", "it writes beyond the result", change("p.rows = (e[0]);", "(e[0])", "(e[0]) + 2")),
    _wrong("no barrier in a sum", "rows", "race", change(_MERGED, "    __syncthreads();\n", "")),
    _wrong("one buffer for two sums", "two sums", "race", ("buffer ^= 1;", "")),
    _wrong("half of a warp", "rows", "lanes left out", ("int distance = kWidth / 2;", "int distance = kWidth / 4;")),
    _wrong("its own divisor", "rows", "the mean over 1000", ("/ p.extent0;", "/ 1000.0f;")),
    _wrong("no epsilon", "rows", "rows of equal elements are 0 / 0", change("+ 1e-05f;", "1e-05f", "0.0f")),
    _wrong(
        "the first call's answer", "rows", "later calls launch nothing",
        (_NO_ERROR, f"static bool launched = false;\n  if (launched) return 0;\n  launched = true;\n  {_NO_ERROR}"),
    ),
    _wrong(
        "an answer by address", "pointwise", "the same buffers launch nothing again",
        (_NO_ERROR, f"static void* last = nullptr;\n  if (last == tensors[0]) return 0;\n  last = tensors[0];\n  {_NO_ERROR}"),
    ),
    _wrong("a store beside its place", "rows", "a vector further on", change(_STORE, "p.t3 + o", "p.t3 + o + 8")),
    _wrong("a store to nowhere", "rows", "fault", change(_STORE, "p.t3 + o", "static_cast<__half*>(nullptr) + o")),
    _wrong("an input is written", "rows", "in place", after(_STORE, "store<kVector, 8>(const_cast<__half*>(p.t0) + o, out0);")),
    _wrong("a hang", "rows", "a thread spins", (_STORE, f"while (clock64() != 0) {{}}\n{_STORE}"), case=3.0),
    _wrong("a wait for nobody", "scan", "no part publishes its total", ("if (lane == 0) look_back.publish(look_back.part, 0, own);", ""), case=3.0),
    _wrong("extents of its own", "rows", "301 rows, however many there are", change("p.rows = (e[0]);", "(e[0])", "301")),
    _wrong("other extents served", "rows", "columns beyond 1024 are left out", ("if (!(p.columns == 128)) return 1;", "")),
    _wrong(
        "misaligned tensors served", "pointwise", "fault",
        *((f"if (reinterpret_cast<uintptr_t>(p.t{i}) % 16 != 0) return 1;", "") for i in range(3)),
    ),
    _wrong("beyond a tail", "pointwise", "threads past the last vector go on", ("bool const ok = row < int32_t(p.rows);", "bool const ok = true;")),
    _wrong("an ignored tail", "pointwise", "blocks are counted with the floor", ("ceil_div(p.rows, 256)", "p.rows / 256")),
    _wrong(
        "an approximate gelu", "pointwise", "by a sigmoid",
        ("float const v1 = ucc_gelu(v0);", "float const v1 = v0 / (1.0f + __expf(-1.702f * v0));"),
    ),
    _wrong("rounded products", "pointwise", "to a grid", ("float const v3 = v1 * v2;", "float const v3 = float(int(v1 * 2048.0f)) / 2048.0f * v2;")),
    _wrong("the last part left out", "parts", "off by one", ("part < kSplits;", "part < kSplits - 1;")),
    _wrong("a part from before", "parts", "every third block writes none", (_PARTIAL, f"if (blockIdx.y % 3 != 2) {_PARTIAL}")),
    _wrong("a result that adds up", "parts", "it is not cleared", change(_RESULT, " = ", " += ")),
    _wrong(
        "sums in any order", "parts", "atomics beside the clearing: race",
        (_PARTIAL, "{\n      if (blockIdx.y == 0) partials[l * kSplits].value = 0.0f;\n      __threadfence();\n"
         "      atomicAdd(&partials[l * kSplits].value, r3[l].value);\n"
         "      if (blockIdx.y > 0) partials[l * kSplits + blockIdx.y].value = 0.0f;\n      }"),
    ),
    _wrong("statuses from before", "scan", "the workspace is not cleared", ("= cudaMemsetAsync(workspace, 0, size, stream);", "= cudaSuccess;")),
    _wrong("a wait that looks once", "scan", "race between blocks", change("while (!status.ready()) status", "while", "if")),
    _wrong("no barrier after the totals", "scan", "race", change(_TOTALS, "\n  __syncthreads();", "")),
    _wrong("an exclusive scan", "scan", "off by one", ("scan<Add, false>", "scan<Add, true>")),
)  # fmt: skip

_PRODUCTS = (
    _wrong("a key too many", "attention", "the mask is off by one", change("p.above = int32_t(std::max(-kMaxExtent, above));", "above))", "above + 1))")),
    _wrong("a block of keys left out", "attention", "it is counted with the floor", change("(end + kTileN - 1) / kTileN", "(end + kTileN - 1)", "end")),
    _wrong("another scale", "attention", "scores are not scaled", ("p.scale = float(scale);", "p.scale = 1.4426950f;")),
    _wrong("half of a quad", "attention", "lanes left out of the sum", ("total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);", "")),
    _wrong(
        "no wait for the products", "attention", "scores are read while wgmma writes them",
        change("issue_qk(s, consumer.q_desc(), consumer.k_desc());\n    wgmma_wait_group<0>();", "\n    wgmma_wait_group<0>();", "\n    wgmma_commit_group();"),
    ),
    _built(
        "no barrier before the store", "attention", "TMA reads what is not all written", "fence",
        change("  fence_proxy_async();\n  named_barrier_sync<128>(kWarpGroupBarrier + group);", "\n  named_barrier_sync<128>(kWarpGroupBarrier + group);", ""),
    ),
    _built(
        "no barrier before a box", "grouped", "the same", "fence",
        change(
            "      tma_store_fence();\n      cutlass::arch::NamedBarrier::sync(128, threadIdx.x / 128);",
            "\n      cutlass::arch::NamedBarrier::sync(128, threadIdx.x / 128);", "",
        ),
    ),
    _wrong("rows of the next group", "grouped", "a whole box for the last rows", change("bool const full_box = m_atom + 64 <= work_tile.row_end;", "m_atom + 64 <= work_tile.row_end", "true")),
    _wrong("the last group left out", "grouped direct", "off by one", ("if (l == p.groups) {", "if (l + 1 == p.groups) {")),
    _wrong("rows beyond a group", "grouped direct", "they are another group's", ("if (m >= m_end || n >= p.n) {", "if (m >= p.m || n >= p.n) {")),
    _wrong("no barrier before the next tile", "grouped direct", "race", ("    __syncthreads();\n    k += depth;", "    k += depth;")),
    _wrong("no padding on the right", "direct", "windows reach into the next row", ("inside = inside && unsigned(at) < unsigned(extent[1]);", "")),
    _wrong("a tap too few", "direct", "the kernel is 2 wide", change("for (int t = 0; t < kTaps; ++t) {\n      at[1] = t;", "at[1] = t;", "at[1] = min(t, 1);")),
    _wrong("the last image left out", "im2col", "off by one", ("p.m = e[0] * e[7] * e[8];", "p.m = (e[0] > 1 ? e[0] - 1 : 1) * e[7] * e[8];"), ("phase.m = e[0];", "phase.m = e[0] > 1 ? e[0] - 1 : 1;")),
    _wrong("no bias", "im2col", "it is not read", ("read<AxisStride::kUnit, 4>(input0 + m * p.input0.m + n * p.input0.n, p.input0.n, count, in0);", "for (float& x : in0) x = 0.0f;")),
)  # fmt: skip

_TAKEN = (
    "last tile skipped",
    "tail columns unmasked",
    "weights shared over batches",
    "K residue dropped",
    "vector's K residue dropped",
    "infinity becomes NaN",
    "too little shared memory",
    "failed launch passed on as success",
    "no barrier in the main loop",
    "no barrier between parts",
    "right every other launch",
    "partial sums not initialised",
    "tma: rows of the last tile",
    "tma: no barrier in the combination",
)
"""Of the mutants of lowerings, of every kind that the edits above have not."""

_HONEST = (
    _honest("a renamed variable", "rows", "own_row", ("own_row", "row_of_block")),
    _honest("a shorter condition", "scan", "the entry's last lines", (_LAUNCHED, "if (!error) return 0;")),
    _honest("reordered stores", "rows", "the last words first", (
        "for (int i = 0; i < kCount; i += kStep) {\n    Bits bits;",
        "for (int i = kCount - kStep; i >= 0; i -= kStep) {\n    Bits bits;",
    )),
    _honest("other items", "parts", "two vectors in flight", ("constexpr int kItems = 4;", "constexpr int kItems = 2;")),
    _honest("another unroll", "im2col", "of the epilogue", ("#pragma unroll 2", "#pragma unroll 1")),
    _honest("another unroll of a loop", "grouped direct", "of K", ("#pragma unroll 4", "#pragma unroll 8")),
    _honest("larger blocks", "direct", "256 threads", ("kThreads = 128;", "kThreads = 256;")),
    _honest("another shuffle", "attention", "the other lane of a quad first", (
        "total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);\n    total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);",
        "total[r] += __shfl_xor_sync(0xffffffffu, total[r], 2);\n    total[r] += __shfl_xor_sync(0xffffffffu, total[r], 1);",
    )),
    _honest("another unroll of loads", "split", "of the main loop", ("#pragma unroll 1", "#pragma unroll 2")),
)  # fmt: skip


def _taken() -> tuple[SourceEdit, ...]:
    known: dict[str, Lowering] = {m.name: m for m in (*LOWERINGS, *HOPPER)}
    # Passes in TF32 are less than f32 to the check, whatever they add up to.
    checks = {"infinity becomes NaN": "precision"}
    return tuple(
        _built(name, known[name].base, known[name].bug, checks[name], *known[name].edits)
        if name in checks
        else _wrong(name, known[name].base, known[name].bug, *known[name].edits)
        for name in _TAKEN
    )


WRONG: tuple[SourceEdit, ...] = (*_TEXTS, *_BUILDS, *_REDUCTIONS, *_PRODUCTS, *_taken())
HONEST: tuple[SourceEdit, ...] = _HONEST


@functools.cache
def emitted(base: str) -> Source:
    """What is emitted today for a base, whatever GPU there is."""
    text = frontend.read_text(SOURCE_BASES[base].text)
    program = frontend.kernel(text)
    extents = complete(program, SOURCE_BASES[base].sizes)
    return source_of(text, program, frontend.plan_kernel(text, program, extents, ARCH).planned)


def edited(edit: SourceEdit) -> str:
    """The edited file. Raises EditStale."""
    return replaced(emitted(edit.base).text, edit.name, edit.edits)
