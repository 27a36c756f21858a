"""This module runs `ucc` with arguments of a table, in a process of its own that can be ended.

No shell takes part: the arguments are a list, programs go in on standard input, and the answer is the JSON that
the command prints. The process stands in an empty folder and imports what this one does, so that nothing that
lies below the server's root is imported.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Lock, Thread
from types import MappingProxyType
from typing import IO, Any, Literal, TypeAlias

from ucutlass import files
from ucutlass.agent.mcp.limits import MOST_ERRORS, MOST_OUTPUT, MOST_WORDS
from ucutlass.agent.proposers.quoting import plain
from ucutlass.runtime.environment_allowlist import allowed_environment
from ucutlass.runtime.supervised_process import SupervisedProcess

CommandEnd: TypeAlias = int | Literal["time", "memory", "output", "cancelled"]
"""An exit status, negative for a signal, or why the command was ended."""

Fault: TypeAlias = Literal["", "program", "call", "machine", "limit", "cancelled"]
"""Who is at fault, as `ucc` has it: the program, the call, the machine; or a limit of the server was passed."""

_POLL_SECONDS = 0.05

_START = (
    "import json, runpy, sys; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "runpy.run_module('ucutlass.cli', run_name='__main__', alter_sys=True)"
)
"""`-m` would put the folder where the process stands before all others."""

_FAULTS: Mapping[CommandEnd, Fault] = MappingProxyType(
    {
        0: "",
        1: "program",
        2: "call",
        3: "machine",
        "time": "limit",
        "memory": "limit",
        "output": "limit",
        "cancelled": "cancelled",
    }
)


@dataclass(frozen=True, slots=True)
class Command:
    """Describes one call of `ucc`. `text` is its standard input, `inputs` are files that are put into the folder
    where it runs, and `keys` names variables of the environment that hold secrets and that it needs."""

    arguments: tuple[str, ...]
    text: str = ""
    inputs: Mapping[str, bytes] = field(default_factory=dict)
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """`value` is the JSON that the command printed; None where it printed none. `errors` is the end of what it
    wrote to standard error."""

    ended: CommandEnd
    value: Any
    errors: str
    seconds: float

    @property
    def fault(self) -> Fault:
        return _FAULTS.get(self.ended, "machine")

    @property
    def row(self) -> dict[str, Any]:
        """Returns the value where it is an object, else an empty one."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def words(self) -> str:
        """Returns what went wrong; "" where nothing did."""
        match self.ended:
            case "time":
                return f"it did not end within its time and was ended after {self.seconds:.0f} s"
            case "memory":
                return "it passed the server's memory limit and was ended"
            case "output":
                return f"it printed more than {MOST_OUTPUT} bytes and was ended"
            case "cancelled":
                return "it was cancelled, and its processes were ended"
            case int() as status if status < 0:
                return f"its process was ended by signal {-status}"
        if isinstance(error := self.row.get("error"), str):
            return plain(error)[:MOST_WORDS]
        if diagnostics := [d for d in self.row.get("diagnostics", ()) if d["severity"] == "error"]:
            first = diagnostics[0]
            return f"{len(diagnostics)} errors; the first is {first['code']}: {first['message']}"[:MOST_WORDS]
        return "" if self.ended == 0 else plain(self.errors).strip()[-MOST_WORDS:]


def run_command(
    command: Command,
    limit_seconds: float,
    memory_bytes: int,
    cancel: Event,
    on_words: Callable[[str], None] = lambda _: None,
) -> CommandResult:
    """Runs `ucc` and returns how it ended, once nothing that it started is left. `on_words` is told each line of
    its standard error. Blocks; `cancel` ends it from another thread. Raises OSError where it cannot be started.
    """
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ucc-mcp-") as folder:
        for name, content in command.inputs.items():
            files.write(Path(folder) / name, content)
        process = _start(command, Path(folder))
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        output = _DrainedPipe(process.stdout, MOST_OUTPUT)
        errors = _DrainedPipe(process.stderr, MOST_ERRORS, on_words)
        writer = Thread(
            target=_write, args=(process.stdin, command.text.encode("utf-8", "surrogatepass")), daemon=True
        )
        try:
            writer.start()
            ended = _watch(process, output, started + limit_seconds, memory_bytes, cancel)
        finally:
            process.end()
        printed = output.finish()
    return CommandResult(
        ended, _json(printed), errors.finish().decode(errors="replace"), time.monotonic() - started
    )


def _start(command: Command, folder: Path) -> SupervisedProcess:
    paths = json.dumps([str(Path(path).absolute()) for path in sys.path])
    return SupervisedProcess(
        [sys.executable, "-I", "-c", _START, paths, *command.arguments],
        env=allowed_environment(also=command.keys),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        folder=folder,
    )


def _watch(
    process: SupervisedProcess, output: _DrainedPipe, deadline: float, memory_bytes: int, cancel: Event
) -> CommandEnd:
    while True:
        try:
            return process.wait(_POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if cancel.is_set():
                return "cancelled"
            if time.monotonic() >= deadline:
                return "time"
            if output.overflowed:
                return "output"
            if sum(member.resident for member in process.processes()) > memory_bytes:
                return "memory"


def _json(printed: bytes) -> Any:
    try:
        return json.loads(printed)
    except (ValueError, RecursionError):
        return None


def _write(pipe: IO[bytes], content: bytes) -> None:
    with suppress(OSError), pipe:
        pipe.write(content)


class _DrainedPipe:
    """Drains a pipe in the background: keeps its last `most` bytes, and says whether there were more."""

    def __init__(self, pipe: IO[bytes], most: int, on_words: Callable[[str], None] | None = None) -> None:
        self._pipe, self._most, self._on_words = pipe, most, on_words
        self._last = b""
        self._lock = Lock()
        self.overflowed = False
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while block := os.read(self._pipe.fileno(), 1 << 16):
                with self._lock:
                    self.overflowed |= len(self._last) + len(block) > self._most
                    self._last = (self._last + block)[-self._most :]
                if self._on_words is not None and (lines := block.strip().splitlines()):
                    self._on_words(lines[-1].decode(errors="replace"))

    def finish(self) -> bytes:
        """Returns what was read, once all writers have ended; one that cannot be killed is waited for no longer
        than a second."""
        self._thread.join(1.0)
        with self._lock:
            return self._last
