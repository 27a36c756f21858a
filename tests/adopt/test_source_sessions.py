"""`ucc optimize --level source` end to end, against a local model and a GPU that is made up."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adoption_doubles import RIGHT, audit_record, comparison, outcome
from cli_machine import H200, Machine, Result
from sources import BODY, ENTRY, PROGRAM

from tests.optimise.proposers.messages_api import KEY, Scripted, Server, Tokens, calls, events, serving
from tests.runtime.runtime_fakes import KILLED, in_child
from ucutlass import frontend
from ucutlass.adopt import database as adopted
from ucutlass.adopt.lookup import adopted_kernel
from ucutlass.agent import adoption
from ucutlass.agent.journal import Journal
from ucutlass.agent.outcome import FailedOutcome, Outcome, RefusedOutcome, TimedOutcome, WrongOutcome
from ucutlass.agent.session import SessionState, replay_events
from ucutlass.agent.source_evaluator import MOST_WORDS, compiler_words
from ucutlass.agent.tree import CandidateTree
from ucutlass.engine.work import TABLE, EngineTask
from ucutlass.ir.hardware import DEVICES, arch_for
from ucutlass.runtime import isolation
from ucutlass.runtime.errors import BuildError
from ucutlass.runtime.gpu import CurrentGpu
from ucutlass.tune.database import TuningDatabase, key_of

SIZES = ("-s", "M=4,N=8")

STUB = f"#include <cstdint>\n\n{ENTRY}{BODY}"
"""What g++ compiles in place of CUDA: the same entry, and the same results."""

EMITTED = r"""
line=$(grep -n BROKEN source.cu | head -1 | cut -d: -f1)
if [ -n "$line" ]; then
  echo "source.cu($line): error: identifier \"BROKEN\" is undefined"
  exit 2
fi
entry=$(grep -o 'ucc_[0-9a-f]\{16\}' source.cu | head -1)
echo "ptxas info    : Compiling entry function '${entry}_kernel' for 'sm_90a'"
echo "    0 bytes stack frame, 8 bytes spill stores, 4 bytes spill loads"
echo "ptxas info    : Used 44 registers, used 1 barriers, 64 bytes smem"
sed "s/ucc_by_hand/$entry/" %s > tmp/stub.cc
g++ -O1 -fPIC -w -c -o tmp/source.o tmp/stub.cc && g++ -shared -o kernel.so tmp/source.o || exit 1
: > tmp/source.ptx
"""


# --- a GPU that is made up -------------------------------------------------------


@dataclass
class Engine:
    """Times what it is given by words in its source, and dies with its process before call number `dies`."""

    dies: int = 10**9
    asked: list[str] = field(default_factory=list)

    gpus = cpus = 1

    def submit(self, name: str, arguments: Mapping[str, Any], **more: Any) -> EngineTask:
        assert name in TABLE
        if len(self.asked) >= self.dies and name not in ("prepare_judge", "expected"):
            os.kill(os.getpid(), signal.SIGKILL)
        json.dumps(arguments)
        if name not in ("prepare_judge", "expected"):
            self.asked.append(name)
        future: Future[isolation.CallOutcome] = Future()
        future.set_result(isolation.Returned(self._answer(name, arguments), "", 0.5))
        return EngineTask(future, lambda: None)

    def _answer(self, name: str, arguments: Mapping[str, Any]) -> Any:
        match name:
            case "attempt":
                source = arguments["built"]["kernels"][0].get("adopted", "")
                if "wrong" in source:
                    return {"seconds": None, "words": "3 of 32 elements are wrong"}
                return {"seconds": 8e-6 if "faster" in source else 12e-6, "words": ""}
            case "verified":
                assert ("sanitized" in arguments) == bool(arguments["kernel"]["stages"][0]["library"])
                return {
                    "machine": {"device": H200.gpus[0].name, "uuid": "", "versions": {}},
                    "evidence": RIGHT,
                }
            case "compared":
                names = [baseline["name"] for baseline in arguments["baselines"]]
                assert names == ["text", "eager"]
                versus = [
                    {"baseline": n, "verdict": "faster", "ratio": {"low": 0.6, "median": 2 / 3, "high": 0.7}}
                    for n in names
                ]
                return comparison(
                    outcomes=[outcome("candidate", 8.0), outcome("text", 12.0), outcome("eager", 12.0)],
                    versus=versus,
                )
            case "profiled":
                return {"microseconds": 8.0, "spread": 0.01, "wall_microseconds": 9.0, "copy_bandwidth": 4e12}
            case _:
                return {"missing": "no ncu"}

    def leave(self, near: str) -> None: ...

    def close(self) -> None: ...


@pytest.fixture
def engine(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Engine:
    engine = Engine()
    stub = machine.home / "stub.cc"
    stub.write_text(STUB)
    machine.behave(EMITTED % stub)
    device = next(d for d in DEVICES.values() if "H200" in d.name)
    local = CurrentGpu(H200.gpus[0], arch_for((9, 0)), device)  # type: ignore[arg-type]
    monkeypatch.setattr("ucutlass.cli.optimize.opened", lambda spec, as_json, template: engine)
    monkeypatch.setattr("ucutlass.cli.optimize.at_hand", lambda hall: local)
    accepted = SimpleNamespace(accepted=True, verdict="ok", findings=())
    monkeypatch.setattr(adoption, "gather", lambda *_, **__: None)
    monkeypatch.setattr(adoption, "audit", lambda _: accepted)
    monkeypatch.setattr(adoption, "record_of", lambda candidate, *_: audit_record(candidate))
    # Programs as they are emitted are confirmed by what other tests look at.
    monkeypatch.setattr(
        "ucutlass.agent.evaluator.GpuEvaluator._confirmed",
        lambda self, due, *_: TimedOutcome(
            12e-6, 1.0, 0.9, 1.1, records=("a" * 64,), advice=due.first.advice
        ),
    )
    return engine


# --- a model that is made up -----------------------------------------------------

Model = Callable[[str, int], Any]
"""Answers the text of a turn, with the number of messages before."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with serving() as server:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        monkeypatch.setenv("NO_PROXY", "*")
        yield server


