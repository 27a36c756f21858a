"""The probe of a program whose text fixes its extents, as that of a module does: a slice of it is asked."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ucutlass import frontend, ir
from ucutlass.agent.integrity import gather
from ucutlass.agent.integrity.bundle import ReferenceProbe
from ucutlass.handoff import program_payload
from ucutlass.reference import evaluate
from ucutlass.reference.freeing import with_free_rows
from ucutlass.reference.slices import is_small
from ucutlass.runtime import isolation
from ucutlass.runtime.inputs import generate
from ucutlass.shapes import complete
from ucutlass.tasks.audit import VOLUME, _few_rows, probe

PRODUCT = "kernel k(A: f32[M=4096, K=512], B: f32[K, N=4096]) -> f32[M, N] { return dot[K](A, B) }"
SCALED = "kernel k(x: f32[M=65536, N=16384]) -> f32[M, N] { return x * 3 }"
ROWS = "kernel k(x: f32[M=300, N=70]) -> f32[M, N] { return softmax[N](x) }"
MEAN = "kernel k(x: f32[M=300, N=70]) -> f32[N] { return sum[M](x) * 0.5 }"
SPLIT = "kernel k(x: f32[(A=40 B=6), N=70]) -> f32[A, B, N] { return x + 1 }"
SIZED = "kernel k(x: f32[M=300, N=70]) -> f32[M, N] { return x * size(M) }"
PLACED = "kernel k(x: f32[M=300, N=70]) -> f32[M, N] { return x * f32(index(M)) }"
FREE = "kernel k(x: f32[M, N=70]) -> f32[M, N] { return x + 1 }"


def program(text: str) -> ir.Program:
    return frontend.program(frontend.read_text(text))


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        (PRODUCT, {"M": 4096, "N": 4096}),
        (SCALED, {"M": 65536, "N": 16384}),
        (ROWS, {"M": 300}),
        (MEAN, {"N": 70}),
        (SPLIT, {"N": 70}),
        (SIZED, {"M": 300, "N": 70}),
        (PLACED, {"N": 70}),
        (FREE, {"N": 70}),
    ],
)
def test_dimensions_without_influence_on_each_other_are_free(text: str, lengths: dict[str, int]) -> None:
    freed, of_text = with_free_rows(program(text))
    assert of_text == lengths
    assert isinstance(freed, ir.Kernel)
    assert {d for d, e in freed.dims.items() if isinstance(e, ir.extents.Free)} >= lengths.keys()


@pytest.mark.parametrize("text", [ROWS, MEAN, SPLIT, SIZED, PLACED])
def test_fewer_coordinates_give_a_slice_of_the_whole(text: str) -> None:
    whole = program(text)
    freed, lengths = with_free_rows(whole)
    (x,) = generate(whole, {}, "normal", seed=1)
    kind = whole.params[0].type
    assert isinstance(kind, ir.TensorType) and isinstance(x, torch.Tensor) and isinstance(whole, ir.Kernel)
    (result,) = evaluate(whole, [x])
    for dim in lengths:
        at = [axis.dims for axis in kind.axes].index((dim,))
        (part,) = evaluate(freed, [x.narrow(at, 0, 9)])
        axis = [a.dims for a in whole.results[0].type.axes].index((dim,))
        assert torch.equal(part, result.narrow(axis, 0, 9))


CHAIN = """
pipeline k(x: f32[M=300, K=40], w: f32[(A=4 B=8), K], g: f32[A]) -> f32[M, A, B] {
  h: f32[M, (A B)] = relu(dot[K](x, w))
  n: f32[M, (A B)] = h - mean[B](h)
  return n * g
}
"""
CALLED = """
kernel scaled(y: f32[N, K]) -> f32[N, K] { return softmax[K](y) }

