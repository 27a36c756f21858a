"""The corpus of `benchmarks.digests`: programs of every family, and the schedules that each is emitted with.

Programs are drawn by seed from the feature tables (`tests.pairs.spaces`), the random GEMMs and the
lists of cases. Each is planned for Hopper and for one older architecture. What the planner chooses is written
into the case as an explicit schedule, as are further legal schedules of the same program, so that a case does
not depend on later choices of the planner; a case without a schedule, every few programs, depends on them by
intent.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from benchmarks.convolution_cases import CASES as CONVOLUTIONS
from benchmarks.memory_cases import PROBLEMS
from tests.cases.cases import cases
from tests.pairs.spaces import SPACES
from tests.random_programs import random_program
from ucutlass import frontend, ir
from ucutlass.diagnostics import ProgramError
from ucutlass.emit import emit
from ucutlass.emit.gemm.lean import lean
from ucutlass.emit.parts import NotServed
from ucutlass.emit.text import Source
from ucutlass.ir.schedule import PartialSchedule, show
from ucutlass.kernels.attention.plan import AttentionPlan
from ucutlass.kernels.convolution.plan import ConvolutionPlan
from ucutlass.kernels.gemm.plan import GemmPlan
from ucutlass.kernels.grouped_gemm.plan import GroupedGemmPlan
from ucutlass.kernels.planned import Planned
from ucutlass.kernels.reduction.plan import ReductionPlan
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.shapes import ShapeError, complete
from ucutlass.typical_sizes import typical_sizes

ROOT = Path(__file__).parent.parent

HOPPER, OLDER = "sm90a", ("sm80", "sm89")

DRAWS: Mapping[str, int] = MappingProxyType(
    {"reduction": 430, "gemm": 330, "grouped_gemm": 740, "attention": 280, "convolution": 520}
)
"""Choices drawn of each feature table; the compiler refuses some of them."""

OFTEN: Mapping[str, Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "grouped_gemm": {
            "extents": ("tiles", "aligned"),
            "element": ("f32", "f16", "bf16"),
            "compute type": ("bf16", "f16", "e4m3"),
        }
    }
)
"""Features that two draws of three are confined to, for tables most of whose choices TMA does not take."""

RANDOM_GEMMS = 150

SAMPLED, TRIES = 2, 8
"""Further schedules of a program for Hopper, and how many are proposed for them."""

AUTO_EVERY, UNALIGNED_EVERY, OLDER_EVERY = 6, 8, 2
"""One program of so many is also emitted with the planner's choice, for pointers that are not aligned, or for
an older architecture."""

STEPS = (32, 64, 96, 128, 192, 256)

VALUES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "warps": ("pingpong", "cooperative", "multistage", "gemv", "direct"),
        "cluster": ("1x1", "2x1", "1x2", "2x2", "1x4"),
        "stages": ("2", "3", "4", "5", "6"),
        "math": ("tf32x3", "simt"),
        "swap": ("yes", "no"),
        "split_k": ("1", "2", "4", "stream"),
        "partials": ("memory", "cluster"),
        "raster": ("along_m", "along_n"),
        "swizzle": ("1", "2", "4", "8"),
        "rows": ("1", "2", "4", "8", "16", "32", "64"),
        "columns": ("1", "2", "4", "8"),
        "threads": ("1", "8", "32", "64", "128", "256", "512"),
        "vector": ("1", "2", "4", "8"),
        "items": ("1", "2", "3", "4", "8"),
        "keep": ("registers", "reread", "shared"),
        "blocks": ("1", "2", "3"),
    }
)
"""What fields of a schedule are changed to; tiles are drawn from STEPS."""


@dataclass(frozen=True, slots=True)
class Program:
    """A program of a text, with its free extents; `name` says where it is from and identifies it."""

    name: str
    text: str
    kernel: str | None
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Case:
    """One emission. `schedule` has the fields of a schedule block, None: as the program has it, the rest being
    the planner's choice. `stage` is a stage of a pipeline; `in_parts` asks for the parts that NVRTC builds.
    `family` and `kernel_kind` are those of the plan when the case was drawn."""

    name: str
    family: str
    kernel_kind: str
    text: str
    kernel: str | None
    sizes: Mapping[str, int] = field(hash=False)
    arch: str
    schedule: str | None = None
    stage: int | None = None
    unaligned: bool = False
    in_parts: bool = False

    @property
    def key(self) -> str:
        """Identifies the case among all of a corpus."""
        words = [self.name, self.arch, "auto" if self.schedule is None else self.schedule]
        words += [] if self.stage is None else [f"stage {self.stage}"]
        words += ["unaligned"] * self.unaligned + ["in parts"] * self.in_parts
        return " | ".join(words)


# --- programs ---------------------------------------------------------------------


def programs() -> Iterator[Program]:
    """Every program of the corpus, each once, in an order that does not change."""
    known: set[str] = set()
    for program in _programs():
        if program.name not in known:
            known.add(program.name)
            yield program


def _programs() -> Iterator[Program]:
    for space in SPACES.values():
        draw = random.Random(f"digests {space.name}")
        for number in range(DRAWS[space.name]):
            often = OFTEN.get(space.name, {}) if number % 3 else {}
            choice = {axis: draw.choice(often.get(axis, features)) for axis, features in space.axes.items()}
            drawn = space.program(choice, draw)
            yield _named(f"pairs {space.name}", drawn.text, "k", drawn.sizes)
    for seed in range(RANDOM_GEMMS):
        gemm = random_program(seed)
        yield _named("random gemm", gemm.text, None, gemm.sizes)
    for case in cases():
        for sizes in (case.shapes[0], case.shapes[-1]):
            yield _named(case.name, case.text, "k", sizes)
    for name, problem in PROBLEMS.items():
        yield _named(name, problem.text, "k", problem.sizes)
    for shape in CONVOLUTIONS:
        for fused in (False, True):
            yield _named(f"convolution {shape.name}", shape.text(fused), "k", shape.sizes())
    folders = (ROOT / "examples", ROOT / "examples" / "tasks", ROOT / "tests" / "pipeline" / "programs")
    for path in sorted(path for folder in folders for path in folder.glob("*.ucu")):
        yield from _of_file(path)


def _of_file(path: Path) -> Iterator[Program]:
    """The programs of a file, with ordinary extents."""
    text = path.read_text(encoding="utf-8")
    checked = frontend.read_text(text)
    for name in frontend.programs(checked):
        program = frontend.program(checked, name)
        if (sizes := typical_sizes(program, None)) is not None:
            free = dict(zip(program.dims, sizes, strict=True))
            known = {name: free[name] for name, extent in program.dims.items() if _is_free(name, extent)}
            yield _named(path.stem, text, name, known)


def _is_free(name: str, extent: object) -> bool:
    return getattr(extent, "position", None) == name


def _named(source: str, text: str, kernel: str | None, sizes: Mapping[str, int]) -> Program:
    content = json.dumps([text, kernel, dict(sizes)], sort_keys=True)
    return Program(f"{source} {hashlib.sha256(content.encode()).hexdigest()[:10]}", text, kernel, dict(sizes))


# --- cases ------------------------------------------------------------------------


def drawn(program: Program, number: int) -> Iterator[Case]:
    """The cases of a program; none where the compiler refuses it. `number` is its place in the corpus."""
    checked = _checked(program.text)
    if checked is None:
        return
    typed = frontend.program(checked, program.kernel)
    if isinstance(typed, ir.Pipeline):
        yield from _stages(program, checked, typed)
        return
    older = (OLDER[number // OLDER_EVERY % 2],) if number % OLDER_EVERY == 0 else ()
    for arch in (HOPPER, *older):
        yield from _in_parts(_of_kernel(program, checked, typed, arch, number))


def _checked(text: str) -> frontend.Checked | None:
    try:
        return frontend.read_text(text)
    except ProgramError:
        return None


def _of_kernel(
    program: Program, checked: frontend.Checked, kernel: ir.Kernel, arch: str, number: int
) -> Iterator[tuple[Case, Planned]]:
    try:
        sizes = complete(kernel, dict(program.sizes))
        own = frontend.plan_kernel(checked, kernel, sizes, arch).planned
    except (ProgramError, ShapeError):
        return
    base = Case(program.name, "", "", program.text, kernel.name, program.sizes, arch)
    if number % AUTO_EVERY == 0:
        yield _of_family(base, own), own
    draw = random.Random(f"{program.name} {arch}")
    for planned in (own, *_others(base, own, draw, SAMPLED if arch == HOPPER else 1)):
        yield from _explicit(base, planned)
    if number % UNALIGNED_EVERY == 0:
        case = replace(base, unaligned=True)
        if (other := plan(case)) is not None and other.plan != own.plan:
            yield from _explicit(case, other)


def _explicit(base: Case, planned: Planned) -> Iterator[tuple[Case, Planned]]:
    """The case that fixes every field of a plan, if its schedule stands for that plan."""
    case = replace(_of_family(base, planned), schedule=show(planned.request))
    if (repeated := plan(case)) is not None and repeated.plan == planned.plan:
        yield case, planned


def _others(base: Case, own: Planned, draw: random.Random, most: int) -> Iterator[Planned]:
    """Legal kernels that differ from the planner's own in a field or two, which are drawn."""
    plans = [own.plan]
    for _ in range(TRIES):
        if len(plans) > most:
            return
        planned = plan(replace(base, schedule=_altered(own, draw)))
        if planned is not None and planned.plan not in plans:
            plans.append(planned.plan)
            yield planned


