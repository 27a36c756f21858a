"""The table of devices against arithmetic."""

from __future__ import annotations

import pickle
from types import MappingProxyType

import pytest

from ucutlass.ir.hardware import ARCHES, DEVICES, OPS_PER_CLOCK, Device


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda d: d.name)
def test_peaks_are_sms_times_operations_times_clock(device: Device) -> None:
    for compute_type, each in OPS_PER_CLOCK[device.capability].items():
        clock = device.boost if compute_type == "f32" else device.clock
        assert device.peaks[compute_type] == pytest.approx(device.sms * each * clock, rel=0.01), compute_type


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda d: d.name)
def test_compute_types_that_follow_from_others(device: Device) -> None:
    peaks = device.peaks
    assert peaks["bf16"] == peaks["f16"]
    assert peaks["tf32x3"] == pytest.approx(peaks["tf32"] / 3)
    assert peaks["f16x3"] == pytest.approx(peaks["f16"] / 3)
    assert peaks.get("e4m3") == peaks.get("e5m2")
    assert set(peaks) == {*OPS_PER_CLOCK[device.capability], "bf16", "tf32x3", "f16x3"} | (
        {"e5m2"} if "e4m3" in peaks else set()
    )


@pytest.mark.parametrize("device", DEVICES.values(), ids=lambda d: d.name)
def test_every_entry_is_plausible(device: Device) -> None:
    assert device.clock <= device.boost < 3e9
    assert 20 * 2**20 <= device.l2 <= 128 * 2**20
    assert device.bandwidth < device.l2_bandwidth < 40e12
    assert ("estimate" in device.l2_source) == (device.l2_bytes_per_clock is None)
    assert 300 <= device.power <= 1000
    assert device.special_rate == device.sms * 16 * device.boost
    assert device.source
    for arch in ARCHES.values():
        if arch.capability == device.capability:
            assert arch.shared_memory_sm == device.shared_memory


def test_a_device_is_sent_to_other_processes() -> None:
    for device in DEVICES.values():
        received = pickle.loads(pickle.dumps(device))
        assert received == device and isinstance(received.peaks, MappingProxyType)


def test_the_l2_of_an_a100_is_its_paper_s() -> None:
    assert DEVICES["A100-SXM4-80GB"].l2_bandwidth == pytest.approx(7.22e12, rel=1e-3)
