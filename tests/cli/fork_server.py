"""Runs `ucc` again and again without importing it again: a process that has imported everything forks.

It reads one JSON object a line (`Asked`) and answers with the exit status as a line. Imports are of a test's
own process, so streams, environment and signals are the command's own.
"""

from __future__ import annotations

import gc
import importlib
import io
import json
import os
import signal
import sys
import traceback
from typing import Any, NoReturn

HANDLED = "handled"
INVOKED = "invoked"
"""When a signal comes: as soon as it is handled, or when the command begins its work."""


def main() -> None:
    import torch

    assert torch
    from ucutlass import cli, entry

    for name in cli.COMMANDS:
        importlib.import_module(f"ucutlass.cli.{cli._MODULES.get(name, name)}")
    gc.freeze()  # what a collection touches would have to be copied for each fork
    gc.disable()
    for line in sys.stdin:
        document = json.loads(line)
        child = os.fork()
        if child == 0:
            os.setsid()
            signal.alarm(300)
            _settle(document)
            _signal(document, cli, entry)
            _end(entry)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _end(entry: Any) -> NoReturn:
    """Without taking the interpreter down, which costs most of a short command's time."""
    try:
        entry.main()
    except SystemExit as ended:
        os._exit(ended.code if isinstance(ended.code, int) else 0)
    except BaseException:
        traceback.print_exc()
        os._exit(99)


def _settle(asked: dict[str, Any]) -> None:
    os.environ.clear()
    os.environ.update(asked["environ"])
    os.chdir(asked["folder"])
    streams = ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w"))
    # What is closed is closed last: its number would be taken.
    for number, name, mode in sorted(streams, key=lambda one: asked[one[1]] is None):
        match asked[name]:
            case None:
                os.close(number)
                setattr(sys, name, None)
                continue
            case "closed pipe":
                read_end, opened = os.pipe()
                os.close(read_end)
            case path:
                flags = os.O_RDONLY if mode == "r" else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        setattr(sys, name, io.TextIOWrapper(open(number, f"{mode}b", closefd=False), encoding="utf-8"))  # noqa: SIM115
    sys.argv = ["ucc", *asked["arguments"]]


def _signal(asked: dict[str, Any], cli: Any, entry: Any) -> None:
    """Sends the signal at its time, whose default action holds until then."""
    if (number := asked["signal"]) is None:
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if asked["when"] == HANDLED:
        before = entry._open_streams
        entry._open_streams = lambda: (os.kill(os.getpid(), number), before())
    else:
        invoke = cli.main.invoke
        cli.main.invoke = lambda ctx: (os.kill(os.getpid(), number), invoke(ctx))


if __name__ == "__main__":
    main()
