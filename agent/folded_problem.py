"""This module makes of a problem the one that is left where what depends on named parameters alone is computed once.

The two programs that algebra derives stay in one text: `NAME_folded`, which is called once, and `NAME`, which takes its
results and is what a session makes faster. Candidates are right as long as those parameters stay.
"""

from __future__ import annotations

from collections.abc import Sequence

from ucutlass import frontend
from ucutlass.agent.batch import NoStart
from ucutlass.agent.candidate_text import candidate_text
from ucutlass.agent.problem import OptimizationProblem, problem_of
from ucutlass.algebra.derivation import derive
from ucutlass.algebra.egraph import Full
from ucutlass.algebra.saturation import Bounds
from ucutlass.shapes import complete, free_dims

BOUNDS = Bounds(pricing=20.0)
"""Of a session's time, once."""


class NothingFolded(NoStart):
    """Raised where folding is asked for and is not possible, or saves no time."""


def folded_problem(problem: OptimizationProblem, names: Sequence[str]) -> OptimizationProblem:
    """Returns what remains to be computed each time. Raises NothingFolded, and ShapeError where the problem has no
    program."""
    program = problem.typed
    parameters = [p.name for p in program.params]
    if unknown := sorted({*names} - {*parameters}):
        words = f"{program.name} has no parameter {', '.join(unknown)}; it has {', '.join(parameters)}"
        raise NothingFolded(words)
    try:
        derivation = derive(problem.start, program, problem.sizes, problem.arch, None, BOUNDS)
    except Full as full:
        raise NothingFolded(f"{program.name} is too large for algebra: {full}") from full
    folded = derivation.folded(names)
    if folded is None:
        raise NothingFolded(
            f"computing once what {program.name} has of {', '.join(names)} alone saves no time: leave "
            "--fold-weights out"
        )
    extents = dict(zip(program.dims, complete(program, problem.sizes), strict=True))
    rest = frontend.program(candidate_text(folded.text).checked, program.name)
    sizes = {dim: extents[dim] for dim in free_dims(rest)}
    return problem_of(
        folded.text, problem.file, program.name, sizes, problem.arch, problem.compute_type or None
    )
