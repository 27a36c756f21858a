"""Serves `DaskEngine` in a Dask worker, with JSON and bytes in and out.

A worker process has one GPU, the first that it sees, or none.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from threading import Event, Lock
from typing import Any

from ucutlass.engine.gpu_slot import GpuSlot
from ucutlass.engine.work import RemoteCall, made_by, outcome_json, work_of_json
from ucutlass.runtime import archive
from ucutlass.runtime.cache import Cache, CacheEntry
from ucutlass.runtime.errors import MachineError

_EARLY = 1000
"""Calls that are known to have been stopped before they began; a stop may overtake its call."""


class _Seat:
    """What the tasks of one worker process share."""

    def __init__(self) -> None:
        self._place = GpuSlot()
        self._stops: dict[str, Event] = {}
        self._early: deque[str] = deque(maxlen=_EARLY)
        self._lock = Lock()

    def perform(
        self, ticket: str, work: RemoteCall, supplied: Mapping[str, bytes]
    ) -> tuple[str, dict[str, bytes]]:
        cache = Cache.from_switches()
        for key, data in supplied.items():
            archive.unpack(cache, key, data)
        missing = [key for key in work.artifacts if not isinstance(cache.load(key), CacheEntry)]
        if missing:
            return json.dumps({"missing": missing}), {}
        with self._lock:
            stop = self._stops.setdefault(ticket, Event())
            if ticket in self._early:
                stop.set()
        try:
            outcome = self._place.run(work, stop)
        finally:
            with self._lock:
                self._stops.pop(ticket, None)
        packed = {key: archive.pack(cache, key) for key in made_by(outcome)}
        new_entries = {key: data for key, data in packed.items() if data is not None}
        return json.dumps({"outcome": outcome_json(outcome)}), new_entries

    def stop(self, ticket: str) -> None:
        with self._lock:
            if ticket in self._stops:
                self._stops[ticket].set()
            else:
                self._early.append(ticket)


_SEAT = _Seat()
"""A worker process serves one engine's table from its start to its end, so its state is the process's."""


def perform(ticket: str, work: str, supplied: Mapping[str, bytes]) -> tuple[str, dict[str, bytes]]:
    """Runs `work` (of `work_json`), with the cache entries `supplied` put into this worker's cache before.

    JSON of one of: `outcome`; `missing`, the keys that are neither here nor given; `unfit`, why this
    worker cannot. With an outcome come the entries that it made.
    """
    try:
        return _SEAT.perform(ticket, work_of_json(json.loads(work)), supplied)
    except MachineError as problem:
        unfit: dict[str, Any] = {"type": type(problem).__name__, "what": problem.what, "fix": problem.fix}
        return json.dumps({"unfit": unfit}), {}


def stop(ticket: str) -> None:
    """Stops the compilers of a call of `perform` that is under way here, or will be."""
    _SEAT.stop(ticket)
