"""Examines what a program's float64 reference depends on: the experiments of `ucc audit`.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`; `program` is a payload of
`ucutlass.handoff`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ucutlass.ir import Program
from ucutlass.runtime.inputs import Distribution

if TYPE_CHECKING:
    from torch import Tensor

    from ucutlass.pipeline.sized import SizedPipeline, Step
    from ucutlass.reference import Expected

CUTS = (64, 256, 1024)
"""To what free extents are cut. The first that the program's requirements admit is asked; what seems to
depend on nothing there is asked again at the next ones, since a mask by coordinates may leave nothing of
a small tensor."""

VOLUME = 2**21
"""Most products of all free extents; the largest is halved until they fit."""

FLAT = 1e-2
"""Absolute and relative tolerance that benchmarks of generated kernels commonly use
(KernelBench's for half types; SOL-ExecBench's)."""

MOST_ASKED = 16
"""Inputs that are changed, those of the most bytes: a network has hundreds, and each takes an evaluation of all of it."""

BASES = 6
"""Draws of all inputs around which one is changed."""

SMALLER = 0.25
"""What an input is multiplied by beside: less, since bounds grow with the numbers, and nothing is rounded."""

DRAWS: tuple[tuple[Distribution, int], ...] = (
    ("normal", 0),
    ("normal", 1),
    ("uniform", 2),
    ("positive", 3),
    ("wide", 4),
)


def probe(
    program: dict[str, Any],
    name: str,
    sizes: dict[str, int],
    seed: int,
    gpu: str = "",
    wait: float = 0.0,
    shared: bool = False,
    threads: int = 0,
) -> dict[str, Any]:
    """Draws inputs of several distributions, and one input at a time anew, negated or made smaller: on the GPU of the UUID `gpu`,
    with its lock held, `shared` with others, unless it is in use for `wait` seconds; otherwise on the CPU,
    on so many `threads` where they are given.

    Returns `sizes` (those used), `results` (`name`, `constant`, `fixed`, `flat`) and `inputs`
    (`name`, `moves`, `share` of all bytes at these sizes), as `ucutlass.agent.integrity.bundle` says. Raises
    ReducedSizesError where no reduced extents satisfy the program.
    """
    import torch

    from ucutlass import frontend
    from ucutlass.handoff import checked_of
    from ucutlass.tasks.gpu_turn import gpu_of

    if threads:
        torch.set_num_threads(threads)
    typed = frontend.program(checked_of(program), name)
    with gpu_of(gpu, wait, or_cpu=True, shared=shared) as device:
        return _probed(typed, sizes, seed, device)


def _probed(program: Program, sizes: Mapping[str, int], seed: int, device: str) -> dict[str, Any]:
    from ucutlass.reference import expect
    from ucutlass.reference.freeing import with_free_rows
    from ucutlass.runtime.inputs import generate

    # Extents that the text fixes, as that of a module does, are cut too where that is a slice of the same.
    typed, lengths = with_free_rows(program)
    sizes = {**sizes, **lengths}
    report: dict[str, Any] = {}
    for cut in reduced_sizes(typed, sizes, device, frozenset(lengths)):
        draws = [expect(typed, generate(typed, cut, d, seed=seed + s, device=device)) for d, s in DRAWS]
        inputs, moved = _inputs(typed, cut, seed, device)
        results = [
            {"name": draw[0].name, **_constancy(draw, i in moved)}
            for i, draw in enumerate(zip(*draws, strict=True))
        ]
        report = {"sizes": cut, "results": results, "inputs": inputs}
        flawed = any(r["constant"] or r["fixed"] for r in report["results"])
        if not flawed and all(i["moves"] for i in report["inputs"]):
            break
    return report


class ReducedSizesError(ValueError):
    """No reduced extents satisfy the program's requirements."""


def reduced_sizes(
    program: Program, sizes: Mapping[str, int], device: str = "cpu", rows: frozenset[str] = frozenset()
) -> list[dict[str, int]]:
    """Returns the free extents, cut to what the interpreter can do in seconds, the smallest first. `rows` are
    dimensions of a pipeline that `with_free_rows` made free. Raises ReducedSizesError where none satisfy the
    program."""
    import math

    from ucutlass.shapes import ShapeError

    reductions: list[dict[str, int]] = []
    for limit in CUTS:
        cut = {name: min(size, limit) for name, size in sizes.items()}
        while math.prod(cut.values()) > VOLUME:
            largest = max(cut, key=lambda d: cut[d])
            cut[largest] //= 2
        try:
            cut = _few_rows(program, cut, rows)
        except ShapeError:
            continue
        if cut not in reductions and _runs(program, cut, device):
            reductions.append(cut)
    if not reductions:
        extents = ", ".join(f"{d}={n}" for d, n in sizes.items())
        raise ReducedSizesError(f"{program.name}: no extents up to {CUTS[-1]} satisfy it, from {extents}")
    return reductions


