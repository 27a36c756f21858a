"""Implements the bench device for a GPU: torch gives graphs, events and the profiler, the driver the
stamp and the L2."""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ucutlass.runtime.bench import nvml
from ucutlass.runtime.bench.bench_device import CaptureRefused, DeviceTrace, Outputs, Replay, SetLaunch
from ucutlass.runtime.bench.frequency import STAMP, SmTimes
from ucutlass.runtime.bench.trace import DeviceEvent, parse
from ucutlass.runtime.cuda_driver import DriverRefused, call, library

_STAMP_FILE = Path(__file__).parent.parent / "native" / "clock_stamp.ptx"
_SLOTS = 1024
"""SMs that a stamp has room for: more than any GPU has."""

_SETTLE_SECONDS = 0.02
"""Waited before the profiler stops, for work that a candidate left to another thread."""

_OPEN_SECONDS: tuple[float, ...] = (0.005, 0.02, 0.1, 0.5)
"""Waited once the profiler runs: it drops what its clock puts before its start, and more the longer the
GPU was idle before (pytorch issue 192021, which blames CUPTI before 13.1). A session that lost stamps
of ours is run again with the next wait, and later ones begin there."""

_PERSISTING_LIMIT = 6
"""CU_LIMIT_PERSISTING_L2_CACHE_SIZE of CUlimit, cuda.h."""


LEAST_FREE = 0.5
"""Share of the device's memory: where less is free before a capture, whose tensors are in memory of its own, what the
allocator keeps is returned, which takes up to a second."""


