"""Compares an edited source with what the emitter writes today, and brings an edit over to that.

An emitted entry is named after the digest of its code, and the name stands in the code: it is replaced by
today's before anything is compared, or each line that has it would differ once an emitter has changed.
"""

from __future__ import annotations

import difflib
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.source import code_of
from ucutlass.emit.text import Source
from ucutlass.files import put
from ucutlass.runtime import process
from ucutlass.runtime.errors import MachineError

MOST_LINES = 20_000
"""Of a source that is compared. The longest that is emitted has some 2000."""

_MERGE_SECONDS = 60.0

_REGION = re.compile(r"\s*// --- (.+?) -{3,}\s*")
"""Emitted files mark their parts so."""


class GitMissing(MachineError):
    """There is no git, whose merge-file merges."""


@dataclass(frozen=True, slots=True)
class ChangedRegion:
    """A part of the emitted file, "" before the first mark, with the lines that an edit added and removed."""

    name: str
    added: int
    removed: int


@dataclass(frozen=True, slots=True)
class SourceDifference:
    """What an edit changed: as `diff -u` writes it, and by region in the order of the emitted file."""

    unified: str
    regions: tuple[ChangedRegion, ...]


@dataclass(frozen=True, slots=True)
class MergedSource:
    """Today's emitted file with the edit; where both changed the same lines, both stand between marks."""

    text: str
    conflicts: int


def difference(edited: Source, emitted: Source) -> SourceDifference:
    """Returns what the edited source changed of the emitted one. The comments at their beginning are left out;
    line numbers are those of the emitted file. Raises SourceRefused for more lines than are compared."""
    ours = _renamed(edited.code, edited.entry, emitted.entry)
    head = emitted.text.removesuffix(emitted.code).splitlines()
    old, new = ([*head, *code.splitlines()] for code in (emitted.code, ours))
    if len(new) > MOST_LINES:
        raise SourceRefused("size", f"the file has {len(new)} lines, and at most {MOST_LINES} are compared")
    lines = list(difflib.unified_diff(old, new, "emitted", "edited", lineterm=""))
    return SourceDifference("".join(f"{line}\n" for line in lines), _regions(old, new))


def merge(base: str, base_entry: str, edited: Source, emitted: Source) -> MergedSource:
    """Returns what the emitter writes today with what was edited since `base`, the file that the edit began
    with. Raises GitMissing, MachineError."""
    git = shutil.which("git")
    if git is None:
        raise GitMissing("there is no git, which merges", "install git, or repeat the edit by hand")
    today = emitted.entry
    sides = {
        "edited": _renamed(edited.code, edited.entry, today),
        "base": _renamed(code_of(base), base_entry, today),
        "emitted": emitted.code,
    }
    with tempfile.TemporaryDirectory(prefix="ucutlass-merge-") as name:
        folder = Path(name)
        for side, code in sides.items():
            put(folder / side, code)
        labels = [word for side in sides for word in ("-L", side)]
        files = [str(folder / side) for side in sides]
        done = process.output([git, "merge-file", "-p", "--diff3", *labels, *files], _MERGE_SECONDS)
    # The status is the number of conflicts, cut to 127; beyond, git failed (git-merge-file(1)).
    if not 0 <= done.status <= 127:
        raise MachineError(f"git merge-file failed: {done.err.strip()[:200]}", "repeat the edit by hand")
    return MergedSource(emitted.text.removesuffix(emitted.code) + done.out, done.status)


def _renamed(code: str, entry: str, today: str) -> str:
    return re.sub(rf"\b{re.escape(entry)}(?=\b|_kernel\b)", today, code)


def _regions(old: Sequence[str], new: Sequence[str]) -> tuple[ChangedRegion, ...]:
    counts: dict[str, list[int]] = {}
    names = _names(old)
    matcher = difflib.SequenceMatcher(None, old, new)
    for kind, begin, end, first, last in matcher.get_opcodes():
        if kind == "equal":
            continue
        count = counts.setdefault(names[min(begin, len(names) - 1)] if names else "", [0, 0])
        count[0] += last - first
        count[1] += end - begin
    return tuple(ChangedRegion(name, added, removed) for name, (added, removed) in counts.items())


def _names(lines: Sequence[str]) -> list[str]:
    """Returns the region of each line."""
    names, name = [], ""
    for line in lines:
        if m := _REGION.fullmatch(line):
            name = m[1]
        names.append(name)
    return names
