"""For each legality rule, kernels just beyond it, forced past the checker: what becomes of them?

    python -m benchmarks.rule_edges --out FOLDER [--only UC0423,UC0426]
    python -m benchmarks.rule_edges --emit              # no GPU: force and emit alone

Claim: no rule refuses what the hardware would run well without saying why. A forced plan must fail to be emitted, compiled, launched or right, or fall off a cliff: spill or have
its wgmma serialised by ptxas's report where the nearest legal kernel does not, or take at least 1.3
times its time. Where nothing of that happens the rule is stricter than the hardware, and the
table says why it stands. `no answer` is a failure of this script or machine, no evidence. Every
launch runs in a process of its own.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from benchmarks import harness
from benchmarks.edges import EDGES, Edge
from benchmarks.harness import START_SECONDS
from ucutlass import frontend, ir
from ucutlass.backend import Built, bind, toolchain
from ucutlass.emit import emit
from ucutlass.emit.gemm import gemv
from ucutlass.emit.gemm import sm80 as gemm_sm80
from ucutlass.emit.gemm import sm90 as gemm_sm90
from ucutlass.emit.text import Source
from ucutlass.ir.elements import TF32
from ucutlass.ir.hardware import ARCHES, default_device
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels.gemm import cost as heuristic
from ucutlass.kernels.gemm.candidate import Candidate, request_of
from ucutlass.kernels.gemm.match import problem
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.kernels.gemm.rules import RULES, violations
from ucutlass.kernels.gemm.schedule import build as candidate_of
from ucutlass.kernels.gemm.schedule import case_of
from ucutlass.kernels.planned import Planned
from ucutlass.runtime import isolation
from ucutlass.runtime.build import Artifact, build
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.parallel import build_many
from ucutlass.shapes import complete

if TYPE_CHECKING:
    from ucutlass.runtime.inputs import Distribution

CLIFF = 1.3
LIMIT_SECONDS = 45.0
"""What a launch, its inputs and its reference may take, once the process has a CUDA context."""

BATCH = 24
"""Edges that are built together, judged and written down before the next ones."""

SIDE_BY_SIDE = 6
"""Processes on the GPU at once while nothing is timed."""


@dataclass(frozen=True, slots=True)
class Forced:
    """A plan that no rule was asked about. `broken` are the rules it breaks."""

    program: ir.Kernel
    planned: Planned
    source: Source
    broken: tuple[str, ...]


def force(edge: Edge, request: PartialSchedule, legal: bool) -> Forced:
    """The plan of a request as it stands. Raises what an emitter raises."""
    checked = frontend.read_text(edge.text)
    program = frontend.kernel(checked)
    sizes = complete(program, edge.sizes)
    arch = ARCHES[edge.arch]
    device = default_device(arch)
    form = frontend.pattern(checked, program)

    def candidate(aligned: tuple[bool, ...] | None) -> Candidate:
        c = candidate_of(case_of(problem(form, sizes, aligned), sizes, arch, device), request)
        return c if legal else edge.alter(c)

    c = candidate(None)
    plan = GemmPlan(arch.name, c.problem, c.schedule, c.routes)
    planned = Planned(
        plan, astuple(c.launch), sizes, request_of(c), device, heuristic.estimate(c, device), ()
    )
    met = candidate((False,) * c.problem.pointers) if edge.how == "misaligned" and not legal else c
    broken = tuple(v.code for v in violations(met))
    return Forced(program, planned, emitted(plan, () if legal else edge.cut), broken)


def emitted(plan: GemmPlan, cut: Sequence[tuple[str, str]]) -> Source:
    """The source, without the emitters' own guards and with these of the file's replaced."""
    with ExitStack() as past:
        past.enter_context(mock.patch.object(gemm_sm80, "check", lambda *_: ""))
        past.enter_context(mock.patch.object(gemv, "check", lambda *_: ""))
        if plan.problem.lane == TF32:
            # Its guard compares with the name TF32; what else does is answered as before.
            held = gemm_sm90._through_registers(plan.problem)
            past.enter_context(mock.patch.object(gemm_sm90, "_through_registers", lambda _: held))
            past.enter_context(mock.patch.object(gemm_sm90, "TF32", None))
        source = emit(plan, "")
    code = source.code
    for guard, instead in cut:
        if guard not in code:
            raise AssertionError(f"the emitted file has no guard `{guard}`: edges.py is out of date")
        code = code.replace(guard, instead)
    return Source(text=code, code=code, entry=source.entry, arch=source.arch)


@dataclass(frozen=True, slots=True)
class Outcome:
    """`kind` says at what the forced plan failed; `nothing` where it did not."""

    code: str
    what: str
    kind: str
    detail: str
    broken: tuple[str, ...]
    why: str


def first_line(error: BuildError) -> str:
    """The compiler's first words that say what is wrong, a failed assertion before all."""
    lines = sorted(error.errors, key=lambda line: "assert" not in line)
    return lines[0].partition("error:")[2].strip()[:200] or lines[0][:200] if lines else str(error)[:200]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="rule codes, with commas")
    parser.add_argument("--emit", action="store_true", help="build and run nothing")
    options = parser.parse_args()
    chosen = [i for i, e in enumerate(EDGES) if not options.only or e.code in options.only.split(",")]
    forced, done = _forced(chosen)
    beside = {
        i: force(EDGES[i], r, True) for i in chosen if i in forced and (r := EDGES[i].beside) is not None
    }
    distinct = {f.source.code for f in forced.values()}
    more = {f.source.code for f in beside.values()} - distinct
    print(
        f"{len(chosen)} edges of {len({EDGES[i].code for i in chosen})} rules of {len(RULES)}, "
        f"{len(distinct)} distinct sources, at most {len(more)} more of neighbours",
        flush=True,
    )
    untried = sorted({r.code for r in RULES} - {e.code for e in EDGES})
    if untried:
        print("no edge for", *untried)
    mistaken = [
        f"{EDGES[i].code} {EDGES[i].what}" for i, f in forced.items() if EDGES[i].code not in f.broken
    ]
    mistaken += [
        f"{EDGES[i].code} {EDGES[i].what}: its neighbour breaks {f.broken}"
        for i, f in beside.items()
        if f.broken
    ]
    for line in mistaken:
        print("not an edge:", line)
    if options.emit:
        for i in chosen:
            print(EDGES[i].code, EDGES[i].what, forced[i].broken if i in forced else done[i].detail)
        sys.exit(bool(mistaken or untried))
    if options.out is None:
        parser.error("--out FOLDER is needed, or --emit")
    left = [i for i in forced if i not in done]
    for batch in [left[i : i + BATCH] for i in range(0, len(left), BATCH)]:
        for i, outcome in tried(batch, forced, beside):
            done[i] = outcome
            print(line_of(outcome), flush=True)
            _write(options.out, [done[n] for n in sorted(done)])
    outcomes = [done[i] for i in chosen]
    print()
    print("\n".join(map(line_of, outcomes)))
    unexplained = [o for o in outcomes if o.kind == "no answer" or (o.kind == "nothing" and not o.why)]
    sys.exit(bool(unexplained or mistaken))