def answering(server: Server, model: Model) -> None:
    def script(request: Mapping[str, Any], tokens: Tokens) -> Scripted:
        messages = request["messages"]
        blocks = model(messages[0]["content"][0]["text"], len(messages))
        return Scripted(chunks=list(events(blocks, request, tokens)))

    server.scripts += [script] * 50


def file_in(turn: str) -> str:
    """The CUDA that a turn shows."""
    m = re.search(r"<data (\w+) kernel\.cu, [^\n]*>\n(.*?)\n</data \1>", turn, re.DOTALL)
    assert m is not None, turn[-2000:]
    return m[2] + "\n"


MARK = "// --- kernel "


def patch(file: str, line: str) -> str:
    """A diff that adds a line where the kernel begins."""
    lines = file.splitlines()
    at = next(i for i, row in enumerate(lines) if row.startswith(MARK))
    return f"Change it.\n```diff\n--- a/kernel.cu\n+++ b/kernel.cu\n@@ -{at + 1},1 +{at + 1},2 @@\n {lines[at]}\n+{line}\n```\n"


def learns(turn: str, messages: int) -> Any:
    """Writes what does not compile, looks a symbol up, and repairs it."""
    file = file_in(turn)
    if 'identifier "BROKEN" is undefined' in turn:
        if messages == 1:
            return [calls("header_symbol", {"name": "cute::SM90_TMA_LOAD"})]
        return [patch(file, "// faster")]
    return [patch(file, "static BROKEN x;")]


def optimize(machine: Machine, *options: str) -> Result:
    program = machine.home / "scaled.ucu"
    program.write_text(PROGRAM)
    begin = () if "--resume" in options else (program, *SIZES, "--level", "source", "--attempts", "2")
    model = ("--model", "claude-opus-5-5", "--search", "flat", "--never-stop", "--advice", "static")
    return machine.ucc("optimize", *begin, *model, "--json", *options)


