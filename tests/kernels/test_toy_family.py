"""How to add a kernel family, tried: two files, and one line in `ucutlass.kernels.families`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.emit import emulator, plan_reference
from tests.kernels.toy.family import FAMILY, DoublingPlan
from ucutlass import frontend
from ucutlass.backend import source_of
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import PartialSchedule
from ucutlass.kernels import families
from ucutlass.kernels.gemm.plan import LaunchParameters
from ucutlass.reference import evaluate
from ucutlass.shapes import complete
from ucutlass.tune.space import explore

TEXT = "kernel double(x: f32[M, N]) -> f32[M, N] { return x + x }"


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line that a family takes outside of its two folders: its name among `families.NAMES`."""
    monkeypatch.setattr(families, "FAMILIES", (FAMILY, *families.FAMILIES))


def test_a_program_of_it_is_planned_emitted_compiled_and_run(tmp_path: Path) -> None:
    checked = frontend.read_text(TEXT)
    kernel = frontend.kernel(checked)
    planned = frontend.plan_kernel(checked, kernel, complete(kernel, {"M": 9, "N": 37}), "sm90a").planned
    assert isinstance(planned.plan, DoublingPlan)
    entry = emulator.build(source_of(checked, kernel, planned), tmp_path)
    x, y = torch.randn(9, 37), torch.full((9, 37), torch.nan)
    addresses = [x.data_ptr(), y.data_ptr()]
    assert plan_reference.call(entry, addresses, planned.sizes, (), LaunchParameters(), "cpu", 0) == 0
    assert torch.equal(y.double(), evaluate(kernel, [x])[0].double())


def test_the_rest_of_the_house_serves_it() -> None:
    checked = frontend.read_text(TEXT)
    kernel = frontend.kernel(checked)
    space = explore(checked, kernel, (9, 37), "sm90a")
    assert {group.request.threads for group in space.groups} == {128, 256, 512}
    planned = space.groups[0].members[0]
    assert families.granularity(planned.plan, ("M", "N")).tile == {"N": planned.request.threads}


def test_its_rule_names_the_field_and_the_nearest_schedule() -> None:
    kernel = frontend.kernel(frontend.read_text(TEXT))
    pattern = families.match(kernel)
    broken = families.plan_pattern(pattern, (9, 37), ARCHES["sm90a"], None, PartialSchedule(threads=4096))
    assert isinstance(broken, tuple)
    assert [(v.fields, v.nearest) for v in broken] == [(("threads",), PartialSchedule(threads=1024))]
