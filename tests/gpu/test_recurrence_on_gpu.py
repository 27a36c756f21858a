"""Recurrent layers in one launch against torch's in float64."""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from pathlib import Path

import pytest
import torch

import ucutlass
from ucutlass.emit import emit
from ucutlass.kernels.recurrence.planner import plan_recurrence
from ucutlass.kernels.recurrence.problem import RecurrentProblem
from ucutlass.runtime import isolation
from ucutlass.runtime.gpu import at_hand
from ucutlass.runtime.toolchain import find_nvcc

pytestmark = pytest.mark.gpu


class Layers(torch.nn.Module):
    """A module that gives some of the results of recurrent layers."""

    def __init__(self, layers: torch.nn.RNNBase, gives: tuple[int, ...]) -> None:
        super().__init__()
        self.layers, self.gives = layers, gives

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y, last = self.layers(x, states if len(states) > 1 else states[0])
        results = (y, *(last if len(states) > 1 else (last,)))
        return tuple(results[number] for number in self.gives)


CASES = [
    ("LSTM", {"num_layers": 6, "batch_first": True}, (31, 10, 128, 256), (1,), torch.float32),
    ("LSTM", {"num_layers": 2, "bidirectional": True}, (9, 5, 33, 100), (2,), torch.float32),
    ("LSTM", {"num_layers": 1, "bias": False}, (40, 1, 512, 512), (0,), torch.float32),
    ("GRU", {"num_layers": 3}, (25, 24, 40, 96), (0,), torch.float32),
    (
        "GRU",
        {"num_layers": 2, "bidirectional": True, "batch_first": True},
        (17, 3, 24, 48),
        (0,),
        torch.float32,
    ),
    ("RNN", {"num_layers": 2, "nonlinearity": "relu"}, (12, 32, 64, 64), (1,), torch.float32),
    (
        "RNN",
        {"num_layers": 1, "nonlinearity": "tanh", "batch_first": True},
        (64, 8, 1024, 256),
        (0,),
        torch.float32,
    ),
    ("GRU", {"num_layers": 1}, (1, 2, 7, 5), (0,), torch.float32),
    ("LSTM", {"num_layers": 2, "batch_first": True}, (29, 4, 48, 128), (2, 0, 1), torch.float32),
    ("GRU", {"num_layers": 2, "bidirectional": True}, (13, 6, 32, 72), (0, 1), torch.bfloat16),
    ("LSTM", {"num_layers": 3, "batch_first": True}, (21, 8, 64, 160), (1, 0), torch.float16),
]


@pytest.mark.parametrize(
    ("name", "options", "sizes", "gives", "dtype"), CASES, ids=[f"{c[0]}-{i}" for i, c in enumerate(CASES)]
)
def test_a_launch_gives_what_torch_gives(
    name: str,
    options: dict[str, object],
    sizes: tuple[int, int, int, int],
    gives: tuple[int, ...],
    dtype: torch.dtype,
) -> None:
    steps, batch, width, hidden = sizes
    torch.manual_seed(3)
    module = Layers(getattr(torch.nn, name)(width, hidden, **options), gives).to("cuda", dtype)
    runs = module.layers.num_layers * (2 if module.layers.bidirectional else 1)
    shape = (batch, steps, width) if module.layers.batch_first else (steps, batch, width)
    shapes = [shape, *[(runs, batch, hidden)] * (2 if name == "LSTM" else 1)]
    tensors = [torch.randn(s, device="cuda").to(dtype) for s in shapes]
    program = ucutlass.from_torch(module, *tensors)
    assert all(fate.by == "kernel" for fate in program.report), "one kernel has all results"
    results = program(*tensors)
    again = program(*tensors)
    stored = 0.0 if dtype is torch.float32 else torch.finfo(dtype).eps / 2
    wanted = module.double()(*(t.double() for t in tensors))
    for result, other, exact in zip(results, again, wanted, strict=True):
        assert torch.equal(result, other)
        torch.testing.assert_close(result.double(), exact, rtol=stored, atol=3e-6)


def test_launches_of_two_streams_do_not_meet() -> None:
    torch.manual_seed(3)
    module = Layers(torch.nn.GRU(64, 128, num_layers=2), (0,)).cuda()
    x, h = torch.randn(50, 4, 64, device="cuda"), torch.randn(2, 4, 128, device="cuda")
    program = ucutlass.from_torch(module, x, h)
    (want,) = program(x, h)
    torch.cuda.synchronize()
    results = []
    for stream in [torch.cuda.Stream() for _ in range(4)]:
        with torch.cuda.stream(stream):
            results += [program(x, h)[0] for _ in range(5)]
    torch.cuda.synchronize()
    assert all(torch.equal(want, result) for result in results)


def launched(library: str, entry: str, workspace: int, sizes: list[int], pointers: int) -> str:
    """Launches a kernel on zeros. Returns what CUDA says of it, and the seconds until it did."""
    memory = torch.zeros(1 << 20, device="cuda")
    packets = torch.zeros(workspace, dtype=torch.uint8, device="cuda")
    function = getattr(ctypes.CDLL(library), entry)
    places = (ctypes.c_void_p * pointers)(*[memory.data_ptr()] * pointers)
    torch.cuda.synchronize()
    start = time.monotonic()
    own = ctypes.c_void_p(packets.data_ptr())
    code = function(places, (ctypes.c_int64 * 4)(*sizes), None, None, own, None, None)
    try:
        torch.cuda.synchronize()
    except RuntimeError as problem:
        return f"{time.monotonic() - start:.2f} s, {problem}"
    return f"ended with {code}"


def test_a_launch_whose_blocks_do_not_all_run_ends_in_an_error(tmp_path: Path) -> None:
    here = at_hand()
    assert here is not None
    problem = RecurrentProblem("gru", 3, 2, 8, 16, 1, 1, False, False, (0,))
    planned = plan_recurrence(problem, here.arch, here.device)
    assert planned is not None and planned.plan.grid > 1
    source = emit(planned.plan, "")
    whole = "kGroups * kConcurrent);"
    assert source.text.count(whole) == 1
    text, library = tmp_path / "kernel.cu", tmp_path / "kernel.so"
    text.write_text(source.text.replace(whole, "kGroups * kConcurrent - 1);"))
    nvcc = find_nvcc(os.environ)
    flags = ("-std=c++17", f"-arch={source.arch}", "-shared", "-Xcompiler", "-fPIC")
    subprocess.run([nvcc.path, *flags, text, "-o", library], check=True, capture_output=True)
    arguments = {
        "library": str(library),
        "entry": source.entry,
        "workspace": planned.plan.workspace,
        "sizes": list(problem.sizes),
        "pointers": problem.pointers,
    }
    outcome = isolation.run("tests.gpu.test_recurrence_on_gpu:launched", arguments, limit_seconds=60)
    assert isinstance(outcome, isolation.Returned) and "launch" in outcome.value, outcome
