"""How a program meets a module: what binds, what does not, and whether both compute the same."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from kernelbench_files import LINEAR, linear, module

from ucutlass import frontend
from ucutlass.agent.module import ModuleMatch, TorchModule, match_module
from ucutlass.agent.outcome import RefusedOutcome
from ucutlass.agent.problem import (
    ProgramCandidate,
    StartProgramMismatch,
    candidate_of,
    problem_of_module,
    program_name,
)
from ucutlass.handoff import program_payload
from ucutlass.runtime.module import reference
from ucutlass.runtime.module.inspection import LoadedModule, inspect_file, load
from ucutlass.runtime.module.reference import CEILING, tolerance
from ucutlass.runtime.module.signature import Mode
from ucutlass.tasks.problem_file import same


def made(folder: Path, text: str, mode: Mode = "constructed") -> TorchModule:
    """Read in this process, for speed."""
    file = folder / "3_Some_problem_.py"
    file.write_text(text)
    return TorchModule(str(file), text, mode, "own", inspect_file(str(file), mode, "own"))


def met(program: str, of: TorchModule) -> ModuleMatch | str:
    return match_module(frontend.program(frontend.read_text(program)), of)


def apart(program: str, of: TorchModule, seed: int = 0) -> str:
    """What the process says of the two, asked here."""
    checked = frontend.read_text(program)
    found = frontend.program(checked)
    fits = match_module(found, of)
    assert isinstance(fits, ModuleMatch), fits
    answer: dict[str, Any] = same(
        **of.arguments(), names=dict(fits.keys), program=program_payload(checked), name=found.name, seed=seed
    )
    assert "unusable" not in answer, answer
    return str(answer["words"])


def test_parameters_bind_by_name_and_extents_by_shape(tmp_path: Path) -> None:
    fits = met(LINEAR, made(tmp_path, linear()))
    assert isinstance(fits, ModuleMatch) and fits.sizes == {"M": 32, "K": 48, "N": 40}
    assert fits.keys == {"x": "input 0", "fc_weight": "state fc.weight", "fc_bias": "state fc.bias"}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("fc_bias", "bias"), "the module has no bias; it has x: float32 of 32 x 48"),
        (("fc_bias: f32", "fc_bias: bf16"), "fc_bias is float32 of 40 in the module and bf16 here"),
        (("fc_weight: f32[N, K]", "fc_weight: f32[K, N]"), "the module's shapes do not fit"),
        (("fc_bias: f32[N]", "fc_bias: f32[N, 1]"), "fc_bias has 1 axes"),
        (("fc_bias: f32[N]", "fc_bias: f32"), "fc_bias is float32 of 40 in the module and a number here"),
        (("-> f32[M, N]", "-> bf16[M, N]"), "result 0 is float32 of 32 x 40 in the module, and bf16"),
        (("-> f32[M, N]", "-> f32[N, M]"), "float32 of 32 x 40 in the module, and f32 of 40 x 32 here"),
    ],
)
def test_what_does_not_fit_says_what_and_how(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    text = LINEAR.replace(*change)
    outcome = met(text, made(tmp_path, linear()))
    assert isinstance(outcome, str) and said in outcome


def test_another_number_of_results(tmp_path: Path) -> None:
    of = made(tmp_path, module("return x * 2, x + 1", x="8, 4"))
    one = "kernel k(x: f32[M, N]) -> f32[M, N] { return x * 2 }"
    assert "it has 1 results and the module 2" in str(met(one, of))
    two = "kernel k(x: f32[M, N]) -> (a: f32[M, N], b: f32[M, N]) { return a = x * 2, b = x + 1 }"
    assert apart(two, of) == ""
    assert "result 1 differs" in apart(two.replace("+ 1", "+ 2"), of)


def test_a_number_is_a_number(tmp_path: Path) -> None:
    of = made(tmp_path, module("x * s", x="8, 4", s="3.25"))
    text = "kernel k(x: f32[M, N], s: f32) -> f32[M, N] { return x * s }"
    assert apart(text, of) == ""
    for other, said in (("f32[N]", "3.25 in the module and a tensor here"), ("i32", "of type i32 here")):
        assert said in str(met(text.replace("s: f32)", f"s: {other})"), of))


def test_two_inputs_of_one_shape_are_told_apart(tmp_path: Path) -> None:
    """The digest of a program knows parameters by position; here the names are what they are."""
    of = made(tmp_path, module("a - b", a="8, 4", b="8, 4"))
    right = "kernel p(a: f32[M, N], b: f32[M, N]) -> f32[M, N] { return a - b }"
    wrong = "kernel p(b: f32[M, N], a: f32[M, N]) -> f32[M, N] { return b - a }"
    problem = problem_of_module(of, right, "p.ucu", None, "sm90a")
    keys = [candidate_of(problem, text) for text in (right, wrong)]
    assert all(isinstance(k, ProgramCandidate) for k in keys)
    assert len({k.key for k in keys if isinstance(k, ProgramCandidate)}) == 2
    assert apart(right, of) == "" and "differs" in apart(wrong, of)


# --- computing the same ----------------------------------------------------------

BATCH_NORM = """
kernel k(x: f32[N, C, H, W], n_weight: f32[C], n_bias: f32[C]) -> f32[N, C, H, W] {
  d = x - mean[N, H, W](x)
  return d * rsqrt(mean[N, H, W](d * d) + 1e-5) * n_weight + n_bias
}
"""
CONVOLUTION = """
kernel k(x: f32[N, C=3, H, W], conv_weight: f32[K, C, R=3, S=3], conv_bias: f32[K])
  -> f32[N, K, P=H-2, Q=W-2] {
  return relu(dot[R, S, C](x[H = P + R, W = Q + S], conv_weight) + conv_bias)
}
"""
PIPELINE = """
pipeline k(x: f32[M, K], a_weight: f32[F, K], a_bias: f32[F], b_weight: f32[N, F], b_bias: f32[N])
  -> f32[M, N] {
  h: bf16[M, F] = gelu(dot[K](bf16(x), bf16(a_weight)) + a_bias)
  return dot[F](h, bf16(b_weight)) + b_bias
}
"""
SOFTMAX = "kernel k(x: f32[M, N]) -> f32[M, N] { return softmax[N](x) }"
CUMSUM = "kernel k(x: f32[M, N]) -> f32[M, N] { return cumsum[N](x) }"
ROUNDED = """
kernel k(x: f32[M, N], s: f32[N]) -> f32[M, N] { return x * s }
"""
MLP = "self.a = nn.Linear(16, 24)\nself.b = nn.Linear(24, 8)"

SAME = [
    (
        module("self.n(x)", "self.n = nn.BatchNorm2d(5)", x="4, 5, 6, 6"),
        BATCH_NORM,
        ["* n_weight", "+ n_bias", ("1e-5", "1e-6"), ("mean[N, H, W](x)", "mean[H, W](x)")],
    ),
    (
        module("torch.relu(self.conv(x))", "self.conv = nn.Conv2d(3, 4, 3)", x="2, 3, 9, 9"),
        CONVOLUTION,
        [
            (
                "relu(dot[R, S, C](x[H = P + R, W = Q + S], conv_weight) + conv_bias)",
                "dot[R, S, C](x[H = P + R, W = Q + S], conv_weight) + conv_bias",
            ),
            "+ conv_bias",
        ],
    ),
    (
        module("self.b(F.gelu(self.a(x)))", MLP, x="8, 16"),
        PIPELINE,
        ["+ a_bias", "+ b_bias", ("gelu", "relu")],
    ),
    (module("torch.softmax(x, 1)", x="6, 40"), SOFTMAX, [("softmax[N](x)", "softmax[N](x) * 1.0000001")]),
    (module("torch.cumsum(x, dim=1)", x="6, 40"), CUMSUM, [("cumsum[N](x)", "x")]),
    # A cast that forward makes on purpose is taken out too: both are held in float64.
    (
        module("x * self.s.half().float()", "self.s = nn.Parameter(torch.rand(4))", x="8, 4"),
        ROUNDED,
        [("*", "+")],
    ),
]


@pytest.mark.parametrize(("text", "program", "mutants"), SAME)
def test_what_computes_the_same_is_told_from_what_does_not(
    tmp_path: Path, text: str, program: str, mutants: list[str | tuple[str, str]]
) -> None:
    of = made(tmp_path, text)
    assert apart(program, of) == ""
    for mutant in mutants:
        old, new = (mutant, "") if isinstance(mutant, str) else mutant
        changed = program.replace(old, new, 1)
        assert changed != program and "differs" in apart(changed, of), mutant


def test_what_a_fresh_module_has_by_accident_is_no_constant(tmp_path: Path) -> None:
    """A norm's gain begins as 1 and its bias as 0: a program without them fits the file's own weights."""
    of = made(tmp_path, module("self.n(x)", "self.n = nn.LayerNorm(16)", x="8, 16"))
    bare = """kernel k(x: f32[M, N]) -> f32[M, N] {
      d = x - mean[N](x)
      return d * rsqrt(mean[N](d * d) + 1e-5)
    }"""
    assert "on normal numbers, result 0 differs" in apart(bare, of)


def test_what_only_fits_the_files_own_inputs_is_refused(tmp_path: Path) -> None:
    """Inputs from 0 to 1 make a relu the identity, and a clamp one half of itself."""
    of = made(tmp_path, module("torch.relu(x)", x="8, 16"))
    assert "differs" in apart("kernel k(x: f32[M, N]) -> f32[M, N] { return x }", of)
    of = made(tmp_path, module("torch.clamp(x, -6, 6)", x="8, 16"))
    assert "differs" in apart("kernel k(x: f32[M, N]) -> f32[M, N] { return min(x, 6) }", of)


def test_running_statistics_count_in_eval_mode(tmp_path: Path) -> None:
    of = made(tmp_path, module("self.n(x)", "self.n = nn.BatchNorm1d(5)", x="8, 5"), "eval")
    full = """kernel k(
      x: f32[M, C], n_weight: f32[C], n_bias: f32[C], n_running_mean: f32[C], n_running_var: f32[C]
    ) -> f32[M, C] { return (x - n_running_mean) * rsqrt(n_running_var + 1e-5) * n_weight + n_bias }"""
    assert apart(full, of) == ""
    bare = """kernel k(x: f32[M, C], n_weight: f32[C], n_bias: f32[C]) -> f32[M, C] {
      return x * rsqrt(1 + 1e-5) * n_weight + n_bias }"""
    assert "differs" in apart(bare, of)


def test_a_mask_in_a_buffer_may_be_written_by_coordinates(tmp_path: Path) -> None:
    """A buffer that the program does not take is a constant of the module."""
    of = made(
        tmp_path,
        module("x * self.mask", 'self.register_buffer("mask", torch.tril(torch.ones(6, 6)))', x="6, 6"),
    )
    assert apart("kernel k(x: f32[M, N]) -> f32[M, N] { return where(index(N) <= index(M), x, 0) }", of) == ""
    assert apart("kernel k(x: f32[M, N], mask: f32[M, N]) -> f32[M, N] { return x * mask }", of) == ""


def test_classes_stay_classes(tmp_path: Path) -> None:
    of = made(tmp_path, module("self.e(ids)", "self.e = nn.Embedding(9, 4)", ids="torch.randint(0, 9, (5,))"))
    text = "kernel k(ids: i64[T], e_weight: f32[V, D]) -> f32[T, D] { return e_weight[V = ids] }"
    assert apart(text, of) == ""


def test_the_tolerance_is_roundoff(tmp_path: Path) -> None:
    exact = torch.linspace(0, 1, 100, dtype=torch.float64)
    assert tolerance(exact, exact.float()) < 1e-12
    assert tolerance(exact, torch.full((100,), torch.inf)) == CEILING
    assert tolerance(torch.arange(3), torch.arange(3)) == 0.0


def test_the_twin_is_float32_and_not_tf32(tmp_path: Path) -> None:
    """Its error measures what rounding does to the formula: facts are taken with TF32, answers without."""
    of = made(tmp_path, module("x * 2", x="4, 4"))
    strict = module("assert not torch.backends.cudnn.allow_tf32\nreturn x * 2", x="4, 4")
    checked = TorchModule(of.file, strict, of.mode, of.precision, of.facts)
    assert apart("kernel k(x: f32[M, N]) -> f32[M, N] { return x * 2 }", checked) == ""
    assert torch.backends.cudnn.allow_tf32


def test_a_shape_that_depends_on_values_is_no_match(tmp_path: Path) -> None:
    of = made(tmp_path, module("x[x[:, 0] > 0]", x="4, 4"))
    assert "should have" in apart("kernel k(x: f32[M, N]) -> f32[M, N] { return x }", of)


def test_results_are_compared_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "PART", 7)
    of = made(tmp_path, module("x + 1", x="4, 4"))
    text = "kernel k(x: f32[M, N]) -> f32[M, N] { return where(index(M) == 3 and index(N) == 2, x, x + 1) }"
    assert "element (3, 2) is" in apart(text, of) and "(1 of 16 elements)" in apart(text, of)
    assert apart(text.replace("x, x + 1", "x + 1, x + 1"), of) == ""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("assert x.dtype == torch.float32\nreturn x * 2", "AssertionError"),
        ("x.view(torch.int32) * 2", "of (4, 8)"),
    ],
)
def test_a_forward_that_cannot_be_followed_in_float64_says_so(tmp_path: Path, body: str, said: str) -> None:
    of = made(tmp_path, module(body, x="4, 4"))
    text = "kernel k(x: f32[M, N]) -> f32[M, N] { return x * 2 }"
    program = program_payload(frontend.read_text(text))
    answer = same(**of.arguments(), names={"x": "input 0"}, program=program, name="k", seed=0)
    assert answer["unusable"]["code"] == "widened" and said in answer["unusable"]["why"]


def test_a_module_that_gives_no_number_says_nothing(tmp_path: Path) -> None:
    of = made(tmp_path, module("(x - x) / (x - x)", x="4, 4"))
    text = "kernel k(x: f32[M, N]) -> f32[M, N] { return (x - x) / (x - x) }"
    program = program_payload(frontend.read_text(text))
    answer = same(**of.arguments(), names={"x": "input 0"}, program=program, name="k", seed=0)
    assert "no finite number" in answer["unusable"]["why"]


# --- problems --------------------------------------------------------------------


def test_a_start_that_does_not_fit_is_an_error(tmp_path: Path) -> None:
    of = made(tmp_path, linear())
    with pytest.raises(StartProgramMismatch, match="the module has no bias"):
        problem_of_module(of, LINEAR.replace("fc_bias", "bias"), "s.ucu", None, "sm90a")


def test_no_candidate_works_below_the_compute_type(tmp_path: Path) -> None:
    of = made(tmp_path, linear())
    low = LINEAR.replace("dot[K](x, fc_weight)", "dot[K](bf16(x), bf16(fc_weight))")
    strict, loose = (
        problem_of_module(of, LINEAR, "s.ucu", None, "sm90a", compute_type) for compute_type in (None, "bf16")
    )
    outcome = candidate_of(strict, low)
    assert isinstance(outcome, RefusedOutcome) and "below the problem's compute type f32" in outcome.words
    assert isinstance(candidate_of(loose, low), ProgramCandidate)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("a/19_ReLU.py", "relu"),
        ("1_Square_matrix_multiplication_.py", "square_matrix_multiplication"),
        ("7_.py", "problem"),
        ("9_return.py", "return_"),
        ("x; drop.py", "x_drop"),
    ],
)
def test_programs_are_named_after_the_file(file: str, name: str) -> None:
    assert program_name(file) == name


def test_numbers_that_no_later_draw_needs_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file's own floats once they were drawn from, and a case once it was judged: of inputs of 16 GiB a GPU has
    no room for two. Whole numbers stay, since later draws keep to their range."""
    file = tmp_path / "3_Some_problem_.py"
    file.write_text(module("x * 2 + i", x="8, 4", i="torch.arange(4)"))
    loaded = load(str(file), "constructed", "own")
    drawn: list[weakref.ref[torch.Tensor]] = []
    judged: list[weakref.ref[torch.Tensor]] = []
    inputs_of, case_of = LoadedModule.inputs, reference._case

    def inputs(of: LoadedModule, seed: int, device: str = "") -> list[Any]:
        made = inputs_of(of, seed, device)
        drawn.extend(map(weakref.ref, made))
        return made

    def case(*arguments: Any) -> reference.OracleCase:
        assert not any(result() is not None for result in judged), "the last case is still there"
        made = case_of(*arguments)
        judged.append(weakref.ref(made.results[0]))
        return made

    monkeypatch.setattr(LoadedModule, "inputs", inputs)
    monkeypatch.setattr(reference, "_case", case)
    draws = []
    for one in reference.cases(loaded, frozenset(), 0):
        draws.append(one.draw)
        assert drawn[0]() is None and drawn[1]() is not None
        assert torch.equal(one.results[0], one.inputs[0] * 2 + one.inputs[1])
        del one
    assert tuple(draws) == reference.DRAWS and len(judged) == len(draws)
