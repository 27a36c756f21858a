"""One training step by the backend on the CPU, whose loss, gradients and buffers are compared with float64's."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_leaves

from tests.dynamo.test_backend import compiled
from tests.importer.drawn_modules import Draft, Maker, Step
from tests.importer.float64_check import widened
from ucutlass.dynamo.backend import Outside, Report
from ucutlass.dynamo.partition import NO_WORK
from ucutlass.runtime.module.reference import Widened, default_type

NEAR = 2e-5
"""Difference from float64 of what has few roundings to f32, of the largest number of a tensor or of 1."""

WORSE = 20.0
"""How many times the difference of PyTorch's own f32 is allowed besides: another order of the same roundings."""


@dataclass(frozen=True, slots=True)
class TrainingStep:
    """Names and values after one step: `loss`, `gradient of NAME`, `buffer NAME`."""

    values: Mapping[str, torch.Tensor]


class NotTrained(Exception):
    """PyTorch itself does not differentiate a module."""


def loss_of(results: Any) -> torch.Tensor:
    """Returns a sum of all floating results in which each element has a factor of its own."""
    total = torch.zeros((), dtype=torch.float64)
    for y in tree_leaves(results):
        if isinstance(y, torch.Tensor) and y.is_floating_point() and y.requires_grad:
            factors = torch.linspace(0.5, 1.5, y.numel(), dtype=torch.float64).reshape(y.shape)
            total = total + (y.double() * factors).sum()
    return total


def trained(model: Callable[..., Any], module: nn.Module, inputs: Sequence[torch.Tensor]) -> TrainingStep:
    """Returns what one step of `model`, which calls the module, leaves behind. Random numbers begin anew."""
    torch.manual_seed(11)
    arguments = [x.clone().requires_grad_() if x.is_floating_point() else x for x in inputs]
    loss = loss_of(model(*arguments))
    if loss.requires_grad:
        loss.backward()  # type: ignore[no-untyped-call]
    leaves = {f"input {i}": x for i, x in enumerate(arguments) if x.requires_grad}
    leaves |= dict(module.named_parameters())
    values = {"loss": loss.detach()}
    values |= {f"gradient of {k}": x.grad.clone() for k, x in leaves.items() if x.grad is not None}
    values |= {f"buffer {k}": x.clone() for k, x in module.named_buffers()}
    return TrainingStep(values)


def training_difference(module: nn.Module, *inputs: torch.Tensor) -> tuple[Report, str]:
    """Returns the backend's report, and where a step differs from float64's by more than roundings, "" where it
    agrees. Raises NotTrained."""
    ours, eager, wide = copy.deepcopy(module), copy.deepcopy(module), copy.deepcopy(module).double()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            theirs = trained(eager, eager, inputs).values
        except (RuntimeError, NotImplementedError) as problem:
            raise NotTrained(str(problem)) from problem
        fast, report = compiled(ours)
        mine = trained(fast, ours, inputs).values
        with default_type(torch.float64), Widened(torch.float64):
            exact = trained(wide, wide, [widened(x) for x in inputs]).values
    # AOTAutograd gives zeros to inputs that only buffers depend on, eager nothing.
    nothing = {name for name in mine.keys() - exact.keys() if not mine[name].any()}
    if mine.keys() - nothing != exact.keys():
        return report, f"there are {sorted(mine)}, not {sorted(exact)}"
    for name, value in exact.items():
        if mine[name].shape != value.shape:
            return report, f"{name} has the shape {tuple(mine[name].shape)}, not {tuple(value.shape)}"
        a, e, b = mine[name].double(), theirs[name].double(), value.double()
        largest = b.nan_to_num(0, 0, 0).abs().max().clamp(min=1.0)
        bound = NEAR * largest + WORSE * (e - b).abs().nan_to_num(0, 0, 0).max()
        if not torch.allclose(a, b, rtol=0, atol=float(bound), equal_nan=True):
            return report, f"{name} differs by {float((a - b).abs().max())}, allowed {float(bound)}"
    return report, ""


def outside(report: Report) -> list[Outside]:
    """Returns the operators outside of programs that compute something."""
    return [o for graph in report.graphs for o in graph.outside if o.why not in NO_WORK]


# --- drawn steps ---------------------------------------------------------------------


def _dropout(d: Draft, i: int) -> Step | None:
    if d.state.random:
        return None
    d.state.random, p = True, d.pick([0.25, 0.5])
    return Step("dropout", (i,), (p,), lambda vs, m: F.dropout(vs[i], p, True))


def _embedding(d: Draft, i: int) -> Step | None:
    v = d.values[i]
    rows, width = d.pick([3, 5]), d.pick([1, 4])
    w = d.state.weight(rows, width)
    count = max(1, v.numel() // width)
    ids = torch.randint(0, rows, (count,), generator=d.state.generator)
    return Step("embedding", (i,), (rows, width), lambda vs, m: F.embedding(ids, m.weights[w]) * vs[i].mean())


TRAINING_STEPS: Mapping[str, Maker] = MappingProxyType({"dropout": _dropout, "embedding": _embedding})
"""Steps that a drawn module has besides those that inference is tested with."""
