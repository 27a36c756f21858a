"""Every binary of a small space is timed once, and what was recorded is a table to search on."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from benchmarks import budget, exhaustive
from benchmarks.optimise_dry import H200
from ucutlass.agent.replay.tables import compare
from ucutlass.engine.work import TABLE, Task
from ucutlass.runtime import isolation
from ucutlass.tune.tables import NotATable, read

NAME = "l1_88_new_gelu f32"


class Engine:
    """Builds and times by rule. `refuses` are requests' places that do not build, `crashes` that do not
    run, by the order in which they are asked."""

    gpus, cpus = 1, 2

    def __init__(self, refuses: str = "", crashes: str = "") -> None:
        self.refuses, self.crashes = refuses, crashes
        self.asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def submit(self, name: str, arguments: Any, **more: Any) -> Task:
        assert name in TABLE
        arguments = json.loads(json.dumps(dict(arguments)))
        (request,) = arguments["requests"]
        words = json.dumps(request, sort_keys=True)
        with self._lock:
            self.asked[f"{name} {words}"] += 1
        future: Future[isolation.Outcome] = Future()
        future.set_result(self._outcome(name, words, arguments))
        return Task(future, lambda: None)

    def _outcome(self, name: str, words: str, arguments: Any) -> isolation.Outcome:
        if name == "build":
            refused = self.refuses and self.refuses == words
            made, said = ("", "BuildError: no") if refused else (f"key of {words}", "")
            return isolation.Returned({"made": [made], "words": [said], "artifacts": []}, "")
        assert arguments["keys"] == [f"key of {words}"]
        if self.crashes == words:
            return isolation.Crashed("SIGSEGV", "")
        taken = 1e-4 * (1 + int(hashlib.sha256(words.encode()).hexdigest()[:4], 16) / 2**16)
        return isolation.Returned({"seconds": [taken], "words": [""]}, "")

    def leave(self, near: str) -> None: ...
    def close(self) -> None: ...


@pytest.fixture(scope="module")
def items() -> list[exhaustive.Item]:
    (task,) = exhaustive.wanted(NAME)
    return exhaustive.items_of(task, H200, free=False)


def words_of(item: exhaustive.Item) -> str:
    return json.dumps(json.loads(json.dumps(item.request)), sort_keys=True)


def saved(path: Path, items: list[exhaustive.Item], rows: list[Any]) -> Path:
    made = exhaustive.tables(items, rows, free=False)
    path.write_text(json.dumps({"machine": {"gpu": "NVIDIA H200, 580, 1980 MHz"}, "tables": made}))
    return path


def test_there_are_ten_small_spaces() -> None:
    tasks = exhaustive.wanted("")
    assert len(tasks) >= 10 and len({t.name for t in tasks}) == len(tasks)
    with pytest.raises(ValueError, match=r"no kernel .* l2_99"):
        exhaustive.wanted("l2_99")  # a pipeline


def test_a_space_is_timed_once_and_searched(tmp_path: Path, items: list[exhaustive.Item]) -> None:
    rows, engine = tmp_path / "r.jsonl", Engine()
    exhaustive.record(engine, items, rows, budget.NEVER)
    assert set(engine.asked.values()) == {1} and len(engine.asked) == 2 * len(items)
    exhaustive.record(engine, items, rows, budget.NEVER)  # nothing is asked again
    assert set(engine.asked.values()) == {1}
    (table,) = read(saved(tmp_path / "t.json", items, budget.lines(rows)))
    assert len(table.space.groups) == len(items) and table.refused == 0
    own = table.space.groups[table.space.start[0]].members[0]
    assert own.plan in [item.planned.plan for item in items]
    (flat,) = compare([table], ["flat"], seeds=2)
    assert 1 <= flat.mean <= len(items)


def test_the_recorded_spaces_do_not_ask_today_s_planner_what_it_weighs() -> None:
    """Rows are planned by their own schedules, and the start is the choice of then."""
    tables = read(Path(exhaustive.__file__).parent / "data" / "h200_spaces.json")
    assert len(tables) == 13 and sum(len(t.times) for t in tables) == 696
    assert not any(t.refused for t in tables)
    (cumsum,) = (t for t in tables if t.shape == "l1_93_masked_cumsum f32")
    at, member = cumsum.space.start
    assert cumsum.times[at][member] == pytest.approx(2828.0e-6, rel=1e-3)
    assert cumsum.space.groups[at].members[member].request.vector == 8


def test_what_does_not_build_or_run_has_no_time(tmp_path: Path, items: list[exhaustive.Item]) -> None:
    rows = tmp_path / "r.jsonl"
    engine = Engine(refuses=words_of(items[3]), crashes=words_of(items[5]))
    exhaustive.record(engine, items, rows, budget.NEVER)
    found = {row["name"]: row for row in budget.lines(rows)}
    assert found[items[3].name]["us"] is None and "BuildError" in found[items[3].name]["words"]
    assert found[items[5].name]["us"] is None and "SIGSEGV" in found[items[5].name]["words"]
    (made,) = exhaustive.tables(items, list(found.values()), free=False)
    assert made["complete"] and made["of"] == len(items)
    (table,) = read(saved(tmp_path / "t.json", items, list(found.values())))
    assert len(table.space.groups) == len(items) - 2 and table.refused == 2


def test_time_that_ends_leaves_the_rest(tmp_path: Path, items: list[exhaustive.Item]) -> None:
    rows, engine = tmp_path / "r.jsonl", Engine()
    exhaustive.record(engine, items, rows, budget.after(0.0))
    assert not engine.asked and not budget.lines(rows)
    exhaustive.record(engine, items[:4], rows, budget.NEVER)
    (made,) = exhaustive.tables(items, budget.lines(rows), free=False)
    assert not made["complete"] and len(made["rows"]) == 4


def test_a_table_without_the_compiler_s_choice_is_none(tmp_path: Path, items: list[exhaustive.Item]) -> None:
    path = saved(tmp_path / "t.json", items, [])
    with pytest.raises(NotATable):
        read(path)
