"""Any program as a proposer: what it is told, what it may answer, and every way in which it can go wrong."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.optimise.proposers.talking import BETTER, PROGRAM, asked
from ucutlass.agent.budget import NOTHING, Spend
from ucutlass.agent.proposer import Answer, ProposerFailed
from ucutlass.agent.proposers.command import CommandProposer
from ucutlass.agent.proposers.problem_facts import ProblemDescription
from ucutlass.grammar.parse import grammar_text


def python(code: str) -> list[str]:
    return [sys.executable, "-c", "import json, sys, os, time\nasked = json.load(sys.stdin)\n" + code]


def says(value: Any) -> list[str]:
    return python(f"print({json.dumps(value)!r})")


def answered(
    subject: ProblemDescription, command: list[str], role: str = "implement"
) -> tuple[Answer, Spend]:
    spent: list[Spend] = []
    ask, state = asked(role)
    answer = CommandProposer(subject, command, 300.0).propose(ask, state, spent.append)
    return answer, sum(spent, NOTHING)


def failed(
    subject: ProblemDescription, command: list[str], limit: float = 300.0
) -> tuple[ProposerFailed, Spend]:
    spent: list[Spend] = []
    ask, state = asked()
    with pytest.raises(ProposerFailed) as caught:
        CommandProposer(subject, command, limit).propose(ask, state, spent.append)
    return caught.value, sum(spent, NOTHING)


def test_programs_and_usage_are_taken(subject: ProblemDescription) -> None:
    usage = {"input": 10, "cached": 20, "output": 3, "dollars": 0.5}
    given = {"programs": [{"text": BETTER, "why": "wider"}], "usage": usage}
    answer, spent = answered(subject, says(given))
    assert [(p.text, p.why) for p in answer.programs] == [(BETTER, "wider")]
    assert spent == Spend(input=10, cached=20, output=3, dollars=0.5) and answer.spend.tokens == 0


def test_the_command_sees_the_variables_that_were_named(
    subject: ProblemDescription, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "hush")
    monkeypatch.setenv("MODEL_TOKEN", "given")
    echo = python("print(json.dumps({'text': json.dumps(dict(os.environ))}))")
    ask, state = asked("plan")
    seen = json.loads(CommandProposer(subject, echo).propose(ask, state, lambda _: None).note)
    assert "hush" not in seen.values() and "given" not in seen.values()
    proposer = CommandProposer(subject, echo, pass_env=("MODEL_TOKEN",))
    seen = json.loads(proposer.propose(ask, state, lambda _: None).note)
    assert "hush" not in seen.values() and seen["MODEL_TOKEN"] == "given"


def test_a_daemon_of_the_command_does_not_survive_the_call(
    subject: ProblemDescription, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    command = python(
        "from pathlib import Path\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        os.closerange(0, 1 << 16)\n"
        f"        Path({str(note)!r}).write_text(str(os.getpid()))\n"
        "        time.sleep(1000)\n"
        "    os._exit(0)\n"
        f"while not Path({str(note)!r}).exists() or not Path({str(note)!r}).read_text(): time.sleep(0.01)\n"
        "print(json.dumps({'text': 'done'}))"
    )
    assert answered(subject, command, "plan")[0].note == "done"
    assert gone(int(note.read_text()))


def test_a_text_is_read_as_a_models(subject: ProblemDescription) -> None:
    answer, _ = answered(subject, says({"text": f"so\n```ucu\n{BETTER}```"}))
    assert [p.text for p in answer.programs] == [BETTER]
    edits = json.dumps({"edits": [{"at": "linear.schedule[1].tile", "put": "auto"}]})
    answer, _ = answered(subject, says({"text": f"```json\n{edits}\n```"}))
    assert "tile auto" in answer.programs[0].text
    answer, _ = answered(subject, says({"text": "a plan"}), "plan")
    assert (answer.note, answer.programs) == ("a plan", ())
    assert answered(subject, says({"programs": [], "exhausted": True}))[0].exhausted
    assert not answered(subject, says({"text": BETTER, "exhausted": True}))[0].exhausted


def test_it_is_told_what_it_needs(subject: ProblemDescription, tmp_path: Path) -> None:
    seen = tmp_path / "seen.json"
    answered(subject, python(f"json.dump(asked, open({str(seen)!r}, 'w')); print('{{\"note\": \"\"}}')"))
    document = json.loads(seen.read_text())
    assert document["grammar"] == grammar_text() and document["role"] == "implement" and document["writes"]
    assert document["problem"]["text"] == PROGRAM and document["problem"]["sizes"] == subject.sizes
    assert document["window"][0]["outcome"]["kind"] == "timed" and document["parent"] == {
        "id": 0,
        "text": PROGRAM,
    }
    assert "The language" in document["system"][0] and "Step 0" in document["turn"] and document["keep"] == 4


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("print('hello')", "answered what is not one JSON object: 'hello"),
        ("print('{}'); print('{}')", "is not one JSON object"),
        ("print('[1]')", "is not one JSON object"),
        ("print('[' * 100000)", "is not one JSON object"),
        ("pass", "answered nothing"),
        ("print('{}')", "answered an object with nothing"),
        ("print('{\"usage\": {}}')", "answered an object with usage"),
        ("print('{\"answer\": 1}')", "answered an object with answer"),
        ("print('{\"text\": 7}')", "answered a text"),
        ("print('{\"programs\": {}}')", "programs that are no list"),
        ("print('{\"programs\": [7]}')", "answered 7 as a program"),
        ('print(\'{"text": "", "usage": {"input": -1}}\')', "answered -1 as its usage's input"),
        ('print(\'{"text": "", "usage": {"input": true}}\')', "answered True"),
        ('print(\'{"text": "", "usage": {"dollars": NaN}}\')', "answered nan"),
        ('print(\'{"text": "", "usage": {"tokens": 1}}\')', "answered a usage that is not"),
        ("sys.stderr.write('no model here'); sys.exit(3)", "ended with status 3; it said: no model here"),
        ("os.kill(os.getpid(), 11)", "was ended by signal 11"),
        ("sys.stdout.write('x' * 5_000_000); sys.stdout.flush(); time.sleep(60)", "more than 4000000 bytes"),
    ],
)
def test_what_goes_wrong_is_said(code: str, words: str, subject: ProblemDescription) -> None:
    failure, spent = failed(subject, python(code))
    assert words in failure.what and "resume" in failure.fix and spent == NOTHING


def test_usage_counts_whatever_comes_after_it(subject: ProblemDescription) -> None:
    code = 'print(\'{"text": "", "usage": {"input": 5}}\'); sys.stdout.flush(); sys.exit(1)'
    failure, spent = failed(subject, python(code))
    assert "status 1" in failure.what and spent.input == 5


@pytest.mark.slow
def test_one_that_hangs_is_killed_with_its_children(subject: ProblemDescription, tmp_path: Path) -> None:
    child = tmp_path / "child"
    code = (
        "import subprocess; p = subprocess.Popen(['sleep', '600'])\n"
        f"with open({str(child)!r}, 'w') as out: out.write(str(p.pid))\n"
        "time.sleep(600)"
    )
    failure, _ = failed(subject, python(code), limit=8.0)
    assert "did not answer within 8 s and was killed" in failure.what
    assert gone(int(child.read_text()))


def gone(pid: int) -> bool:
    """Whether a process ends: one that was killed may be on its way for a moment yet."""
    stat = Path(f"/proc/{pid}/stat")
    for _ in range(200):
        try:
            if stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_one_that_reads_nothing_is_fine(subject: ProblemDescription) -> None:
    answer, _ = answered(subject, [sys.executable, "-c", 'print(\'{"text": "prose"}\')'])
    assert answer.programs == ()


def test_one_that_is_not_there(subject: ProblemDescription) -> None:
    for command in (["/no/such/program"], [], ["/etc/hostname"], ["a\0b"]):
        failure, _ = failed(subject, command)
        assert "cannot be started" in failure.what
