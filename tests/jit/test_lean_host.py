"""The host's side of lean kernels, under a driver without a GPU: what it asks, refuses and launches."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.jit.lean_host import Bench, Call, Problem, good, tensor
from tests.jit.lean_plans import KINDS, biased, interleaved, residual, shared, turned, wide
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.gemm.lean_mainloop import WIDEST
from ucutlass.kernels.access import Store
from ucutlass.kernels.gemm.plan import GemmPlan, Sm90Schedule
from ucutlass.kernels.gemm.problem import transpose
from ucutlass.kernels.gemm.smem import SHARED_BYTES
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import ToolchainError
from ucutlass.runtime.toolchain import find

MISMATCH, DRIVER = 1, 1000
NOT_FOUND, INVALID_DEVICE, OUT_OF_MEMORY = 500, 101, 2
"""CUDA_ERROR_... of cuda.h."""

SM_COUNT, CLUSTERS_BLOCKS = 100, 96
"""Of fake_cuda.c: multiprocessors, and blocks of all clusters that run at once."""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    try:
        tools = find()
    except ToolchainError as missing:
        pytest.skip(str(missing))
    folder = tmp_path_factory.mktemp("lean")
    return Bench(tools, Cache(folder / "cache", 10 * 2**30), folder)


def exchanged() -> GemmPlan:
    """The residual's kernel with M and N exchanged, as the planner does: results contiguous along M."""
    base = residual()
    return replace(base, problem=transpose(base.problem))


ALL = {**KINDS, "interleaved": interleaved, "exchanged": exchanged}
EXTENTS = {"turned": (192, 384, 128, 3), "interleaved": (192, 384, 128, 3)}


def extents_of(name: str) -> tuple[int, ...]:
    return EXTENTS.get(name, (192, 384, 128))


def schedule_of(plan: GemmPlan) -> Sm90Schedule:
    assert isinstance(plan.schedule, Sm90Schedule)
    return plan.schedule


# --- descriptors ------------------------------------------------------------------


@dataclass(frozen=True)
class Map:
    """A descriptor that a plan asks for: its field of the parameters, what the driver is told, and the
    elements along M, N or K that one copy takes, None where the emitter is free."""

    place: str
    told: dict[str, Any]
    type: int
    size: int


def maps_of(plan: GemmPlan, extents: tuple[int, ...]) -> list[Map]:
    p, problem = plan.problem, Problem(plan, extents)
    types = {1: 0, 2: 1, 4: 2}  # CU_TENSOR_MAP_DATA_TYPE_UINT8, _UINT16, _UINT32
    compute_type = (
        11 if p.compute_type.name == "tf32" else types[p.compute_type.bytes]
    )  # _TFLOAT32: rounds what it loads
    found = [
        Map("mainloop.a", problem.descriptor(p.a, "mk"), compute_type, p.compute_type.bytes),
        Map("mainloop.b", problem.descriptor(p.b, "nk"), compute_type, p.compute_type.bytes),
    ]
    named = [(f"in{i}", access) for i, access in enumerate(p.inputs)]
    named += [(f"out{i}", output.access) for i, output in enumerate(p.outputs)]
    for (name, access), route in zip(named, plan.routes, strict=True):
        if route == "tma":
            size = access.elem.bytes
            told = problem.descriptor(access, "mn")
            found.append(Map(f"epilogue.{name}_map", told, types[size], size))
    return found


