"""Calibrates on a real GPU with graphs, events, the SM clock, and kernels that torch has not.

The kernels are `runtime/native/calibrate.ptx`, which the driver compiles for the device at hand.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from ucutlass.runtime.bench.cuda import Cuda, graph_of
from ucutlass.runtime.bench.frequency import sm_clock
from ucutlass.runtime.calibrate.ceilings import CeilingProbe, ProbeTimes
from ucutlass.runtime.cuda_driver import call, library

_PTX = Path(__file__).parent.parent / "native" / "calibrate.ptx"
_FMA_FLOPS = 2 * 128
"""Operations of a thread in one iteration of ucc_fma."""


class CudaProbeTimer:
    """The current CUDA device. Launches are captured into a graph, so the host is out of the times; two
    stamps around all repeats give the SM clock (`ucutlass.runtime.bench.frequency`)."""

    def __init__(self) -> None:
        self.cuda = Cuda()

    def time(self, launch: Callable[[], object], launches: int, repeats: int) -> ProbeTimes:
        """Raises RuntimeError where the launch cannot be captured."""

        def captured() -> None:
            for _ in range(launches):
                launch()

        self.cuda.idle()
        graph = graph_of(captured)
        pairs: list[tuple[Any, Any]] = []

        def work(stamp: Callable[[], None]) -> None:
            graph.replay()
            stamp()
            for _ in range(repeats):
                pair = (_event(), _event())
                pair[0].record()
                graph.replay()
                pair[1].record()
                pairs.append(pair)
            stamp()

        stamps = self.cuda.session(work, 2, False).stamps
        seconds = tuple(start.elapsed_time(end) / 1000.0 / launches for start, end in pairs)
        return ProbeTimes(seconds, sm_clock(*stamps) if len(stamps) == 2 else None)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


class Kernels:
    """The module of `calibrate.ptx` in the current context; buffers are made on `device`."""

    def __init__(self, device: str = "cuda") -> None:
        self._device = device
        torch.cuda.synchronize()  # makes the context that the driver's calls below run in
        self._driver = library()
        self._sms: int = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
        self._module = ctypes.c_void_p()
        call(self._driver, "cuModuleLoadData", ctypes.byref(self._module), _PTX.read_bytes() + b"\0")

    def probes(self, memory: int, l2: int) -> list[CeilingProbe]:
        """Returns probes of an empty kernel, a read of far memory, of a quarter of the L2, and a chain of
        FFMA.

        `memory` and `l2` in bytes. The L2 is read many times over in one launch, so that neither the
        launch nor the first pass from memory weighs.
        """
        near, passes = max(1 << 20, l2 // 4) // 4096 * 4096, 256
        threads = 4 * self._sms * 256
        iterations = 20_000
        return [
            CeilingProbe(
                "launch_floor", "an empty kernel", 0.0, lambda: self._launcher("ucc_empty", 1, 32, ())
            ),
            CeilingProbe("read", "16-byte loads", float(memory), lambda: self._reader(memory, 1)),
            CeilingProbe(
                "l2",
                f"16-byte loads, {passes} times",
                float(near) * passes,
                lambda: self._reader(near, passes),
            ),
            CeilingProbe(
                "f32",
                "a chain of FFMA",
                float(_FMA_FLOPS) * iterations * threads,
                lambda: self._fma(iterations),
            ),
        ]

    def _reader(self, size: int, passes: int) -> Callable[[], object]:
        data = torch.randint(0, 2**31 - 1, (size // 4,), dtype=torch.int32, device=self._device)
        sink = torch.zeros(1, dtype=torch.int32, device=self._device)
        arguments = (
            ctypes.c_uint64(data.data_ptr()),
            ctypes.c_uint64(size // 16),
            ctypes.c_uint32(passes),
            ctypes.c_uint64(sink.data_ptr()),
        )
        return self._launcher("ucc_read", 8 * self._sms, 256, arguments, keep=(data, sink))

    def _fma(self, iterations: int) -> Callable[[], object]:
        sink = torch.zeros(1, device=self._device)
        arguments = (ctypes.c_uint32(iterations), ctypes.c_uint64(sink.data_ptr()))
        return self._launcher("ucc_fma", 4 * self._sms, 256, arguments, keep=(sink,))

    def _launcher(
        self,
        name: str,
        blocks: int,
        threads: int,
        arguments: Sequence[Any],
        keep: Sequence[torch.Tensor] = (),
    ) -> Callable[[], object]:
        function = ctypes.c_void_p()
        call(self._driver, "cuModuleGetFunction", ctypes.byref(function), self._module, name.encode())
        pointers = (ctypes.c_void_p * max(1, len(arguments)))(*(ctypes.addressof(a) for a in arguments))
        held = (arguments, keep)  # what the pointers point at lives as long as the launch

        def launch() -> object:
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            grid, block = (blocks, 1, 1), (threads, 1, 1)
            call(self._driver, "cuLaunchKernel", function, *grid, *block, 0, stream, pointers, None)
            return held

        return launch
