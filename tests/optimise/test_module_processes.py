"""Processes of problem files: one for each file, ready before it is known."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from ucutlass.agent import module_processes as processes_module
from ucutlass.agent.module_processes import (
    FEW_MODULES,
    IMPORT,
    MODULES,
    GpuProcess,
    ModuleProcesses,
    forked_call,
    module_processes,
)
from ucutlass.runtime import isolation
from ucutlass.runtime.process_template import ProcessTemplate


class Process:
    """Notes what it is asked for."""

    def __init__(self, log: list[Process]) -> None:
        self.preloads: list[Sequence[str]] = []
        self.sources: list[str] = []
        self.open = True
        self.meanwhile: Callable[[], None] = lambda: None
        log.append(self)

    def prepare(self, modules: Sequence[str]) -> None:
        self.preloads.append(modules)

    def call(self, target: str, arguments: Mapping[str, Any], **limits: Any) -> isolation.CallOutcome:
        assert self.open and limits == {"limit_seconds": 3.0, "memory_bytes": 4}
        self.sources.append(arguments["source"])
        self.meanwhile()
        return isolation.Returned(target, "")

    def close(self) -> None:
        self.open = False


@pytest.fixture
def log() -> list[Process]:
    return []


def processes_of(log: list[Process], most: int = 2) -> ModuleProcesses:
    return ModuleProcesses(1, most, start=lambda: Process(log))  # type: ignore[arg-type, return-value]


def ask(processes: ModuleProcesses, source: str, target: str = "module:function") -> None:
    outcome = processes(target, {"source": source}, limit_seconds=3.0, memory_bytes=4)
    assert outcome == isolation.Returned(target, "")


def test_calls_of_a_file_go_to_one_process_and_those_of_another_to_another(log: list[Process]) -> None:
    processes = processes_of(log)
    for source in ("a", "b", "a", "a"):
        ask(processes, source)
    assert [p.sources for p in log] == [["a", "a", "a"], ["b"], []]


def test_an_import_waits_for_nothing_that_is_asked_of_the_file(log: list[Process]) -> None:
    processes = processes_of(log)
    for target in ("module:function", IMPORT, "module:another"):
        ask(processes, "a", target)
    assert [len(p.sources) for p in log] == [2, 1, 0]


def test_of_two_that_are_ready_first_only_the_import_s_has_the_importer(log: list[Process]) -> None:
    for order in (("module:function", IMPORT), (IMPORT, "module:function")):
        log.clear()
        processes = ModuleProcesses(2, 4, start=lambda: Process(log))  # type: ignore[arg-type, return-value]
        assert [p.preloads for p in log] == [[MODULES], [FEW_MODULES]]
        for target in order:
            ask(processes, "a", target)
        assert [p.sources for p in log[:2]] == [["a"], ["a"]]
        imports = processes._process_of(True, "a")[0]
        assert imports is log[0] and all(p.preloads == [MODULES] for p in log[2:])


def test_one_waits_ready_once_the_file_that_took_one_has_its_answer(log: list[Process]) -> None:
    processes = processes_of(log)
    assert len(log) == 1
    log[0].meanwhile = lambda: counts.append(len(log))
    counts: list[int] = []
    ask(processes, "a")
    assert counts == [1] and len(log) == 2 and all(p.preloads == [MODULES] for p in log)
    ask(processes, "a")
    assert len(log) == 2


def test_the_file_that_was_asked_longest_ago_loses_its_process(log: list[Process]) -> None:
    processes = processes_of(log)
    for source in ("a", "b", "a", "c"):
        ask(processes, source)
    assert [p.open for p in log] == [True, False, True, True]
    ask(processes, "b")
    assert log[3].sources == ["b"], "a file whose process ended takes one that is ready"


def test_all_end_with_the_block(log: list[Process], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "ucutlass.agent.module_processes.ModuleProcesses", lambda ready, most, later, start: processes_of(log)
    )
    with module_processes() as processes:
        ask(processes, "a")
    assert len(log) == 2 and not any(p.open for p in log)


@pytest.mark.slow
def test_what_it_imports_is_there_and_answers_for_a_file() -> None:
    source = (
        "import torch\n\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return x * 2\n\n"
        "def get_inputs():\n    return [torch.ones(4, 4)]\n\ndef get_init_inputs():\n    return []\n"
    )
    arguments = {"source": source, "file": "f.py", "mode": "constructed", "precision": "own"}
    with module_processes() as processes:
        facts = processes("ucutlass.tasks.problem_file:inspect", arguments, limit_seconds=60.0)
        program = processes(
            "ucutlass.tasks.import_module:program_of_source", arguments | {"name": "p"}, limit_seconds=60.0
        )
    assert isinstance(facts, isolation.Returned) and facts.value["facts"]["results"], facts
    assert isinstance(program, isolation.Returned) and "x * 2" in program.value["text"], program


def test_with_several_gpus_each_file_s_calls_are_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    process = GpuProcess("GPU-b")
    try:
        arguments = {"gpu": "GPU-a", "source": "a"}
        for sent, received in ((arguments, {"gpu": "GPU-b", "source": "a"}), ({"gpu": ""}, {"gpu": ""})):
            outcome = process.call("builtins:dict", sent, limit_seconds=60.0)
            assert isinstance(outcome, isolation.Returned) and outcome.value == received
        outcome = process.call("os:getenv", {"key": "CUDA_VISIBLE_DEVICES"}, limit_seconds=60.0)
        assert isinstance(outcome, isolation.Returned) and outcome.value == "GPU-b"
    finally:
        process.close()
    gpus: list[str] = []

    class Noted(Process):
        def __init__(self, gpu: str, template: None) -> None:
            gpus.append(gpu)
            super().__init__([])

    monkeypatch.setattr(processes_module, "GpuProcess", Noted)
    with module_processes(4, 4, None, ("GPU-a", "GPU-b")):
        assert gpus == ["GPU-a", "GPU-b", "GPU-a", "GPU-b"]


def test_each_call_is_a_fork_of_its_own_that_ends_with_it() -> None:
    template = ProcessTemplate([])
    try:
        call = forked_call(template)
        outcomes = [call("os:getpid", {}, limit_seconds=60.0) for _ in range(2)]
    finally:
        template.close()
    numbers = [outcome.value for outcome in outcomes if isinstance(outcome, isolation.Returned)]
    assert len(set(numbers)) == 2 and os.getpid() not in numbers
    assert not any(Path(f"/proc/{number}").exists() for number in numbers)
