"""`ucc bench`: what it asks of the comparison's process, prints, records and returns."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "cli"))

from bench_fakes import Cells, FakeGpu
from cli_machine import H200, LINEAR, NVCC, SIZES, Machine

from ucutlass import backend
from ucutlass.frontend import read
from ucutlass.handoff import checked_of, planned_of
from ucutlass.ir.schedule import show
from ucutlass.runtime import isolation
from ucutlass.runtime.bench.measure import measure
from ucutlass.runtime.bench.outcome import UntimedCandidate
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.bench.report import to_json
from ucutlass.runtime.evidence import Machine as Where
from ucutlass.runtime.store import EvidenceStore
from ucutlass.runtime.store.compare import compare
from ucutlass.tasks import bench as trial

command = importlib.import_module("ucutlass.cli.bench")


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """An H200 by name, and an nvcc that makes an empty library at once."""
    toolkit = tmp_path / "toolkit" / "bin"
    toolkit.mkdir(parents=True)
    (toolkit / "nvcc").write_text(NVCC.format(home=tmp_path))
    (toolkit / "nvcc").chmod(0o755)
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("UCUTLASS_CUDA_HOME", str(toolkit.parent))
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: H200)
    monkeypatch.setattr(command.gpu_lock, "gpu_uuid", lambda: "GPU-1")
    monkeypatch.setattr(command.gpu_lock.tempfile, "gettempdir", lambda: str(tmp_path))
    made = Machine(tmp_path)
    made.behave(": > kernel.so\n")
    yield made
    backend.toolchain.cache_clear()


def answer(chosen: Protocol, second: str, ok: bool = True) -> dict[str, Any]:
    """As the comparison's process answers, measured on the tests' own device."""
    gpu, cells = FakeGpu(), Cells()
    names = (("candidate", 200.0), (second, 250.0), ("cublas", 200.5))
    measured = measure([cells.honest(gpu, n, us) for n, us in names], cells, gpu, chosen, now=lambda: 0.0)
    refused = [UntimedCandidate("compile", "preparation", "NotAvailable: a gather by several dimensions")]
    report = to_json(measured, chosen, refused) | {"buffers": {"sets": 4, "bytes_per_set": 1000, "l2": 10}}
    return {
        "device": "NVIDIA H200",
        "machine": asdict(Where("NVIDIA H200", "GPU-1", {"torch": "2.11.0"})),
        "verified": [
            {"case": c, "ok": ok, "words": "result: 3 elements beyond the bound"} for c in ("normal",)
        ],
        "regimes": [report] if ok else [],
    }


Run = Callable[..., tuple[Any, dict[str, Any]]]


@pytest.fixture
def run(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Run:
    def called(
        *more: str,
        sizes: Sequence[str] = SIZES,
        outcome: isolation.CallOutcome | None = None,
        ok: bool = True,
    ) -> tuple[Any, dict[str, Any]]:
        values: dict[str, Any] = {}

        def replaced(target: str, arguments: dict[str, Any], **limits: Any) -> isolation.CallOutcome:
            assert target == "ucutlass.tasks.bench:on_gpu"
            values.update(json.loads(json.dumps(arguments)), **limits)
            if outcome is not None:
                return outcome
            chosen = Protocol(**{**arguments["protocols"][0], "warmup": 0.0, "min_seconds": -1.0})
            second = next((b["name"] for b in arguments["baselines"]), "eager")
            return isolation.Returned(json.loads(json.dumps(answer(chosen, second, ok))), "")

        monkeypatch.setattr(isolation, "run", replaced)
        return machine.ucc("bench", LINEAR, *sizes, *more), values

    return called


def test_the_table_says_time_ratio_and_verdict(run: Run) -> None:
    result, asked = run("--baseline", "eager", "--baseline", "cublas", "--baseline", "compile")
    assert result.status == 0, result.err
    lines = {line.split("\t")[0]: line.split("\t")[1:] for line in result.out.splitlines()}
    assert lines["candidate"][0] == "200.00 us" and lines["candidate"][2] == "cupti"
    assert lines["eager"][-1] == "faster" and lines["eager"][-2].startswith("0.800 [")
    assert lines["cublas"][-1] == "no difference"
    assert lines["compile"][0] == "failed in preparation: NotAvailable: a gather by several dimensions"
    assert [b["name"] for b in asked["baselines"]] == ["eager", "cublas", "compile"]
    assert asked["bandwidth"] == 4.8e12 and asked.pop("limit_seconds") == 600.0
    assert set(asked) == set(inspect.signature(trial.on_gpu).parameters) - {"proven"}


def test_every_regime_becomes_a_record(run: Run) -> None:
    result, asked = run("--regime", "both", "--json")
    row = json.loads(result.out)
    assert [p["regime"] for p in asked["protocols"]] == ["cold", "warm"]
    (found,) = EvidenceStore.open().find(kind="bench")
    assert row["records"] == [found.id]
    assert found.subject.kernel == "linear_gelu" and found.subject.binary
    assert found.machine.uuid == "GPU-1" and found.machine.versions["torch"] == "2.11.0"
    assert found.protocol["regime"] == "cold"
    assert found.result["outcomes"][0]["span"]["median"] == 200.0
    assert found.result["verified"][0]["ok"] is True


def test_the_bound_is_at_the_clock_that_was_measured(run: Run) -> None:
    row = json.loads(run("--json")[0].out)["regimes"][0]
    clock = row["outcomes"][0]["sm_clock"]
    # 256 x 256 x 256 is bound by memory, whose clock is another.
    assert clock == pytest.approx(1.9e9, rel=1e-3) and row["bound_at_clock"] == row["bound"] > 0
    sizes = ("-s", "M=4096", "-s", "N=4096", "-s", "K=4096")
    large = json.loads(run("--json", sizes=sizes)[0].out)["regimes"][0]
    assert large["bound_at_clock"] == pytest.approx(large["bound"] * 1.83e9 / clock)


def test_a_wrong_kernel_has_no_speed(run: Run) -> None:
    result, _ = run(ok=False)
    assert result.status == 1
    assert "a wrong kernel has no speed" in result.out and "beyond the bound" in result.out
    assert " us" not in result.out
    assert EvidenceStore.open().find() == ()


@pytest.mark.parametrize(
    "outcome, words",
    [
        (isolation.Crashed("SIGSEGV", ""), "was ended by SIGSEGV"),
        (isolation.TimedOut(9.0, ""), "did not end within 9 s"),
        (
            isolation.Raised("AcceleratorError", "CUDA error: misaligned address", "", ""),
            "misaligned address",
        ),
    ],
)
def test_a_lost_comparison_is_one_line(run: Run, outcome: isolation.CallOutcome, words: str) -> None:
    result, _ = run(outcome=outcome)
    assert result.status == 1 and result.out == ""
    assert result.err.startswith("ucc: linear_gelu: ") and words in result.err


def test_a_file_as_baseline_has_a_record_of_its_own(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.ucu"
    other.write_text(LINEAR.read_text().replace("stages auto", "stages 3"))
    result, asked = run("--baseline", str(other), "--json")
    (baseline,) = asked["baselines"]
    assert baseline["name"] == str(other) and checked_of(baseline["program"]) == read(other)
    (kernel,) = baseline["built"]["kernels"]
    assert "stages 3" in show(planned_of(kernel["plan"]).request) and kernel["key"]
    ids = json.loads(result.out)["records"]
    ours, theirs = (EvidenceStore.open().get(i) for i in ids)
    assert theirs.parents == (ours.id,) and theirs.subject.program != ours.subject.program
    assert [o["name"] for o in theirs.result["outcomes"]] == [str(other)]
    record_comparison = compare(ours, theirs)
    assert record_comparison.verdict == "faster" and record_comparison.ratio is not None
    assert record_comparison.ratio.median == pytest.approx(0.8, rel=1e-3)


def test_a_file_that_cannot_be_built_is_left_to_the_comparison(run: Run, tmp_path: Path) -> None:
    other = tmp_path / "other.ucu"
    other.write_text("kernel k(")
    result, asked = run("--baseline", str(other))
    (baseline,) = asked["baselines"]
    assert result.status == 0 and baseline.keys() == {"name", "refused"} and "UC00" in baseline["refused"]


@pytest.mark.parametrize("name", ["cudnn", "missing.ucu"])
def test_an_unknown_baseline_is_the_calls_fault(run: Run, name: str) -> None:
    result, asked = run("--baseline", name)
    assert result.status == 2 and name in result.err and not asked


def test_without_a_gpu_nothing_is_timed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: None)
    result = machine.ucc("bench", LINEAR, *SIZES)
    assert result.status == 3 and "nothing was timed" in result.err
    assert machine.builds == 0


def test_the_gpu_lock_is_held_while_it_times(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []

    @contextlib.contextmanager
    def held(gpu: str, *, timeout_seconds: float, on_wait: Callable[[str], None]) -> Iterator[None]:
        order.append(f"take {gpu}")
        on_wait("process 12 on here")
        yield
        order.append("leave")

    monkeypatch.setattr(command.gpu_lock, "hold_gpu", held)
    result, _ = run()
    assert order == ["take GPU-1", "leave"]
    assert "waiting for process 12 on here" in result.err
