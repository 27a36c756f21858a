"""Keeps the arguments of a process's verifications and what their results must be, since candidates of one problem
are held against the same.

What a kernel wrote where it must not could lie in what is kept, so that is compared with its fingerprint each time
before it is used, and made again where it differs.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from ucutlass.ir import Kernel, Program
from ucutlass.reference import ExpectedResults, least_results
from ucutlass.reference.interpreter import Argument
from ucutlass.runtime.distributions import Distribution
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.subject import algorithm_digest
from ucutlass.runtime.verify.fingerprint import Fingerprint, fingerprint
from ucutlass.shapes import complete

MOST_BYTES = 4 << 30
"""Of all that is entry. What is larger alone is made anew each time."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceCase:
    """Arguments, and what the results of a kernel must be: None where a reference is made in slices, and of a
    pipeline, whose stages are held against what the stages before them stored."""

    arguments: Sequence[Argument]
    expected: ExpectedResults | None

    def tensors(self) -> Iterator[Tensor]:
        yield from (a for a in self.arguments if isinstance(a, Tensor))
        for e in (self.expected and self.expected.whole) or ():
            yield from (t for t in (e.reference, e.bound, e.overflows, e.free) if t is not None)


@dataclass(frozen=True, slots=True)
class _Kept:
    case: ReferenceCase
    marks: Fingerprint
    bytes: int


class ReferenceCache:
    """Cases by algorithm, extents, distribution, seed and device, of `most_bytes` together: those that were used
    longest ago go first."""

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._key = random.SystemRandom().getrandbits(62)

    def case(
        self, program: Program, sizes: Mapping[str, int], distribution: Distribution, seed: int, device: str
    ) -> ReferenceCase:
        """Returns the case of a program at its free extents. Raises as `generate` and `expected_results` do."""
        extents = complete(program, sizes)
        digest = algorithm_digest(program)
        key = f"{digest} {extents} {distribution} {seed} {device}"
        entry = self._kept.pop(key, None)
        if entry is None or self._marks(entry.case) != entry.marks:
            entry = self._made(program, sizes, distribution, seed, device)
        if entry.bytes <= self._most_bytes:
            self._kept[key] = entry
            while sum(k.bytes for k in self._kept.values()) > self._most_bytes:
                self._kept.popitem(last=False)
        return entry.case

    def _made(
        self, program: Program, sizes: Mapping[str, int], distribution: Distribution, seed: int, device: str
    ) -> _Kept:
        arguments = generate(program, sizes, distribution, seed=seed, device=device, generator_device=device)
        expected = None
        if isinstance(program, Kernel):
            expected = least_results(program, arguments)
        case = ReferenceCase(arguments, expected if expected and expected.whole else None)
        size = sum(t.numel() * t.element_size() for t in case.tensors())
        return _Kept(case, self._marks(case) if size <= self._most_bytes else (), size)

    def _marks(self, case: ReferenceCase) -> Fingerprint:
        return fingerprint([*case.tensors()], self._key)
