"""What may happen in the process that `ucc run` puts a kernel into; stands for `ucutlass.tasks.run`."""

from __future__ import annotations

import os
import signal
import time
from typing import Any


def crash(**_: Any) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def hang(**_: Any) -> None:
    time.sleep(600)


def leave(**_: Any) -> None:
    os._exit(7)


def fail(**_: Any) -> None:
    raise RuntimeError("an illegal memory access was encountered")


def talk(**_: Any) -> dict[str, Any]:
    print("noise", "{}", flush=True)
    return right()


def right(**_: Any) -> dict[str, Any]:
    return _answer(True, 12.5)


def wrong(**_: Any) -> dict[str, Any]:
    return _answer(False, None)


def undecided(**_: Any) -> dict[str, Any]:
    """A pipeline whose bounds say nothing."""
    words = "stage h = layer: .. says nothing"
    stage = {"name": "h = layer", "state": "undecided", "torch": False, "words": words}
    proof = "undecided: 1 of 2 stages are right on what they were given"
    more = {"state": "undecided", "judged_stages": [stage], "proof": proof, "problems": []}
    return _answer(False, None) | more


def _answer(ok: bool, microseconds: float | None) -> dict[str, Any]:
    words = "result: largest error 0.25 of the bound" if ok else "result: 3 of 64 elements beyond the bound"
    return {
        "device": "NVIDIA H200",
        "ok": ok,
        "state": "right" if ok else "wrong",
        "proof": "",
        "judged_stages": [],
        "comparisons": [{"name": "", "words": words}],
        "problems": [] if ok else ["memory beyond the result was written"],
        "microseconds": microseconds,
        "spread": None if microseconds is None else 0.01,
    }
