"""Recorded winners: what measurements say where the cost model's prices are close to one another.

`data/winners_ARCH.json` holds, for shapes that were measured on a device, the kernel that was fastest
there and those that it beat (`benchmarks.winners` makes it from recordings). A winner speaks for problems
of its class near its extents, only against kernels that it beat, and never loudly: the cost model may price
it a little over its own choice (`Trust`), less with the distance. Only at the very extents of a recording
its price does not matter: there the two were measured beside each other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ucutlass.ir.hardware import Device
from ucutlass.ir.schedule import FAMILY, Request, request_of_json, show
from ucutlass.kernels.access import Store
from ucutlass.kernels.arithmetic import Compute
from ucutlass.kernels.gemm import cost as heuristic
from ucutlass.kernels.gemm.candidate import Candidate, request_of
from ucutlass.kernels.gemm.plan import GemmProblem
from ucutlass.kernels.gemm.rules import legal
from ucutlass.kernels.gemm.schedule import Case, build
from ucutlass.kernels.gemm.search import expand


@dataclass(frozen=True, slots=True)
class Trust:
    """How far a winner is believed. slack: by which the model may price it above its own choice, at no
    distance: estimates of the best kernels of a shape are off by about as much, one against another. reach:
    the distance from which it says nothing, 2 being a factor of four in one extent. Both as
    `benchmarks.winners --check` found them: leaving each recorded shape out, none gets worse up to them."""

    slack: float = 0.04
    reach: float = 2.0


DEFAULT = Trust()

_TUNED = ("warps", "tile", "cluster", "split_k", "swap", "math", "warp_tile", "rows", "columns", "threads")
"""Fields of a winner that are taken to other extents; the others follow from these and from the extents."""

_FOLDER = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True)
class Winner:
    """The fastest kernel that was measured for a problem. `sizes` are batch, M, N and K as written; `kind`
    is the problem's class (`kind_of`), `dtype` the operands' type by name. `beaten` are the forms
    (`form_of`) of those that were slower."""

    sizes: tuple[int, int, int, int]
    kind: str
    dtype: str
    request: Request
    beaten: frozenset[Request]

    @property
    def name(self) -> str:
        batch, m, n, k = self.sizes
        return f"{'' if batch == 1 else f'{batch} of '}{m}x{n}x{k} {self.dtype}"


@dataclass(frozen=True, slots=True)
class Proposed:
    """A legal candidate for a case that a winner speaks for. `worth` is its price, less what the winner
    may add to it, in seconds."""

    winner: Winner
    candidate: Candidate
    price: heuristic.Estimate
    worth: float


class WinnersUnreadable(Exception):
    """The package's own file of winners is not what `benchmarks.winners` writes."""

    def __init__(self, path: Path, why: object) -> None:
        super().__init__(f"{path} cannot be read: {why!r}; install ucutlass anew, or run benchmarks.winners")


# --- which problems are alike ---------------------------------------------------------


def kind_of(problem: GemmProblem) -> str:
    """A problem's class in words: what its multipliers take, the operands' orders, and what its epilogue
    reads, computes and writes. f16 and bf16 move and multiply alike."""
    lane = "16-bit" if problem.lane.name in ("f16", "bf16") else problem.lane.name
    orders = "".join("k" if operand.k[-1] == () else "o" for operand in (problem.a, problem.b))
    slow = {
        i.function
        for i in problem.arithmetic.instructions
        if isinstance(i, Compute) and heuristic.is_slow(i.function)
    }
    reads = sorted(f"{access.shape}{access.elem.bits}" for access in problem.inputs)
    writes = [f"{'store' if isinstance(o, Store) else o.op}{o.access.elem.bits}" for o in problem.outputs]
    return " ".join([lane, problem.accumulate, orders, *reads, *sorted(slow), *writes])


def form_of(request: Request) -> Request:
    """The schedule without what follows from the rest, and without launch knobs."""
    return Request(**{name: getattr(request, name) for name in _TUNED})


def sizes_of(case: Case) -> tuple[int, int, int, int]:
    """Batch, M, N and K as written."""
    shape = case.written.shape
    return shape.batch, shape.m, shape.n, shape.k


