"""Images between convolutions lie channels last, where nothing that reads them would transpose."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.importer.float64_check import difference
from ucutlass import frontend, ir
from ucutlass.importer import orders
from ucutlass.shapes import complete

CHANNELS = (4, 6, 8, 16)


class Bottleneck(nn.Module):
    """Two blocks with a sum past them, behind a stem and its pooling."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.narrow = nn.ModuleList(nn.Conv2d(8, 4, 1) for _ in range(2))
        self.wide = nn.ModuleList(nn.Conv2d(4, 8, 3, 1, 1) for _ in range(2))
        self.head = head

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        for narrow, wide in zip(self.narrow, self.wide, strict=True):
            x = F.relu(wide(F.relu(narrow(x))) + x)
        if self.head == "positions":
            return x.mean((2, 3))
        return F.softmax(x, dim=1) if self.head == "channels" else x.flatten(1).cumsum(1)


class Branches(nn.Module):
    """Two branches side by side, as GoogLeNet and DenseNet have them, behind pooling."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(4, 8, 3, 2, 1)
        self.wide = nn.Conv2d(8, 8, 3, 1, 1)
        self.pooled = nn.Conv2d(8, 8, 1)
        self.head = nn.Conv2d(16, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, 2, 1)
        x = torch.cat((F.relu(self.wide(x)), self.pooled(F.avg_pool2d(x, 3, 1, 1))), 1)
        return self.head(F.relu(x))


class Grown(nn.Module):
    """A layer of DenseNet whose input and sum are the module's own, as parts of a divided graph have them."""

    def __init__(self) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(64, 32, 1)
        self.wide = nn.ModuleList(nn.Conv2d(c, 32, 1) for c in (96, 128, 160))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        first = self.narrow(F.relu(x))
        x = torch.cat((x, first), 1)
        for wide in self.wide:
            x = torch.cat((x, wide(F.relu(x))), 1)
        return first, F.avg_pool2d(x, 2)


def _two(channels: int, groups: int = 1) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(4, channels, 3), nn.ReLU(), nn.Conv2d(channels, 4, 3, groups=groups)
    )


def _by_order(text: str, sizes: dict[str, int]) -> tuple[int, int]:
    """The stored images of a pipeline with their channels last, and those with channels first."""
    program = frontend.program(frontend.read_text(text))
    assert isinstance(program, ir.Pipeline)
    buffers = [type_ for name, type_ in program.buffers if not name.startswith("weights")]
    images = [type_ for type_ in buffers if len(type_.axes) == 4]
    at = dict(zip(program.dims, complete(program, sizes), strict=True))
    last = [at[type_.axes[3].dims[0]] in CHANNELS for type_ in images]
    return sum(last), len(last) - sum(last)


@pytest.mark.parametrize(
    ("module", "images"),
    [
        (_two(8), (1, 0)),
        (_two(6), (0, 1)),
        (_two(8, 2), (0, 1)),
        (lambda: Bottleneck("positions"), (5, 0)),
        (Branches, (6, 0)),
        (lambda: Bottleneck("channels"), (2, 4)),
    ],
    ids=[
        "two",
        "channels of no whole row",
        "groups",
        "sums past blocks",
        "pooled and put side by side",
        "a softmax reads the last sum",
    ],
)
def test_an_order_that_suits_all(module: Callable[[], nn.Module], images: tuple[int, int]) -> None:
    torch.manual_seed(0)
    network = module().eval()
    x = torch.randn(2, 3 if isinstance(network, Bottleneck) else 4, 36, 44)
    program, wrong = difference(network, x)
    assert not wrong
    assert _by_order(program.text, {}) == images, program.text


def test_images_of_a_given_order_are_copied_at_the_border(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders, "WORTH", 1e3)  # of a network as small as this one the copies cost more
    torch.manual_seed(0)
    program, wrong = difference(Grown().eval(), torch.randn(2, 64, 12, 14))
    assert not wrong
    pipeline = frontend.program(frontend.read_text(program.text))
    assert isinstance(pipeline, ir.Pipeline)
    at = dict(zip(pipeline.dims, complete(pipeline, {}), strict=True))
    images = [[at[axis.dims[0]] for axis in type_.axes] for _, type_ in pipeline.buffers]
    assert [image[3] % 32 == 0 for image in images].count(False) == 2 < len(images), program.text
    assert all(at[type_.axes[1].dims[0]] % 32 == 0 for _, type_ in pipeline.results), program.text
