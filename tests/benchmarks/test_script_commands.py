"""Every script starts, says what it claims, and takes the options of all."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from benchmarks import harness

FOLDER = Path(harness.__file__).parent
SCRIPTS = sorted(p.stem for p in FOLDER.glob("*.py") if "__main__" in p.read_text(encoding="utf-8"))
TIMED = (
    "attention",
    "convolution",
    "f32_products",
    "first_choice",
    "grouped_gemm",
    "memory_bound",
    "network_layers",
    "record",
    "speed",
)
"""Scripts that measure rows on a GPU."""


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_what_it_does(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [name, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    text = capsys.readouterr().out
    assert ended.value.code == 0 and "usage:" in text
    if name in TIMED:
        assert {"--out", "--only", "--seed", "--quick"} <= set(text.replace(",", " ").split())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_s_docstring_has_its_command(name: str) -> None:
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert f"python -m benchmarks.{name}" in text


def test_every_script_has_a_page_that_names_it_and_no_page_names_another() -> None:
    """A script is there for a figure or a step that a page has, or for CI."""
    root = FOLDER.parent
    pages = [*(root / "docs").glob("*.md"), *map(root.joinpath, ("README.md", "CONTRIBUTING.md", "Makefile"))]
    named = {
        name
        for page in pages
        for name in re.findall(r"\bbenchmarks[./]([a-z_]\w*)", page.read_text(encoding="utf-8"))
    }
    assert set(SCRIPTS) <= named
    modules = {path.stem for path in FOLDER.iterdir()}
    assert named <= modules, named - modules


@pytest.mark.parametrize("name", TIMED)
def test_a_row_that_is_not_there_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    monkeypatch.setattr("sys.argv", [name, "--out", str(out), "--only", "no such row"])
    monkeypatch.setattr(harness, "machine", lambda: {"gpu": "none"})
    with pytest.raises(SystemExit, match="no row is named no such row"):
        importlib.import_module(f"benchmarks.{name}").main()
    assert not out.exists()
