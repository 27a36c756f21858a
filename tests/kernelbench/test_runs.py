"""Runs over many problems: where attempts go, what is written down, and what a checkout's report says."""

from __future__ import annotations

import json
import math
import sqlite3
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Any

import pytest
from checkout import Machine, checkout
from click.testing import CliRunner

from ucutlass.agent import batch, module_processes, optimize, prebuild, problem_loader
from ucutlass.agent.batch import BatchRun, NotABatchRun, Opening, batch_progress, open_batch, resume_batch
from ucutlass.agent.budget import Budget
from ucutlass.agent.imported_start import ImportedStart, imported_start
from ucutlass.agent.journal import Journal, SessionTaken
from ucutlass.agent.kernelbench import (
    BadCheckout,
    LevelSummary,
    ProblemResult,
    drawn,
    levels,
    rows,
    selected,
    starts,
)
from ucutlass.agent.module import ModuleFile, TorchModule, module_of_file
from ucutlass.agent.module_processes import in_own_process
from ucutlass.agent.outcome import RefusedOutcome, TimedOutcome
from ucutlass.agent.priority import expected_gain, headroom
from ucutlass.agent.problem import (
    OptimizationProblem,
    ProgramCandidate,
    checked_candidate,
    problem_of_json,
    problem_to_json,
)
from ucutlass.agent.problem_loader import LoaderSettings, names_of, problem_at, written_sizes
from ucutlass.agent.proposer import ProposerFailed
from ucutlass.agent.run import OptimizationSession, open_journal_session
from ucutlass.agent.search import TimeScale
from ucutlass.agent.session import SessionSettings, SessionState
from ucutlass.agent.step_time import StepTime
from ucutlass.agent.stop import StopRule
from ucutlass.cli import gpu
from ucutlass.cli.kernelbench import command
from ucutlass.cli.optimize import command as optimize_command
from ucutlass.cli.replay import command as replay_command
from ucutlass.cli.report import command as report_command
from ucutlass.cli.sessions import command as sessions_command
from ucutlass.engine.gpu_slot import GpuSlot
from ucutlass.ir.hardware import ARCHES, DEVICES
from ucutlass.runtime.gpu import CurrentGpu
from ucutlass.runtime.module.signature import Unusable
from ucutlass.runtime.store import file
from ucutlass.runtime.system import Gpu
from ucutlass.sol.bounds import TimeBounds

pytestmark = pytest.mark.usefixtures("forked")

H200 = next(d for d in DEVICES.values() if "H200" in d.name)
SETTINGS = SessionSettings(budget=Budget(6), stop=StopRule(None, None))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkout(tmp_path_factory.mktemp("checkout"))


@pytest.fixture(scope="module", autouse=True)
def _each_file_is_run_once() -> Iterator[None]:
    """In its own process as ever, and so is its import; what came of it is told again."""
    known: dict[str, TorchModule | Unusable] = {}

    def once(read: ModuleFile, **more: Any) -> TorchModule:
        key = f"{read} {more}"
        if key not in known:
            try:
                known[key] = module_of_file(read, **more)
            except Unusable as error:
                known[key] = error
        found = known[key]
        if isinstance(found, Unusable):
            raise found
        return found

    imports: dict[str, ImportedStart] = {}

    def imported_once(module: ModuleFile, name: str, *more: Any) -> ImportedStart:
        key = f"{module.source} {module.precision} {name}"
        if key not in imports:
            imports[key] = imported_start(module, name, *more)
        return imports[key]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(problem_loader, "module_of_file", once)
        patched.setattr(problem_loader, "imported_start", imported_once)
        yield


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Machine:
    """A GPU that a table answers for."""
    made = Machine()
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    current_gpu = CurrentGpu(Gpu(0, H200.name, (9, 0), 1 << 37, 132), ARCHES["sm90a"], H200)
    monkeypatch.setattr(gpu, "at_hand", lambda: current_gpu)
    monkeypatch.setattr(
        optimize, "proposer_and_evaluator", lambda session, where, proposer_of: made.place(session)
    )
    monkeypatch.setattr(prebuild, "build_program", made.build)
    # Processes that nobody asks anything here: each imports torch.
    monkeypatch.setattr(
        module_processes, "module_processes", lambda ready, files, template, gpus: nullcontext(in_own_process)
    )
    monkeypatch.setattr(module_processes, "process_template", lambda: nullcontext(None))
    monkeypatch.setattr(GpuSlot, "_prepare", lambda slot, names: None)
    return made


