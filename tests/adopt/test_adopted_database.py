"""Adopted sources in the tuning database: keys, states, damage, and processes that are killed."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from sources import BY_HAND, source

from tests.halting import HALTING
from ucutlass.adopt import database as adopted
from ucutlass.adopt.database import AdoptedRow, UnknownSource
from ucutlass.adopt.source import digest_of
from ucutlass.tune.database import TuningDamaged, TuningDatabase, TuningKey

ROOT = Path(__file__).parent.parent.parent
KEY = TuningKey("NVIDIA H200", "sm90a", "a" * 64, (4096, 4096))
ROW = AdoptedRow(
    digest_of(source()),
    "scaled",
    "confirmed",
    BY_HAND,
    "",
    (1, 0),
    12.5,
    13.0,
    {"nvcc": "13.0.88"},
    ("f" * 64,),
    "2026-03-01T12:00:00+00:00",
)
FASTER_TEXT = BY_HAND.replace("2.0f", "2.f")
FASTER = replace(ROW, source=digest_of(source(FASTER_TEXT)), text=FASTER_TEXT, microseconds=11.0)


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase(tmp_path / "data" / "tuned.sqlite")


def test_only_what_is_confirmed_is_found_by_all_of_its_key(database: TuningDatabase) -> None:
    assert adopted.confirmed(database, KEY) is None and adopted.rows(database) == ()
    assert not database.path.exists(), "reading makes nothing"
    adopted.keep(database, KEY, replace(ROW, state="unconfirmed"))
    assert adopted.confirmed(database, KEY) is None
    assert [row.state for _, row in adopted.rows(database)] == ["unconfirmed"]
    adopted.keep(database, KEY, ROW)
    assert adopted.confirmed(database, KEY) == ROW and adopted.rows(database) == ((KEY, ROW),)
    for other in (
        replace(KEY, device="NVIDIA H100"),
        replace(KEY, arch="sm80"),
        replace(KEY, program="b" * 64),
        replace(KEY, extents=(4096, 4097)),
    ):
        assert adopted.confirmed(database, other) is None


def test_the_fastest_of_several_is_taken_and_one_is_dropped(database: TuningDatabase) -> None:
    for row in (ROW, FASTER, replace(FASTER, state="unconfirmed")):
        adopted.keep(database, KEY, row)
    assert adopted.confirmed(database, KEY) == ROW
    adopted.keep(database, KEY, FASTER)
    adopted.keep(database, replace(KEY, extents=(1,)), FASTER)
    assert adopted.confirmed(database, KEY) == FASTER
    assert adopted.drop(database, FASTER.source[:8]) == 2
    assert adopted.confirmed(database, KEY) == ROW
    adopted.remove(database, KEY, ROW.source)
    assert adopted.rows(database) == ()


def test_a_digest_that_is_nobodys(database: TuningDatabase) -> None:
    with pytest.raises(UnknownSource, match="no adopted source begins with abcd"):
        adopted.drop(database, "abcd")
    assert not database.path.exists()
    for row in (ROW, FASTER):
        adopted.keep(database, KEY, row)
    with pytest.raises(UnknownSource, match="2 adopted sources begin"):
        adopted.drop(database, "")
    with pytest.raises(UnknownSource, match="no adopted source"):
        adopted.drop(database, "' OR 1=1 --")
    assert len(adopted.rows(database)) == 2


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("text", BY_HAND.replace("2.0f", "3.0f")),
        ("text", b"\xff"),
        ("source", "0" * 64),
        ("launch", "[1.5]"),
        ("launch", "{"),
        ("microseconds", float("inf")),
        ("microseconds", "soon"),
        ("versions", "[]"),
        ("records", "{}"),
    ],
)
def test_a_row_that_was_tampered_with_is_served_to_nobody(
    database: TuningDatabase, column: str, value: object
) -> None:
    adopted.keep(database, KEY, ROW)
    with closing(sqlite3.connect(database.path, isolation_level=None)) as c:
        c.execute(f"UPDATE adopted SET {column} = ?", (value,))
    with pytest.raises(TuningDamaged, match=r"cannot be read.*ucc adopt --drop"):
        adopted.confirmed(database, KEY)


def test_a_database_from_before_has_no_such_table_and_keeps_its_rows(database: TuningDatabase) -> None:
    database.prepare()
    assert adopted.confirmed(database, KEY) is None and adopted.rows(database) == ()
    adopted.keep(database, KEY, ROW)
    database.prepare()
    assert adopted.confirmed(database, KEY) == ROW and database.find(KEY) is None


# --- processes -------------------------------------------------------------------

WRITES = """
from dataclasses import replace
from ucutlass.adopt import database as adopted
from ucutlass.tune.database import TuningDatabase
from test_adopted_database import KEY, ROW
database = TuningDatabase(Path(sys.argv[1]))
for n in range(30):
    key = replace(KEY, extents=(n, int(sys.argv[2])))
    adopted.keep(database, key, replace(ROW, state="unconfirmed"))
    adopted.keep(database, key, ROW)
"""

HALTS = (
    HALTING
    + """
from ucutlass.adopt import database as adopted
from ucutlass.tune.database import TuningDatabase
from test_adopted_database import KEY, ROW
adopted.keep(TuningDatabase(Path(sys.argv[1])), KEY, ROW)
"""
)


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    folders = [str(ROOT), str(Path(__file__).parent)]
    paths = f"import sys; from pathlib import Path; sys.path[:0] = {folders!r}\n"
    return subprocess.Popen(
        [sys.executable, "-c", paths + code, *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def whole(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as c:
        return bool(c.execute("PRAGMA integrity_check").fetchone() == ("ok",))


def test_two_processes_that_make_and_fill_it_at_once(database: TuningDatabase) -> None:
    writers = [python(WRITES, str(database.path), str(number)) for number in range(2)]
    for writer in writers:
        out, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, out + errors
    rows = adopted.rows(database)
    assert whole(database.path) and len(rows) == 60 and all(row == ROW for _, row in rows)


@pytest.mark.slow
def test_a_writer_killed_before_each_of_its_statements(database: TuningDatabase) -> None:
    before = replace(ROW, state="unconfirmed")
    adopted.keep(database, KEY, before)
    for statements in range(40):
        ended = python(HALTS, str(database.path), str(statements))
        printed = ended.communicate()
        ((_, row),) = adopted.rows(database)
        assert row in (before, ROW) and whole(database.path)
        if ended.returncode == 0:
            assert statements > 3 and row == ROW
            return
        assert ended.returncode == -signal.SIGKILL and row == before, printed
    raise AssertionError("the writer never came to its end")
