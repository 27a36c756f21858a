"""Problem files as they come: each that is no problem ends in one code and its words."""

from __future__ import annotations

import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from kernelbench_files import linear, module

from ucutlass.agent.module import process_reply, read_module
from ucutlass.runtime import isolation
from ucutlass.runtime.bench import gpu_lock
from ucutlass.runtime.errors import LockTimeout
from ucutlass.runtime.module import inspection
from ucutlass.runtime.module.inspection import inspect_file, load, load_bound
from ucutlass.runtime.module.signature import (
    CODES,
    Mode,
    ModuleSignature,
    NumberSpec,
    Precision,
    TensorSpec,
    Unusable,
    names,
)
from ucutlass.runtime.module.source import class_as_problem
from ucutlass.tasks import gpu_turn, problem_file

MIB = 2**20
COUNTER = """
self.calls += 1
return x * self.calls
"""


def seen(
    folder: Path, text: str, mode: Mode = "constructed", precision: Precision = "own"
) -> ModuleSignature:
    """In this process, for speed: these files are the tests' own."""
    file = folder / "problem.py"
    file.write_text(text)
    return inspect_file(str(file), mode, precision)


def refused(folder: Path, text: str, **more: object) -> Unusable:
    """In a process of its own, as always."""
    file = folder / "problem.py"
    file.write_text(text)
    with pytest.raises(Unusable, match=r"problem\.py") as raised:
        read_module(file, **more)  # type: ignore[arg-type]
    assert raised.value.code in CODES
    return raised.value


def test_a_file_that_another_device_cannot_run_is_read_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    source = linear()
    here = problem_file.inspect(source, "problem.py", "constructed", "own")
    monkeypatch.setattr(problem_file, "gpu_of", lambda *_, **__: nullcontext("meta"))
    there = problem_file.inspect(source, "problem.py", "constructed", "own", "GPU-0", 1.0)
    assert there == here and here["facts"]
    wrong = problem_file.inspect("1 / 0", "problem.py", "constructed", "own", "GPU-0", 1.0)
    assert wrong["unusable"]["code"] == "import"


def test_a_module_that_is_large_is_looked_at_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[tuple[str, bool]] = []

    def gpu_of(*_: object, shared: bool, **__: object) -> Any:
        places.append(("meta", shared))
        return nullcontext("meta")

    def facts(path: str, mode: Mode, precision: Precision, device: str) -> dict[str, Any]:
        if device == "meta":
            raise torch.OutOfMemoryError("CUDA out of memory")
        places.append((device, False))
        return {"facts": {}}

    monkeypatch.setattr(problem_file, "gpu_of", gpu_of)
    monkeypatch.setattr(problem_file, "_facts", facts)
    assert problem_file.inspect("", "problem.py", "constructed", "own", "GPU-0", 1.0) == {"facts": {}}
    assert places == [("meta", True), ("meta", False), ("cpu", False)]


