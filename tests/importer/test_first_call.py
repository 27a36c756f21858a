"""The comparison of a program's first call with its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from ucutlass import frontend
from ucutlass.dynamo.options import options_of
from ucutlass.importer.first_call import WrongResult, checked
from ucutlass.reference import evaluate

TEXT = "kernel double(x: f32[M=8, N=4]) -> f32[M, N] { return x * 2 }"


class Program:
    """A program that multiplies by `factor` in place of 2."""

    program = frontend.program(frontend.read_text(TEXT), "double")

    def __init__(self, factor: float) -> None:
        self.factor, self.calls = factor, 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        (result,) = evaluate(self.program, [x])
        return result * (self.factor / 2)

    def judged(self, *_: Any) -> Callable[[Sequence[Any], Sequence[torch.Tensor]], None]:
        def launch(arguments: Sequence[Any], results: Sequence[torch.Tensor]) -> None:
            results[0].copy_(self(*arguments))

        return launch


def test_a_right_program_is_judged_once() -> None:
    program: Any = Program(2)
    call = checked(program)
    x = torch.randn(8, 4)
    torch.testing.assert_close(call(x), 2 * x)
    calls = program.calls
    call(x)
    assert calls > 1 and program.calls == calls + 1


def test_a_wrong_program_gives_no_result() -> None:
    wrong: Any = Program(2.1)
    call = checked(wrong)
    for _ in range(2):
        with pytest.raises(WrongResult, match="double"):
            call(torch.randn(8, 4))


def test_the_switch_asks_for_it_where_no_option_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCUTLASS_CHECK", "1")
    assert options_of(None).check and not options_of({"check": False}).check


def test_the_rival_is_compiled_beside_the_first_calls_where_no_option_says_otherwise() -> None:
    assert options_of(None).choose == "later"
