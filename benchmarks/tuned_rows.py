"""The rows of `benchmarks.tuned`: which programs at which extents, and what each is compared with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F

from benchmarks import harness, speed
from benchmarks.harness import Item, Row
from benchmarks.speed import FUSED, GELU, HELD_OUT, PLAIN, RESIDUAL, Shape, extents_of
from ucutlass import frontend
from ucutlass.api import LoadedKernel
from ucutlass.ir import Kernel
from ucutlass.ir.schedule import partial_schedule_of_json, scheduled
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.statistics import paired_ratio
from ucutlass.runtime.timing import compare, sets_for
from ucutlass.tasks.tune import FINAL_ROUNDS

ARCH = "sm90a"

_LEFT_OUT = ("M 1 wide", "M 16 wide", "512 rows", "K 64")
MAIN: tuple[Shape, ...] = tuple(s for s in speed.SHAPES if s[0] not in _LEFT_OUT)
"""Sixteen of the shapes of `benchmarks.speed`: square, rectangular, skinny, deep, shallow and batched."""

OTHERS: tuple[Shape, ...] = (
    *HELD_OUT,
    ("qkv of 2560", 1, 2048, 7680, 2560),
    ("down 13824", 1, 4096, 5120, 13824),
    ("gate 28672", 1, 1024, 28672, 8192),
    ("M 48", 1, 48, 5120, 5120),
    ("12288 rows", 1, 12288, 2560, 10240),
    ("1000 rows", 1, 1000, 5000, 2000),
    ("192 rows", 1, 192, 11008, 4096),
    ("batch 24", 24, 1024, 1024, 192),
)
"""Sixteen that nobody tuned by hand: the eight held out there, and eight that no recording had."""

_F32: tuple[Shape, ...] = (
    ("square 2048", 1, 2048, 2048, 2048),
    ("square 4096", 1, 4096, 4096, 4096),
    ("wide N", 1, 2048, 8192, 4096),
    ("wide K", 1, 2048, 2048, 8192),
    ("tall", 1, 16384, 1024, 2048),
)
_FP8: tuple[Shape, ...] = (
    ("square 4096", 1, 4096, 4096, 4096),
    ("square 8192", 1, 8192, 8192, 8192),
    ("wide N", 1, 4096, 14336, 4096),
    ("wide K", 1, 4096, 4096, 14336),
    ("tall", 1, 16384, 1024, 4096),
    ("512 rows", 1, 512, 4096, 4096),
)

_SCALED = (
    "kernel k(x: {{t}}[M, K], w: {{t}}[N, K], a: f32[], b: f32[]) -> bf16[M, N] "
    "{{{{ return a * b * dot[K](x, w{}) }}}}"
)

SEED = 7

Arguments: TypeAlias = "Sequence[Any]"
Run: TypeAlias = "Callable[..., torch.Tensor]"


# --- what each kind is compared with ---------------------------------------------------


def _mm(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x, w.mT)


def _gelu(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b))


def _residual(x: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.linear(x, w) + r)


def _scaled(fast: bool) -> Run:
    def run(x: torch.Tensor, w: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x, w.mT, scale_a=a, scale_b=b, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return run


@dataclass(frozen=True, slots=True)
class Kind:
    """`text` with the place of an element type `{t}`; `eager` computes the same with torch, under the
    name that tables give it. `compiled`: torch.compile's max-autotune is a rival too."""

    text: str
    rival: str
    eager: Run
    compiled: bool = True
    batched: str = ""


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "gemm": Kind(PLAIN, "mm", _mm, batched=speed.BATCHED),
        "bias+gelu": Kind(GELU, "eager", _gelu),
        "residual+relu": Kind(RESIDUAL, "eager", _residual),
        "tf32x3": Kind(PLAIN.replace(" }}", " schedule sm90a {{ math tf32x3 }} }}"), "eager", _mm, False),
        "fp8": Kind(_SCALED.format(""), "scaled_mm", _scaled(False), False),
        "fp8 fast": Kind(_SCALED.format(", acc=fast"), "scaled_mm", _scaled(True), False),
    }
)


@dataclass(frozen=True, slots=True)
class Task:
    """One kernel at one shape."""

    kind: str
    shape: Shape
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.kind} {self.dtype} {self.shape[0]}"

    @property
    def text(self) -> str:
        kind = KINDS[self.kind]
        return (kind.text if self.shape[1] == 1 else kind.batched).format(t=self.dtype)

    @property
    def sizes(self) -> dict[str, int]:
        return extents_of(self.shape)

    def item(self) -> Item:
        return {"name": self.name, **asdict(self)}


def task_of(item: Mapping[str, Any]) -> Task:
    """Of what `item` made, through JSON."""
    name, b, m, n, k = item["shape"]
    return Task(item["kind"], (name, b, m, n, k), item["dtype"])


GROUPS = ("plain", "fused", "tf32x3", "fp8")


