"""The region counter against element-by-element demand: every node of every program."""

from __future__ import annotations

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.reference.tasks import TASKS, Task, load
from tests.sol.brute import Brute
from tests.typed import check
from ucutlass.diagnostics import ProgramError
from ucutlass.ir import Dot, Module, Program, Reduce, Scan, Softmax
from ucutlass.shapes import complete
from ucutlass.sol.demand import demand
from ucutlass.sol.graph import graph_of, topological_order
from ucutlass.sol.program import compulsory, least_and_most


def sizes_of(program: Program, **number: int) -> dict[str, int]:
    return dict(zip(program.dims, complete(program, number), strict=True))


def agree(program: Program, sizes: dict[str, int], exactly: bool = True) -> None:
    graph = graph_of(program, sizes)
    for may in (False, True):
        regions, elements = demand(graph, may), Brute(graph, may)
        for node in topological_order(graph):
            pairs = [(regions.count(node), len(elements.elements[id(node)]))]
            if isinstance(node, Dot):
                pairs.append((regions.terms(node), len(elements.products[id(node)])))
            if isinstance(node, Reduce | Softmax | Scan):
                pairs.append((regions.reduced(node), len(elements.taken[id(node)])))
            for actual, expected in pairs:
                assert actual == expected if exactly else actual <= expected, (may, node)


SMALL = {
    "M": 5,
    "N": 4,
    "K": 6,
    "L": 7,
    "S": 7,
    "D": 3,
    "T": 6,
    "B": 2,
    "H": 3,
    "W": 4,
    "C": 2,
    "I": 4,
    "O": 3,
    "F": 3,
    "E": 2,
    "V": 5,
    "G": 2,
    "A": 2,
}


@pytest.mark.parametrize("task", TASKS, ids=lambda t: t.program)
def test_all_tasks(task: Task) -> None:
    """The twenty tasks of the language trials, shrunk further."""
    small = Task(
        task.file, task.program, {d: min(n, SMALL.get(d, n)) for d, n in task.fixed.items()}, {}, task.plain
    )
    program = load(small)
    free = {d: min(n, SMALL.get(d, n)) for d, n in task.sizes.items()}
    agree(program, sizes_of(program, **free))


MASKED = {
    "causal": "where(index(S) <= index(L), s, -inf)",
    "window": "where(index(S) <= index(L) and index(L) - index(S) < 3, s, -inf)",
    "prefix": "where(index(S) <= index(L) or index(S) < 2, s, -inf)",
    "not": "where(not (index(S) > index(L)), s, -inf)",
    "blocks": "where(index(S) // 3 == index(L) // 3, s, -inf)",
    "every_second": "where((index(L) + index(S)) % 2 == 0, s, -inf)",
    "two_rows": "where(index(L) < 2, s, -inf)",
    "other": "where(index(S) != index(L), s, -inf)",
    "additive": "s + where(index(S) <= index(L), 0, -inf)",
    "by_data": "where(keep and index(S) <= index(L), s, -inf)",
}


def attention_with(mask: str) -> tuple[Program, dict[str, int]]:
    text = f"""kernel k(q: bf16[L, D], k: bf16[S, D], v: bf16[S, D], keep: bool[L, S]) -> bf16[L, D] {{
      s = dot[D](q, k) * 0.5
      return dot[S](bf16(softmax[S]({MASKED[mask]})), v)
    }}"""
    (program,) = check(text).programs
    return program, sizes_of(program, L=7, S=7, D=2)


@pytest.mark.parametrize("mask", MASKED)
def test_masked_attention(mask: str) -> None:
    agree(*attention_with(mask))


@pytest.mark.parametrize("mask", MASKED)
def test_one_count_is_both_where_the_text_decides(mask: str) -> None:
    program, sizes = attention_with(mask)
    least, most = least_and_most(program, sizes)
    assert (least, most) == (compulsory(program, sizes), compulsory(program, sizes, "most"))
    assert (least is most) == (mask != "by_data")


