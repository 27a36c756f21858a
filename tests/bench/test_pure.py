"""Decisions that need no device: clocks against one another, blocks, regimes, the SM clock, NVML."""

from __future__ import annotations

import ctypes
import multiprocessing
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ucutlass import frontend
from ucutlass.runtime.bench import clocks, gpu_lock, nvml
from ucutlass.runtime.bench.clocks import Readings, beyond_bound, disagreements
from ucutlass.runtime.bench.frequency import STAMP, sm_clock
from ucutlass.runtime.bench.protocol import (
    Protocol,
    TimingBlock,
    block_of,
    comparable,
    launches_for,
    palindrome,
    settled,
)
from ucutlass.runtime.bench.regimes import not_cold, rotated_arguments, sets_for
from ucutlass.runtime.bench.timing_issues import LEVELS, TimingIssue
from ucutlass.runtime.errors import LockTimeout
from ucutlass.runtime.inputs import generate

L2 = 50 * 2**20
PTX = Path(gpu_lock.__file__).parent.parent / "native" / "clock_stamp.ptx"


# --- clocks ----------------------------------------------------------------------------


def said(span: float | None, events: float | None, wall: float | None, kernels: int = 1) -> set[str]:
    return {f.name for f in disagreements(Readings(span, events, wall, kernels, 20))}


def test_agreeing_clocks_say_nothing() -> None:
    assert said(100.0, 101.2, 104.0) == set()
    assert said(100.0, 108.0, 104.0, kernels=5) == set()


@pytest.mark.parametrize(
    "readings, finding",
    [
        ((100.0, 5.0, 100.0), "span-beyond-events"),
        ((100.0, 140.0, 140.0), "event-gaps"),
        ((100.0, 101.0, 20.0), "wall-short"),
        ((10.0, 11.0, 40.0), "launch-overhead"),
        ((3.0, 3.9, 5.0), "launch-floor"),
    ],
)
def test_every_disagreement_has_its_name(readings: tuple[float, float, float], finding: str) -> None:
    assert said(*readings) == {finding}


def test_a_clock_that_is_missing_accuses_nobody() -> None:
    assert said(None, 100.0, None) == set()
    assert said(None, 100.0, 20.0) == {"wall-short"}
    assert said(None, 2.0, None) == {"launch-floor"}


def test_the_error_of_events_is_shared_by_the_launches_between_them() -> None:
    """30 us of error are 1.5 us a launch of 20, and 0.03 of 1000."""
    few, many = (Readings(7.0, 5.0, None, 1, n) for n in (20, 1000))
    assert disagreements(few) == () and disagreements(many)[0].name == "span-beyond-events"


def test_pauses_that_the_profiler_lengthens_are_no_escape() -> None:
    """Five small kernels have four pauses in a launch; one kernel has none."""
    one, five = (Readings(25.0, 19.0, None, kernels, 1000) for kernels in (1, 5))
    assert disagreements(five) == () and disagreements(one)[0].name == "span-beyond-events"
    (found,) = disagreements(Readings(60.0, 19.0, None, 5, 1000))
    assert found.name == "span-beyond-events"


def test_bytes_faster_than_memory_are_beyond_the_bound() -> None:
    assert beyond_bound(25.0, 100_000_000, 4.8e12) == ()
    (found,) = beyond_bound(19.0, 100_000_000, 4.8e12)
    assert found.name == "beyond-bound" and "5.26 TB/s" in found.message


def test_every_finding_has_a_level() -> None:
    used: set[str] = set()
    for path in Path(gpu_lock.__file__).parent.glob("*.py"):
        used |= set(re.findall(r'(?:TimingIssue|AttributionError)\(\s*"([\w-]+)"', path.read_text()))
    assert used == set(LEVELS)
    page = (Path(__file__).parents[2] / "docs" / "bench.md").read_text()
    assert dict(re.findall(r"^\| `([\w-]+)` \| (trust|note) \|", page, re.MULTILINE)) == LEVELS
    assert TimingIssue("noisy", "x").level == "note" and clocks.FLOOR_US == 4.0