def tasks(groups: Sequence[str], dtypes: Sequence[str]) -> list[Task]:
    """Returns the rows of these groups."""
    fused = [s for s in speed.SHAPES if s[0] in FUSED]
    every = {
        "plain": [Task("gemm", s, t) for t in dtypes for s in MAIN + OTHERS],
        "fused": [Task(kind, s, "bf16") for s in fused for kind in ("bias+gelu", "residual+relu")],
        "tf32x3": [Task("tf32x3", s, "f32") for s in _F32],
        "fp8": [Task(kind, s, "e4m3") for kind in ("fp8", "fp8 fast") for s in _FP8],
    }
    return [task for group in GROUPS if group in groups for task in every[group]]


# --- one row, on the GPU ------------------------------------------------------------------


def compared(item: Item) -> Row:
    """Times the tuned kernel and its rivals in turns, in a process that took no part in the tuning."""
    task, kind = task_of(item), KINDS[item["kind"]]
    torch.backends.cuda.matmul.allow_tf32 = False
    checked = frontend.read_text(task.text)
    program = scheduled(frontend.kernel(checked), ARCH, partial_schedule_of_json(item["request"]))
    kernel = LoadedKernel(checked, program, ARCH)
    sets = _sets(program, task.sizes)
    rivals: dict[str, Run] = {kind.rival: kind.eager}
    if kind.compiled and item["compiled"]:
        torch._dynamo.reset()
        rivals["compile"] = torch.compile(kind.eager, mode="max-autotune-no-cudagraphs", dynamic=False)
        rivals["compile"](*sets[0])
    outs = [kernel(*arguments) for arguments in sets]
    candidates: dict[str, Callable[[int], object]] = {"ours": lambda i: kernel(*sets[i], out=outs[i])}
    candidates |= {name: _keeping(run, sets) for name, run in rivals.items()}
    times = compare(candidates, len(sets), rounds=FINAL_ROUNDS)
    best = min(rivals, key=lambda name: times[name].median)
    ratios = {name: paired_ratio(times[name].rounds, times["ours"].rounds, SEED) for name in rivals}
    return {
        "ours": times["ours"].median,
        **{name: times[name].median for name in rivals},
        "best": best,
        "ratio": ratios[best].median,
        "ratios": {name: [r.median, r.low, r.high] for name, r in ratios.items()},
        "spread": max(t.spread for t in times.values()),
        "distance": _distance(outs[0], kind.eager(*sets[0])),
        **(_errors(sets[0], outs[0], kind.eager) if task.dtype == "f32" else {}),
    }


def _sets(program: Kernel, sizes: Mapping[str, int]) -> list[list[Any]]:
    """Argument sets that rotate through more than twice the L2."""
    first = generate(program, sizes, "normal", seed=SEED, device="cuda", generator_device="cuda")
    moved = sum(a.numel() * a.element_size() for a in first if isinstance(a, torch.Tensor))
    return [[a.clone() if isinstance(a, torch.Tensor) else a for a in first] for _ in range(sets_for(moved))]


def _keeping(run: Run, sets: Sequence[Arguments]) -> Callable[[int], object]:
    """Launches whose results rotate as ours do: one that is freed at once would be written to the same
    place each time, and stay in L2."""
    results: list[torch.Tensor | None] = [None] * len(sets)

    def launch_one(i: int) -> object:
        results[i] = run(*sets[i])
        return results[i]

    return launch_one


def _distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Of the two results, as a share of theirs: whether the same thing was computed."""
    a, b = ours.double(), theirs.double()
    return float((a - b).norm() / b.norm())


def _errors(arguments: Arguments, ours: torch.Tensor, eager: Run) -> dict[str, float]:
    """Largest and root-mean-square error against float64, as shares of the result's root mean square."""
    exact = eager(*(a.double() for a in arguments))
    size = exact.square().mean().sqrt()
    errors = {}
    for name, result in (("ours", ours), ("eager", eager(*arguments))):
        off = (result.double() - exact).abs()
        errors[f"error {name}"] = float(off.max() / size)
        errors[f"rms error {name}"] = float(off.square().mean().sqrt() / size)
    return errors


def rows_here(items: list[Item], rows: str, item_seconds: float) -> int:
    """Runs in the child of `harness.run`."""
    return harness.serve(compared, items, rows, item_seconds)


def first_call(item: Item) -> dict[str, float]:
    """Seconds of torch.compile's first call of a task, its arguments ready and torch imported."""
    task, kind = task_of(item), KINDS[item["kind"]]
    checked = frontend.read_text(task.text)
    program = frontend.kernel(checked)
    arguments = generate(program, task.sizes, "normal", seed=SEED, device="cuda", generator_device="cuda")
    torch.cuda.synchronize()
    start = time.monotonic()
    torch.compile(kind.eager, mode="max-autotune-no-cudagraphs", dynamic=False)(*arguments)
    torch.cuda.synchronize()
    return {"seconds": time.monotonic() - start}
