"""What a search of the agent brings on drawn problems of every family: by the tuner's ranking, and at random.

    python -m benchmarks.searches --out FILE [--seed N] [--drawn N] [--families FAMILY,..] [--attempts N]

Two sessions of each problem, without a model, make as many attempts: `rules` draws schedules as `ucc optimize` does,
`random` draws each legal schedule of the same kernels as likely. Every candidate is built, held against the reference and
timed; the best of each search is then raced against the compiler's own choice, which a search keeps where its best is
slower. Ratios are times of the other over ours. The sessions run side by side, AT_ONCE problems at a time, and share compilers.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, as_completed
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from benchmarks import attention_cases, campaign, harness, network_layers, product_cases, rows
from benchmarks.bars import Classes
from benchmarks.harness import Row
from ucutlass.agent.budget import Budget
from ucutlass.agent.journal import Journal
from ucutlass.agent.optimize import Machinery, open_session, run_session
from ucutlass.agent.prebuild import builder_pool
from ucutlass.agent.problem import OptimizationProblem, ProgramCandidate, candidate_of, problem_of
from ucutlass.agent.proposers.rules import Draw, rules
from ucutlass.agent.proposers.schedule_sampling import nominate, nominate_uniformly
from ucutlass.agent.session import SessionSettings
from ucutlass.agent.stop import StopRule
from ucutlass.agent.tree import CandidateNode
from ucutlass.assembly import build_program
from ucutlass.engine.local import LocalEngine
from ucutlass.handoff import program_payload
from ucutlass.ir.hardware import Device
from ucutlass.runtime import gpu, isolation
from ucutlass.shapes import complete
from ucutlass.tasks.built import built_payload

DRAWS: Mapping[str, Draw] = MappingProxyType({"rules": nominate, "random": nominate_uniformly})
PROGRAMS = 4
"""Of one answer."""

AT_ONCE = 3
"""Problems whose sessions run side by side: compilers of some work under the timings of others, and rows end one after
the other."""

ARCH = "sm90a"

Problem = tuple[str, str, Mapping[str, int]]
"""Name, text and extents."""


def _products(kinds: Sequence[str]) -> Callable[[int, int], list[Problem]]:
    return lambda count, seed: [
        (p.name, p.text, p.sizes) for p in product_cases.drawn(count, seed, kinds)[:: len(kinds)]
    ]


def _convolutions(count: int, seed: int) -> list[Problem]:
    return [(t.name, t.text, {}) for t in network_layers.drawn(count, seed)]


def _reductions(count: int, seed: int) -> list[Problem]:
    problems = ((name, rows.problem_of(name)) for name in rows.drawn(count, seed))
    return [(name, p.text, p.sizes) for name, p in problems]


def _attention(count: int, seed: int) -> list[Problem]:
    every = attention_cases.problems(["bf16", "f16"])
    return [(p.name, p.text, p.sizes) for p in every[seed % 7 :: max(1, len(every) // count)][:count]]


FAMILIES: Mapping[str, Callable[[int, int], list[Problem]]] = MappingProxyType(
    {
        "gemm": _products(("bf16", "f32", "fp8")),
        "grouped_gemm": _products(("grouped", "int8")),
        "convolution": _convolutions,
        "reduction": _reductions,
        "attention": _attention,
    }
)


@dataclass(frozen=True, slots=True)
class Shared:
    """What sessions share: `folder` has their journals."""

    engine: LocalEngine
    device: Device | None
    pool: Executor
    folder: Path
    attempts: int
    seed: int


def searched(shared: Shared, problem: OptimizationProblem, draw: Draw, journal: Path) -> CandidateNode | str:
    """Returns the fastest candidate of a session that drew so; words where nothing was right."""
    budget = Budget(attempts=shared.attempts)
    settings = SessionSettings(budget=budget, stop=StopRule(None, None), seed=shared.seed, keep=PROGRAMS)
    session = open_session(Journal.open(journal), problem, settings, shared.device)
    where = Machinery(
        shared.engine, shared.device, "", builders=shared.pool, confirms=False, prepares=True, samples=True
    )
    state = run_session(
        session, where, lambda problem, device, seed: rules(problem, device, seed, draw, PROGRAMS)
    )
    readings = [node for node in state.tree.nodes if node.seconds is not None]
    best = min(readings, key=lambda node: node.seconds or 0.0, default=None)
    return best or str(state.tree[0].outcome)[:300]


def row(shared: Shared, case: Problem) -> Row:
    """Returns by how much the best of each search is faster than the compiler's own choice."""
    name, text, sizes = case
    about: Row = {"name": name, "ok": True}
    try:
        problem = problem_of(text, f"{name}.ucu", None, sizes, ARCH)
        for search, draw in DRAWS.items():
            place = shared.folder / f"{name.replace(' ', '.').replace('/', '-')}.{search}.sqlite"
            best = searched(shared, problem, draw, place)
            if isinstance(best, str):
                return about | {"ok": False, "error": "nothing was right", "detail": best}
            about[search] = max(1.0, _raced(shared, problem, best.text)) if best.id else 1.0
    except Exception as error:  # a row of its own: the other problems go on
        return about | {"ok": False, "error": type(error).__name__, "detail": str(error)[:300]}
    return about | {"rules over random": about["rules"] / about["random"]}


