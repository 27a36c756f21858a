"""A device whose time is what the test says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ucutlass.runtime.calibrate import ProbeTimes


class FakeRuler:
    """Runs the launch once, for its errors, and answers the seconds of `times`, repeated for ever;
    a warm-up and a first guess take some of them as well."""

    def __init__(self, times: Callable[[], Iterator[float]], clock: float | None = 1.5e9) -> None:
        self._times = times()
        self._clock = clock
        self.asked: list[tuple[int, int]] = []

    def time(self, launch: Callable[[], object], launches: int, repeats: int) -> ProbeTimes:
        launch()
        self.asked.append((launches, repeats))
        return ProbeTimes(tuple(next(self._times) for _ in range(repeats)), self._clock)


def always(seconds: float) -> Callable[[], Iterator[float]]:
    def forever() -> Iterator[float]:
        while True:
            yield seconds

    return forever
