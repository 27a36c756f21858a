"""Draws modules of core ATen operators and compares each imported program with its module in float64.

    python -m benchmarks.drawn_modules [--count 2000] [--seed 0] [--steps 6] [--out FILE] [--table] [--training]

Prints how many of the modules became programs, how many were refused, by reason, and every one whose program
computes something else; then which operators of the draw, which of their pairs (what reads whose value) and
which of the importer's rules were met. With --training, each module takes one step through the backend of torch.compile,
whose programs the reference computes: its loss, gradients and buffers are compared, and the operators are printed
that stayed outside of programs, by reason. Runs on the CPU; exits with 1 where a program is wrong.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import bars
from tests.dynamo.training_step import TRAINING_STEPS, NotTrained, outside, training_difference
from tests.importer.drawn_modules import DrawnModule, Plan, State, draw
from tests.importer.float64_check import difference
from ucutlass.files import put
from ucutlass.importer.graph import Unsupported
from ucutlass.importer.operators import RULES


@dataclass(slots=True)
class Outcome:
    """What became of one drawn module. `verdict` is `agrees`, `differs`, `refused` or `failed`."""

    number: int
    verdict: str
    why: str = ""
    plan: str = ""
    text: str = ""
    pairs: list[tuple[str, str]] = field(default_factory=list)
    operators: list[str] = field(default_factory=list)
    outside: list[tuple[str, str]] = field(default_factory=list)


def outcome(number: int, seed: int, most_steps: int, training: bool = False) -> Outcome | None:
    """Returns what becomes of the module of a seed, None for one without steps."""
    source = random.Random(f"{seed}:{number}")

    def pick(options: Sequence[Any]) -> Any:
        return source.choice(list(options))

    plan, state = draw(pick, source.randint(1, most_steps), TRAINING_STEPS if training else {})
    if not plan.steps:
        return None
    result = Outcome(number, "agrees", plan=str(plan), pairs=plan.pairs())
    try:
        words = _trained(result, plan, state) if training else _imported(result, plan, state)
    except Unsupported as refused:
        result.verdict, result.why = "refused", _reason(refused, plan)
    except (NotTrained, torch._dynamo.exc.TorchRuntimeError) as refused:  # PyTorch's own limits
        result.verdict, result.why = "refused", str(refused).strip().splitlines()[0][:200]
    except Exception:  # a defect of the importer or of the reference, to be reported
        result.verdict, result.why = "failed", traceback.format_exc()
    else:
        if words:
            result.verdict, result.why = "differs", words
    return result


def _imported(result: Outcome, plan: Plan, state: State) -> str:
    """Imports the module, and returns where its program differs."""
    program, words = difference(DrawnModule(plan, state).eval(), *plan.inputs)
    result.operators = sorted({fate.operator for fate in program.report})
    result.text = program.text if words else ""
    return words


def _trained(result: Outcome, plan: Plan, state: State) -> str:
    """Takes a training step, and returns where it differs."""
    report, words = training_difference(DrawnModule(plan, state).train(), *plan.inputs)
    result.outside = [(o.operator, o.why) for o in outside(report)]
    texts = [text for graph in report.graphs for text in graph.texts.values()]
    result.text = "\n".join(texts) if words else ""
    return words


def _reason(refused: Unsupported, plan: Plan) -> str:
    operator = refused.origin.operator if refused.origin else ""
    return f"{operator} {refused.why}".strip().splitlines()[0][:200]


def outcomes(count: int, seed: int, steps: int, training: bool) -> Iterator[Outcome]:
    number = drawn = 0
    while drawn < count:
        result = outcome(number, seed, steps, training)
        number += 1
        if result is not None:
            drawn += 1
            yield result


def coverage(results: Sequence[Outcome]) -> Iterator[str]:
    """Yields the lines of the table of what was drawn."""
    names = Counter(name for r in results for name in {reader for _, reader in r.pairs})
    pairs = Counter(pair for r in results for pair in set(r.pairs))
    refused = Counter(name for r in results if r.verdict == "refused" for name in {b for _, b in r.pairs})
    yield f"{len(names)} operators drawn, {len(pairs)} pairs of them"
    for name, count in sorted(names.items()):
        after = len({a for a, b in pairs if b == name})
        before = len({b for a, b in pairs if a == name})
        words = f", in {refused[name]} refused" if refused[name] else ""
        yield f"  {name}: {count} modules, reads {after} others, read by {before}{words}"
    if not any(r.operators for r in results):
        return
    operators = {operator for r in results for operator in r.operators}
    missing = set(RULES) - operators
    yield f"{len(operators & set(RULES))} of {len(RULES)} rules met; not met: {', '.join(sorted(missing))}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one module, whose program is printed")
    parser.add_argument("--steps", type=int, default=6, help="most steps of a module")
    parser.add_argument("--training", action="store_true", help="compare training steps")
    parser.add_argument("--table", action="store_true", help="print the table of operators")
    parser.add_argument("--out", type=Path, help="a file of one JSON line for each module")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.only is not None:
        result = outcome(options.only, options.seed, options.steps, options.training)
        print(json.dumps(result and asdict(result), indent=1).replace("\\n", "\n"))
        return 0
    start = time.monotonic()
    results: list[Outcome] = []
    for result in outcomes(options.count, options.seed, options.steps, options.training):
        results.append(result)
        if result.verdict in ("differs", "failed"):
            print(
                f"module {result.number} {result.verdict}: {result.why}\n{result.plan}\n{result.text}",
                flush=True,
            )
        if options.out and (len(results) % 50 == 0 or len(results) == options.count):
            put(options.out, "".join(json.dumps(asdict(r)) + "\n" for r in results))
    reasons = Counter(r.why for r in results if r.verdict == "refused")
    for why, count in reasons.most_common():
        print(f"refused {count}: {why}")
    for (operator, why), count in Counter(o for r in results for o in set(r.outside)).most_common():
        print(f"outside in {count}: {operator}: {why}")
    if options.table:
        print(*coverage(results), sep="\n")
    else:
        lines = [line for line in coverage(results) if not line.startswith("  ")]
        print(*lines, sep="\n")
    print(
        f"{len(results)} modules in {time.monotonic() - start:.0f} s: {dict(Counter(r.verdict for r in results))}"
    )
    faulty = {str(r.number): r.verdict in ("differs", "failed") for r in results}
    return bars.held_to_none(faulty, options.count, options.out)


if __name__ == "__main__":
    sys.exit(main())
