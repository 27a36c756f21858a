"""Times many schedules of one kernel on the GPU, or verifies them and times them in turns, for `ucc tune`.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`. `keys` name the schedules'
artefacts in the cache, one a plan: nothing is read, planned or built here, so no compiler is needed where a
GPU is. `program` and `plans` are payloads of `ucutlass.handoff`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from ucutlass import ir
    from ucutlass.frontend import Checked
    from ucutlass.runtime.launch import Launcher

ROUNDS = 5
"""Of each kernel in the search; nine would not change which are among the first three."""

WORTH = 1.12
"""How far behind the best a binary may be for its launch parameters to be tried: raster and swizzle seldom bring more."""

FINAL_ROUNDS = 24
"""Of each finalist, in turns: twelve blocks A B B A, two more than an interval needs."""

CASES: tuple[Literal["normal", "integer"], ...] = ("normal", "integer")
"""Distributions that a finalist is verified on, as `ucc bench` does."""


@dataclass(frozen=True, slots=True)
class LoadedSchedule:
    """A built kernel that can be called: `launcher(*arguments, out=None)`."""

    program: ir.Kernel
    launcher: Launcher


def waking_kernel(name: str = "bf16") -> ir.Kernel:
    """Returns the typed program of a plain product of the elements of a name, which is written as

        kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }

    There is no text to parse in a process that only times."""
    from ucutlass import ir
    from ucutlass.ir.elements import ELEMENTS, F32
    from ucutlass.ir.extents import Free

    elem = ELEMENTS[name]

    def tensor(*dims: str) -> ir.TensorType:
        return ir.TensorType(elem, tuple(ir.MemoryAxis((dim,), Free(dim)) for dim in dims))

    x, w = ir.ParamValue(0, elem, ("M", "K")), ir.ParamValue(1, elem, ("N", "K"))
    product = ir.Dot(("K",), x, w, elem, "f32", F32, ("M", "N"))
    params = (ir.ParamDecl("x", tensor("M", "K")), ir.ParamDecl("w", tensor("N", "K")))
    result = ir.ResultDecl("", tensor("M", "N"), product)
    return ir.Kernel("k", {dim: Free(dim) for dim in "MKN"}, params, (result,), (), ())


def ready() -> None:
    """Does once what a process does slowly the first time: a CUDA context, the native launcher, random
    arguments, the reference and its comparison. It keeps the GPU busy for a moment, so whoever calls it
    holds the lock."""
    import torch

    from ucutlass.runtime import library, verify
    from ucutlass.runtime.inputs import generate

    library.native()
    if not torch.cuda.is_available():
        return
    program = waking_kernel()

    def launch(args: Sequence[Any], outs: Sequence[Any]) -> None:
        outs[0].copy_(args[0].float() @ args[1].float().t())

    for case in CASES:
        sizes = {"M": 64, "N": 64, "K": 64}
        verify.check(
            program, launch, generate(program, sizes, case, seed=0, device="cuda", generator_device="cuda")
        )
    torch.cuda.synchronize()


def timed(
    program: dict[str, Any],
    name: str,
    sizes: dict[str, int],
    plans: list[dict[str, Any]],
    keys: list[str],
    seed: int,
    counts: list[int],
    best: float | None,
) -> dict[str, Any]:
    """Returns `seconds` of each schedule, None for one that the launcher refuses or that was not worth a
    look, with why in `words`. `counts` says how many of one binary stand together: where the first of them
    takes over WORTH times the `best` known, the settings of its launch parameters are not tried.

    An error that stays with the process (a CUDA fault) is raised: nothing after it could be believed.
    """
    import torch

    from ucutlass.handoff import checked_of
    from ucutlass.runtime.entry_codes import LaunchError
    from ucutlass.runtime.timing import compare

    sets: list[list[Any]] = []
    seconds: list[float | None] = []
    words: list[str] = []
    heads = {sum(counts[:i]) for i in range(len(counts))}
    worth = True
    checked = checked_of(program)
    for at, (plan, key) in enumerate(zip(plans, keys, strict=True)):
        worth = worth or at in heads
        if not worth:
            seconds.append(None)
            words.append("not timed: the binary is far from the best")
            continue
        kernel = _loaded(checked, name, plan, key)
        sets = sets or _sets(kernel, sizes, seed)
        try:
            timing = compare({"kernel": _launch(kernel, sets)}, len(sets), rounds=ROUNDS)["kernel"]
        except LaunchError as refused:
            seconds.append(None)
            words.append(str(refused))
        else:
            median = timing.median * 1e-6
            seconds.append(median)
            words.append("")
            best = median if best is None else min(best, median)
            if at in heads:
                worth = median <= WORTH * best
    # The process stays for the next call, but the memory is for whoever holds the lock then.
    sets.clear()
    del kernel
    torch.cuda.empty_cache()
    return {"seconds": seconds, "words": words}


def confirmed(
    program: dict[str, Any],
    name: str,
    sizes: dict[str, int],
    plans: list[dict[str, Any]],
    keys: list[str],
    seed: int,
    versions: dict[str, str],
) -> dict[str, Any]:
    """Returns `machine`, and of each schedule its `rounds` in seconds, empty where it is wrong, which
    `words` say: a wrong kernel has no speed."""
    from ucutlass.handoff import checked_of
    from ucutlass.runtime.subject import machine_of
    from ucutlass.runtime.timing import compare

    checked = checked_of(program)
    kernels = [_loaded(checked, name, plan, key) for plan, key in zip(plans, keys, strict=True)]
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


def _loaded(checked: Checked, name: str, plan: Mapping[str, Any], key: str) -> LoadedSchedule:
    from ucutlass import frontend
    from ucutlass.backend import bind
    from ucutlass.runtime.launch import BoundKernel, Launcher, LaunchRequest
    from ucutlass.runtime.launch_spec import spec_of
    from ucutlass.tasks.built import built_kernel

    program = frontend.kernel(checked, name)
    built = built_kernel(checked, program, {"plan": plan, "key": key})
    sizes = built.planned.sizes

    def choose(request: LaunchRequest) -> BoundKernel:
        if request.extents != sizes or not all(request.aligned):
            raise ValueError(f"the plan is for aligned tensors of {sizes}, not for {request}")
        return bind(built, program.name)

    return LoadedSchedule(program, Launcher(spec_of(program, []), choose))


def _sets(kernel: LoadedSchedule, sizes: Mapping[str, int], seed: int) -> list[list[Any]]:
    """Returns argument sets that rotate through more than twice the L2."""
    import torch

    from ucutlass.runtime.inputs import generate
    from ucutlass.runtime.timing import sets_for

    first = generate(kernel.program, sizes, "normal", seed=seed, device="cuda", generator_device="cuda")
    moved = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
    return [[a.clone() if isinstance(a, torch.Tensor) else a for a in first] for _ in range(sets_for(moved))]


def _launch(kernel: LoadedSchedule, sets: Sequence[Sequence[Any]]) -> Callable[[int], object]:
    """Results rotate like the arguments: one that stayed in place would stay in L2."""
    call: Callable[..., Any] = kernel.launcher
    results = [call(*arguments) for arguments in sets]
    return lambda i: call(*sets[i], out=results[i])


def _wrong(kernel: LoadedSchedule, sizes: Mapping[str, int], seed: int) -> str:
    """Returns why the kernel is wrong, or does not run; "" where it is right on all cases."""
    from ucutlass.runtime import verify
    from ucutlass.runtime.entry_codes import LaunchError
    from ucutlass.runtime.inputs import generate

    call: Callable[..., Any] = kernel.launcher

    def launch(args: Sequence[Any], outs: Sequence[Any]) -> None:
        call(*args, out=outs[0] if len(outs) == 1 else tuple(outs))

    for case in CASES:
        arguments = generate(kernel.program, sizes, case, seed=seed, device="cuda", generator_device="cuda")
        words = "the launcher refuses it"
        with suppress(LaunchError):
            verdict = verify.check(kernel.program, launch, arguments)
            if verdict.ok:
                continue
            words = str(verdict)
        return f"{case}: {words}"
    return ""
