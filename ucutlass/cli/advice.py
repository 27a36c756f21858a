"""This module shows advice on a terminal, with each rule's own past."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ucutlass import ir
from ucutlass.advice import Advice, HitRate, ScheduleEdit
from ucutlass.advice.rules import BY_NUMBER
from ucutlass.ir.hardware import Device
from ucutlass.runtime.profile.ledger import hit_rates, tallies
from ucutlass.runtime.store import EvidenceStore
from ucutlass.tune.fixed import outside, requests_for


def past(device: Device) -> Mapping[int, HitRate]:
    """Returns what the ledger of this user's evidence store knows of each rule on a device.

    Raises StoreError where the store is there and cannot be read.
    """
    return hit_rates(EvidenceStore.open().find(kind="advice"), device)


def within_schedule(advice: Advice, program: ir.Kernel, sizes: tuple[int, ...], arch: str) -> Advice:
    """The advice with a note on each edit that the program's own schedule excludes at these extents."""
    admitted = requests_for(program, sizes, arch)

    def noted(edit: ScheduleEdit) -> ScheduleEdit:
        fields = outside(edit.request, admitted)
        if not fields:
            return edit
        note = f"outside of the file's schedule, which admits {fields}"
        return replace(edit, note="; ".join(filter(None, (note, edit.note))))

    findings = tuple(replace(f, edits=tuple(map(noted, f.edits))) for f in advice.findings)
    return replace(advice, findings=findings)


def rows(advice: Advice) -> list[tuple[str, str]]:
    """Returns labels and words. What follows `try` can be pasted into a schedule block: `#` begins a
    comment."""
    c = advice.classified
    lines = [("bottleneck", f"{c.bottleneck}: {c.reason}")]
    if c.disagreement:
        lines.append(("disagreement", c.disagreement))
    for number, f in enumerate(advice.findings, 1):
        numbers = "; ".join(map(str, f.evidence))
        lines.append((f"advice {number}", f"{f.diagnosis} [{numbers}]"))
        lines += [
            ("  try", f"{e.schedule}  # {e.expected}" + (f"; {e.note}" if e.note else "")) for e in f.edits
        ]
        lines += [("  do", f.act)] if f.act else []
        lines.append(("  rule", f"{f.rule}, {f.name}, by {f.tier}; {advice.rates[f.rule]}"))
    return lines if advice.findings else [*lines, ("advice", "no rule found an edit that is worth trying")]


def ledger_rows() -> list[tuple[str, int, str, int, int, int, float]]:
    """Returns device, rule, its name, tries, those that were faster, those in the promised range, and the
    median ratio of the times, by device and rule."""
    by_rule = tallies(EvidenceStore.open().find(kind="advice"))
    return [
        (
            device,
            rule,
            BY_NUMBER[rule].name if rule in BY_NUMBER else "",
            t.rate.tried,
            t.rate.faster,
            t.kept,
            round(t.median, 4),
        )
        for (device, rule), t in by_rule.items()
    ]
