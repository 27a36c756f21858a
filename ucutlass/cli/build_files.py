"""The files that C++ needs to call a built kernel."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ucutlass import ir
from ucutlass.backend import Built
from ucutlass.interface import c_header


def export(folder: Path, program: ir.Kernel, serving: Sequence[Built]) -> dict[str, Path]:
    """The files of one entry, which serves the shapes of all of these."""
    folder.mkdir(parents=True, exist_ok=True)
    first, *others = serving
    entry = first.source.entry
    files = {
        "library": folder / f"lib{entry}.so",
        "header": folder / f"{entry}.h",
        "source": folder / f"{entry}.cu",
    }
    shutil.copyfile(first.artifact.library, files["library"])
    also = [other.planned for other in others]
    files["header"].write_text(c_header(program, first.planned, first.source, also))
    files["source"].write_text(first.source.text)
    return files
