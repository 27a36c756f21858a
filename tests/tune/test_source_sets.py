"""Schedules of a set of shapes in the program's text."""

from __future__ import annotations

from pathlib import Path

import pytest

from ucutlass import frontend
from ucutlass.grammar.format import format_file
from ucutlass.grammar.parse import parse
from ucutlass.ir.schedule import PartialSchedule, scheduled
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete
from ucutlass.tune.source import MOST_IN_GUARD, with_schedules
from ucutlass.tune.space import explore

LINEAR = (Path(__file__).parent.parent.parent / "examples" / "linear_gelu.ucu").read_text()
BLOCKS = LINEAR.count("\n  schedule ")


def sized(m: int, n: int = 4096) -> dict[str, int]:
    return {"M": m, "N": n, "K": 4096}


def kernel_at(text: str, sizes: dict[str, int], request: PartialSchedule) -> Planned:
    """A schedule at other extents than it was found at."""
    checked = frontend.read_text(text)
    program = scheduled(frontend.kernel(checked), "sm90a", request)
    return frontend.plan_kernel(checked, program, complete(program, sizes), "sm90a").planned


@pytest.fixture(scope="module")
def requests() -> tuple[PartialSchedule, PartialSchedule]:
    """Two schedules that the program does not denote."""
    checked = frontend.read_text(LINEAR)
    program = frontend.kernel(checked)
    space = explore(checked, program, complete(program, sized(4096)), "sm90a", free=True)
    return space.groups[40].members[-1].request, space.groups[90].members[0].request


def written(text: str, *winners: tuple[dict[str, int], PartialSchedule]) -> str:
    checked = frontend.read_text(text)
    found = [(sizes, kernel_at(text, sizes, request)) for sizes, request in winners]
    return with_schedules(checked, frontend.kernel(checked), found, None)


def planned(text: str, sizes: dict[str, int]) -> Planned:
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    return frontend.plan_kernel(checked, program, complete(program, sizes), "sm90a").planned


def test_a_schedule_for_several_shapes_is_one_block(
    requests: tuple[PartialSchedule, PartialSchedule],
) -> None:
    a, b = requests
    text = written(LINEAR, (sized(128), a), (sized(4096), b), (sized(256), a), (sized(256, 8192), a))
    assert text.count("\n  schedule ") == BLOCKS + 2 and format_file(parse(text)) == text
    listed = "M == 128 and N == 4096 or M == 256 and N == 4096 or M == 256 and N == 8192"
    assert f"when K == 4096 and ({listed}) " in text
    for sizes, request in ((sized(128), a), (sized(256), a), (sized(256, 8192), a), (sized(4096), b)):
        assert planned(text, sizes).request == request
    for others in (sized(128, 8192), sized(64), sized(4097)):
        assert planned(text, others).request == planned(LINEAR, others).request


def test_blocks_of_shapes_that_are_written_anew_go_and_others_stay(
    requests: tuple[PartialSchedule, PartialSchedule],
) -> None:
    a, b = requests
    first = written(LINEAR, (sized(128), a), (sized(256), a), (sized(4096), b))
    again = written(first, (sized(128), b), (sized(256), b))
    assert again.count("\n  schedule ") == BLOCKS + 2 and planned(again, sized(128)).request == b
    assert planned(again, sized(4096)).request == b
    # Only one of a block's two shapes: the block still serves the other.
    partly = written(first, (sized(128), b))
    assert partly.count("\n  schedule ") == BLOCKS + 3
    assert planned(partly, sized(128)).request == b and planned(partly, sized(256)).request == a


def test_a_condition_that_a_person_wrote_stays(requests: tuple[PartialSchedule, PartialSchedule]) -> None:
    a, _ = requests
    assert "when M <= 64" in written(LINEAR, (sized(64), a), (sized(1), a))
    by_hand = LINEAR.replace("when M <= 64", "when M == 64 and N == 4096")
    assert "when M == 64 and N == 4096 {" in written(by_hand, (sized(64), a))
    turned = LINEAR.replace("when M <= 64", "when K == 4096 and M == 64 and N == 4096")
    assert written(turned, (sized(64), a)).count("\n  schedule ") == BLOCKS


def test_more_shapes_than_a_condition_holds(requests: tuple[PartialSchedule, PartialSchedule]) -> None:
    a, _ = requests
    shapes = [sized(128 * m) for m in range(1, MOST_IN_GUARD + 3)]
    text = written(LINEAR, *((sizes, a) for sizes in shapes))
    assert text.count("\n  schedule ") == BLOCKS + 2
    assert all(planned(text, sizes).request == a for sizes in (shapes[0], shapes[-1]))
    again = written(text, *((sizes, a) for sizes in shapes))
    assert again == text
