"""Reads the cores and memory that this process may use, the NVIDIA driver, and its GPUs."""

from __future__ import annotations

import ctypes
import os
import time
from dataclasses import dataclass
from pathlib import Path

from ucutlass.runtime.cuda_driver import error_text, library

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def cores() -> int:
    """Returns cores that this process may use: its affinity, and the cgroup's quota rounded down, at least
    1."""
    allowed = len(os.sched_getaffinity(0))
    quotas = [q for q in (_quota_v2(), _quota_v1()) if q is not None]
    return max(1, min([allowed, *quotas]))


def memory_available() -> int:
    """Returns bytes that new processes may take without swapping: the kernel's MemAvailable, or what the
    cgroup's limit leaves, whichever is less."""
    limits = [r for r in (_headroom_v2(), _headroom_v1()) if r is not None]
    return max(0, min([_meminfo("MemAvailable"), *limits]))


def memory_total() -> int:
    """Returns bytes of memory of the whole machine."""
    return _meminfo("MemTotal")


def process_age() -> float:
    """Returns the seconds since this process was started, to a tick of the kernel's clock."""
    stat = (_PROC / "self/stat").read_text(encoding="utf-8")
    # The command's name stands in parentheses and may hold anything; the start is the 22nd field (proc(5)).
    started = int(stat.rpartition(")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - started)


def _meminfo(name: str) -> int:
    for line in (_PROC / "meminfo").read_text(encoding="utf-8").splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0]) * 1024
    raise LookupError(f"/proc/meminfo has no {name}")


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None  # absent, or "max": no limit there


def _groups(controller: str) -> list[Path]:
    """Returns the folders of this process's cgroup and its parents, innermost first; `controller` is ""
    for version 2."""
    for line in (_PROC / "self/cgroup").read_text(encoding="utf-8").splitlines():
        _, names, place = line.split(":", 2)
        if controller in names.split(","):
            inner = _CGROUP / controller / place.lstrip("/")
            roots = [inner, *inner.parents]
            return roots[: roots.index(_CGROUP / controller) + 1]
    return []


def _least(values: list[int | None]) -> int | None:
    return min((v for v in values if v is not None), default=None)


def _headroom_v2() -> int | None:
    return _least([_cgroup_headroom(g, "memory.max", "memory.current", "inactive_file") for g in _groups("")])


def _headroom_v1() -> int | None:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    return _least([_cgroup_headroom(g, *names) for g in _groups("memory")])


def _cgroup_headroom(group: Path, limit: str, usage: str, cached: str) -> int | None:
    most, used = _number(group / limit), _number(group / usage)
    if most is None or used is None:
        return None
    try:
        text = (group / "memory.stat").read_text(encoding="utf-8")
        lines = dict(line.split() for line in text.splitlines())
    except (OSError, ValueError):
        lines = {}
    # Inactive page cache counts as used but is given back on demand.
    return most - used + int(lines.get(cached, 0))


def _quota_v2() -> int | None:
    quotas: list[int | None] = []
    for group in _groups(""):
        try:
            quota, period = (group / "cpu.max").read_text(encoding="utf-8").split()
        except (OSError, ValueError):
            continue
        quotas.append(None if quota == "max" else int(quota) // int(period))
    return _least(quotas)


def _quota_v1() -> int | None:
    quotas: list[int | None] = []
    for group in _groups("cpu"):
        quota, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        quotas.append(quota // period if quota and period and quota > 0 else None)
    return _least(quotas)


# --- the driver ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gpu:
    """`capability` is (major, minor); `memory` in bytes; `sms` streaming multiprocessors."""

    index: int
    name: str
    capability: tuple[int, int]
    memory: int
    sms: int


@dataclass(frozen=True, slots=True)
class Driver:
    """`cuda` is the newest CUDA version that the driver serves, (major, minor); `problem` is
    empty where the GPUs can be used, else the driver's own words."""

    cuda: tuple[int, int]
    gpus: tuple[Gpu, ...]
    problem: str


_MAJOR, _MINOR, _SM_COUNT = 75, 76, 16
"""CUdevice_attribute values of cuda.h."""


def driver() -> Driver | None:
    """Returns what libcuda.so.1 says; None where there is no driver.

    Calls cuInit: a process that does so must not fork and use CUDA in the child. Creates no
    context and takes no GPU memory.
    """
    try:
        cuda = library()
    except OSError:
        return None
    version = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(version))
    served = (version.value // 1000, version.value % 1000 // 10)
    if status := cuda.cuInit(0):
        return Driver(served, (), error_text(cuda, status))
    count = ctypes.c_int()
    if status := cuda.cuDeviceGetCount(ctypes.byref(count)):
        return Driver(served, (), error_text(cuda, status))
    return Driver(served, tuple(_gpu(cuda, i) for i in range(count.value)), "")


def _gpu(cuda: ctypes.CDLL, index: int) -> Gpu:
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), index)
    name = ctypes.create_string_buffer(256)
    cuda.cuDeviceGetName(name, len(name), device)
    memory = ctypes.c_size_t()
    cuda.cuDeviceTotalMem_v2(ctypes.byref(memory), device)

    def attribute(which: int) -> int:
        value = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(value), which, device)
        return value.value

    return Gpu(
        index,
        name.value.decode(errors="replace"),
        (attribute(_MAJOR), attribute(_MINOR)),
        memory.value,
        attribute(_SM_COUNT),
    )
