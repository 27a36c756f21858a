"""What is remembered of graphs on disk, under damage, and in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.dynamo.test_backend import Block, compiled
from ucutlass.dynamo import backend, records
from ucutlass.dynamo.records import Records
from ucutlass.runtime.cache import Cache


def files(cache: Path) -> list[Path]:
    return sorted((cache / "graphs").iterdir())


def run_block(width: int = 32) -> tuple[torch.Tensor, dict[str, str]]:
    torch.manual_seed(0)
    model, x = Block(width), torch.randn(5, width)
    fast, report = compiled(model)
    with torch.no_grad():
        result = fast(x)
        torch.testing.assert_close(result, model(x))
    return result, dict(report.graphs[0].texts)


def never(*_: object) -> None:
    raise AssertionError("imported anew")


def test_a_graph_is_imported_once(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, texts = run_block()
    assert len(files(own_cache)) == 1
    monkeypatch.setattr(backend, "division_of", never)
    assert run_block()[1] == texts


def test_another_graph_is_another_record(own_cache: Path) -> None:
    run_block()
    run_block(16)
    assert len(files(own_cache)) == 2


def test_views_and_the_fallback_are_as_before(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(x).view(3, 4, 5)
        values, _ = torch.sort(y * 2, dim=-1)
        return torch.softmax(values, -1).transpose(0, 1), y

    x = torch.randn(12, 5)
    for _ in range(2):
        fast, report = compiled(model)
        for result, expected in zip(fast(x), model(x), strict=True):
            torch.testing.assert_close(result, expected)
        assert len(report.graphs[0].texts) == 2
        monkeypatch.setattr(backend, "division_of", never)


def test_a_process_after_this_one_imports_nothing(own_cache: Path) -> None:
    run_block()
    source = (
        "from tests.dynamo import test_records as t;"
        "t.backend.division_of = t.never;"
        "print(len(t.run_block()[1]))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", source], cwd=root, env={**os.environ}, capture_output=True, text=True
    )
    assert done.stdout.strip() == "1", done.stderr[-2000:]


@pytest.mark.parametrize("damage", ["empty", "cut", "changed", "other form", "not text", "no file"])
def test_a_damaged_record_is_none(own_cache: Path, damage: str) -> None:
    _, texts = run_block()
    (file,) = files(own_cache)
    content = file.read_bytes()
    match damage:
        case "empty":
            file.write_bytes(b"")
        case "cut":
            file.write_bytes(content[: len(content) // 2])
        case "changed":
            file.write_bytes(content.replace(b"norm", b"mron", 1))
        case "other form":
            file.unlink()
            Records(own_cache / "graphs").write(file.name, {"parts": [["a", "b"]], "refused": []})
        case "not text":
            file.write_bytes(b"\xff\xfe" + content)
        case _:
            file.unlink()
            file.mkdir()
    assert run_block()[1] == texts


def test_a_record_of_other_nodes_is_none() -> None:
    record = {"parts": [["program_0", ["absent"], "", "p", [], []]], "refused": {}}
    assert records.division_from(record, ["relu"]) is None
    assert records.division_from(record, ["relu", "absent"]) is not None


def test_a_folder_that_others_may_write_is_not_believed(own_cache: Path) -> None:
    run_block()
    own_cache.chmod(0o755)
    (own_cache / "graphs").chmod(0o777)
    store = Records(own_cache / "graphs")
    (file,) = files(own_cache)
    assert store.read(file.name) is None
    store.write("another", {})
    assert len(files(own_cache)) == 1
    run_block()


def test_a_folder_that_cannot_be_written_leaves_nothing_remembered(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Records(tmp_path / "file" / "graphs")
    store.write("key", {"a": 1})
    assert store.read("key") is None


def test_the_oldest_records_go_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "MOST_RECORDS", 3)
    store = Records(tmp_path / "graphs")
    for number in range(5):
        store.write(f"key{number}", number)
        os.utime(tmp_path / "graphs" / f"key{number}", (number, number))
    assert [store.read(f"key{n}") for n in range(5)] == [None, None, 2, 3, 4]


def test_clearing_the_cache_forgets_graphs(own_cache: Path) -> None:
    run_block()
    Cache(own_cache, 1 << 30).clear()
    assert not (own_cache / "graphs").exists()
