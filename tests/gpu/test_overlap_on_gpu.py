"""Kernels that begin while the stream's kernel before them ends: what each reads and overwrites is as if it
had waited, whoever wrote it."""

from __future__ import annotations

import pytest
import torch

import ucutlass
from ucutlass.api import LoadedKernel
from ucutlass.ir import TensorType
from ucutlass.reference.rounding import outer_dtype
from ucutlass.runtime import switches

pytestmark = [pytest.mark.gpu, pytest.mark.nvcc]

STEPS = 96
SCHEDULES = {
    "pingpong": ("bf16", "warps pingpong  tile 64x64x64"),
    "cluster": ("f16", "warps pingpong  tile 64x128x64  cluster 2x1"),
    "cooperative": ("bf16", "warps cooperative  tile 128x128x64  cluster 1x2"),
    "stream-K": ("bf16", "warps cooperative  tile 128x128x64  split_k stream"),
    "tf32x3": ("f32", "warps cooperative  tile 128x128x32"),
}
SIZES = (192, 640, 1536)


@pytest.fixture(params=SCHEDULES)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> LoadedKernel:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is of compute capability 9.0")
    monkeypatch.setenv(switches.BUILD_PATH, "auto")
    compute_type, schedule = SCHEDULES[request.param]
    return ucutlass.loads(
        f"kernel k(x: {compute_type}[M, K], w: {compute_type}[N, K], b: {compute_type}[N], r: {compute_type}[M, N]) -> {compute_type}[M, N] "
        f"{{ return dot[K](x, w) + b + r\n  schedule sm90a {{ {schedule} }} }}"
    )


def buffers(kernel: LoadedKernel, size: int) -> list[torch.Tensor]:
    torch.manual_seed(size)
    kind = kernel.program.params[0].type
    assert isinstance(kind, TensorType)
    made = [torch.randn(size, size, device="cuda") / size**0.5 for _ in range(4)]
    return [t.to(outer_dtype(kind.elem)) for t in made]


def chain(kernel: LoadedKernel, size: int, waits: bool) -> list[torch.Tensor]:
    """Each launch reads what the two before it wrote and writes over what the third reads; the vector and the
    weights come from torch's kernels between them."""
    w, *ring = buffers(kernel, size)
    for i in range(STEPS):
        x, r, out = (ring[(i + j) % 3] for j in range(3))
        b = x[i % size] * 0.5
        if i % 5 == 0:
            w.mul_(-1)
        kernel(x, w, b, r, out=out)
        if waits:
            torch.cuda.synchronize()
        out.mul_(0.5)
        if waits:
            torch.cuda.synchronize()
        kernel(out, w, b, x, out=r)
        kernel(r, w, b, out, out=x)
        if waits:
            torch.cuda.synchronize()
        for t in (x, r):
            t.div_(t.abs().amax().clamp(min=1))
    torch.cuda.synchronize()
    return [w, *ring]


@pytest.mark.parametrize("size", SIZES)
def test_a_chain_is_as_if_each_had_waited(kernel: LoadedKernel, size: int) -> None:
    expected = chain(kernel, size, waits=True)
    assert all(t.isfinite().all() for t in expected)
    for _ in range(4):
        for actual, wanted in zip(chain(kernel, size, waits=False), expected, strict=True):
            assert torch.equal(actual, wanted)


@pytest.mark.parametrize("size", SIZES)
def test_so_is_one_in_a_graph(kernel: LoadedKernel, size: int) -> None:
    w, x, r, out = buffers(kernel, size)
    b = w[0].contiguous()

    def launch() -> None:
        for _ in range(8):
            kernel(x, w, b, r, out=out)
            kernel(out, w, b, x, out=r)
            kernel(r, w, b, out, out=x)

    first = [t.clone() for t in (x, r, out)]
    launch()
    torch.cuda.synchronize()
    expected = [t.clone() for t in (x, r, out)]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch()
    for _ in range(8):
        for t, start in zip((x, r, out), first, strict=True):
            t.copy_(start)
        graph.replay()
        torch.cuda.synchronize()
        assert all(torch.equal(t, e) or e.isnan().any() for t, e in zip((x, r, out), expected, strict=True))


SMALL = {
    "element-wise": "kernel k(x: bf16[M, N], y: bf16[M, N]) -> bf16[M, N] { return x * 0.5 - y * 0.5 }",
    "transposed": "kernel k(x: bf16[M, N], y: bf16[N, M]) -> bf16[M, N] { return x * 0.5 - y * 0.5 }",
    "rows": "kernel k(x: bf16[M, N], y: bf16[M, N]) -> bf16[M, N] { return softmax[N](x) - y * 0.5 }",
    "columns": "kernel k(x: bf16[M, N], y: bf16[M, N]) -> bf16[M, N] { return x * 0.5 - mean[M](y) }",
}


@pytest.mark.parametrize("size", (64, 328, 1536))
@pytest.mark.parametrize("name", SMALL)
def test_small_kernels_wait_for_one_another_and_for_products(name: str, size: int) -> None:
    small = ucutlass.loads(SMALL[name])
    product = ucutlass.loads("kernel p(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }")
    torch.manual_seed(size)
    start = [(torch.randn(size, size, device="cuda") / size**0.5).bfloat16() for _ in range(4)]

    def chained(waits: bool) -> list[torch.Tensor]:
        w, *ring = (t.clone() for t in start)
        for i in range(STEPS):
            x, y, out = (ring[(i + j) % 3] for j in range(3))
            steps = ((small, x, y, out), (small, out, x, y), (product, y, w, x), (small, x, out, y))
            for launched, first, second, result in steps[: 3 + i % 2]:
                launched(first, second, out=result)
                if waits:
                    torch.cuda.synchronize()
        torch.cuda.synchronize()
        return ring

    expected = chained(waits=True)
    assert all(t.isfinite().all() for t in expected)
    for _ in range(4):
        assert all(torch.equal(a, b) for a, b in zip(chained(waits=False), expected, strict=True))
