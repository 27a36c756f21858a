"""Which of two compiled forms of a graph serves it: the faster, by a measurement at the first call."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

Server: TypeAlias = Literal["programs", "fallback"]

Measure: TypeAlias = Callable[[Callable[[], object], Callable[[], object]], tuple[float, float]]
"""Microseconds a call of two functions."""

ROUNDS = 7
WINDOW_US = 4000.0
"""Calls of this time are one round, so that a measurement takes a tenth of a second."""

MOST_CALLS = 50


@dataclass(frozen=True, slots=True)
class GraphChoice:
    """What serves a graph. Times are microseconds a call at the first call's shapes, with the gradient where
    one is computed; `remembered` from another process."""

    server: Server
    programs_us: float
    fallback_us: float
    remembered: bool = False

    def __str__(self) -> str:
        times = f"{self.programs_us:.1f} us as programs, {self.fallback_us:.1f} us by the fallback"
        server = "programs serve" if self.server == "programs" else "the fallback serves"
        return f"{server} the graph: {times}"


def choice_of(programs_us: float, fallback_us: float) -> GraphChoice:
    """Returns the faster of the two, the programs where they are equal."""
    return GraphChoice("programs" if programs_us <= fallback_us else "fallback", programs_us, fallback_us)


def choice_record(choice: GraphChoice) -> list[Any]:
    """Returns what `choice_from` reads."""
    return [choice.server, choice.programs_us, choice.fallback_us]


def choice_from(record: Any) -> GraphChoice | None:
    """Returns the choice that a record has, None for one of another form."""
    match record:
        case ["programs" | "fallback" as server, float(programs_us), float(fallback_us)]:
            return GraphChoice(server, programs_us, fallback_us, remembered=True)
        case _:
            return None


def device_of(arguments: Sequence[Any]) -> torch.device | None:
    """Returns the GPU that a call runs on, None for one on the CPU."""
    return next((a.device for a in arguments if isinstance(a, Tensor) and a.device.type == "cuda"), None)


class FirstCallTrial:
    """Calls of both forms with the first call's arguments, whose tensors stay as they are: those that a call
    changes are copied."""

    def __init__(self, arguments: Sequence[Any], changed: Sequence[int]) -> None:
        self._arguments, self._changed = tuple(arguments), tuple(changed)
        self._gradients = [a for a in arguments if isinstance(a, Tensor) and a.requires_grad]

    def run(self, call: Callable[..., Any]) -> Callable[[], None]:
        """Returns a call, with the gradient of what it gives where gradients are on."""
        changed = {n: self._arguments[n].detach().clone() for n in self._changed}
        arguments = [changed.get(n, a) for n, a in enumerate(self._arguments)]

        def once() -> None:
            results = call(*arguments)
            if not self._gradients or not torch.is_grad_enabled():
                return
            differentiable = [r for r in tree_leaves(results) if isinstance(r, Tensor) and r.requires_grad]
            if differentiable:
                ones = [torch.ones_like(r) for r in differentiable]
                torch.autograd.grad(differentiable, self._gradients, ones, allow_unused=True)

        return once


def measured(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
    """Returns microseconds a call of both, in turns, each the median over rounds. A round is the time between
    two events around several calls, so the host counts where it is slower than the device. What calls draw of
    random numbers is drawn again afterwards."""
    with torch.random.fork_rng(devices=[torch.cuda.current_device()]):
        functions = (first, second)
        for function in functions:
            for _ in range(3):
                function()
        counts = [max(1, min(MOST_CALLS, round(WINDOW_US / max(1.0, _round(f, 2))))) for f in functions]
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for function, count, own in zip(functions, counts, times, strict=True):
                own.append(_round(function, count))
    return statistics.median(times[0]), statistics.median(times[1])


def _round(function: Callable[[], object], count: int) -> float:
    start, end = _event(), _event()
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        function()
    end.record()
    end.synchronize()
    elapsed: float = start.elapsed_time(end)
    return elapsed * 1000 / count


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
