"""This module reads an answer: whatever a model or a program wrote becomes candidates and words about what
was wrong.

Programs stand in blocks fenced as ```ucu, edits of the candidate that was asked about in ```json blocks
`{"edits": [{"at": ADDRESS, "put": TEXT}, ..], "why": ".."}` (`ucutlass.agent.edits`). A block that cannot be
taken is a candidate without a text whose reason says why: it counts as an attempt and its words go back to
whoever wrote it. Nothing here raises for a text, and every text is bounded.

In a session at source level a block fenced as ```cuda is a whole CUDA file that stands for the candidate's
program, and one fenced as ```diff a patch of the candidate's file (`ucutlass.agent.proposers.source_patch`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from ucutlass.agent.edits import BadEdit, ProgramEdit, apply_edits
from ucutlass.agent.proposers.quoting import bounded, plain
from ucutlass.agent.proposers.source_patch import MOST_SOURCE, BadPatch, patched
from ucutlass.agent.session import ProposedProgram
from ucutlass.agent.source_files import CandidateFile

MOST_READ = 400_000
"""Characters of an answer that are looked at."""

MOST_PROGRAM = 50_000
MOST_WHY = 200
MOST_NOTE = 8_000
MOST_BLOCKS = 32


@dataclass(frozen=True, slots=True)
class FencedBlock:
    """Describes a fenced block: `tag` is what stands behind the fence, in small letters; `lead` the last line
    of prose before it. `closed` is False where the answer ended inside it."""

    tag: str
    text: str
    lead: str
    closed: bool


def programs(text: str, parent: str, file: CandidateFile | None = None) -> tuple[ProposedProgram, ...]:
    """Returns the candidates of an answer that is about a candidate with the text `parent`, in their order,
    each text once; empty where it holds none at all. `file` is the candidate's CUDA, at source level."""
    cut = len(text) > MOST_READ
    read = text[:MOST_READ]
    blocks = list(_blocks(read))[:MOST_BLOCKS]
    written = [w for b in blocks if (w := _of_block(b, parent, file)) is not None]
    if not written:
        written = [w for b in blocks if not b.tag and (w := _untagged(b)) is not None]
    if not written and not blocks and _LOOKS_LIKE.match(read):
        written = [program(read.strip() + "\n", "")]
    if not written and cut:
        words = f"the answer has {len(text)} characters and no program in the first {MOST_READ}"
        written = [ProposedProgram("", words)]
    return tuple(dict.fromkeys(written))


def note(text: str) -> str:
    """Returns an answer that is to be read by the next step, bounded."""
    return bounded(plain(text).strip(), MOST_NOTE)


def prose(text: str) -> str:
    """Returns what stands outside of blocks, bounded as a note."""
    lines, inside = [], ""
    for line in text[:MOST_READ].splitlines():
        fence = _FENCE.match(line)
        if fence is not None and (not inside or (_closes(line, inside))):
            inside = "" if inside else fence["marks"]
        elif not inside:
            lines.append(line)
    return note("\n".join(lines))


# --- blocks ----------------------------------------------------------------------

_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})[ \t]*(?P<tag>[\w+.-]*)")
_LOOKS_LIKE = re.compile(r"\s*(?:#[^\n]*\n\s*)*(?:kernel|pipeline|fn)\s+\w+\s*[(\[]")


def _closes(line: str, marks: str) -> bool:
    bare = line.strip()
    return len(bare) >= len(marks) and bare == marks[0] * len(bare)


def _blocks(text: str) -> Iterator[FencedBlock]:
    """Yields fenced blocks as CommonMark has them: a block ends at a line of at least as many of the same
    marks."""
    lead, marks, tag = "", "", ""
    inside: list[str] = []
    for line in text.splitlines():
        if marks:
            if _closes(line, marks):
                yield FencedBlock(tag, "\n".join(inside) + "\n", lead, True)
                marks, lead = "", ""
            else:
                inside.append(line)
            continue
        fence = _FENCE.match(line)
        if fence is not None:
            marks, tag, inside = fence["marks"], fence["tag"].lower(), []
        elif line.strip():
            lead = line.strip()
    if marks:
        yield FencedBlock(tag, "\n".join(inside) + "\n", lead, False)


def _of_block(block: FencedBlock, parent: str, file: CandidateFile | None = None) -> ProposedProgram | None:
    """Returns None for a block that is neither a program nor edits, nor at source level a file or a patch."""
    match block.tag:
        case "cuda" | "cu" | "cpp" | "c++" | "diff" | "patch" if file is not None:
            if not block.closed:
                return ProposedProgram("", "the answer ended inside a file or a patch")
            if block.tag in ("diff", "patch"):
                return source_patch(block.text, parent, file, block.lead)
            return source(block.text, parent, file, block.lead)
        case "ucu" if not block.closed:
            return ProposedProgram("", "the answer ended inside a program")
        case "ucu":
            return program(block.text, block.lead)
        case "json":
            return _edits(block, parent)
        case _:
            return None


def _untagged(block: FencedBlock) -> ProposedProgram | None:
    if not _LOOKS_LIKE.match(block.text):
        return None
    return _of_block(FencedBlock("ucu", block.text, block.lead, block.closed), "")


def program(text: str, lead: str) -> ProposedProgram:
    """Returns a candidate, or why it cannot be one."""
    if len(text) > MOST_PROGRAM:
        return ProposedProgram("", f"a program of {len(text)} characters; at most {MOST_PROGRAM} are taken")
    if not text.strip():
        return ProposedProgram("", "an empty program")
    # A lone surrogate cannot be written as UTF-8, and JSON can hold one.
    return ProposedProgram(text.encode("utf-8", "replace").decode(), reason(lead))


