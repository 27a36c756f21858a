"""`ucc` on pipelines, on a machine without a GPU and on one whose kernels are the reference's."""

from __future__ import annotations

import importlib
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from cli_machine import H200, Machine, Ucc

from ucutlass.cli import pipelines
from ucutlass.runtime import isolation, sanitize
from ucutlass.runtime.store import EvidenceStore
from ucutlass.shapes import ShapeError

MLP = Path(__file__).parent.parent.parent / "examples" / "mlp.ucu"
SIZES = ("-s", "T=64,D=32,F=128")

BRANCHES = """
kernel linear(x: bf16[M, K], w: bf16[N, K]) -> bf16[M, N] {
  return dot[K](x, w)
  schedule sm90a when M <= 64 { warps pingpong  tile 64x64x64 }
}

pipeline branches(x: bf16[T, D], a: bf16[F, D], b: bf16[F, D]) -> bf16[T, T2=T] {
  p = linear(x, a)
  q = linear(x, b)
  r: bf16[T, F] = torch.relu(q)
  return dot[F](p, r[T = T2])
}
"""


def test_check_takes_a_pipeline_with_and_without_extents(ucc: Ucc, write: Any) -> None:
    path = write(BRANCHES)
    assert ucc("check", path).out == f"{path}: fine\n"
    assert ucc("check", path, "-s", "T=48,D=64,F=64").status == 0
    wrong = ucc("check", path, "-s", "T=48,D=64,M=64")
    assert wrong.status == 2 and "UC0601" in wrong.err


def test_check_names_the_stage_that_no_family_serves(ucc: Ucc, write: Any) -> None:
    path = write(
        "pipeline p(x: bf16[T, D], a: bf16[F, D], b: bf16[G, F], c: bf16[O, G]) -> bf16[T, O] {\n"
        "  h: bf16[T, F] = dot[D](x, a)\n"
        "  return dot[G](bf16(dot[F](bf16(h), b)), c)\n}\n"
    )
    rows = ucc("check", path, "--json").json["diagnostics"]
    assert [row["span"]["line"] for row in rows] == [3]
    assert rows[0]["code"].startswith("UC03")


def test_an_illegal_schedule_of_a_called_kernel_is_found(ucc: Ucc, write: Any) -> None:
    result = ucc("check", write(BRANCHES.replace("64x64x64", "100x64x64")))
    assert result.status == 1 and "nearest legal schedule" in result.err
    found = [line for line in result.err.splitlines() if "error:" in line]
    assert len(found) == len(set(found)), "said once, though two stages and the kernel itself have it"


def test_an_illegal_schedule_of_a_stage_is_found_with_and_without_extents(ucc: Ucc, write: Any) -> None:
    text = BRANCHES.removesuffix("}\n") + "  schedule sm90a for return when T <= 64 { tile %s }\n}\n"
    path = write(text % "100x64x64")
    for sizes in ((), ("-s", "T=48,D=64,F=64")):
        (row,) = ucc("check", path, *sizes, "--json").json["diagnostics"]
        assert (row["code"], row["span"]["line"]) == ("UC0441", 12)
    assert ucc("check", path, "-s", "T=128,D=64,F=64").status == 0, "its condition does not hold"
    assert ucc("check", write(text % "64x64x64")).status == 0


def test_explain_says_what_the_text_gives_of_a_stages_schedule(ucc: Ucc, write: Any) -> None:
    block = "  schedule sm90a for return { tile 64x128x64  stages 3 }\n}\n"
    path = write(BRANCHES.removesuffix("}\n") + block)
    stages = ucc("explain", path, "-s", "T=128,D=64,F=64", "--json").json["stages"]
    assert [s["given"] for s in stages] == [[], [], [], ["tile", "stages"]]
    assert "tile 64x128x64" in stages[3]["schedule"]
    assert "(given: tile stages)" in ucc("explain", path, "-s", "T=128,D=64,F=64").out


def test_explain_says_stages_streams_workspace_and_cuts(ucc: Ucc, write: Any) -> None:
    path = write(BRANCHES)
    row = ucc("explain", path, "-s", "T=64,D=64,F=128", "--json").json
    assert [s["name"] for s in row["stages"]] == ["p = linear", "q = linear", "r = torch.relu", "return"]
    assert [s["torch"] for s in row["stages"]] == [False, False, True, False]
    assert [s["stream"] for s in row["stages"]] == [0, 1, 0, 0]
    assert row["stages"][2]["waits"] == ["q = linear"]
    assert row["stages"][0]["reads"] == {"x": 64 * 64 * 2, "a": 128 * 64 * 2}
    assert row["workspace"]["bytes"] == 2 * 64 * 128 * 2, "r is torch's own"
    cuts = {c["buffer"]: c for c in row["cuts"]}
    assert set(cuts) == {"p", "q", "r"}
    assert cuts["p"]["bytes"] == 2 * 64 * 128 * 2 and not cuts["p"]["one_launch"]
    assert "torch function" in cuts["q"]["why"]
    words = ucc("explain", path, "-s", "T=64,D=64,F=128").out
    assert "torch functions\tr = torch.relu" in words and "4 on 2 streams" in words


def test_explain_proposes_what_a_family_would_fuse(ucc: Ucc, write: Any) -> None:
    path = write(
        "pipeline p(x: bf16[T, D], w: bf16[F, D]) -> bf16[T, F] {\n"
        "  h: bf16[T, F] = dot[D](x, w)\n  return gelu(h)\n}\n"
    )
    (cut,) = ucc("explain", path, "-s", "T=256,D=256,F=256", "--json").json["cuts"]
    assert cut["one_launch"] and cut["bytes"] == 2 * 256 * 256 * 2
    assert "without an element type" in cut["why"] and cut["saves_seconds"] > 0


