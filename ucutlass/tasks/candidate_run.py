"""Checks a candidate of the agent against the problem's reference on the GPU, then times it.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`; programs are payloads of
`ucutlass.handoff`.
"""

from __future__ import annotations

import random
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from ucutlass.runtime import isolation
from ucutlass.spans import span

if TYPE_CHECKING:
    from ucutlass.ir import Program
    from ucutlass.reference import ExpectedResults
    from ucutlass.runtime.verify import LaunchVerdict
    from ucutlass.runtime.verify.accepted import AcceptedResults
    from ucutlass.runtime.verify.reference_cache import ReferenceCache, ReferenceCase

ROUNDS = 7
"""Of the candidate alone: enough to tell whether it may lead. Who leads is measured by `ucc bench`'s
protocol."""

CASES: tuple[tuple[Literal["normal", "integer"], int], ...] = (("integer", 1), ("normal", 0))
"""Distributions, and what is added to the seed of each. The last one's arguments are timed, too."""


def run(
    program: dict[str, Any],
    built: dict[str, Any],
    problem: dict[str, Any] | None,
    name: str,
    sizes: dict[str, int],
    arch: str,
    seed: int,
    sampled: bool = False,
) -> dict[str, Any]:
    """Returns `seconds` of one call, None where it is wrong, and then `words` say how. What it should
    compute is the `problem`'s to say, not its own; without a problem it is held against its own reference.
    `built` is a payload of `ucutlass.tasks.built`; `sampled` as in `verdict_of`."""
    with _on_gpu():
        return _run(program, built, problem, name, sizes, arch, seed, sampled)


def expect(program: dict[str, Any], name: str, sizes: dict[str, int], seed: int) -> None:
    """Makes the arguments and references that `run` is to use for candidates that are held against this program,
    while the first of them is built."""
    with _on_gpu():
        from ucutlass import frontend
        from ucutlass.handoff import checked_of

        typed = frontend.program(checked_of(program), name)
        for case, more in CASES:
            case_of(typed, sizes, case, seed + more)


_WAKING_SIZES = {"M": 1024, "N": 1024, "K": 256}
"""More than a reference takes that is computed on the CPU."""


def ready() -> bool:
    """Does a step of what a process does slowly the first time: a CUDA context, random arguments, and the hundreds of
    torch's kernels that a reference on the GPU, its bounds and comparisons load. It times nothing. Returns whether there
    is another step: whoever waits for the GPU takes it between two."""
    import torch

    if not torch.cuda.is_available():
        return False
    with _on_gpu():
        more = next(_steps(), False)
        torch.cuda.synchronize()
    return more


@cache
def _steps() -> Iterator[bool]:
    """Returns the steps of this process."""
    return _waking()


def _waking() -> Iterator[bool]:
    """Yields after each step."""
    from ucutlass.reference import least_results
    from ucutlass.runtime import library, verify
    from ucutlass.runtime.inputs import generate
    from ucutlass.tasks.tune import waking_kernel

    library.native()
    program = waking_kernel("f32")

    def launch(arguments: Sequence[Any], results: Sequence[Any]) -> None:
        results[0].copy_(arguments[0].double() @ arguments[1].double().t())

    for case, seed in CASES:
        arguments = generate(program, _WAKING_SIZES, case, seed=seed, device="cuda", generator_device="cuda")
        yield True
        expected = least_results(program, arguments)
        yield True
        verify.check(program, launch, arguments, expected=expected)
        rotated(arguments)
        yield True


@contextmanager
def _on_gpu() -> Iterator[None]:
    with span(isolation.STARTS):
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]
    try:
        yield
    except Exception as failure:
        traceback.clear_frames(failure.__traceback__)  # they hold tensors
        raise
    finally:
        _return_memory()


MOST_RESERVED = 0.2
"""Share of the device's memory that the allocator may keep for the next candidate: to return and to allocate it takes as
long as the rest of an attempt."""


def _return_memory() -> None:
    """Returns what the allocator keeps where that is much: judges of other problems share the GPU."""
    import torch

    _, total = torch.cuda.mem_get_info()
    if torch.cuda.memory_reserved() > MOST_RESERVED * total:
        torch.cuda.empty_cache()


@cache
def _references() -> ReferenceCache:
    """Returns what this process keeps, which serves one candidate after another."""
    from ucutlass.runtime.verify.reference_cache import ReferenceCache

    return ReferenceCache()


@cache
def _accepted() -> AcceptedResults:
    """Returns the results that this process found right, which serve one candidate after another."""
    from ucutlass.runtime.verify.accepted import AcceptedResults

    return AcceptedResults()


def case_of(
    reference: Program,
    sizes: dict[str, int],
    case: Literal["normal", "integer"],
    seed: int,
    device: str = "cuda",
) -> ReferenceCase:
    """Returns arguments that candidates are held against, with their references where these are kept."""
    return _references().case(reference, sizes, case, seed, device)


