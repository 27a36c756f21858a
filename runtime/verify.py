"""The judge: is what a kernel wrote the program's result?

`check` runs a launch on poisoned, guarded outputs and compares every element with the reference
within the bound that `ucutlass.reference.expect` derives. Evidence that is missing counts against
the kernel: elements that nothing wrote, writes past an output, inputs that changed and runs
that differ are findings of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ucutlass.ir import Program
from ucutlass.reference import Expected, expect
from ucutlass.reference.interpreter import Argument, device_of
from ucutlass.reference.rounding import outer_dtype

Launch: TypeAlias = Callable[[Sequence[Argument], Sequence[Tensor]], None]
"""Runs the program's kernels on arguments and fills the given results, in program order. It may
return before the device is done; it raises where it cannot launch."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One result against its reference.

    `worst` is the largest error over its bound: 0 where all are equal, infinite where the bound is 0
    or a NaN or infinity is not the reference's. `index` is where; `in_tile` that index modulo
    the tile, over the last two axes. `bad` counts elements beyond their bound, `exact` those that had
    to be equal, `unbounded` those whose bound is infinite: they must only be finite.
    """

    name: str
    ok: bool
    worst: float
    index: tuple[int, ...]
    in_tile: tuple[int, int] | None
    out: float
    reference: float
    bound: float
    bad: int
    elements: int
    exact: int
    unbounded: int

    def __str__(self) -> str:
        place = f"at {list(self.index)}" + (f", tile position {self.in_tile}" if self.in_tile else "")
        beyond = f"{self.bad} of {self.elements} elements beyond the bound"
        verdict = "within the bound" if self.ok else beyond
        return (
            f"{self.name or 'result'}: {verdict}; worst error is {self.worst:.3g} of the bound {place}: "
            f"{self.out:.9g}, reference {self.reference:.9g} +- {self.bound:.3g}"
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a run besides its numbers."""

    kind: Literal["unwritten", "overrun", "input changed", "not repeatable"]
    message: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`ok` is true where every comparison is and there is no problem."""

    comparisons: tuple[Comparison, ...]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not self.problems and all(c.ok for c in self.comparisons)

    def __str__(self) -> str:
        return "\n".join([*(f"{p.kind}: {p.message}" for p in self.problems), *map(str, self.comparisons)])


def compare(
    out: Tensor, reference: Tensor, bound: Tensor, *, tile: tuple[int, int] | None = None, name: str = ""
) -> Comparison:
    """Every element of `out` against `reference` within `bound` (all of one shape, any dtypes).

    NaN only passes for NaN and an infinity for the same infinity, whatever the bound. `tile` gives
    the tile's extents along the last two axes. Raises ValueError where the shapes differ.
    """
    if not out.shape == reference.shape == bound.shape:
        raise ValueError(
            f"out has shape {tuple(out.shape)}, the reference {tuple(reference.shape)}, "
            f"the bound {tuple(bound.shape)}"
        )
    ratio = _ratios(out, reference, bound)
    bad = int((ratio > 1).sum())
    at = int(ratio.argmax()) if ratio.numel() else -1
    index = _unravel(at, out.shape) if at >= 0 else ()
    picked = [float(t[index].double()) if at >= 0 else 0.0 for t in (out, reference, bound)]
    return Comparison(
        name=name,
        ok=bad == 0,
        worst=float(ratio.reshape(-1)[at]) if at >= 0 else 0.0,
        index=index,
        in_tile=(index[-2] % tile[0], index[-1] % tile[1]) if tile and len(index) > 1 else None,
        out=picked[0],
        reference=picked[1],
        bound=picked[2],
        bad=bad,
        elements=out.numel(),
        exact=int((bound == 0).sum()),
        unbounded=int(bound.isinf().sum()),
    )


def _ratios(out: Tensor, reference: Tensor, bound: Tensor) -> Tensor:
    """Error over bound; infinite where a NaN or infinity is not the reference's."""
    if reference.dtype == torch.float64:
        a, b = out.to(torch.float64), reference
        equal = (a == b) | (a.isnan() & b.isnan())
        strange = ~equal & ~(a.isfinite() & b.isfinite())
    else:
        a, b = out.to(torch.int64), reference.to(torch.int64)
        equal = a == b
        strange = torch.zeros_like(equal)
    error = (a - b).abs().to(torch.float64)
    ratio = torch.where(equal, 0.0, error / bound)
    return torch.where(strange | (~equal & (bound == 0)), torch.inf, ratio)


