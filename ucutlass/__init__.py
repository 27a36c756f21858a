"""uCUTLASS: a compact kernel language compiled to CUTLASS C++."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

_HERE = Path(__file__).parent
if not (_HERE / "grammar").is_dir() and (_HERE.parent / "grammar").is_dir():
    # A checkout whose symbolic links were lost: the packages lie next to this folder.
    __path__.append(str(_HERE.parent))

if TYPE_CHECKING:
    from ucutlass import ops
    from ucutlass.api import LoadedKernel, LoadedPipeline, load, loads
    from ucutlass.dynamo.explain import explain
    from ucutlass.importer.program import from_torch
    from ucutlass.reference.packing import pack_s4, unpack_s4
    from ucutlass.tune.api import tune, tune_shapes

__all__ = [
    "LoadedKernel",
    "LoadedPipeline",
    "explain",
    "from_torch",
    "load",
    "loads",
    "ops",
    "pack_s4",
    "tune",
    "tune_shapes",
    "unpack_s4",
]


def __getattr__(name: str) -> Any:
    """Imports the public names on first use, so that `ucc check` starts without torch."""
    if name == "tune":
        # The package of that name, which can be called: importing any module of it puts it here as well.
        return import_module("ucutlass.tune")
    if name == "ops":
        return import_module("ucutlass.ops")
    if name == "tune_shapes":
        from ucutlass.tune.api import tune_shapes

        return tune_shapes
    if name == "explain":
        return import_module("ucutlass.dynamo.explain").explain
    if name == "from_torch":
        return import_module("ucutlass.importer.program").from_torch
    if name in ("pack_s4", "unpack_s4"):
        return getattr(import_module("ucutlass.reference.packing"), name)
    if name in __all__:
        from ucutlass import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