def _run(
    program: dict[str, Any],
    built: dict[str, Any],
    problem: dict[str, Any] | None,
    name: str,
    sizes: dict[str, int],
    arch: str,
    seed: int,
    sampled: bool,
) -> dict[str, Any]:
    with span(isolation.STARTS):
        from ucutlass import frontend
        from ucutlass.handoff import checked_of
        from ucutlass.ir import Pipeline
        from ucutlass.runtime.timing import compare
        from ucutlass.tasks.built import loaded_built

    with span("launch"):
        kernel = loaded_built(checked_of(program), name, arch, built)
    reference = kernel.program if problem is None else frontend.program(checked_of(problem), name)
    is_pipeline = isinstance(reference, Pipeline)
    for case, more in CASES:
        reference_case = case_of(reference, sizes, case, seed + more)
        arguments = reference_case.arguments
        verdict = verdict_of(
            reference,
            kernel,
            arguments,
            sampled and case != "integer",
            reference_case.expected,
            _accepted(),
            end_to_end=problem is not None or not sampled or not is_pipeline,
        )
        left_open = is_pipeline and case == "integer" and verdict.state == "undecided"
        if not verdict.ok and not left_open:
            return {"seconds": None, "words": f"{case}: {verdict}"}
    with span("timing"):
        sets = rotated(arguments)
        timing = compare({"candidate": turns(kernel, sets)}, len(sets), rounds=ROUNDS)["candidate"]
    return {"seconds": timing.median * 1e-6, "words": ""}


ROWS = 64
"""Coordinates that a sample has: see `ucutlass.reference.RowSample` for what they miss."""


def verdict_of(
    reference: Program,
    kernel: Any,
    arguments: Sequence[Any],
    sampled: bool,
    expected: ExpectedResults | None = None,
    accepted: AcceptedResults | None = None,
    *,
    end_to_end: bool = True,
) -> LaunchVerdict:
    """Returns the verdict on a loaded kernel. `expected` is the whole reference, where there is one. If `sampled`
    and there is none, what is right at sampled coordinates is taken as right, until the candidate is confirmed;
    of everything else the whole reference decides. Without `end_to_end` a pipeline is right where all its stages
    are, and the whole is asked where they decide nothing. `accepted` has what was right before."""
    from ucutlass.reference import RowSample
    from ucutlass.runtime import verify

    if expected is None and (sampled or not end_to_end):
        sample = RowSample(ROWS, random.SystemRandom().getrandbits(63)) if sampled else None
        verdict = verify.check(
            reference,
            kernel.judged(*arguments),
            arguments,
            sample=sample,
            accepted=accepted,
            end_to_end=end_to_end,
        )
        if verdict.ok:
            return verdict
    return verify.check(reference, kernel.judged(*arguments), arguments, expected=expected, accepted=accepted)


def race(
    candidate: dict[str, Any], incumbent: dict[str, Any], name: str, arch: str, seed: int
) -> dict[str, Any]:
    """Times a candidate in turns with the fastest that was confirmed, until it is decided which is faster; each
    is `{"program": .., "built": .., "sizes": ..}`. Nothing is verified: who is faster is then confirmed. Returns
    the fields of `ucutlass.runtime.timing.RaceTiming`."""
    with span(isolation.STARTS):
        import torch

        from ucutlass import frontend
        from ucutlass.handoff import checked_of
        from ucutlass.runtime import timing
        from ucutlass.tasks.built import loaded_built

        torch.cuda.init()  # type: ignore[no-untyped-call]
    try:
        sides = []
        for side in (candidate, incumbent):
            checked = checked_of(side["program"])
            with span("launch"):
                kernel = loaded_built(checked, name, arch, side["built"])
            sets = argument_sets(frontend.program(checked, name), side["sizes"], seed)
            sides.append((turns(kernel, sets), len(sets)))
        with span("timing"):
            raced = timing.race(*sides)
        return {"verdict": raced.verdict, "ratio": raced.ratio, "rounds": raced.rounds}
    finally:
        _return_memory()


def argument_sets(program: Any, sizes: dict[str, int], seed: int) -> list[list[Any]]:
    """Returns argument sets that rotate through more than twice the L2."""
    from ucutlass.runtime.inputs import generate

    return rotated(generate(program, sizes, "normal", seed=seed, device="cuda", generator_device="cuda"))


def rotated(first: Sequence[Any]) -> list[list[Any]]:
    """Returns `first` and copies of it, as many as it takes to rotate through more than twice the L2."""
    import torch

    from ucutlass.runtime.timing import sets_for

    moved = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
    copies = range(sets_for(moved) - 1)
    return [list(first), *([a.clone() if isinstance(a, torch.Tensor) else a for a in first] for _ in copies)]


def turns(kernel: Any, sets: Sequence[Sequence[Any]]) -> Callable[[int], object]:
    """Results rotate like the arguments."""
    results = [kernel(*arguments) for arguments in sets]
    return lambda at: kernel(*sets[at], out=results[at])