def test_explain_names_orders_that_were_chosen_and_ones_that_would_be(ucc: Ucc, write: Any) -> None:
    text = (
        "pipeline p(x: bf16[B, T, C], w: bf16[(H=8 D), C], v: bf16[H, D, E]) -> bf16[B, T, H, E] {\n"
        "  q: bf16TYPE = dot[C](x, w)\n  return dot[D](q, v)\n}\n"
    )
    sizes = ("-s", "B=64,T=512,C=768,D=96,E=96")
    path = write(text.replace("TYPE", ""))
    assert ucc("check", path).out == f"{path}: fine\n"
    (row,) = ucc("explain", path, *sizes, "--json").json["orders"]
    assert row["chosen"] and row["buffer"] == "q" and row["order"].endswith("D]")
    path = write(text.replace("TYPE", "[D, H, B, T]"))
    (row,) = ucc("explain", path, *sizes, "--json").json["orders"]
    assert not row["chosen"] and row["saves_seconds"] > 0
    assert f"q\t{row['order']}\twould save about" in ucc("explain", path, *sizes).out


def test_build_makes_every_stage_and_says_how_they_are_launched(ucc: Ucc, machine: Machine) -> None:
    out = machine.home / "out"
    result = ucc("build", MLP, *SIZES, "-o", out)
    assert result.status == 0, result.err
    series = json.loads((out / "series.json").read_text())
    assert [s["name"] for s in series["stages"]] == ["h", "return"]
    for stage in series["stages"]:
        assert Path(stage["library"]).is_file() and Path(stage["header"]).is_file()
    assert series["stages"][1]["tensors"] == ["x", "down", "down_bias", "h", "return"]
    assert series["workspace"]["offsets"]["h"] == {"at": 0, "bytes": 64 * 128 * 2}
    assert machine.builds == 2
    again = ucc("build", MLP, "--shape", "T=64,D=32,F=128", "--shape", "T=32,D=32,F=128", "--json")
    assert [row["sizes"]["T"] for row in again.json] == [64, 32]


def test_a_stage_that_does_not_build_is_the_programs_fault(ucc: Ucc, machine: Machine) -> None:
    machine.behave('echo "source.cu(7): error: no such thing" >&2\nexit 1\n')
    result = ucc("build", MLP, *SIZES)
    assert result.status == 1 and "no such thing" in result.err and "mlp.ucu:" in result.err


def test_what_takes_one_kernel_says_so(ucc: Ucc, write: Any) -> None:
    result = ucc("emit", write(BRANCHES), "-s", "T=64,D=64,F=64")
    assert result.status == 2
    assert "branches is a pipeline" in result.err and "name one of those that it calls: linear" in result.err
    text = (
        "pipeline p(x: f32[M, N]) -> f32[M, N] {\n  y: f32[M, N] = torch.softmax(x, dim=1)\n  return y\n}\n"
    )
    result = ucc("tune", write(text), "-s", "M=64,N=64")
    assert result.status == 2 and "what computes torch.softmax has no schedule" in result.err


@pytest.mark.usefixtures("forked")
def test_run_interprets_it_without_a_gpu(ucc: Ucc) -> None:
    row = ucc("run", MLP, *SIZES, "--json").json
    assert row["ran"] == "CPU" and row["results"][0]["shape"] == [64, 32]
    assert [s["name"] for s in row["stages"]] == ["h", "return"]


@pytest.mark.usefixtures("forked")
def test_verify_keeps_a_record_of_the_whole(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    command = importlib.import_module("ucutlass.cli.verify")
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: H200)
    monkeypatch.setattr(command, "_gpu_lock", lambda _: nullcontext())
    monkeypatch.setattr(sanitize, "find", lambda: None)
    real = isolation.run

    def replaced(target: str, arguments: dict[str, Any], **limits: Any) -> isolation.CallOutcome:
        if target.endswith(":machine"):
            return isolation.Returned({"device": "NVIDIA H200", "uuid": "GPU-0", "versions": {}}, "")
        assert [set(s) for s in arguments["kernel"]["stages"]] == [
            {"library", "entry", "launch_parameters"}
        ] * 2
        return real("verify_candidates:whole", arguments, **limits)

    monkeypatch.setattr(isolation, "run", replaced)
    few = ("--distribution", "integer", "--cases", "6", "--seed", "3")
    result = machine.ucc("verify", MLP, *SIZES, *few)
    assert result.status == 0, result.out + result.err
    assert "right: 6 of 6 cases right" in result.out
    (record,) = EvidenceStore.open(machine.home / "data" / "evidence.sqlite").find(kind="verify")
    assert record.subject.kernel == "mlp" and record.subject.binary and record.subject.lane == "bf16"
    assert record.subject.schedule.startswith("h: warps") and " | return: " in record.subject.schedule


def test_explain_says_that_a_bound_is_not_known(
    ucc: Ucc, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bounds(*_: Any) -> None:
        raise ShapeError("UC0709", "too many conditions")

    monkeypatch.setattr(pipelines, "bounds", bounds)
    path = write(BRANCHES)
    assert "not known: too many conditions" in ucc("explain", path, "-s", "T=48,D=64,F=64").out
    assert ucc("explain", path, "-s", "T=48,D=64,F=64", "--json").json["bound"] is None