def _few_rows(
    program: Program, sizes: Mapping[str, int], rows: frozenset[str] = frozenset()
) -> dict[str, int]:
    """Returns extents at which a reference takes a core some milliseconds, as far as fewer of the rows that do
    not depend on each other make it so: what a row depends on, each does. Raises ShapeError."""
    from ucutlass.ir import Kernel
    from ucutlass.reference.freeing import separable

    cut = dict(sizes)
    rows = (separable(program) if isinstance(program, Kernel) else rows) & cut.keys()
    while True:
        longest = max(rows, key=lambda d: (cut[d], d), default="")
        if is_small_program(program, cut) or cut.get(longest, 1) <= 1:
            return cut
        cut[longest] //= 2


def is_small_program(program: Program, sizes: Mapping[str, int]) -> bool:
    """Returns whether the reference of each launch of a program takes a core no longer than a GPU, at its free
    extents; recurrent layers count as launches, other torch functions do not. Raises ShapeError."""
    from ucutlass.ir import Kernel
    from ucutlass.pipeline.sized import sized_pipeline
    from ucutlass.reference.slices import SMALL_PRODUCTS, is_small
    from ucutlass.shapes import complete

    extents = complete(program, sizes)
    if isinstance(program, Kernel):
        return is_small(program, dict(zip(program.dims, extents, strict=True)))
    sized = sized_pipeline(program, extents)
    return all(
        recurrent_products(sized, step) <= SMALL_PRODUCTS
        if step.kernel is None
        else is_small(step.kernel, dict(zip(step.kernel.dims, step.sizes, strict=True)))
        for step in sized.steps
    )


def recurrent_products(sized: SizedPipeline, step: Step) -> int:
    """Returns how many products a step of recurrent layers sums: every weight meets each vector of the sequence once.
    0 for a step of another function."""
    import math

    from ucutlass.ir import TorchCall
    from ucutlass.torch_functions import RECURRENCES

    if not isinstance(step.stage.call, TorchCall) or step.stage.call.function not in RECURRENCES:
        return 0
    sequence, *others = (sized.buffers[name].shape for name in step.reads if name in sized.buffers)
    return math.prod(sequence[:2]) * sum(math.prod(shape) for shape in others if len(shape) == 2)


def _runs(program: Program, sizes: Mapping[str, int], device: str) -> bool:
    from ucutlass.reference import evaluate
    from ucutlass.reference.errors import RequirementError
    from ucutlass.runtime.inputs import generate

    try:
        evaluate(program, generate(program, sizes, "zeros", device=device))
    except RequirementError:
        return False
    return True


def _constancy(draws: Sequence[Expected], moved: bool) -> dict[str, bool]:
    """Returns whether one number (`constant`), one tensor (`fixed`), or one number within the flat tolerance
    is right for every draw: the intervals around the references have a common point. A result that
    `moved` beyond its bound elsewhere has none."""
    import torch

    references = torch.stack([d.reference.to(torch.float64) for d in draws])
    bounds = torch.stack([d.bound for d in draws])
    loose = FLAT + FLAT * references.abs()
    return {
        "constant": not moved and _common(references, bounds, None),
        "fixed": not moved and _common(references, bounds, 0),
        "flat": _common(references, loose, None),
    }


def _common(references: Tensor, bounds: Tensor, over: int | None) -> bool:
    """Returns whether the intervals have a point in common, all of them or those along one axis. What is not
    finite in all draws alike has none."""
    if references.numel() == 0 or not bool(references.isfinite().all() & bounds.isfinite().all()):
        return False
    low, high = references - bounds, references + bounds
    if over is None:
        return bool(low.max() <= high.min())
    return bool((low.amax(over) <= high.amin(over)).all())


def _inputs(
    program: Program, sizes: Mapping[str, int], seed: int, device: str
) -> tuple[list[dict[str, Any]], set[int]]:
    """Returns each tensor that is asked about with whether a result moved in any of BASES: another input, such as a condition of
    one element, may hide it in some. Also the results that moved, by position."""
    from torch import Tensor

    from ucutlass.runtime.inputs import generate

    first = generate(program, sizes, "normal", seed=seed, device=device)
    sizes_in_bytes = {
        i: argument.numel() * argument.element_size()
        for i, argument in enumerate(first)
        if isinstance(argument, Tensor)
    }
    largest = sorted(sizes_in_bytes, key=lambda i: sizes_in_bytes[i], reverse=True)[:MOST_ASKED]
    still = set(largest)
    moved: set[int] = set()
    for base in range(BASES):
        if still:
            movers = _movers(program, sizes, seed + base, still, device)
            still -= movers.keys()
            moved |= {result for results in movers.values() for result in results}
    rows = [
        {
            "name": program.params[i].name,
            "moves": i not in still,
            "share": sizes_in_bytes[i] / (sum(sizes_in_bytes.values()) or 1),
        }
        for i in sorted(largest)
    ]
    return rows, moved


