"""Problem files as they come: huge, wrong, hostile. Each runs in a process of its own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from module_files import exported

from tests.kernelbench.kernelbench_files import module as problem
from ucutlass.cli.sol import command
from ucutlass.cli.sol_module import ModuleLost, module_work
from ucutlass.runtime import isolation
from ucutlass.runtime.module.export import ProblemUnusable, ValueDependent
from ucutlass.runtime.module.work import count

pytestmark = pytest.mark.usefixtures("forked")


def _file(folder: Path, text: str) -> Path:
    file = folder / "some_problem.py"
    file.write_text(text)
    return file


def test_tensors_of_terabytes_take_no_memory(tmp_path: Path) -> None:
    """get_inputs alone would ask for 6 TB; the process may have 6 GiB."""
    text = problem("torch.relu(self.l(x))", "self.l = nn.Linear(524288, 524288)", x="1048576, 524288")
    work = module_work(_file(tmp_path, text))
    assert work.products == 2 * 1048576 * 524288**2
    assert work.fused.read == 4 * (1048576 * 524288 + 524288**2 + 524288)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("def f(:\n", "SyntaxError"),
        ("import no_such_module_here\n", "No module named 'no_such_module_here'"),
        ("Model = 3\ndef get_inputs(): return []\n", "defines no Model and no get_init_inputs"),
        (problem("x.no_such_method()", x="4"), "Model.forward: AttributeError"),
        (problem("x @ x", x="4, 5"), "Model.forward: RuntimeError"),
        (problem("x", "raise ValueError('not today')", x="4"), "ValueError: not today"),
        (problem("x * x.sum().item()", x="4"), "needs the values of a tensor"),
        (problem("x[x > 0]", x="4"), "needs the values of a tensor"),
        (problem("x if x.sum() > 0 else -x", x="4"), "needs the values of a tensor"),
        (problem("object()", x="4"), "in which tensors cannot be found"),
        (problem("3", x="4"), "returned no tensor"),
        (problem("x", x="4").replace("nn.Module", "object"), "not a torch"),
    ],
)
def test_what_cannot_be_exported_says_why(tmp_path: Path, text: str, words: str) -> None:
    """Right here, for speed; the next test has the way through the process."""
    with pytest.raises((ProblemUnusable, ValueDependent), match=r"problem\.py") as refused:
        exported(tmp_path, text)
    assert words in str(refused.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (problem("x * x.sum().item()", x="4"), "needs the values of a tensor"),
        ("import os\nos._exit(3)\n", "ended by itself with status 3"),
        ("import os\nos.kill(os.getpid(), 11)\n", "ended by SIGSEGV"),
        ("raise SystemExit(0)\n", "ended by itself with status 0"),
    ],
)
def test_a_process_that_gives_no_graph_says_why(tmp_path: Path, text: str, words: str) -> None:
    file = _file(tmp_path, text)
    with pytest.raises(ModuleLost, match=r"some_problem\.py") as lost:
        module_work(file)
    assert words in str(lost.value)


@pytest.mark.slow
def test_a_file_that_hangs_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ModuleLost, match="did not end within 1 s"):
        module_work(_file(tmp_path, "while True: pass\n"), limit_seconds=1.0)


def test_a_file_that_prints_disturbs_nothing(tmp_path: Path) -> None:
    text = "print('{\"returned\": 1}')\n" + problem("print(x.shape)\nreturn x + x", x="4, 4")
    assert module_work(_file(tmp_path, text)).fused.bytes == 2 * 64


def test_a_file_that_replaces_the_exporter_is_found_out(tmp_path: Path) -> None:
    text = (
        "import ucutlass.runtime.module.graph as g\n"
        "g._tensor_out = lambda t: {'shape': [-1], 'dtype': 'float32'}\n" + problem("x + x", x="4")
    )
    with pytest.raises(ModuleLost, match="sent no graph"):
        module_work(_file(tmp_path, text))


def test_the_file_runs_in_no_process_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "run", lambda target, arguments, **_: isolation.Exited(7, ""))
    with pytest.raises(ModuleLost, match="status 7"):
        module_work(_file(tmp_path, "raise AssertionError('ran here')"))


# --- exporters --------------------------------------------------------------------


def test_inputs_on_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    graph = exported(tmp_path, problem("x @ x", x="torch.rand(8, 8, device='cuda')"))
    assert count(graph).products == 1024


def test_layers_that_are_copied(tmp_path: Path) -> None:
    """TransformerEncoder deep-copies its layer, which must stay without memory."""
    layers = "self.l = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 3)"
    one = problem("self.l.layers[0](x)", layers, x="2, 5, 16")
    three = problem("self.l(x)", layers, x="2, 5, 16")
    assert count(exported(tmp_path, three)).products == 3 * count(exported(tmp_path, one)).products > 0


def test_the_second_exporter_agrees_and_is_announced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layers = 'self.l = nn.Linear(16, 32)\nself.register_buffer("b", torch.ones(32))'
    body = "y = F.mish(self.l(x) + self.b)\nx.relu_()\nreturn y[:, :8].contiguous()"
    text = problem(body, layers, x="64, 16")
    first = count(exported(tmp_path, text))

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("no exporting today\nand more")

    monkeypatch.setattr("torch.export.export", broken)
    second = count(exported(tmp_path, text))
    assert second.method.startswith("make_fx")
    assert second.attempts == ("torch.export failed: RuntimeError: no exporting today",)
    assert first.attempts == ()
    assert (second.products, second.fused.operations) == (first.products, first.fused.operations)
    assert second.fused.read == first.fused.read


def test_where_no_exporter_follows_all_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ucutlass.runtime.module import export as module_export

    def broken(*_: object) -> None:
        raise RuntimeError("never")

    monkeypatch.setattr(module_export, "_EXPORTERS", {"one": broken, "two": broken})
    with pytest.raises(module_export.ExportFailed, match="one failed: RuntimeError: never; two failed"):
        exported(tmp_path, problem("x + x", x="4"))


def test_numbers_in_place_of_tensors(tmp_path: Path) -> None:
    assert count(exported(tmp_path, problem("x * s", x="8, 8", s="3.14"))).fused.bytes == 2 * 4 * 64


def test_errors_have_the_file_and_the_step(tmp_path: Path) -> None:
    with pytest.raises(ProblemUnusable, match=r"problem\.py: get_inputs\(\): RuntimeError"):
        exported(tmp_path, problem("x", x="torch.zeros(2, 3) @ torch.zeros(2, 3)"))


# --- the command ------------------------------------------------------------------


@pytest.fixture
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UCUTLASS_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: None)


def test_the_command_prints_the_bound(tmp_path: Path, no_gpu: None) -> None:
    file = _file(tmp_path, problem("(self.l(x)).sum(1)", "self.l = nn.Linear(8192, 8192)", x="1024, 8192"))
    done = CliRunner().invoke(command, [str(file), "--device", "H100-SXM", "--compute-type", "tf32"])
    assert done.exit_code == 0, done.output
    # 2 * 1024 * 8192 * 8192 operations at 494.7 TFLOP/s
    assert "multiplications: 277.82 us on H100-SXM" in done.output
    assert "may do less\t" in done.output
    assert "linear.default" in done.output


def test_the_command_as_json(tmp_path: Path, no_gpu: None) -> None:
    file = _file(tmp_path, problem("torch.sort(x)[0]", x="1024, 1024"))
    done = CliRunner().invoke(command, [str(file), "--device", "H200", "--json", "--time", "100"])
    assert done.exit_code == 0, done.output
    row = json.loads(done.output)
    assert row["not_counted"] == {"aten.sort.default": 1}
    assert row["limit"] == "memory"
    assert row["work"]["bytes"] == 2 * 4 * 2**20
    assert row["gap"] == pytest.approx(100e-6 / (2 * 4 * 2**20 / 4.8e12))
    assert row["exporters_that_failed"] == []


def test_a_file_that_fails_is_the_programs_fault(tmp_path: Path, no_gpu: None) -> None:
    done = CliRunner().invoke(command, [str(_file(tmp_path, "raise ValueError('no')")), "--json"])
    assert done.exit_code == 1
    assert "ValueError: no" in json.loads(done.output)["error"]


def test_a_module_without_work(tmp_path: Path, no_gpu: None) -> None:
    done = CliRunner().invoke(command, [str(_file(tmp_path, problem("x.T", x="4, 5")))])
    assert done.exit_code == 1
    assert "no work to bound" in done.output


def test_options_of_the_other_kind_of_file_are_refused(tmp_path: Path, no_gpu: None) -> None:
    ucu = tmp_path / "k.ucu"
    ucu.write_text("kernel k(x: f32[M]) -> f32[M] { return x }")
    done = CliRunner().invoke(command, [str(ucu), "-s", "M=4", "--lane", "tf32"])
    assert (done.exit_code, "leave --compute-type out" in done.output) == (2, True)
    done = CliRunner().invoke(command, [str(_file(tmp_path, problem("x + x", x="4"))), "-s", "M=4"])
    assert (done.exit_code, "leave -s out" in done.output) == (2, True)
