"""Facts about devices and compile targets: the one table that rules, heuristics and bounds read.

Limits per compute capability are those of the CUDA C++ Programming Guide, table "Technical
Specifications per Compute Capability", as is a device's `shared_memory`; special functions are its table "Throughput of
Native Arithmetic Instructions". A device's `peaks`, `memory`, `bandwidth` and `power` are those of the data sheet that its
`source` names, `sms`, `boost` and `l2` of that or of the generation's architecture paper. Peaks are dense (no sparsity), in
FLOP/s (OP/s for s8), with f32 (s32) accumulation; each is `sms * OPS_PER_CLOCK * clock` within 1 %, tensor cores at `clock`,
which is the one that this equation gives, and f32 at `boost`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True, slots=True)
class Arch:
    """A compile target. `shared_memory` is what one thread block can have, `shared_memory_sm`
    what an SM holds, in bytes; a block costs `shared_memory_reserved` more. `wgmma` tells of
    Hopper's warp-group instructions and TMA."""

    name: str
    capability: tuple[int, int]
    wgmma: bool
    shared_memory: int
    shared_memory_sm: int
    shared_memory_reserved: int = 1024
    registers: int = 65536
    threads: int = 2048


ARCHES: Mapping[str, Arch] = MappingProxyType(
    {
        a.name: a
        for a in (
            Arch("sm80", (8, 0), False, 163 * 1024, 164 * 1024),
            Arch("sm89", (8, 9), False, 99 * 1024, 100 * 1024, threads=1536),
            Arch("sm90a", (9, 0), True, 227 * 1024, 228 * 1024),
        )
    }
)
"""sm90a code runs on capability 9.0 only; sm80 code runs on 8.0 and everything later."""


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU. Bytes and bytes per second of its memory, `l2` in bytes; `peaks` per compute type.

    `clock` is the SM clock in Hz that the tensor cores' peaks assume, `boost` the highest one, which f32's
    peak assumes: short kernels may run at it, so that tensor cores can pass their data sheet's
    peak by `boost / clock`. `power` is the limit in watts. `shared_memory` is what an SM holds in
    bytes. `l2_bandwidth` is bytes per second of L2 reads, where `l2_source` says what it rests on.
    `special` is special functions per clock and SM. `launch_floor` is the seconds that an empty kernel
    takes in a stream (an estimate: no data sheet gives it, `ucc calibrate` measures it).

    `sms_per_gpc` is CUTLASS's assumption for cluster occupancy (KernelHardwareInfo, 18 for
    Hopper); it does not matter where clusters do not exist.
    """

    name: str
    capability: tuple[int, int]
    sms: int
    clock: float
    boost: float
    peaks: Mapping[str, float]
    memory: int
    bandwidth: float
    l2: int
    power: int
    shared_memory: int
    source: str
    l2_bytes_per_clock: int | None = None
    launch_floor: float = 2.5e-6
    sms_per_gpc: int = 18
    special: int = 16

    def __hash__(self) -> int:
        return hash(self.name)

    def __reduce__(self) -> tuple[Callable[[Mapping[str, Any]], Device], tuple[Mapping[str, Any]]]:
        """A mapping proxy does not pickle: another process is sent the rates and makes its own."""
        facts = {f.name: getattr(self, f.name) for f in fields(self)}
        return _received, (facts | {"peaks": dict(self.peaks)},)

    @property
    def l2_bandwidth(self) -> float:
        """What NVIDIA states in bytes per clock, else an estimate: what all SMs together take in."""
        return (self.l2_bytes_per_clock or _SM_BYTES * self.sms) * self.boost

    @property
    def l2_source(self) -> str:
        if self.l2_bytes_per_clock:
            return f"{self.l2_bytes_per_clock} bytes per clock, NVIDIA A100 architecture paper, page 35"
        return f"an estimate: {_SM_BYTES} bytes per clock into each SM"

    @property
    def sm_bandwidth(self) -> float:
        """Bytes per second of the memory for each SM."""
        return self.bandwidth / self.sms

    @property
    def special_rate(self) -> float:
        """Special functions (MUFU) per second."""
        return self.special * self.sms * self.boost


def _received(facts: Mapping[str, Any]) -> Device:
    return Device(**{**facts, "peaks": MappingProxyType(facts["peaks"])})


_SM_BYTES = 64
"""Bytes per clock from L2 into one SM: two sectors. No document of NVIDIA's says so for the devices
here; it stands in where none states the L2's own bandwidth, and every report calls it an estimate."""

