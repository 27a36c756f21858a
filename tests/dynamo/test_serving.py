"""What serves the calls of a compiled graph: while kernels build, by measured time, and from threads."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.dynamo.test_backend import HOOKS, Block, by_reference, compiled
from ucutlass.dynamo import backend
from ucutlass.dynamo.backend import BackendHooks
from ucutlass.dynamo.builds import Job, Outcome, part_call
from ucutlass.dynamo.fallback import FallbackWarning
from ucutlass.dynamo.fallback_process import started
from ucutlass.dynamo.options import CompileOptions
from ucutlass.dynamo.partition import Part
from ucutlass.dynamo.region import Region
from ucutlass.runtime.errors import ToolchainError


class Counted:
    """Programs by the reference, with the number of their calls; they are there once `built` is set."""

    def __init__(self) -> None:
        self.calls, self.built = 0, threading.Event()

    def __call__(self, jobs: Sequence[Job], options: CompileOptions) -> Callable[[], list[Outcome]]:
        assert self.built.wait(60)
        return lambda: [self._counted(outcome) for outcome in by_reference(jobs, options)()]

    def _counted(self, outcome: Outcome) -> Outcome:
        assert not isinstance(outcome, Exception)

        def execute(*arguments: torch.Tensor) -> Any:
            self.calls += 1
            return outcome(*arguments)

        return execute


@contextmanager
def said() -> Iterator[Callable[[], list[str]]]:
    """Gives the lines of FallbackWarnings, each once, as Python shows them."""
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("default")
        yield lambda: [str(w.message) for w in shown if issubclass(w.category, FallbackWarning)]


def built() -> Counted:
    launch = Counted()
    launch.built.set()
    return launch


def wait_for(condition: Callable[[], bool]) -> None:
    ticker = threading.Event()
    for _ in range(3000):
        if condition():
            return
        ticker.wait(0.01)
    raise AssertionError("it did not come about")


def timing(programs: float, fallback: float) -> BackendHooks:
    """BackendHooks by whose clock the two forms take these microseconds; both run as in a measurement."""

    def measure(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
        for _ in range(2):
            first()
            second()
        return programs, fallback

    return replace(HOOKS, measure=measure)


# --- while kernels build ----------------------------------------------------------


def test_the_fallback_computes_until_kernels_are_built() -> None:
    launch = Counted()
    model, x = Block(), torch.randn(4, 32)
    fast, _ = compiled(model, replace(HOOKS, launch=launch), wait=False)
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(fast(x), model(x))
        assert launch.calls == 0
        launch.built.set()

        def switched() -> bool:
            torch.testing.assert_close(fast(x), model(x))
            return launch.calls > 0

        wait_for(switched)


def test_a_build_that_fails_in_the_background_is_said_once_and_the_fallback_stays() -> None:
    ended = threading.Event()

    def launch(jobs: Sequence[Job], options: CompileOptions) -> Callable[[], list[Outcome]]:
        try:
            raise MemoryError("no memory for a compiler")
        finally:
            ended.set()

    model, x = Block(), torch.randn(4, 32)
    fast, _ = compiled(model, replace(HOOKS, launch=launch), wait=False)
    with said() as lines, torch.no_grad():
        fast(x)
        assert ended.wait(60)
        wait_for(lambda: fast(x) is not None and bool(lines()))
        torch.testing.assert_close(fast(x), model(x))
    assert lines() == ["the fallback serves a graph: no memory for a compiler"]


def test_a_program_without_a_kernel_goes_to_the_fallback() -> None:
    def launch(jobs: Sequence[Job], options: CompileOptions) -> Callable[[], list[Outcome]]:
        return lambda: [ToolchainError("nvcc is missing", "install it") for _ in jobs]

    model, x = Block(), torch.randn(4, 32)
    fast, _ = compiled(model, replace(HOOKS, launch=launch))
    with said() as lines, torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(fast(x), model(x))
    assert len(lines()) == 1 and lines()[0].startswith("a program is not served: nvcc is missing")
    strict, _ = compiled(model, replace(HOOKS, launch=launch), fallback="error")
    with pytest.raises(Exception, match="nvcc is missing"), torch.no_grad():
        strict(x)


def test_kernels_of_all_parts_are_built_in_one_go() -> None:
    jobs: list[int] = []

    def launch(given: Sequence[Job], options: CompileOptions) -> Callable[[], list[Outcome]]:
        jobs.append(len(given))
        assert all(job.shapes is not None and job.device.type == "cpu" for job in given)
        return by_reference(given, options)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.sort(torch.relu(x))[0], -1)

    x = torch.randn(4, 6)
    fast, _ = compiled(model, replace(HOOKS, launch=launch))
    torch.testing.assert_close(fast(x), model(x))
    assert jobs == [2]


def test_kernels_are_built_while_the_fallback_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []

    def launch(jobs: Sequence[Job], options: CompileOptions) -> Callable[[], list[Outcome]]:
        steps.append("started")
        waiting = by_reference(jobs, options)

        def outcomes() -> list[Outcome]:
            steps.append("awaited")
            return waiting()

        return outcomes

    fallback = backend.CompiledModule._fallback

    def compiled_fallback(module: backend.CompiledModule) -> Callable[..., Any]:
        steps.append("fallback")
        return fallback(module)

    monkeypatch.setattr(backend.CompiledModule, "_fallback", compiled_fallback)
    model, x = Block(), torch.randn(4, 32)
    fast, _ = compiled(model, replace(timing(1.0, 2.0), launch=launch))
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert steps == ["started", "fallback", "awaited"]


def test_the_fallbacks_compilers_start_before_the_graph_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    remembered = backend.remembered

    def divided(*arguments: Any) -> Any:
        steps.append("divided")
        return remembered(*arguments)

    monkeypatch.setattr(backend, "start_compilers", lambda: steps.append("compilers"))
    monkeypatch.setattr(backend, "remembered", divided)
    monkeypatch.setattr(backend.CompiledModule, "_fallback", lambda module: module._graph.forward)
    model, x = Block(), torch.randn(4, 32)
    for hooks, expected in ((timing(1.0, 2.0), ["compilers", "divided"]), (HOOKS, ["divided"])):
        fast, _ = compiled(model, hooks, fallback="inductor", choose="time")
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x))
        assert steps == expected
        steps.clear()


@pytest.mark.parametrize(("programs", "fallback"), [(1.0, 2.0), (2.0, 1.0)])
def test_programs_serve_until_the_fallback_is_compiled_elsewhere(
    programs: float, fallback: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch, compilations, there = built(), list[int](), Future[bool]()
    whole = backend.whole

    def counted(graph: Any, inputs: Any) -> Callable[..., Any]:
        compilations.append(launch.calls)
        return whole(graph, inputs)

    monkeypatch.setattr(backend, "whole", counted)
    model, x = Block(), torch.randn(4, 32)
    hooks = replace(timing(programs, fallback), launch=launch, start_fallback=lambda _: there)
    fast, report = compiled(model, hooks, fallback="inductor", choose="later")
    with torch.no_grad():
        for calls in (1, 2):
            torch.testing.assert_close(fast(x), model(x))
            assert launch.calls == calls and not compilations and not report.choices
        there.set_result(True)
        torch.testing.assert_close(fast(x), model(x))
        calls = launch.calls
        assert compilations == [3] and len(report.choices) == 1
        torch.testing.assert_close(fast(x), model(x))
    assert (launch.calls > calls) == (programs < fallback) and len(compilations) == 1


def test_programs_serve_where_the_fallback_does_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(backend, "whole")
    launch, failed = built(), Future[bool]()
    failed.set_result(False)
    model, x = Block(), torch.randn(4, 32)
    hooks = replace(timing(2.0, 1.0), launch=launch, start_fallback=lambda _: failed)
    fast, report = compiled(model, hooks, fallback="inductor", choose="later")
    with torch.no_grad():
        for calls in (1, 2, 3):
            torch.testing.assert_close(fast(x), model(x))
            assert launch.calls == calls and not report.choices


def test_calls_of_other_threads_go_on_while_one_chooses() -> None:
    there, timing_runs, done = Future[bool](), threading.Event(), threading.Event()

    def measure(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
        timing_runs.set()
        assert done.wait(60)
        return 1.0, 2.0

    model, x = Block(), torch.randn(4, 32)
    hooks = replace(timing(1.0, 2.0), launch=built(), measure=measure, start_fallback=lambda _: there)
    fast, report = compiled(model, hooks, fallback="inductor", choose="later")
    with torch.no_grad():
        fast(x)
    there.set_result(True)

    def call() -> torch.Tensor:
        with torch.no_grad():
            result: torch.Tensor = fast(x)
        return result

    with ThreadPoolExecutor(1) as pool:
        choosing = pool.submit(call)
        assert timing_runs.wait(60)
        torch.testing.assert_close(call(), model(x))
        assert not report.choices
        done.set()
        torch.testing.assert_close(choosing.result(), model(x))
    assert len(report.choices) == 1


def test_a_choice_without_memory_leaves_programs() -> None:
    there = Future[bool]()
    there.set_result(True)

    def measure(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float]:
        raise torch.OutOfMemoryError("tried to allocate")

    launch = built()
    model, x = Block(), torch.randn(4, 32)
    hooks = replace(timing(1.0, 2.0), launch=launch, measure=measure, start_fallback=lambda _: there)
    fast, _ = compiled(model, hooks, fallback="inductor", choose="later")
    with torch.no_grad(), said() as lines:
        for calls in (1, 2, 3):
            torch.testing.assert_close(fast(x), model(x))
            assert launch.calls == calls
    assert any("no memory to be timed" in line for line in lines())


def fallback_from_the_cache(gradients: bool) -> None:
    """Serves a graph whose fallback another process compiled first, its gradient too. What else this process
    compiled before changes what the caches count, so the test begins one."""
    import torch._inductor.config as inductor_config
    from torch._dynamo.utils import counters

    futures = list[Future[bool]]()

    def start(graph: bytes) -> Future[bool]:
        futures.append(started(graph))
        return futures[-1]

    model, x = nn.Linear(32, 8).eval(), torch.randn(4, 32)
    hooks = replace(timing(1.0, 2.0), launch=built(), start_fallback=start)
    fast, report = compiled(model, hooks, fallback="inductor", choose="later")
    with torch.set_grad_enabled(gradients), inductor_config.patch(compile_threads=1):
        fast(x)
        assert futures[0].result(120)
        counters.clear()
        torch.testing.assert_close(fast(x), model(x))
    assert len(report.choices) == 1
    assert counters["inductor"]["fxgraph_cache_hit"] == (2 if gradients else 1)
    assert not counters["inductor"]["fxgraph_cache_miss"]


@pytest.mark.slow
@pytest.mark.parametrize("gradients", [False, True])
def test_another_process_leaves_the_fallback_in_the_cache(tmp_path: Path, gradients: bool) -> None:
    call = (
        f"from tests.dynamo.test_serving import {fallback_from_the_cache.__name__} as call; call({gradients})"
    )
    ended = subprocess.run(
        [sys.executable, "-c", call],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_a_choice_with_gradients_leaves_those_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "whole", lambda graph, inputs: graph.forward)
    there = Future[bool]()
    model, x = Block(), torch.randn(4, 32)
    rival = copy.deepcopy(model)
    hooks = replace(timing(1.0, 2.0), launch=built(), start_fallback=lambda _: there)
    fast, report = compiled(model, hooks, fallback="inductor", choose="later")
    for call in range(3):
        if call == 1:
            there.set_result(True)
        for module in (fast, rival):
            module(x).square().sum().backward()
        assert len(report.choices) == min(call, 1)
        for parameter, expected in zip(model.parameters(), rival.parameters(), strict=True):
            torch.testing.assert_close(parameter.grad, expected.grad)


@pytest.mark.parametrize(("choose", "choices"), [("later", 0), ("time", 1)])
def test_programs_serve_free_extents_unless_a_choice_is_asked_for(choose: str, choices: int) -> None:
    """The fallback of free extents is not compiled, which another process cannot do."""
    model, x = Block(), torch.randn(4, 32)
    torch._dynamo.mark_dynamic(x, 0)
    fast, report = compiled(model, timing(1.0, 2.0), fallback="inductor", choose=choose)
    with torch.no_grad():
        torch.testing.assert_close(fast(x), model(x))
    assert len(report.choices) == choices


# --- the faster -------------------------------------------------------------------


def test_the_fallback_serves_where_it_is_faster_and_that_is_remembered() -> None:
    launch = built()
    model, x = Block(), torch.randn(4, 32)
    hooks = replace(timing(2.0, 1.0), launch=launch)
    fast, report = compiled(model, hooks)
    with torch.no_grad():
        fast(x)
        calls = launch.calls
        torch.testing.assert_close(fast(x), model(x))
    assert launch.calls == calls and report.choices[0].server == "fallback"
    assert "1.0 us by the fallback" in str(report.choices[0])
    again, second = compiled(model, hooks)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x))
    assert second.choices[0].remembered and not second.graphs


def test_programs_serve_where_they_are_faster_and_the_fallback_is_not_compiled_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = built()
    model, x = Block(), torch.randn(4, 32)
    hooks = replace(timing(1.0, 2.0), launch=launch)
    fast, report = compiled(model, hooks)
    with torch.no_grad():
        fast(x)
        calls = launch.calls
        torch.testing.assert_close(fast(x), model(x))
    assert launch.calls == calls + 1 and report.choices[0].server == "programs"
    monkeypatch.delattr(backend.CompiledModule, "_fallback")
    again, _ = compiled(model, hooks)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x))
    assert launch.calls == calls + 2


@pytest.mark.parametrize(("programs", "fallback"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_measurement_changes_no_buffer(programs: float, fallback: float) -> None:
    torch.manual_seed(2)
    model = nn.Sequential(nn.Linear(6, 10), nn.BatchNorm1d(10))
    twin = copy.deepcopy(model)
    fast, report = compiled(model, timing(programs, fallback))
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(12, 6)
            torch.testing.assert_close(fast(x), twin(x))
    torch.testing.assert_close(model[1].running_mean, twin[1].running_mean)
    assert int(model[1].num_batches_tracked) == 3 and report.choices


@pytest.mark.parametrize(("programs", "fallback"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_measurement_of_training_leaves_gradients_alone(programs: float, fallback: float) -> None:
    torch.manual_seed(1)
    model = Block()
    twin = copy.deepcopy(model)
    fast, report = compiled(model, timing(programs, fallback))
    for _ in range(2):
        x = torch.randn(3, 32)
        fast(x).square().sum().backward()
        twin(x).square().sum().backward()
    for mine, expected in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad)
    assert len(report.choices) == 1


@pytest.mark.parametrize(("programs", "fallback"), [(1.0, 2.0), (2.0, 1.0)])
def test_a_tensor_given_twice_of_which_one_is_changed(programs: float, fallback: float) -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.relu(x) * y

    fast, _ = compiled(model, timing(programs, fallback))
    for _ in range(2):
        mine, twin = torch.arange(4.0), torch.arange(4.0)
        torch.testing.assert_close(fast(mine, mine), model(twin, twin))
        torch.testing.assert_close(mine, twin)
        first, second, other = torch.arange(4.0), torch.arange(4.0), torch.ones(4)
        torch.testing.assert_close(fast(first, other), model(second, other))
        torch.testing.assert_close(first, second)


@pytest.mark.slow
def test_inductor_alone_tells_a_tensor_given_twice() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return torch.relu(x) * y

    for remembered in (False, True):
        fast, report = compiled(model, timing(2.0, 1.0), fallback="inductor", choose="time")
        for _ in range(2):
            mine, twin = torch.arange(4.0), torch.arange(4.0)
            torch.testing.assert_close(fast(mine, mine), model(twin, twin))
            first, second, other = torch.arange(4.0), torch.arange(4.0), torch.ones(4)
            torch.testing.assert_close(fast(first, other), model(second, other))
            torch.testing.assert_close(first, second)
        assert {choice.remembered for choice in report.choices} == {remembered}


def test_a_graph_without_a_program_is_the_fallbacks_whole() -> None:
    fast, report = compiled(lambda x: torch.sort(x)[0], timing(1.0, 2.0))
    x = torch.randn(4, 5)
    torch.testing.assert_close(fast(x), torch.sort(x)[0])
    assert not report.choices and not report.graphs[0].texts


@pytest.mark.slow
def test_the_fallback_of_a_whole_graph_is_inductors() -> None:
    model, x = Block(), torch.randn(4, 32)
    for training in (False, True):
        fast, report = compiled(model, timing(2.0, 1.0), fallback="inductor", choose="time")
        with torch.set_grad_enabled(training):
            for _ in range(2):
                torch.testing.assert_close(fast(x), model(x))
        assert report.choices[0].server == "fallback"


# --- threads ----------------------------------------------------------------------


def test_threads_call_at_once() -> None:
    launch = built()
    model = Block()
    fast, report = compiled(model, replace(timing(1.0, 2.0), launch=launch))
    inputs = [torch.randn(4, 32) for _ in range(24)]

    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return fast(x)

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(run, inputs))
    with torch.no_grad():
        for x, result in zip(inputs, results, strict=True):
            torch.testing.assert_close(result, model(x))
    # TorchDynamo compiles in each thread that finds nothing compiled; all came to the same.
    assert {choice.server for choice in report.choices} == {"programs"}


# --- extents that vary ------------------------------------------------------------


@pytest.mark.parametrize("cuda_graphs", [False, True])
def test_fifty_shapes_are_compiled_and_chosen_once(cuda_graphs: bool) -> None:
    from tests.dynamo.test_replays import Remembering

    torch.manual_seed(7)
    model = Block()
    hooks = replace(timing(1.0, 2.0), replaying=lambda _: Remembering())
    fast, report = compiled(model, hooks, cuda_graphs=cuda_graphs, choose="time")
    shapes = torch.randint(2, 40, (50, 2)).tolist()
    with torch.no_grad():
        for rows, columns in shapes:
            x = torch.randn(rows, columns, 32)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=4096)
            torch._dynamo.mark_dynamic(x, 1, min=2, max=4096)
            for _ in range(2):
                torch.testing.assert_close(fast(x), model(x))
    assert len(report.graphs) == 1 and len(report.choices) == 1


@pytest.mark.slow
def test_extents_vary_where_inductor_serves_the_whole() -> None:
    torch.manual_seed(8)
    model = Block()
    fast, report = compiled(model, timing(2.0, 1.0), fallback="inductor", choose="time")
    with torch.no_grad():
        for rows in (3, 17, 9, 31):
            x = torch.randn(rows, 32)
            torch._dynamo.mark_dynamic(x, 0, min=2, max=4096)
            torch.testing.assert_close(fast(x), model(x))
    assert len(report.graphs) == 1 and report.choices[0].server == "fallback"


@pytest.mark.slow
def test_extents_vary_where_inductor_computes_the_rest() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.sort(torch.relu(x).view(-1, 8) * 2)[0], -1)

    fast, report = compiled(model, fallback="inductor")
    for rows in (3, 17, 9):
        x = torch.randn(rows, 16)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
        torch.testing.assert_close(fast(x), model(x))
    assert len(report.graphs) == 1 and len(report.graphs[0].texts) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("server", ["programs", "fallback"])
def test_extents_vary_in_training_beside_inductor(server: str) -> None:
    torch.manual_seed(9)
    linear = nn.Linear(16, 16)

    def model(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.sort(torch.relu(linear(x)).view(-1, 8) * 2)[0], -1)

    hooks = timing(1.0, 2.0) if server == "programs" else timing(2.0, 1.0)
    fast, report = compiled(model, hooks, fallback="inductor", choose="time")
    weights = torch.arange(8.0)
    for rows in (3, 17, 9):
        x = torch.randn(rows, 16, requires_grad=True)
        torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
        gradients = []
        for form in (fast, model):
            x.grad = linear.weight.grad = None
            (form(x) * weights).sum().backward()
            assert x.grad is not None and linear.weight.grad is not None
            gradients.append((x.grad, linear.weight.grad))
        torch.testing.assert_close(gradients[0], gradients[1])
    assert len(report.choices) == 1 and report.choices[0].server == server


def test_a_refusal_is_remembered_for_its_shapes() -> None:
    """Planning again at each call would cost more than the call."""
    numbers: list[int] = []

    def execute(x: torch.Tensor) -> torch.Tensor:
        numbers.append(len(x))
        if len(x) == 3:
            raise ToolchainError("nvcc is missing", "install it")
        return x + 1

    part = Part("program", (), Region("", "program", ((0, (0,)),), ((0, (0,)),)))
    with said() as lines:
        call = part_call(part, lambda x: (x - 1,), execute, CompileOptions())
        for n in (3, 3, 5, 3):
            (result,) = call(torch.zeros(n))
            assert float(result[0]) == (-1 if n == 3 else 1)
    assert numbers == [3, 5] and len(lines()) == 1
