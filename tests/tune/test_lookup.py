"""Recorded schedules in `load`, and when one is passed over."""

from __future__ import annotations

import ctypes
import functools
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cli_machine import H200, Machine, fake_machine

import ucutlass
from ucutlass import backend, frontend
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.runtime import launch_spec
from ucutlass.runtime.launch import BoundKernel
from ucutlass.shapes import complete
from ucutlass.tune.database import TunedRow, TuningDatabase, key_of
from ucutlass.tune.lookup import NotLegalWarning, UnreadableWarning, recall
from ucutlass.tune.space import explore

PLAIN = "kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {{ return dot[K](x, w) {} }}"
FIXED = PLAIN.format("schedule sm90a { warps cooperative  tile 128x256x64  cluster 2x1 }")
SIZES = {"M": 512, "N": 256, "K": 128}
GPU = "NVIDIA H200"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """One H200 as far as anybody asks, and an nvcc that makes an empty library at once."""
    yield from fake_machine(tmp_path, monkeypatch, H200)


@functools.cache
def another(text: str = PLAIN.format(""), place: int = 5) -> PartialSchedule:
    """A legal schedule that the compiler would not choose."""
    checked = frontend.read_text(text)
    program = frontend.kernel(checked)
    space = explore(checked, program, complete(program, SIZES), "sm90a", free=True)
    return space.groups[place].request


def recorded(
    request: PartialSchedule, text: str = PLAIN.format(""), gpu: str = GPU, **sizes: int
) -> TunedRow:
    program = frontend.kernel(frontend.read_text(text))
    row = TunedRow(request, 12.5, 10.0, {"nvcc": "13.0.88"}, "f" * 64, "2026-03-01T12:00:00+00:00")
    key = key_of(program, complete(program, {**SIZES, **sizes}), gpu, "sm90a")
    return TuningDatabase.open().keep(key, row)


# --- load ------------------------------------------------------------------------


@pytest.fixture
def bound(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[PartialSchedule]:
    """The schedules of the kernels that were bound; their launches do nothing."""
    entry = ctypes.CFUNCTYPE(ctypes.c_int32, *[ctypes.c_void_p] * 7)(lambda *_: 0)
    address = ctypes.cast(entry, ctypes.c_void_p).value
    assert address is not None
    partial_schedules: list[PartialSchedule] = []

    def bind(built: backend.Built, name: str) -> BoundKernel:
        partial_schedules.append(built.planned.request)
        return BoundKernel(address, (0, 1, 1), 0, entry)

    monkeypatch.setattr(backend, "bind", bind)
    # Tensors of the CPU go for those of the GPU.
    spec_of = launch_spec.spec_of
    monkeypatch.setattr(launch_spec, "spec_of", lambda *a: replace(spec_of(*a), device="cpu"))
    properties = SimpleNamespace(name=GPU, major=9, minor=0)
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda _: properties)
    return partial_schedules


