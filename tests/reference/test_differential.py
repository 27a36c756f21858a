"""A few hundred programs of `tests.reference.differential`: the reference is PyTorch on all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.reference.differential import judge, program, report, undrawn
from tests.reference.differential_terms import ELEMENTS, LEAVES, TABLE
from ucutlass.reference import errors, indexing

COUNT = 400


def test_drawn_programs_are_pytorchs() -> None:
    rows = [judge(program(seed)) for seed in range(COUNT)]
    different = [row for row in rows if row.status == "different"]
    assert not different, report(rows, 0.0)
    assert sum(row.status == "same" for row in rows) > 0.9 * COUNT
    drawn = {elem for row in rows for _, elem in row.program.drawn}
    assert drawn >= {*ELEMENTS} and len(undrawn(rows)) < 30


def test_every_feature_is_drawn_in_the_end() -> None:
    texts: set[str] = set()
    every = {name for tables in (LEAVES, TABLE) for table in tables.values() for name in table}
    for seed in range(4000):
        texts |= {feature for feature, _ in program(seed).drawn}
        if every <= texts:
            return
    raise AssertionError(sorted(every - texts))


def test_a_wrong_neutral_element_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the reference had it: an infinity cast to an integer."""
    monkeypatch.setattr(indexing, "in_element", lambda fill, elem: _cast(fill, elem.kind))
    assert any(judge(program(seed)).status == "different" for seed in range(1500))


def _cast(fill: float, kind: str) -> float | int | bool:
    inner = {"float": torch.float64, "int": torch.int64, "bool": torch.bool}[kind]
    return torch.tensor(fill, dtype=torch.float64).to(inner).item()


def test_an_error_of_torch_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is nothing to select from, the reference raises its own error."""
    rows = [p for seed in range(600) if (p := program(seed)).value is None]
    assert len(rows) > 3
    for made in rows[:20]:
        assert judge(made).detail.split(":")[0] in (
            errors.ExtentRangeError.__name__,
            errors.CoordinateRangeError.__name__,
        )
    some = next(p for seed in range(100) if (p := program(seed)).value is not None)
    assert judge(replace(some, value=None)).status == "different"
