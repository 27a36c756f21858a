"""Finds where a kernel may do less than a module's operators say: the bound holds only on these
conditions.

Each condition is decided from the graph alone and reported with the operator that it concerns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ucutlass.runtime.module.count import OperationCount
from ucutlass.runtime.module.graph import ModuleGraph, OperatorNode, Ref, TensorMeta
from ucutlass.runtime.module.operators import VIEWS, is_in
from ucutlass.runtime.module.regions import ElementRegion, reads, union

_LINEAR = frozenset(f"aten.{n}" for n in ("add", "sub", "mul", "div", "neg", "clone", "_to_copy", "rsub"))
_SUMS = frozenset(
    f"aten.{n}"
    for n in (
        "sum",
        "mean",
        "avg_pool1d",
        "avg_pool2d",
        "avg_pool3d",
        "_adaptive_avg_pool2d",
        "_adaptive_avg_pool3d",
    )
)
_MASKS = frozenset(f"aten.{n}" for n in ("masked_fill", "where", "triu", "tril"))


def conditions(
    graph: ModuleGraph,
    nodes: list[OperatorNode],
    tensors: Mapping[Ref, TensorMeta],
    visible: Mapping[Ref, ElementRegion],
    counted: Mapping[str, OperationCount | None],
) -> tuple[str, ...]:
    """Returns each condition once, as text: direct convolutions, products that are summed or masked at once,
    and values of which only a part is used."""
    users: dict[Ref, list[OperatorNode]] = {}
    for node in nodes:
        for base in {visible[ref].base for ref in node.refs}:
            users.setdefault(base, []).append(node)
    inputs = frozenset(Ref(source.name) for source in graph.sources)
    texts: list[str] = []
    for node in nodes:
        if is_in(node.op, VIEWS):
            continue
        count = counted[node.name]
        if count is not None and count.products:
            texts += _of_a_product(node, count, users, tensors, visible, inputs)
        if count is None or count.products or count.arithmetic or count.special:
            texts += _of_a_part(node, graph, users, tensors, visible)
    return tuple(dict.fromkeys(texts))


def _of_a_product(
    node: OperatorNode,
    count: OperationCount,
    users: Mapping[Ref, list[OperatorNode]],
    tensors: Mapping[Ref, TensorMeta],
    visible: Mapping[Ref, ElementRegion],
    inputs: frozenset[Ref],
) -> Iterable[str]:
    operator_text = f"{node.op} {tensors[Ref(node.name)]}"
    if count.kind == "convolution" and any(extent > 1 for extent in _filter(node, tensors)):
        yield "convolutions count as direct sums: Winograd and FFT forms do fewer multiplications"
    ends = _ends(node, users, visible, inputs)
    if any(is_in(end.op, _SUMS) for end in ends):
        yield f"{operator_text} is summed with only linear steps between: summing an operand first does far less"
    if any(is_in(end.op, _MASKS) for end in ends):
        yield f"{operator_text} is masked: what the mask replaces need not be computed"


def _filter(node: OperatorNode, tensors: Mapping[Ref, TensorMeta]) -> tuple[int, ...]:
    weight = node.arguments.get("weight")
    return tensors[weight].shape[2:] if isinstance(weight, Ref) else ()


def _ends(
    node: OperatorNode,
    users: Mapping[Ref, list[OperatorNode]],
    visible: Mapping[Ref, ElementRegion],
    inputs: frozenset[Ref],
) -> list[OperatorNode]:
    """Returns the first operators after a product that are not linear in it, or that sum it. `inputs` are the
    graph's sources."""
    ends: list[OperatorNode] = []
    visited: set[str] = set()
    front = [node]
    while front:
        current = front.pop()
        for user in users.get(Ref(current.name), ()):
            if user.name in visited:
                continue
            visited.add(user.name)
            if is_in(user.op, VIEWS):
                continue  # users of the view are users of its base
            if is_in(user.op, _LINEAR) and _of_one(user, Ref(current.name), visible, inputs):
                front.append(user)
            else:
                ends.append(user)
    return ends


def _of_one(
    node: OperatorNode, through: Ref, visible: Mapping[Ref, ElementRegion], inputs: frozenset[Ref]
) -> bool:
    """Returns whether an operator is linear in one operand: a product with a number or a weight is, a product
    with another computed value is not."""
    if is_in(node.op, ("aten.add", "aten.sub", "aten.rsub")):
        return True
    bases = [visible[ref].base for ref in node.refs]
    return bases.count(through) == 1 and all(base in inputs for base in bases if base != through)


def _of_a_part(
    node: OperatorNode,
    graph: ModuleGraph,
    users: Mapping[Ref, list[OperatorNode]],
    tensors: Mapping[Ref, TensorMeta],
    visible: Mapping[Ref, ElementRegion],
) -> Iterable[str]:
    ref = Ref(node.name)
    if ref not in tensors:
        return
    parts = [p for user in users.get(ref, ()) for p in reads(user, tensors, visible) if p.base == ref]
    parts += [visible[r.ref] for r in graph.results if visible[r.ref].base == ref]
    if parts and (used := union(parts)) < tensors[ref].elements:
        yield f"only {used} of {tensors[ref].elements} values of {node.op} {tensors[ref]} are used"
