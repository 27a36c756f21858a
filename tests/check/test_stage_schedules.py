"""Schedules of a pipeline's stages: which stage takes which, and what is no stage of theirs."""

from __future__ import annotations

import pytest

from tests.typed import check
from ucutlass import ir
from ucutlass.diagnostics import Diagnostic, ProgramError

PIPELINE = """
kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return dot[K](x, w) }
pipeline p(x: bf16[T, D], w: bf16[F, D], v: bf16[D, F]) -> (y: bf16[T, D], m: f32[T], c: bf16[T, F]) {
  a = linear(x, w)
  r: bf16[T, F] = torch.relu(a)
  h: bf16[T, F] = a * r
  g = h * 2
  return y = dot[F](h, v), m = max[F](g), c = h
  %s
}
"""


def stages(blocks: str) -> dict[str, tuple[ir.ScheduleBlock, ...]]:
    (pipeline,) = (p for p in check(PIPELINE % blocks).programs if isinstance(p, ir.Pipeline))
    return {" ".join(s.outputs): s.call.schedules for s in pipeline.stages if isinstance(s.call, ir.Kernel)}


def found(blocks: str) -> list[Diagnostic]:
    with pytest.raises(ProgramError) as caught:
        check(PIPELINE % blocks)
    return list(caught.value.diagnostics)


def test_each_stage_has_its_own_in_the_order_of_the_text() -> None:
    schedule_blocks = stages("""
      schedule sm90a for return y when T <= 64 { tile 64x64x64 }
      schedule sm90a for h { vector 8 }
      schedule sm90a for return y { tile 128x256x64 or 256x128x64 }
      schedule sm80 for return y { stages 3 }
      schedule sm90a for return m { vector 4 }
    """)
    assert {
        name: [(b.arch, b.guard is None) for b in blocks] for name, blocks in schedule_blocks.items()
    } == {
        "a": [],
        "h": [("sm90a", True)],
        "return y": [("sm90a", False), ("sm90a", True), ("sm80", True)],
        "return m": [("sm90a", True)],
        "return c": [],
    }
    assert schedule_blocks["return y"][1].choices[0].values == ((128, 256, 64), (256, 128, 64))


def test_a_stage_may_stand_behind_its_schedule() -> None:
    text = (
        "pipeline p(x: f32[M]) -> f32[M] {\n  schedule sm90a for h { vector 4 }\n"
        "  h: f32[M] = x * 2\n  return h + 1\n}\n"
    )
    (pipeline,) = check(text).programs
    assert isinstance(pipeline, ir.Pipeline)
    assert [len(s.call.schedules) for s in pipeline.stages if isinstance(s.call, ir.Kernel)] == [1, 0]


@pytest.mark.parametrize(
    ("code", "block", "at", "message", "hint"),
    [
        ("UC0505", "schedule sm90a { vector 4 }", "sm90a", "one of its stages", "schedule sm90a for h"),
        ("UC0506", "schedule sm90a for hh { }", "hh", "no stage is named hh", "did you mean h?"),
        ("UC0506", "schedule sm90a for g { }", "g", "g is not stored", "g: f32 = .."),
        ("UC0506", "schedule sm90a for x { }", "x", "x is a parameter", "h, return y, return m"),
        ("UC0506", "schedule sm90a for return { }", "return", "no `return`", "h, return y, return m"),
        ("UC0506", "schedule sm90a for return z { }", "return z", "no `return z`", "return y"),
        ("UC0507", "schedule sm90a for a { }", "a", "calls the kernel linear", "write them in linear"),
        ("UC0507", "schedule sm90a for r { }", "r", "torch.relu", None),
        ("UC0507", "schedule sm90a for return c { }", "return c", "return c is h itself", "for h"),
        ("UC0405", "schedule sm90a for h when D > 4 { }", "D > 4", "has no D", "T, F"),
        ("UC0402", "schedule sm90a for h { tyle 4 }", "tyle", "tyle", "tile"),
        ("UC0401", "schedule sm42 for h { }", "sm42", "sm42", None),
        ("UC0406", "schedule sm90a for h { vector 4 vector 8 }", "vector", "twice", None),
    ],
)
def test_refused(code: str, block: str, at: str, message: str, hint: str | None) -> None:
    (one,) = found(block)
    source = PIPELINE % block
    assert (one.code, source[one.span.start : one.span.end]) == (code, at)
    assert message in one.message
    assert hint is None or hint in (one.hint or "")


def test_a_block_behind_one_that_always_holds_is_of_the_same_stage() -> None:
    both = "schedule sm90a for h { vector 8 }\n  schedule sm90a for %s when T > 4 { vector 4 }"
    assert [d.code for d in found(both % "h")] == ["UC0404"]
    assert len(stages(both % "return m")["return m"]) == 1


def test_a_rejected_stage_is_not_said_to_be_missing() -> None:
    text = (
        "pipeline p(x: f32[M]) -> f32[M] {\n  h: f32[M] = nope\n  return h + nope\n"
        "  schedule sm90a for h { vector 4 }\n  schedule sm90a for return { vector 4 }\n}\n"
    )
    with pytest.raises(ProgramError) as caught:
        check(text)
    assert {d.code for d in caught.value.diagnostics} == {"UC0101"}


def test_a_kernel_has_no_stages() -> None:
    with pytest.raises(ProgramError) as caught:
        check("kernel k(x: f32[M]) -> f32[M] { return x + 1 schedule sm90a for return { vector 4 } }")
    assert [d.code for d in caught.value.diagnostics] == ["UC0505"]


def test_a_buffer_that_is_returned_twice_is_copied_once() -> None:
    text = (
        "pipeline p(x: f32[M]) -> (a: f32[M], b: f32[M]) {\n  h: f32[M] = x * 2\n  return a = h, b = h\n"
        "  schedule sm90a for return %s { vector 4 }\n}\n"
    )
    check(text % "b")
    with pytest.raises(ProgramError):
        check(text % "a")
