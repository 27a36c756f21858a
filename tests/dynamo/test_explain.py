"""`ucutlass.explain`: each operator, where it goes, and what would bring it into a program."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import ucutlass
from tests.dynamo.test_backend import Block
from ucutlass.dynamo import builds
from ucutlass.dynamo.explain import REMEDIES, remedy
from ucutlass.emit import NotServed

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="times on a GPU are measured")


class Sorted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sort(torch.relu(self.linear(x)), dim=-1)[0]


def test_a_block_is_served_whole() -> None:
    with torch.no_grad():
        explanation = ucutlass.explain(Block(), torch.randn(64, 32))
    assert explanation.served == pytest.approx(1) and explanation.graphs == 1
    (program,) = explanation.programs
    assert "pipeline program_0" in program.text and program.stages >= 2 and program.operators >= 4
    assert {o.where for o in explanation.operators} <= {"program_0", "view"}
    assert "100.0% of the time is in 1 program of 1 graph (estimated for H200)" in str(explanation)


def test_the_rest_has_its_reason_line_and_remedy() -> None:
    with torch.no_grad():
        explanation = ucutlass.explain(Sorted(), torch.randn(32, 64))
    (row,) = [o for o in explanation.operators if o.where == "fallback"]
    assert row.operator == "aten.sort.default" and "torch.sort(" in row.line
    assert row.remedy and 0 < row.share < 1
    assert explanation.served + row.share == pytest.approx(1)
    text = str(explanation)
    assert "aten.sort.default" in text and "what would close it" in text


def test_a_program_without_kernels_is_the_fallback_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: object) -> None:
        raise NotServed("no tile fits")

    monkeypatch.setattr(builds, "planned_sources", refuses)
    with torch.no_grad():
        explanation = ucutlass.explain(Block(), torch.randn(64, 32))
    assert explanation.served == 0 and not explanation.programs
    assert {o.why for o in explanation.operators if o.where == "fallback"} == {
        "program_0 has no kernel: no tile fits"
    }


def test_training_explains_both_graphs() -> None:
    explanation = ucutlass.explain(Block(), torch.randn(8, 32, requires_grad=True))
    assert explanation.graphs == 2 and {o.graph for o in explanation.operators} == {0, 1}


def test_graph_breaks_are_named() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(x)
        torch._dynamo.graph_break()
        return y + 1

    explanation = ucutlass.explain(model, torch.randn(4))
    assert explanation.graphs == 2 and len(explanation.breaks) == 1
    assert "graph break: " in str(explanation)


def test_products_are_priced_by_their_multiplications() -> None:
    with torch.no_grad():
        explanation = ucutlass.explain(
            lambda x, y: torch.relu(x @ y), torch.ones(512, 512), torch.ones(512, 512)
        )
    shares = {o.operator: o.share for o in explanation.operators}
    assert shares["aten.mm.default"] > 3 * shares["aten.relu.default"]


def test_the_model_compiles_afterwards_as_before() -> None:
    model, x = Sorted(), torch.randn(32, 64)
    with torch.no_grad():
        ucutlass.explain(model, x)
        torch.testing.assert_close(torch.compile(model, backend="eager")(x), model(x))


@pytest.mark.parametrize("why", ["a tensor is on cpu", "the importer has no rule for this operator"])
def test_reasons_have_remedies(why: str) -> None:
    assert remedy(why) in REMEDIES.values() and not remedy("another reason")
