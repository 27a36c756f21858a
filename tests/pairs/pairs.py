"""Pairs of features that programs combine: what was drawn, and what of it was right.

    python -m tests.pairs.pairs [--family reduction ...] [--seed 0] [--gpu] [--every 1] [--out FILE.json]
        [--all]

A family's `Space` lists the features of its programs by axis: the indexing form of an operand, the outer
operation, the element type, the memory order and so on. For every two features of different axes, programs
that have both are drawn until the compiler accepts one; a pair that it refuses is listed with the codes of
its diagnostics. Each accepted program is then judged against the float64 reference: emulated on the host, or
with --gpu built and launched. Exit status 1 where a program was wrong, where a draw was refused for a mistake
of the program itself, or, with --gpu, where an accepted pair was not judged.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Literal, TypeAlias

from ucutlass import files, frontend
from ucutlass.diagnostics import ProgramError
from ucutlass.kernels.planned import Planned
from ucutlass.shapes import complete

Feature: TypeAlias = tuple[str, str]
"""An axis's name and one of its features."""

Pair: TypeAlias = tuple[Feature, Feature]
"""Two features of different axes, in the order of the axes."""

Choice: TypeAlias = Mapping[str, str]
"""One feature by axis."""

State: TypeAlias = Literal["right", "wrong", "undecided", "not emulable"]

ARCH = "sm90a"


@dataclass(frozen=True, slots=True)
class Program:
    """A text of one kernel `k`, with its free extents."""

    text: str
    sizes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Space:
    """The feature table of a kernel family.

    `axes` lists the features by axis; `program` writes the program of a choice, with the details that no axis
    names taken from the generator; `serves` tells whether a plan is of the family, since a program may be
    served by another one. `refusals` are the prefixes of the codes with which a program of the space may be
    refused; any other code is a mistake of `program`. `refused` tells the features that no rule lets stand
    together, those of one axis alone with any others: pairs of them are tried twice, all others thoroughly.
    """

    name: str
    axes: Mapping[str, tuple[str, ...]]
    program: Callable[[Choice, random.Random], Program]
    serves: Callable[[Planned], bool]
    refusals: tuple[str, ...] = ("UC03", "UC04")
    refused: tuple[Mapping[str, tuple[str, ...]], ...] = ()

    def refuses(self, pair: Pair) -> bool:
        """Whether `refused` has the pair."""
        of = dict(pair)
        return any(all(of.get(axis) in features for axis, features in row.items()) for row in self.refused)

    def pairs(self) -> list[Pair]:
        """Every two features of different axes."""
        axes = self.axes
        return [((a, x), (b, y)) for a, b in combinations(axes, 2) for x in axes[a] for y in axes[b]]

    def drawn(self, seed: int) -> Program:
        """Returns the program of a seed, its features independent of each other; a rule may refuse it."""
        draw = random.Random(f"{self.name} {seed}")
        return self.program({axis: draw.choice(features) for axis, features in self.axes.items()}, draw)


@dataclass(frozen=True, slots=True)
class Drawn:
    """An accepted program of a space, and the seed of its arguments."""

    space: str
    number: int
    choice: Choice
    program: Program

    def pairs(self) -> list[Pair]:
        return list(combinations(self.choice.items(), 2))


@dataclass(frozen=True, slots=True)
class Cover:
    """Programs that together have every pair the compiler accepts; `refused` has the codes of the others,
    where "another family" stands for a program that another family serves; `mistakes` are draws that no
    program of the space may earn, as text."""

    drawn: tuple[Drawn, ...]
    refused: Mapping[Pair, tuple[str, ...]]
    mistakes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Judged:
    """What the judge said of a drawn program."""

    drawn: Drawn
    state: State
    detail: str = ""


