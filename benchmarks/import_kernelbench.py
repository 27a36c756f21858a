"""Imports every problem of a KernelBench checkout as a program, and checks the programs on the CPU.

    python -m benchmarks.import_kernelbench ROOT [--levels 1,2,3] [--only 12,43] [--check] [--out FILE]

Each problem is imported at its own extents, in a process of its own and without the memory of its tensors.
With --check it is imported once more with smaller numbers in its file, wherever its module still runs, and
that program is evaluated in float64 against the module in float64, on several draws of inputs and weights.
Prints how many programs have no stage that torch computes, with reasons for the others. Needs no GPU.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from ucutlass.files import put
from ucutlass.runtime import isolation

LIMIT_SECONDS = 400.0
MEMORY = 12 * 2**30
LIMITS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 256)
"""The largest numbers that stay as they are in a smaller problem, tried in order."""

DRAW_SECONDS = 40.0
"""After so long no further inputs and weights are drawn for a problem."""

MOST_FLOPS = 6e9
"""Work of a smaller problem's forward beyond which a CPU takes too long."""


def smaller(source: str, limit: int) -> str:
    """Returns a problem's source with the whole numbers of its module level, and of the functions that give
    its inputs, halved until they are at most `limit`, and at most 2 for a batch."""
    tree = ast.parse(source)
    places: list[ast.Constant] = []
    few: set[ast.Constant] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and "batch" in ast.unparse(statement.targets[0]).lower():
            few |= {n for n in ast.walk(statement.value) if isinstance(n, ast.Constant)}
        inputs = isinstance(statement, ast.FunctionDef) and statement.name in (
            "get_inputs",
            "get_init_inputs",
        )
        if isinstance(statement, ast.Assign | ast.AnnAssign) or inputs:
            places += [n for n in ast.walk(statement) if isinstance(n, ast.Constant) and type(n.value) is int]
    lines = source.splitlines(keepends=True)
    for place in sorted(places, key=lambda n: (n.lineno, n.col_offset), reverse=True):
        value = place.value
        assert isinstance(value, int)
        while value > (2 if place in few else limit):
            value = -(-value // 2)
        line = lines[place.lineno - 1]
        lines[place.lineno - 1] = line[: place.col_offset] + str(value) + line[place.end_col_offset :]
    return "".join(lines)


# --- in a process of its own -----------------------------------------------------------


def work(file: str, mode: str) -> dict[str, Any]:
    """Returns `{"flops": ..}` of a file's forward, or `{"why": ..}` where it does not run."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from ucutlass.importer.problem_file import MemorylessMode
    from ucutlass.runtime.module.inspection import load

    why = ""
    for memory in (MemorylessMode, nullcontext):
        try:
            with memory():
                loaded = load(file, mode, "own")  # type: ignore[arg-type]
                inputs = loaded.module.get_inputs()
                with torch.no_grad(), FlopCounterMode(display=False) as counter:
                    loaded.model(*inputs)
            return {"flops": counter.get_total_flops()}
        except Exception as error:
            why = f"{type(error).__name__}: {str(error)[:200]}"
            if "_local_scalar_dense" not in why:
                break  # only code that needs values is worth the memory
    return {"why": why}


def checked(file: str, mode: str) -> dict[str, Any]:
    """Returns where an imported program differs from its module, "" where it agrees on all draws, or on
    those for which there was time."""
    from ucutlass import frontend
    from ucutlass.reference.unrounded import unrounded
    from ucutlass.runtime.module.inspection import load
    from ucutlass.runtime.module.reference import cases
    from ucutlass.runtime.module.signature import Unusable
    from ucutlass.tasks.import_module import program
    from ucutlass.tasks.problem_file import _apart

    text = program(file, "model", mode)
    if "text" not in text:
        return {"import": text}
    if any(origin == "constant" for _, origin, _ in text["inputs"]):
        return {"why": "it takes a constant of the module, which is no parameter"}
    numbers = _input_numbers(file, mode)
    names = {
        name: f"input {numbers[path]}" if origin == "input" else f"state {path}"
        for name, origin, path in text["inputs"]
    }
    bound = frozenset(path for _, origin, path in text["inputs"] if origin != "input")
    candidate = unrounded(frontend.program(frontend.read_text(text["text"]), text["name"]))
    start, draws = time.monotonic(), 0
    apart: list[str] = []
    try:
        for case in cases(load(file, mode, "own"), bound, 0):  # type: ignore[arg-type]
            if words := _apart(candidate, names, case):
                apart.append(f"draw {case.draw}: {words}")
            else:
                draws += 1
            if time.monotonic() - start > DRAW_SECONDS:
                break
    except Unusable as error:
        return {"unusable": {"code": error.code, "why": error.why}}
    return {"words": "; ".join(apart[:2]) + f"; {draws} draws agree" * bool(apart), "draws": draws}


def _input_numbers(file: str, mode: str) -> dict[str, int]:
    import inspect

    from ucutlass.importer.problem_file import MemorylessMode
    from ucutlass.runtime.module.inspection import load

    try:
        with MemorylessMode():
            model = load(file, mode, "own").model  # type: ignore[arg-type]
    except Exception:  # of the file's code: some modules compute with their weights while they are made
        model = load(file, mode, "own").model  # type: ignore[arg-type]
    return {name: i for i, name in enumerate(inspect.signature(model.forward).parameters)}


# --- a run ---------------------------------------------------------------------------


def problems(root: Path, levels: Sequence[int], only: Sequence[int]) -> Iterator[tuple[int, int, Path]]:
    for level in levels:
        files = [(int(p.stem.split("_")[0]), p) for p in (root / f"level{level}").glob("[0-9]*_*.py")]
        order = {number: place for place, number in enumerate(only)}
        for number, path in sorted(files, key=lambda f: (order.get(f[0], 0), f[0])):
            if not only or number in only:
                yield level, number, path


def attempt(process: isolation.WarmProcess, path: Path, mode: str) -> dict[str, Any]:
    outcome = process.call(
        "ucutlass.tasks.import_module:program",
        {"file": str(path), "name": _name(path), "mode": mode},
        limit_seconds=LIMIT_SECONDS,
        memory_bytes=MEMORY,
    )
    if isinstance(outcome, isolation.Returned):
        value: dict[str, Any] = outcome.value
        return value
    return {"refused": {"why": isolation.failure_text(outcome, "the import")}}


def _name(path: Path) -> str:
    return re.sub(r"\W+", "_", path.stem.split("_", 1)[1]).strip("_").lower()


def check(process: isolation.WarmProcess, path: Path, mode: str, most: float) -> str:
    """Returns how the imported program of a smaller problem compares with its module."""
    source = path.read_text(encoding="utf-8")
    reasons: list[str] = []
    apart = ""
    with tempfile.TemporaryDirectory() as folder:
        for limit in LIMITS:
            text = smaller(source, limit)
            file = Path(folder) / f"problem_{limit}.py"
            put(file, text)
            answer = _called(process, "work", {"file": str(file), "mode": mode})
            if "flops" not in answer:
                reasons.append(f"{limit}: {answer.get('why')}")
                continue
            if answer["flops"] > most:
                return apart or f"not checked: {answer['flops']:.1e} operations at {limit}; {reasons[-1:]}"
            verdict = _called(process, "checked", {"file": str(file), "mode": mode})
            if "unusable" in verdict or "why" in verdict or "import" in verdict:
                reasons.append(
                    f"{limit}: {verdict.get('unusable') or verdict.get('why') or verdict['import']}"
                )
                if "unusable" in verdict and verdict["unusable"]["code"] in ("random", "stateful"):
                    break
                continue
            if not verdict["words"]:
                return f"agrees at {limit} on {verdict['draws']} draws{f', {apart}' if apart else ''}"
            apart = apart or f"DIFFERS at {limit}: {verdict['words']}"
    return apart or f"not checked: {'; '.join(reasons[-2:])}"


def _called(process: isolation.WarmProcess, function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    outcome = process.call(
        f"benchmarks.import_kernelbench:{function}",
        arguments,
        limit_seconds=LIMIT_SECONDS,
        memory_bytes=MEMORY,
    )
    if isinstance(outcome, isolation.Returned):
        value: dict[str, Any] = outcome.value
        return value
    return {"why": isolation.failure_text(outcome, function)[:500]}


def row(process: isolation.WarmProcess, level: int, number: int, path: Path, most: float) -> dict[str, Any]:
    start = time.monotonic()
    mode = "constructed"
    answer = attempt(process, path, mode)
    if "random" in str(answer.get("refused", {}).get("why", "")):
        mode = "eval"
        answer = attempt(process, path, mode)
    record: dict[str, Any] = {"level": level, "problem": number, "file": path.name, "mode": mode, **answer}
    record["seconds"] = round(time.monotonic() - start, 1)
    if most and "text" in answer:
        record["check"] = check(process, path, mode, most)
    return record


def verdict(record: dict[str, Any]) -> str:
    if "text" in record:
        return "without torch" if not record["torch_stages"] else "with torch"
    return "not imported"


def why(record: dict[str, Any]) -> str:
    refused = record.get("refused") or record.get("unusable") or {}
    return f"{refused.get('operator', '')} {refused.get('code', '')} {refused.get('why', '')}".strip()[:300]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("root", type=Path)
    parser.add_argument("--levels", default="1,2,3")
    parser.add_argument("--only", default="")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--flops", type=float, default=MOST_FLOPS, help="most work of a checked forward")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    levels = [int(n) for n in options.levels.split(",")]
    only = [int(n) for n in options.only.split(",") if n]
    records = []
    process = isolation.WarmProcess()
    for level, number, path in problems(options.root, levels, only):
        record = row(process, level, number, path, options.flops if options.check else 0.0)
        records.append(record)
        words = "" if "text" in record else why(record)
        print(
            f"{level}/{path.stem}: {verdict(record)}, {record.get('stages', '-')} stages, {record['seconds']} s"
            f"{', ' + record['mode'] if record['mode'] != 'constructed' else ''}"
            f"{'; ' + record['check'] if 'check' in record else ''}{'; ' + words if words else ''}",
            flush=True,
        )
        if options.out:
            put(options.out, "".join(json.dumps(r) + "\n" for r in records))
    process.close()
    for level in levels:
        of_level = [r for r in records if r["level"] == level]
        print(f"level {level}: {len(of_level)} problems, {dict(Counter(map(verdict, of_level)))}")
    return int(any("DIFFERS" in r.get("check", "") for r in records))


if __name__ == "__main__":
    sys.exit(main())