def state_of(machine: Machine) -> SessionState:
    journal = Journal(machine.home / "data" / "sessions.sqlite")
    (id,) = journal.sessions()
    return replay_events(journal.events(id))


def outcomes(machine: Machine) -> list[Outcome]:
    return [node.outcome for node in state_of(machine).tree.nodes]


# --- the tests -------------------------------------------------------------------


def test_a_compile_error_is_fed_back_code_is_searched_and_the_winner_is_adopted(
    machine: Machine, engine: Engine, server: Server
) -> None:
    answering(server, learns)
    result = optimize(machine, "--allow-source", "-o", str(machine.home / "best.ucu"))
    assert result.status == 0, result.out + result.err
    own, broken, repaired = state_of(machine).tree.nodes
    assert isinstance(own.outcome, TimedOutcome) and not own.source
    assert "ptxas: 44 registers" in own.outcome.advice and "spills of 8 and 4 bytes" in own.outcome.advice
    assert isinstance(broken.outcome, FailedOutcome) and broken.outcome.stage == "build"
    at = broken.source.splitlines().index("static BROKEN x;") + 1
    assert broken.outcome.words.splitlines() == [
        f'kernel.cu:{at}: error: identifier "BROKEN" is undefined',
        f"  {at} | static BROKEN x;",
    ]
    assert isinstance(repaired.outcome, TimedOutcome) and "// faster" in repaired.source
    assert repaired.text == own.text, "it stands for the text of the candidate that it was made from"
    found = server.requests[-1]["messages"][2]["content"][0]["content"][0]["text"]
    assert "struct SM90_TMA_LOAD" in found and re.search(r"cute/arch/copy_sm90_tma\.hpp:\d+-\d+", found)
    best = result.json["best"]
    assert best["candidate"] == 2 and best["source"] == repaired.source and len(best["records"]) == 3
    assert best["stands_for"] == 0 and best["text"] == own.text
    (id,) = Journal(machine.home / "data" / "sessions.sqlite").sessions()
    assert machine.ucc("report", id, "-o", machine.home / "page.html").status == 0
    page = (machine.home / "page.html").read_text()
    assert "a source for the program of candidate 0: Change it." in page
    assert "// faster" in page and "static BROKEN x;" in page
    assert (machine.home / "best.ucu").read_text() == own.text
    assert (machine.home / "best.ucu.cu").read_text() == repaired.source
    (row,) = machine.ucc("adopt", "--list", "--json").json
    assert row["source"] == result.json["adopted"] and row["records"] == best["records"]
    assert (row["microseconds"], row["rival"]) == (8.0, 12.0)
    checked = frontend.read_text(own.text)
    served = adopted_kernel(checked, frontend.kernel(checked), (4, 8), "sm90a", H200.gpus[0].name)
    assert served is not None and served[1].kind == "adopted"


def test_both_levels_are_one_tree() -> None:
    tree = CandidateTree()
    for parent, text, source in ((None, "a", ""), (0, "a", "1"), (1, "a", "2"), (2, "b", ""), (3, "b", "3")):
        tree.add(parent, f"{text}{source}", text, "", TimedOutcome(1.0), source)
    assert [tree.stands_for(node.id) for node in tree.nodes] == [0, 0, 0, 3, 3]


def test_nothing_is_adopted_until_it_is_allowed(machine: Machine, engine: Engine, server: Server) -> None:
    answering(server, learns)
    result = optimize(machine)
    assert result.status == 0 and result.json["adopted"] is None and "--allow-source" in result.err
    assert "compiled and run with your rights" in result.err
    assert not TuningDatabase.open().path.exists()
    measured = len(engine.asked)
    later = optimize(machine, "--resume", result.json["session"][:8], "--allow-source")
    assert later.json["adopted"] and len(engine.asked) == measured, "it is kept by the evidence that there is"


