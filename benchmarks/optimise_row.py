"""A row of `benchmarks.optimise`: a problem's searches side by side, then what they found in turns.

A search is a session of the agent (`ucutlass.agent.optimize`) in a journal of its own. `rules` draws by the tuner's ranking, `random` evenly from the same legal space.
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

from benchmarks import harness
from benchmarks.harness import Item, Row
from benchmarks.optimise_cases import TASKS, Task
from benchmarks.optimise_gpu import GPU
from ucutlass.agent.budget import Budget
from ucutlass.agent.journal import Journal
from ucutlass.agent.optimize import Machinery, ProposerOf, open_session, run_session
from ucutlass.agent.outcome import FailedOutcome, RejectedOutcome, WrongOutcome
from ucutlass.agent.prebuild import BuildCounter, builder_pool
from ucutlass.agent.proposers.rules import Draw, rules
from ucutlass.agent.proposers.schedule_sampling import nominate, nominate_uniformly
from ucutlass.agent.session import SessionSettings, SessionState
from ucutlass.agent.stop import StopRule
from ucutlass.engine.local import LocalEngine
from ucutlass.engine.work import Engine
from ucutlass.ir.hardware import Device
from ucutlass.runtime import isolation, switches
from ucutlass.runtime.gpu import at_hand

SearchName: TypeAlias = Literal["rules", "random"]

DRAWS: Mapping[SearchName, Draw] = MappingProxyType({"rules": nominate, "random": nominate_uniformly})
"""What each search draws by."""

FINAL_SECONDS = 240.0
"""Of which torch.compile's tuning of matrix products takes most."""


NICE = 10
"""Of compilers and sessions, so that they give way to the process that launches, begun before."""


@dataclass(frozen=True, slots=True)
class Shared:
    """What the rows of one process share: the engine with its GPU, and the pool that builds."""

    engine: Engine
    device: Device | None
    pool: Executor


def rows_here(items: list[Item], rows: str, item_seconds: float) -> int:
    """Runs in the child of `harness.run`. Raises LookupError where there is no GPU."""
    count: int = items[0]["builders"]
    # A pipeline's stages are built side by side too, as many as this process has builders.
    os.environ.setdefault(switches.BUILD_JOBS, str(count))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(count))
    here = at_hand()
    if here is None:
        raise LookupError("no NVIDIA GPU here that a compile target serves")
    with builder_pool(count) as pool, closing(LocalEngine(table=GPU)) as engine:
        # Imports while the first kernels are built, not under the GPU lock.
        engine.submit("prepare", {}).result()
        os.nice(NICE)
        return harness.serve(partial(row, Shared(engine, here.device, pool)), items, rows, item_seconds)


def row(shared: Shared, item: Item) -> Row:
    """`ok` is whether what is delivered went through its suite."""
    start = time.monotonic()
    (task,) = (t for t in TASKS if t.name == item["name"])
    counts: dict[SearchName, BuildCounter] = {name: BuildCounter() for name in item["searches"]}
    with ThreadPoolExecutor(len(counts)) as beside:
        begun = {s: beside.submit(searched, shared, task, s, counts[s], item) for s in counts}
        states = {name: future.result() for name, future in begun.items()}
    searched_in = time.monotonic() - start
    about: Row = {
        "task": task.name,
        "level": task.level,
        "letter": task.letter,
        "lane": task.compute_type,
        "attempts": item["attempts"],
        "search_seconds": round(searched_in, 1),
        "searches": {s: _session(state, counts[s]) for s, state in states.items()},
    }
    bests = {name: state.tree.best() for name, state in states.items()}
    if any(best is None for best in bests.values()):
        words = str(next(iter(states.values())).tree[0].outcome)[:400]
        return about | {"ok": False, "error": "nothing was right", "detail": words}
    texts = {"default": task.text} | {name: best.text for name, best in bests.items() if best}
    final = _compared(shared.engine, task, texts, item)
    wall = round(time.monotonic() - start, 1)
    if isinstance(final, str):
        return about | {"ok": False, "error": "not compared", "detail": final[:600], "wall_seconds": wall}
    return about | final | {"ok": not final["wrong"], "texts": texts, "wall_seconds": wall}


def _compared(engine: Engine, task: Task, texts: Mapping[str, str], item: Item) -> dict[str, Any] | str:
    """Programs that are one text are timed once, by the first of their names."""
    distinct: dict[str, str] = {}
    for name, text in texts.items():
        distinct.setdefault(text, name)
    arguments = {
        "task": task.name,
        "texts": {name: text for text, name in distinct.items()},
        "cases": item["cases"],
        "compiled": item["compile"],
    }
    outcome = engine.submit("compared", arguments, limit_seconds=FINAL_SECONDS, near=task.name).result()
    match outcome:
        case isolation.Returned(dict(final)):
            us = final["us"]
            us |= {name: us[distinct[text]] for name, text in texts.items()}
            return final
        case _:
            return isolation.failure_text(outcome, "the comparison")


# --- a search ---------------------------------------------------------------------------


def searched(shared: Shared, task: Task, name: SearchName, counted: BuildCounter, item: Item) -> SessionState:
    """Returns the search's session at its end. Raises MachineError, StoreError."""
    journal = Journal.open(Path(item["journals"]) / f"{task.name.replace(' ', '.')}.{name}.sqlite")
    settings = SessionSettings(
        "flat",
        budget=Budget(attempts=item["attempts"]),
        stop=StopRule(None, None),
        seed=item["seed"],
        keep=item["programs"],
    )
    session = open_session(journal, task.problem, settings, shared.device)
    where = Machinery(shared.engine, shared.device, "", builders=shared.pool, counted=counted, confirms=False)
    return run_session(session, where, proposer_of(name, item["programs"]))


def proposer_of(name: SearchName, programs: int) -> ProposerOf:
    return lambda problem, device, seed: rules(problem, device, seed, draw=DRAWS[name], count=programs)


def _session(state: SessionState, counted: BuildCounter) -> dict[str, Any]:
    best = state.tree.best()
    return {
        "attempts": state.spend.attempts,
        "ended": state.ended,
        "outcomes": Counter(
            type(n.outcome).__name__.removesuffix("Outcome").lower() for n in state.tree.nodes
        ),
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
