"""Who is served an adopted source: `load(.., tuned=True)` and the torch.compile backend, for exactly what it was
confirmed for."""

from __future__ import annotations

import warnings
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from cli_machine import Machine
from sources import BY_HAND, COMPILES, PROGRAM, SIZES
from test_adopting import SETTINGS, job

import ucutlass
from ucutlass import backend, frontend
from ucutlass.adopt import database as adopted
from ucutlass.adopt.database import AdoptedRow
from ucutlass.adopt.lookup import AdoptedSourceIgnored, versions_of
from ucutlass.agent import adoption
from ucutlass.api import LoadedKernel
from ucutlass.dynamo import builds
from ucutlass.dynamo.options import CompileOptions
from ucutlass.runtime import launch_spec
from ucutlass.runtime.subject import program_digest
from ucutlass.tasks.built import built_kernel, built_payload
from ucutlass.tune.database import TuningDatabase, key_of

GPU = "NVIDIA H200"
THRICE = BY_HAND.replace("2.0f", "3.0f")
"""Not what the program says, so that a result tells which kernel was launched."""


class TextKernel(Exception):
    """Raised in place of building the text's own kernel, which g++ cannot."""


def keep(text: str = THRICE, gpu: str = GPU, **changes: Any) -> AdoptedRow:
    """Keeps a source as confirmed, with some fields of its row changed."""
    program = frontend.kernel(frontend.read_text(PROGRAM))
    versions = dict(versions_of(backend.toolchain()))
    row = AdoptedRow(
        program_digest(text), "scaled", "confirmed", text, "", (), 10.0, 12.0, versions, ("f" * 64,)
    )
    row = replace(row, created="2026-03-01T12:00:00+00:00", **changes)
    adopted.keep(TuningDatabase.open(), key_of(program, tuple(SIZES.values()), gpu, "sm90a"), row)
    return row


@pytest.fixture
def cpu(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Tensors of the CPU go for those of an H200."""

    def refuse(*_: Any, **__: Any) -> None:
        raise TextKernel

    spec_of = launch_spec.spec_of
    monkeypatch.setattr(launch_spec, "spec_of", lambda *a: replace(spec_of(*a), device="cpu"))
    monkeypatch.setattr(backend, "build_kernel", refuse)
    properties = SimpleNamespace(name=GPU, major=9, minor=0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: properties)
    return machine


def x(rows: int = SIZES["M"]) -> torch.Tensor:
    return torch.arange(rows * SIZES["N"], dtype=torch.float32).reshape(rows, -1)


def test_load_serves_what_was_confirmed_for_exactly_these_extents(cpu: Machine) -> None:
    row = keep()
    k = ucutlass.loads(PROGRAM, tuned=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AdoptedSourceIgnored)
        assert torch.equal(k(x()), 3 * x())
    (origin,) = k.origins.values()
    assert origin.kind == "adopted" and row.source[:16] in str(origin) and "10.00 us" in str(origin)
    with pytest.raises(TextKernel):
        k(x(rows=8))
    with pytest.raises(TextKernel):
        ucutlass.loads(PROGRAM)(x())
    with pytest.raises(TextKernel):
        ucutlass.loads(PROGRAM.replace("2.0", "4.0"), tuned=True)(x())


def test_tensors_that_are_not_aligned_are_served_by_the_text(cpu: Machine) -> None:
    keep()
    moved = torch.zeros(x().numel() + 1)[1:].view(x().shape)
    with pytest.raises(TextKernel):
        ucutlass.loads(PROGRAM, tuned=True)(moved)


def test_what_is_not_confirmed_or_of_another_gpu_is_passed_over_in_silence(cpu: Machine) -> None:
    keep(state="unconfirmed")
    keep(gpu="NVIDIA H100 80GB HBM3")
    with warnings.catch_warnings():
        warnings.simplefilter("error", AdoptedSourceIgnored)
        with pytest.raises(TextKernel):
            ucutlass.loads(PROGRAM, tuned=True)(x())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"versions": {"nvcc": "12.3", "host": "", "cutlass": ""}}, "another nvcc"),
        ({"launch": (1, 2)}, "other launch parameters"),
        ({"source": "0" * 64}, "not the one that was adopted"),
        ({"text": THRICE.replace("return 0;\n  }", "return 1;\n  }")}, "refused its arguments"),
        ({"text": THRICE.replace("<cmath>", "<cstdlib>")}, "include"),
        ({"text": THRICE.replace("3.0f", "no_such_name")}, "no_such_name"),
    ],
)
def test_what_cannot_be_used_is_announced_and_the_text_serves(
    changes: dict[str, Any], words: str, cpu: Machine
) -> None:
    if "text" in changes:
        text = changes.pop("text")
        keep(text, **changes)
    else:
        keep(**changes)
    with pytest.warns(AdoptedSourceIgnored, match=words), pytest.raises(TextKernel):
        ucutlass.loads(PROGRAM, tuned=True)(x())


def test_the_torch_backend_serves_it_and_builds_the_others(
    cpu: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep()
    programs: list[Any] = []

    def built(jobs: list[Any], *_: Any, **__: Any) -> Any:
        programs.extend(job.sizes for job in jobs)
        return lambda: [TextKernel()] * len(jobs)

    monkeypatch.setattr(builds, "start_programs", built)
    region: Any = SimpleNamespace(text=PROGRAM, name="scaled")
    device = torch.device("cuda", 0)
    jobs = [builds.Job(region, ((rows, SIZES["N"]),), device) for rows in (SIZES["M"], 16)]
    own, other = builds.launched(jobs, CompileOptions())()
    assert programs == [(16, 8)] and isinstance(other, TextKernel)
    assert isinstance(own, LoadedKernel) and torch.equal(own(x()), 3 * x())


def test_another_process_gets_the_source_with_the_plan(cpu: Machine) -> None:
    this = job(THRICE)
    own = adoption.build(this, SETTINGS)
    (payload,) = built_payload(own)["kernels"]
    arrived = built_kernel(this.checked, this.program, payload)
    assert arrived.adopted and arrived.source == own.source and arrived.artifact.key == own.artifact.key
    cpu.behave(COMPILES % "")
    own.artifact.library.write_bytes(b"damaged")
    with pytest.warns(backend.RebuiltWarning):
        backend.bind(own, "scaled")
