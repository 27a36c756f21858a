"""Compares kernels on the GPU, for `ucc bench`.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`; programs are payloads of
`ucutlass.handoff`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ucutlass.runtime import isolation
from ucutlass.spans import span

if TYPE_CHECKING:
    from ucutlass.api import LoadedKernel, LoadedPipeline
    from ucutlass.runtime.bench.bench_device import BenchDevice
    from ucutlass.runtime.bench.outcome import BenchCandidate, UntimedCandidate
    from ucutlass.runtime.bench.protocol import Protocol
    from ucutlass.runtime.bench.workload import Buffers


OF_FILES = frozenset({"program", "refused", "module"})
"""What a baseline has that comes from a file; one without is a name that the process knows."""


def on_gpu(
    program: dict[str, Any],
    built: dict[str, Any],
    name: str | None,
    sizes: dict[str, int],
    arch: str | None,
    seed: int,
    baselines: list[dict[str, Any]],
    protocols: list[dict[str, Any]],
    bandwidth: float | None,
    proven: bool = False,
) -> dict[str, Any]:
    """Verifies the kernel, unless the suite was `proven` of these files before, then times it against the baselines,
    once a protocol. `built` is a payload of `ucutlass.tasks.built`.

    A baseline is `{"name": ..}`, of a `.ucu` file with its `program` and `built` (and `kernel`, where the file
    has several), or with why it is `refused`; of a PyTorch module with what `ucutlass.tasks.module_baseline` takes as `module` and `names`.
    `protocols` are fields of `runtime.bench.protocol.Protocol`. Returns `device`, `machine`, `verified` (a
    list of cases, each with `ok` and `words`) and `regimes`, empty where a case failed: a wrong kernel has no
    speed. `stages` are those of a pipeline, each timed alone.
    """
    with span(isolation.STARTS):
        import torch

        from ucutlass.handoff import checked_of
        from ucutlass.runtime.bench.cuda import Cuda
        from ucutlass.runtime.bench.protocol import Protocol
        from ucutlass.runtime.subject import machine_of
        from ucutlass.tasks.built import loaded_built

        torch.cuda.init()  # type: ignore[no-untyped-call]
        gpu = Cuda()
        machine = asdict(machine_of(torch.cuda.current_device()))
    with span("launch"):
        kernel = loaded_built(checked_of(program), name, arch, built)
    chosen = [Protocol(**fields) for fields in protocols]
    return {"device": torch.cuda.get_device_name(), "machine": machine} | judged(
        kernel, gpu, sizes, arch, seed, baselines, chosen, bandwidth, proven=proven
    )


def judged(
    kernel: LoadedKernel | LoadedPipeline,
    gpu: BenchDevice,
    sizes: Mapping[str, int],
    arch: str | None,
    seed: int,
    baselines: Sequence[Mapping[str, Any]],
    protocols: Sequence[Protocol],
    bandwidth: float | None,
    *,
    proven: bool = False,
) -> dict[str, Any]:
    """Returns `verified` and `regimes` of `on_gpu`, on any device."""
    import torch

    cases = () if proven else ("normal", "integer")
    verified = [_verified(kernel, sizes, d, seed, gpu.device) for d in cases]
    regimes = []
    with torch.no_grad():
        for number, chosen in enumerate(protocols if all(v["ok"] for v in verified) else ()):
            if number:
                torch.cuda.empty_cache()
            regimes.append(_compared(kernel, sizes, arch, baselines, chosen, gpu, bandwidth))
    stages = _stages(kernel, sizes, seed, gpu.device) if regimes else []
    return {"verified": verified, "regimes": regimes, "stages": stages}


@span("timing")
def _stages(
    kernel: LoadedKernel | LoadedPipeline, sizes: Mapping[str, int], seed: int, device: str
) -> list[dict[str, Any]]:
    """Returns a pipeline's stages with their times and which are torch's; none for a kernel."""
    from ucutlass.ir import Pipeline
    from ucutlass.runtime.inputs import generate

    if not isinstance(kernel.program, Pipeline) or device != "cuda":
        return []
    times = kernel.stage_times(*generate(kernel.program, sizes, "normal", seed=seed, device=device))
    return [{"name": t.name, "microseconds": t.seconds * 1e6, "torch": t.torch} for t in times]


def _verified(
    kernel: LoadedKernel | LoadedPipeline, sizes: Mapping[str, int], distribution: Any, seed: int, device: str
) -> dict[str, Any]:
    from ucutlass.runtime import verify
    from ucutlass.runtime.inputs import generate

    arguments = generate(kernel.program, sizes, distribution, seed=seed, device=device)
    verdict = verify.check(kernel.program, kernel.judged(*arguments), arguments)
    return {"case": distribution, "ok": verdict.ok, "words": str(verdict)}


def _out(outs: Sequence[Any]) -> Any:
    return outs[0] if len(outs) == 1 else tuple(outs)


def _compared(
    kernel: LoadedKernel | LoadedPipeline,
    sizes: Mapping[str, int],
    arch: str | None,
    baselines: Sequence[Mapping[str, Any]],
    chosen: Protocol,
    gpu: BenchDevice,
    bandwidth: float | None,
) -> dict[str, Any]:
    """Returns one regime's report, with how the buffers rotated."""
    import torch

    from ucutlass.runtime.bench.eager import NotAvailable, needs_tf32
    from ucutlass.runtime.bench.measure import measure
    from ucutlass.runtime.bench.outcome import UntimedCandidate
    from ucutlass.runtime.bench.regimes import not_cold, sets_for
    from ucutlass.runtime.bench.report import findings_to_json, to_json
    from ucutlass.runtime.bench.workload import Buffers
    from ucutlass.runtime.inputs import generate
    from ucutlass.shapes import complete

    program = kernel.program
    full = dict(zip(program.dims, complete(program, sizes), strict=True))
    once = bytes_of_call(kernel, generate(program, sizes, "normal", seed=chosen.seed, device=gpu.device))
    sets = sets_for(once, gpu.l2, chosen.regime)
    chance = random.Random(random.SystemRandom().getrandbits(64))
    with span("inputs"):
        buffers = Buffers(program, sizes, sets, gpu.device, chosen.seed, chance)
    refused: list[UntimedCandidate] = []
    try:
        torch.set_float32_matmul_precision("high" if needs_tf32(program) else "highest")
    except NotAvailable as reason:
        refused += [_failed(b["name"], reason) for b in baselines if not b.keys() & OF_FILES]
        baselines = [b for b in baselines if b.keys() & OF_FILES]
    candidates = [candidate_of(kernel, "candidate", buffers)]
    for request in baselines:
        match _baseline(request, buffers, sizes, full, arch, gpu.device):
            case UntimedCandidate() as failed:
                refused.append(failed)
            case candidate:
                candidates.append(candidate)
    measured = measure(candidates, buffers, gpu, chosen, bandwidth=bandwidth)
    report = to_json(measured, chosen, refused)
    report["buffers"] = {"sets": sets, "bytes_per_set": once, "l2": gpu.l2}
    report["findings"] += findings_to_json(not_cold(once, sets, gpu.l2, chosen.regime))
    return report