def distance(a: Sequence[int], b: Sequence[int]) -> float:
    """Of two problems' extents: Euclidean, in factors of two."""
    return math.hypot(*(math.log2(x / y) for x, y in zip(a, b, strict=True)))


# --- what they say ----------------------------------------------------------------------


def proposals(
    case: Case, asked: Request, choice: Candidate, known: Sequence[Winner], trust: Trust = DEFAULT
) -> Iterator[Proposed]:
    """What the winners near a case propose: legal kernels that agree with the fields asked for, of winners
    that beat the cost model's choice, or that are of its form and so speak for it."""
    kind, sizes, own = kind_of(case.written.problem), sizes_of(case), form_of(request_of(choice))
    for winner in known:
        apart = distance(winner.sizes, sizes)
        if winner.kind != kind or apart >= trust.reach or not _agrees(winner.request, asked):
            continue
        if own not in winner.beaten and own != form_of(winner.request):
            continue
        there = apart == 0
        candidate = _carried(case, asked, winner, there)
        if legal(candidate):
            price = heuristic.estimate(candidate, case.device)
            over = math.inf if there else 1 + trust.slack * (1 - apart / trust.reach)
            yield Proposed(winner, candidate, price, price.seconds / over)


def better(
    case: Case,
    asked: Request,
    choice: tuple[heuristic.Estimate, Candidate],
    known: Sequence[Winner],
    trust: Trust = DEFAULT,
) -> Proposed | None:
    """The proposal to take in place of the cost model's choice, its price and itself; None for none."""
    found = proposals(case, asked, choice[1], known, trust)
    best = min(found, key=lambda p: (p.worth, p.price.seconds), default=None)
    if best is None or best.worth >= choice[0].seconds or best.candidate == choice[1]:
        return None
    return best


def _agrees(winner: Request, asked: Request) -> bool:
    given = asked.given()
    return all(getattr(winner, name) == value for name, value in given.items() if name in _TUNED)


def _carried(case: Case, asked: Request, winner: Winner, there: bool) -> Candidate:
    """The winner's kernel for a case: as it was at its own extents; elsewhere the knobs are chosen anew."""
    fixed = winner.request if there else form_of(winner.request)
    given: dict[str, Any] = asked.given()
    wanted = replace(fixed, **given)
    assert wanted.warps is not None
    full = next(expand(case, wanted, (FAMILY[wanted.warps],)), wanted)
    return build(case, full)


# --- the data ---------------------------------------------------------------------------


@cache
def recorded(arch: str, device: Device) -> tuple[Winner, ...]:
    """The winners that were measured on this device; none where nothing was recorded on it.

    Raises WinnersUnreadable, OSError.
    """
    path = _FOLDER / f"winners_{arch}.json"
    if not path.exists():
        return ()
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return of_json(content) if content["device"] == device.name else ()
    except (ValueError, KeyError, TypeError, IndexError) as problem:
        raise WinnersUnreadable(path, problem) from problem


def to_json(known: Sequence[Winner]) -> dict[str, list[Any]]:
    """`forms`, each once, and `winners`, which name those that they beat by their places there."""
    forms = list(dict.fromkeys(form for w in known for form in sorted(w.beaten, key=show)))
    at = {form: i for i, form in enumerate(forms)}
    rows = [
        {
            "sizes": list(w.sizes),
            "kind": w.kind,
            "dtype": w.dtype,
            "request": w.request.given(),
            "beaten": sorted(at[form] for form in w.beaten),
        }
        for w in known
    ]
    return {"forms": [form.given() for form in forms], "winners": rows}


def of_json(content: Mapping[str, Any]) -> tuple[Winner, ...]:
    """Raises KeyError, IndexError, TypeError or ValueError for what `to_json` does not write."""
    forms = [request_of_json(form) for form in content["forms"]]
    return tuple(_winner(row, forms) for row in content["winners"])


def _winner(row: Mapping[str, Any], forms: Sequence[Request]) -> Winner:
    batch, m, n, k = (int(extent) for extent in row["sizes"])
    beaten = frozenset(forms[at] for at in row["beaten"])
    request = request_of_json(row["request"])
    return Winner((batch, m, n, k), str(row["kind"]), str(row["dtype"]), request, beaten)
