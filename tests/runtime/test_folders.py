"""What lies in a folder that others may write is neither run nor believed."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ucutlass.agent.journal import Journal
from ucutlass.runtime import calibrate, errors, folders, version_cache
from ucutlass.runtime.bench import gpu_lock
from ucutlass.runtime.cache import MANIFEST, Cache, CacheEntry, Corrupt
from ucutlass.runtime.errors import FolderUntrusted, FolderUnusable
from ucutlass.runtime.library import NativeUnbuildable, compile_native
from ucutlass.runtime.store import EvidenceStore
from ucutlass.tune.database import TuningDatabase

KEY = "a" * 64
OTHER = 4321
"""A user id that is neither this one nor root's."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def check(folder: Path) -> None:
    folders.check(folder, "UCUTLASS_CACHE_DIR", FolderUnusable, FolderUntrusted)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder of this user's alone, below one that others may enter."""
    (tmp_path / "above").mkdir(mode=0o755)
    return folders.make(tmp_path / "above" / "cache")


@given(mode=st.integers(0, 0o777), above=st.integers(0, 0o7777))
def test_whoever_else_may_write_decides(
    tmp_path_factory: pytest.TempPathFactory, mode: int, above: int
) -> None:
    parent = tmp_path_factory.mktemp("above")
    folder = folders.make(parent / "cache")
    folder.chmod(mode)
    parent.chmod(above | 0o700)
    open_to_others = bool(mode & 0o022) or bool(above & 0o002 and not above & 0o1000)
    try:
        check(folder)
        assert not open_to_others
    except FolderUntrusted as refused:
        assert open_to_others
        fix = f"chmod 700 {folder}" if mode & 0o022 and not above & 0o002 else "UCUTLASS_CACHE_DIR"
        assert fix in refused.fix
    finally:
        parent.chmod(0o700)
        folder.chmod(0o700)


