"""The tables of tuned kernels: which rows there are, what is resumed, what is told of rows that are lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
import torch

from benchmarks import tuned, tuned_rows, tuned_shop, tuned_wall
from benchmarks.budget import NEVER, Deadline, after, lines
from benchmarks.speed import SHAPES
from benchmarks.tuned_rows import GROUPS, KINDS, MAIN, OTHERS, Task, tasks
from benchmarks.tuned_shop import Dry, OutOfTime, Shared, shop_of
from benchmarks.tuned_table import table
from ucutlass import frontend
from ucutlass.engine import work as engine
from ucutlass.reference import evaluate
from ucutlass.runtime import isolation
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.ptxas import Report
from ucutlass.shapes import complete
from ucutlass.tune.space import BinaryGroup, explore
from ucutlass.tune.tune import ConfirmedKernel, FailedTrial, TimedGroup

EVERY = tasks(GROUPS, ["bf16", "f16"])
SOME = [t for t in EVERY if t.shape[0] in ("square 4096", "M 48") and t.dtype != "f16"]
"""One of every kind, and a shape of each half of the plain ones."""

WALLS = tuned_wall.tasks(2)


def run(
    out: Path, wanted: Sequence[Task] = SOME, means: tuned.Means = tuned.DRY, at: Deadline = NEVER
) -> Any:
    return tuned.run(wanted, WALLS, means, out, deadline=at, builds=8)


def shops(make: Callable[[Task], Any]) -> tuned.Means:
    return replace(tuned.DRY, shops=lambda: nullcontext(make))


def test_sixteen_shapes_and_sixteen_more() -> None:
    assert len(MAIN) == len(OTHERS) == 16
    assert len({s[1:] for s in (*MAIN, *OTHERS)}) == 32
    assert not {s[1:] for s in OTHERS} & {s[1:] for s in SHAPES}
    assert len({t.name for t in EVERY}) == len(EVERY)
    assert {t.kind for t in EVERY} == set(KINDS)


@pytest.mark.parametrize("task", EVERY, ids=lambda t: t.name)
def test_every_row_has_kernels_to_choose_from(task: Task) -> None:
    checked = frontend.read_text(task.text)
    program = frontend.kernel(checked)
    space = explore(checked, program, complete(program, task.sizes), tuned_rows.ARCH)
    assert len(space.groups) > 1
    if task.kind == "tf32x3":
        assert {m.request.math for g in space.groups for m in g.members} == {"tf32x3"}


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_rival_computes_what_the_program_says(kind: str) -> None:
    element = {"tf32x3": "f32", "fp8": "e4m3", "fp8 fast": "e4m3"}.get(kind, "bf16")
    small = Task(kind, ("small", 1, 48, 32, 64), element)
    program = frontend.kernel(frontend.read_text(small.text))
    arguments = generate(program, small.sizes, "normal", seed=1)
    (wanted,) = evaluate(program, arguments)
    if "fp8" in kind:  # torch's scaled product, in words: it may not be there for this CPU
        x, w, a, b = arguments
        found = a * b * (x.double() @ w.double().mT)
    else:
        found = KINDS[kind].eager(*arguments).double()
    # Two roundings to bf16 of the same number are at most 2^-8 of it apart; sums cancel a little.
    assert tuned_rows._distance(wanted, found) < 2**-7


def test_a_whole_run_and_its_tables(tmp_path: Path) -> None:
    report = run(tmp_path / "tuned.json")
    assert [row["name"] for row in report["rows"]] == [task.name for task in SOME]
    assert report["lost"] == report["left"] == [] and len(report["wall"]) == 2
    text = table(report)
    for title in (*GROUPS, "wall"):
        assert f"**{title}**" in text
    assert "- the 16 main shapes: geomean of best rival / tuned 1.000 over 1 rows" in text
    assert "48 x 5120 x 5120" in text and "geomean of torch.compile / `ucc tune`: 1.00" in text


def test_a_search_keeps_all_that_it_timed(tmp_path: Path) -> None:
    run(tmp_path / "tuned.json", SOME[:1])
    (row,) = lines(tuned.journal(tmp_path / "tuned.json", "tuned"))
    best = min(row["timed"], key=lambda t: t["us"])
    assert best["us"] == pytest.approx(row["finals"][0]["us"])
    assert row["request"] in [t["request"] for t in row["timed"]]
    assert row["builds"] <= 8 < len(row["timed"])


def test_the_same_call_goes_on(tmp_path: Path) -> None:
    out = tmp_path / "tuned.json"
    left = run(out, at=Deadline(0.0))["left"]
    assert left == [task.name for task in SOME] + [f"wall {task.name}" for task in WALLS]
    run(out, SOME[:2])
    before = lines(tuned.journal(out, "tuned"))
    assert run(out)["left"] == []
    for part in ("tuned", "compared"):
        assert len(lines(tuned.journal(out, part))) == len(SOME)
    assert lines(tuned.journal(out, "tuned"))[: len(before)] == before
    other = tmp_path / "later" / "tuned.json"
    other.parent.mkdir()
    tuned.take_over(out, other)
    tuned.take_over(out, other)
    assert lines(tuned.journal(other, "compared")) == lines(tuned.journal(out, "compared"))


class Refusing(Dry):
    def build(self, groups: Sequence[BinaryGroup]) -> Sequence[FailedTrial | None]:
        return [FailedTrial("build", "no compiler will have it")] * len(groups)


def test_what_is_not_tuned_or_not_built_is_told(tmp_path: Path) -> None:
    means = shops(lambda task: Refusing() if task == SOME[0] else Dry())
    means = replace(means, prebuild=lambda items: {SOME[1].name: "UC-nothing"})
    report = run(tmp_path / "tuned.json", SOME[:3], means)
    assert [row["name"] for row in report["lost"]] == [SOME[0].name]
    assert "no compiler will have it" in report["lost"][0]["detail"]
    assert report["left"] == [SOME[1].name] and list(report["unbuilt"]) == [SOME[1].name]
    text = table(report)
    assert f"lost: {SOME[0].name}: NothingTuned" in text and f"not built: {SOME[1].name}" in text
    assert run(tmp_path / "tuned.json", SOME[:3])["lost"] == []  # it is tried again


# --- searches beside one another ------------------------------------------------------------


class Engine:
    """Notes what it was asked for, and answers that everything takes a second."""

    gpus, cpus = 1, 1

    def __init__(self) -> None:
        self.asked = list[str]()

    def submit(self, name: str, arguments: Mapping[str, Any], **_: Any) -> engine.Task:
        self.asked.append(name)
        count = len(arguments.get("requests", ()))
        rows = {"seconds": [1.0] * count, "rounds": [[1.0] * 24] * count, "words": [""] * count}
        answer = rows | {"machine": {}}
        future = Future[isolation.Outcome]()
        future.set_result(isolation.Returned(answer, ""))
        return engine.Task(future, lambda: None)

    def leave(self, near: str) -> None:
        pass

    def close(self) -> None:
        pass


def test_the_next_confirming_process_is_prepared_while_one_confirms() -> None:
    machine = Engine()
    shop = shop_of(SOME[0], machine, NEVER)
    program = shop.program
    group = explore(shop.checked, program, complete(program, SOME[0].sizes), "sm90a").groups[0]
    built = Artifact("key", Path("nowhere"), "nvcc", "ucc_0", "sm_90a", "nvcc", {}, 1.0, Report())
    shop.artifacts[group.plan] = built
    assert isinstance(shop.time([group])[0], TimedGroup)
    assert isinstance(shop.confirm(group.members[:1])[0], ConfirmedKernel)
    assert machine.asked == ["timed", "confirmed", "prepare"]


def test_a_search_that_the_deadline_cuts_short_leaves_no_row(tmp_path: Path) -> None:
    machine = Engine()
    shop = shop_of(SOME[0], machine, Deadline(0.0))
    with pytest.raises(OutOfTime):
        shop.time([])
    with pytest.raises(OutOfTime):
        shop.confirm([])
    assert machine.asked == []

    class Late(Dry):
        def time(self, groups: Sequence[BinaryGroup]) -> Any:
            raise OutOfTime

    means = shops(lambda task: Late())
    assert run(tmp_path / "tuned.json", SOME[:1], means)["left"] == [SOME[0].name]


def test_when_time_is_up_builds_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = Event()
    monkeypatch.setattr(tuned_shop, "LocalEngine", lambda **_: Engine())
    monkeypatch.setattr(Shared, "cancel", lambda self: ended.set())
    with tuned_shop.on_gpu(after(0.2)) as make:
        make(SOME[0])
        assert ended.wait(60.0)


def test_a_clocked_program_that_is_not_tuned_is_told(tmp_path: Path) -> None:
    row = tuned_wall._ours(replace(WALLS[0], shape=("nothing", 1, 0, 8, 8)), 1, tmp_path)()
    assert not row["ok"] and "ucc tune ended with" in row["detail"]


def test_errors_are_told_beside_those_of_eager() -> None:
    torch.manual_seed(0)
    x, w = torch.randn(32, 64), torch.randn(16, 64)
    found = tuned_rows._errors([x, w], x @ w.mT + 1e-3, KINDS["tf32x3"].eager)
    size = float((x.double() @ w.double().mT).square().mean().sqrt())
    assert found["error ours"] == pytest.approx(1e-3 / size, rel=0.02)
    assert found["rms error eager"] < 1e-6 < found["rms error ours"]
