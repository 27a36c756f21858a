"""Two derivations of the same counts: the graph counter, and formulas by hand for each family.

Every case names operations per compute type and bytes exactly. Where the formula of the books differs, the case
says why: element-wise work that may be folded into a neighbour is not counted, and a causal mask halves.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from pathlib import Path

import pytest

from tests.typed import check
from ucutlass.ir import Kernel, Program
from ucutlass.ir.hardware import DEVICES
from ucutlass.kernels.families import match
from ucutlass.kernels.gemm.match import GemmPattern
from ucutlass.kernels.gemm.problem import gemm_problem, shape_of
from ucutlass.shapes import complete
from ucutlass.sol import speed_of_light
from ucutlass.sol.bounds import bounds
from ucutlass.sol.eager import stages
from ucutlass.sol.program import compulsory

PROGRAMS = Path(__file__).parent.parent.parent / "examples" / "tasks"


def task(name: str) -> str:
    return next(PROGRAMS.glob(f"task_{name}_*.ucu")).read_text()


def program_of(text: str, **number: int) -> tuple[Program, dict[str, int]]:
    program = check(text).programs[-1]
    return program, dict(zip(program.dims, complete(program, number), strict=True))


@dataclass(frozen=True)
class Case:
    name: str
    text: str
    sizes: dict[str, int]
    operations: dict[str, int]
    read: int
    written: int


def triangle(n: int) -> int:
    return n * (n + 1) // 2


def padded(n: int) -> int:
    """Taps of a convolution of 3 with padding 1 over n that fall inside."""
    return 3 * n - 2


B, H, G, L, D = 4, 8, 4, 2048, 64
PAIRS = B * H * G * triangle(L)
ROWS = B * H * G * L

ATTENTION = """kernel attend(q: bf16[B, H, L, D], k: bf16[B, H, S, D], v: bf16[B, H, S, D])
-> bf16[B, H, L, D] {
  return dot[S](bf16(softmax[S](dot[D](q, k) * rsqrt(size(D)))), v)
}"""

CASES = (
    # relu and the bias cost nothing that a kernel must do apart: one addition of the residual stays.
    Case(
        "linear",
        task("a"),
        {},
        {"bf16": 2 * 8192 * 4096 * 1024, "f32": 8192 * 4096},
        2 * (8192 * 1024 + 4096 * 1024 + 4096 + 8192 * 4096),
        2 * 8192 * 4096,
    ),
    # 4 L S D per head for both products; exp once a pair, and n - 1 additions a row.
    Case(
        "attention",
        ATTENTION,
        {"B": 2, "H": 16, "L": 512, "S": 1024, "D": 128},
        {"bf16": 4 * 2 * 16 * 512 * 1024 * 128, "mufu": 2 * 16 * 512 * 1024, "f32": 2 * 16 * 512 * 1023},
        2 * 2 * 16 * 128 * (512 + 2 * 1024),
        2 * 2 * 16 * 512 * 128,
    ),
    # Causal: L (L + 1) / 2 pairs instead of L * L.
    Case(
        "causal attention, grouped",
        task("b"),
        {},
        {"bf16": 2 * 2 * PAIRS * D, "mufu": PAIRS, "f32": PAIRS - ROWS},
        2 * B * H * (G * L + 2 * L) * D,
        2 * B * H * G * L * D,
    ),
    # Two sums and the squares; scale and shift fold. rsqrt a row, and its epsilon.
    Case(
        "layer norm",
        task("c"),
        {},
        {"f32": 2 * 16384 * 4095 + 16384 * 4096, "mufu": 16384},
        2 * (16384 * 4096 + 2 * 4096),
        2 * 16384 * 4096,
    ),
    # 2 B K C (taps inside along H) (along W); batch norm folds into the weights.
    Case(
        "convolution",
        task("e"),
        {"B": 16, "H": 56, "W": 40},
        {"tf32x3": 2 * 16 * 128 * 64 * padded(56) * padded(40), "mufu": 128},
        4 * (16 * 64 * 56 * 40 + 128 * 64 * 9 + 5 * 128),
        4 * 16 * 128 * 56 * 40,
    ),
    # ConvTranspose2d(4, stride 2, padding 1): every input meets 4 taps less 1 at either edge.
    Case(
        "transposed convolution",
        task("l"),
        {"B": 8, "H": 32, "W": 24},
        {"tf32x3": 2 * 8 * 32 * 64 * (4 * 32 - 2) * (4 * 24 - 2), "mufu": 8 * 64 * 64 * 48},
        4 * (8 * 32 * 32 * 24 + 32 * 64 * 16 + 64 + 64),
        4 * 8 * 64 * 64 * 48,
    ),
    # 4 taps that look back: position l meets min(4, l + 1) of them; products and sums of each.
    Case(
        "depthwise causal convolution",
        task("m"),
        {"B": 2, "C": 64, "L": 100},
        {"f32": 2 * 64 * (2 * (4 * 100 - 6) - 100) + 2 * 64 * 100, "mufu": 2 * 64 * 100},
        2 * (2 * 64 * 100 + 64 * 4 + 64),
        2 * 2 * 64 * 100,
    ),
    # n - 1 additions along the scan.
    Case(
        "cumsum",
        "kernel c(x: f32[A, L, C]) -> f32[A, L, C] { return cumsum[L](x) }",
        {"A": 3, "L": 500, "C": 7},
        {"f32": 3 * 499 * 7},
        4 * 3 * 500 * 7,
        4 * 3 * 500 * 7,
    ),
    # An exclusive scan never reads the last element.
    Case(
        "exclusive cumsum",
        "kernel c(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x, exclusive=true) }",
        {"A": 3, "L": 500},
        {"f32": 3 * 498},
        4 * 3 * 499,
        4 * 3 * 500,
    ),
    Case(
        "rms norm over channels",
        task("k").replace("112", "7").replace("512", "32"),
        {},
        {"f32": 7 * 32 * 32 * (64 + 63), "mufu": 7 * 32 * 32},
        4 * 7 * 64 * 32 * 32,
        4 * 7 * 64 * 32 * 32,
    ),
    # Windows of 3 with stride 2 and padding 1 over an even extent n: 3 n/2 - 1 taps inside.
    Case(
        "average pooling",
        task("t"),
        {"N": 2, "C": 3, "H": 64, "W": 32},
        {"f32": 2 * 3 * (95 * 47 - 32 * 16) + 2 * 3 * 32 * 16},
        4 * 2 * 3 * 64 * 32,
        4 * 2 * 3 * 32 * 16,
    ),
    # One row of the table at least; the indices and the result whole.
    Case(
        "embedding",
        task("r"),
        {"V": 1000, "D": 64, "B": 8, "L": 16},
        {},
        2 * 64 + 8 * 8 * 16,
        2 * 8 * 16 * 64,
    ),
    # One expert's weights at least.
    Case(
        "grouped product",
        task("h").replace("2048", "128").replace("8192", "256"),
        {"T": 512, "E": 8},
        {"bf16": 2 * 512 * 128 * 256, "mufu": 512 * 256, "f32": 512 * 256},
        2 * (512 * 128 + 256 * 128) + 4 * 9,
        2 * 512 * 256,
    ),
    # n <= k <= m: n (n + 1) (n + 2) / 6 products of two triangles.
    Case(
        "triangular product",
        task("s").replace("4096", "256"),
        {},
        {"tf32x3": 2 * 256 * 257 * 258 // 6},
        4 * 2 * triangle(256),
        4 * 256 * 256,
    ),
    # Both products over one left operand, then the third; h is not stored.
    Case(
        "gated mlp",
        task("i"),
        {"T": 64, "D": 128, "F": 256},
        {"bf16": 3 * 2 * 64 * 128 * 256, "mufu": 64 * 256, "f32": 2 * 64 * 256},
        2 * (64 * 128 + 3 * 128 * 256),
        2 * 64 * 128,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_the_counter_agrees_with_the_formula(case: Case) -> None:
    program, sizes = program_of(case.text, **case.sizes)
    work = compulsory(program, sizes)
    assert dict(work.operations) == {compute_type: n for compute_type, n in case.operations.items() if n}
    assert (work.read, work.written) == (case.read, case.written)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_unfused_work_is_no_less_than_compulsory(case: Case) -> None:
    program, sizes = program_of(case.text, **case.sizes)
    work, parts = compulsory(program, sizes), stages(program, sizes)
    for compute_type, n in work.operations.items():
        assert sum(p.operations.get(compute_type, 0) for p in parts) >= n
    assert sum(p.read for p in parts) >= work.read
    assert sum(p.written for p in parts) >= work.written


def test_an_eager_framework_stores_every_operator() -> None:
    """bias + relu + residual: three more passes over the result, in bf16."""
    program, sizes = program_of(task("a"))
    result = 2 * 8192 * 4096
    assert [(p.label.split()[0], p.read, p.written) for p in stages(program, sizes)] == [
        ("dot[K]", 2 * 1024 * (8192 + 4096), result),
        ("add", result + 2 * 4096, result),
        ("relu", result, result),
        ("add", 2 * result, result),
    ]


GEMMS = {
    "plain": "kernel g(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }",
    "f32": "kernel g(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) }",
    "fp8": "kernel g(x: e4m3[M, K], w: e4m3[N, K], s: f32[]) -> bf16[M, N] { return s * dot[K](x, w) }",
    "epilogue": """kernel g(x: f16[M, K], w: f16[K, N], b: f16[N], r: f16[M, N])
        -> (y: f16[M, N], m: f32[M]) {
        h = gelu(dot[K](x, w) + b) + r
        return y = h, m = max[N](h) }""",
    "batched": "kernel g(x: bf16[B=4, M, K], w: bf16[B, N, K]) -> bf16[B, M, N] { return dot[K](x, w) }",
    "integer": "kernel g(x: s8[M, K], w: s8[N, K]) -> i32[M, N] { return dot[K](x, w) }",
    "vector": "kernel g(x: bf16[M, K], w: bf16[K]) -> f32[M] { return dot[K](x, w) }",
    "half": "kernel g(x: f16[M, K], w: f16[N, K]) -> f16[M, N] { return dot[K](x, w, acc=f16) }",
}


@pytest.mark.parametrize("device", ["A100-SXM4-80GB", "L40S", "H200", "B200"])
@pytest.mark.parametrize("name", GEMMS)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (16, 8192, 1024), (1000, 24, 72)])
def test_the_program_bound_is_the_problem_bound(name: str, shape: tuple[int, int, int], device: str) -> None:
    """The GEMM family's closed form, which never sees the program's graph, for every GEMM."""
    m, n, k = shape
    program, sizes = program_of(GEMMS[name], **({"M": m, "K": k} | ({"N": n} if name != "vector" else {})))
    assert isinstance(program, Kernel)
    extents = tuple(sizes[d] for d in program.dims)
    pattern, gpu = match(program), DEVICES[device]
    assert isinstance(pattern, GemmPattern)
    made = gemm_problem(pattern, extents)
    shape, light = shape_of(made, extents), speed_of_light(bounds(program, sizes, gpu))
    rates = ("f32", "tf32x3", "f16x3") if made.compute_type.name == "f32" else (made.compute_type.name,)
    peak = max((gpu.peaks[rate] for rate in rates if rate in gpu.peaks), default=gpu.peaks["f16"])
    moved = shape.operand_bytes + shape.epilogue_bytes
    assert (light.bytes, light.flops) == (moved, shape.flops)
    assert light.compute_seconds == pytest.approx(shape.flops / peak)
    assert light.memory_seconds == pytest.approx(moved / gpu.bandwidth)
    assert light.seconds == pytest.approx(max(light.compute_seconds, light.memory_seconds))
    assert light.limit == ("multiplications" if light.compute_seconds >= light.memory_seconds else "memory")
    assert light.intensity == pytest.approx(shape.flops / moved)
    assert light.ridge == pytest.approx(peak / gpu.bandwidth)


def test_the_same_value_in_two_launches_counts_once() -> None:
    text = """pipeline p(x: bf16[M, K], w: bf16[N, K]) -> (y: bf16[M, N], z: bf16[M, N]) {
      d = dot[K](x, w)
      a: bf16[M, N] = relu(d)
      return y = a, z = gelu(d)
    }"""
    program, sizes = program_of(text, M=64, N=32, K=16)
    assert compulsory(program, sizes).operations["bf16"] == 2 * 64 * 32 * 16


def test_what_a_pipeline_stores_between_launches_is_not_compulsory() -> None:
    program, sizes = program_of(task("d"), T=128)
    work = compulsory(program, sizes)
    assert work.read == 2 * (128 * 1024 + 4096 * 1024 + 3 * 4096)
    assert work.written == 2 * 128 * 4096


def test_torch_stages_count_their_bytes_and_matrix_products() -> None:
    text = """pipeline p(x: f32[M, K], y: f32[K, N]) -> f32[M, N] {
      h: f32[M, K] = relu(x)
      z: f32[M, N] = torch.matmul(h, y)
      return relu(z)
    }"""
    program, sizes = program_of(text, M=8, K=16, N=4)
    work = compulsory(program, sizes)
    assert work.operations["tf32x3"] == 2 * 8 * 16 * 4
    assert work.read == 4 * (8 * 16 + 16 * 4)
    assert [p.label for p in stages(program, sizes)][-1] == "torch.matmul (z)"


def test_launches_in_a_row_go_deeper_than_the_stack() -> None:
    step = f"{'exp(' * 40}{{}}{')' * 40}"
    lines = [f"h{i}: f32[M] = {step.format(f'h{i - 1}' if i else 'x')}" for i in range(50)]
    text = f"pipeline p(x: f32[M]) -> f32[M] {{\n {chr(10).join(lines)}\n return exp(h49) }}"
    program, sizes = program_of(text, M=4)
    assert compulsory(program, sizes).operations == {"mufu": 4 * (50 * 40 + 1)}


@pytest.mark.parametrize("file", sorted(PROGRAMS.glob("task_*.ucu")), ids=lambda p: p.stem)
def test_every_task_can_be_bounded_as_written(file: Path) -> None:
    for program in check(file.read_text()).programs:
        free = {d: 256 for d, e in program.dims.items() if type(e).__name__ == "Free"}
        sizes = dict(zip(program.dims, complete(program, free), strict=True))
        time_bounds = bounds(program, sizes, DEVICES["H200"])
        assert 0 < time_bounds.fused.seconds <= time_bounds.unfused.seconds
        assert time_bounds.fused.seconds < time_bounds.realistic.seconds
        most = bounds(program, sizes, DEVICES["H200"]).most
        assert most.read >= time_bounds.least.read
        assert time_bounds.least.written == sum(
            prod(sizes[d] for d in kind.dims) * kind.elem.bytes for _, kind in results(program)
        )


def results(program: Program) -> list[tuple[str, object]]:
    if isinstance(program, Kernel):
        return [(r.name, r.type) for r in program.results]
    return list(program.results)
