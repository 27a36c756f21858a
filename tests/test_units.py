"""Durations in the unit that suits them."""

from __future__ import annotations

import pytest

from ucutlass.units import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0 s"),
        (2.4e-9, "2.4 ns"),
        (8.3e-8, "83 ns"),
        (1e-7, "0.10 us"),
        (2e-5, "20.00 us"),
        (9.994e-4, "999.40 us"),
        (1.2345e-3, "1.234 ms"),
        (0.25, "250 ms"),
        (1.5, "1.5 s"),
        (119.0, "119 s"),
        (600.0, "10 min"),
        (9000.0, "2.5 h"),
    ],
)
def test_a_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text