def _altered(own: Planned, draw: random.Random) -> str:
    """A partial schedule: fields of the kernel's own with other values, its `warps`, and all else left open."""
    given = own.request.fixed()
    fields = draw.sample(list(given), min(len(given), draw.choice((1, 1, 2))))
    drawn: dict[str, str] = {} if "warps" not in given else {"warps": str(given["warps"])}
    for name in fields:
        value = given[name]
        if name == "tile" and isinstance(value, tuple):
            drawn[name] = "x".join(map(str, (draw.choice(STEPS), draw.choice(STEPS), *value[2:])))
        elif name in VALUES:
            drawn[name] = draw.choice(VALUES[name])
    return "  ".join(f"{name} {value}" for name, value in drawn.items())


def _in_parts(planned_cases: Iterable[tuple[Case, Planned]]) -> Iterator[Case]:
    """The cases, and again those that NVRTC builds of parts."""
    for case, planned in planned_cases:
        yield case
        if isinstance(planned.plan, GemmPlan) and _is_lean(planned.plan):
            yield replace(case, kernel_kind=f"{case.kernel_kind} in parts", in_parts=True)


def _is_lean(gemm: GemmPlan) -> bool:
    try:
        lean(gemm)
    except NotServed:
        return False
    return True


def _stages(program: Program, checked: frontend.Checked, pipeline: ir.Pipeline) -> Iterator[Case]:
    base = Case(program.name, "", "", program.text, pipeline.name, program.sizes, HOPPER, stage=0)
    try:
        count = len(_pipeline(checked, pipeline, base))
    except (ProgramError, ShapeError):
        return
    for stage in range(count):
        case = replace(base, stage=stage)
        if (planned := plan(case)) is not None:
            yield from _in_parts([(_of_family(case, planned), planned)])


