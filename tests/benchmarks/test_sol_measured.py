"""Recorded times against their bounds."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmarks import sol_measured


def run(monkeypatch: pytest.MonkeyPatch, *files: Path) -> int:
    monkeypatch.setattr(sys, "argv", ["sol_measured", *map(str, files)])
    return sol_measured.main()


def test_no_recorded_time_is_below_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch) == 0


def test_a_time_below_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """4096 cubed in bf16 takes 139 us at the data sheet's 989 TFLOP/s; with a whole residual no less."""
    row = {"kind": "residual+relu", "dtype": "bf16", "shape": "square", "sizes": [4096] * 3, "ours": 138.0}
    path = tmp_path / "made.json"
    path.write_text(json.dumps({"fused": [row, row | {"ours": 140.0, "eager": 190.0}]}))
    assert run(monkeypatch, path) == 1
    out = capsys.readouterr().out
    assert "below: 138.00 us, bound 138.91 by multiplications" in out
    assert "3 times, 1 below their bound" in out
