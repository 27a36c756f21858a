"""Pipelines on the GPU: right at awkward extents, on poisoned memory, in graphs and from threads."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import ucutlass
from ucutlass import frontend, ir
from ucutlass.api import LoadedPipeline
from ucutlass.assembly import bind_stages
from ucutlass.diagnostics import ProgramError
from ucutlass.runtime import switches, verify
from ucutlass.runtime.arguments import NotContiguous, Overlap, WrongDevice
from ucutlass.runtime.inputs import generate

pytestmark = pytest.mark.gpu

ROOT = Path(__file__).parent.parent.parent

MLP = (ROOT / "examples" / "mlp.ucu").read_text()

CALLS = """
kernel linear(x: f16[M, K], w: f16[N, K], s: f32) -> f16[M, N] { return dot[K](x, w) * s }

pipeline calls(x: f16[T, D], up: f16[F, D], down: f16[D, F], s: f32) -> (y: f16[T, D], h: f16[T, F]) {
  a = linear(x, up, s)
  b = linear(a, down, 0.5)
  return y = b, h = a
}
"""

BRANCHES = """
pipeline branches(x: bf16[T, D], a: bf16[E, D], b: bf16[E, D], c: bf16[E, D]) -> bf16[T, T2=T] {
  p: bf16[T, E] = relu(dot[D](x, a))
  q: bf16[T, E] = dot[D](x, b)
  r: bf16[T, E] = dot[D](x, c)
  u: bf16[T, T2] = dot[E](p, q[T = T2])
  return dot[E](r, p[T = T2]) + u
}
"""

WITH_TORCH = """
pipeline mixed(x: f32[M, K], w: f32[N, K], v: f32[N, P]) -> f32[M, P] {
  f: f32[M, K] = torch.flip(x, dims=0)
  h: f32[M, N] = dot[K](tf32(f), tf32(w))
  return dot[N](tf32(h), tf32(v))
}
"""

STAGED = """
pipeline staged(x: bf16[T, D], up: bf16[F, D], down: bf16[D, F]) -> (y: bf16[T, D], p: bf16[T, F]) {
  h: bf16 = silu(dot[D](x, up))
  s: bf16[T, F] = softmax[F](h)
  return y = dot[F](h, down), p = s

  schedule sm90a for h when T > 300 { warps pingpong  tile 64x128x64 }
  schedule sm90a for h { warps multistage  tile 64x64x64 }
  schedule sm90a for s { threads 64  rows 2 }
  schedule sm90a for return y { tile 128x64x64 or 64x64x64 }
}
"""

FILLED = """
pipeline filled(x: f32[N, P]) -> f32[M, P] {
  ones: f32[M=7, N] = expand[M, N](1.0)
  twice: f32[N, P] = x * 2
  sums: f32[M, P] = torch.matmul(ones, twice)
  return sums + 1
}
"""
"""A stage without operands, read by a torch function."""

TEXTS = {
    "filled": FILLED,
    "mlp": MLP,
    "calls": CALLS,
    "branches": BRANCHES,
    "mixed": WITH_TORCH,
    "staged": STAGED,
}

SIZES: dict[str, tuple[dict[str, int], ...]] = {
    "mlp": ({"T": 512, "D": 256, "F": 1024}, {"T": 257, "D": 104, "F": 136}, {"T": 1, "D": 8, "F": 24}),
    "calls": ({"T": 384, "D": 256, "F": 512}, {"T": 131, "D": 72, "F": 61}),
    "branches": ({"T": 256, "D": 128, "E": 192}, {"T": 193, "D": 40, "E": 56}),
    "staged": ({"T": 384, "D": 256, "F": 512}, {"T": 131, "D": 72, "F": 136}),
    "filled": ({"N": 300, "P": 20}, {"N": 1, "P": 3}),
    "mixed": ({"M": 256, "N": 128, "K": 64, "P": 96}, {"M": 97, "N": 36, "K": 20, "P": 52}),
}

CASES = [(name, sizes) for name, every in SIZES.items() for sizes in every]
IDS = ["-".join([name, *map(str, sizes.values())]) for name, sizes in CASES]


def load(text: str) -> LoadedPipeline:
    kernel = ucutlass.loads(text)
    assert isinstance(kernel, LoadedPipeline)
    return kernel


def drawn(k: LoadedPipeline, sizes: Mapping[str, int], kind: Any = "normal", seed: int = 0) -> list[Any]:
    return list(generate(k.program, sizes, kind, seed=seed, device="cuda"))


def judged(k: LoadedPipeline, arguments: Sequence[Any]) -> verify.LaunchVerdict:
    """On poisoned, guarded results and workspace, stage by stage and as a whole."""
    k(*arguments)
    request, _, _ = k._request_of(*arguments)
    return verify.check(k.program, bind_stages(k.built[request]), arguments, repeats=4)


@pytest.mark.parametrize("kind", ["normal", "integer", "uniform"])
@pytest.mark.parametrize("name, sizes", CASES, ids=IDS)
def test_a_pipeline_is_right(name: str, sizes: Mapping[str, int], kind: str) -> None:
    k = load(TEXTS[name])
    verdict = judged(k, drawn(k, sizes, kind, seed=11))
    assert verdict.ok, str(verdict)


TASKS = {
    "d_linear_layer_norm_gelu": {"T": 301},
    "f_gemm_max_subtract_gelu": {},
    "g_cross_entropy": {},
    "i_swiglu_mlp": {"T": 200, "D": 256, "F": 384},
    "s_tril_matmul": {},
}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_right(task: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(switches.BUILD_PATH, "auto")  # nvcc alone multiplies no f32 by wgmma
    text = (ROOT / "examples" / "tasks" / f"task_{task}.ucu").read_text()
    k = load(text)
    try:
        verdict = judged(k, drawn(k, TASKS[task], seed=5))
    except ProgramError as problem:
        pytest.skip(f"a family is missing: {problem.diagnostics[0].message}")
    assert verdict.ok, str(verdict)


@pytest.mark.parametrize("name", TEXTS)
def test_calls_of_one_shape_agree_bitwise(name: str) -> None:
    """The first call goes through Python, later ones through the native launcher."""
    k = load(TEXTS[name])
    arguments = drawn(k, SIZES[name][0])
    first = k(*arguments)
    for _ in range(5):
        again = k(*arguments)
        for a, b in zip(_all(first), _all(again), strict=True):
            assert torch.equal(a, b)


def _all(results: Any) -> tuple[torch.Tensor, ...]:
    return results if isinstance(results, tuple) else (results,)


@pytest.mark.parametrize("name", TEXTS)
def test_a_call_can_be_captured(name: str) -> None:
    k = load(TEXTS[name])
    arguments = drawn(k, SIZES[name][0])
    expected = [r.clone() for r in _all(k(*arguments))]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = _all(k(*arguments))
    others = drawn(k, SIZES[name][0], seed=3)
    theirs = [r.clone() for r in _all(k(*others))]  # eager work on the same branches' streams in between
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, expected, strict=True))
    for held, new in zip(arguments, others, strict=True):
        if isinstance(held, torch.Tensor):
            held.copy_(new)
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(captured, theirs, strict=True))


def test_a_graph_takes_other_inputs() -> None:
    k = load(BRANCHES)
    sizes = SIZES["branches"][0]
    arguments, others = drawn(k, sizes), drawn(k, sizes, seed=9)
    graph = k.graph(*arguments)
    assert torch.equal(graph.replay(), k(*arguments))
    assert torch.equal(graph(*others), k(*others))
    assert graph.results.data_ptr() == graph(*others).data_ptr()


def test_results_can_be_given() -> None:
    k = load(CALLS)
    arguments = drawn(k, SIZES["calls"][0])
    y, h = k(*arguments)
    mine = torch.full_like(y, 7.0), torch.full_like(h, 7.0)
    assert k(*arguments, out=mine)[1] is mine[1]
    assert torch.equal(mine[0], y) and torch.equal(mine[1], h)
    with pytest.raises(Overlap):
        k(*arguments, out=(arguments[0], mine[1]))


def test_mistakes_launch_nothing() -> None:
    k = load(MLP)
    x, *rest = drawn(k, SIZES["mlp"][0])
    with pytest.raises(WrongDevice):
        k(x.cpu(), *rest)
    with pytest.raises(NotContiguous):
        k(x.t().contiguous().t(), *rest)


@pytest.mark.parametrize("name", ["mlp", "branches"])
def test_threads_on_streams_of_their_own(name: str) -> None:
    k = load(TEXTS[name])
    sets = [drawn(k, SIZES[name][0], seed=s) for s in range(4)]
    expected = [k(*arguments).clone() for arguments in sets]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                actual = k(*sets[number])
                torch.cuda.current_stream().synchronize()
                if not torch.equal(actual, expected[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


DEEP = ROOT / "tests" / "pipeline" / "programs" / "l3_03_deep_narrow_mlp.ucu"


def test_a_deep_pipeline_is_right_by_its_stages() -> None:
    """End to end the bound is wider than the results; the stages' own are not."""
    k = load(DEEP.read_text())
    arguments = drawn(k, {"M": 192, "A": 512, "D": 256, "N": 320}, seed=2)
    verdict = judged(k, arguments)
    assert verdict.ok, str(verdict)
    assert len(verdict.stages) == 17 and all(s.state == "right" for s in verdict.stages)
    assert not any(c.decided for c in verdict.comparisons)
    assert all(c.useless == 0 for s in verdict.stages for c in s.comparisons)
    alone = verify.check(k.program, k.judged(*arguments).entire, arguments)
    assert alone.state == "undecided"


