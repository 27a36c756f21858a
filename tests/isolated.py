"""Calls in processes of their own, as `isolation.run`'s, that need not import torch each: they are forked.

A process that has imported the function's module forks for each call. What a call does to its process, such
as an emulated kernel that writes where it must not, ends with the call.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from queue import Empty, LifoQueue
from typing import IO, Any, NoReturn

import torch

from ucutlass.runtime.environment_allowlist import allowed_environment
from ucutlass.runtime.isolation import CallOutcome, Crashed, Exited, Raised, Returned, WarmProcess

_OUTPUT_BYTES = 1 << 16


def run(
    target: str,
    arguments: Mapping[str, Any],
    *,
    limit_seconds: float,
    memory_bytes: int | None = None,
    environ: Mapping[str, str] | None = None,
) -> CallOutcome:
    """As `isolation.run`; the memory is of the call and the process that forks together."""
    call = {"target": target, "arguments": dict(arguments)}
    place = {"path": sys.path, "environ": allowed_environment(environ)}
    with _process() as process:
        outcome = process.call(
            "tests.isolated:forked", call | place, limit_seconds=limit_seconds, memory_bytes=memory_bytes
        )
    match outcome:
        case Returned(value={"status": 0, "answer": {"returned": value}, "output": output}):
            return Returned(value, output)
        case Returned(value={"status": 0, "answer": {"raised": [kind, words, trace]}, "output": output}):
            return Raised(kind, words, trace, output)
        case Returned(value={"status": status, "output": output}) if status < 0:
            return Crashed(signal.Signals(-status).name, output)
        case Returned(value={"status": status, "output": output}):
            return Exited(status, output)
        case _:
            return outcome


@cache
def _idle() -> LifoQueue[WarmProcess]:
    return LifoQueue()


@contextmanager
def _process() -> Iterator[WarmProcess]:
    """A process that no other thread uses meanwhile."""
    try:
        process = _idle().get_nowait()
    except Empty:
        process = WarmProcess()
    yield process
    _idle().put(process)


def close() -> None:
    """Ends the processes that fork."""
    while not _idle().empty():
        _idle().get().close()


def forked(
    target: str, arguments: Mapping[str, Any], path: list[str], environ: dict[str, str]
) -> dict[str, Any]:
    """Forks for one call and says how it ended; for `run`, in the process that forks."""
    sys.path[:] = path
    module, _, name = target.partition(":")
    function = getattr(importlib.import_module(module), name)
    gc.collect()
    gc.freeze()  # what a collection touches would have to be copied for each fork
    read_end, write_end = os.pipe()
    _flush()
    with tempfile.TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.close(read_end)
            os.environ.clear()
            os.environ.update(environ)
            _call(function, arguments, write_end, output)
        os.close(write_end)
        with os.fdopen(read_end, "rb") as pipe:
            answer = pipe.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(max(0, output.seek(0, os.SEEK_END) - _OUTPUT_BYTES))
        words = output.read().decode(errors="replace")
    return {"status": status, "answer": json.loads(answer or "null"), "output": words}


def _call(function: Any, arguments: Mapping[str, Any], write_end: int, output: IO[bytes]) -> NoReturn:
    for stream in (1, 2):
        os.dup2(output.fileno(), stream)
    torch.set_num_threads(1)  # threads of OpenMP do not survive a fork
    try:
        answer: dict[str, Any] = {"returned": function(**arguments)}
    except Exception as error:
        answer = {"raised": [type(error).__qualname__, str(error), traceback.format_exc()]}
    except SystemExit as end:
        _flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc()
        _flush()
        os._exit(1)
    with os.fdopen(write_end, "w") as pipe:
        json.dump(answer, pipe)
    _flush()
    os._exit(0)


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