@pytest.mark.parametrize("dies", [0, pytest.param(1, marks=pytest.mark.slow), 2, 3])
def test_a_session_that_is_killed_goes_on_as_it_would_have(
    dies: int, machine: Machine, engine: Engine, server: Server
) -> None:
    answering(server, learns)
    engine.dies = dies
    assert in_child(lambda: optimize(machine, "--allow-source") and None) == KILLED
    journal = Journal(machine.home / "data" / "sessions.sqlite")
    assert all(row.state != "confirmed" for _, row in adopted.rows(TuningDatabase.open()))
    engine.dies = 10**9
    result = optimize(machine, "--resume", journal.sessions()[0][:8], "--allow-source")
    assert result.json["best"]["candidate"] == 2 and result.json["attempts"] == 2
    kinds = [type(o).__name__ for o in outcomes(machine)]
    assert kinds == ["TimedOutcome", "FailedOutcome", "TimedOutcome"]
    # Two attempts and two calls of the confirmation at most: what was judged before the kill is not judged again.
    assert len(engine.asked) == 4 - {0: 0, 1: 1, 2: 2, 3: 2}[dies]
    key = key_of(frontend.kernel(frontend.read_text(PROGRAM)), (4, 8), H200.gpus[0].name, "sm90a")
    row = adopted.confirmed(TuningDatabase.open(), key)
    assert row is not None and "// faster" in row.text and " ucc_" in row.base


def of_path(path: str) -> Model:
    return lambda turn, _: [patch(file_in(turn), "// x").replace("a/kernel.cu", path)]


def whole(change: Callable[[str], str]) -> Model:
    return lambda turn, _: [f"Whole.\n```cuda\n{change(file_in(turn))}```\n"]


