"""Softmax of huge numbers, emulated: exact inputs of attention and of reductions, and how far results are off."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from tests.emit import emulator, plan_reference
from tests.emit.harness import HOST_SHIM
from ucutlass import frontend, ir
from ucutlass.backend import source_of
from ucutlass.kernels.gemm.plan import LaunchParameters
from ucutlass.kernels.planned import Planned
from ucutlass.reference import expect
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete

Scores: TypeAlias = Literal["positive", "negative", "both", "rising", "falling", "rows", "ordinary"]
SIGNS = {"positive": (1.0, 1.0), "negative": (-1.0, 1.0), "both": (0.0, 0.0)}


def operands(
    q: Tensor, k: Tensor, scores: Scores, tokens: tuple[int, int], seed: int
) -> tuple[Tensor, Tensor]:
    """Queries and keys, the shapes and elements of those given, whose products add up exactly in float32.

    `positive`, `negative`, `both`: multiples of 128 between 2**14 and 2**15, so that scores reach D * 2**30.
    `rising`, `falling`: keys one after another differ by a few units in the last place of the score; eight
    powers of two of rows, of both signs, and four of keys, each of 100, take score times scale of 64
    elements from 2**20 to 2**30.2, rising or falling with the key. `tokens` are the axes of their tokens."""
    draw = torch.Generator().manual_seed(seed)
    if scores in SIGNS:
        made = []
        for x, sign in zip((q, k), SIGNS[scores], strict=True):
            size = torch.randint(128, 256, x.shape, generator=draw) * 128.0
            signs = torch.randint(0, 2, x.shape, generator=draw) * 2.0 - 1.0
            made.append((size * (sign or signs)).to(x.dtype))
        return made[0], made[1]
    return _edge_queries(q, tokens[0]), _edge_keys(k, tokens[1], scores == "falling", draw)


def _edge_queries(q: Tensor, token: int) -> Tensor:
    """Half a head times keys' 200 or so gives the score, the last element its last places."""
    at = torch.arange(q.shape[token]).reshape([-1 if i == token else 1 for i in range(q.ndim)])
    sign = torch.where(at % 3 == 1, -1.0, 1.0)
    zeros = torch.zeros_like(q, dtype=torch.float64)
    zeros[..., :32] = 2.0**14
    zeros[..., -1] = 2.0**3
    return (zeros * sign * 2.0 ** -(at % 8)).to(q.dtype)


def _edge_keys(k: Tensor, token: int, falling: bool, draw: torch.Generator) -> Tensor:
    at = torch.arange(k.shape[token]).reshape([-1 if i == token else 1 for i in range(k.ndim)])
    zeros = torch.zeros_like(k, dtype=torch.float64)
    zeros[..., :32] = 200.0 * 2.0**6  # 2**19 * 200 * 2**6 = 2**32.6, whose last place is 2**9
    zeros[..., -1] = 2.0**6 * torch.randint(-9, 10, k.shape[:-1], generator=draw)
    power = at // 100 % 4 - (0 if falling else 3)
    return (zeros * 2.0 ** (-power if falling else power).to(torch.float64)).to(k.dtype)


def rows(x: Tensor, draw: torch.Generator) -> Tensor:
    """Numbers a few units in the last place of float32 apart, of two powers of two and a sign for each
    index of the first axis: 2**20 to 2**37. Of a narrow element, such numbers rounded to it."""
    at = torch.arange(x.shape[0]).reshape([-1, *[1] * (x.ndim - 1)])
    steps = torch.randint(-9, 10, x.shape, generator=draw) + 12_000_000.0
    power = torch.randint(0, 2, x.shape, generator=draw) + at % 18 - 4
    return (steps.double() * 2.0**power * torch.where(at % 5 > 2, -1.0, 1.0)).to(x.dtype)


def arguments_of(kernel: ir.Kernel, sizes: dict[str, int], scores: Scores, seed: int) -> list[Any]:
    """Arguments with such queries and keys, or such rows; a bias gets whole numbers to 2**34."""
    arguments = generate(kernel, sizes, "normal", seed=seed)
    if scores == "ordinary":
        return arguments
    if scores == "rows":
        arguments[0] = rows(arguments[0], torch.Generator().manual_seed(seed))
        return arguments
    for i, p in enumerate(kernel.params):
        if p.name == "b":
            draw = torch.Generator().manual_seed(seed + 1)
            arguments[i] = torch.randint(-(2**20), 2**20, arguments[i].shape, generator=draw) * 2.0**14
    q, k = arguments[:2]
    tokens = (q.shape.index(sizes["L"]), k.shape.index(sizes.get("S", sizes["L"])))
    arguments[:2] = operands(q, k, scores, tokens, seed)
    return arguments


def emulate_here(
    program: str, sizes: dict[str, int], scores: Sequence[Scores], seed: int
) -> list[dict[str, Any]]:
    """What a program's emulated kernel gives for each of `scores`, for `isolate`: `missing` results that are
    not finite where the reference is, `error` the others' greatest distance from the float64 reference over
    the greatest of attention's values, or of a reduction's results."""
    torch.set_num_threads(1)
    checked = frontend.read_text(program)
    kernel = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, kernel, complete(kernel, sizes), "sm90a").planned
    source = source_of(checked, kernel, planned)
    source = replace(source, text=f"#include <cmath>\n{HOST_SHIM}{source.text}")
    with tempfile.TemporaryDirectory(prefix="huge-") as folder:
        entry = emulator.build(source, Path(folder))
    return [_result(entry, kernel, planned, sizes, score, seed) for score in scores]


def _result(
    entry: Any, kernel: ir.Kernel, planned: Planned, sizes: dict[str, int], scores: Scores, seed: int
) -> dict[str, Any]:
    arguments = arguments_of(kernel, sizes, scores, seed)
    (expected,) = expect(kernel, arguments)
    out = torch.full(expected.reference.shape, -7.0, dtype=arguments[0].dtype)
    addresses = [t.data_ptr() for t in (*arguments, out)]
    code = plan_reference.call(
        entry, addresses, planned.sizes, [], LaunchParameters(*planned.launch), "cpu", 0
    )
    if code:
        raise RuntimeError(f"the entry returned {code}")
    reference, actual = expected.reference, out.double()
    there = reference.isfinite()
    missing = int((there & ~actual.isfinite()).sum())
    unit = reference[there] if scores == "rows" else arguments[2].double()
    error = ((actual - reference).abs() / unit.abs().max())[there & actual.isfinite()]
    return {"missing": missing, "error": float(error.max()) if len(error) else 0.0}
