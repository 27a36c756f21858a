"""The bounds' own laws: what is larger than what, what each term says, warm and calibrated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass import frontend
from ucutlass.ir.hardware import DEVICES
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete
from ucutlass.sol.bounds import (
    TimeBounds,
    bounds,
    bounds_of,
    compute_rate,
    data_sheet,
    fused_bound,
    unfused_bound,
)
from ucutlass.sol.ceilings import Ceilings
from ucutlass.sol.report import lines, row
from ucutlass.sol.work import Work, total

H200 = DEVICES["H200"]
LINEAR = """kernel linear_gelu(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] {
  return gelu(dot[K](x, w) + b)
}"""
MEASURED = Ceilings("NVIDIA H200", "GPU-0", {"bf16": 75e13, "tf32": 4e14}, 4.2e12, 4.4e12, 7e12, 2e-6, 1.7e9)


def found(m: int = 4096, n: int = 4096, k: int = 4096, plan: bool = True, **more: object) -> TimeBounds:
    checked = frontend.read_text(LINEAR)
    program = frontend.kernel(checked)
    extents = complete(program, {"M": m, "N": n, "K": k})
    planned: Planned | None = None
    if plan:
        planned = frontend.plan_kernel(checked, program, extents, "sm90a", H200).planned
    sizes = dict(zip(program.dims, extents, strict=True))
    return bounds(program, sizes, H200, planned=planned, **more)  # type: ignore[arg-type]


works = st.builds(
    Work,
    st.just("part"),
    st.dictionaries(st.sampled_from(["bf16", "tf32x3", "f32", "mufu", "e4m3"]), st.integers(1, 10**13)),
    st.integers(0, 10**10),
    st.integers(0, 10**10),
)


@given(
    st.lists(works, min_size=1, max_size=4),
    st.sampled_from(tuple(DEVICES)),
    st.sampled_from(["cold", "warm"]),
)
def test_one_kernel_is_never_slower_than_its_operators(parts: list[Work], name: str, regime: str) -> None:
    """The largest limit of a sum is at most the sum of the largest limits."""
    device, rates = DEVICES[name], data_sheet(DEVICES[name])
    whole = fused_bound(total("all", parts), device, rates)
    assert whole.seconds <= unfused_bound(parts, device, rates).seconds * (1 + 1e-12)
    warm = fused_bound(total("all", parts), device, rates, regime)  # type: ignore[arg-type]
    assert warm.seconds <= whole.seconds * (1 + 1e-12)


def test_a_large_product_is_bound_by_its_compute_type() -> None:
    b = found()
    assert (b.limit, b.compute_type, b.fused.binding) == ("multiplications", "bf16", "bf16")
    assert b.fused.seconds == pytest.approx(2 * 4096**3 / 989.4e12)
    assert b.gap(2 * b.fused.seconds) == pytest.approx(2)
    assert b.intensity > b.ridge == pytest.approx(989.4 / 4.8)


def test_a_skinny_product_is_bound_by_memory() -> None:
    b = found(m=8)
    assert (b.limit, b.fused.binding) == ("memory", "memory")
    assert b.fused.seconds == pytest.approx(2 * (8 * 4096 + 4096 * 4096 + 4096 + 8 * 4096) / 4.8e12)
    assert b.intensity < b.ridge


def test_unfused_adds_up_the_operators() -> None:
    b = found()
    assert [t.name.split()[0] for t in b.unfused.added] == ["dot[K]", "add", "gelu"]
    assert b.unfused.seconds == pytest.approx(sum(t.seconds for t in b.unfused.added))
    pass_over = 2 * 2 * 4096 * 4096 / 4.8e12
    assert b.unfused.seconds - b.fused.seconds == pytest.approx(2 * pass_over, rel=1e-3)


def test_realistic_pays_for_waves_and_the_launch() -> None:
    """133 tiles of 128 x 256 on 132 slots leave the last wave nearly empty."""
    b = found(m=128 * 19, n=256 * 7)
    tiles = next(t for t in b.realistic.limits if t.name == "tiles")
    assert tiles.seconds > b.fused.seconds
    assert "waves" in tiles.why and "slots" in tiles.why
    assert b.realistic.seconds == max(t.seconds for t in b.realistic.limits) + H200.launch_floor
    assert {"L2", "DRAM"} <= {t.name for t in b.realistic.limits}


def test_without_a_plan_realistic_says_so() -> None:
    b = found(plan=False)
    assert b.realistic.seconds == b.fused.seconds + H200.launch_floor
    assert "no plan" in b.realistic.added[0].why


def test_warm_data_comes_from_the_l2_as_far_as_it_holds() -> None:
    cold, warm = found(m=8), found(m=8, regime="warm")
    assert warm.least.bytes < H200.l2
    memory = next(t for t in warm.fused.limits if t.name == "memory")
    assert memory.seconds == pytest.approx(warm.least.bytes / H200.l2_bandwidth)
    assert "estimate" in memory.why
    assert warm.fused.seconds < cold.fused.seconds
    large = found(n=16384, k=16384, m=8, regime="warm")
    rest = next(t for t in large.fused.limits if t.name == "memory")
    assert rest.seconds == pytest.approx((large.least.bytes - H200.l2) / H200.bandwidth)


def test_calibrated_bounds_stand_beside_the_data_sheet() -> None:
    b = found(ceilings=MEASURED)
    fused, unfused, realistic = b.calibrated
    assert (fused.basis, fused.seconds) == ("calibrated", pytest.approx(2 * 4096**3 / 750e12))
    assert b.fused.basis == "data sheet" and b.fused.seconds < fused.seconds < unfused.seconds
    assert realistic.added[0].seconds == MEASURED.launch_floor
    skinny = found(m=8, ceilings=MEASURED).calibrated[0]
    assert skinny.seconds == pytest.approx(found(m=8).least.bytes / 4.4e12)


def test_compute_types_that_a_device_lacks_or_does_better() -> None:
    assert compute_rate("e4m3", DEVICES["A100-SXM4-80GB"].peaks) == ("f16", 312e12)
    assert compute_rate("tf32x3", H200.peaks) == ("f16x3", 989.4e12 / 3)
    assert compute_rate("tf32x3", DEVICES["RTX-5090"].peaks) == ("f32", 104.8e12)
    assert compute_rate("f16_f16", H200.peaks) == ("f16", 989.4e12)
    assert compute_rate("f16_f16", DEVICES["RTX-5090"].peaks) == ("f16_f16", 419e12)


def test_special_functions_may_run_beside_their_units() -> None:
    """16 of them per clock and SM, and 128 multiply-adds of which four make one."""
    work = Work("exp", {"mufu": 10**12}, 0, 0)
    term = fused_bound(work, H200, data_sheet(H200)).limits[0]
    rate = 132 * 1.98e9 * 16 + 67e12 / 8
    assert term.seconds == pytest.approx(10**12 / rate)


def test_a_program_that_only_moves_bytes() -> None:
    b = bounds_of(Work("copy", {}, 10**9, 10**9), (Work("copy", {}, 10**9, 10**9),), H200)
    assert (b.limit, b.intensity) == ("memory", 0)
    assert b.fused.seconds == pytest.approx(2e9 / 4.8e12)


def test_a_program_of_nothing_takes_no_time() -> None:
    b = bounds_of(Work("nothing", {}, 0, 0), (), H200)
    assert b.fused.seconds == 0
    assert row(b)["bounds"]["fused"]["seconds"] == 0


def test_the_report_names_every_term_once() -> None:
    b = found(ceilings=MEASURED)
    shown = lines(b, 190e-6)
    words = dict(shown)
    assert words["limit"].startswith("multiplications: 138.91 us on H200")
    assert "1.37 times" in words["time"]
    assert [key for key, _ in shown].count("  bf16") == 2  # data sheet and calibrated, not again in realistic
    assert "faster than the bound" in dict(lines(b, 100e-6))["below"]
    data = row(b, 190e-6)
    assert data["gap"] == pytest.approx(190e-6 / b.fused.seconds)
    assert set(data["bounds"]) == set(data["calibrated"]) == {"unfused", "fused", "realistic"}
