"""This module bounds what a server sends in answer to one request of the Messages API: who sends a byte now and then,
or bytes without an end, holds nobody up and takes no memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx2

from ucutlass.agent.proposer import ProposerFailed

MOST_BYTES = 64 << 20
"""Of an answer: some three times the events of the longest that a model writes."""

_FIX = "see whether a proxy answers in the service's place"


@dataclass(slots=True)
class BoundedStream(httpx2.SyncByteStream):
    """Is a body of at most MOST_BYTES, read within `seconds`. Raises ProposerFailed while it is read."""

    body: Any
    seconds: float
    start: float = field(default_factory=time.monotonic)

    def __iter__(self) -> Iterator[bytes]:
        size = 0
        for chunk in self.body:
            size += len(chunk)
            if size > MOST_BYTES:
                raise ProposerFailed(f"its answer has more than {MOST_BYTES} bytes", _FIX)
            if time.monotonic() - self.start > self.seconds:
                raise ProposerFailed(f"its answer had not ended after {self.seconds:.0f} s", _FIX)
            yield chunk

    def close(self) -> None:
        self.body.close()


def bounds_answers(seconds: float) -> Callable[[httpx2.Response], None]:
    """Returns a hook that bounds every response of a client."""

    def bound(response: httpx2.Response) -> None:
        response.stream = BoundedStream(response.stream, seconds)

    return bound
