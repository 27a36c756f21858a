"""Imports a PyTorch module from a file as a program. The file's code runs here and nowhere else.

Everything goes in and comes out as JSON values, for `ucutlass.runtime.isolation`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from ucutlass.importer.program import ImportedText

T = TypeVar("T")


def program(
    file: str, name: str, mode: Any, cls: str = "", inputs: list[str] | None = None, precision: Any = "own"
) -> dict[str, Any]:
    """Returns the program of a file's module, as `ucutlass.importer.problem_file` does: its text, `inputs` as [name, origin, path] in the order
    of its parameters, and what became of each operator; `{"unusable": {code, why}}` where the file is at
    fault, `{"refused": {operator, module, line, why}}` where an operator is not served."""
    from ucutlass.importer.problem_file import import_problem

    answer = _answered(lambda: import_problem(file, name, mode, cls, inputs or (), precision))
    return answer if isinstance(answer, dict) else _described(answer)


def programs(
    file: str, name: str, mode: Any, cls: str = "", inputs: list[str] | None = None
) -> dict[str, Any]:
    """Does as `program` for a module that may be several programs in a row: `programs` has what `program` returns
    of each, and `gives`, the values of its results by the names under which later ones take them as inputs."""
    from ucutlass.importer.problem_file import import_in_parts

    answer = _answered(lambda: import_in_parts(file, name, mode, cls, inputs or ()))
    if isinstance(answer, dict):
        return answer
    return {"programs": [_described(text) | {"gives": list(gives)} for text, gives in answer]}


def _answered(imported: Callable[[], T]) -> T | dict[str, Any]:
    """Returns what an import gives, or why there is nothing."""
    from ucutlass.importer.graph import Unsupported
    from ucutlass.runtime.module.signature import Unusable

    try:
        return imported()
    except Unusable as error:
        return {"unusable": {"code": error.code, "why": error.why}}
    except Unsupported as error:
        origin = {} if error.origin is None else asdict(error.origin)
        return {"refused": {**origin, "why": error.why}}


def _described(text: ImportedText) -> dict[str, Any]:
    return {
        "text": text.text,
        "name": text.name,
        "inputs": [[i.name, i.origin, i.path] for i in text.inputs],
        "report": [asdict(fate) for fate in text.report],
        "stages": text.stages,
        "torch_stages": text.torch_stages,
        "written": list(text.written),
    }


def program_of_source(source: str, file: str, name: str, mode: Any, precision: Any) -> dict[str, Any]:
    """Does as `program` for the recorded text of a file, whose lines are those that are named."""
    from ucutlass.tasks.problem_file import written_source

    with written_source(source) as path:
        answer = program(path, name, mode, precision=precision)
        if "refused" in answer:
            line = str(answer["refused"].get("line", "")).replace(path, file)
            answer["refused"]["line"] = line
    return answer


def refusal_words(refused: dict[str, str]) -> str:
    """Returns the words of what `program` returns under `refused`."""
    where = f" at {refused['line']}" if refused.get("line") else ""
    operator = f"{refused['operator']}{where}: " if refused.get("operator") else ""
    return f"{operator}{refused['why']}"
