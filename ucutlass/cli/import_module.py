"""This module is `ucc import`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from ucutlass.cli import show
from ucutlass.cli.errors import Status, fail, reported
from ucutlass.cli.inputs import ProblemPath, class_of
from ucutlass.cli.options import json_option, seconds_option
from ucutlass.cli.outputs import OutputPath, write, write_all
from ucutlass.runtime import isolation
from ucutlass.runtime.module.signature import CODES
from ucutlass.tasks.import_module import refusal_words

MEMORY = 24 * 2**30
"""Host memory that the file's process may take: tensors take none, unless the file's code needs values."""


@click.command("import")
@click.argument("source", metavar="FILE.py[:CLASS]", type=ProblemPath())
@click.option("-o", "--output", type=OutputPath(), metavar="FILE", help="Write the program to a file.")
@click.option(
    "--mode",
    type=click.Choice(["constructed", "train", "eval"]),
    default="constructed",
    help="The module's mode; by default the one that its constructor leaves.",
)
@click.option(
    "--input",
    "types",
    multiple=True,
    metavar="TYPE",
    help="Type of an input, such as 'f32[16, 1024]'; in order.",
)
@click.option("--name", default="", help="The program's name; by default the file's.")
@click.option("--report", is_flag=True, help="Print what became of each operator instead of the program.")
@seconds_option("--limit", 300.0, "The file's process ends after so many seconds.")
@json_option
def command(
    source: Path,
    output: Path | None,
    mode: str,
    types: tuple[str, ...],
    name: str,
    report: bool,
    limit: float,
    as_json: bool,
) -> None:
    """Write the module of a Python file as a program.

    The file has KernelBench's format: Model, get_inputs() and get_init_inputs(). CLASS names another module
    of it, whose inputs --input describes where the file has no get_inputs(). The file's code runs in a process
    of its own, without the memory of its tensors. Extents are those of the inputs.
    """
    path, cls = class_of(source)
    with reported(as_json):
        if path.suffix != ".py" or not path.is_file():
            fail(Status.CALL, f"{path} is no Python file", as_json)
        programs = _programs(path, name or _name(path, cls), mode, cls, types, limit, as_json)
        outputs = [] if output is None else _names(output, len(programs))
        if len(outputs) == 1:
            write(outputs[0], programs[0]["text"])
        elif outputs:
            texts = (program["text"] for program in programs)
            write_all(dict(zip(outputs, texts, strict=True)))
    if len(programs) > 1:
        show.note(
            f"ucc: one program would be too long: these are {len(programs)}, of which later ones read what earlier give"
        )
    if as_json:
        show.data(_answer(programs, outputs))
    elif report:
        rows = [[f["operator"], f["module"], f["by"], f["stage"]] for p in programs for f in p["report"]]
        show.table(["operator", "module", "by", "stage"], rows)
    elif output is None:
        show.program("\n".join(program["text"] for program in programs))


def _answer(programs: list[dict[str, Any]], outputs: list[Path]) -> dict[str, Any]:
    files = [str(output) for output in outputs]
    if len(programs) > 1:
        return {"programs": programs} | ({"outputs": files} if files else {})
    return programs[0] | ({"output": files[0]} if files else {})


def _names(output: Path, count: int) -> list[Path]:
    """Returns the file, or one for each of several programs: FILE_1.ucu, FILE_2.ucu."""
    if count == 1:
        return [output]
    return [output.with_name(f"{output.stem}_{n}{output.suffix}") for n in range(1, count + 1)]


def _name(path: Path, cls: str) -> str:
    stem = re.sub(r"^[\d_]+", "", path.stem) or path.stem
    return re.sub(r"\W+", "_", cls or stem).strip("_").lower() or "module"


def _programs(
    path: Path, name: str, mode: str, cls: str, types: tuple[str, ...], limit: float, as_json: bool
) -> list[dict[str, Any]]:
    outcome = isolation.run(
        "ucutlass.tasks.import_module:programs",
        {"file": str(path.absolute()), "name": name, "mode": mode, "cls": cls, "inputs": list(types)},
        limit_seconds=limit,
        memory_bytes=MEMORY,
    )
    if not isinstance(outcome, isolation.Returned):
        fail(Status.PROGRAM, isolation.failure_text(outcome, str(path)), as_json)
    answer: dict[str, Any] = outcome.value
    if "unusable" in answer:
        code, why = answer["unusable"]["code"], answer["unusable"]["why"]
        fail(Status.PROGRAM, f"{path}: {CODES[code]} ({why}) [{code}]", as_json)
    if "refused" in answer:
        fail(Status.PROGRAM, f"{path}: {refusal_words(answer['refused'])}", as_json)
    return list(answer["programs"])