@pytest.mark.parametrize("name", ALL)
def test_descriptors_are_the_plans(name: str, bench: Bench) -> None:
    plan, extents = ALL[name](), extents_of(name)
    expected = {m.place: m for m in maps_of(plan, extents)}
    answers = bench.host(plan, list(expected)).call(good(plan, extents))
    (answer,) = answers.calls
    assert answer.codes == [0]
    made = {one["number"]: one for one in answer.of("cuTensorMapEncodeTiled")}
    assert len(made) == len(expected)
    (launch,) = answer.of("cuLaunchKernelEx")
    for place, one in expected.items():
        numbers = answers.numbers(launch, place, "16Q")
        assert len(set(numbers)) == 1, f"{place} is whole"
        told = made.pop(numbers[0])
        assert {key: told[key] for key in one.told} == one.told, place
        assert (told["type"], told["rank"], told["aligned"]) == (one.type, 3, 1)
        assert (told["steps"], told["interleave"], told["fill"]) == ([1, 1, 1], 0, 0)
        assert told["box"][2] == 1 and max(told["box"]) <= 256
        assert told["box"][0] * one.size == {0: 16, 1: 32, 2: 64, 3: WIDEST}[told["swizzle"]]
    assert not made


@pytest.mark.parametrize("name", ["biased", "turned", "interleaved"])
def test_a_batch_of_one_has_strides_that_the_driver_takes(name: str, bench: Bench) -> None:
    """The plan's own stride of a batch may be anything where there is one."""
    plan = ALL[name]()
    extents = (192, 384, 128, 1)[: plan.problem.dims]
    (answer,) = bench.host(plan).call(good(plan, extents)).calls
    assert answer.codes == [0]
    for told in answer.of("cuTensorMapEncodeTiled"):
        assert told["extents"][2] == 1
        assert told["strides"][1] == told["strides"][0] * told["extents"][1] > 0


# --- parameters -------------------------------------------------------------------


