"""Extents for programs whose caller gives none: what a name is for says how long it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from ucutlass import frontend, ir
from ucutlass.limits import Effort
from ucutlass.typical_sizes import MOST_STEPS, typical_sizes

PROGRAMS = Path(__file__).parent / "pipeline" / "programs"

TEXTS = {
    "a product": (
        "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }",
        {"M": 4096, "N": 4096, "K": 4096},
    ),
    "a batch": (
        "kernel k(x: bf16[B, H, M, K], w: bf16[B, H, N, K]) -> bf16[B, H, M, N] { return dot[K](x, w) }",
        {"B": 16, "H": 16, "M": 4096, "K": 4096},
    ),
    "attention": (
        "kernel k(q: bf16[B, H, L, D], k: bf16[B, H, S, D], v: bf16[B, H, S, E]) -> "
        "bf16[B, H, L, E] { return dot[S](bf16(softmax[S](dot[D](q, k))), v) }",
        {"B": 16, "H": 16, "D": 128, "E": 128, "L": 4096, "S": 4096},
    ),
    "a convolution": (
        "kernel k(x: bf16[N, H, W, C], w: bf16[K, R, S, C]) -> bf16[N, P=H, Q=W, K] "
        "{ return dot[R, S, C](x[H = P + R - 1, W = Q + S - 1], w) }",
        {"H": 64, "W": 64, "R": 3, "S": 3, "C": 64, "N": 64, "K": 4096},
    ),
}


@pytest.mark.parametrize("what", TEXTS)
def test_a_name_is_as_long_as_its_part_asks(what: str) -> None:
    text, expected = TEXTS[what]
    program = frontend.program(frontend.read_text(text))
    sizes = typical_sizes(program, None)
    assert sizes is not None
    known = dict(zip(program.dims, sizes, strict=True))
    assert {d: known[d] for d in expected} == expected


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.ucu")), ids=lambda p: p.stem)
def test_whole_pipelines_are_planned_at_ordinary_extents(path: Path) -> None:
    """Every stage has a kernel there, and nothing takes more memory than a GPU has."""
    from ucutlass import ir
    from ucutlass.pipeline.planning import plan_pipeline

    checked = frontend.read(path)
    program = frontend.program(checked)
    assert isinstance(program, ir.Pipeline)
    sizes = typical_sizes(program, None)
    assert sizes is not None
    plan = plan_pipeline(checked, program, sizes, "sm90a")
    assert max(b.bytes for b in plan.sized.buffers.values()) <= 2**36


def test_a_guard_is_met_all_the_same() -> None:
    text = (
        "kernel k(x: bf16[B, M, K], w: bf16[B, N, K]) -> bf16[B, M, N] {\n  return dot[K](x, w)\n"
        "  schedule sm90a when B >= 64 and M <= 16 { tile 64x64x64 }\n}\n"
    )
    program = frontend.program(frontend.read_text(text))
    (block,) = program.schedules  # type: ignore[union-attr]
    sizes = typical_sizes(program, block.guard)
    assert sizes is not None
    known = dict(zip(program.dims, sizes, strict=True))
    assert known["B"] >= 64 and known["M"] <= 16


def test_a_condition_on_any_one_of_many_names_is_met() -> None:
    axes = ", ".join("ABCDEF")
    head = f"kernel k(x: f32[{axes}]) -> f32[{axes}] {{ return relu(x)  schedule sm90a when"
    for name in "ABCDEF":
        checked = frontend.read_text(f"{head} {name} <= 64 {{}} }}")
        (program,) = checked.module.programs
        assert isinstance(program, ir.Kernel)
        sizes = typical_sizes(program, program.schedules[0].guard)
        assert sizes is not None and sizes["ABCDEF".index(name)] <= 64


def test_what_a_file_may_take_is_shared_by_its_programs() -> None:
    text = "kernel k(x: f32[M]) -> f32[M] { require M % 7 == 8  return x }"
    (program,) = frontend.read_text(text).module.programs
    work = Effort(MOST_STEPS + 1)
    assert typical_sizes(program, None, work) is None and work.spent == MOST_STEPS + 1
