"""Scans of few long rows in one pass, on a GPU: the same bits at every launch, whatever runs beside it."""

from __future__ import annotations

import pytest
import torch

import ucutlass

pytestmark = pytest.mark.gpu

SCAN = "kernel k(x: f32[A, L]) -> f32[A, L] { return cumsum[L](x) SCHEDULE }"
DOWN = "kernel k(x: f32[L, C]) -> f32[L, C] { return cumsum[L](x, exclusive=true, reverse=true) SCHEDULE }"
COUNTS = "kernel k(x: i32[A, L]) -> i64[A, L] { return cumsum[L](x) SCHEDULE }"
ODD = "keep registers"  # the planner reads rows of odd lengths twice
SMALL = "keep registers  threads 32  items 1"

CASES = (
    (SCAN, ODD, (1, 10_000_019)),
    (SCAN, "", (1, 2**24)),
    (SCAN, ODD, (7, 1_000_003)),
    (SCAN, ODD, (131, 65_537)),
    (SCAN, SMALL, (1, 2_000_003)),
    (SCAN, SMALL, (5, 400_009)),
    (DOWN, "", (1_000_003, 8)),
    (DOWN, "", (100_003, 77)),
    (DOWN, "keep registers  threads 2  rows 16  items 1", (50_021, 33)),
    (COUNTS, ODD, (1, 5_000_011)),
    (COUNTS, SMALL, (3, 300_007)),
)
LAUNCHES = 200


@pytest.fixture(scope="module", autouse=True)
def gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU")


def drawn(program: str, shape: tuple[int, int], seed: int) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    if program == COUNTS:
        return torch.randint(-(2**31), 2**31, shape, generator=generator, device="cuda", dtype=torch.int32)
    return torch.randn(shape, generator=generator, device="cuda")


def exactly(program: str, x: torch.Tensor) -> torch.Tensor:
    if program != DOWN:
        return x.to(torch.int64 if program == COUNTS else torch.float64).cumsum(1)
    later = x.double().flip(0).cumsum(0).flip(0)
    return later - x.double()


def kernel_of(program: str, fields: str) -> ucutlass.api.LoadedProgram:
    return ucutlass.loads(program.replace("SCHEDULE", f"schedule sm90a {{ {fields} }}" if fields else ""))


@pytest.mark.parametrize(("program", "fields", "shape"), CASES)
def test_many_inputs_are_right(program: str, fields: str, shape: tuple[int, int]) -> None:
    kernel = kernel_of(program, fields)
    for seed in range(10):
        x = drawn(program, shape, seed)
        out, expected = kernel(x), exactly(program, x)
        if program == COUNTS:
            assert torch.equal(out, expected)
            continue
        # Far wider than rounding, far narrower than one part that is lost or counted twice.
        size = x.double().abs().sum(1 if program == SCAN else 0).max()
        assert float((out.double() - expected).abs().max()) < 1e-6 * float(size)


@pytest.mark.parametrize(("program", "fields", "shape"), CASES)
def test_many_launches_give_the_same_bits(program: str, fields: str, shape: tuple[int, int]) -> None:
    """One after another on two streams at a time: fewer SMs and other orders of blocks than alone."""
    kernel = kernel_of(program, fields)
    inputs = [drawn(program, shape, seed) for seed in (1, 2)]
    expected = [kernel(x).clone() for x in inputs]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    wrong = torch.zeros(2, dtype=torch.int64, device="cuda")
    torch.cuda.synchronize()
    for _ in range(LAUNCHES):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                wrong[i] += (kernel(inputs[i]) != expected[i]).sum()
    torch.cuda.synchronize()
    assert wrong.tolist() == [0, 0]


def test_a_captured_launch_repeats() -> None:
    """The places are cleared within the graph, not once."""
    kernel, x = kernel_of(SCAN, ODD), drawn(SCAN, (2, 3_000_017), 5)
    expected = kernel(x).clone()
    out = torch.empty_like(expected)
    kernel(x, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, out=out)
    for _ in range(20):
        out.fill_(torch.nan)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(out, expected)
