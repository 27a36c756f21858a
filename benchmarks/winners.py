"""The data file of recorded winners, out of recordings; and what it is worth, by leaving shapes out. No GPU.

    python -m benchmarks.winners [FILE...]            writes ucutlass/data/winners_sm90a.json
    python -m benchmarks.winners [FILE...] --check    prints a table instead

FILE is a recording of `benchmarks.record`, or a report of `benchmarks.tuned`; without any, those of
`benchmarks/data`. With --check every recorded shape is planned as if it had never been measured, from the
winners of the others: what the cost model alone chooses among its measured kernels, what it chooses with
those winners, and what with its own record too, each as a share of the speed of the fastest one measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from benchmarks.speed import BATCHED, PLAIN, Shape, extents_of
from benchmarks.tuned_rows import ARCH, task_of
from ucutlass import frontend
from ucutlass.files import write
from ucutlass.ir.hardware import ARCHES, Device, device_named
from ucutlass.ir.schedule import Request, request_of_json
from ucutlass.kernels.gemm import cost as heuristic
from ucutlass.kernels.gemm import planner, winners
from ucutlass.kernels.gemm.candidate import Candidate, request_of
from ucutlass.kernels.gemm.match import problem
from ucutlass.kernels.gemm.rules import legal
from ucutlass.kernels.gemm.schedule import Case, build, case_of
from ucutlass.kernels.gemm.winners import Trust, Winner
from ucutlass.shapes import complete

DATA = Path(__file__).parent / "data"
RECORDINGS = (DATA / "h200_bf16.json", DATA / "h200_probe.json")
TARGET = Path(winners.__file__).parent / "data" / f"winners_{ARCH}.json"

MARGIN = 1.005
"""A kernel that took less than so many times the winner was not beaten: it is noise."""

FEWEST = 3
"""Kernels of a shape, of which one may be called the fastest."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One problem: seconds of the kernels that were measured on it and are legal today. `best` is the
    fastest, confirmed where the recording did that. `priority`: of two recordings of one problem the one
    with more is taken for the winner."""

    case: Case
    name: str
    dtype: str
    times: Mapping[Candidate, float]
    best: Candidate
    priority: int

    @property
    def key(self) -> tuple[Any, ...]:
        return winners.sizes_of(self.case), winners.kind_of(self.case.written.problem)

    def seconds(self, candidate: Candidate) -> float | None:
        """Of the candidate, or else of the fastest that differs from it in launch knobs alone."""
        if candidate in self.times:
            return self.times[candidate]
        wanted = _form(candidate)
        return min((s for c, s in self.times.items() if _form(c) == wanted), default=None)


def _form(candidate: Candidate) -> Request:
    return winners.form_of(request_of(candidate))


# --- recordings ---------------------------------------------------------------------------


class NotOneDevice(ValueError):
    """Recordings of different devices, or of one that has no entry in `ucutlass.ir.hardware`."""


def read(paths: Sequence[Path]) -> tuple[Device, list[Measured]]:
    """Raises OSError, ValueError for what is no recording, NotOneDevice."""
    contents = [(path, json.loads(path.read_text(encoding="utf-8"))) for path in paths]
    names = {content["machine"]["gpu"].split(",")[0] for _, content in contents}
    devices = [device_named(name) for name in sorted(names)]
    if len(devices) != 1 or devices[0] is None:
        raise NotOneDevice(f"recordings of {', '.join(sorted(names))}: one known device is wanted")
    found = [one for _, content in contents for one in _problems(content, devices[0])]
    return devices[0], [one for one in found if len(one.times) >= FEWEST]


def _problems(content: Mapping[str, Any], device: Device) -> Iterator[Measured]:
    """Of `benchmarks.record` (`dtype` for all) or of `benchmarks.tuned` (rows with all that was timed)."""
    if "dtype" not in content:
        for row in content["rows"]:
            task = task_of(row)
            timed = [(one["request"], one["us"]) for one in row["timed"]]
            yield _measured(task.text, task.shape, row["dtype"], timed, device, row["request"])
        return
    shapes: dict[Shape, list[tuple[Mapping[str, Any], float]]] = {}
    for row in content["rows"]:
        if row["request"] is not None:
            b, m, n, k = row["sizes"]
            shapes.setdefault((row["shape"], b, m, n, k), []).append((row["request"], row["us"]))
    for shape, timed in shapes.items():
        text = (PLAIN if shape[1] == 1 else BATCHED).format(t=content["dtype"])
        yield _measured(text, shape, content["dtype"], timed, device, None)


def _measured(
    text: str,
    shape: Shape,
    dtype: str,
    timed: Sequence[tuple[Mapping[str, Any], float]],
    device: Device,
    confirmed: Mapping[str, Any] | None,
) -> Measured:
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    sizes = complete(program, extents_of(shape))
    what = problem(frontend.form(checked, program), sizes)
    case = case_of(what, sizes, ARCHES[ARCH], device)
    rows = [(build(case, request_of_json(request)), us * 1e-6) for request, us in timed]
    times = {candidate: seconds for candidate, seconds in rows if legal(candidate)}
    best = min(times, key=lambda c: times[c])
    if confirmed is not None:
        best = build(case, request_of_json(confirmed))
    return Measured(case, shape[0], dtype, times, best, 1000 * (confirmed is not None) + len(times))


# --- winners --------------------------------------------------------------------------------


def winner_of(recordings: Sequence[Measured]) -> Winner:
    """The fastest kernel of one problem, by the recording that confirmed it or has most kernels, and the
    forms that were slower, however they were launched, in every recording that had both. Times of two
    recordings do not compare."""
    first = max(recordings, key=lambda one: one.priority)
    own = _form(first.best)
    slower: dict[Request, bool] = {}
    for one in recordings:
        fastest = _fastest(one)
        if own in fastest:
            for form, seconds in fastest.items():
                slower[form] = slower.get(form, True) and seconds > MARGIN * fastest[own]
    beaten = frozenset(form for form, lost in slower.items() if lost)
    kind = winners.kind_of(first.case.written.problem)
    return Winner(winners.sizes_of(first.case), kind, first.dtype, request_of(first.best), beaten)


def _fastest(one: Measured) -> Mapping[Request, float]:
    """Seconds of each form, launched best."""
    found: dict[Request, float] = {}
    for candidate, seconds in one.times.items():
        form = _form(candidate)
        found[form] = min(seconds, found.get(form, seconds))
    return found


def made(measured: Sequence[Measured]) -> list[Winner]:
    """One a problem."""
    found = (winner_of(recordings) for recordings in _by_problem(measured).values())
    return sorted(found, key=lambda w: (w.kind, w.sizes, w.dtype))


def _by_problem(measured: Sequence[Measured]) -> Mapping[tuple[Any, ...], list[Measured]]:
    found: dict[tuple[Any, ...], list[Measured]] = {}
    for one in measured:
        found.setdefault(one.key, []).append(one)
    return found


def text_of(device: Device, paths: Sequence[Path], found: Sequence[Winner]) -> str:
    """The data file: a winner a line, so that a difference can be read."""
    head = {"device": device.name, "made_by": "python -m benchmarks.winners", "from": [p.name for p in paths]}
    lists = [
        f"{json.dumps(name)}: [\n" + ",\n".join(f" {json.dumps(row)}" for row in rows) + "\n]"
        for name, rows in winners.to_json(found).items()
    ]
    return f"{json.dumps(head)[:-1]},\n" + ",\n".join(lists) + "\n}\n"


# --- what they are worth ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Line:
    """One recording of one problem: shares of the fastest measured kernel's speed that the choice has by
    the cost model alone, with the winners of other shapes, and with its own too; and whose winner it was."""

    name: str
    sizes: tuple[int, int, int, int]
    kernels: int
    alone: float
    without_own: float
    with_own: float
    told_by: str


Choice: TypeAlias = "tuple[heuristic.Estimate, Candidate]"


def lines(measured: Sequence[Measured], trust: Trust = winners.DEFAULT) -> list[Line]:
    """Kernels are those measured: what was not, cannot be judged here. Other extents count as other shapes;
    another dtype at the same ones does not."""
    known = made(measured)
    return [_line(_joined(recordings), known, trust) for recordings in _by_problem(measured).values()]


def _joined(recordings: Sequence[Measured]) -> Measured:
    """Recordings of one problem as one; of two times of a kernel the lesser."""
    times: dict[Candidate, float] = {}
    for one in recordings:
        for candidate, seconds in one.times.items():
            times[candidate] = min(seconds, times.get(candidate, seconds))
    return replace(recordings[0], times=times, best=min(times, key=lambda c: times[c]))


def _line(one: Measured, known: Sequence[Winner], trust: Trust) -> Line:
    prices = [(heuristic.estimate(c, one.case.device), c) for c in one.times]
    choice = min(prices, key=lambda pair: pair[0].seconds)
    shape = winners.sizes_of(one.case)
    others = [winner for winner in known if winner.sizes != shape]
    best = min(one.times.values())
    left_out, told_by = _with(one, choice, others, trust)
    kept, _ = _with(one, choice, known, trust)
    return Line(
        one.name, shape, len(one.times), best / one.times[choice[1]], best / left_out, best / kept, told_by
    )


def _with(one: Measured, choice: Choice, known: Sequence[Winner], trust: Trust) -> tuple[float, str]:
    """Seconds of what is chosen with these winners, and whose it was."""
    proposed = winners.proposals(one.case, planner.AUTO, choice[1], known, trust)
    judged = [p.winner for p in proposed if one.seconds(p.candidate) is not None]
    taken = winners.better(one.case, planner.AUTO, choice, judged, trust)
    if taken is None:
        return one.times[choice[1]], ""
    seconds = one.seconds(taken.candidate)
    assert seconds is not None
    return seconds, taken.winner.name


def table(found: Sequence[Line]) -> str:
    """Markdown: the shapes where winners change the choice, then means and the worst."""
    head = "| shape | kernels | cost model alone | with other shapes' winners | with its own too | told by |"
    rows = [head, "|---|---|---|---|---|---|"]
    for one in found:
        if len({one.alone, one.without_own, one.with_own}) > 1:
            shares = one.alone, one.without_own, one.with_own
            rows.append(_row(one.name, one.kernels, shares, one.told_by))
    columns = [[getattr(one, c) for one in found] for c in ("alone", "without_own", "with_own")]
    count = sum(one.kernels for one in found)
    rows.append(_row(f"mean of {len(found)}", count, [statistics.fmean(c) for c in columns], ""))
    rows.append(_row(f"worst of {len(found)}", count, [min(c) for c in columns], ""))
    return "\n".join(rows)


def _row(name: str, kernels: int, shares: Sequence[float], told_by: str) -> str:
    return f"| {name} | {kernels} | {' | '.join(f'{share:.2%}' for share in shares)} | {told_by} |"


def grid(measured: Sequence[Measured]) -> str:
    """What other trust would have come to, shapes left out: mean, worst, how many get worse and better."""
    rows = ["| slack | reach | mean | worst | worse | better |", "|---|---|---|---|---|---|"]
    for reach in (1.0, 1.5, 2.0, 2.5, 3.0):
        for slack in (0.02, 0.04, 0.06, 0.08, 0.12):
            found = lines(measured, Trust(slack, reach))
            shares = [one.without_own for one in found]
            worse = sum(one.without_own < one.alone for one in found)
            more = sum(one.without_own > one.alone for one in found)
            mean, worst = statistics.fmean(shares), min(shares)
            rows.append(f"| {slack} | {reach} | {mean:.2%} | {worst:.2%} | {worse} | {more} |")
    return "\n".join(rows)


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("recordings", type=Path, nargs="*", default=list(RECORDINGS))
    parser.add_argument("--check", action="store_true", help="leave each shape out, and write nothing")
    parser.add_argument("--grid", action="store_true", help="with --check: other settings of the trust too")
    options = parser.parse_args()
    device, measured = read(options.recordings)
    if options.check:
        print(table(lines(measured)))
        if options.grid:
            print(f"\n{grid(measured)}")
        return
    text = text_of(device, options.recordings, made(measured))
    write(TARGET, text)
    print(f"{TARGET}: {text.count('sizes')} winners, {len(text) / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
