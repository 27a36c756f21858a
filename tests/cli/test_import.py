"""`ucc import` writes the module of a file as a program, and says why it cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_machine import Ucc

from ucutlass.grammar import parse
from ucutlass.runtime import isolation
from ucutlass.tasks import import_module

pytestmark = pytest.mark.usefixtures("forked")

PROBLEM = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.fc = nn.Linear(features, 4)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return torch.relu(self.fc(x)){end}


class Plain(nn.Module):
    def forward(self, A, B):
        return A @ B.T


def get_inputs():
    return [torch.rand(16, 8)]


def get_init_inputs():
    return [8]
"""

TEXT = """\
kernel linear_relu(x: f32[M=16, K=8], fc_weight: f32[N=4, K], fc_bias: f32[N]) -> f32[M, N] {
  return relu(dot[K](x, fc_weight) + fc_bias)
}
"""


def _file(folder: Path, end: str = "") -> Path:
    file = folder / "7_linear_relu.py"
    file.write_text(PROBLEM.replace("{end}", end))
    return file


def test_a_problem_becomes_a_program(ucc: Ucc, tmp_path: Path) -> None:
    output = tmp_path / "linear.ucu"
    result = ucc("import", _file(tmp_path), "-o", output)
    assert (result.status, result.err) == (0, "")
    assert output.read_text() == TEXT


def test_a_class_takes_types_of_its_inputs(ucc: Ucc, tmp_path: Path) -> None:
    file = tmp_path / "plain.py"
    file.write_text(
        "from torch import nn\n\n\nclass Plain(nn.Module):\n    def forward(self, A, B):\n"
        "        return A @ B.T\n"
    )
    result = ucc("import", f"{file}:Plain", "--input", "bf16[16, 8]", "--input", "bf16[4, 8]", "--json")
    assert result.status == 0
    assert result.json["text"] == (
        "kernel plain(A: bf16[M=16, K=8], B: bf16[N=4, K]) -> bf16[M, N] {\n  return dot[K](A, B)\n}\n"
    )


DEEP = """
from torch import nn


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)) for _ in range(12)))

    def forward(self, x):
        return self.layers(x)
"""


def test_a_module_that_is_too_long_is_several_programs(
    ucc: Ucc, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def here(name: str, arguments: dict[str, Any], **limits: Any) -> isolation.Returned:
        assert name == "ucutlass.tasks.import_module:programs"
        return isolation.Returned(import_module.programs(**arguments), "", 0.0)

    monkeypatch.setattr(isolation, "run", here)
    monkeypatch.setattr(parse, "MAX_CHARACTERS", 1500)
    file = tmp_path / "deep.py"
    file.write_text(DEEP)
    source, output = f"{file}:Deep", tmp_path / "deep.ucu"
    result = ucc("import", source, "--input", "f32[4, 8]", "-o", output, "--json")
    assert result.status == 0 and "too long" in result.err
    programs = result.json["programs"]
    assert [Path(path).name for path in result.json["outputs"]] == [
        f"deep_{n}.ucu" for n in range(1, len(programs) + 1)
    ]
    known: set[str] = set()
    for path, program in zip(result.json["outputs"], programs, strict=True):
        assert Path(path).read_text() == program["text"] and len(program["text"]) <= 1500
        taken = {name for name, origin, _ in program["inputs"] if origin == "input"} - {"x"}
        assert taken <= known, "a program reads what an earlier one gives"
        known |= set(program["gives"])
    assert len(programs) > 1 and not output.exists()


@pytest.mark.parametrize(
    ("end", "mode", "words"),
    [
        (" + self.drop(x).sum()", "train", "the mask is random"),
        pytest.param(" + self.nothing", "train", "nothing", marks=pytest.mark.slow),
    ],
)
def test_a_refusal_says_why(ucc: Ucc, tmp_path: Path, end: str, mode: str, words: str) -> None:
    result = ucc("import", _file(tmp_path, end), "--mode", mode)
    assert result.status == 1
    assert words.removeprefix("the ") in result.err


def test_a_file_of_another_kind_is_the_calls_fault(ucc: Ucc, tmp_path: Path) -> None:
    file = tmp_path / "a.ucu"
    file.write_text(TEXT)
    assert ucc("import", file).status == 2


def test_the_file_that_is_read_is_not_written(ucc: Ucc, tmp_path: Path) -> None:
    file = _file(tmp_path)
    for source in (file, f"{file}:Plain"):
        result = ucc("import", source, "--input", "f32[4, 8]", "--input", "f32[4, 8]", "-o", file)
        assert result.status == 2 and "would be overwritten" in result.err
