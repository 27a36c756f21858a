"""The interface to a device on the CPU: real torch calls, every operator an event on a time line of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ucutlass.runtime.bench.bench_device import DeviceTrace, Outputs, Replay, SetLaunch
from ucutlass.runtime.bench.frequency import STAMP, SmTimes
from ucutlass.runtime.bench.nvml import Sample
from ucutlass.runtime.bench.trace import DeviceEvent

_VIEWS = ("view", "permute", "transpose", "t.default", "reshape", "expand", "unsqueeze", "detach", "alias")


class _Recorder(TorchDispatchMode):
    """Every operator that computes takes 10 us and is a kernel of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.seen: list[DeviceEvent] = []

    def event(self, name: str, us: int) -> None:
        start = self.now + 500
        self.now = start + 1000 * us
        self.seen.append(DeviceEvent(name, "kernel", start, self.now, 7, len(self.seen)))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        if not any(view in name for view in _VIEWS) and "empty" not in name:
            self.event(name, 10)
        return func(*args, **(kwargs or {}))


class TorchCpu:
    """`l2`: small, so that few sets rotate."""

    def __init__(self, l2: int = 4096) -> None:
        self.l2 = l2
        self.device = "cpu"

    def no_profiler(self) -> str:
        return ""

    def capture(self, launch: SetLaunch, order: Sequence[int]) -> Replay:
        outputs: dict[int, Outputs] = {}

        def play() -> None:
            for i in order:
                outputs[i] = launch(i)

        play()
        return Replay(play, len(order), outputs.__getitem__)

    def session(self, work: Callable[[Callable[[], None]], None], stamps: int, watch: bool) -> DeviceTrace:
        sm_times: list[SmTimes] = []
        with _Recorder() as recorder:

            def stamp() -> None:
                recorder.event(STAMP, 1)
                sm_times.append({0: (recorder.now, 2 * recorder.now)})

            work(stamp)
        return DeviceTrace(tuple(recorder.seen), tuple(sm_times))

    def events(self, work: Callable[[], None]) -> float:
        with _Recorder() as recorder:
            work()
        return recorder.now / 1000

    def wall(self, work: Callable[[], None]) -> float:
        return self.events(work)

    def idle(self) -> None:
        pass

    def poison(self, outputs: Outputs) -> None:
        for tensor in outputs:
            tensor.view(-1).view(torch.uint8).fill_(0xFF)

    def reset_persisting(self) -> str:
        return "nothing to reset"

    def persisting(self) -> int:
        return 0

    def sample(self) -> Sample | None:
        return None

    def no_nvml(self) -> str:
        return "no NVML for a CPU"
