"""Allocates the buffers that all candidates of a comparison share, and checks their results."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from ucutlass import ir
from ucutlass.reference import EvaluatedSlice, ExpectedResults, evaluate, evaluated_slices, least_results
from ucutlass.reference.binding import shape_of
from ucutlass.reference.host_numbers import extremes
from ucutlass.reference.interpreter import Argument
from ucutlass.runtime.bench.bench_device import Outputs
from ucutlass.runtime.bench.regimes import rotated_arguments
from ucutlass.runtime.inputs import generate, result_types
from ucutlass.runtime.verify.fingerprint import Fingerprint, fingerprint
from ucutlass.runtime.verify.judge import compare_results
from ucutlass.shapes import complete

CONTENTS = 3
"""Contents with a known reference that take turns in the sets: a result kept from the last visit to the same
buffers is then another content's."""

LARGE_BYTES = 4 << 30
"""Of a set of arguments and results, from which on two contents take turns: more, with the references of each, leave
baselines no memory."""

LOOSE = 0.05
"""Relative error, in the Euclidean norm, that PyTorch's own way may have against the reference: a few times
what bf16 rounding between operators brings. A stale result's is above 1."""


Check: TypeAlias = Callable[[int, Outputs], str]
"""What is wrong with the results of a launch on a refreshed set of that number; "" where nothing is."""


class Buffers:
    """`sets` sets of arguments for a program on a device. Contents and sets are chosen by `chance`, which
    no candidate sees."""

    def __init__(
        self,
        program: ir.Program,
        sizes: Mapping[str, int],
        sets: int,
        device: str,
        seed: int,
        chance: random.Random,
    ) -> None:
        """`sizes` has the free dimensions."""
        first = generate(program, sizes, "normal", seed=seed, device=device)
        self.program = program
        self.sets = sets
        self.arguments: list[list[Argument]] = rotated_arguments(program, first, sets, seed)
        # All but the first, which is a set's own buffers.
        contents = CONTENTS if bytes_of(first) + _bytes_of_results(program, sizes) < LARGE_BYTES else 2
        self._contents = rotated_arguments(program, first, contents + 1, seed + 1)[1:]
        self._held: dict[int, int] = {}
        self._references: dict[int, ExpectedResults] = {}
        self._chance = chance

    def refresh(self) -> int:
        """Puts other content into one set's buffers, both drawn at random, and returns the set's number."""
        at = self._chance.randrange(self.sets)
        content = self._chance.choice([c for c in range(len(self._contents)) if c != self._held.get(at)])
        for to, new in zip(self.arguments[at], self._contents[content], strict=True):
            if isinstance(to, Tensor) and isinstance(new, Tensor):
                to.copy_(new)
        self._held[at] = content
        return at

    def content(self, at: int) -> int:
        """Returns which content a refreshed set holds."""
        return self._held[at]

    def strict(self) -> Check:
        """Returns a check within the derived bound of every element, for kernels of ours; where bounds say
        nothing, as after many stages of a pipeline, within LOOSE too."""

        def check(at: int, outputs: Outputs) -> str:
            reference = self._reference(at)
            compared = compare_results(reference, outputs, [None] * len(outputs))
            words = [str(c) for c in compared if not c.ok]
            if not all(c.decided for c in compared):
                words += [
                    far(part.slice_of(i, outputs[i]), e.reference)
                    for part in reference.slices()
                    for i, e in enumerate(part.expected)
                    if not compared[i].decided
                ]
            return "; ".join(filter(None, words))

        return self._once(check)

    def loose(self, program: ir.Kernel | ir.Pipeline) -> Check:
        """Returns a check against the reference of a program over the same parameters, within `LOOSE`."""
        own: dict[int, Sequence[Tensor]] = {}

        def check(at: int, outputs: Outputs) -> str:
            distances = [_Distance() for _ in outputs]
            if program is self.program:
                for part in self._evaluated(at):
                    for i, (distance, reference) in enumerate(zip(distances, part.results, strict=True)):
                        distance.add(part.slice_of(i, outputs[i]), reference)
            else:
                content = self.content(at)
                if content not in own:
                    own[content] = evaluate(program, self._contents[content])
                for distance, out, reference in zip(distances, outputs, own[content], strict=True):
                    distance.add(out, reference)
            return "; ".join(filter(None, map(str, distances)))

        return self._once(check)

    def _reference(self, at: int) -> ExpectedResults:
        """Returns what the program gives for the content of a set; computed where it is first asked for, by
        whichever candidate."""
        content = self.content(at)
        if content not in self._references:
            self._references[content] = least_results(self.program, self._contents[content])
        return self._references[content]

    def _evaluated(self, at: int) -> Iterable[EvaluatedSlice]:
        """Returns what `_reference` does without bounds: what is made in slices is made anew each time, in half of
        that."""
        reference = self._reference(at)
        if reference.whole is None:
            return evaluated_slices(self.program, self._contents[self.content(at)])
        return (EvaluatedSlice(tuple(e.reference for e in reference.whole)),)

    def _once(self, check: Check) -> Check:
        """Returns a check that asks `check` once about the same bits for the same content."""
        key = random.SystemRandom().getrandbits(62)
        right: dict[int, Fingerprint] = {}

        def checked(at: int, outputs: Outputs) -> str:
            content, bits = self.content(at), fingerprint(outputs, key)
            if right.get(content) == bits:
                return ""
            words = check(at, outputs)
            if not words:
                right[content] = bits
            return words

        return checked


def _bytes_of_results(program: ir.Program, sizes: Mapping[str, int]) -> int:
    full = dict(zip(program.dims, complete(program, sizes), strict=True))
    return sum(math.prod(shape_of(t, full)) * max(1, t.elem.bytes) for t in result_types(program))


def far(out: Tensor, reference: Tensor) -> str:
    """Returns how far a result is from its reference beyond `LOOSE`; empty where it is not."""
    distance = _Distance()
    distance.add(out, reference)
    return str(distance)


@dataclass(slots=True)
class _Distance:
    """Holds the Euclidean norms of a result's reference and error, squared, of the slices that were added."""

    norm: float = 0.0
    error: float = 0.0
    finite: bool = True

    def add(self, out: Tensor, reference: Tensor) -> None:
        a, b = out.to(torch.float64), reference.to(torch.float64).reshape(out.shape).to(out.device)
        if all(map(math.isfinite, extremes(b))):
            self.finite &= all(map(math.isfinite, extremes(a)))
            self.norm += float(b.norm()) ** 2
            self.error += float((a - b).norm()) ** 2
            return
        counted = b.isfinite()
        self.finite &= bool(a[counted].isfinite().all())
        self.norm += float(b[counted].norm()) ** 2
        self.error += float((a[counted] - b[counted]).norm()) ** 2

    def __str__(self) -> str:
        if not self.finite:
            return "not finite where the reference is"
        error = math.sqrt(self.error) / (math.sqrt(self.norm) or 1.0)
        return "" if error <= LOOSE else f"relative error {error:.2g} in the norm, {LOOSE:g} is allowed"


def bytes_of(tensors: Sequence[object]) -> int:
    """Returns the bytes of all tensors among these."""
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
