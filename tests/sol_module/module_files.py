"""What the tests ask of problem files."""

from __future__ import annotations

from pathlib import Path

from ucutlass.runtime.module.export import graph_of
from ucutlass.runtime.module.graph import ModuleGraph
from ucutlass.runtime.module.operators import counted_whole
from ucutlass.runtime.module.work import ComputePolicy, ModuleWork, count


def exported(folder: Path, text: str) -> ModuleGraph:
    """The graph of a file of our own: exported right here, for speed."""
    file = folder / "problem.py"
    file.write_text(text)
    return graph_of(str(file), counted_whole)


def worked(folder: Path, text: str, policy: ComputePolicy = "pytorch") -> ModuleWork:
    return count(exported(folder, text), policy)