def tried(
    batch: Sequence[int], forced: Mapping[int, Forced], beside: Mapping[int, Forced]
) -> Iterator[tuple[int, Outcome]]:
    """Builds, verifies and times these edges."""
    built = built_by_code(forced[i] for i in batch)
    runs = verified([i for i in batch if isinstance(built[forced[i].source.code], Artifact)])
    # A neighbour is there to be timed against, which only a forced kernel that is right needs.
    built |= built_by_code(beside[i] for i in batch if i in beside and right(runs.get(i)))
    for i in batch:
        neighbour = built.get(beside[i].source.code) if i in beside else None
        yield i, judge(i, forced[i], built[forced[i].source.code], neighbour, runs.get(i))


def _forced(chosen: Sequence[int]) -> tuple[dict[int, Forced], dict[int, Outcome]]:
    forced: dict[int, Forced] = {}
    failed: dict[int, Outcome] = {}
    for i in chosen:
        edge = EDGES[i]
        try:
            forced[i] = force(edge, edge.beyond, False)
        except (ValueError, KeyError) as error:
            words = f"{type(error).__name__}: {error}"[:200]
            failed[i] = Outcome(edge.code, edge.what, "not emitted", words, (edge.code,), "")
    return forced, failed


def _write(folder: Path, outcomes: Sequence[Outcome]) -> None:
    report = {"machine": harness.machine(), "outcomes": [asdict(o) for o in outcomes]}
    harness.write(folder / "rule_edges.json", report)


