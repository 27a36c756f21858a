"""The kernels whose cold builds are timed."""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.family_builds import PROGRAMS, table
from tests.emit.divided_kernels import planned
from ucutlass.kernels.families import NAMES

KERNELS = Path(__file__).parents[2] / "ucutlass" / "kernels"


def test_every_schedule_has_a_kernel() -> None:
    """A template that no program takes would be built in whatever time."""
    texts = [(KERNELS / name / "plan.py").read_text(encoding="utf-8") for name in NAMES]
    schedules = {name for text in texts for name in re.findall(r"^class (\w+Schedule)\b", text, re.MULTILINE)}
    assert {type(planned(text)[1].schedule).__name__ for text in PROGRAMS.values()} == schedules


def test_a_table_has_the_median_and_the_most_of_each_path() -> None:
    rows = [
        {"kernel": "softmax", "path": path, "builder": path, "wall": wall, "cpu": 2 * wall}
        for path, walls in (("auto", (1.0, 3.0, 2.0)), ("nvcc", (4.0,)))
        for wall in walls
    ]
    lines = [line.split() for line in table(rows).splitlines()[1:]]
    assert lines == [
        ["softmax", "auto", "auto", "2.00", "3.00", "4.00"],
        ["softmax", "nvcc", "nvcc", "4.00", "4.00", "8.00"],
    ]