pipeline k(x: f32[M=300, K=40]) -> f32[M, K] {
  h: f32[M, K] = x * 2
  return scaled(h)
}
"""


@pytest.mark.parametrize("text", [CHAIN, CALLED])
def test_rows_of_a_pipeline_are_free_where_they_are_those_of_every_stage(text: str) -> None:
    whole = frontend.program(frontend.read_text(text), "k")
    freed, of_text = with_free_rows(whole)
    assert of_text == {"M": 300}
    x, *rest = generate(whole, {}, "normal", seed=1)
    assert isinstance(x, torch.Tensor)
    (result,) = evaluate(whole, [x, *rest])
    (part,) = evaluate(freed, [x[:9], *rest])
    assert torch.equal(part, result[:9])


@pytest.mark.parametrize(
    "body",
    [
        "h: f32[M, K] = x * 2  return h - mean[M](h)",
        "h: f32[M, K] = torch.flip(x)  return h + 1",
        "h: f32[M, K] = x * f32(index(M))  return h + 1",
        "h: f32[M, K] = both(v, x)  return h + 1",
    ],
)
def test_rows_of_a_pipeline_stay_where_a_stage_needs_all(body: str) -> None:
    text = "kernel both(v: f32[N], y: f32[N, K]) -> f32[N, K] { return y * v }\n"
    text += f"pipeline k(x: f32[M=8, K=8], v: f32[J=8]) -> f32[M, K] {{ {body} }}"
    whole = frontend.program(frontend.read_text(text), "k")
    assert "M" not in with_free_rows(whole)[1]


@pytest.mark.parametrize("text", [PRODUCT, SCALED])
def test_a_probe_of_fixed_extents_is_small_and_finds_what_moves(text: str) -> None:
    checked = frontend.read_text(text)
    report = probe(program_payload(checked), "k", {}, 0)
    assert math.prod(report["sizes"].values()) <= VOLUME and set(report["sizes"]) == {"M", "N"}
    assert all(i["moves"] for i in report["inputs"])
    assert not any(r["constant"] or r["fixed"] or r["flat"] for r in report["results"])


CONVOLUTION = """
kernel k(x: f32[B=128, C=64, H=128, W=128], w: f32[K=128, C, R=3, S=3]) -> f32[B, K, P=126, Q=126] {
  return relu(dot[C, R, S](x[H = P + R, W = Q + S], w))
}
"""
POOLING = "kernel k(x: f32[B=64, C=128, H=65536]) -> f32[B, C, P=32768] { return mean[R=2](x[H = 2*P + R]) }"


def test_rows_that_do_not_depend_on_each_other_are_as_few_as_a_core_can_do() -> None:
    """A reference of 64 images takes minutes, and says no more of what moves what."""
    for text in (CONVOLUTION, POOLING, PRODUCT, SCALED):
        freed, lengths = with_free_rows(program(text))
        cut = _few_rows(freed, {d: min(n, 256) for d, n in lengths.items()})
        assert isinstance(freed, ir.Kernel) and cut.keys() == lengths.keys()
        full = dict(zip(freed.dims, complete(freed, cut), strict=True))
        assert is_small(freed, full) or set(cut.values()) == {1}


def test_rows_are_cut_no_more_where_each_depends_on_all() -> None:
    whole = program("kernel k(x: f32[M]) -> f32[M] { return softmax[M](x) }")
    assert _few_rows(whole, {"M": 2**20}) == {"M": 2**20}, "of one number it is 1, whatever that is"


@pytest.mark.parametrize(("text", "large"), [(CONVOLUTION, True), (POOLING, False), (PRODUCT, False)])
def test_what_is_large_at_one_row_is_asked_on_a_gpu(
    text: str, large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = program(text)
    sizes = dict(zip(whole.dims, complete(whole, {}), strict=True))
    assert gather.row_is_large(whole, sizes) == large


def test_a_result_without_influence_is_still_found() -> None:
    checked = frontend.read_text(SCALED.replace("x * 3", "x * 0 + 1"))
    (result,) = probe(program_payload(checked), "k", {}, 0)["results"]
    assert result["constant"]


FIXED_CHAIN = """
pipeline k(x: f32[M=4096, K=512], w: f32[N=2048, K]) -> f32[M, N] {
  h: f32[M, N] = dot[K](x, w)
  return softmax[N](h - mean[M](h))
}
"""
LONG_CHAIN = """
pipeline k(x: f32[M=4096, K=16384], w: f32[N=16384, K]) -> f32[M, N] {
  h: f32[M, N] = dot[K](x, w)
  return softmax[N](h)
}
"""


RECURRENT = """
pipeline k(x: f32[L=512, B=10, D=128], h: f32[Q=1, B, E=256], w: f32[G=768, D], u: f32[G, E]) -> f32[L, B, E] {
  y: f32[L, B, E] = torch.gru(x, h, w, u, layers=1)
  return y
}
"""


@pytest.mark.parametrize(
    ("text", "device", "asked"),
    [
        (RECURRENT, "cuda", ["cuda"]),
        (RECURRENT.replace("512", "8"), "cuda", ["cpu"]),
        (FIXED_CHAIN, "cuda", ["cuda"]),
        (FIXED_CHAIN, "cpu", ["cpu"]),
        (FIXED_CHAIN.replace("4096", "64").replace("2048", "64"), "cuda", ["cpu"]),
        (FIXED_CHAIN.replace(" - mean[M](h)", "").replace("2048", "512"), "cuda", ["cpu"]),
        (LONG_CHAIN, "cuda", ["cuda"]),
        (PRODUCT, "cuda", ["cpu"]),
        (FIXED_CHAIN, "cuda too small", ["cuda", "cpu"]),
    ],
)
def test_what_cannot_be_cut_is_asked_on_a_gpu(
    text: str, device: str, asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    devices: list[str] = []
    answer = {"sizes": {}, "results": [], "inputs": []}

    def run(target: str, arguments: Any, **limits: Any) -> isolation.CallOutcome:
        devices.append("cuda" if arguments.get("gpu") else "cpu")
        if device == "cuda too small" and devices[-1] == "cuda":
            return isolation.Raised("OutOfMemoryError", "CUDA out of memory", "", "")
        return isolation.Returned(answer, "")

    monkeypatch.setattr(isolation, "run", run)
    monkeypatch.setattr(gather, "gpu_at_hand", lambda: "" if device == "cpu" else "GPU-0")
    checked = frontend.read_text(text)
    whole = frontend.program(checked)
    sizes = dict(zip(whole.dims, complete(whole, {}), strict=True))
    probed = gather.probe_reference(gather.AuditSubject(checked, whole, sizes), 0)
    assert isinstance(probed, ReferenceProbe) and devices == asked