def test_a_call_is_judged_with_its_stages() -> None:
    """The public call, through the native launcher, gives the bits of its stages one after the other."""
    k = load(WITH_TORCH)
    arguments = drawn(k, SIZES["mixed"][1])
    verdict = verify.check(k.program, k.judged(*arguments), arguments)
    assert verdict.ok, str(verdict)
    assert [s.torch for s in verdict.stages] == [True, False, False]


def test_stages_are_timed_and_torch_is_marked() -> None:
    k = load(WITH_TORCH)
    times = k.stage_times(*drawn(k, SIZES["mixed"][0]))
    assert [t.torch for t in times] == [True, False, False]
    assert all(0 < t.seconds < 1e-3 for t in times)


def test_unaligned_tensors_get_kernels_that_serve_them() -> None:
    k = load(MLP)
    x, *rest = drawn(k, SIZES["mlp"][0])
    room = torch.empty(x.numel() + 1, dtype=x.dtype, device="cuda")
    off = room[1:].view(x.shape).copy_(x)
    verdict = judged(k, [off, *rest])
    assert verdict.ok, str(verdict)
    assert len(k.built) == 1 and not next(iter(k.built)).aligned[0]


def test_a_checked_file_says_what_its_stages_are() -> None:
    program = frontend.program(frontend.read_text(BRANCHES))
    assert isinstance(program, ir.Pipeline)
    assert len(program.stages) == 5