OPS_PER_CLOCK: Mapping[tuple[int, int], Mapping[str, int]] = MappingProxyType(
    {
        (8, 0): {"f32": 128, "tf32": 1024, "f16": 2048, "s8": 4096},
        (8, 9): {"f32": 256, "tf32": 512, "f16": 1024, "s8": 2048, "e4m3": 2048},
        (9, 0): {"f32": 256, "tf32": 2048, "f16": 4096, "s8": 8192, "e4m3": 8192},
        (10, 0): {"f32": 256, "tf32": 4096, "f16": 8192, "s8": 16384, "e4m3": 16384},
        (12, 0): {"f32": 256, "tf32": 256, "f16": 512, "f16_f16": 1024, "s8": 2048, "e4m3": 1024},
    }
)
"""Operations per clock and SM, dense, by compute capability: the architecture papers' (A100, Ada,
H100, RTX Blackwell); for 10.0 the data sheet's peaks over SMs and clock. A multiply-add is two."""


def _peaks(tera: Mapping[str, float]) -> Mapping[str, float]:
    """Peaks in FLOP/s; tf32x3 and f16x3 are three multiplications for one."""
    rates = {compute_type: value * 1e12 for compute_type, value in tera.items()}
    three = {"tf32x3": rates["tf32"] / 3, "f16x3": rates["f16"] / 3}
    return MappingProxyType(rates | three | {"bf16": rates["f16"]})


def _fp8(value: float) -> dict[str, float]:
    return {"e4m3": value, "e5m2": value}


_GIB = 1024**3
_MIB = 1024**2
_KIB = 1024

_HOPPER_SXM = _peaks({"f32": 67, "tf32": 494.7, "f16": 989.4, "s8": 1978.9} | _fp8(1978.9))
_AMPERE = _peaks({"f32": 19.5, "tf32": 156, "f16": 312, "s8": 624})

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        d.name: d
        for d in (
            Device(
                name="A100-SXM4-40GB",
                capability=(8, 0),
                sms=108,
                clock=1.410e9,
                boost=1.410e9,
                peaks=_AMPERE,
                memory=40 * _GIB,
                bandwidth=1.555e12,
                l2=40 * _MIB,
                power=400,
                shared_memory=164 * _KIB,
                source="NVIDIA A100 Tensor Core GPU data sheet, 2021",
                l2_bytes_per_clock=5120,
            ),
            Device(
                name="A100-SXM4-80GB",
                capability=(8, 0),
                sms=108,
                clock=1.410e9,
                boost=1.410e9,
                peaks=_AMPERE,
                memory=80 * _GIB,
                bandwidth=2.039e12,
                l2=40 * _MIB,
                power=400,
                shared_memory=164 * _KIB,
                source="NVIDIA A100 Tensor Core GPU data sheet, 2021",
                l2_bytes_per_clock=5120,
            ),
            Device(
                name="L40S",
                capability=(8, 9),
                sms=142,
                clock=2.520e9,
                boost=2.520e9,
                peaks=_peaks({"f32": 91.6, "tf32": 183, "f16": 366.5, "s8": 733} | _fp8(733)),
                memory=48 * _GIB,
                bandwidth=0.864e12,
                l2=96 * _MIB,
                power=350,
                shared_memory=100 * _KIB,
                source="NVIDIA L40S data sheet, 2023 (f16: half of its 733 with sparsity; the dense 362 there is "
                "the L40's 181 doubled)",
            ),
            Device(
                name="H100-PCIe",
                capability=(9, 0),
                sms=114,
                clock=1.620e9,
                boost=1.755e9,
                peaks=_peaks({"f32": 51.2, "tf32": 378, "f16": 756, "s8": 1513} | _fp8(1513)),
                memory=80 * _GIB,
                bandwidth=2.039e12,
                l2=50 * _MIB,
                power=350,
                shared_memory=228 * _KIB,
                source="NVIDIA H100 Tensor Core GPU architecture paper; bandwidth: H100 PCIe product brief PB-11133",
            ),
            Device(
                name="H100-SXM",
                capability=(9, 0),
                sms=132,
                clock=1.830e9,
                boost=1.980e9,
                peaks=_HOPPER_SXM,
                memory=80 * _GIB,
                bandwidth=3.35e12,
                l2=50 * _MIB,
                power=700,
                shared_memory=228 * _KIB,
                source="NVIDIA H100 Tensor Core GPU data sheet and architecture paper, 2023",
            ),
            Device(
                name="H200",
                capability=(9, 0),
                sms=132,
                clock=1.830e9,
                boost=1.980e9,
                peaks=_HOPPER_SXM,
                memory=141 * 10**9,
                bandwidth=4.8e12,
                l2=50 * _MIB,
                power=700,
                shared_memory=228 * _KIB,
                source="NVIDIA H200 Tensor Core GPU data sheet, 2024",
            ),
            Device(
                name="B200",
                capability=(10, 0),
                sms=148,
                clock=1.850e9,
                boost=1.980e9,
                peaks=_peaks({"f32": 75, "tf32": 1125, "f16": 2250, "s8": 4500} | _fp8(4500)),
                memory=180 * 10**9,
                bandwidth=8.0e12,
                l2=126 * _MIB,
                power=1000,
                shared_memory=228 * _KIB,
                source="NVIDIA HGX and DGX B200 data sheets, 2024 (an eighth of eight)",
                sms_per_gpc=20,
            ),
            Device(
                name="RTX-5090",
                capability=(12, 0),
                sms=170,
                clock=2.407e9,
                boost=2.407e9,
                peaks=_peaks(
                    {"f32": 104.8, "tf32": 104.8, "f16": 209.5, "f16_f16": 419, "s8": 838} | _fp8(419)
                ),
                memory=32 * _GIB,
                bandwidth=1.792e12,
                l2=96 * _MIB,
                power=575,
                shared_memory=100 * _KIB,
                source="NVIDIA RTX Blackwell GPU architecture paper, 2025",
            ),
        )
    }
)

