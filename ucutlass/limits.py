"""Limits of what one text may ask of the compiler; beyond them it is refused with a diagnostic.

Each limit is far beyond any real launch or call, and low enough that a text of the greatest length is
checked, formatted, explained, emitted and bounded within two seconds and 500 MB. `tests/fuzz/fuzz.py` tests
the compiler for that.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of `most`. `words` says what happened, with {number} and {most} in it; `hint` says what to
    do."""

    code: str
    most: int
    words: str
    hint: str

    def message(self, number: int) -> str:
        return self.words.format(number=number, most=self.most)


class LimitPassed(Exception):
    """`number` is more than a limit lets through."""

    def __init__(self, limit: Limit, number: int) -> None:
        super().__init__(f"{limit.message(number)} [{limit.code}]")
        self.limit = limit
        self.number = number

    @property
    def message(self) -> str:
        return self.limit.message(self.number)


def within(limit: Limit, number: int) -> None:
    """Raises LimitPassed where `number` is beyond the limit."""
    if number > limit.most:
        raise LimitPassed(limit, number)


@dataclass(slots=True)
class Effort:
    """The steps spent so far of something that is limited in total."""

    spent: int = 0

    def spend(self, limit: Limit, number: int = 1) -> None:
        """Raises LimitPassed once more was spent than the limit lets through."""
        self.spent += number
        within(limit, self.spent)


_SPLIT = "bind results that are used again, or split the kernel"

NODES = Limit(
    "UC0107",
    5_000,
    "the program is too large once functions are expanded: more than {most} distinct values",
    _SPLIT,
)
DEPTH = Limit(
    "UC0107",
    200,
    "the program is too large once functions are expanded: a value is computed in {number} steps, at most "
    "{most}",
    _SPLIT,
)
"""Later passes recurse over the graph of values."""

LEVELS = Limit(
    "UC0107",
    128,
    "expressions nest {number} deep once functions are expanded; at most {most} are followed",
    "bind the inner parts to names",
)

EXPRESSIONS = Limit(
    "UC0107",
    100_000,
    "the file is too large once functions are expanded: more than {most} expressions",
    "call fewer functions from functions, or split the file",
)

ERRORS = Limit("UC0701", 100, "more than {most} errors: the others are not listed", "fix those above first")

PROGRAMS = Limit(
    "UC0702",
    256,
    "the file has {number} kernels and pipelines; at most {most} are compiled",
    "split the file",
)

_PACK = "store what belongs together as one tensor"
PARAMETERS = Limit("UC0703", 2_048, "the program has {number} parameters; at most {most} are passed", _PACK)
RESULTS = Limit("UC0703", 64, "the program has {number} results; at most {most} are stored", _PACK)
DIMENSIONS = Limit(
    "UC0703", 128, "the program has more than {most} names of dimensions", "split the program, or merge axes"
)

TERMS = Limit(
    "UC0704",
    64,
    "an extent has {number} terms once names are replaced; at most {most} are followed",
    "make the extent free, or give a number",
)
MAGNITUDE = Limit(
    "UC0704",
    2**63 - 1,
    "an extent is computed by way of {number}; at most {most} fits 64 bits",
    "give smaller numbers",
)

FACTOR = Limit(
    "UC0705",
    2**31 - 1,
    "a position has the factor or offset {number}; at most {most} is followed",
    "no tensor has so many elements along an axis",
)

BLOCKS = Limit(
    "UC0706",
    64,
    "the program has {number} schedule blocks; at most {most} are tried",
    "join blocks whose choices agree",
)
ALTERNATIVES = Limit(
    "UC0707",
    256,
    "the schedules of the file stand for {number} alternatives; at most {most} are planned",
    "write fewer: `ucc tune` searches the fields that are left out",
)

STAGES = Limit(
    "UC0708", 512, "the pipeline has {number} stages; at most {most} are planned as one", "split the pipeline"
)

CONDITIONS = Limit(
    "UC0709",
    20_000,
    "where values are masked takes more than {most} conditions to follow through the program",
    "mask once, with fewer comparisons, or store what is masked",
)

READINGS = Limit(
    "UC0711",
    5_000,
    "values are read at more than {most} places, each computed there anew",
    "store what is read at several places, in a pipeline: h: f32[..] = ..",
)

ELEMENTS = Limit(
    "UC0710",
    2**62,
    "a tensor has {number} elements at these extents; at most {most} are numbered",
    "give smaller extents",
)

PROCESSOR_SECONDS = Limit(
    "UC0719",
    10,
    "the compiler took more than {most} s of processor time and was stopped",
    "make the program smaller: fewer schedules, stages, or conditions",
)
"""A last resort: no text should reach this limit before another one."""
