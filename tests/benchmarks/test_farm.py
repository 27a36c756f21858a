"""What a campaign records when the processes that judge its cases end early."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks import farm
from benchmarks.farm import Accepted, Case, judge, plan
from ucutlass.runtime import isolate

TEXT = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
SHAPE = {"M": 64, "N": 64, "K": 64}

Child = Callable[[str, dict[str, Any]], object]


def accepted(*names: str) -> list[Accepted]:
    found = [plan(Case(name, TEXT, (SHAPE,))) for name in names]
    assert all(isinstance(a, Accepted) for a in found)
    return [a for a in found if isinstance(a, Accepted)]


def child(ends_at: str, how: object) -> Callable[..., object]:
    """A process that judges all cases right until it comes to `ends_at`."""

    def run(target: str, arguments: dict[str, Any], *, limit_seconds: float) -> object:
        with Path(arguments["rows"]).open("a") as out:
            for case in arguments["cases"]:
                if case["name"] == ends_at and not isinstance(how, isolate.Returned):
                    return how
                sticky = case["name"] == ends_at
                out.write(
                    json.dumps({"name": case["name"], "ok": not sticky, "runs": [], "sticky": sticky}) + "\n"
                )
                if sticky:
                    return how
        return isolate.Returned(0, "")

    return run


@pytest.mark.parametrize(
    "how", [isolate.Crashed("SIGSEGV", ""), isolate.TimedOut(1.0, ""), isolate.Returned(1, "")]
)
@pytest.mark.parametrize("processes", [1, 2])
def test_only_the_case_that_ended_its_process_is_lost(
    how: object, processes: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(farm.isolate, "run", child("b", how))
    rows = judge(accepted("a", "b", "c", "d"), tmp_path / "rows.jsonl", processes=processes)
    assert sorted((row["name"], row["ok"]) for row in rows) == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("d", True),
    ]
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4


def test_a_process_that_does_nothing_does_not_hang_the_campaign(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(farm.isolate, "run", lambda *_, **__: isolate.Returned(0, ""))
    rows = judge(accepted("a", "b"), tmp_path / "rows.jsonl")
    assert [row["ok"] for row in rows] == [False, False]
