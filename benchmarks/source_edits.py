"""Wrong edits of emitted files through `ucc adopt`, and by which check each falls; honest ones, which must pass.

    python -m benchmarks.source_edits [--json FILE] [--only NAME] [--stage text] [--list]

Claim: no wrong edit is adopted, and each falls by a check that is meant for it; every honest edit is adopted. Each
is a command of its own, and on a GPU many run at a time, so no time that is taken here means anything, and
`--slower` adopts what is right. Without a GPU, wrong edits that only a GPU shows are left open. Exit status 1 where
an edit ends otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

from benchmarks import harness
from tests.mutants.hopper import HOPPER_BASES
from tests.mutants.sources import HONEST, SOURCE_BASES, WRONG, SourceEdit, Stage, edited
from ucutlass.cli.errors import Status
from ucutlass.files import put
from ucutlass.runtime import process

PROCESSES = 14
LIMIT_SECONDS = 300.0
"""For one edit; most take some twenty seconds, of which the compiler has half."""

SECONDS = ("--seed", "7", "--bench", "2")


@dataclass(frozen=True, slots=True)
class Row:
    """What became of an edit. `ended`: the code of the refusal; "adopted"; "open" where it takes a GPU to see it;
    "failed" where the command did not say."""

    name: str
    base: str
    bug: str
    checks: tuple[str, ...]
    ended: str
    words: str
    seconds: float

    @property
    def fine(self) -> bool:
        return self.ended in (self.checks or ("adopted",)) or self.ended == "open"


def adopted(edit: SourceEdit) -> Row:
    """Runs `ucc adopt` of an edit, with a data folder and a lock of the GPU of its own."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ucutlass-edit-") as name:
        folder = Path(name)
        source, program, log = (folder / file for file in ("k.cu", "k.ucu", "log"))
        put(source, edited(edit))
        put(program, SOURCE_BASES[edit.base].text)
        sizes = ",".join(f"{dim}={extent}" for dim, extent in SOURCE_BASES[edit.base].sizes.items())
        options = ["--for", str(program), "-s", sizes, "--arch", "sm90a", "--slower", "--json"]
        command = [sys.executable, "-m", "ucutlass.cli", "adopt", str(source), *options, *SECONDS]
        status = process.run(
            [*command, "--case", f"{edit.case:g}"],
            folder=folder,
            env={**os.environ, "UCUTLASS_DATA_DIR": str(folder / "data"), "TMPDIR": name},
            log=log,
            limit_seconds=LIMIT_SECONDS,
            cancel=None,
        )
        ended, words = _ended(edit, status, log.read_text(encoding="utf-8", errors="replace"))
    seconds = round(time.monotonic() - began, 1)
    return Row(edit.name, edit.base, edit.bug, edit.checks, ended, words, seconds)


def _ended(edit: SourceEdit, status: object, log: str) -> tuple[str, str]:
    """Returns how the command ended, and its words."""
    begin = log.find("{")
    try:
        answer = json.loads(log[begin:] if begin >= 0 else "null")
    except ValueError:
        answer = None
    match answer:
        case {"refusal": str(code), "error": str(words)}:
            return code, words
        case {"state": "confirmed", "microseconds": us, "rival": rival}:
            return "adopted", f"{us:.1f} us, the text's own {rival:.1f} us"
        case {"status": int(Status.MACHINE), "error": str(words)} if "not adopted" in words:
            # Without a GPU a wrong edit that is to fall before must have fallen.
            return ("open" if edit.stage == "gpu" else "passed"), words
        case _:
            return "failed", f"status {status}: {log[-600:]}"


def rows(edits: Sequence[SourceEdit], processes: int) -> Iterator[Row]:
    """Yields rows as they come."""
    with ThreadPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(adopted, edit) for edit in edits]):
            yield future.result()


def show(row: Row) -> None:
    state = "fine" if row.fine else "WRONG"
    kind = "wrong" if row.checks else "honest"
    line = f"{state:5} {kind:6} {row.base:14} {row.name:36} {row.ended:10} {row.seconds:6.1f} s  {row.words}"
    print(line.replace("\n", " ")[:260], flush=True)


def main() -> int:
    options = _options()
    # What takes longest first: edits that sanitizers see, or that compile CUTLASS's headers.
    order = {"gpu": 0, "build": 1, "text": 2}
    chosen = [
        e
        for e in (*HONEST, *WRONG)
        if any(part in e.name for part in options.only.split(",")) and options.stage in ("", e.stage)
    ]
    edits = sorted(chosen, key=lambda e: (order[e.stage], e.base not in HOPPER_BASES))
    if options.list:
        for edit in edits:
            print(f"{edit.stage:6} {edit.base:14} {edit.name:36} {edit.bug}")
        print(f"{sum(not e.honest for e in edits)} wrong, {sum(e.honest for e in edits)} honest")
        return 0
    done: list[Row] = []
    for row in rows(edits, options.processes):
        done.append(row)
        show(row)
        if options.json:
            harness.append(options.json.with_suffix(".jsonl"), asdict(row))
    wrong = [row for row in done if row.checks]
    table = {
        "wrong": len(wrong),
        "adopted": sum(row.ended == "adopted" for row in wrong),
        "by check": dict(Counter(row.ended for row in wrong).most_common()),
        "honest": len(done) - len(wrong),
        "honest adopted": sum(row.ended == "adopted" for row in done if not row.checks),
        "otherwise": [row.name for row in done if not row.fine],
    }
    print(json.dumps(table, indent=1))
    if options.json:
        harness.write(options.json, {"summary": table, "rows": [asdict(row) for row in done]})
    return int(any(not row.fine for row in done))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--list", action="store_true", help="print the edits and run nothing")
    parser.add_argument("--only", default="", help="edits whose name holds one of these, between commas")
    parser.add_argument("--stage", choices=get_args(Stage), default="", help="what it takes to see them")
    parser.add_argument("--processes", type=int, default=PROCESSES)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
