"""The tuning database: what a row is found by, which one stays, and what disks and processes do to it."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.capabilities import bound_by_modes
from tests.halting import HALTING
from ucutlass import frontend
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.runtime import errors
from ucutlass.runtime.store import file as store_file
from ucutlass.shapes import complete
from ucutlass.tune.database import (
    APPLICATION,
    SCHEMA,
    TunedRow,
    TuningDamaged,
    TuningDatabase,
    TuningKey,
    key_of,
    replaces,
)

ROOT = Path(__file__).parent.parent.parent
KEY = TuningKey("NVIDIA H200", "sm90a", "a" * 64, (4096, 4096))
REQUEST = PartialSchedule(
    warps="cooperative", tile=(128, 256, 64), cluster=(2, 1), split_k="stream", swizzle=2
)
ROW = TunedRow(
    REQUEST, 100.0, 90.0, {"nvcc": "13.0.88", "ucutlass": "1"}, "f" * 64, "2026-03-01T12:00:00+00:00"
)

LINEAR = "kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {{ return dot[K](x, w) {} }}"


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase(tmp_path / "data" / "tuned.sqlite")


# --- keys ------------------------------------------------------------------------


def key(text: str, **sizes: int) -> TuningKey:
    program = frontend.kernel(frontend.read_text(text))
    return key_of(program, complete(program, sizes), "NVIDIA H200", "sm90a")


def test_a_key_is_of_the_meaning_and_the_free_extents() -> None:
    plain = key(LINEAR.format(""), M=1, N=2, K=8)
    renamed = LINEAR.format("").replace("linear", "other").replace("x", "left").replace("N", "P")
    assert key(LINEAR.format("schedule sm90a { warps pingpong }"), M=1, N=2, K=8) == plain
    assert key(renamed, M=1, P=2, K=8) == plain and plain.extents == (1, 8, 2)
    for other in (
        key(LINEAR.format(""), M=2, N=2, K=8),
        key(LINEAR.format("").replace("bf16", "f16"), M=1, N=2, K=8),
        key(LINEAR.format("").replace("w: bf16[N, K]", "w: bf16[K, N]"), M=1, N=2, K=8),
        key(LINEAR.format("").replace("dot[K](x, w)", "relu(dot[K](x, w))"), M=1, N=2, K=8),
        key(LINEAR.format("").replace("M, K", "M=1, K", 1), N=2, K=8),
    ):
        assert other != plain


def test_a_row_is_found_by_all_of_its_key(database: TuningDatabase) -> None:
    assert database.find(KEY) is None and database.devices(KEY) == ()
    assert not database.path.exists(), "reading makes nothing"
    assert database.keep(KEY, ROW) == ROW == database.find(KEY)
    for other in (
        replace(KEY, device="NVIDIA H200 NVL"),
        replace(KEY, arch="sm80"),
        replace(KEY, program="b" * 64),
        replace(KEY, extents=(4096,)),
        replace(KEY, extents=(4096, 4097)),
    ):
        assert database.find(other) is None
        assert database.devices(other) == ((KEY.device,) if other.device != KEY.device else ())


def test_names_are_data(database: TuningDatabase) -> None:
    hostile = replace(KEY, device="'; DROP TABLE tuned; --")
    database.keep(hostile, ROW)
    assert database.find(hostile) == ROW and database.find(KEY) is None


# --- which row stays -------------------------------------------------------------


@pytest.mark.parametrize(
    ("microseconds", "nvcc", "wins"),
    [(99.0, "13.0.88", True), (100.0, "13.0.88", True), (101.0, "13.0.88", False), (101.0, "13.1", True)],
)
def test_a_slower_result_of_the_same_versions_does_not_replace(
    database: TuningDatabase, microseconds: float, nvcc: str, wins: bool
) -> None:
    new = replace(ROW, microseconds=microseconds, record="e" * 64, versions={**ROW.versions, "nvcc": nvcc})
    database.keep(KEY, ROW)
    assert replaces(new, ROW) is wins
    assert database.keep(KEY, new) == (new if wins else ROW) == database.find(KEY)


# --- damage ----------------------------------------------------------------------


def test_a_file_that_is_no_database(database: TuningDatabase) -> None:
    database.path.parent.mkdir()
    database.path.write_bytes(b"no database at all " * 400)
    for act in (database.prepare, lambda: database.find(KEY), lambda: database.keep(KEY, ROW)):
        with pytest.raises(TuningDamaged, match=r"is damaged.*to fix it: move that file away"):
            act()
    assert database.path.read_bytes().startswith(b"no database"), "it is left as it is"


def test_a_page_that_was_overwritten(database: TuningDatabase) -> None:
    for n in range(400):
        database.keep(replace(KEY, extents=(n,)), ROW)
    data = bytearray(database.path.read_bytes())
    data[4096:-4096] = bytes(b"\xa5" * (len(data) - 8192))
    database.path.write_bytes(data)
    with pytest.raises(TuningDamaged):
        database.prepare()


@pytest.mark.parametrize("content", ["", "CREATE TABLE other (a)"])
def test_a_database_of_something_else(database: TuningDatabase, content: str) -> None:
    database.path.parent.mkdir()
    with closing(sqlite3.connect(database.path)) as c:
        c.execute(content)
    database.path.touch()
    for act in (database.prepare, lambda: database.find(KEY)):
        with pytest.raises(errors.StoreForeign):
            act()


def test_a_newer_schema(database: TuningDatabase) -> None:
    database.keep(KEY, ROW)
    with closing(sqlite3.connect(database.path)) as c:
        c.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.raises(errors.StoreNewer):
        database.find(KEY)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("schedule", "no JSON"),
        ("schedule", "[]"),
        ("schedule", '{"wraps": "pingpong"}'),
        ("schedule", '{"tile": [128, 256]}'),
        ("schedule", '{"tile": [128, 256, "64"]}'),
        ("schedule", '{"stages": true}'),
        ("schedule", '{"swizzle": 99}'),
        ("schedule", '{"warps": "auto"}'),
        ("microseconds", "soon"),
        ("microseconds", -1.0),
        ("microseconds", float("inf")),
        ("versions", "7"),
        ("versions", "{"),
        ("schedule", b"\xff\xfe"),
    ],
)
def test_a_row_that_was_tampered_with_is_no_row_and_is_replaced(
    database: TuningDatabase, column: str, value: object
) -> None:
    database.keep(KEY, ROW)
    with closing(sqlite3.connect(database.path, isolation_level=None)) as c:
        c.execute(f"UPDATE tuned SET {column} = ?", (value,))
    with pytest.raises(TuningDamaged, match="cannot be read"):
        database.find(KEY)
    slower = replace(ROW, microseconds=500.0)
    assert database.keep(KEY, slower) == slower == database.find(KEY)


# --- processes -------------------------------------------------------------------

WRITES = """
from dataclasses import replace
from pathlib import Path
from ucutlass.tune.database import TuningDatabase
from test_database import KEY, ROW
database = TuningDatabase(Path(sys.argv[1]))
for n in range(int(sys.argv[2]), int(sys.argv[3])):
    database.keep(replace(KEY, extents=(n % 40,)), replace(ROW, microseconds=1000.0 - n))
