"""Modules on a GPU: asked what they compute, and timed in turns with a kernel."""

from __future__ import annotations

from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import pytest
from kernelbench_files import LINEAR, module

from ucutlass import frontend
from ucutlass.agent import evidence
from ucutlass.agent.equivalence import unlike
from ucutlass.agent.evidence import ConfirmationSettings
from ucutlass.agent.gpu_calls import GpuCalls
from ucutlass.agent.module import ModuleMatch, TorchModule, match_module, read_module
from ucutlass.assembly import build_program
from ucutlass.engine.local import LocalEngine
from ucutlass.handoff import program_payload
from ucutlass.runtime import switches
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.tasks.bench import on_gpu
from ucutlass.tasks.built import built_payload

pytestmark = pytest.mark.gpu


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TorchModule:
    monkeypatch.setenv(switches.BUILD_PATH, "auto")  # nvcc alone multiplies no f32 by wgmma
    file = tmp_path / "1_Linear.py"
    file.write_text(module("torch.relu(self.fc(x)) * 2", "self.fc = nn.Linear(2048, 1024)", x="512, 2048"))
    return read_module(file)


def test_a_module_is_asked_on_the_gpu(wide: TorchModule) -> None:
    with closing(LocalEngine()) as engine:
        gpu = GpuCalls(engine, "x", 600.0)
    right = frontend.read_text(LINEAR)
    same = unlike(right, frontend.program(right), wide, gpu, seed=0, limit=300.0)
    assert same == "" and gpu.held > 0.0
    other = frontend.read_text(LINEAR.replace("* 2", "* 2.000001"))
    assert "something else" in unlike(other, frontend.program(other), wide, gpu, seed=0, limit=300.0)


@pytest.mark.alone
def test_a_module_is_timed_in_every_way(wide: TorchModule) -> None:
    checked = frontend.read_text(LINEAR, "linear.ucu")
    program = frontend.program(checked)
    met = match_module(program, wide)
    assert isinstance(met, ModuleMatch)
    values = evidence.baselines_of(
        program, ConfirmationSettings("sm90a", None, None, module=wide), compiled=True
    )
    protocol = Protocol(max_seconds=3.0, min_seconds=0.5, warmup=0.5)
    built = build_program(checked, program, tuple(met.sizes.values()), "sm90a")
    handed = program_payload(checked), built_payload(built)
    found = on_gpu(*handed, "linear", dict(met.sizes), None, 0, values, [asdict(protocol)], None)
    (report,) = found["regimes"]
    outcomes = {o["name"]: o for o in report["outcomes"]}
    assert list(outcomes) == ["candidate", "eager", "eager-tf32", "compile-max-autotune"]
    assert all("failed" not in o for o in outcomes.values()), outcomes
    # TF32 is what tells the two eager columns apart: the switch is set, and set back.
    assert outcomes["eager-tf32"]["span"]["median"] < outcomes["eager"]["span"]["median"]
