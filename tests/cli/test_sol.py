"""`ucc sol`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from cli_machine import LINEAR, ROOT, Machine, Ucc

from ucutlass.sol.ceilings import Ceilings, to_json

Write = Callable[[str | bytes], Path]

SIZES = ("-s", "M=4096,N=4096,K=4096")
TASKS = ROOT / "examples" / "tasks"
CEILINGS = Ceilings("NVIDIA H200", "GPU-0", {"bf16": 7e14}, 4.2e12, 4.4e12, None, 2e-6, 1.7e9, created="2026")


def lines(out: str) -> dict[str, str]:
    return dict(line.split("\t") for line in out.splitlines())


def test_the_bounds_and_the_gap(ucc: Ucc) -> None:
    result = ucc("sol", LINEAR, *SIZES, "--device", "H200", "--time", "190")
    values = lines(result.out)
    assert result.status == 0
    assert values["limit"] == "multiplications: 138.91 us on H200, cold"
    assert values["fused"].startswith("138.91 us, most by bf16")
    assert values["plan"].startswith("sm90a {")
    assert values["time"] == "190.00 us: 1.37 times the fused bound"
    assert {"unfused", "realistic", "  tiles", "  L2", "  + launch", "  memory"} <= values.keys()


def test_json_has_the_same_numbers(ucc: Ucc) -> None:
    row = ucc("sol", LINEAR, *SIZES, "--device", "A100-SXM4-80GB", "--time", "600", "--json").json
    assert row["device"] == "A100-SXM4-80GB"
    assert row["plan"].startswith("sm80 {")
    assert row["sizes"] == {"M": 4096, "N": 4096, "K": 4096}
    assert row["seconds"] == row["bounds"]["fused"]["seconds"] == pytest.approx(2 * 4096**3 / 312e12)
    assert row["gap"] == pytest.approx(600e-6 / row["seconds"])
    assert row["work"]["operations"]["bf16"] == 2 * 4096**3
    assert row["calibrated"] is None


THREE = """\
kernel three(x: bf16[M, K], a: bf16[N, K], b: bf16[N, K], c: bf16[N, K]) -> f32[M, N] {
  return dot[K](x, a) + dot[K](x, b) + dot[K](x, c)
}
"""


def test_a_kernel_without_a_dot_is_bounded(ucc: Ucc) -> None:
    row = ucc("sol", TASKS / "task_c_layer_norm.ucu", "--json").json
    assert row["plan"].startswith("sm90a { cluster 1x1  rows ")
    assert row["seconds"] > 0


def test_a_pipeline_and_a_kernel_of_no_family_are_bounded_without_a_plan(ucc: Ucc, write: Write) -> None:
    row = ucc("sol", TASKS / "task_f_gemm_max_subtract_gelu.ucu", "--json").json
    assert (row["program"], row["device"]) == ("gemm_max_subtract_gelu", "H200")
    assert "pipeline" in row["plan"]
    row = ucc("sol", write(THREE), "-s", "M=64,N=64,K=64", "--json").json
    assert row["plan"].startswith("none:") and "UC0300" in row["plan"]
    assert "no plan" in row["bounds"]["realistic"]["added"][0]["why"]


def test_which_of_several_programs(ucc: Ucc) -> None:
    file = TASKS / "task_j_cumsum.ucu"
    refused = ucc("sol", file)
    assert refused.status == 2 and "--kernel" in refused.err and "UC0601" in refused.err
    assert ucc("sol", file, "-k", "cumsum_middle").status == 0
    assert ucc("sol", file, "-k", "absent").status == 2


def test_what_data_decides_is_said(ucc: Ucc) -> None:
    values = lines(ucc("sol", TASKS / "task_j_cumsum.ucu", "-k", "masked_exclusive_cumsum").out)
    assert "10.73 G bytes read" in values["by the data"]


def test_the_picture(ucc: Ucc, tmp_path: Path) -> None:
    out = tmp_path / "roof.svg"
    result = ucc("sol", LINEAR, *SIZES, "--roofline", out, "--regime", "warm")
    assert (result.status, lines(result.out)["roofline"]) == (0, str(out))
    assert ElementTree.fromstring(out.read_text()).tag.endswith("svg")


def test_a_picture_that_cannot_be_drawn_or_written(ucc: Ucc, tmp_path: Path) -> None:
    sizes = ("-s", "V=9,D=8,B=1,L=3")
    none = ucc("sol", TASKS / "task_r_embedding_scaled.ucu", *sizes, "--roofline", tmp_path / "r.svg")
    assert none.status == 1 and "no operations" in none.err
    absent = ucc("sol", LINEAR, *SIZES, "--roofline", tmp_path / "absent" / "r.svg")
    assert absent.status == 3 and "No such file" in absent.err


def test_ceilings_of_a_file_and_of_this_machine(ucc: Ucc, machine: Machine) -> None:
    given = machine.home / "ceilings.json"
    given.write_text(to_json(CEILINGS))
    row = ucc("sol", LINEAR, *SIZES, "--ceilings", given, "--json").json
    assert row["calibrated"]["fused"]["seconds"] == pytest.approx(2 * 4096**3 / 7e14)
    kept = machine.home / "data" / "ceilings"
    kept.mkdir(parents=True)
    (kept / "NVIDIA-H200.json").write_text(json.dumps({"ceilings": json.loads(to_json(CEILINGS))}))
    values = lines(ucc("sol", LINEAR, *SIZES).out)
    assert values["fused, calibrated"].startswith("196.34 us")
    assert ucc("sol", LINEAR, *SIZES, "--device", "L40S", "--json").json["calibrated"] is None
    wrong = ucc("sol", LINEAR, *SIZES, "--device", "L40S", "--ceilings", given)
    assert wrong.status == 2 and "NVIDIA H200" in wrong.err


NEGATIVE = to_json(CEILINGS).replace("4200", "-4200")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"ceilings": 3}', NEGATIVE, "[" * 100_000])
def test_broken_ceilings_are_named(ucc: Ucc, tmp_path: Path, text: str) -> None:
    file = tmp_path / "broken.json"
    file.write_text(text)
    result = ucc("sol", LINEAR, *SIZES, "--ceilings", file)
    assert result.status == 3 and result.err.startswith("ucc: ")
    assert "broken.json" in result.err


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "extent of M is missing"),
        (("-s", "M=4,N=4,K=4", "--time", "0"), 2, "--time"),
        (("-s", "M=4,N=4,K=4", "--time", "soon"), 2, "soon"),
        (("-s", "M=4,N=4,K=4", "--time", "nan"), 2, "no finite number"),
        (("-s", "M=4,N=4,K=4", "--time", "inf"), 2, "no finite number"),
        (("-s", "M=4,N=4,K=4", "--device", "abacus"), 2, "abacus"),
    ],
)
def test_wrong_calls(ucc: Ucc, arguments: tuple[str, ...], status: int, words: str) -> None:
    result = ucc("sol", LINEAR, *arguments)
    assert result.status == status and words in result.err


def test_an_illegal_schedule_leaves_the_other_bounds(ucc: Ucc, tmp_path: Path) -> None:
    file = tmp_path / "tall.ucu"
    tall = LINEAR.read_text().replace("tile 128x256x64", "tile 512x512x64")
    file.write_text(tall.split(" or ")[0] + " }\n}\n")
    row = ucc("sol", file, *SIZES, "--json").json
    assert row["plan"].startswith("none:") and "UC04" in row["plan"]
    assert row["bounds"]["fused"]["seconds"] > 0


def test_a_pytorch_problem_has_its_own_extents(ucc: Ucc, tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text("raise SystemExit(3)\n")
    result = ucc("sol", file, "-s", "M=4")
    assert result.status == 2 and "problem.py" in result.err