# --- protocol --------------------------------------------------------------------------


@given(us=st.floats(0.1, 1e6), sets=st.integers(1, 4096))
def test_blocks_hold_whole_turns_of_the_sets(us: float, sets: int) -> None:
    chosen = Protocol()
    count = launches_for(us, sets, chosen)
    assert count % sets == 0 and count >= 2
    assert count >= chosen.launches or count * us >= 10 * chosen.block_us
    assert count * us >= chosen.block_us or count >= chosen.most_launches or us < 0.5
    assert (count - sets) * us <= 10 * chosen.block_us or count <= max(2, sets) + sets


@given(st.integers(1, 6))
def test_every_pair_is_met_as_abba(count: int) -> None:
    order = palindrome(count)
    for a in range(count):
        for b in range(a + 1, count):
            assert [i for i in order if i in (a, b)] == [a, b, b, a]


def block(median: float, spread: float = 0.01, clock: float | None = 1.9e9) -> TimingBlock:
    return TimingBlock(median, spread, clock)


def test_blocks_are_comparable_while_clock_and_spread_hold() -> None:
    chosen = Protocol()
    steady = (block(10.0), block(10.0))
    assert comparable(steady, steady, chosen)
    assert comparable(steady, (block(12.0, clock=1.895e9), block(12.0, clock=1.885e9)), chosen)
    assert not comparable(steady, (block(12.0, clock=1.87e9), block(12.0, clock=1.87e9)), chosen)
    assert not comparable(steady, (block(12.0, spread=0.06), block(12.0)), chosen)
    assert comparable(steady, (block(12.0, clock=None), block(12.0, clock=None)), chosen)


def test_at_the_power_cap_spread_alone_decides() -> None:
    chosen, steady = Protocol(), (block(10.0), block(10.0))
    hungry = (block(12.0, clock=1.7e9), block(12.0, clock=1.7e9))
    assert not comparable(steady, hungry, chosen) and comparable(steady, hungry, chosen, True)
    wide = (block(12.0, spread=0.06), block(12.0))
    assert comparable(steady, wide, chosen, True) and not comparable(steady, wide, chosen)
    assert not comparable(steady, (block(12.0, spread=0.21), block(12.0)), chosen, True)


def test_a_block_is_its_median_and_quartiles() -> None:
    timing_block = block_of([9.0, 10.0, 10.0, 11.0, 50.0], 1.8e9)
    assert timing_block == TimingBlock(10.0, pytest.approx(0.1), 1.8e9)  # type: ignore[arg-type]


def test_measuring_stops_when_all_medians_are_known_well_enough() -> None:
    chosen = Protocol(min_rounds=10, min_seconds=1.0)
    steady = [block(10.0 + 0.001 * (i % 5)) for i in range(20)]
    loose = [block(10.0 + (i % 7)) for i in range(20)]
    assert settled([steady, steady], 2.0, chosen)
    assert not settled([steady, loose], 2.0, chosen)
    assert not settled([steady, steady], 0.5, chosen)
    assert not settled([steady[:18]], 2.0, chosen)


def test_a_search_s_measuring_stops_when_ratios_are_known_well_enough() -> None:
    chosen = Protocol(min_rounds=10, min_seconds=1.0, width=0.01)
    drifting = [block(10.0 * 1.01**i) for i in range(20)]
    loose = [block(10.0 + (i % 7)) for i in range(20)]
    assert settled([drifting, drifting], 2.0, chosen) and not settled([drifting, drifting], 2.0, Protocol())
    assert not settled([drifting, loose], 2.0, chosen)
    assert not settled([drifting[:18], drifting[:18]], 2.0, chosen)
    assert not settled([loose], 2.0, chosen), "alone it has no ratio"


