"""Architectures measured through torch.compile: one of them in this process, and the table."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks import gpu_queue, model_measure, models
from benchmarks.harness import append, lines
from benchmarks.model_cases import CASES, ModelCase, cast, settled
from benchmarks.model_measure import measured
from ucutlass.dynamo.fallback import say


class Small(nn.Module):
    """Batch norm, a gate of zero and an operator that no program computes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(3, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.gate = nn.Parameter(torch.zeros(4, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.norm(self.conv(x)) * self.gate)
        return torch.fft.fft(y.float()).real.to(x.dtype)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path / "cache"))
    case = ModelCase("small", "timm", Small, lambda batch: (torch.randn(batch, 3, 10),))
    monkeypatch.setattr(model_measure, "CASES", {"small": case})


def row_of(tmp_path: Path, dtype: str = "f32", deadline: float | None = None) -> dict[str, Any]:
    return measured(
        "small",
        dtype,
        2,
        str(tmp_path / "note"),
        str(tmp_path / "lock"),
        "cpu",
        exact=True,
        compile=True,
        max_autotune=False,
        kernels=False,
        hold_seconds=1000.0,
        build_seconds=1000.0,
        compile_seconds=1000.0,
        deadline=deadline,
    )


def test_a_row_ends_without_torchinductor_where_the_run_leaves_it_no_time(
    small: None, tmp_path: Path
) -> None:
    row = row_of(tmp_path, deadline=time.monotonic())
    assert (row["status"], row["stage"]) == ("right", "end") and "no time" in row["uncompiled"]
    assert set(row["us"]) == {"ucutlass", "eager"}


def test_a_model_is_measured(small: None, tmp_path: Path) -> None:
    row = row_of(tmp_path)
    assert (row["status"], row["stage"], row["graphs"], row["oracle"]) == ("right", "end", 1, "float64")
    assert row["programs"] >= 1 and row["choices"] == ["programs"] and row["unbuilt"] == []
    assert any("fft" in operator for operator, _, _ in row["reasons"])
    assert set(row["us"]) == set(row["call_us"]) == {"ucutlass", "eager", "inductor"}
    assert set(row["seconds"]) == {"ucutlass", "inductor"} and row["error"] <= 1e-6
    parts = row["parts"]
    assert {"tracing", "importing", "fallback", "choosing"} <= set(parts)
    assert abs(sum(parts.values()) - row["seconds"]["ucutlass"]) < 0.1
    written: dict[str, Any] = {}
    for line in lines(tmp_path / "note"):
        written |= line
    assert written == row