# --- which problems --------------------------------------------------------------


def test_problems_are_selected_by_level_and_number(root: Path) -> None:
    base, names = selected(root, "level1/*,level2/1-20")
    assert base == root / "KernelBench"
    assert names == [
        "level1/1_Scaled.py",
        "level1/2_Hangs_up.py",
        "level1/10_Scaled_wide.py",
        "level2/1_Linear.py",
        "level2/2_No_start.py",
        "level2/3_Imported.py",
    ]
    assert selected(base, "level1/2-10, level1/1")[1][0] == "level1/2_Hangs_up.py"


def test_problems_are_drawn_by_level_and_seed() -> None:
    names = [f"level{level}/{number}_X.py" for level in (1, 2) for number in range(1, 31)]
    few = drawn(names, 5, 3)
    assert [name.partition("/")[0] for name in few] == ["level1", "level2"] * 5, "levels take turns"
    assert few == drawn(names, 5, 3) != drawn(names, 5, 4)
    assert drawn(names[30:], 5, 3) == few[1::2], "a level's draw is its own"
    assert len(few) == len({*few}) and sorted(drawn(names, 40, 3)) == sorted(names)
    assert drawn([*names[:3], *names[30:]], 4, 3)[-1].startswith("level2/"), "a level may have fewer"


@pytest.mark.parametrize(
    ("select", "said"),
    [
        ("level1/11-20", "has 3 problems"),
        ("level4/*", "has no problems"),
        ("level1", "write level1/1-20"),
        ("../etc/*", "selects nothing"),
    ],
)
def test_what_selects_nothing_is_an_error(root: Path, select: str, said: str) -> None:
    with pytest.raises(BadCheckout, match=said):
        selected(root, select)


def test_a_folder_that_is_no_checkout(tmp_path: Path) -> None:
    with pytest.raises(BadCheckout, match="no folder level1"):
        selected(tmp_path, "level1/*")