PROGRAMS = {
    "named_alike": """kernel k(w: f32[M, N]) -> (w: f32[M, N], v: f32[M]) {
        return w = w * 2, v = sum[N](w) }""",
    "result_alone": "kernel k(result: f32[M]) -> f32[M] { return exp(result) }",
    "shift": "kernel k(x: f32[L]) -> f32[L] { return x[L = L - 2] + x }",
    "slice": "kernel k(x: f32[L]) -> f32[P=2] { return x[L = P + 3] }",
    "stride": "kernel k(x: f32[L, M]) -> f32[P=(L+2)//3, M] { return x[L = 3*P] }",
    "one": "kernel k(x: f32[L, M]) -> f32[M] { return exp(x[L = 0]) }",
    "reverse": "kernel k(x: f32[L]) -> f32[L] { return x[L = size(L) - 1 - L] * 2 }",
    "diagonal": "kernel k(x: f32[L, M=7]) -> f32[M] { return x[L = M] }",
    "join": "kernel k(x: f32[M], y: f32[N]) -> f32[P=M+N] { return x[M = P] + y[N = P - size(M)] }",
    "gram": "kernel k(x: bf16[M, K]) -> f32[M, J] { return dot[K](x, x[M = J]) }",
    "lower_gram": """kernel k(x: bf16[M, K]) -> f32[M, J] {
        return where(index(J) <= index(M), dot[K](x, x[M = J]), 0) }""",
    "pool": "kernel k(x: f32[N, H]) -> f32[N, P=(H+1)//2] { return max[R=3](x[H = 2*P + R - 1]) }",
    "part_of_scan": "kernel k(x: f32[L]) -> f32[P=2] { y = cumsum[L](x) return y[L = P + 1] }",
    "reverse_scan": """kernel k(x: f32[L]) -> f32[P=2] {
        y = cumsum[L](x, exclusive=true, reverse=true) return y[L = P + 3] }""",
    "masked_sum": "kernel k(x: f32[M, L]) -> f32[M] { return sum[L](where(index(L) < index(M), x, 0)) }",
    "max_by_data": "kernel k(x: f32[M, L], keep: bool[L]) -> f32[M] { return max[L](where(keep, x, -inf)) }",
    "packed": """kernel k(q: bf16[L, D], v: bf16[S=L, D], o: i32[E]) -> bf16[L, D] {
        p = softmax[S](where(segment(L, o) == segment(S, o) and index(S) <= index(L), dot[D](q, v), -inf))
        return dot[S](bf16(p), v) }""",
    "gather_part": "kernel k(z: f32[T, V], t: i64[T]) -> f32[T] { return exp(z)[V = t] }",
    "gather_rows": "kernel k(z: f32[V, D], t: i64[B, T]) -> f32[B, T, D] { return z[V = t] }",
    "variance": "kernel k(x: f32[M, L]) -> f32[M] { return var[L](where(index(L) < 3, x, 0)) }",
    "unused": "kernel k(x: f32[M], y: f32[M]) -> f32[M] { return where(size(M) > 100, y, x) }",
    "log_softmax": "kernel k(x: f32[M, V], t: i64[M]) -> f32[M] { l = log_softmax[V](x) return l[V = t] }",
    "split": """kernel a(x: f32[M, N]) -> f32[M, N] { return where(index(N) <= index(M), x, 0) }
        kernel b(y: f32[(P=2 Q), R]) -> f32[P, Q] { return sum[R](y) }
        pipeline p(x: f32[M=6, N]) -> f32[P=2, Q=3] { h = a(x) return b(h) }""",
    "twice": """pipeline p(x: f32[M, N]) -> (a: f32[M, N], b: f32[M]) {
        e = exp(x)
        s: f32[M] = sum[N](e)
        return a = e / s, b = s }""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name: str) -> None:
    program = check(PROGRAMS[name]).programs[-1]
    free = {d: SMALL[d] for d, e in program.dims.items() if d in SMALL and type(e).__name__ == "Free"}
    agree(program, sizes_of(program, **free))


def _checked(text: str) -> Module:
    """A drawn program, unless its window lies outside at every coordinate."""
    try:
        return check(text)
    except ProgramError as error:
        assume({d.code for d in error.diagnostics} != {"UC0224"})
        raise


@given(
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 3),
    st.integers(1, 6),
)
@settings(max_examples=60, deadline=None)
def test_any_convolution(h: int, taps: int, stride: int, padding: int, dilation: int, out: int) -> None:
    at = f"{stride}*P + {dilation}*R - {padding}"
    text = f"""kernel k(x: f16[N=2, H={h}, C=2], w: f16[K=2, R={taps}, C]) -> f16[N, P={out}, K] {{
      return dot[R, C](x[H = {at}], w) }}"""
    (program,) = _checked(text).programs
    agree(program, sizes_of(program))


@given(st.integers(1, 6), st.integers(1, 5), st.integers(1, 4), st.integers(0, 3), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_any_transposed_convolution(h: int, taps: int, stride: int, padding: int, out: int) -> None:
    text = f"""kernel k(x: f16[N=2, H={h}, C=2], w: f16[C, K=2, R={taps}]) -> f16[N, P={out}, K] {{
      return dot[R, C](x[{stride}*H = P + {padding} - R], w) }}"""
    (program,) = _checked(text).programs
    agree(program, sizes_of(program))


COMPARISONS = st.sampled_from(["<", "<=", ">", ">=", "==", "!="])
SIDES = st.sampled_from(
    ["index(L)", "index(S)", "index(L) + index(S)", "2*index(L) - 1", "index(S) // 2", "index(L) % 3", "3"]
)
ATOMS = st.builds(lambda a, c, b: f"({a} {c} {b})", SIDES, COMPARISONS, SIDES)
CONDITIONS = st.recursive(
    ATOMS,
    lambda inner: st.one_of(
        st.builds(lambda a, w, b: f"({a} {w} {b})", inner, st.sampled_from(["and", "or"]), inner),
        st.builds(lambda a: f"(not {a})", inner),
    ),
    max_leaves=3,
)


@given(CONDITIONS)
@settings(max_examples=40, deadline=None)
def test_any_mask_is_never_counted_too_high(condition: str) -> None:
    text = f"""kernel k(x: f32[L=5, S=4], y: f32[S, D=2]) -> f32[L, D] {{
      return dot[S](where({condition}, x, 0), y) }}"""
    (program,) = check(text).programs
    agree(program, sizes_of(program), exactly=False)
