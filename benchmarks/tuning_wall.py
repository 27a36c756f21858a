"""Wall seconds of `ucc tune` on a new program, beside torch.compile's max-autotune.

    python -m benchmarks.tuning_wall --out FILE [--seed N] [--drawn 4] [--kind bf16] [--builds 8]

Claim: a tuned kernel takes no longer to find than torch.compile's first call takes. The seed draws products as for
`benchmarks.products`. Each side is a process of its own with empty caches, clocked from its start to its end, imports and CUDA
contexts included; which goes first takes turns. Run it on an idle machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path

import torch

from benchmarks import campaign, harness
from benchmarks.bars import Bar
from benchmarks.harness import Item, Row
from benchmarks.product_cases import Problem, drawn, rival_of
from ucutlass import frontend
from ucutlass.files import put
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.switches import CACHE_DIR, DATA_DIR

WALL = "seconds of max-autotune over ours"

LIMIT_SECONDS = 400.0
"""What either of the two may take."""


class ChildFailed(Exception):
    """A side's process failed; says its last words."""


def row(item: Item) -> Row:
    """`ours` and `compile` in seconds of whole processes; `ratio` is the first's share of the second. Of ours, `search` is
    what the search took before the finalists were measured again, and `trials` says when each binary was timed."""
    problem, torch_first = Problem(*item["problem"]), item["torch_first"]
    with tempfile.TemporaryDirectory(prefix="ucutlass-wall-") as name:
        folder = Path(name)
        text = folder / "kernel.ucu"
        put(text, f"{problem.text}\n")
        sizes = ",".join(f"{dimension}={extent}" for dimension, extent in problem.sizes.items())
        tune = ("ucutlass.cli", "tune", str(text), "-s", sizes, "--json", "--builds", str(item["builds"]))
        call = (
            "benchmarks.tuning_wall",
            "--call",
            json.dumps(astuple(problem)),
            "--out",
            str(folder / "unused"),
        )
        caches = {CACHE_DIR: folder / "kernels", DATA_DIR: folder / "data"}
        torch_caches = {"TORCHINDUCTOR_CACHE_DIR": folder / "inductor", "TRITON_CACHE_DIR": folder / "triton"}
        seconds: dict[str, float] = {}
        for side in ("compile", "ours") if torch_first else ("ours", "compile"):
            command, environ = (tune, caches) if side == "ours" else (call, torch_caches)
            seconds[side], output = clocked(command, environ)
            if side == "ours":
                tuned = json.loads(output)
    ratio = seconds["ours"] / seconds["compile"]
    parts = {"search": tuned["seconds"], "trials": [trial["at"] for trial in tuned["trials"]]}
    return {**seconds, "ratio": ratio, **parts, "torch_first": torch_first}


def clocked(command: tuple[str, ...], environ: Mapping[str, Path]) -> tuple[float, bytes]:
    """Returns the seconds and the output. Raises ChildFailed and TimeoutExpired."""
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", *command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=os.environ | {name: str(path) for name, path in environ.items()},
        timeout=LIMIT_SECONDS,
    )
    if done.returncode:
        raise ChildFailed(done.stderr.decode(errors="replace")[-800:])
    return time.monotonic() - start, done.stdout


def call_compiled(problem: Problem) -> None:
    """The other side's process: one call of torch's product through torch.compile."""
    program = frontend.kernel(frontend.read_text(problem.text))
    operands = generate(program, problem.sizes, "normal", seed=0, device="cuda", generator_device="cuda")
    product = rival_of(problem, [[x for x in operands if isinstance(x, torch.Tensor)]])
    torch.compile(lambda: product(0), mode="max-autotune-no-cudagraphs", dynamic=False)()
    torch.cuda.synchronize()


def main() -> None:
    parser = harness.parser_of(__doc__, drawn=4)
    parser.add_argument("--kind", default="bf16", help="of the products, as `benchmarks.products` has them")
    parser.add_argument("--builds", type=int, default=8, help="of a search")
    parser.add_argument("--call", default="", help="of the other side's process")
    options = parser.parse_args()
    if options.call:
        call_compiled(Problem(*json.loads(options.call)))
        return
    problems = drawn(options.drawn, options.seed, [options.kind])
    problems = harness.selected(problems, options, lambda one: one.name)
    items = [
        {"name": p.name, "problem": astuple(p), "builds": options.builds, "torch_first": number % 2 == 1}
        for number, p in enumerate(problems)
    ]
    rows = campaign.in_turn("benchmarks.tuning_wall:row", items, options, row, line)
    campaign.concluded(rows, options, line, classes, {WALL: Bar(geomean=1.0)})


def classes(rows: list[Row]) -> dict[str, dict[str, float]]:
    return {WALL: {r["name"]: 1 / r["ratio"] for r in rows}}


def line(r: Row) -> str:
    return (
        f"{r['name']:34} ours {r['ours']:.1f} s (search {r['search']:.1f})  compile {r['compile']:.1f} s  "
        f"{r['ratio']:.2f}"
    )


if __name__ == "__main__":
    main()
