"""Calls an entry under the driver of `fake_cuda.c`; in a process of its own, whose loader finds that one.

Standard input: {"library", "entry", "params", "calls"}; standard output: for each call the code, and what
the driver was asked.
"""

from __future__ import annotations

import ctypes
import json
import sys
import threading
from typing import Any


def array(kind: Any, values: list[Any] | None) -> Any:
    return None if values is None else (kind * max(1, len(values)))(*values)


def call(entry: Any, fake: ctypes.CDLL | None, one: dict[str, Any]) -> dict[str, Any]:
    if fake is not None:
        fake.fake_fail(*(part.encode() if isinstance(part, str) else part for part in one["fail"]))
        fake.fake_device(one["device"])
        fake.fake_context(one["context"])
        fake.fake_forget()
    codes: list[int] = []
    size = ctypes.c_uint64(2**63)
    given = [
        array(ctypes.c_void_p, one["tensors"]),
        array(ctypes.c_int64, one["extents"]),
        array(ctypes.c_double, one["scalars"]),
        array(ctypes.c_int64, one["launch_parameters"]),
    ]

    def launch(context: int) -> None:
        if fake is not None:
            fake.fake_context(context)
        for _ in range(one["times"]):
            asks = ctypes.byref(size) if one["asks"] else None
            workspace, stream = (ctypes.c_void_p(one[name]) for name in ("workspace", "stream"))
            codes.append(entry(*given, workspace, asks, stream))

    if one["threads"]:
        crew = [threading.Thread(target=launch, args=(i % 2,)) for i in range(one["threads"])]
        for member in crew:
            member.start()
        for member in crew:
            member.join()
    else:
        launch(one["context"])
    said = "" if fake is None else fake.fake_said().decode()
    return {"codes": codes, "workspace": size.value, "said": [json.loads(line) for line in said.splitlines()]}


def main() -> None:
    job = json.load(sys.stdin)
    fake = ctypes.CDLL("libcuda.so.1", mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(job["library"])
    entry = getattr(library, job["entry"])
    entry.restype = ctypes.c_int32
    if not job["bare"]:  # a driver that has the test's own functions
        fake.fake_said.restype = ctypes.c_char_p
        fake.fake_params.argtypes = [ctypes.c_size_t]
        fake.fake_params(library.probe_size())
    places = {name: getattr(library, f"probe_{i}")() for i, name in enumerate(job["places"])}
    results = [call(entry, None if job["bare"] else fake, one) for one in job["calls"]]
    json.dump({"places": places, "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
