"""Rates from times, the best of them, the file, and the command without a GPU."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from fake_ruler import FakeRuler, always

from ucutlass.cli import calibrate as cli
from ucutlass.ir.hardware import DEVICES
from ucutlass.runtime import calibrate, system
from ucutlass.runtime.calibrate import (
    CalibrationFailed,
    CalibrationProtocol,
    CeilingMeasurement,
    CeilingProbe,
    RefusedProbe,
    best,
    ceilings,
    load,
    measure,
    path,
    save,
    warm,
)
from ucutlass.runtime.calibrate.probes import ProbeSizes, sizes_for, torch_probes
from ucutlass.runtime.evidence import intact
from ucutlass.runtime.store import EvidenceStore
from ucutlass.sol.bounds import calibrated
from ucutlass.sol.ceilings import CeilingsError
from ucutlass.tasks.calibrate import run

METHOD = CalibrationProtocol(warmup=1.0, window=0.02, repeats=5)


def probe(
    quantity: str = "copy", amount: float = 8e9, launch: Callable[[], object] = lambda: None
) -> CeilingProbe:
    return CeilingProbe(quantity, "a probe", amount, lambda: launch)


def reading(quantity: str, rate: float, clock: float | None = 1.7e9) -> CeilingMeasurement:
    seconds = rate if quantity == "launch_floor" else 1.0
    return CeilingMeasurement(quantity, f"{quantity} at {rate}", rate, 1, seconds, 0.01, rate, clock)


def complete() -> list[CeilingMeasurement]:
    return [
        reading("copy", 4.0e12),
        reading("copy", 4.2e12),
        reading("read", 4.4e12),
        reading("l2", 7e12),
        reading("launch_floor", 3e-6),
        reading("launch_floor", 2e-6),
        reading("f16", 700e12, 1.4e9),
        reading("f16", 650e12, 1.9e9),
        reading("tf32", 400e12, 1.6e9),
        reading("f32", 60e12, None),
    ]


# --- measuring --------------------------------------------------------------------


def test_the_rate_is_of_the_median() -> None:
    ruler = FakeRuler(lambda: itertools.chain([0.002, 0.001, 0.003], [0.002, 0.004, 0.001, 0.002, 9.0]))
    outcome = measure(probe(amount=8e9), ruler, METHOD)
    assert isinstance(outcome, CeilingMeasurement)
    assert outcome.seconds == 0.002
    assert outcome.rate == 8e9 / 0.002
    assert outcome.spread == pytest.approx(0.5)
    assert outcome.clock == 1.5e9
    # A first guess of 1 ms: 20 launches fill the window.
    assert ruler.asked == [(1, 3), (20, 5)]


def test_tiny_launches_are_not_repeated_for_ever() -> None:
    outcome = measure(probe("launch_floor", 0.0), FakeRuler(always(1e-9)), METHOD)
    assert isinstance(outcome, CeilingMeasurement)
    assert outcome.launches == METHOD.most_launches
    assert outcome.rate == outcome.seconds == 1e-9


def test_what_the_machine_refuses_is_an_answer() -> None:
    def refuse() -> object:
        raise RuntimeError("CUDA out of memory\nand much more")

    outcome = measure(probe(launch=refuse), FakeRuler(always(1.0)), METHOD)
    assert outcome == RefusedProbe("copy", "a probe", "RuntimeError: CUDA out of memory")


def test_what_torch_lacks_is_an_answer_and_a_slip_of_ours_is_not() -> None:
    def lacks(where: object) -> Callable[[], object]:
        return lambda: where.float1_e0m1

    outcome = measure(probe(launch=lacks(torch)), FakeRuler(always(1.0)), METHOD)
    assert isinstance(outcome, RefusedProbe)
    assert outcome.why.startswith("AttributeError: module 'torch' has no attribute 'float1_e0m1'")
    with pytest.raises(AttributeError, match="float1_e0m1"):
        measure(probe(launch=lacks(METHOD)), FakeRuler(always(1.0)), METHOD)


def test_warming_up_takes_the_seconds_asked_for() -> None:
    ruler = FakeRuler(always(0.01))
    warm(lambda: None, ruler, 3.0)
    busy = sum(launches * 0.01 for launches, _ in ruler.asked)
    assert 3.0 <= busy < 3.5


def test_every_probe_is_measured_or_refused() -> None:
    def broken() -> Callable[[], object]:
        raise RuntimeError("no fp8 here")

    probes = [probe("copy"), CeilingProbe("e4m3", "no", 1.0, broken), probe("f16")]
    answer = run(probes, FakeRuler(always(0.5)), METHOD)
    assert [r["quantity"] for r in answer["readings"]] == ["copy", "f16"]
    assert [r["why"] for r in answer["refused"]] == ["RuntimeError: no fp8 here"]
    assert answer["method"]["repeats"] == 5
    json.dumps(answer)


# --- torch's probes, on the CPU ---------------------------------------------------

TINY = ProbeSizes(64 * 4096, ((32, 48, 64),))


def test_probes_count_what_they_move_and_multiply() -> None:
    probes = torch_probes(TINY, "cpu")
    amounts = {p.quantity: p.amount for p in probes}
    assert amounts["copy"] == 2 * 64 * 4096
    assert amounts["read"] == 64 * 4096
    compute_types = {"f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "s8"}
    assert {q: a for q, a in amounts.items() if q in compute_types} == dict.fromkeys(
        compute_types, 2.0 * 32 * 48 * 64
    )


@pytest.mark.parametrize("chosen", torch_probes(TINY, "cpu"), ids=lambda p: f"{p.quantity} {p.name}")
def test_a_probe_does_what_its_name_says(chosen: CeilingProbe) -> None:
    """Each really runs here, on CPU tensors, and gives a result of the right size."""
    launch = chosen.make()
    out = launch()
    assert isinstance(out, torch.Tensor)
    sizes = {"copy": (16 * 4096,), "read": (1, 64 * 4096 // 4 // 1024)}
    assert out.numel() in sizes.get(chosen.quantity, (32 * 48,))
    assert isinstance(measure(chosen, FakeRuler(always(0.01)), METHOD), CeilingMeasurement)


def test_products_multiply_right() -> None:
    """A compute type is worth nothing if its launch computes something else: against float64, with its rounding."""
    for chosen in torch_probes(TINY, "cpu"):
        if chosen.quantity in ("f16", "bf16", "f32", "s8"):
            torch.manual_seed(0)
            out = chosen.make()()
            torch.manual_seed(0)
            integer = chosen.quantity == "s8"
            a, b = (
                torch.randint(-128, 128, (rows, 64), dtype=torch.int8) if integer else torch.randn(rows, 64)
                for rows in (32, 48)
            )
            assert isinstance(out, torch.Tensor)
            torch.testing.assert_close(out.double(), a.double() @ b.double().t(), rtol=0.05, atol=0.5)


def test_tf32_is_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bool] = []
    plain = torch.mm

    def spy(*arguments: Any, **keywords: Any) -> torch.Tensor:
        seen.append(torch.backends.cuda.matmul.allow_tf32)
        return plain(*arguments, **keywords)

    launches = {p.quantity: p.make() for p in torch_probes(TINY, "cpu") if p.quantity in ("tf32", "f32")}
    monkeypatch.setattr(torch, "mm", spy)
    before = torch.backends.cuda.matmul.allow_tf32
    launches["tf32"]()
    launches["f32"]()
    assert seen == [True, False]
    assert torch.backends.cuda.matmul.allow_tf32 == before


def test_buffers_are_far_larger_than_the_l2() -> None:
    assert sizes_for(50 * 2**20, 140 * 2**30).memory == 2 * 2**30
    assert sizes_for(126 * 2**20, 8 * 2**30).memory >= 16 * 126 * 2**20


# --- ceilings and their file ------------------------------------------------------


def test_the_best_of_each() -> None:
    found = ceilings("NVIDIA H200", "GPU-1", complete())
    assert (found.copy, found.read, found.l2, found.launch_floor) == (4.2e12, 4.4e12, 7e12, 2e-6)
    assert dict(found.flops) == {"f16": 700e12, "tf32": 400e12, "f32": 60e12}
    # Of the best products' clocks, 1.4 and 1.6 GHz: the upper median.
    assert found.clock == 1.6e9
    assert best(complete())["copy"].name == "copy at 4200000000000.0"


@pytest.mark.parametrize("lost", ["copy", "read", "launch_floor"])
def test_without_a_ceiling_that_bounds_need_there_are_none(lost: str) -> None:
    with pytest.raises(CalibrationFailed, match=lost):
        ceilings("d", "u", [r for r in complete() if r.quantity != lost])


def test_without_any_product_or_clock_there_are_none() -> None:
    with pytest.raises(CalibrationFailed, match="matrix product, the SM clock"):
        ceilings("d", "u", [r for r in complete() if r.quantity in ("copy", "read", "launch_floor")])
    with pytest.raises(CalibrationFailed, match="the SM clock"):
        ceilings("d", "u", [replace(r, clock=None) for r in complete()])


def test_without_an_l2_there_is_none() -> None:
    assert ceilings("d", "u", [r for r in complete() if r.quantity != "l2"]).l2 is None


def _kept() -> calibrate.Calibration:
    made = ceilings("NVIDIA H200", "GPU-1", complete(), created="2026-01-01T00:00:00+00:00")
    return calibrate.Calibration(made, {"torch": "2.11"}, {"repeats": 15}, tuple(complete()), ())


def test_the_file_gives_back_what_was_kept(tmp_path: Path) -> None:
    calibration = _kept()
    file = save(calibration, tmp_path / "new")
    assert load("NVIDIA H200", "GPU-1", tmp_path / "new") == calibration.ceilings
    assert load("NVIDIA H200", "GPU-2", tmp_path / "new") is None
    assert json.loads(file.read_text())["versions"] == {"torch": "2.11"}
    assert [f.name for f in file.parent.iterdir()] == [file.name]


def test_a_second_calibration_replaces_the_first(tmp_path: Path) -> None:
    save(_kept(), tmp_path)
    later = replace(_kept(), ceilings=replace(_kept().ceilings, copy=1e12))
    save(later, tmp_path)
    found = load("NVIDIA H200", "GPU-1", tmp_path)
    assert found is not None and found.copy == 1e12


def test_names_of_drivers_are_no_paths(tmp_path: Path) -> None:
    assert path("../../etc/passwd", "GPU/../x", tmp_path).parent == tmp_path
    assert path("A" * 500, "u", tmp_path).name.count("A") <= 120


@pytest.mark.parametrize(
    ("text", "words"),
    [("{", "is not JSON"), ("[]", "holds no ceilings"), ('{"ceilings": {}}', "no copy"), ("", "is not JSON")],
)
def test_a_file_that_cannot_be_read_is_told(tmp_path: Path, text: str, words: str) -> None:
    path("d", "u", tmp_path).write_text(text)
    with pytest.raises(CeilingsError, match=words):
        load("d", "u", tmp_path)


def test_a_file_of_another_gpu_is_refused(tmp_path: Path) -> None:
    save(_kept(), tmp_path).rename(path("NVIDIA H200", "GPU-9", tmp_path))
    with pytest.raises(CeilingsError, match="GPU-1, not of NVIDIA H200 GPU-9"):
        load("NVIDIA H200", "GPU-9", tmp_path)


def test_bounds_take_the_ceilings() -> None:
    rates = calibrated(DEVICES["H200"], _kept().ceilings)
    assert (rates.memory, rates.flops["f16"], rates.launch_floor) == (4.4e12, 700e12, 2e-6)


# --- the command ------------------------------------------------------------------

GPU = system.Driver((13, 0), (system.Gpu(0, "NVIDIA H200", (9, 0), 141 * 10**9, 132),), "")


def answer() -> dict[str, Any]:
    return {
        "machine": {
            "device": "NVIDIA H200",
            "uuid": "GPU-1",
            "versions": {"torch": "2.11", "driver": "570.1"},
        },
        "method": {"repeats": 15},
        "readings": [vars_of(r) for r in complete()],
        "refused": [{"quantity": "s8", "name": "torch._int_mm", "why": "RuntimeError: not on this one"}],
    }


def vars_of(found: CeilingMeasurement) -> dict[str, Any]:
    return {name: getattr(found, name) for name in found.__slots__}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    return tmp_path / "data"


def test_the_answer_becomes_ceilings_and_a_sealed_record() -> None:
    found, record = calibrate.calibration(answer())
    assert intact(record) and record.kind == "calibrate"
    assert found.ceilings.evidence == record.id
    assert found.ceilings.created == record.created
    assert record.machine.versions["driver"] == "570.1"
    assert len(record.result["readings"]) == len(complete())


@pytest.mark.parametrize("driver", [None, system.Driver((13, 0), (), "CUDA_ERROR_NO_DEVICE")])
def test_without_a_gpu(data: Path, monkeypatch: pytest.MonkeyPatch, driver: system.Driver | None) -> None:
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: driver)
    done = CliRunner().invoke(cli.command, ["--json"])
    assert done.exit_code == 3
    assert json.loads(done.output)["error"].startswith("no GPU to calibrate: ")
    assert not data.exists()


def test_with_a_gpu_ceilings_are_kept(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ucutlass.runtime import isolation

    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: GPU)
    asked: list[Any] = []

    def isolated(target: str, arguments: Any, **_: Any) -> isolation.CallOutcome:
        asked.append((target, dict(arguments)))
        return isolation.Returned(answer(), "")

    monkeypatch.setattr(isolation, "run", isolated)
    done = CliRunner().invoke(cli.command, ["--device", "0"])
    assert done.exit_code == 0, done.output
    assert asked == [("ucutlass.tasks.calibrate:measure", {"index": 0, "wait_seconds": 300.0})]
    rows = [line.split("\t") for line in done.output.splitlines()]
    assert ["f16", "700.0 TFLOP/s", "71%", "1.0%", "1400 MHz", "f16 at 700000000000000.0"] in rows
    assert ["launch_floor", "2.00 us", "", "1.0%", "1700 MHz", "launch_floor at 2e-06"] in rows
    assert ["not measured", "s8", "torch._int_mm: RuntimeError: not on this one"] in rows
    found = load("NVIDIA H200", "GPU-1")
    assert found is not None
    assert EvidenceStore.open().get(found.evidence[:16]).kind == "calibrate"


@pytest.mark.parametrize(
    ("index", "status", "words"), [("1", 2, "none of the 1 GPUs here"), ("-1", 2, "not in the range x>=0")]
)
def test_an_index_beyond_the_gpus(
    data: Path, monkeypatch: pytest.MonkeyPatch, index: str, status: int, words: str
) -> None:
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: GPU)
    done = CliRunner().invoke(cli.command, ["--device", index])
    assert (done.exit_code, words in done.output) == (status, True)


def test_a_process_that_dies_is_the_machines_fault(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ucutlass.runtime import isolation

    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: GPU)
    monkeypatch.setattr(isolation, "run", lambda *_, **__: isolation.Crashed("SIGSEGV", ""))
    done = CliRunner().invoke(cli.command, ["--json"])
    assert done.exit_code == 3
    assert "SIGSEGV" in json.loads(done.output)["error"]
    assert not (data / "ceilings").exists()
