"""Both sides of equations on values, in float64, with the bounds that the reference derives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ucutlass import frontend, ir
from ucutlass.algebra.rule import AlgebraRule, Equation
from ucutlass.algebra.saturation import _head
from ucutlass.algebra.terms import Terms
from ucutlass.algebra.whole import new_graph, whole_program
from ucutlass.ir import Value
from ucutlass.reference.error_bounds import Inputs, analyse
from ucutlass.reference.interpreter import evaluate, open_call

F64_OF_F32 = 2.0**-25
"""A bound of f32 work, as one of float64 work: 2**-29 of the unit, and a reserve of 16."""


@dataclass(frozen=True, slots=True)
class Program:
    kernel: ir.Kernel
    terms: Terms
    roots: tuple[Value, ...]


def program(text: str) -> Program:
    kernel = frontend.kernel(frontend.read_text(text))
    terms = new_graph(kernel, 20_000)
    whole = whole_program(kernel, terms)
    return Program(kernel, terms, tuple(whole.stored[r] for r in whole.roots))


def equations(at: Program, rule: AlgebraRule, rounds: int = 1) -> list[Equation]:
    """Everything that a rule says of a program's graph, once and of what it said."""
    result: dict[tuple[int, int], Equation] = {}
    for _ in range(rounds):
        for _, members in at.terms.graph.classes():
            for term in members:
                if _head(term) in rule.heads or (_head(term)[0], "") in rule.heads:
                    for left, right in rule.apply(at.terms, term):
                        result[id(left), id(right)] = (left, right)
        for left, right in result.values():
            at.terms.graph.union(left, right, rule.name)
        at.terms.graph.rebuild()
    return list(result.values())


def arguments(kernel: ir.Kernel, seed: int, kind: str) -> list[Tensor]:
    """Values for a kernel's parameters. `ordinary` ones are about 1, `large` ones at most 40, of which exp is
    far from f32's end, `small` ones below 1e-3; `equal` ones are few integers, zeros of both signs among them, so that
    there are ties; `special` ones have infinities and NaN, `infinite` ones infinities."""
    generator = torch.Generator().manual_seed(seed)
    result = []
    for param in kernel.params:
        assert isinstance(param.type, ir.TensorType)
        shape = [_length(kernel, axis) for axis in param.type.axes]
        value = torch.randn(shape, generator=generator, dtype=torch.float64)
        if kind == "large":
            value = (value * 30).clamp(-40, 40)
        elif kind == "small":
            value = value * 1e-4
        elif kind == "equal":
            value = value.round()
        elif kind in ("special", "infinite"):
            choices = [0.0, -0.0, 1.0, -2.5, torch.inf, -torch.inf] + [torch.nan] * (kind == "special")
            at = torch.randint(len(choices), shape, generator=generator)
            value = torch.tensor(choices, dtype=torch.float64)[at]
        result.append(value.to(getattr(torch, param.type.elem.torch)))
    return result


def _length(kernel: ir.Kernel, axis: ir.MemoryAxis) -> int:
    length = 1
    for dim in axis.dims:
        length *= ir.extents.evaluate(kernel.dims[dim], {})
    return length


def apart(
    at: Program, pairs: Sequence[Equation], values: Sequence[Tensor], only_finite: bool = False
) -> list[str]:
    """Which equations do not hold on these values: where the distance of two finite values is beyond what
    rounding in float64 explains, or one is NaN or infinite and the other something else, unless only finite ones count.
    """
    call = open_call(at.kernel, values, {})
    sides = [side for pair in pairs for side in pair]
    computed = analyse(sides, Inputs(call, [None] * len(values)))
    wrong = []
    for pair, left, right in zip(pairs, computed[::2], computed[1::2], strict=True):
        dims = left.value.dims
        a, b = left.value.data.double(), _along(right.value, dims)
        bound = sum(
            _along(side.value.like(side.radius), dims) for side in (left, right) if side.radius is not None
        )
        same = (a == b) | (a.isnan() & b.isnan()) | ((a - b).abs() <= F64_OF_F32 * bound + 1e-300)
        if only_finite:
            same |= ~(a.isfinite() & b.isfinite())
        if not bool(same.all()):
            wrong.append(f"{pair[0]} != {pair[1]}: {a.flatten().tolist()} {b.flatten().tolist()}"[:2000])
    return wrong


def differ(one: Program, other: Program, values: Sequence[Tensor]) -> bool:
    """Whether the results of two programs of the same parameters differ on these values by more than rounding."""
    first, second = (evaluate(p.kernel, values) for p in (one, other))
    return any(
        not torch.allclose(a.double(), b.double(), rtol=1e-4, atol=1e-4, equal_nan=True)
        for a, b in zip(first, second, strict=True)
    )


def _along(value: object, dims: ir.Dims) -> Tensor:
    from ucutlass.reference.named_tensor import Named

    assert isinstance(value, Named)
    return value.data.double().permute([value.dims.index(d) for d in dims])
