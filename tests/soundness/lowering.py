"""Whether a plan's problem computes what the typed program says, on one random program at a time."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from tests.random_programs import random_program
from tests.soundness.plan_interpreter import addresses, interpret
from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.kernels.access import Access
from ucutlass.kernels.arithmetic import Compute
from ucutlass.kernels.families import Refused
from ucutlass.kernels.gemm.match import GemmPattern
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.gemm.problem import gemm_problem, transpose
from ucutlass.reference import evaluate
from ucutlass.reference.binding import shape_of
from ucutlass.reference.rounding import cast
from ucutlass.runtime.inputs import Distribution, generate
from ucutlass.shapes import complete

VECTOR_BYTES = 16


@dataclass(frozen=True, slots=True)
class Lowered:
    """One program's outcome: `wrong` says what differs; `planned` whether its schedule was legal."""

    seed: int
    text: str
    sizes: dict[str, int]
    outcome: Literal["right", "wrong", "rejected"]
    planned: bool = False
    wrong: tuple[str, ...] = ()


def lowered(seed: int) -> Lowered:
    """Checks a seed's program; one that GEMM's family does not serve is `rejected`."""
    program = random_program(seed, small=True)
    return check_program(program.text, program.sizes, seed)


def check_program(text: str, given: dict[str, int], seed: int = 0) -> Lowered:
    """Compares the problem as written, its transpose and the planned one with the typed program."""
    r = random.Random(seed)
    try:
        checked = frontend.read_text(text)
        kernel = frontend.kernel(checked)
        form = frontend.pattern(checked, kernel)
        if not isinstance(form, GemmPattern):
            other = type(form).__name__
            return Lowered(seed, text, given, "rejected", wrong=(f"another family serves it: {other}",))
        sizes = complete(kernel, given)
        pointers = len(form.kernel.results) + sum(isinstance(p.type, ir.TensorType) for p in kernel.params)
        aligned = [r.random() < 0.9 for _ in range(pointers)]
        made = gemm_problem(form, sizes, aligned)
    except (ProgramError, Refused) as refused:
        return Lowered(seed, text, given, "rejected", wrong=(str(refused),))
    chosen = _chosen(checked, kernel, sizes, aligned)
    wrong: list[str] = []
    if chosen not in (None, made, transpose(made)):
        wrong.append("the planned problem is neither the written one nor its transpose")
    for side, name in ((made, "as written"), (transpose(made), "transposed")):
        wrong += [f"{name}: {w}" for w in _structure(kernel, side, sizes, aligned)]
    distributions: tuple[Distribution, ...] = ("integer", "normal")
    for distribution in distributions if not wrong else ():
        wrong += [f"{distribution}, {w}" for w in _differences(kernel, made, given, distribution, seed)]
    return Lowered(seed, text, given, "wrong" if wrong else "right", chosen is not None, tuple(wrong))


def _chosen(
    checked: frontend.Checked, kernel: ir.Kernel, sizes: Sequence[int], aligned: Sequence[bool]
) -> GemmProblem | None:
    """The planned problem, None where the schedule is illegal."""
    try:
        return frontend.plan_kernel(checked, kernel, sizes, "sm90a", aligned=aligned).planned.plan.problem
    except ProgramError:
        return None


# --- addresses --------------------------------------------------------------------


def _tensors(kernel: ir.Kernel) -> list[ir.TensorType]:
    """By pointer: parameters, then results."""
    types = [p.type for p in kernel.params if isinstance(p.type, ir.TensorType)]
    return [*types, *(result.type for result in kernel.results)]


def _structure(
    kernel: ir.Kernel, made: GemmProblem, sizes: Sequence[int], aligned: Sequence[bool]
) -> list[str]:
    by_name = dict(zip(kernel.dims, sizes, strict=True))
    counts = [math.prod(shape_of(t, by_name)) for t in _tensors(kernel)]
    elems = [t.elem for t in _tensors(kernel)]
    reads = [(made.a, "mk"), (made.b, "nk"), *((access, "mn") for access in made.inputs)]
    writes = [(output.access, "mn") for output in made.outputs]
    texts: list[str] = []
    for access, modes in [*reads, *writes]:
        where = f"pointer {access.pointer}"
        if access.elem != elems[access.pointer]:
            texts.append(f"{where} is {elems[access.pointer].name} in memory, {access.elem.name} in the plan")
        at = addresses(made, access, modes, sizes)
        if int(at.max()) >= counts[access.pointer]:
            texts.append(f"{where} reaches element {int(at.max())} of {counts[access.pointer]}")
        if why := _misaligned(made, access, modes, sizes, aligned[access.pointer]):
            texts.append(f"{where}: {why}")
    for access, modes in writes:
        at = addresses(made, access, modes, sizes).reshape(-1)
        if not torch.equal(at.sort().values, torch.arange(counts[access.pointer])):
            texts.append(
                f"pointer {access.pointer} gets {at.numel()} values at {len(set(at.tolist()))} addresses of "
                f"{counts[access.pointer]} elements"
            )
    return texts


