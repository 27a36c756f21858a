"""This module is `ucc skill`."""

from __future__ import annotations

from pathlib import Path

import click

from ucutlass.agent.skill import NAME, skill_files
from ucutlass.cli import COMMANDS, show
from ucutlass.cli.errors import reported
from ucutlass.cli.options import json_option
from ucutlass.cli.outputs import write_all


@click.command("skill")
@click.argument("folder", metavar="[DIR]", type=click.Path(file_okay=False, path_type=Path), required=False)
@json_option
def command(folder: Path | None, as_json: bool) -> None:
    """Write a skill for coding agents into DIR, by default .agents/skills: its folder is DIR/ucutlass.

    The skill is made from the guide, the codes and the commands of this version; write it again after an
    update. Agents look for skills in .agents/skills or .claude/skills of a project or of your home folder.
    """
    target = (folder or Path(".agents/skills")) / NAME
    with reported(as_json):
        contents = {target / path: text for path, text in skill_files(COMMANDS).items()}
        for path in contents:
            path.parent.mkdir(parents=True, exist_ok=True)
        write_all(contents)
    if as_json:
        show.data({"skill": str(target), "files": [str(path) for path in contents]})
    else:
        show.say(f"{show.one_line(str(target))}: {len(contents)} files")
