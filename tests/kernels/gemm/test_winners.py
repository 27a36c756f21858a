"""A recorded winner speaks for problems of its class, near its extents, against kernels that it beat, and
within what the cost model may be wrong by; and the plan says so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.kernels.gemm.problems import gemm
from ucutlass import cli
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.ir.schedule import Request
from ucutlass.kernels.gemm import cost as heuristic
from ucutlass.kernels.gemm import planner, winners
from ucutlass.kernels.gemm.planner import Planned
from ucutlass.kernels.gemm.rules import legal
from ucutlass.kernels.gemm.schedule import Case, case_of
from ucutlass.kernels.gemm.winners import (
    Proposed,
    Winner,
    better,
    distance,
    form_of,
    kind_of,
    of_json,
    sizes_of,
    to_json,
)

ARCH, DEVICE = ARCHES["sm90a"], DEVICES["H200"]
SIZES = (64, 4096, 12288)
"""Between recorded extents; here winners are made up, so that each says what the test is about."""


def case(m: int, n: int, k: int, **more: Any) -> Case:
    problem, sizes = gemm(m, n, k, **more)
    return case_of(problem, sizes, ARCH, DEVICE)


def by_price(of: Case) -> list[Planned]:
    return list(planner.candidates(of.written.problem, of.sizes, ARCH, DEVICE))


def asked(of: Case, known: list[Winner], fields: Request = planner.AUTO) -> Proposed | None:
    first = by_price(of)[0]
    return better(of, fields, (first.estimate, first.candidate), known)


def rival(of: Case, within: float = winners.DEFAULT.slack) -> Planned:
    """The cheapest kernel of another form than the first, which the model prices above it, but not far."""
    first, *others = by_price(of)
    own = form_of(first.request)
    least = first.estimate.seconds
    found = next(p for p in others if form_of(p.request) != own and p.estimate.seconds > least)
    assert found.estimate.seconds < (1 + within) * least
    return found


def winner(of: Case, kernel: Planned, **more: Any) -> Winner:
    """As recorded at the case's extents, where it beat what the model would choose."""
    beaten = frozenset({form_of(by_price(of)[0].request)})
    made = Winner(sizes_of(of), kind_of(of.written.problem), "bf16", kernel.request, beaten)
    return replace(made, **more)


def test_at_its_own_extents_a_winner_that_beat_the_choice_is_taken_whatever_its_price() -> None:
    here = case(*SIZES)
    dearest = by_price(here)[-1]
    taken = asked(here, [winner(here, dearest)])
    assert taken is not None and taken.candidate == dearest.candidate
    assert taken.price == heuristic.estimate(dearest.candidate, DEVICE)


def test_a_kernel_that_was_not_beaten_stays() -> None:
    here = case(*SIZES)
    assert asked(here, [winner(here, rival(here), beaten=frozenset())]) is None


def test_nearby_it_may_cost_a_little_more_and_less_the_farther() -> None:
    here = case(*SIZES)
    other = rival(here)
    batch, m, n, k = sizes_of(here)
    over = other.estimate.seconds / by_price(here)[0].estimate.seconds - 1
    slack, reach = winners.DEFAULT.slack, winners.DEFAULT.reach
    limit = reach * (1 - over / slack)  # where what it may cost more has shrunk to what it does
    for factor, taken in ((0.9, True), (1.1, False)):
        there = (batch, m, n, round(k * 2 ** (limit * factor)))
        assert (asked(here, [winner(here, other, sizes=there)]) is not None) is taken


def test_what_the_model_prices_far_above_its_choice_is_not_taken_elsewhere() -> None:
    here = case(*SIZES)
    near = tuple(2 * extent if at == 3 else extent for at, extent in enumerate(sizes_of(here)))
    assert asked(here, [winner(here, by_price(here)[-1], sizes=near)]) is None


@pytest.mark.parametrize("change", ["kind", "far"])
def test_another_class_and_far_extents_say_nothing(change: str) -> None:
    here = case(*SIZES)
    batch, m, n, k = sizes_of(here)
    assert asked(here, [winner(here, rival(here))]) is not None
    more = {"kind": "another"} if change == "kind" else {"sizes": (batch, m, n * 4, k)}
    assert asked(here, [winner(here, rival(here), **more)]) is None


def test_a_winner_of_the_choices_own_form_speaks_for_it() -> None:
    here = case(*SIZES)
    batch, m, n, k = sizes_of(here)
    against = winner(here, rival(here), sizes=(batch, m, n, k + 64))
    favour = replace(winner(here, by_price(here)[0]), sizes=(batch, m, n, k + 64))
    assert asked(here, [against]) is not None
    assert asked(here, [against, favour]) is None


