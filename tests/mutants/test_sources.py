"""Edits of emitted files: all fit what is emitted today, and those that the text or the object shows are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.lowering import EditStale, replaced
from tests.mutants.sources import ARCH, HONEST, SOURCE_BASES, WRONG, SourceEdit, edited, emitted
from ucutlass import frontend
from ucutlass.adopt.refusals import REFUSALS, SourceRefused
from ucutlass.adopt.source import checked
from ucutlass.agent import adoption
from ucutlass.agent.adoption import AdoptionJob, AdoptionSettings
from ucutlass.kernels.families import match
from ucutlass.shapes import complete

EDITS = (*WRONG, *HONEST)
BUILT = ("a static object", "a process", "queries and keys as f16", "an answer too large")
"""One for each check; `benchmarks.source_edits` has the others."""


@pytest.mark.parametrize("edit", EDITS, ids=lambda edit: edit.name)
def test_an_edit_fits_what_is_emitted_and_its_text_is_refused_where_it_shows(edit: SourceEdit) -> None:
    text = edited(edit)
    assert text != emitted(edit.base).text
    if edit.stage != "text":
        assert checked(text.encode()).code != emitted(edit.base).code
        return
    with pytest.raises(SourceRefused) as refused:
        checked(text.encode())
    assert (refused.value.code,) == edit.checks


def test_there_are_enough_of_them_for_every_family_and_check() -> None:
    names = [edit.name for edit in EDITS]
    assert len(WRONG) >= 40 and len(set(names)) == len(names)
    kernels = [frontend.kernel(frontend.read_text(base.text)) for base in SOURCE_BASES.values()]
    families = {type(match(kernel)).__name__ for kernel in kernels}
    assert len(families) >= 5, families
    assert {edit.base for edit in EDITS} <= set(SOURCE_BASES)
    codes = {code for edit in WRONG for code in edit.checks}
    elsewhere = {"size", "literal", "object", "untimed", "slower", "audit"}  # tests/adopt/
    assert codes == set(REFUSALS) - elsewhere


def test_an_edit_that_no_longer_fits_is_an_error() -> None:
    with pytest.raises(EditStale, match="write the edit anew"):
        replaced("int main();", WRONG[0].name, WRONG[0].edits)


@pytest.mark.nvcc
@pytest.mark.parametrize("edit", [e for e in WRONG if e.name in BUILT], ids=lambda edit: edit.name)
def test_what_the_object_shows_is_refused(
    edit: SourceEdit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path))
    text = frontend.read_text(SOURCE_BASES[edit.base].text)
    program = frontend.kernel(text)
    sizes = complete(program, SOURCE_BASES[edit.base].sizes)
    job = AdoptionJob(text, program, sizes, ARCH, None, checked(edited(edit).encode()))
    with pytest.raises(SourceRefused) as refused:
        adoption.build(job, AdoptionSettings(seed=1))
    assert refused.value.code in edit.checks
