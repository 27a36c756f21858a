"""This module has any program as a proposer: a JSON request on its standard input, a JSON answer on its
standard output.

    request   {"version": 1, "call", "role", "writes", "keep", "problem": {"text", "program", "sizes", "arch",
               "device", "lane"}, "system": [TEXT, ..], "turn": TEXT, "parent": {"id", "text"},
               "window": [{"id", "parent", "text", "outcome": {..}}, ..], "grammar": TEXT}
    answer    {"text": TEXT} or {"programs": [{"text", "why"}, ..]} and/or {"note": TEXT}, and where
              they apply {"usage": {"input", "cached", "written", "output", "dollars"}, "exhausted": true}

In a session at source level the request has `source` {"text", "absent", "headers"}: the parent's CUDA or why there is
none, and the folder of the headers; an entry of `programs` may be {"source", "why"}, a whole file, or {"patch", "why"}, a
unified diff of the parent's.

`system` and `turn` are what a model of the Messages API would be told, `text` is read as its answer would be,
and `grammar` is Lark's, in the subset that llguidance takes for constrained decoding. The program runs as the
user that started the session, sees of its environment what `ucutlass.runtime.environment_allowlist` lets through and what
the user named, and is killed, with all that it started, when it takes too long or says too much.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from threading import Thread
from typing import IO, Any

from ucutlass.agent.budget import NOTHING, Spend
from ucutlass.agent.dialogue import WRITERS
from ucutlass.agent.outcome import RejectedOutcome, outcome_to_json
from ucutlass.agent.proposer import Answer, OnSpend, ProposerFailed
from ucutlass.agent.proposers import answer, prompt, triage
from ucutlass.agent.proposers.problem_facts import ProblemDescription
from ucutlass.agent.proposers.quoting import bounded, plain
from ucutlass.agent.session import Ask, ProposedProgram, SessionState
from ucutlass.agent.source_files import CandidateFile, CandidateFiles
from ucutlass.grammar.parse import grammar_text
from ucutlass.runtime.environment_allowlist import allowed_environment
from ucutlass.runtime.supervised_process import SupervisedProcess

VERSION = 1
MOST_OUTPUT = 4_000_000
"""Bytes of an answer."""

MOST_ERRORS = 20_000
"""Bytes of standard error that are kept, the last ones."""

MOST_TOKENS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class CommandProposer:
    """`command` is a program and its arguments; `limit_seconds` is for one call; `pass_env` names variables
    of the environment that it is given besides those of `ucutlass.runtime.environment_allowlist`."""

    subject: ProblemDescription
    command: Sequence[str]
    limit_seconds: float = 600.0
    pass_env: Sequence[str] = ()
    files: CandidateFiles | None = None

    def writing_source(self, files: CandidateFiles) -> CommandProposer:
        """Returns the proposer for a session at source level."""
        return replace(self, files=files)

    def propose(self, ask: Ask, state: SessionState, on_spend: OnSpend) -> Answer:
        """Raises ProposerFailed; usage that was answered is told before anything else is judged."""
        if ask.role == "triage":
            return triage.triage_answer(state)
        request_json = json.dumps(request(ask, state, self.subject, self.files)).encode()
        started = time.monotonic()
        ran = _run(self.command, request_json, self.limit_seconds, allowed_environment(also=self.pass_env))
        seconds = time.monotonic() - started
        value = _object(ran.output)
        usage = None if value is None else _spend(value.get("usage"))
        if isinstance(usage, Spend) and usage != NOTHING:
            on_spend(usage)
        wrong = _wrong(ran, value, usage, self.limit_seconds)
        if wrong is not None:
            tail = bounded(" ".join(plain(ran.errors.decode(errors="replace")).split()), 300)
            stderr_excerpt = f"; it said: {tail}" if tail else ""
            raise ProposerFailed(
                f"{self._name} {wrong}{stderr_excerpt}", "fix the command, then resume the session"
            )
        assert value is not None
        file = None if self.files is None else self.files.of(state.tree[ask.pick.parent])
        proposal = _answer(value, ask, state, file)
        if isinstance(proposal, str):
            raise ProposerFailed(f"{self._name} {proposal}", "fix the command, then resume the session")
        return Answer(proposal.programs, proposal.note, Spend(seconds=seconds), proposal.exhausted)

    @property
    def _name(self) -> str:
        return bounded(plain(shlex.join(self.command)), 120)


def request(
    ask: Ask, state: SessionState, subject: ProblemDescription, files: CandidateFiles | None = None
) -> dict[str, Any]:
    """Returns what the program is told."""
    parent = state.tree[ask.pick.parent]
    source = {} if files is None else {"source": asdict(files.of(parent)) | {"headers": str(files.headers)}}
    return source | {
        "version": VERSION,
        "call": ask.call,
        "role": ask.role,
        "writes": ask.role in WRITERS,
        "keep": state.settings.keep,
        "problem": {
            "text": subject.text,
            "program": subject.program,
            "sizes": dict(subject.sizes),
            "arch": subject.arch,
            "device": subject.device,
            "lane": subject.compute_type,
            "module": None if subject.module is None else subject.module.source,
        },
        "system": [prompt.prefix(files is not None), prompt.problem(subject)],
        "turn": prompt.turn(ask, state, subject, files),
        "parent": {"id": parent.id, "text": parent.text},
        "window": [
            {
                "id": n.id,
                "parent": n.parent,
                "outcome": outcome_to_json(n.outcome),
                "text": "" if isinstance(n.outcome, RejectedOutcome) else n.text,
            }
            | ({"source": n.source} if n.source and not isinstance(n.outcome, RejectedOutcome) else {})
            for n in prompt.window(ask, state.tree)
        ],
        "grammar": grammar_text(),
    }


# --- the answer ------------------------------------------------------------------


def _object(output: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(output)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _spend(usage: Any) -> Spend | str:
    """Returns nothing spent where there is no usage; words where it is not understood."""
    if usage is None:
        return NOTHING
    if not isinstance(usage, dict) or not set(usage) <= {"input", "cached", "written", "output", "dollars"}:
        return 'answered a usage that is not {"input", "cached", "written", "output", "dollars"}'
    for name, value in usage.items():
        is_count = name != "dollars"
        kind = int if is_count else (int, float)
        if isinstance(value, bool) or not isinstance(value, kind) or not 0 <= value <= MOST_TOKENS:
            return f"answered {bounded(plain(repr(value)), 40)} as its usage's {name}"
    tokens = {name: value for name, value in usage.items() if name != "dollars"}
    return Spend(**tokens, dollars=float(usage.get("dollars", 0.0)))


def _wrong(ran: _Ran, value: Mapping[str, Any] | None, usage: Spend | str | None, limit: float) -> str | None:
    """Returns what is wrong with how it ended, or with what it answered as a whole."""
    match ran.ended:
        case "time":
            return f"did not answer within {limit:g} s and was killed"
        case "size":
            return f"answered more than {MOST_OUTPUT} bytes and was killed"
        case int() as status if status < 0:
            return f"was ended by signal {-status}"
        case int() as status if status > 0:
            return f"ended with status {status}"
    if not ran.output.strip():
        return "answered nothing"
    if value is None:
        start = bounded(plain(ran.output[:200].decode(errors="replace")), 80)
        return f"answered what is not one JSON object: {start!r}"
    return usage if isinstance(usage, str) else None


def _answer(
    value: Mapping[str, Any], ask: Ask, state: SessionState, file: CandidateFile | None = None
) -> Answer | str:
    """Returns the answer, or what is wrong with it."""
    keys = {"text", "programs", "note", "usage", "exhausted"}
    if not set(value) <= keys or not set(value) & (keys - {"usage"}):
        return f"answered an object with {', '.join(sorted(map(str, value)))[:80] or 'nothing'}"
    text, noted, exhausted = value.get("text", ""), value.get("note", ""), value.get("exhausted", False)
    if not isinstance(text, str) or not isinstance(noted, str) or not isinstance(exhausted, bool):
        return "answered a text or note that is none, or an exhausted that is not true or false"
    listed = value.get("programs", [])
    if not isinstance(listed, list):
        return "answered programs that are no list"
    if ask.role not in WRITERS:
        return Answer(note=answer.note(noted or text))
    programs: list[ProposedProgram] = []
    parent = state.tree[ask.pick.parent].text
    for entry in listed[: answer.MOST_BLOCKS]:
        match entry:
            case {"text": str(program)}:
                programs.append(answer.program(program, answer.reason(entry.get("why", ""))))
            case {"source": str(source)} if file is not None:
                programs.append(answer.source(source, parent, file, entry.get("why", "")))
            case {"patch": str(patch)} if file is not None:
                programs.append(answer.source_patch(patch, parent, file, entry.get("why", "")))
            case _:
                return f'answered {bounded(plain(repr(entry)), 60)} as a program, which is {{"text", "why"}}'
    if text:
        programs += answer.programs(text, parent, file)
    return Answer(tuple(dict.fromkeys(programs)), answer.note(noted), exhausted=exhausted and not programs)


# --- the process -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Ran:
    """`ended` is an exit status, negative for a signal, or which limit it passed."""

    output: bytes
    errors: bytes
    ended: int | str


def _run(command: Sequence[str], input_bytes: bytes, limit_seconds: float, env: Mapping[str, str]) -> _Ran:
    """Raises ProposerFailed where it cannot be started."""
    pipe = subprocess.PIPE
    try:
        process = SupervisedProcess(command, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
    except (OSError, ValueError, IndexError) as error:
        raise ProposerFailed(
            f"{bounded(plain(shlex.join(command)), 120) or 'the empty command'} cannot be started: {error}",
            "name a program that is there and may be run",
        ) from error
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    output = _Reader(process.stdout, MOST_OUTPUT, process)
    errors = _Reader(process.stderr, MOST_ERRORS, None)
    writer = Thread(target=_write, args=(process.stdin, input_bytes), daemon=True)
    ended: int | str
    try:
        writer.start()
        ended = process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        ended = "time"
    finally:
        process.end()
    output_bytes = output.finish()
    return _Ran(output_bytes, errors.finish(), "size" if output.overflowed else ended)


def _write(pipe: IO[bytes], input_bytes: bytes) -> None:
    with suppress(OSError), pipe:
        pipe.write(input_bytes)


class _Reader:
    """Reads a pipe in the background. Beyond `most` bytes it ends the process, or, without one, keeps the
    last."""

    def __init__(self, pipe: IO[bytes], most: int, process: SupervisedProcess | None) -> None:
        self._pipe = pipe
        self._most = most
        self._process = process
        self._kept = b""
        self.overflowed = False
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with self._pipe:
            while block := os.read(self._pipe.fileno(), 1 << 16):
                self._kept += block
                if len(self._kept) <= self._most:
                    continue
                if self._process is None:
                    self._kept = self._kept[-self._most :]
                elif not self.overflowed:
                    self.overflowed = True
                    self._process.stop()
                if self.overflowed:
                    self._kept = b""

    def finish(self) -> bytes:
        """Returns what was read once all processes have ended; one that cannot be killed may hold the pipe
        open, which is waited for no longer than a second."""
        self._thread.join(1.0)
        return self._kept
