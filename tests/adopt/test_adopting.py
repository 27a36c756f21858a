"""`ucc adopt`: what it builds and refuses, what it keeps while it judges, and what it needs a GPU for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adoption_doubles import RIGHT, audit_record, comparison, outcome
from cli_machine import H200, Machine, Result
from sources import BY_HAND, COMPILES, ENTRY, PROGRAM, PTX, SIZES, quick, source, written

from ucutlass import frontend
from ucutlass.adopt import database as adopted
from ucutlass.adopt.refusals import SourceRefused
from ucutlass.agent import adoption
from ucutlass.agent.adoption import AdoptionJob, AdoptionSettings
from ucutlass.backend import Built
from ucutlass.runtime.errors import MachineError
from ucutlass.runtime.evidence import Machine as RecordMachine
from ucutlass.runtime.evidence import Record
from ucutlass.runtime.store import record
from ucutlass.tasks import verification
from ucutlass.tasks.record_subject import subject_of_built
from ucutlass.tune.database import TuningDatabase, key_of

S = ("-s", "M=4,N=8")
SETTINGS = AdoptionSettings(seed=1, build=60.0)


def job(text: str = BY_HAND) -> AdoptionJob:
    checked = frontend.read_text(PROGRAM)
    sizes = tuple(SIZES.values())
    return AdoptionJob(checked, frontend.kernel(checked), sizes, "sm90a", None, source(text))


def ucc_adopt(machine: Machine, text: str, *options: str) -> Result:
    file, program = written(machine.home, text)
    return machine.ucc("adopt", file, "--for", program, *S, *options)


# --- without a GPU ---------------------------------------------------------------


def test_without_a_gpu_it_is_checked_and_built_and_not_adopted(machine: Machine) -> None:
    result = ucc_adopt(machine, BY_HAND)
    assert result.status == 3 and "passed what can be checked without a GPU" in result.err
    assert "was not adopted" in result.err and machine.builds == 1
    assert ucc_adopt(machine, BY_HAND, "--json").json["status"] == 3 and machine.builds == 1
    assert machine.ucc("adopt", "--list", "--json").json == []
    assert not TuningDatabase.open().path.exists()


def returns(instead: str) -> str:
    """The source with another answer to how much workspace it needs."""
    return BY_HAND.replace("*workspace_size = 0;\n    return 0;", instead)


WRONG: Mapping[str, tuple[str, str, str, str]] = {
    "text": (BY_HAND.replace("ucc_by_hand", "by_hand"), "", "entry", "by_hand is no entry's name"),
    "object": (
        BY_HAND.replace(ENTRY, f'int run(char const*) __asm__("system");\n{ENTRY} run("ls");'),
        "",
        "host-call",
        "refers to system",
    ),
    "precision": (BY_HAND, PTX.replace("tf32", "bf16"), "precision", "f32.bf16.bf16.f32 works in bf16"),
    "no answer": (returns("return 0;"), "", "workspace", "returned 0 and wrote None"),
    "a refusal": (returns("return 1;"), "", "workspace", "returned 1 and wrote None"),
    "too much": (returns("*workspace_size = ~0ull >> 8; return 0;"), "", "workspace", "returned 0 and wrote"),
    "a crash": (returns("*(volatile int*)8 = 1; return 0;"), "", "workspace", "SIGSEGV"),
    "a hang": (returns("for (volatile int i = 0;;) i = i;"), "", "workspace", "2 s"),
}


@pytest.mark.parametrize("name", quick(WRONG, "object", "precision", "a crash"))
def test_each_check_has_its_own_message(name: str, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    text, ptx, code, words = WRONG[name]
    machine.behave(COMPILES % ptx.strip())
    monkeypatch.setattr(adoption, "WORKSPACE_SECONDS", 2.0 if name == "a hang" else 60.0)
    result = ucc_adopt(machine, text, "--json")
    assert result.status == 1 and result.json["refusal"] == code, result.out
    assert words in result.json["error"] and not TuningDatabase.open().path.exists()


def test_a_compiler_that_hangs_or_refuses(machine: Machine) -> None:
    machine.behave("sleep 600\n")
    result = ucc_adopt(machine, BY_HAND, "--build", "0.5")
    assert result.status == 1 and "0.5 s" in result.err
    machine.behave("echo 'source.cu(3): error: expected a ;'\nexit 2\n")
    result = ucc_adopt(machine, BY_HAND)
    assert result.status == 1 and "expected a ;" in result.err


def test_a_compiler_that_leaves_nothing_to_look_at(machine: Machine) -> None:
    machine.behave(": > kernel.so\n")
    result = ucc_adopt(machine, BY_HAND, "--json")
    assert result.json["refusal"] == "object" and "kernel.o" in result.json["error"]


def test_calls_that_are_none(machine: Machine, tmp_path: Path) -> None:
    file, program = written(tmp_path)
    assert machine.ucc("adopt", file).status == 2
    assert machine.ucc("adopt", "--list", "--drop", "abcd").status == 2
    assert machine.ucc("adopt", file, "--for", program, "--list").status == 2
    assert machine.ucc("adopt", "--drop", "xyz").status == 2
    assert machine.ucc("adopt", "--drop", "abcd").status == 2
    assert machine.ucc("adopt", file, "--for", program, "-s", "M=4").status == 2


# --- with one, as far as anybody asks ----------------------------------------------


class Judges:
    """Stands for what launches on a GPU; each answers as a test wants."""

    proof: Mapping[str, Any] = RIGHT
    answer: Mapping[str, Any] = comparison()
    verdict: Any = SimpleNamespace(accepted=True, verdict="ok", findings=())
    states: list[str]

    def __init__(self) -> None:
        self.states = []

    def verified(self, job: AdoptionJob, built: Built, settings: AdoptionSettings) -> Record:
        self.states += [row.state for _, row in adopted.rows(TuningDatabase.open())]
        subject = subject_of_built(job.checked, job.program, built)
        return record("verify", subject, RecordMachine("NVIDIA H200", "GPU-0", {}), {}, self.proof)

    def compared(self, *_: Any) -> Mapping[str, Any]:
        return self.answer


@pytest.fixture
def judges(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Judges:
    judges = Judges()
    monkeypatch.setattr("ucutlass.runtime.system.driver", lambda: H200)
    monkeypatch.setattr(adoption, "verified", judges.verified)
    monkeypatch.setattr(adoption, "compared", judges.compared)
    monkeypatch.setattr(adoption, "build_kernel", lambda *_, **__: None)
    monkeypatch.setattr(adoption, "gather", lambda *_, **__: None)
    monkeypatch.setattr(adoption, "audit", lambda _: judges.verdict)
    monkeypatch.setattr(adoption, "record_of", lambda candidate, *_: audit_record(candidate))
    return judges


def test_what_passes_everything_is_confirmed_listed_and_dropped(judges: Judges, machine: Machine) -> None:
    result = ucc_adopt(machine, BY_HAND, "--json")
    assert result.status == 0, result.out + result.err
    row = result.json
    assert row["state"] == "confirmed" and (row["microseconds"], row["rival"]) == (10.0, 12.0)
    assert judges.states == ["unconfirmed"], "it is kept, and served to nobody, while it is judged"
    assert len(row["records"]) == 3
    (listed,) = machine.ucc("adopt", "--list", "--json").json
    assert listed == {k: v for k, v in row.items() if k != "seconds"} and listed["extents"] == [4, 8]
    assert "compiling and storing" in row["seconds"], (
        "parts of less than 5 ms, as the audit's may be, are left out"
    )
    assert row["source"][:16] in machine.ucc("adopt", "--list").out
    assert machine.ucc("adopt", "--drop", row["source"][:8]).out == "dropped\t1\n"
    assert machine.ucc("adopt", "--list", "--json").json == []


REFUSED: Mapping[str, tuple[dict[str, Any], str, str]] = {
    "wrong results": (
        {"proof": {**RIGHT, "ok": False, "failures": ["integer: 3 of 32 elements are wrong"]}},
        "wrong",
        "3 of 32 elements",
    ),
    "wrong while timed": (
        {"answer": comparison() | {"verified": [{"case": "normal", "ok": False, "words": "off by one"}]}},
        "wrong",
        "off by one",
    ),
    "slower": ({"answer": comparison("slower")}, "slower", "10.00 us against 12.00 us, 0.800 to 0.900"),
    "a time that is not trusted": (
        {"answer": comparison(outcomes=[outcome("candidate", 1.0) | {"trusted": False}])},
        "untimed",
        "not trusted",
    ),
    "a rival without a time": (
        {"answer": comparison(outcomes=[outcome("candidate", 1.0), {"name": "text", "failed": "x", "words": "lost"}])},
        "untimed",
        "was not timed: lost",
    ),
    "an audit": (
        {
            "verdict": SimpleNamespace(
                accepted=False, verdict="gaming", findings=(SimpleNamespace(rule="clocks", words="escaped"),)
            )
        },
        "audit",
        "gaming: clocks: escaped",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", quick(REFUSED, "wrong results", "slower"))
def test_what_fails_one_judge_is_not_kept(
    name: str, judges: Judges, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, code, words = REFUSED[name]
    for field, value in answers.items():
        monkeypatch.setattr(judges, field, value)
    result = ucc_adopt(machine, BY_HAND, "--json")
    assert result.status == 1 and result.json["refusal"] == code and words in result.json["error"]
    assert machine.ucc("adopt", "--list", "--json").json == []


def test_a_slower_one_is_adopted_where_that_is_said(
    judges: Judges, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judges, "answer", comparison("slower"))
    assert ucc_adopt(machine, BY_HAND, "--slower").status == 0


def test_a_machine_that_fails_leaves_it_unconfirmed(
    judges: Judges, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(*_: Any) -> Record:
        raise verification.DeviceUnusable("the GPU is gone", "see nvidia-smi")

    monkeypatch.setattr(adoption, "verified", lost)
    this = job()
    with pytest.raises(MachineError):
        adoption.adopt(this, adoption.build(this, SETTINGS), "NVIDIA H200", SETTINGS)
    ((_, row),) = adopted.rows(TuningDatabase.open())
    assert row.state == "unconfirmed"
    key = key_of(this.program, this.sizes, "NVIDIA H200", "sm90a")
    assert adopted.confirmed(TuningDatabase.open(), key) is None


# --- the judge itself, on the CPU ----------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "right"),
    [(BY_HAND, True), (BY_HAND.replace("* extents[1];", "* extents[1] - 1;"), False)],
    ids=["right", "the last element is left out"],
)
def test_the_suite_judges_the_very_library(text: str, right: bool, machine: Machine) -> None:
    this = job(text)
    built = adoption.build(this, SETTINGS)
    plan = verification.plan(this.checked, this.program, built, SIZES, seed=1, most=4)
    evidence = verification.run(replace(plan, device="cpu"))
    assert evidence.ok is right, evidence.failures()


def test_refusals_are_words_and_a_code() -> None:
    with pytest.raises(AssertionError):
        SourceRefused("unheard of", "")