def test_a_folder_s_problems(root: Path, tmp_path: Path) -> None:
    assert "level1/1_Scaled.py" in names_of(root / "KernelBench")
    for name in ("b.ucu", "a.py", "a.ucu", "_no.py", ".hid/x.py", "deep/c.ucu", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert names_of(tmp_path) == ["a.py", "b.ucu", "deep/c.ucu"]


def test_a_program_in_a_folder_says_its_extents(tmp_path: Path) -> None:
    text = "# sizes M=64,N=32\nkernel k(x: f32[M, N]) -> f32[M, N] { return x * 2 }\n"
    (tmp_path / "k.ucu").write_text(text)
    assert problem_at(tmp_path / "k.ucu", LoaderSettings("sm90a")).sizes == {"M": 64, "N": 32}
    assert written_sizes("kernel k() {}") == {}


# --- where attempts go -----------------------------------------------------------


def state(*seconds: float | None, bound: float = 1e-6) -> SessionState:
    session_state = SessionState(scale=TimeScale(bound, None))
    for at, taken in enumerate(seconds):
        outcome = RefusedOutcome("no") if taken is None else TimedOutcome(taken)
        session_state.tree.add(None if at == 0 else 0, str(at), str(at), "", outcome)
    return session_state


def test_attempts_go_where_headroom_and_history_promise_most() -> None:
    assert expected_gain(state()) == math.inf
    assert expected_gain(state(1e-5)) > expected_gain(state(2e-6)) > expected_gain(state(1.01e-6))
    assert expected_gain(state(1e-5, 8e-6)) > expected_gain(
        state(8e-6, 1e-5)
    )  # the second attempt was no gain
    assert expected_gain(state(8e-6, 9e-6)) > expected_gain(state(8e-6, 9e-6, 9e-6))
    assert expected_gain(state(None, None)) < expected_gain(state(None))
    assert headroom(state(9e-7)) == 0.0 and headroom(state(5e-6, bound=0.0)) == math.log(2)


# --- a run -----------------------------------------------------------------------


def begun(folder: Path, root: Path, kept: Journal) -> BatchRun:
    base, names = selected(root, "level1/*,level2/*")
    return open_batch(kept, names, {"folder": str(base)})


def work(
    run: BatchRun, place_of: Any, budget: Budget, on_event: Any = lambda name, state: None, at_once: int = 1
) -> str:
    """Works on a run by a clock that goes as fast as its steps say."""
    began = run.spend.seconds

    def now() -> float:
        return run.spend.seconds - began

    return batch.work(run, opening(run), place_of, budget, on_event, at_once=at_once, now=now)


def opening(run: BatchRun, chosen: SessionSettings = SETTINGS) -> Opening:
    base = Path(str(run.about["folder"]))

    def open_(
        problem: OptimizationProblem, id: str, time: StepTime, bounds: TimeBounds | None
    ) -> OptimizationSession:
        return open_journal_session(
            run.journal, problem_to_json(problem), chosen, bound=1e-6, baseline=None, id=id
        )

    return Opening(lambda name: problem_at(base / name, LoaderSettings("sm90a"), base), open_)


def test_a_run_over_a_checkout(root: Path, tmp_path: Path) -> None:
    machine = Machine()
    run = begun(tmp_path, root, Journal.open(tmp_path / "j.sqlite"))
    why = work(run, machine.place, Budget(None))
    assert why == "every problem's session has ended"
    found = {row.name: row for row in rows(run)}
    assert found["level1/2_Hangs_up.py"].code == "exits" and "status 7" in found["level1/2_Hangs_up.py"].words
    assert found["level2/2_No_start.py"].code == "no-start"
    assert "the importer writes none (" in found["level2/2_No_start.py"].words
    assert "problem.py" not in found["level2/2_No_start.py"].words
    assert [r.right for r in found.values()] == [True, False, True, True, False, True]
    assert starts(list(found.values())) == {"given": 3, "imported": 1, "none": 2}
    assert all(n == 1 for n in machine.judged.values())
    assert run.spend.attempts == 24
    one, two = levels(list(found.values()))
    assert (one.level, one.lane, one.problems, one.right) == (1, "f32", 3, 2)
    assert (two.problems, two.right) == (3, 2)
    eager = one.against[0]
    assert eager.baseline == "eager" and eager.timed == 2 and eager.fast[0] == pytest.approx(2 / 3)


def test_the_budget_of_a_run_is_of_all_its_problems(root: Path, tmp_path: Path) -> None:
    run = begun(tmp_path, root, Journal.open(tmp_path / "j.sqlite"))
    why = work(run, Machine().place, Budget(4))
    assert why == "of the whole run, the budget of 4 attempts is spent" and run.spend.attempts == 4
    assert all(len(s.state.tree) > 0 for s in run.sessions)


def test_every_first_program_is_judged_and_confirmed_before_any_is_improved(
    root: Path, tmp_path: Path
) -> None:
    machine, said = Machine(), list[str]()
    run = begun(tmp_path, root, Journal.open(tmp_path / "j.sqlite"))
    work(run, machine.place, Budget(None), lambda name, state: said.append(str(batch_progress(run))))
    kinds = [kind for kind, _ in machine.log]
    names = {name for _, name in machine.log}
    assert len(names) == 4
    assert kinds[:8] == ["first", "confirm"] * 4
    assert {name for _, name in machine.log[:8:2]} == {name for _, name in machine.log[1:8:2]} == names
    # Comparing with compiled baselines comes last, once for each.
    assert kinds[-4:] == ["complete"] * 4 and kinds.count("complete") == 4
    # Problems are opened one by one: after the first step there is a time already.
    assert said[0].startswith("1 of 6 problems opened, 1 right with a time, 0 confirmed; 0 attempts")
    assert said[1].startswith("1 of 6 problems opened, 1 right with a time, 1 confirmed")
    assert said[7].startswith("6 of 6 problems opened, 4 right with a time, 4 confirmed, 1.000 of")
    assert "4 confirmed" in said[-1] and said[-1].split("; ")[1].startswith("24 attempts, ")


def test_problems_that_are_worked_on_at_once_come_out_as_one_after_another(
    root: Path, tmp_path: Path
) -> None:
    one, many, log = (begun(tmp_path, root, Journal.open(tmp_path / f"{n}.sqlite")) for n in "abc")
    work(one, Machine().place, Budget(None))
    machine = Machine()
    assert work(many, machine.place, Budget(None), at_once=4) == "every problem's session has ended"
    assert all(n == 1 for n in machine.judged.values())
    for name, member in one.members.items():
        other = many.members[name]
        assert (member.code, member.words) == (other.code, other.words)
        if member.session is not None and other.session is not None:
            assert member.session.state.tree.nodes == other.session.state.tree.nodes
    assert work(log, Machine().place, Budget(4), at_once=4).startswith("of the whole run, the budget of 4")
    assert log.spend.attempts == 4


def test_problems_are_read_side_by_side(root: Path, tmp_path: Path) -> None:
    run = begun(tmp_path, root, Journal.open(tmp_path / "a.sqlite"))
    together = Barrier(4)
    asked: list[str] = []

    def read(name: str) -> OptimizationProblem:
        asked.append(name)
        if len(asked) <= 4:
            together.wait(120)
        return opening(run).problem_of(name)

    machine, said = Machine(), list[int]()
    batch.work(
        run,
        replace(opening(run), problem_of=read),
        machine.place,
        Budget(None),
        lambda name, state: said.append(len(asked)),
        at_once=4,
    )
    assert len(asked) == 6


def test_a_failure_of_one_step_ends_the_run_once_the_others_have_ended(root: Path, tmp_path: Path) -> None:
    run = begun(tmp_path, root, Journal.open(tmp_path / "a.sqlite"))

    class Failing(Machine):
        def place(self, session: Any) -> Any:
            if len(self.order) == 2:
                raise ProposerFailed("no key", "give one")
            return super().place(session)

    with pytest.raises(ProposerFailed):
        work(run, Failing().place, Budget(None), at_once=3)
    again = resume_batch(run.journal, run.id)
    assert work(again, Machine().place, Budget(None), at_once=3) == "every problem's session has ended"


def test_seconds_of_a_problem_and_of_a_run_are_two_budgets(root: Path, tmp_path: Path) -> None:
    own = replace(SETTINGS, budget=Budget(None, seconds=45.0))
    run = begun(tmp_path, root, Journal.open(tmp_path / "a.sqlite"))
    assert batch.work(run, opening(run, own), Machine().place, Budget(None), lambda *_: None).startswith(
        "every"
    )
    for session in run.sessions:
        # A first program takes 5 s and 20 s more to be confirmed, a candidate the same.
        assert session.state.ended == "the budget of 45 seconds is spent"
        assert 45 <= session.state.spend.seconds < 45 + 20
        assert len(session.state.tree) > 1
    whole = begun(tmp_path, root, Journal.open(tmp_path / "b.sqlite"))
    machine = Machine()
    why = work(whole, machine.place, Budget(None, seconds=45.0))
    assert why == "of the whole run, the budget of 45 seconds is spent"
    # 45 s are enough to judge and confirm two; on its own each would have had as many.
    assert [kind for kind, _ in machine.log] == ["first", "confirm"] * 2


class Killed(BaseException):
    """Stands for kill -9: nothing catches it."""


def test_a_run_that_is_killed_anywhere_ends_as_it_would_have(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = iter(range(10**6))
    monkeypatch.setattr(batch.uuid, "uuid4", lambda: type("U", (), {"hex": f"{next(ids):032x}"}))
    whole = begun(tmp_path, root, Journal.open(tmp_path / "whole.sqlite"))
    work(whole, Machine().place, Budget(None))
    kept = Journal.open(tmp_path / "cut.sqlite")
    judged: Counter[str] = Counter()
    deaths = iter([2, 3, 9, 5, 1, 12])
    run = open_batch(kept, whole.names, whole.about)
    append = Journal.append
    while True:
        left = [next(deaths, 10**6)]

        def dying(journal: Journal, *event: Any, left: list[int] = left) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return append(journal, *event)

        with monkeypatch.context() as patched:
            patched.setattr(Journal, "append", dying)
            try:
                work(run, Machine(judged).place, Budget(None))
                break
            except Killed:
                pass
        run = resume_batch(kept, run.id)
    assert [r.words for r in rows(run)] == [r.words for r in rows(whole)]
    assert run.spend == whole.spend
    for name, member in run.members.items():
        other = whole.members[name]
        assert (member.session is None) == (other.session is None)
        if member.session is not None and other.session is not None:
            assert member.session.state.tree.nodes == other.session.state.tree.nodes


def test_two_processes_do_not_work_on_one_run(root: Path, tmp_path: Path) -> None:
    kept = Journal.open(tmp_path / "j.sqlite")
    run = open_batch(kept, ["level1/1_Scaled.py"], {"folder": str(root / "KernelBench")})
    other = resume_batch(kept, run.id)
    work(run, Machine().place, Budget(1))
    with pytest.raises(SessionTaken):
        work(other, Machine().place, Budget(1))


def test_a_session_is_no_run(tmp_path: Path) -> None:
    kept = Journal.open(tmp_path / "j.sqlite")
    open_journal_session(kept, {"text": "x"}, SETTINGS, bound=0.0, baseline=None, id="abc")
    with pytest.raises(NotABatchRun):
        resume_batch(kept, "abc")


# --- what is reported ------------------------------------------------------------


def row(level: int, right: bool, lane: str = "f32", **versus: float) -> ProblemResult:
    return ProblemResult(
        f"level{level}/1_x.py", level, lane, right, 1.0 if right else None, versus, "s", "", ""
    )


def test_measures_by_level_are_kernelbench_s() -> None:
    found = [row(1, True, eager=4.0), row(1, True, eager=1.0), row(1, False), row(1, False, lane="")]
    (level,) = levels(found)
    (against,) = level.against
    assert (level.problems, level.right, against.timed) == (4, 2, 2)
    assert against.geomean == pytest.approx(2.0)
    assert against.fast == (0.5, 0.25, 0.25)  # 1.0 is not more than 1


def test_lanes_are_told_apart_and_a_missing_baseline_is_no_speed() -> None:
    found = [row(1, True, eager=3.0), row(1, True, "bf16", eager=5.0), row(1, True)]
    bf16, f32 = levels(found)
    assert (bf16.lane, bf16.problems, f32.lane, f32.problems) == ("bf16", 1, "f32", 2)
    assert f32.against[0].fast == (1.0, 0.5, 0.5) and f32.against[0].timed == 1
    assert levels([row(2, False, "")]) == [LevelSummary(2, "", 1, 0, ())]


# --- the commands ----------------------------------------------------------------


def test_the_command_reports_resumes_and_shows(root: Path, machine: Machine) -> None:
    ran = CliRunner().invoke(
        command,
        [
            "--root",
            str(root),
            "--select",
            "level1/*,level2/1",
            "--attempts",
            "3",
            "--never-stop",
            "--run-attempts",
            "5",
            "--json",
        ],
    )
    document = json.loads(ran.stdout)
    assert ran.exit_code == 0 and document["stopped"].startswith("of the whole run")
    assert document["spend"]["attempts"] == 5 and len(document["problems"]) == 4
    assert [(v["level"], v["right"], v["problems"]) for v in document["levels"]] == [(1, 2, 3), (2, 1, 1)]
    still = CliRunner().invoke(command, ["--resume", document["run"], "--json"])
    assert json.loads(still.stdout)["spend"]["attempts"] == 5  # budgets hold until others are given
    more = ["--run-attempts", "100", "--json"]
    again = CliRunner().invoke(command, ["--resume", document["run"], *more])
    done = json.loads(again.stdout)
    assert done["stopped"] == "every problem's session has ended" and done["spend"]["attempts"] == 9
    third = CliRunner().invoke(command, ["--resume", document["run"], "--attempts", "4", "--json"])
    assert json.loads(third.stdout)["spend"]["attempts"] == 12
    other = CliRunner().invoke(command, ["--resume", document["run"], "--proposer", "command"])
    assert other.exit_code == 2 and "was begun with --proposer rules" in other.stderr
    assert all(n == 1 for n in machine.judged.values())
    shown = CliRunner().invoke(command, ["--resume", document["run"], "--show"])
    assert "level 1\tf32\t3\t2\teager\t2" in shown.stdout
    assert "level1/2_Hangs_up.py\t\t[exits]" in shown.stdout
    times = CliRunner().invoke(sessions_command, ["--time", document["run"], "--json"])
    problems = json.loads(times.stdout)["problems"]
    assert set(problems) == {"level1/1_Scaled.py", "level1/10_Scaled_wide.py", "level2/1_Linear.py"}
    assert all(len(problem["steps"]) > 3 for problem in problems.values())
    for one in (report_command, replay_command):
        refused = CliRunner().invoke(one, [document["run"]])
        assert refused.exit_code == 2 and "is a run over many problems" in refused.stderr


def test_a_run_is_shown_while_another_process_writes(
    root: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = ["--root", str(root), "--select", "level1/1", "--attempts", "1", "--json"]
    ran = CliRunner().invoke(command, begin)
    document = json.loads(ran.stdout)
    monkeypatch.setattr(file, "BUSY_SECONDS", 0.1)
    with closing(sqlite3.connect(Journal.open(None).path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        shown = CliRunner().invoke(command, ["--resume", document["run"], "--show", "--json"])
        going_on = CliRunner().invoke(command, ["--resume", document["run"]])
    assert shown.exit_code == 0 and json.loads(shown.stdout)["problems"] == document["problems"]
    assert going_on.exit_code == 3, "whoever goes on waits for its turn to write"


def test_a_folder_is_optimised_as_one_run(root: Path, machine: Machine) -> None:
    folder = root / "KernelBench" / "level2"
    ran = CliRunner().invoke(optimize_command, [str(folder), "--attempts", "2", "--json"])
    document = json.loads(ran.stdout)
    assert ran.exit_code == 0 and [p["code"] for p in document["problems"]] == ["", "no-start", ""]
    again = CliRunner().invoke(optimize_command, ["--resume", document["run"], "--attempts", "2", "--json"])
    assert json.loads(again.stdout)["problems"] == document["problems"]


def test_programs_of_a_run_are_built_before_their_turn(root: Path, machine: Machine) -> None:
    arguments = ["--root", str(root), "--select", "level1/*", "--attempts", "1", "--json"]
    assert CliRunner().invoke(command, arguments).exit_code == 0
    # At the extents of each module: the start programs, since what is proposed here is no program.
    assert machine.built == {("scaled", (16, 16)), ("scaled", (8, 64))}


def test_a_run_works_as_its_options_say_and_keeps_them(root: Path, machine: Machine) -> None:
    folder = root / "KernelBench" / "level2"
    how = ["--advice", "profiled", "--objective", "energy-tie", "--judge", "claude-x"]
    ran = CliRunner().invoke(optimize_command, [str(folder), "--attempts", "1", "--json", *how])
    journal = Journal.open(None)
    run = resume_batch(journal, json.loads(ran.stdout)["run"])
    settings = run.sessions[0].state.settings
    assert (settings.advice, settings.objective, settings.judge) == ("profiled", "energy-tie", "claude-x")
    other = CliRunner().invoke(optimize_command, [str(folder), "--engine", "carts"])
    assert other.exit_code == 2 and "carts" in other.stderr


def test_without_a_gpu_nothing_is_run(root: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu, "at_hand", lambda: None)
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path))
    ran = CliRunner().invoke(command, ["--root", str(root)])
    assert ran.exit_code == 2 and "level3" in ran.stderr
    ran = CliRunner().invoke(command, ["--root", str(root), "--select", "level1/*"])
    assert ran.exit_code == 3 and "no NVIDIA GPU" in ran.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["level2/2_No_start.py"], 2, "give one with --start FILE.ucu, or put 2_No_start.ucu beside it"),
        (["level2/3_Imported.py"], 3, "no NVIDIA GPU"),
        (["level1/2_Hangs_up.py", "--start", "level1/1_Scaled.ucu"], 1, "[exits]"),
        (["level1/1_Scaled.py", "--start", "level2/1_Linear.ucu"], 1, "the module has no fc_weight"),
        (["level1/1_Scaled.py"], 3, "no NVIDIA GPU"),
    ],
)
def test_a_module_that_cannot_be_optimised_says_why(
    root: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: int, said: str
) -> None:
    monkeypatch.chdir(root / "KernelBench")
    monkeypatch.setattr(gpu, "at_hand", lambda: None)
    ran = CliRunner().invoke(optimize_command, arguments)
    assert ran.exit_code == status and said in ran.stderr


