"""Lets a command-line agent propose programs: it asks whatever reads a prompt and writes an answer.

    ucc optimize FILE.ucu -s .. --command "python examples/command_agent.py claude -p"
    ucc optimize FILE.ucu -s .. --command "python examples/command_agent.py codex exec --skip-git-repo-check -"
    ucc optimize FILE.ucu -s .. --command "python examples/command_agent.py gemini"

The agent runs in an empty folder, so that it answers from the prompt and works on no files.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile


def main() -> int:
    request = json.load(sys.stdin)
    prompt = "\n\n".join([*request["system"], request["turn"]])
    program = shutil.which(sys.argv[1]) or sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        # What the agent writes to standard error is shown where it fails.
        agent = subprocess.run(
            [program, *sys.argv[2:]], input=prompt.encode(), stdout=subprocess.PIPE, cwd=folder, check=False
        )
    json.dump({"text": agent.stdout.decode(errors="replace")}, sys.stdout)
    return agent.returncode


if __name__ == "__main__":
    sys.exit(main())
