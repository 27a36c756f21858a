"""Measures a problem file's module and its built program on a GPU, in a process of its own.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`. The file's code runs here.
The oracle is the module itself in float64 on the GPU, where its forward's time and memory allow, else in f32
without TF32; a result is right within a small multiple of eager's own error (`benchmarks.turns.wrong`).
"""

from __future__ import annotations

import copy
import gc
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from benchmarks import turns
from benchmarks.harness import append
from benchmarks.kernel_trace import by_name, kernel_times
from benchmarks.turns import DeviceLock, Launch, compiled, cuda_clock, host_clock

Row: TypeAlias = dict[str, Any]

EXACT_SECONDS = 40.0
"""What the module in float64 may take by the estimate."""

EXACT_SLOWDOWN = 60.0
"""How much slower float64 is than f32, at worst: convolutions have no tensor cores there."""

ROTATED_L2 = 2.2
MOST_SETS = 64
SET_SECONDS = 0.03
"""What one launch on each set may take: a slow module gets few sets."""

ROUGH_ORACLE = 16.0
"""Times the floor of errors where the oracle is f32, whose own error is not known."""

LARGE = 2**30
"""Bytes of arguments from which one set is cold by itself: it does not fit the L2 several times over."""

STAGES_TIMED = 128
"""A pipeline of more stages is not timed stage by stage."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a module runs: whether matrix products and convolutions in f32 may use TF32, and compiled or not."""

    matmul: bool
    convolution: bool
    compiled: bool = False


WAYS: Mapping[str, Way] = MappingProxyType(
    {
        "eager": Way(False, True),
        "eager-tf32": Way(True, True),
        "eager-f32": Way(False, False),
        "compile": Way(False, True, compiled=True),
        "compile-tf32": Way(True, True, compiled=True),
        "compile-f32": Way(False, False, compiled=True),
    }
)
"""By the name of the column. `eager` and `compile` have PyTorch's defaults, which are TF32 in convolutions."""


def ways(lane: str, convolves: bool, compile: bool) -> tuple[str, ...]:
    """Returns the columns of a lane. Without convolutions `eager-f32` would be `eager` again."""
    if lane == "tf32":
        return ("eager", "eager-tf32", *(("compile-tf32",) if compile else ()))
    strict = ("eager-f32", *(("compile-f32",) if compile else ())) if convolves else ()
    return ("eager", "eager-tf32", *(("compile",) if compile else ()), *strict)


@contextmanager
def products(way: Way) -> Iterator[None]:
    """Torch's switches for f32, put back afterwards."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = (matmul.allow_tf32, cudnn.allow_tf32)
    matmul.allow_tf32, cudnn.allow_tf32 = way.matmul, way.convolution
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


@dataclass(slots=True)
class ModuleCase:
    """A module on a device with its inputs, and the arguments of its program: by their place among the
    inputs, or the name of the module's tensor."""

    file: str
    model: torch.nn.Module
    inputs: list[Any]
    sources: tuple[int | str, ...]

    def tensor(self, source: int | str) -> Tensor:
        value: Any = self.inputs[source] if isinstance(source, int) else _attribute(self.model, source)
        assert isinstance(value, Tensor)
        return value.detach()

    @property
    def bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in map(self.tensor, self.sources))

    def arguments(self) -> list[Tensor]:
        return [self.tensor(source).contiguous() for source in self.sources]


def _attribute(model: torch.nn.Module, path: str) -> Any:
    value: Any = model
    for part in path.split("."):
        value = getattr(value, part)
    return value


# --- in the process ----------------------------------------------------------------------


