"""This module writes the files that C++ needs to call a built kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ucutlass import files
from ucutlass.backend import Built
from ucutlass.cli.outputs import write_all
from ucutlass.header import Signature
from ucutlass.interface import c_header


@dataclass(frozen=True, slots=True)
class Export:
    """Collects what `ucc build -o` writes into a folder: all of it, or nothing."""

    folder: Path
    contents: dict[Path, files.Content] = field(default_factory=dict)

    def add(self, names: Signature, serving: Sequence[Built]) -> dict[str, Path]:
        """Returns the files of one entry, which serves the shapes of all of these."""
        first, *others = serving
        entry = first.source.entry
        written = {
            "library": self.folder / f"lib{entry}.so",
            "header": self.folder / f"{entry}.h",
            "source": self.folder / f"{entry}.cu",
        }
        also = [other.planned for other in others]
        self.contents[written["library"]] = first.artifact.library
        self.contents[written["header"]] = c_header(names, first.planned, first.source, also)
        self.contents[written["source"]] = first.source.text
        return written

    def write(self) -> None:
        """Raises OSError, OutputIsInput."""
        if self.contents:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_all(self.contents)
