"""What the store keeps, finds, refuses and notices."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import MACHINE, SUBJECT, about, made

from ucutlass.runtime import errors
from ucutlass.runtime.evidence import from_json, intact, seal, to_json
from ucutlass.runtime.store import BrokenRecordWarning, EvidenceStore, NoSuchRecord, NotIntact, record
from ucutlass.runtime.store import file as store_file


def raw(store: EvidenceStore, statement: str, *values: object) -> list[Any]:
    """A statement past the store's own code; its triggers are dropped first."""
    with closing(sqlite3.connect(store.path)) as c:
        for trigger in ("record_stays", "record_holds"):
            c.execute(f"DROP TRIGGER IF EXISTS {trigger}")
        rows = c.execute(statement, values).fetchall()
        c.commit()
        return rows


# --- records as text -------------------------------------------------------------

texts = st.text(max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(texts, values, max_size=5), st.dictionaries(texts, st.integers(), max_size=3), texts)
def test_a_record_survives_text(result: dict[str, Any], sizes: dict[str, int], name: str) -> None:
    one = made(result=result, subject=replace(SUBJECT, kernel=name, sizes=sizes), parents=("1" * 64,))
    again = from_json(to_json(one))
    assert again == one and intact(again) and to_json(again) == to_json(one)
    assert "\n" not in to_json(one)


@pytest.mark.parametrize("field", ["kind", "harness", "protocol", "result", "created", "parents"])
def test_every_field_is_under_the_seal(field: str) -> None:
    one = made()
    other: dict[str, Any] = {
        "kind": "verify",
        "harness": "f" * 64,
        "protocol": {},
        "result": {"median": 1.4},
        "created": "2026-03-01T12:00:01+00:00",
        "parents": ("0" * 64,),
    }
    assert seal(replace(one, **{field: other[field]})) != one.id
    assert not intact(replace(one, **{field: other[field]}))