def _misaligned(made: GemmProblem, access: Access, modes: str, sizes: Sequence[int], base: bool) -> str:
    """Why a vector of `align` elements along the contiguous mode may be misaligned or overrun, or ""."""
    align = access.align
    if align == 1:
        return ""
    if align & (align - 1) or align * access.elem.bytes > VECTOR_BYTES:
        return f"align {align} is no vector of at most {VECTOR_BYTES} bytes"
    if not base:
        return f"align {align} for a pointer that is not known to be aligned"
    mode = access.contiguous
    if mode is None or mode not in modes:
        return f"align {align} along no mode"
    axis = {"m": 0, "n": modes.index("n") if "n" in modes else 0, "k": -1}[mode]
    at = addresses(made, access, modes, sizes).movedim(axis if axis < 0 else len(made.batch) + axis, -1)
    if at.shape[-1] % align:
        return f"align {align} does not divide the contiguous extent {at.shape[-1]}"
    vectors = at.reshape(*at.shape[:-1], -1, align)
    if bool((vectors[..., 0] % align).any()):
        return f"align {align}, but a vector begins at {int(vectors[..., 0].max())}"
    if not torch.equal(vectors - vectors[..., :1], torch.arange(align).expand_as(vectors)):
        return f"align {align} along {mode}, which is not contiguous"
    return ""


# --- values -----------------------------------------------------------------------


def _differences(
    kernel: ir.Kernel, made: GemmProblem, given: dict[str, int], distribution: Distribution, seed: int
) -> list[str]:
    arguments = generate(kernel, given, distribution, seed=seed, scalars=distinct_scalars(kernel))
    memory = [_inner(a).reshape(-1) for a in arguments if isinstance(a, Tensor)]
    scalars = [float(a) for a in arguments if not isinstance(a, Tensor)]
    stored, plain = evaluate(kernel, arguments), evaluate(kernel, arguments, rounded=False)
    exact = distribution == "integer" and _exactly_computed(made)
    sizes = complete(kernel, given)
    found = []
    for side, name in ((made, "as written"), (transpose(made), "transposed")):
        written = interpret(side, sizes, memory, scalars)
        for actual, rounded, unrounded, result in zip(written, stored, plain, kernel.results, strict=True):
            as_stored = _rounds_at_the_store(result)
            values = cast(actual.values, result.type.elem) if as_stored else actual.values
            expected = _inner(rounded if as_stored else unrounded).reshape(-1)
            if why := _different(actual.addresses, values, expected, exact):
                found.append(f"{name}, {result.name or 'the result'}: {why}")
    return found


def distinct_scalars(kernel: ir.Kernel) -> dict[str, float]:
    """A value for each host scalar, no two alike, so that none can stand for another."""
    numbered = enumerate(p for p in kernel.params if isinstance(p.type, ir.ScalarType))
    values = {"float": lambda i: 1.25 - 0.5 * i, "int": lambda i: i + 2, "bool": lambda i: i % 2}
    return {p.name: values[p.type.elem.kind](i) for i, p in numbered}


def _inner(tensor: Tensor) -> Tensor:
    if tensor.dtype == torch.bool:
        return tensor
    return tensor.to(torch.float64 if tensor.is_floating_point() else torch.int64)


def _rounds_at_the_store(result: ir.ResultDecl) -> bool:
    """Whether the plan leaves rounding to the store: of numbers to integers, and of a last cast."""
    elem, value = result.type.elem, result.value
    return elem.kind != "float" or (isinstance(value, ir.Cast) and value.elem == elem)


def _different(at: Tensor, values: Tensor, wanted: Tensor, exact: bool) -> str:
    out = torch.full(wanted.shape, torch.nan, dtype=torch.float64)
    out[at] = values.to(torch.float64)
    want = wanted.to(torch.float64)
    same = (out == want) | (out.isnan() & want.isnan())
    if not exact:
        finite = want[want.isfinite()].abs()
        scale = float(finite.max()) if finite.numel() else 0.0
        same |= (out - want).abs() <= 1e-10 * want.abs() + 1e-12 * (1 + scale)
    if bool(same.all()):
        return ""
    first = int((~same).to(torch.uint8).argmax())
    differing = f"{int((~same).sum())} of {out.numel()} differ"
    return f"{differing}, first [{first}]: {float(out[first])!r}, not {float(want[first])!r}"


def _exactly_computed(made: GemmProblem) -> bool:
    """Whether whole numbers stay exact: no rounding function, and sums in float64 lose nothing."""
    rough = {"divide", "hardswish", "leaky_relu"}
    functions = {i.function for i in made.arithmetic.instructions if isinstance(i, Compute)}
    return not any(FUNCTIONS[f].error or f in rough for f in functions)