class Cuda:
    """The current CUDA device of this process."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        torch.cuda.synchronize()  # makes the context that the driver's calls below run in
        self.l2: int = properties.L2_cache_size
        self.device = "cuda"
        self.uuid = f"GPU-{properties.uuid}"
        self._sms: int = properties.multi_processor_count
        self._driver = library()
        self._sampler = nvml.sampler(self.uuid)
        self._waits = _OPEN_SECONDS

    # --- profiler and stamps

    @cached_property
    def _stamp(self) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        text = _STAMP_FILE.read_bytes() + b"\0"
        call(self._driver, "cuModuleLoadData", ctypes.byref(module), text)
        call(self._driver, "cuModuleGetFunction", ctypes.byref(function), module, STAMP.encode())
        return function

    def no_profiler(self) -> str:
        return self._no_profiler

    @cached_property
    def _no_profiler(self) -> str:
        if torch.profiler.ProfilerActivity.CUDA not in torch.profiler.supported_activities():  # type: ignore[no-untyped-call]
            return "this torch was built without CUPTI"
        try:
            profile = self.session(lambda stamp: stamp(), 1, True)
        except DriverRefused as error:
            return f"the stamp cannot be launched: {error}"
        if not profile.events or not any(e.name == STAMP for e in profile.events):
            return "the profiler recorded no kernel: CUPTI is missing here, or another tool holds it"
        return ""

    def session(self, work: Callable[[Callable[[], None]], None], stamps: int, watch: bool) -> DeviceTrace:
        slots = torch.zeros((stamps, _SLOTS, 2), dtype=torch.int64, device="cuda")
        count = 0

        def stamp() -> None:
            nonlocal count
            self._launch_stamp(slots[count])
            count += 1

        self.idle()
        if not watch:
            work(stamp)
            self.idle()
            return DeviceTrace(None, tuple(_times(row) for row in slots[:count].tolist()))
        events: tuple[DeviceEvent, ...] = ()
        for seconds in self._waits:
            count = 0
            events = self._watched(lambda: work(stamp), seconds)
            if sum(e.name == STAMP for e in events) >= count:
                self._waits = self._waits[self._waits.index(seconds) :]
                break
        return DeviceTrace(events, tuple(_times(row) for row in slots[:count].tolist()))

    def _watched(self, work: Callable[[], None], seconds: float) -> tuple[DeviceEvent, ...]:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            time.sleep(seconds)
            work()
            self.idle()
            time.sleep(_SETTLE_SECONDS)
            self.idle()
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            profile.export_chrome_trace(str(file))
            return parse(file.read_text(encoding="utf-8"))

    def _launch_stamp(self, slots: torch.Tensor) -> None:
        pointer, count = ctypes.c_uint64(slots.data_ptr()), ctypes.c_uint32(_SLOTS)
        arguments = (ctypes.c_void_p * 2)(ctypes.addressof(pointer), ctypes.addressof(count))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        grid, block = (2 * self._sms, 1, 1), (1024, 1, 1)
        call(self._driver, "cuLaunchKernel", self._stamp, *grid, *block, 0, stream, arguments, None)

    # --- launches

    def capture(self, launch: SetLaunch, order: Sequence[int]) -> Replay:
        outputs: dict[int, Outputs] = {}

        def work() -> None:
            for i in order:
                outputs[i] = launch(i)

        self.idle()
        try:
            graph = graph_of(work)
        except RuntimeError as error:
            self.idle()
            # Ending a capture that broke raises too: what broke it is the context.
            words = str(error.__context__ or error).partition("\n")[0][:300]
            raise CaptureRefused(words) from error
        return Replay(graph.replay, len(order), outputs.__getitem__)

    def events(self, work: Callable[[], None]) -> float:
        start: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self.idle()
        work()  # keeps the device busy while the host enqueues what is timed
        start.record()
        work()
        end.record()
        end.synchronize()
        passed = float(start.elapsed_time(end)) * 1000.0
        self.idle()
        return passed

    def wall(self, work: Callable[[], None]) -> float:
        self.idle()
        began = time.perf_counter_ns()
        work()
        self.idle()
        return (time.perf_counter_ns() - began) / 1000.0

    def idle(self) -> None:
        torch.cuda.synchronize()

    def poison(self, outputs: Outputs) -> None:
        for tensor in outputs:
            if tensor.is_contiguous():
                tensor.view(-1).view(torch.uint8).fill_(0xFF)
            else:
                tensor.fill_(torch.nan if tensor.is_floating_point() else -1)

    # --- state of the device

    def reset_persisting(self) -> str:
        done = []
        for name, arguments in (
            ("cuCtxResetPersistingL2Cache", ()),
            ("cuCtxSetLimit", (ctypes.c_int(_PERSISTING_LIMIT), ctypes.c_size_t(0))),
        ):
            try:
                call(self._driver, name, *arguments)
                done.append(name)
            except DriverRefused as error:
                done.append(f"{name} refused: {error}")
        return "; ".join(done)

    def persisting(self) -> int:
        size = ctypes.c_size_t()
        try:
            call(self._driver, "cuCtxGetLimit", ctypes.byref(size), ctypes.c_int(_PERSISTING_LIMIT))
        except DriverRefused:
            return 0  # a device without a carve-out: `reset_persisting` has said so
        return size.value

    def sample(self) -> nvml.Sample | None:
        return None if isinstance(self._sampler, nvml.NoNvml) else self._sampler()

    def no_nvml(self) -> str:
        return self._sampler.reason if isinstance(self._sampler, nvml.NoNvml) else ""


def graph_of(work: Callable[[], None]) -> torch.cuda.CUDAGraph:
    """Returns what `work` launches on the current stream, as a graph. Raises what `work` and the capture
    raise.

    A capture that fails leaves torch (2.11) with an allocator that still counts the capture as under way, so that
    every later one is refused (pytorch pull request 180395, in 2.12). That is put right here. So is the default
    generator, which goes on as if it were captured: random numbers, also those that TorchInductor's autotuning
    draws, would be refused with "Offset increment outside graph capture" until a capture ends well.
    """
    graph = torch.cuda.CUDAGraph()
    pool = torch.cuda.graph_pool_handle()  # a failed graph does not tell the pool that it made itself
    torch.cuda.synchronize()
    free, total = torch.cuda.mem_get_info()
    if free < LEAST_FREE * total:
        torch.cuda.empty_cache()
    try:
        # As torch.cuda.graph does, which returns what the allocator keeps however much is free.
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            graph.capture_begin(pool)
            try:
                work()
            finally:
                graph.capture_end()
    except BaseException:
        with suppress(RuntimeError):  # already ended
            torch._C._cuda_endAllocateToPool(torch.cuda.current_device(), pool)
        with suppress(RuntimeError):  # of a context that is broken too, which the caller is told of
            _capture_one_launch()
        raise
    return graph


def _capture_one_launch() -> None:
    """Captures a launch that cannot fail. A capture that ends well resets the default generator."""
    torch.cuda.synchronize()
    flag = torch.empty(1, device="cuda")
    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=torch.cuda.graph_pool_handle()):
        flag.zero_()


def _times(slots: list[list[int]]) -> SmTimes:
    return {sm: (ns, cycles) for sm, (ns, cycles) in enumerate(slots) if ns}
