"""The store under killed writers, many writers, full and read-only disks, and damage."""

from __future__ import annotations

import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from contextlib import closing
from pathlib import Path

import pytest
from records import made, python

from tests.halting import HALTING
from ucutlass.runtime import errors
from ucutlass.runtime.evidence import to_json
from ucutlass.runtime.store import EvidenceStore
from ucutlass.runtime.store import file as store_file
from ucutlass.runtime.store.file import DamagedWarning

ENDLESS = """
from pathlib import Path
from records import made
from ucutlass.runtime.store import EvidenceStore
store = EvidenceStore(Path(sys.argv[1]))
number = int(sys.argv[2])
while True:
    id = store.add(made(number, result={"samples": [1.5] * 2000}))
    sys.stdout.write(id + "\\n")
    sys.stdout.flush()
    number += 1
"""

ADDS = """
from pathlib import Path
from records import made
from ucutlass.runtime.store import EvidenceStore
store = EvidenceStore(Path(sys.argv[1]))
for number in range(int(sys.argv[2]), int(sys.argv[3])):
    store.add(made(number, protocol={"n": number}))
"""

READS = """
from pathlib import Path
from ucutlass.runtime.store import EvidenceStore
store, seen = EvidenceStore(Path(sys.argv[1])), 0
while seen < int(sys.argv[2]):
    assert len(found := store.find()) >= seen and store.check() == ()
    seen = len(found)
"""


def whole(path: Path) -> str:
    with closing(sqlite3.connect(path)) as c:
        text: str = c.execute("PRAGMA integrity_check").fetchone()[0]
        return text


# --- killed ----------------------------------------------------------------------


def kill_often(store: EvidenceStore, times: int, longest: float) -> set[str]:
    """Writers killed at random moments, from before their first record on; what they were told is kept."""
    rng = random.Random(0)
    acknowledged: set[str] = set()
    for turn in range(times):
        writer = python(ENDLESS, str(store.path), str(turn * 10_000))
        assert writer.stdout is not None
        first = writer.stdout.readline()
        time.sleep(rng.uniform(0, longest))
        os.kill(writer.pid, signal.SIGKILL)
        rest, said = writer.communicate()
        assert writer.returncode == -signal.SIGKILL, said
        # A line without its end was not read by anybody.
        acknowledged |= set((first + rest).split("\n")[:-1])
        if turn % 10 == 9:
            assert whole(store.path) == "ok"
    return acknowledged


