"""README and CONTRIBUTING say what is so: commands, links and programs."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from ucutlass import frontend
from ucutlass.shapes import complete, parse_sizes

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()
FIRST, SECOND = (line for line in README.splitlines() if line.startswith("./setup.sh "))
PROGRAMS = re.findall(r"^```\n((?:#.*\n)*kernel .*?)^```", README, re.DOTALL | re.MULTILINE)


def test_the_first_command_runs_an_example_that_is_there() -> None:
    words = FIRST.split()
    assert words[:3] == ["./setup.sh", "ucc", "run"]
    checked = frontend.read(ROOT / words[3])
    assert words[4] == "-s"
    assert complete(frontend.kernel(checked), parse_sizes([words[5]]))


def test_the_second_command_is_what_make_runs_and_ci_runs_all_of_it() -> None:
    assert f"\t{SECOND}\n" in (ROOT / "Makefile").read_text()
    ci = (ROOT / ".ci" / "run").read_text().splitlines()
    assert any(line.startswith(f"{SECOND}-every ") for line in ci)
    assert any(line.startswith("./setup.sh lint ") for line in ci)


@pytest.mark.parametrize("script", ["setup.sh", ".ci/run"])
def test_scripts_can_be_run_and_parsed(script: str) -> None:
    path = ROOT / script
    assert path.stat().st_mode & 0o111
    assert subprocess.run(["sh", "-n", str(path)], check=False).returncode == 0


def test_links_lead_somewhere() -> None:
    for text in (README, CONTRIBUTING):
        for target in re.findall(r"\]\(([\w./-]+\.md)\)", text):
            assert (ROOT / target).exists(), target


def test_scripts_that_the_pages_name_exist() -> None:
    pages = [README, CONTRIBUTING, *(page.read_text() for page in (ROOT / "docs").glob("*.md"))]
    named = {name for page in pages for name in re.findall(r"python -m\s((?:benchmarks|tests)[\w.]+)", page)}
    scripts = {name: ROOT.joinpath(*name.split(".")).with_suffix(".py") for name in named}
    assert len(scripts) > 20
    assert [name for name, path in scripts.items() if not path.exists() and "NAME" not in name] == []


def test_its_programs_check() -> None:
    assert PROGRAMS
    for text in PROGRAMS:
        checked = frontend.read_text(text, "README.md")
        for name in frontend.programs(checked):
            assert not frontend.check_schedules(checked, frontend.kernel(checked, name))


def test_make_targets_that_are_named_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"`make ([a-z-]+)", CONTRIBUTING)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
