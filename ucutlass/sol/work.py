"""The operations and compulsory bytes of an operator or a program, counted rather than timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """Operations by compute type, and bytes that must cross the memory interface.

    `operations` maps an entry of `Device.peaks` (a compute type, where a multiply-add counts as two) or
    `mufu` (special functions: exp, log, tanh, rsqrt, each counts as one) to a count. `read` and `written`
    count every byte of every tensor once. Counts never exceed what some kernel must do, so that a bound
    derived from them holds. `label` says what was counted.
    """

    label: str
    operations: Mapping[str, int]
    read: int
    written: int

    @property
    def bytes(self) -> int:
        return self.read + self.written


def total(label: str, parts: Iterable[Work]) -> Work:
    """Returns the sum of the parts: their cost when they run one after another and keep nothing on the
    chip."""
    operations: dict[str, int] = {}
    read = written = 0
    for part in parts:
        for compute_type, count in part.operations.items():
            operations[compute_type] = operations.get(compute_type, 0) + count
        read, written = read + part.read, written + part.written
    return Work(label, operations, read, written)
