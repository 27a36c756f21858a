"""This module is `ucc kernelbench`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ucutlass.agent.batch import BatchRun
from ucutlass.agent.journal import Journal
from ucutlass.agent.kernelbench import (
    THRESHOLDS,
    BadCheckout,
    LevelSummary,
    ProblemResult,
    drawn,
    levels,
    rows,
    selected,
    starts,
)
from ucutlass.cli import show
from ucutlass.cli.batch import batch_of_id, batch_request, result_lines, run_batch
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import WholeNumber, json_option
from ucutlass.cli.search_options import SearchOptions, run_options


@click.command("kernelbench")
@click.option(
    "--root",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    metavar="CHECKOUT",
    help="A checkout of KernelBench.",
)
@click.option(
    "--select",
    default="level1/*,level2/*,level3/*",
    show_default=True,
    help="Which problems: level1/1-20,level2/7,level3/*.",
)
@click.option(
    "--draw",
    "count",
    type=WholeNumber(min=1),
    metavar="N",
    help="Take N problems of each level of --select, drawn by --seed; all by default.",
)
@click.option("--resume", "id", metavar="ID", help="Go on with a run instead of --root.")
@click.option(
    "--export",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Write first programs, or a run's best ones, as KernelBench's evaluation takes them; runs nothing.",
)
@click.option("--show", "only", is_flag=True, help="Print what a run has, without going on.")
@run_options
@json_option
def command(
    root: Path | None,
    select: str,
    count: int | None,
    id: str | None,
    folder: Path | None,
    only: bool,
    as_json: bool,
    how: SearchOptions,
) -> None:
    """Search for faster programs for problems of a KernelBench checkout, and report by level.

    The problems are those of your own checkout, folders level1 to level4 with files N_Name.py, and run in
    processes of their own. A problem's first program is that in the tree of --start, level1/N_Name.ucu, or the
    one beside it, or the importer's; the proposer rules leaves out what has none. The report has the share of right problems, the geometric mean of
    their speed-up and fast_0, fast_1 and fast_2 over the module in eager PyTorch, with TF32, and through
    torch.compile. A run that was stopped goes on with --resume; --show prints what there is.
    """
    with reported(as_json):
        if (root is None) == (id is None):
            fail(Status.CALL, "give --root CHECKOUT to begin a run, or --resume ID to go on", as_json)
        if only:
            if id is None:
                fail(Status.CALL, "--show prints a run that there is: name it with --resume ID", as_json)
            report(batch_of_id(Journal.open(how.journal), id, as_json, to_go_on=False), None, as_json)
            return
        if folder is not None:
            _export(folder, root, select, count, id, how, as_json)
            return
        if how.timing.baseline == "cublas":
            fail(Status.CALL, "cublas is the bare product of a program: a module has none", as_json)
        base, names = (None, []) if root is None else _chosen(root, select, count, how, as_json)
        done, why = run_batch(names, batch_request(base, how, as_json), id)
        report(done, why, as_json)


def _chosen(
    root: Path, select: str, count: int | None, how: SearchOptions, as_json: bool
) -> tuple[Path, list[str]]:
    """Returns the folder of the levels and the problems below it. Ends the command where there are none."""
    try:
        base, names = selected(root, select)
    except BadCheckout as wrong:
        fail(Status.CALL, str(wrong), as_json)
    return base, names if count is None else drawn(names, count, how.strategy.seed)


def _export(
    folder: Path,
    root: Path | None,
    select: str,
    count: int | None,
    id: str | None,
    how: SearchOptions,
    as_json: bool,
) -> None:
    from ucutlass.cli.kernelbench_export import FORMS, SOLUTIONS, best_programs, export, first_programs

    if root is None:
        programs = best_programs(batch_of_id(Journal.open(how.journal), id or "", as_json, to_go_on=False))
    else:
        base, names = _chosen(root, select, count, how, as_json)
        programs = first_programs(base, names, how.reading("sm90a"))
    rows_of_export = export(folder, programs)
    counts = {form: sum(form in row for row in rows_of_export) for form in (*FORMS, *SOLUTIONS)}
    if as_json:
        show.data({"folder": str(folder), "counts": counts, "problems": rows_of_export})
    else:
        show.table(("form", "problems"), [(form, str(count)) for form, count in counts.items()])
    if not any(counts.values()):
        sys.exit(Status.PROGRAM)


def report(run: BatchRun, why: str | None, as_json: bool) -> None:
    """Prints the levels and every problem. Ends the command with status 1 where nothing is right."""
    results = rows(run)
    by_level = levels(results)
    if as_json:
        summary = {"run": run.id, "stopped": why, "spend": asdict(run.spend), "thresholds": THRESHOLDS}
        by_start = {"starts": starts(results)}
        show.data(summary | by_start | {"levels": _json(by_level), "problems": _json(results)})
    else:
        show.table(("run", "stopped"), [(run.id[:16], why or "shown only")])
        show.table(("first program", "problems"), [(s, str(n)) for s, n in starts(results).items()])
        show.table(_COLUMNS, [line for level in by_level for line in _lines(level)])
        show.table(("problem", "session", "result"), result_lines(results))
    if not any(row.right for row in results):
        sys.exit(Status.PROGRAM)


_COLUMNS = (
    "level",
    "compute type",
    "problems",
    "right",
    "against",
    "timed",
    "geomean",
    *(f"fast_{p}" for p in THRESHOLDS),
)


def _lines(level: LevelSummary) -> list[tuple[str, ...]]:
    head = (f"level {level.level}", level.lane or "-", str(level.problems), str(level.right))
    if not level.against:
        return [(*head, "nothing was timed", *["-"] * (2 + len(THRESHOLDS)))]
    return [
        (
            *head,
            a.baseline,
            str(a.timed),
            "-" if a.geomean is None else f"{a.geomean:.3f}",
            *(f"{share:.1%}" for share in a.fast),
        )
        for a in level.against
    ]


def _json(of: Sequence[ProblemResult] | Sequence[LevelSummary]) -> list[dict[str, Any]]:
    return [asdict(entry) for entry in of]