def test_fields_that_the_program_fixed_stay() -> None:
    here = case(*SIZES)
    other = rival(here)
    own = by_price(here)[0].request
    changed = next(f for f in ("warps", "tile", "cluster") if getattr(other.request, f) != getattr(own, f))
    fixed = Request(**{changed: getattr(own, changed)})
    assert asked(here, [winner(here, other)], fixed) is None
    same = Request(**{changed: getattr(other.request, changed)})
    taken = asked(here, [winner(here, other)], same)
    assert taken is not None and taken.candidate == other.candidate


def test_what_breaks_a_rule_here_is_not_taken() -> None:
    """It was recorded with extents that are whole multiples of 16 bytes."""
    good, odd = case(*SIZES), case(64, 4096, 12289)
    known = winner(good, rival(good), beaten=frozenset({form_of(by_price(odd)[0].request)}))
    assert known.kind == kind_of(odd.written.problem) and distance(known.sizes, sizes_of(odd)) < 0.01
    assert asked(odd, [known]) is None


def test_classes() -> None:
    def kind(**more: Any) -> str:
        return kind_of(gemm(256, 256, 256, **more)[0])

    assert kind(lane="f16") == kind(lane="bf16")
    different = [
        kind(),
        kind(lane="tf32"),
        kind(lane="e4m3"),
        kind(order="KN"),
        kind(bias=True),
        kind(residual=True),
        kind(reduce=True),
    ]
    assert len(set(different)) == len(different)


# --- the plan and what is said of it ---------------------------------------------------------


@pytest.fixture
def shipped(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Winner]]:
    """Winners in place of the package's own."""
    known: list[Winner] = []
    monkeypatch.setattr(winners, "recorded", lambda arch, device: tuple(known))
    planner._plan.cache_clear()
    yield known
    planner._plan.cache_clear()


def plan(of: Case, request: Request = planner.AUTO) -> Planned:
    planner._plan.cache_clear()
    made = planner.plan(of.written.problem, of.sizes, ARCH, DEVICE, request)
    assert isinstance(made, Planned)
    return made


def test_the_plan_says_whose_winner_it_is(shipped: list[Winner]) -> None:
    here = case(*SIZES)
    alone = plan(here)
    assert alone.origin == planner.BY_MODEL and alone.request == by_price(here)[0].request
    shipped.append(winner(here, rival(here)))
    told = plan(here)
    assert told.request == rival(here).request and legal(told.candidate)
    assert told.origin == "from the recorded winner of 64x4096x12288 bf16"
    assert {note.field for note in told.notes} >= set(told.request.given())
    fixed = plan(here, told.request)
    assert fixed.origin == "" and fixed.plan == told.plan and fixed.knobs == told.knobs


def test_explain_says_it(tmp_path: Path) -> None:
    file = tmp_path / "k.ucu"
    text = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {{ return dot[K](x, w){} }}"
    recorded = next(w for w in winners.recorded("sm90a", DEVICE) if w.sizes[0] == 1)
    _, m, n, k = recorded.sizes

    def explained(schedule: str, device: str) -> tuple[str, str]:
        file.write_text(text.format(schedule))
        call = ["explain", str(file), "-s", f"M={m},N={n},K={k}", "--device", device]
        shown = CliRunner().invoke(cli.main, call)
        assert shown.exit_code == 0, shown.output
        row = json.loads(CliRunner().invoke(cli.main, [*call, "--json"]).output)
        return next(line for line in shown.output.splitlines() if "chosen" in line), row["origin"]

    here = case(m, n, k)
    line, origin = explained("", "H200")
    assert origin == plan(here).origin != "" and origin in line
    assert "by the cost model" in explained("", "H100-SXM")[0]


def test_other_devices_have_no_winners() -> None:
    assert winners.recorded("sm90a", DEVICES["H200"])
    assert winners.recorded("sm90a", DEVICES["H100-SXM"]) == ()
    assert winners.recorded("sm80", DEVICES["A100-SXM4-80GB"]) == ()


def test_every_shipped_winner_is_legal_at_its_extents() -> None:
    for one in winners.recorded("sm90a", DEVICE):
        batch, m, n, k = one.sizes
        here = case(m, n, k, **({"batch": batch} if batch > 1 else {}))
        made = planner.plan(here.written.problem, here.sizes, ARCH, DEVICE, one.request)
        assert isinstance(made, Planned), one


def test_winners_come_back_from_json() -> None:
    known = winners.recorded("sm90a", DEVICE)
    assert of_json(json.loads(json.dumps(to_json(known)))) == known


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"device": "H200", "forms": [], "winners": [{}]}',
        '{"device": "H200", "forms": [{"lid": 1}], "winners": []}',
    ],
)
def test_a_broken_file_is_said_to_be_broken(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "winners_sm90a.json").write_text(text)
    monkeypatch.setattr(winners, "_FOLDER", tmp_path)
    winners.recorded.cache_clear()
    try:
        with pytest.raises(winners.WinnersUnreadable, match=r"winners_sm90a\.json"):
            winners.recorded("sm90a", DEVICE)
    finally:
        winners.recorded.cache_clear()
