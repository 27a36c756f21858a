"""Importing is the inverse of meaning: a drawn module and its program compute the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from tests.importer.drawn_modules import DrawnModule, draw
from tests.importer.float64_check import difference
from ucutlass.importer.graph import Unsupported


def _agrees(data: st.DataObject, most: int) -> None:
    def pick(options: Any) -> Any:
        return data.draw(st.sampled_from(list(options)))

    plan, state = draw(pick, data.draw(st.integers(1, most)))
    if not plan.steps:
        return
    try:
        program, words = difference(DrawnModule(plan, state), *plan.inputs)
    except Unsupported as refused:
        event(f"refused: {refused.why}")
        return
    assert not words, f"{words}\n{plan}\n{program.text}"


@given(st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
def test_a_drawn_module_is_imported_right(data: st.DataObject) -> None:
    _agrees(data, 3)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_drawn_modules_are_imported_right(data: st.DataObject) -> None:
    _agrees(data, 8)
