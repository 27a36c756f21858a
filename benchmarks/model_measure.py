"""Measures one architecture through `torch.compile(model, backend="ucutlass")`, in a process of its own.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`. The oracle is the model in
float64; results are right within a small multiple of eager's own error in the element type.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks import turns
from benchmarks.harness import append
from benchmarks.kernel_trace import by_name, kernel_times
from benchmarks.model_cases import CASES, cast, settled
from benchmarks.module_measure import free
from benchmarks.turns import DeviceLock, compiled, cuda_clock, host_clock
from ucutlass import spans
from ucutlass.dynamo.fallback import FallbackWarning

if TYPE_CHECKING:
    from ucutlass.dynamo.backend import Report

Row: TypeAlias = dict[str, Any]

DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}

FLOORS = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-17}
"""Relative errors, in the norm, of a whole model that need no excuse."""

SETS = 4
"""Inputs that rotate. Weights stay, as they do where a model is served."""

TIMING_SECONDS = 30.0
"""What a row takes once all is compiled."""

OWN_KERNEL = "ucc_"
"""What the name of each kernel of ours holds (`ucutlass.emit.text.finish`)."""

Tell: TypeAlias = Callable[..., None]


def measured(
    name: str,
    dtype: str,
    batch: int,
    note: str,
    lock: str,
    device: str,
    exact: bool,
    compile: bool,
    max_autotune: bool,
    kernels: bool,
    hold_seconds: float,
    build_seconds: float,
    compile_seconds: float,
    choose: str = "time",
    deadline: float | None = None,
) -> Row:
    """Returns a row's results: `status` right or wrong; `us` of a launch by candidate in CUDA graphs and
    `call_us` as a user calls it; `seconds` of each first call; the share of the device's time in our kernels,
    and what went to the fallback. Each step's facts are added to the lines of the file `note` as soon as they
    are known. `exact` False leaves the oracle in f32, `compile` False leaves TorchInductor out, `kernels`
    adds what each launches where ours takes longer than TorchInductor; `choose` is the backend's option, "time" or
    "always"; `waited` are the seconds until others gave the GPU. At the `deadline`, a time of the monotonic clock, the run
    ends: TorchInductor gets no time that the rest of the row needs."""
    row: Row = {}

    def tell(**facts: Any) -> None:
        row.update(facts)
        append(Path(note), facts)

    gpu = DeviceLock(Path(lock), hold_seconds)
    with torch.no_grad():
        tell(stage="model")
        turns.load_compilers()  # what takes seconds must not take the lock's
        model, inputs = model_of(name, dtype, batch, device, gpu)
        tell(stage="oracle", parameters=sum(p.numel() for p in model.parameters()))
        with gpu.holding():
            eager = forwarded(model, inputs)
            oracle, known = exact_results(model, inputs, exact)
            tell(oracle=oracle)
            free(device)
        tell(stage="ucutlass")
        report, ours = backend_of(model, device, gpu, choose)
        with fallback_notes() as notes, spans.recording() as record:
            row["seconds"] = {"ucutlass": first_call(ours, inputs, gpu, build_seconds, device)}
        parts = parts_of(record.seconds, row["seconds"]["ucutlass"])
        tell(seconds=row["seconds"], parts=parts, unbuilt=notes[:8], **fallback_of(report))
        calls: dict[str, Callable[..., Any]] = {"ucutlass": ours, "eager": model}
        if "fallback" in row["choices"]:
            tell(stage="programs")
            report, calls["programs"] = backend_of(model, device, gpu, "always")
            row["seconds"]["programs"] = first_call(calls["programs"], inputs, gpu, build_seconds, device)
            tell(seconds=row["seconds"], **{**fallback_of(report), "choices": row["choices"]})
        with gpu.holding():
            tell(stage="check")
            for column in ("ucutlass", "programs"):
                if column in calls and row.get("status") != "wrong":
                    tell(**checked(calls[column], inputs, eager, known, dtype))
            del eager, known
            free(device)
        for column in (("inductor",) if compile else ()) + (
            ("max-autotune",) if compile and max_autotune else ()
        ):
            tell(stage=column)
            left = math.inf if deadline is None else deadline - time.monotonic() - TIMING_SECONDS
            limit = min(compile_seconds, left)
            if (call := inductor_of(column, model, inputs, gpu, device, limit, tell, row)) is not None:
                calls[column] = call
        tell(stage="time")
        with gpu.holding():
            tell(**timed(calls, inputs, device))
            if device != "cpu":
                tell(stage="profile")
                about = share_of(partial(calls.get("programs", ours), *inputs))
                whole = share_of(partial(ours, *inputs)) if "programs" in calls else about
                tell(share=whole["share"], programs_share=about["share"])
                tell(others=about["others"], slowest=about["slowest"])
                if kernels and row["us"]["ucutlass"] > row["us"].get("inductor", 0.0):
                    tell(stage="kernels")
                    tell(launches=kernel_times(partial(calls.get("programs", ours), *inputs)))
                    for column in set(calls) & {"inductor"}:
                        tell(launches_inductor=by_name(kernel_times(partial(calls[column], *inputs))))
    turns.stop_compilers()
    tell(stage="end", waited=round(gpu.waited, 1))
    return row


def compiled_once(
    name: str, dtype: str, batch: int, note: str, lock: str, device: str, column: str, limit_seconds: float
) -> Row:
    """Returns the seconds of a first call in this process, whose caches on disk are warm."""
    gpu = DeviceLock(Path(lock), limit_seconds)
    with torch.no_grad():
        model, inputs = model_of(name, dtype, batch, device, gpu)
        if column == "ucutlass":
            call = backend_of(model, device, gpu, "time")[1]
        else:
            call = torch.compile(model, dynamic=False)
        with spans.recording() as record:
            seconds = first_call(call, inputs, gpu, limit_seconds, device)
    turns.stop_compilers()
    append(Path(note), {"stage": "end"})
    return {"stage": "end", "warm": seconds, "parts": parts_of(record.seconds, seconds)}


# --- the model ----------------------------------------------------------------------------------


def model_of(
    name: str, dtype: str, batch: int, device: str, gpu: DeviceLock
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns the model with random weights and its inputs, in the element type."""
    case, element = CASES[name], DTYPES[dtype]
    torch.manual_seed(0)
    model, inputs = case.model(), case.inputs(batch)
    with gpu.holding():
        model = settled(model.to(device), tuple(x.to(device) for x in case.inputs(2)))
        model = cast(model, element)
        free(device)
        return model, tuple(x.to(device, element if x.is_floating_point() else x.dtype) for x in inputs)


