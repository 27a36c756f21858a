"""This module is `ucc diff`."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import click

from ucutlass import frontend
from ucutlass.adopt import database as adopted
from ucutlass.adopt.difference import MergedSource, difference, merge
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.source import read as read_source
from ucutlass.backend import source_of
from ucutlass.cli import inputs, show
from ucutlass.cli.cpu_limit import cpu_limited
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import arch_option, json_option, kernel_option, sizes_option
from ucutlass.cli.outputs import OutputPath, write
from ucutlass.emit.text import Source
from ucutlass.shapes import complete, parse_sizes
from ucutlass.tune.database import TuningDatabase


@click.command("diff")
@click.argument("source", type=inputs.existing())
@click.option(
    "--for",
    "file",
    type=inputs.existing(),
    required=True,
    metavar="FILE",
    help="The program that the source computes.",
)
@sizes_option
@kernel_option
@arch_option()
@click.option("--merge", "merging", is_flag=True, help="Print what is emitted today with the edit in it.")
@click.option(
    "--base",
    type=inputs.existing(),
    metavar="FILE",
    help="The emitted file that the edit began with, for --merge; by default what ucc adopt kept.",
)
@click.option("-o", "--output", type=OutputPath(), metavar="FILE", help="Write to a file.")
@json_option
def command(
    source: Path,
    file: Path,
    sizes: tuple[str, ...],
    name: str | None,
    arch: str,
    merging: bool,
    base: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Print what SOURCE changes of the CUDA that FILE's kernel becomes today.

    With --merge print today's CUDA with the edit brought over, three-way, by git; where both changed the
    same lines, both stand between marks, and the exit status is 1. Nothing is adopted.
    """
    if base is not None and not merging:
        raise click.UsageError("--base is for --merge")
    with reported(as_json), cpu_limited(file):
        try:
            edited, emitted = _sides(source, file, sizes, name, arch)
            row: dict[str, Any] = {
                "entry": edited.entry,
                "emitted": emitted.entry,
                "changed": edited.entry != emitted.entry,
            }
            conflicts = 0
            if merging:
                merged = _merged(edited, emitted, base, as_json)
                text, conflicts = merged.text, merged.conflicts
                row |= {"merged": text, "conflicts": conflicts}
            else:
                changes = difference(edited, emitted)
                text = changes.unified
                row |= {"unified": text, "regions": [asdict(region) for region in changes.regions]}
        except SourceRefused as refused:
            _refuse(refused, as_json)
        if output is not None:
            write(output, text)
            row["output"] = str(output)
    if as_json:
        show.data(row)
    elif output is None:
        show.program(text)
    _notes(row, conflicts, as_json)
    if conflicts:
        sys.exit(Status.PROGRAM)


def _sides(
    source: Path, file: Path, sizes: tuple[str, ...], name: str | None, arch: str
) -> tuple[Source, Source]:
    checked = inputs.read(file)
    program = frontend.kernel(checked, name)
    with checked.limits(program):
        extents = complete(program, parse_sizes(sizes))
        planned = frontend.plan_kernel(checked, program, extents, arch).planned
        emitted = source_of(checked, program, planned)
    return read_source(source, emitted.arch, inputs.content), emitted


def _merged(edited: Source, emitted: Source, base: Path | None, as_json: bool) -> MergedSource:
    if edited.entry == emitted.entry and base is None:
        return merge(emitted.text, emitted.entry, edited, emitted)  # no emitter has changed since
    if base is not None:
        begun = read_source(base, emitted.arch, inputs.content)
        return merge(begun.text, begun.entry, edited, emitted)
    text = adopted.base_of(TuningDatabase.open(), edited.entry)
    if text is None:
        words = (
            f"what {edited.entry} was edited from is not known here: give the emitted file with --base, as "
            "`ucc emit` of the version that wrote it prints it"
        )
        fail(Status.CALL, words, as_json)
    return merge(text, edited.entry, edited, emitted)


def _notes(row: dict[str, Any], conflicts: int, as_json: bool) -> None:
    if as_json:
        return
    for region in row.get("regions", ()):
        name = region["name"] or "before the first region"
        show.note(f"ucc: {name}: {region['added']} lines added, {region['removed']} removed")
    if row["changed"]:
        show.note(f"ucc: {row['emitted']} is emitted today, and the source has {row['entry']}")
    if conflicts:
        show.note(
            f"ucc: {conflicts} CONFLICTS between the edit and what is emitted today: settle them between the "
            "marks <<<<<<< and >>>>>>>, then adopt it again; until then the text's own kernel serves"
        )


def _refuse(refused: SourceRefused, as_json: bool) -> NoReturn:
    fail(Status.PROGRAM, f"not compared: {refused}", as_json)
