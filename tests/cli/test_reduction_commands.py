"""The commands over a kernel without a dot: what there is to say, and what there is not."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_machine import ROOT, Ucc

NORM = ROOT / "examples" / "tasks" / "task_c_layer_norm.ucu"
EMBED = ROOT / "examples" / "tasks" / "task_r_embedding_scaled.ucu"
SIZES = ("-s", "V=1000,D=512,B=2,L=100")


def test_explain_gives_choices_with_reasons(ucc: Ucc) -> None:
    result = ucc("explain", NORM)
    assert result.status == 0, result.err
    lines = [line.split("\t") for line in result.out.splitlines()]
    values = dict(lines)
    assert values["family"] == "reduction, registers" and values["planned for"] == "H200"
    assert any(words.startswith("vectors of 8: along the columns") for _, words in lines)
    assert values["schedule"].startswith("sm90a { cluster 1x1  rows ")
    assert float(values["estimate"].split()[0]) >= float(values["bound"].split()[0]) > 0


def test_explain_in_json(ucc: Ucc) -> None:
    row = ucc("explain", NORM, "--json").json
    assert row["plan"]["vector"] == 8 and row["plan"]["keep"] == "registers"
    assert row["arch"] == "sm90a" and row["seconds"] >= row["bound"]["seconds"] > 0
    assert row["notes"]


def test_emit_in_json_has_the_schedule_and_no_launch_parameters(ucc: Ucc) -> None:
    row = ucc("emit", EMBED, *SIZES, "--json").json
    assert (row["schedule"], row["launch"]) == ("rows 256  vector 4  items 1  keep registers", {})
    assert row["sizes"] == {"V": 1000, "D": 512, "B": 2, "L": 100}
    code = [line for line in row["source"].splitlines() if not line.startswith("//")]
    assert any(f" {row['entry']}(" in line for line in code)
    assert not any("table" in line for line in code)


def test_build_writes_the_files(ucc: Ucc, tmp_path: Path) -> None:
    result = ucc("build", EMBED, *SIZES, "-o", tmp_path / "out", "--json")
    assert result.status == 0, result.err
    header = Path(result.json["header"]).read_text()
    assert "launch parameters: none" in header and "[1] ids" in header


@pytest.mark.nvcc
def test_profile_proposes_schedules_next_to_it(ucc: Ucc) -> None:
    result = ucc("profile", EMBED, *SIZES, "--json")
    assert result.status == 0, result.err
    launch, finding = result.json["advice"]["findings"]
    assert launch["name"] == "launch" and launch["act"]
    assert finding["name"] == "schedules next to it" and len(finding["edits"]) == 3
    assert all(e["changes"] and e["schedule"] != result.json["schedule"] for e in finding["edits"])


def test_a_schedule_is_kept_and_refused_with_the_nearest(ucc: Ucc, tmp_path: Path) -> None:
    file = tmp_path / "softmax.ucu"
    text = "kernel k(x: f16[T, D]) -> f16[T, D] { return softmax[D](x)  schedule sm90a { %s } }\n"
    file.write_text(text % "threads 256  keep reread")
    row = ucc("emit", file, "-s", "T=512,D=4096", "--json").json
    assert row["schedule"] == "split_k 1  rows 1  threads 256  vector 8  items 2  keep reread"
    file.write_text(text % "threads 100")
    result = ucc("emit", file, "-s", "T=512,D=4096")
    assert result.status == 1 and "[UC0471]" in result.err
    assert "nearest legal schedule: cluster 1x1  rows 1  threads 128" in result.err


def test_check_finds_what_comes_up_on_the_way_to_a_plan(ucc: Ucc, tmp_path: Path) -> None:
    file = tmp_path / "moved.ucu"
    file.write_text("kernel k(x: f32[M, N]) -> f32[M] { return sum[N](x)[M = size(M) - 1 - M] }\n")
    result = ucc("check", file)
    assert result.status == 1 and "[UC0314]" in result.err


@pytest.mark.parametrize(
    ("program", "sizes"), [("task_c_layer_norm", ()), ("task_r_embedding_scaled", SIZES)]
)
def test_explain_has_the_rows_of_a_gemm_and_advice(ucc: Ucc, program: str, sizes: tuple[str, ...]) -> None:
    linear = ucc("explain", ROOT / "examples" / "linear_gelu.ucu", "-s", "M=256,N=256,K=256")
    own = ucc("explain", ROOT / "examples" / "tasks" / f"{program}.ucu", *sizes)
    rows = [[line.partition("\t")[0] for line in result.out.splitlines()] for result in (linear, own)]
    end = rows[0].index("estimate") + 1
    assert rows[0][:end] == rows[1][:end]
    assert "bottleneck" in rows[0] and "bottleneck" in rows[1]
