"""Seconds by part, across processes: what a process measured comes back, and what it cannot have does not."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch

from ucutlass import frontend, spans
from ucutlass.runtime import isolation, verify
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.isolation import STARTS, Raised, Returned, WarmProcess, run


def test_a_process_says_where_its_seconds_went() -> None:
    with spans.recording() as record, record.span("outside"):
        outcome = run("isolation_candidates:works", {"seconds": 0.05}, limit_seconds=60)
    assert isinstance(outcome, Returned)
    assert set(outcome.parts) == {"launch", "timing", STARTS}
    assert all(s >= 0.05 for s in (outcome.parts["launch"], outcome.parts["timing"]))
    # The caller's recording has them, and its own span what is left.
    assert {n: record.seconds[n] for n in outcome.parts} == outcome.parts
    assert record.seconds["outside"] >= 0


def test_each_call_of_a_warm_process_has_seconds_of_its_own() -> None:
    process = WarmProcess()
    calls = [process.call("isolation_candidates:works", {"seconds": 0.01}, limit_seconds=60) for _ in "ab"]
    process.close()
    assert [set(call.parts) for call in calls] == [{"launch", "timing", STARTS}] * 2


def test_what_raises_says_it_too() -> None:
    outcome = run("isolation_candidates:works", {"seconds": -1.0}, limit_seconds=60)
    assert isinstance(outcome, Raised) and "launch" in outcome.parts


@pytest.mark.parametrize(
    "claim",
    [
        {},
        {"seconds": 1.0},
        {"seconds": 5.0, "spans": {}},
        {"seconds": 1.0, "spans": {"launch": 2.0}},
        {"seconds": 1.0, "spans": {"launch": -0.5}},
        {"seconds": 1.0, "spans": {"launch": "0.5"}},
        {"seconds": math.nan, "spans": {}},
        {"seconds": 1.0, "spans": {str(i): 0.0 for i in range(101)}},
    ],
)
def test_a_claim_that_cannot_be_is_dropped(claim: dict[str, Any]) -> None:
    answer = isolation._answer({"returned": 1, **claim}, "", 2.0)
    assert answer == Returned(1, "") and answer is not None and answer.parts == {}


def test_a_span_waits_for_the_device() -> None:
    calls: list[str] = []
    with spans.recording(lambda: calls.append("settled")) as record:
        with spans.span("a"):
            calls.append("a")
        assert list(spans.timed_items("b", iter([1, 2]))) == [1, 2]
    assert calls[:3] == ["settled", "a", "settled"] and calls.count("settled") == 2 + 3 * 2
    assert list(record.seconds) == ["a", "b"]


def test_nothing_waits_for_the_device_between_a_launch_and_what_goes_on_around_it() -> None:
    """Else the copies of the case `repeats` would have ended when the kernel begins."""
    calls: list[str] = []

    @contextmanager
    def jitter(number: int) -> Iterator[None]:
        calls.append("copies begin")
        yield
        calls.append("copies end")

    def launch(given: Sequence[Any], outputs: Sequence[torch.Tensor]) -> None:
        calls.append("launch")
        outputs[0].copy_(given[0] * 2)

    program = frontend.kernel(frontend.read_text("kernel k(x: f32[M]) -> f32[M] { return x * 2 }\n"))
    arguments = generate(program, {"M": 5}, "normal", seed=1)
    with spans.recording(lambda: calls.append("settled")):
        assert verify.check(program, launch, arguments, jitter=jitter).ok
    at = calls.index("copies begin")
    assert calls[at : at + 3] == ["copies begin", "launch", "copies end"]
    assert calls.count("copies begin") == 2 and "settled" in calls[:at]
