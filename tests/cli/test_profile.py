"""`ucc profile`: every tier that a machine allows, and the words for those that it does not."""

from __future__ import annotations

import json
import stat
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_machine import H200, Machine

from ucutlass import frontend
from ucutlass.ir.schedule import partial_schedule_of_json, scheduled
from ucutlass.runtime import isolation

BAD = """kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return dot[K](x, w)
  schedule sm90a { warps pingpong  tile 64x64x64  cluster 1x1 }
}
"""
SIZES = ("-s", "M=4096,N=4096,K=4096")

PTXAS = (
    "echo \"ptxas info    : Compiling entry function '_Z4gemm' for 'sm_90a'\" >&2\n"
    'echo "    0 bytes stack frame, 24 bytes spill stores, 40 bytes spill loads" >&2\n'
    'echo "ptxas info    : Used 168 registers, used 1 barriers, 400 bytes smem" >&2\n'
)

MACHINE = {"device": "NVIDIA H200", "uuid": "GPU-1", "versions": {"driver": "580"}}

TIMED = {
    "machine": MACHINE,
    "microseconds": 500.0,
    "spread": 0.002,
    "wall_microseconds": 505.0,
    "copy_bandwidth": 4.2e12,
}

NCU = """#!/bin/sh
while [ $# -gt 0 ]; do case "$1" in --log-file) log=$2;; esac; shift; done
{body}
"""


@pytest.fixture
def program(write: Callable[[str | bytes], Path]) -> Path:
    return write(BAD)


def lines(text: str) -> dict[str, str]:
    return dict(line.split("\t", 1) for line in text.splitlines() if "\t" in line)


def test_without_a_gpu_the_lower_tiers_speak(machine: Machine, program: Path) -> None:
    result = machine.ucc("profile", program, *SIZES)
    assert result.status == 0, result.err
    values = lines(result.out)
    assert values["looked at"] == "analytic, build"
    assert values["no timing"] == values["no counters"] == "no GPU here that runs this kernel"
    assert "no time" not in values and values["estimate"].count("nothing was timed") == 1
    assert values["bottleneck"].startswith("multiplications: ")
    assert "tile 128x256x64" in values["  try"] or "128x128" in values["  try"]
    assert "no record yet" in values["  rule"]


def test_what_is_pasted_is_a_schedule(machine: Machine, program: Path, tmp_path: Path) -> None:
    edit = lines(machine.ucc("profile", program, *SIZES).out)["  try"]
    again = tmp_path / "again.ucu"
    again.write_text(BAD.replace("warps pingpong  tile 64x64x64  cluster 1x1 }", f"{edit}\n  }}"))
    result = machine.ucc("check", again)
    assert result.status == 0, result.out + result.err


def test_spills_of_the_build_come_first(machine: Machine, program: Path) -> None:
    machine.behave(PTXAS + ": > kernel.so\n")
    result = machine.ucc("profile", program, *SIZES, "--json")
    row = result.json
    assert row["build"]["spill_bytes"] == 64
    assert row["advice"]["findings"][0]["rule"] == 3
    assert row["advice"]["findings"][0]["tier"] == "build"
    assert row["unavailable"].keys() >= {"timing", "counters", "disassembly"}


def test_at_most_three_findings(machine: Machine, tmp_path: Path) -> None:
    program = tmp_path / "three.ucu"
    program.write_text(BAD.replace("cluster 1x1", "cluster 1x1  stages 2"))
    assert len(machine.ucc("profile", program, *SIZES, "--json").json["advice"]["findings"]) == 3


# --- with a GPU that is a simulation ---------------------------------------------


@pytest.fixture
def gpu(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An H200 whose trials answer at once; the folder of the toolkit's programs."""
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: H200)
    monkeypatch.setattr("ucutlass.runtime.isolation.run", answers(TIMED))
    own = f"GPU-{uuid.uuid4()}"  # another run of the suite on this machine must not hold its GPU lock
    monkeypatch.setattr("ucutlass.runtime.bench.gpu_lock.gpu_uuid", lambda: own)
    machine.behave(
        PTXAS.replace("24 bytes spill", "0 bytes spill").replace("40 bytes", "0 bytes") + ": > kernel.so\n"
    )
    return tmp_path / "toolkit" / "bin"


def answers(timed: dict[str, Any]) -> Callable[..., isolation.CallOutcome]:
    def run(target: str, arguments: dict[str, Any], **_: Any) -> isolation.CallOutcome:
        json.dumps(arguments)  # what is passed must be JSON
        if target.endswith(":timed"):
            return isolation.Returned(timed, "")
        times = {"now": [500.0, 501.0] * 12, "edit": [200.0, 200.2] * 12}
        differences = {"now": 0.0, "edit": 0.001}
        return isolation.Returned({"machine": MACHINE, "differences": differences, "times": times}, "")

    return run


def program_at(path: Path, body: str) -> None:
    path.write_text(NCU.format(body=body))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


