"""This module runs commands for tools: at once, for those that answer within seconds, or as jobs in a queue.

Nothing outlives the server: a job's commands end with it, and it ends with its client.
"""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import Event
from typing import Literal, TypeAlias

import anyio
import anyio.to_thread
from mcp.server.mcpserver.exceptions import ToolError

from ucutlass.agent.mcp.command import Command, CommandResult, run_command
from ucutlass.agent.mcp.limits import (
    COMMAND_SECONDS,
    MOST_AT_ONCE,
    MOST_CALLS,
    MOST_JOBS,
    WAIT_SECONDS,
    ServerLimits,
)
from ucutlass.printable import one_line

OnProgress: TypeAlias = Callable[[float, str], Awaitable[None]]
"""Is told how many seconds have passed, and the latest words of the command."""

JobStatus: TypeAlias = Literal["queued", "running", "done", "cancelled", "failed"]

_TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class JobStep:
    """One command of a job. `subject` counts what the job is about: where a command of it did not end with 0, its
    further ones are left out."""

    command: Command
    subject: int = 0


@dataclass(slots=True)
class CommandJob:
    """A series of commands, one after the other, and their results so far, None for one that was left out.
    `latest` is the last line that a command wrote to standard error; `words` says why the job failed. `digests`
    name the texts that are measured. `dollars` are reserved of the server's money."""

    kind: str
    steps: Sequence[JobStep]
    digests: Sequence[str] = ()
    dollars: float = 0.0
    id: str = field(default_factory=lambda: secrets.token_hex(6))
    status: JobStatus = "queued"
    results: list[CommandResult | None] = field(default_factory=list)
    latest: str = ""
    words: str = ""
    cancel: Event = field(default_factory=Event)
    ended: anyio.Event = field(default_factory=anyio.Event)

    def left_out(self, step: JobStep) -> bool:
        """Returns whether a step has nothing to do any more."""
        pairs = zip(self.steps, self.results, strict=False)
        return any(
            result is None or result.ended != 0
            for earlier, result in pairs
            if earlier.subject == step.subject
        )

    def end(self, status: JobStatus, words: str = "") -> None:
        """Ends a job that has not ended."""
        if not self.ended.is_set():
            self.status, self.words = status, words
            self.ended.set()