def bytes_of_call(kernel: LoadedKernel | LoadedPipeline, arguments: Sequence[Any]) -> int:
    """Returns the bytes of all arguments and results of a call."""
    from ucutlass.runtime.bench.workload import bytes_of

    results = kernel(*arguments)
    return bytes_of(arguments) + bytes_of(results if isinstance(results, tuple) else (results,))


def candidate_of(kernel: LoadedKernel | LoadedPipeline, name: str, buffers: Buffers) -> BenchCandidate:
    """Returns a kernel of ours on these buffers, with result tensors of its own."""
    from ucutlass.runtime.bench.outcome import BenchCandidate
    from ucutlass.runtime.bench.workload import bytes_of

    results = [kernel(*arguments) for arguments in buffers.arguments]
    outs = [m if isinstance(m, tuple) else (m,) for m in results]

    def launch(at: int) -> Sequence[Any]:
        kernel(*buffers.arguments[at], out=_out(outs[at]))
        return outs[at]

    moved = bytes_of(buffers.arguments[0]) + bytes_of(outs[0])
    return BenchCandidate(name, launch, buffers.strict(), moved, _branches(kernel))


def _branches(kernel: LoadedKernel | LoadedPipeline) -> bool:
    """Returns whether a call of it, which was called before, forks streams."""
    built = getattr(kernel, "built", {}).values()
    return any(pipeline.plan.streams.count > 1 for pipeline in built)


@span("baselines")
def _baseline(
    request: Mapping[str, Any],
    buffers: Buffers,
    sizes: Mapping[str, int],
    full: Mapping[str, int],
    arch: str | None,
    device: str,
) -> BenchCandidate | UntimedCandidate:
    """Returns the baseline, or its failure in its own words: whatever torch or a build raises is kept."""
    from ucutlass.runtime.bench.baselines import baseline
    from ucutlass.runtime.bench.outcome import UntimedCandidate
    from ucutlass.tasks.module_baseline import module_candidate

    name = request["name"]
    try:
        if "refused" in request:
            return UntimedCandidate(name, "preparation", request["refused"][:500])
        if "module" in request:
            return module_candidate(name, request["module"], request["names"], buffers, device)
        if "program" not in request:
            return baseline(name, buffers, full, device)
        return _other_file(request, buffers, sizes, arch, device)
    except Exception as error:
        return _failed(name, error)


class OtherProgram(Exception):
    """A file that is to be a baseline computes from other parameters."""


def _other_file(
    request: Mapping[str, Any], buffers: Buffers, sizes: Mapping[str, int], arch: str | None, device: str
) -> BenchCandidate:
    from ucutlass import frontend
    from ucutlass.handoff import checked_of
    from ucutlass.tasks.built import loaded_built

    checked = checked_of(request["program"])
    program = frontend.program(checked, request.get("kernel"))
    ours = [p.type for p in buffers.program.params]
    theirs = [p.type for p in program.params]
    if ours != theirs or dict(program.dims) != dict(buffers.program.dims):
        raise OtherProgram(f"{program.name} lacks the parameters of {buffers.program.name}")
    other = loaded_built(checked, program.name, arch, request["built"])
    failed = [
        v for v in (_verified(other, sizes, d, 0, device) for d in ("normal", "integer")) if not v["ok"]
    ]
    if failed:
        raise OtherProgram(f"wrong, so it has no speed: {failed[0]['words']}")
    return candidate_of(other, request["name"], buffers)


def _failed(name: str, error: Exception) -> UntimedCandidate:
    from ucutlass.runtime.bench.outcome import UntimedCandidate

    return UntimedCandidate(name, "preparation", f"{type(error).__name__}: {str(error)[:500]}")
