"""Soundness of the checker: random accepted programs must all compile, launch and be right.

Claim: of 300 accepted programs all are. One whose bounds leave it undecided is reported apart and fails nothing.

    python -m benchmarks.soundness --out FOLDER --accepted 300 [--seed 0] [--family sm90] [--group 4]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.campaign import GROUP_HELP, Accepted, Case, Rejected, campaign, plan
from benchmarks.random_programs import random_program


def planned(first: int, count: int, family: str | None) -> Iterator[Accepted | Rejected]:
    """Yields random programs from seed `first` on, until `count` were accepted; rejected ones count too."""
    accepted, seed = 0, first
    while accepted < count:
        program = random_program(seed)
        case = Case(f"seed {seed}", program.text, (program.sizes,), seed=seed)
        seed += 1
        answer = plan(case)
        if isinstance(answer, Accepted):
            if family and answer.family != family:
                continue
            accepted += 1
        yield answer


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--accepted", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", default=None)
    parser.add_argument("--group", type=int, default=1, help=GROUP_HELP)
    options = parser.parse_args()
    report = campaign(
        planned(options.seed, options.accepted, options.family), options.out, group=options.group
    )
    print(
        f"accepted {report.accepted} {report.families}, rejected {sum(report.rejected.values())} "
        f"{report.rejected}"
    )
    print(
        f"right {report.right}, wrong {len(report.wrong)}, undecided {len(report.undecided)}, "
        f"not built {len(report.unbuilt)}"
    )
    for row in (*report.wrong[:40], *report.undecided[:10]):
        detail = str(row.get("detail"))[:300].replace("\n", " | ")
        print(row["name"], row.get("state", "wrong"), row.get("error", ""), detail)
    for name, why in list(report.unbuilt.items())[:10]:
        print(name, why[:600])
    sys.exit(bool(report.wrong or report.unbuilt))


if __name__ == "__main__":
    main()
