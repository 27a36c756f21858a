"""Views: what is shown is never overstated, and exact where slices are boxes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from module_files import exported

from tests.kernelbench.kernelbench_files import module as problem
from ucutlass.runtime.module.graph import Ref
from ucutlass.runtime.module.regions import regions

STEPS = {
    "slice": ".narrow(0, 1, x.shape[0] - 1)",
    "step": "[::2]",
    "last": "[..., -1:]",
    "select": ".select(-1, 0)",
    "transpose": ".transpose(0, -1)",
    "split": ".split(2, 0)[-1]",
    "chunk": ".chunk(2, -1)[1]",
    "unsqueeze": ".unsqueeze(1)",
    "squeeze": ".squeeze()",
    "reshape": ".reshape(x.shape[0], -1)",
    "expand": ".unsqueeze(0).expand(3, *x.shape)",
    "unbind": ".unbind(0)[-1]",
    "diagonal": ".diagonal(0, 0, -1)",
}
BOXES = {"slice", "step", "last", "select", "transpose", "unsqueeze", "squeeze", "unbind"}


def _apply(steps: list[str]) -> str | None:
    """The body of a forward; None where a step does not fit the shape before it."""
    x = torch.arange(4 * 6 * 4).view(4, 6, 4)
    lines = []
    for step in steps:
        line = f"x = x{STEPS[step]}"
        try:
            scope = {"x": x}
            exec(line, scope)  # a line of the table above
            x = scope["x"]
        except (RuntimeError, IndexError, ValueError):
            return None
        if not x.numel() or x._base is None:
            return None
        lines.append(line)
    return "\n".join([*lines, "return torch.exp(x)"])


@pytest.mark.slow
@settings(max_examples=25)
@given(steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=5))
def test_a_chain_of_views_is_never_overstated(
    tmp_path_factory: pytest.TempPathFactory, steps: list[str]
) -> None:
    body = _apply(steps)
    if body is None:
        return
    scope = {"x": torch.arange(96).view(4, 6, 4)}
    for line in body.splitlines()[:-1]:
        exec(line, scope)
    distinct = len(set(scope["x"].flatten().tolist()))
    graph = exported(tmp_path_factory.mktemp("views"), problem(body, x="4, 6, 4"))
    node = next(n for n in graph.nodes if n.op == "aten.exp.default")
    region = regions(graph)[node.refs[0]]
    assert region.base == Ref(graph.sources[-1].name) or "reshape" in steps
    assert region.elements <= distinct
    if set(steps) <= BOXES and steps.count("step") <= 1:
        assert region.elements == distinct


def _read(folder: Path, body: str, **inputs: str) -> int:
    from ucutlass.runtime.module.work import count

    return count(exported(folder, problem(body, **inputs))).fused.read


@pytest.mark.parametrize(
    ("body", "elements"),
    [
        ("torch.cat([c * 2 for c in x.chunk(4, 1)][::-1])", 64 * 8),
        ("x[:10] * 2", 10 * 8),
        ("x[:10].sum() + x[20:30].sum()", 20 * 8),
        ("x[:10].sum() + x[5:20].sum()", 15 * 8),
        ("x[:, 3].exp() + x[:, -1]", 64 * 2),
        ("x.T[2:4].exp()", 64 * 2),
        ("x[:1].expand(64, 8).exp()", 8),
        ("torch.zeros_like(x)", 0),
        ("torch.triu(x[:8])", 36),
    ],
)
def test_what_is_read_of_an_input(tmp_path: Path, body: str, elements: int) -> None:
    assert _read(tmp_path, body, x="64, 8") == 4 * elements


def test_rows_that_are_looked_up_may_all_be_one(tmp_path: Path) -> None:
    assert _read(tmp_path, "F.embedding(i, w)", i="torch.randint(0, 9, (16,))", w="9, 32") == 16 * 8 + 32 * 4


def test_a_strided_convolution_skips_inputs(tmp_path: Path) -> None:
    assert _read(tmp_path, "F.conv2d(x, w, stride=2)", x="1, 8, 16, 16", w="4, 8, 1, 1") == (8 * 64 + 32) * 4
