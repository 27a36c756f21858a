"""This module finds the session of a journal that a command is asked about."""

from __future__ import annotations

from ucutlass.agent.journal import RUN_PREFIX, Journal, NoSuchSession
from ucutlass.cli.errors import Status, fail


def session_of(journal: Journal, id: str, as_json: bool) -> str:
    """Returns the full id of a session, by its first digits; ends the command where none is, or a run's."""
    try:
        full = journal.full_id(id)
    except NoSuchSession as problem:
        fail(Status.CALL, str(problem), as_json)
    if full.startswith(RUN_PREFIX):
        words = f"{full} is a run over many problems: give one of its sessions, which `ucc sessions` lists"
        fail(Status.CALL, words, as_json)
    return full
