"""Programs of the repository under other names, and what of a program its names must not decide."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests import programs_attention
from tests.kernels.convolution_programs import PROGRAMS as CONVOLUTIONS
from tests.kernels.grouped_gemm_programs import GROUPED_GEMMS
from tests.kernels.reduction_programs import REDUCTIONS
from ucutlass import frontend, ir
from ucutlass.backend import source_of
from ucutlass.check.calls import BUILTINS
from ucutlass.grammar.parse import grammar_text
from ucutlass.ir.elements import ELEMENTS
from ucutlass.ir.functions import FUNCTIONS
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import FIELDS, show
from ucutlass.pipeline.fusion import fusion_candidates
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.shapes import complete
from ucutlass.typical_sizes import typical_sizes

ROOT = Path(__file__).parent.parent

LANGUAGE = frozenset(
    {
        *BUILTINS,
        *FUNCTIONS,
        *ELEMENTS,
        *ARCHES,
        *FIELDS,
        *(w for f in FIELDS.values() for w in f.words),
        *re.findall(r'"([a-z_]+)"', grammar_text()),
        "auto",
        "acc",
        "fast",
        "s32",
        "exclusive",
        "reverse",
        "alpha",
        "slope",
        "lo",
        "hi",
        "dim",
        "shifts",
        "dims",
        "diagonal",
        "descending",
    }
)
"""Words that mean something by themselves."""

_WORD = re.compile(r"#[^\n]*|torch\.\w+|(?<![\w.])[A-Za-z_]\w*")


def own_names(text: str) -> tuple[str, ...]:
    """The names that a file's programs give: dimensions, parameters, values, programs and functions, in the
    order of their first appearance."""
    words = dict.fromkeys(m[0] for m in _WORD.finditer(text) if m[0][0] != "#" and "." not in m[0])
    return tuple(word for word in words if word not in LANGUAGE)


def renamed(text: str, names: Mapping[str, str]) -> str:
    """The text with names replaced, comments dropped."""
    return _WORD.sub(lambda m: "" if m[0][0] == "#" else names.get(m[0], m[0]), text)


def reversed_names(text: str) -> dict[str, str]:
    """Names whose alphabetical order is the reverse of the present one's."""
    ordered = sorted(own_names(text), reverse=True)
    return {name: f"q{i:03}" for i, name in enumerate(ordered)}


def decided(text: str, name: str, sizes: Mapping[str, int] | None, arch: str) -> list[Any]:
    """What is launched for one program of a text: the digested code, schedule, launch parameters and bounds
    of each kernel, and what a pipeline's cuts cost. Raises as the planner does."""
    checked = frontend.read_text(text)
    program = frontend.program(checked, name)
    whole = typical_sizes(program, None) if sizes is None else complete(program, sizes)
    assert whole is not None
    if isinstance(program, ir.Kernel):
        kernels = [(program, frontend.plan_kernel(checked, program, whole, arch))]
        order: list[Any] = []
    else:
        plan = plan_pipeline(checked, program, whole, arch)
        kernels = [(s.step.kernel, s.chosen) for s in plan.stages if s.step.kernel and s.chosen]
        order = [plan.streams, *((c.bytes, c.possible, c.saves) for c in fusion_candidates(plan, arch))]
    return [*order, *(_launched(checked, kernel, chosen.planned) for kernel, chosen in kernels)]


def _launched(checked: frontend.Checked, kernel: ir.Kernel, planned: Any) -> tuple[Any, ...]:
    return (
        source_of(checked, kernel, planned).code,
        show(planned.request),
        planned.sizes,
        planned.seconds,
        getattr(planned, "launch", None),
    )


@cache
def corpus() -> Mapping[str, str]:
    """Every program text of the repository that checks, by where it stands."""
    return dict(_corpus())


def _corpus() -> Iterator[tuple[str, str]]:
    for folder in ("examples", "examples/tasks", "tests/pipeline/programs"):
        for path in sorted((ROOT / folder).glob("*.ucu")):
            yield f"{folder}/{path.name}", path.read_text()
    for page in sorted((ROOT / "docs").glob("*.md")):
        blocks = re.findall(r"^```ucu\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
        yield from ((f"docs/{page.name}:{i}", block) for i, block in enumerate(blocks))
    yield from ((f"convolution {name}", text) for name, (text, _) in CONVOLUTIONS.items())
    yield from ((f"product {name}", case.text) for name, case in GROUPED_GEMMS.items())
    yield from ((f"reduction {name}", reduction.text) for name, reduction in REDUCTIONS.items())
    yield from (
        (f"attention {name}", programs_attention.text(name, "bf16")) for name in programs_attention.PROGRAMS
    )
