"""Exports the graph of a PyTorch problem file. The file's code runs here."""

from __future__ import annotations

from typing import Any


def graph(file: str) -> dict[str, Any]:
    """Returns the graph as `ucutlass.runtime.module.graph.to_json` writes it.

    Raises what `ucutlass.runtime.module.export.graph_of` does.
    """
    from ucutlass.runtime.module.export import graph_of
    from ucutlass.runtime.module.graph import to_json
    from ucutlass.runtime.module.operators import counted_whole

    return to_json(graph_of(file, counted_whole))
