"""The comparison's process as it runs, on the CPU: buffers, baselines, validation, report."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch_cpu import TorchCpu

from ucutlass import frontend, ir
from ucutlass.handoff import program_payload
from ucutlass.runtime.bench import workload
from ucutlass.runtime.bench.baselines import BASELINES, baseline, product_alone
from ucutlass.runtime.bench.eager import NotAvailable, eager
from ucutlass.runtime.bench.protocol import Protocol
from ucutlass.runtime.bench.workload import LOOSE, Buffers, far
from ucutlass.runtime.verify.fingerprint import fingerprint
from ucutlass.shapes import complete
from ucutlass.tasks import bench as trial

LINEAR = "kernel k(x: f32[M, K], w: f32[N, K], b: f32[N]) -> f32[M, N] { return relu(dot[K](x, w) + b) }"
SIZES = {"M": 16, "N": 8, "K": 32}
FAST = Protocol(warmup=0.0, min_seconds=0.0, max_seconds=60.0, block_us=200.0, launches=4, wall_launches=4)


class Stand:
    """In a built kernel's place: the program's eager form, exact enough for its bounds in f32."""

    def __init__(self, program: ir.Program, sizes: dict[str, int]) -> None:
        self.program = program
        self._module = eager(program, dict(zip(program.dims, complete(program, sizes), strict=True)), "cpu")

    def __call__(self, *arguments: Any, out: Any = None) -> Any:
        made = self._module(*arguments)
        if out is None:
            return made[0] if len(made) == 1 else made
        for to, one in zip(out if isinstance(out, tuple) else (out,), made, strict=True):
            to.copy_(one)
        return out

    def judged(self, *arguments: Any) -> Any:
        return lambda args, outs: self(*args, out=outs[0] if len(outs) == 1 else tuple(outs))


class Stale(Stand):
    """Answers every call with the result of its first."""

    def __call__(self, *arguments: Any, out: Any = None) -> Any:
        if not hasattr(self, "first"):
            self.first = super().__call__(*arguments)
        if out is None:
            return self.first.clone()
        return out.copy_(self.first)


def program_of(text: str) -> ir.Kernel:
    program = frontend.read_text(text).module.programs[0]
    assert isinstance(program, ir.Kernel)
    return program


def compared(stand: Any, baselines: Sequence[dict[str, str]], chosen: Protocol = FAST) -> dict[str, Any]:
    gpu: Any = TorchCpu()
    report: dict[str, Any] = trial._compared(stand, SIZES, None, list(baselines), chosen, gpu, None)
    return json.loads(json.dumps(report, allow_nan=False))  # type: ignore[no-any-return]


def test_a_comparison_from_buffers_to_report() -> None:
    report = compared(Stand(program_of(LINEAR), SIZES), [{"name": "eager"}, {"name": "cublas"}])
    ours, plain, product = report["outcomes"]
    assert [o["name"] for o in report["outcomes"]] == ["candidate", "eager", "cublas"]
    assert ours["trusted"] and plain["trusted"] and product["trusted"]
    assert plain["kernels"] == ["aten.addmm.default", "aten.relu.default"]
    assert product["kernels"] == ["aten.mm.out"]
    assert ours["kernels"] == ["aten.addmm.default", "aten.relu.default", "aten.copy_.default"]
    verdicts = {v["baseline"]: v["verdict"] for v in report["versus"]}
    assert verdicts == {"eager": "slower", "cublas": "slower"}
    assert report["buffers"]["sets"] >= 2 and report["rounds"] >= 10
    assert {f["name"] for f in report["findings"]} == {"no-nvml"}


def test_a_kernel_is_verified_before_it_is_timed() -> None:
    gpu: Any = TorchCpu()
    right: Any = Stand(program_of(LINEAR), SIZES)
    values = trial.judged(right, gpu, SIZES, None, 0, [], [FAST], None)
    assert [(v["case"], v["ok"]) for v in values["verified"]] == [("normal", True), ("integer", True)]
    assert len(values["regimes"]) == 1

    class Wrong(Stand):
        def __call__(self, *arguments: Any, out: Any = None) -> Any:
            made = super().__call__(*arguments, out=out)
            made[0, 0] += 1.0
            return made

    wrong: Any = Wrong(program_of(LINEAR), SIZES)
    values = trial.judged(wrong, gpu, SIZES, None, 0, [], [FAST], None)
    assert not values["verified"][0]["ok"] and "[0, 0]" in values["verified"][0]["words"]
    assert values["regimes"] == []


def test_warm_takes_one_set_and_still_validates() -> None:
    warm = Protocol(**{**{f: getattr(FAST, f) for f in FAST.__slots__}, "regime": "warm"})
    report = compared(Stand(program_of(LINEAR), SIZES), [], warm)
    assert report["buffers"]["sets"] == 1 and report["outcomes"][0]["trusted"]
    stale = compared(Stale(program_of(LINEAR), SIZES), [], warm)
    assert stale["outcomes"][0]["failed"] == "validation"


def test_a_stale_result_has_no_time() -> None:
    (found,) = compared(Stale(program_of(LINEAR), SIZES), [])["outcomes"]
    assert found["failed"] == "validation"
    assert [f["name"] for f in found["findings"]] == ["wrong-output"]


def test_baselines_that_cannot_be_made_are_reported() -> None:
    report = compared(
        Stand(program_of(LINEAR), SIZES),
        [
            {"name": "bad.ucu", "refused": "ProgramError: y is not defined"},
            {
                "name": "other.ucu",
                "program": program_payload(
                    frontend.read_text(
                        "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) }"
                    )
                ),
            },
        ],
    )
    _, bad, other = report["outcomes"]
    assert bad["failed"] == "preparation" and "ProgramError" in bad["words"]
    assert other["failed"] == "preparation" and "OtherProgram" in other["words"]


def buffers(text: str, sizes: dict[str, int], sets: int = 3) -> Buffers:
    return Buffers(program_of(text), sizes, sets, "cpu", 0, random.Random(0))


def test_a_refreshed_set_never_keeps_its_content() -> None:
    held = buffers(LINEAR, SIZES, sets=1)
    seen = []
    for _ in range(12):
        at = held.refresh()
        tensor = held.arguments[at][0]
        assert isinstance(tensor, torch.Tensor)
        seen.append((held.content(at), tensor.clone()))
    for (a, x), (b, y) in itertools.pairwise(seen):
        assert a != b and not torch.equal(x, y)
    assert len({c for c, _ in seen}) == 3


def test_the_strict_check_is_the_derived_bound() -> None:
    held = buffers(LINEAR, SIZES)
    check = held.strict()
    at = held.refresh()
    right = Stand(held.program, SIZES)(*held.arguments[at])
    assert check(at, (right,)) == ""
    wrong = right.clone()
    wrong[3, 5] += 1e-3
    assert "[3, 5]" in check(at, (wrong,))


def test_the_reference_is_asked_once_about_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def noted(name: str) -> None:
        real = getattr(workload, name)

        def call(*arguments: Any) -> Any:
            asked.append(name)
            return real(*arguments)

        monkeypatch.setattr(workload, name, call)

    noted("least_results")
    noted("compare_results")
    held = buffers(LINEAR, SIZES)
    strict, loose = held.strict(), held.loose(held.program)
    assert not asked, "what nobody visits needs no reference"
    stand = Stand(held.program, SIZES)
    contents = set()
    for _ in range(20):
        at = held.refresh()
        contents.add(held.content(at))
        assert strict(at, (stand(*held.arguments[at]),)) == ""
        assert loose(at, (stand(*held.arguments[at]),)) == ""
    assert len(contents) == 3
    assert asked.count("least_results") == asked.count("compare_results") == 3


@pytest.mark.parametrize("change", ["one element", "the last content", "another shape"])
def test_other_bits_are_compared_whatever_was_right_before(change: str) -> None:
    held = buffers(LINEAR, SIZES)
    strict, loose = held.strict(), held.loose(held.program)
    stand = Stand(held.program, SIZES)
    results: dict[int, torch.Tensor] = {}
    while len(results) < 3:
        at = held.refresh()
        results[held.content(at)] = stand(*held.arguments[at])
        assert strict(at, (results[held.content(at)],)) == "" == loose(at, (results[held.content(at)],))
    at = held.refresh()
    right = results[held.content(at)]
    match change:
        case "one element":
            wrong = right.clone()
            wrong[7, 3] += 1e-3
            assert "[7, 3]" in strict(at, (wrong,))
            assert strict(at, (right,)) == ""
        case "the last content":
            wrong = results[(held.content(at) + 1) % 3]
            assert strict(at, (wrong,)) and "relative error" in loose(at, (wrong,))
        case "another shape":
            with pytest.raises(ValueError):
                strict(at, (right.t().contiguous(),))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int8, torch.bool])
def test_a_fingerprint_is_of_every_bit(dtype: torch.dtype) -> None:
    chance = torch.Generator().manual_seed(1)
    values = torch.randint(0, 2, (37, 11), generator=chance).to(dtype)
    same = fingerprint([values], 5)
    assert fingerprint([values.t().contiguous().t()], 5) == same != fingerprint([values], 6)
    odd = torch.cat([values.new_zeros(1), values.reshape(-1)])[1:].reshape(values.shape)
    assert fingerprint([odd], 5) == same, "where a tensor begins is no matter"
    for i, j in ((0, 0), (36, 10), (17, 4)):
        other = values.clone()
        other[i, j] = 1 - other[i, j].to(torch.int8)
        assert fingerprint([other], 5) != same
    nan = torch.full((3,), math.nan)
    assert fingerprint([nan], 5) == fingerprint([nan.clone()], 5)
    assert fingerprint([torch.zeros(3)], 5) != fingerprint([-torch.zeros(3)], 5)
    assert fingerprint([values, values], 5)[0] != fingerprint([values, values], 5)[1]


def test_a_fingerprint_goes_on_from_part_to_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ucutlass.runtime.verify.fingerprint.PART", 8)
    values = torch.arange(20)
    swapped = torch.cat([values[8:16], values[:8], values[16:]])
    assert fingerprint([values], 5) != fingerprint([swapped], 5)


def test_the_loose_check_refuses_what_is_no_rounding() -> None:
    reference = torch.randn(64, 64, dtype=torch.float64)
    assert far(reference.to(torch.bfloat16), reference) == ""
    assert "relative error" in far(reference.roll(1, 0), reference)
    assert "relative error" in far(torch.zeros(64, 64), reference)
    assert far(reference.masked_fill(reference > 1, torch.nan), reference).startswith("not finite")
    assert 2**-8 < LOOSE < 1


PRODUCTS = {
    "mm": ("kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return relu(dot[K](x, w)) }", "aten.mm.out"),
    "other way": ("kernel k(x: f32[K, M], w: f32[K, N]) -> f32[N, M] { return dot[K](x, w) }", "aten.mm.out"),
    "bmm": (
        "kernel k(x: f32[B, M, K], w: f32[B, N, K]) -> f32[B, M, N] { return dot[K](x, w) }",
        "aten.bmm.out",
    ),
    "mv": ("kernel k(a: f32[M, K], x: f32[K]) -> f32[M] { return silu(dot[K](a, x)) }", "aten.mv.out"),
    "shared weight": (
        "kernel k(x: f32[B, M, K], w: f32[K, (A=2 D=4)]) -> f32[B, A, M, D] { return dot[K](x, w) }",
        "aten.mm.out",
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_bare_product_is_one_call_of_torch(name: str) -> None:
    text, call = PRODUCTS[name]
    program = program_of(text)
    free = {d: s for d, s in {"B": 3, "M": 16, "N": 8, "K": 32}.items() if d in program.dims}
    full = dict(zip(program.dims, complete(program, free), strict=True))
    held = Buffers(program, free, 2, "cpu", 0, random.Random(0))
    bench_candidate = baseline("cublas", held, full, "cpu")
    at = held.refresh()
    gpu = TorchCpu()
    outputs: list[Any] = []
    seen = gpu.session(lambda stamp: outputs.extend(bench_candidate.launch(at)), 0, True)
    assert seen.events is not None and [e.name for e in seen.events] == [call]
    assert bench_candidate.check(at, outputs) == ""
    assert bench_candidate.check(at, [torch.zeros_like(outputs[0])]) != ""
    assert bench_candidate.moved is not None and bench_candidate.moved > 0


@pytest.mark.parametrize(
    "text, words",
    [
        (
            "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x, w) + dot[K](x * 2, w) }",
            "2 dots",
        ),
        (
            "kernel k(x: f32[M, K], w: f32[N, K]) -> f32[M, N] { return dot[K](x * 2, w) }",
            "computed operands",
        ),
    ],
)
def test_what_has_no_bare_product_says_so(text: str, words: str) -> None:
    with pytest.raises(NotAvailable, match=words):
        product_alone(program_of(text))


def test_every_baseline_has_a_maker_and_a_name_on_the_command_line() -> None:
    from ucutlass.cli.bench import NAMES

    assert tuple(BASELINES) == NAMES
    held = buffers(LINEAR, SIZES)
    full = dict(zip(held.program.dims, complete(held.program, SIZES), strict=True))
    assert baseline("eager", held, full, "cpu").name == "eager"
