"""What is built by the benchmark of build phases; their table is in tests/runtime/test_build_timings.py."""

from __future__ import annotations

from benchmarks.build_phases import source


def test_a_schedule_replaces_the_example_s_own() -> None:
    _, schedule = source("warps pingpong  tile 64x128x64")
    assert "warps pingpong  tile 64x128x64" in schedule
