"""Convolutions against cuDNN (torch, channels last, benchmark mode) and torch.compile in the same run.

    python -m benchmarks.convolution --out convolution.json [--only NAME,...] [--no-compile] [--seconds S]

Default schedules, nothing tuned; rows in turns on rotated buffers as `runtime/timing.py` describes. `plain`
rows are a convolution alone, `fused` ones have a bias and an activation, which eager runs as kernels of
their own. Tensors lie channels last on both sides.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

import ucutlass
from benchmarks import budget, relay
from benchmarks.budget import Deadline
from benchmarks.report import geomean, machine
from ucutlass import frontend
from ucutlass.backend import build_sources, source_of
from ucutlass.runtime.build import Artifact
from ucutlass.runtime.errors import BuildCancelled
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.shapes import complete

ROW_SECONDS = 120.0
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16}


def _kernel(head: str, result: str, dot: str) -> str:
    return f"kernel k({head}{{more}}) -> {{t}}[{result}] {{{{ return {{before}}{dot}{{after}} }}}}"


_ROWS = "P=(H+2*{p}-{d}*({r}-1)-1)//{s}+1, Q=(W+2*{p}-{d}*({r}-1)-1)//{s}+1"
_READ = "x[H = {s}*P + {d}*R - {p}, W = {s}*Q + {d}*S - {p}]"

FORWARD1 = _kernel(
    "x: {t}[N, W, C], w: {t}[K, S={r}, C]", "N, Q=(W+2*{p}-{d}*({r}-1)-1)//{s}+1, K",
    "dot[S, C](x[W = {s}*Q + {d}*S - {p}], w)",
)  # fmt: skip
FORWARD2 = _kernel(
    "x: {t}[N, H, W, C], w: {t}[K, R={r}, S={r}, C]", f"N, {_ROWS}, K", f"dot[R, S, C]({_READ}, w)"
)
FORWARD3 = _kernel(
    "x: {t}[N, D, H, W, C], w: {t}[K, T={r}, R={r}, S={r}, C]",
    "N, O=(D+2*{p}-{r})//{s}+1, P=(H+2*{p}-{r})//{s}+1, Q=(W+2*{p}-{r})//{s}+1, K",
    "dot[T, R, S, C](x[D = {s}*O + T - {p}, H = {s}*P + R - {p}, W = {s}*Q + S - {p}], w)",
)
GROUPED = _kernel(
    "x: {t}[N, H, W, (G={g} C)], w: {t}[(G K), R={r}, S={r}, C]", f"N, {_ROWS}, (G K)",
    f"dot[R, S, C]({_READ}, w)",
)  # fmt: skip
DEPTHWISE = _kernel("x: {t}[N, H, W, K], w: {t}[R={r}, S={r}, K]", f"N, {_ROWS}, K", f"dot[R, S]({_READ}, w)")
TRANSPOSED = _kernel(
    "x: {t}[N, H, W, C], w: {t}[C, R={r}, S={r}, K]",
    "N, P={s}*H-2*{p}+{r}-{s}, Q={s}*W-2*{p}+{r}-{s}, K",
    "dot[R, S, C](x[{s}*H = P + {p} - R, {s}*W = Q + {p} - S], w)",
)
WEIGHTS = _kernel(
    f"x: {{t}}[N, H, W, C], y: {{t}}[N, {_ROWS}, K]", "K, R={r}, S={r}, C", f"dot[N, P, Q]({_READ}, y)"
)


@dataclass(frozen=True, slots=True)
class Case:
    """A shape. `kind` is forward, depthwise, grouped, transposed or weights; `size` the spatial extent, in
    every one of `space` dimensions; channels of a group are `c` and `k`."""

    name: str
    kind: str
    n: int
    size: int
    c: int
    k: int
    r: int
    s: int = 1
    p: int = 0
    d: int = 1
    g: int = 1
    space: int = 2
    t: str = "bf16"

    def text(self, fused: bool) -> str:
        template = {
            "forward": {1: FORWARD1, 2: FORWARD2, 3: FORWARD3}[self.space], "grouped": GROUPED,
            "depthwise": DEPTHWISE, "transposed": TRANSPOSED, "weights": WEIGHTS,
        }[self.kind]  # fmt: skip
        bias = f"b: {self.t}[(G K)]" if self.kind == "grouped" else f"b: {self.t}[K]"
        return template.format(
            t=self.t,
            p=self.p,
            s=self.s,
            d=self.d,
            g=self.g,
            r=self.r,
            more=f", {bias}" if fused else "",
            before="relu(" if fused else "",
            after=" + b)" if fused else "",
        )

    def sizes(self) -> dict[str, int]:
        given = {"N": self.n, "C": self.c, "K": self.k}
        given |= dict(zip(("W", "H", "D")[: self.space], (self.size,) * 3, strict=False))
        if self.kind == "depthwise":
            del given["C"]
        return given

    @property
    def flops(self) -> float:
        c = 1 if self.kind == "depthwise" else self.c
        side = (
            self.size
            if self.kind == "transposed"
            else (self.size + 2 * self.p - self.d * (self.r - 1) - 1) // self.s + 1
        )
        return 2.0 * self.n * side**self.space * c * self.k * self.g * self.r**self.space


CASES: tuple[Case, ...] = (
    Case("stem 7x7/2", "forward", 32, 224, 3, 64, 7, 2, 3),
    Case("3x3 64 at 56", "forward", 32, 56, 64, 64, 3, 1, 1),
    Case("3x3 128 at 28", "forward", 32, 28, 128, 128, 3, 1, 1),
    Case("3x3 256 at 14", "forward", 32, 14, 256, 256, 3, 1, 1),
    Case("3x3 512 at 7", "forward", 32, 7, 512, 512, 3, 1, 1),
    Case("3x3/2 128 at 56", "forward", 32, 56, 128, 128, 3, 2, 1),
    Case("3x3/2 512 at 14", "forward", 32, 14, 512, 512, 3, 2, 1),
    Case("1x1 256-64 at 56", "forward", 32, 56, 256, 64, 1),
    Case("1x1 64-256 at 56", "forward", 32, 56, 64, 256, 1),
    Case("1x1/2 256-512 at 56", "forward", 32, 56, 256, 512, 1, 2),
    Case("3x3 256 at 56", "forward", 16, 56, 256, 256, 3, 1, 1),
    Case("3x3 dilated 256 at 28", "forward", 32, 28, 256, 256, 3, 1, 2, 2),
    Case("5x5 128 at 28 f16", "forward", 32, 28, 128, 128, 5, 1, 2, t="f16"),
    Case("3d 3x3x3 64 at 28", "forward", 4, 28, 64, 64, 3, 1, 1, space=3),
    Case("1d 9 512 at 2048", "forward", 16, 2048, 512, 512, 9, 1, 4, space=1),
    Case("grouped 3x3 8x64 at 28", "grouped", 32, 28, 64, 64, 3, 1, 1, g=8),
    Case("depthwise 3x3 384 at 56", "depthwise", 32, 56, 1, 384, 3, 1, 1),
    Case("depthwise 3x3/2 384 at 56", "depthwise", 32, 56, 1, 384, 3, 2, 1),
    Case("depthwise 7x7 192 at 56", "depthwise", 32, 56, 1, 192, 7, 1, 3),
    Case("transposed 4x4/2 256-128 at 28", "transposed", 32, 28, 256, 128, 4, 2, 1),
    Case("transposed 2x2/2 256-128 at 28", "transposed", 32, 28, 256, 128, 2, 2, 0),
    Case("weights 3x3 128 at 28", "weights", 32, 28, 128, 128, 3, 1, 1),
)

NOT_FUSED = ("weights",)


@dataclass(frozen=True, slots=True)
class Task:
    case: Case
    fused: bool

    @property
    def name(self) -> str:
        return f"{'fused' if self.fused else 'plain'} {self.case.name}"


def tasks() -> list[Task]:
    plain = [Task(case, False) for case in CASES]
    return plain + [Task(case, True) for case in CASES if case.kind not in NOT_FUSED]


# --- one row ------------------------------------------------------------------------


def _last(x: torch.Tensor) -> torch.Tensor:
    """Channels-last memory seen as torch's order of names: the same bytes."""
    return x.movedim(-1, 1)


