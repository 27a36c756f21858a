"""This module carries out a unified diff on one CUDA file, as text: no file is opened, whatever the diff names.

A hunk applies where its old lines stand, every character of them (fuzz 0). Models count lines badly, so the
numbers of a hunk's header are hints: where the old lines do not stand at the line that it names, they must
stand at exactly one other place behind the hunk before.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

FILE = "kernel.cu"
"""What diffs call the file of a candidate."""

MOST_PATCH = 200_000
"""Characters of a diff."""

MOST_HUNKS = 200
MOST_SOURCE = 256_000
"""Characters of a source in a session. The longest that an emitter writes has some 60,000."""

MOST_LINES = 20_000

_HUNK = re.compile(r"@@ -(\d{1,7})(?:,(\d{1,7}))? \+\d{1,7}(?:,(\d{1,7}))? @@.*")
_NAMES = frozenset({FILE, f"a/{FILE}", f"b/{FILE}"})
_SKIPPED = re.compile(r"(?:diff --git |index [0-9a-f]+\.\.[0-9a-f]+)")
_OF_FILES = re.compile(
    r"(?:new file mode|deleted file mode|old mode|new mode|rename |copy |similarity |GIT binary patch|Binary files )"
)


class BadPatch(ValueError):
    """Raised for a diff that is none, or does not apply; says where."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """`line` is where the header says that `old` begins, counted from 1."""

    line: int
    old: tuple[str, ...]
    new: tuple[str, ...]


def patched(source: str, patch: str) -> str:
    """Returns the source with a diff carried out. Raises BadPatch."""
    if len(patch) > MOST_PATCH:
        raise BadPatch(f"the patch has {len(patch)} characters; at most {MOST_PATCH} are read")
    lines = source.split("\n")
    if len(lines) > MOST_LINES:
        raise BadPatch(f"the file has {len(lines)} lines; at most {MOST_LINES} are patched")
    places = _places(lines)
    result: list[str] = []
    end = 0
    for number, hunk in enumerate(hunks(patch), 1):
        at = _place(lines, places, hunk, number, end)
        result += [*lines[end:at], *hunk.new]
        end = at + len(hunk.old)
    text = "\n".join([*result, *lines[end:]])
    if len(text) > MOST_SOURCE:
        raise BadPatch(f"the patched file has {len(text)} characters; at most {MOST_SOURCE} are taken")
    return text


def hunks(patch: str) -> tuple[Hunk, ...]:
    """Returns the hunks of a diff of the one file that there is. Raises BadPatch."""
    result: list[Hunk] = []
    line_of_hunk, old, new = 0, list[str](), list[str]()
    counts = (0, 0)
    inside = False
    headers = 0

    def close() -> None:
        if not inside:
            return
        if old == new:
            raise BadPatch(f"hunk {len(result) + 1} changes nothing")
        if not old:
            raise BadPatch(f"hunk {len(result) + 1} has no line of the file that says where it belongs")
        result.append(Hunk(line_of_hunk, tuple(old), tuple(new)))

    rows = patch.strip("\n").split("\n")
    for number, row in enumerate(rows, 1):
        header = _HUNK.fullmatch(row)
        complete = len(old) >= counts[0] and len(new) >= counts[1]
        if header is None and inside and not (complete and _begins_file(rows, number - 1)):
            match row[:1]:
                case "" | " ":
                    old.append(row[1:])
                    new.append(row[1:])
                case "-":
                    old.append(row[1:])
                case "+":
                    new.append(row[1:])
                case "\\":
                    pass  # "No newline at end of file"
                case _:
                    raise BadPatch(f"line {number} of the patch begins with none of ' ', '+' and '-'")
            continue
        if header is not None:
            close()
            if len(result) >= MOST_HUNKS:
                raise BadPatch(f"the patch has more than {MOST_HUNKS} hunks")
            line_of_hunk, old, new, inside = int(header[1]), [], [], True
            counts = (int(header[2] or 1), int(header[3] or 1))
        elif row.startswith(("--- ", "+++ ")):
            headers += 1
            _check_name(row[4:].split("\t")[0].strip(), headers)
        elif _OF_FILES.match(row):
            raise BadPatch(
                f"line {number} of the patch makes, moves or removes files: it may change {FILE} alone"
            )
        elif row.strip() and not _SKIPPED.match(row):
            raise BadPatch(f"line {number} of the patch is before any hunk and no header of a unified diff")
    close()
    if not result:
        raise BadPatch("the patch has no hunk, which begins with @@ -LINE,COUNT +LINE,COUNT @@")
    return tuple(result)


def _begins_file(rows: Sequence[str], at: int) -> bool:
    """Returns whether another file's part begins, where a hunk has the lines that its header counts: a removed
    line may read like a header too."""
    return rows[at].startswith("diff --git ") or (
        rows[at].startswith("--- ") and rows[at + 1 : at + 2] != [] and rows[at + 1].startswith("+++ ")
    )


def _check_name(name: str, headers: int) -> None:
    if headers > 2:
        raise BadPatch(f"the patch is of several files, and there is one: {FILE}")
    if name not in _NAMES:
        raise BadPatch(f"the patch is of {name:.80}, and there is one file: {FILE}")


def _places(lines: Sequence[str]) -> dict[str, list[int]]:
    places: dict[str, list[int]] = {}
    for at, line in enumerate(lines):
        places.setdefault(line, []).append(at)
    return places


MOST_PLACES = 2_000
"""Places that are compared for one hunk."""


def _place(lines: Sequence[str], places: dict[str, list[int]], hunk: Hunk, number: int, after: int) -> int:
    """Returns where a hunk applies, counted from 0, not before `after`."""
    old = list(hunk.old)

    def stands(at: int) -> bool:
        return at >= after and list(lines[at : at + len(old)]) == old

    if stands(hunk.line - 1):
        return hunk.line - 1
    # The line that the fewest places have decides which places are compared.
    rarest = min(range(len(old)), key=lambda at: len(places.get(old[at], ())))
    candidates = [at - rarest for at in places.get(old[rarest], ())]
    if len(candidates) > MOST_PLACES:
        raise BadPatch(
            f"hunk {number}: none of its lines says where it belongs; give more of the lines around it"
        )
    matching = [at for at in candidates if stands(at)]
    if len(matching) == 1:
        return matching[0]
    if matching:
        shown = ", ".join(str(at + 1) for at in matching[:5])
        raise BadPatch(
            f"hunk {number} stands at {len(matching)} places, lines {shown}: give more of the lines around it"
        )
    raise BadPatch(f"hunk {number} does not apply: {_nearest(lines, places, old, rarest)}")


def _nearest(lines: Sequence[str], places: dict[str, list[int]], old: Sequence[str], rarest: int) -> str:
    """Returns which of a hunk's old lines is none of the file, in words."""
    absent = next((line for line in old if line not in places), None)
    if absent is not None:
        return f"no line of the file reads {absent.strip()[:120]!r}"
    at = places[old[rarest]][0] - rarest
    for offset, line in enumerate(old):
        here = lines[at + offset] if 0 <= at + offset < len(lines) else None
        if here != line:
            shown = "the file's end" if here is None else repr(here.strip()[:120])
            return f"line {at + offset + 1} of the file is {shown}, not {line.strip()[:120]!r}"
    return "its lines stand before those of an earlier hunk"