def _unravel(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    index: list[int] = []
    for extent in reversed(shape):
        index.append(flat % extent)
        flat //= extent
    return tuple(reversed(index))


# --- running -----------------------------------------------------------------------


GUARD = 4096
"""Bytes of canary before and after each output."""

CANARY = 0xA5
POISONS = (0xFF, 0x3C)
"""Bytes that outputs hold before a run: all ones, which is NaN in every float type, then a
finite pattern (1.06 in f16, 0.0115 in bf16 and f32)."""


@dataclass(frozen=True, slots=True, eq=False)
class Guarded:
    """A result tensor in the middle of a larger buffer."""

    buffer: Tensor
    result: Tensor

    def overruns(self) -> list[int]:
        """Offsets in bytes, from the result's first byte, of canaries that changed (at most one
        before and one behind)."""
        inside = self.result.numel() * self.result.element_size()
        front, back = self.buffer[:GUARD], self.buffer[GUARD + inside :]
        hit = [(front != CANARY).nonzero()[-1:] - GUARD, (back != CANARY).nonzero()[:1] + inside]
        return [int(h) for part in hit for h in part.reshape(-1)]

    def bytes(self) -> Tensor:
        """The result's bytes, one row an element."""
        size = self.result.element_size()
        return self.buffer[GUARD : GUARD + self.result.numel() * size].view(-1, size)


def guarded(shape: Sequence[int], dtype: torch.dtype, device: torch.device, poison: int) -> Guarded:
    """A poisoned result tensor between canaries; its address is a multiple of 256."""
    count = 1
    for extent in shape:
        count *= extent
    inside = count * torch.empty((), dtype=dtype).element_size()
    buffer = torch.full((GUARD + inside + GUARD,), CANARY, dtype=torch.uint8, device=device)
    buffer[GUARD : GUARD + inside] = poison
    return Guarded(buffer, buffer[GUARD : GUARD + inside].view(dtype).view(tuple(shape)))


def check(
    program: Program,
    launch: Launch,
    arguments: Sequence[Argument],
    *,
    tile: tuple[int, int] | None = None,
    deterministic: bool = True,
    expected: Sequence[Expected] | None = None,
) -> Verdict:
    """Runs `launch` twice, on outputs poisoned with NaN and with a finite pattern, and judges both.

    `deterministic=False` allows the runs to differ (atomic sums): each must then be within the bound.
    `expected` saves computing the reference again for the same arguments. Errors of the launch
    and of the reference (`ucutlass.reference.errors`) are raised.
    """
    wanted = tuple(expected) if expected is not None else expect(program, arguments)
    snapshot = [a.clone() if isinstance(a, Tensor) else a for a in arguments]
    device = device_of(arguments)
    runs: list[list[Guarded]] = []
    problems: list[Problem] = []
    for poison in POISONS:
        outputs = [guarded(e.reference.shape, outer_dtype(e.elem), device, poison) for e in wanted]
        launch(arguments, [o.result for o in outputs])
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        problems += _overruns(wanted, outputs)
        runs.append(outputs)
    problems += _changed(program, arguments, snapshot)
    for e, first, second in zip(wanted, *runs, strict=True):
        problems += _unwritten(e, first, second)
        if deterministic and not problems:
            problems += _unrepeatable(e, first, second)
    compared = [
        compare(o.result, e.reference, e.bound, tile=tile, name=e.name)
        for outputs in (runs if not deterministic else runs[:1])
        for e, o in zip(wanted, outputs, strict=True)
    ]
    return Verdict(tuple(compared), tuple(dict.fromkeys(problems)))


def _overruns(wanted: Sequence[Expected], outputs: Sequence[Guarded]) -> list[Problem]:
    return [
        Problem("overrun", f"{e.name or 'the result'} was written past: first canary hit at byte {at} of it")
        for e, output in zip(wanted, outputs, strict=True)
        for at in output.overruns()
    ]


def _changed(program: Program, arguments: Sequence[Argument], snapshot: Sequence[Argument]) -> list[Problem]:
    found: list[Problem] = []
    for decl, now, before in zip(program.params, arguments, snapshot, strict=True):
        if isinstance(now, Tensor) and isinstance(before, Tensor):
            differs = (_raw(now) != _raw(before)).nonzero()
            if differs.numel():
                at = int(differs[0, 0])
                found.append(Problem("input changed", f"{decl.name} changed, first at byte {at}"))
    return found


def _raw(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _unwritten(e: Expected, first: Guarded, second: Guarded) -> list[Problem]:
    """Elements that hold the poison after both runs: no one value is both patterns."""
    untouched = (first.bytes() == POISONS[0]).all(dim=1) & (second.bytes() == POISONS[1]).all(dim=1)
    count = int(untouched.sum())
    if not count:
        return []
    at = _unravel(int(untouched.to(torch.uint8).argmax()), e.reference.shape)
    total = e.reference.numel()
    name = e.name or "the result"
    return [Problem("unwritten", f"{count} of {total} elements of {name}, first {list(at)}")]


def _unrepeatable(e: Expected, first: Guarded, second: Guarded) -> list[Problem]:
    differs = (first.bytes() != second.bytes()).any(dim=1)
    count = int(differs.sum())
    if not count:
        return []
    at = _unravel(int(differs.to(torch.uint8).argmax()), e.reference.shape)
    return [
        Problem(
            "not repeatable",
            f"{count} of {e.reference.numel()} elements of {e.name or 'the result'} differ bitwise between "
            f"two runs, first {list(at)}",
        )
    ]