def line_of(o: Outcome) -> str:
    remark = ""
    if o.kind == "nothing":
        remark = f"; STRICTER than the hardware: {o.why or 'no reason given'}"
    detail = o.detail.replace("\n", " | ")
    return f"{o.code}  {o.what:46}  {o.kind:12}  {detail}{remark}"


def built_by_code(forced: Iterable[Forced]) -> dict[str, object]:
    """Returns the artifact, or the failure, of each distinct source."""
    sources = list({f.source.code: f.source for f in forced}.values())
    results = build_many(sources, toolchain(), Cache.from_switches())
    return {source.code: result for source, result in zip(sources, results, strict=True)}


def right(run: isolation.CallOutcome | None) -> bool:
    return isinstance(run, isolation.Returned) and run.value["ok"]


def verified(indices: Sequence[int]) -> dict[int, isolation.CallOutcome]:
    """Verifies every edge in a process of its own, several at a time, but those that fill the GPU."""

    def run(index: int) -> isolation.CallOutcome:
        return _isolated("verify_here", index)

    small = [i for i in indices if EDGES[i].how != "huge"]
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        runs = dict(zip(small, pool.map(run, small), strict=True))
    return runs | {i: run(i) for i in indices if i not in runs}


def _isolated(function: str, index: int) -> isolation.CallOutcome:
    limit = START_SECONDS + LIMIT_SECONDS
    return isolation.run(f"benchmarks.rule_edges:{function}", {"index": index}, limit_seconds=limit)


def judge(
    index: int, forced: Forced, built: object, neighbour: object, run: isolation.CallOutcome | None
) -> Outcome:
    """What became of an edge; times it, alone on the GPU, where it was right."""
    edge = EDGES[index]

    def outcome(kind: str, detail: str) -> Outcome:
        return Outcome(edge.code, edge.what, kind, detail, forced.broken, edge.why)

    match built:
        case BuildError():
            return outcome("not compiled", first_line(built))
        case Artifact():
            pass
        case _:
            return outcome("no answer", str(built)[:200])
    match run:
        case isolation.Returned(value={"ok": True}):
            pass
        case isolation.Returned(value=row):
            return outcome("wrong", row["detail"][:200])
        case isolation.Raised(type="LaunchError", message=message):
            return outcome("not launched", message[:200])
        case isolation.Raised(message=message) if "CUDA error" in message:
            return outcome("faulted", message.splitlines()[0][:200])
        case isolation.Crashed(signal="SIGALRM"):
            return outcome("hung", f"no end after {LIMIT_SECONDS:.0f} s")
        case isolation.Crashed(signal=name):
            return outcome("crashed", name)
        case other:
            return outcome("no answer", f"{type(other).__name__}: {other}"[:300])
    if edge.beside is None:
        worse = " ".join(sorted(losses(built)))
        return outcome("ptxas" if worse else "nothing", f"right{', ' + worse if worse else ''}")
    if not isinstance(neighbour, Artifact):
        return outcome("no answer", f"its neighbour was not built: {neighbour}"[:300])
    timed = _isolated("time_here", index)
    if not isinstance(timed, isolation.Returned):
        return outcome("no answer", f"timing: {timed}"[:300])
    worse = " ".join(sorted(losses(built) - losses(neighbour)))
    ratio = f"{timed.value:.2f} x its neighbour's time" + (f", {worse}" if worse else "")
    return outcome("slow" if timed.value >= CLIFF else "ptxas" if worse else "nothing", ratio)


