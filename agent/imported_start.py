"""This module gets a module's first program from the importer.

The file's code runs in a process of its own, without the memory of its tensors where it needs no values.
"""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.agent.module import LIMIT_SECONDS, ModuleFile, memory_limit, process_reply
from ucutlass.agent.module_processes import ModuleCall, in_own_process
from ucutlass.runtime.module.signature import Unusable
from ucutlass.tasks.import_module import refusal_words


@dataclass(frozen=True, slots=True)
class ImportedStart:
    """A module as the importer writes it: a file's text, and which of its programs is the module's. Where there
    is none, `text` is "" and `why` says which operator is not served, and at which line."""

    text: str
    program: str
    why: str = ""


def imported_start(
    module: ModuleFile, name: str, limit_seconds: float = LIMIT_SECONDS, call: ModuleCall = in_own_process
) -> ImportedStart:
    """Returns the first program of a module under a name."""
    outcome = call(
        "ucutlass.tasks.import_module:program_of_source",
        module.arguments() | {"name": name},
        limit_seconds=limit_seconds,
        memory_bytes=memory_limit(),
    )
    try:
        reply = process_reply(outcome, module.file)
    except Unusable as error:
        return ImportedStart("", "", error.why)
    match reply:
        case {"text": str(text), "name": str(program)}:
            return ImportedStart(text, program)
        case {"refused": dict(refused)}:
            return ImportedStart("", "", refusal_words(refused))
    return ImportedStart("", "", "its process sent no program")
