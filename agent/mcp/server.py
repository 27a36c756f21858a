"""This module makes the server: its tools, its resources and its prompts, over standard input and output."""

from __future__ import annotations

import json
import logging
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, BinaryIO

import anyio
import anyio.to_thread
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ResourceNotFoundError, ToolError
from mcp.server.stdio import stdio_server
from mcp_types import INVALID_REQUEST, ErrorData, RequestParams, ToolAnnotations
from pydantic import Field

from ucutlass.agent.lookup import diagnostic
from ucutlass.agent.mcp.command import Command
from ucutlass.agent.mcp.jobs import Commands
from ucutlass.agent.mcp.limits import MOST_LINE, ServerLimits
from ucutlass.agent.mcp.tools import TOOLS, Call, ServerState
from ucutlass.agent.proposers.quoting import quoted
from ucutlass.guide import guide

NAME = "ucutlass"

INSTRUCTIONS = """\
uCUTLASS compiles a small kernel language to CUTLASS C++. Read ucc://guide once: it is the whole language in two
pages. Write a program, `check` it, `explain` it at your extents, then `measure` it; only `measure` needs a GPU. A
program without a schedule runs as the compiler schedules it, which is a good start; `edit` changes one address
at a time. A row whose verdict is not `right` has no time. When a job comes back running, poll `job` with its id.
"""


def make_server(limits: ServerLimits) -> MCPServer[ServerState]:
    """Returns the server of one client."""

    @asynccontextmanager
    async def lifespan(_: MCPServer[ServerState]) -> AsyncIterator[ServerState]:
        commands = Commands(limits)
        async with commands.serving():
            yield ServerState(limits, commands)

    server = MCPServer(
        NAME,
        title="uCUTLASS",
        instructions=INSTRUCTIONS,
        lifespan=lifespan,
        log_level="ERROR",
        subscriptions=False,
    )
    for tool, reads in TOOLS:
        server.add_tool(
            tool,
            annotations=ToolAnnotations(
                read_only_hint=reads, destructive_hint=False, open_world_hint=False, idempotent_hint=reads
            ),
        )
    _add_resources(server)
    _add_prompts(server)
    return server


# --- resources -----------------------------------------------------------------------


def _add_resources(server: MCPServer[ServerState]) -> None:
    server.resource("ucc://guide", name="guide", mime_type="text/markdown")(_guide)
    server.resource("ucc://diagnostics/{code}", name="diagnostic", mime_type="text/plain")(_diagnostic)
    server.resource("ucc://records/{id}", name="record", mime_type="application/json")(_record)
    server.resource("ucc://sessions/{id}", name="session", mime_type="application/json")(_session)
    server.resource("ucc://source/{digest}", name="source", mime_type="text/x-c++src")(_source)


def _guide() -> str:
    """The language in two pages."""
    return guide()


def _diagnostic(code: str) -> str:
    """What a diagnostic's code means, with the rules that raise it."""
    try:
        return diagnostic(code)
    except LookupError as unknown:
        raise ResourceNotFoundError(str(unknown)) from None


async def _record(id: str, call: Call) -> str:
    """A sealed evidence record, as `ucc results show` prints it."""
    return json.dumps(await _printed(call, ("results", "show", "--json", "--", id)), indent=1)


async def _session(id: str, call: Call) -> str:
    """An optimisation session's line, as `ucc sessions` prints it."""
    sessions = await _printed(call, ("sessions", "--json"))
    matching = [row for row in sessions if id and str(row["id"]).startswith(id)]
    if len(matching) != 1:
        raise ResourceNotFoundError(f"{len(matching)} sessions have an id that starts with {id[:20]!r}")
    return json.dumps(matching[0], indent=1)


def _source(digest: str, call: Call) -> str:
    """A source that `emit` made."""
    state: ServerState = call.request_context.lifespan_context
    if digest not in state.sources:
        raise ResourceNotFoundError("no such source is remembered: call emit again")
    return state.sources[digest]


async def _printed(call: Call, arguments: tuple[str, ...]) -> Any:
    async def ignore(_: float, __: str) -> None:
        return None

    try:
        result = await call.request_context.lifespan_context.commands.run(Command(arguments), ignore)
    except ToolError as refused:
        raise ResourceNotFoundError(str(refused)) from None
    if result.ended != 0:
        raise ResourceNotFoundError(result.words)
    return result.value


