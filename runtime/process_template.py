"""Gives processes that begin with their imports done: forks of one process that imported and did nothing else.

An import of torch takes two seconds of a core, a fork some milliseconds. Each fork has a supervisor, which is a
fork too (`ucutlass.runtime.supervised_process`), so that nothing of it survives its end. The template never
initialises CUDA, which no fork could use then, and is sent nothing but what is to be forked.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from ucutlass.runtime.environment_allowlist import allowed_environment
from ucutlass.runtime.supervised_process import SupervisedProcess, Supervisor

_CHILD = Path(__file__).with_name("process_template_child.py")
_ANSWER_SECONDS = 60.0
"""What the template may take until it has forked, its first imports included."""


class TemplateLost(Exception):
    """Raised where the template does not fork: it was ended, or what it imports holds it up."""


class ProcessTemplate:
    """Is a process that imports `first`, then forks whenever it is asked, and imports `later` meanwhile. A function of a
    module, `module:function`, is called too. Safe to use from many threads. It ends with `close`, and with this process."""

    def __init__(
        self, first: Sequence[str], later: Sequence[str] = (), environ: Mapping[str, str] | None = None
    ) -> None:
        self._lock = Lock()
        self._socket, theirs = socket.socketpair()
        with theirs:
            self._process = SupervisedProcess(
                [sys.executable, "-I", str(_CHILD), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=allowed_environment(environ),
            )
        path = [str(Path(p).absolute()) for p in sys.path]
        self._send({"path": path, "first": list(first), "later": list(later)}, [])

    def fork(self, pipes: Sequence[int], output: int, control: int, env: Mapping[str, str]) -> Supervisor:
        """Returns the supervisor of a fork that serves calls on `pipes`, results and requests
        (`isolation_child`), writes what it prints to `output`, and is told of by `control`. Raises TemplateLost."""
        with self._lock:
            try:
                self._send({"env": dict(env)}, [*pipes, output, control])
                if not select.select([self._socket], [], [], _ANSWER_SECONDS)[0]:
                    raise TemplateLost(f"it did not fork within {_ANSWER_SECONDS:g} s")
                number = int(self._socket.recv(64))
                if not number:
                    raise TemplateLost("it uses the GPU, and no fork of it could")
                return ForkedSupervisor(number)
            except (OSError, ValueError) as problem:
                raise TemplateLost(str(problem)) from problem

    def _send(self, message: Mapping[str, object], descriptors: Sequence[int]) -> None:
        block = json.dumps(message).encode()
        socket.send_fds(self._socket, [len(block).to_bytes(4, "little")], descriptors)
        self._socket.sendall(block)

    def close(self) -> None:
        """Ends the template, and what it forked."""
        with self._lock:
            self._process.end()
            self._socket.close()


class ForkedSupervisor:
    """Is a supervisor that the template forked, as `subprocess.Popen` is one that was started: `pid`, `wait`,
    `kill`. Raises ProcessLookupError where it has ended already."""

    args = "a fork of the template"

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.stdin = self.stdout = self.stderr = None
        self._descriptor: int | None = os.pidfd_open(pid)

    def wait(self, timeout: float | None = None) -> int:
        """Waits until it has ended, and returns 0. Raises subprocess.TimeoutExpired."""
        if self._descriptor is not None:
            poll = select.poll()
            poll.register(self._descriptor, select.POLLIN)
            if not poll.poll(None if timeout is None else 1000 * timeout):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            os.close(self._descriptor)
            self._descriptor = None
        return 0

    def kill(self) -> None:
        if self._descriptor is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)
