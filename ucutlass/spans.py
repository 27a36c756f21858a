"""Measures where the seconds of one call go: named spans, which are timed only while a recording is open.

A recording sees the spans of the context that opened it: work of worker threads is a span of the caller that
waits for them, and what another process measured is added by whoever called it (`add`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter
from typing import TypeVar

T = TypeVar("T")


def clock() -> float:
    """Returns seconds of the clock by which everything here is measured."""
    return perf_counter()


def _nothing() -> None:
    """Is what a recording waits for where no device works beside the host."""


@dataclass(slots=True)
class SpanRecording:
    """The seconds of each name, without those of spans inside it, in the order in which they first ended.
    `settle` waits for work that is under way beside the host, such as a GPU's: it is called where a span
    begins and where it ends, so that the work counts where it was asked for."""

    seconds: dict[str, float] = field(default_factory=dict)
    settle: Callable[[], None] = _nothing
    _inner: list[float] = field(default_factory=list)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        self.settle()
        start = clock()
        self._inner.append(0.0)
        try:
            yield
        finally:
            self.settle()
            took = clock() - start
            self._take(name, took - self._inner.pop())
            if self._inner:
                self._inner[-1] += took

    def add(self, seconds: Mapping[str, float]) -> None:
        """Takes seconds by name that were measured elsewhere while the open span waited: they are not its
        own."""
        for name, took in seconds.items():
            self._take(name, took)
            if self._inner:
                self._inner[-1] += took

    def _take(self, name: str, took: float) -> None:
        self.seconds[name] = self.seconds.get(name, 0.0) + took


_CURRENT: ContextVar[SpanRecording | None] = ContextVar("recording", default=None)


@contextmanager
def recording(settle: Callable[[], None] = _nothing) -> Iterator[SpanRecording]:
    """Records the spans of this context until the block ends."""
    record = SpanRecording(settle=settle)
    token = _CURRENT.set(record)
    try:
        yield record
    finally:
        _CURRENT.reset(token)


@contextmanager
def span(name: str) -> Iterator[None]:
    """Times a block, or a function as a decorator; it does nothing where no recording is open."""
    record = _CURRENT.get()
    if record is None:
        yield
        return
    with record.span(name):
        yield


def add(seconds: Mapping[str, float]) -> None:
    """Adds what another process or thread measured to the open recording, if there is one."""
    record = _CURRENT.get()
    if record is not None:
        record.add(seconds)


def timed_items(name: str, items: Iterable[T]) -> Iterator[T]:
    """Yields the items; making each is a span."""
    iterator = iter(items)
    while True:
        with span(name):
            try:
                item = next(iterator)
            except StopIteration:
                return
        yield item
        del item  # it may be large, and the next one is made while this one would be kept
