"""Imports, and forks whenever it is asked, for `ucutlass.runtime.process_template`, which starts it by path.

A message is four bytes of length, with the descriptors, then JSON. The first one says what to import. Each further
one is answered with the process number of a supervisor, whose child is a fork of this process that serves calls, or
with 0 where there is none.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
from contextlib import suppress
from typing import Any

_DESCRIPTORS = 4


def main() -> None:
    caller = socket.socket(fileno=int(sys.argv[1]))
    caller.set_inheritable(False)
    settings, _ = _message(caller)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    sys.path[:] = settings["path"]
    for module in settings["first"]:
        _prepare(module)
    later = list(settings["later"])
    gc.freeze()  # what is there is shared with all forks
    while True:
        wait = None if not later else 0.0
        if select.select([caller], [], [], wait)[0]:
            message, descriptors = _message(caller)
            if not descriptors:
                return
            # What was forked before goes on, so that this does not end.
            number = 0 if _uses_gpu() else _forked(message, descriptors)
            caller.sendall(str(number).encode())
            for descriptor in descriptors:
                os.close(descriptor)
        elif later:
            _prepare(later.pop(0))
            gc.freeze()
        _reap()


def _prepare(name: str) -> None:
    """Imports a module, and calls a function of it for `module:function`."""
    # What cannot be done is said by the call that needs it.
    with suppress(Exception):
        module, _, function = name.partition(":")
        imported = importlib.import_module(module)
        if function:
            getattr(imported, function)()


def _uses_gpu() -> bool:
    """Returns whether this process initialised CUDA: then no fork of it could."""
    # pathlib would raise for a descriptor that is closed meanwhile.
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("/dev/nvidia"):  # noqa: PTH115
                return True
    return False


def _message(caller: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Returns a message and its descriptors; none where the caller has ended."""
    head, descriptors, _, _ = socket.recv_fds(caller, 4, _DESCRIPTORS)
    size = int.from_bytes(head, "little")
    block = b""
    while len(block) < size:
        part = caller.recv(size - len(block))
        if not part:
            return {}, []
        block += part
    return (json.loads(block) if block else {}), list(descriptors)


def _forked(message: dict[str, Any], descriptors: list[int]) -> int:
    """Returns the number of a fork that supervises another one."""
    pid = os.fork()
    if pid:
        return pid
    try:
        results, requests, output, control = descriptors
        os.setsid()
        from ucutlass.runtime import supervisor

        def serve() -> None:
            from ucutlass.runtime import isolation_child

            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGPIPE, signal.SIG_IGN)
            os.environ.clear()
            os.environ.update(message["env"])
            null = os.open(os.devnull, os.O_RDONLY)
            for standard, descriptor in enumerate((null, output, output)):
                os.dup2(descriptor, standard)
            supervisor.close_but({0, 1, 2, results, requests})
            isolation_child.serve(requests, results)

        supervisor.supervise(control, lambda: supervisor.forked(serve))
    finally:
        os._exit(0)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
