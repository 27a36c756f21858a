"""Compiles a graph of TorchDynamo by TorchInductor, for its cache on disk, beside the process that uses it.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`.
"""

from __future__ import annotations

import base64
import os

NICENESS = 10
"""The caller's own work goes first."""


def compile_graph(graph: str) -> dict[str, int]:
    """Compiles a graph that `ucutlass.dynamo.fallback_process.portable` wrote, in base64. Returns how often
    TorchInductor's cache had it and had it not."""
    os.nice(NICENESS)
    from torch._dynamo.utils import counters

    from ucutlass.dynamo.fallback_process import compile_portable

    compile_portable(base64.b64decode(graph))
    counts = counters["inductor"]
    return {name: int(counts[name]) for name in ("fxgraph_cache_hit", "fxgraph_cache_miss")}
