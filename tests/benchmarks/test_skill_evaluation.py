"""The evaluation of the skill measures a difference, to both sides. Its answers here are written by hand."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import skill
from ucutlass.agent.skill_tasks import TASKS

SCRIPTED = Path(skill.__file__).parent / "data" / "skill_scripted.json"


def judged(recording: Any, *names: str) -> dict[str, int]:
    rows = skill.evaluate(skill.recorded(recording), [t for t in TASKS if t.name in names])
    return skill.summary(rows)


@pytest.fixture
def recording() -> Any:
    return json.loads(SCRIPTED.read_text())


def test_a_skill_that_helps(recording: Any) -> None:
    assert "scripted" in recording["kind"], "nobody takes it for a model's"
    counts = judged(recording, "linear_gelu", "cross_entropy")
    assert (counts["right_with"], counts["right_without"]) == (2, 0)
    assert (counts["accepted_with"], counts["accepted_without"]) == (2, 1)


@pytest.mark.slow
def test_a_skill_that_hurts(recording: Any, tmp_path: Path) -> None:
    for answers in recording["answers"].values():
        answers["with"], answers["without"] = answers["without"], answers["with"]
    path = tmp_path / "hurts.json"
    path.write_text(json.dumps(recording))
    assert skill.main(["--recorded", str(path), "--tasks", "linear_gelu"]) == 1
    assert skill.main(["--recorded", str(SCRIPTED), "--tasks", "linear_gelu"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "verdict", "words"),
    [
        ("I would rather not.", "refused", "UC00"),
        ("```ucu\nkernel other(x: bf16[M]) -> bf16[M] { return x }\n```", "refused", "no linear_gelu"),
        ("Here it is.\n```ucu\n" + TASKS[0].program + "```\nIt is fast.", "right", ""),
        (TASKS[0].program.replace("gelu(dot", "relu(dot"), "wrong", "differs"),
        (TASKS[0].program.replace("bias: bf16", "bias: f32"), "wrong", ""),
    ],
)
def test_an_answer_is_judged_by_what_it_computes(answer: str, verdict: str, words: str) -> None:
    assert skill.judge(TASKS[0], answer)[0] == verdict
    assert words in skill.judge(TASKS[0], answer)[1]


AGENT = """
import json, sys
request = json.load(sys.stdin)
has = request["skill"] is not None and "dot[K]" in request["skill"]["references/language.md"]
print(json.dumps({"text": sys.argv[1] if has else "no idea"}))
"""


def test_an_agent_is_given_the_skill_or_not(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(AGENT)
    answers: dict[str, dict[str, str]] = {}
    ask = skill.asking(f"{sys.executable} {script} yes", answers)
    assert (ask(TASKS[0], True), ask(TASKS[0], False)) == ("yes", "no idea")
    assert answers == {TASKS[0].name: {"with": "yes", "without": "no idea"}}