def measured(
    file: str,
    mode: str,
    lane: str,
    own_lane: str,
    payload: str,
    arch: str | None,
    note: str,
    lock: str,
    device: str,
    convolves: bool,
    exact: bool,
    compile: bool,
    kernels: bool,
    hold_seconds: float,
    compile_seconds: float,
) -> Row:
    """Returns a row's results: `status` right or wrong, `us` by column, and what is known besides. Each
    step's facts are added to the lines of the file `note` as soon as they are known; `seconds` are of each step, of
    which so many went by in waiting for the GPU and in holding it. `lane` chooses the columns, `own_lane` is the one
    that the program multiplies in. `exact` False leaves float64 out, `compile` False
    torch.compile. With `kernels` the row has what each launches."""
    row: Row = {}
    seconds: dict[str, float] = {}
    since = time.monotonic()

    def tell(**facts: Any) -> None:
        nonlocal since
        if "stage" in facts:
            now = time.monotonic()
            if "stage" in row:
                seconds[row["stage"]] = round(now - since, 2)
            since = now
        row.update(facts)
        append(Path(note), facts)

    gpu = DeviceLock(Path(lock), hold_seconds)
    tell(stage="load")
    handed = json.loads(Path(payload).read_text(encoding="utf-8"))
    program = loaded_program(handed, arch, device)
    # What takes seconds must not take the lock's.
    turns.load_compilers()
    torch.empty(0, device=device)
    names = ways(lane, convolves, compile)
    with torch.no_grad():
        with gpu.holding():
            tell(stage="module")
            case = module_case(file, mode, handed["inputs"], device)
            tell(stage="check")
            tell(**checked(case, program, own_lane, device, exact))
            free(device)
        launches: dict[str, Launch] = {}
        if any(WAYS[name].compiled for name in names):
            tell(stage="compile")
            names, fast = compiled_forward(case, names, gpu, device, compile_seconds, tell)
        tell(stage="time")
        with gpu.holding():
            sets = argument_sets(case, sets_for(case, device, row["eager_seconds"]))
            launches["ucutlass"] = program_launch(program, sets, yardstick(own_lane))
            for name in names:
                forward = fast if WAYS[name].compiled else case.model
                launches[name] = module_launch(case, forward, WAYS[name], sets)
            clock = host_clock() if device == "cpu" else cuda_clock()
            times = turns.compare(launches, len(sets), clock, capture=case.bytes < LARGE)
            tell(
                us={n: t.median for n, t in times.items()},
                spread=max(t.spread for t in times.values()),
                uncaptured=[n for n, t in times.items() if not t.captured],
            )
            if device != "cpu":
                tell(stage="stages")
                tell(**stages_of(program, sets[0], row["us"]["ucutlass"]))
                if kernels:
                    tell(stage="kernels")
                    tell(**kernels_of(launches))
    turns.stop_compilers()
    tell(stage="end")
    tell(seconds=seconds | {"waiting": round(gpu.waited, 2), "holding": round(gpu.kept, 2)})
    return row


def loaded_program(handed: Mapping[str, Any], arch: str | None, device: str) -> Callable[..., Any]:
    """Returns the built program; on the CPU, for tests, its float64 reference."""
    from ucutlass.handoff import checked_of
    from ucutlass.tasks.built import loaded_built

    if device == "cpu":
        from ucutlass.api import loads

        return _reference(loads(handed["text"], handed["name"]))
    return loaded_built(checked_of(handed["program"]), handed["name"], arch, handed["built"])


def _reference(program: Any) -> Callable[..., Any]:
    def call(*arguments: Tensor, out: Any = None) -> Any:
        results = program.reference(*arguments)
        several = results if isinstance(results, tuple) else (results,)
        rounded = tuple(r.float() if r.dtype == torch.float64 else r for r in several)
        return rounded[0] if len(rounded) == 1 else rounded

    return call


def module_case(file: str, mode: str, inputs: Sequence[Sequence[str]], device: str) -> ModuleCase:
    """Returns the module and its inputs, made on the device where the file's code allows. Raises Unusable."""
    import inspect

    from ucutlass.runtime.module.inspection import load

    try:
        with torch.device(device):
            loaded = load(file, mode, "own")  # type: ignore[arg-type]
            given = loaded.inputs(1)
    except Exception:  # of the file's code, which may mix in tensors of the CPU
        loaded = load(file, mode, "own")  # type: ignore[arg-type]
        given = loaded.inputs(1)
    model = loaded.model.to(device)
    given = [x.to(device) if isinstance(x, Tensor) else x for x in given]
    places = {name: i for i, name in enumerate(inspect.signature(model.forward).parameters)}
    sources = tuple(places[path] if origin == "input" else path for _, origin, path in inputs)
    return ModuleCase(file, model, given, sources)


def checked(case: ModuleCase, program: Callable[..., Any], lane: str, device: str, exact: bool) -> Row:
    """Returns `status`, what is `wrong`, the `oracle`, and our error and eager's."""
    # Of copies: forward may write into buffers.
    eager, once = forwarded(copy.deepcopy(case.model), case.inputs, yardstick(lane), device)
    oracle, known = exact_results(case.model, case.inputs, once if exact else None, device)
    with products(yardstick(lane)):  # functions of torch in it compute as eager does
        results = program(*case.arguments())
    ours = list(results) if isinstance(results, tuple) else [results]
    floor = turns.FLOORS[lane] * (ROUGH_ORACLE if oracle == "f32" else 1.0)
    return turns.judged(ours, eager, known, floor) | {"oracle": oracle, "eager_seconds": once}


def yardstick(lane: str) -> Way:
    """Returns how eager computes in a lane: what a program's functions of torch are held to."""
    return WAYS["eager-tf32" if lane == "tf32" else "eager-f32"]


def forwarded(
    model: torch.nn.Module, inputs: Sequence[Any], way: Way, device: str
) -> tuple[list[Tensor], float]:
    """Returns the results of a forward, and the seconds of a second one."""
    from ucutlass.runtime.module.inspection import results

    with products(way):
        out = results("", model(*inputs))
        _wait(device)
        start = time.monotonic()
        model(*inputs)
        _wait(device)
    return out, time.monotonic() - start


