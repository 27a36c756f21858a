"""A row of `benchmarks.optimise`: a problem's searches side by side, then what they found in turns.

A search is a session of the agent (`ucutlass.agent.optimize`) in a journal of its own, which a later call
goes on with. `rules` draws by the tuner's ranking, `random` evenly from the same legal space.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from benchmarks import optimise_dry, relay
from benchmarks.optimise_cases import TASKS, Task
from benchmarks.optimise_gpu import GPU
from ucutlass.agent.budget import Budget
from ucutlass.agent.journal import Journal
from ucutlass.agent.optimize import Machinery, ProposerOf, begin, go_on
from ucutlass.agent.outcome import FailedOutcome, RejectedOutcome, WrongOutcome
from ucutlass.agent.prebuild import BuildCounter, builders
from ucutlass.agent.proposers.rules import Draw, rules
from ucutlass.agent.proposers.schedule_sampling import nominate, uniformly
from ucutlass.agent.run import resumed
from ucutlass.agent.session import SessionSettings, SessionState
from ucutlass.agent.stop import StopRule
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import Engine
from ucutlass.ir.hardware import Device
from ucutlass.runtime import isolation, switches
from ucutlass.runtime.gpu import at_hand

SearchName: TypeAlias = Literal["rules", "random"]

DRAWS: Mapping[SearchName, Draw] = MappingProxyType({"rules": nominate, "random": uniformly})
"""What each search draws by."""

FINAL_SECONDS = 240.0
"""Of which torch.compile's tuning of matrix products takes most."""


NICE = 10
"""Of compilers and sessions, so that they give way to the process that launches, begun before."""


@dataclass(frozen=True, slots=True)
class Hall:
    """What the rows of one process share. `gpu` is the engine with its one lane."""

    engine: Engine
    device: Device | None
    pool: Executor


def rows_here(items: list[relay.Item], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`. Raises NoGpu where there is none and none is made up."""
    first = items[0]
    count: int = first["builders"]
    # A pipeline's stages are built side by side too, as many as this process has builders.
    os.environ.setdefault(switches.BUILD_JOBS, str(count))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(count))
    with builders(count) as pool:
        if first["dry"]:
            engine = LocalEngine([optimise_dry.UUID], table=optimise_dry.TABLE)
            device: Device | None = optimise_dry.H200
        else:
            found = at_hand()
            if found is None:
                raise LookupError("no NVIDIA GPU here that a compile target serves; --dry needs none")
            engine, device = LocalEngine(table=GPU), found.device
        with closing(engine):
            # Imports while the first kernels are built, not on the lane.
            engine.submit("prepare", {}).result()
            os.nice(NICE)
            return relay.serve(partial(row, Hall(engine, device, pool)), items, rows, item_seconds)


def row(hall: Hall, item: relay.Item) -> relay.Row:
    """`ok` is whether what is delivered went through its suite."""
    start = time.monotonic()
    (task,) = (t for t in TASKS if t.name == item["task"])
    counts: dict[SearchName, BuildCounter] = {name: BuildCounter() for name in item["searches"]}
    with ThreadPoolExecutor(len(counts)) as beside:
        begun = {s: beside.submit(searched, hall, task, s, counts[s], item) for s in counts}
        states = {name: future.result() for name, future in begun.items()}
    searched_in = time.monotonic() - start
    about: relay.Row = {
        "task": task.name,
        "level": task.level,
        "letter": task.letter,
        "lane": task.lane,
        "attempts": item["attempts"],
        "search_seconds": round(searched_in, 1),
        "searches": {s: _told(state, counts[s]) for s, state in states.items()},
    }
    found = {name: state.tree.best() for name, state in states.items()}
    if any(best is None for best in found.values()):
        words = str(next(iter(states.values())).tree[0].outcome)[:400]
        return about | {"ok": False, "error": "nothing was right", "detail": words}
    texts = {"default": task.text} | {name: best.text for name, best in found.items() if best}
    final = _compared(hall.engine, task, texts, item)
    wall = round(time.monotonic() - start, 1)
    if isinstance(final, str):
        return about | {"ok": False, "error": "not compared", "detail": final[:600], "wall_seconds": wall}
    return about | final | {"ok": not final["wrong"], "texts": texts, "wall_seconds": wall}


def _compared(engine: Engine, task: Task, texts: Mapping[str, str], item: relay.Item) -> dict[str, Any] | str:
    """Programs that are one text are timed once, by the first of their names."""
    distinct: dict[str, str] = {}
    for name, text in texts.items():
        distinct.setdefault(text, name)
    arguments = {
        "task": task.name,
        "texts": {name: text for text, name in distinct.items()},
        "cases": item["cases"],
        "full": item["full"],
        "compiled": item["compile"],
    }
    outcome = engine.submit("compared", arguments, limit_seconds=FINAL_SECONDS, near=task.name).result()
    match outcome:
        case isolation.Returned(dict(final)):
            us = final["us"]
            us |= {name: us[distinct[text]] for name, text in texts.items()}
            return final
        case _:
            return isolation.lost(outcome, "the comparison")


# --- a search ---------------------------------------------------------------------------


def searched(
    hall: Hall, task: Task, name: SearchName, counted: BuildCounter, item: relay.Item
) -> SessionState:
    """The search's session, begun or gone on with, at its end. Raises MachineError, StoreError."""
    budget = Budget(attempts=item["attempts"])
    journal = Journal.open(Path(item["journals"]) / f"{task.name.replace(' ', '.')}.{name}.sqlite")
    known = journal.sessions()
    if known:
        session = resumed(journal, known[0], budget)
    else:
        settings = SessionSettings(
            "flat", budget=budget, stop=StopRule(None, None), seed=item["seed"], keep=item["programs"]
        )
        session = begin(journal, task.problem, settings, hall.device)
    where = Machinery(hall.engine, hall.device, "", builders=hall.pool, counted=counted, confirms=False)
    return go_on(session, where, proposer_of(name, item["programs"]))


def proposer_of(name: SearchName, programs: int) -> ProposerOf:
    return lambda problem, device, seed: rules(problem, device, seed, draw=DRAWS[name], count=programs)


def _told(state: SessionState, counted: BuildCounter) -> dict[str, Any]:
    best = state.tree.best()
    return {
        "attempts": state.spend.attempts,
        "ended": state.ended,
        "outcomes": Counter(type(n.outcome).__name__.lower() for n in state.tree.nodes),
        "own": _micro(state.tree[0].seconds),
        "best": _micro(best.seconds if best else None),
        "candidate": best.id if best else None,
        "bound": _micro(state.scale.bound),
        "course": [_micro(s) for s in state.tree.best_so_far()],
        "gpu_seconds": round(state.spend.gpu_seconds, 2),
        "built": counted.built,
        "cached": counted.cached,
        "compiler_seconds": round(counted.seconds, 1),
        "failures": [
            f"{n.id}: {n.outcome}"[:300]
            for n in state.tree.nodes
            if isinstance(n.outcome, FailedOutcome | WrongOutcome | RejectedOutcome)
        ][:5],
    }


def _micro(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6
