"""What commands print on a GPU, as the rows of a measurement."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("mcp")

from ucutlass.agent.mcp import measuring
from ucutlass.agent.mcp.answers import MeasuredRow
from ucutlass.agent.mcp.command import Command, CommandEnd, CommandResult
from ucutlass.agent.mcp.jobs import CommandJob, JobStep

RUN = {"ran": "GPU", "ok": True, "state": "right", "microseconds": 20.0, "share_of_bound": 0.5}
WRONG = {**RUN, "ok": False, "state": "wrong", "microseconds": None, "problems": ["off by one"]}
BENCH = {
    "records": ["b1"],
    "verified": [],
    "regimes": [
        {
            "outcomes": [{"span": {"median": 20.0, "p10": 19.0, "p90": 22.0}}],
            "bound": 8.0,
            "bound_at_clock": 10.0,
            "versus": [
                {"baseline": "eager", "ratio": {"median": 1.5}},
                {"baseline": "cublas", "ratio": None},
            ],
        }
    ],
}
BEST = {"microseconds": 20.0, "gain": 1.5, "records": ["r1"]}
SESSION = {"session": "0123", "own": 20.0, "bound": 10.0, "best": BEST, "said": []}


def row(ended: CommandEnd, value: Any) -> MeasuredRow:
    job = CommandJob("measure", [JobStep(Command(()))], ["digest"])
    job.results.append(CommandResult(ended, value, "", 1.0))
    (result,) = measuring.rows(job)
    return result


@pytest.mark.parametrize(
    ("value", "times"),
    [
        (RUN, {"us": 20.0, "of_bound": 0.5}),
        (
            BENCH,
            {
                "us": 20.0,
                "of_bound": 0.5,
                "interval_us": (19.0, 22.0),
                "ratio_vs": {"eager": 1.5},
                "records": ["b1"],
            },
        ),
        (SESSION, {"us": 20.0, "of_bound": 0.5, "ratio_vs": {"eager": 1.5}, "records": ["r1"]}),
    ],
)
def test_a_right_program_has_times(value: Any, times: dict[str, Any]) -> None:
    result = row(0, value)
    assert result.verdict == "right" and result.model_dump() == result.model_dump() | times


@pytest.mark.parametrize(
    ("ended", "value", "verdict"),
    [
        (1, WRONG, "wrong"),
        (1, {**RUN, "ok": False, "lost": "the kernel's process was ended by SIGSEGV"}, "failed"),
        (1, {"diagnostics": []}, "refused"),
        (1, {"error": "nvcc refused it", "status": 1}, "failed"),
        (2, {"error": "UC0601", "status": 2}, "refused"),
        (3, {"error": "no GPU", "status": 3}, "failed"),
        (1, {**BENCH, "verified": [{"ok": False, "words": "off"}]}, "wrong"),
        (1, {**SESSION, "best": None, "own": None}, "failed"),
        ("time", None, "timeout"),
        ("memory", None, "failed"),
        (-11, None, "failed"),
    ],
)
def test_no_other_has(ended: CommandEnd, value: Any, verdict: str) -> None:
    result = row(ended, value)
    assert (result.verdict, result.us, result.ratio_vs) == (verdict, None, {})
