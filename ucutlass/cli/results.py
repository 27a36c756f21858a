"""This module is `ucc results`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from ucutlass.cli import inputs, show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.options import WholeNumber, json_option
from ucutlass.cli.outputs import OutputPath, write
from ucutlass.runtime.evidence import KINDS, EvidenceKind, Record, to_json
from ucutlass.runtime.store import EvidenceStore, NoSuchRecord, NotIntact
from ucutlass.runtime.store.compare import Incomparable, RecordComparison, compare, time_of
from ucutlass.units import duration

F = TypeVar("F", bound=Callable[..., Any])

MOST_BYTES = 1 << 30
"""Of an export that is read."""


@click.group("results")
def command() -> None:
    """List, compare and carry the evidence that this user's runs left.

    The store lies in the folder UCUTLASS_DATA_DIR; one can only add to it.
    """


# --- options ---------------------------------------------------------------------


def _since(ctx: click.Context, param: click.Parameter, value: str | None) -> datetime | None:
    if value is None:
        return None
    if m := re.fullmatch(r"(\d{1,5})([mhd])", value, re.ASCII):
        unit = {"m": "minutes", "h": "hours", "d": "days"}[m[2]]
        return datetime.now(timezone.utc) - timedelta(**{unit: int(m[1])})
    try:
        moment = datetime.fromisoformat(re.sub("Z$", "+00:00", value))
    except ValueError:
        takes = "30m, 12h, 7d, 2026-03-01 or 2026-03-01T12:00 (UTC)"
        raise click.BadParameter(f"{value!r} is no time; it takes {takes}", ctx, param) from None
    return moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)


def _filters(limit: int | None) -> Callable[[F], F]:
    options = (
        click.option("--kind", type=click.Choice(KINDS), help="Records of this kind."),
        click.option("--kernel", metavar="NAME", help="Records of kernels of this name."),
        click.option("--device", metavar="TEXT", help="A part of the device's name, or a GPU's uuid."),
        click.option("--since", callback=_since, help="From then on: 30m, 12h, 7d, or a date in UTC."),
        click.option(
            "--limit",
            type=WholeNumber(1),
            default=limit,
            show_default=limit is not None,
            help="The latest records, this many at most.",
        ),
    )

    def decorated(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


@contextmanager
def _reporting(as_json: bool) -> Iterator[None]:
    """Reports failures in their words and exit status."""
    with reported(as_json):
        try:
            yield
        except (NoSuchRecord, Incomparable) as problem:
            fail(Status.CALL, str(problem), as_json)
        except NotIntact as problem:
            fail(Status.MACHINE, str(problem), as_json)


# --- commands --------------------------------------------------------------------


@command.command("list")
@_filters(20)
@json_option
def list_(
    kind: EvidenceKind | None,
    kernel: str | None,
    device: str | None,
    since: datetime | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """The latest records first."""
    with _reporting(as_json):
        store = EvidenceStore.open()
        records = store.find(kind=kind, kernel=kernel, device=device, since=since, limit=limit)
    rows = [_row(r) for r in records]
    if as_json:
        show.data(rows)
    elif not rows:
        show.say(f"no records in {store.path}" + ("" if not store.path.exists() else " answer to that"))
    else:
        _table(rows)


@command.command("show")
@click.argument("id")
@json_option
def show_(id: str, as_json: bool) -> None:
    """One record with everything in it; the first digits of its id suffice."""
    with _reporting(as_json):
        record = EvidenceStore.open().get(id)
    content = json.loads(to_json(record))
    if as_json:
        show.data(content)
        return
    order = ("id", "kind", "created", "subject", "machine", "harness", "parents", "protocol", "result")
    rows = [line for name in order for line in _flat(name, content[name])]
    show.table(("field", "value"), rows)


@command.command("compare")
@click.argument("a")
@click.argument("b")
@json_option
def compare_(a: str, b: str, as_json: bool) -> None:
    """Two bench records: the ratio of their medians, and what may be said of it.

    'faster' is said only of records that one comparison measured in turns. Records of other compute types,
    devices, sizes, regimes or clocks are refused.
    """
    with _reporting(as_json):
        store = EvidenceStore.open()
        records = store.get(a), store.get(b)
        comparison = compare(*records)
    if as_json:
        show.data({"records": [r.id for r in records], **asdict(comparison)})
        return
    show.table(("", "record", "kernel", "schedule", "time"), _sides(records, comparison))
    show.say(f"a takes {comparison.medians:.3f} of b's median")
    if comparison.ratio is not None:
        interval = f"{comparison.ratio.low:.3f} to {comparison.ratio.high:.3f} over {comparison.ratio.blocks} blocks A B B A"
        show.say(f"in turns {comparison.ratio.median:.3f}, 95% interval {interval}")
    if comparison.verdict is not None:
        show.say(f"verdict: {'a is ' if comparison.verdict != 'no difference' else ''}{comparison.verdict}")
    for caution in comparison.cautions:
        show.say(f"note: {show.one_line(caution)}")


@command.command("export")
@click.argument("file", type=OutputPath(dash=True))
@_filters(None)
@json_option
def export_(
    file: Path,
    kind: EvidenceKind | None,
    kernel: str | None,
    device: str | None,
    since: datetime | None,
    limit: int | None,
    as_json: bool,
) -> None:
    """Records as JSON lines, the oldest first; `-` writes to standard output."""
    with _reporting(as_json):
        store = EvidenceStore.open()
        records = store.find(kind=kind, kernel=kernel, device=device, since=since, limit=limit)
        lines = list(store.export(reversed(records)))
        write(file, "".join(f"{line}\n" for line in lines))
    if str(file) == "-":
        return
    counts = {"exported": len(lines), "file": str(file)}
    show.say(json.dumps(counts) if as_json else f"{_counted(len(lines))} to {inputs.name(file)}")


@command.command("import")
@click.argument("file", type=inputs.existing())
@json_option
def import_(file: Path, as_json: bool) -> None:
    """Adds the records of an export, each if its seal holds; exit status 2 where one does not."""
    with _reporting(as_json):
        data = inputs.content(file, MOST_BYTES)
        # Only line feeds end lines; bytes that are no text break a seal and are told of.
        done = EvidenceStore.open().import_(data.decode(errors="replace").split("\n"))
    if as_json:
        show.data(asdict(done))
    else:
        show.say(f"{_counted(done.added)} added, {done.known} here already, {len(done.refused)} refused")
        for refused in done.refused:
            show.note(f"ucc: {inputs.name(file)}:{refused.line}: {show.one_line(refused.reason)}")
    if done.refused:
        sys.exit(Status.CALL)


@command.command("check")
@json_option
def check_(as_json: bool) -> None:
    """Hashes every record anew; exit status 3 where one is not what was sealed."""
    with _reporting(as_json):
        store = EvidenceStore.open()
        broken = store.check()
        count = 0 if broken else len(store.find())
    if as_json:
        show.data([asdict(b) for b in broken])
    elif broken:
        rows = [(str(b.number), str(b.id)[:16], b.reason) for b in broken]
        show.table(("number", "record", "problem"), rows)
    else:
        show.say(f"{_counted(count)}, all as sealed")
    if broken:
        sys.exit(Status.MACHINE)


# --- rows ------------------------------------------------------------------------


def _counted(count: int) -> str:
    return f"{count} record" if count == 1 else f"{count} records"


def _row(record: Record) -> dict[str, str]:
    s = record.subject
    return {
        "id": record.id[:16],
        "created": record.created[:19].replace("T", " "),
        "kind": record.kind,
        "kernel": s.kernel,
        "sizes": ",".join(f"{d}={n}" for d, n in s.sizes.items()),
        "lane": s.lane,
        "device": record.machine.device or "CPU",
        "said": _headline(record),
    }


def _headline(record: Record) -> str:
    """Returns the one thing to know of a record, where it is there in a known form."""
    if record.kind == "bench":
        try:
            return duration(time_of(record).median * 1e-6)
        except Incomparable:
            return "no time"
    match record.result:
        case {"verdict": str(words)}:
            return words
        case {"ok": bool(ok)}:
            return "ok" if ok else "failed"
        case _:
            return ""


def _sides(records: Sequence[Record], comparison: RecordComparison) -> list[tuple[str, ...]]:
    return [
        (
            name,
            r.id[:12],
            r.subject.kernel,
            r.subject.schedule,
            f"{duration(t.median * 1e-6)} ({duration(t.p10 * 1e-6)} to {duration(t.p90 * 1e-6)})",
        )
        for name, r, t in zip("ab", records, (comparison.a, comparison.b), strict=True)
    ]


_LONG = 8
"""Lists longer than this are counted, not shown; `--json` has them all."""


def _flat(name: str, value: Any) -> Iterator[tuple[str, str]]:
    match value:
        case Mapping() if value:
            for key, inner in cast(Mapping[str, Any], value).items():
                yield from _flat(f"{name}.{key}", inner)
        case list() if len(value) > _LONG:
            yield name, f"{len(value)} values"
        case [dict(), *_]:
            for at, inner in enumerate(value):
                yield from _flat(f"{name}[{at}]", inner)
        case str():
            yield name, value
        case _:
            yield name, json.dumps(value)


def _table(rows: Sequence[Mapping[str, str]]) -> None:
    show.table(tuple(rows[0]), [tuple(row.values()) for row in rows])
