"""The reductions of a kernel without dots: how a chunk's elements enter them."""

from __future__ import annotations

from dataclasses import dataclass

from ucutlass.emit.functions import CPP
from ucutlass.emit.reduction.indexing import IndexText
from ucutlass.emit.reduction.loads import Loader
from ucutlass.emit.reduction.writer import LocalNames
from ucutlass.kernels.reduction.plan import ReductionPlan, RowReduce


@dataclass(frozen=True, slots=True)
class Passes:
    """How elements enter a reduction: the statements of a `first` pass over a chunk's, and of a `second`
    where there is one, `backwards` or not; what is `declared` ahead of them, stands `between` them and
    `ends` them; `counted` is once an item."""

    first: tuple[str, ...]
    declared: tuple[str, ...] = ()
    counted: tuple[str, ...] = ()
    between: tuple[str, ...] = ()
    second: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    backwards: bool = False


@dataclass(frozen=True, slots=True)
class Reducer:
    """Writes the reductions of one plan."""

    plan: ReductionPlan
    loader: Loader
    index: IndexText

    def passes(self, i: int, reduction: RowReduce, x: str) -> Passes:
        """How a chunk's elements, each called x, enter reduction i."""
        across = self.plan.problem.across
        lane, count = ("0", "1") if across else ("v", "kVector")
        part, lanes = f"part{i}[{lane}]", f"for (int l = 0; l < {count}; ++l)"
        merged = (f"{lanes} r{i}[l].merge(part{i}[l]);",)
        match reduction.op:
            case "logsumexp" if i in self.loader.writer.kept_reductions():
                return Passes(
                    (f"{part}.largest = extreme<true>({part}.largest, {x});",),
                    (f"LogSumExp part{i}[{count}];",),
                    second=(
                        f"kept{i}[i][v] = exponential({x}, pivot({part}.largest));",
                        f"{part}.about += kept{i}[i][v];",
                    ),
                    ends=(f"top{i} = {part}.largest;", *merged),
                )
            case "logsumexp":
                return Passes(
                    (f"{part}.largest = extreme<true>({part}.largest, {x});",),
                    (f"LogSumExp part{i}[{count}];",),
                    second=(f"{part}.about += exponential({x}, pivot({part}.largest));",),
                    ends=merged,
                )
            case "moments":
                delta = f"float const delta{i} = {x} - {part}.mean;"
                each = f"{lanes} part{i}[l].count += {'float(kVector)' if across else '1.0f'};"
                return Passes(
                    (f"{part}.mean += {x};",),
                    (f"Moments part{i}[{count}];",),
                    (each,),
                    (f"{lanes} part{i}[l].mean /= fmaxf(part{i}[l].count, 1.0f);",),
                    (delta, f"{part}.squares = fmaf(delta{i}, delta{i}, {part}.squares);"),
                    merged,
                )
            case "argmax" | "argmin":
                # The extreme first, then where it stands: the last that is met, backwards, is the first.
                code = "i * kVector + v" if across else "i"
                largest = "true" if reduction.op == "argmax" else "false"
                kind = CPP[reduction.kind]
                return Passes(
                    (f"{part}.add({x});",),
                    (
                        f"Extreme<{kind}, {largest}> part{i}[{count}];",
                        f"int index{i}[{count}];",
                        f"{lanes} index{i}[l] = -1;",
                    ),
                    second=(f"if (is_extreme({x}, {part}.value)) index{i}[{lane}] = {code};",),
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
            case _:
                return Passes((f"r{i}[{lane}].add({x});",))

    def _place(self, code: str) -> list[str]:
        """The coordinates of the element that a code names."""
        if not self.plan.problem.across:
            return [f"int const i = {code};", *self.index.item()]
        item = f"int const i = {code} / kVector, v = {code} % kVector;"
        return [item, *self.index.item(), self.loader.element()]

    def _count(self) -> str:
        """The coordinate along the one name that argmax and argmin take."""
        return LocalNames(self.plan.problem.vector).at(len(self.plan.problem.rows))
