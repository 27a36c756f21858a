"""`ucc tune` and `ucutlass.tune` with the tuning database, sets of shapes, and progress."""

from __future__ import annotations

import io
import math
import sys
from pathlib import Path
from types import ModuleType

import pytest
from cli_machine import Machine
from rich.console import Console
from test_command import LINEAR, SIZES, Gpu, gpu, machine, program  # noqa: F401

import ucutlass
from ucutlass import frontend
from ucutlass.api import NoKernelsHere
from ucutlass.cli import tune_show
from ucutlass.engine.local import LocalEngine
from ucutlass.ir.schedule import show
from ucutlass.runtime.errors import StoreError, StoreFull
from ucutlass.runtime.store import EvidenceStore
from ucutlass.shapes import ShapeError, complete
from ucutlass.tune.api import TuningResult
from ucutlass.tune.database import TunedRow, TuningDatabase, key_of
from ucutlass.tune.job import job_of
from ucutlass.tune.policy import SearchLimits
from ucutlass.tune.tune import FailedTrial, TimedGroup, Trial

# ruff: noqa: F811

SET = "M,weight\n4096,1\n2048,3\n8192,0.5\n"
COMMON = ("-s", "N=4096,K=4096")


def row_of(m: int = 4096) -> TunedRow | None:
    kernel = frontend.kernel(frontend.read_text(LINEAR))
    sizes = complete(kernel, {"M": m, "N": 4096, "K": 4096})
    return TuningDatabase.open().find(key_of(kernel, sizes, "NVIDIA H200", "sm90a"))