@pytest.mark.parametrize("or_cpu", [True, False])
def test_the_gpu_is_locked_once_the_process_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, or_cpu: bool
) -> None:
    events: list[str] = []
    monkeypatch.setattr(gpu_turn, "open_context", lambda: events.append("ready"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("memory"))
    hold = gpu_lock.hold_gpu

    def hold_gpu(gpu: str, **named: Any) -> Any:
        events.append(f"lock {gpu}")
        return hold(gpu, folder=tmp_path, **named)

    monkeypatch.setattr(gpu_lock, "hold_gpu", hold_gpu)
    with problem_file.gpu_of("", 0.0, or_cpu=or_cpu) as device:
        assert device == "cpu" and not events
    with problem_file.gpu_of("GPU-0", 0.0, or_cpu=or_cpu) as device:
        assert device == "cuda" and events == ["ready", "lock GPU-0"]
        late = nullcontext() if or_cpu else pytest.raises(LockTimeout)
        with late, problem_file.gpu_of("GPU-0", 0.0, or_cpu=or_cpu) as other:
            assert other == "cpu"
    assert events[-1] == "memory"


def test_inputs_are_drawn_where_the_file_can_draw_them(tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(linear())
    loaded = load(str(file), "constructed", "own")
    assert [x.device.type for x in loaded.inputs(1, "meta")] == ["meta"]
    assert torch.equal(loaded.inputs(1, "cpu")[0], loaded.inputs(1)[0])
    file.write_text(linear().replace("torch.rand", "torch.tensor([1.0]).numpy().tolist() and torch.rand"))
    stubborn = load(str(file), "constructed", "own")
    assert [x.device.type for x in stubborn.inputs(1, "meta")] == ["cpu"]


def test_what_a_module_takes_holds_and_gives(tmp_path: Path) -> None:
    text = module(
        "self.norm(self.fc(x)) * alpha",
        "self.fc = nn.Linear(8, 6)\nself.norm = nn.BatchNorm1d(6)",
        x="4, 8",
        alpha="0.5",
    )
    facts = seen(tmp_path, text)
    assert facts.inputs == (TensorSpec("x", (4, 8), "float32"), NumberSpec("alpha", 0.5))
    assert [p.name for p in facts.parameters] == ["fc.weight", "fc.bias", "norm.weight", "norm.bias"]
    assert [b.dtype for b in facts.buffers] == ["float32", "float32", "int64"]
    assert facts.results == (TensorSpec("result 0", (4, 6), "float32"),)
    assert facts.training and facts.batch_statistics
    assert list(names(facts))[:4] == ["x", "alpha", "fc_weight", "fc_bias"]


def test_precision_casts_floats_alone(tmp_path: Path) -> None:
    text = module("self.e(ids) + x", "self.e = nn.Embedding(9, 4)", ids="torch.randint(0, 9, (5,))", x="5, 4")
    facts = seen(tmp_path, text, precision="bf16")
    assert [one.dtype for one in facts.inputs if isinstance(one, TensorSpec)] == ["int64", "bfloat16"]
    assert facts.parameters[0].dtype == facts.results[0].dtype == "bfloat16"


def test_names_that_clash_or_are_reserved_get_one_more_underscore(tmp_path: Path) -> None:
    text = module("self.fc(fc_weight) + when", "self.fc = nn.Linear(4, 4)", fc_weight="4, 4", when="4")
    assert list(names(seen(tmp_path, text))) == ["fc_weight", "when_", "fc_weight_", "fc_bias"]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("def f(:\n", "import", "SyntaxError"),
        ("import no_such_module_here\n", "import", "no_such_module_here"),
        ("raise RuntimeError('not today')\n", "import", "not today"),
        ("raise MemoryError\n", "memory", "MemoryError"),
        ("Model = 3\ndef get_inputs(): return []\n", "lacks", "no Model and no get_init_inputs"),
        (module("x", x="4").replace("nn.Module", "object"), "lacks", "gives a Model"),
        (module("x", "raise ValueError('no layers')", x="4"), "construct", "no layers"),
        (module("x", init="n", x="4"), "construct", "TypeError"),
        (module("x", x="1 / 0"), "inputs", "ZeroDivisionError"),
        (module("x[0]", x="[torch.rand(2)]"), "inputs", "get_inputs()[0] is a list"),
        (module("x @ x", x="4, 5"), "forward", "RuntimeError"),
        (module("3", x="4"), "no-tensor", "a int is among"),
        (module("None", x="4"), "no-tensor", "nothing"),
        (module("x + torch.rand(4)", x="4"), "random", "two seeds"),
        (module("self.d(x)", "self.d = nn.Dropout(0.5)", x="64"), "random", "--mode eval"),
        (module(COUNTER, "self.calls = 0", x="4"), "stateful", "two calls"),
        (module("x if self.training else -x", x="4"), "mode", "--mode train or --mode eval"),
        (module("x * 1j", x="4"), "dtype", "complex64"),
    ],
)
def test_what_is_no_problem_has_a_code(tmp_path: Path, text: str, code: str, words: str) -> None:
    with pytest.raises(Unusable, match=r"problem\.py") as raised:
        seen(tmp_path, text)
    assert raised.value.code == code and words in str(raised.value)
    assert CODES[code] in str(raised.value)


def test_a_mode_that_is_named_settles_what_depends_on_it(tmp_path: Path) -> None:
    text = module("x if self.training else -x", x="4")
    assert seen(tmp_path, text, "train").training and not seen(tmp_path, text, "eval").training
    dropped = module("self.d(x)", "self.d = nn.Dropout(0.5)", x="64")
    assert not seen(tmp_path, dropped, "eval").training


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("import os\nos._exit(3)\n", "exits", "status 3"),
        ("print('so long')\nraise SystemExit(0)\n", "exits", "it printed last: 'so long'"),
        ("import os\nos.kill(os.getpid(), 11)\n", "crashes", "SIGSEGV"),
        (module("x", x="2**50"), "no-tensor", ""),
        (module("x", x="torch.empty(2**50)"), "memory", "allocate memory"),
    ],
)
def test_what_ends_its_process_has_a_code(tmp_path: Path, text: str, code: str, words: str) -> None:
    unusable = refused(tmp_path, text)
    assert unusable.code == code and words in unusable.why


