"""The other side of `isolate.run`: started by path, reads a request, calls, writes the result.

Imports only the standard library until the caller's sys.path is in place.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import json
import os
import resource
import signal
import sys
import traceback
from typing import Any

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h: the signal sent to this process when its parent dies."""


def main() -> None:
    result = int(sys.argv[1])
    os.set_inheritable(result, False)
    request = json.load(sys.stdin)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != request["parent"]:
        sys.exit(1)  # the parent died before it could be watched
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    sys.path[:] = request["path"]
    message = _call(request)
    with os.fdopen(result, "w") as pipe:
        pipe.write(message)
    sys.stdout.flush()
    sys.stderr.flush()
    # Destructors of CUDA libraries may hang or fault, and the result is already out.
    os._exit(0)


def _call(request: dict[str, Any]) -> str:
    try:
        function = getattr(importlib.import_module(request["module"]), request["function"])
        return json.dumps({"returned": function(**request["arguments"])})
    except Exception as error:
        raised = {
            "type": type(error).__qualname__,
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
        return json.dumps({"raised": raised})


if __name__ == "__main__":
    main()
