"""Convolutions against cuDNN (torch, channels last, benchmark mode) and torch.compile in the same run.

    python -m benchmarks.convolution --out convolution.json [--drawn N] [--seed N] [--only NAME,..] [--no-compile] [--quick]

Claim: convolutions and their gradients are as fast as cuDNN, and faster with bias and activation, which eager
runs as kernels of their own. Default schedules, nothing tuned. `plain` rows are a convolution alone, `fused`
ones have a bias and an activation. Cases are fixed ones of one to three dimensions, or `--drawn` ones of the seed:
strided, transposed, grouped, depthwise, of few channels, gradients, in TF32, bf16 and f16. Tensors lie channels last on both sides. Errors are those of fresh inputs
against float64, ours and cuDNN's, on a sample of results; ours must be within the derived bound. Rows of f32
have cuDNN without TF32, those of tf32 with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

import ucutlass
from benchmarks import bars, campaign, harness
from benchmarks.bars import Bar
from benchmarks.campaign import Case as Planned
from benchmarks.convolution_cases import CASES, NOT_FUSED, Case, drawn, eager, given, sampled, tensors
from benchmarks.harness import Item, Row
from ucutlass.reference import expect
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.runtime.verify import compare as compare_with

ROW_SECONDS = 120.0


@dataclass(frozen=True, slots=True)
class Task:
    case: Case
    fused: bool

    @property
    def name(self) -> str:
        return f"{'fused' if self.fused else 'plain'} {self.case.name}"


def tasks(cases: Sequence[Case]) -> list[Task]:
    plain = [Task(case, False) for case in cases]
    return plain + [Task(case, True) for case in cases if case.kind not in NOT_FUSED]


# --- one row ------------------------------------------------------------------------


def row(item: Item) -> Row:
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(item["seed"])
    case = Case(**item["case"])
    task = Task(case, item["fused"])
    torch.backends.cudnn.allow_tf32 = case.t == "tf32"
    kernel = ucutlass.loads(case.text(task.fused))
    first = tensors(case, task.fused, 1)[0]
    sets = sets_for(sum(t.numel() * t.element_size() for t in first))
    ours = [first, *tensors(case, task.fused, sets - 1)]
    theirs = [given(case, tensors_) for tensors_ in ours]
    torch_way = eager(case, task.fused)
    erring = errors(case, task.fused, kernel, torch_way, item["seed"])
    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda i: kernel(*ours[i][:-1], out=ours[i][-1]),
        "cudnn": lambda i: torch_way(*theirs[i]),
        "cudnn again": lambda i: torch_way(*theirs[i]),
    }
    if item["compile"]:
        fast = harness.compiled(torch_way, *theirs[0])
        candidates["compile"] = lambda i: fast(*theirs[i])
    times = compare(candidates, sets)
    mine = times["ours"].median
    best = min(times["cudnn"].median, times["cudnn again"].median)
    measured: Row = {
        "fused": task.fused,
        "kernel": item["schedule"],
        "error": erring.ours,
        "cudnn error": erring.theirs,
        "of bound": erring.of_bound,
        "ours": mine,
        "cudnn": best,
        "ratio": best / mine,
        "tflops": 1e-6 * case.flops / mine,
        "spread": max(t.spread for t in times.values()),
        "noise": times["cudnn"].median / times["cudnn again"].median,
    }
    if item["compile"]:
        measured |= {"compile": times["compile"].median, "over compile": times["compile"].median / mine}
    return measured


@dataclass(frozen=True, slots=True)
class Errors:
    """Of a sample of results on fresh inputs, against float64: `ours` and `theirs`, the largest difference
    over the largest value; `of_bound`, ours over what an honest kernel may err by, element by element."""

    ours: float
    theirs: float
    of_bound: float


def errors(
    case: Case, fused: bool, kernel: Any, torch_way: Callable[..., torch.Tensor], seed: int = 0
) -> Errors:
    """One image's results, of gradients of weights those of eight columns; the whole result is poisoned
    first. Raises AssertionError where ours is beyond its bound, or not written."""
    torch.manual_seed(1000 + seed)
    fresh = tensors(case, fused, 1)[0]
    fresh[-1].fill_(float("nan"))
    kernel(*fresh[:-1], out=fresh[-1])
    theirs = torch_way(*given(case, fresh)).movedim(1, -1)
    assert bool(fresh[-1].isfinite().all()), "results that nothing wrote, or no numbers"
    at = int(torch.randint(case.n, ()).item()) if case.kind != "weights" else case.k // 2
    sample = sampled(case, fresh, at)
    (expected,) = expect(kernel.program, list(sample[:-1]))
    reference, result = expected.reference, sample[-1]
    largest = float(reference.abs().max())
    judged = compare_with(result, reference, expected.bound, overflows=expected.overflows, free=expected.free)
    mine, other = (
        float((x.double() - reference).abs().max()) / largest
        for x in (result, sampled(case, (*fresh[:-1], theirs), at)[-1])
    )
    both = Errors(mine, other, judged.worst)
    assert judged.worst <= 1, f"ours errs by {judged.worst:.3g} of the bound: {both}"
    return both


# --- the run ------------------------------------------------------------------------


def _classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    by_sort = bars.classed(
        [r for r in rows if not r["fused"]],
        lambda r: r["ratio"],
        lambda r: f"{r['name'].split()[1]}, over cudnn",
    )
    return by_sort | {
        f"{label}, over {rival}": {r["name"]: r[column] for r in rows if r["fused"] == fused and column in r}
        for fused, label in ((False, "plain"), (True, "bias and relu"))
        for rival, column in (("cudnn", "ratio"), ("torch.compile", "over compile"))
    }


def _line(row: Mapping[str, Any]) -> str:
    compiled = f"  over compile {row['over compile']:.3f}" if "over compile" in row else ""
    return (
        f"{row['name']:38} {row['ours']:8.1f} us {row['tflops']:6.1f} TF  cudnn {row['cudnn']:8.1f}  ratio "
        f"{row['ratio']:.3f}{compiled}  spread {row['spread']:.3f}  error "
        f"{row['error']:.1e} (cudnn {row['cudnn error']:.1e}, bound {row['of bound']:.2f})  "
        f"{row['kernel'].partition('(')[0]} {_tile(row['kernel'])}"
    )


def _tile(kernel: str) -> str:
    return kernel.partition("tile=")[2].partition(")")[0] + ")" if "tile=" in kernel else ""


def main() -> None:
    parser = campaign.parser_of(__doc__, compiles=True, drawn=0)
    parser.add_argument("--kinds", default="plain,fused")
    options = parser.parse_args()
    kinds = options.kinds.split(",")
    cases = drawn(options.drawn, options.seed) if options.drawn else CASES
    chosen = harness.selected(tasks(cases), options, lambda t: t.case.name)
    campaign.report(
        "benchmarks.convolution:row",
        [
            Planned(t.name, t.case.text(t.fused), t.case.sizes(), {"case": asdict(t.case), "fused": t.fused})
            for t in chosen
            if t.name.split()[0] in kinds
        ],
        options,
        _line,
        _classes,
        row_seconds=ROW_SECONDS,
        held={"plain, over cudnn": Bar(geomean=1.0, least=0.8)},
    )


if __name__ == "__main__":
    main()
