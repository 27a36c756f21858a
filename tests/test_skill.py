"""The skill for coding agents, AGENTS.md and llms.txt: they are what their readers take, and lead somewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from ucutlass import frontend, ir
from ucutlass.agent.skill import skill_files
from ucutlass.agent.skill_tasks import TASKS, SkillTask
from ucutlass.cli import COMMANDS, main
from ucutlass.codes import CODES
from ucutlass.guide import guide
from ucutlass.kernels.families import RULES
from ucutlass.pipeline.planning import plan_pipeline
from ucutlass.shapes import complete

ROOT = Path(__file__).parent.parent
FILES = skill_files(COMMANDS)


def links(text: str) -> set[str]:
    return {link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text)} - {""}


def test_its_head_is_as_the_format_has_it(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["skill", str(tmp_path)], prog_name="ucc")
    assert done.exit_code == 0
    (folder,) = tmp_path.iterdir()
    assert {str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()} == set(FILES)
    head = re.match(r"---\nname: (.+)\ndescription: (.+)\n---\n", (folder / "SKILL.md").read_text())
    assert head is not None
    assert head[1] == folder.name and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", head[1])
    assert 0 < len(head[2]) <= 1024 and ": " not in head[2], "it is a plain scalar of YAML"


def test_it_is_written_again_in_place(tmp_path: Path) -> None:
    for _ in range(2):
        assert CliRunner().invoke(main, ["skill", str(tmp_path)], prog_name="ucc").exit_code == 0
    assert (tmp_path / "ucutlass" / "references" / "language.md").read_text() == guide()


def test_it_says_what_the_compiler_says() -> None:
    assert len(FILES["SKILL.md"].splitlines()) < 500
    assert links(FILES["SKILL.md"]) <= set(FILES)
    assert set(re.findall(r"^## (UC\d{4})$", FILES["references/diagnostics.md"], re.MULTILINE)) == {
        *CODES,
        *(rule.code for rule in RULES),
    }
    for name in main.list_commands(None):  # type: ignore[arg-type]
        assert f"`ucc {name}`" in FILES["references/commands.md"]
    for name in re.findall(r"`ucc (\w+)", FILES["SKILL.md"]):
        assert name in COMMANDS


def test_its_evaluations_are_the_tasks() -> None:
    evaluations = json.loads(FILES["evals/evals.json"])
    assert evaluations["skill_name"] == "ucutlass"
    assert [e["prompt"] for e in evaluations["evals"]] == [task.prompt for task in TASKS]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_what_is_expected_of_a_task_plans(task: SkillTask) -> None:
    checked = frontend.read_text(task.program)
    program = checked.module.programs[0]
    assert program.name == task.name and program.name in task.prompt
    assert all(re.search(rf"\b{p.name}\b", task.prompt) for p in program.params)
    sizes = complete(program, dict(task.sizes))
    if isinstance(program, ir.Pipeline):
        plan_pipeline(checked, program, sizes, "sm90a")
    else:
        frontend.plan_kernel(checked, program, sizes, "sm90a")


@pytest.mark.parametrize("name", ["AGENTS.md", "llms.txt"])
def test_what_agents_read_first_leads_somewhere(name: str) -> None:
    text = (ROOT / name).read_text()
    assert links(text) and all((ROOT / link).is_file() for link in links(text))
    for command in re.findall(r"`ucc (\w+)", text):
        assert command in COMMANDS


def test_llms_txt_is_as_its_format_has_it() -> None:
    """llmstxt.org: a heading, a quote, and lists of links; every page is in one."""
    text = (ROOT / "llms.txt").read_text()
    assert re.match(r"# .+\n\n> .+\n\n## ", text)
    pages = {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")}
    assert pages <= links(text)