def test_a_large_gain_need_not_be_known_as_closely() -> None:
    chosen = Protocol(min_rounds=10, min_seconds=1.0, width=0.01)
    noisy = [block(10.0 * (1.0 + 0.03 * (i // 2 % 2))) for i in range(20)]
    for other, enough in ((10.0, False), (20.0, True), (5.0, True)):
        assert settled([[block(other)] * 20, noisy], 2.0, chosen) is enough


def test_measuring_goes_on_for_rounds_that_cannot_be_compared() -> None:
    chosen = Protocol(min_rounds=10, min_seconds=1.0)
    steady, hungry = [block(10.0)] * 22, [block(10.0, clock=1.8e9)] * 22
    wide = [block(10.0, spread=0.06), *steady[1:]]
    assert not settled([steady[:20], wide[:20]], 2.0, chosen) and settled([steady, wide], 2.0, chosen)
    assert not settled([steady, hungry], 2.0, chosen) and settled([steady, hungry], 2.0, chosen, True)


# --- regimes ---------------------------------------------------------------------------


@given(st.integers(1, 10**10))
def test_cold_sets_pass_twice_the_l2_or_it_is_said(size: int) -> None:
    sets = sets_for(size, L2, "cold")
    assert sets >= 2
    assert (size * sets >= 2 * L2) == (not_cold(size, sets, L2, "cold") == ())
    assert sets_for(size, L2, "warm") == 1 and not_cold(size, 1, L2, "warm") == ()


def test_sets_hold_other_content_in_buffers_of_their_own() -> None:
    text = "kernel k(x: bf16[M, K], w: e4m3[N, K], s: f32) -> bf16[M, N] { return s * dot[K](x, bf16(w)) }"
    program = frontend.read_text(text).module.programs[0]
    first = generate(program, {"M": 16, "N": 8, "K": 32}, "normal", seed=1)
    arguments = rotated_arguments(program, first, 5, seed=2)
    assert len({s[0].data_ptr() for s in arguments if isinstance(s[0], torch.Tensor)}) == 5
    for other in arguments[1:]:
        for a, b in zip(first, other, strict=True):
            if not isinstance(a, torch.Tensor):
                assert a == b
                continue
            assert isinstance(b, torch.Tensor) and a.shape == b.shape and a.dtype == b.dtype
            assert not torch.equal(a.float(), b.float())
            assert torch.equal(a.float().flatten().sort().values, b.float().flatten().sort().values)


def test_coordinates_stay_what_they_are() -> None:
    text = "kernel k(x: f32[V, K], ids: i64[M], w: f32[N, K]) -> f32[M, N] { return dot[K](x[V = ids], w) }"
    program = frontend.read_text(text).module.programs[0]
    first = generate(program, {"V": 10, "K": 8, "M": 6, "N": 4}, "normal", seed=1)
    (_, other) = rotated_arguments(program, first, 2, seed=2)
    assert torch.equal(torch.as_tensor(first[1]), torch.as_tensor(other[1]))


# --- the SM clock ----------------------------------------------------------------------


def times(ns: int, hertz: float, sms: int = 132) -> dict[int, tuple[int, int]]:
    """Counters of SMs that were started at different cycles."""
    return {sm: (ns + sm, round((ns + sm) * hertz / 1e9) + 1000 * sm) for sm in range(sms)}


def test_the_clock_is_cycles_over_nanoseconds() -> None:
    number = sm_clock(times(10**9, 1.755e9), times(10**9 + 3_000_000, 1.755e9))
    assert number == pytest.approx(1.755e9, rel=1e-5)


def test_a_clock_that_cannot_be_known_is_none() -> None:
    before, after = times(10**9, 1.755e9), times(10**9 + 3_000_000, 1.755e9)
    assert sm_clock({}, after) is None
    assert sm_clock(before, {sm: t for sm, t in after.items() if sm < 40}) is None
    assert sm_clock(before, times(10**9 + 100_000, 1.755e9)) is None


def test_the_stamp_is_valid_ptx_of_its_name(tmp_path: Path) -> None:
    assert f".visible .entry {STAMP}(" in PTX.read_text()
    ptxas = shutil.which("ptxas")
    if ptxas is None:
        pytest.skip("no ptxas here")
    for arch in ("sm_80", "sm_90a"):
        done = subprocess.run(
            [ptxas, f"-arch={arch}", str(PTX), "-o", str(tmp_path / "stamp.cubin")], capture_output=True
        )
        assert done.returncode == 0, done.stderr


# --- NVML ------------------------------------------------------------------------------


def test_idle_and_application_clocks_are_no_throttling() -> None:
    assert nvml.throttled([nvml.Sample(1.9e9, 0x001), nvml.Sample(1.9e9, 0x002)]) == ()
    seen = [nvml.Sample(1.9e9, 0x004), nvml.Sample(1.5e9, 0x040 | 0x001), nvml.Sample(1.5e9, 0x1000)]
    assert nvml.throttled(seen) == ("software power cap", "hardware thermal slowdown", "reason 0x1000")


@pytest.mark.parametrize(
    "masks, capped",
    [
        ([0x004, 0x004], True),
        ([0x000, 0x001 | 0x004, 0x002], True),
        ([], False),
        ([0x000, 0x001, 0x002], False),
        *[([0x004, 0x004, bit], False) for bit in nvml.REASONS if bit != nvml.POWER_CAP],
        ([0x004 | 0x1000], False),
    ],
)
def test_power_alone_excuses_a_clock(masks: list[int], capped: bool) -> None:
    assert nvml.power_capped(nvml.Sample(1.6e9, mask) for mask in masks) == capped


class FakeNvml:
    """libnvidia-ml as far as it is called; `gpus` maps UUIDs to handles."""

    def __init__(self, gpus: dict[str, int]) -> None:
        self.gpus = gpus
        self.nvmlErrorString = lambda status: b"Not Found"

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        if uuid.decode() not in self.gpus:
            return 6
        handle._obj.value = self.gpus[uuid.decode()]
        return 0

    def nvmlDeviceGetClockInfo(self, handle: ctypes.c_void_p, kind: int, clock: Any) -> int:
        assert kind == 1
        clock._obj.value = 1000 + (handle.value or 0)
        return 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: ctypes.c_void_p, reasons: Any) -> int:
        reasons._obj.value = 0x4
        return 0


def test_the_gpu_is_found_by_its_uuid() -> None:
    library: Any = FakeNvml({"GPU-a": 1, "GPU-b": 2})
    sample = nvml.sampler("GPU-b", library)
    assert not isinstance(sample, nvml.NoNvml)
    assert sample() == nvml.Sample(1002e6, 0x4)
    assert nvml.sampler("GPU-c", library) == nvml.NoNvml("nvmlDeviceGetHandleByUUID GPU-c: Not Found")


# --- the GPU lock --------------------------------------------------------------------------


def _hold(folder: Path, held: Any, leave: Any) -> None:
    with gpu_lock.hold_gpu("GPU-x", timeout_seconds=60, on_wait=lambda _: None, folder=folder):
        held.set()
        leave.wait(600)


def test_one_process_at_a_time_times_on_a_gpu(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    held, leave = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, leave))
    other.start()
    try:
        assert held.wait(120)
        texts: list[str] = []
        with (
            pytest.raises(LockTimeout),
            gpu_lock.hold_gpu("GPU-x", timeout_seconds=0.2, on_wait=texts.append, folder=tmp_path),
        ):
            raise AssertionError("two hold one lock")
        assert len(texts) == 1 and f"process {other.pid}" in texts[0]
        with gpu_lock.hold_gpu("GPU-y", timeout_seconds=0.2, on_wait=texts.append, folder=tmp_path):
            pass
    finally:
        leave.set()
        other.join(120)
    with gpu_lock.hold_gpu("GPU-x", timeout_seconds=60, on_wait=lambda _: None, folder=tmp_path):
        pass


def test_without_a_driver_there_is_no_gpu_lock() -> None:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has an NVIDIA driver")
    with pytest.raises(gpu_lock.NoGpu):
        gpu_lock.gpu_uuid()
