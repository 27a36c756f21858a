"""Our operations against torch.utils.flop_counter, a derivation that shares nothing with ours.

FlopCounterMode counts products alone, padding and masked scores included: the only differences.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from module_files import worked
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.kernelbench.kernelbench_files import module as problem
from ucutlass.runtime.module.count import window_pairs

SAME: dict[str, str] = {
    "mm": problem("a @ b", a="17, 33", b="33, 9"),
    "bmm": problem("a @ b", a="3, 17, 33", b="3, 33, 9"),
    "broadcast": problem("a @ b", a="5, 3, 17, 33", b="33, 9"),
    "addmm": problem("torch.addmm(c, a, b)", a="17, 33", b="33, 9", c="9"),
    "baddbmm": problem("torch.baddbmm(c, a, b)", a="2, 17, 33", b="2, 33, 9", c="2, 17, 9"),
    "linear": problem("self.l(x)", "self.l = nn.Linear(33, 9)", x="5, 17, 33"),
    "einsum": problem('torch.einsum("bijl,lk->bijk", a, b)', a="2, 3, 4, 5", b="5, 6"),
    "attention": problem(
        "F.scaled_dot_product_attention(q, k, v)", q="2, 3, 16, 8", k="2, 3, 24, 8", v="2, 3, 24, 8"
    ),
    "conv1d": problem("self.l(x)", "self.l = nn.Conv1d(6, 8, 3, stride=2, dilation=2)", x="2, 6, 40"),
    "conv2d": problem(
        "self.l(x)", "self.l = nn.Conv2d(6, 8, (3, 5), stride=(1, 2), groups=2)", x="2, 6, 20, 30"
    ),
    "conv3d": problem("self.l(x)", "self.l = nn.Conv3d(3, 4, 3)", x="2, 3, 8, 9, 10"),
    "depthwise": problem("self.l(x)", "self.l = nn.Conv2d(6, 6, 3, groups=6)", x="2, 6, 20, 30"),
    "transposed": problem(
        "self.l(x)", "self.l = nn.ConvTranspose2d(6, 8, 3, stride=2, groups=2)", x="2, 6, 9, 10"
    ),
    "lstm": problem("self.l(x)[0]", "self.l = nn.LSTM(12, 16, 2)", x="5, 3, 12"),
    "gru": problem("self.l(x)[0]", "self.l = nn.GRU(12, 16, bidirectional=True)", x="5, 3, 12"),
    "transformer": problem(
        "self.l(x)", "self.l = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)", x="2, 10, 16"
    ),
    "mlp": problem(
        "self.b(torch.relu(self.a(x)))", "self.a = nn.Linear(8, 32)\nself.b = nn.Linear(32, 4)", x="6, 8"
    ),
    "none": problem("torch.softmax(x, 1).cumsum(1)", x="6, 8"),
}


def torch_flops(folder: Path, text: str) -> int:
    """What torch counts while the same file runs on fake tensors."""
    file = folder / "counted.py"
    file.write_text(text)
    spec = importlib.util.spec_from_file_location("counted", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    # Fused CPU kernels of attention and LSTM are not in torch's table; their plain forms are.
    plain = (sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False))
    with FakeTensorMode(), torch.no_grad(), plain[0], plain[1], FlopCounterMode(display=False) as counter:
        module.Model()(*module.get_inputs())
    return int(counter.get_total_flops())


@pytest.mark.parametrize("name", SAME)
def test_the_same_products(tmp_path: Path, name: str) -> None:
    theirs = torch_flops(tmp_path, SAME[name])
    assert worked(tmp_path, SAME[name]).products == theirs
    assert (theirs > 0) == (name != "none")


def test_torch_leaves_products_with_a_vector_out(tmp_path: Path) -> None:
    text = problem("a @ b", a="17, 33", b="33")
    assert torch_flops(tmp_path, text) == 0
    assert worked(tmp_path, text).products == 2 * 17 * 33


def test_padding_is_the_only_difference_of_a_convolution(tmp_path: Path) -> None:
    text = problem("self.l(x)", "self.l = nn.Conv2d(6, 8, 3, padding=2, dilation=2)", x="2, 6, 20, 30")
    pairs = window_pairs(20, 20, 3, 1, 2, 2) * window_pairs(30, 30, 3, 1, 2, 2)
    assert worked(tmp_path, text).products == 2 * 2 * 6 * 8 * pairs
    assert torch_flops(tmp_path, text) == 2 * 2 * 6 * 8 * (20 * 3) * (30 * 3) > 2 * 2 * 6 * 8 * pairs


def test_what_is_cropped_is_the_only_difference_of_a_transposed_one(tmp_path: Path) -> None:
    text = problem("self.l(x)", "self.l = nn.ConvTranspose1d(6, 8, 3, stride=2, padding=1)", x="2, 6, 20")
    # The first input meets the kernel's first position outside, the last one its last: 2 of 60.
    assert torch_flops(tmp_path, text) - worked(tmp_path, text).products == 2 * 2 * 6 * 8 * 2


def test_masked_scores_are_the_only_difference_of_causal_attention(tmp_path: Path) -> None:
    text = problem("F.scaled_dot_product_attention(q, q, q, is_causal=True)", q="2, 3, 16, 8")
    each = 4 * 2 * 3 * 8
    assert torch_flops(tmp_path, text) == each * 16 * 16
    assert worked(tmp_path, text).products == each * (16 * 17 // 2)