@pytest.fixture
def shapes(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.csv"
    path.write_text(SET)
    return path


# --- one shape -------------------------------------------------------------------


def test_the_winner_is_recorded_and_builds_draw_on_it(machine: Machine, gpu: Gpu, program: Path) -> None:
    before = machine.ucc("build", program, *SIZES, "--json").json
    tuned = machine.ucc("tune", program, *SIZES, "--json").json
    row = row_of()
    assert row is not None and show(row.request) == tuned["schedule"]
    assert row.microseconds == tuned["microseconds"] and row.record == tuned["record"]
    assert row.bound == tuned["bound"] and row.versions["nvcc"] == "13.0.88"
    assert EvidenceStore.open().get(row.record).created == row.created and row_of(2048) is None
    builds = machine.builds
    after = machine.ucc("build", program, *SIZES, "--json").json
    assert after["schedule"] == tuned["schedule"] != before["schedule"]
    assert before["from"] == "the program's schedule"
    assert after["from"].startswith(f"tuned: {tuned['microseconds']:.2f} us")
    assert machine.builds == builds, "the tuned kernel is in the cache already"
    (told,) = machine.ucc("explain", program, *SIZES, "--json").json["recorded"]
    assert told == {
        "gpu": "NVIDIA H200",
        "schedule": tuned["schedule"],
        "microseconds": tuned["microseconds"],
        "record": tuned["record"],
    }
    values = dict(line.split("\t", 1) for line in machine.ucc("explain", program, *SIZES).out.splitlines())
    assert values["recorded"] == f"{tuned['microseconds']:.2f} us on NVIDIA H200: {tuned['schedule']}"


def test_a_slower_result_is_told_and_not_recorded(machine: Machine, gpu: Gpu, program: Path) -> None:
    machine.ucc("tune", program, *SIZES)
    first = row_of()
    gpu.tiles = {area: 2 * seconds for area, seconds in gpu.tiles.items()}
    result = machine.ucc("tune", program, *SIZES)
    assert result.status == 0 and row_of() == first and len(EvidenceStore.open().find(kind="tune")) == 2
    values = dict(line.split("\t", 1) for line in result.out.splitlines())
    assert values["recorded"].startswith("a faster one of 360.00 us stays recorded: warps")


def test_nothing_is_recorded_where_nothing_won(machine: Machine, gpu: Gpu, program: Path) -> None:
    machine.behave("exit 1\n")
    assert machine.ucc("tune", program, *SIZES).status == 1 and row_of() is None


def test_an_unreadable_database_is_an_error_before_anything_is_built(
    machine: Machine, gpu: Gpu, program: Path
) -> None:
    TuningDatabase.open().path.parent.mkdir()
    TuningDatabase.open().path.write_bytes(b"no database" * 1000)
    result = machine.ucc("tune", program, *SIZES)
    assert result.status == 3 and "is damaged" in result.err and "to fix it: move" in result.err
    assert machine.builds == 0 and not gpu.calls
    with pytest.raises(StoreError):
        ucutlass.tune(program, {"M": 4096, "N": 4096, "K": 4096})


def test_a_disk_that_fills_up_leaves_the_record(
    machine: Machine, gpu: Gpu, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record is kept first, so no row names one that is not there."""

    def full(*_: object) -> TunedRow:
        raise StoreFull("no space left for the tuning database", "free some")

    monkeypatch.setattr(TuningDatabase, "keep", full)
    result = machine.ucc("tune", program, *SIZES, "--write")
    assert result.status == 3 and "no space left for the tuning database" in result.err
    assert len(EvidenceStore.open().find(kind="tune")) == 1 and program.read_text() == LINEAR


# --- sets ------------------------------------------------------------------------


def test_a_set_shares_builds_and_is_written_as_guards(
    machine: Machine, gpu: Gpu, program: Path, shapes: Path
) -> None:
    result = machine.ucc("tune", program, "-s", shapes, *COMMON, "--json", "--write")
    assert result.status == 0, result.out + result.err
    json = result.json
    assert [one["sizes"]["M"] for one in json["shapes"]] == [4096, 2048, 8192]
    assert [one["weight"] for one in json["shapes"]] == [1.0, 3.0, 0.5]
    assert machine.builds <= 3, "three tiles, whatever the shape"
    assert all(row_of(m) is not None for m in (4096, 2048, 8192))
    (only,) = json["dispatch"]
    assert "tile 128x128x64" in only["schedule"] and only["shapes"] == [0, 1, 2]
    assert json["gain"] > 1 and json["ok"]
    text = program.read_text()
    assert "when K == 4096 and N == 4096 and (M == 4096 or M == 2048 or M == 8192) {" in text
    assert machine.ucc("fmt", "--check", program).status == 0
    assert machine.ucc("check", program).status == 0


def test_a_set_in_words(machine: Machine, gpu: Gpu, program: Path, shapes: Path) -> None:
    gpu.wrong = (128, 128, 64)
    result = machine.ucc("tune", program, "-s", shapes, *COMMON, "--guards", "1", "--progress")
    assert result.status == 0, result.out + result.err
    lines = [line.split("\t") for line in result.out.splitlines()]
    assert lines[0] == ["shape", "weight", "time", "of the bound", "speed-up", "schedule", "keeps"]
    assert lines[2][:3] == ["M=2048,K=4096,N=4096", "3", "400.00 us"] and lines[2][5:] == ["1", "100.0%"]
    assert lines[4][0] == "schedule 1" and "tile 128x256x64" in lines[4][1]
    assert lines[5][0] == "gain" and "of 3 of 3 shapes" in lines[5][1]
    # Another worker's test may hold the GPU lock just then.
    heard = [line for line in result.err.splitlines() if not line.startswith("ucc: waiting for ")]
    fixed = [line for line in heard if line.startswith("ucc: the schedule fixes warps cooperative  tile ")]
    assert len(fixed) == 1 and len(heard) == 10, heard
    assert heard[-1].startswith("ucc: linear M=8192 K=4096")
    assert "shape 3 of 3; best 3" in heard[-1] and "3 of at most 3 builds" in heard[-1]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("M\n", "there are no shapes"),
        ("M\n1\nx\n", "shapes.csv:3: 'M=x' is not of the form"),
        ("M,N\n1,2\n", "shapes.csv:1: N is a column here and given with -s"),
    ],
)
def test_mistakes_in_a_set_are_the_calls(
    machine: Machine, program: Path, shapes: Path, text: str, words: str
) -> None:
    shapes.write_text(text)
    result = machine.ucc("tune", program, "-s", shapes, *COMMON)
    assert result.status == 2 and words in result.err
    shapes.unlink()
    assert machine.ucc("tune", program, "-s", shapes, *COMMON).status == 2


def test_a_shape_without_a_legal_kernel_is_told_before_any_is_tuned(
    machine: Machine, gpu: Gpu, program: Path, shapes: Path
) -> None:
    program.write_text(LINEAR.replace("schedule sm90a {", "schedule sm90a when M < 8192 {"))
    program.write_text(
        program.read_text().rstrip()[:-1] + "\n  schedule sm90a { warps pingpong tile 100x64x64 }\n}\n"
    )
    result = machine.ucc("tune", program, "-s", shapes, *COMMON)
    assert result.status == 1 and "UC04" in result.err and machine.builds == 0


def test_an_engine_that_is_none(machine: Machine, gpu: Gpu, program: Path) -> None:
    result = machine.ucc("tune", program, *SIZES, "--engine", "cloud")
    assert result.status == 2 and "is not an engine" in result.err


class Elsewhere:
    """An engine that is not this machine's, as far as anyone can tell."""

    def __init__(self) -> None:
        self._local = LocalEngine()

    def __getattr__(self, name: str) -> object:
        return getattr(self._local, name)


def test_the_client_of_an_engine_needs_no_gpu(
    machine: Machine, gpu: Gpu, program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucutlass.cli.engines.engine.open", lambda spec, on_wait: Elsewhere())
    monkeypatch.setattr("ucutlass.cli.gpu.at_hand", lambda: pytest.fail("this machine's GPU was asked for"))
    result = machine.ucc("tune", program, *SIZES, "--engine", "dask://there:8786", "--json")
    assert result.status == 0 and "tile 128x128x64" in result.json["schedule"]
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: None)
    result = machine.ucc("tune", program, *SIZES, "--engine", "dask://there:8786")
    assert result.status == 3 and "no NVIDIA GPU at the engine's worker" in result.err


# --- from Python -----------------------------------------------------------------


@pytest.mark.parametrize("loaded", [False, True])
def test_python_calls_the_package(machine: Machine, gpu: Gpu, program: Path, loaded: bool) -> None:
    what = ucutlass.load(program) if loaded else program
    heard: list[Trial] = []
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    result = ucutlass.tune(what, sizes, budget=60.0, builds=3, on_trial=heard.append)
    assert isinstance(result, TuningResult) and result.ok and result.microseconds == pytest.approx(360.0)
    assert result.builds == len(heard) == 3 and result.gain is not None and result.gain > 1
    assert result.schedule == result.details["schedule"] and "tile 128x128x64" in result.schedule
    row = row_of()
    assert row is not None and row.record == result.record and dict(result.sizes) == sizes
    assert isinstance(ucutlass.tune, ModuleType) and sys.modules["ucutlass.tune"] is ucutlass.tune


def test_python_is_told_of_mistakes(machine: Machine, program: Path) -> None:
    sizes = {"M": 4096, "N": 4096, "K": 4096}
    for wrong in ({"budget": 0.0}, {"budget": math.nan}, {"budget": math.inf}, {"builds": 0}):
        with pytest.raises(ValueError, match="seconds above 0"):
            ucutlass.tune(program, sizes, **wrong)
    with pytest.raises(ShapeError):
        ucutlass.tune(program, {"M": 4096})
    with pytest.raises(NoKernelsHere):
        ucutlass.tune(program, sizes)


@pytest.mark.parametrize("listed", [False, True])
def test_python_tunes_sets(machine: Machine, gpu: Gpu, program: Path, shapes: Path, listed: bool) -> None:
    sizes = [{"M": m, "N": 4096, "K": 4096} for m in (4096, 2048, 8192)]
    shapes.write_text("M,N,K,weight\n4096,4096,4096,1\n2048,4096,4096,3\n8192,4096,4096,0.5\n")
    heard: list[tuple[int, Trial]] = []
    result = ucutlass.tune_shapes(
        program,
        str(shapes) if listed else sizes,
        weights=None if listed else (1, 3, 0.5),
        on_job=lambda at, job: lambda trial: heard.append((at, trial)),
    )
    assert result.ok and result.gain is not None and result.gain > 1
    assert [dict(one.sizes) for one in result.shapes] == sizes
    assert {at for at, _ in heard} == {0, 1, 2} and len(heard) == sum(one.builds for one in result.shapes)
    ((schedule, taking),) = result.dispatch
    assert "tile 128x128x64" in schedule and taking == (0, 1, 2)
    assert [one["weight"] for one in result.details["shapes"]] == [1, 3, 0.5]
    for one in result.shapes:
        row = row_of(one.sizes["M"])
        assert row is not None and row.record == one.record and show(row.request) == one.schedule


def test_python_is_told_of_mistakes_in_sets(machine: Machine, program: Path, shapes: Path) -> None:
    one = {"M": 4096, "N": 4096, "K": 4096}
    for weights in ((1, 2), (0,), (math.nan,)):
        with pytest.raises(ValueError, match="weights"):
            ucutlass.tune_shapes(program, [one], weights=weights)
    for wrong in ({"guards": 0}, {"builds": 0}):
        with pytest.raises(ValueError, match="least"):
            ucutlass.tune_shapes(program, [one], **wrong)
    for none in ([], shapes):
        with pytest.raises(ValueError, match="weights"):
            ucutlass.tune_shapes(program, none, weights=(1,))
    with pytest.raises(ShapeError):
        ucutlass.tune_shapes(program, [one, {"M": 4096}])
    with pytest.raises(NoKernelsHere):
        ucutlass.tune_shapes(program, [one])


# --- progress --------------------------------------------------------------------


def test_the_live_table(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=200, height=40, legacy_windows=False)
    monkeypatch.setattr(tune_show, "Console", lambda **_: console)
    checked = frontend.read_text(LINEAR)
    kernel = frontend.kernel(checked)
    job = job_of(checked, kernel, {"M": 4096, "N": 4096, "K": 4096}, "sm90a")
    with tune_show.progress(2, SearchLimits(builds=8, seconds=120.0), False, False) as on_job:
        on_trial = on_job(1, job)
        on_trial(Trial(0, TimedGroup((800e-6, 400e-6)), 1.0))
        on_trial(Trial(1, FailedTrial("build", "nvcc says\nno \x1b[2J"), 2.0))
    shown = screen.getvalue()
    share = job.space.bound / 400e-6
    for words in (
        "linear M=4096 N=4096 K=4096, shape 2 of 2",
        f"best 400.00 us, {share:.0%} of the bound",
        "2 of at most 3 builds",
        "s left",
        "nvcc says; no \\x1b[2J",
    ):
        assert words in shown


def test_no_progress_is_shown_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    checked = frontend.read_text(LINEAR)
    job = job_of(checked, frontend.kernel(checked), {"M": 4096, "N": 4096, "K": 4096}, "sm90a")
    with tune_show.progress(1, SearchLimits(), False, False) as on_job:
        on_job(0, job)(Trial(0, TimedGroup((800e-6,)), 1.0))
    assert capsys.readouterr() == ("", "")