def tensors(case: Case, fused: bool, sets: int) -> list[tuple[torch.Tensor, ...]]:
    """What our kernel takes, set by set."""
    program = frontend.kernel(frontend.read_text(case.text(fused)))
    sizes = dict(zip(program.dims, complete(program, case.sizes()), strict=True))

    def shape(type_: Any) -> tuple[int, ...]:
        lengths = []
        for axis in type_.axes:
            length = 1
            for d in axis.dims:
                length *= sizes[d]
            lengths.append(length)
        return tuple(lengths)

    shapes = [shape(p.type) for p in program.params] + [shape(program.results[0].type)]
    return [tuple(torch.randn(s, device="cuda").to(DTYPES[case.t]) for s in shapes) for _ in range(sets)]


def eager(case: Case, fused: bool) -> Callable[..., torch.Tensor]:
    """torch's own, of tensors in its order of names."""
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[case.space]

    def run(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        if case.kind == "transposed":
            y = F.conv_transpose2d(x, w, b, stride=case.s, padding=case.p)
        elif case.kind == "weights":
            shape = [case.k, case.c, case.r, case.r]
            return torch.ops.aten.convolution_backward(
                w, x, x.new_empty(shape).to(memory_format=torch.channels_last), None,
                 [case.s] * 2, [case.p] * 2, [1, 1], False, [0, 0], 1, [False, True, False],
            )[1]  # fmt: skip
        else:
            groups = case.k if case.kind == "depthwise" else case.g
            y = convolve(x, w, b, stride=case.s, padding=case.p, dilation=case.d, groups=groups)
        return torch.relu(y) if fused else y

    return run


def given(case: Case, ours: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Our tensors without copies as torch takes them; weights of a depthwise in its own order."""
    x, w = _last(ours[0]), ours[1]
    if case.kind == "depthwise":
        w = w.permute(2, 0, 1)[:, None].contiguous(memory_format=torch.channels_last)
    else:
        w = _last(w)
    return (x, w, *ours[2:-1])


def row(item: relay.Item) -> relay.Row:
    torch.backends.cudnn.benchmark = True
    task = next(t for t in tasks() if t.name == item["name"])
    case = task.case
    kernel = ucutlass.loads(case.text(task.fused))
    one = tensors(case, task.fused, 1)[0]
    sets = sets_for(sum(t.numel() * t.element_size() for t in one))
    ours = [one, *tensors(case, task.fused, sets - 1)]
    theirs = [given(case, tensors_) for tensors_ in ours]
    torch_way = eager(case, task.fused)
    error = _error(case, kernel, torch_way, ours[0], theirs[0])
    candidates: dict[str, Callable[[int], object]] = {
        "ours": lambda i: kernel(*ours[i][:-1], out=ours[i][-1]),
        "cudnn": lambda i: torch_way(*theirs[i]),
        "cudnn again": lambda i: torch_way(*theirs[i]),
    }
    if item["compile"]:
        torch._dynamo.reset()
        compiled = torch.compile(torch_way, mode="max-autotune-no-cudagraphs")
        compiled(*theirs[0])
        candidates["compile"] = lambda i: compiled(*theirs[i])
    times = compare(candidates, sets)
    mine = times["ours"].median
    best = min(times["cudnn"].median, times["cudnn again"].median)
    found: dict[str, Any] = {
        "fused": task.fused, "kernel": item["kernel"], "error": error, "ours": mine, "cudnn": best,
        "ratio": best / mine, "tflops": 1e-6 * case.flops / mine,
        "spread": max(t.spread for t in times.values()),
        "noise": times["cudnn"].median / times["cudnn again"].median,
    }  # fmt: skip
    if item["compile"]:
        found |= {"compile": times["compile"].median, "over compile": times["compile"].median / mine}
    return found


def _error(
    case: Case, kernel: Any, torch_way: Any, ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]
) -> float:
    """The largest difference from torch's result, over the largest value: that both did the same work."""
    kernel(*ours[:-1], out=ours[-1])
    wanted = torch_way(*theirs).float()
    mine = _last(ours[-1]).float()
    return float((mine - wanted).abs().max() / wanted.abs().max())


# --- the run ------------------------------------------------------------------------


def prebuild(wanted: Sequence[Task], deadline: Deadline) -> tuple[dict[str, str], dict[str, str]]:
    """Builds every kernel in parallel: what was built, by task, and why others were not."""
    sources, shown = [], []
    for task in wanted:
        checked = frontend.read_text(task.case.text(task.fused))
        program = frontend.kernel(checked)
        planned = frontend.plan_kernel(
            checked, program, complete(program, task.case.sizes()), "sm90a"
        ).planned
        sources.append((source_of(checked, program, planned), planned.plan))
        shown.append(str(planned.plan.schedule))
    built, unbuilt = {}, {}
    for task, schedule, result in zip(
        wanted, shown, build_sources(sources, cancel=deadline.event()), strict=True
    ):
        match result:
            case Artifact():
                built[task.name] = schedule
            case BuildCancelled():
                pass
            case failure:
                unbuilt[task.name] = str(failure)[:2000]
    return built, unbuilt


def rows_here(items: list[relay.Item], rows: str, item_seconds: float) -> int:
    """In the child of `relay.run`."""
    return relay.serve(row, items, rows, item_seconds)


def run(wanted: Sequence[Task], journal: Path, deadline: Deadline, compiles: bool) -> Mapping[str, Any]:
    """Builds, times and sorts: the report."""
    known = {r["name"] for r in budget.lines(journal)}
    fresh = [task for task in wanted if task.name not in known]
    built, unbuilt = prebuild(fresh, deadline)
    items = [{"name": t.name, "kernel": built[t.name], "compile": compiles} for t in fresh if t.name in built]
    relay.run("benchmarks.convolution:rows_here", items, journal, item_seconds=ROW_SECONDS, deadline=deadline)
    found = {r["name"]: r for r in budget.lines(journal)}
    done = [found[t.name] for t in wanted if t.name in found]
    return {
        "machine": machine(),
        "rows": [r for r in done if r["ok"]],
        "lost": [r for r in done if not r["ok"]],
        "unbuilt": unbuilt,
        "left": [t.name for t in wanted if t.name not in found and t.name not in unbuilt],
    }


def table(report: Mapping[str, Any]) -> str:
    lines = [_line(r) for r in report["rows"]]
    for fused in (False, True):
        rows = [r for r in report["rows"] if r["fused"] == fused]
        if rows:
            label = "bias and relu" if fused else "plain"
            lines.append(
                f"{label}: geomean of cudnn / ours {geomean([r['ratio'] for r in rows]):.3f}, worst "
                f"{min(r['ratio'] for r in rows):.3f}, {len(rows)} shapes"
            )
            compiled = [r["over compile"] for r in rows if "over compile" in r]
            if compiled:
                lines.append(
                    f"{label}: geomean over torch.compile {geomean(compiled):.3f}, worst {min(compiled):.3f}"
                )
    lines += [f"lost: {r['name']}: {r['error']}: {r['detail'][:300]}" for r in report["lost"]]
    lines += [f"not built: {name}: {why[:600]}" for name, why in report["unbuilt"].items()]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    compiled = f"  over compile {row['over compile']:.3f}" if "over compile" in row else ""
    return (
        f"{row['name']:38} {row['ours']:8.1f} us {row['tflops']:6.1f} TF  cudnn {row['cudnn']:8.1f}  ratio "
        f"{row['ratio']:.3f}{compiled}  spread {row['spread']:.3f}  error {row['error']:.1e}  "
        f"{row['kernel'].partition('(')[0]} {_tile(row['kernel'])}"
    )


def _tile(kernel: str) -> str:
    return kernel.partition("tile=")[2].partition(")")[0] + ")" if "tile=" in kernel else ""


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", default="", help="names of shapes, with commas")
    parser.add_argument("--kinds", default="plain,fused")
    parser.add_argument(
        "--no-compile", action="store_true", help="without torch.compile, which takes the time"
    )
    budget.add_option(parser)
    options = parser.parse_args()
    only = list(filter(None, options.only.split(",")))
    kinds = options.kinds.split(",")
    wanted = [t for t in tasks() if (not only or t.case.name in only) and t.name.split()[0] in kinds]
    report = run(
        wanted, options.out.with_suffix(".jsonl"), budget.after(options.seconds), not options.no_compile
    )
    budget.write(options.out, report)
    print(table(report))
    if report["left"]:
        print(f"{len(report['left'])} rows not timed for lack of time; the same command goes on")
        sys.exit(budget.OUT_OF_TIME)
    sys.exit(bool(report["lost"] or report["unbuilt"]))


if __name__ == "__main__":
    main()
