"""Guards of the judge: launches that must not pass, and mutants of the judge that let them.

A trial runs one launch on the CPU and says whether the judge objected. A mutant puts one function or
constant of the harness out of order; it is killed where some trial then ends otherwise.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tests.mutants.guards import Mutant, Trial
from ucutlass import frontend, ir
from ucutlass.reference import evaluate
from ucutlass.runtime import verify
from ucutlass.runtime.inputs import Distribution, generate
from ucutlass.runtime.verify import comparison, guards, judge

TEXT = """kernel k(x: f16[M, K], w: f16[N, K], b: f32[N]) -> f32[M, N] {
  return relu(dot[K](x, w) + b)
}
"""
SIZES = {"M": 6, "N": 8, "K": 5}

Fill: TypeAlias = Callable[[Sequence[Any], Tensor, Tensor], None]
"""Takes arguments, the right answer, and the result to fill."""


def program() -> ir.Kernel:
    return frontend.kernel(frontend.read_text(TEXT))


def objected(fill: Fill, distribution: Distribution = "normal", workspace: int = 0) -> bool:
    """Whether the judge finds anything wrong with a launch, or the launch itself raises."""
    kernel = program()

    def run(given: Sequence[Any], outputs: Sequence[Tensor], scratch: Tensor | None = None) -> None:
        right = evaluate(kernel, given)[0]
        fill([*given, scratch] if workspace else given, right, outputs[0])

    launch = verify.DirectLaunch(run, workspace) if workspace else run
    arguments = generate(kernel, SIZES, distribution, seed=3)
    try:
        return not verify.check(kernel, launch, arguments).ok
    except Refused:
        return True


class Refused(Exception):
    """A launch that reports its failure."""


# --- launches ------------------------------------------------------------------------


def _honest(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    out.copy_(right)


def _honest_with_workspace(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    given[-1].zero_()
    out.copy_(right)


def _idle(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    pass


def _last_row_missing(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    out[:-1].copy_(right[:-1])


def _zeros_missing(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    """What is not 0 is written: right where memory came from a fresh, zeroed page."""
    out[right != 0] = right[right != 0]


def _past_the_end(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    out.copy_(right)
    ctypes.memset(out.data_ptr() + out.numel() * out.element_size(), 0, 4)


def _before_the_beginning(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    out.copy_(right)
    ctypes.memset(out.data_ptr() - 4, 0, 4)


def _clears_an_input() -> Fill:
    """After the last of the judge's runs, so that no result shows it."""
    calls = iter(range(1000))

    def fill(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
        out.copy_(right)
        if next(calls) == 1:
            given[1][-1, -1] = 0

    return fill


def _nan(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    out.fill_(torch.nan)


def _one_nan(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    out.copy_(right)
    out[2, 3] = torch.nan


def _loses_nan(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    out.copy_(right.nan_to_num(0.0))


def _one_wrong(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    out.copy_(right)
    out[-1, -1] += 1.0


def _slightly_wrong(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    """Within 1e-2 everywhere."""
    out.copy_(right + 5e-3)


def _reads_workspace(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    """Adds what the workspace held: 0 after a run that left it clean."""
    out.copy_(right)
    if int(given[-1][0]) not in (0, 0xFF):  # the first pattern alone would not show it
        out[0, 0] += 1.0


def _past_the_workspace(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    out.copy_(right)
    ctypes.memset(given[-1].data_ptr() + given[-1].numel(), 0, 4)


def _alternating() -> Fill:
    calls = iter(range(1000))

    def fill(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
        out.copy_(right)
        if next(calls) % 2:
            out[0, 0] = torch.nextafter(out[0, 0], torch.tensor(torch.inf))

    return fill


def _refuses(given: Sequence[Any], right: Tensor, out: Tensor) -> None:
    raise Refused


def _trial(
    fill: Fill, wrong: bool = True, distribution: Distribution = "normal", workspace: int = 0
) -> Trial:
    return Trial(wrong, lambda: objected(fill, distribution, workspace))


TRIALS: Mapping[str, Trial] = MappingProxyType(
    {
        "honest": _trial(_honest, False),
        "honest with NaN and infinity": _trial(_honest, False, "special"),
        "honest, right in every bit": _trial(_honest, False, "integer"),
        "honest with a workspace": _trial(_honest_with_workspace, False, workspace=64),
        "idle": _trial(_idle),
        "idle where the answer is 0": _trial(_idle, distribution="zeros"),
        "zeros not written": _trial(_zeros_missing, distribution="zeros"),
        "a row not written": _trial(_last_row_missing),
        "past the end": _trial(_past_the_end),
        "before the beginning": _trial(_before_the_beginning),
        "an input cleared": Trial(True, lambda: objected(_clears_an_input())),
        "NaN everywhere": _trial(_nan),
        "one NaN": _trial(_one_nan),
        "NaN lost": _trial(_loses_nan, distribution="special"),
        "one element wrong": _trial(_one_wrong),
        "a little wrong everywhere": _trial(_slightly_wrong),
        "depends on the workspace": _trial(_reads_workspace, workspace=64),
        "past the workspace": _trial(_past_the_workspace, workspace=64),
        "differs from run to run": Trial(True, lambda: objected(_alternating())),
        "refuses": _trial(_refuses),
    }
)


# --- mutants -------------------------------------------------------------------------


def _nan_equal(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda out, *rest: torch.where(out.isnan(), 0.0, original(out, *rest))


def _comparing(change: Callable[[Tensor, Any], Any]) -> Callable[[Any], Any]:
    """A compare whose verdict comes from `change` of out, reference and the honest outcome."""

    def by(original: Callable[..., Any]) -> Callable[..., Any]:
        def compare(out: Tensor, reference: Tensor, bound: Tensor, **more: Any) -> Any:
            honest = original(out, reference, bound, **more)
            ok = change(out.double() - reference.double(), honest)
            return replace(honest, ok=bool(ok))

        return compare

    return by


def _never(_: Any) -> Callable[..., list[Any]]:
    return lambda *_: []


def _same_pattern(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda shape, dtype, device, poison, *more: original(shape, dtype, device, 0xFF, *more)


def _zeroed(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda shape, dtype, device, poison, *more: original(shape, dtype, device, 0x00, *more)


def _right_already(original: Callable[..., Any]) -> Callable[..., Any]:
    """Memory of a former, correct run, as an allocator gives it back."""

    def made(shape: Sequence[int], *more: Any) -> Any:
        found = original(shape, *more)
        kernel = program()
        if tuple(shape) == (SIZES["M"], SIZES["N"]):
            found.result.copy_(evaluate(kernel, generate(kernel, SIZES, "normal", seed=3))[0])
        return found

    return made


def _swallowed(original: Callable[..., Any]) -> Callable[..., Any]:
    def run(launch: Any, arguments: Any, *more: Any) -> Any:
        def quiet(given: Any, outputs: Any) -> None:
            try:
                launch(given, outputs)
            except Refused:
                for output, result in zip(outputs, evaluate(program(), given), strict=True):
                    output.copy_(result)

        return original(launch if isinstance(launch, verify.DirectLaunch) else quiet, arguments, *more)

    return run


def _mean(difference: Tensor, honest: Any) -> bool:
    return not float(difference.nanmean().abs()) > 0.1


def _most(difference: Tensor, honest: Any) -> bool:
    return honest.bad <= 0.05 * honest.elements


def _flat(difference: Tensor, honest: Any) -> bool:
    return not bool((difference.abs() > 1e-2).any()) or honest.ok


def _first_rows(difference: Tensor, honest: Any) -> bool:
    return honest.ok or not bool((difference[:2] != 0).any())


def _nan_is_false(difference: Tensor, honest: Any) -> bool:
    """NaN compares false with every tolerance."""
    return not bool((difference.abs() > 10 * honest.bound + 1e-6).any()) or honest.ok


MUTANTS: tuple[Mutant, ...] = (
    Mutant("results are not poisoned", (6, 26), ((judge, "guarded"),), _zeroed, "idle where the answer is 0"),
    Mutant(
        "results start as a former run left them", (6, 26, 11), ((judge, "guarded"),), _right_already, "idle"
    ),
    Mutant("one poison only", (6, 25), ((judge, "guarded"),), _same_pattern, "depends on the workspace"),
    Mutant("no canaries", (10,), ((guards.Guarded, "overruns"),), _never, "past the end"),
    Mutant("inputs not looked at", (23,), ((judge, "_changed"),), _never, "an input cleared"),
    Mutant(
        "runs not compared",
        (27, 32),
        ((judge, "_differ"),),
        lambda _: lambda *_: False,
        "differs from run to run",
    ),
    Mutant("NaN is as good as a number", (18,), ((comparison, "_ratios"),), _nan_equal, "one NaN"),
    Mutant("NaN compares false", (18,), ((judge, "compare"),), _comparing(_nan_is_false), "NaN everywhere"),
    Mutant("the mean error decides", (19, 18), ((judge, "compare"),), _comparing(_mean), "one element wrong"),
    Mutant(
        "95 % of elements are enough", (19, 11), ((judge, "compare"),), _comparing(_most), "one element wrong"
    ),
    Mutant(
        "one flat tolerance", (14, 19), ((judge, "compare"),), _comparing(_flat), "a little wrong everywhere"
    ),
    Mutant(
        "the first rows stand for all",
        (11,),
        ((judge, "compare"),),
        _comparing(_first_rows),
        "one element wrong",
    ),
    Mutant("launch status swallowed", (25, 26), ((judge, "_run"),), _swallowed, "refuses"),
)