def _movers(
    program: Program, sizes: Mapping[str, int], seed: int, positions: set[int], device: str
) -> dict[int, set[int]]:
    """Returns, of the parameters asked for, those that move results when drawn anew, negated or made smaller alone, with
    the results."""
    import torch
    from torch import Tensor

    from ucutlass.reference import evaluate, expect
    from ucutlass.reference.unrounded import unrounded, wide
    from ucutlass.runtime.inputs import generate, roles_of
    from ucutlass.runtime.verify.comparison import useless
    from ucutlass.runtime.verify.judge import largest_of_arguments

    base = generate(program, sizes, "normal", seed=seed, device=device)
    other = generate(program, sizes, "normal", seed=seed + 100, device=device)
    expected = expect(program, base)
    exact_program, exact = unrounded(program), wide(base)
    before = evaluate(exact_program, exact)
    scale = largest_of_arguments(base)
    idle = [useless(e.reference, e.bound, scale) for e in expected]
    bounded = {i for i, nothing in enumerate(idle) if not bool(nothing.all())}
    limits = [_clear(*pair, scale) for pair in zip(expected, idle, before, strict=True)]
    roles = roles_of(program)
    movers: dict[int, set[int]] = {}
    for i in sorted(positions):
        now, tries = base[i], [other[i]]
        role = roles.get(program.params[i].name)
        plain = role is None or (role.below is None and role.offsets_of is None)
        if plain and isinstance(now, Tensor) and now.is_floating_point():
            # Numbers of the same spread leave a statistic of thousands of them where it was, within its bound.
            tries += [(now.to(torch.float64) * factor).to(now.dtype) for factor in (-1.0, SMALLER)]
        moved: set[int] = set()
        for changed in tries:
            # What all results have said another evaluation says no better.
            if len(moved) < len(expected):
                after = evaluate(exact_program, [*exact[:i], *wide([changed]), *exact[i + 1 :]])
                moved |= _clearly_moved(limits, before, after)
            if bounded - moved:
                moved |= _moved(expected, expect(program, [*base[:i], changed, *base[i + 1 :]]))
        if moved:
            movers[i] = moved
    return movers


CLEARLY = 34
"""Largest bounds of a result by which two exact results are apart where no bounds of the other are asked for, which take
several times as long: 2 (1 + 16), since rounded results are within their bounds of exact ones, and those of other numbers of
the same distribution are taken to be at most 16 times as large."""

SEEN = 2.0**-20
"""Of a result's size, by which two exact results are apart where the bounds say nothing, as after many stages: these are
judged stage by stage, and f32 shows as much."""


def _clear(expected: Expected, idle: Tensor, exact: Tensor, scale: float) -> Tensor:
    """Returns by how much an exact result must be apart from this one to have moved, element by element: of those that their
    bounds say something of, by CLEARLY of the largest, and by nothing where they are exact, since roundings may hide it; of
    the others by SEEN, unless the result is 0 whatever the arguments are, of magnitude `scale`."""
    import torch

    from ucutlass.runtime.verify.comparison import NOUGHT

    bounds = expected.bound[~idle]
    by_bounds = CLEARLY * float(bounds.max()) if bounds.numel() else 0.0
    size = float(exact.to(torch.float64).nan_to_num(0.0, 0.0, 0.0).abs().max()) if exact.numel() else 0.0
    by_size = SEEN * size if size > NOUGHT * scale else 0.0
    return torch.where(idle, by_size or torch.inf, by_bounds or torch.inf)


def _clearly_moved(limits: Sequence[Tensor], before: Sequence[Tensor], after: Sequence[Tensor]) -> set[int]:
    """Returns the results of which some element moved, without roundings, by more than its limit."""
    import torch

    return {
        i
        for i, (limit, x, y) in enumerate(zip(limits, before, after, strict=True))
        if bool(((x.to(torch.float64) - y.to(torch.float64)).abs() > limit.to(x.device)).any())
    }


def _moved(before: Sequence[Expected], after: Sequence[Expected]) -> set[int]:
    """Returns the results of which some element is beyond both bounds of its former self."""
    import torch

    moved: set[int] = set()
    for i, (a, b) in enumerate(zip(before, after, strict=True)):
        x, y = a.reference.to(torch.float64), b.reference.to(torch.float64)
        if bool(((x - y).abs() > a.bound + b.bound).any() | (x.isfinite() != y.isfinite()).any()):
            moved.add(i)
    return moved
