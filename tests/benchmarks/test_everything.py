"""The plan of everything that is to be shown, worked off by a clock and scripts that are faked."""

from __future__ import annotations

import argparse
import importlib
import json
import math
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import bars, everything, harness, sessions
from benchmarks.bars import Bar
from benchmarks.everything import GRACE_SECONDS, ITEMS, LEAST_SECONDS, Item, Run
from ucutlass.agent.batch import open_batch
from ucutlass.agent.journal import Journal

MACHINE = {"gpu": "a table", "torch": "0", "commit": "one", "tree": "abc"}
SOME = (
    Item("a", "1.1", "first", "few", "--drawn 3", 200),
    Item("b", "1.2", "second", "models", "", 200, spreads=False),
    Item("c", "1.3", "third", "few", "{root}", 100, ends=False, seeded=False),
)


class Machine:
    """A clock, and scripts that take all the time that they are given, or only so much; a script writes a summary of
    one class with the geometric mean that stands for its item."""

    def __init__(self, folder: Path, means: dict[str, float], unreached: Sequence[str] = ()) -> None:
        self.folder, self.means, self.unreached = folder, means, unreached
        self.time = 1000.0
        self.asked: list[tuple[str, float]] = []

    def now(self) -> float:
        return self.time

    def start(self, command: Sequence[str], limit: float) -> int | None:
        out = Path(command[command.index("--out") + 1])
        name = out.stem.removesuffix("-7")
        self.asked.append((name, limit - GRACE_SECONDS))
        self.time += min(120.0, limit - GRACE_SECONDS)
        mean = self.means[name]
        if mean == 0.0:
            return None
        (figure,) = bars.figures({"all": {"x": mean}}, {"all": Bar(geomean=1.0)})
        left = ["y"] if name in self.unreached else []
        bars.write_summary(out, [figure], MACHINE, unreached=left)
        return bars.status([figure], (), left)


def _run(folder: Path, devices: int = 1, root: Path | None = None) -> Run:
    return Run(folder, devices, 7, root)


def test_items_go_in_order_until_the_time_is_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    machine = Machine(tmp_path, {"a": 1.5, "b": 1.2, "c": 1.1})
    statuses = everything.worked_off(SOME, _run(tmp_path, root=tmp_path), 330.0, machine.start, machine.now)
    assert statuses == {"a": 0, "b": 0, "c": 0}
    assert machine.asked == [("a", 240.0), ("b", 210.0), ("c", 90.0)], "what one leaves is the next one's"
    assert capsys.readouterr().out.splitlines()[0] == "a: 120 s, exit status 0", "what its item should say"
    machine = Machine(tmp_path, {"a": 1.5, "b": 1.2, "c": 1.1})
    everything.worked_off(SOME, _run(tmp_path), 130.0, machine.start, machine.now)
    assert machine.asked == [("a", 130.0)], "10 s are too few for the next"


def test_a_plan_gives_each_its_share_of_several_gpus() -> None:
    planned = [(item.name, seconds) for item, seconds in everything.planned(SOME, 4, 400.0)]
    assert planned == [("a", 90.0), ("b", 240.0), ("c", 65.0)]
    assert [item.name for item, _ in everything.planned(SOME, 1, LEAST_SECONDS - 1)] == []


def test_a_script_gets_the_options_that_it_has(tmp_path: Path) -> None:
    run = _run(tmp_path, 4, Path("bench"))
    first, _, last = (everything.command_of(item, run, 90.0)[2:] for item in SOME)
    out = str(tmp_path / "a-7.json")
    assert first == f"benchmarks.few --drawn 3 --out {out} --seed 7 --seconds 90 --devices 4".split()
    assert last[1] == "bench" and not {"--seed", "--seconds"} & set(last)


def test_what_is_whole_for_these_programs_and_device_is_not_run_again(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"a": 0.5, "b": 1.2, "c": 1.1}, unreached=["b"])
    run = _run(tmp_path, root=tmp_path)
    everything.worked_off(SOME, run, 1000.0, machine.start, machine.now)
    names = [item.name for item in everything.due(SOME, run, MACHINE | {"commit": "two"})]
    assert names == ["b"], "a missed bar is a result; what was not reached is none"
    assert len(everything.due(SOME, run, MACHINE | {"tree": "other"})) == 3
    assert [i.name for i in everything.due(SOME, _run(tmp_path), MACHINE | {"gpu": "b"})] == ["a", "b"]
    other = Run(tmp_path, 1, 8, tmp_path)
    assert [i.name for i in everything.due(SOME, other, MACHINE)] == ["a", "b"], "of another seed"


def test_the_table_has_a_line_for_each_class_and_names_what_is_absent(tmp_path: Path) -> None:
    machine = Machine(tmp_path, {"a": 0.5, "b": 0.0, "c": 1.1}, unreached=["c"])
    statuses = everything.worked_off(SOME, _run(tmp_path), 1000.0, machine.start, machine.now)
    text = "\n".join(everything.table(SOME, _run(tmp_path)))
    assert (
        "| 1.1 | a: all | geomean 1.0 | geomean 0.500 | 0.500, x | 1 | - | geomean 1.0 | a table, torch 0, one |"
        in text
    )
    assert "| 1.3 | c: all | geomean 1.0 | geomean 1.100 |" in text and "c: not reached | | 1 | y" in text
    assert "nothing of 1.2: second (b)" in text
    assert everything.status(SOME, _run(tmp_path), statuses) == 1
    assert everything.status(SOME[2:], _run(tmp_path), {}) == 3
    assert everything.status(SOME[2:], _run(tmp_path), {"c": 2}) == 1, "a script that refused its options"


