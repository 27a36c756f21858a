"""A value goes after its last use."""

from __future__ import annotations

import pytest
import torch

from tests.reference.counting import counted
from ucutlass import frontend, ir
from ucutlass.reference import expect
from ucutlass.reference.liveness import sources, steps


def kernel(text: str) -> ir.Kernel:
    program = frontend.program(frontend.read_text(f"kernel k{text}\n"))
    assert isinstance(program, ir.Kernel)
    return program


SHARED = (
    "(x: bf16[A, M], w: bf16[N, R=3], i: i64[P=M-2]) -> (y: bf16[A, P, N], z: f32[A, M]) {\n"
    "  c = x * x\n  d = dot[R](x[M = P + R], w)\n"
    "  return y = d + f32(i), z = f32(x) + f32(c) }"
)


def test_every_value_comes_once_after_its_sources_and_goes_after_its_last_use() -> None:
    roots = [r.value for r in kernel(SHARED).results]
    known: set[ir.Value] = set()
    seen: list[ir.Value] = []
    for node, ending in steps(roots):
        assert set(sources(node)) <= known and node not in seen
        seen.append(node)
        known.add(node)
        known -= set(ending)
    assert known == set(roots)
    assert not any(isinstance(node, ir.Read) for node in seen)  # the dot reads through it


def _chain(length: int, result: str) -> str:
    lines = "".join(f"  v{i} = v{i - 1} * 0.5 + x\n" for i in range(1, length))
    last = f"sum[A, L](v{length - 1})" if result == "f32[]" else f"v{length - 1}"
    return f"(x: f32[A, L]) -> {result} {{\n  v0 = x\n{lines}  return {last} }}"


@pytest.mark.parametrize("result", ["f32[A, L]", "f32[]"])
def test_memory_does_not_grow_with_the_length_of_a_chain(result: str) -> None:
    def peak(length: int) -> int:
        program = kernel(_chain(length, result))
        x = torch.randn(64, 64)
        return counted(lambda: expect(program, [x]), 64 * 64).peak

    array = 64 * 64 * 8
    assert peak(40) < peak(4) + 2 * array  # one may hide behind the storage of another
