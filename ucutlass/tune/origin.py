"""This module says where a kernel's schedule comes from. Apart from the database, which a plain load need not
import."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ucutlass import ir
from ucutlass.frontend import matching
from ucutlass.units import duration

if TYPE_CHECKING:
    from ucutlass.tune.database import TunedRow


@dataclass(frozen=True, slots=True)
class Origin:
    """Names the source of a schedule: the tuning database (`row`), a schedule that the program writes, or the
    planner alone; or of a kernel, where a source was adopted for it. `note` says which source that is, or why a
    recorded schedule was passed over, "" where none was."""

    kind: Literal["tuned", "program", "planner", "adopted"]
    row: TunedRow | None = None
    note: str = ""

    def __str__(self) -> str:
        if self.row is not None:
            r = self.row
            return f"tuned: {duration(r.microseconds * 1e-6)}, {r.created[:10]}, record {r.record[:16]}"
        words = {
            "program": "the program's schedule",
            "planner": "the planner",
            "adopted": "an adopted source",
        }[self.kind]
        return f"{words}; {self.note}" if self.note else words


def written(program: ir.Kernel, sizes: Sequence[int], arch: str) -> Origin:
    """Returns where the schedule comes from if nothing is recorded; `sizes` in the order of
    `program.dims`."""
    return Origin("program" if matching(program, sizes, arch) else "planner")
