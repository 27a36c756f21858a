"""Counts the work of a PyTorch module: operations by compute type, and bytes that any kernel must move.

The fused work has every operation once, reads the used part of inputs, parameters and buffers once, and
writes every result once. The unfused work is that of operator after operator with nothing kept on the chip.
Both count the operators as written; `conditions` says where a kernel may do less, `not_counted` what is
missing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from ucutlass.runtime.module.conditions import conditions
from ucutlass.runtime.module.count import OperationCount, OperatorCall, resolve
from ucutlass.runtime.module.graph import ModuleGraph, OperatorNode, Ref, TensorMeta
from ucutlass.runtime.module.operators import SCATTERS, VIEWS, counter, is_in
from ucutlass.runtime.module.regions import ElementRegion, reads, regions, scattered, union
from ucutlass.sol.costs import SPECIAL
from ucutlass.sol.work import Work, total

ComputePolicy: TypeAlias = Literal["pytorch", "f32", "tf32", "f16", "bf16"]
"""The compute type in which float32 products count. `pytorch` follows its defaults, matrix products in f32
and convolutions in tf32 (torch.backends.cuda.matmul.allow_tf32 False, cudnn.allow_tf32 True). As f32 they
count as `tf32x3`, three tf32 passes or f32, whichever a device does faster."""

POLICIES: tuple[str, ...] = get_args(ComputePolicy)

_COMPUTE_TYPES: Mapping[str, str] = MappingProxyType(
    {
        "float16": "f16",
        "bfloat16": "bf16",
        "float8_e4m3fn": "e4m3",
        "float8_e5m2": "e5m2",
        "int8": "s8",
        "uint8": "s8",
    }
)
"""Element types and the entries of `Device.peaks` in which their products are computed."""

_PACKED: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"float32": (1, 1), "float16": (4, 2), "bfloat16": (4, 2), "float8_e4m3fn": (4, 2), "float8_e5m2": (4, 2)}
)
"""How many operations, and how many special functions, count as one of float32: packed 16-bit arithmetic is
at most four times as fast (A100: 78 against 19.5 TFLOP/s, its data sheet), packed special functions twice
(ex2.approx.f16x2, PTX ISA)."""


@dataclass(frozen=True, slots=True)
class ModuleWork:
    """`operators` is the unfused work in order, without views and dead code; `products` counts the operations
    of matrix products and convolutions alone. `not_counted` names operators whose operations are missing,
    with how often they occur; their bytes do count. `method` and `attempts` say how the graph was
    exported."""

    fused: Work
    operators: tuple[Work, ...]
    products: int
    conditions: tuple[str, ...]
    not_counted: Mapping[str, int]
    policy: ComputePolicy
    method: str
    attempts: tuple[str, ...]

    @property
    def unfused(self) -> Work:
        return total("unfused", self.operators)


def count(graph: ModuleGraph, policy: ComputePolicy = "pytorch", label: str = "module") -> ModuleWork:
    """Returns the work of a module's graph."""
    tensors, visible = graph.tensors(), regions(graph)
    nodes = _live_nodes(graph)
    used = {visible[ref] for node in nodes for ref in node.refs} | {visible[r.ref] for r in graph.results}
    used_bases = {region.base for region in used}
    operation_counts = [_counted(node, tensors) for node in nodes]
    missing: Counter[str] = Counter()
    works: list[Work] = []
    for node, counted in zip(nodes, operation_counts, strict=True):
        operations = None if counted is None else _operations(node, counted, tensors, policy)
        if operations is None:
            missing[_missing_name(node, counted, tensors)] += 1
        if not is_in(node.op, VIEWS):
            moved = _read(reads(node, tensors, visible), node, tensors)
            written = _written(node, used_bases, tensors)
            works.append(Work(_label(node, tensors), operations or {}, moved, written))
    fused = Work(
        label,
        dict(total(label, works).operations),
        _compulsory_reads(graph, nodes, tensors, visible),
        _results(graph, nodes, tensors, visible),
    )
    condition_texts = conditions(
        graph, nodes, tensors, visible, dict(zip((n.name for n in nodes), operation_counts, strict=True))
    )
    products = sum(c.products for c in operation_counts if c is not None)
    return ModuleWork(
        fused,
        tuple(w for w in works if w.operations or w.bytes),
        products,
        condition_texts,
        MappingProxyType(dict(sorted(missing.items()))),
        policy,
        graph.method,
        graph.attempts,
    )


def _live_nodes(graph: ModuleGraph) -> list[OperatorNode]:
    """Returns the nodes on which a result depends, in order: what the module computes and drops is no
    work."""
    needed = {r.ref.name for r in graph.results}
    live: list[OperatorNode] = []
    for node in reversed(graph.nodes):
        if node.name in needed:
            live.append(node)
            needed |= {ref.name for ref in node.refs}
    return live[::-1]


# --- operations -------------------------------------------------------------------


def _counted(node: OperatorNode, tensors: Mapping[Ref, TensorMeta]) -> OperationCount | None:
    function = counter(node.op)
    if function is None:
        return None
    return function(OperatorCall({k: resolve(v, tensors) for k, v in node.arguments.items()}, node.outputs))


