"""Allocates the buffers that all candidates of a comparison share, and checks their results."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from ucutlass import ir
from ucutlass.reference import evaluate, expected_results
from ucutlass.reference.interpreter import Argument
from ucutlass.runtime.bench.bench_device import Outputs
from ucutlass.runtime.bench.regimes import rotated_arguments
from ucutlass.runtime.inputs import generate
from ucutlass.runtime.verify.judge import compare_results

CONTENTS = 3
"""Contents with a known reference that take turns in the sets: a result kept from the last visit to the same
buffers is then another content's."""

LOOSE = 0.05
"""Relative error, in the Euclidean norm, that PyTorch's own way may have against the reference: a few times
what bf16 rounding between operators brings. A stale result's is above 1."""


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
        self._contents = rotated_arguments(program, first, CONTENTS + 1, seed + 1)[1:]
        self._held: dict[int, int] = {}
        self._chance = chance

    def refresh(self) -> int:
        """Puts other content into one set's buffers, both drawn at random, and returns the set's number."""
        at = self._chance.randrange(self.sets)
        content = self._chance.choice([c for c in range(CONTENTS) if c != self._held.get(at)])
        for to, new in zip(self.arguments[at], self._contents[content], strict=True):
            if isinstance(to, Tensor) and isinstance(new, Tensor):
                to.copy_(new)
        self._held[at] = content
        return at

    def content(self, at: int) -> int:
        """Returns which content a refreshed set holds."""
        return self._held[at]

    def strict(self) -> Callable[[int, Outputs], str]:
        """Returns a check within the derived bound of every element, for kernels of ours; where bounds say
        nothing, as after many stages of a pipeline, within LOOSE too."""
        references = [expected_results(self.program, c) for c in self._contents]

        def check(at: int, outputs: Outputs) -> str:
            reference = references[self.content(at)]
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

        return check

    def loose(self, program: ir.Kernel | ir.Pipeline) -> Callable[[int, Outputs], str]:
        """Returns a check against the reference of a program over the same parameters, within `LOOSE`."""
        references = [evaluate(program, c) for c in self._contents]

        def check(at: int, outputs: Outputs) -> str:
            return "; ".join(
                words
                for o, reference in zip(outputs, references[self.content(at)], strict=True)
                if (words := far(o, reference))
            )

        return check


def far(out: Tensor, reference: Tensor) -> str:
    """Returns how far a result is from its reference beyond `LOOSE`; empty where it is not."""
    a, b = out.to(torch.float64), reference.to(torch.float64).reshape(out.shape)
    counted = b.isfinite()
    if not bool(a[counted].isfinite().all()):
        return "not finite where the reference is"
    norm = float(b[counted].norm())
    error = float((a[counted] - b[counted]).norm()) / (norm or 1.0)
    return "" if error <= LOOSE else f"relative error {error:.2g} in the norm, {LOOSE:g} is allowed"


def bytes_of(tensors: Sequence[object]) -> int:
    """Returns the bytes of all tensors among these."""
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))