@pytest.mark.parametrize("times", [8, pytest.param(150, marks=pytest.mark.slow)])
def test_a_killed_writer_loses_at_most_the_record_in_flight(store: EvidenceStore, times: int) -> None:
    acknowledged = kill_often(store, times, 0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert store.check() == ()
        ids = {r.id for r in store.find()}
    assert whole(store.path) == "ok"
    assert acknowledged <= ids, "a record that was acknowledged is gone"
    assert len(ids - acknowledged) <= times, "more than one record a writer was in flight"
    assert len(acknowledged) >= times
    store.add(made(999_999))


@pytest.mark.slow
def test_a_writer_killed_while_it_makes_the_store(
    store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before each statement that makes the file in turn, and after the last."""
    halts = (
        HALTING
        + """
from pathlib import Path
from records import made
from ucutlass.runtime.store import EvidenceStore
EvidenceStore(Path(sys.argv[1])).add(made())
"""
    )
    for statements in range(100):
        path = store.path.with_name(f"{statements}.sqlite")
        ended = python(halts, str(path), str(statements))
        said = ended.communicate()
        evidence_store = EvidenceStore(path)
        evidence_store.add(made(1))
        assert evidence_store.check() == () and len(evidence_store.find()) in (1, 2)
        if ended.returncode == 0:
            assert statements > 10 and len(evidence_store.find()) == 2
            return
        assert ended.returncode == -signal.SIGKILL, said
    raise AssertionError("the writer never came to its end")


# --- together --------------------------------------------------------------------


def test_many_write_and_read_at_once(store: EvidenceStore) -> None:
    """All of them also race to make the file."""
    writers = [python(ADDS, str(store.path), str(at), str(at + 25)) for at in range(0, 100, 20)]
    readers = [python(READS, str(store.path), "105") for _ in range(2)]
    for process in (*writers, *readers):
        out, said = process.communicate(timeout=120)
        assert process.returncode == 0, out + said
    # Neighbours overlap by five, and those are kept once.
    assert len(store.find()) == 105 and store.check() == () and whole(store.path) == "ok"


def test_a_store_that_another_holds(store: EvidenceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.add(made())
    monkeypatch.setattr(store_file, "BUSY_SECONDS", 0.05)
    with closing(sqlite3.connect(store.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(errors.StoreBusy, match=r"held by another process.*to fix it"):
            store.add(made(1))
        assert len(store.find()) == 1, "who writes must not keep others from reading"
    store.add(made(1))


def test_a_setup_that_another_holds(store: EvidenceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.path.parent.mkdir()
    monkeypatch.setattr(store_file, "BUSY_SECONDS", 0.05)
    with store_file._alone(store.path), pytest.raises(errors.StoreBusy, match="sets up"):
        store.add(made())


# --- disks -----------------------------------------------------------------------


@pytest.fixture
def disk_size() -> str:
    return "512k"


def fill(store: EvidenceStore, most: int = 2000) -> list[str]:
    """Ids of the records that were kept before the first that was not."""
    kept = []
    with pytest.raises(errors.StoreError) as caught:
        for number in range(most):
            kept.append(store.add(made(number, result={"samples": [0.5] * 1000})))
    assert isinstance(caught.value, errors.StoreFull), caught.value
    assert "UCUTLASS_DATA_DIR" in caught.value.fix and "\n" not in str(caught.value)
    return kept


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    store = EvidenceStore(small_disk / "evidence.sqlite")
    texts = fill(store)
    assert len(texts) > 5
    assert {r.id for r in store.find()} == set(texts) and store.check() == ()
    assert whole(store.path) == "ok"


def test_a_disk_that_is_full_from_the_start(small_disk: Path) -> None:
    with pytest.raises(OSError), (small_disk / "ballast").open("wb") as ballast:
        ballast.write(bytes(1 << 20))
    store = EvidenceStore(small_disk / "evidence.sqlite")
    with pytest.raises(errors.StoreFull, match="no space left"):
        store.add(made())
    (small_disk / "ballast").unlink()
    store.add(made())
    assert len(store.find()) == 1 and store.check() == ()


def test_a_disk_that_is_really_read_only(small_disk: Path) -> None:
    store = EvidenceStore(small_disk / "evidence.sqlite")
    id = store.add(made())
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert [r.id for r in store.find()] == [id] and store.check() == () and store.get(id).id == id
    with pytest.raises(errors.StoreReadOnly, match="cannot be written") as caught:
        store.add(made(1))
    assert "UCUTLASS_DATA_DIR" in caught.value.fix


LIMITED = """
import resource
from pathlib import Path
from records import made
from ucutlass.runtime.store import EvidenceStore
store = EvidenceStore(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
for number in range(2000):
    try:
        id = store.add(made(number, result={"samples": [0.5] * 1000}))
    except Exception as error:
        sys.stderr.write(f"{type(error).__name__}: {error}")
        sys.exit(3)
    sys.stdout.write(id + "\\n")
"""


def test_a_write_that_the_system_cuts_short(store: EvidenceStore) -> None:
    """A limit of the file's size ends writes in their midst, as a quota does, on any machine."""
    writer = python(LIMITED, str(store.path))
    out, said = writer.communicate()
    assert writer.returncode == 3 and said.startswith("StoreUnusable: the evidence store"), said
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
    kept = out.split()
    assert len(kept) > 5 and set(kept) <= {r.id for r in store.find()}
    assert store.check() == () and whole(store.path) == "ok"
    store.add(made(5000))


WITHOUT_RIGHTS = """
import ctypes
from pathlib import Path
from records import made
from ucutlass.runtime.store import EvidenceStore
from ucutlass.runtime.errors import MachineError

# capset(2) with _LINUX_CAPABILITY_VERSION_3 and no capability: root obeys the mode bits then.
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
none = (ctypes.c_uint32 * 6)()
assert ctypes.CDLL(None).capset(header, none) == 0
store = EvidenceStore(Path(sys.argv[1]))
try:
    sys.stdout.write(f"{len(store.find())} {len(store.check())}")
    store.add(made(7))
except MachineError as error:
    sys.stderr.write(f"{type(error).__name__}: {error}")
"""


def test_a_folder_without_the_right_to_write(store: EvidenceStore) -> None:
    store.add(made())
    folder = store.path.parent
    folder.chmod(0o555)
    store.path.chmod(0o444)
    try:
        out, said = python(WITHOUT_RIGHTS, str(store.path)).communicate()
    finally:
        folder.chmod(0o755)
    assert out == "1 0", said
    assert said.startswith("StoreReadOnly: "), said
    assert [p.name for p in folder.iterdir() if "damaged" in p.name] == []


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("in the way")
    store = EvidenceStore(tmp_path / "data" / "evidence.sqlite")
    for act in (lambda: store.add(made()), store.find, store.check, lambda: store.get("0000"), store.prepare):
        with pytest.raises(errors.StoreUnusable, match="is not a folder") as caught:
            act()
        assert "UCUTLASS_DATA_DIR" in caught.value.fix


# --- damage ----------------------------------------------------------------------


def aside(store: EvidenceStore) -> list[Path]:
    return sorted(store.path.parent.glob("*.damaged-????????"))


def test_a_file_that_is_no_database(store: EvidenceStore) -> None:
    store.path.parent.mkdir()
    store.path.write_text("not a database, but as long as the header of one would be" * 40)
    with pytest.warns(DamagedWarning, match=r"file is not a database.*put aside as .* and 0 intact"):
        assert store.find() == ()
    assert aside(store)[0].read_text().startswith("not a database")
    store.add(made())
    assert store.check() == () and len(aside(store)) == 1


def test_adding_survives_damage_and_what_is_intact_is_kept(store: EvidenceStore) -> None:
    """Pages in the middle of the file are overwritten; the record to be added is not lost."""
    ids = [store.add(made(n, result={"samples": [n * 0.5] * 1000})) for n in range(60)]
    raw = bytearray(store.path.read_bytes())
    size = int.from_bytes(raw[16:18], "big")
    middle = len(raw) // size // 2 * size
    raw[middle : middle + 4 * size] = b"\xff" * (4 * size)
    store.path.write_bytes(raw)
    with pytest.warns(DamagedWarning, match="put aside"):
        assert store.check() == ()
    kept = [r.id for r in reversed(store.find())]
    assert 10 < len(kept) < 60 and kept == [i for i in ids if i in set(kept)]
    assert store.add(made(99)) not in ids and len(aside(store)) == 1


def test_a_head_that_is_gone_costs_nothing_more_than_the_store(store: EvidenceStore) -> None:
    for n in range(3):
        store.add(made(n))
    raw = bytearray(store.path.read_bytes())
    raw[:64] = b"\0" * 64
    store.path.write_bytes(raw)
    with pytest.warns(DamagedWarning, match="damaged"):
        added = store.add(made(9))
    assert [r.id for r in store.find()] == [added]
    assert aside(store)[0].read_bytes() == raw


@pytest.mark.parametrize("seed", range(12))
def test_no_flipped_bits_pass_for_evidence(store: EvidenceStore, seed: int) -> None:
    """Whatever bits flip, what is found is what was added, and what is missing is told of."""
    sealed = {r.id: r for r in (made(n, result={"samples": [n * 0.5] * 100}) for n in range(20))}
    store.import_(map(to_json, sealed.values()))
    rng = random.Random(seed)
    raw = bytearray(store.path.read_bytes())
    for _ in range(4):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    store.path.write_bytes(raw)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            broken = store.check()
            found = store.find()
        except errors.StoreError as refused:
            assert "\n" not in str(refused)
            return
    assert all(sealed[r.id] == r for r in found)
    assert len(found) == 20 or broken or told


def test_two_who_meet_the_same_damage(store: EvidenceStore) -> None:
    """One puts the file aside, the other finds a good one."""
    store.path.parent.mkdir()
    store.path.write_bytes(b"x" * 5000)
    both = [python(ADDS, str(store.path), str(at), str(at + 5)) for at in (0, 5)]
    for process in both:
        out, said = process.communicate(timeout=60)
        assert process.returncode == 0, out + said
    assert len(store.find()) == 10 and store.check() == () and len(aside(store)) == 1


def test_a_log_that_was_left_behind_is_read(store: EvidenceStore) -> None:
    """A writer that was killed leaves its log; the next reader finds the records in it."""
    leave = ADDS.replace(
        "store.add",
        "keep.append(__import__('sqlite3').connect(sys.argv[1]).execute("
        "'SELECT 1 FROM sqlite_master') if store.path.exists() else 0) or store.add",
    )
    writer = python("import os\nkeep = []\n" + leave + "os.kill(os.getpid(), 9)\n", str(store.path), "0", "3")
    writer.communicate()
    assert Path(f"{store.path}-wal").stat().st_size > 0
    assert len(store.find()) == 3 and store.check() == ()


def test_this_python_can_do_without_error_codes() -> None:
    """The words that SQLite's faults are told apart by are those of the library at hand."""
    assert sys.version_info >= (3, 10)
    with closing(sqlite3.connect(":memory:")) as c:
        c.execute("PRAGMA max_page_count = 2")
        with pytest.raises(sqlite3.OperationalError, match="database or disk is full"):
            c.execute("CREATE TABLE a (b)")
            c.execute("INSERT INTO a VALUES (zeroblob(100000))")
