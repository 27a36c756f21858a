"""The sources of examples/sources: what their text shows, what the emulator computes, and that nvcc takes them."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.emit import emulator
from tests.mutants.emulated import HOST_SHIM, Prepared, exposed, objections
from ucutlass import frontend
from ucutlass.adopt.source import read
from ucutlass.agent import adoption
from ucutlass.agent.adoption import AdoptionJob, AdoptionSettings
from ucutlass.agent.proposers.answer import programs
from ucutlass.agent.source_files import CandidateFile
from ucutlass.shapes import complete

FOLDER = Path(__file__).parent.parent.parent / "examples" / "sources"
ARCH = "sm90a"

SIZES: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {
        "column_means": {"A": 32, "B": 4096, "C": 4095},
        "large_group_norm": {"B": 4, "C": 16, "H": 256, "W": 256},
        "small_products": {"B": 131072, "M": 16, "N": 16, "K": 16},
    }
)
"""What they were adopted for."""


def job(name: str) -> AdoptionJob:
    text = frontend.read_text((FOLDER / f"{name}.ucu").read_text())
    program = frontend.kernel(text)
    return AdoptionJob(text, program, complete(program, SIZES[name]), ARCH, None, read(FOLDER / f"{name}.cu"))


def test_every_example_is_here_with_its_program() -> None:
    assert (
        {path.stem for path in FOLDER.glob("*.cu")}
        == {path.stem for path in FOLDER.glob("*.ucu")}
        == set(SIZES)
    )


@pytest.mark.parametrize("name", SIZES)
def test_the_text_of_an_example_is_taken_for_its_program(name: str) -> None:
    this = job(name)
    planned = frontend.plan_kernel(this.checked, this.program, this.sizes, ARCH).planned
    assert this.source.entry in this.source.code and planned.plan


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")
@pytest.mark.parametrize("sizes", [{"A": 2, "B": 256, "C": 131}, {"A": 1, "B": 128, "C": 3}])
def test_an_edited_main_loop_computes_its_program(sizes: Mapping[str, int], tmp_path: Path) -> None:
    this = job("column_means")
    planned = frontend.plan_kernel(this.checked, this.program, complete(this.program, sizes), ARCH).planned
    source = replace(this.source, text=f"#include <cmath>\n{HOST_SHIM}{this.source.text}")
    launch = exposed(emulator.build(source, tmp_path), planned)
    prepared = Prepared(this.program, sizes, planned, source)
    for distribution in ("integer", "normal"):
        assert list(objections(launch, prepared, distribution, "cpu")) == []


def test_a_recorded_dialogue_ends_with_the_source_that_was_adopted() -> None:
    request = {"call": 0}
    program = (FOLDER / "large_group_norm.ucu").read_text()
    file = CandidateFile()
    while not (answered := _answer(request)).get("exhausted"):
        (proposed,) = programs(answered["text"], program, file)
        assert proposed.why and proposed.source != file.text
        file = CandidateFile(proposed.source)
        request["call"] += 1
    assert request["call"] == 2
    assert file.text.strip() == (FOLDER / "large_group_norm.cu").read_text().strip()


def _answer(request: Mapping[str, int]) -> dict[str, str]:
    command = [
        sys.executable,
        str(FOLDER.parent / "recorded_dialogue.py"),
        str(FOLDER / "large_group_norm.jsonl"),
    ]
    done = subprocess.run(command, input=json.dumps(request), capture_output=True, text=True, check=True)
    answered: dict[str, str] = json.loads(done.stdout)
    return answered


@pytest.mark.nvcc
@pytest.mark.parametrize("name", SIZES)
def test_an_example_passes_all_that_needs_no_gpu(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCUTLASS_CACHE_DIR", str(tmp_path))
    assert adoption.build(job(name), AdoptionSettings(seed=1)).adopted
