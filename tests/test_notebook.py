"""The cell magic, in IPython's own shell."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from ucutlass.notebook import CellError, CellWarning

TWO = """kernel scaled(x: f32[M, N], alpha: f32) -> f32[M, N] {
  return alpha * x
}

pipeline twice(x: f32[M, N]) -> f32[M, N] {
  h: f32[M, N] = 2 * x
  return h * x
}
"""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[InteractiveShell]:
    config = Config({"HistoryManager": {"enabled": False}})
    main = sys.modules["__main__"]
    shell = InteractiveShell(config=config, ipython_dir=str(tmp_path))
    shell.run_line_magic("load_ext", "ucutlass.notebook")
    yield shell
    shell.restore_sys_module_state()
    sys.modules["__main__"] = main


def test_a_cells_programs_are_bound_by_name(shell: InteractiveShell) -> None:
    ran = shell.run_cell("%%ucu --arch sm90a\n" + TWO, store_history=False)
    assert ran.success and ran.result is None
    x = torch.randn(2, 3)
    torch.testing.assert_close(shell.user_ns["scaled"].reference(x, 0.5), 0.5 * x)
    torch.testing.assert_close(shell.user_ns["twice"].reference(x), 2 * x * x)
    assert shell.run_cell("spec = twice.spec", store_history=False).success
    assert shell.user_ns["spec"].name == "twice"


def test_errors_are_shown_as_diagnostics(shell: InteractiveShell, capsys: Any) -> None:
    shell.user_ns["scaled"] = "kept"
    ran = shell.run_cell("%%ucu\n" + TWO.replace("alpha * x", "alpha * y"), store_history=False)
    assert isinstance(ran.error_in_exec, CellError)
    shown = capsys.readouterr()
    text = shown.out + shown.err
    assert "<cell>:2:18: error:" in text and "return alpha * y" in text and "[UC0101]" in text
    assert "Traceback" not in text and "read_text" not in text
    assert shell.user_ns["scaled"] == "kept" and "twice" not in shell.user_ns


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--arch sm20", "argument --arch: invalid choice: 'sm20'"),
        ("--fast", "unrecognized arguments: --fast"),
        ("'", "No closing quotation"),
        ("--check-offsets", "offsets"),
    ],
)
def test_options_that_do_not_fit_are_refused(shell: InteractiveShell, line: str, words: str) -> None:
    ran = shell.run_cell(f"%%ucu {line}\n{TWO}", store_history=False)
    assert isinstance(ran.error_in_exec, CellError) and words in str(ran.error_in_exec)


def test_what_cannot_be_meant_is_a_warning(shell: InteractiveShell) -> None:
    text = "kernel copied(x: f32[M], unused: f32[M]) -> f32[M] {\n  return x\n}\n"
    with pytest.warns(CellWarning, match=r"<cell>:1:.*UC08"):
        assert shell.run_cell(f"%%ucu\n{text}", store_history=False).success
    assert "copied" in shell.user_ns
