"""This module makes a skill for coding agents, in the format of agentskills.io, out of what the compiler knows:
the guide, the codes and rules, the commands' own help, and the tasks by which a skill is evaluated."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ucutlass.agent.lookup import diagnostic
from ucutlass.agent.skill_tasks import TASKS
from ucutlass.codes import CODES
from ucutlass.guide import guide
from ucutlass.kernels.families import RULES

NAME = "ucutlass"
"""Of the skill and of its folder, which must agree."""

DESCRIPTION = (
    "Write, check and speed up GPU kernels in uCUTLASS, a small language that ucc compiles to CUTLASS C++ for "
    "NVIDIA GPUs (Ampere to Hopper). Use it to write a GEMM, convolution, attention, norm, softmax, reduction or "
    "element-wise kernel, to fuse PyTorch operators, to make a PyTorch module or a KernelBench problem faster, or "
    "where a project has .ucu files."
)

_BODY = """\
# uCUTLASS

A `.ucu` file says what is computed, with named dimensions; the compiler chooses how it runs. A schedule never
changes what is computed.

1. Read [references/language.md](references/language.md) before you write: it is the whole language, and it is not
   Python, Triton or CUDA.
2. Write the program without a schedule, with the names and element types that were asked for.
3. `ucc check FILE.ucu` lists every error at once with its place and a fix; [references/diagnostics.md](\
references/diagnostics.md) explains codes. It needs no GPU.
4. `ucc explain FILE.ucu -s M=4096,N=..` says what the compiler chose and which schedules to try; `ucc sol` says
   what no kernel can beat. Neither needs a GPU.
5. `ucc run FILE.ucu -s ..` builds, verifies against the float64 reference and times. Report a time only where the
   verdict is right; without a GPU nothing is timed, so say that.
6. `ucc bench` compares with PyTorch in turns, `ucc optimize` searches, `ucc edit` changes one place of a program.

Do not lower a precision, skip a part of the inputs or fit the program to given values to be faster: `ucc verify`
and `ucc audit` find it. [references/commands.md](references/commands.md) lists the commands; `--json` is for you.
With the Model Context Protocol `ucc mcp` serves the same.
"""


def skill_files(commands: Mapping[str, str]) -> dict[str, str]:
    """Returns the files of the skill by their paths in its folder. `commands` has the line of help of each."""
    front = f"---\nname: {NAME}\ndescription: {DESCRIPTION}\n---\n\n"
    return {
        "SKILL.md": front + _BODY,
        "references/language.md": guide(),
        "references/diagnostics.md": _diagnostics(),
        "references/commands.md": _commands(commands),
        "evals/evals.json": json.dumps(_evaluations(), indent=2) + "\n",
    }


def _diagnostics() -> str:
    codes = sorted({*CODES, *(rule.code for rule in RULES)})
    entries = (f"## {code}\n\n{diagnostic(code)}\n" for code in codes)
    return "\n".join(["# Diagnostics\n", *entries])


def _commands(commands: Mapping[str, str]) -> str:
    rows = [f"| `ucc {name}` | {words} |" for name, words in commands.items()]
    head = "# Commands\n\n`ucc COMMAND --help` lists the options.\n\n| command | what it does |\n|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _evaluations() -> dict[str, object]:
    return {
        "skill_name": NAME,
        "evals": [
            {
                "id": number,
                "prompt": task.prompt,
                "expected_output": task.program,
                "files": [],
                "assertions": [
                    "ucc check accepts the program",
                    "By the float64 reference the program computes what the expected one does",
                ],
            }
            for number, task in enumerate(TASKS, 1)
        ],
    }