class Commands:
    """Runs the commands of one server. Its methods belong to the server's event loop."""

    def __init__(self, limits: ServerLimits) -> None:
        self._limits = limits
        self._at_once = anyio.Semaphore(MOST_AT_ONCE)
        self._calls = 0
        self._jobs: dict[str, CommandJob] = {}
        self._queue: deque[CommandJob] = deque()
        self._queued = anyio.Condition()
        self._spent = 0.0
        self._began: dict[str, float] = {}
        self.dollars_left = limits.dollars or 0.0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        """Runs jobs inside; ends all of them at its end."""
        async with anyio.create_task_group() as group:
            for _ in range(self._limits.running):
                group.start_soon(self._work)
            try:
                yield
            finally:
                for job in self._jobs.values():
                    job.cancel.set()
                group.cancel_scope.cancel()

    # --- commands that answer at once ---------------------------------------------

    async def run(self, command: Command, on_progress: OnProgress) -> CommandResult:
        """Returns the result of a command. Raises ToolError where too many calls wait already."""
        if self._calls >= MOST_CALLS:
            raise ToolError(f"{self._calls} calls wait or run already: ask again when they have answered")
        self._calls += 1
        try:
            with anyio.move_on_after(WAIT_SECONDS) as waiting:
                await self._at_once.acquire()
            if waiting.cancelled_caught:
                raise ToolError(f"other calls took longer than {WAIT_SECONDS:g} s: ask again")
            try:
                return await self._run(command, COMMAND_SECONDS, Event(), on_progress)
            finally:
                self._at_once.release()
        finally:
            self._calls -= 1

    async def _run(
        self, command: Command, seconds: float, cancel: Event, on_progress: OnProgress
    ) -> CommandResult:
        """Runs a command in a thread; where this is cancelled, the command ends."""
        latest, result, problem = [""], None, ""
        call = partial(
            run_command,
            command,
            seconds,
            self._limits.memory_bytes,
            cancel,
            lambda words: latest.__setitem__(0, one_line(words)[:300]),
        )

        async def tell() -> None:
            began = time.monotonic()
            try:
                while True:
                    await anyio.sleep(_TICK_SECONDS)
                    await on_progress(time.monotonic() - began, latest[0])
            finally:
                if result is None:
                    cancel.set()

        async with anyio.create_task_group() as group:
            group.start_soon(tell)
            try:
                # Waits for the thread also where this is cancelled: then all of the command has ended.
                result = await anyio.to_thread.run_sync(call, limiter=anyio.CapacityLimiter(1))
            except (OSError, ValueError) as error:
                problem = str(error)
            group.cancel_scope.cancel()
        if result is None:
            raise ToolError(f"the command cannot be started: {problem}")
        return result

    # --- jobs ---------------------------------------------------------------------

    async def start(self, job: CommandJob) -> None:
        """Queues a job. Raises ToolError where the server's limits do not allow another one."""
        async with self._queued:
            self._allow(job)
            for old in [j for j in self._jobs.values() if j.ended.is_set()][:-MOST_JOBS]:
                del self._jobs[old.id]
            self.dollars_left -= job.dollars
            self._jobs[job.id] = job
            self._queue.append(job)
            self._queued.notify()

    def _allow(self, job: CommandJob) -> None:
        """Raises ToolError where the server's limits do not allow another job."""
        limits = self._limits
        if job.dollars > self.dollars_left:
            raise ToolError("another search holds the server's money for models: wait for it, or use rules")
        if self._seconds_left() <= 0:
            raise ToolError(
                f"the server's {limits.total_seconds:g} s of jobs are spent; its user may start another"
            )
        if len(self._queue) >= limits.waiting + (len(self._began) < limits.running):
            raise ToolError(f"{len(self._queue)} jobs wait already: poll or cancel one first")

    def job(self, id: str) -> CommandJob:
        """Raises ToolError for an unknown id."""
        if id not in self._jobs:
            raise ToolError(
                f"there is no job {id[:20]!r}; the server remembers the last {MOST_JOBS} that ended"
            )
        return self._jobs[id]

    def position(self, job: CommandJob) -> int | None:
        """Returns how many jobs come before this one; None where it does not wait."""
        return self._queue.index(job) if job in self._queue else None

    def stop(self, job: CommandJob) -> None:
        """Cancels a job: its processes end at once."""
        job.cancel.set()
        if job in self._queue:
            self._queue.remove(job)
            self.dollars_left += job.dollars
            job.end("cancelled", "it was cancelled before it began")

    async def wait(self, job: CommandJob, seconds: float, on_progress: OnProgress) -> None:
        """Waits for the end of a job, at most so long."""
        began = time.monotonic()
        with anyio.move_on_after(seconds):
            while not job.ended.is_set():
                with anyio.move_on_after(_TICK_SECONDS):
                    await job.ended.wait()
                await on_progress(time.monotonic() - began, job.latest)

    async def _work(self) -> None:
        while True:
            async with self._queued:
                while not self._queue:
                    await self._queued.wait()
                job = self._queue.popleft()
            try:
                await self._run_job(job)
            finally:
                job.cancel.set()
                job.end("cancelled", "the server ended")

    async def _run_job(self, job: CommandJob) -> None:
        job.status = "running"
        began = self._began[job.id] = time.monotonic()

        async def on_progress(_: float, words: str) -> None:
            job.latest = words or job.latest

        try:
            for step in job.steps:
                if job.left_out(step):
                    job.results.append(None)
                    continue
                left = min(self._limits.job_seconds - (time.monotonic() - began), self._seconds_left())
                result = await self._run(step.command, max(0.0, left), job.cancel, on_progress)
                job.results.append(result)
                if result.ended == "cancelled":
                    job.end("cancelled", result.words)
                    return
                if result.fault == "limit" or left <= 0:
                    job.end("failed", result.words)
                    return
        except ToolError as problem:
            job.end("failed", str(problem))
            return
        finally:
            self._spent += time.monotonic() - self._began.pop(job.id)
            self._refund(job)
        job.end("done")

    def _seconds_left(self) -> float:
        """Returns what one more command may take of the seconds of all jobs, where as many run as may."""
        now = time.monotonic()
        spent = self._spent + sum(now - began for began in self._began.values())
        return (self._limits.total_seconds - spent) / self._limits.running

    def _refund(self, job: CommandJob) -> None:
        """Gives back what a search did not spend; of one that was ended nobody knows what it spent."""
        last = job.results[-1] if job.results else None
        spend = last.row.get("spend") if last is not None else None
        if job.dollars and isinstance(spend, dict):
            self.dollars_left += max(0.0, job.dollars - float(spend.get("dollars", job.dollars)))
