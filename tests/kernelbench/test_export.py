"""What `ucc kernelbench --export` writes is taken by KernelBench's evaluation: loaded, seeded and called as it does.

Kernels run emulated on the CPU. KernelBench's own functions take part where KERNELBENCH names a checkout.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from click.testing import CliRunner
from kernelbench_files import LINEAR, linear, module

import ucutlass
from tests.emit import emulator
from ucutlass.agent.kernelbench_export import NotExportable, standalone, through_ucutlass
from ucutlass.agent.model_new import NotRewritable, model_new
from ucutlass.agent.module import TorchModule, read_module
from ucutlass.agent.solution_files import flashinfer_bench, sol_execbench
from ucutlass.cli import main
from ucutlass.cli.kernelbench_export import export
from ucutlass.emit.text import Source
from ucutlass.frontend import read_text

pytestmark = pytest.mark.usefixtures("forked")

SOFTMAX = "kernel softmax_(x: f32[M, N]) -> f32[M, N] { return softmax[N](x) }\n"
CENTRED = "pipeline centred(x: f32[M, N]) -> f32[M, N] {\n  m: f32[M] = mean[N](x)\n  return x - m\n}\n"

CASES: Mapping[str, tuple[str, str]] = {
    "softmax": (module("return torch.softmax(x, -1)", x="6, 40"), SOFTMAX),
    "centred": (module("return x - x.mean(-1, keepdim=True)", x="6, 40"), CENTRED),
    "linear": (linear(), LINEAR),
}


def read(tmp_path: Path, name: str) -> TorchModule:
    path = tmp_path / f"1_{name}.py"
    path.write_text(CASES[name][0])
    return read_module(path)


def evaluated(reference: str, text: str, seed: int = 42) -> tuple[Any, Any, list[Any]]:
    """Both modules and inputs, as `eval_kernel_against_ref` makes them."""
    context: dict[str, Any] = {}
    exec(compile(reference, "reference", "exec"), context)
    torch.manual_seed(seed)
    given = context["get_init_inputs"]()
    with torch.no_grad():
        torch.manual_seed(seed)
        original = context["Model"](*given)
        exec(compile(text, "answer", "exec"), context)
        torch.manual_seed(seed)
        custom = context["ModelNew"](*given)
    torch.manual_seed(seed)
    return original, custom, [x.float() for x in context["get_inputs"]()]


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[dict[str, Any]]:
    """Has PyTorch's `load_inline` compile for the host; gives what it was called with."""
    calls: list[dict[str, Any]] = []

    def load_inline(name: str, cuda_sources: list[str], **options: Any) -> str:
        calls.append({"name": name, "cuda_sources": cuda_sources, **options})
        (code,) = cuda_sources
        source = Source(emulator.translated(code), code, name, "")
        return str(emulator.build_unit("", [source], tmp_path))

    monkeypatch.setattr("torch.utils.cpp_extension.load_inline", load_inline)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(cuda_stream=0))
    return calls


