"""Remembers results that were right everywhere, so that equal bits on equal arguments need no reference again.

A reading of an agent's candidate is held against the same arguments as those before it, and most schedules of an
algorithm give the same bits, on integers all of them. What is remembered was compared with the whole reference, and
equal fingerprints of a secret key say that the bits are those, with the probability of error that
`ucutlass.runtime.verify.fingerprint` gives.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Hashable, Sequence

from torch import Tensor

from ucutlass.ir import Program
from ucutlass.reference.interpreter import Argument
from ucutlass.runtime.subject import algorithm_digest
from ucutlass.runtime.verify.comparison import Comparison
from ucutlass.runtime.verify.fingerprint import fingerprint
from ucutlass.spans import span

MOST = 1024
"""Results that are remembered; those that were asked for longest ago go first."""


class AcceptedResults:
    """Comparisons with a whole reference by algorithm, arguments and results."""

    def __init__(self) -> None:
        self._key = random.SystemRandom().getrandbits(62)
        self._comparisons: OrderedDict[Hashable, tuple[Comparison, ...]] = OrderedDict()

    def find(self, mark: Hashable) -> tuple[Comparison, ...] | None:
        """Returns how the results of a mark compared before; None where they were not seen."""
        if mark not in self._comparisons:
            return None
        self._comparisons.move_to_end(mark)
        return self._comparisons[mark]

    def add(self, mark: Hashable, comparisons: Sequence[Comparison]) -> None:
        """Remembers results that the whole reference found right; others are not."""
        if not comparisons or not all(c.ok and c.decided for c in comparisons):
            return
        self._comparisons[mark] = tuple(comparisons)
        while len(self._comparisons) > MOST:
            self._comparisons.popitem(last=False)

    @span("comparison")
    def mark(self, program: Program, arguments: Sequence[Argument], results: Sequence[Tensor]) -> Hashable:
        """Returns what stands for a program's results on these arguments: one pass over the memory of all."""
        tensors = [a for a in arguments if isinstance(a, Tensor)]
        numbers = tuple(a for a in arguments if not isinstance(a, Tensor))
        bits = fingerprint([*tensors, *results], self._key)
        return (algorithm_digest(program), numbers, len(tensors), bits)
