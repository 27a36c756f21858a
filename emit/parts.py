"""A kernel in the parts that NVRTC builds, in place of one file for nvcc."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.text import Source


class NotServed(ValueError):
    """This way of building does not serve the plan; the message says why."""


@dataclass(frozen=True, slots=True)
class Lean:
    """`device` is for NVRTC, `host` is C++ for the host's compiler, with the entry; `arithmetic` for NVRTC
    defines what `device` leaves out. `device.entry` names the content of both."""

    device: Source
    host: str
    arithmetic: str


@dataclass(frozen=True, slots=True)
class Divided:
    """The two sides of a kernel's one file (`ucutlass.emit.division`): `device` for NVRTC, `host` C++ with the entry.
    `kernels` are the names by which the host launches kernels, as NVRTC takes name expressions."""

    entry: str
    device: str
    host: str
    kernels: tuple[str, ...]
