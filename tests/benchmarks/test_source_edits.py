"""What the campaign of edited sources makes of a command's words."""

from __future__ import annotations

import json

import pytest

from benchmarks import source_edits
from benchmarks.source_edits import Row
from tests.mutants.sources import HONEST, WRONG, SourceEdit
from ucutlass.runtime import process

OF_GPU, OF_BUILD = (next(e for e in WRONG if e.stage == stage) for stage in ("gpu", "build"))
NO_GPU = {"error": "k.cu passed what can be checked without a GPU, and was not adopted: no GPU", "status": 3}


@pytest.mark.parametrize(
    ("edit", "answer", "ended", "fine"),
    [
        (OF_GPU, {"refusal": "wrong", "error": "3 of 4"}, "wrong", True),
        (OF_GPU, {"refusal": "slower", "error": "it is right"}, "slower", False),
        (OF_GPU, {"state": "confirmed", "microseconds": 1.0, "rival": 2.0}, "adopted", False),
        (OF_GPU, NO_GPU, "open", True),
        (OF_BUILD, NO_GPU, "passed", False),
        (HONEST[0], {"state": "confirmed", "microseconds": 1.0, "rival": 2.0}, "adopted", True),
        (HONEST[0], {"refusal": "wrong", "error": "3 of 4"}, "wrong", False),
        (HONEST[0], None, "failed", False),
    ],
)
def test_how_an_edit_ends(
    edit: SourceEdit, answer: object, ended: str, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(command: list[str], *, log: object, **_: object) -> int:
        assert "--slower" in command and "--arch" in command
        log.write_text("ucc: verifying\n" + ("Killed" if answer is None else json.dumps(answer, indent=1)))  # type: ignore[attr-defined]
        return 1

    monkeypatch.setattr(process, "run", run)
    row: Row = source_edits.adopted(edit)
    assert (row.ended, row.fine) == (ended, fine)
