"""Ceilings to JSON and back, and every way in which a text is none."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.sol.ceilings import Ceilings, CeilingsError, from_json, to_json

rates = st.floats(1e-9, 1e18, allow_nan=False)
ceilings = st.builds(
    Ceilings,
    st.text(),
    st.text(),
    st.dictionaries(st.sampled_from(["f16", "tf32"]), rates),
    rates,
    rates,
    st.none() | rates,
    rates,
    rates,
    st.text(),
    st.text(),
)

GOOD = {
    "device": "NVIDIA H200",
    "uuid": "GPU-0",
    "flops": {"bf16": 7e14},
    "copy": 4.2e12,
    "read": 4.4e12,
    "l2": None,
    "launch_floor": 2e-6,
    "clock": 1.7e9,
}


@given(ceilings)
def test_json_keeps_everything(made: Ceilings) -> None:
    assert from_json(to_json(made)) == made


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"copy": 0}, "copy"),
        ({"copy": -1.0}, "not positive"),
        ({"read": float("nan")}, "read"),
        ({"launch_floor": "fast"}, "launch_floor"),
        ({"clock": True}, "clock"),
        ({"flops": {"bf16": None}}, "flops[bf16]"),
        ({"flops": [1]}, "an object"),
        ({"uuid": 7}, "are texts"),
        ({"tensor": 1}, "'tensor', unknown"),
    ],
)
def test_what_is_no_measurement_is_named(change: dict[str, object], words: str) -> None:
    with pytest.raises(CeilingsError, match=words.replace("[", r"\[")):
        from_json(json.dumps(GOOD | change))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "null"])
def test_what_is_no_object_is_refused(text: str) -> None:
    with pytest.raises(CeilingsError):
        from_json(text)


def test_a_missing_entry_is_named() -> None:
    with pytest.raises(CeilingsError, match=r"no copy.*calibrate"):
        from_json(json.dumps({k: v for k, v in GOOD.items() if k != "copy"}))
