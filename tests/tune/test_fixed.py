"""What a file's schedule withholds from the tuner."""

from __future__ import annotations

from ucutlass import frontend
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.tune.fixed import fixed_fields, outside, requests_for
from ucutlass.tune.job import job_of

TEXT = """kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return dot[K](x, w)
  schedule sm90a when M <= 64 { warps pingpong }
  schedule sm90a { warps cooperative  tile 128x256x64 or 256x128x64 }
}
"""
SIZES = {"M": 4096, "N": 4096, "K": 4096}


def test_the_fields_that_a_schedule_gives_and_what_is_left() -> None:
    checked = frontend.read_text(TEXT)
    program = frontend.kernel(checked)
    job = job_of(checked, program, SIZES, "sm90a")
    fixed = job.fixed
    assert fixed is not None
    assert fixed.fields == {"warps": ("cooperative",), "tile": ("128x256x64", "256x128x64")}
    assert (fixed.kernels, fixed.binaries) == (job.space.kernels, len(job.space.groups))
    free = frontend.read_text(TEXT.partition("  schedule")[0] + "}")
    assert job_of(free, frontend.kernel(free), SIZES, "sm90a").space.kernels == fixed.open_kernels
    assert fixed.open_kernels > fixed.kernels
    assert "the schedule fixes warps cooperative  tile 128x256x64 or 256x128x64: " in fixed.words
    assert "--free opens these fields" in fixed.words


def test_the_condition_that_holds_decides() -> None:
    checked = frontend.read_text(TEXT)
    job = job_of(checked, frontend.kernel(checked), SIZES | {"M": 64}, "sm90a")
    assert job.fixed is not None and dict(job.fixed.fields) == {"warps": ("pingpong",)}


def test_a_program_without_a_schedule_withholds_nothing() -> None:
    checked = frontend.read_text(TEXT.partition("  schedule")[0] + "}")
    assert job_of(checked, frontend.kernel(checked), SIZES, "sm90a").fixed is None


def test_fields_of_every_alternative() -> None:
    one, other = PartialSchedule(warps="cooperative", tile=(128, 128, 64)), PartialSchedule(warps="pingpong")
    assert fixed_fields((one, other)) == {"warps": ("cooperative", "pingpong")}
    assert fixed_fields(()) == {}


def test_a_schedule_outside_of_what_a_program_denotes() -> None:
    checked = frontend.read_text(TEXT)
    admitted = requests_for(frontend.kernel(checked), (4096, 4096, 4096), "sm90a")
    inside = PartialSchedule(warps="cooperative", tile=(256, 128, 64), cluster=(2, 1))
    assert outside(inside, admitted) == ""
    assert (
        outside(PartialSchedule(warps="cooperative", tile=(64, 64, 64)), admitted)
        == "tile 128x256x64 or 256x128x64"
    )
    assert outside(inside, ()) == ""
