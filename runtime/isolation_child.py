"""Serves the calls of `isolation.run` and `isolation.WarmProcess` in the process that they start by path.

Imports only the standard library until the caller's sys.path is in place.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import resource
import sys
import time
import traceback
from contextlib import suppress
from typing import Any

_MOST_CHARACTERS = 1 << 16
"""Characters of an exception's message, and of its traceback, that cross."""


def main() -> None:
    result = int(sys.argv[1])
    os.set_inheritable(result, False)
    if len(sys.argv) == 2:
        request = json.load(sys.stdin)
        _settle(request)
        message = _call(request)
        with os.fdopen(result, "w", encoding="utf-8") as pipe:
            pipe.write(message)
        _flush()
    else:
        serve(int(sys.argv[2]), result)
    # Destructors of CUDA libraries may hang or fault, and the result is already out.
    os._exit(0)


def serve(requests: int, result: int) -> None:
    """One line a call in, one out, until no more come; the first line is for `_settle` alone."""
    os.set_inheritable(requests, False)
    with (
        os.fdopen(requests, encoding="utf-8") as request_lines,
        os.fdopen(result, "w", encoding="utf-8") as pipe,
    ):
        settings = json.loads(request_lines.readline())
        _settle(settings)
        for module in settings["preload"]:
            # What cannot be imported is said by the call that needs it.
            with suppress(Exception):
                importlib.import_module(module)
        for line in request_lines:
            request = json.loads(line)
            message = _call(request)
            _flush()
            pipe.write(f"[{int(request['call'])}, {message}]\n")
            pipe.flush()
    # As in `main`.
    os._exit(0)


def _settle(request: dict[str, Any]) -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    sys.path[:] = request["path"]


def _flush() -> None:
    sys.stdout.flush()
    sys.stderr.flush()


def _call(request: dict[str, Any]) -> str:
    start = time.perf_counter()
    from ucutlass import spans  # the caller's, by its sys.path

    with spans.recording(_device_idle) as record:
        try:
            with record.span("process starts"):
                function = getattr(importlib.import_module(request["module"]), request["function"])
            answer = json.dumps({"returned": function(**request["arguments"])})
        except Exception as error:
            raised = {
                "type": type(error).__qualname__,
                "message": _cut(_error_text(error)),
                "traceback": _cut(traceback.format_exc()),
            }
            answer = json.dumps({"raised": raised})
    measured = {"spans": record.seconds, "seconds": time.perf_counter() - start}
    return f"{answer[:-1]}, {json.dumps(measured)[1:]}"


def _device_idle() -> None:
    """Waits for the GPU where this process uses one; an error of the device is for its next use to raise."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        with suppress(RuntimeError):
            torch.cuda.synchronize()


def _error_text(error: Exception) -> str:
    try:
        return str(error)
    except Exception as another:  # an exception of others may fail at its own words
        return f"no words: its __str__ raised {type(another).__qualname__}"


def _cut(text: str) -> str:
    left = len(text) - _MOST_CHARACTERS
    return text if left <= 0 else f"{text[:_MOST_CHARACTERS]} … {left} more characters"


if __name__ == "__main__":
    main()