@pytest.mark.slow
def test_a_file_that_hangs_is_ended(tmp_path: Path) -> None:
    assert refused(tmp_path, "while True: pass\n", limit_seconds=4.0).code == "hangs"


@pytest.mark.slow
def test_a_file_that_allocates_everything_is_ended(tmp_path: Path) -> None:
    text = "held = []\nwhile True: held.append(bytearray(2**24))\n"
    assert refused(tmp_path, text, memory_bytes=1500 * MIB).code == "memory"


def test_a_file_that_prints_a_megabyte_disturbs_nothing(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "problem.py"
    file.write_text("print('{\"returned\": 1}\\n' * 60_000)\n" + linear())
    assert read_module(file).facts.results[0].shape == (32, 40)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("forked")
def test_a_file_cannot_send_facts_that_are_none(tmp_path: Path) -> None:
    forged = '{"returned": {"facts": 3}}'
    text = f"import os, sys\nos.write(int(sys.argv[1]), b'{forged}')\nos._exit(0)\n"
    assert refused(tmp_path, text).code == "unreadable"


def test_a_gpu_without_room_is_no_fault_of_the_file() -> None:
    raised = isolation.Raised("OutOfMemoryError", "CUDA out of memory. Tried to allocate 32.00 GiB.", "", "")
    with pytest.raises(Unusable, match=r"32\.00 GiB") as unusable:
        process_reply(raised, "problem.py")
    assert unusable.value.code == "memory"


def test_what_cannot_be_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "problem.py").write_bytes(b"\xff\xfe")
    with pytest.raises(Unusable) as raised:
        read_module(tmp_path / "problem.py")
    assert raised.value.code == "unreadable"
    assert refused(tmp_path, "#" * 300_000).code == "unreadable"


def test_every_code_has_its_row_in_the_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernelbench.md").read_text()
    assert [code for code in CODES if f"`{code}`" not in page] == []


@pytest.mark.parametrize("cls", ["1st", "class", "A\nimport os", "A()"])
def test_a_class_is_a_name_before_it_is_code(cls: str) -> None:
    with pytest.raises(Unusable, match="is no name of a class"):
        class_as_problem("m.py", "class A: pass\n", cls, ())


def test_statistics_that_no_program_takes_keep_nothing_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """A BatchNorm in train() mode has running ones, filled with 0 and 1, whatever device they are made on."""
    norm = torch.nn.BatchNorm1d(3)
    loaded = inspection.LoadedModule("m.py", types.ModuleType("m"), norm, "own")
    places: list[torch.device] = []

    def load(*_: object) -> inspection.LoadedModule:
        places.append(torch.get_default_device())
        return loaded

    monkeypatch.setattr(inspection, "load", load)
    load_bound("m.py", "constructed", "own", {"weight", "bias"}, "meta")
    assert [place.type for place in places] == ["meta"]
    norm.running_mean.add_(0.5)
    load_bound("m.py", "constructed", "own", {"weight", "bias"}, "meta")
    assert [place.type for place in places] == ["meta", "meta", "cpu"], "drawn, for all that is known"


def test_weights_are_drawn_on_the_device_where_a_program_is_given_all_of_them(tmp_path: Path) -> None:
    file = tmp_path / "problem.py"
    file.write_text(linear())
    bound = {name for name, _ in load(str(file), "constructed", "own").model.named_parameters()}
    assert bound

    def device_of(names: set[str], device: str = "meta") -> str:
        loaded = load_bound(str(file), "constructed", "own", names, device)
        return next(loaded.model.parameters()).device.type

    assert device_of(bound) == "meta" and device_of(bound, "cpu") == "cpu"
    assert device_of(bound - {next(iter(bound))}) == "cpu", "what is no parameter is a constant of the module"
    file.write_text(linear().replace("super().__init__()", "super().__init__(); torch.ones(1).item()"))
    assert device_of(bound) == "cpu", "its code needs numbers"