HOSTILE: Mapping[str, tuple[Model, str]] = {
    "a patch of another path": (of_path("../../.bashrc"), "the patch is of ../../.bashrc"),
    "a patch that makes a file": (
        lambda turn, _: [
            "```diff\ndiff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+x\n```"
        ],
        "makes, moves or removes files",
    ),
    "a patch of two files": (
        lambda turn, _: [
            patch(file_in(turn), "// x").replace("```\n", "")
            + "--- a/kernel.cu\n+++ /etc/passwd\n@@ -1 +1 @@\n-a\n+b\n```\n"
        ],
        "several files",
    ),
    "a giant patch": (
        lambda turn, _: [patch(file_in(turn), "\n+".join(["// x" * 20] * 3000))],
        "the patch has",
    ),
    "a patch that does not apply": (
        lambda turn, _: [patch(file_in(turn), "// x").replace(f" {MARK}", f" {MARK}of another ")],
        "hunk 1 does not apply: no line of the file reads",
    ),
    "another entry": (whole(lambda f: re.sub(r"int32_t ucc_\w+\(", "int32_t run(", f)), "[entry:"),
    "two entries": (
        whole(lambda f: f + 'extern "C" int32_t ucc_b(void* x) { return 0; }\n'),
        'extern "C" stands 2 times',
    ),
    "a header of the machine": (whole(lambda f: '#include "/etc/passwd"\n' + f), "[include:"),
    "a giant file": (whole(lambda f: f + "// x\n" * 60_000), "a source of"),
    "what runs when it is loaded": (
        whole(lambda f: f + "__attribute__((constructor)) void f() {}\n"),
        "[startup:",
    ),
    "an answer that ends inside": (lambda turn, _: ["```cuda\n" + file_in(turn)], "ended inside"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_are_refused_with_their_reason(
    name: str, machine: Machine, engine: Engine, server: Server
) -> None:
    model, words = HOSTILE[name]
    answering(server, model)
    result = optimize(machine, "--allow-source", "--attempts", "1")
    assert result.status == 0, result.err
    node = state_of(machine).tree[1]
    assert isinstance(node.outcome, RefusedOutcome) and words in node.outcome.words
    assert engine.asked == ["attempt"], "nothing of it was run"
    assert not TuningDatabase.open().path.exists()


def test_a_source_that_is_wrong_or_changes_nothing(machine: Machine, engine: Engine, server: Server) -> None:
    answers = iter([whole(lambda f: f + "// wrong\n"), whole(lambda f: "// a comment before it\n" + f)])
    answering(server, lambda turn, n: next(answers)(turn, n))
    result = optimize(machine, "--allow-source")
    assert result.json["best"]["candidate"] == 0 and result.json["adopted"] is None
    _, wrong, same = outcomes(machine)
    assert isinstance(wrong, WrongOutcome) and type(same).__name__ == "RepeatedOutcome"


def test_a_program_of_the_user_writes_source_too(machine: Machine, engine: Engine, tmp_path: Path) -> None:
    script = tmp_path / "writes.py"
    script.write_text(
        "import json, sys\n"
        "asked = json.load(sys.stdin)\n"
        "source = asked['source']\n"
        "assert source['absent'] == '' and source['headers'].endswith('include')\n"
        "print(json.dumps({'programs': [{'source': source['text'] + '// faster\\n', 'why': 'by rote'}]}))\n"
    )
    program = machine.home / "scaled.ucu"
    program.write_text(PROGRAM)
    options = ("--level", "source", "--allow-source", "--attempts", "1", "--never-stop", "--json")
    result = machine.ucc("optimize", program, *SIZES, "--command", f"python {script}", *options)
    assert result.status == 0, result.err
    assert result.json["adopted"] and result.json["best"]["source"].endswith("// faster\n")


def test_calls_that_cannot_be_meant(machine: Machine, engine: Engine) -> None:
    program = machine.home / "scaled.ucu"
    program.write_text(PROGRAM)
    rules = machine.ucc("optimize", program, *SIZES, "--level", "source")
    assert rules.status == 2 and "--model or --command" in rules.err
    text = machine.ucc("optimize", program, *SIZES, "--attempts", "0", "--json")
    other = machine.ucc("optimize", "--resume", text.json["session"], "--level", "source")
    assert other.status == 2 and "begun with --level text" in other.err
    allowed = machine.ucc("optimize", program, *SIZES, "--allow-source", "--attempts", "0")
    assert allowed.status == 2 and "--level source" in allowed.err
    assert machine.ucc("optimize", machine.home, "--level", "source").status == 2


LOG = """
/x/cutlass_library/source/include/cute/arch/mma.hpp(12): error: static assertion failed with "K must be 16."
      static_assert(K % 16 == 0,
      ^
          detected during:
            instantiation of "auto f<K>" at line 40 of /x/cutlass_library/source/include/cute/a.hpp
            instantiation of class "G<T>" at line 2 of source.cu

/x/cutlass_library/source/include/cute/arch/mma.hpp(12): error: static assertion failed with "K must be 16."
          detected during instantiation of class "G<T>" at line 2

source.cu(3): error: identifier "y" is undefined
source.cu(99): error: a line that the source does not have
2 errors detected in the compilation of "source.cu".
"""


def test_errors_in_headers_come_with_the_line_that_led_there(tmp_path: Path) -> None:
    (tmp_path / "build.log").write_text(LOG)
    error = BuildError("ucc_x", ("first",), tmp_path / "source.cu", tmp_path / "build.log", "nvcc")
    source = "#include <cute/a.hpp>\nusing G3 = G<Int<3>>;\nint x = y;\n"
    assert compiler_words(error, source).splitlines() == [
        'cute/arch/mma.hpp:12: error: static assertion failed with "K must be 16."',
        "  2 | using G3 = G<Int<3>>;",
        'kernel.cu:3: error: identifier "y" is undefined',
        "  3 | int x = y;",
        "kernel.cu:99: error: a line that the source does not have",
    ]
    (tmp_path / "build.log").write_text("".join(f"source.cu(3): error: number {n}\n" for n in range(500)))
    assert 1_000 < len(compiler_words(error, source)) <= MOST_WORDS
    (tmp_path / "build.log").unlink()
    assert compiler_words(error, source) == "first"