# --- prompts -------------------------------------------------------------------------


def _add_prompts(server: MCPServer[ServerState]) -> None:
    server.prompt("write_kernel", description="Write a kernel for a task and make it fast.")(_write_kernel)
    server.prompt("optimize_module", description="Make a PyTorch problem file faster.")(_optimize_module)


def _write_kernel(task: Annotated[str, Field(max_length=20_000)]) -> str:
    return (
        "Write a uCUTLASS program for the task below. Read ucc://guide first. Begin without a schedule; check it; "
        "explain it at the task's extents; measure it; then try what explain's advice and sol's bounds suggest, "
        "one change at a time, and keep the fastest program whose verdict is right.\n\n"
        + quoted("task", task)
    )


def _optimize_module(path: Annotated[str, Field(max_length=1024)]) -> str:
    return (
        "Make the PyTorch problem file below faster with uCUTLASS. Read the file and ucc://guide. Ask sol with "
        "its path what no kernel can beat. Start optimize with its path, poll job, and then measure programs of "
        "your own with problem set to the path: a program computes what the module does, in its element types.\n\n"
        + quoted("path", path)
    )


# --- standard input and output -------------------------------------------------------


def serve(limits: ServerLimits) -> None:
    """Serves one client over standard input and output, until it closes them."""
    # The SDK sets logging up for a person at a terminal; a client keeps standard error as lines.
    logging.basicConfig(format="ucc: %(message)s", level=logging.ERROR)
    anyio.run(_serve, make_server(limits))


async def _serve(server: MCPServer[ServerState]) -> None:
    inner = server._lowlevel_server
    inner.add_request_handler(TOO_LONG, RequestParams, _refuse_too_long)
    lines: Any = BoundedLines(sys.stdin.buffer)
    async with stdio_server(stdin=lines) as (read_stream, write_stream):
        await inner.run(read_stream, write_stream, inner.create_initialization_options())


TOO_LONG = "ucc/too_long"
"""The method that a request of more than MOST_LINE bytes is given in place of its own."""

_ID = rb'"id"\s*:\s*(\d{1,18}|"[ !#-\[\]-~]{1,100}")\s*'
_VERSION = rb'"jsonrpc"\s*:\s*"2.0"\s*'
_FIRST_ID = re.compile(rb"\s*\{\s*(?:" + _VERSION + rb",\s*)?" + _ID)
_LAST_ID = re.compile(rb",\s*" + _ID + rb"(?:,\s*" + _VERSION + rb")?\}\s*\Z")
"""Where clients write a request's id: before its parameters, which hold what is long, or behind them."""

_ID_BYTES = 256


async def _refuse_too_long(_: Any, __: RequestParams) -> ErrorData:
    words = f"the message has more than {MOST_LINE} bytes, which is the most that is read"
    return ErrorData(code=INVALID_REQUEST, message=words)


class BoundedLines:
    """Yields the lines of a client. One of more than `most` bytes is read past, so that a client that never ends a
    line takes no memory. A request becomes one of TOO_LONG with its id, for its client waits for an answer; what has
    no id becomes an empty line, which is no message."""

    def __init__(self, stream: BinaryIO, most: int = MOST_LINE) -> None:
        self._stream, self._most = stream, most

    async def __aiter__(self) -> AsyncIterator[str]:
        while line := await anyio.to_thread.run_sync(self._line, abandon_on_cancel=True):
            yield line

    def _line(self) -> str:
        line = self._stream.readline(self._most)
        too_long, end, rest = False, b"", line
        while rest and not rest.endswith(b"\n"):
            rest = self._stream.readline(self._most)
            too_long, end = too_long or bool(rest), (end + rest)[-_ID_BYTES:]
        if not too_long:
            return line.decode("utf-8", errors="replace")
        id = _FIRST_ID.match(line) or _LAST_ID.search(end)
        return f'{{"jsonrpc": "2.0", "id": {id[1].decode()}, "method": "{TOO_LONG}"}}\n' if id else "\n"
