"""Many schedules of one kernel on the GPU, timed, or verified and timed in turns: what `ucc tune` runs
in processes of its own.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolate`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ucutlass.api import LoadedKernel

ROUNDS = 5
"""Of each kernel in the search; nine would not change which are among the first three."""

FINAL_ROUNDS = 24
"""Of each finalist, in turns: twelve blocks A B B A, two more than an interval needs."""

CASES: tuple[Literal["normal", "integer"], ...] = ("normal", "integer")
"""Distributions that a finalist is verified on, as `ucc bench` does."""


def timed(
    text: str, file: str, name: str, sizes: dict[str, int], arch: str, requests: list[dict[str, Any]],
    seed: int,
) -> dict[str, Any]:
    """`seconds` of each schedule, None for one that the launcher refuses, with why in `words`.

    An error that stays with the process (a CUDA fault) is raised: nothing after it could be believed.
    """
    from ucutlass.runtime.entry_codes import LaunchError
    from ucutlass.runtime.timing import compare

    sets: list[list[Any]] = []
    seconds: list[float | None] = []
    words: list[str] = []
    for request in requests:
        kernel = _loaded(text, file, name, arch, request)
        sets = sets or _sets(kernel, sizes, seed)
        try:
            found = compare({"kernel": _launch(kernel, sets)}, len(sets), rounds=ROUNDS)["kernel"]
        except LaunchError as refused:
            seconds.append(None)
            words.append(str(refused))
        else:
            seconds.append(found.median * 1e-6)
            words.append("")
    return {"seconds": seconds, "words": words}


def confirmed(
    text: str, file: str, name: str, sizes: dict[str, int], arch: str, requests: list[dict[str, Any]],
    seed: int, versions: dict[str, str],
) -> dict[str, Any]:
    """`machine`, and of each schedule its `rounds` in seconds, empty where it is wrong, which `words` say:
    a wrong kernel has no speed."""
    from ucutlass.runtime.subject import machine_of
    from ucutlass.runtime.timing import compare

    kernels = [_loaded(text, file, name, arch, r) for r in requests]
    words = [_wrong(k, sizes, seed) for k in kernels]
    sets = _sets(kernels[0], sizes, seed)
    right = {str(i): _launch(k, sets) for i, (k, w) in enumerate(zip(kernels, words, strict=True)) if not w}
    times = compare(right, len(sets), rounds=FINAL_ROUNDS) if right else {}
    return {
        "machine": asdict(machine_of(0, versions)),
        "rounds": [
            [us * 1e-6 for us in times[str(i)].rounds] if str(i) in times else [] for i in range(len(kernels))
        ],
        "words": words,
    }


def _loaded(text: str, file: str, name: str, arch: str, request: Mapping[str, Any]) -> LoadedKernel:
    from ucutlass import frontend
    from ucutlass.api import LoadedKernel
    from ucutlass.trials.profile import request_of_json, scheduled

    checked = frontend.read_text(text, file)
    program = scheduled(frontend.kernel(checked, name), arch, request_of_json(request))
    return LoadedKernel(checked, program, arch)


def _sets(kernel: LoadedKernel, sizes: Mapping[str, int], seed: int) -> list[list[Any]]:
    """Argument sets that rotate through more than twice the L2."""
    import torch

    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.timing import sets_for

    first = generate(kernel.program, sizes, "normal", seed=seed, device="cuda")
    moved = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
    return [[a.clone() if isinstance(a, torch.Tensor) else a for a in first] for _ in range(sets_for(moved))]


def _launch(kernel: LoadedKernel, sets: Sequence[Sequence[Any]]) -> Callable[[int], object]:
    """Results rotate like the arguments: one that stayed in place would stay in L2."""
    results = [kernel(*arguments) for arguments in sets]
    return lambda i: kernel(*sets[i], out=results[i])


def _wrong(kernel: LoadedKernel, sizes: Mapping[str, int], seed: int) -> str:
    """Why the kernel is wrong, or does not run; "" where it is right on all cases."""
    from ucutlass.runtime import verify
    from ucutlass.runtime.entry_codes import LaunchError
    from ucutlass.runtime.inputs import generate

    def launch(args: Sequence[Any], outs: Sequence[Any]) -> None:
        kernel(*args, out=outs[0] if len(outs) == 1 else tuple(outs))

    for case in CASES:
        arguments = generate(kernel.program, sizes, case, seed=seed, device="cuda")
        words = "the launcher refuses it"
        with suppress(LaunchError):
            verdict = verify.check(kernel.program, launch, arguments)
            if verdict.ok:
                continue
            words = str(verdict)
        return f"{case}: {words}"
    return ""