def test_bounds_from_above_are_shown_by_the_median_and_the_most(tmp_path: Path) -> None:
    (figure,) = bars.figures({"s": {"x": 3.0, "y": 5.0, "z": 4.0}}, {"s": Bar(most=4.0)})
    cells = everything.cells(SOME[0], figure.as_json(), MACHINE)
    assert cells[3:5] == ["median 4.000", "5.000, y"] and cells[7] == "most 4.0"


class Taken(Exception):
    """A script has read its options."""


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_every_item_s_command_is_taken_by_its_script(
    item: Item, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script's own parser reads it; what it would do with its options is its own test's."""
    command = everything.command_of(item, _run(tmp_path, 2, tmp_path), 60.0)
    script = importlib.import_module(command[2])
    parse = argparse.ArgumentParser.parse_args

    def parsed(parser: argparse.ArgumentParser, *arguments: Any) -> argparse.Namespace:
        options = parse(parser, *arguments)
        assert item.ends or not hasattr(options, "seconds"), "it could end by itself"
        raise Taken

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    monkeypatch.setattr(sys, "argv", command[2:])
    with pytest.raises(Taken):
        script.main()


def test_the_plan_of_everything_runs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "machine", lambda: dict(MACHINE))
    words = ["everything", "--out", str(tmp_path / "none"), "--seconds", "1000", "--plan"]
    monkeypatch.setattr(sys, "argv", words)
    assert everything.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 3 and all("benchmarks." in line for line in lines) and not list(tmp_path.iterdir())


def test_a_script_that_does_not_end_is_ended(capsys: pytest.CaptureFixture[str]) -> None:
    assert everything.started([sys.executable, "-c", "import time; time.sleep(100)"], 0.5) is None
    assert everything.started([sys.executable, "-c", "raise SystemExit(3)"], 60.0) == 3


# --- sessions -----------------------------------------------------------------------------


def test_a_run_of_sessions_is_held_against_its_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that was cut: a problem was not reached, one's session goes on, one's has ended without a result."""
    asked: list[list[str]] = []
    problems = [
        _result("level1/1", 1, {"eager": 2.5}),
        _result("level2/1", 2, {"eager": 2.0}),
        _result("level2/2", 2, {}),
        _result("level3/1", 3, {}, session=""),
        _result("level3/2", 3, {}, ended="its own program was rejected", code="no-result"),
        _result("level3/3", 3, {}, session="", code="random"),
    ]
    times = {
        "level1/1": {"first": 4.0, "confirmed": 15.0, "attempts": [*map(float, range(1, 41))], "wall": 50.0},
        "level2/1": {"first": 8.0, "confirmed": 12.0, "attempts": [9.0], "wall": 13.0},
        "level2/2": {"first": 9.0, "confirmed": None, "attempts": [9.0], "wall": 21.0},
        "level3/2": {"first": 3.0, "confirmed": None, "attempts": [3.0], "wall": 5.0},
    }

    def called(words: list[str]) -> dict[str, object]:
        return {"problems": times} if words[0] == "sessions" else {"run": "run-1", "problems": problems}

    monkeypatch.setattr(sessions, "called", called)
    monkeypatch.setattr(sessions, "worked", lambda words, limit: asked.append(words))
    monkeypatch.setattr(harness, "machine", lambda: dict(MACHINE))
    out = tmp_path / "sessions.json"
    monkeypatch.setattr(sys, "argv", ["sessions", "ROOT", "--out", str(out), "--seconds", "60"])
    with pytest.raises(SystemExit, match="no run was begun"):
        sessions.main()
    open_batch(Journal.open(out.with_suffix(".sqlite")), [p["name"] for p in problems], {})
    assert sessions.main() == 1
    text = capsys.readouterr().out
    assert "level 2 over eager: geomean 2.000" in text and "missed: geomean 2.9" in text
    assert "cannot be used: level3/3" in text and "nothing delivered: level3/2: its words" in text
    summary = json.loads(bars.summary_path(out).read_text())
    assert summary["not reached"] == ["level2/2", "level3/1"] and summary["wrong"] == ["level3/2"]
    rows = {figure["class"]: (figure["rows"], figure["median"]) for figure in summary["classes"]}
    assert rows == {
        "first time": (4, 6.0),
        "confirmed": (4, math.inf),  # two never: one session has ended, the other spent more than the bar
        "40 attempts": (2, math.inf),  # a session that goes on within the bar has no figure yet
        "level 1 over eager": (1, 2.5),
        "level 2 over eager": (1, 2.0),
    }
    assert "--root" in asked[0] and "--resume" in asked[1] and "--root" not in asked[1]


def _result(
    name: str, level: int, versus: dict[str, float], *, session: str = "s", code: str = "", ended: str = ""
) -> dict[str, object]:
    own = {"name": name, "level": level, "right": bool(versus), "versus": versus, "words": "its words"}
    return {**own, "session": session, "code": code, "ended": ended}


def test_a_run_of_sessions_that_does_not_end_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "ENDING_SECONDS", 0.5)
    stubborn = tmp_path / "stubborn"
    stubborn.write_text(
        "#!/bin/sh\ntrap '' TERM\necho $$ > $(dirname $0)/pid\nwhile :; do sleep 0.05; done\n"
    )
    stubborn.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stubborn))
    sessions.worked(["kernelbench"], 0.5)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