def _of_family(case: Case, planned: Planned) -> Case:
    match planned.plan:
        case GemmPlan():
            family = "gemm"
        case GroupedGemmPlan():
            family = "grouped GEMM"
        case ConvolutionPlan():
            family = "convolution"
        case AttentionPlan():
            family = "attention"
        case ReductionPlan():
            family = "reduction"
    return replace(case, family=family, kernel_kind=_kind(planned.request))


def _kind(request: PartialSchedule) -> str:
    """What of a schedule means another template or another branch of one."""
    cluster = "cluster" if request.cluster not in (None, (1, 1)) else ""
    split = "split" if request.split_k not in (None, 1) else ""
    words = (request.warps, request.math, request.keep, cluster, split)
    return " ".join(word for word in words if word) or "plain"


# --- emission ---------------------------------------------------------------------


def scheduled_text(case: Case) -> str:
    """The program's text, its schedule blocks replaced by the case's own schedule where it has one."""
    if case.schedule is None:
        return case.text
    text = re.sub(r"#[^\n]*", "", case.text)
    text = re.sub(r"\bschedule\b[^{}]*\{[^{}]*\}", "", text)
    begin = re.search(rf"\bkernel\s+{case.kernel or '[^(]+'}\s*\(", text)
    if begin is None:
        raise ValueError(f"{case.name} has no kernel {case.kernel}")
    depth = 0
    for mark in re.finditer(r"[{}]", text[begin.start() :]):
        depth += 1 if mark[0] == "{" else -1
        if depth == 0:
            at = begin.start() + mark.start()
            return f"{text[:at]}\n  schedule {case.arch} {{ {case.schedule} }}\n{text[at:]}"
    raise ValueError(f"{case.name} does not close the braces of {case.kernel}")


