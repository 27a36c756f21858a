"""Schedules that were kept as JSON are read in one place, and nothing else is read there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.ir.schedule import FIELDS, PartialSchedule, ScheduleField, partial_schedule_of_json


def _values(field: ScheduleField) -> st.SearchStrategy[Any]:
    words = [st.sampled_from(field.words)] if field.words else []
    numbers = [st.integers(*field.numbers)] if field.numbers else []
    shapes = [st.tuples(*[st.integers(1, 4096)] * field.rank)] if field.rank else []
    return st.one_of(*words, *numbers, *shapes)


@given(st.fixed_dictionaries({}, optional={name: _values(field) for name, field in FIELDS.items()}))
def test_every_request_is_read_as_it_was_kept(fixed: dict[str, Any]) -> None:
    request = PartialSchedule(**fixed)
    assert partial_schedule_of_json(json.loads(json.dumps(request.fixed()))) == request


def test_null_is_a_field_left_out() -> None:
    assert partial_schedule_of_json({"stages": 3, "warp_tile": None}) == PartialSchedule(stages=3)


@pytest.mark.parametrize(
    "kept",
    [
        None,
        [["stages", 3]],
        {"stage": 3},
        {"stage": None},
        {"stages": "auto"},
        {"stages": 1},
        {"stages": True},
        {"stages": 3.0},
        {"tile": [128, 128]},
        {"tile": [128, 128, True]},
        {"warps": "both"},
        {"warps": {"a": 1}},
    ],
)
def test_what_is_no_request_is_refused(kept: object) -> None:
    with pytest.raises(ValueError, match="the schedule "):
        partial_schedule_of_json(kept)