def test_options_for_one_problem_are_refused_for_many(root: Path, machine: Machine) -> None:
    ran = CliRunner().invoke(optimize_command, [str(root), "-o", "x.ucu"])
    assert ran.exit_code == 2 and "for one problem" in ran.stderr
    assert not machine.order


# --- first programs from the importer ---------------------------------------------


def test_a_module_without_a_program_is_imported(root: Path) -> None:
    folder = root / "KernelBench" / "level2"
    problem = problem_at(folder / "3_Imported.py", LoaderSettings("sm90a"))
    assert problem.text == "kernel imported(x: f32[M=8, N=8]) -> f32[M, N] {\n  return relu(x)\n}\n"
    assert problem.program == "imported" and problem.module is not None
    assert isinstance(checked_candidate(problem, problem.start), ProgramCandidate)
    bf16 = problem_at(folder / "3_Imported.py", LoaderSettings("sm90a", precision="bf16"))
    assert "x: bf16[M=8, N=8]" in bf16.text and bf16.compute_type == "bf16"


def test_an_imported_program_multiplies_in_the_compute_type_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "kernel linear(x: f32[M=4, K=8], w: f32[N=2, K]) -> f32[M, N] { return dot[K](x, w) }\n"
    monkeypatch.setattr(problem_loader, "imported_start", lambda *_: ImportedStart(text, "linear"))
    monkeypatch.setattr(problem_loader, "module_of_file", lambda *_, **__: SimpleNamespace(file="f"))
    monkeypatch.setattr(problem_loader, "problem_of_module", lambda module, text, *_: text)
    (file := tmp_path / "1_Linear.py").write_text("")
    heard: list[str] = []
    for compute_type in ("tf32", None):
        how = LoaderSettings("sm90a", compute_type=compute_type)
        start = problem_at(file, how, on_start=lambda imported: heard.append(imported.text))
        assert start == heard[-1] and ("tf32(x)" in heard[-1]) == (compute_type == "tf32")


