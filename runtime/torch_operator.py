"""Registers a kernel as a torch operator, for torch.compile, torch.export and fake tensors.

The direct call `k(x, w, b)` stays the quicker one in eager code: an operator passes torch's
dispatcher first.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ucutlass.reference.packing import dtypes_of
from ucutlass.runtime.arguments import WrongCount, WrongDtype, bind
from ucutlass.runtime.launch_spec import LaunchSpec, ScalarSlot, TensorSlot, dtype_of, shape_of

_NAME = re.compile(r"[a-z_][a-z0-9_]*::[a-z_][a-z0-9_]*", re.ASCII)
_SCALARS = {"float": "float", "int": "int", "bool": "bool"}
"""Kind of an element type to its type in torch's schema language."""


class Launchable(Protocol):
    """A kernel that can be called, and what its calls must bring."""

    spec: LaunchSpec

    def __call__(self, *args: Any, out: Any = None) -> Any: ...


class BadOperatorName(Exception):
    """The name is not of the form `namespace::name`."""


def as_operator(launcher: Launchable, name: str) -> Callable[..., Any]:
    """Registers the kernel as the torch operator `name`, `namespace::name` in lower case, for the
    life of the process, and returns the callable: the parameters in order, results as allocated.

    Raises BadOperatorName; torch itself refuses a name that is taken.
    """
    if not _NAME.fullmatch(name):
        raise BadOperatorName(f"{name!r} is not an operator name; write namespace::name in lower case")
    spec = launcher.spec
    operator = torch.library.custom_op(
        name,
        lambda *args: launcher(*args),
        mutates_args=(),
        device_types=spec.device,
        schema=schema_of(spec),
        tags=(torch.Tag.needs_exact_strides,) if hasattr(torch.Tag, "needs_exact_strides") else (),
    )
    operator.register_fake(lambda *args: _fake(spec, args))
    return operator


def schema_of(spec: LaunchSpec) -> str:
    """Returns the operator's signature; its parameters are named by position, not by the program."""
    types = (_SCALARS[p.elem.kind] if isinstance(p, ScalarSlot) else "Tensor" for p in spec.params)
    results = ", ".join("Tensor" for _ in spec.results)
    params = ", ".join(f"{type_} a{i}" for i, type_ in enumerate(types))
    return f"({params}) -> " + (results if len(spec.results) == 1 else f"({results})")


def _fake(spec: LaunchSpec, args: tuple[Any, ...]) -> Any:
    """Returns results without data; shapes may be symbolic, then every check on them becomes a guard."""
    if len(args) != len(spec.params):
        raise WrongCount(f"{spec.name}: takes {len(spec.params)} arguments, but got {len(args)}")
    operands = [(p, a) for p, a in zip(spec.params, args, strict=True) if isinstance(p, TensorSlot)]
    for slot, tensor in operands:
        if tensor.dtype not in dtypes_of(slot.elem):
            raise WrongDtype(f"{spec.name}: {slot.name} is {tensor.dtype}, but is declared {slot.elem.name}")
    extents = bind(spec, [(slot.name, tuple(tensor.shape), slot) for slot, tensor in operands])
    device = operands[0][1].device if operands else torch.device(spec.device)
    results = tuple(
        torch.empty(shape_of(spec, r, extents), dtype=dtype_of(r.elem), device=device) for r in spec.results
    )
    return results[0] if len(results) == 1 else results
