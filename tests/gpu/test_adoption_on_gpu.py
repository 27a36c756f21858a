"""`ucc adopt` on a GPU: an honest edit is confirmed and served, and each wrong one falls by the judge that it
was meant for."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import ucutlass
from tests.mutants.sources import HONEST, SOURCE_BASES, SourceEdit, edited
from ucutlass import frontend
from ucutlass.adopt import database as adopted
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.adopt.source import checked, read
from ucutlass.agent import adoption
from ucutlass.agent.adoption import AdoptionJob, AdoptionSettings
from ucutlass.backend import source_of
from ucutlass.runtime.gpu import at_hand
from ucutlass.shapes import complete
from ucutlass.tune.database import TuningDatabase

pytestmark = pytest.mark.gpu

FOLDER = Path(__file__).parent.parent.parent / "examples"
TEXT = (FOLDER / "layer_norm.ucu").read_text()
SIZES = {"T": 4096, "D": 1024}
SETTINGS = AdoptionSettings(seed=1, case=20.0, bench=3.0, slower=True)


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path))


def job(edit: Callable[[str], str]) -> tuple[AdoptionJob, str]:
    """An edited kernel for the GPU at hand, and that GPU's name."""
    here = at_hand()
    assert here is not None
    text = frontend.read_text(TEXT)
    program = frontend.kernel(text)
    extents = complete(program, SIZES)
    planned = frontend.plan_kernel(text, program, extents, here.arch.name, here.device).planned
    emitted = source_of(text, program, planned)
    source = checked(edit(emitted.text).encode(), emitted.arch)
    return AdoptionJob(text, program, extents, here.arch.name, here.device, source), here.gpu.name


def instead(old: str, new: str) -> Callable[[str], str]:
    def edit(text: str) -> str:
        assert old in text
        return text.replace(old, new)

    return edit


def test_an_honest_edit_is_confirmed_and_served() -> None:
    this, gpu = job(instead("if (error == cudaSuccess) return 0;", "if (!error) return 0;"))
    row = adoption.adopt(this, adoption.build(this, SETTINGS), gpu, SETTINGS)
    assert row.state == "confirmed" and row.microseconds > 0 and row.rival > 0 and row.base
    k = ucutlass.loads(TEXT, tuned=True)
    x = torch.randn(SIZES["T"], SIZES["D"], device="cuda", dtype=torch.float16)
    g, b = (torch.randn(SIZES["D"], device="cuda", dtype=torch.float16) for _ in range(2))
    y = k(x, g, b)
    (origin,) = k.origins.values()
    assert origin.kind == "adopted" and torch.isfinite(y).all()
    assert math.isclose(float((y - k.reference(x, g, b)).abs().max()), 0.0, abs_tol=0.05)
    k(x[:64], g, b)
    assert [o.kind for o in k.origins.values()] == ["adopted", "planner"]


EXAMPLES = {
    "column_means": {"A": 3, "B": 4096, "C": 4095},
    "large_group_norm": {"B": 1, "C": 16, "H": 256, "W": 256},
    "small_products": {"B": 1000, "M": 16, "N": 16, "K": 16},
}
"""With extents that take less time than those that they were adopted for."""


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_confirmed(name: str) -> None:
    here = at_hand()
    assert here is not None
    text = frontend.read_text((FOLDER / "sources" / f"{name}.ucu").read_text())
    program = frontend.kernel(text)
    source = read(FOLDER / "sources" / f"{name}.cu")
    extents = complete(program, EXAMPLES[name])
    this = AdoptionJob(text, program, extents, here.arch.name, here.device, source)
    row = adoption.adopt(this, adoption.build(this, SETTINGS), here.gpu.name, SETTINGS)
    assert row.state == "confirmed" and row.microseconds > 0


STORE = "store<kVector, 8>(p.t3 + o, out0);"

WRONG: dict[str, Callable[[str], str]] = {
    "a row is left out": instead("p.rows = (e[0]);", "p.rows = (e[0]) - 1;"),
    "a row too many": instead("p.rows = (e[0]);", "p.rows = (e[0]) + 1;"),
    "another divisor": instead("float(r2[0].squares) / p.extent0", "float(r2[0].squares) / 512.0f"),
    "no barrier": instead("__syncthreads();", ""),
    "only the first call is computed": instead(
        "cudaError_t error = cudaSuccess;",
        "static bool launched = false;\n  if (launched) return 0;\n  launched = true;\n"
        "  cudaError_t error = cudaSuccess;",
    ),
    "a store beside its place": instead(STORE, STORE.replace("p.t3 + o", "p.t3 + o + 8")),
    "a store to nowhere": instead(STORE, STORE.replace("p.t3 + o", "static_cast<__half*>(nullptr) + o")),
    "an input is written": instead(STORE, f"{STORE} store<kVector, 8>(const_cast<__half*>(p.t0) + o, out0);"),
    "a hang": instead(STORE, f"while (clock64() != 0) {{}} {STORE}"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_edit_is_not_adopted_and_the_caller_lives(name: str) -> None:
    this, gpu = job(WRONG[name])
    settings = AdoptionSettings(seed=1, case=4.0 if name == "a hang" else 20.0, bench=3.0, slower=True)
    built = adoption.build(this, settings)
    with pytest.raises(SourceRefused) as refused:
        adoption.adopt(this, built, gpu, settings)
    assert refused.value.code == "wrong", str(refused.value)
    assert adopted.rows(TuningDatabase.open()) == ()
    assert torch.ones(8, device="cuda").sum().item() == 8


@pytest.mark.parametrize("edit", HONEST, ids=lambda edit: edit.name)
def test_an_honest_edit_of_any_family_is_right(edit: SourceEdit) -> None:
    here = at_hand()
    assert here is not None
    base = SOURCE_BASES[edit.base]
    text = frontend.read_text(base.text)
    program = frontend.kernel(text)
    sizes = complete(program, base.sizes)
    source = checked(edited(edit).encode())
    this = AdoptionJob(text, program, sizes, here.arch.name, here.device, source)
    proof = adoption.verified(this, adoption.build(this, SETTINGS), SETTINGS)
    assert proof.result["ok"], proof.result["failures"]
