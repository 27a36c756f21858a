"""f32 in TF32 where torch's switches let eager PyTorch multiply so."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from ucutlass import frontend
from ucutlass.dynamo.precision import multiplied
from ucutlass.dynamo.region import region_of


@pytest.fixture
def switches() -> Iterator[Callable[[bool, bool], None]]:
    """Sets whether products and convolutions may be in TF32."""
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32

    def set_to(product: bool, convolution: bool) -> None:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = product, convolution

    yield set_to
    set_to(*before)


def text_of(device: str, dtype: torch.dtype, groups: int = 1) -> str:
    """Returns the program of a convolution and a product, of tensors without elements in memory."""
    with FakeTensorMode():
        x = torch.empty(2, 8, 9, 9, device=device, dtype=dtype)
        filters, weight = (
            torch.empty(*s, device=device, dtype=dtype) for s in ((16, 8 // groups, 3, 3), (5, 16))
        )

        def forward(x: torch.Tensor, filters: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor]:
            y = torch.ops.aten.convolution.default(
                x, filters, None, [1, 1], [1, 1], [1, 1], False, [0, 0], groups
            )
            return (torch.ops.aten.mm.default(torch.relu(y).mean((2, 3)), weight.t()),)

        graph = make_fx(forward)(x, filters, weight)
    graph.graph.eliminate_dead_code()
    return region_of(graph, "program").text


@pytest.mark.parametrize("product", [False, True])
@pytest.mark.parametrize("convolution", [False, True])
def test_each_switch_is_of_its_operators(
    switches: Callable[[bool, bool], None], product: bool, convolution: bool
) -> None:
    switches(product, convolution)
    text = text_of("cuda", torch.float32)
    assert ("tf32(x_1[" in text) == convolution
    assert text.count("tf32(") == 2 * (product + convolution)
    assert frontend.read_text(text)


def test_channels_by_themselves_are_no_products_of_matrices(switches: Callable[[bool, bool], None]) -> None:
    switches(False, True)
    assert "tf32" not in text_of("cuda", torch.float32, groups=8)
    assert "tf32(" in text_of("cuda", torch.float32, groups=2)


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.float32), ("cuda", torch.bfloat16)])
def test_other_devices_and_elements_multiply_as_they_are(
    switches: Callable[[bool, bool], None], device: str, dtype: torch.dtype
) -> None:
    switches(True, True)
    assert "tf32" not in text_of(device, dtype)


def test_the_newer_switches_are_read_where_the_older_ones_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Newer:
        fp32_precision = "tf32"

        @property
        def allow_tf32(self) -> bool:
            raise RuntimeError("mixed use of both")

    monkeypatch.setattr("ucutlass.dynamo.precision._SWITCHES", {"matmul": Newer()})
    with FakeTensorMode():
        assert multiplied([torch.empty(2, device="cuda")]) == {"matmul": "tf32"}
    assert multiplied([torch.empty(2)]) == {}
