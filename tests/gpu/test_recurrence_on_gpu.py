"""Recurrent layers in one launch against torch's in float64."""

from __future__ import annotations

import pytest
import torch

import ucutlass

pytestmark = pytest.mark.gpu


class Layers(torch.nn.Module):
    """A module that gives one of the results of recurrent layers."""

    def __init__(self, layers: torch.nn.RNNBase, gives: int) -> None:
        super().__init__()
        self.layers, self.gives = layers, gives

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        y, last = self.layers(x, states if len(states) > 1 else states[0])
        result: torch.Tensor = (y, *(last if len(states) > 1 else (last,)))[self.gives]
        return result


CASES = [
    ("LSTM", {"num_layers": 6, "batch_first": True}, (31, 10, 128, 256), 1),
    ("LSTM", {"num_layers": 2, "bidirectional": True}, (9, 5, 33, 100), 2),
    ("LSTM", {"num_layers": 1, "bias": False}, (40, 1, 512, 512), 0),
    ("GRU", {"num_layers": 3}, (25, 24, 40, 96), 0),
    ("GRU", {"num_layers": 2, "bidirectional": True, "batch_first": True}, (17, 3, 24, 48), 0),
    ("RNN", {"num_layers": 2, "nonlinearity": "relu"}, (12, 32, 64, 64), 1),
    ("RNN", {"num_layers": 1, "nonlinearity": "tanh", "batch_first": True}, (64, 8, 1024, 256), 0),
    ("GRU", {"num_layers": 1}, (1, 2, 7, 5), 0),
]


@pytest.mark.parametrize(
    ("name", "options", "sizes", "gives"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_a_launch_gives_what_torch_gives(
    name: str, options: dict[str, object], sizes: tuple[int, int, int, int], gives: int
) -> None:
    steps, batch, width, hidden = sizes
    torch.manual_seed(3)
    module = Layers(getattr(torch.nn, name)(width, hidden, **options), gives).cuda()
    runs = module.layers.num_layers * (2 if module.layers.bidirectional else 1)
    x = torch.randn(
        (batch, steps, width) if module.layers.batch_first else (steps, batch, width), device="cuda"
    )
    states = [torch.randn(runs, batch, hidden, device="cuda") for _ in range(2 if name == "LSTM" else 1)]
    program = ucutlass.from_torch(module, x, *states)
    y = program(x, *states)
    assert torch.equal(y, program(x, *states))
    exact = module.double()(x.double(), *(s.double() for s in states))
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=3e-6)


def test_launches_of_two_streams_do_not_meet() -> None:
    torch.manual_seed(3)
    module = Layers(torch.nn.GRU(64, 128, num_layers=2), 0).cuda()
    x, h = torch.randn(50, 4, 64, device="cuda"), torch.randn(2, 4, 128, device="cuda")
    program = ucutlass.from_torch(module, x, h)
    want = program(x, h)
    torch.cuda.synchronize()
    results = []
    for stream in [torch.cuda.Stream() for _ in range(4)]:
        with torch.cuda.stream(stream):
            results += [program(x, h) for _ in range(5)]
    torch.cuda.synchronize()
    assert all(torch.equal(want, result) for result in results)
