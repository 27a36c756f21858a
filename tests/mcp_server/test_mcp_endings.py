"""Nothing outlives what it was started for: a call that is cancelled, a job, a limit, a client."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any

import pytest

pytest.importorskip("mcp")

import anyio
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp_machine import LINEAR, SIZES, SLEEPS, Host, alive, call, eventually, finished, refused, until

from ucutlass.agent.mcp import jobs
from ucutlass.agent.mcp.command import CommandResult

MEASURE: dict[str, Any] = {"texts": [LINEAR], "sizes": SIZES, "wait_s": 0}


async def building(client: Client, host: Host) -> dict[str, Any]:
    """A job in the middle of a build that never ends."""
    answer = await call(client, "measure", **MEASURE)
    await eventually(host.pids)
    return answer


def ended(host: Host) -> bool:
    return bool(host.pids()) and not any(map(alive, host.pids()))


def test_a_job_that_is_cancelled_ends_its_compiler(host: Host) -> None:
    host.behave(SLEEPS)

    async def conversation(client: Client) -> None:
        answer = await building(client, host)
        waiting = await call(client, "measure", **MEASURE)
        assert (waiting["status"], waiting["queue_position"]) == ("queued", 0)
        cancelled = await finished(client, await call(client, "job", id=waiting["job"], cancel=True))
        assert (cancelled["status"], cancelled["fault"]) == ("cancelled", "cancelled")
        assert (await call(client, "job", id=answer["job"], wait_s=0))["status"] == "running"
        cancelled = await finished(client, await call(client, "job", id=answer["job"], cancel=True))
        assert (cancelled["status"], cancelled["ok"]) == ("cancelled", False)
        assert ended(host), "a job that is said to be cancelled has left nothing"
        host.behave("exit 1\n")
        answer = await finished(client, await call(client, "measure", **MEASURE))
        assert answer["rows"][0]["verdict"] == "failed", "the next job runs"

    host.talk(conversation)


def test_a_call_that_is_cancelled_ends_its_compiler(host: Host) -> None:
    host.behave(SLEEPS)

    async def conversation(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "measure", {**MEASURE, "wait_s": 40})
            await eventually(host.pids)
            group.cancel_scope.cancel()
        await eventually(lambda: ended(host))
        assert (await call(client, "check", text=LINEAR))["ok"]

    host.talk(conversation)


def test_a_command_that_answers_at_once_ends_with_its_call(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended_early: list[bool] = []
    started = Event()

    def run(_: Any, __: float, ___: int, cancel: Event, *____: Any) -> CommandResult:
        started.set()
        ended_early.append(cancel.wait(60.0))
        return CommandResult("cancelled", None, "", 0.0)

    monkeypatch.setattr(jobs, "run_command", run)

    async def conversation(client: Client) -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(client.call_tool, "check", {"text": LINEAR})
            await eventually(started.is_set)
            group.cancel_scope.cancel()
        await eventually(lambda: ended_early)

    host.talk(conversation)
    assert ended_early == [True]


def test_a_poll_that_is_cancelled_does_not_end_the_job(host: Host) -> None:
    host.behave(SLEEPS)

    async def conversation(client: Client) -> None:
        answer = await building(client, host)
        with anyio.move_on_after(0.1):
            await client.call_tool("job", {"id": answer["job"], "wait_s": 40})
        assert (await call(client, "job", id=answer["job"], wait_s=0))["status"] == "running"

    host.talk(conversation)
    assert ended(host), "the server ends its jobs with it"


def test_a_job_ends_at_the_limit_of_its_seconds(host: Host) -> None:
    host.behave(SLEEPS)
    host.limited(job_seconds=0.01)

    async def conversation(client: Client) -> None:
        answer = await finished(client, await call(client, "measure", **MEASURE))
        assert (answer["status"], answer["ok"], answer["fault"]) == ("failed", False, "limit")
        assert answer["rows"][0]["verdict"] == "timeout"

    host.talk(conversation)


@pytest.mark.slow
def test_all_jobs_end_at_the_limit_of_the_server(host: Host) -> None:
    host.limited(total_seconds=0.01)

    async def conversation(client: Client) -> None:
        await finished(client, await call(client, "measure", **MEASURE))
        assert "spent" in await refused(client, "measure", **MEASURE)
        assert (await call(client, "check", text=LINEAR))["ok"]

    host.talk(conversation)


def test_a_command_ends_at_the_limit_of_memory(host: Host) -> None:
    host.limited(memory_bytes=1 << 20)

    async def conversation(client: Client) -> None:
        answer = await call(client, "check", text=LINEAR)
        assert (answer["ok"], answer["fault"]) == (False, "limit") and "memory" in answer["words"]

    host.talk(conversation)


# --- over standard input and output --------------------------------------------------


def command(host: Host) -> list[str]:
    return [sys.executable, "-m", "ucutlass.cli", "mcp", "--root", str(host.limits.root)]


def test_the_command_serves_over_standard_input_and_output(host: Host) -> None:
    program, *arguments = command(host)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}

    async def main() -> None:
        async with Client(StdioServerParameters(command=program, args=arguments, env=environ)) as client:
            host.behave(SLEEPS)
            await building(client, host)
            assert (await call(client, "check", path="linear.ucu"))["ok"]

    anyio.run(main)
    until(lambda: ended(host))


@pytest.mark.slow
def test_a_client_that_leaves_in_a_build_leaves_it_to_another_s(host: Host) -> None:
    """Two servers with one root and one cache: the second waits for the build of the first, whose client goes."""
    program, *arguments = command(host)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    server = StdioServerParameters(command=program, args=arguments, env=environ)

    async def main() -> None:
        async with Client(server) as second:
            async with Client(server) as first:
                host.behave(SLEEPS)
                await building(first, host)
                answer = await call(second, "measure", **MEASURE)
                assert (await call(second, "check", path="linear.ucu"))["ok"]
                host.behave(": > kernel.so\n")
                assert len(host.pids()) == 1, "a kernel is built once"
            answer = await finished(second, answer)
            assert answer["rows"][0]["verdict"] == "built"

    anyio.run(main)
    until(lambda: ended(host))


HOLDER = """
import subprocess, sys, time
server = subprocess.Popen(sys.argv[2:], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for line in open(sys.argv[1], "rb"):
    server.stdin.write(line)
    server.stdin.flush()
    if b'"id"' in line:
        server.stdout.readline()
print(server.pid, flush=True)
time.sleep(600)
"""
"""A client that sends what a file holds, and then does nothing."""


def request(number: int, method: str, **parameters: Any) -> str:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": parameters}) + "\n"


def hello() -> str:
    """What a client of the protocol's handshake says first."""
    info = {"name": "test", "version": "1"}
    begin = request(1, "initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=info)
    return begin + json.dumps({"jsonrpc": "2.0", "method": "notifications/initialized"}) + "\n"


@pytest.fixture
def holder(host: Host, tmp_path: Path) -> Callable[[], tuple[subprocess.Popen[str], int]]:
    """Starts a client that has begun a build, and its server; gives the client and the server's number."""

    def start() -> tuple[subprocess.Popen[str], int]:
        host.behave(SLEEPS)
        messages = tmp_path / "messages"
        messages.write_text(hello() + request(2, "tools/call", name="measure", arguments=MEASURE))
        client = subprocess.Popen(
            [sys.executable, "-c", HOLDER, str(messages), *command(host)], stdout=subprocess.PIPE, text=True
        )
        assert client.stdout is not None
        server = int(client.stdout.readline())
        until(host.pids)
        return client, server

    return start


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_the_server_ends_with_its_client(
    host: Host, holder: Callable[[], tuple[subprocess.Popen[str], int]], number: signal.Signals
) -> None:
    client, server = holder()
    assert alive(server) and not ended(host)
    client.send_signal(number)
    client.wait()
    until(lambda: not alive(server) and ended(host))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_server_that_is_killed_leaves_nothing(
    host: Host, holder: Callable[[], tuple[subprocess.Popen[str], int]], number: signal.Signals
) -> None:
    client, server = holder()
    os.kill(server, number)
    until(lambda: not alive(server) and ended(host))
    client.kill()
    client.wait()
