"""Matrix products, and attention, which is two of them around a softmax."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from ucutlass.grammar.syntax import Argument, Binary, Call, Expr, Index, Literal_, Name, Number, Unary
from ucutlass.importer.expressions import (
    add,
    affine,
    at,
    binary,
    call,
    expr,
    index,
    mul,
    operand,
    over,
    sub,
    template,
    where,
)
from ucutlass.importer.graph import Axes, Computation, TorchStage
from ucutlass.importer.operators.builder import Arguments, GraphBuilder, ValueRef, axes_from_right, broadcast
from ucutlass.importer.operators.pointwise import FLOATS, Rule
from ucutlass.importer.operators.reductions import reduce, softmax_of
from ucutlass.importer.operators.views import diagonal

EXACT = "exact"
"""A call in a body that says: the operand as a value of this element, which a `dot` needs. It becomes a cast
where the value is not stored in it."""


def exact(element: str, value: Expr) -> Expr:
    return Call(EXACT, None, (Argument(Name(element)), Argument(value)))


def dot_body(
    element: str, consumed: Sequence[str], left: Expr | None = None, right: Expr | None = None
) -> Expr:
    a = operand(0) if left is None else left
    c = operand(1) if right is None else right
    return over("dot", tuple(consumed), exact(element, a), exact(element, c))


def product(
    b: GraphBuilder,
    left: ValueRef,
    left_axes: Axes,
    right: ValueRef,
    right_axes: Axes,
    axes: Axes,
    extents: Mapping[str, int],
    consumed: Sequence[str],
    element: str,
    hint: str = "",
) -> ValueRef:
    """Adds a dot of two tensors over the labels `consumed`."""
    for ref in (left, right):
        if b.element(ref) not in ("f32", "f16", "bf16", "f64"):
            raise b.fail(f"a product of {b.element(ref)}")
    multiplied = b.compute_type("matmul", element)
    body = dot_body(multiplied, [label for label in consumed if extents[label] != 1])
    return b.add("dot", [(left, left_axes), (right, right_axes)], body, axes, extents, element, hint)


def _axes(labels: Sequence[str], extents: Mapping[str, int]) -> Axes:
    return tuple((label,) if extents[label] != 1 else () for label in labels)


def _batch(rank: int) -> tuple[str, ...]:
    return tuple(f"_{letter}" for letter in "abcdefgh"[:rank])


def linear(b: GraphBuilder, x: ValueRef, weight: ValueRef, bias: ValueRef | None, element: str) -> ValueRef:
    shape, batch = b.shape(x), _batch(len(b.shape(x)) - 1)
    extents = {**dict(zip(batch, shape[:-1], strict=True)), "K": shape[-1], "N": b.shape(weight)[0]}
    if len(b.shape(weight)) == 1:
        y = product(
            b,
            x,
            _axes((*batch, "K"), extents),
            weight,
            _axes(("K",), {"K": shape[-1]}),
            _axes(batch, extents),
            {k: v for k, v in extents.items() if k != "N"},
            ("K",),
            element,
        )
    else:
        y = product(
            b,
            x,
            _axes((*batch, "K"), extents),
            weight,
            _axes(("N", "K"), extents),
            _axes((*batch, "N"), extents),
            extents,
            ("K",),
            element,
            "product" if bias is not None else "",
        )
    return y if bias is None else b.pointwise(template("x0 + x1"), [y, bias], element)


def _linear(b: GraphBuilder, a: Arguments) -> ValueRef:
    return linear(b, a["input"], a["weight"], a.get("bias"), a.result.element)


def matmul(b: GraphBuilder, x: ValueRef, y: ValueRef, element: str, hint: str = "") -> ValueRef:
    left, right = b.shape(x), b.shape(y)
    lead = broadcast([left[:-2], right[:-2]])
    batch = _batch(len(lead))
    extents = {**dict(zip(batch, lead, strict=True)), "K": left[-1]}
    lead_axes = _axes(batch, extents)
    left_axes = axes_from_right(left[:-2], lead_axes)
    right_axes = axes_from_right(right[:-2], lead_axes)
    m: Axes = ()
    n: Axes = ()
    k: Axes = _axes(("K",), extents)
    if len(left) > 1:
        extents["M"] = left[-2]
        m = _axes(("M",), extents)
    if len(right) > 1:
        extents["N"] = right[-1]
        n = _axes(("N",), extents)
    right_own = (*k, *n)
    return product(
        b,
        x,
        (*left_axes, *m, *k),
        y,
        (*right_axes, *right_own),
        (*lead_axes, *m, *n),
        extents,
        ("K",),
        element,
        hint,
    )


def _matmul(b: GraphBuilder, a: Arguments) -> ValueRef:
    return matmul(
        b, a["self"], next(a[k] for k in ("other", "mat2", "vec", "tensor") if k in a.named), a.result.element
    )


def _added(left: str, right: str) -> Rule:
    """`beta * self + alpha * (left @ right)`."""

    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        element = a.result.element
        y = matmul(b, a[left], a[right], element, "product")
        alpha, beta = a.get("alpha", 1), a.get("beta", 1)
        scaled: Expr = operand(0) if alpha == 1 else mul(operand(0), alpha)
        if beta == 0:
            return b.pointwise(scaled, [y], element)
        other: Expr = operand(1) if beta == 1 else mul(operand(1), beta)
        return b.pointwise(add(scaled, other), [y, a["self"]], element)

    return rule


def _grouped(left: str, right: str) -> Rule:
    """Rows of x in groups that end at `offs`, each by the matrix of its group."""

    def rule(b: GraphBuilder, a: Arguments) -> ValueRef:
        x, weight, ends, element = a[left], a[right], a.get("offs"), a.result.element
        if ends is None:
            return matmul(b, x, weight, element)
        if (len(b.shape(x)), len(b.shape(weight))) != (2, 3) or b.shape(ends)[0] == 1 or a.get("bias"):
            raise b.fail("a product over groups of columns, of one group, or with a bias")
        groups, rows = b.shape(ends)[0], b.shape(x)[0]
        extents = {"O": groups + 1, "E": groups}
        begin = where(binary("==", index("O"), 0), 0, at(operand(0), {"E": affine("O", 1, -1)}))
        begins = b.add("index", [(ends, (("E",),))], begin, (("O",),), extents, "i32", "offsets")
        extents |= {"T": rows, "K": b.shape(x)[1], "N": b.shape(weight)[2]}
        if rows == 1:
            raise b.fail("a product over groups of one row")
        own = at(operand(1), {"E": call("segment", "T", operand(2))})
        body = dot_body(element, [n for n in ("K",) if extents[n] != 1], right=own)
        axes = _axes(("T", "K"), extents), (("E",), *_axes(("K", "N"), extents)), (("O",),)
        operands = list(zip((x, weight, begins), axes, strict=True))
        return b.add("dot", operands, body, _axes(("T", "N"), extents), extents, element)

    return rule


def _einsum(b: GraphBuilder, a: Arguments) -> ValueRef:
    text = a["equation"].replace(" ", "")
    refs: list[ValueRef] = list(a["tensors"])
    if "..." in text:
        text = _without_ellipsis(text, [len(b.shape(ref)) for ref in refs])
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if not arrow:
        every = inputs.replace(",", "")
        output = "".join(sorted(c for c in set(every) if every.count(c) == 1))
    for number, (ref, term) in enumerate(zip(refs, terms, strict=True)):
        refs[number], terms[number] = _without_repeats(b, ref, term)
    element = a.result.element
    value, term = refs[0], terms[0]
    for other, ref, rest in ((terms[i], refs[i], terms[i + 1 :]) for i in range(1, len(terms))):
        later = set(output).union(*rest) if rest else set(output)
        value, term = _contract(b, value, term, ref, other, later, element)
    return _single(b, value, term, output, element)


def _without_repeats(b: GraphBuilder, x: ValueRef, term: str) -> tuple[ValueRef, str]:
    """Returns the diagonal of the axes that one letter names, behind the others."""
    for letter in [c for c in dict.fromkeys(term) if term.count(c) > 1]:
        while term.count(letter) > 1:
            i, j = term.index(letter), term.rindex(letter)
            if b.shape(x)[i] == 1:
                raise b.fail(f"a term {term} that repeats a letter of one element")
            x = diagonal(b, x, i, j, 0, b.shape(x)[i])
            term = "".join(c for k, c in enumerate(term) if k not in (i, j)) + letter
    return x, term


def _without_ellipsis(equation: str, ranks: Sequence[int]) -> str:
    """Returns an equation with letters of their own for the axes that `...` stands for, from the right."""
    inputs, arrow, output = equation.partition("->")
    free = [c for c in "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ" if c not in equation]
    counts = [
        rank - len(term.replace("...", "")) if "..." in term else 0
        for term, rank in zip(inputs.split(","), ranks, strict=True)
    ]
    letters = "".join(free[: max(counts)])
    terms = [
        term.replace("...", letters[len(letters) - count :])
        for term, count in zip(inputs.split(","), counts, strict=True)
    ]
    if not arrow:
        every = "".join(terms).replace(letters, "")
        output = "..." + "".join(sorted(c for c in set(every) - set(letters) if every.count(c) == 1))
    return f"{','.join(terms)}->{output.replace('...', letters)}"


def _contract(
    b: GraphBuilder, x: ValueRef, left: str, y: ValueRef, right: str, later: set[str], element: str
) -> tuple[ValueRef, str]:
    """Adds the product of two terms, summed over the letters that nothing later needs."""
    x, left = _summed(b, x, left, later | set(right), element)
    y, right = _summed(b, y, right, later | set(left), element)
    extents = dict(zip(left, b.shape(x), strict=True))
    for c, n in zip(right, b.shape(y), strict=True):
        extents[c] = max(extents.get(c, 1), n)
    named = {f"_{c}": n for c, n in extents.items()}
    left_axes = tuple((f"_{c}",) if n != 1 else () for c, n in zip(left, b.shape(x), strict=True))
    right_axes = tuple((f"_{c}",) if n != 1 else () for c, n in zip(right, b.shape(y), strict=True))
    term = "".join(dict.fromkeys(c for c in left + right if c in later))
    consumed = [f"_{c}" for c in dict.fromkeys(left + right) if c not in later]
    axes = _axes([f"_{c}" for c in term], named)
    return product(b, x, left_axes, y, right_axes, axes, named, consumed, element), term


def _summed(b: GraphBuilder, x: ValueRef, term: str, needed: set[str], element: str) -> tuple[ValueRef, str]:
    dims = tuple(i for i, c in enumerate(term) if c not in needed)
    if not dims:
        return x, term
    return reduce(b, x, "sum", dims, False, element, "sum"), "".join(c for c in term if c in needed)


def _bilinear(b: GraphBuilder, a: Arguments) -> ValueRef:
    """`x1 @ weight[k] @ x2` for each k, plus bias."""
    left, right, weight, bias = a["input1"], a["input2"], a["weight"], a.get("bias")
    element, batch = a.result.element, _batch(len(b.shape(left)) - 1)
    k, i, j = b.shape(weight)
    extents = {**dict(zip(batch, b.shape(left)[:-1], strict=True)), "N": k, "K": i, "J": j}
    rows = [_axes((*batch, label), extents) for label in ("K", "J")]
    both = _axes((*batch, "N", "J"), extents)
    parts = product(
        b, left, rows[0], weight, _axes(("N", "K", "J"), extents), both, extents, ("K",), element, "parts"
    )
    axes = _axes((*batch, "N"), extents)
    y = product(b, parts, both, right, rows[1], axes, extents, ("J",), element, "product")
    return y if bias is None else b.pointwise(template("x0 + x1"), [y, bias], element)


def _trilinear(b: GraphBuilder, a: Arguments) -> ValueRef:
    """What `nn.Bilinear` becomes, whose rows lie in one axis."""
    axes = [list(a[name]) for name in ("expand1", "expand2", "expand3", "sumdim")]
    if axes != [[1, 3], [0], [1, 2], [2, 3]]:
        raise b.fail("a product of three tensors that is not nn.Bilinear's")
    return _bilinear(b, Arguments({"input1": a["i1"], "input2": a["i3"], "weight": a["i2"]}, a.results))


def _single(b: GraphBuilder, x: ValueRef, term: str, output: str, element: str) -> ValueRef:
    x, term = _summed(b, x, term, set(output), element)
    if term == output:
        return x
    extents = {f"_{c}": n for c, n in zip(term, b.shape(x), strict=True)}
    return b.view(
        x, _axes([f"_{c}" for c in term], extents), _axes([f"_{c}" for c in output], extents), extents
    )


@dataclass(frozen=True, slots=True)
class _Heads:
    """The axes of an attention: those before the rows of queries and results, the same of keys and values, whose heads
    several heads of queries may share; then rows, keys, and elements of a head of keys and of values."""

    extents: Mapping[str, int]
    lead: Axes
    key_lead: Axes

    def axes(self, labels: str) -> Axes:
        return _axes(labels, self.extents)

    def of(self, b: GraphBuilder, tensor: ValueRef, lead: Axes, labels: str) -> Axes:
        """Returns the axes of a tensor, whose last two are these labels."""
        return (*axes_from_right(b.shape(tensor)[:-2], lead), *self.axes(labels))


def _heads(b: GraphBuilder, q: ValueRef, k: ValueRef, v: ValueRef) -> _Heads:
    heads, groups = b.shape(q)[-3] if len(b.shape(q)) > 2 else 1, 1
    # A device's own attention takes fewer heads of keys without saying so.
    if heads != 1 and b.shape(k)[-3] not in (1, heads):
        groups = heads // b.shape(k)[-3]
    lead = broadcast([b.shape(q)[:-2], b.shape(k)[:-2] if groups == 1 else b.shape(q)[:-2]])
    letters = [*_batch(len(lead))]
    if len(letters) >= 2:
        letters[-1] = "H"
    extents: dict[str, int] = dict(zip(letters, lead, strict=True))
    lead_axes = key_lead = _axes(letters, extents)
    if groups != 1:
        extents |= {"H": heads // groups, "G": groups}
        lead_axes = (*lead_axes[:-1], tuple(x for x in ("H", "G") if extents[x] != 1))
        key_lead = (*lead_axes[:-1], _axes(("H",), extents)[0])
    extents |= {"L": b.shape(q)[-2], "S": b.shape(k)[-2], "D": b.shape(q)[-1], "E": b.shape(v)[-1]}
    return _Heads(extents, lead_axes, key_lead)


def _attention(b: GraphBuilder, a: Arguments) -> ValueRef:
    """softmax(q @ k * scale + mask) @ v."""
    q, k, v, element = a["query"], a["key"], a["value"], a.result.element
    if a.get("dropout_p", 0.0):
        raise b.fail("dropout, whose mask is random")
    heads = _heads(b, q, k, v)
    scores, mask = _scores(b, a, heads), a.get("attn_mask") if a.get(WINDOW) is None else None
    weights = softmax_of(b, scores, "softmax", len(b.shape(scores)) - 1, element)
    attention = product(
        b,
        weights,
        (*heads.lead, *heads.axes("LS")),
        v,
        heads.of(b, v, heads.key_lead, "SE"),
        (*heads.lead, *heads.axes("LE")),
        heads.extents,
        ("S",),
        element,
        "attention",
    )
    if mask is None or a.get(ATTENDS) or not _may_hide_all(b, mask):
        return attention
    return b.pointwise(where(operand(0), operand(1), 0), [_attending(b, mask), attention], element)


def _scores(b: GraphBuilder, a: Arguments, heads: _Heads) -> ValueRef:
    """Returns q @ k * scale + mask."""
    q, k, mask, element = a["query"], a["key"], a.get("attn_mask"), a.result.element
    axes = (*heads.lead, *heads.axes("LS"))
    scores = product(
        b,
        q,
        heads.of(b, q, heads.lead, "LD"),
        k,
        heads.of(b, k, heads.key_lead, "SD"),
        axes,
        heads.extents,
        ("D",),
        element,
        "scores",
    )
    scale = a.get("scale")
    factor = float(b.shape(q)[-1] ** -0.5) if scale is None else float(scale)
    scaled = b.pointwise(mul(operand(0), factor), [scores], element, "scaled")
    window: MaskWindow | None = a.get(WINDOW)
    if window is not None:
        mask = None
    elif a.get("is_causal"):
        window = MaskWindow(None, 0)
    if window is not None:
        scaled = _windowed(b, scaled, axes, heads.extents, element, window)
    if mask is None:
        return scaled
    masked = (
        where(operand(1), operand(0), float("-inf")) if b.element(mask) == "bool" else template("x0 + x1")
    )
    return b.pointwise(masked, [scaled, mask], element, "masked")


def _windowed(
    b: GraphBuilder,
    scaled: ValueRef,
    axes: Axes,
    extents: Mapping[str, int],
    element: str,
    window: MaskWindow,
) -> ValueRef:
    """Returns the scores with -inf outside of a window."""
    if extents["S"] == 1:
        return scaled
    limits = (("<=", window.high), (">=", window.low))
    conditions = [
        binary(sign, index("S"), _from_row(limit, extents)) for sign, limit in limits if limit is not None
    ]
    if not conditions:
        return scaled
    inside = conditions[0] if len(conditions) == 1 else binary("and", *conditions)
    return b.add(
        "pointwise",
        [(scaled, axes)],
        where(inside, operand(0), float("-inf")),
        axes,
        extents,
        element,
        "masked",
    )


def _from_row(limit: int, extents: Mapping[str, int]) -> Expr:
    if extents["L"] == 1:
        return expr(limit)
    if limit == 0:
        return index("L")
    return add(index("L"), limit) if limit > 0 else sub(index("L"), -limit)


@dataclass(frozen=True, slots=True)
class MaskWindow:
    """The keys that each row attends to: key - row lies from `low` to `high`; None is no limit."""

    low: int | None
    high: int | None


WINDOW = "window of keys"
"""The entry of a node's `meta`, and of an attention's arguments, with the MaskWindow that its mask is."""

ATTENDS = "every row attends"
"""The entry of a node's `meta`, and of an attention's arguments, where no row of the mask hides every key."""


def _attending(b: GraphBuilder, mask: ValueRef) -> ValueRef:
    """Returns which rows of a mask leave a key: PyTorch gives 0 for the others, whose softmax is NaN."""
    if mask.name not in b.attending:
        leaves = template("where(x0, 1, 0)" if b.element(mask) == "bool" else "where(x0 > -inf, 1, 0)")
        keys = b.pointwise(leaves, [mask], "i32", "keys")
        most = reduce(b, keys, "max", (len(b.shape(mask)) - 1,), True, "i32", "most")
        b.attending[mask.name] = b.pointwise(template("x0 != 0"), [most], "bool", "attends")
    return b.attending[mask.name]


def _may_hide_all(b: GraphBuilder, mask: ValueRef) -> bool:
    """Returns whether a row of the mask may be -inf throughout: of one that is added, where an infinity, a
    logarithm, a quotient or an input that is no parameter is among what it is computed from."""
    if b.element(mask) == "bool":
        return True
    nodes = {node.name: node for node in b.nodes}
    visited: set[str] = set()
    huge = 0
    stack = [mask.name]
    while stack:
        value = stack.pop()
        if value in visited or value in b.parameters or b.values[value].element not in FLOATS:
            continue
        visited.add(value)
        node = nodes.get(value)
        if node is None or isinstance(node, TorchStage):
            return True
        if isinstance(node, Computation):
            huge += any(abs(n) > HUGE for n in _numbers(node.body))
            if huge > 1 or any(math.isinf(n) for n in _numbers(node.body)):
                return True
        stack += [read.value for read in node.operands]
    return False


HUGE = 1e30
"""Two numbers of this size, such as the least of f32, may add to an infinity."""


def _numbers(value: Expr) -> Iterator[float]:
    """Yields the numbers of an expression, and infinity for what may be infinite where its operands are not."""
    match value:
        case Number(number):
            yield float(number)
        case Literal_("inf") | Call("log" | "log1p" | "rsqrt"):
            yield math.inf
        case Binary("/", _, Number(number)) if number:
            yield from _numbers(value.left)
        case Binary("/"):
            yield math.inf
        case Binary(_, left, right):
            yield from _numbers(left)
            yield from _numbers(right)
        case Unary(_, inner):
            yield from _numbers(inner)
        case Call(_, _, arguments):
            for argument in arguments:
                yield from _numbers(argument.value)
        case Index(base, _):
            yield from _numbers(base)


def _rules() -> dict[str, Rule]:
    same: dict[str, Rule] = {f"aten.{name}.default": _matmul for name in ("matmul", "mm", "bmm", "mv", "dot")}
    return same | {
        "aten._grouped_mm.default": _grouped("self", "mat2"),
        "transformers.grouped_mm_fallback.default": _grouped("input", "weight"),
        "aten.addmm.default": _added("mat1", "mat2"),
        "aten.addmv.default": _added("mat", "vec"),
        "aten.baddbmm.default": _added("batch1", "batch2"),
        "aten._trilinear.default": _trilinear,
        "aten.bilinear.default": _bilinear,
        "aten.einsum.default": _einsum,
        "aten.linear.default": _linear,
        "aten.scaled_dot_product_attention.default": _attention,
    }


RULES: Mapping[str, Rule] = MappingProxyType(_rules())