def exact_results(
    model: torch.nn.Module, inputs: Sequence[Any], once: float | None, device: str
) -> tuple[str, list[Tensor]]:
    """Returns the oracle's name and its results: of the module in float64, or in f32 without TF32."""
    from ucutlass.runtime.module.inspection import results

    if once is not None and once * EXACT_SLOWDOWN <= EXACT_SECONDS:
        try:
            wide = copy.deepcopy(model).double()
            out = results("", wide(*(_wide(x) for x in inputs)))
            _wait(device)
            return "float64", out
        except torch.OutOfMemoryError:
            free(device)
        except (RuntimeError, TypeError) as problem:  # code that names f32 by itself
            if "CUDA error" in str(problem):
                raise
    with products(WAYS["eager-f32"]):
        return "f32", results("", copy.deepcopy(model)(*inputs))


def _wide(x: Any) -> Any:
    return x.double() if isinstance(x, Tensor) and x.is_floating_point() else x


def _wait(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def free(device: str) -> None:
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


# --- candidates ---------------------------------------------------------------------------


def sets_for(case: ModuleCase, device: str, once: float) -> int:
    """Returns how many sets of arguments rotate: more than twice the L2 in all, at least 2, and no more than
    a slow module has time for. `once` is the seconds of a forward."""
    if case.bytes >= LARGE:
        return 1
    l2: int = torch.cuda.get_device_properties(0).L2_cache_size if device != "cpu" else 1
    cold = math.ceil(ROTATED_L2 * l2 / max(1, case.bytes))
    return max(2, min(MOST_SETS, cold, int(SET_SECONDS / once)))


def argument_sets(case: ModuleCase, count: int) -> list[list[Tensor]]:
    first = case.arguments()
    return [first, *([t.clone() for t in first] for _ in range(count - 1))]


def program_launch(program: Callable[..., Any], sets: Sequence[Sequence[Tensor]], way: Way) -> Launch:
    results = [program(*arguments) for arguments in sets]

    def launch(at: int) -> object:
        with products(way):
            return program(*sets[at], out=results[at])

    return launch


def module_launch(
    case: ModuleCase, forward: Callable[..., Any], way: Way, sets: Sequence[Sequence[Tensor]]
) -> Launch:
    """Returns a launch of the module on a set's inputs, parameters and buffers: all of them rotate."""
    state = {s: _attribute(case.model, s) for s in case.sources if isinstance(s, str)}

    def launch(at: int) -> object:
        operands = list(case.inputs)
        for source, argument in zip(case.sources, sets[at], strict=True):
            if isinstance(source, int):
                operands[source] = argument
            else:
                state[source].data = argument
        with products(way):
            return forward(*operands)

    return launch


def compiled_forward(
    case: ModuleCase,
    names: Sequence[str],
    gpu: DeviceLock,
    device: str,
    seconds: float,
    tell: Callable[..., None],
) -> tuple[tuple[str, ...], Callable[..., Any]]:
    """Returns the columns that are left, and the compiled module after its first call; where it fails, or takes
    longer than so many seconds, the row says how and its columns are left out."""
    backend = (lambda graph, inputs: graph.forward) if device == "cpu" else None
    fast = compiled(case.model, gpu, backend=backend, idle=lambda: _wait(device))
    way = next(WAYS[name] for name in names if WAYS[name].compiled)
    start = time.monotonic()
    try:
        with turns.within(seconds), products(way):
            fast(*case.inputs)
            _wait(device)
        tell(compile_seconds=round(time.monotonic() - start, 2))
        return tuple(names), fast
    except turns.Late:
        tell(uncompiled=f"not within {seconds:.0f} s")
    except Exception as failure:  # a backend of torch's that fails is a row's finding
        if "CUDA error" in str(failure):
            raise
        tell(uncompiled=f"{type(failure).__name__}: {failure}"[:400])
    finally:
        if gpu.held:
            gpu.give()
    free(device)
    return tuple(name for name in names if not WAYS[name].compiled), case.model


def kernels_of(launches: Mapping[str, Launch]) -> Row:
    """Returns the kernels of our launch in order, and those of the compiled module by name."""
    row: Row = {"launches": kernel_times(partial(launches["ucutlass"], 0))}
    compiled_names = [name for name in launches if name in WAYS and WAYS[name].compiled]
    return row | {f"launches_{n}": by_name(kernel_times(partial(launches[n], 0))) for n in compiled_names[:1]}


def stages_of(program: Any, arguments: Sequence[Tensor], us: float) -> Row:
    """Returns the slowest stages of a pipeline, each timed alone, and the share of those that torch
    computes."""
    from ucutlass import ir
    from ucutlass.runtime.stage_times import torch_share

    pipeline = program.program
    if not isinstance(pipeline, ir.Pipeline) or len(pipeline.stages) > STAGES_TIMED:
        return {}
    times = program.stage_times(*arguments, repeats=5)
    slowest = sorted(times, key=lambda t: -t.seconds)[:6]
    return {
        "torch_share": round(torch_share(times), 4),
        "stages_us": round(sum(t.seconds for t in times) * 1e6, 1),
        "slowest": [[t.name, round(t.seconds * 1e6, 1), "torch" if t.torch else "kernel"] for t in slowest],
    }
