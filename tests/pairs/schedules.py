"""Programs of the pairs' features, each under a schedule that its seed draws from the tuner's whole space.

    python -m tests.pairs.schedules [--family reduction ...] [--seed 0] [--count 100] [--processes 2]

`tests.pairs.pairs` has each program's schedule chosen by the planner, or a few fields of it by a feature; here
tiles, stages, vectors, clusters and parts of sums stand beside programs that the planner would never choose them
for. Each is emulated on the host and judged against the float64 reference. Exit status 1 where one was wrong.

Left out, or counted as not emulable, since they are PTX in CUTLASS's headers, which the emulator does not
replace: GEMM by `warps cooperative` and `pingpong`, and grouped GEMM whose main loop is CUTLASS's.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from tests.pairs.on_host import emulated
from tests.pairs.pairs import ARCH, Drawn, Judged, Program, Space, refusal
from tests.pairs.spaces import SPACES
from ucutlass import frontend
from ucutlass.ir.hardware import ARCHES
from ucutlass.ir.schedule import PartialSchedule, show
from ucutlass.kernels.families import schedules
from ucutlass.kernels.gemm.plan import Sm90Schedule
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete


def drawn(space: Space, seed: int) -> Drawn:
    """The program of a seed, with a schedule block."""
    draw = random.Random(f"{space.name} {seed}")
    while True:
        choice = {axis: draw.choice(features) for axis, features in space.axes.items()}
        choice["schedule"] = space.axes["schedule"][0]
        program = space.program(choice, draw)
        if refusal(space, program) is None and (known := list(_schedules(program))):
            text = _with(program.text, show(draw.choice(known).request))
            return Drawn(space.name, seed, choice, replace(program, text=text))


def _schedules(program: Program) -> Iterator[Planned]:
    """What the tuner may try of a program and the emulator knows."""
    checked = frontend.read_text(program.text)
    kernel = frontend.kernel(checked, "k")
    pattern, extents = frontend.pattern(checked, kernel), complete(kernel, dict(program.sizes))
    for planned in schedules(pattern, extents, ARCHES[ARCH], None, PartialSchedule()):
        if not isinstance(planned.plan.schedule, Sm90Schedule):
            yield planned


def _with(text: str, schedule: str) -> str:
    """The text with a block at the end of its kernel, which is the last of the text."""
    at = text.rindex("}")
    return f"{text[:at]}  schedule {ARCH} {{ {schedule} }}\n{text[at:]}"


def shown(judged: Judged) -> str:
    """A program that was not right, its seed, and what the judge said."""
    one = judged.drawn
    head = f"{judged.state}: {one.space}, seed {one.number}\n{one.program.text}{dict(one.program.sizes)}"
    return f"{head} {dict(one.choice)}\n{judged.detail[-1500:]}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=list(SPACES), action="append", help="all where none is named")
    parser.add_argument("--seed", type=int, default=0, help="the first of the programs' seeds")
    parser.add_argument("--count", type=int, default=100, help="programs of each family")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    failed = False
    for name in options.family or SPACES:
        seeds = range(options.seed, options.seed + options.count)
        judged = emulated([drawn(SPACES[name], seed) for seed in seeds], options.processes)
        print(f"{name}: {dict(Counter(j.state for j in judged))}")
        for verdict in judged:
            if verdict.state != "right":
                print(shown(verdict))
        failed |= any(verdict.state == "wrong" for verdict in judged)
    sys.exit(failed)


if __name__ == "__main__":
    main()