def forwarded(model: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns the tensors among the results, with PyTorch's switches as they are: TorchDynamo compiles anew
    under others."""
    return [leaf for leaf in tree_leaves(model(*inputs)) if isinstance(leaf, Tensor)]


def exact_results(model: nn.Module, inputs: Sequence[Tensor], exact: bool) -> tuple[str, list[Tensor]]:
    """Returns the oracle's name and its results: of the model in float64, or in f32 where an operator of the
    model has no float64, as grouped products have none."""
    for name, element in (("float64", torch.float64), ("f32", torch.float32)):
        if name == "float64" and not exact:
            continue
        wide = cast(copy.deepcopy(model), element)
        try:
            return name, forwarded(wide, [x.to(element) if x.is_floating_point() else x for x in inputs])
        except RuntimeError as problem:
            if name == "f32" or "CUDA error" in str(problem):
                raise
    raise AssertionError("f32 returns or raises")


def checked(
    ours: Callable[..., Any],
    inputs: Sequence[Tensor],
    eager: Sequence[Tensor],
    known: Sequence[Tensor],
    dtype: str,
) -> Row:
    """Returns `status`, what is `wrong`, and our error and eager's."""
    results = forwarded(ours, inputs)
    return turns.judged(results, eager, known, FLOORS[dtype])


# --- compiled -----------------------------------------------------------------------------------


def backend_of(
    model: nn.Module, device: str, gpu: DeviceLock, choose: str
) -> tuple[Report, Callable[..., Any]]:
    """Returns the model compiled by our backend, which has compiled nothing yet, and what it will report. What
    it measures to choose between programs and fallback it measures with the GPU to itself. On the CPU, for
    tests, programs are evaluated by the reference and the rest by eager PyTorch."""
    from ucutlass.dynamo.backend import BackendHooks, Report, backend
    from ucutlass.dynamo.choice import measured as both
    from ucutlass.dynamo.options import options_of

    def alone(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
        with gpu.holding():
            return both(first, second)

    report = Report()
    if device == "cpu":
        options = options_of({"fallback": "eager"})
        hooks = BackendHooks(launch=_references, measure=_programs_first, devices=("cpu",))
    else:
        options, hooks = options_of({"choose": choose}), BackendHooks(measure=alone)
    own = backend(options, hooks=hooks, report=report)
    return report, torch.compile(model, backend=own, dynamic=False)


def _programs_first(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    return 1.0, 2.0


def _references(jobs: Sequence[Any], options: Any) -> Callable[[], list[Any]]:
    return lambda: [_reference(job.region) for job in jobs]


def _reference(region: Any) -> Callable[..., Any]:
    from ucutlass.api import loads

    program = loads(region.text, region.name)

    def call(*arguments: Tensor) -> Any:
        results = program.reference(*arguments)
        several = results if isinstance(results, tuple) else (results,)
        narrow = tuple(r.to(arguments[0].dtype) if r.is_floating_point() else r for r in several)
        return narrow if isinstance(results, tuple) else narrow[0]

    return call


@contextmanager
def fallback_notes() -> Iterator[list[str]]:
    """Collects what the backend says of calls that the fallback serves."""
    notes: list[str] = []
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always", FallbackWarning)
        yield notes
    notes += [str(w.message)[:300] for w in given if issubclass(w.category, FallbackWarning)]


def fallback_of(report: Report) -> Row:
    """Returns how many graphs and programs there are, what serves the graphs, and the operators outside of
    programs with reasons."""
    from ucutlass.dynamo.partition import NO_WORK

    outside = Counter(
        (o.operator, o.why) for graph in report.graphs for o in graph.outside if o.why not in NO_WORK
    )
    return {
        "graphs": len(report.graphs),
        "programs": sum(len(graph.texts) for graph in report.graphs),
        "choices": [choice.server for choice in report.choices],
        "choice_us": [[choice.programs_us, choice.fallback_us] for choice in report.choices],
        "outside": sum(outside.values()),
        "reasons": [[operator, why[:200], count] for (operator, why), count in outside.most_common(8)],
    }


def first_call(
    call: Callable[..., Any], inputs: Sequence[Tensor], gpu: DeviceLock, limit: float, device: str
) -> float:
    """Returns the seconds of a first call, whose time is the compiler's; waiting for the lock is none. Raises
    Late."""
    start, waited = time.monotonic(), gpu.waited
    with turns.within(limit):
        call(*inputs)
        if device != "cpu":
            torch.cuda.synchronize()
    return round(time.monotonic() - start - gpu.waited + waited, 2)


def parts_of(seconds: Mapping[str, float], total: float) -> Row:
    """Returns the seconds of a first call by what the host did: spans of our backend, and `tracing`, which is the
    rest: TorchDynamo, AOTAutograd, and the call itself."""
    parts = {name: round(took, 2) for name, took in seconds.items()}
    return {"tracing": round(max(0.0, total - sum(seconds.values())), 2), **parts}


def inductor_of(
    column: str,
    model: nn.Module,
    inputs: Sequence[Tensor],
    gpu: DeviceLock,
    device: str,
    limit: float,
    tell: Tell,
    row: Row,
) -> Callable[..., Any] | None:
    """Returns the model as TorchInductor compiles it, after its first call; None where it fails, which the row
    says, or takes longer than the limit. Autotuning measures, so it has the GPU to itself."""
    if limit <= 0:
        tell(uncompiled=f"{column}: no time was left")
        return None
    backend = (lambda graph, inputs: graph.forward) if device == "cpu" else None
    if column == "max-autotune" and device != "cpu":
        call = torch.compile(model, mode="max-autotune-no-cudagraphs", dynamic=False)
    else:
        call = compiled(model, gpu, backend=backend)
    try:
        with gpu.holding() if column == "max-autotune" else _given_back(gpu):
            row["seconds"][column] = first_call(call, inputs, gpu, limit, device)
        tell(seconds=row["seconds"])
        return call
    except turns.Late:
        tell(uncompiled=f"{column}: not within {limit:.0f} s")
    except Exception as failure:  # a backend of torch's that fails is a row's finding
        if "CUDA error" in str(failure):
            raise
        tell(uncompiled=f"{column}: {type(failure).__name__}: {failure}"[:400])
    return None


@contextmanager
def _given_back(gpu: DeviceLock) -> Iterator[None]:
    """Gives the lock back that a first call has taken."""
    try:
        yield
    finally:
        if gpu.held:
            gpu.give()


# --- times --------------------------------------------------------------------------------------


def timed(calls: dict[str, Callable[..., Any]], inputs: Sequence[Tensor], device: str) -> Row:
    """Returns microseconds of a call by candidate, in CUDA graphs and as the host launches them."""
    sets = [inputs, *([x.clone() for x in inputs] for _ in range(SETS - 1))]
    launches = {name: turns.on_sets(call, sets) for name, call in calls.items()}
    clock = host_clock() if device == "cpu" else cuda_clock()
    captured = turns.compare(launches, SETS, clock)
    called = turns.compare(launches, SETS, clock, capture=False, window_us=20000.0)
    return {
        "us": {name: t.median for name, t in captured.items()},
        "call_us": {name: t.median for name, t in called.items()},
        "spread": max(t.spread for t in captured.values()),
        "uncaptured": [name for name, t in captured.items() if not t.captured],
    }


def share_of(call: Callable[[], object]) -> Row:
    """Returns the share of the device's time in our kernels, and the slowest of the others."""
    call()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    times = {event.key: float(event.self_device_time_total) for event in profile.key_averages()}
    total = sum(times.values())
    own = sum(us for name, us in times.items() if OWN_KERNEL in name)
    others = sorted(((us, name) for name, us in times.items() if OWN_KERNEL not in name), reverse=True)
    slowest = sorted(((us, name) for name, us in times.items() if OWN_KERNEL in name), reverse=True)
    return {
        "share": round(own / total, 4) if total else None,
        "others": [[name[:120], round(us, 1)] for us, name in others[:6]],
        "slowest": [[name[:120], round(us, 1)] for us, name in slowest[:6]],
    }
