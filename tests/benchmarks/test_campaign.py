"""What a campaign records when kernels are not built or cases are lost."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import campaign as module
from benchmarks import emulated
from benchmarks.campaign import Accepted, Case, campaign, judge, plan
from ucutlass.runtime import verify
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.ptxas import PtxasReport

TEXT = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }"
SHAPE = {"M": 64, "N": 64, "K": 64}
ARTIFACT = Artifact("key", Path("nowhere"), "nvcc", "ucc_0", "sm_90a", "nvcc", {}, 1.0, PtxasReport())
REFUSED = BuildError("ucc_0", ("error: no",), Path("s"), Path("l"), "nvcc")


def accepted(*names: str) -> list[Accepted]:
    found = [plan(Case(name, TEXT, (SHAPE,))) for name in names]
    return [a for a in found if isinstance(a, Accepted)]


class Machine:
    """In place of compilers and processes: `fails` are not built, `crashes` lose their process, `unsure` is
    undecided."""

    def __init__(self, fails: Sequence[int] = (), crashes: str = "", unsure: str = "") -> None:
        self.fails, self.crashes, self.unsure = fails, crashes, unsure
        self.builds, self.judged = 0, list[str]()

    def build_sources(self, pairs: Sequence[object], **_: object) -> list[object]:
        results = [REFUSED if self.builds + i in self.fails else ARTIFACT for i in range(len(pairs))]
        self.builds += len(pairs)
        return results

    def run(self, target: str, items: list[dict[str, Any]], rows: Path, **_: object) -> list[dict[str, Any]]:
        assert target == "benchmarks.campaign:judge_here"
        return [self._row(item["name"]) for item in items]

    def _row(self, name: str) -> dict[str, Any]:
        self.judged.append(name)
        row = {"name": name, "ok": name not in (self.crashes, self.unsure), "runs": []}
        return row | ({"state": "undecided"} if name == self.unsure else {})


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Any:
    def use(machine: Machine) -> Machine:
        monkeypatch.setattr(module, "jobs", lambda group=1: 1)
        monkeypatch.setattr(module, "build_sources", machine.build_sources)
        monkeypatch.setattr(module.harness, "run", machine.run)
        return machine

    return use


def test_a_kernel_that_is_not_built_loses_its_case_alone(use: Any, tmp_path: Path) -> None:
    use(Machine(fails=[1]))
    found = judge(accepted("a", "b", "c"), tmp_path)
    assert [row["name"] for row in found.rows] == ["a", "c"]
    assert list(found.unbuilt) == ["b"]
    log = json.loads((tmp_path / "build.json").read_text())
    assert set(log["failed"]) == {"b"} and len(log["built"]["a"]) == 1


@pytest.mark.parametrize("group", [1, 2, 4])
def test_every_case_is_judged_once_whatever_the_group(group: int, use: Any, tmp_path: Path) -> None:
    machine = use(Machine())
    names = list("abcdefg")
    assert [row["name"] for row in judge(accepted(*names), tmp_path, group=group).rows] == names
    assert sorted(machine.judged) == names


def test_a_campaign_tells_what_was_wrong_with_its_program(use: Any, tmp_path: Path) -> None:
    use(Machine(crashes="b"))
    answers = [*accepted("a", "b"), plan(Case("bad", "kernel k(", (SHAPE,)))]
    report = campaign(answers, tmp_path)
    assert (report.accepted, report.right, sum(report.rejected.values())) == (2, 1, 1)
    assert report.wrong[0]["text"] == TEXT and "warps" in report.wrong[0]["schedule"]
    assert json.loads((tmp_path / "report.json").read_text())["right"] == 1


def test_a_campaign_tells_undecided_from_wrong(use: Any, tmp_path: Path) -> None:
    use(Machine(crashes="b", unsure="c"))
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