def source(text: str, parent: str, file: CandidateFile, lead: Any) -> ProposedProgram:
    """Returns a candidate whose CUDA file stands for the program `parent`, or why it cannot be one."""
    if file.absent:
        return ProposedProgram("", f"no source can stand for this candidate: {file.absent}")
    if len(text) > MOST_SOURCE:
        return ProposedProgram("", f"a source of {len(text)} characters; at most {MOST_SOURCE} are taken")
    if not text.strip():
        return ProposedProgram("", "an empty source")
    return ProposedProgram(parent, reason(lead), text.encode("utf-8", "replace").decode())


def source_patch(patch: str, parent: str, file: CandidateFile, lead: Any) -> ProposedProgram:
    """Returns a candidate whose CUDA file is the parent's with a patch, or why it cannot be one."""
    if file.absent:
        return ProposedProgram("", f"no source can stand for this candidate: {file.absent}")
    try:
        return source(patched(file.text, patch), parent, file, lead)
    except BadPatch as problem:
        return ProposedProgram("", f"the patch was not carried out: {bounded(plain(str(problem)), 400)}")


def reason(text: Any) -> str:
    """Returns one bounded line of somebody's words."""
    line = " ".join(plain(text).split()) if isinstance(text, str) else ""
    return line if len(line) <= MOST_WHY else line[: MOST_WHY - 3] + "..."


# --- edits -----------------------------------------------------------------------


def _edits(block: FencedBlock, parent: str) -> ProposedProgram | None:
    """Returns None for JSON that speaks of no edits; what means to be edits and is none says what is
    wrong."""
    try:
        value = json.loads(block.text)
    except (ValueError, RecursionError) as problem:
        if '"edits"' not in block.text:
            return None
        shown = "the answer ended inside them" if not block.closed else str(problem)[:120]
        return ProposedProgram("", f"the edits are no JSON: {shown}")
    if not isinstance(value, dict) or "edits" not in value:
        return None
    return of_edits(value["edits"], parent, value.get("why", block.lead))


def of_edits(value: Any, parent: str, why: Any) -> ProposedProgram:
    """Returns the parent with edits as JSON has them."""
    match _read(value):
        case str() as wrong:
            return ProposedProgram("", wrong)
        case edits:
            try:
                return program(apply_edits(parent, edits), reason(why))
            except BadEdit as problem:
                return ProposedProgram(
                    "", f"the edits were not carried out: {bounded(plain(str(problem)), 400)}"
                )


def _read(value: Any) -> Sequence[ProgramEdit] | str:
    if not isinstance(value, list) or not value:
        return '"edits" must be a list of {"at": ADDRESS, "put": TEXT}'
    edits: list[ProgramEdit] = []
    for entry in value:
        match entry:
            case {"at": str(at), "put": str(put)} if len(put) <= MOST_PROGRAM:
                edits.append(ProgramEdit(at, put))
            case _:
                shown = bounded(plain(repr(entry)), 100)
                return f'an edit is {{"at": ADDRESS, "put": TEXT}}, not {shown}'
    return edits


# --- nominations -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Describes what to change and why it should help: `speedup` over the best so far, and the risks of
    building it and of its not being faster, both from 1 (none) to 10."""

    change: str
    speedup: float
    build_risk: float
    speed_risk: float


@dataclass(frozen=True, slots=True)
class Nominations:
    """`faults` are those that could not be read, in words."""

    hypotheses: tuple[Hypothesis, ...] = ()
    faults: tuple[str, ...] = field(default=())


MOST_HYPOTHESES = 8
_RISKS = (1.0, 10.0)
_SPEEDUPS = (0.1, 1000.0)


def nominations(text: str) -> Nominations:
    """Returns the hypotheses of a ```json block `{"hypotheses": [{"change", "S", "R_impl", "R_perf"},
    ..]}`."""
    for block in list(_blocks(text[:MOST_READ]))[:MOST_BLOCKS]:
        try:
            value = json.loads(block.text)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict) and isinstance(value.get("hypotheses"), list):
            read = [_hypothesis(h) for h in value["hypotheses"][:MOST_HYPOTHESES]]
            return Nominations(
                tuple(h for h in read if isinstance(h, Hypothesis)),
                tuple(h for h in read if isinstance(h, str)),
            )
    return Nominations(faults=("the answer has no ```json block with a list of hypotheses",))


Number: TypeAlias = Literal["S", "R_impl", "R_perf"]


def _hypothesis(value: Any) -> Hypothesis | str:
    if not isinstance(value, dict) or not isinstance(value.get("change"), str):
        return f"a hypothesis is an object with a change in words, not {bounded(plain(repr(value)), 100)}"
    ranges: dict[Number, tuple[float, float]] = {"S": _SPEEDUPS, "R_impl": _RISKS, "R_perf": _RISKS}
    numbers: list[float] = []
    for name, (low, high) in ranges.items():
        number = value.get(name)
        if isinstance(number, bool) or not isinstance(number, (int, float)) or not low <= number <= high:
            return f"{name} must be a number from {low:g} to {high:g}, not {bounded(plain(repr(number)), 40)}"
        numbers.append(float(number))
    return Hypothesis(bounded(plain(value["change"]).strip(), 1_500), *numbers)
