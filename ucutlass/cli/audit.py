"""This module is `ucc audit`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ucutlass import frontend, ir
from ucutlass.agent.integrity import RULES, AuditReport, audit
from ucutlass.agent.integrity.audit_record import record_of
from ucutlass.agent.integrity.bundle import EvidenceBundle, MissingEvidence
from ucutlass.agent.integrity.gather import AuditSubject, gather, latest
from ucutlass.agent.integrity.precision import DeclaredPrecision, UnknownComputeType, declared
from ucutlass.algebra.derivation import proof
from ucutlass.cli import inputs, show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import (
    RenamedOption,
    WholeNumber,
    file_argument,
    json_option,
    kernel_option,
    sizes_option,
)
from ucutlass.runtime.evidence import Record
from ucutlass.runtime.store import EvidenceStore, NoSuchRecord, NotIntact
from ucutlass.shapes import ShapeError, complete, parse_sizes
from ucutlass.sol.ceilings import CeilingsError


@click.command("audit")
@file_argument
@sizes_option
@kernel_option
@click.option(
    "--record",
    "ids",
    multiple=True,
    metavar="ID",
    help="A bench or verify record to judge; may be repeated. By default the last ones of this text.",
)
@click.option(
    "--compute-type",
    "--lane",
    "compute_type",
    cls=RenamedOption,
    metavar="TYPE",
    help="The precision that the problem asks for, such as bf16, f32 or f16/f16 (sums in f16).",
)
@click.option(
    "--ancestor",
    "ancestors",
    multiple=True,
    metavar="ID",
    help="The audit record of a candidate that this one came from; may be repeated.",
)
@click.option(
    "--library",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The library that is kept: what was measured must be this file.",
)
@click.option(
    "--problem",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The program that FILE came from: the audit names the algebra by which both are equal.",
)
@click.option("--seed", type=WholeNumber(), default=0, help="Seed of the experiments with the reference.")
@json_option
def command(
    file: Path,
    sizes: tuple[str, ...],
    name: str | None,
    ids: tuple[str, ...],
    compute_type: str | None,
    ancestors: tuple[str, ...],
    library: Path | None,
    problem: Path | None,
    seed: int,
    as_json: bool,
) -> None:
    """Judge whether the numbers of FILE's kernel may be believed.

    Takes its bench and verify records, the bounds of its device and experiments with the float64
    reference, and runs every rule. Verdicts: ok, minor, gaming, flawed-problem, below-sol,
    library-only, and unproven, where evidence is missing. Exit status 1 unless ok or minor. The
    verdict is kept as a record. Needs no GPU.
    """
    with reported(as_json):
        policy = _declared_precision(compute_type, as_json)
        checked = inputs.read(file)
        program = _program(checked, name)
        extents = complete(program, parse_sizes(sizes))
        candidate = AuditSubject(checked, program, dict(zip(program.dims, extents, strict=True)))
        store = EvidenceStore.open()
        records = _records(store, ids, as_json) if ids else latest(candidate, store)
        store.prepare()
        try:
            bundle = gather(
                candidate,
                records,
                precision=policy,
                ancestors=_records(store, ancestors, as_json),
                library=library,
                seed=seed,
            )
        except CeilingsError as error:
            fail(Status.MACHINE, str(error), as_json)
        audit_report = audit(bundle)
        algebra = None if problem is None else _algebra(problem, program)
        record_id = store.add(record_of(candidate, bundle, audit_report, records, algebra))
    _report(candidate, bundle, audit_report, record_id, algebra, as_json)
    if not audit_report.accepted:
        sys.exit(Status.PROGRAM)


def _algebra(problem: Path, program: ir.Program) -> str:
    """Returns by which rules a program is equal to another file's program of its name. Raises ProgramError and
    ShapeError."""
    original = _program(inputs.read(problem), program.name)
    by = proof(original, program)
    if by is None:
        return "no rules show that it is equal to the problem's program"
    return f"equal for all inputs: {', '.join(rule.name for rule in by) or 'the same values'}"


def _declared_precision(text: str | None, as_json: bool) -> DeclaredPrecision | None:
    try:
        return None if text is None else declared(text)
    except UnknownComputeType as problem:
        fail(Status.CALL, str(problem), as_json)


def _program(checked: frontend.Checked, name: str | None) -> ir.Program:
    """Returns the kernel or pipeline of this name, or the file's only one. Raises ShapeError."""
    programs = {p.name: p for p in checked.module.programs}
    if name is None and len(programs) == 1:
        (name,) = programs
    if name is None or name not in programs:
        words = f"{checked.file} has {', '.join(programs) or 'no program'}: say which one with --kernel NAME"
        raise ShapeError("UC0601", words)
    return programs[name]


def _records(store: EvidenceStore, ids: Sequence[str], as_json: bool) -> tuple[Record, ...]:
    try:
        return tuple(store.get(record_id) for record_id in ids)
    except NoSuchRecord as problem:
        fail(Status.CALL, str(problem.args[0]), as_json)
    except NotIntact as problem:
        fail(Status.PROGRAM, f"gaming: {problem}", as_json)


# --- words -------------------------------------------------------------------------------


def _report(
    candidate: AuditSubject,
    bundle: EvidenceBundle,
    audit_report: AuditReport,
    record_id: str,
    algebra: str | None,
    as_json: bool,
) -> None:
    if as_json:
        row: dict[str, Any] = {
            "kernel": candidate.program.name,
            "sizes": dict(candidate.sizes),
            "verdict": audit_report.verdict,
            "accepted": audit_report.accepted,
            "findings": [asdict(f) for f in audit_report.findings],
            "rules": list(audit_report.checked),
            "records": [r.id for r in bundle.records],
            "record": record_id,
        }
        row |= {} if algebra is None else {"algebra": algebra}
        show.data(row)
        return
    columns = ("verdict", "rule", "", "evidence")
    show.table(columns, [(f.verdict, f.rule, f.words, _ids(f.records)) for f in audit_report.findings])
    objecting_rules = {f.rule for f in audit_report.findings}
    silent = [rule.name for rule in RULES if rule.name not in objecting_rules]
    calibration = bundle.calibrated.why if isinstance(bundle.calibrated, MissingEvidence) else "used"
    sizes = " ".join(f"{d}={n}" for d, n in candidate.sizes.items())
    show.table(
        ("", ""),
        [
            ("kernel", f"{candidate.program.name} {sizes}"),
            ("no objection, as far as evidence goes", ", ".join(silent) or "from no rule"),
            ("calibration", calibration),
            *(() if algebra is None else (("algebra", algebra),)),
            ("verdict", audit_report.verdict),
            ("record", record_id[:16]),
        ],
    )


def _ids(records: Sequence[str]) -> str:
    return " ".join(r[:12] for r in records) or "-"
