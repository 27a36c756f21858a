"""Chooses the constants of `agent/search/mcts.py` on half of a recording's tables and reports the others.

    python -m benchmarks.search_constants benchmarks/data/h200_bf16.json

Every second table, from the first, is tuned on. What is compared is candidates to 95 % of the best by a
proposer that knows no estimate (`ucc replay --tables`), the mean over tables and seeds.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from ucutlass.agent.replay.tables import CLOSE, course
from ucutlass.agent.search import mcts
from ucutlass.tune.tables import RecordedTable, read

GRID: Mapping[str, Sequence[float]] = {
    "EXPLORE": (0.0, 0.1, 0.3),
    "WIDTH": (1.0, 1.5, 2.0, 4.0),
    "POWER": (0.1, 0.2, 0.3, 0.5, 0.8),
    "FAVOUR": (1.0, 1.5, 2.0, 4.0),
}


@contextmanager
def constants(chosen: Mapping[str, float]) -> Iterator[None]:
    """The search with other constants."""
    before = {name: getattr(mcts, name) for name in chosen}
    try:
        for name, value in chosen.items():
            setattr(mcts, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(mcts, name, value)


def mean(tables: Sequence[RecordedTable], chosen: Mapping[str, float], seeds: int) -> float:
    """Candidates to CLOSE of the best."""
    with constants(chosen):
        return statistics.fmean(
            course(t, "mcts", seed, "nothing").to(CLOSE) or len(t.space.groups)
            for t in tables
            for seed in range(seeds)
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    tables = [t for path in given.files for t in read(path)]
    tuned, held = tables[::2], tables[1::2]
    every = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    found = sorted(((mean(tuned, c, given.seeds), i) for i, c in enumerate(every)))
    now = {name: getattr(mcts, name) for name in GRID}
    for score, at in found[:8]:
        print(f"{every[at]}\ttuned on {score:.2f}\theld out {mean(held, every[at], given.seeds):.2f}")
    kept = mean(tuned, now, given.seeds), mean(held, now, given.seeds)
    print(f"{now}\ttuned on {kept[0]:.2f}\theld out {kept[1]:.2f}\tas the module has them")
    by_value = {
        (name, value): statistics.fmean(s for s, i in found if every[i][name] == value)
        for name, values in GRID.items()
        for value in values
    }
    for (name, value), score in by_value.items():
        print(f"{name} {value:g}\ttuned on {score:.2f}, the mean of the others' values")


if __name__ == "__main__":
    main()