def within(deadline: float, shared: Shared, case: Problem) -> Row:
    """Returns a problem's row, or that the deadline came before its sessions."""
    return campaign.unreached(case[0]) if time.monotonic() >= deadline else row(shared, case)


def _raced(shared: Shared, problem: OptimizationProblem, text: str) -> float:
    """Returns the time of the compiler's own choice over that of a text. Raises ValueError where a race does not end."""
    sides = [_side(problem, program, shared.device) for program in (text, problem.text)]
    arguments = {
        "candidate": sides[0],
        "incumbent": sides[1],
        "name": problem.program,
        "arch": problem.arch,
        "seed": shared.seed,
    }
    match shared.engine.submit("race", arguments, near="races").result():
        case isolation.Returned(dict(raced)):
            return 1 / float(raced["ratio"])
        case outcome:
            raise ValueError(isolation.failure_text(outcome, "the race"))


def _side(problem: OptimizationProblem, text: str, device: Device | None) -> Row:
    candidate = candidate_of(problem, text)
    assert isinstance(candidate, ProgramCandidate), "it was judged before"
    sizes = complete(candidate.program, candidate.sizes)
    built = build_program(candidate.checked, candidate.program, sizes, problem.arch, device=device)
    return {
        "program": program_payload(candidate.checked),
        "built": built_payload(built),
        "sizes": dict(candidate.sizes),
    }


def main() -> None:
    parser = harness.parser_of(__doc__, drawn=3)
    parser.add_argument("--families", default=",".join(FAMILIES), help=f"of {', '.join(FAMILIES)}")
    parser.add_argument("--attempts", type=int, default=16, metavar="N", help="of each session")
    options = parser.parse_args()
    here = gpu.at_hand()
    if here is None:
        parser.error("no NVIDIA GPU here that a compile target serves")
    families = {
        drawn[0]: family
        for family in options.families.split(",")
        for drawn in FAMILIES[family](options.drawn, options.seed)
    }
    problems = [p for f in dict.fromkeys(families.values()) for p in FAMILIES[f](options.drawn, options.seed)]
    problems = harness.selected(problems, options, lambda p: p[0])
    folder = options.out.with_suffix(".sessions")
    folder.mkdir(parents=True, exist_ok=True)
    journal, machine = options.out.with_suffix(".jsonl"), harness.machine()
    if options.again:
        harness.fresh(journal)
    about = {"attempts": options.attempts, "seed": options.seed}
    keys = {
        name: campaign.key_of("benchmarks.searches:row", {"name": name, **about}, machine)
        for name, _, _ in problems
    }
    known = {row["name"]: row for key, row in campaign.known_rows(journal).items() if key in keys.values()}
    results: list[Row] = list(known.values())
    deadline = math.inf if options.seconds is None else time.monotonic() + options.seconds
    with (
        closing(LocalEngine()) as engine,
        builder_pool(engine.cpus) as pool,
        ThreadPoolExecutor(AT_ONCE) as beside,
    ):
        shared = Shared(engine, here.device, pool, folder, options.attempts, options.seed)
        absent = [problem for problem in problems if problem[0] not in known]
        for future in as_completed([beside.submit(within, deadline, shared, problem) for problem in absent]):
            name = future.result()["name"]
            results.append(future.result() | {"family": families[name], "key": keys[name]})
            if results[-1].get("error") != campaign.NOT_REACHED:
                harness.append(journal, results[-1])
    campaign.concluded(results, options, line, classes, more=about)


def line(r: Row) -> str:
    return (
        f"{r['name']:60} rules {r['rules']:.3f}  random {r['random']:.3f}  rules over random "
        f"{r['rules over random']:.3f}"
    )


def classes(results: Sequence[Row]) -> Classes:
    keys = ("rules", "random", "rules over random")
    return {
        f"{family} {key}": {r["name"]: r[key] for r in results if r["ok"] and family in ("all", r["family"])}
        for family in (*FAMILIES, "all")
        for key in keys
    }


if __name__ == "__main__":
    main()