_OPERANDS = ("input", "mat1", "batch1", "query", "x1", "self")


def operand_dtype(node: OperatorNode, tensors: Mapping[Ref, TensorMeta]) -> str | None:
    """Returns the element type of the first operand that is multiplied, or of the first tensor; None without
    one."""
    named = (node.arguments.get(name) for name in _OPERANDS)
    ref = next((value for value in named if isinstance(value, Ref)), next(iter(node.refs), None))
    return None if ref is None else tensors[ref].dtype


def _operations(
    node: OperatorNode, counted: OperationCount, tensors: Mapping[Ref, TensorMeta], policy: ComputePolicy
) -> dict[str, int] | None:
    """Returns operations by compute type; None where the element type has none. Integers and truth values
    cost nothing: a kernel does not wait for an index or a comparison, and no number would be a safe bound."""
    if not (counted.products or counted.arithmetic or counted.special):
        return {}
    dtype = operand_dtype(node, tensors)
    by_compute_type: dict[str, int] = {}
    if counted.products:
        compute_type = _product_compute_type(dtype or "", counted.kind, policy)
        if compute_type is None:
            return None
        by_compute_type[compute_type] = counted.products
    if packed := _PACKED.get(dtype or ""):
        arithmetic, special = packed
        by_compute_type["f32"] = by_compute_type.get("f32", 0) + counted.arithmetic // arithmetic
        by_compute_type[SPECIAL] = counted.special // special
    elif dtype in ("float64", "complex64", "complex128"):
        return None
    return {compute_type: n for compute_type, n in by_compute_type.items() if n}


def _product_compute_type(dtype: str, kind: str, policy: ComputePolicy) -> str | None:
    if dtype != "float32":
        return _COMPUTE_TYPES.get(dtype)
    compute_type = {"matmul": "f32", "convolution": "tf32"}[kind] if policy == "pytorch" else policy
    return "tf32x3" if compute_type == "f32" else compute_type


def _missing_name(
    node: OperatorNode, counted: OperationCount | None, tensors: Mapping[Ref, TensorMeta]
) -> str:
    return node.op if counted is None else f"{node.op} of {operand_dtype(node, tensors)}"


def _label(node: OperatorNode, tensors: Mapping[Ref, TensorMeta]) -> str:
    return " ".join([node.op, *(str(tensors[ref]) for ref in node.refs)])


# --- bytes ------------------------------------------------------------------------


def _bytes(parts: Iterable[ElementRegion], tensors: Mapping[Ref, TensorMeta]) -> int:
    by_base: dict[Ref, list[ElementRegion]] = {}
    for part in parts:
        by_base.setdefault(part.base, []).append(part)
    return sum(union(regions_of_base) * tensors[base].item for base, regions_of_base in by_base.items())


def _read(parts: list[ElementRegion], node: OperatorNode, tensors: Mapping[Ref, TensorMeta]) -> int:
    """Returns the bytes that one operator reads; what it writes over in place it need not read."""
    return _bytes(parts[1:] if is_in(node.op, SCATTERS) else parts, tensors)


def _written(node: OperatorNode, used_bases: set[Ref], tensors: Mapping[Ref, TensorMeta]) -> int:
    if is_in(node.op, SCATTERS):
        return scattered(node, tensors) * tensors[Ref(node.name)].item
    refs = [Ref(node.name, i) for i, t in enumerate(node.outputs) if t is not None]
    return sum(tensors[r].elements * tensors[r].item for r in refs if r in used_bases)


def _compulsory_reads(
    graph: ModuleGraph,
    nodes: list[OperatorNode],
    tensors: Mapping[Ref, TensorMeta],
    visible: Mapping[Ref, ElementRegion],
) -> int:
    """Returns the bytes that are used of every source, once. What a mutation writes over in place is not
    read."""
    in_place = {r.ref.name for r in graph.results if r.fate == "mutation"}
    sources = {Ref(s.name) for s in graph.sources}
    parts: list[ElementRegion] = []
    for node in nodes:
        read_regions = reads(node, tensors, visible)
        parts += read_regions[1:] if node.name in in_place and is_in(node.op, SCATTERS) else read_regions
    return _bytes((part for part in parts if part.base in sources), tensors)


def _results(
    graph: ModuleGraph,
    nodes: list[OperatorNode],
    tensors: Mapping[Ref, TensorMeta],
    visible: Mapping[Ref, ElementRegion],
) -> int:
    """Returns the bytes of every element that the module leaves behind, once; a view of a source costs
    nothing."""
    by_name = {node.name: node for node in nodes}
    parts: list[ElementRegion] = []
    patched = 0
    for result in graph.results:
        region = visible[result.ref]
        node = by_name.get(region.base.name)
        if node is None:
            continue
        if result.fate == "mutation" and is_in(node.op, SCATTERS):
            patched += scattered(node, tensors) * tensors[region.base].item
        else:
            parts.append(region)
    return patched + _bytes(parts, tensors)
