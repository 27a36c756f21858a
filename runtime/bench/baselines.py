"""Makes the baselines of a kernel: PyTorch's eager and compiled forms, and the product of cuBLAS alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ucutlass import ir
from ucutlass.ir.elements import BF16
from ucutlass.runtime.bench.bench_device import Outputs
from ucutlass.runtime.bench.eager import NotAvailable, dots, eager
from ucutlass.runtime.bench.outcome import BenchCandidate
from ucutlass.runtime.bench.workload import Buffers, bytes_of


def baseline(name: str, buffers: Buffers, sizes: Mapping[str, int], device: str = "cuda") -> BenchCandidate:
    """Returns the baseline of this name (a key of `BASELINES`) on these buffers; `sizes` has every
    dimension.

    Raises NotAvailable, and what torch raises.
    """
    return _MAKERS[name](name, buffers, sizes, device)


def _eager(name: str, buffers: Buffers, sizes: Mapping[str, int], device: str) -> BenchCandidate:
    return _module(name, eager(buffers.program, sizes, device), buffers, buffers.program, sizes)


def _compiled(name: str, buffers: Buffers, sizes: Mapping[str, int], device: str) -> BenchCandidate:
    module = eager(buffers.program, sizes, device)
    compiled = torch.compile(module, fullgraph=True, dynamic=False, mode=_MODES[name])
    return _module(name, compiled, buffers, buffers.program, sizes)


_MODES: Mapping[str, str] = {"compile": "default", "compile-max-autotune": "max-autotune-no-cudagraphs"}


def _module(
    name: str, module: Callable[..., Any], buffers: Buffers, program: ir.Program, sizes: Mapping[str, int]
) -> BenchCandidate:
    def launch(at: int) -> Outputs:
        outputs: Outputs = module(*buffers.arguments[at])
        return outputs

    moved = bytes_of(buffers.arguments[0]) + bytes_of(launch(0))
    return BenchCandidate(name, launch, buffers.loose(program), moved)


# --- the bare product ----------------------------------------------------------------


def product_alone(kernel: ir.Kernel) -> ir.Kernel:
    """Returns the kernel's one dot alone, in its operands' type (s32 for s8), named axes in its own order.

    Raises NotAvailable where there is not one dot, or it is not of parameters.
    """
    dot_nodes = dots(kernel)
    if len(dot_nodes) != 1:
        raise NotAvailable(f"the bare product of a kernel with {len(dot_nodes)} dots")
    (dot,) = dot_nodes
    for side in (dot.left, dot.right):
        if not isinstance(_stripped(side), ir.ParamValue):
            raise NotAvailable("the bare product of computed operands")
    elem = dot.elem if dot.elem.kind == "int" else _stripped(dot.left).elem
    axes = tuple(ir.MemoryAxis((d,), kernel.dims[d]) for d in dot.dims)
    result = ir.ResultDecl("", ir.TensorType(elem, axes), dot)
    return replace(kernel, results=(result,), schedules=(), requires=())


def _stripped(value: ir.Value) -> ir.Value:
    return value.value if isinstance(value, ir.Cast) and value.elem.name == "tf32" else value


def _cublas(name: str, buffers: Buffers, sizes: Mapping[str, int], device: str) -> BenchCandidate:
    if not isinstance(buffers.program, ir.Kernel):
        raise NotAvailable("the bare product of a pipeline")
    kernel = product_alone(buffers.program)
    dot = kernel.results[0].value
    assert isinstance(dot, ir.Dot)
    if dot.compute_type.name in ("e4m3", "e5m2", "s8"):
        # torch's products of these have no out=, and fp8 ones give bf16.
        loosened = replace(kernel, results=(_as_torch_gives(kernel.results[0]),))
        return _module(name, eager(loosened, sizes, device), buffers, loosened, sizes)
    sides = [_matrices(kernel, dot, side, sizes, buffers) for side in (dot.left, dot.right)]
    product, order = _product(dot)
    shape = [[sizes[d] for d in group] for group in order]
    outs = [
        torch.empty([_count(g) for g in shape], dtype=sides[0][0].dtype, device=device)
        for _ in range(buffers.sets)
    ]

    def launch(at: int) -> Outputs:
        product(sides[0][at], sides[1][at], out=outs[at])
        return (outs[at],)

    near = buffers.loose(kernel)
    flat = [d for group in order for d in group]

    def check(at: int, outputs: Outputs) -> str:
        wide = outputs[0].reshape([sizes[d] for d in flat])
        return near(at, (wide.permute([flat.index(d) for d in dot.dims]),))

    moved = sum(bytes_of([side[0]]) for side in sides) + bytes_of([outs[0]])
    return BenchCandidate(name, launch, check, moved)


def _as_torch_gives(result: ir.ResultDecl) -> ir.ResultDecl:
    elem = result.type.elem if result.type.elem.kind == "int" else BF16
    return replace(result, type=replace(result.type, elem=elem))


def _product(dot: ir.Dot) -> tuple[Callable[..., Any], tuple[tuple[str, ...], ...]]:
    """torch's product, and the dimensions that each of its result's axes holds."""
    batch = tuple(d for d in dot.dims if d in dot.left.dims and d in dot.right.dims)
    m = tuple(d for d in dot.left.dims if d not in dot.over and d not in batch)
    n = tuple(d for d in dot.right.dims if d not in dot.over and d not in batch)
    if batch and not (m and n):
        raise NotAvailable("a batched product with a vector")
    if not m:
        raise NotAvailable("a product whose left operand is a vector")
    if batch:
        return torch.bmm, (batch, m, n)
    return (torch.mm, (m, n)) if n else (torch.mv, (m,))


def _matrices(
    kernel: ir.Kernel, dot: ir.Dot, side: ir.Value, sizes: Mapping[str, int], buffers: Buffers
) -> list[Tensor]:
    """Returns a dot's operand in every set, as (batch,) m, k or (batch,) k, n: a view of the parameter."""
    param = _stripped(side)
    assert isinstance(param, ir.ParamValue)
    kind = kernel.params[param.index].type
    assert isinstance(kind, ir.TensorType)
    batch, *groups = _groups(dot, side)
    matrices = []
    for arguments in buffers.arguments:
        tensor = arguments[param.index]
        assert isinstance(tensor, Tensor)
        named = tensor.view([sizes[d] for d in kind.dims])
        wide = named.permute([kind.dims.index(d) for d in (*batch, *groups[0], *groups[1])])
        shape = [[sizes[d] for d in g] for g in ((batch, *groups) if batch else groups)]
        try:
            matrices.append(wide.view([_count(g) for g in shape if g]))
        except RuntimeError as error:
            raise NotAvailable(f"{kernel.params[param.index].name} is not a matrix without a copy") from error
    return matrices


def _groups(dot: ir.Dot, side: ir.Value) -> tuple[tuple[str, ...], ...]:
    batch = tuple(d for d in dot.dims if d in dot.left.dims and d in dot.right.dims)
    own = tuple(d for d in side.dims if d not in dot.over and d not in batch)
    return (batch, own, dot.over) if side is dot.left else (batch, dot.over, own)


def _count(extents: list[int]) -> int:
    count = 1
    for extent in extents:
        count *= extent
    return count


_MAKERS: Mapping[str, Callable[[str, Buffers, Mapping[str, int], str], BenchCandidate]] = MappingProxyType(
    {"eager": _eager, "compile": _compiled, "compile-max-autotune": _compiled, "cublas": _cublas}
)

BASELINES: Mapping[str, str] = MappingProxyType(
    {
        "eager": "the program in plain torch operations, in its operands' types",
        "compile": "the same through torch.compile",
        "compile-max-autotune": "the same through torch.compile, mode max-autotune-no-cudagraphs",
        "cublas": "the bare product, without what the kernel does around it (torch.mm, bmm, mv)",
    }
)
"""Name to meaning."""