def test_an_imported_program_is_built_while_its_module_is_looked_at(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = Event()

    def build(checked: Any, program: Any, sizes: tuple[int, ...], arch: str, **named: Any) -> None:
        assert (program.name, sizes, arch) == ("imported", (8, 8), "sm90a")
        built.set()

    looked_at = problem_loader.module_of_file

    def look(*arguments: Any, **named: Any) -> TorchModule:
        assert built.wait(60), "the module is not known yet"
        return looked_at(*arguments, **named)

    monkeypatch.setattr(prebuild, "build_program", build)
    monkeypatch.setattr(problem_loader, "module_of_file", look)
    with ThreadPoolExecutor(1) as pool:
        begin = prebuild.start_builder("sm90a", H200, pool, prebuild.BuildCounter())
        path = root / "KernelBench" / "level2" / "3_Imported.py"
        assert problem_at(path, LoaderSettings("sm90a"), on_start=begin).program == "imported"


def test_a_given_program_comes_before_the_importer_s(root: Path, tmp_path: Path) -> None:
    own = "kernel own(x: f32[A, B]) -> f32[A, B] { return relu(x) }\n"
    (tmp_path / "3_Imported.ucu").write_text(own)
    folder = root / "KernelBench" / "level2"
    loader_settings = LoaderSettings("sm90a", start=tmp_path)
    assert problem_at(folder / "3_Imported.py", loader_settings, folder).text == own


def test_a_proposer_that_writes_is_told_why_the_importer_does_not(root: Path) -> None:
    folder = root / "KernelBench" / "level2"
    problem = problem_at(folder / "2_No_start.py", LoaderSettings("sm90a", writes=True))
    assert problem.text == "" and "2_No_start.py:12, return torch.fft.fft(x).real" in problem.no_start
    assert problem_of_json(json.loads(json.dumps(problem_to_json(problem)))) == problem


PLAIN = """
from torch import nn


class Plain(nn.Module):
    def forward(self, x, y):
        return x @ y.T
"""


def test_a_class_of_a_file_is_a_problem(tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text(PLAIN)
    how = LoaderSettings("sm90a", cls="Plain", types=("bf16[16, 8]", "bf16[4, 8]"))
    problem = problem_at(file, how)
    assert problem.module is not None and problem.program == "plain"
    assert [str(spec) for spec in problem.module.facts.inputs] == ["bfloat16 of 16 x 8", "bfloat16 of 4 x 8"]
    assert problem.text.startswith("kernel plain(x: bf16[M=16, K=8], y: bf16[N=4, K]) -> bf16[M, N] {")
    with pytest.raises(Unusable, match="is no type"):
        problem_at(file, replace(how, types=("16, 8",)))
    with pytest.raises(Unusable, match="no get_inputs"):
        problem_at(file, replace(how, types=()))


def test_the_command_takes_a_class_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "at_hand", lambda: None)
    (tmp_path / "plain.py").write_text(PLAIN)
    arguments = [f"{tmp_path / 'plain.py'}:Plain", "--input", "bf16[16, 8]", "--input", "bf16[4, 8]"]
    ran = CliRunner().invoke(optimize_command, arguments)
    assert ran.exit_code == 3 and "no NVIDIA GPU" in ran.stderr
    missing = CliRunner().invoke(optimize_command, [f"{tmp_path / 'other.py'}:Plain"])
    assert missing.exit_code == 2 and "does not exist" in missing.stderr