def test_parameters_lie_where_the_kernel_reads_them(bench: Bench) -> None:
    plan, extents = residual(), (192, 384, 128)
    slots = {"in1": (3, (1, 0, 0)), "in2": (4, (0, 0, 0)), "out1": (6, (384, 1, 0))}
    fields = [f"epilogue.{slot}{end}" for slot in slots for end in ("", "_m", "_n", "_l")]
    more = ["shape", "mainloop.tma_transaction_bytes", "epilogue.tma_transaction_bytes", "epilogue.thread"]
    answers = bench.host(plan, [*fields, *more, "hw_info", "scheduler"]).call(
        good(plan, extents, scalars=[2.5], stream=4096)
    )
    (answer,) = answers.calls
    (launch,) = answer.of("cuLaunchKernelEx")
    tile_m, tile_n, tile_k = schedule_of(plan).tile
    assert answers.numbers(launch, "shape", "4i") == (192, 384, 128, 1)
    assert answers.numbers(launch, "mainloop.tma_transaction_bytes", "I") == ((tile_m + tile_n) * tile_k,)
    for slot, (pointer, strides) in slots.items():
        assert answers.numbers(launch, f"epilogue.{slot}", "Q") == (tensor(pointer),)
        ends = zip(("_m", "_n", "_l"), strides, strict=True)
        assert all(answers.numbers(launch, f"epilogue.{slot}{end}", "q") == (s,) for end, s in ends)
    assert answers.numbers(launch, "epilogue.thread", "f") == (2.5,)
    assert answers.numbers(launch, "hw_info", "3i") == (0, SM_COUNT, CLUSTERS_BLOCKS // 2)
    (arrived,) = answers.numbers(launch, "epilogue.tma_transaction_bytes", "I")
    load = answer.of("cuTensorMapEncodeTiled")[2]
    assert arrived % math.prod(load["box"]) == 0 and arrived == 2 * math.prod(load["box"]) * 2
    assert launch["stream"] == 4096


@pytest.mark.parametrize("name", ALL)
def test_a_launch_is_the_schedules(name: str, bench: Bench) -> None:
    plan, extents = ALL[name](), extents_of(name)
    schedule = schedule_of(plan)
    cluster_m, cluster_n = schedule.cluster
    (answer,) = bench.host(plan).call(good(plan, extents)).calls
    (launch,) = answer.of("cuLaunchKernelEx")
    waits = schedule.scheduler == "stream_k"  # for all before it, as kernels usually do
    assert (launch["attributes"], launch["attribute"]) == (1 if waits else 2, 4)  # ..._CLUSTER_DIMENSION
    assert launch["second"] == ([0, 0] if waits else [6, 1])  # ..._PROGRAMMATIC_STREAM_SERIALIZATION
    assert ("CUTLASS_ENABLE_GDC_FOR_SM90" in lean(plan).device.code) is not waits, "the device waits itself"
    assert launch["cluster"] == [cluster_m, cluster_n, 1]
    assert (launch["block"], launch["shared"]) == ([384, 1, 1], SHARED_BYTES)
    (opened,) = answer.of("cuKernelSetAttribute")
    assert (opened["attribute"], opened["value"]) == (8, SHARED_BYTES)  # ..._MAX_DYNAMIC_SHARED_SIZE_BYTES


@pytest.mark.parametrize("launch_parameters", [(r, s, 1) for r in (0, 1, 2) for s in (1, 2, 4, 8)])
@pytest.mark.parametrize("make", [biased, shared], ids=["1x1", "2x2"])
def test_the_grid_is_of_whole_clusters_and_no_larger_than_the_device(
    make: Callable[[], GemmPlan], launch_parameters: tuple[int, ...], bench: Bench
) -> None:
    plan = make()
    cluster_m, cluster_n = schedule_of(plan).cluster
    tile_m, tile_n, _ = schedule_of(plan).tile
    many, few = (64 * tile_m, 64 * tile_n, 128), (tile_m + 1, tile_n, 128)
    calls = [good(plan, extents, launch_parameters=launch_parameters) for extents in (many, few)]
    most = CLUSTERS_BLOCKS if cluster_m * cluster_n > 1 else SM_COUNT
    for extents, answer in zip((many, few), bench.host(plan).call(*calls).calls, strict=True):
        (launch,) = answer.of("cuLaunchKernelEx")
        x, y, z = launch["grid"]
        tiles = [-(-extents[0] // tile_m), -(-extents[1] // tile_n)]
        units = [c * launch_parameters[1] for c in (cluster_m, cluster_n)]  # of what a swizzle goes through
        rounded = [-(-t // unit) * unit for t, unit in zip(tiles, units, strict=True)]
        assert z == 1 and x % cluster_m == 0 and y % cluster_n == 0
        assert x * y <= most
        assert x * y <= math.prod(rounded)
        assert x * y == most or extents == few


def test_raster_and_swizzle_reach_the_scheduler(bench: Bench) -> None:
    """Not what they do there, which is CUTLASS's own, but that each is another schedule."""
    plan = shared()
    launch_parameters = [(raster, swizzle, 1) for raster in (1, 2) for swizzle in (1, 2, 4, 8)]
    calls = [good(plan, (8192, 8192, 128), launch_parameters=k) for k in launch_parameters]
    answers = bench.host(plan, ["scheduler"]).call(*calls)
    seen = {answers.numbers(a.of("cuLaunchKernelEx")[0], "scheduler", "120s") for a in answers.calls}
    assert len(seen) == len(launch_parameters)


# --- what it refuses --------------------------------------------------------------


def without(values: Sequence[int], at: int, value: int | None) -> list[int | None]:
    return [value if i == at else v for i, v in enumerate(values)]


TENSORS = [tensor(i) for i in range(7)]
SHAPE = (192, 384, 128)
BAD: dict[str, dict[str, Any]] = {
    "no tensors": {"tensors": None},
    **{f"no tensor {i}": {"tensors": without(TENSORS, i, None)} for i in range(7)},
    "no extents": {"extents": None},
    "no scalars": {"scalars": None},
    "no launch parameters": {"launch_parameters": None},
    **{f"extent {i} is {e}": {"extents": without(SHAPE, i, e)} for i in range(3) for e in (0, -1, 2**31)},
    **{f"raster {r}": {"launch_parameters": (r, 1, 1)} for r in (-1, 3)},
    **{f"swizzle {s}": {"launch_parameters": (0, s, 1)} for s in (-1, 0, 3, 16)},
    **{f"splits {s}": {"launch_parameters": (0, 1, s)} for s in (0, 2, -1)},
    **{
        f"address {i} by {by}": {"tensors": without(TENSORS, i, TENSORS[i] + by)}
        for i in (0, 1, 2, 5)
        for by in (1, 8)
    },
    "strides of K": {"extents": (192, 384, 120)},
    "strides of N": {"extents": (192, 380, 128)},
}


def test_what_no_plan_was_made_for_launches_nothing(bench: Bench) -> None:
    plan = residual()
    answers = bench.host(plan).call(*(replace(good(plan, SHAPE), **change) for change in BAD.values()))
    for what, answer in zip(BAD, answers.calls, strict=True):
        assert answer.codes == [MISMATCH], what
        assert not answer.of("cuLaunchKernelEx"), what


def test_batches_must_begin_where_tma_may_read(bench: Bench) -> None:
    """Rows are 240 bytes apart and batches 120."""
    plan = interleaved()
    apart, together = (good(plan, (192, 384, k, 2)) for k in (60, 64))
    wrong, right = bench.host(plan).call(apart, together).calls
    assert (wrong.codes, right.codes) == ([MISMATCH], [0])


def test_tensors_that_threads_move_need_no_alignment(bench: Bench) -> None:
    plan = residual()
    tensors = [t + (4 if i in (3, 4, 6) else 0) for i, t in enumerate(TENSORS)]
    (answer,) = bench.host(plan).call(good(plan, SHAPE, tensors=tensors)).calls
    assert answer.codes == [0]


def test_a_question_for_the_workspace_touches_no_device(bench: Bench) -> None:
    """It comes without tensors and scalars, and is refused as a launch is."""
    plan = residual()
    nothing = Call(None, SHAPE, None, asks=True)
    asked, wrong = bench.host(plan).call(nothing, replace(nothing, extents=(0, 1, 1))).calls
    assert (asked.codes, asked.workspace, asked.said) == ([0], 0, [])
    assert (wrong.codes, wrong.said) == ([MISMATCH], [])


# --- the driver's failures --------------------------------------------------------


EVERY = (
    "cuInit",
    "cuCtxGetCurrent",
    "cuCtxGetDevice",
    "cuLibraryLoadData",
    "cuLibraryGetKernel",
    "cuDeviceGetAttribute",
    "cuKernelSetAttribute",
    "cuOccupancyMaxActiveClusters",
    "cuTensorMapEncodeTiled",
    "cuLaunchKernelEx",
)


@pytest.mark.parametrize("function", EVERY)
def test_a_failure_is_told_and_not_kept(function: str, bench: Bench) -> None:
    plan = biased()
    call = good(plan, SHAPE)
    failed, after, again = (
        bench.host(plan).call(replace(call, fail=(function, OUT_OF_MEMORY, 1)), call, call).calls
    )
    assert failed.codes == [DRIVER + OUT_OF_MEMORY]
    ends = {"cuLibraryGetKernel": [function, "cuLibraryUnload"]}.get(function, [function])
    assert failed.names[-len(ends) :] == ends
    assert after.codes == [0] and after.of("cuLaunchKernelEx")
    assert again.codes == [0] and not again.of("cuLibraryLoadData"), "what succeeded is kept"


def test_a_kernel_is_loaded_once_and_prepared_for_each_device(bench: Bench) -> None:
    plan = biased()
    call = good(plan, SHAPE)
    calls = [replace(call, device=d) for d in (0, 1, 0, 63)]
    first, other, back, last = bench.host(plan, ["hw_info"]).call(*calls).calls
    assert first.of("cuLibraryLoadData")[0]["image"].endswith("ELF")
    assert first.of("cuLibraryGetKernel")[0]["name"] == "ucc_cutlass_kernel"
    assert not any(answer.of("cuLibraryLoadData") for answer in (other, back, last))
    assert [a.of("cuKernelSetAttribute")[0]["device"] for a in (first, other, last)] == [0, 1, 63]
    assert not back.of("cuKernelSetAttribute") and back.codes == [0]


def test_each_device_has_its_own_numbers(bench: Bench) -> None:
    plan = biased()
    answers = bench.host(plan, ["hw_info"]).call(*(good(plan, SHAPE, device=d) for d in (5, 0, 5)))
    launches = [answer.of("cuLaunchKernelEx")[0] for answer in answers.calls]
    counts = [answers.numbers(launch, "hw_info", "2i")[1] for launch in launches]
    assert counts == [SM_COUNT + 5, SM_COUNT, SM_COUNT + 5]


def test_more_devices_than_there_is_room_for(bench: Bench) -> None:
    (answer,) = bench.host(biased()).call(good(biased(), SHAPE, device=64)).calls
    assert answer.codes == [DRIVER + INVALID_DEVICE]
    assert not answer.of("cuLibraryLoadData")


def test_a_thread_without_a_context_gets_the_first_devices(bench: Bench) -> None:
    (answer,) = bench.host(biased()).call(good(biased(), SHAPE, context=0)).calls
    assert answer.codes == [0]
    assert answer.of("cuDevicePrimaryCtxRetain")[0]["device"] == 0
    assert answer.of("cuLaunchKernelEx")[0]["context"] == answer.of("cuCtxSetCurrent")[0]["context"] == 1


@pytest.mark.parametrize("threads", [2, 8])
def test_threads_load_once_and_each_launches_its_own(threads: int, bench: Bench) -> None:
    plan = wide()
    answers = bench.host(plan, ["shape", "mainloop.a"]).call(good(plan, SHAPE, threads=threads, times=50))
    (answer,) = answers.calls
    assert answer.codes == [0] * 50 * threads
    assert len(answer.of("cuLibraryLoadData")) == len(answer.of("cuOccupancyMaxActiveClusters")) == 1
    launches = answer.of("cuLaunchKernelEx")
    assert len(launches) == 50 * threads
    assert {answers.numbers(one, "shape", "4i") for one in launches} == {(*SHAPE, 1)}
    maps = [answers.numbers(one, "mainloop.a", "Q") for one in launches]
    assert len(set(maps)) == len(maps), "no launch has another's descriptor"


def test_threads_that_meet_a_failure_go_on(bench: Bench) -> None:
    plan = wide()
    failing = good(plan, SHAPE, threads=4, times=10, fail=("cuLibraryLoadData", OUT_OF_MEMORY, 3))
    (answer,) = bench.host(plan).call(failing).calls
    assert sorted(answer.codes) == [0] * 37 + [DRIVER + OUT_OF_MEMORY] * 3
    assert len(answer.of("cuLibraryLoadData")) == 4


def test_a_driver_that_lacks_a_function_is_told(bench: Bench, tmp_path: Path) -> None:
    """An old one. None at all cannot be shown here: the loader would find the machine's own."""
    old = bench.folder / "old"
    if not old.exists():
        old.mkdir()
        (old / "empty.c").write_text("int cuInit(unsigned flags) { return 0; }\n")
        subprocess.run(["gcc", "-shared", "-fPIC", "empty.c", "-o", "libcuda.so.1"], cwd=old, check=True)
    (answer,) = bench.host(biased()).call(good(biased(), SHAPE), driver="old", bare=True).calls
    assert answer.codes == [DRIVER + NOT_FOUND]


# --- where host and plan meet -----------------------------------------------------


def test_kinds_are_as_different_as_they_say() -> None:
    """So that what is tested above is tested of several batches, orders and shapes of results."""
    assert turned().problem.batch and turned().problem.a.m == ()
    assert exchanged().problem != residual().problem
    shapes = {access.shape for make in ALL.values() for access in make().problem.inputs}
    assert shapes >= {"row", "column", "scalar", "full"}
    contiguous = {
        output.access.contiguous
        for make in ALL.values()
        for output in make().problem.outputs
        if isinstance(output, Store)
    }
    assert contiguous == {"m", "n"}
