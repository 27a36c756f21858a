"""Each seeded bug of a lowering is caught by the judge, and honest kernels are not."""

from __future__ import annotations

import shutil

import pytest

from tests.mutants.emulated import prepared, run
from tests.mutants.hopper import HOPPER
from tests.mutants.lowering import BASES, LOWERINGS, EditStale, Lowering, mutated

needs_gcc = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")
SLOW = [m for m in LOWERINGS if not m.quick]
QUICK = [m for m in LOWERINGS if m.quick]


@needs_gcc
@pytest.mark.parametrize("mutant", QUICK, ids=[m.name for m in QUICK])
def test_a_mutant_is_killed(mutant: Lowering) -> None:
    assert run(mutant.name).killed


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("mutant", SLOW, ids=[m.name for m in SLOW])
def test_another_mutant_is_killed(mutant: Lowering) -> None:
    assert run(mutant.name).killed


@needs_gcc
@pytest.mark.parametrize("base", sorted({m.base for m in QUICK}))
def test_an_honest_kernel_is_not(base: str) -> None:
    row = run(base)
    assert not row.killed, row.detail


@needs_gcc
@pytest.mark.slow
@pytest.mark.parametrize("base", sorted({m.base for m in SLOW} - {m.base for m in QUICK}))
def test_another_honest_kernel_is_not(base: str) -> None:
    row = run(base)
    assert not row.killed, row.detail


def test_every_row_that_only_our_own_bug_can_open_has_a_mutant() -> None:
    """Rows B of the catalogue; 33 and 48 are the timing's, 64 the emitter's."""
    assert {6, 10, 11, 12, 17, 18, 23, 25, 26, 27, 32} <= {row for m in LOWERINGS for row in m.patterns}


@pytest.mark.parametrize("mutant", [*LOWERINGS, *HOPPER], ids=lambda m: m.name)
def test_every_edit_fits_the_source_that_is_emitted_today(mutant: Lowering) -> None:
    bad, good = prepared(mutant.name).source, prepared(mutant.base).source
    assert bad.code != good.code and bad.entry == good.entry


def test_names_tell_mutants_apart() -> None:
    names = [m.name for m in (*LOWERINGS, *HOPPER)]
    assert len(set(names)) == len(names) and not set(names) & set(BASES)


def test_an_edit_that_no_longer_fits_is_an_error() -> None:
    with pytest.raises(EditStale, match="write the edit anew"):
        mutated("int main();", LOWERINGS[0])
