"""The operators of the table as torch operators: kernels where one serves, else the PyTorch equivalent.

Gradients are the equivalent's: an operator of its own, `ucutlass::NAME_backward`, computes the equivalent
again and differentiates it, so that torch.compile and torch.export see both whole.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from ucutlass.api import NoKernelsHere, checked_arch
from ucutlass.diagnostics import ProgramError
from ucutlass.ops.programs import served
from ucutlass.ops.table import TABLE, OpsEntry, Results

NAMESPACE = "ucutlass"
_TAGS = (torch.Tag.needs_exact_strides,) if hasattr(torch.Tag, "needs_exact_strides") else ()


MOST_REFUSED = 4096
"""Sets of shapes of which a program remembers that it has no kernel."""


class UnservedWarning(UserWarning):
    """No kernel serves an operator's tensors, so PyTorch's own functions compute it."""


# --- one call -----------------------------------------------------------------------


def computed(name: str, *arguments: Any) -> Results:
    """Returns an operator's results, by a kernel or by the PyTorch equivalent. Raises what a call of a
    program raises, but for programs that have no kernel here."""
    entry = TABLE[name]
    tensors = [a for a in arguments if isinstance(a, Tensor)]
    reason = reason_unserved(entry, tensors, arguments)
    if reason is None:
        call = entry.call(*arguments)
        program = served(call.file, call.name, tensors[0].dtype, call.activation)
        shapes = (tensors[0].device, *(t.shape for t in tensors))
        if shapes not in program.refused:
            try:
                return shaped(entry, arguments, program.loaded(*call.arguments))
            except (ProgramError, NoKernelsHere) as problem:
                if len(program.refused) >= MOST_REFUSED:
                    program.refused.clear()
                program.refused[shapes] = str(problem).splitlines()[0]
        reason = program.refused[shapes]
    if reason:
        warn_once(name, reason)
    return equivalent_results(entry, arguments)


def reason_unserved(entry: OpsEntry, tensors: Sequence[Tensor], arguments: Sequence[Any]) -> str | None:
    """Returns why no kernel is asked for these tensors, None where one is; "" for empty tensors, of which
    nothing need be said."""
    device, dtype = tensors[0].device, tensors[0].dtype
    if any(t.numel() == 0 for t in tensors):
        return ""
    if device.type != "cuda" or torch.version.hip:
        return f"kernels run on NVIDIA GPUs, and its tensors are on {device.type}"
    if any(t.device != device for t in tensors):
        return "its tensors are on several devices"
    if dtype not in entry.elements:
        return f"kernels take {', '.join(map(str, entry.elements))}, not {dtype}"
    if any(t.is_floating_point() and t.dtype != dtype for t in tensors):
        return "its floating-point tensors have several dtypes"
    return _unserved_arch(entry.arches, device) or entry.unserved(*arguments) or None


@cache
def _unserved_arch(arches: tuple[str, ...], device: torch.device) -> str:
    gpu = torch.cuda.get_device_properties(device)
    try:
        arch = checked_arch(None, gpu.name, (gpu.major, gpu.minor))
    except NoKernelsHere as problem:
        return str(problem)
    return "" if arch in arches else f"kernels are compiled for {', '.join(arches)}, not for {arch}"


def shaped(entry: OpsEntry, arguments: Sequence[Any], results: Results) -> Results:
    """Returns a program's results in the operator's shape."""
    shape = entry.shape(*arguments)
    return results.view(shape) if isinstance(results, Tensor) else tuple(r.view(shape) for r in results)


def equivalent_results(entry: OpsEntry, arguments: Sequence[Any]) -> Results:
    """Returns the PyTorch equivalent's results, dense, in the arguments' own element types."""
    device = next(a for a in arguments if isinstance(a, Tensor)).device.type
    with torch.autocast(device, enabled=False):
        results = entry.equivalent(*arguments)
    if isinstance(results, Tensor):
        return results.contiguous()
    return tuple(r.contiguous() for r in results)


@lru_cache(MOST_REFUSED)
def warn_once(name: str, reason: str) -> None:
    words = f"{NAMESPACE}.ops.{name}: {reason}; PyTorch's own functions compute it (this is said once)"
    warnings.warn(words, UnservedWarning, stacklevel=2)


# --- gradients ----------------------------------------------------------------------


def gradients(name: str, outer: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    """Returns the gradients of the arguments that `arguments[-1]`, a list of truth values, asks for."""
    entry, inputs, needed = TABLE[name], arguments[:-1], arguments[-1]
    positions = [i for i, need in enumerate(needed) if need]

    def of_needed(*tensors: Tensor) -> Results:
        replaced = dict(zip(positions, tensors, strict=True))
        return equivalent_results(entry, [replaced.get(i, a) for i, a in enumerate(inputs)])

    results, pullback, *_ = torch.func.vjp(of_needed, *(inputs[i] for i in positions))
    inner = pullback(outer[0] if isinstance(results, Tensor) else tuple(outer))
    return _of_their_own(inner, outer)


def _of_their_own(inner: Sequence[Tensor], outer: Sequence[Tensor]) -> list[Tensor]:
    """Returns dense gradients that share memory with nothing: where two tensors are added, both have the
    gradient of the sum."""
    storages = {t.untyped_storage().data_ptr() for t in outer}
    separate: list[Tensor] = []
    for gradient in inner:
        dense = gradient.contiguous()
        if dense.untyped_storage().data_ptr() in storages:
            dense = dense.clone(memory_format=torch.contiguous_format)
        storages.add(dense.untyped_storage().data_ptr())
        separate.append(dense)
    return separate


def _empty_gradients(outer: Sequence[Tensor], *arguments: Any) -> list[Tensor]:
    pairs = zip(arguments[:-1], arguments[-1], strict=True)
    return [tensor.new_empty(tensor.shape) for tensor, need in pairs if need]


def _save_for_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*(a if isinstance(a, Tensor) else None for a in inputs))
    ctx.others = tuple(None if isinstance(a, Tensor) else a for a in inputs)


def _backward(operator: Callable[..., Any], ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
    pairs = zip(ctx.saved_tensors, ctx.others, strict=True)
    arguments = [other if tensor is None else tensor for tensor, other in pairs]
    needed = list(ctx.needs_input_grad)
    inner = iter(operator(list(outer), *arguments, needed))
    return tuple(next(inner) if need else None for need in needed)


# --- registration -------------------------------------------------------------------

_LIBRARY: Any = torch.library.Library(NAMESPACE, "FRAGMENT")  # type: ignore[no-untyped-call]
"""What is registered lasts as long as this object. `torch.library.custom_op` would cost a call twice the time,
for checks that `torch.library.opcheck` makes in the tests."""


def registered(name: str, entry: OpsEntry) -> Callable[..., Any]:
    """Registers an operator and its backward for the life of the process; returns the operator."""
    parameters = entry.schema.partition("(")[2].partition(")")[0]
    backward = torch.library.custom_op(
        f"{NAMESPACE}::{name}_backward",
        partial(gradients, name),
        mutates_args=(),
        schema=f"(Tensor[] outer, {parameters}, bool[] needed) -> Tensor[]",
    )
    backward.register_fake(_empty_gradients)
    whole = f"{NAMESPACE}::{name}"
    _LIBRARY.define(f"{name}{entry.schema}", tags=_TAGS)
    _LIBRARY.impl(name, partial(computed, name), "CompositeExplicitAutograd")
    torch.library.register_fake(whole, entry.empty, lib=_LIBRARY)
    torch.library.register_autograd(
        whole, partial(_backward, backward), setup_context=_save_for_backward, lib=_LIBRARY
    )
    operator: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default
    return operator


OPERATORS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {name: registered(name, entry) for name, entry in TABLE.items()}
)
"""By the name behind `ucutlass::`."""