def losses(artifact: Artifact) -> set[str]:
    """What ptxas holds against a kernel: spills and serialised wgmma."""
    return {f.code for f in artifact.report.findings if f.code in ("spill", "wgmma-serialised")}


# --- in the other process ----------------------------------------------------------------


def _begin() -> None:
    """Makes the CUDA context; from then on SIGALRM ends a process that takes too long, even while it
    waits for the device."""
    import torch

    torch.zeros(1, device="cuda")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_SECONDS)


def verify_here(index: int) -> dict[str, Any]:
    """Whether the forced kernel is right: integers bit by bit, normal values within their bound."""
    import torch

    from ucutlass.runtime import verify

    _begin()
    edge = EDGES[index]
    forced = force(edge, edge.beyond, False)
    kernel = launcher(forced)
    if edge.how == "huge":
        return _huge(kernel, edge)

    def launch(args: Sequence[Any], outs: Sequence[torch.Tensor]) -> None:
        kernel(*args, out=outs[0])

    distributions: tuple[Distribution, ...] = ("integer", "normal")
    for distribution in distributions:
        verdict = verify.check(forced.program, launch, arguments_of(edge, forced, distribution))
        if not verdict.ok:
            return {"ok": False, "detail": f"{distribution}: {verdict}"}
    return {"ok": True, "detail": ""}


def time_here(index: int) -> float:
    """The forced kernel's time over its neighbour's."""
    from ucutlass.runtime.timing import compare, sets_for

    _begin()
    edge = EDGES[index]
    assert edge.beside is not None
    forced = force(edge, edge.beyond, False)
    kernels = {"forced": launcher(forced), "legal": launcher(force(edge, edge.beside, True))}
    arguments = arguments_of(edge, forced)
    out = kernels["legal"](*arguments)
    count = sets_for(sum(t.numel() * t.element_size() for t in (*arguments, out)))
    copies = [([a.clone() for a in arguments], out.clone()) for _ in range(count)]

    def launches(kernel: Any) -> Callable[[int], object]:
        return lambda i: kernel(*copies[i][0], out=copies[i][1])

    times = compare({name: launches(kernel) for name, kernel in kernels.items()}, count)
    return times["forced"].median / times["legal"].median


def arguments_of(edge: Edge, forced: Forced, distribution: Distribution = "normal") -> list[Any]:
    from ucutlass.runtime.inputs import generate

    arguments = generate(forced.program, edge.sizes, distribution, device="cuda")
    return [_off_by_one(a) for a in arguments] if edge.how == "misaligned" else list(arguments)


def launcher(forced: Forced) -> Any:
    """The kernel, callable with tensors, whatever the planner would have chosen for them."""
    from ucutlass.frontend import ChosenPlan
    from ucutlass.runtime.launch import Launcher
    from ucutlass.runtime.launch_spec import spec_of

    artifact = build(forced.source, toolchain(), Cache.from_switches())
    bound = bind(Built(ChosenPlan(forced.planned, None), forced.source, artifact), forced.program.name)
    return Launcher(spec_of(forced.program, ()), lambda _: bound)


def _off_by_one(tensor: Any) -> Any:
    import torch

    storage = torch.empty(tensor.numel() + 1, dtype=tensor.dtype, device=tensor.device)
    moved = storage[1:].view(tensor.shape)
    return moved.copy_(tensor)


def _huge(kernel: Any, edge: Edge) -> dict[str, Any]:
    """Ones times ones: every element is K. The last rows lie beyond 2^31."""
    import torch

    m, n, k = (edge.sizes[d] for d in "MNK")
    x = torch.ones((m, k), dtype=torch.float16, device="cuda")
    w = torch.ones((n, k), dtype=torch.float16, device="cuda")
    y = torch.full((m, n), -1.0, dtype=torch.float16, device="cuda")
    kernel(x, w, out=y)
    torch.cuda.synchronize()
    tail = y[-128:]
    bad = int((tail != k).sum())
    return {
        "ok": bad == 0,
        "detail": f"{bad} of the last {tail.numel()} elements are wrong: {tail[-1, -1].item()}, not {k}",
    }


if __name__ == "__main__":
    main()