def test_what_is_made_is_this_users_alone_whatever_the_umask_is(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folders.make(tmp_path / "a" / "b" / "c")
        cache = Cache(tmp_path / "cache" / "ucutlass", 1 << 30)
        published(cache)
        EvidenceStore(tmp_path / "data" / "evidence.sqlite").prepare()
    finally:
        os.umask(before)
    made = [p for p in tmp_path.rglob("*") if p.is_dir()]
    assert {stat.S_IMODE(p.stat().st_mode) for p in made} == {0o700}
    assert isinstance(cache.load(KEY), CacheEntry)


@as_root
def test_a_folder_of_another_user(place: Path) -> None:
    os.chown(place, OTHER, OTHER)
    with pytest.raises(FolderUntrusted, match=rf"belongs to user {OTHER}, and this is user 0"):
        check(place)


def test_links_of_ones_own_are_followed(place: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("above")
    (tmp_path / "second").symlink_to(tmp_path / "link" / "cache")
    check(tmp_path / "second")
    place.chmod(0o777)
    with pytest.raises(FolderUntrusted):
        check(tmp_path / "second")


@as_root
def test_a_link_that_another_user_laid(place: Path, tmp_path: Path) -> None:
    for link in (tmp_path / "above" / "ours", tmp_path / "above" / "theirs"):
        link.symlink_to(place)
    os.chown(tmp_path / "above" / "theirs", OTHER, OTHER, follow_symlinks=False)
    check(tmp_path / "above" / "ours")
    with pytest.raises(FolderUntrusted, match=rf"is a link of user {OTHER}"):
        check(tmp_path / "above" / "theirs")
    with pytest.raises(FolderUntrusted, match=rf"is a link of user {OTHER}"):
        check(tmp_path / "above" / "theirs" / "below")


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
        with pytest.raises(FolderUnusable, match=r"file is not a folder.*move it away"):
            check(folder)


# --- every folder that is trusted ---------------------------------------------------------


def published(cache: Cache) -> CacheEntry:
    with cache.locked(KEY, timeout_seconds=5), cache.staging(KEY) as staged:
        (staged / "kernel.so").write_bytes(b"binary")
        return cache.publish(KEY, staged, {})


def lane_of(folder: Path) -> None:
    with gpu_lock.hold_gpu("GPU-0", timeout_seconds=1, on_wait=lambda _: None, folder=folder):
        pass


def ceilings_of(folder: Path) -> object:
    return calibrate.load("NVIDIA H200", "GPU-0", folder)


ACTS: dict[str, tuple[Callable[[Path], object], type[errors.MachineError]]] = {
    "load": (lambda f: Cache(f, 1).load(KEY), errors.CacheUntrusted),
    "publish": (lambda f: published(Cache(f, 1)), errors.CacheUntrusted),
    "clear": (lambda f: Cache(f, 1).clear(), errors.CacheUntrusted),
    "entries": (lambda f: Cache(f, 1).entries(), errors.CacheUntrusted),
    "stats": (lambda f: Cache(f, 1).stats(), errors.CacheUntrusted),
    "verify": (lambda f: Cache(f, 1).verify(), errors.CacheUntrusted),
    "lane": (lane_of, errors.CacheUntrusted),
    "evidence": (lambda f: EvidenceStore(f / "evidence.sqlite").find(), errors.StoreUntrusted),
    "adding evidence": (lambda f: EvidenceStore(f / "evidence.sqlite").prepare(), errors.StoreUntrusted),
    "checking evidence": (lambda f: EvidenceStore(f / "evidence.sqlite").check(), errors.StoreUntrusted),
    "sessions": (lambda f: Journal(f / "sessions.sqlite").sessions(), errors.StoreUntrusted),
    "a session": (lambda f: Journal(f / "sessions.sqlite").append("s", 0, "k", {}), errors.StoreUntrusted),
    "tuning": (lambda f: TuningDatabase(f / "tuned.sqlite").prepare(), errors.StoreUntrusted),
    "ceilings": (ceilings_of, errors.FolderUntrusted),
    "launcher": (lambda f: compile_native(f / "native"), NativeUnbuildable),
}


@pytest.mark.parametrize("what", ACTS)
def test_everything_that_is_trusted_refuses_a_folder_that_others_may_write(place: Path, what: str) -> None:
    act, fault = ACTS[what]
    place.chmod(0o777)
    with pytest.raises(fault, match="other users may write") as caught:
        act(place)
    assert f"chmod 700 {place}" in caught.value.fix
    assert list(place.iterdir()) == []
    place.chmod(0o755)
    act(place)


def test_versions_of_such_a_folder_are_not_believed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(place))
    compiler = place.parent / "compiler"
    compiler.write_bytes(b"\x7fELF")
    assert version_cache.version(compiler, lambda: "13.0") == "13.0"
    assert version_cache.version(compiler, lambda: "13.1") == "13.0"
    place.chmod(0o777)
    assert version_cache.version(compiler, lambda: "13.1") == "13.1"


@pytest.mark.parametrize(
    "inner", ["entries", f"entries/{KEY}", f"entries/{KEY}/kernel.so", f"entries/{KEY}/{MANIFEST}"]
)
def test_an_entry_that_others_may_write_is_not_served(place: Path, inner: str) -> None:
    """Where others may enter the cache, which older versions made so, each part of the way counts."""
    cache = Cache(place, 1 << 30)
    published(cache)
    for path in (place, place / "entries", place / "entries" / KEY):
        path.chmod(0o755)
    assert isinstance(cache.load(KEY), CacheEntry)
    (place / inner).chmod(0o777)
    entry = cache.load(KEY)
    assert isinstance(entry, Corrupt) and "other users may write" in entry.reason
    place.chmod(0o700)
    assert isinstance(cache.load(KEY), CacheEntry), "others do not get in"


def test_a_store_that_others_may_write_is_not_believed(place: Path) -> None:
    store = EvidenceStore(place / "evidence.sqlite")
    store.prepare()
    place.chmod(0o755)
    store.find()
    store.path.chmod(0o666)
    with pytest.raises(errors.StoreUntrusted, match=r"other users may write .*evidence\.sqlite") as caught:
        store.find()
    assert f"chmod 600 {store.path}" in caught.value.fix
