"""The reductions of a kernel without dots: how a chunk's elements enter them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.emit.functions import CPP
from ucutlass.emit.reduction.indexing import IndexText
from ucutlass.emit.reduction.loads import Loader
from ucutlass.emit.reduction.writer import LocalNames, stored_cpp
from ucutlass.ir.elements import BF16, F16
from ucutlass.kernels.reduction.plan import Fetch, ReductionPlan, ReductionProblem, RowReduce

PAIRED = MappingProxyType({BF16: "bf16x2", F16: "f16x2"})
"""The floats of which one instruction compares two, and what PTX calls a pair of them."""


def paired(problem: ReductionProblem) -> list[dict[str, str]]:
    """Those among the loads, for the template."""
    elems = {load.elem for load in problem.loads}
    return [{"cpp": stored_cpp(elem), "ptx": ptx} for elem, ptx in PAIRED.items() if elem in elems]


@dataclass(frozen=True, slots=True)
class Passes:
    """How elements enter a reduction: the statements of a `first` pass over a chunk's, and of a `second`
    where there is one, `backwards` or not; what is `declared` ahead of them, stands `between` them and
    `ends` them; `counted` is once an item; `vectors` are the first pass's over an item's vector at once, where it has such."""

    first: tuple[str, ...]
    declared: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    vectors: tuple[str, ...] = ()
    backwards: bool = False


def reduced(passes: Sequence[Passes], first: Sequence[str], second: Sequence[Sequence[str]]) -> list[str]:
    """Returns a first pass and the second ones over the same elements, with what stands around and between them."""
    declared = [line for m in passes for line in m.declared]
    between = [line for m in passes for line in m.between]
    ends = [line for m in passes for line in m.ends]
    return [*declared, *first, *between, *(line for lines in second for line in lines), *ends]


@dataclass(frozen=True, slots=True)
class Reducer:
    """Writes the reductions of one plan."""

    plan: ReductionPlan
    loader: Loader
    index: IndexText

    def passes(self, i: int, reduction: RowReduce, x: str, names: LocalNames) -> Passes:
        """How a chunk's elements, each called x, enter reduction i."""
        match reduction.op:
            case "logsumexp":
                return self._logsumexp(i, x, self._pairs(reduction.arg, names))
            case "moments":
                return self._moments(i, x)
            case "argmax" | "argmin":
                return self._arg_extreme(i, reduction, x)
            case _:
                return Passes((f"r{i}[{self._lane}].add({x});",))

    @property
    def _lane(self) -> str:
        return "0" if self.plan.problem.across else "v"

    @property
    def _count_of_lanes(self) -> str:
        return "1" if self.plan.problem.across else "kVector"

    @property
    def _lanes(self) -> str:
        return f"for (int l = 0; l < {self._count_of_lanes}; ++l)"

    def _logsumexp(self, i: int, x: str, pairs: str | None) -> Passes:
        """The largest element first, then exponentials of what is less than it, which are kept where they are read again."""
        part, declared = f"part{i}[{self._lane}]", f"LogSumExp part{i}[{self._count_of_lanes}];"
        first = (f"{part}.largest = extreme<true>({part}.largest, {x});",)
        largest = f"{part}.largest = extreme<true>({part}.largest, largest_of({pairs}));"
        vectors = (largest,) if pairs is not None else ()
        if i in self.loader.writer.kept_reductions():
            exponential = f"kept{i}[i][v] = exponential({x}, pivot({part}.largest));"
            return Passes(
                first,
                (declared,),
                second=(exponential, f"{part}.about += kept{i}[i][v];"),
                ends=(f"top{i} = {part}.largest;", f"{self._lanes} r{i}[l].merge(part{i}[l]);"),
                vectors=vectors,
            )
        return Passes(
            first,
            (declared, f"{self._lanes} part{i}[l].largest = r{i}[l].largest;"),
            second=(f"{part}.about += exponential({x}, pivot({part}.largest));",),
            ends=(f"{self._lanes} r{i}[l].extend(part{i}[l]);",),
            vectors=vectors,
        )

    def _moments(self, i: int, x: str) -> Passes:
        """The mean first, then the squares of what elements differ by from it."""
        part, delta = f"part{i}[{self._lane}]", f"float const delta{i} = {x} - part{i}[{self._lane}].mean;"
        elements = "float(kVector)" if self.plan.problem.across else "1.0f"
        return Passes(
            (f"{part}.mean += {x};",),
            (f"Moments part{i}[{self._count_of_lanes}];",),
            (f"{self._lanes} part{i}[l].count += {elements};",),
            (f"{self._lanes} part{i}[l].mean /= fmaxf(part{i}[l].count, 1.0f);",),
            (delta, f"{part}.squares = fmaf(delta{i}, delta{i}, {part}.squares);"),
            (f"{self._lanes} r{i}[l].merge(part{i}[l]);",),
        )

    def _arg_extreme(self, i: int, reduction: RowReduce, x: str) -> Passes:
        """The extreme first, then where it stands: the last that is met, backwards, is the first."""
        part, lanes = f"part{i}[{self._lane}]", self._lanes
        code = "i * kVector + v" if self.plan.problem.across else "i"
        largest = "true" if reduction.op == "argmax" else "false"
        kind = CPP[reduction.kind]
        return Passes(
            (f"{part}.add({x});",),
            (
                f"Extreme<{kind}, {largest}> part{i}[{self._count_of_lanes}];",
                f"int index{i}[{self._count_of_lanes}];",
                f"{lanes} index{i}[l] = -1;",
            ),
            second=(f"if (is_extreme({x}, {part}.value)) index{i}[{self._lane}] = {code};",),
            backwards=True,
            ends=(
                f"{lanes} {{",
                f"if (index{i}[l] >= 0) {{",
                *self._place(f"index{i}[l]"),
                f"ArgExtreme<{kind}, {largest}> candidate;",
                f"candidate.best = part{i}[l].value, candidate.value = {self._count()};",
                f"r{i}[l].merge(candidate);",
                "}",
                "}",
            ),
        )

    def _pairs(self, value: int, names: LocalNames) -> str | None:
        """Where an item's vector of 16-bit floats lies that are the value themselves; None where it is anything else."""
        fetch = self.plan.problem.instructions[value]
        if not isinstance(fetch, Fetch) or not self.plan.problem.across or self.plan.schedule.vector % 2:
            return None
        applied = fetch.load in self.loader.writer.applied.values()
        if self.plan.problem.loads[fetch.load].elem not in PAIRED or applied or fetch.load in names.local:
            return None
        return f"raw{fetch.load}[i]" if names.raw == "raw" else None

    def _place(self, code: str) -> list[str]:
        """The coordinates of the element that a code names."""
        if not self.plan.problem.across:
            return [f"int const i = {code};", *self.index.item()]
        item = f"int const i = {code} / kVector, v = {code} % kVector;"
        return [item, *self.index.item(), *self.loader.element()]

    def _count(self) -> str:
        """The coordinate along the one name that argmax and argmin take."""
        return LocalNames(self.plan.problem.vector).at(len(self.plan.problem.rows))