_DEFAULT_DEVICE: Mapping[str, str] = MappingProxyType(
    {"sm80": "A100-SXM4-80GB", "sm89": "L40S", "sm90a": "H200"}
)

_MARKS: tuple[tuple[tuple[str, ...], str | None], ...] = (
    (("GH200",), None),
    (("GB200",), None),
    (("H100", "NVL"), None),
    (("5090", "LAPTOP"), None),
    (("H200",), "H200"),
    (("H100", "PCIE"), "H100-PCIe"),
    (("H100",), "H100-SXM"),
    (("A100", "40GB"), "A100-SXM4-40GB"),
    (("A100",), "A100-SXM4-80GB"),
    (("L40S",), "L40S"),
    (("B200",), "B200"),
    (("RTX 5090",), "RTX-5090"),
)
"""Words in the name that the driver gives, to the device; the first that fits. None: a relative with
other memory, power or clocks, such as H100 NVL, whose 3.9 TB/s would beat the SXM's memory bound."""


def default_device(arch: Arch) -> Device:
    """The device to plan for where none is present: H200 for sm90a, A100 80 GB for sm80."""
    return DEVICES[_DEFAULT_DEVICE[arch.name]]


def device_named(name: str) -> Device | None:
    """The device by our name or by the driver's (`NVIDIA H200`); None where we know it not."""
    if name in DEVICES:
        return DEVICES[name]
    upper = name.upper()
    key = next((d for marks, d in _MARKS if all(m in upper for m in marks)), None)
    return None if key is None else DEVICES[key]


def arch_for(capability: tuple[int, int]) -> Arch | None:
    """The best compile target for a compute capability: exact for 9.0, else the newest whose
    code still runs there; None below 8.0."""
    if capability == (9, 0):
        return ARCHES["sm90a"]
    portable = [a for a in ARCHES.values() if not a.wgmma and a.capability <= capability]
    return max(portable, key=lambda a: a.capability, default=None)


def peak_key(compute_type: str, math: str) -> str:
    """The entry of `Device.peaks` for a compute type and the schedule's `math`."""
    return "tf32x3" if compute_type == "f32" and math == "tf32x3" else compute_type


def clusters_at_a_time(device: Device, cluster_size: int) -> int:
    """Clusters of one block per SM that run at a time, where their size is not a power of two either.

    An H100 of 132 SMs ran 64 clusters of 2, 39 of 3, 30 of 4, 16 of 6 and 15 of 8 at a time, and not 40, 32, 18 and
    16: as if 16 SMs of each GPC took clusters. Which SMs are fused off differs from one GPU to the next, and a
    second wave costs as much as the first: this counts one cluster fewer where that is in doubt.
    """
    gpcs, usable = max(1, device.sms // device.sms_per_gpc), device.sms_per_gpc - 2
    if cluster_size <= 2:
        return device.sms * 31 // 32 // cluster_size
    rest = max(0, device.sms * 11 // 12 - gpcs * usable)
    return gpcs * (usable // cluster_size) + rest // cluster_size


def cluster_slots(device: Device, cluster_size: int) -> int:
    """Thread blocks of one per SM that run at a time, in whole clusters within a GPC.

    CUTLASS's own count (`get_max_cta_occupancy`, gemm/kernel/tile_scheduler_params.h).
    """
    gpc, sms = device.sms_per_gpc, device.sms
    gpcs, rest = (1, 0) if sms < gpc else divmod(sms, gpc)
    return min(sms, gpcs * (gpc - gpc % cluster_size) + rest - rest % cluster_size)
