"""Builds in stages against plain ones: what is compared, and how rounds become a table."""

from __future__ import annotations

import pytest

from benchmarks.build_stages import EDITED, FIRST, STEPS, parts, table_of


def test_the_edit_is_of_the_epilogue_alone() -> None:
    (source, staged), (edited, edited_staged) = parts(FIRST), parts(EDITED)
    assert staged.skeleton == edited_staged.skeleton
    assert source.entry != edited.entry and staged.arithmetic != edited_staged.arithmetic


def test_ratios_are_of_one_rounds_builds() -> None:
    """The machine is four times as slow in the second round, and the ratios stay."""
    walls = {"plain": 20.0, "new": 10.0, "epilogue": 2.0}
    rounds = [{n: {"wall": w * slow, "cpu": w} for n, w in walls.items()} for slow in (1.0, 4.0, 1.0)]
    rows = {line.split()[0]: line.split() for line in table_of(rounds).splitlines()[1:]}
    assert tuple(rows) == STEPS
    for name, wall in walls.items():
        assert float(rows[name][-1]) == pytest.approx(wall / walls["plain"])
        assert float(rows[name][3]) == pytest.approx(4.0 * wall)