@pytest.mark.parametrize(
    "name",
    [
        "softmax",
        pytest.param("centred", marks=pytest.mark.slow),
        pytest.param("linear", marks=pytest.mark.slow),
    ],
)
def test_what_stands_alone_computes_the_module(
    name: str, tmp_path: Path, emulated: list[dict[str, Any]]
) -> None:
    reference, program = CASES[name]
    checked = read_text(program)
    model = standalone(checked, checked.module.programs[0], read(tmp_path, name))
    assert "ucutlass" not in "".join(
        a.name for n in ast.walk(ast.parse(model.text)) if isinstance(n, ast.Import) for a in n.names
    )
    original, custom, inputs = evaluated(reference, model.text)
    with torch.no_grad():
        torch.testing.assert_close(custom(*inputs), original(*inputs), atol=1e-4, rtol=1e-4)
        with pytest.raises(RuntimeError, match="planned for"):
            custom(*(x[:2] for x in inputs))
    assert {call["name"] for call in emulated} == set(model.entries)
    for call in emulated:
        assert call["no_implicit_headers"] and not call["is_python_module"]
        assert any(flag.startswith("-gencode=") for flag in call["extra_cuda_cflags"])


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_what_goes_through_ucutlass_computes_the_module(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU the loaded program's reference stands for its kernel."""
    reference, program = CASES[name]
    checked = read_text(program)
    model = through_ucutlass(checked, checked.module.programs[0], read(tmp_path, name))
    loads = ucutlass.loads
    monkeypatch.setattr(ucutlass, "loads", lambda text, name: loads(text, name).reference, raising=False)
    original, custom, inputs = evaluated(reference, model.text)
    with torch.no_grad():
        torch.testing.assert_close(custom(*inputs), original(*inputs), atol=1e-4, rtol=1e-4)


SEEDED = '''"""try: nothing"""
import torch
import torch.nn as nn
width = 8
class Inner(nn.Module):
    """Here it would pass."""
    pass
class Model(nn.Module):
    """try:"""
    def __init__(self, n):
        super(Model, self).__init__()
        self.first = nn.Linear(n, width)
        self.noise = torch.rand(3)
        self.second = nn.Sequential(nn.Linear(width, n), nn.ReLU())
    def forward(self, x, y=None):
        """try: pass"""
        return self.second(self.first(x))
def get_inputs():
    return [torch.rand(2, 4)]
def get_init_inputs():
    return [4]
if __name__ == "__main__":
    print("run")
'''


def test_the_constructor_draws_what_the_reference_draws() -> None:
    keys = {"a": "input 0", "w": "state second.0.weight", "v": "input 1"}
    text = "def _run_program(values): return values\ndef _state(m, p): return p\n" + model_new(SEEDED, keys)
    for word in ("pass", "try:", "get_inputs", "print"):
        assert word not in text
    original, custom, inputs = evaluated(SEEDED, text)
    assert custom(inputs[0], 3)["v"] == 3 and custom(*inputs)["w"] == "second.0.weight"
    ours, theirs = custom.state_dict(), original.state_dict()
    assert ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
    assert torch.equal(custom.noise, original.noise)


def test_what_cannot_be_written_says_why(tmp_path: Path) -> None:
    with pytest.raises(NotRewritable, match="no class"):
        model_new("x = 1\n", {})
    with pytest.raises(NotRewritable, match="list"):
        model_new(SEEDED.replace("x, y=None", "*x"), {"a": "input 0"})
    other = read_text(SOFTMAX.replace("x: f32", "z: f32").replace("(x)", "(z)"))
    with pytest.raises(NotExportable, match="no z"):
        standalone(other, other.module.programs[0], read(tmp_path, "softmax"))


def of_kind(files: Mapping[str, str], kind: str) -> Any:
    (text,) = (text for path, text in files.items() if path.startswith(kind))
    return json.loads(text)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("write", [flashinfer_bench, sol_execbench])
def test_a_definition_s_reference_is_the_module(name: str, write: Any, tmp_path: Path) -> None:
    """By the rules of the benchmarks' own data types: names of axes, of inputs and of sources."""
    program = CASES[name][1]
    checked = read_text(program)
    typed = checked.module.programs[0]
    files = write(checked, typed, read(tmp_path, name), "kernelbench_level1_7")
    definition, workload, solution = (of_kind(files, k) for k in ("definitions", "workloads", "solutions"))
    assert all(a["type"] == "const" and a["value"] > 0 for a in definition["axes"].values())
    tensors = [*definition["inputs"].values(), *definition["outputs"].values()]
    assert all(axis in definition["axes"] for t in tensors for axis in t["shape"])
    assert (
        list(definition["inputs"]) == [p.name for p in typed.params] == list(workload["workload"]["inputs"])
    )
    assert definition["name"] == workload["definition"] == solution["definition"]
    paths = [source["path"] for source in solution["sources"]]
    assert solution["spec"]["entry_point"].split("::")[0] in paths and len(set(paths)) == len(paths)
    context: dict[str, Any] = {}
    exec(compile(definition["reference"], "reference", "exec"), context)
    torch.manual_seed(3)
    values = {
        n: torch.randn([definition["axes"][axis]["value"] for axis in t["shape"]])
        for n, t in definition["inputs"].items()
    }
    expected = typed_reference(program, values)
    torch.testing.assert_close(context["run"](*values.values()), expected, atol=1e-4, rtol=1e-4)


def typed_reference(program: str, values: Mapping[str, torch.Tensor]) -> torch.Tensor:
    result = ucutlass.loads(program).reference(*values.values())
    assert isinstance(result, torch.Tensor)
    return result


@pytest.mark.parametrize("name", ["softmax", pytest.param("linear", marks=pytest.mark.slow)])
def test_flashinfer_bench_s_solution_computes_the_definition(
    name: str, tmp_path: Path, emulated: list[dict[str, Any]]
) -> None:
    checked = read_text(CASES[name][1])
    files = flashinfer_bench(checked, checked.module.programs[0], read(tmp_path, name), "k")
    definition, solution = of_kind(files, "definitions"), of_kind(files, "solutions")
    (source,) = solution["sources"]
    contexts: list[dict[str, Any]] = [{}, {}]
    for context, text in zip(contexts, (definition["reference"], source["content"]), strict=True):
        exec(compile(text, "solution", "exec"), context)
    values = [
        torch.randn([definition["axes"][axis]["value"] for axis in t["shape"]])
        for t in definition["inputs"].values()
    ]
    ours, theirs = (context["run"](*values) for context in reversed(contexts))
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert not solution["spec"]["destination_passing_style"] and emulated


def test_sol_execbench_s_solution_sets_its_own_flags_and_calls_every_launch(tmp_path: Path) -> None:
    checked = read_text(CASES["centred"][1])
    files = sol_execbench(checked, checked.module.programs[0], read(tmp_path, "centred"), "k")
    solution = of_kind(files, "solutions")
    spec, sources = solution["spec"], {s["path"]: s["content"] for s in solution["sources"]}
    flags = spec["compile_options"]["cuda_cflags"]
    assert any("-gencode=" in flag for flag in flags) and "--use_fast_math" not in flags
    assert spec["target_hardware"] == ["LOCAL"] and spec["destination_passing_style"]
    binding = sources.pop("binding.cpp")
    assert all("load_inline" not in text for text in (binding, *sources.values()))
    assert len(sources) == 2 and all(binding.count(f"  launch({path[:-3]},") == 1 for path in sources)
    assert "void run(torch::Tensor x_, torch::Tensor output_)" in binding
    assert "  output_.copy_(" in binding and "{6, 40}" in binding


@pytest.mark.slow
def test_the_binding_compiles(tmp_path: Path) -> None:
    """With the kernels as declarations, and names of CUDA's stream in the place of its headers."""
    from torch.utils.cpp_extension import include_paths

    checked = read_text(CASES["linear"][1])
    files = sol_execbench(checked, checked.module.programs[0], read(tmp_path, "linear"), "k")
    sources = {s["path"]: s["content"] for s in of_kind(files, "solutions")["sources"]}
    stand_in = tmp_path / "ATen" / "cuda"
    stand_in.mkdir(parents=True)
    (stand_in / "CUDAContext.h").write_text(
        "namespace at::cuda { struct Stream { void* stream() { return nullptr; } };"
        " inline Stream getCurrentCUDAStream() { return {}; } }\n"
    )
    (tmp_path / "binding.cpp").write_text(sources["binding.cpp"])
    folders = [str(tmp_path), *include_paths(), sysconfig.get_paths()["include"]]
    command = ["g++", "-std=c++20", "-fsyntax-only", "-DTORCH_EXTENSION_NAME=binding"]
    command += [f"-I{folder}" for folder in folders]
    done = subprocess.run(
        [*command, str(tmp_path / "binding.cpp")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[:2000]


def test_the_command_writes_both_forms(tmp_path: Path) -> None:
    level = tmp_path / "KernelBench" / "level1"
    level.mkdir(parents=True)
    (level / "7_Softmax.py").write_text(CASES["softmax"][0])
    (level / "8_Fft.py").write_text(module("return torch.fft.fft(x).real", x="8, 8"))
    target = tmp_path / "out"
    call = ["kernelbench", "--root", str(tmp_path), "--select", "level1/*", "--export", str(target), "--json"]
    shown = CliRunner().invoke(main, call, prog_name="ucc", catch_exceptions=False)
    row = json.loads(shown.stdout)
    assert shown.exit_code == 0 and set(row["counts"].values()) == {1}
    assert list(row["counts"]) == ["through_ucutlass", "standalone", "flashinfer_bench", "sol_execbench"]
    for form in ("through_ucutlass", "standalone"):
        assert (target / form / "level_1_problem_7_sample_0_kernel.py").is_file()
    first, second = json.loads((target / "export.json").read_text())
    assert first["standalone"]["backend"] == "cuda" and first["standalone"]["entries"]
    assert set(second["refused"]) == set(row["counts"])
    for form in ("flashinfer_bench", "sol_execbench"):
        assert len(first[form]["files"]) == 3 and all(Path(p).is_file() for p in first[form]["files"])


def test_two_problems_of_one_name_do_not_overwrite_one_another(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "level1").mkdir(parents=True)
    for name in ("first", "twin"):
        (root / "level1" / f"7_{name}.py").write_text(CASES["softmax"][0])
    exported = CliRunner().invoke(
        main,
        [
            *("kernelbench", "--root", str(root), "--select", "level1/7"),
            *("--export", str(tmp_path / "out"), "--json"),
        ],
    )
    first, twin = json.loads(exported.stdout)["problems"]
    assert "standalone" in first and first["problem"] == "level1/7_first.py"
    assert set(twin["refused"]) == {"through_ucutlass", "standalone", "flashinfer_bench", "sol_execbench"}
    assert "those of level1/7_first.py" in twin["refused"]["standalone"] and "standalone" not in twin


def test_a_folder_that_cannot_be_written_is_noticed_before_a_problem_is_read(tmp_path: Path) -> None:
    (tmp_path / "standalone").write_text("a file in the way")

    def programs() -> Iterator[Any]:
        raise AssertionError("a problem is read")
        yield

    with pytest.raises(FileExistsError):
        export(tmp_path, programs())


# --- KernelBench's own functions ------------------------------------------------------

MISSING = ("dotenv", "tqdm", "openai", "litellm", "requests", "datasets", "pydra", "tomli")
"""What KernelBench imports beside PyTorch, and none of these functions uses."""


@pytest.fixture
def kernelbench(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Imports modules of the checkout that KERNELBENCH names."""
    root = os.environ.get("KERNELBENCH")
    if not root:
        pytest.skip("KERNELBENCH names no checkout of KernelBench")
    monkeypatch.syspath_prepend(str(Path(root) / "src"))
    for name in MISSING:
        if importlib.util.find_spec(name) is None:
            monkeypatch.setitem(sys.modules, name, MagicMock())
    return lambda name: importlib.import_module(f"kernelbench.{name}")


@pytest.mark.parametrize("name", CASES)
def test_kernelbench_takes_it(
    name: str,
    tmp_path: Path,
    kernelbench: Callable[[str], Any],
    emulated: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its static checker, its loaders and its five trials of correctness; the CPU stands for the GPU."""
    evaluation, checker = kernelbench("eval"), kernelbench("kernel_static_checker")
    monkeypatch.setattr(torch.cuda, "synchronize", lambda **_: None)
    reference, program = CASES[name]
    checked = read_text(program)
    typed, of = checked.module.programs[0], read(tmp_path, name)
    loads = ucutlass.loads
    monkeypatch.setattr(ucutlass, "loads", lambda text, name: loads(text, name).reference, raising=False)
    for model in (standalone(checked, typed, of), through_ucutlass(checked, typed, of)):
        backend = model.backend if model.entries else ""  # its checker knows no uCUTLASS
        valid, errors, _ = checker.validate_kernel_static(model.text, backend=backend, precision="fp32")
        assert valid, errors
        context: dict[str, Any] = {}
        original, given, inputs = evaluation.load_original_model_and_inputs(reference, context)
        if model.backend == "cute":
            custom, file = evaluation.load_custom_model_with_tempfile(model.text)
            Path(file.name).unlink()
        else:
            custom = evaluation.load_custom_model(model.text, context, None)
        modules = []
        with torch.no_grad():
            for cls in (original, custom):
                evaluation.set_seed(42)
                modules.append(cls(*given()))
        result = evaluation.run_and_check_correctness(
            *modules,
            inputs,
            metadata={},
            num_correct_trials=5,
            device=torch.device("cpu"),
            backend=model.backend,
            precision=torch.float32,
        )
        assert result.compiled and result.correctness, result.metadata
