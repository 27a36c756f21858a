"""Measures where the seconds of one call go: named spans, which are timed only while a recording is open.

A recording sees the spans of the context that opened it: work of worker threads is a span of the caller that
waits for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from time import perf_counter


@dataclass(slots=True)
class SpanRecording:
    """The seconds of each name, without those of spans inside it, in the order in which they first ended."""

    seconds: dict[str, float] = field(default_factory=dict)
    _inner: list[float] = field(default_factory=list)

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        start = perf_counter()
        self._inner.append(0.0)
        try:
            yield
        finally:
            took = perf_counter() - start
            own = took - self._inner.pop()
            self.seconds[name] = self.seconds.get(name, 0.0) + own
            if self._inner:
                self._inner[-1] += took


_CURRENT: ContextVar[SpanRecording | None] = ContextVar("recording", default=None)


@contextmanager
def recording() -> Iterator[SpanRecording]:
    """Records the spans of this context until the block ends."""
    record = SpanRecording()
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
