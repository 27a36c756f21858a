"""Compares an imported program with its module, both in float64 and without roundings of their own."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from ucutlass import ir
from ucutlass.importer.chain import ProgramChain
from ucutlass.importer.program import ImportedProgram, from_torch
from ucutlass.reference import evaluate
from ucutlass.reference.unrounded import unrounded
from ucutlass.runtime.module.reference import Widened, default_type

NEAR = 1e-9
"""Difference of two float64 results, of the largest number of the result or of 1."""


def difference(module: torch.nn.Module, *inputs: torch.Tensor) -> tuple[ImportedProgram, str]:
    """Returns the program, and where its results or the buffers that it writes differ from the module's, ""
    where they agree. Raises Unsupported."""
    program = from_torch(module, *inputs)
    wide = copy.deepcopy(module).double()
    with torch.no_grad(), default_type(torch.float64), Widened(torch.float64):
        expected: list[Any] = tree_leaves(wide(*(widened(x) for x in inputs)))
    buffers = dict(wide.named_buffers())
    expected += [buffers[path] for path in program.written]
    results = _results(program, [widened(t) for t in program.arguments(*inputs)])
    for number, (ours, theirs) in enumerate(zip(results, expected, strict=True)):
        if ours.shape != theirs.shape:
            return program, f"result {number} has the shape {tuple(ours.shape)}, not {tuple(theirs.shape)}"
        if ours.is_floating_point() != theirs.is_floating_point():
            return program, f"result {number} is of {ours.dtype}, not {theirs.dtype}"
        a, b = ours.double(), theirs.double()
        near = NEAR * max(1.0, float(b.nan_to_num(0, 0, 0).abs().max()))
        if not torch.allclose(a, b, rtol=NEAR, atol=near, equal_nan=True):
            most = float((a - b).abs().nan_to_num(0, 0, 0).max())
            return program, f"result {number} differs by {most}"
    return program, ""


def _results(program: ImportedProgram, arguments: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    kernel = program.kernel
    if not isinstance(kernel, ProgramChain):
        return evaluate(unrounded(kernel.program), arguments)
    calls = [partial(_exact, unrounded(link.program)) for link in kernel.programs]
    results = kernel.run(calls, arguments)
    return results if isinstance(results, tuple) else (results,)


def _exact(program: ir.Program, *arguments: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return evaluate(program, arguments)


def widened(x: torch.Tensor) -> torch.Tensor:
    return x.double() if x.is_floating_point() else x