"""

HALTS = (
    HALTING
    + """
from pathlib import Path
from ucutlass.tune.database import TuningDatabase
from test_database import KEY, ROW
TuningDatabase(Path(sys.argv[1])).keep(KEY, ROW)
"""
)


def python(code: str, *arguments: str) -> subprocess.Popen[str]:
    paths = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(Path(__file__).parent)!r}]\n"
    return subprocess.Popen(
        [sys.executable, "-c", paths + code, *arguments],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def whole(path: Path) -> bool:
    with closing(sqlite3.connect(path)) as c:
        return bool(c.execute("PRAGMA integrity_check").fetchone() == ("ok",))


def test_processes_that_make_and_fill_it_at_once(database: TuningDatabase) -> None:
    writers = [python(WRITES, str(database.path), str(at), str(at + 60)) for at in (0, 60, 120)]
    for writer in writers:
        out, said = writer.communicate(timeout=120)
        assert writer.returncode == 0, out + said
    assert whole(database.path) and not list(database.path.parent.glob("*.new*"))
    for n in range(40):
        # The fastest of all that were written for these extents, whoever came last.
        row = database.find(replace(KEY, extents=(n,)))
        assert row is not None and row.microseconds == 1000.0 - max(m for m in range(180) if m % 40 == n)


def test_who_is_second_to_make_it_takes_what_the_first_made(
    database: TuningDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = store_file.connect

    def late(path: Path, mode: str) -> sqlite3.Connection:
        """While one makes the file, another makes it and writes."""
        monkeypatch.setattr(store_file, "connect", connect)
        database.keep(KEY, ROW)
        return connect(path, mode)

    monkeypatch.setattr(store_file, "connect", late)
    other = replace(KEY, extents=(1,))
    database.keep(other, ROW)
    assert database.find(KEY) == ROW == database.find(other)


@pytest.mark.slow
def test_a_writer_killed_before_each_of_its_statements(database: TuningDatabase) -> None:
    for statements in range(40):
        mine = TuningDatabase(database.path.with_name(f"{statements}.sqlite"))
        ended = python(HALTS, str(mine.path), str(statements))
        said = ended.communicate()
        assert mine.find(KEY) in (None, ROW)
        mine.prepare()
        slower = replace(ROW, microseconds=200.0)
        assert mine.keep(KEY, slower) in (slower, ROW) and whole(mine.path)
        if ended.returncode == 0:
            assert statements > 5 and mine.find(KEY) == ROW
            return
        assert ended.returncode == -signal.SIGKILL, said
    raise AssertionError("the writer never came to its end")


def test_one_that_another_holds(database: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    database.keep(KEY, ROW)
    monkeypatch.setattr(store_file, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(database.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.StoreBusy, match=r"tuning database .* held by another process"):
            database.keep(KEY, ROW)
        assert database.find(KEY) == ROW, "who writes must not keep others from reading"


# --- disks -----------------------------------------------------------------------


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    database = TuningDatabase(small_disk / "tuned.sqlite")
    kept = 0
    with pytest.raises(errors.StoreFull, match=r"no space left for the tuning database.*UCUTLASS_DATA_DIR"):
        for kept in range(5000):
            database.keep(replace(KEY, extents=(kept,)), ROW)
    assert kept > 5 and whole(database.path)
    assert all(database.find(replace(KEY, extents=(n,))) == ROW for n in range(kept))


def test_a_disk_that_is_full_from_the_start(small_disk: Path) -> None:
    with pytest.raises(OSError), (small_disk / "ballast").open("wb") as ballast:
        ballast.write(bytes(1 << 20))
    database = TuningDatabase(small_disk / "tuned.sqlite")
    with pytest.raises(errors.StoreFull):
        database.prepare()
    assert not database.path.exists(), "no part of it is left"
    (small_disk / "ballast").unlink()
    database.keep(KEY, ROW)


def test_a_file_that_may_grow_no_further(database: TuningDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a full disk says, where none can be mounted."""
    database.keep(KEY, ROW)
    connect = store_file.connect

    def limited(path: Path, mode: str) -> sqlite3.Connection:
        c = connect(path, mode)
        c.execute("PRAGMA max_page_count = 1")  # SQLite takes what there is already
        return c

    monkeypatch.setattr(store_file, "connect", limited)
    with pytest.raises(errors.StoreFull):
        for n in range(400):
            database.keep(replace(KEY, extents=(n,)), ROW)
    assert database.find(KEY) == ROW and whole(database.path)


def test_a_folder_that_cannot_be_written(database: TuningDatabase) -> None:
    database.keep(KEY, ROW)
    database.path.parent.chmod(0o500)
    try:
        assert bound_by_modes(lambda: database.find(KEY)) == ROW
        with pytest.raises(errors.StoreError):
            bound_by_modes(lambda: database.keep(KEY, replace(ROW, microseconds=1.0)))
    finally:
        database.path.parent.chmod(0o700)


def test_the_file_says_whose_it_is(database: TuningDatabase) -> None:
    database.prepare()
    with closing(sqlite3.connect(database.path)) as c:
        assert c.execute("PRAGMA application_id").fetchone() == (APPLICATION,)
        assert c.execute("PRAGMA journal_mode").fetchone() == ("wal",)
