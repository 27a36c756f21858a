"""Attempts on a GPU, one after another in one process, as a session's are: what is kept for the next one changes
no verdict."""

from __future__ import annotations

from typing import Any

import pytest

from ucutlass import frontend
from ucutlass.assembly import build_program
from ucutlass.handoff import program_payload
from ucutlass.runtime import gpu, switches
from ucutlass.shapes import complete
from ucutlass.tasks import candidate_run
from ucutlass.tasks.built import built_payload

pytestmark = pytest.mark.gpu


LINEAR = "kernel k(x: f32[M, K], w: f32[N, K], b: f32[N]) -> f32[M, N] { return relu(dot[K](x, w) + b) }"
SOFTMAX = "kernel k(x: f32[M, N]) -> f32[M, N] { return softmax[N](x) }"
CHAIN = """
pipeline k(x: f32[M, K], w: f32[N, K], b: f32[N]) -> f32[M, N] {
  h: f32[M, N] = dot[K](x, w) + b
  return softmax[N](h)
}
"""

WRONG: dict[str, tuple[str, dict[str, int], list[tuple[str, str]]]] = {
    "linear": (
        LINEAR,
        {"M": 1024, "N": 512, "K": 768},
        [("+ b)", "+ 0 * b)"), ("relu(", "1.001 * relu("), ("relu(", "abs("), (" + b)", " + b + 0.001)")],
    ),
    "softmax": (
        SOFTMAX,
        {"M": 4096, "N": 1000},
        [("softmax[N](x)", "softmax[N](x * 1.001)"), ("softmax[N](x)", "softmax[N](x) + 0.00001")],
    ),
    "chain": (
        CHAIN,
        {"M": 2048, "N": 256, "K": 512},
        [("+ b", "+ 0 * b"), ("softmax[N](h)", "softmax[N](h * 1.01)")],
    ),
}
"""Programs with extents, and what makes other programs of them."""


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("way", ["sampled", "whole"])
def test_wrong_candidates_are_wrong_and_right_ones_right_in_any_order(
    name: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(switches.BUILD_PATH, "auto")  # f32 by wgmma is built by NVRTC alone
    text, sizes, changes = WRONG[name]
    here = gpu.at_hand()
    assert here is not None
    payloads: dict[str, Any] = {}

    def attempt(candidate_text: str) -> dict[str, Any]:
        checked = frontend.read_text(candidate_text)
        program = frontend.program(checked)
        if candidate_text not in payloads:
            extents = complete(program, sizes)
            built = build_program(checked, program, extents, here.arch.name, device=here.device)
            payloads[candidate_text] = built_payload(built)
        return candidate_run.run(
            program_payload(checked),
            payloads[candidate_text],
            program_payload(frontend.read_text(text)),
            "k",
            sizes,
            here.arch.name,
            5,
            way != "whole",
        )

    candidate_run.expect(program_payload(frontend.read_text(text)), "k", sizes, 5)
    for old, new in changes:
        assert old in text
        assert attempt(text)["seconds"] is not None, "the problem's own program is right"
        wrong = attempt(text.replace(old, new))
        assert wrong["seconds"] is None and wrong["words"], (old, new)
    assert attempt(text)["seconds"] is not None


def test_a_process_gets_ready_once_and_again() -> None:
    """What fails there would be noticed by nobody: the call that needs it is slower, no more."""
    steps = 0
    while candidate_run.ready():
        steps += 1
    assert steps > 2 and not candidate_run.ready()
