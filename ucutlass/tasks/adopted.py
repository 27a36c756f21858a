"""Asks a library that was made of an adopted source how much workspace it needs: the first time that its code
runs, so in a process of its own."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any


def workspace(
    library: str, entry: str, extents: list[int], pointers: int, scalars: int, launch: list[int]
) -> dict[str, Any]:
    """Returns the entry's `code`, and the `bytes` that it wrote, None where it wrote none. Raises what
    `load_entry` raises."""
    from ucutlass.runtime.library import load_entry

    unwritten = 2**64 - 1
    size = ctypes.c_uint64(unwritten)
    loaded = load_entry(Path(library), entry)
    function = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7)(loaded.address)
    code = function(
        (ctypes.c_void_p * max(1, pointers))(),
        (ctypes.c_int64 * max(1, len(extents)))(*extents),
        (ctypes.c_double * max(1, scalars))(),
        (ctypes.c_int64 * max(1, len(launch)))(*launch),
        None,
        ctypes.byref(size),
        None,
    )
    return {"code": code, "bytes": None if size.value == unwritten else size.value}