def tensors(m: int = SIZES["M"]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(m, SIZES["K"], dtype=torch.bfloat16), torch.zeros(256, 128, dtype=torch.bfloat16)


def test_load_takes_exactly_this_device_program_and_shape(bound: list[PartialSchedule]) -> None:
    expected = another()
    row = recorded(expected)
    k = ucutlass.loads(PLAIN.format(""), tuned=True)
    k(*tensors())
    k(*tensors())
    k(*tensors(m=1024))
    assert bound[0] == expected and bound[1] != expected and len(bound) == 2
    (here, origin), (_, other) = k.origins.items()
    assert here.extents == (512, 128, 256) and origin.kind == "tuned" and origin.row == row
    assert "12.50 us" in str(origin) and other.kind == "planner" and str(other) == "the planner"
    ucutlass.loads(PLAIN.format("").replace("dot[K](x, w)", "relu(dot[K](x, w))"), tuned=True)(*tensors())
    assert bound[2] != expected


def test_load_of_a_file_takes_it_in_place_of_what_the_program_fixes(
    bound: list[PartialSchedule], tmp_path: Path
) -> None:
    expected = another()
    assert expected.tile != (128, 256, 64)
    recorded(expected)
    path = tmp_path / "linear.ucu"
    path.write_text(FIXED)
    ucutlass.load(path, tuned=True)(*tensors())
    plain = ucutlass.load(path)
    plain(*tensors())
    assert bound[0] == expected and bound[1].tile == (128, 256, 64)
    assert [o.kind for o in plain.origins.values()] == ["program"]


def test_tensors_that_are_not_aligned_are_planned_for(bound: list[PartialSchedule]) -> None:
    expected = another()
    recorded(expected)
    k = ucutlass.loads(PLAIN.format(""), tuned=True)
    x, w = tensors()
    k(torch.zeros(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape), w)
    assert bound[0] != expected and [o.kind for o in k.origins.values()] == ["planner"]


def test_nothing_recorded_is_nothing_to_say(bound: list[PartialSchedule]) -> None:
    recorded(another(), gpu="NVIDIA H200 NVL")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ucutlass.loads(PLAIN.format(""), tuned=True)(*tensors())
    assert len(bound) == 1


def test_an_unreadable_database_is_announced_and_the_kernel_planned(bound: list[PartialSchedule]) -> None:
    TuningDatabase.open().prepare()
    TuningDatabase.open().path.write_bytes(b"no database" * 1000)
    k = ucutlass.loads(PLAIN.format(""), tuned=True)
    with pytest.warns(UnreadableWarning, match=r"no tuned schedule was looked up.*is damaged"):
        k(*tensors())
    assert len(bound) == 1 and "could not be read" in str(*k.origins.values())


def test_a_schedule_that_is_not_legal_any_more_is_announced_and_ignored(bound: list[PartialSchedule]) -> None:
    recorded(replace(another(), tile=(128, 100, 64)))
    k = ucutlass.loads(PLAIN.format(""), tuned=True)
    with pytest.warns(NotLegalWarning, match=r"tile 128x100x64.*not legal any more.*\[UC04"):
        k(*tensors())
    assert bound[0].tile != (128, 100, 64)
    assert str(*k.origins.values()) == "the planner; the recorded one is not legal any more"


# --- what the program denotes ----------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "taken"),
    [
        ("", True),
        ("schedule sm90a { warps %(warps)s }", True),
        ("schedule sm90a { tile 64x16x64 or %(tile)s }", True),
        ("schedule sm90a { tile 64x16x64 }", False),
        ("schedule sm90a when M <= 64 { tile 64x16x64 }", True),
        ("schedule sm90a when M == 512 { tile 64x16x64 }  schedule sm90a { tile %(tile)s }", False),
        ("schedule sm80 { tile 64x64x32 }", True),
    ],
)
def test_without_beyond_it_is_one_that_the_program_denotes(
    machine: Machine, schedule: str, taken: bool
) -> None:
    expected = another()
    assert expected.tile is not None and expected.tile != (64, 16, 64)
    values = {"warps": expected.warps, "tile": "x".join(map(str, expected.tile))}
    checked = frontend.read_text(PLAIN.format(schedule % values))
    program = frontend.kernel(checked)
    recorded(expected)
    sizes = complete(program, SIZES)
    drawn, origin = recall(checked, program, sizes, "sm90a", GPU, beyond=False)
    assert (frontend.plan_kernel(checked, drawn, sizes, "sm90a").planned.request == expected) is taken
    assert (origin.kind == "tuned") is taken and bool(origin.note) is not taken
    _, always = recall(checked, program, sizes, "sm90a", GPU, beyond=True)
    assert always.kind == "tuned"


# --- ucc build -------------------------------------------------------------------

S = ("-s", "M=512,N=256,K=128")


def build(machine: Machine, path: Path, *options: str) -> tuple[str, str]:
    row = machine.ucc("build", path, *S, "--json", *options).json
    return row["schedule"], row["from"]


def test_build_draws_on_what_is_recorded_and_says_so(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "linear.ucu"
    path.write_text(PLAIN.format(""))
    own, said = build(machine, path)
    assert said == "the planner"
    recorded(another())
    tuned, said = build(machine, path)
    assert tuned != own and said.startswith("tuned: 12.50 us, 2026-03-01, record ffff")
    assert build(machine, path, "--no-tuned") == (own, "the planner")
    rows = machine.ucc("build", path, "-s", "N=256,K=128", "--shape", "M=512", "--shape", "M=64").out
    heading, first, second = rows.splitlines()
    assert heading.split("\t")[0] == "kernel"
    assert first.endswith("record ffffffffffffffff") and second.endswith("\tthe planner")


def test_build_does_not_overrule_a_schedule_that_the_program_fixes(machine: Machine, tmp_path: Path) -> None:
    path = tmp_path / "linear.ucu"
    path.write_text(FIXED)
    recorded(another())
    schedule, said = build(machine, path)
    assert "tile 128x256x64" in schedule and "the program's schedule; a tuned one of 12.50 us" in said
    schedule, said = build(machine, path, "--tuned")
    assert "tile 128x256x64" not in schedule and said.startswith("tuned")


def test_build_without_a_gpu_or_a_readable_database_plans(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "linear.ucu"
    path.write_text(PLAIN.format(""))
    recorded(another())
    whole = TuningDatabase.open().path.read_bytes()
    TuningDatabase.open().path.write_bytes(b"no database" * 1000)
    result = machine.ucc("build", path, *S)
    assert result.status == 0 and "ucc: no tuned schedule was looked up" in result.err
    TuningDatabase.open().path.write_bytes(whole)
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: None)
    result = machine.ucc("build", path, *S)
    assert result.status == 0 and result.err == ""
    assert "from\tthe planner; what is recorded is of a GPU, and none is here\n" in result.out


def test_build_asks_the_driver_only_where_something_is_recorded(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "linear.ucu"
    path.write_text(PLAIN.format(""))
    recorded(another(), M=1024)
    asked: list[None] = []
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: asked.append(None) or H200)
    assert build(machine, path)[1] == "the planner" and not asked
    recorded(another())
    assert build(machine, path, "--no-tuned")[1] == "the planner" and not asked
    assert build(machine, path)[1].startswith("tuned") and asked
