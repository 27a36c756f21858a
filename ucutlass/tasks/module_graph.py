"""The graph of a PyTorch problem file, exported in a process of its own: the file's code runs there."""

from __future__ import annotations

from typing import Any


def graph(file: str) -> dict[str, Any]:
    """The graph as `ucutlass.runtime.module.graph.to_json` writes it.

    Raises what `ucutlass.runtime.module.export.graph_of` does.
    """
    from ucutlass.runtime.module.export import graph_of
    from ucutlass.runtime.module.graph import to_json
    from ucutlass.runtime.module.operators import counted_whole

    return to_json(graph_of(file, counted_whole))
