"""What the tests ask of problem files."""

from __future__ import annotations

from pathlib import Path

from ucutlass.runtime.module.export import graph_of
from ucutlass.runtime.module.graph import Graph
from ucutlass.runtime.module.operators import whole
from ucutlass.runtime.module.work import LanePolicy, ModuleWork, count


def exported(folder: Path, text: str) -> Graph:
    """The graph of a file of our own: exported right here, for speed."""
    file = folder / "problem.py"
    file.write_text(text)
    return graph_of(str(file), whole)


def worked(folder: Path, text: str, policy: LanePolicy = "pytorch") -> ModuleWork:
    return count(exported(folder, text), policy)
