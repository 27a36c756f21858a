"""Decides which worker takes which task. It holds state and rules, and uses no network.

Dask would choose by itself, but by the length of queues, not by which GPU is free, and after a death it
blames all that was assigned to the worker. Here a worker gets no more than it runs at once, and who died
with a worker is run alone from then on, so the next death is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from ucutlass.engine.errors import TaskLost
from ucutlass.engine.work import Needs, RemoteCall
from ucutlass.runtime.isolation import CallOutcome

LIVES = 3
"""Workers that may die with a task before it is given up; from the second on it was alone there."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A task on its way. `died` are the workers that ended with it, `supplied` the cache entries to send
    along, `tries` counts what was started; `running` is what the network knows it by."""

    id: str
    work: RemoteCall
    future: Future[CallOutcome] = field(default_factory=Future)
    died: list[str] = field(default_factory=list)
    supplied: dict[str, bytes] = field(default_factory=dict)
    at: str | None = None
    tries: int = 0
    moved: int = 0
    running: Any = None
    cancelled: bool = False


@dataclass(slots=True)
class Worker:
    """`slots` are tasks of each kind at once."""

    slots: Mapping[Needs, int]
    running: list[Ticket] = field(default_factory=list)

    def free(self, needs: Needs) -> int:
        return self.slots[needs] - sum(t.work.row.needs == needs for t in self.running)

    def open_to(self, ticket: Ticket) -> bool:
        """Returns whether it may run now: a task that died with a worker runs alone."""
        if any(t.died for t in self.running) or (ticket.died and self.running):
            return False
        return self.free(ticket.work.row.needs) > 0


@dataclass(slots=True)
class Dispatch:
    """`workers` by address. Not for several threads at once."""

    workers: dict[str, Worker] = field(default_factory=dict)
    queue: list[Ticket] = field(default_factory=list)
    home: dict[str, str] = field(default_factory=dict)

    def total(self, needs: Needs) -> int:
        return sum(w.slots[needs] for w in self.workers.values())

    def running(self) -> list[Ticket]:
        return [t for w in self.workers.values() for t in w.running]

    def start(self) -> list[Ticket]:
        """Takes out of the queue all that can run now, `at` set."""
        started: list[Ticket] = []
        draining: set[str] = set()
        """Workers that are being emptied for a task that must run alone."""
        for ticket in sorted(self.queue, key=lambda t: not t.died):
            at = self._where(ticket, draining)
            if at is None:
                continue
            if not self.workers[at].open_to(ticket):
                draining.add(at)
                continue
            ticket.at = at
            ticket.tries += 1
            self.workers[at].running.append(ticket)
            self.queue.remove(ticket)
            started.append(ticket)
        return started

    def _where(self, ticket: Ticket, draining: set[str]) -> str | None:
        """Returns the worker to take; for a task that must run alone also one that is not empty yet."""
        needs, home = ticket.work.row.needs, self._home(ticket.work.near)
        able = [a for a, w in self.workers.items() if w.slots[needs] > 0 and a not in draining]
        if needs == "gpu" and home is not None:
            able = [a for a in able if a == home]
        if not ticket.died:
            able = [a for a in able if self.workers[a].open_to(ticket)]

        def worth(address: str) -> tuple[int, bool, int]:
            worker = self.workers[address]
            crowd = len(worker.running) if ticket.died else 0
            return crowd, address != home, -worker.free(needs)

        return min(able, key=worth, default=None)

    def _home(self, near: str) -> str | None:
        """Returns the worker whose GPU a token uses: while none is known, the one with the fewest tokens."""
        if near and self.home.get(near) not in self.workers:
            gpus = [a for a, w in self.workers.items() if w.slots["gpu"] > 0]
            if not gpus:
                return None
            self.home[near] = min(gpus, key=list(self.home.values()).count)
        return self.home.get(near)

    def ended(self, ticket: Ticket) -> None:
        """It runs no more, whatever came of it."""
        worker = self.workers.get(ticket.at or "")
        if worker is not None and ticket in worker.running:
            worker.running.remove(ticket)
        ticket.at = ticket.running = None

    def again(self, ticket: Ticket) -> None:
        """Back into the queue, before all others."""
        self.ended(ticket)
        self.queue.insert(0, ticket)

    def died(self, ticket: Ticket) -> TaskLost | None:
        """Its worker is gone: back into the queue, or given up."""
        ticket.died.append(ticket.at or "an unknown worker")
        self.again(ticket)
        if len(ticket.died) < LIVES:
            return None
        self.queue.remove(ticket)
        return TaskLost(ticket.work.row.target, tuple(ticket.died))

    def update_workers(self, slots: Mapping[str, Mapping[Needs, int]]) -> list[Ticket]:
        """Takes over the workers that are connected. Returns the tasks of those that are gone, still at their place."""
        gone = [a for a in self.workers if a not in slots]
        lost = [t for a in gone for t in self.workers[a].running]
        for address in gone:
            del self.workers[address]
        for address, worker_slots in slots.items():
            if address in self.workers:
                self.workers[address].slots = worker_slots
            else:
                self.workers[address] = Worker(worker_slots)
        return lost
