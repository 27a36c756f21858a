"""The runner of all benchmarks: limits, what it keeps, and going on in another call."""

from __future__ import annotations

import importlib.util
import json
import sys
import tarfile
from pathlib import Path
from threading import Event

import pytest

from benchmarks import everything
from benchmarks.budget import OUT_OF_TIME, after
from benchmarks.everything import Ended, keep_packed, pack, read_state, resume, run, run_all
from benchmarks.steps import STEPS, Step


def step(name: str, *arguments: str, least: int = 0, most: int = 60, goes_on: bool = False) -> Step:
    return Step(name, lambda _, __: arguments, least, most, goes_on)


@pytest.mark.parametrize("one", STEPS, ids=lambda s: s.name)
def test_steps_name_modules_and_limits(one: Step, tmp_path: Path) -> None:
    arguments = one.arguments(tmp_path, 77)
    assert importlib.util.find_spec(arguments[0]) is not None
    assert 0 < one.least <= one.most
    assert not one.goes_on or arguments[arguments.index("--seconds") + 1] == "77"


def test_names_are_unique() -> None:
    assert len({s.name for s in STEPS}) == len(STEPS)


def test_output_is_kept_and_failure_told(tmp_path: Path) -> None:
    assert run(step("fine", "this"), tmp_path).status == 0
    wrong = run(step("wrong", "no_such_module_here"), tmp_path)
    assert (wrong.status, wrong.over) == (1, True)
    assert "no_such_module_here" in (tmp_path / "wrong.txt").read_text()
    long = run(step("long", "timeit", "-n", "1", "while True: pass", most=1), tmp_path)
    assert (long.status, long.over, long.words) == (None, False, "not done after 1 s")


def _stopping(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Step:
    """A step that stops in time once, and then goes on to its end."""
    (folder / "stopping.py").write_text(
        f"import pathlib, sys\np = pathlib.Path({str(folder / 'rows')!r})\n"
        f"p.open('a').write('.')\nsys.exit({OUT_OF_TIME} if len(p.read_text()) < 2 else 0)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(folder))
    return step("stopping", "stopping", goes_on=True)


def test_a_step_goes_on_in_another_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [step("fine", "this"), _stopping(tmp_path, monkeypatch)]
    out = tmp_path / "out"
    out.mkdir()
    assert [e and e.over for e in run_all([wanted], out, after(None)).values()] == [True, False]
    before = (out / "fine.txt").read_bytes()
    assert [e and e.over for e in run_all([wanted], out, after(None)).values()] == [True, True]
    assert (out / "fine.txt").read_bytes() == before, "what was done has not run again"
    assert read_state(out)["stopping"].status == 0


def test_what_does_not_fit_is_left(tmp_path: Path) -> None:
    wanted = [[step("long", "this", least=100)], [step("short", "this")]]
    found = run_all(wanted, tmp_path, after(50.0))
    assert found["long"] is None and found["short"] is not None
    assert list(read_state(tmp_path)) == ["short"]


def test_steps_side_by_side_share_the_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("UCUTLASS_BUILD_JOBS", raising=False)
    monkeypatch.setattr(everything, "jobs", lambda: 8)
    (tmp_path / "said.py").write_text("import os; print(os.environ.get('UCUTLASS_BUILD_JOBS'))\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    run_all([[step("a", "said"), step("b", "said")], [step("c", "said")]], tmp_path, after(None))
    assert [(tmp_path / f"{name}.txt").read_text().strip() for name in "abc"] == ["4", "4", "None"]


def test_results_travel_packed(tmp_path: Path) -> None:
    made, packed, again = tmp_path / "made", tmp_path / "to" / "results.tar.gz", tmp_path / "again"
    (made / "speed").mkdir(parents=True)
    (made / "speed" / "rows.jsonl").write_text('{"name": "a"}\n')
    ended = {"words": "done", "status": 0, "seconds": 1.0, "over": True}
    (made / "state.json").write_text(json.dumps({"speed": ended}))
    (made / ".half").write_text("not to be packed")
    stop = Event()
    stop.set()
    keep_packed(made, packed, stop)
    again.mkdir()
    resume(packed, again)
    assert read_state(again) == {"speed": Ended("done", 0, 1.0, True)}
    assert (again / "speed" / "rows.jsonl").read_text() == '{"name": "a"}\n'
    assert not (again / ".half").exists()
    other = tmp_path / "other"
    resume(made, other)
    assert (other / "speed" / "rows.jsonl").exists()


def test_a_file_too_large_is_left_out_and_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(everything, "LARGEST", 10)
    made = tmp_path / "made"
    made.mkdir()
    (made / "large").write_text("x" * 11)
    (made / "small").write_text("x")
    pack(made, tmp_path / "p.tar.gz")
    with tarfile.open(tmp_path / "p.tar.gz") as archive:
        assert archive.getnames() == ["small"]
    assert "large" in capsys.readouterr().out


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(everything, "STEPS", (step("fine", "this"), step("wrong", "no_such_module_here")))

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["everything", *arguments])
        return everything.main()

    out, packed = tmp_path / "out", tmp_path / "p.tar.gz"
    assert call("--out", str(out), "--only", "fine+wrong", "--without", "wrong", "--pack", str(packed)) == 0
    assert call("--out", str(tmp_path / "next"), "--resume", str(packed)) == 1
    assert set(read_state(tmp_path / "next")) == {"fine", "wrong"}
    assert call("--out", str(tmp_path / "none"), "--without", "wrong", "--budget", "1") in (0, OUT_OF_TIME)
    with pytest.raises(SystemExit):
        call("--out", str(out), "--only", "unheard of")