@pytest.mark.parametrize("result", [{"t": float("nan")}, {"t": [float("inf")]}, {"t": 10**400}])
def test_what_is_no_number_is_no_evidence(result: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        made(result=result)


@pytest.mark.parametrize("result", [{1: 2}, {"a": {None: 1}}, {"a": object()}, {"a": {1, 2}}])
def test_what_json_would_change_is_refused(result: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        made(result=result)


def _without(field: str) -> Callable[[dict[str, Any]], object]:
    return lambda r: r.pop(field)


@pytest.mark.parametrize(
    "change",
    [
        _without("id"),
        _without("subject"),
        lambda r: r.update(more=1),
        lambda r: r.update(kind="hope"),
        lambda r: r.update(result=[1]),
        lambda r: r.update(created=5),
        lambda r: r.update(parents="x"),
        lambda r: r["subject"].update(sizes={"M": 1.5}),
        lambda r: r["subject"].update(sizes={"M": True}),
        lambda r: r["machine"].pop("uuid"),
        lambda r: r.update(machine=None),
    ],
)
def test_text_that_is_no_record(change: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(to_json(made()))
    change(value)
    with pytest.raises(ValueError):
        from_json(json.dumps(value))


@pytest.mark.parametrize(
    "text", ["", "7", "[]", "{}", "{", '{"a": NaN}', '{"a": 1e999}', "1" * 400, "[" * 100_000]
)
def test_text_that_is_no_json_object(text: str) -> None:
    with pytest.raises(ValueError):
        from_json(text)


def test_a_new_record_is_sealed_and_of_now() -> None:
    before = datetime.now(timezone.utc)
    one = record("audit", SUBJECT, MACHINE, {}, {"verdict": "ok"}, ["1" * 64])
    assert intact(one) and re.fullmatch("[0-9a-f]{64}", one.harness) and one.parents == ("1" * 64,)
    assert before <= datetime.fromisoformat(one.created) <= datetime.now(timezone.utc)


# --- keeping and finding ---------------------------------------------------------


def test_what_was_added_is_there(store: EvidenceStore) -> None:
    one = made(1, parents=("2" * 64,))
    assert store.add(one) == one.id
    assert store.get(one.id) == store.get(one.id[:8]) == one
    assert store.check() == ()


def test_reading_an_empty_store_makes_nothing(store: EvidenceStore) -> None:
    assert (store.find(), store.check(), list(store.export()), store.latest("bench")) == ((), (), [], None)
    with pytest.raises(NoSuchRecord, match="starts with abcd"):
        store.get("abcd")
    assert not store.path.parent.exists()


def test_the_users_own_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "mine"))
    EvidenceStore.open().add(made())
    assert (tmp_path / "mine" / "evidence.sqlite").is_file()


def test_a_record_without_an_id_is_sealed(store: EvidenceStore) -> None:
    one = made()
    assert store.add(replace(one, id="")) == one.id
    assert store.get(one.id) == one


def test_adding_again_changes_nothing(store: EvidenceStore) -> None:
    ids = [store.add(made(n)) for n in (1, 2, 1, 1)]
    assert ids[0] == ids[2] == ids[3]
    assert len(store.find()) == 2 and store.check() == ()


def test_a_record_that_was_changed_is_refused(store: EvidenceStore) -> None:
    with pytest.raises(NotIntact, match="seal"):
        store.add(replace(made(), result={"median": 0.1}))
    assert store.find() == ()


@pytest.mark.parametrize(
    "created", ["", "yesterday", "2026-03-01T12:00:00", "2026-13-01T12:00:00Z", "2026-03-01T12:00:00.5Z"]
)
def test_a_record_of_no_time_is_refused(store: EvidenceStore, created: str) -> None:
    with pytest.raises(ValueError, match=r"created|month"):
        store.add(made(created=created))


def test_times_compare_across_zones_and_forms(store: EvidenceStore) -> None:
    forms = ["2026-03-01T12:00:00Z", "2026-03-01T15:00:00+02:00", "2026-03-01T13:30:00.500+00:00"]
    ids = [store.add(made(created=form)) for form in forms]
    assert [r.id for r in store.find()] == ids[::-1]
    found = store.find(since=datetime(2026, 3, 1, 13, 0, tzinfo=timezone.utc))
    assert [r.id for r in found] == [ids[2], ids[1]]


def test_what_is_found(store: EvidenceStore) -> None:
    plain, verified, other, elsewhere, on_cpu = (
        made(1),
        made(2, kind="verify"),
        about(3, {"kernel": "norm", "algorithm": "0" * 64}),
        about(4, device="NVIDIA A100-SXM4-80GB", uuid="GPU-77"),
        about(5, device="", uuid=""),
    )
    for one in (plain, verified, other, elsewhere, on_cpu):
        store.add(one)
    assert store.find() == (on_cpu, elsewhere, other, verified, plain)
    assert store.find(kind="verify") == (verified,)
    assert store.find(kernel="norm") == store.find(algorithm="0" * 64) == (other,)
    assert store.find(device="a100") == store.find(device="GPU-77") == (elsewhere,)
    assert store.find(device="GPU-7") == ()
    assert store.find(kind="bench", kernel="linear", device="H200") == (plain,)
    assert store.find(limit=2) == (on_cpu, elsewhere) and store.find(limit=0) == ()
    assert store.latest("bench", device="H200") == other
    assert store.latest("bench", kernel="linear", device="H200") == plain
    assert store.latest("profile") is None


HOSTILE = ["' OR 1=1 --", "'; DROP TABLE record; --", "%", "?1", ":kind", "\x00", 'a"b', "\U0001f600"]


@pytest.mark.parametrize("text", HOSTILE)
def test_text_from_outside_is_never_sql(store: EvidenceStore, text: str) -> None:
    kept = store.add(made())
    mine = about(1, {"kernel": text}, device=text)
    store.add(mine)
    assert store.find(kernel=text) == store.find(device=text) == (mine,)
    assert store.find(kernel=text + "x") == store.find(algorithm=text) == ()
    with pytest.raises(NoSuchRecord):
        store.get(text)
    assert store.get(kept) and store.check() == ()


@pytest.mark.parametrize("start", ["", "abc", "xyzw", "ABCD", "a" * 65, "abcd%", "abcd\n"])
def test_starts_that_are_none(store: EvidenceStore, start: str) -> None:
    with pytest.raises(NoSuchRecord, match="id is 4 to 64 digits"):
        store.get(start)


def test_a_start_that_several_share(store: EvidenceStore) -> None:
    seen: dict[str, int] = {}
    first, second = next(
        (seen[start], n)
        for n in range(100_000)
        if (start := made(protocol={"n": n}).id[:4]) in seen or seen.update({start: n})
    )
    one, twin = (made(protocol={"n": n}) for n in (first, second))
    store.import_([to_json(one), to_json(twin)])
    with pytest.raises(NoSuchRecord, match="several") as caught:
        store.get(one.id[:4])
    assert one.id[:16] in str(caught.value) and twin.id[:16] in str(caught.value)
    assert store.get(one.id) == one


# --- noticing --------------------------------------------------------------------


def test_the_store_can_only_be_added_to(store: EvidenceStore) -> None:
    store.add(made())
    with closing(sqlite3.connect(store.path)) as c:
        for statement in ("DELETE FROM record", "UPDATE record SET kernel = 'mine'"):
            with pytest.raises(sqlite3.IntegrityError, match="only be added to"):
                c.execute(statement)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("content = replace(content, '1.5', '0.5')", "seal"),
        ("content = 'nonsense'", "Expecting value"),
        ("content = x'ff00'", ""),
        ("id = 'f' || substr(id, 2)", "has the id"),
        ("kernel = 'faster'", "search columns"),
        ("seconds = seconds + 1", "search columns"),
        ("chain = ''", "before it"),
    ],
)
def test_a_record_that_was_changed_in_the_store(store: EvidenceStore, change: str, words: str) -> None:
    ids = [store.add(made(n)) for n in range(3)]
    raw(store, f"UPDATE record SET {change} WHERE number = 2")
    broken = store.check()
    assert broken[0].number == 2 and words in broken[0].reason
    if "chain" in change:
        return
    assert len(broken) == 1 or "id" in change
    with pytest.warns(BrokenRecordWarning, match="left out"):
        assert [r.id for r in store.find()] == [ids[2], ids[0]]
    with pytest.raises((NotIntact, NoSuchRecord)):
        store.get(ids[1])
    with pytest.warns(BrokenRecordWarning):
        assert len(list(store.export())) == 2


