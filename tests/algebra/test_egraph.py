"""Equal values: congruence, proofs, bounds."""

from __future__ import annotations

import pytest

from tests.algebra.equations import program
from tests.algebra.examples import kernel
from ucutlass import ir
from ucutlass.algebra.egraph import EGraph, Full, NotEqual
from ucutlass.ir.elements import F16, F32

F = ir.Apply


def _graph() -> EGraph:
    return EGraph({"M": 0, "N": 1})


def _input(graph: EGraph, index: int) -> ir.ParamValue:
    return graph.add(ir.ParamValue(index, F32, ("M",)))


def _apply(graph: EGraph, name: str, *args: ir.Value) -> ir.Value:
    return graph.add(ir.Apply(name, args, F32, ("M",)))


def test_equal_parts_make_equal_values_also_of_what_was_there_before() -> None:
    graph = _graph()
    x, y, z = (_input(graph, i) for i in range(3))
    a, b = _apply(graph, "exp", _apply(graph, "add", x, z)), _apply(graph, "exp", _apply(graph, "add", z, y))
    assert not graph.equal(a, b)
    graph.union(x, y, "given")
    graph.rebuild()
    assert graph.equal(a, b)
    assert not graph.equal(a, x)


def test_a_proof_leads_from_one_term_to_the_other_by_rules() -> None:
    graph = _graph()
    x, y, z = (_input(graph, i) for i in range(3))
    a, b = _apply(graph, "exp", _apply(graph, "add", x, x)), _apply(graph, "exp", _apply(graph, "add", z, z))
    graph.union(y, z, "second")
    graph.union(x, y, "first")
    graph.rebuild()
    proof = [(step, term) for step, term in graph.explain(a, b) if step is not None]
    assert [step.rule for step, _ in proof] == ["first", "second"] * 2
    assert proof[-1][1] is b
    inner = proof[0][1].args[0]  # type: ignore[union-attr]
    assert inner.args == (y, x)  # type: ignore[union-attr]


def test_values_of_other_types_are_never_equal() -> None:
    graph = _graph()
    x = _input(graph, 0)
    narrow = graph.add(ir.ParamValue(1, F16, ("M",)))
    other = graph.add(ir.ParamValue(2, F32, ("N",)))
    for wrong in (narrow, other):
        with pytest.raises(NotEqual):
            graph.union(x, wrong, "wrong")


def test_constants_of_other_signs_and_types_are_two_terms() -> None:
    graph = _graph()
    zeros = [graph.add(ir.Constant(v, F32)) for v in (0.0, -0.0, 0)]
    assert len({id(z) for z in zeros}) == 3


def test_a_graph_takes_no_more_terms_than_it_may() -> None:
    graph = EGraph({"M": 0}, most_terms=2)
    x = _input(graph, 0)
    _apply(graph, "exp", x)
    with pytest.raises(Full):
        _apply(graph, "log", x)


def test_the_order_of_a_sum_does_not_count() -> None:
    at = program(kernel("(x + y) * (y + x)"))
    (product,) = at.roots
    assert isinstance(product, ir.Apply)
    assert at.terms.graph.equal(*product.args)
