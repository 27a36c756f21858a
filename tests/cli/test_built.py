"""What one process has planned and built another takes as it is, by keys: nothing is planned or built
again."""

from __future__ import annotations

import json
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli_machine import Machine

from ucutlass import api, assembly, backend, frontend, ir
from ucutlass.assembly import BuiltPipeline, build_program
from ucutlass.backend import Built
from ucutlass.handoff import HandoffError
from ucutlass.runtime.cache import Cache
from ucutlass.runtime.launch import LaunchRequest
from ucutlass.tasks import built
from ucutlass.tasks.built import ArtifactGone, built_kernel, built_payload

KERNEL = "kernel k(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] { return relu(dot[K](x, w)) }"
PIPELINE = """
# The order of `u` is left to the compiler.
pipeline p(x: bf16[M, K], w: bf16[N, K], b: bf16[N]) -> bf16[M, N] {
  h: bf16[M, N] = dot[K](x, w) + b
  t: bf16[M, N] = torch.tril(h)
  u: bf16 = t * 2
  return gelu(u)
}
"""
SIZES = (256, 128, 512)


def crossed(text: str) -> tuple[frontend.Checked, Any, Any]:
    """A program, what it is built to, and that as another process gets it."""
    checked = frontend.read_text(text)
    done = build_program(checked, frontend.program(checked), SIZES, "sm90a")
    return checked, done, json.loads(json.dumps(built_payload(done)))


@pytest.fixture
def no_compiler(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Takes away planner and compiler once everything is built."""

    def away() -> None:
        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("planned or built again")

        monkeypatch.setattr(frontend, "plan_kernel", refuse)
        monkeypatch.setattr(backend, "plan_kernel", refuse)
        monkeypatch.setattr(backend, "find", refuse)

    return away


def test_a_kernel_arrives_with_its_plan_and_artefact(no_compiler: Any) -> None:
    checked, done, payload = crossed(KERNEL)
    no_compiler()
    (kernel,) = payload["kernels"]
    arrived = built_kernel(checked, frontend.kernel(checked), kernel)
    assert isinstance(done, Built) and arrived.planned == done.planned
    assert arrived.artifact == done.artifact and arrived.source.entry == done.source.entry


def test_a_pipeline_arrives_with_its_orders_and_streams(no_compiler: Any) -> None:
    checked, done, payload = crossed(PIPELINE)
    no_compiler()
    pipeline = frontend.program(checked)
    assert isinstance(pipeline, ir.Pipeline) and isinstance(done, BuiltPipeline)
    arrived = built._pipeline(checked, pipeline, payload)
    assert [None if b is None else b.artifact.key for b in arrived.built] == [
        None if b is None else b.artifact.key for b in done.built
    ]
    assert None in arrived.built and any(b is not None for b in arrived.built)
    assert arrived.plan.sizes == done.plan.sizes and arrived.plan.orders == done.plan.orders
    assert arrived.plan.streams == done.plan.streams
    for here, there in zip(arrived.plan.stages, done.plan.stages, strict=True):
        assert here.step.name == there.step.name and here.step.sizes == there.step.sizes
        assert (here.chosen is None) == (there.chosen is None)


def request(extents: tuple[int, ...], aligned: bool = True) -> LaunchRequest:
    return LaunchRequest(extents, (True, True, aligned), torch.device("cuda:0"))


def test_a_loaded_kernel_takes_what_is_ready_for_its_extents_alone(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, _, payload = crossed(KERNEL)
    kernel = frontend.kernel(checked)
    ready = built_kernel(checked, kernel, payload["kernels"][0])
    monkeypatch.setattr(backend, "bind", lambda built, name: built)
    device = SimpleNamespace(name="NVIDIA H200", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: device)
    choose = partial(api._choose, checked, kernel, "sm90a", False, {}, {}, ready)
    assert choose(request(SIZES)) is ready
    other: Any = choose(request((512, 128, 512)))
    assert other is not ready and other.planned.sizes == (512, 128, 512)
    assert choose(request(SIZES, aligned=False)) is not ready


def test_a_loaded_pipeline_takes_what_is_ready_for_its_extents(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, _, payload = crossed(PIPELINE)
    pipeline = frontend.program(checked)
    assert isinstance(pipeline, ir.Pipeline)
    ready, taken = built._pipeline(checked, pipeline, payload), dict[LaunchRequest, BuiltPipeline]()
    monkeypatch.setattr(assembly, "bind_pipeline", lambda built: built)
    choose = partial(api._choose_all, checked, pipeline, "sm90a", False, taken, ready)
    assert choose(request(SIZES)) is ready and taken == {request(SIZES): ready}


def test_an_artefact_that_is_gone_and_a_spoilt_plan_are_said(machine: Machine) -> None:
    checked, done, payload = crossed(KERNEL)
    (kernel,) = payload["kernels"]
    with pytest.raises(HandoffError):
        built_kernel(checked, frontend.kernel(checked), kernel | {"plan": {}})
    Cache.from_switches().quarantine(done.artifact.key)
    with pytest.raises(ArtifactGone, match="has no entry"):
        built_kernel(checked, frontend.kernel(checked), kernel)