def plan(case: Case) -> Planned | None:
    """The plan of a case; None where the compiler refuses it, or the stage runs no kernel of ours."""
    try:
        checked = frontend.read_text(scheduled_text(case))
        program = frontend.program(checked, case.kernel)
        if isinstance(program, ir.Pipeline):
            return _pipeline(checked, program, case)[case.stage or 0]
        aligned = [False] * _tensors(program) if case.unaligned else None
        sizes = complete(program, dict(case.sizes))
        return frontend.plan_kernel(checked, program, sizes, case.arch, aligned=aligned).planned
    except (ProgramError, ShapeError):
        return None


def _tensors(kernel: ir.Kernel) -> int:
    return sum(isinstance(p.type, ir.TensorType) for p in kernel.params) + len(kernel.results)


def _pipeline(checked: frontend.Checked, pipeline: ir.Pipeline, case: Case) -> list[Planned | None]:
    whole = plan_pipeline(checked, pipeline, complete(pipeline, dict(case.sizes)), case.arch)
    return [None if stage.chosen is None else stage.chosen.planned for stage in whole.stages]


def emitted(case: Case, planned: Planned) -> tuple[Source, tuple[str, ...]]:
    """The CUDA file of a case, and the texts to digest: its code, or those of its parts."""
    source = emit(planned.plan, "")
    if not case.in_parts:
        return source, (source.code,)
    assert isinstance(planned.plan, GemmPlan)
    parts = lean(planned.plan)
    return parts.device, (parts.device.code, parts.host, parts.arithmetic)


def to_json(case: Case) -> dict[str, Any]:
    """The fields of a case that are not at their defaults."""
    row = {
        "family": case.family,
        "kernel_kind": case.kernel_kind,
        "name": case.name,
        "text": case.text,
        "kernel": case.kernel,
        "sizes": dict(case.sizes),
        "arch": case.arch,
        "schedule": case.schedule,
        "stage": case.stage,
        "unaligned": case.unaligned,
        "in_parts": case.in_parts,
    }
    return {name: value for name, value in row.items() if value is not None and value is not False}


def from_json(row: Mapping[str, Any]) -> Case:
    """The case of a row that `to_json` wrote, whatever else the row has."""
    return Case(**{name: row[name] for name in Case.__dataclass_fields__ if name in row}, **_absent(row))


def _absent(row: Mapping[str, Any]) -> dict[str, Any]:
    return {} if "kernel" in row else {"kernel": None}