RAW = Path(__file__).parent.parent / "profile" / "data" / "raw.csv"


def test_all_tiers(machine: Machine, program: Path, gpu: Path) -> None:
    program_at(gpu / "ncu", f"cp {RAW} $log")
    row = machine.ucc("profile", program, *SIZES, "--json").json
    assert row["advice"]["tiers"] == ["analytic", "build", "timing", "counters"]
    assert row["counters"]["dram_bytes"] == 134217728.0
    assert row["counters"]["tensor"] is None and "tensor" in row["unavailable"]["single counters"]
    assert row["advice"]["microseconds"] == 500.0


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            'echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission" > $log; exit 1',
            "ERR_NVGPUCTRPERM",
        ),
        ('echo "==ERROR== Failed to initialize the profiler: LibraryNotLoaded"; exit 1', "LibraryNotLoaded"),
    ],
)
def test_no_permission_says_so_and_goes_on(
    machine: Machine, program: Path, gpu: Path, body: str, words: str
) -> None:
    program_at(gpu / "ncu", body)
    result = machine.ucc("profile", program, *SIZES)
    assert result.status == 0, result.err
    values = lines(result.out)
    assert words in values["no counters"]
    assert values["looked at"] == "analytic, build, timing"
    assert "time" in values and "advice 1" in values


def test_counters_that_nobody_asked_for(machine: Machine, program: Path, gpu: Path) -> None:
    program_at(gpu / "ncu", "echo called > $log.called; exit 9")
    values = lines(machine.ucc("profile", program, *SIZES, "--no-counters").out)
    assert values["no counters"] == "not asked for"


def test_a_lost_kernel_is_said(
    machine: Machine, program: Path, gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ucutlass.runtime.isolation.run", lambda *_, **__: isolation.Crashed("SIGSEGV", ""))
    result = machine.ucc("profile", program, *SIZES)
    assert result.status == 1
    assert "SIGSEGV" in lines(result.out)["no timing"]
    assert machine.ucc("profile", "--ledger").out.startswith("no edit has been tried yet")


def test_trying_an_edit_fills_the_ledger(machine: Machine, program: Path, gpu: Path) -> None:
    row = machine.ucc("profile", program, *SIZES, "--no-counters", "--try", "--json").json
    assert row["tried"]["ratio"] == pytest.approx(0.4, rel=0.01)
    first = row["advice"]["findings"][0]["rule"]
    table = machine.ucc("profile", "--ledger", "--json").json
    assert [(r["device"], r["rule"], r["tried"], r["faster"]) for r in table] == [("H200", first, 1, 1)]
    again = machine.ucc("profile", program, *SIZES, "--no-counters")
    assert "1 of 1 tries were faster" in again.out
    explained = machine.ucc("explain", program, *SIZES)
    assert "1 of 1 tries were faster" in explained.out


def test_energy_without_a_counter_is_said(
    machine: Machine, program: Path, gpu: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    timed = TIMED | {"no_energy": "no NVML: no libnvidia-ml.so.1"}
    monkeypatch.setattr("ucutlass.runtime.isolation.run", answers(timed))
    values = lines(machine.ucc("profile", program, *SIZES, "--no-counters", "--energy").out)
    assert values["no energy"].startswith("no NVML")


def test_energy_is_shown(machine: Machine, program: Path, gpu: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    energy = {
        "joules": 0.25,
        "watts": 640.0,
        "seconds": 2.1,
        "launches": 100,
        "clock": 1.5e9,
        "start_clock": 1.98e9,
        "throttled": ["software power cap"],
    }
    monkeypatch.setattr("ucutlass.runtime.isolation.run", answers(TIMED | {"energy": energy}))
    values = lines(machine.ucc("profile", program, *SIZES, "--no-counters", "--energy").out)
    assert values["energy"] == "250 mJ a launch at 640 W, idle not subtracted; software power cap"


# --- calls -----------------------------------------------------------------------


def test_a_file_is_needed(machine: Machine) -> None:
    result = machine.ucc("profile")
    assert result.status == 2 and "FILE is needed" in result.err


def test_explain_carries_advice(machine: Machine, program: Path) -> None:
    row = machine.ucc("explain", program, *SIZES, "--json").json
    assert row["advice"]["findings"][0]["edits"][0]["schedule"].startswith("warps ")
    assert "advice 1" in lines(machine.ucc("explain", program, *SIZES).out)


def test_requests_cross_as_json() -> None:

    checked = frontend.read_text(BAD)
    program = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, program, (4096, 4096, 4096), "sm90a").planned
    crossed = partial_schedule_of_json(json.loads(json.dumps(planned.request.fixed())))
    assert crossed == planned.request
    pinned = scheduled(program, "sm90a", crossed)
    again = frontend.plan_kernel(checked, pinned, (4096, 4096, 4096), "sm90a").planned
    assert again.request == planned.request and again.plan == planned.plan
