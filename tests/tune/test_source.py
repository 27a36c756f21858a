"""A winner's schedule in the program's text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ucutlass import frontend
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete
from ucutlass.tune.source import ScheduleNotWritten, with_schedule
from ucutlass.tune.space import explore

LINEAR = (Path(__file__).parent.parent.parent / "examples" / "linear_gelu.ucu").read_text()
SIZES = {"M": 4096, "N": 4096, "K": 4096}
FIXED = "kernel k(x: bf16[M=256, K=512], w: bf16[N=128, K]) -> bf16[M, N] { return dot[K](x, w) %s }"


def written(text: str, sizes: dict[str, int], place: int) -> tuple[str, Planned]:
    checked = frontend.read_text(text, "program.ucu")
    program = frontend.kernel(checked)
    space = explore(checked, program, complete(program, sizes), "sm90a", free=True)
    winner = space.groups[place].members[-1]
    return with_schedule(checked, program, sizes, winner, None), winner


def planned(text: str, sizes: dict[str, int]) -> Planned:
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    return frontend.plan_kernel(checked, program, complete(program, sizes), "sm90a").planned


def test_these_extents_get_the_winner_and_others_what_they_had() -> None:
    text, winner = written(LINEAR, SIZES, 40)
    assert planned(text, SIZES).request == winner.request
    for others in ({**SIZES, "M": 64}, {**SIZES, "N": 8192}):
        assert planned(text, others).request == planned(LINEAR, others).request
    assert text.count("\n  schedule ") == LINEAR.count("\n  schedule ") + 1
    assert format_file(parse(text)) == text and "# A linear layer" in text


@pytest.mark.slow
def test_a_second_winner_replaces_the_first() -> None:
    once, _ = written(LINEAR, SIZES, 40)
    twice, winner = written(once, SIZES, 3)
    assert twice.count("\n  schedule ") == once.count("\n  schedule ")
    assert planned(twice, SIZES).request == winner.request


@pytest.mark.parametrize(
    "schedule", [pytest.param("", marks=pytest.mark.slow), "schedule sm90a { warps pingpong }"]
)
def test_a_program_of_one_shape_gets_the_only_block(schedule: str) -> None:
    text, winner = written(FIXED % schedule, {}, 5)
    assert text.count("schedule sm90a {") == 1 and " when " not in text
    assert planned(text, {}).request == winner.request


def test_schedules_of_other_targets_and_other_kernels_stay() -> None:
    other = LINEAR.replace("linear_gelu", "other").split("\n", 1)[1]
    first = "  schedule sm90a when"
    both = LINEAR.replace(first, f"  schedule sm80 {{ tile 128x128x32 }}\n{first}")
    checked = frontend.read_text(both + "\n" + other)
    program = frontend.kernel(checked, "linear_gelu")
    winner = explore(checked, program, complete(program, SIZES), "sm90a").groups[-1].members[0]
    text = with_schedule(checked, program, SIZES, winner, None)
    mine, theirs = text.split("kernel other")
    assert "sm80 { tile 128x128x32 }" in mine and "M == 4096" in mine and "M == 4096" not in theirs


def test_what_would_become_another_kernel_is_not_written() -> None:
    checked = frontend.read_text(LINEAR)
    program = frontend.kernel(checked)
    winner = explore(checked, program, complete(program, SIZES), "sm90a").groups[0].members[0]
    forged = replace(winner, plan=replace(winner.plan, routes=()))
    with pytest.raises(ScheduleNotWritten):
        with_schedule(checked, program, SIZES, forged, None)