@pytest.mark.slow
def test_a_wrong_program_is_seen(small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = model_measure._reference

    def off(region: Any) -> Any:
        call = right(region)
        return lambda *arguments: call(*arguments) * 1.01

    monkeypatch.setattr(model_measure, "_reference", off)
    row = row_of(tmp_path)
    assert row["status"] == "wrong" and "norm" in row["wrong"][0]


def test_an_operator_without_float64_has_an_oracle_in_f32() -> None:
    class Narrow(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if x.dtype == torch.float64:
                raise RuntimeError("not implemented for 'Double'")
            return super().forward(x)

    model, x = Narrow(3, 2).bfloat16(), torch.randn(4, 3).bfloat16()
    with torch.no_grad():
        name, (result,) = model_measure.exact_results(model, [x], exact=True)
    assert name == "f32" and result.dtype == torch.float32


def test_every_layer_counts() -> None:
    torch.manual_seed(0)
    model = settled(Small(), (torch.randn(8, 3, 10),))
    assert isinstance(model, Small) and not model.training
    assert model.gate.abs().max() > 0 and model.norm.running_mean is not None
    assert model.norm.running_mean.abs().max() > 0 and model.norm.momentum == 0.1
    with torch.no_grad():
        normed = model.norm(model.conv(torch.randn(64, 3, 10)))
    assert 0.3 < float(normed.std()) < 3


def test_there_are_enough_architectures() -> None:
    assert len(CASES) >= 60 and {case.suite for case in CASES.values()} == {
        "torchvision",
        "timm",
        "transformers",
    }


ROWS = [
    {
        "name": f"{model} bf16 {batch}",
        "model": model,
        "dtype": "bf16",
        "batch": batch,
        "status": "right",
        "us": {"ucutlass": 10.0, "eager": 30.0, "inductor": 10.0 * ratio},
        "call_us": {"ucutlass": 20.0, "eager": 90.0, "inductor": 40.0},
        "share": 0.9,
        "programs_share": 0.9,
        "programs": 2,
        "outside": 1,
        "seconds": {"ucutlass": 3.0, "inductor": 9.0},
        "parts": {"tracing": 1.0, "building": 2.0},
        "error": 2e-3,
        "eager_error": 4e-3,
    }
    for model, batch, ratio in (("a", 1, 2.0), ("b", 1, 0.5), ("a", 16, 1.0))
] + [
    {
        "name": "c bf16 1",
        "model": "c",
        "dtype": "bf16",
        "batch": 1,
        "status": "lost",
        "lost": "SIGSEGV",
        "stage": "time",
    }
]


def test_the_table_counts_by_type_and_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for row in ROWS:
        append(tmp_path / "rows.jsonl", row)
    monkeypatch.setattr("sys.argv", ["models", "--table", str(tmp_path / "rows.jsonl")])
    assert models.main() == 0
    text = capsys.readouterr().out
    assert "bf16, batch 1: 3 rows of 3 models, {'right': 2, 'lost': 1}, mean share of programs 0.900" in text
    assert "mean seconds of a first call: tracing 1.0, building 2.0" in text
    assert "us      against inductor       2 rows, geomean 1.000, least 0.500, below 0.95: 1" in text
    assert "all: 4 rows of 3 models" in text and "  0.500 b bf16 1" in text
    assert (
        "| a bf16 16 | right | 10 | 3.000 | 1.000 | - | 2.000 | 1.000 | 0.900 | 1 | 0.500 | 3.0 | 9.0 |"
        in text
    )


def test_ratios_in_graphs_are_held_against_their_bars() -> None:
    figures = {figure.label: figure for figure in models.figures(ROWS)}
    assert set(figures["in graphs over inductor"].missed) == {"geomean 1.1", "least 0.95"}
    assert figures["architectures"].values == {"right": 2.0} and figures["architectures"].missed


def test_rows_are_chosen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["models", "--list", "--only", "resnet50,hf_llama", "--dtype", "bf16,f32", "--batch", "1,16"]
    monkeypatch.setattr("sys.argv", words)
    assert models.main() == 0
    names = capsys.readouterr().out.split("\n")[:-1]
    assert len(names) == 8 and names[0] == "resnet50 bf16 1" and names[-1] == "hf_llama f32 16"
    monkeypatch.setattr("sys.argv", ["models", "--only", "nothing"])
    with pytest.raises(SystemExit, match="no model is named nothing"):
        models.main()


def test_a_run_loses_a_row_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {
        "a": {"status": "right", "stage": "end"},
        "b": {"status": "lost", "stage": "inductor", "lost": "x"},
    }
    asked: list[tuple[str, bool]] = []

    def called(target: str, arguments: dict[str, Any], *rest: Any, **more: Any) -> dict[str, Any]:
        if target.endswith(":compiled_once"):
            return {"warm": 2.0}
        asked.append((arguments["name"], arguments["compile"]))
        return dict(answers[arguments["name"]])

    monkeypatch.setattr(models.gpu_queue, "called", called)
    settings = models.RunSettings(
        (0,), 2, True, False, True, False, tmp_path, tmp_path / "rows.jsonl", None, True, "run"
    )
    models.run([{"name": f"{m} f32 1", "model": m, "dtype": "f32", "batch": 1} for m in "ab"], settings)
    rows = {row["name"]: row for row in lines(tmp_path / "rows.jsonl")}
    assert rows["a f32 1"]["warm_seconds"] == {"ucutlass": 2.0, "inductor": 2.0}
    assert sorted(asked) == [("a", True), ("b", False), ("b", True)] and "first_loss" in rows["b f32 1"]


@pytest.mark.slow
def test_programs_are_timed_where_the_fallback_is_faster(
    small: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_measure, "_programs_first", lambda first, second: (2.0, 1.0))
    row = row_of(tmp_path)
    assert row["choices"] == ["fallback"] and row["status"] == "right"
    assert set(row["us"]) == {"ucutlass", "programs", "eager", "inductor"}
    assert models.ratio(row, "us", "inductor", "programs") == row["us"]["inductor"] / row["us"]["programs"]


def test_what_goes_to_the_fallback_is_noted() -> None:
    with model_measure.fallback_notes() as notes:
        for _ in range(2):
            say("a program is not served: no kernel")
        warnings.warn("of another kind", UserWarning, stacklevel=1)
    assert notes == ["a program is not served: no kernel"] * 2


class Remembering(nn.Module):
    """Computes a table of its parameters once for each device."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4))
        self.tables: dict[str, torch.Tensor] = {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.tables.setdefault(str(x.device), self.bias * 2)


def test_tables_that_modules_remember_are_cast_too() -> None:
    model = nn.Sequential(Remembering())
    model(torch.ones(4))
    assert cast(model, torch.bfloat16)(torch.ones(4, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_a_cut_run_has_every_model_and_lane_alike() -> None:
    options = models.parser().parse_args(["--seed", "3"])
    rows = models.selected(options)
    assert len({row["name"] for row in rows}) == len(rows) == 4 * len(CASES)
    first = rows[: len(CASES)]
    assert {row["model"] for row in first} == set(CASES)
    lanes = [(row["dtype"], row["batch"]) for row in first]
    assert max(map(lanes.count, lanes)) - min(map(lanes.count, lanes)) <= 1
    assert rows != models.selected(models.parser().parse_args(["--seed", "4"]))


def test_a_process_gets_one_of_the_gpus_that_the_run_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,5")
    assert gpu_queue.environment(1, 1)["CUDA_VISIBLE_DEVICES"] == "5"
    assert gpu_queue.environment(None, 1)["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert gpu_queue.environment(1, 1)["CUDA_VISIBLE_DEVICES"] == "1"
