"""The measures of the source tree, on a small tree."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.house import measures, report


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "ucutlass/kernels/gemm/plan.py": "class GemmPlan: ...\nclass Shape: ...\n",
        "ucutlass/tune.py": (
            "from ucutlass import frontend\n"
            "from ucutlass.kernels.gemm import plan\n"
            "class Shape: ...\n"
            "def f(text):\n"
            "    made = frontend.read_text(text)\n"
            "    return made\n"
        ),
        "runtime/free.py": "from pathlib import Path\nx = Path('a').read_text()  # fmt: skip\n",
        "docs/page.md": "three words here\n",
        "README.md": "two words\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "ucutlass" / "runtime").symlink_to("../runtime")
    return tmp_path


def test_measures(tree: Path) -> None:
    values = measures(tree)
    assert values["lines"]["ucutlass"] == {".py": 8} and values["lines"]["runtime"] == {".py": 2}
    assert values["duplicate_classes"] == {"Shape": ["ucutlass/kernels/gemm/plan.py", "ucutlass/tune.py"]}
    assert values["naming_families"] == {"ucutlass/tune.py": ["ucutlass.kernels.gemm.plan"]}
    assert values["parsing_calls"] == ["ucutlass/tune.py:5 ucutlass.frontend.read_text"]
    assert values["words"] == {"README.md": 2, "docs/page.md": 3}
    assert values["vague_locals"] == {"made": 1}
    assert values["switched_off_formatting"] == 1


def test_report(tree: Path) -> None:
    assert "words: docs 3, README 2" in report(measures(tree))
