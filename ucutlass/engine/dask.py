"""Runs builds and timings in the workers of a Dask cluster; artifacts pass through this process.

Each worker is told what to run (`ucutlass.engine.dispatch`); of Dask it takes the connection, the
workers' lives and their resources. A build's entries come back with its result and are kept here, so a
worker that dies takes nothing with it but what it was doing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Literal

from ucutlass.engine import worker
from ucutlass.engine.dispatch import Dispatch, Ticket
from ucutlass.engine.errors import EngineMissing, EngineUnreachable, NoWorkers, WorkerUnfit
from ucutlass.engine.work import (
    LIMIT_SECONDS,
    TABLE,
    WAIT_SECONDS,
    EngineTask,
    Needs,
    TaskTable,
    outcome_of_json,
    work_json,
    work_of,
)
from ucutlass.runtime import archive
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import MachineError

RESOURCES: Mapping[Needs, str] = {"cpu": "CPU", "gpu": "GPU"}
"""What a worker declares: `--resources "GPU=1 CPU=8"`. One that declares nothing builds with its threads."""

_LOOK_SECONDS = 0.5
"""Between looks at who is there; a death is noticed within this and what the scheduler takes to notice."""

_CONNECT_SECONDS = 15.0
PATIENCE_SECONDS = 60.0
"""What work waits for a worker that could take it: a nanny needs some seconds to start another."""

_MOVES = 3
"""Times that one task may be sent entries; a worker that still lacks some cannot keep them."""

_TIMEOUTS = (TimeoutError, asyncio.TimeoutError)
_CANCELLED = (concurrent.futures.CancelledError, asyncio.CancelledError)
"""Dask raises either; before Python 3.11 the former are two classes as well."""


class DaskEngine:
    """`address` is the scheduler's, as `tcp://host:8786`. `cache` is where entries are kept on this side;
    None takes this process's. Raises EngineMissing, EngineUnreachable."""

    def __init__(
        self,
        address: str,
        *,
        table: TaskTable = TABLE,
        cache: Cache | None = None,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._address = address
        self._table = table
        self._cache = cache or Cache.from_switches()
        self._patience = patience_seconds
        self._client = _client(address)
        self._state = Dispatch()
        self._lock = Lock()
        self._closed = Event()
        self._workers = ThreadPoolExecutor(4, thread_name_prefix="ucutlass-engine")
        self._served = dict.fromkeys(RESOURCES, time.monotonic())
        self._resources: Mapping[str, Mapping[str, float]] = {}
        self._connected = True
        self._dead: EngineUnreachable | None = None
        self._update_workers()
        self._watcher = Thread(target=self._watch, name="ucutlass-engine-watch", daemon=True)
        self._watcher.start()

    @property
    def gpus(self) -> int:
        with self._lock:
            return self._state.total("gpu")

    @property
    def cpus(self) -> int:
        with self._lock:
            return self._state.total("cpu")

    def submit(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        artifacts: Sequence[str] = (),
        limit_seconds: float = LIMIT_SECONDS,
        wait_seconds: float = WAIT_SECONDS,
        near: str = "",
        shared: bool = False,
    ) -> EngineTask:
        work = work_of(self._table, name, arguments, artifacts, limit_seconds, wait_seconds, near, shared)
        ticket = Ticket(f"ucutlass-{uuid.uuid4().hex}", work)
        with self._lock:
            if self._dead is None:
                self._state.queue.append(ticket)
                self._pump()
        if self._dead is not None:
            _settle(ticket, self._dead)
        return EngineTask(ticket.future, lambda: self._cancel(ticket))

    def leave(self, near: str) -> None:
        with self._lock:
            self._state.home.pop(near, None)

    def close(self) -> None:
        self._closed.set()
        self._watcher.join()
        with self._lock:
            left = [*self._state.queue, *self._state.running()]
        for ticket in left:
            self._cancel(ticket)
            ticket.future.cancel()
        self._workers.shutdown()
        self._client.close()

    # --- tasks -------------------------------------------------------------------

    def _pump(self) -> None:
        """Starts what can run now. Call with the lock held."""
        for ticket in [t for t in self._state.queue if t.cancelled]:
            self._state.queue.remove(ticket)
            ticket.future.cancel()
        if not self._connected:
            return
        for ticket in self._state.start():
            assert ticket.at is not None
            resource = RESOURCES[ticket.work.row.needs]
            declared = resource in self._resources.get(ticket.at, ())
            running = self._client.submit(
                worker.perform,
                ticket.id,
                json.dumps(work_json(ticket.work)),
                ticket.supplied,
                key=f"{ticket.id}-{ticket.tries}",
                workers=[ticket.at],
                allow_other_workers=False,
                resources={resource: 1} if declared else None,
                pure=False,
            )
            ticket.supplied = {}
            ticket.running = running
            running.add_done_callback(self._when_done(ticket, ticket.tries))

    def _when_done(self, ticket: Ticket, tries: int) -> Callable[[Any], None]:
        def done(running: Any) -> None:
            # Dask has one thread for all callbacks, and fetching a result takes a while.
            with suppress(RuntimeError):  # the engine is closed
                self._workers.submit(self._done, ticket, tries, running)

        return done

    def _done(self, ticket: Ticket, tries: int, running: Any) -> None:
        try:
            reply_text, packed_entries = running.result(timeout=_CONNECT_SECONDS)
            reply = json.loads(reply_text)
            for key, data in packed_entries.items():
                archive.unpack(self._cache, key, data)
            supplied = self._packed(reply.get("missing", ()), ticket)
        except BaseException as problem:
            self._failed(ticket, tries, problem)
            return
        with self._lock:
            if ticket.tries != tries or ticket.at is None:
                return  # taken away meanwhile, since its worker seemed gone
            if supplied:
                ticket.supplied = supplied
                self._state.again(ticket)
            else:
                self._state.ended(ticket)
            self._pump()
        if "outcome" in reply:
            _settle(ticket, outcome_of_json(reply["outcome"]))
        elif "unfit" in reply:
            why = reply["unfit"]
            _settle(ticket, WorkerUnfit(f"a worker answers {why['type']}: {why['what']}", why["fix"]))

    def _packed(self, keys: Sequence[str], ticket: Ticket) -> dict[str, bytes]:
        """Returns entries that a worker lacks."""
        if not keys:
            return {}
        ticket.moved += 1
        if ticket.moved > _MOVES:
            raise WorkerUnfit(
                f"a worker was sent {len(keys)} cache entries {_MOVES} times and still lacks them",
                "give its cache folder more room (UCUTLASS_CACHE_SIZE)",
            )
        packed = {key: archive.pack(self._cache, key) for key in keys}
        gone = [key for key, data in packed.items() if data is None]
        if gone:
            raise WorkerUnfit(
                f"{len(gone)} of the wanted cache entries are not in {self._cache.root}",
                "give the cache more room (UCUTLASS_CACHE_SIZE), and run it again",
            )
        return {key: data for key, data in packed.items() if data is not None}

    def _failed(self, ticket: Ticket, tries: int, problem: BaseException) -> None:
        """No answer could be had of a task that Dask says has ended."""
        kind = _loss(problem)
        lost: MachineError | None = None
        with self._lock:
            if ticket.tries != tries or ticket.at is None:
                return
            match kind:
                case "worker":
                    lost = self._state.died(ticket)
                case "connection":
                    self._connected = False
                    self._state.again(ticket)
                case None:
                    self._state.ended(ticket)
            self._pump()
        if lost is not None:
            _settle(ticket, lost)
        elif isinstance(problem, MachineError):
            _settle(ticket, problem)
        elif kind is None:
            words = f"a worker could not run {ticket.work.row.target}: {type(problem).__name__}: {problem}"
            _settle(ticket, WorkerUnfit(words, "install the same ucutlass on every worker"))

    def _cancel(self, ticket: Ticket) -> None:
        with self._lock:
            at, ticket.cancelled = ticket.at, True
            self._pump()
        if at is not None:
            with suppress(RuntimeError):  # the engine is closed
                self._workers.submit(self._stop, ticket.id, at)

    def _stop(self, ticket: str, at: str) -> None:
        with suppress(OSError, *_TIMEOUTS):  # a worker that is gone has stopped
            self._client.run(worker.stop, ticket, workers=[at])

    # --- workers -----------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        """Asked anew: `scheduler_info` gives the last answer where none comes."""
        if self._client.status == "closed":
            raise OSError("Dask's client gave up")
        identity: dict[str, Any] = self._client.sync(
            self._client.scheduler.identity, n_workers=-1, callback_timeout=_CONNECT_SECONDS
        )
        return identity

    def _update_workers(self) -> None:
        """Who is there. Raises OSError, TimeoutError where the scheduler does not answer."""
        running_workers = {
            address: facts
            for address, facts in self._identity()["workers"].items()
            if facts["status"] == "running"
        }
        slots = {address: _slots(facts) for address, facts in running_workers.items()}
        given_up: list[tuple[Ticket, MachineError]] = []
        with self._lock:
            self._connected = True
            self._resources = {
                address: facts.get("resources", {}) for address, facts in running_workers.items()
            }
            lost = self._state.update_workers(slots)
            dropped = [t.running for t in lost]
            given_up += [(t, why) for t in lost if (why := self._state.died(t)) is not None]
            given_up += self._starved()
            self._pump()
        for running in dropped:
            with suppress(Exception):  # Dask knows the worker is gone; there is nothing to add
                running.release()
        for ticket, reason in given_up:
            _settle(ticket, reason)

    def _starved(self) -> list[tuple[Ticket, MachineError]]:
        now = time.monotonic()
        unserved: list[tuple[Ticket, MachineError]] = []
        for needs, resource in RESOURCES.items():
            waiting = [t for t in self._state.queue if t.work.row.needs == needs]
            if not waiting or self._state.total(needs):
                self._served[needs] = now
            elif now - self._served[needs] > self._patience:
                why = NoWorkers(
                    f"{self._address} had no worker with the resource {resource} for {self._patience:g} s",
                    f'start one: dask worker {self._address} --resources "{resource}=1"',
                )
                unserved += [(t, why) for t in waiting]
        for ticket, _ in unserved:
            self._state.queue.remove(ticket)
        return unserved

    def _watch(self) -> None:
        answered = time.monotonic()
        while not self._closed.wait(_LOOK_SECONDS):
            try:
                self._update_workers()
                answered = time.monotonic()
            except (OSError, RuntimeError, *_TIMEOUTS) as problem:  # RuntimeError: its loop has ended
                closed = self._client.status == "closed"
                if closed or time.monotonic() - answered > self._patience:
                    self._give_up(problem)
                    return

    def _give_up(self, problem: Exception) -> None:
        words = f"the scheduler {self._address} does not answer any more ({problem})"
        with self._lock:
            self._dead = EngineUnreachable(words, "see whether it still runs, and start again")
            left = [*self._state.queue, *self._state.running()]
            self._state = Dispatch()
        for ticket in left:
            ticket.at = None
            _settle(ticket, self._dead)


def _client(address: str) -> Any:
    try:
        from distributed import Client
    except ImportError as error:
        raise EngineMissing(
            f"the engine {address} needs Dask distributed ({error})", "pip install 'ucutlass[distributed]'"
        ) from error
    connect: Any = Client  # which has no types
    try:
        return connect(address, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, *_TIMEOUTS) as error:
        words = f"no Dask scheduler answers at {address} within {_CONNECT_SECONDS:g} s ({error})"
        raise EngineUnreachable(words, "start one: dask scheduler") from error


def _slots(facts: Mapping[str, Any]) -> Mapping[Needs, int]:
    resources = facts.get("resources") or {"CPU": facts["nthreads"]}
    # A worker process sees one GPU of ours, whatever it declares.
    return {"cpu": int(resources.get("CPU", 0)), "gpu": min(1, int(resources.get("GPU", 0)))}


def _loss(problem: BaseException) -> Literal["worker", "connection"] | None:
    """Returns what is gone, where a task has ended without an answer; None where the answer is the
    problem."""
    from distributed import KilledWorker
    from distributed.client import FutureCancelledError

    if isinstance(problem, FutureCancelledError) and problem.reason == "scheduler-connection-lost":
        return "connection"
    # Dask says so too where the worker died with the result before it was fetched.
    return "worker" if isinstance(problem, (KilledWorker, *_TIMEOUTS, *_CANCELLED)) else None


def _settle(ticket: Ticket, result: Any) -> None:
    """Gives the answer to who waits, if anyone still does."""
    if not ticket.future.set_running_or_notify_cancel():
        return
    if isinstance(result, Exception):
        ticket.future.set_exception(result)
    else:
        ticket.future.set_result(result)
