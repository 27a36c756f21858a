"""What a campaign records when kernels are not built, cases are lost, or time runs out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from benchmarks import emulated, farm
from benchmarks.budget import Deadline, after, append
from benchmarks.farm import Accepted, Case, campaign, judge, plan
from benchmarks.random_sweeps import table
from ucutlass.runtime import verify
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildCancelled, BuildError
from ucutlass.runtime.ptxas import Report

TEXT = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
SHAPE = {"M": 64, "N": 64, "K": 64}
ARTIFACT = Artifact("key", Path("nowhere"), "nvcc", "ucc_0", "sm_90a", "nvcc", {}, 1.0, Report())
REFUSED = BuildError("ucc_0", ("error: no",), Path("s"), Path("l"), "nvcc")


def accepted(*names: str) -> list[Accepted]:
    found = [plan(Case(name, TEXT, (SHAPE,))) for name in names]
    return [a for a in found if isinstance(a, Accepted)]


class Farm:
    """In place of compilers and processes: `fails` are not built, `crashes` lose their process, `unsure` is
    undecided."""

    def __init__(
        self, fails: Sequence[int] = (), crashes: str = "", slow: bool = False, unsure: str = ""
    ) -> None:
        self.fails, self.crashes, self.slow, self.unsure = fails, crashes, slow, unsure
        self.builds, self.judged = 0, list[str]()

    def build_sources(self, pairs: Sequence[object], *, cancel: Event, **_: object) -> list[object]:
        if self.slow:
            cancel.wait(60.0)
        if cancel.is_set():
            return [BuildCancelled("ucc_0") for _ in pairs]
        made = [REFUSED if self.builds + i in self.fails else ARTIFACT for i in range(len(pairs))]
        self.builds += len(pairs)
        return made

    def run(self, target: str, items: list[dict[str, Any]], rows: Path, **_: object) -> None:
        assert target == "benchmarks.farm:judge_here"
        for item in items:
            self.judged.append(item["name"])
            name, unsure = item["name"], item["name"] == self.unsure
            row = {"name": name, "ok": name != self.crashes and not unsure, "runs": []}
            append(rows, row | {"state": "undecided"} if unsure else row)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(made: Farm) -> Farm:
        monkeypatch.setattr(farm, "jobs", lambda group=1: 1)
        monkeypatch.setattr(farm, "build_sources", made.build_sources)
        monkeypatch.setattr(farm.relay, "run", made.run)
        return made

    return use


def test_a_kernel_that_is_not_built_loses_its_case_alone(use: Any, tmp_path: Path) -> None:
    use(Farm(fails=[1]))
    found = judge(accepted("a", "b", "c"), tmp_path)
    assert [row["name"] for row in found.rows] == ["a", "c"]
    assert list(found.unbuilt) == ["b"] and found.left == []
    log = json.loads((tmp_path / "build.json").read_text())
    assert set(log["failed"]) == {"b"} and len(log["built"]["a"]) == 1


@pytest.mark.parametrize("group", [1, 2, 4])
def test_every_case_is_judged_once_whatever_the_group(group: int, use: Any, tmp_path: Path) -> None:
    made = use(Farm())
    names = list("abcdefg")
    assert [row["name"] for row in judge(accepted(*names), tmp_path, group=group).rows] == names
    assert sorted(made.judged) == names


def test_a_second_call_goes_on(use: Any, tmp_path: Path) -> None:
    use(Farm(crashes="b"))
    judge(accepted("a", "b"), tmp_path)
    made = use(Farm())
    found = judge(accepted("a", "b", "c"), tmp_path)
    assert made.judged == ["c"]
    assert [(row["name"], row["ok"]) for row in found.rows] == [("a", True), ("b", False), ("c", True)]
    assert set(json.loads((tmp_path / "build.json").read_text())["built"]) == {"a", "b", "c"}


@pytest.mark.parametrize("deadline", [Deadline(0.0), after(farm.JUDGING_SECONDS + 0.5)])
def test_what_the_deadline_cuts_off_is_left_and_not_blamed(
    deadline: Deadline, use: Any, tmp_path: Path
) -> None:
    made = use(Farm(slow=True))
    found = judge(accepted("a", "b"), tmp_path, deadline=deadline)
    assert (found.rows, found.unbuilt, found.left) == ([], {}, ["a", "b"])
    assert made.judged == []


def test_a_campaign_tells_what_was_wrong_with_its_program(use: Any, tmp_path: Path) -> None:
    use(Farm(crashes="b"))
    answers = [*accepted("a", "b"), plan(Case("bad", "kernel k(", (SHAPE,)))]
    report = campaign(answers, tmp_path)
    assert (report.accepted, report.right, sum(report.rejected.values()), report.left) == (2, 1, 1, 0)
    assert report.wrong[0]["text"] == TEXT and "warps" in report.wrong[0]["schedule"]
    assert json.loads((tmp_path / "report.json").read_text())["right"] == 1


def test_a_campaign_tells_undecided_from_wrong(use: Any, tmp_path: Path) -> None:
    use(Farm(crashes="b", unsure="c"))
    report = campaign(accepted("a", "b", "c"), tmp_path)
    assert report.right == 1
    assert [[row["name"] for row in rows] for rows in (report.wrong, report.undecided)] == [["b"], ["c"]]


@pytest.mark.parametrize(
    ("states", "together"),
    [(["right", "right"], "right"), (["right", "undecided"], "undecided"), (["undecided", "wrong"], "wrong")],
)
def test_verdicts_together(states: list[Any], together: str) -> None:
    assert verify.worst(states) == together


@pytest.mark.parametrize(
    ("status", "fails"),
    [("right", False), ("rejected", False), ("undecided", False), ("wrong", True), ("not emulable", True)],
)
def test_what_fails_a_campaign_of_emulated_kernels(status: Any, fails: bool) -> None:
    job = emulated.Job("a", TEXT, "k", SHAPE, None, 0)
    rows = [emulated.Row(job, "right"), emulated.Row(job, status)]
    assert emulated.failed(rows) is fails
    assert f"{'k':14} {status}" in table([emulated.Row(replace(job, name="1 k"), status)])
