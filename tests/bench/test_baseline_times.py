"""A compiled module in turns with the module itself, on the CPU, and the lock while torch compiles."""

from __future__ import annotations

from typing import Any

import pytest
from torch._inductor.runtime import benchmarking
from torch_cpu import TorchCpu

from ucutlass import frontend
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.tasks import module_baseline
from ucutlass.tasks.baseline_times import GpuTurn, timed

MODULE = """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(8, 4)

    def forward(self, x):
        return torch.relu(self.fc(x))

def get_inputs():
    return [torch.randn(16, 8)]

def get_init_inputs():
    return []
"""
LINEAR = (
    "kernel linear(x: f32[M=16, K=8], w: f32[N=4, K], b: f32[N]) -> f32[M, N] "
    "{ return relu(dot[K](x, w) + b) }\n"
)
NAMES = {"x": "input 0", "w": "state fc.weight", "b": "state fc.bias"}
PROTOCOL = Protocol(warmup=0.0, min_seconds=0.0, max_seconds=0.5, launches=3, block_us=10.0, wall_launches=2)


def compared(way: str, turn: GpuTurn | None = None) -> dict[str, Any]:
    program = frontend.program(frontend.read_text(LINEAR))
    module = {"source": MODULE, "mode": "constructed", "precision": "own"}
    return timed(program, {"M": 16, "N": 4, "K": 8}, module, NAMES, way, PROTOCOL, TorchCpu(), turn)  # type: ignore[arg-type]


def test_a_way_is_timed_in_turns_with_eager() -> None:
    ratio = compared("eager-tf32")
    assert ratio["low"] <= ratio["median"] <= ratio["high"] and ratio["median"] == pytest.approx(1.0)


@pytest.mark.parametrize("way", ["compile", "compile-max-autotune"])
def test_the_lock_is_given_away_while_torch_compiles(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[bool] = []
    turn = GpuTurn("GPU-x", 1.0)
    monkeypatch.setattr(GpuTurn, "take", lambda self, quiet=0.0: setattr(self, "held", True))
    monkeypatch.setattr(GpuTurn, "give", lambda self: setattr(self, "held", False))
    turn.take()

    benchmarked: list[bool] = []
    monkeypatch.setattr(benchmarking.benchmarker, "benchmark_gpu", lambda: benchmarked.append(turn.held))

    def compile_fx(graph: Any, inputs: Any, config_patches: dict[str, Any]) -> Any:
        held.append(turn.held)
        benchmarking.benchmarker.benchmark_gpu()
        held.append(turn.held)
        assert config_patches.get("max_autotune", False) is (way == "compile-max-autotune")

        def call(*arguments: Any) -> Any:
            held.append(turn.held)
            return graph.forward(*arguments)

        return call

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    assert compared(way, turn)["median"] == pytest.approx(1.0)
    assert not any(held[:3]) and all(held[3:]) and len(held) > 5, "tuned without it, launched with it"
    assert benchmarked == [True], "what torch times to choose a kernel is timed alone"


def test_another_result_than_eager_s_has_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        module_baseline,
        "_compiled",
        lambda model, way, backend: (lambda x: 2 * model(x)) if way.mode else model,
    )
    assert "relative error" in compared("compile")["words"]
