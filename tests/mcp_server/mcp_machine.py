"""A server and its client on a machine without a GPU, whose compiler does what a test says."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
from mcp import Client

from ucutlass.agent.mcp.limits import ServerLimits
from ucutlass.agent.mcp.server import make_server

ROOT = Path(__file__).parent.parent.parent
LINEAR = "kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }\n"
SIZES = {"M": 64, "N": 64, "K": 64}

NVCC = """#!/bin/sh
if [ "$1" = --version ]; then
  echo "Cuda compilation tools, release 13.0, V13.0.88"
  exit 0
fi
[ "$1" = --dryrun ] && exit 0
. "{home}/behaviour"
"""

SLEEPS = 'echo $$ >> "{home}/pids"\nexec sleep 600\n'
"""Of a compiler that never ends; its process id is written down."""


@dataclass
class Host:
    """A machine of the test's own, and a server with these limits on it."""

    home: Path
    limits: ServerLimits

    def behave(self, script: str) -> None:
        """Sh code for every compilation from now on."""
        (self.home / "behaviour").write_text(script.format(home=self.home))

    def limited(self, **limits: Any) -> None:
        self.limits = replace(self.limits, **limits)

    def pids(self) -> list[int]:
        """The compilers that were started."""
        path = self.home / "pids"
        return [int(word) for word in path.read_text().split()] if path.exists() else []

    def talk(self, conversation: Callable[[Client], Awaitable[None]]) -> None:
        """Has a client in this process talk to a server, whose commands are processes of their own."""
        failures: list[Exception] = []

        async def main() -> None:
            async with Client(make_server(self.limits)) as client:
                try:
                    await conversation(client)
                except Exception as failure:  # out of the client's groups of exceptions
                    failures.append(failure)

        anyio.run(main)
        if failures:
            raise failures[0]


async def call(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """What a tool answers."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    answer = result.structured_content
    assert answer is not None
    assert json.loads(result.content[0].text) == answer, "clients that know no structures read the same"
    return answer


async def finished(client: Client, answer: dict[str, Any]) -> dict[str, Any]:
    """What a job answers in the end."""
    while answer["status"] in ("queued", "running"):
        answer = await call(client, "job", id=answer["job"])
    return answer


async def refused(client: Client, tool: str, **arguments: Any) -> str:
    """Why a tool refuses its arguments."""
    result = await client.call_tool(tool, arguments)
    assert result.is_error, result.structured_content
    words = result.content[0].text
    assert words != f"Error executing tool {tool}", "the tool broke"
    return str(words)


def alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False


def until(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """Waits for what other processes bring about."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.02)


async def eventually(holds: Callable[[], Any], seconds: float = 60.0) -> None:
    """As `until`, while the server goes on."""
    with anyio.fail_after(seconds):
        while not holds():
            await anyio.sleep(0.02)
