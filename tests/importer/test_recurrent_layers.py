"""Loops over the steps of a sequence are recurrent layers, and what a stack gathers of the steps is computed once."""

from __future__ import annotations

import importlib
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from tests.importer.float64_check import difference
from ucutlass.importer import whole_layers
from ucutlass.importer.export import ForwardArguments, exported

Form = Literal["joined", "state first", "apart"]


class Steps(nn.Module):
    """A recurrent network as people write it: each step's product reads both, or there are two."""

    def __init__(
        self, form: Form, axis: int, activation: Any, bias: bool = True, steps: int | None = None
    ) -> None:
        super().__init__()
        self.form, self.axis, self.activation, self.steps = form, axis, activation, steps
        self.whole = nn.Linear(5 + 4, 4, bias=bias)
        self.of_input, self.of_state = nn.Linear(5, 4, bias=bias), nn.Linear(4, 4, bias=False)
        self.out = nn.Linear(4, 3)

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for t in range(self.steps or x.shape[self.axis]):
            part = x[t] if self.axis == 0 else x[:, t]
            match self.form:
                case "joined":
                    sums = self.whole(torch.cat((part, state), 1))
                case "state first":
                    sums = self.whole(torch.cat((state, part), dim=-1))
                case "apart":
                    sums = self.of_input(part) + self.of_state(state)
            state = self.activation(sums)
            outputs.append(torch.sigmoid(self.out(state)))
        return torch.stack(outputs, dim=1), state


def result_of(module: nn.Module, axis: int, length: int = 9) -> Any:
    torch.manual_seed(0)
    shape = (length, 2, 5) if axis == 0 else (2, length, 5)
    return difference(module, torch.randn(shape), torch.randn(2, 4))


@pytest.mark.parametrize("activation", [torch.tanh, torch.relu])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("form", ["joined", "state first", "apart"])
@pytest.mark.parametrize("axis", [0, 1])
def test_an_unrolled_loop_is_one_recurrent_layer(axis: int, form: Form, bias: bool, activation: Any) -> None:
    program, wrong = result_of(Steps(form, axis, activation, bias), axis)
    assert not wrong
    assert program.text.count("torch.rnn_") == 1
    assert program.text.count("dot[") == 1, "what is computed of each step is computed of all at once"
    assert all(fate.by != "torch" for fate in program.report)


@pytest.mark.parametrize(
    ("module", "length"),
    [
        (Steps("joined", 0, torch.tanh, steps=8), 9),
        (Steps("joined", 0, torch.tanh), 3),
        (Steps("joined", 0, torch.sigmoid), 9),
    ],
    ids=["part of the sequence", "few steps", "another activation"],
)
def test_other_loops_stay_as_they_are(module: nn.Module, length: int) -> None:
    program, wrong = result_of(module, 0, length)
    assert not wrong and "torch." not in program.text


class Cells(nn.Module):
    """Calls a cell of torch in a loop; `between` returns what another reads of the states in the middle."""

    def __init__(self, cell: nn.Module, two: bool = False, between: bool = False) -> None:
        super().__init__()
        self.cell, self.two, self.between = cell, two, between

    def forward(self, x: Tensor, state: Tensor) -> Any:
        outputs, second = [], torch.ones_like(state)
        for t in range(x.shape[1]):
            if self.two:
                state, second = self.cell(x[:, t], (state, second))
            else:
                state = self.cell(x[:, t], state)
            outputs.append(second * 2 if self.between else state)
        return torch.stack(outputs, 1), state, second


CELLS = {
    "gru": Cells(nn.GRUCell(5, 4)),
    "gru without biases": Cells(nn.GRUCell(5, 4, bias=False)),
    "lstm": Cells(nn.LSTMCell(5, 4), two=True),
    "rnn_tanh": Cells(nn.RNNCell(5, 4)),
    "rnn_relu": Cells(nn.RNNCell(5, 4, nonlinearity="relu")),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_loop_of_cells_is_one_layer(name: str) -> None:
    program, wrong = result_of(CELLS[name], 1)
    assert not wrong
    assert program.text.count(f"torch.{name.split()[0]}(") == (2 if name == "lstm" else 1)
    assert "dot[" not in program.text


def test_a_loop_stays_where_more_is_read_of_it_than_a_layer_gives() -> None:
    program, wrong = result_of(Cells(nn.LSTMCell(5, 4), two=True, between=True), 1)
    assert not wrong and "torch." not in program.text


class Unbound(nn.Module):
    """Takes its sequence apart at once, and puts results together by their parts."""

    def __init__(self) -> None:
        super().__init__()
        self.whole, self.out = nn.Linear(9, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        outputs = []
        for part in x.unbind(0):
            state = torch.tanh(self.whole(torch.cat((part, state), 1)))
            outputs.append(self.out(state).unsqueeze(1))
        return torch.cat(outputs, 1)


def test_a_sequence_that_is_taken_apart_at_once_is_one() -> None:
    program, wrong = result_of(Unbound(), 0)
    assert not wrong and program.text.count("torch.rnn_tanh(") == 1 and program.text.count("dot[") == 1


class Changing(Steps):
    """Its fifth step reads the sequence's first part again."""

    def forward(self, x: Tensor, state: Tensor) -> Any:
        return super().forward(torch.cat((x[:4], x[:1], x[5:])), state), x[3]


class Skipping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.whole = nn.Linear(9, 4)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        for t in (0, 1, 2, 3, 4, 4, 6, 7, 8):
            state = torch.tanh(self.whole(torch.cat((x[t], state), 1)))
        return state


def test_steps_out_of_order_are_none() -> None:
    program, wrong = result_of(Skipping(), 0)
    assert not wrong and "torch." not in program.text


def test_a_sequence_that_is_computed_is_one() -> None:
    program, wrong = result_of(Changing("joined", 0, torch.tanh), 0)
    assert not wrong and program.text.count("torch.rnn_tanh(") == 1


class Layers(nn.Module):
    """Gives what a layer does of every step, and its last state."""

    def __init__(self, layers: nn.RNNBase) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, Tensor]:
        y, last = self.layers(x, states if len(states) > 1 else states[0])
        return y, last[1] if len(states) > 1 else last


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_no_step_of_a_layer_is_computed_to_know_its_shapes(
    kind: type[nn.RNNBase], batch_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = Layers(kind(5, 4, num_layers=2, bidirectional=True, batch_first=batch_first))
    states = [torch.randn(4, 3, 4) for _ in range(2 if kind is nn.LSTM else 1)]
    inputs = torch.randn(9, 3, 5) if not batch_first else torch.randn(3, 9, 5), *states

    def unrolled(*arguments: Any, **options: Any) -> None:
        raise AssertionError("torch computes the layer's shapes step by step")

    with monkeypatch.context() as patch:
        patch.setattr("torch._decomp.decompositions._rnn_helper", unrolled)
        program = exported(module, ForwardArguments(inputs))
    shapes = [program.graph.values[name].shape for name in program.graph.results]
    assert shapes == [tuple(result.shape) for result in module(*inputs)]
    text, wrong = difference(module, *inputs)
    assert not wrong and text.text.count("torch.") == 2


def test_a_second_copy_of_the_importer_has_the_same_operators() -> None:
    """As where a module is reloaded: torch defines an operator once in a process."""
    expected = [whole_layers.layer(name) for name in whole_layers.NAMES]
    importlib.reload(whole_layers)
    assert [whole_layers.layer(name) for name in whole_layers.NAMES] == expected
