"""The suite end to end on emitted kernels: their own source, run on the host, through the very function
that judges on a GPU. One is right, the others have a mistake in their lowering."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest

from tests.emit import emulator
from tests.emit.harness import HOST_SHIM
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.handoff import program_payload
from ucutlass.kernels.families import granularity
from ucutlass.kernels.planned import Planned
from ucutlass.runtime import sanitize
from ucutlass.runtime.verify.suite import CaseKind, barely_reduced, reduced, suite
from ucutlass.tasks import verification
from ucutlass.tasks.verify_cases import facts

TEXT = """kernel k(x: f16[M, K], w: f16[N, K], b: f16[N]) -> f16[M, N] {
  return relu(dot[K](x, w) + b)

  schedule sm90a { warps multistage  tile 64x64x32  stages 3  split_k 2 }
}"""
SIZES = {"M": 70, "K": 104, "N": 72}

MUTANTS: Mapping[str, tuple[str, str]] = {
    "drops the residue of K": (
        "int64_t const inner = ceil_div(p.k[kContracted - 1], kTileK);",
        "int64_t const inner = std::max<int64_t>(1, p.k[kContracted - 1] / kTileK);",
    ),
    "one split fewer is added": (
        "int const last = int(int64_t(p.k_tiles) * (tile.split + 1) / p.splits);",
        "int const last = int(int64_t(p.k_tiles) * (tile.split + 1) / p.splits) - (p.k_tiles > 6);",
    ),
    "tiles along M are one too few": (
        "int64_t const tiles_m = ceil_div(p.m, kTileM)",
        "int64_t const tiles_m = std::max<int64_t>(1, p.m / kTileM)",
    ),
}
"""A lowering's line and what is put in its place."""


@pytest.fixture(scope="module")
def checked() -> frontend.Checked:
    return frontend.read_text(TEXT)


@pytest.fixture(scope="module")
def planned(checked: frontend.Checked) -> Planned:
    program = frontend.kernel(checked)
    return frontend.plan_kernel(checked, program, tuple(SIZES.values()), "sm90a").planned


def _plan(
    checked: frontend.Checked, planned: Planned, folder: Path, change: tuple[str, str] | None, most: int
) -> verification.VerificationPlan:
    program = frontend.kernel(checked)
    source = source_of(checked, program, planned)
    text = source.text
    if change is not None:
        assert change[0] in text, "the emitter's text has changed: move the mutant along"
        text = text.replace(*change)
    emulator.build(replace(source, text=f"#include <cmath>\n{HOST_SHIM}{text}"), folder)
    library = folder / f"{source.entry}.so"
    launch_parameters = [int(k) for k in planned.launch]
    grain = granularity(planned.plan, tuple(program.dims), planned.launch)
    kernel = facts(checked, program.name, [(str(library), source.entry, launch_parameters)])
    cases = suite(program, SIZES, grain, seed=2, most=most)
    few, fewer = reduced(program, SIZES, grain, seed=2), barely_reduced(program, SIZES, grain, seed=2)
    return verification.VerificationPlan(kernel, grain, cases, few, fewer, "cpu")


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ to compile emulated kernels")


@pytest.mark.slow
@needs_compiler
def test_an_emitted_kernel_stands(
    checked: frontend.Checked, planned: Planned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = _plan(checked, planned, tmp_path, None, 64)
    evidence = verification.run(plan)
    assert evidence.ok, evidence.failures()
    assert {r.case.kind for r in evidence.results} == set(get_args(CaseKind))
    refused = {r.case.kind for r in evidence.results if r.verdict and not r.verdict.comparisons}
    assert refused == {"refusal", "misaligned"}
    _sanitized(plan, tmp_path, monkeypatch)


def _sanitized(plan: verification.VerificationPlan, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process under compute-sanitizer, with a tool in its place that only runs it."""
    tool = folder / "compute-sanitizer"
    tool.write_text(
        f"#!{sys.executable}\nimport subprocess, sys\n"
        "status = subprocess.run(sys.argv[sys.argv.index('-I') - 1 :]).returncode\n"
        "print('========= ERROR SUMMARY: 0 errors')\nsys.exit(status)\n"
    )
    tool.chmod(0o755)
    monkeypatch.setattr(sanitize, "find", lambda: tool)
    memcheck, initcheck = verification.sanitizers(plan, ("memcheck", "initcheck"))
    assert memcheck.ok and initcheck.ok, (memcheck, initcheck)
    assert memcheck.launches == len(plan.reduced) == 3
    refused = tuple(case for case in plan.suite.cases if case.kind == "refusal")
    picky = replace(plan, reduced=refused)
    (memcheck,) = verification.sanitizers(picky, ("memcheck",))
    assert memcheck.ok and memcheck.launches == len(refused), memcheck
    (memcheck,) = verification.sanitizers(replace(picky, barely_reduced=refused), ("memcheck",))
    assert memcheck.status == "failed" and memcheck.launches < len(refused), memcheck
    other = program_payload(frontend.read_text(TEXT.replace("relu(dot[K](x, w) + b)", "dot[K](x, w) - b")))
    wrong = replace(plan, kernel={**plan.kernel, "program": other})
    memcheck, initcheck = verification.sanitizers(wrong, ("memcheck", "initcheck"))
    assert memcheck.status == "failed" and "SanitizedResultWrong: " in memcheck.message, memcheck
    assert initcheck.ok, "a copy of results stored by TMA is one of what initcheck takes for undefined"


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_of_the_lowering_falls(
    mutant: str, checked: frontend.Checked, planned: Planned, tmp_path: Path
) -> None:
    evidence = verification.run(_plan(checked, planned, tmp_path, MUTANTS[mutant], 40))
    assert not evidence.ok
    assert all(r.outcome != "not run" for r in evidence.results)


def test_the_grain_of_a_plan(planned: Planned) -> None:
    grain = granularity(planned.plan, ("M", "K", "N"), (0, 1, 2))
    assert grain.tile == {"M": 64, "N": 64, "K": 32}
    assert grain.depth == {"K": 192}
    assert grain.step == {"K": 8, "N": 8}