def cover(space: Space, seed: int, tries: int = 16) -> Cover:
    """Draws programs for every pair of a space; `tries` bounds the draws for one pair before it counts as
    refused. What is refused is tried again beside all programs that were accepted meanwhile."""
    draw = random.Random(seed)
    missing = dict.fromkeys(draw.sample(space.pairs(), len(space.pairs())))
    search = _Search(space, draw, missing, {}, [], [])
    while search.missing:
        pair = next(iter(search.missing))
        few = 2 if space.refuses(pair) or search.hopeless(pair) else tries
        half = [search.greedy] * (few // 2) + [search.beside] * (few // 2)
        _draw(search, pair, half)
    for pair in list(search.refused):
        if pair in search.refused and not space.refuses(pair) and not search.hopeless(pair):
            _draw(search, pair, [search.beside] * (4 * tries))
    return Cover(_needed(search.drawn), search.refused, tuple(dict.fromkeys(search.mistakes)))


HOPELESS = 4
"""Refused pairs after which a feature that no accepted program has gets two tries a pair."""

OTHER = "another family"


@dataclass(slots=True)
class _Search:
    """What `cover` has found so far."""

    space: Space
    draw: random.Random
    missing: dict[Pair, None]
    refused: dict[Pair, tuple[str, ...]]
    drawn: list[Drawn]
    mistakes: list[str]

    def accepted(self) -> set[Feature]:
        """The features of all accepted programs."""
        return {had for program in self.drawn for had in program.choice.items()}

    def hopeless(self, pair: Pair) -> bool:
        """Whether a feature of the pair is in no accepted program and in several refused pairs."""
        never = set(pair) - self.accepted()
        return any(sum(feature in p for p in self.refused) >= HOPELESS for feature in never)

    def greedy(self, pair: Pair) -> dict[str, str]:
        """A choice with a pair; of its other axes the features that miss most pairs with what is chosen, or
        any, but none that has been in no accepted program or was refused beside a chosen one."""
        chosen, draw, accepted = dict(pair), self.draw, self.accepted()
        for axis in draw.sample(list(self.space.axes), len(self.space.axes)):
            if axis in chosen:
                continue
            every = self.space.axes[axis]
            known = [f for f in every if (axis, f) in accepted] or list(every)
            beside = {f: [_ordered(self.space, (axis, f), had) for had in chosen.items()] for f in known}
            legal = [f for f in known if not any(self.refuses(p) for p in beside[f])] or known
            features = draw.sample(legal, len(legal))
            if draw.random() < 0.75:
                features.sort(key=lambda f: -sum(p in self.missing for p in beside[f]))
            chosen[axis] = features[0]
        return {axis: chosen[axis] for axis in self.space.axes}

    def beside(self, pair: Pair) -> dict[str, str]:
        """A pair in an accepted program that has either feature of it, or among the features that each axis
        lists first. Where these are refused too, it is the pair that is."""
        having = [[o.choice for o in self.drawn if o.choice[axis] == feature] for axis, feature in pair]
        # What is seldom accepted needs the most of the other axes.
        near = min(having, key=len) if self.draw.random() < 0.75 else max(having, key=len)
        return {**self.draw.choice([*near, self.plain(pair)]), **dict(pair)}

    def plain(self, pair: Pair) -> dict[str, str]:
        """The pair, and of each other axis the first feature that no rule refuses beside it; in the order of the axes,
        by which pairs are known."""
        given = dict(pair)

        def refused(axis: str, feature: str) -> bool:
            return any(self.space.refuses(_ordered(self.space, (axis, feature), had)) for had in pair)

        return {
            axis: given[axis]
            if axis in given
            else next((f for f in features if not refused(axis, f)), features[0])
            for axis, features in self.space.axes.items()
        }

    def refuses(self, pair: Pair) -> bool:
        """Whether a pair was refused, or a rule is known to."""
        return pair in self.refused or self.space.refuses(pair)


def _draw(search: _Search, pair: Pair, ways: Sequence[Callable[[Pair], dict[str, str]]]) -> None:
    """Draws programs with a pair, one each way, until one is accepted; else the pair counts as refused."""
    codes: list[str] = []
    for way in ways:
        choice = way(pair)
        program = search.space.program(choice, search.draw)
        code = refusal(search.space, program)
        if code is None:
            search.drawn.append(Drawn(search.space.name, len(search.drawn), choice, program))
            for had in search.drawn[-1].pairs():
                search.missing.pop(had, None)
                search.refused.pop(had, None)
            return
        codes.append(code)
        if code != OTHER and not code.startswith(search.space.refusals):
            search.mistakes.append(f"{code}: {program.text}{dict(program.sizes)} {dict(choice)}")
    search.missing.pop(pair, None)
    search.refused[pair] = tuple(dict.fromkeys((*search.refused.get(pair, ()), *codes)))


def _needed(drawn: Sequence[Drawn]) -> tuple[Drawn, ...]:
    """The programs without those whose every pair others have too."""
    counts = Counter(pair for program in drawn for pair in program.pairs())
    needed: list[Drawn] = []
    for program in drawn:
        if all(counts[pair] > 1 for pair in program.pairs()):
            counts.subtract(program.pairs())
        else:
            needed.append(program)
    return tuple(needed)


def _ordered(space: Space, a: Feature, b: Feature) -> Pair:
    names = list(space.axes)
    return (a, b) if names.index(a[0]) < names.index(b[0]) else (b, a)


def refusal(space: Space, program: Program) -> str | None:
    """The code with which the compiler refuses a program, None where the space's family serves it."""
    try:
        checked = frontend.read_text(program.text)
        kernel = frontend.kernel(checked, "k")
        planned = frontend.plan_kernel(checked, kernel, complete(kernel, dict(program.sizes)), ARCH).planned
    except ProgramError as error:
        return next(d.code for d in error.diagnostics if d.severity == "error")
    return None if space.serves(planned) else OTHER


# --- the table ---------------------------------------------------------------------


def counts(judged: Sequence[Judged]) -> Mapping[Pair, Counter[str]]:
    """By pair, how many programs came to each state."""
    states: dict[Pair, Counter[str]] = {}
    for verdict in judged:
        for pair in verdict.drawn.pairs():
            states.setdefault(pair, Counter())[verdict.state] += 1
    return states


def undrawn(space: Space, covered: Cover, judged: Sequence[Judged]) -> list[Pair]:
    """Pairs that the compiler accepts and no program that was right or undecided has."""
    states = counts(judged)
    return [
        p
        for p in space.pairs()
        if p not in covered.refused and not (states.get(p, Counter()).keys() & {"right", "undecided"})
    ]


def table(space: Space, covered: Cover, judged: Sequence[Judged], every: bool = False) -> str:
    """The pairs by two axes: how many there are, are accepted, were right, and the programs they took; with
    `every` also each pair's programs, `right/drawn`, or the code that refuses it."""
    states = counts(judged)
    lines = [f"{space.name}: {len(judged)} programs, {len(space.pairs())} pairs"]
    lines.append(f"{'axes':34} {'pairs':>6} {'refused':>8} {'right':>6} {'other':>6} {'undrawn':>8}")
    absent = set(undrawn(space, covered, judged))
    for a, b in combinations(space.axes, 2):
        mine = [p for p in space.pairs() if (p[0][0], p[1][0]) == (a, b)]
        refused = sum(p in covered.refused for p in mine)
        right = sum(bool(states.get(p, Counter())["right"]) for p in mine)
        gone = sum(p in absent for p in mine)
        other = len(mine) - refused - right - gone
        lines.append(f"{a + ' x ' + b:34} {len(mine):6} {refused:8} {right:6} {other:6} {gone:8}")
        if every:
            lines += _matrix(space, a, b, covered, states)
    return "\n".join(lines)


def _matrix(space: Space, a: str, b: str, covered: Cover, states: Mapping[Pair, Counter[str]]) -> list[str]:
    lines = []
    for x in space.axes[a]:
        cells = []
        for y in space.axes[b]:
            pair = ((a, x), (b, y))
            seen = states.get(pair, Counter())
            shown = f"{seen['right']}/{seen.total()}" if seen else "+".join(covered.refused.get(pair, ("?",)))
            cells.append(f"{y} {shown}")
        lines.append(f"  {x}: {', '.join(cells)}")
    return lines


def as_json(space: Space, covered: Cover, judged: Sequence[Judged]) -> dict[str, object]:
    """The same for machines: every pair with its states or codes, and every program that was not right."""
    states = counts(judged)
    return {
        "space": space.name,
        "programs": len(judged),
        "states": Counter(judgement.state for judgement in judged),
        "pairs": [
            {"pair": pair, "states": states.get(pair, {}), "refused": covered.refused.get(pair)}
            for pair in space.pairs()
        ],
        "undrawn": undrawn(space, covered, judged),
        "mistakes": covered.mistakes,
        "not right": [
            {
                "state": j.state,
                "detail": j.detail[-800:],
                "text": j.drawn.program.text,
                "sizes": dict(j.drawn.program.sizes),
                "choice": dict(j.drawn.choice),
            }
            for j in judged
            if j.state != "right"
        ],
    }


def main() -> None:
    from tests.pairs.spaces import SPACES

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=list(SPACES), action="append", help="all where none is named")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--gpu", action="store_true", help="build and launch on the GPU")
    parser.add_argument("--every", type=int, default=1, help="judge one program of so many alone")
    parser.add_argument("--all", action="store_true", help="print each pair")
    parser.add_argument("--out", type=Path, help="a JSON file for the whole table")
    options = parser.parse_args()
    failed, written = False, []
    for name in options.family or SPACES:
        space = SPACES[name]
        covered = cover(space, options.seed)
        drawn = covered.drawn[:: options.every]
        if options.gpu:
            from tests.pairs.on_gpu import launched

            judged = launched(drawn, options.processes)
        else:
            from tests.pairs.on_host import emulated

            judged = emulated(drawn, options.processes)
        print(table(space, covered, judged, options.all))
        for verdict in judged:
            if verdict.state in ("wrong", "undecided"):
                shown = f"{verdict.drawn.program.text}{dict(verdict.drawn.program.sizes)}"
                print(f"{verdict.state}: {shown} {dict(verdict.drawn.choice)}\n{verdict.detail[-600:]}")
        print(*covered.mistakes, sep="\n")
        written.append(as_json(space, covered, judged))
        failed |= bool(covered.mistakes) or any(verdict.state == "wrong" for verdict in judged)
        # On the host, CUTLASS's TMA kernels are drawn and cannot be judged.
        failed |= options.gpu and options.every == 1 and bool(undrawn(space, covered, judged))
    if options.out:
        files.write(options.out, json.dumps(written, indent=1))
    sys.exit(failed)


if __name__ == "__main__":
    main()
