"""Every script starts, says what it claims, and takes the options of all."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch

import ucutlass
from benchmarks import harness, norm_after_product
from benchmarks.rows import TWINS
from ucutlass import frontend

FOLDER = Path(harness.__file__).parent
SCRIPTS = sorted(p.stem for p in FOLDER.glob("*.py") if "__main__" in p.read_text(encoding="utf-8"))
TIMED = (
    "attention",
    "convolution",
    "f32_products",
    "grouped_gemm",
    "memory_bound",
    "network_layers",
    "products",
    "record",
)
"""Scripts that measure rows on a GPU."""

PLANNED = {
    "attention": "--only 'bf16 64',few --quick",
    "attention_f32": "--drawn 1 --only drawn",
    "convolution": "--kinds plain --drawn 20",
    "f32_products": "--drawn 4",
    "grouped_gemm": "--quick",
    "memory_bound": "--quick",
    "network_layers": "--drawn 9",
    "norm_after_product": "--drawn 3",
    "pointwise": "--drawn 4",
    "products": "--drawn 1",
    "rows": "--drawn 4",
}
"""Scripts whose rows are planned and built before they are timed, with words that choose some."""


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


@pytest.mark.parametrize("name", PLANNED)
def test_rows_are_drawn_planned_and_emitted_without_a_gpu(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*shlex.split(PLANNED[name]), "--dry", "--jobs", "1", "--seed", "3"]
    monkeypatch.setattr("sys.argv", [name, "--out", str(tmp_path / "out.json"), *words])
    script = importlib.import_module(f"benchmarks.{name}")
    with pytest.raises(SystemExit) as ended:
        script.main()
    text = capsys.readouterr().out
    assert ended.value.code == 0, text
    assert int(text.split()[0]) > 0 and callable(script.row)


def test_a_norm_after_a_product_is_one_program_or_a_pipeline_of_the_same_meaning() -> None:
    for problem in norm_after_product.drawn(3, 3):
        element = norm_after_product.ELEMENTS[problem.element]
        gains = [
            torch.randn(16, dtype=element) for _ in range({"softmax": 0, "rms_norm": 1}.get(problem.norm, 2))
        ]
        x, w = torch.randn(4, 8, dtype=element), torch.randn(16, 8, dtype=element)
        whole = ucutlass.loads(problem.pipeline, "whole").reference(x, w, *gains)
        assert isinstance(whole, torch.Tensor)
        theirs = TWINS[problem.norm](torch.nn.functional.linear(x, w), *gains)
        # Both round the product and the norm to the element type.
        assert float((whole.double() - theirs.double()).norm() / theirs.double().norm()) < 2**-7
        frontend.read_text(problem.whole)