def test_a_record_that_was_removed_leaves_a_gap(store: EvidenceStore) -> None:
    ids = [store.add(made(n)) for n in range(4)]
    raw(store, "DELETE FROM record WHERE number = 2")
    assert [(b.number, b.id) for b in store.check()] == [(3, ids[2])]


# --- carrying elsewhere ----------------------------------------------------------


@given(st.lists(st.integers(0, 3599), max_size=12), st.lists(st.integers(0, 3599), max_size=6))
@settings(max_examples=15, deadline=None)
def test_what_goes_out_comes_in(
    tmp_path_factory: pytest.TempPathFactory, mine: list[int], theirs: list[int]
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    a, b = EvidenceStore(folder / "a"), EvidenceStore(folder / "b")
    for n in mine:
        a.add(made(n))
    for n in theirs:
        b.add(made(n))
    lines = list(a.export())
    done = b.import_(lines)
    assert done.refused == () and done.added == len(set(mine) - set(theirs))
    assert done.added + done.known == len(set(mine))
    assert {r.id for r in b.find()} == {made(n).id for n in {*mine, *theirs}}
    assert b.import_(lines).added == 0 and b.check() == ()
    created = [json.loads(line)["created"] for line in lines]
    assert created == sorted(created)


def test_lines_that_are_no_records_are_told_of_and_the_others_kept(store: EvidenceStore) -> None:
    good = [to_json(made(n)) for n in range(3)]
    changed = good[1].replace('"median":1.5', '"median":0.5')
    lines = [good[0], "", "not json", changed, "[" * 10_000, f'{{"a":{good[2]}}}', good[2] + "\n"]
    done = store.import_(lines)
    assert (done.added, done.known) == (2, 0)
    assert [r.line for r in done.refused] == [3, 4, 5, 6]
    assert "seal" in done.refused[1].reason
    assert {r.id for r in store.find()} == {made(0).id, made(2).id}


# --- other schemas ---------------------------------------------------------------


def test_a_newer_store_is_refused_and_left_alone(store: EvidenceStore) -> None:
    store.add(made())
    raw(store, "PRAGMA user_version = 9")
    before = store.path.read_bytes()
    for act in (store.find, store.check, lambda: store.add(made(1))):
        with pytest.raises(errors.StoreNewer, match=r"schema 9.*knows up to 1.*update ucutlass"):
            act()
    assert store.path.read_bytes() == before


def test_an_older_store_is_migrated(store: EvidenceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [store.add(made(n)) for n in range(2)]
    step = ("ALTER TABLE record ADD COLUMN note TEXT NOT NULL DEFAULT 'old'",)
    monkeypatch.setattr(store_file, "MIGRATIONS", (*store_file.MIGRATIONS, step))
    assert [r.id for r in store.find()] == ids[::-1]
    assert raw(store, "PRAGMA user_version") == [(2,)]
    assert raw(store, "SELECT note FROM record") == [("old",), ("old",)]
    store.add(made(2))
    assert store.check() == ()


def test_a_migration_that_fails_leaves_the_old_store(
    store: EvidenceStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.add(made())
    with monkeypatch.context() as patch:
        steps = (*store_file.MIGRATIONS, ("CREATE TABLE extra (a)", "CREATE TABLE record (b)"))
        patch.setattr(store_file, "MIGRATIONS", steps)
        with pytest.raises(errors.StoreUnusable, match="already exists"):
            store.find()
    assert len(store.find()) == 1
    assert raw(store, "SELECT count(*) FROM sqlite_master WHERE name = 'extra'") == [(0,)]


def test_a_database_of_something_else_is_left_alone(store: EvidenceStore) -> None:
    store.path.parent.mkdir()
    with closing(sqlite3.connect(store.path)) as c:
        c.execute("CREATE TABLE passwords (a)")
        c.commit()
    before = store.path.read_bytes()
    for act in (store.find, lambda: store.add(made())):
        with pytest.raises(errors.StoreForeign, match="something else"):
            act()
    assert store.path.read_bytes() == before
    assert [p.name for p in store.path.parent.iterdir()] == [store.path.name]
